package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// newKey is a change that adds a key.
func newKey(version int64, state coord.KeyState) coord.KeyChange {
	return coord.KeyChange{Version: version, State: state, Material: fmt.Append(nil, "secret ", version), SealedBy: "kek"}
}

func become(version int64, state coord.KeyState) coord.KeyChange {
	return coord.KeyChange{Version: version, State: state}
}

// ring loads a ring through both handles, of what is known and of nothing, which must agree.
func (f *fixture) ring(known coord.Ring) coord.Ring {
	f.Helper()
	var all []coord.Ring
	for _, b := range f.handles() {
		for _, known := range []coord.Ring{known, {Name: known.Name}} {
			r, err := b.Keyring().Load(f.ctx, known)
			must(f, "Load", err)
			all = append(all, r)
		}
	}
	for _, r := range all[1:] {
		equal(f, "the ring as another has loaded it", r, all[0])
	}
	return all[0]
}

// changeRing changes a ring as the leader, in one transaction with an event, and returns it.
func (f *fixture) changeRing(b coord.Backend, c coord.RingChange) (r coord.Ring, err error) {
	f.Helper()
	err = changeRing(f.ctx, b, f.leads(), c, &r)
	return r, err
}

// leads returns a term that lasts, whatever the clock has done.
func (f *fixture) leads() coord.Term {
	f.Helper()
	return f.wins(f.one, coord.Candidacy{Name: "keys", Candidate: "node of ada", Holder: "ada", Lease: 10 * time.Minute})
}

func changeRing(ctx context.Context, b coord.Backend, t coord.Term, c coord.RingChange, r *coord.Ring) error {
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) (err error) {
		if err := tx.Fence(ctx, t); err != nil {
			return err
		}
		*r, err = tx.ChangeRing(ctx, c)
		return err
	})
}

// changed changes a ring, and what is loaded afterwards must be what the change returned.
func (f *fixture) changed(r coord.Ring, c coord.RingChange) coord.Ring {
	f.Helper()
	c.Ring, c.Revision = r.Name, r.Revision
	next, err := f.changeRing(f.two, c)
	must(f, "ChangeRing", err)
	equal(f, "the revision", next.Revision, r.Revision+1)
	equal(f, "ChangedAt", next.ChangedAt, f.store.Now())
	equal(f, "the ring as it is loaded", f.ring(r), next)
	return next
}

// hasNot changes a ring in vain.
func (f *fixture) hasNot(why string, r coord.Ring, c coord.RingChange) {
	f.Helper()
	c.Ring = r.Name
	if c.Revision == 0 {
		c.Revision = r.Revision
	}
	is(f, "ChangeRing "+why, second(f.changeRing(f.one, c)), coord.ErrConflict)
	f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error { // for who swallows the error, the rest commits
		_, err := tx.ChangeRing(ctx, c)
		is(f, "ChangeRing "+why, err, coord.ErrConflict)
		return nil
	})
	equal(f, "the ring "+why, f.ring(r), r)
}

// states are the keys of a ring, as "1 retired".
func states(r coord.Ring) (list []string) {
	for _, k := range r.Keys {
		list = append(list, fmt.Sprint(k.Version, " ", k.State))
	}
	return list
}

