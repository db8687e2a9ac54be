package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Handler executes a run. Returning nil ends it as succeeded; see [Snooze],
// [GiveUp], [Run.FinishIn] and [ErrFinished] for other ends. Any other error,
// or a panic, is a failed attempt.
//
// ctx is cancelled when the lease is lost or about to be, when the run is
// cancelled, when its timeout is over, and when the worker's grace is; then
// [context.Cause] says which: [coord.ErrFenced], [ErrCancelled],
// [context.DeadlineExceeded] or [ErrDraining].
type Handler func(ctx context.Context, r *Run) error

var (
	// ErrFinished is returned by a handler that has finished its run itself, with
	// [coord.Tx.Finish], in the transaction of its own rows. [Run.FinishIn] spares
	// it where the run has succeeded.
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

// Run is a run in the hands of a handler. Its Claim is as it was when it was
// claimed and is not to be changed. The methods may be called by several
// goroutines until the handler returns.
//
// A worker makes it. A test that calls a handler may make one from a claim,
// &Run{Claim: c}: what it reports then goes nowhere.
type Run struct {
	coord.Claim

	worker   *Worker
	ctx      context.Context //nolint:containedctx // the handler's, as long as the Run lives
	cancel   context.CancelCauseFunc
	finished atomic.Bool // by FinishIn
	end      ending      // set when the handler has ended
	deadline time.Time   // as last extended; guarded by the worker while running
	fenced   bool        // the lease is lost, or left to end; guarded by the worker
}

// FinishIn ends the run as succeeded in a transaction of the handler, so that its
// rows and the end of its run become one. It is called once, and its error is
// returned from the transaction's function; the handler then returns the
// transaction's error. A worker that lost its lease gets [coord.ErrFenced], and
// the transaction is rolled back. The context of the handler goes on when the run has
// ended so, until its lease would have.
func (r *Run) FinishIn(ctx context.Context, tx coord.Tx) error {
	err := tx.Finish(ctx, coord.Result{Claim: r.Claim, Outcome: coord.Succeed})
	r.finished.Store(err == nil)
	return err
}

// Log adds a line to the log of the run, at most [coord.MaxLogLine] long. When the
// lease is lost it returns [coord.ErrFenced], and nothing is added. Inside a
// transaction use [coord.Tx.Report].
func (r *Run) Log(ctx context.Context, format string, args ...any) error {
	return r.report(ctx, coord.Report{Lines: []string{fmt.Sprintf(format, args...)}})
}

// Progress says how much of the attempt is done, from 1 to 100 percent; its errors
// are those of Log.
func (r *Run) Progress(ctx context.Context, percent int) error {
	return r.report(ctx, coord.Report{Progress: percent})
}

// execute calls the handler of a run that has a slot, and settles what becomes of
// it. It does so also when the handler calls [runtime.Goexit].
func (w *Worker) execute(r *Run) {
	err := errExited
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		w.settle(r, err)
	}()
	err = w.handle(r)
}

func (w *Worker) handle(r *Run) error {
	ctx := r.ctx
	if r.Run.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Run.Timeout)
		defer cancel()
	}
	if r.Run.CancelRequested {
		return ErrCancelled
	}
	return w.o.Handlers[r.Run.Kind](ctx, r)
}

// ending is what becomes of a run: a [coord.Result] without its claim.
type ending struct {
	outcome coord.Outcome // none: nothing is to be written
	delay   time.Duration
	error   string
}

// none is the outcome of a run that is over, or is not this worker's any more.
const none coord.Outcome = 0

// result turns what the handler returned, and why its context ended, into the end of
// the run.
func (r *Run) result(err, cause error) ending {
	switch {
	case err == nil && r.finished.Load() || errors.Is(err, ErrFinished):
		return ending{}
	case err == nil:
		return ending{outcome: coord.Succeed}
	case errors.Is(err, coord.ErrFenced) || errors.Is(cause, coord.ErrFenced):
		return ending{}
	case errors.Is(err, ErrCancelled) || errors.Is(cause, ErrCancelled):
		return ending{outcome: coord.CancelRun, error: err.Error()}
	}
	// What a handler asks for counts also when it was made to end.
	if s, ok := errors.AsType[snooze](err); ok {
		return ending{outcome: coord.Snooze, delay: s.after}
	}
	if _, ok := errors.AsType[giveUp](err); ok {
		return ending{outcome: coord.GiveUp, error: err.Error()}
	}
	if errors.Is(cause, ErrDraining) {
		return r.unfinished()
	}
	return ending{outcome: coord.Fail, error: err.Error()}
}

// unfinished is the end of a run whose handler did not end within the grace: it is
// released, unless it may not begin a second time.
func (r *Run) unfinished() ending {
	if r.Run.AtMostOnce {
		return ending{outcome: coord.GiveUp, error: "cut off as its worker stopped, and not to be run again"}
	}
	return ending{outcome: coord.Release}
}

// Kind is a kind of runs whose payload is a T in JSON. It keeps those who queue
// runs and those who handle them in step:
//
//	const ship worker.Kind[Order] = "ship"
type Kind[T any] string

// Run returns a run of this kind, to be completed and queued. It fails when T can't
// be written as JSON.
func (k Kind[T]) Run(payload T) (coord.NewRun, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return coord.NewRun{}, fmt.Errorf("worker: the payload of a run of kind %q: %w", string(k), err)
	}
	return coord.NewRun{Kind: string(k), Payload: data}, nil
}

// Handler returns a handler of this kind. A run whose payload is no T fails and is
// not tried again.
func (k Kind[T]) Handler(handle func(ctx context.Context, r *Run, payload T) error) Handler {
	return func(ctx context.Context, r *Run) error {
		var payload T
		if err := json.Unmarshal(r.Run.Payload, &payload); err != nil {
			return GiveUp(fmt.Errorf("the payload can't be read: %w", err))
		}
		return handle(ctx, r, payload)
	}
}
