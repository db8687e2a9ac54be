package auth

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tandemhq/tandem/coord"
)

var quick = Hashing{Memory: 64, Iterations: 1, Parallel: 2}

func TestPasswords(t *testing.T) {
	h := newHasher(quick)
	hash, err := h.hash(t.Context(), "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		password, hash string
		want           bool
	}{
		{"correct horse", hash, true},
		{"correct horsE", hash, false},
		{"", hash, false},
		{"", "", false}, // the dummy is made of the empty password
		{"correct horse", "", false},
	} {
		if got, err := h.compare(t.Context(), test.password, test.hash); got != test.want || err != nil {
			t.Errorf("%q: got %v, %v", test.password, got, err)
		}
	}
}

func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHasher(quick)
		for range quick.Parallel {
			if _, err := h.turn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.compare(t.Context(), "x", ""); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.hash(ctx, "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want cancelled", err)
		}
	})
}
