package coord

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// receiptPoll is how often a key that another one holds is looked at when nothing is
	// heard of it, jittered by half.
	receiptPoll = 500 * time.Millisecond
	// receiptGap is the least time between two looks: what is heard may be of other keys. It
	// grows to that part of the time that was waited, so that many who wait for long do not
	// keep those from the store who are at work.
	receiptGap  = 5 * time.Millisecond
	receiptPart = 16
	// receiptRetry is when to ask again after an answer was lost, jittered by half.
	receiptRetry = 20 * time.Millisecond
	// receiptLeave is how long who leaves tries to leave no hold behind, and receiptRelease how
	// long who was at work does.
	receiptLeave   = time.Second
	receiptRelease = 5 * time.Second
)

// Do lets fn be called once under a key, on whichever replica is asked first, and
// returns its stored outcome to all who ask, failures included; replayed says that
// another call was first. Who comes while fn runs waits. Errors: [ErrConflict] when the
// key was used for another fingerprint; [ErrUnavailable], [ErrFenced] and the context's,
// after which the same may be asked again.
//
// What fn returns is stored: its result, and the text of its error. An error that is
// the context's, ErrUnavailable, [ErrBackpressure], ErrFenced, [ErrClosed] or
// [ErrTransient], or wraps one of them, is no outcome: it is returned as it is, and the
// key is free. A result of more than MaxPayload is stored as a failure that says so.
//
// While fn runs its lease is extended. Its context ends, with the cause ErrFenced, before
// the lease can end, by this process's monotonic clock; a fn that then returns the context's
// error has lost its lease, and Do's error is ErrFenced too. When fn panics or its process
// dies, the key is free as soon as the lease has ended, and another caller's fn runs. To
// let an effect in the store happen once even then, fn makes it together with
// [Tx.CompleteReceipt] of held in one transaction, and returns. That outcome counts then.
//
// When fn has returned, storing its outcome is tried for one more lease, even if ctx has
// ended, and giving the key up, when there is no outcome, for 5 s. When ctx ends while the key
// is asked for, giving it up is tried for one second.
func Do(
	ctx context.Context, receipts Receipts, r ReceiptFor, fn func(ctx context.Context, held Receipt) ([]byte, error),
) (o ReceiptOutcome, replayed bool, err error) {
	_ = r.complete() // Begin says what is wrong
	d := doing{receipts: receipts, ReceiptFor: r}
	changes, stop := receipts.Changes()
	defer stop()
	for first := time.Now(); ; {
		began, pause := time.Now(), receiptPoll
		got, err := receipts.Begin(ctx, r)
		unsure := errors.Is(err, ErrUnknownOutcome) // the key may be this holder's
		switch {
		case unsure && ctx.Err() == nil && time.Since(first) < r.Lease:
			pause = receiptRetry
		case err != nil:
			if ctx.Err() != nil {
				d.leave(ctx)
			}
			return ReceiptOutcome{}, false, err
		case got.State == ReceiptDone:
			return got.Outcome, true, nil
		case got.State == ReceiptMine:
			return d.do(ctx, got, began, fn)
		}
		gap := min(max(receiptGap, time.Since(first)/receiptPart), receiptPoll)
		if err := again(ctx, changes, pause, time.Until(began.Add(gap))); err != nil {
			if unsure {
				d.leave(ctx)
			}
			return ReceiptOutcome{}, false, &Error{Op: "receipts.do", Key: r.Key, Err: err}
		}
	}
}