var keyringTests = []test{
	{"a ring without keys", func(f *fixture) {
		r := f.ring(coord.Ring{Name: "tokens"})
		equal(f, "the ring", r, coord.Ring{Name: "tokens"})
		f.hasNot("whose first key is next", r, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyNext)}})
		f.hasNot("whose first key is the second", r, coord.RingChange{Keys: []coord.KeyChange{newKey(2, coord.KeyActive)}})
		f.hasNot("that is to have keys already", r, coord.RingChange{Revision: 1, Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		f.hasNot("that gets a key without a secret", r, coord.RingChange{Keys: []coord.KeyChange{become(1, coord.KeyActive)}})
		f.hasNot("that gets no key", r, coord.RingChange{Revoke: coord.NewRevocation{Token: "t", Keep: time.Hour}})
	}},
	{"a key's life", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		began := f.store.Now()
		equal(f, "the first key", r.Keys, []coord.Key{{
			Version: 1, State: coord.KeyActive, Material: []byte("secret 1"), SealedBy: "kek", CreatedAt: began, ChangedAt: began,
		}})
		f.store.Advance(time.Hour)
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{newKey(2, coord.KeyNext)}})
		f.store.Advance(time.Hour)
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{
			become(1, coord.KeyRetiring), become(2, coord.KeyActive), newKey(3, coord.KeyNext),
		}})
		equal(f, "the keys", states(r), []string{"1 retiring", "2 active", "3 next"})
		equal(f, "CreatedAt", r.Keys[1].CreatedAt, began.Add(time.Hour))
		equal(f, "ChangedAt", r.Keys[1].ChangedAt, began.Add(2*time.Hour))
		f.store.Advance(time.Hour)
		at := f.store.Now()
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{become(1, coord.KeyRetired), become(2, coord.KeyActive)}})
		equal(f, "the key that is retired", r.Keys[0], coord.Key{Version: 1, State: coord.KeyRetired, CreatedAt: began, ChangedAt: at})
		equal(f, "ChangedAt of what was active before", r.Keys[1].ChangedAt, began.Add(2*time.Hour))
		sealed := coord.KeyChange{Version: 2, Material: []byte{0, 1, 0xff}, SealedBy: ""}
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{sealed}})
		equal(f, "the secret that was sealed anew", r.Keys[1].Material, sealed.Material)
		equal(f, "the keys", states(r), []string{"1 retired", "2 active", "3 next"})
	}},
	{"what a key can't become, it does not", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{become(1, coord.KeyRetiring), newKey(2, coord.KeyActive)}})
		r = f.changed(r, coord.RingChange{Keys: []coord.KeyChange{newKey(3, coord.KeyNext), become(1, coord.KeyRetired)}})
		for why, keys := range map[string][]coord.KeyChange{
			"by an older revision":                              nil,
			"that would have two active keys":                   {become(3, coord.KeyActive)},
			"that would have no active key":                     {become(2, coord.KeyRetiring)},
			"that would have lost its active key":               {become(2, coord.KeyRetired)},
			"that would have two keys that are next":            {newKey(4, coord.KeyNext)},
			"that would leave out a version":                    {newKey(5, coord.KeyNext)},
			"whose new key is retiring":                         {newKey(4, coord.KeyRetiring)},
			"whose key is to come back":                         {become(2, coord.KeyRetiring), become(1, coord.KeyActive)},
			"whose active key is to be next":                    {become(3, coord.KeyRetired), become(2, coord.KeyNext)},
			"whose next key is to be retiring":                  {become(3, coord.KeyRetiring)},
			"whose retired key is to have a secret":             {{Version: 1, Material: []byte("x")}},
			"of which one change can be made and the other not": {become(3, coord.KeyRetired), newKey(9, coord.KeyNext)},
		} {
			c := coord.RingChange{Keys: keys}
			if keys == nil {
				c.Revision = r.Revision - 1
				c.Keys = []coord.KeyChange{become(3, coord.KeyRetired)}
			}
			f.hasNot(why, r, c)
		}
	}},
	{"rings are apart, and their names are data", func(f *fixture) {
		for i, name := range awkward {
			key := newKey(1, coord.KeyActive)
			key.SealedBy, key.Material = name, append(everyByte(), byte(i))
			r := f.changed(coord.Ring{Name: name}, coord.RingChange{Keys: []coord.KeyChange{key}})
			r = f.changed(r, coord.RingChange{Revoke: coord.NewRevocation{Token: name, Keep: time.Hour}})
			equal(f, "the secret", r.Keys[0].Material, key.Material)
			equal(f, "SealedBy", r.Keys[0].SealedBy, name)
			equal(f, "the token that is revoked", r.Revocations[0].Token, name)
		}
		for i, name := range awkward {
			equal(f, "the last byte", int(f.ring(coord.Ring{Name: name}).Keys[0].Material[256]), i)
		}
	}},
	{"revocations are numbered, and forgotten when they expire", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		began := f.store.Now()
		r = f.changed(r, coord.RingChange{Revoke: coord.NewRevocation{Token: "a", Keep: time.Minute}})
		r = f.changed(r, coord.RingChange{
			Keys: []coord.KeyChange{newKey(2, coord.KeyActive)}, Revoke: coord.NewRevocation{Version: 1, Keep: time.Hour},
		})
		equal(f, "the keys", states(r), []string{"1 retired", "2 active"})
		all := []coord.Revocation{
			{Number: 2, Token: "a", ExpiresAt: began.Add(time.Minute)},
			{Number: 3, Version: 1, ExpiresAt: began.Add(time.Hour)},
		}
		equal(f, "the revocations", r.Revocations, all)
		f.hasNot("whose active key is revoked without another", r, coord.RingChange{Revoke: coord.NewRevocation{Version: 2, Keep: time.Hour}})
		f.hasNot("whose retired key is revoked", r, coord.RingChange{
			Keys: []coord.KeyChange{newKey(9, coord.KeyNext)}, Revoke: coord.NewRevocation{Version: 1, Keep: time.Hour},
		})
		f.store.Advance(time.Minute - time.Microsecond)
		equal(f, "the revocations that last", f.ring(r).Revocations, all)
		f.store.Advance(time.Microsecond)
		equal(f, "the revocations that last", f.ring(r).Revocations, all[1:])
		f.store.Advance(time.Hour)
		r = f.changed(f.ring(r), coord.RingChange{Revoke: coord.NewRevocation{Token: "b", Keep: time.Minute}})
		equal(f, "the revocations", r.Revocations, []coord.Revocation{{Number: 4, Token: "b", ExpiresAt: f.store.Now().Add(time.Minute)}})
	}},
	{"revoked by many at once, each has a number of its own", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		t := f.leads()
		const callers, each = 8, 5
		var mu sync.Mutex
		numbers := make(map[int64]string)
		f.together(callers, func(i int, b coord.Backend) {
			known, last := r, int64(0)
			for k := 0; k < each; {
				token := fmt.Sprint(i, ".", k)
				var next coord.Ring
				err := changeRing(f.ctx, b, t, coord.RingChange{
					Ring: known.Name, Revision: known.Revision, Revoke: coord.NewRevocation{Token: token, Keep: time.Hour},
				}, &next)
				switch {
				case err == nil:
					k++
					number := next.Revocations[len(next.Revocations)-1].Number
					mu.Lock()
					if other, twice := numbers[number]; twice || number <= last {
						f.Errorf("%s has the number %d, which %q has; its own last one was %d", token, number, other, last)
					}
					numbers[number], last = token, number
					mu.Unlock()
				case !errors.Is(err, coord.ErrConflict):
					f.Errorf("ChangeRing: %v", err)
					return
				}
				if known, err = b.Keyring().Load(f.ctx, known); err != nil {
					f.Errorf("Load: %v", err)
					return
				}
			}
		})
		r = f.ring(r)
		equal(f, "how many revocations there are", len(r.Revocations), callers*each)
		equal(f, "the revision", r.Revision, 1+callers*each)
		for _, v := range r.Revocations {
			equal(f, fmt.Sprint("who has the number ", v.Number), v.Token, numbers[v.Number])
		}
	}},
	{"of many that make the first key one does", func(f *fixture) {
		var mu sync.Mutex
		made := make(map[string]int)
		f.together(18, func(i int, b coord.Backend) {
			name := fmt.Sprint("ring ", i%3)
			err := b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
				key := newKey(1, coord.KeyActive)
				key.Material = fmt.Append(nil, i)
				_, err := tx.ChangeRing(ctx, coord.RingChange{Ring: name, Keys: []coord.KeyChange{key}})
				return err
			})
			if err != nil && !errors.Is(err, coord.ErrConflict) {
				f.Errorf("ChangeRing: %v", err)
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				if other, twice := made[name]; twice {
					f.Errorf("%d and %d have made the first key of %q", i, other, name)
				}
				made[name] = i
			}
		})
		for name, i := range made {
			equal(f, "the secret", string(f.ring(coord.Ring{Name: name}).Keys[0].Material), fmt.Sprint(i))
		}
		equal(f, "how many rings there are", len(made), 3)
	}},
	{"only who leads changes a ring that has keys", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		c := coord.RingChange{Ring: r.Name, Revision: r.Revision, Keys: []coord.KeyChange{newKey(2, coord.KeyNext)}}
		err := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return second(tx.ChangeRing(ctx, c)) })
		is(f, "InTx with ChangeRing and no Fence", err, coord.ErrInvalid)
		t := f.leads()
		f.resign(f.one, t)
		is(f, "ChangeRing of a past leader", changeRing(f.ctx, f.one, t, c, new(coord.Ring)), coord.ErrFenced)
		t = f.leads()
		err = f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.ChangeRing(ctx, c)
			return errors.Join(err, tx.Fence(ctx, t), errOwn)
		})
		equal(f, "whether InTx returned its function's error", errors.Is(err, errOwn), true)
		equal(f, "the ring after all that", f.ring(r), r)
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error { // the Fence may come last
			_, err := tx.ChangeRing(ctx, c)
			return errors.Join(err, tx.Fence(ctx, t))
		})
		equal(f, "the keys", states(f.ring(r)), []string{"1 active", "2 next"})
	}},
	{"no ring is changed before a transaction that holds it has ended", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		t := f.leads()
		c := coord.RingChange{Ring: r.Name, Revision: r.Revision, Keys: []coord.KeyChange{newKey(2, coord.KeyNext)}}
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error {
			for _, known := range []coord.Ring{{Name: r.Name}, r} {
				held, err := tx.HoldRing(ctx, known)
				must(f, "HoldRing", err)
				equal(f, "the ring that is held", held, r)
			}
			// Where writers take turns this one waits for its turn, and gives up.
			asking, cancel := context.WithTimeout(f.ctx, 100*time.Millisecond)
			defer cancel()
			if err := changeRing(asking, f.two, t, c, new(coord.Ring)); !errors.Is(err, context.DeadlineExceeded) {
				f.Errorf("ChangeRing while a transaction holds the ring: %v", err)
			}
			held, err := tx.HoldRing(ctx, coord.Ring{Name: r.Name})
			must(f, "HoldRing", err)
			equal(f, "the ring that is held", held, r)
			return tx.Publish(ctx, event("tokens", "x"))
		})
		equal(f, "the ring afterwards", f.ring(r), r)
		var next coord.Ring
		// By the term that there is: the change that gave up may hold it for a moment yet.
		must(f, "ChangeRing afterwards", changeRing(f.ctx, f.two, t, c, &next))
		equal(f, "the ring as it is loaded", f.ring(r), next)
		f.inTx(f.two, func(ctx context.Context, tx coord.Tx) error { // what is known may be older, or of nothing
			for _, known := range []coord.Ring{{Name: r.Name}, r, next} {
				held, err := tx.HoldRing(ctx, known)
				must(f, "HoldRing", err)
				equal(f, "the ring that is held, as it is", held, next)
			}
			none, err := tx.HoldRing(ctx, coord.Ring{Name: "none"})
			must(f, "HoldRing of a ring that there is not", err)
			equal(f, "a ring that there is not", none, coord.Ring{Name: "none"})
			return nil
		})
	}},
	{"a change that is cut off is seen by its revision", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		for _, point := range []struct {
			op    string
			fault Fault
			made  bool
		}{
			{"tx.change_ring", Fault{Fail: true}, false},
			{"tx.change_ring", Fault{Cut: true}, false},
			{"backend.tx", Fault{Fail: true}, false},
			{"backend.tx", Fault{Cut: true}, true},
		} {
			c := coord.RingChange{Ring: r.Name, Revision: r.Revision, Revoke: coord.NewRevocation{Token: "t", Keep: time.Hour}}
			is(f, "a change that fails", second(f.changeRing(Faulty(f.one, Nth(point.op, 1, point.fault)), c)), coord.ErrUnavailable)
			now := f.ring(r)
			equal(f, "whether it was made: "+point.op, now.Revision == r.Revision+1, point.made)
			r = now
		}
		b := Faulty(f.one, Nth("keyring.load", 1, Fault{Cut: true}))
		is(f, "Load that is cut off", second(b.Keyring().Load(f.ctx, r)), coord.ErrUnavailable)
	}},
	{"a ring has bounds", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		var keys []coord.KeyChange
		for v := int64(1); v < 100; v++ {
			keys = append(keys, become(v, coord.KeyRetiring), newKey(v+1, coord.KeyActive))
		}
		r = f.changed(r, coord.RingChange{Keys: keys})
		more := []coord.KeyChange{newKey(101, coord.KeyNext)}
		f.hasNot("that has a hundred keys in use", r, coord.RingChange{Keys: more})
		r = f.changed(r, coord.RingChange{Keys: append(more, become(1, coord.KeyRetired), become(7, coord.KeyRetired))})
		equal(f, "the oldest keys", states(r)[:6], []string{"2 retiring", "3 retiring", "4 retiring", "5 retiring", "6 retiring", "7 retired"})
		equal(f, "LastVersion", r.LastVersion(), 101)
	}},
	{"changes are told to all", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Hints, "Hints") {
			return
		}
		r := coord.Ring{Name: "tokens"}
		for i, b := range f.handles() {
			changes, stop := b.Keyring().Changes()
			f.leads()
			f.allHeard(b)
			select { // what came before is in the way
			case <-changes:
			default:
			}
			c := coord.RingChange{Keys: []coord.KeyChange{newKey(int64(i+1), []coord.KeyState{coord.KeyActive, coord.KeyNext}[i])}}
			r = f.changed(r, c)
			f.heard("ChangeRing", changes)
			stop()
		}
	}},
	{"what was loaded is the caller's", func(f *fixture) {
		r := f.changed(coord.Ring{Name: "tokens"}, coord.RingChange{Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}})
		r = f.changed(r, coord.RingChange{Revoke: coord.NewRevocation{Token: "t", Keep: time.Hour}})
		r.Keys[0].Material[0], r.Keys[0].State, r.Revocations[0].Token = 'X', coord.KeyRetired, "X"
		now := f.ring(coord.Ring{Name: "tokens"})
		equal(f, "the secret", string(now.Keys[0].Material), "secret 1")
		equal(f, "the keys", states(now), []string{"1 active"})
		equal(f, "the token", now.Revocations[0].Token, "t")
		if slices.Equal(states(r), states(now)) {
			f.Error("the caller's own was not changed")
		}
	}},
}

