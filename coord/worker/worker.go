// Package worker runs the handlers of due runs on top of a [coord.Claimer].
//
// A slot is taken before a run is claimed, so a worker never holds more than it
// can run. Leases are extended for all runs together. Each handler's context is
// cancelled by this process's own monotonic clock before its lease can end at
// the store, even when every heartbeat hangs.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Handler executes a run. Returning nil ends it as succeeded; see [ErrFinished],
// [Snooze] and [GiveUp] for other ends. Any other error, or a panic, is a failed
// attempt.
//
// ctx is cancelled when the lease is lost or about to be, when the run is
// cancelled, when its timeout is over, and when the worker's grace is; then
// [context.Cause] says which: [coord.ErrFenced], [ErrCancelled],
// [context.DeadlineExceeded] or [ErrDraining].
type Handler func(ctx context.Context, c coord.Claim) error

var (
	// ErrFinished is returned by a handler that has finished its run itself, with
	// [coord.Tx.Finish], in the transaction of its own rows.
	ErrFinished = errors.New("worker: finished by the handler")
	// ErrCancelled is the cause of a handler's context when its run was cancelled.
	ErrCancelled = errors.New("worker: the run was cancelled")
	// ErrDraining is the cause of a handler's context when the worker stops.
	ErrDraining = errors.New("worker: draining")

	errExited = errors.New("worker: the handler ended its goroutine")
)

type snooze struct{ after time.Duration }

func (s snooze) Error() string { return fmt.Sprintf("worker: run again after %v", s.after) }

// Snooze is returned by a handler whose run is to be tried again later without
// spending the attempt.
func Snooze(after time.Duration) error { return snooze{after} }

type giveUp struct{ error }

func (g giveUp) Unwrap() error { return g.error }

// GiveUp is returned by a handler whose run failed and is not to be tried again.
func GiveUp(err error) error { return giveUp{err} }

// Options configure a [Worker].
type Options struct {
	Name        string             // of this replica, for people to read; must be set
	Handlers    map[string]Handler // by kind, at least one; runs of other kinds are left alone
	Concurrency int                // handlers at a time; default 10
	Lease       time.Duration      // default 30 s; extended every third of it
	Poll        time.Duration      // longest time between two looks; default 500 ms, jittered
	Grace       time.Duration      // for running handlers on drain; default 10 s
	Logger      *slog.Logger       // default: discards
}

// Worker claims runs and hands them to handlers.
type Worker struct {
	claimer coord.Claimer
	o       Options
	kinds   []string
	slots   chan struct{} // one token per running handler
	freed   chan struct{} // one slot: a handler ended while runs may have waited for it
	waiting atomic.Bool   // the last look filled every slot, so the store may have more

	mu      sync.Mutex
	running map[coord.RunID]*job
	writing sync.WaitGroup // ends of runs that are being written
}

// job is a run in the hands of a handler.
type job struct {
	claim  coord.Claim
	cancel context.CancelCauseFunc
	fence  *time.Timer // cancels before the lease can end
	fenced bool        // the lease is lost, or left to end
}

