package memory

import (
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// InTx holds the lock while fn runs, and takes back what fn did when it fails.
func (h *handle) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	s := h.store
	if err := s.lock.acquire(ctx); err != nil {
		return err
	}
	defer s.lock.release()
	t := &tx{store: s, now: s.now()}
	s.inTx = true
	done := false
	defer func() { // also when fn panics
		t.over = true
		s.inTx = false
		if !done {
			s.rollBack()
		}
		clear(s.undo)
		s.undo = s.undo[:0]
	}()
	if err := fn(ctx, t); err != nil {
		return err
	}
	// Even if ctx has ended meanwhile: fn may have committed rows of its own.
	done = true
	s.publish(s.now(), t.events)
	s.notify()
	return nil
}

func (s *Store) rollBack() {
	for _, undo := range slices.Backward(s.undo) {
		undo()
	}
	s.ring, s.ringCancels, s.ringCalls, s.ringReceipts, s.ringKeys = false, false, false, false, false
}

// tx is a transaction; the store is locked for as long as it lasts.
type tx struct {
	store  *Store
	now    time.Time
	events []coord.NewEvent
	over   bool
}

// usable refuses a Tx that was kept beyond its end.
func (t *tx) usable(ctx context.Context) error {
	if t.over {
		return coord.ErrClosed
	}
	return ctx.Err()
}

func (t *tx) PutTask(ctx context.Context, task coord.Task) (coord.Task, error) {
	if err := t.usable(ctx); err != nil {
		return coord.Task{}, err
	}
	return t.store.putTask(t.now, task)
}

func (t *tx) DeleteTask(ctx context.Context, name string) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.deleteTask(t.now, name)
}

func (t *tx) PauseTask(ctx context.Context, name string, paused bool) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.pauseTask(t.now, name, paused)
}

func (t *tx) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error) {
	if err := t.usable(ctx); err != nil {
		return coord.Run{}, err
	}
	return t.store.trigger(t.now, name, o)
}

func (t *tx) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	return t.store.enqueue(t.now, runs), nil
}

func (t *tx) Finish(ctx context.Context, results ...coord.Result) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.finish(t.now, results)
}

func (t *tx) Report(ctx context.Context, reports ...coord.Report) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.report(t.now, reports)
}

func (t *tx) Cancel(ctx context.Context, id coord.RunID) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.cancel(t.now, id)
}

func (t *tx) Publish(ctx context.Context, events ...coord.NewEvent) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	for _, e := range events {
		e.Payload = slices.Clone(e.Payload)
		t.events = append(t.events, e)
	}
	return nil
}

func (t *tx) OpenCall(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	if err := t.usable(ctx); err != nil {
		return coord.Call{}, err
	}
	return t.store.openCall(t.now, n), nil
}

func (t *tx) CancelCall(ctx context.Context, id coord.CallID, reason string) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.cancelCall(t.now, id, reason)
}

func (t *tx) CompleteReceipt(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.completeReceipt(t.now, held, o)
}

func (t *tx) Fence(ctx context.Context, term coord.Term) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.store.fence(t.now, term)
}

func (t *tx) ChangeRing(ctx context.Context, c coord.RingChange) (coord.Ring, error) {
	if err := t.usable(ctx); err != nil {
		return coord.Ring{}, err
	}
	return t.store.changeRing(t.now, c)
}

func (t *tx) HoldRing(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	if err := t.usable(ctx); err != nil {
		return coord.Ring{}, err
	}
	return t.store.loadRing(t.now, known), nil
}

func (t *tx) Unwrap() any { return nil }
