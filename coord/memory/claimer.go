package memory

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// run is a stored run. Exactly one pile has it while it has not ended.
type run struct {
	coord.Run
	token int64
	task  *task // nil: of none
	pile  *pile[*run]
	index int // in pile
}

// at is when the run may be claimed: when it is due, or when its lease ends.
func (r *run) at() time.Time {
	if r.State == coord.Running {
		return r.LeaseUntil
	}
	return r.DueAt
}

func (r *run) claimable(now time.Time) bool { return !r.State.Ended() && !r.at().After(now) }

// lost reports whether a run whose lease ran out may not run again.
func (r *run) lost() bool {
	return r.State == coord.Running && (r.CancelRequested || r.AtMostOnce || r.Attempt >= r.Retry.MaxAttempts)
}

// lose ends a run whose worker vanished.
func (r *run) lose(now time.Time) {
	r.Rescues++
	if r.CancelRequested {
		r.end(coord.Cancelled, now)
		return
	}
	r.Error = coord.LostError
	r.end(coord.Failed, now)
}

func (r *run) end(state coord.State, now time.Time) {
	r.State, r.FinishedAt, r.LeaseUntil = state, now, time.Time{}
}

// out returns the run for a caller, who may keep and change it.
func (r *run) out() coord.Run {
	c := r.Run
	c.Payload = bytes.Clone(c.Payload)
	return c
}

func outAll(runs []*run) []coord.Run {
	out := make([]coord.Run, len(runs))
	for i, r := range runs {
		out[i] = r.out()
	}
	return out
}

// queue holds what may become work of one kind: the tasks that may fire, and the
// runs that have not ended. Both piles of runs hold queued and running ones; a
// run moves from the first to the second in a claim.
type queue struct {
	tasks   pile[*task] // by their next occurrence
	waiting pile[*run]  // by the time at which they may be claimed
	ready   pile[*run]  // by priority and that time, which has come
}

func byTime(a, b *run) int { return cmp.Or(a.at().Compare(b.at()), cmp.Compare(a.ID, b.ID)) }

func byPriority(a, b *run) int { return cmp.Or(cmp.Compare(a.Priority, b.Priority), byTime(a, b)) }

func newQueue() *queue {
	place := func(r *run) *int { return &r.index }
	return &queue{
		tasks: pile[*task]{
			less:  func(a, b *task) bool { return a.NextAt.Before(b.NextAt) },
			place: func(t *task) *int { return &t.index },
		},
		waiting: pile[*run]{less: func(a, b *run) bool { return byTime(a, b) < 0 }, place: place},
		ready:   pile[*run]{less: func(a, b *run) bool { return byPriority(a, b) < 0 }, place: place},
	}
}

// uniqueKey is scoped to a task for triggers; TaskID is 0 for Enqueue.
type uniqueKey struct {
	task coord.TaskID
	key  string
}

type occurrence struct {
	task coord.TaskID
	at   int64 // µs
}

// work is the tasks and runs of a store.
type work struct {
	lastTask    coord.TaskID
	lastRun     coord.RunID
	tasks       map[string]*task
	runs        map[coord.RunID]*run
	history     []*run            // all runs by id
	queues      map[string]*queue // by kind, those that are not empty
	keys        map[uniqueKey]*run
	occurrences map[occurrence]bool
}

func newWork() work {
	return work{
		tasks:       make(map[string]*task),
		runs:        make(map[coord.RunID]*run),
		queues:      make(map[string]*queue),
		keys:        make(map[uniqueKey]*run),
		occurrences: make(map[occurrence]bool),
	}
}