// New returns a worker; [Worker.Run] starts it.
func New(c coord.Claimer, o Options) (*Worker, error) {
	if o.Name == "" || len(o.Handlers) == 0 {
		return nil, errors.New("worker: Options.Name and Options.Handlers must be set")
	}
	o.Concurrency = orDefault(o.Concurrency, 10)
	o.Lease = orDefault(o.Lease, 30*time.Second)
	o.Poll = orDefault(o.Poll, 500*time.Millisecond)
	o.Grace = orDefault(o.Grace, 10*time.Second)
	o.Logger = orDefault(o.Logger, slog.New(slog.DiscardHandler))
	if o.Concurrency < 1 || o.Lease < time.Second || o.Poll < time.Millisecond || o.Grace < 0 {
		return nil, errors.New("worker: Options.Concurrency must be at least 1, Lease 1s, Poll 1ms, Grace 0")
	}
	return &Worker{
		claimer: c, o: o,
		kinds:   slices.Sorted(maps.Keys(o.Handlers)),
		slots:   make(chan struct{}, o.Concurrency),
		freed:   make(chan struct{}, 1),
		running: make(map[coord.RunID]*job),
	}, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Running returns how many handlers are at work.
func (w *Worker) Running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

// Run works until ctx is done and then drains: nothing more is claimed,
// running handlers get Options.Grace, and what is unfinished then is released,
// claimable elsewhere at once with its attempt unspent; a run that is AtMostOnce
// ends as failed instead. A handler that ignores its context is left behind; it
// can have no effect any more. Run may be called once. It returns nil: an outage is
// logged and waited for.
func (w *Worker) Run(ctx context.Context) error {
	hints, stop := w.claimer.Hints()
	defer stop()

	// Handlers and heartbeats outlive ctx by the grace. So does a claim that is under
	// way: were it cut off, runs could be leased to nobody.
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	var handlers sync.WaitGroup
	claiming, heartbeat, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(claiming)
		w.claimLoop(ctx, work, &handlers, hints)
	}()
	go func() {
		defer close(heartbeat)
		w.heartbeats(work)
	}()
	<-ctx.Done()
	go func() {
		<-claiming
		handlers.Wait()
		close(done)
	}()
	grace := time.NewTimer(w.o.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	cancelWork(ErrDraining)
	<-claiming
	<-heartbeat
	w.releaseRest(context.WithoutCancel(ctx), done)
	return nil
}

// claimLoop claims whenever there is a free slot and a reason to look.
func (w *Worker) claimLoop(ctx, work context.Context, handlers *sync.WaitGroup, hints <-chan struct{}) {
	failing := false
	pause := time.NewTimer(rand.N(w.o.Poll)) // replicas started together spread out
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hints:
		case <-w.freed:
		case <-pause.C:
		}
		if ctx.Err() != nil {
			return
		}
		more, err := w.claim(ctx, work, handlers)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != failing {
			failing = err != nil
			if failing {
				w.o.Logger.Warn("claiming fails; trying on", "error", err)
			} else {
				w.o.Logger.Info("claiming works again")
			}
		}
		next := w.o.Poll/2 + rand.N(w.o.Poll/2)
		if more {
			next = 0
		}
		pause.Reset(next)
	}
}

// claim fills the free slots. more is true when the store may have further due
// runs and there is room for them.
func (w *Worker) claim(ctx, work context.Context, handlers *sync.WaitGroup) (more bool, err error) {
	free := w.takeSlots()
	if free == 0 {
		return false, nil // a slot that is freed looks again
	}
	call, cancel := context.WithTimeout(work, w.interval())
	claims, err := w.claimer.Claim(call, coord.ClaimOptions{
		Worker: w.o.Name, Kinds: w.kinds, Limit: free, Lease: w.o.Lease,
	})
	cancel()
	if ctx.Err() != nil { // the drain has begun meanwhile
		w.release(work, claims, giveBack)
		claims = nil
	}
	full := len(claims) == free
	w.waiting.Store(full)
	for range free - len(claims) {
		<-w.slots
	}
	for _, c := range claims {
		w.start(work, handlers, c)
	}
	return full && len(w.slots) < cap(w.slots), err
}

// takeSlots takes the free slots, as many as one claim can fill.
func (w *Worker) takeSlots() (free int) {
	for free < coord.MaxBatch {
		select {
		case w.slots <- struct{}{}:
			free++
		default:
			return free
		}
	}
	return free
}

func (w *Worker) freeSlot() {
	<-w.slots
	if w.waiting.Load() {
		select {
		case w.freed <- struct{}{}:
		default:
		}
	}
}

// interval is the time between two heartbeats, and the longest that a call to the
// store may take.
func (w *Worker) interval() time.Duration { return w.o.Lease / 3 }

