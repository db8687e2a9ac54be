package memory

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/plan"
)

// task is a stored task.
type task struct {
	coord.Task
	inFlight int          // its runs that have not ended
	pile     *pile[*task] // of its kind's queue while an occurrence may fire
	index    int          // in pile
}

func (t *task) out() coord.Task {
	c := t.Task
	c.Payload = bytes.Clone(c.Payload)
	return c
}

// blocked reports whether a run of the task is in the way of the next.
func (t *task) blocked() bool { return t.Overlap == coord.OverlapForbid && t.inFlight > 0 }

// unfileTask takes a task out of its queue.
func (s *Store) unfileTask(t *task) {
	if t.pile == nil {
		return
	}
	t.pile.remove(t)
	t.pile = nil
	s.tidy(t.Kind)
}

// fileTask puts a task in the queue of its kind, if it may fire.
func (s *Store) fileTask(t *task) {
	s.unfileTask(t)
	if s.work.tasks[t.Name] != t || t.Paused || t.NextAt.IsZero() || t.blocked() {
		return
	}
	t.pile = &s.queue(t.Kind).tasks
	t.pile.push(t)
}

func (s *Store) changeTask(t *task, edit func(t *coord.Task)) {
	before := t.Task
	s.unfileTask(t)
	edit(&t.Task)
	s.fileTask(t)
	s.onRollback(func() {
		s.unfileTask(t)
		t.Task = before
		s.fileTask(t)
	})
}

func (s *Store) putTask(now time.Time, n coord.Task) (coord.Task, error) {
	n.Payload = bytes.Clone(n.Payload)
	t := s.work.tasks[n.Name]
	switch {
	case n.Version == 0 && t != nil, n.Version != 0 && t != nil && t.Version != n.Version:
		return coord.Task{}, coord.ErrConflict
	case n.Version != 0 && t == nil:
		return coord.Task{}, coord.ErrNotFound
	}
	n.UpdatedAt = now
	n.Version++
	if t != nil && t.Schedule == n.Schedule && t.Zone == n.Zone {
		n.NextAt = t.NextAt
	} else {
		next, err := plan.First(n, now)
		if err != nil {
			return coord.Task{}, err
		}
		n.NextAt = next
	}
	s.ring = true
	if t != nil {
		n.ID, n.CreatedAt = t.ID, t.CreatedAt
		s.changeTask(t, func(t *coord.Task) { *t = n })
		return t.out(), nil
	}
	s.work.lastTask++
	n.ID, n.CreatedAt = s.work.lastTask, now
	t = &task{Task: n}
	s.work.tasks[n.Name] = t
	s.fileTask(t)
	s.onRollback(func() {
		s.unfileTask(t)
		delete(s.work.tasks, n.Name)
	})
	return t.out(), nil
}

func (s *Store) deleteTask(now time.Time, name string) error {
	t := s.work.tasks[name]
	if t == nil {
		return coord.ErrNotFound
	}
	s.unfileTask(t)
	delete(s.work.tasks, name)
	s.onRollback(func() {
		s.work.tasks[name] = t
		s.fileTask(t)
	})
	for _, r := range s.work.history {
		if r.task == t && !r.State.Ended() {
			s.stop(now, r)
		}
	}
	return nil
}

func (s *Store) pauseTask(now time.Time, name string, paused bool) error {
	t := s.work.tasks[name]
	if t == nil {
		return coord.ErrNotFound
	}
	s.changeTask(t, func(t *coord.Task) {
		t.Paused, t.UpdatedAt = paused, now
		t.Version++
	})
	s.ring = s.ring || !paused
	return nil
}

// queueFor queues a run of a task that is due then.
func (s *Store) queueFor(now time.Time, t *task, due time.Time, r coord.Run) *run {
	r.TaskID, r.Kind, r.DueAt, r.Retry, r.Timeout = t.ID, t.Kind, due, t.Retry, t.Timeout
	r.Priority, r.Concurrency, r.AtMostOnce = t.Priority, t.Concurrency, t.AtMostOnce
	if r.Payload == nil {
		r.Payload = t.Payload
	}
	return s.insert(now, t, r)
}

func (s *Store) trigger(now time.Time, name string, o coord.TriggerOptions) (coord.Run, error) {
	t := s.work.tasks[name]
	if t == nil {
		return coord.Run{}, coord.ErrNotFound
	}
	if earlier := s.work.keys[uniqueKey{t.ID, o.Key}]; o.Key != "" && earlier != nil {
		run := earlier.out()
		run.Duplicate = true
		return run, nil
	}
	if t.blocked() {
		return coord.Run{}, coord.ErrConflict
	}
	return s.queueFor(now, t, now, coord.Run{Payload: bytes.Clone(o.Payload), UniqueKey: o.Key}).out(), nil
}

// fire turns the occurrences of tasks of these kinds that are due into queued
// runs.
func (s *Store) fire(now time.Time, kinds []string) error {
	for _, kind := range kinds {
		for {
			q := s.work.queues[kind] // firing may replace it
			if q == nil || q.tasks.len() == 0 || q.tasks.top().NextAt.After(now) {
				break
			}
			if err := s.fireTask(now, q.tasks.top()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) fireTask(now time.Time, t *task) error {
	occurrences, next, err := plan.Fire(t.Task, now)
	if err != nil {
		return err
	}
	s.changeTask(t, func(t *coord.Task) { t.NextAt = next })
	for _, at := range occurrences {
		if !s.work.occurrences[occurrence{t.ID, at.UnixMicro()}] {
			s.queueFor(now, t, at, coord.Run{ScheduledFor: at})
		}
	}
	return nil
}

func (c claimer) PutTask(ctx context.Context, n coord.Task) (stored coord.Task, err error) {
	err = c.store.write(ctx, func(now time.Time) (err error) {
		stored, err = c.store.putTask(now, n)
		return err
	})
	return stored, err
}

func (c claimer) Task(ctx context.Context, name string) (found coord.Task, err error) {
	missing := false
	err = c.store.read(ctx, func() {
		if t := c.store.work.tasks[name]; t != nil {
			found = t.out()
		} else {
			missing = true
		}
	})
	if err == nil && missing {
		err = coord.ErrNotFound
	}
	return found, err
}

func (c claimer) Tasks(ctx context.Context) iter.Seq2[coord.Task, error] {
	return func(yield func(coord.Task, error) bool) {
		var tasks []coord.Task
		err := c.store.read(ctx, func() {
			for _, t := range c.store.work.tasks {
				tasks = append(tasks, t.out())
			}
		})
		slices.SortFunc(tasks, func(a, b coord.Task) int { return cmp.Compare(a.Name, b.Name) })
		yieldAll(yield, tasks, err)
	}
}

func (c claimer) DeleteTask(ctx context.Context, name string) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.deleteTask(now, name) })
}

func (c claimer) PauseTask(ctx context.Context, name string, paused bool) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.pauseTask(now, name, paused) })
}

func (c claimer) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (queued coord.Run, err error) {
	err = c.store.write(ctx, func(now time.Time) (err error) {
		queued, err = c.store.trigger(now, name, o)
		return err
	})
	return queued, err
}
