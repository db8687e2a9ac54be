package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func (s *Store) enqueue(now time.Time, runs []coord.NewRun) []coord.Run {
	queued := make([]coord.Run, len(runs))
	for i, n := range runs {
		if earlier := s.work.keys[uniqueKey{key: n.UniqueKey}]; n.UniqueKey != "" && earlier != nil {
			queued[i] = earlier.out()
			queued[i].Duplicate = true
			continue
		}
		due := now
		switch {
		case n.Delay > 0:
			due = now.Add(n.Delay).Truncate(time.Microsecond)
		case !n.DueAt.IsZero():
			due = n.DueAt.Truncate(time.Microsecond).UTC()
		}
		queued[i] = s.insert(now, nil, coord.Run{
			Kind: n.Kind, Payload: bytes.Clone(n.Payload), UniqueKey: n.UniqueKey, DueAt: due, Retry: n.Retry,
			Timeout: n.Timeout, Priority: n.Priority, Concurrency: n.Concurrency, AtMostOnce: n.AtMostOnce,
		}).out()
	}
	return queued
}

// advance makes those runs of a lane ready that are due, and ends those of them
// that are lost.
func (s *Store) advance(now time.Time, l *lane) {
	for l.waiting.len() > 0 && l.waiting.top().claimable(now) {
		r := l.waiting.top()
		if r.lost() {
			s.change(r, func(r *run) { r.lose(now) })
			s.ring = true // an occurrence or a place may have waited for its end
			continue
		}
		l.waiting.remove(r)
		r.pile = &l.ready
		l.ready.push(r)
	}
}

// rewind finds out what is not due any more, after the clock was set back.
func (s *Store) rewind(now time.Time) {
	w := &s.work
	if now.Before(w.asOf) {
		var ready []*run
		for _, q := range w.queues {
			for l := range q.lanes {
				ready = append(ready, l.ready.items...)
			}
		}
		for _, r := range ready {
			s.unfile(r)
			s.file(r)
		}
	}
	w.asOf = now
}

// ready returns the lanes of the wanted kinds that have due runs, by the first of
// these.
func (s *Store) ready(now time.Time, o coord.ClaimOptions) *pile[*lane] {
	s.rewind(now)
	lanes := &pile[*lane]{
		less:  func(a, b *lane) bool { return byPriority(a.ready.top(), b.ready.top()) < 0 },
		place: func(l *lane) *int { return &l.index },
	}
	for i, kind := range o.Kinds {
		q := s.work.queues[kind]
		if q == nil || slices.Contains(o.Kinds[:i], kind) { // a kind may be named twice
			continue
		}
		if _, limited := o.Limits[kind]; limited {
			s.advance(now, q.free)
			s.bind(kind, q.free)
		}
		for l := range q.lanes {
			s.advance(now, l)
			if l.ready.len() > 0 {
				lanes.push(l)
			}
		}
	}
	return lanes
}

func (s *Store) claim(now time.Time, o coord.ClaimOptions) ([]coord.Claim, error) {
	if err := s.fire(now, o.Kinds); err != nil {
		return nil, err
	}
	var claims []coord.Claim
	lanes := s.ready(now, o)
	for len(claims) < o.Limit && lanes.len() > 0 {
		l := lanes.top()
		r := l.ready.top()
		if s.full(r, o.Limits) {
			lanes.remove(l)
			continue
		}
		s.change(r, func(r *run) {
			if r.State == coord.Running {
				r.Rescues++
			}
			r.token++
			r.Attempt++
			r.State, r.Progress, r.Worker, r.StartedAt = coord.Running, 0, o.Worker, now
			r.LeaseUntil = now.Add(o.Lease).Truncate(time.Microsecond)
		})
		claims = append(claims, coord.Claim{Run: r.out(), Token: r.token})
		if l.ready.len() > 0 {
			lanes.down(0)
		} else {
			lanes.remove(l)
		}
	}
	return claims, nil
}

// held returns the run of a claim whose token is still good, or nil.
func (s *Store) held(c coord.Claim) *run {
	r := s.work.runs[c.Run.ID]
	if r == nil || r.State != coord.Running || r.token != c.Token {
		return nil
	}
	return r
}

