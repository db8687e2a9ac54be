package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what all drivers have in common.
type Options struct {
	Logger   *slog.Logger // default: discards
	Observer Observer     // default: none; may be a LimiterObserver
	Limiter  LimiterOptions
}

// Wrap puts the seam over a driver: it validates requests and fills in their
// defaults, gives every error its operation, counts, times and logs, and
// refuses calls after Close. A driver's Open function returns its backend
// wrapped, so that nobody else needs to; wrapping twice does no harm.
func Wrap(driver Backend, o Options) Backend {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &seam{driver: driver, log: o.Logger, observer: o.Observer}
	s.claimer = claimerSeam{s, driver.Claimer()}
	s.tickets = ticketsSeam{s, driver.Tickets()}
	s.limiter = newLimiterSeam(s, driver.Limiter(), o)
	s.broadcaster = broadcasterSeam{s, driver.Broadcaster()}
	s.directory = directorySeam{s, driver.Directory()}
	s.calls = callsSeam{s, driver.Calls()}
	s.receipts = receiptsSeam{s, driver.Receipts()}
	s.elector = electorSeam{s, driver.Elector()}
	s.keyring = keyringSeam{s, driver.Keyring()}
	return s
}

// seam is the one place between callers and drivers.
type seam struct {
	driver   Backend
	log      *slog.Logger
	observer Observer
	closed   atomic.Bool
	txs      atomic.Int64 // transactions that are under way
	away     atomic.Bool  // the store was unavailable at the last call
	refused  atomic.Bool  // and for more than reading
	turn     sync.Mutex
	turned   time.Time // when away changed; guarded by turn

	claimer     claimerSeam
	tickets     ticketsSeam
	limiter     *limiterSeam
	broadcaster broadcasterSeam
	directory   directorySeam
	calls       callsSeam
	receipts    receiptsSeam
	elector     electorSeam
	keyring     keyringSeam
}

func (s *seam) Claimer() Claimer         { return s.claimer }
func (s *seam) Tickets() Tickets         { return s.tickets }
func (s *seam) Limiter() Limiter         { return s.limiter }
func (s *seam) Broadcaster() Broadcaster { return s.broadcaster }
func (s *seam) Directory() Directory     { return s.directory }
func (s *seam) Calls() Calls             { return s.calls }
func (s *seam) Receipts() Receipts       { return s.receipts }
func (s *seam) Elector() Elector         { return s.elector }
func (s *seam) Keyring() Keyring         { return s.keyring }

func (s *seam) Ping(ctx context.Context) error {
	return s.do(ctx, "backend.ping", "", 1, nil, func() error { return s.driver.Ping(ctx) })
}

func (s *seam) Close(ctx context.Context) error {
	const op = "backend.close"
	if s.inside(ctx) {
		return wrapError(op, "", errInside)
	}
	s.closed.Store(true)
	if err := s.driver.Close(ctx); err != nil {
		return wrapError(op, "", err)
	}
	return nil
}

// inTx marks the context of a transaction's function with its backend.
type inTx struct{ s *seam }

var errInside = &InvalidError{Field: "ctx", Reason: "the backend was called inside InTx; use the Tx"}

// inside reports whether the caller is a transaction's function.
func (s *seam) inside(ctx context.Context) bool {
	return s.txs.Load() > 0 && ctx.Value(inTx{s}) != nil
}

// ownError is an error of the caller's own function, which goes back unchanged.
type ownError struct{ error }

func (s *seam) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	return s.do(ctx, "backend.tx", "", 1, nil, func() error {
		var own error
		err := s.driver.InTx(ctx, func(ctx context.Context, tx Tx) error {
			s.txs.Add(1)
			defer s.txs.Add(-1)
			var rings ringRule
			own = fn(context.WithValue(ctx, inTx{s}, true), txSeam{s, tx, &rings})
			if own == nil && rings.changed && !rings.fenced {
				return errUnfenced
			}
			return own
		})
		if own != nil {
			return ownError{own}
		}
		return err
	})
}