// margin is how long before its lease a handler is cancelled.
func (w *Worker) margin() time.Duration { return min(w.o.Lease/10, 2*time.Second) }

func (w *Worker) start(work context.Context, handlers *sync.WaitGroup, c coord.Claim) {
	ctx, cancel := context.WithCancelCause(work)
	j := &job{claim: c, cancel: cancel}
	w.mu.Lock()
	j.fence = time.AfterFunc(time.Until(c.Deadline)-w.margin(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		j.lose()
	})
	w.running[c.Run.ID] = j
	w.mu.Unlock()
	handlers.Go(func() {
		defer w.freeSlot()
		defer cancel(nil)
		err := errExited
		// Deferred, so that a handler that calls runtime.Goexit does not hold its run.
		defer func() {
			if c, mine := w.takeBack(j); mine {
				defer w.writing.Done()
				w.finish(work, c, err, context.Cause(ctx))
			}
		}()
		err = w.handle(ctx, c)
	})
}

// lose cancels the handler and ends the heartbeats: the lease is not this
// worker's any more, or is about to end. The worker is locked.
func (j *job) lose() {
	j.fenced = true
	j.cancel(coord.ErrFenced)
}

// takeBack ends the heartbeats of a job and returns its claim as last extended.
// It is not mine any more when the worker has released it.
func (w *Worker) takeBack(j *job) (c coord.Claim, mine bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	j.fence.Stop()
	mine = w.running[j.claim.Run.ID] == j
	if mine {
		delete(w.running, j.claim.Run.ID)
		w.writing.Add(1)
	}
	return j.claim, mine
}

// handle calls the handler within the run's timeout; a panic is an error.
func (w *Worker) handle(ctx context.Context, c coord.Claim) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if c.Run.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Run.Timeout)
		defer cancel()
	}
	if c.Run.CancelRequested {
		return ErrCancelled
	}
	return w.o.Handlers[c.Run.Kind](ctx, c)
}

// result turns what a handler returned, and why its context ended, into the
// end of the run.
func result(c coord.Claim, err, cause error) (r coord.Result, ok bool) {
	r = coord.Result{Claim: c}
	switch {
	case errors.Is(err, ErrFinished):
		return r, false
	case err == nil:
		r.Outcome = coord.Succeed
		return r, true
	case errors.Is(cause, ErrCancelled) || errors.Is(err, ErrCancelled):
		r.Outcome, r.Error = coord.CancelRun, err.Error()
		return r, true
	}
	// What a handler asks for counts also when it was made to end.
	if s, ok := errors.AsType[snooze](err); ok {
		r.Outcome, r.Delay = coord.Snooze, s.after
		return r, true
	}
	if _, ok := errors.AsType[giveUp](err); ok {
		r.Outcome, r.Error = coord.GiveUp, err.Error()
		return r, true
	}
	if errors.Is(cause, ErrDraining) {
		return cutOff(c), true
	}
	r.Outcome, r.Error = coord.Fail, err.Error()
	return r, true
}

// cutOff ends a run whose handler did not end within the grace: it is released,
// unless it may not begin a second time.
func cutOff(c coord.Claim) coord.Result {
	if c.Run.AtMostOnce {
		return coord.Result{Claim: c, Outcome: coord.GiveUp, Error: "cut off as its worker stopped, and not to be run again"}
	}
	return coord.Result{Claim: c, Outcome: coord.Release}
}

// giveBack releases a run that no handler has begun.
func giveBack(c coord.Claim) coord.Result { return coord.Result{Claim: c, Outcome: coord.Release} }

