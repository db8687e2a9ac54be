package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

type keyring struct{ store *Store }

func (k keyring) Load(ctx context.Context, known coord.Ring) (r coord.Ring, err error) {
	err = k.store.read(ctx, func() { r = k.store.loadRing(k.store.now(), known) })
	return r, err
}

func (s *Store) loadRing(now time.Time, known coord.Ring) coord.Ring {
	r := s.rings[known.Name].copy()
	r.Name, r.ReadAt = known.Name, now
	return r
}

func (k keyring) Changes() (<-chan struct{}, func()) { return k.store.keyChanges.Hints() }

// ring is stored, and so shares nothing with anybody.
type ring struct{ coord.Ring }

func (r ring) copy() coord.Ring {
	r.Keys, r.Revocations = slices.Clone(r.Keys), slices.Clone(r.Revocations)
	for i := range r.Keys {
		r.Keys[i].Material = bytes.Clone(r.Keys[i].Material)
	}
	return r.Ring
}

func (s *Store) changeRing(now time.Time, c coord.RingChange) (coord.Ring, error) {
	before, there := s.rings[c.Ring]
	before.Name = c.Ring
	next, err := before.Change(c, now)
	if err != nil {
		return coord.Ring{}, err
	}
	s.onRollback(func() {
		if there {
			s.rings[c.Ring] = before
		} else {
			delete(s.rings, c.Ring)
		}
	})
	s.rings[c.Ring] = ring{next}
	s.ringKeys = true
	return s.rings[c.Ring].copy(), nil
}
