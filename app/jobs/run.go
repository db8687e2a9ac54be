package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/leader"
)

const (
	// Leadership is the name under which the replica leads that does the leader-only jobs.
	Leadership = "jobs"

	// enough is how long a turn begins further pieces of work.
	enough = 30 * time.Second
	// longest is how long a turn may take. For as long nobody takes the next one.
	longest = time.Minute
	// spread bounds the first pause, so that replicas that start together don't all begin at once.
	spread = 30 * time.Second
	// retry is when the next turn is due after one that failed, at the latest, and when a
	// replica asks again that could not ask.
	retry = time.Minute
	// asking bounds a call to the store: for a turn, or for what it came to, also when the replica stops.
	asking = 5 * time.Second
)

// Run does the jobs whenever they are due until ctx is done, and returns when all work has
// returned. Otherwise it returns what [leader.Run] does.
func (r *Registry) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, j := range r.jobs {
		if work, ok := j.Work.(ReplicaSafe); ok {
			running.Go(func() { r.repeat(ctx, j, r.store.InTx, work) })
		}
	}
	leads := slices.ContainsFunc(r.jobs, func(j Job) bool { return j.Work.class() == ClassLeaderOnly })
	if !leads { // it would only keep others from it
		<-ctx.Done()
		return nil
	}
	o := leader.Options{Name: Leadership, Candidate: r.o.Node, Logger: r.o.Logger}
	return leader.Run(ctx, r.elector, o, func(ctx context.Context, t *leader.Term) error {
		r.lead(ctx, t.Term)
		return nil
	})
}

// lead does the leader-only jobs for a term.
func (r *Registry) lead(ctx context.Context, t coord.Term) {
	fenced := func(ctx context.Context, fn func(context.Context, store.Unit) error) error {
		return r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
			if err := u.Coord.Fence(ctx, t); err != nil {
				return err
			}
			return fn(ctx, u)
		})
	}
	var running sync.WaitGroup
	for _, j := range r.jobs {
		if work, ok := j.Work.(LeaderOnly); ok {
			running.Go(func() {
				r.repeat(ctx, j, fenced, func(ctx context.Context) (int, error) { return work(ctx, fenced) })
			})
		}
	}
	running.Wait()
}

// repeat does a job whenever its turn is this replica's. Turns are written down by in.
func (r *Registry) repeat(ctx context.Context, j Job, in Fenced, work ReplicaSafe) {
	for pause := rand.N(min(j.Every, spread)); rest(ctx, pause); {
		pause = min(r.turn(ctx, j, in, work), j.Every)
		pause += rand.N(pause/20 + time.Millisecond)
	}
}

// rest is false when ctx is done.
func rest(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// turn does the job if it is due, and returns how long from now to ask again.
func (r *Registry) turn(ctx context.Context, j Job, in Fenced, work ReplicaSafe) (next time.Duration) {
	log := r.o.Logger.With("job", j.Name)
	// What has no effect since another leads, or was told of as an outage, is no news here.
	fault := func(step string, err error) {
		if ctx.Err() != nil || errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrFenced) {
			return
		}
		if p, ok := errors.AsType[*panicError](err); ok {
			log = log.With("stack", p.stack)
		}
		log.WarnContext(ctx, "a job failed", "step", step, "error", err)
	}
	var turn store.JobTurn
	var taken bool
	taking, cancel := context.WithTimeout(ctx, asking)
	err := in(taking, func(ctx context.Context, u store.Unit) (err error) {
		turn, taken, next, err = u.TakeJob(ctx, j.Name, r.o.Node, j.Every, longest)
		return err
	})
	cancel()
	if err != nil {
		fault("take the turn", err)
		return retry
	}
	if !taken {
		return next
	}

	began := time.Now()
	done, err := do(ctx, work)
	took := time.Since(began)
	e := store.JobEnd{Done: done, Ok: err == nil, Next: max(j.Every-took, 0)}
	switch {
	case err == nil:
		log.DebugContext(ctx, "a job is done", "done", done, "took", took)
	case ctx.Err() != nil:
		e.Next = 0 // whoever is there may go on
	default:
		fault("work", err)
		e.Error, e.Next = err.Error(), min(e.Next, retry)
	}
	if r.o.Observer != nil {
		r.o.Observer.JobEnded(j.Name, done, took, err)
	}
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), asking)
	defer cancel()
	if err := in(noting, func(ctx context.Context, u store.Unit) error { return u.EndJob(ctx, turn, e) }); err != nil {
		fault("note the end", err)
	}
	return e.Next
}

// do works for one turn. A panic is an error.
func do(ctx context.Context, work ReplicaSafe) (done int, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, string(debug.Stack())}
		}
	}()
	for began := time.Now(); time.Since(began) < enough; {
		n, err := work(ctx)
		done += n
		if err != nil || n == 0 {
			return done, err
		}
	}
	return done, nil
}

// panicError is a panic of a job.
type panicError struct {
	value any
	stack string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