// finish writes the end of a run, trying on while the lease lasts.
func (w *Worker) finish(work context.Context, c coord.Claim, err, cause error) {
	log := w.o.Logger.With("run", c.Run.ID, "kind", c.Run.Kind, "attempt", c.Run.Attempt)
	if errors.Is(err, coord.ErrFenced) || err != nil && errors.Is(cause, coord.ErrFenced) {
		log.Warn("lease lost; the run is left to its next holder")
		return
	}
	r, ok := result(c, err, cause)
	if !ok {
		return
	}
	if r.Outcome == coord.Fail || r.Outcome == coord.GiveUp {
		log.Warn("run failed", "error", err)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(work), c.Deadline)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		call, cancel := context.WithTimeout(ctx, w.interval())
		err := w.claimer.Finish(call, r)
		cancel()
		switch {
		case err == nil:
			return
		case errors.Is(err, coord.ErrFenced):
			// After an unknown outcome this may be our own earlier write.
			log.Warn("run was no longer held when it finished")
			return
		case !errors.Is(err, coord.ErrUnavailable):
			log.Error("run could not be finished; it will run again", "error", err)
			return
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			log.Error("run could not be finished before its lease ended; it will run again", "error", err)
			return
		}
	}
}

// heartbeats extends the leases of all running jobs together.
func (w *Worker) heartbeats(work context.Context) {
	next := time.NewTicker(w.interval())
	defer next.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-next.C:
		}
		claims := w.held()
		for batch := range slices.Chunk(claims, coord.MaxBatch) {
			ctx, cancel := context.WithTimeout(work, w.interval())
			held, err := w.claimer.Extend(ctx, w.o.Lease, batch...)
			cancel()
			w.renewed(held, err)
		}
	}
}

func (w *Worker) held() []coord.Claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	claims := make([]coord.Claim, 0, len(w.running))
	for _, j := range w.running {
		if !j.fenced {
			claims = append(claims, j.claim)
		}
	}
	return claims
}

func (w *Worker) renewed(held []coord.Claim, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range held {
		j := w.running[c.Run.ID]
		if j == nil || j.claim.Token != c.Token || j.fenced {
			continue
		}
		j.claim.Deadline = c.Deadline
		j.fence.Reset(time.Until(c.Deadline) - w.margin())
		if c.Run.CancelRequested {
			j.cancel(ErrCancelled)
		}
	}
	if fenced, ok := errors.AsType[*coord.FencedError](err); ok {
		for _, c := range fenced.Claims {
			if j := w.running[c.Run.ID]; j != nil && j.claim.Token == c.Token {
				j.lose()
			}
		}
	}
}

// releaseTime bounds what a drain still waits for after the grace.
const releaseTime = 5 * time.Second

// releaseRest gives back the runs of handlers that do not end. Handlers that do
// end now finish for themselves.
func (w *Worker) releaseRest(ctx context.Context, done <-chan struct{}) {
	settle := time.NewTimer(min(w.o.Grace/10, time.Second))
	defer settle.Stop()
	select {
	case <-done:
		return
	case <-settle.C:
	}
	w.mu.Lock()
	var rest []coord.Claim
	for id, j := range w.running {
		rest = append(rest, j.claim)
		delete(w.running, id) // its handler's own result counts no more
	}
	w.mu.Unlock()
	w.release(ctx, rest, cutOff)
	if len(rest) > 0 {
		w.o.Logger.Warn("handlers ignored the end of their grace; their runs were released", "runs", len(rest))
	}
	written := make(chan struct{})
	go func() {
		w.writing.Wait()
		close(written)
	}()
	patience := time.NewTimer(releaseTime)
	defer patience.Stop()
	select {
	case <-written:
	case <-patience.C:
	}
}

// release writes the end of claims that nobody works on any more.
func (w *Worker) release(ctx context.Context, claims []coord.Claim, end func(coord.Claim) coord.Result) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	for batch := range slices.Chunk(claims, coord.MaxBatch) {
		results := make([]coord.Result, len(batch))
		for i, c := range batch {
			results[i] = end(c)
		}
		err := w.claimer.Finish(ctx, results...)
		if err != nil && !errors.Is(err, coord.ErrFenced) {
			w.o.Logger.Error("runs could not be released; they wait for their lease to end", "error", err, "runs", len(batch))
		}
	}
}