// insert adds a queued run, whose payload belongs to the store already.
func (s *Store) insert(now time.Time, t *task, r coord.Run) *run {
	w := &s.work
	w.lastRun++
	r.ID, r.State, r.CreatedAt = w.lastRun, coord.Queued, now
	stored := &run{Run: r, task: t}
	w.runs[r.ID] = stored
	w.history = append(w.history, stored)
	if r.UniqueKey != "" {
		w.keys[uniqueKey{r.TaskID, r.UniqueKey}] = stored
	}
	if !r.ScheduledFor.IsZero() {
		w.occurrences[occurrence{r.TaskID, r.ScheduledFor.UnixMicro()}] = true
	}
	s.file(stored)
	if t != nil {
		t.inFlight++
		s.fileTask(t)
	}
	s.ring = true
	s.onRollback(func() {
		s.unfile(stored)
		w.history = w.history[:len(w.history)-1]
		s.forget(stored)
		if t != nil {
			t.inFlight--
			s.fileTask(t)
		}
	})
	return stored
}

// forget removes a run from the indexes by key.
func (s *Store) forget(r *run) {
	delete(s.work.runs, r.ID)
	if r.UniqueKey != "" {
		delete(s.work.keys, uniqueKey{r.TaskID, r.UniqueKey})
	}
	if !r.ScheduledFor.IsZero() {
		delete(s.work.occurrences, occurrence{r.TaskID, r.ScheduledFor.UnixMicro()})
	}
}

// unfile takes a run out of its pile.
func (s *Store) unfile(r *run) {
	if r.pile == nil {
		return
	}
	r.pile.remove(r)
	r.pile = nil
	s.tidy(r.Kind)
}

// queue returns the queue of a kind, which is made if need be.
func (s *Store) queue(kind string) *queue {
	q := s.work.queues[kind]
	if q == nil {
		q = newQueue()
		s.work.queues[kind] = q
	}
	return q
}

// tidy forgets the queue of a kind when it is empty.
func (s *Store) tidy(kind string) {
	if q := s.work.queues[kind]; q != nil && q.tasks.len()+q.waiting.len()+q.ready.len() == 0 {
		delete(s.work.queues, kind)
	}
}

// file puts a run where its state says.
func (s *Store) file(r *run) {
	s.unfile(r)
	if r.State.Ended() {
		return
	}
	r.pile = &s.queue(r.Kind).waiting
	r.pile.push(r)
}

// change edits a run and keeps the piles true.
func (s *Store) change(r *run, edit func(r *run)) {
	before, token := r.Run, r.token
	s.edit(r, edit)
	s.onRollback(func() { s.edit(r, func(r *run) { r.Run, r.token = before, token }) })
}

func (s *Store) edit(r *run, edit func(r *run)) {
	s.unfile(r)
	wasEnded := r.State.Ended()
	edit(r)
	s.file(r)
	if r.task == nil || wasEnded == r.State.Ended() {
		return
	}
	if wasEnded {
		r.task.inFlight++
	} else {
		r.task.inFlight--
	}
	s.fileTask(r.task)
}

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
			Kind: n.Kind, Payload: bytes.Clone(n.Payload), UniqueKey: n.UniqueKey, DueAt: due,
			Retry: n.Retry, Timeout: n.Timeout, Priority: n.Priority, AtMostOnce: n.AtMostOnce,
		}).out()
	}
	return queued
}

// ready moves the claimable runs of the kinds to their ready piles, ending
// those that are lost, and returns the queues that have any.
func (s *Store) ready(now time.Time, kinds []string) (queues []*queue) {
	for _, kind := range kinds {
		q := s.work.queues[kind]
		if q == nil || slices.Contains(queues, q) { // a kind may be named twice
			continue
		}
		for q.waiting.len() > 0 && q.waiting.top().claimable(now) {
			r := q.waiting.top()
			if r.lost() {
				s.change(r, func(r *run) { r.lose(now) })
				s.ring = true // an occurrence may have waited for its end
				continue
			}
			q.waiting.remove(r)
			r.pile = &q.ready
			r.pile.push(r)
		}
		queues = append(queues, q)
	}
	return queues
}

// first returns the run that is to be claimed next, or nil.
func (s *Store) first(now time.Time, queues []*queue) (first *run) {
	for _, q := range queues {
		for q.ready.len() > 0 && !q.ready.top().claimable(now) { // the clock was set back
			s.file(q.ready.top())
		}
		if q.ready.len() > 0 && (first == nil || byPriority(q.ready.top(), first) < 0) {
			first = q.ready.top()
		}
	}
	return first
}

