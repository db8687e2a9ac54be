package coord

import (
	"context"
	"errors"
	"time"
)

type callsSeam struct {
	*seam
	driver Calls
}

func (n *NewCall) complete() error {
	orDefault(&n.TTL, time.Minute)
	return invalid(
		text("NewCall.Key", n.Key, 0, maxName),
		text("NewCall.Target", n.Target, 1, maxName),
		text("NewCall.Kind", n.Kind, 1, maxKind),
		payload("NewCall.Payload", n.Payload),
		span("NewCall.TTL", n.TTL, time.Second, 24*time.Hour),
	)
}

func (a *Answer) complete() error {
	a.Error = errorText(a.Error)
	return invalid(text("Answer.Target", a.Target, 1, maxName), payload("Answer.Result", a.Result))
}

// known spares the store an id that no call can have.
func (id CallID) known(call func() error) func() error {
	if id.valid() {
		return call
	}
	return func() error { return ErrNotFound }
}

func (s callsSeam) Open(ctx context.Context, n NewCall) (c Call, err error) {
	bad := n.complete()
	err = s.do(ctx, "calls.open", n.Target, 1, bad, func() (err error) {
		c, err = s.driver.Open(ctx, n)
		return err
	})
	return c, err
}

func (s callsSeam) Answer(ctx context.Context, a Answer) error {
	bad := a.complete()
	return s.do(ctx, "calls.answer", string(a.ID), 1, bad, a.ID.known(func() error { return s.driver.Answer(ctx, a) }))
}

func (s callsSeam) Cancel(ctx context.Context, id CallID, reason string) error {
	reason = errorText(reason)
	return s.do(ctx, "calls.cancel", string(id), 1, nil, id.known(func() error { return s.driver.Cancel(ctx, id, reason) }))
}

func (s callsSeam) Get(ctx context.Context, id CallID) (c Call, err error) {
	err = s.do(ctx, "calls.get", string(id), 1, nil, id.known(func() (err error) {
		c, err = s.driver.Get(ctx, id)
		return err
	}))
	return c, err
}

func (s callsSeam) Find(ctx context.Context, key string) (c Call, err error) {
	err = s.do(ctx, "calls.find", key, 1, text("key", key, 1, maxName), func() (err error) {
		c, err = s.driver.Find(ctx, key)
		return err
	})
	return c, err
}

// Wait is not timed: it waits by nature, and a deadline that ran out meanwhile is
// the caller's.
func (s callsSeam) Wait(ctx context.Context, id CallID) (c Call, err error) {
	const op = "calls.wait"
	switch {
	case s.closed.Load():
		err = ErrClosed
	case s.inside(ctx):
		err = errInside
	case !id.valid():
		err = ErrNotFound
	default:
		c, err = s.driver.Wait(ctx, id)
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Op == op || err == nil {
		return c, err
	}
	return c, &Error{Op: op, Key: string(id), Err: err}
}

func (s callsSeam) Pending(ctx context.Context, target string) (list []Call, err error) {
	err = s.do(ctx, "calls.pending", target, 1, text("target", target, 1, maxName), func() (err error) {
		list, err = s.driver.Pending(ctx, target)
		return err
	})
	return list, err
}

func (s callsSeam) Reap(ctx context.Context, age time.Duration) (n int, err error) {
	err = s.do(ctx, "calls.reap", "", 1, span("age", age, 0, maxSpan), func() (err error) {
		n, err = s.driver.Reap(ctx, age)
		return err
	})
	return n, err
}
