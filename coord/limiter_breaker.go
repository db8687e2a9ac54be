package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// breaker keeps callers from waiting for a store that is away. It opens when the store
// says so, or when a caller has waited for the deadline, and answers at once all who
// wait then. While it is open one caller per cooldown asks the store all the same, and
// closes it when there is an answer.
type breaker struct {
	deadline, cooldown time.Duration
	log                *slog.Logger
	observer           LimiterObserver // may be nil

	mu          sync.Mutex
	first, last *question // that are under way, in the order they came
	timer       *time.Timer
	armed       bool // the timer runs
	open        bool
	refused     bool // and for more than looking: that it answers a look proves nothing then
	opened      time.Time
	probing     bool
	probeAt     time.Time // when one may ask again
}

// question is a call that waits for the store.
type question struct {
	began          time.Time
	cancel         context.CancelFunc
	previous, next *question
	look           bool // takes nothing
	probe          bool // asked although the breaker is open
	given          bool // up
}

var (
	errOpen = fmt.Errorf("%w: left alone for a moment", ErrUnavailable)
	errSlow = fmt.Errorf("%w: no answer in time", ErrUnavailable)
)

// do calls the store. An error that is an ErrUnavailable, while ctx has not ended, says
// that the store is away; asked says whether it was called. A look takes nothing: a store
// may answer it while it refuses to be written to.
func (b *breaker) do(ctx context.Context, began time.Time, look bool, call func(context.Context) error) (asked bool, err error) {
	below, cancel := context.WithCancel(ctx)
	defer cancel()
	q := &question{began: began, cancel: cancel, look: look}
	if !b.enter(q) {
		return false, errOpen
	}
	return true, b.leave(ctx, q, call(below))
}

// enter adds a question to those under way, unless the breaker is open and it is no
// probe.
func (b *breaker) enter(q *question) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		if q.look && b.refused || b.probing || q.began.Before(b.probeAt) {
			return false
		}
		b.probing, q.probe = true, true
	}
	if q.previous = b.last; q.previous != nil {
		q.previous.next = q
	} else {
		b.first = q
	}
	b.last = q
	b.arm()
	return true
}

// arm lets the timer run for the question that has waited longest. The breaker is
// locked.
func (b *breaker) arm() {
	if b.armed || b.first == nil {
		return
	}
	b.armed = true
	left := b.deadline - time.Since(b.first.began)
	if b.timer == nil {
		b.timer = time.AfterFunc(left, b.look)
		return
	}
	b.timer.Reset(left)
}

// look opens the breaker when a question has waited for too long.
func (b *breaker) look() {
	b.mu.Lock()
	b.armed = false
	if b.first == nil || time.Since(b.first.began) < b.deadline {
		b.arm()
		b.mu.Unlock()
		return
	}
	tell := b.trip(b.first, errSlow)
	b.mu.Unlock()
	tell()
}

// trip opens the breaker, or keeps it open for another cooldown, because of one question,
// and gives up all. It returns what tells of the change, to be called without the lock. The
// breaker is locked.
func (b *breaker) trip(by *question, cause error) (tell func()) {
	b.refused = b.refused || !by.look
	for q := b.first; q != nil; {
		next := q.next
		q.given, q.previous, q.next = true, nil, nil
		q.cancel()
		q = next
	}
	b.first, b.last, b.probing = nil, nil, false
	now := time.Now()
	b.probeAt = now.Add(b.cooldown)
	if b.open {
		return func() {}
	}
	b.open, b.opened = true, now
	return func() {
		b.log.Warn("the store of the limiter is away; each replica limits by itself", "error", cause)
		if b.observer != nil {
			b.observer.Degraded(true)
		}
	}
}

// close tells of the end of an outage like trip of its beginning.
func (b *breaker) close() (tell func()) {
	b.open, b.refused, b.probing = false, false, false
	took := time.Since(b.opened)
	return func() {
		b.log.Info("the store of the limiter is back", "outage", took)
		if b.observer != nil {
			b.observer.Degraded(false)
		}
	}
}

// leave takes note of the store's answer and returns the error for the caller.
func (b *breaker) leave(ctx context.Context, q *question, err error) error {
	b.mu.Lock()
	tell := func() {}
	switch {
	case q.given: // it has been counted
		if err != nil && ctx.Err() == nil {
			err = errSlow
		}
	default:
		b.remove(q)
		switch {
		case err != nil && ctx.Err() != nil: // which says nothing about the store
			b.probing = b.probing && !q.probe
		case away(err):
			tell = b.trip(q, err)
		case q.probe:
			tell = b.close()
		}
	}
	b.mu.Unlock()
	tell()
	return err
}

// remove takes a question out of those under way. The breaker is locked.
func (b *breaker) remove(q *question) {
	if q.previous != nil {
		q.previous.next = q.next
	} else {
		b.first = q.next
	}
	if q.next != nil {
		q.next.previous = q.previous
	} else {
		b.last = q.previous
	}
}

// away reports whether an error means that the store is away, or can't keep up.
func away(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrBackpressure) || errors.Is(err, context.DeadlineExceeded)
}