func (s *Store) claim(now time.Time, o coord.ClaimOptions) ([]coord.Claim, error) {
	if err := s.fire(now, o.Kinds); err != nil {
		return nil, err
	}
	queues := s.ready(now, o.Kinds)
	var claims []coord.Claim
	for len(claims) < o.Limit {
		r := s.first(now, queues)
		if r == nil {
			break
		}
		s.change(r, func(r *run) {
			if r.State == coord.Running {
				r.Rescues++
			}
			r.token++
			r.Attempt++
			r.State, r.Worker, r.StartedAt = coord.Running, o.Worker, now
			r.LeaseUntil = now.Add(o.Lease).Truncate(time.Microsecond)
		})
		claims = append(claims, coord.Claim{Run: r.out(), Token: r.token})
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
		s.ring = true // the run itself, or an occurrence that waited for its end
	}
	return fencedError(fenced)
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
			held = append(held, coord.Claim{Run: r.out(), Token: r.token})
		}
		return fencedError(fenced)
	})
	return held, err
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.finish(now, results) })
}

func (s *Store) cancel(now time.Time, r *run) {
	if r.State == coord.Queued {
		s.change(r, func(r *run) { r.end(coord.Cancelled, now) })
		s.ring = true // an occurrence may have waited for its end
	} else {
		s.change(r, func(r *run) { r.CancelRequested = true })
	}
}

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	return c.store.write(ctx, func(now time.Time) error {
		r := c.store.work.runs[id]
		switch {
		case r == nil:
			return coord.ErrNotFound
		case r.State.Ended():
			return coord.ErrConflict
		}
		c.store.cancel(now, r)
		return nil
	})
}

func (c claimer) Run(ctx context.Context, id coord.RunID) (found coord.Run, err error) {
	missing := false
	err = c.store.read(ctx, func() {
		if r := c.store.work.runs[id]; r != nil {
			found = r.out()
		} else {
			missing = true
		}
	})
	if err == nil && missing {
		err = coord.ErrNotFound
	}
	return found, err
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		var found []*run
		var runs []coord.Run
		err := c.store.read(ctx, func() {
			history := c.store.work.history
			if f.Before > 0 {
				end, _ := slices.BinarySearchFunc(history, f.Before, func(r *run, id coord.RunID) int { return cmp.Compare(r.ID, id) })
				history = history[:end]
			}
			for _, r := range slices.Backward(history) {
				if len(found) == f.Limit {
					break
				}
				if (f.TaskID == 0 || r.TaskID == f.TaskID) && (f.State == "" || r.State == f.State) {
					found = append(found, r)
				}
			}
			runs = outAll(found)
		})
		yieldAll(yield, runs, err)
	}
}

// yieldAll yields the items of a listing, or the error that prevented it.
func yieldAll[T any](yield func(T, error) bool, items []T, err error) {
	if err != nil {
		var zero T
		yield(zero, err)
		return
	}
	for _, item := range items {
		if !yield(item, nil) {
			return
		}
	}
}

func (c claimer) Prune(ctx context.Context, keep coord.RunRetention) (n int, err error) {
	err = c.store.write(ctx, func(now time.Time) error {
		w := &c.store.work
		ended := make(map[coord.TaskID]int) // how many newer ones each task has
		prune := make(map[*run]bool)
		for _, r := range slices.Backward(w.history) {
			if !r.State.Ended() {
				continue
			}
			old := keep.Age > 0 && now.Sub(r.FinishedAt) >= keep.Age
			if keep.Keep > 0 && r.TaskID != 0 {
				ended[r.TaskID]++
				old = old || ended[r.TaskID] > keep.Keep
			}
			if old {
				prune[r] = true
				c.store.forget(r)
			}
			if len(prune) == batch {
				break
			}
		}
		w.history = slices.DeleteFunc(w.history, func(r *run) bool { return prune[r] })
		n = len(prune)
		return nil
	})
	return n, err
}

func (c claimer) Hints() (<-chan struct{}, func()) { return c.store.hints.Hints() }