func fencedError(claims []coord.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	return &coord.FencedError{Claims: claims}
}

func (s *Store) finish(now time.Time, results []coord.Result) error {
	var fenced []coord.Claim
	for _, result := range results {
		r := s.held(result.Claim)
		if r == nil {
			fenced = append(fenced, result.Claim)
			continue
		}
		to := result.Settle()
		s.change(r, func(r *run) {
			switch {
			case to.State.Ended():
				r.end(to.State, now)
			case r.CancelRequested: // it is not to run again
				r.end(coord.Cancelled, now)
			default:
				r.State, r.LeaseUntil = coord.Queued, time.Time{}
				r.DueAt = now.Add(to.Delay).Truncate(time.Microsecond)
			}
			if to.Refund {
				r.Attempt--
			}
			if to.Error != "" {
				r.Error = to.Error
			}
		})
		s.ring = true // the run itself, or what waited for its end
	}
	return fencedError(fenced)
}

func (s *Store) stop(now time.Time, r *run) {
	if r.State == coord.Running && !r.claimable(now) {
		s.change(r, func(r *run) { r.CancelRequested = true })
		s.ringCancels = true
		return
	}
	s.change(r, func(r *run) {
		if r.State == coord.Running { // its worker has vanished
			r.CancelRequested = true
			r.token++
			r.Rescues++
		}
		r.end(coord.Cancelled, now)
	})
	s.ring = true // an occurrence or a place may have waited for its end
}

func (s *Store) cancel(now time.Time, id coord.RunID) error {
	r := s.work.runs[id]
	switch {
	case r == nil:
		return coord.ErrNotFound
	case r.State.Ended():
		return coord.ErrConflict
	}
	s.stop(now, r)
	return nil
}

// nextDue returns the first time after now at which something of these kinds, or of
// any when none is named, falls due; zero: there is none.
func (s *Store) nextDue(now time.Time, kinds []string) (next time.Time) {
	s.rewind(now)
	asked := func(kind string) bool { return len(kinds) == 0 || slices.Contains(kinds, kind) }
	sooner := func(at time.Time) {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, t := range s.work.tasks {
		if !t.Paused && asked(t.Kind) {
			sooner(t.NextAt)
		}
	}
	for kind, q := range s.work.queues {
		if !asked(kind) {
			continue
		}
		for l := range q.lanes {
			l.waiting.walk(0, func(r *run) bool {
				sooner(r.at())
				return !r.at().After(now)
			})
		}
	}
	return next
}

type claimer struct{ store *Store }

func (c claimer) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = c.store.write(ctx, func(now time.Time) error {
		queued = c.store.enqueue(now, runs)
		return nil
	})
	return queued, err
}

func (c claimer) Claim(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, err error) {
	err = c.store.write(ctx, func(now time.Time) (err error) {
		claims, err = c.store.claim(now, o)
		return err
	})
	return claims, err
}

func (c claimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) (held []coord.Claim, err error) {
	err = c.store.write(ctx, func(now time.Time) error {
		var fenced []coord.Claim
		for _, claim := range claims {
			r := c.store.held(claim)
			if r == nil {
				fenced = append(fenced, claim)
				continue
			}
			c.store.change(r, func(r *run) { r.LeaseUntil = now.Add(lease).Truncate(time.Microsecond) })
			claim.Run.LeaseUntil, claim.Run.CancelRequested = r.LeaseUntil, r.CancelRequested
			claim.Run.Progress, claim.Run.LogLines = r.Progress, r.LogLines
			held = append(held, claim)
		}
		return fencedError(fenced)
	})
	return held, err
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.finish(now, results) })
}

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.cancel(now, id) })
}

func (c claimer) NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error) {
	err = c.store.write(ctx, func(now time.Time) error {
		if next := c.store.nextDue(now, kinds); !next.IsZero() {
			wait, some = next.Sub(now), true
		}
		return nil
	})
	return wait, some, err
}

func (c claimer) Hints() (<-chan struct{}, func()) { return c.store.hints.Hints() }

func (c claimer) Cancels() (<-chan struct{}, func()) { return c.store.cancels.Hints() }