func badRing(field, why string, change func(c *coord.RingChange)) badCall {
	return badCall{field, why, func(f *fixture) error {
		c := coord.RingChange{Ring: "tokens", Keys: []coord.KeyChange{newKey(1, coord.KeyActive)}}
		change(&c)
		return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return second(tx.ChangeRing(ctx, c)) })
	}}
}

var badRings = []badCall{
	{"Ring.Name", "is empty", func(f *fixture) error { return second(f.one.Keyring().Load(f.ctx, coord.Ring{})) }},
	{"Ring.Name", "is empty, to be held", func(f *fixture) error {
		return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return second(tx.HoldRing(ctx, coord.Ring{})) })
	}},
	badRing("RingChange.Ring", "is empty", func(c *coord.RingChange) { c.Ring = "" }),
	badRing("RingChange.Ring", "has a NUL", func(c *coord.RingChange) { c.Ring = "a\x00" }),
	badRing("RingChange.Revision", "is negative", func(c *coord.RingChange) { c.Revision = -1 }),
	badRing("KeyChange.Version", "is 0", func(c *coord.RingChange) { c.Keys[0].Version = 0 }),
	badRing("KeyChange.State", "is unknown", func(c *coord.RingChange) { c.Keys[0].State = "x" }),
	badRing("KeyChange.SealedBy", "has a NUL", func(c *coord.RingChange) { c.Keys[0].SealedBy = "\x00" }),
	badRing("len(KeyChange.Material)", "is 0", func(c *coord.RingChange) { c.Keys[0].Material = []byte{} }),
	badRing("len(KeyChange.Material)", "is too much", func(c *coord.RingChange) { c.Keys[0].Material = make([]byte, 4097) }),
	badRing("NewRevocation.Token", "is empty", func(c *coord.RingChange) { c.Revoke.Keep = time.Hour }),
	badRing("NewRevocation.Token", "is beside a version", func(c *coord.RingChange) {
		c.Revoke = coord.NewRevocation{Version: 1, Token: "t", Keep: time.Hour}
	}),
	badRing("NewRevocation.Keep", "is missing", func(c *coord.RingChange) { c.Revoke.Token = "t" }),
}
