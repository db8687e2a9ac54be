package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// extendGap is the least time between two extensions of all leases, so that many
// cancelled runs share one.
const extendGap = 10 * time.Millisecond

// heartbeats extends the leases of all running runs together: regularly, sooner when
// that has failed, and at once when a run may have been cancelled, since the answer
// says so.
func (w *Worker) heartbeats(work context.Context, cancels <-chan struct{}) {
	extending := outage{log: w.o.Logger, call: "extend"}
	next := time.NewTimer(w.interval())
	defer next.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-next.C:
		case <-w.again:
		case <-cancels:
			w.heard.Add(1)
		}
		began, failed := time.Now(), false
		for claims := range slices.Chunk(w.held(), coord.MaxBatch) {
			ctx, cancel := context.WithTimeout(work, w.interval())
			held, err := w.claimer.Extend(ctx, w.o.Lease, claims...)
			cancel()
			if work.Err() != nil {
				return
			}
			fenced, ok := errors.AsType[*coord.FencedError](err)
			if ok {
				w.lost(fenced.Claims)
				err = nil
			}
			w.extended(held)
			extending.note(err)
			failed = failed || err != nil
		}
		if failed { // the leases go on ending, and what was heard is not known yet
			next.Reset(w.o.Lease / 20)
		} else {
			next.Reset(time.Until(began.Add(w.interval())))
		}
		select {
		case <-work.Done():
			return
		case <-time.After(extendGap):
		}
	}
}

func (w *Worker) held() []coord.Claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	claims := make([]coord.Claim, 0, len(w.running))
	for _, r := range w.running {
		if !r.fenced {
			claims = append(claims, r.Claim)
		}
	}
	return claims
}

func (w *Worker) extended(held []coord.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range held {
		r := w.running[c.Run.ID]
		if r == nil || r.Token != c.Token || r.fenced {
			continue
		}
		r.deadline = c.Deadline
		if c.Run.CancelRequested {
			r.cancel(ErrCancelled)
		}
	}
}

// lost ends the handlers of claims that are held no longer, but for those whose own
// transaction has ended the run: the answer to its commit may still be on its way.
func (w *Worker) lost(claims []coord.Claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range claims {
		if r := w.running[c.Run.ID]; r != nil && r.Token == c.Token && !r.finished.Load() {
			r.lose()
		}
	}
}

// lose cancels the handler and ends the heartbeats: the lease is not this
// worker's any more, or is about to end. The worker is locked.
func (r *Run) lose() {
	r.fenced = true
	r.cancel(coord.ErrFenced)
}

// margin is how long before its lease a handler is cancelled.
func (w *Worker) margin() time.Duration { return min(w.o.Lease/10, 2*time.Second) }

// arm makes the fence fall in time for a deadline. The worker is locked.
func (w *Worker) arm(deadline time.Time) {
	at := deadline.Add(-w.margin())
	if !w.fenceAt.IsZero() && !at.Before(w.fenceAt) {
		return
	}
	w.fenceAt = at
	if w.fence == nil {
		w.fence = time.AfterFunc(time.Until(at), w.fall)
	} else {
		w.fence.Reset(time.Until(at))
	}
}

// disarm is arm undone. The worker is locked.
func (w *Worker) disarm() {
	w.fenceAt = time.Time{}
	if w.fence != nil {
		w.fence.Stop()
	}
}

// fall cancels the handlers whose lease is about to end. One timer serves them all:
// it is set for the earliest deadline of those it found, most of which are
// extended before.
func (w *Worker) fall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disarm()
	now := time.Now().Add(w.margin())
	for _, r := range w.running {
		switch {
		case r.fenced:
		case r.deadline.After(now):
			w.arm(r.deadline)
		default:
			r.lose()
		}
	}
}
