package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// fence is ErrFenced when a term is over.
func (s *Store) fence(now time.Time, t coord.Term) error {
	if !s.leaders[t.Name].Lasts(t.Epoch, now) {
		return coord.ErrFenced
	}
	return nil
}

type elector struct{ store *Store }

func (e elector) Stand(ctx context.Context, c coord.Candidacy) (l coord.Leadership, err error) {
	err = e.store.write(ctx, func(now time.Time) error {
		next, mine := e.store.leaders[c.Name].Stand(c, now)
		e.store.leaders[c.Name] = next
		l = next.Leadership(c.Name, mine)
		return nil
	})
	return l, err
}

func (e elector) Extend(ctx context.Context, t coord.Term, lease time.Duration) (l coord.Leadership, err error) {
	err = e.store.write(ctx, func(now time.Time) error {
		if err := e.store.fence(now, t); err != nil {
			return err
		}
		next := e.store.leaders[t.Name].Extend(lease, now)
		e.store.leaders[t.Name] = next
		l = next.Leadership(t.Name, true)
		return nil
	})
	return l, err
}

func (e elector) Resign(ctx context.Context, t coord.Term) error {
	return e.store.write(ctx, func(now time.Time) error {
		if err := e.store.fence(now, t); err != nil {
			return err
		}
		e.store.leaders[t.Name] = e.store.leaders[t.Name].Resigned()
		e.store.ringLeaders = true
		return nil
	})
}

func (e elector) Leaders(ctx context.Context) (list []coord.Leadership, err error) {
	err = e.store.read(ctx, func() {
		now := e.store.now()
		for name, s := range e.store.leaders {
			if s.Lasts(s.Epoch, now) {
				list = append(list, s.Leadership(name, false))
			}
		}
	})
	slices.SortFunc(list, func(a, b coord.Leadership) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

func (e elector) Changes() (<-chan struct{}, func()) { return e.store.leaderChanges.Hints() }
