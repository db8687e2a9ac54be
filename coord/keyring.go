package coord

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"
)

// Keyring keeps secrets that all replicas of a program share, and that change: rings of
// numbered keys. Package coord/keyring signs and seals with them. Here they are bytes, which
// that package seals under a key that the store does not have.
//
// A ring that has keys has exactly one active one, always: with it everybody signs. It is
// changed by [Tx.ChangeRing].
type Keyring interface {
	// Load returns a ring as it is, and one of revision 0 when it has no keys yet. known is
	// what was loaded before, or has the name alone; of a ring that is as it was then nothing
	// is read but that. Errors: ErrInvalid, ErrUnavailable.
	Load(ctx context.Context, known Ring) (Ring, error)
	// Changes returns a channel that receives when a ring may have changed, and a function
	// that gives the channel up. A hint is only that: it may come late, for nothing, or not at
	// all.
	Changes() (changes <-chan struct{}, stop func())
}

// Ring is a ring of keys as it was at a time.
type Ring struct {
	Name string // 1–200 bytes. Each that has ever had a key is remembered
	// Revision is 0 of a ring without keys, and grows by one with each change. It never
	// returns to what it was, for as long as the store lives.
	Revision    int64
	ChangedAt   time.Time    // by the store's clock, as all times here
	ReadAt      time.Time    // when it was so
	Keys        []Key        // by version; of those that are retired the last ones
	Revocations []Revocation // that have not expired, by number
}

// Key is a key of a ring.
type Key struct {
	Version   int64 // from 1, and each one more than the one before
	State     KeyState
	Material  []byte // 1–4096 bytes; none of a key that is retired
	SealedBy  string // what the material is sealed under, "" when it is not; at most 200 bytes
	CreatedAt time.Time
	ChangedAt time.Time // when it came to its state
}

// KeyState is what a key is used for.
type KeyState string

// The states of a key, in their order.
const (
	KeyNext     KeyState = "next"     // for nothing yet: it is to be known everywhere first. At most one of a ring
	KeyActive   KeyState = "active"   // for signing. One of a ring
	KeyRetiring KeyState = "retiring" // for what it has signed
	KeyRetired  KeyState = "retired"  // for nothing, ever: its material is gone
)

// Revocation says that something is good no longer, whatever key it was signed with.
type Revocation struct {
	Number    int64     // the ring's revision since then: they grow, and none comes twice
	Version   int64     // the key that was revoked, or 0
	Token     string    // what was signed by a ring, "" when a key was revoked
	ExpiresAt time.Time // when it is forgotten
}

// RingChange is what a ring is to become.
type RingChange struct {
	Ring     string // its name
	Revision int64  // of what the change was decided on
	Keys     []KeyChange
	Revoke   NewRevocation // none by default
}

// KeyChange is a new key, with the version behind the last one, or a change of one.
type KeyChange struct {
	Version int64
	// State is what a key becomes, "" for what it is. A new one is next or active; next
	// becomes active, active retiring, and all of them retired.
	State KeyState
	// Material and SealedBy are those of a new key, or instead of those that it has: the same
	// secret, sealed under something else.
	Material []byte
	SealedBy string
}

// NewRevocation revokes a key, which is retired with it, or what was signed.
type NewRevocation struct {
	Version int64
	Token   string        // 1–200 bytes, if Version is 0
	Keep    time.Duration // for which the token could be good otherwise; up to ten years
}

// The bounds of a ring.
const (
	maxKeys        = 100  // retired ones go before that, the oldest first
	maxRevocations = 1000 // of tokens, that have not expired
	maxMaterial    = 4096 // bytes
)

