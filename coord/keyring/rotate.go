package keyring

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Fenced runs fn in one transaction that has the Fence of a leader's term, see
// [coord.Tx.Fence].
type Fenced func(ctx context.Context, fn func(ctx context.Context, tx coord.Tx) error) error

// Rotation is how a ring is to be rotated.
type Rotation struct {
	// Early adds the next key, when there is none, although it is not time yet, and seals all
	// keys under the first KEK. Otherwise a new key is sealed as the active one is, so that replicas
	// which were not given a new KEK yet can use it. The key still becomes active only when it was known for long
	// enough.
	Early bool
	// AtOnce lets another key be active at once, the next one if there is one, although not every
	// replica knows it: each loads it as it meets it.
	AtOnce bool
	// InUse is the oldest version that something is still sealed with, 0 for none. It is not
	// retired, nor is a newer one.
	InUse int64
}

// Rotate does what is due: a next key is added, becomes active in place of the one that was, and is
// retired in the end, in Options.Every less Options.Overlap, Options.Overlap and Options.Keep,
// each from when it came to its state. It is for one replica at a time, every few minutes, and
// reports whether there was anything to do. Errors: [coord.ErrFenced], [coord.ErrUnavailable],
// [*KEKError].
func (r *Ring) Rotate(ctx context.Context, fenced Fenced, o Rotation) (changed bool, err error) {
	return r.change(ctx, fenced, func(v *view) (c coord.RingChange, err error) {
		c.Keys, err = r.due(v, o)
		return c, err
	})
}

// Revoke retires a key at once, whatever it has signed. When it is the active one the next becomes
// active, or else another key does, although not every replica knows it yet: each loads it as it
// meets it. Until a replica hears of that, which takes it Options.Poll at most while the store
// answers, it goes on with the old one. Errors as of Rotate; [coord.ErrConflict] when there is
// no such key that is not retired.
func (r *Ring) Revoke(ctx context.Context, fenced Fenced, version int64) error {
	_, err := r.change(ctx, fenced, func(v *view) (c coord.RingChange, err error) {
		c = coord.RingChange{Revoke: coord.NewRevocation{Version: version, Keep: r.o.Keep}}
		next := v.is(coord.KeyNext)
		switch {
		case !v.live(version):
			return c, fmt.Errorf("%w: the ring %q has no key %d that is not retired", coord.ErrConflict, r.o.Name, version)
		case version != v.active:
		case next != nil:
			c.Keys = []coord.KeyChange{{Version: next.Version, State: coord.KeyActive}}
		default:
			c.Keys, err = r.likeActive(v, coord.KeyActive)
		}
		return c, err
	})
	return err
}

// RevokeToken voids what was signed, by its [TokenID], for as long as it could be good otherwise.
// Errors as of Rotate.
func (r *Ring) RevokeToken(ctx context.Context, fenced Fenced, id string, keep time.Duration) error {
	_, err := r.change(ctx, fenced, func(*view) (coord.RingChange, error) {
		return coord.RingChange{Revoke: coord.NewRevocation{Token: id, Keep: keep}}, nil
	})
	return err
}

// change plans a change on the ring as it is and makes it; again, when another came first.
func (r *Ring) change(ctx context.Context, fenced Fenced, plan func(v *view) (coord.RingChange, error)) (changed bool, err error) {
	for range 5 {
		if err := r.load(ctx); err != nil {
			return false, err
		}
		v := r.known.Load()
		c, err := plan(v)
		if err != nil || len(c.Keys) == 0 && c.Revoke == (coord.NewRevocation{}) {
			return false, err
		}
		c.Ring, c.Revision = r.o.Name, v.Revision
		err = fenced(ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.ChangeRing(ctx, c)
			return err
		})
		if err == nil {
			return true, r.load(ctx)
		}
		if !errors.Is(err, coord.ErrConflict) {
			return false, err
		}
	}
	return false, fmt.Errorf("keyring: %w: the ring %q is being changed by others", coord.ErrConflict, r.o.Name)
}

// is returns a key of a state.
func (v *view) is(state coord.KeyState) *coord.Key {
	for i := range v.Keys {
		if v.Keys[i].State == state {
			return &v.Keys[i]
		}
	}
	return nil
}

// live reports whether there is such a key, and it is not retired.
func (v *view) live(version int64) bool {
	for _, k := range v.Keys {
		if k.Version == version {
			return k.State != coord.KeyRetired
		}
	}
	return false
}

// likeActive is a new key that everybody can use who can use the active one.
func (r *Ring) likeActive(v *view, state coord.KeyState) ([]coord.KeyChange, error) {
	kek, err := r.sealingAs(*v.is(coord.KeyActive))
	if err != nil {
		return nil, err
	}
	return []coord.KeyChange{r.newKey(kek, v.LastVersion()+1, state)}, nil
}

// due returns what is to be done to the keys.
func (r *Ring) due(v *view, o Rotation) (changes []coord.KeyChange, err error) {
	age := func(k coord.Key) time.Duration { return v.ReadAt.Sub(k.ChangedAt) }
	next := v.is(coord.KeyNext)
	add := func(state coord.KeyState) error {
		if o.Early { // and so all are sealed anew
			changes = append(changes, r.newKey(r.sealing(), v.LastVersion()+1, state))
			return nil
		}
		key, err := r.likeActive(v, state)
		changes = append(changes, key...)
		return err
	}
	for _, k := range v.Keys {
		switch {
		case k.State == coord.KeyActive && next != nil && (o.AtOnce || age(*next) >= r.o.Overlap):
			changes = append(changes,
				coord.KeyChange{Version: k.Version, State: coord.KeyRetiring}, coord.KeyChange{Version: next.Version, State: coord.KeyActive})
		case k.State == coord.KeyActive && o.AtOnce:
			changes = append(changes, coord.KeyChange{Version: k.Version, State: coord.KeyRetiring})
			err = add(coord.KeyActive)
		case k.State == coord.KeyActive && next == nil && (o.Early || age(k) >= r.o.Every-r.o.Overlap):
			err = add(coord.KeyNext)
		case k.State == coord.KeyRetiring && age(k) >= r.o.Keep && (o.InUse == 0 || k.Version < o.InUse):
			changes = append(changes, coord.KeyChange{Version: k.Version, State: coord.KeyRetired})
			continue
		}
		if err != nil {
			return nil, err
		}
		kek := r.sealing()
		if !o.Early || k.State == coord.KeyRetired || kek == nil || k.SealedBy == kek.id {
			continue
		}
		secret, opened := v.secrets[k.Version]
		if !opened {
			return nil, v.unopened
		}
		changes = append(changes, r.sealKey(kek, k.Version, secret))
	}
	return changes, nil
}
