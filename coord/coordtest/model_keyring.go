package coordtest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelRing is what is known of a ring.
type modelRing struct {
	revision int64
	keys     []coord.Key
	revoked  []coord.Revocation
	seen     []coord.Ring // as it was loaded before
}

type keyringModel struct {
	model
	rings map[string]*modelRing
}

func newKeyringModel(m model) *keyringModel {
	return &keyringModel{model: m, rings: map[string]*modelRing{m.name("a"): {}, m.name("b"): {}}}
}

func (m *keyringModel) actions() actions {
	return actions{"": m.compare, "rotate": m.rotate, "change": m.change, "revoke": m.revoke, "stale": m.stale, "advance": m.advance}
}

func (m *keyringModel) draw(t *rapid.T) (string, *modelRing) {
	name := m.name(pick(t, "ring", "a", "b"))
	return name, m.rings[name]
}

// state returns a key of a state.
func (r *modelRing) state(s coord.KeyState) *coord.Key {
	for i := range r.keys {
		if r.keys[i].State == s {
			return &r.keys[i]
		}
	}
	return nil
}

func (m *keyringModel) ask(t *rapid.T, c coord.RingChange) error {
	return second(m.changeRing(m.backend(t), c))
}

// to is what a key becomes in the model.
func (m *keyringModel) to(k *coord.Key, state coord.KeyState) {
	k.State, k.ChangedAt = state, m.store.Now()
	if state == coord.KeyRetired {
		k.Material, k.SealedBy = nil, ""
	}
}

func (m *keyringModel) add(r *modelRing, c coord.KeyChange) {
	now := m.store.Now()
	r.keys = append(r.keys, coord.Key{
		Version: c.Version, State: c.State, Material: c.Material, SealedBy: c.SealedBy, CreatedAt: now, ChangedAt: now,
	})
}

// rotate adds the first key or the next one, or lets the next one follow the active one.
func (m *keyringModel) rotate(t *rapid.T) {
	name, r := m.draw(t)
	c := coord.RingChange{Ring: name, Revision: r.revision}
	active := r.state(coord.KeyActive)
	next := r.state(coord.KeyNext)
	switch {
	case active == nil:
		c.Keys = []coord.KeyChange{newKey(1, coord.KeyActive)}
	case next == nil:
		c.Keys = []coord.KeyChange{newKey(int64(len(r.keys)+1), coord.KeyNext)}
	default:
		c.Keys = []coord.KeyChange{become(active.Version, coord.KeyRetiring), become(next.Version, coord.KeyActive)}
	}
	must(t, "ChangeRing", m.ask(t, c))
	r.revision++
	if c.Keys[0].Material != nil {
		m.add(r, c.Keys[0])
		return
	}
	m.to(active, coord.KeyRetiring)
	m.to(next, coord.KeyActive)
}

// change asks for any state of any key, which may be none that it can come to.
func (m *keyringModel) change(t *rapid.T) {
	name, r := m.draw(t)
	version := int64(rapid.IntRange(1, len(r.keys)+1).Draw(t, "version"))
	state := pick(t, "state", coord.KeyNext, coord.KeyActive, coord.KeyRetiring, coord.KeyRetired)
	c := coord.RingChange{Ring: name, Revision: r.revision, Keys: []coord.KeyChange{become(version, state)}}
	err := m.ask(t, c)
	can := false
	if int(version) <= len(r.keys) {
		from := r.keys[version-1].State
		// Alone, nothing can come to be active or leave that.
		can = from == state || state == coord.KeyRetired && from != coord.KeyActive
	}
	if !can {
		is(t, fmt.Sprintf("ChangeRing of key %d to %s", version, state), err, coord.ErrConflict)
		return
	}
	must(t, "ChangeRing", err)
	r.revision++
	if k := &r.keys[version-1]; k.State != state {
		m.to(k, state)
	}
}

// revoke revokes a token, or the active key and puts another one in its place.
func (m *keyringModel) revoke(t *rapid.T) {
	name, r := m.draw(t)
	active := r.state(coord.KeyActive)
	c := coord.RingChange{Ring: name, Revision: r.revision, Revoke: coord.NewRevocation{Keep: pick(t, "keep", time.Minute, time.Hour)}}
	ofKey := active != nil && rapid.Bool().Draw(t, "of the key")
	if ofKey {
		c.Revoke.Version = active.Version
		c.Keys = []coord.KeyChange{newKey(int64(len(r.keys)+1), coord.KeyActive)}
	} else {
		c.Revoke.Token = pick(t, "token", "x", "y")
	}
	err := m.ask(t, c)
	if active == nil {
		is(t, "ChangeRing of a ring without keys", err, coord.ErrConflict)
		return
	}
	must(t, "ChangeRing", err)
	r.revision++
	now := m.store.Now()
	r.revoked = slices.DeleteFunc(r.revoked, func(v coord.Revocation) bool { return !v.ExpiresAt.After(now) })
	r.revoked = append(r.revoked, coord.Revocation{
		Number: r.revision, Version: c.Revoke.Version, Token: c.Revoke.Token, ExpiresAt: now.Add(c.Revoke.Keep),
	})
	if ofKey {
		m.to(active, coord.KeyRetired)
		m.add(r, c.Keys[0])
	}
}

// stale changes a ring by a revision that it has not.
func (m *keyringModel) stale(t *rapid.T) {
	name, r := m.draw(t)
	revision := pick(t, "revision", r.revision+1, max(0, r.revision-1))
	if revision == r.revision {
		return
	}
	c := coord.RingChange{Ring: name, Revision: revision, Keys: []coord.KeyChange{newKey(int64(len(r.keys)+1), coord.KeyNext)}}
	is(t, "ChangeRing by another revision", m.ask(t, c), coord.ErrConflict)
}

func (m *keyringModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", time.Second, time.Minute, time.Hour))
}

// compare loads each ring with something that was known of it.
func (m *keyringModel) compare(t *rapid.T) {
	for _, name := range []string{m.name("a"), m.name("b")} {
		r := m.rings[name]
		known := coord.Ring{Name: name}
		if len(r.seen) > 0 {
			known = r.seen[max(0, len(r.seen)-1-rapid.IntRange(0, 2).Draw(t, "how long ago"))]
		}
		got, err := m.backend(t).Keyring().Load(m.ctx, known)
		must(t, "Load", err)
		now := m.store.Now()
		lasting := slices.DeleteFunc(slices.Clone(r.revoked), func(v coord.Revocation) bool { return !v.ExpiresAt.After(now) })
		equal(t, "the revision of "+name, got.Revision, r.revision)
		equal(t, "how many keys "+name+" has", len(got.Keys), len(r.keys))
		for i, k := range got.Keys {
			want := r.keys[i]
			equal(t, "CreatedAt", k.CreatedAt, want.CreatedAt)
			equal(t, "ChangedAt", k.ChangedAt, want.ChangedAt)
			k.CreatedAt, k.ChangedAt = want.CreatedAt, want.ChangedAt
			equal(t, "a key of "+name, k, want)
		}
		equal(t, "how many revocations "+name+" has", len(got.Revocations), len(lasting))
		for i, v := range got.Revocations {
			equal(t, "ExpiresAt", v.ExpiresAt, lasting[i].ExpiresAt)
			v.ExpiresAt = lasting[i].ExpiresAt
			equal(t, "a revocation of "+name, v, lasting[i])
		}
		r.seen = append(r.seen, got)
	}
}
