package coord

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// So many tokens may be revoked, and a key beyond that.
func TestAKeyCanBeRevokedBesideManyTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r, err := Ring{Name: "tokens"}.Change(RingChange{Ring: "tokens", Keys: []KeyChange{{Version: 1, State: KeyActive, Material: []byte("x")}}}, now)
	if err != nil {
		t.Fatal(err)
	}
	revoke := func(v NewRevocation, keys ...KeyChange) error {
		v.Keep = time.Hour
		next, err := r.Change(RingChange{Ring: r.Name, Revision: r.Revision, Keys: keys, Revoke: v}, now)
		if err == nil {
			r = next
		}
		return err
	}
	for i := range maxRevocations {
		if err := revoke(NewRevocation{Token: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := revoke(NewRevocation{Token: "another"}); !errors.Is(err, ErrConflict) {
			t.Errorf("another token: %v", err)
		}
		last := r.LastVersion()
		if err := revoke(NewRevocation{Version: last}, KeyChange{Version: last + 1, State: KeyActive, Material: []byte("x")}); err != nil {
			t.Errorf("key %d: %v", last, err)
		}
	}
	if len(r.Revocations) != maxRevocations+2 {
		t.Errorf("%d are revoked", len(r.Revocations))
	}
	now = now.Add(time.Hour)
	if err := revoke(NewRevocation{Token: "another"}); err != nil || len(r.Revocations) != 1 {
		t.Errorf("when they have expired: %v; %d are revoked", err, len(r.Revocations))
	}
}
