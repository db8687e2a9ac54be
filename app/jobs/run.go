package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
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
	// longest is how long the work of a turn may take before it is told to end.
	longest = time.Minute
	// late is how much longer it may take to return; then the turn is overdue.
	late = 5 * time.Second
	// aside is how long a replica with an overdue turn does not stand after a term: the others
	// ask who leads several times meanwhile.
	aside = 15 * time.Second
	// patience is how long a term lasts in which a job can't be done, since a turn of an
	// earlier term is still under way. The other jobs each have their turns in it.
	patience = 10 * time.Minute
	// spread bounds the first pause, so that replicas that start together don't all begin at once.
	spread = 30 * time.Second
	// retry is when the next turn is due after one that failed, at the latest, and when a
	// replica asks again that could not ask.
	retry = time.Minute
	// asking bounds a call to the store: for a turn, or for what it came to, also when the replica stops.
	asking = 5 * time.Second
)

// errOverdue ends the term of a leader that can't do one of its jobs.
var errOverdue = errors.New("a job's turn does not end; another replica may lead")

// Run does the jobs whenever they are due until ctx is done, and returns when all work has
// returned. Otherwise it returns what [leader.Run] does. The term of a leader ends when one
// of its jobs does not return in time, so that others can do it.
func (r *Registry) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, j := range r.jobs {
		if work, ok := j.Work.(ReplicaSafe); ok {
			running.Go(func() { r.repeat(ctx, j, r.store.InTx, work, func() {}) })
		}
	}
	// A job's work may outlast its term. Of each job this replica has one turn at a time.
	places := make(map[string]chan struct{})
	for _, j := range r.jobs {
		if j.Work.class() == ClassLeaderOnly {
			places[j.Name] = make(chan struct{}, 1)
		}
	}
	if len(places) == 0 { // to lead would only keep others from it
		<-ctx.Done()
		return nil
	}
	o := leader.Options{Name: Leadership, Candidate: r.o.Node, Logger: r.o.Logger}
	return leader.Run(ctx, r.elector, o, func(term context.Context, t *leader.Term) error {
		err := r.lead(term, t.Term, places, &running)
		if err != nil {
			_ = t.Resign(ctx) // when it fails, it is tried again behind the rest, and told of
			rest(ctx, aside)
		}
		return err
	})
}

// lead does the leader-only jobs for a term. It returns when all work has returned, or is
// overdue; that goes on in running, and holds its job's place. The error is errOverdue when
// that is why the term is to end.
func (r *Registry) lead(
	ctx context.Context, t coord.Term, places map[string]chan struct{}, running *sync.WaitGroup,
) error {
	fenced := func(ctx context.Context, fn func(context.Context, store.Unit) error) error {
		return r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
			if err := u.Coord.Fence(ctx, t); err != nil {
				return err
			}
			return fn(ctx, u)
		})
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var waitedFor sync.WaitGroup
	for _, j := range r.jobs {
		work, ok := j.Work.(LeaderOnly)
		if !ok {
			continue
		}
		waitedFor.Add(1)
		leave := sync.OnceFunc(waitedFor.Done)
		running.Go(func() {
			defer leave()
			waiting := time.NewTimer(patience)
			defer waiting.Stop()
			place := places[j.Name]
			select {
			case place <- struct{}{}:
			case <-waiting.C:
				end(errOverdue)
				return
			case <-ctx.Done():
				return
			}
			defer func() { <-place }()
			r.repeat(ctx, j, fenced, func(ctx context.Context) (int, error) { return work(ctx, fenced) }, func() {
				end(errOverdue)
				leave()
			})
		})
	}
	waitedFor.Wait()
	if err := context.Cause(ctx); errors.Is(err, errOverdue) {
		return err
	}
	return nil
}

// repeat does a job whenever its turn is this replica's. Turns are written down by in.
// It calls overdue when one goes on although it was told to end, and waits for it.
func (r *Registry) repeat(ctx context.Context, j Job, in Fenced, work ReplicaSafe, overdue func()) {
	for pause := rand.N(min(j.Every, spread)); rest(ctx, pause); {
		pause = min(r.turn(ctx, j, in, work, overdue), j.Every)
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
func (r *Registry) turn(
	ctx context.Context, j Job, in Fenced, work ReplicaSafe, overdue func(),
) (next time.Duration) {
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
		turn, taken, next, err = u.TakeJob(ctx, j.Name, r.o.Node, j.Every, r.longest+r.late+asking) // until an overdue one is written down
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

	// note writes down what becomes of the turn, also when ctx has ended.
	note := func(step string, write func(context.Context, store.Unit) error) {
		noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), asking)
		defer cancel()
		if err := in(noting, write); err != nil {
			fault(step, err)
		}
	}
	began, late := time.Now(), false
	done, err := r.do(ctx, work, func() {
		late = true
		r.observe(func(o Observer) { o.JobOverdue(j.Name, true) })
		text := fmt.Sprintf("the turn goes on %v after it began, although it was told to end", time.Since(began).Round(time.Second))
		log.WarnContext(ctx, "a job is overdue", "error", text)
		note("note that it is overdue", func(ctx context.Context, u store.Unit) error { return u.JobOverdue(ctx, turn, text) })
		overdue()
	})
	took := time.Since(began)
	if late {
		r.observe(func(o Observer) { o.JobOverdue(j.Name, false) })
		log.WarnContext(ctx, "a job that was overdue has returned", "took", took)
	}
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
	r.observe(func(o Observer) { o.JobEnded(j.Name, done, took, err) })
	note("note the end", func(ctx context.Context, u store.Unit) error { return u.EndJob(ctx, turn, e) })
	return e.Next
}

func (r *Registry) observe(tell func(Observer)) {
	if r.o.Observer != nil {
		tell(r.o.Observer)
	}
}

// do works for one turn and returns when the work has. It calls overdue when that goes on
// although it was told to end.
func (r *Registry) do(ctx context.Context, work ReplicaSafe, overdue func()) (done int, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.longest)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done, err = pieces(ctx, work)
	}()
	select {
	case <-ended:
		return done, err
	case <-ctx.Done():
	}
	returning := time.NewTimer(r.late)
	defer returning.Stop()
	select {
	case <-ended:
	case <-returning.C:
		overdue()
		<-ended
	}
	return done, err
}

// pieces works until there is no more, or it was long enough. A panic is an error.
func pieces(ctx context.Context, work ReplicaSafe) (done int, err error) {
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