// do runs one operation: refused when closed, inside a transaction's function
// or invalid, and otherwise timed, its error given a name, and its outcome told.
func (s *seam) do(ctx context.Context, op, key string, items int, bad error, call func() error) error {
	if s.inside(ctx) {
		bad = errInside
	}
	return s.run(ctx, op, key, items, bad, call)
}

// run is do for calls that may be made inside a transaction.
func (s *seam) run(ctx context.Context, op, key string, items int, bad error, call func() error) error {
	return s.count(ctx, op, key, &items, bad, call)
}

// count is run for calls that know only in the end how many items they were
// about.
func (s *seam) count(ctx context.Context, op, key string, items *int, bad error, call func() error) error {
	began, asked := time.Now(), *items > 0
	err := bad
	switch {
	case s.closed.Load():
		err = ErrClosed
	case err == nil:
		if err = call(); repeatable[op] && errors.Is(err, ErrUnknownOutcome) && !named(err, op) && ctx.Err() == nil {
			err = call()
		}
	}
	own, isOwn := err.(ownError) //nolint:errorlint // it is never wrapped
	switch {
	case isOwn:
		err = own.error
	case err != nil:
		err = wrapError(op, key, err)
	}
	if !isOwn && asked { // else the store was not asked, or not about this
		s.note(ctx, op, began, err)
	}
	if s.observer != nil {
		s.observer.Observe(ctx, Observation{Op: op, Items: *items, Err: err, Took: time.Since(began)})
	}
	return err
}

// wrapError gives an error its operation, once, and makes a deadline that ran out an
// ErrUnavailable too.
func wrapError(op, key string, err error) error {
	if named(err, op) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &Error{Op: op, Key: key, Err: err}
}

// named reports whether an error has been through a seam already, for that operation.
func named(err error, op string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Op == op
}

// reading are the operations that only read. A standby answers them while it refuses to
// be written to: that they work doesn't mean that the others do.
var reading = map[string]bool{
	"broadcaster.heads": true, "broadcaster.read": true, "broadcaster.subscribe": true, "stream.add": true,
	"calls.find": true, "calls.get": true, "calls.pending": true,
	"claimer.log": true, "claimer.next_due": true, "claimer.run": true, "claimer.runs": true, "claimer.task": true, "claimer.tasks": true,
	"directory.list": true, "directory.lookup": true, "directory.members": true,
	"elector.leaders": true,
	"keyring.load":    true,
	"limiter.peek":    true,
}

// repeatable are the operations that are made once more when the connection was lost before their
// answer came: they read, and nothing of theirs has been handed on yet. Of the others the caller
// decides, who knows whether and under which key they may be repeated.
var repeatable = map[string]bool{
	"broadcaster.heads": true, "broadcaster.read": true,
	"calls.find": true, "calls.get": true, "calls.pending": true,
	"claimer.next_due": true, "claimer.run": true, "claimer.task": true,
	"directory.list": true, "directory.lookup": true, "directory.members": true,
	"elector.leaders": true,
	"keyring.load":    true,
}

// note logs when the store goes away and when it is back, once each.
func (s *seam) note(ctx context.Context, op string, began time.Time, err error) {
	away, reads := errors.Is(err, ErrUnavailable) && ctx.Err() == nil, reading[op]
	switch {
	case err != nil && !away:
		return
	case away && s.away.Load() && (reads || s.refused.Load()): // as is known
		return
	case !away && (!s.away.Load() || reads && s.refused.Load()):
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	// A call that began before the last change knows nothing newer.
	if began.Before(s.turned) {
		return
	}
	s.refused.Store(away && (!reads || s.refused.Load()))
	if away == s.away.Load() {
		return
	}
	s.away.Store(away)
	s.turned = time.Now()
	if away {
		s.log.WarnContext(ctx, "coordination store is unavailable", "error", err)
	} else {
		s.log.InfoContext(ctx, "coordination store is reachable again")
	}
}