// again returns when it is time for another look at a key: after a pause or a change, but
// not before least has passed.
func again(ctx context.Context, changes <-chan struct{}, pause, least time.Duration) error {
	gap := time.NewTimer(least)
	defer gap.Stop()
	poll := time.NewTimer(pause/2 + rand.N(pause/2))
	defer poll.Stop()
	select {
	case <-changes:
	case <-poll.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-gap.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// doing is one call of Do.
type doing struct {
	ReceiptFor
	receipts Receipts
}

// leave gives the key up, of which it is not known whether this holder has it: others would
// wait for the end of a lease under which nothing is done.
func (d doing) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(withoutPatience(context.WithoutCancel(ctx)), receiptLeave)
	defer cancel()
	if got, err := d.receipts.Begin(ctx, d.ReceiptFor); err == nil && got.State == ReceiptMine {
		_ = d.receipts.Release(ctx, got) // otherwise the end of the lease does
	}
}

// do calls fn, with a lease that began then or later, and stores what came of it.
func (d doing) do(
	ctx context.Context, held Receipt, began time.Time, fn func(context.Context, Receipt) ([]byte, error),
) (ReceiptOutcome, bool, error) {
	body, err := d.underLease(ctx, held, began, fn)
	within, transient := d.Lease, isTransient(err)
	if transient { // often since the store is away, and the caller waits to be told
		within = min(within, receiptRelease)
	}
	settling, cancel := context.WithTimeout(withoutPatience(context.WithoutCancel(ctx)), within)
	defer cancel()
	if transient {
		_ = d.receipts.Release(settling, held) // otherwise the end of the lease does
		return ReceiptOutcome{}, false, err
	}
	o := ReceiptOutcome{Body: body}
	if err != nil {
		if o.Error = err.Error(); o.Error == "" {
			o.Error = "failed"
		}
	}
	if err := o.complete(); err != nil {
		o = ReceiptOutcome{Error: err.Error()}
	}
	return d.settle(settling, held, o)
}

// isTransient reports whether an error of fn is none that should be stored.
func isTransient(err error) bool {
	for _, transient := range []error{
		ErrTransient, context.Canceled, context.DeadlineExceeded, ErrUnavailable, ErrBackpressure, ErrFenced, ErrClosed,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}

// underLease calls fn, whose context ends before the lease can.
func (d doing) underLease(
	ctx context.Context, held Receipt, began time.Time, fn func(context.Context, Receipt) ([]byte, error),
) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	trusted := func(began time.Time) time.Duration {
		return time.Until(began.Add(d.Lease - min(d.Lease/10, 2*time.Second)))
	}
	fence := time.AfterFunc(trusted(began), func() { cancel(ErrFenced) })
	var extending sync.WaitGroup
	extending.Go(func() {
		next := time.NewTimer(time.Until(began.Add(d.Lease / 3)))
		defer next.Stop()
		for {
			select {
			case <-next.C:
			case <-ctx.Done():
				return
			}
			began := time.Now()
			asking, done := context.WithTimeout(ctx, d.Lease/3)
			_, err := d.receipts.Extend(asking, held, d.Lease)
			done()
			switch {
			case err == nil:
				fence.Reset(trusted(began))
				next.Reset(time.Until(began.Add(d.Lease / 3)))
			case errors.Is(err, ErrFenced):
				cancel(ErrFenced)
			default:
				next.Reset(d.Lease / 20)
			}
		}
	})
	defer func() { // also when fn panics
		cancel(nil)
		extending.Wait()
		fence.Stop()
	}()
	body, err := fn(ctx, held)
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), ErrFenced) {
		err = fmt.Errorf("%w: %w", ErrFenced, err) // it was not the caller who gave up
	}
	return body, err
}

// settle stores an outcome. When the hold is gone the receipt tells why: an earlier try
// whose answer was lost, or fn itself, has completed it, or its lease was lost and
// another call has an outcome, which is the first then.
func (d doing) settle(ctx context.Context, held Receipt, o ReceiptOutcome) (ReceiptOutcome, bool, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := d.receipts.Complete(ctx, held, o)
		if err == nil {
			return o, false, nil
		}
		if errors.Is(err, ErrFenced) {
			got, beginErr := d.receipts.Begin(ctx, d.ReceiptFor)
			switch {
			case errors.Is(beginErr, ErrUnavailable):
				err = beginErr
			case beginErr != nil || got.State == ReceiptHeld:
				return ReceiptOutcome{}, false, err
			case got.State == ReceiptDone:
				return got.Outcome, got.Token != held.Token, nil
			default: // nobody has an outcome
				held = got
				continue
			}
		}
		if !errors.Is(err, ErrUnavailable) {
			return ReceiptOutcome{}, false, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return ReceiptOutcome{}, false, err
		}
	}
}