// Change returns what a change makes of the ring at now, for authors of drivers. Errors:
// ErrConflict when that can't be: the ring has been changed since, a key can't come to that
// state from its own, not exactly one key would be active, or there are too many.
func (r Ring) Change(c RingChange, now time.Time) (Ring, error) {
	if c.Revision != r.Revision {
		return r, fmt.Errorf("%w: the ring has the revision %d, not %d", ErrConflict, r.Revision, c.Revision)
	}
	r.Revision, r.ChangedAt, r.ReadAt = r.Revision+1, now, now
	r.Keys = slices.Clone(r.Keys)
	changes := c.Keys
	if c.Revoke.Version > 0 {
		changes = append(slices.Clone(changes), KeyChange{Version: c.Revoke.Version, State: KeyRetired})
	}
	for _, change := range changes {
		if err := r.changeKey(change, now); err != nil {
			return r, err
		}
	}
	states := make(map[KeyState]int)
	for _, k := range r.Keys {
		states[k.State]++
	}
	switch {
	case states[KeyActive] != 1:
		return r, fmt.Errorf("%w: the ring would have %d active keys", ErrConflict, states[KeyActive])
	case states[KeyNext] > 1:
		return r, fmt.Errorf("%w: the ring would have %d keys that are next", ErrConflict, states[KeyNext])
	}
	for spare := len(r.Keys) - maxKeys; spare > 0; spare-- {
		oldest := slices.IndexFunc(r.Keys, func(k Key) bool { return k.State == KeyRetired })
		if oldest < 0 {
			return r, fmt.Errorf("%w: the ring has %d keys that are in use", ErrConflict, maxKeys)
		}
		r.Keys = slices.Delete(r.Keys, oldest, oldest+1)
	}
	r.Revocations = r.unexpired()
	if c.Revoke != (NewRevocation{}) {
		tokens := 0
		for _, v := range r.Revocations {
			if v.Token != "" {
				tokens++
			}
		}
		if c.Revoke.Token != "" && tokens >= maxRevocations { // a key can always be revoked
			return r, fmt.Errorf("%w: the ring has %d revocations that have not expired", ErrConflict, maxRevocations)
		}
		r.Revocations = append(r.Revocations, Revocation{
			Number: r.Revision, Version: c.Revoke.Version, Token: c.Revoke.Token,
			ExpiresAt: now.Add(c.Revoke.Keep.Truncate(time.Microsecond)),
		})
	}
	return r, nil
}

func (r *Ring) changeKey(c KeyChange, now time.Time) error {
	i := slices.IndexFunc(r.Keys, func(k Key) bool { return k.Version == c.Version })
	if i < 0 {
		if last := r.LastVersion(); c.Version != last+1 || c.State != KeyNext && c.State != KeyActive || c.Material == nil {
			return fmt.Errorf("%w: there is no key %d, and a new one is number %d, next or active", ErrConflict, c.Version, last+1)
		}
		r.Keys = append(r.Keys, Key{Version: c.Version, CreatedAt: now})
		i = len(r.Keys) - 1
	}
	k := &r.Keys[i]
	if c.Material != nil {
		if k.State == KeyRetired {
			return fmt.Errorf("%w: key %d is retired", ErrConflict, k.Version)
		}
		k.Material, k.SealedBy = bytes.Clone(c.Material), c.SealedBy
	}
	if c.State == "" || c.State == k.State {
		return nil
	}
	after := map[KeyState][]KeyState{
		"": {KeyNext, KeyActive}, KeyNext: {KeyActive, KeyRetired}, KeyActive: {KeyRetiring, KeyRetired}, KeyRetiring: {KeyRetired},
	}
	if !slices.Contains(after[k.State], c.State) {
		return fmt.Errorf("%w: key %d is %s and can't become %s", ErrConflict, k.Version, k.State, c.State)
	}
	k.State, k.ChangedAt = c.State, now
	if k.State == KeyRetired {
		k.Material, k.SealedBy = nil, ""
	}
	return nil
}

// LastVersion returns the version of the newest key, 0 of a ring that has none. All above
// have never been, and those below that the ring does not have are retired.
func (r Ring) LastVersion() int64 {
	if len(r.Keys) == 0 {
		return 0
	}
	return r.Keys[len(r.Keys)-1].Version
}

// unexpired returns the revocations that last when the ring was read.
func (r Ring) unexpired() []Revocation {
	return slices.DeleteFunc(slices.Clone(r.Revocations), func(v Revocation) bool { return !v.ExpiresAt.After(r.ReadAt) })
}
