package memory

import (
	"bytes"
	"cmp"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// run is a stored run. Exactly one pile has it while it has not ended.
type run struct {
	coord.Run
	token int64
	task  *task  // nil: of none
	gate  string // see package gate; empty: none
	log   []coord.LogLine
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
// runs that have not ended.
type queue struct {
	tasks pile[*task]    // by their next occurrence
	free  *lane          // runs that need no place
	gated map[need]*lane // runs that need one; no lane is empty
}

// lane holds runs that need the same to start. A claim moves those that are due
// from the first pile to the second.
type lane struct {
	waiting pile[*run] // by the time at which they may be claimed
	ready   pile[*run] // by priority and that time, which has come
	index   int        // in the pile of a claim
}

func byTime(a, b *run) int { return cmp.Or(a.at().Compare(b.at()), cmp.Compare(a.ID, b.ID)) }

func byPriority(a, b *run) int { return cmp.Or(cmp.Compare(a.Priority, b.Priority), byTime(a, b)) }

func newLane() *lane {
	place := func(r *run) *int { return &r.index }
	return &lane{
		waiting: pile[*run]{less: func(a, b *run) bool { return byTime(a, b) < 0 }, place: place},
		ready:   pile[*run]{less: func(a, b *run) bool { return byPriority(a, b) < 0 }, place: place},
	}
}

func (l *lane) len() int { return l.waiting.len() + l.ready.len() }

func newQueue() *queue {
	return &queue{
		tasks: pile[*task]{
			less:  func(a, b *task) bool { return a.NextAt.Before(b.NextAt) },
			place: func(t *task) *int { return &t.index },
		},
		free:  newLane(),
		gated: make(map[need]*lane),
	}
}

// lane returns the lane of runs that need that, which is made if need be.
func (q *queue) lane(n need) *lane {
	if n == (need{}) {
		return q.free
	}
	l := q.gated[n]
	if l == nil {
		l = newLane()
		q.gated[n] = l
	}
	return l
}

// lanes yields the free lane first.
func (q *queue) lanes(yield func(*lane) bool) {
	if !yield(q.free) {
		return
	}
	for _, l := range q.gated {
		if !yield(l) {
			return
		}
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
	asOf        time.Time         // what is ready was due then
	taken       gate.Places
	keys        map[uniqueKey]*run
	occurrences map[occurrence]bool
}

func newWork() work {
	return work{
		tasks:       make(map[string]*task),
		runs:        make(map[coord.RunID]*run),
		queues:      make(map[string]*queue),
		taken:       gate.Places{ByGate: make(map[string]int), ByKind: make(map[string]int)},
		keys:        make(map[uniqueKey]*run),
		occurrences: make(map[occurrence]bool),
	}
}

// insert adds a queued run, whose payload belongs to the store already.
func (s *Store) insert(now time.Time, t *task, r coord.Run) *run {
	w := &s.work
	w.lastRun++
	r.ID, r.State, r.CreatedAt = w.lastRun, coord.Queued, now
	stored := &run{Run: r, task: t, gate: gate.Of(r.Concurrency)}
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
		s.tidy(stored.Kind)
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
	if q := s.work.queues[kind]; q != nil && q.tasks.len()+q.free.len()+len(q.gated) == 0 {
		delete(s.work.queues, kind)
	}
}

// file puts a run where its state says.
func (s *Store) file(r *run) {
	if r.State.Ended() {
		return
	}
	r.pile = &s.queue(r.Kind).lane(r.need()).waiting
	r.pile.push(r)
	s.count(r, 1)
}

// unfile takes a run out of its pile, before its state changes. The queue may
// be left empty.
func (s *Store) unfile(r *run) {
	if r.pile == nil {
		return
	}
	r.pile.remove(r)
	r.pile = nil
	s.count(r, -1)
	if n := r.need(); n != (need{}) {
		q := s.work.queues[r.Kind]
		if q.gated[n].len() == 0 {
			delete(q.gated, n)
		}
	}
}

// change edits a run and keeps the piles true.
func (s *Store) change(r *run, edit func(r *run)) {
	if s.inTx { // the copy costs
		before, token := r.Run, r.token
		s.onRollback(func() { s.edit(r, func(r *run) { r.Run, r.token = before, token }) })
	}
	s.edit(r, edit)
}

func (s *Store) edit(r *run, edit func(r *run)) {
	s.unfile(r)
	wasEnded := r.State.Ended()
	edit(r)
	s.file(r)
	if r.task != nil && wasEnded != r.State.Ended() {
		if wasEnded {
			r.task.inFlight++
		} else {
			r.task.inFlight--
		}
		s.fileTask(r.task)
	}
	s.tidy(r.Kind)
}
