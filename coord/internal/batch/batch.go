// Package batch lets concurrent callers share a statement.
package batch

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Timeout ends a statement, for which others than its callers wait too.
const Timeout = 10 * time.Second

// patience is how long a statement may take before others no longer wait for it.
const patience = 5 * time.Millisecond

// Batcher collects the items of concurrent callers while an earlier statement
// is under way, and sends them together. When none is under way an item goes out
// at once, so a single caller never waits.
//
// It is safe for concurrent use.
type Batcher[T, R any] struct {
	most    int
	flights int
	size    func(T) int // nil: sizes do not count
	max     int
	// At most so many calls and bytes wait; 0: any.
	mostWaiting, maxWaiting int
	run                     func(ctx context.Context, items []T) ([]R, error)

	mu       sync.Mutex
	waiting  []*call[T, R]
	bytes    int // of what waits
	underWay int // statements
	prompt   int // of those, which have not taken long yet
}

type call[T, R any] struct {
	ctx    context.Context //nolint:containedctx // the caller waits for as long as the call exists
	item   T
	size   int
	came   time.Time
	result R
	err    error
	done   chan struct{}
}

// New returns a batcher of at most most items a statement and at most flights
// statements at a time. run returns one result per item, in order. When it
// refuses a shared statement, the items are tried one by one, so that none can
// fail the others; when the store is unavailable every caller gets that error,
// since the statement may have happened.
//
// Beside a statement that is under way another one goes out when that takes long, or
// when as many items wait as it holds: fewer statements are cheaper, and those that
// lock the same rows would wait for each other in the store.
func New[T, R any](most, flights int, run func(ctx context.Context, items []T) ([]R, error)) *Batcher[T, R] {
	return &Batcher[T, R]{most: most, flights: flights, run: run}
}

// Bound keeps the items of a statement below most bytes together; one that is
// larger goes alone. It is called before the first Do.
func (b *Batcher[T, R]) Bound(most int, size func(T) int) *Batcher[T, R] {
	b.max, b.size = most, size
	return b
}

// Refuse bounds how many calls wait for a statement, and how many bytes those hold
// together by the size that [Batcher.Bound] was given. What comes beyond that is
// refused with a [*coord.BackpressureError]; where none waits the next may, however
// large. It is called before the first Do.
func (b *Batcher[T, R]) Refuse(calls, bytes int) *Batcher[T, R] {
	b.mostWaiting, b.maxWaiting = calls, bytes
	return b
}

// Do sends one item and returns its result. When ctx ends first, the item may
// have been carried out or not.
func (b *Batcher[T, R]) Do(ctx context.Context, item T) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	c := &call[T, R]{ctx: ctx, item: item, came: time.Now(), done: make(chan struct{})}
	if err := b.enter(c); err != nil {
		return none, err
	}
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
		b.drop(c)
		return none, ctx.Err()
	}
}

// enter lets a call wait for its statement, and sends that if it is time.
func (b *Batcher[T, R]) enter(c *call[T, R]) error {
	if b.size != nil {
		c.size = b.size(c.item)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.waiting)
	if n > 0 && (b.mostWaiting > 0 && n >= b.mostWaiting || b.maxWaiting > 0 && b.bytes+c.size > b.maxWaiting) {
		return &coord.BackpressureError{Waiting: n, Lag: max(0, c.came.Sub(b.waiting[0].came))} // that one may have come later, and entered before
	}
	b.waiting = append(b.waiting, c)
	b.bytes += c.size
	b.start()
	return nil
}

// drop forgets a call whose caller has left, if it has not gone out yet.
func (b *Batcher[T, R]) drop(c *call[T, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, c); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.bytes -= c.size
	}
}

// start sends the statements for which it is time. The batcher is locked.
func (b *Batcher[T, R]) start() {
	for b.due() {
		// Not in the goroutine of a caller, who may leave before the others.
		go b.fly(b.take())
	}
}

// due reports whether it is time for a statement. The batcher is locked.
func (b *Batcher[T, R]) due() bool {
	n := len(b.waiting)
	return n > 0 && b.underWay < b.flights && (b.prompt == 0 || n >= b.most)
}

// take returns the calls of the next statement, in the order they came. The batcher
// is locked.
func (b *Batcher[T, R]) take() []*call[T, R] {
	n, total := 0, 0
	for _, c := range b.waiting[:min(len(b.waiting), b.most)] {
		if n > 0 && b.size != nil && total+c.size > b.max {
			break
		}
		n++
		total += c.size
	}
	calls := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	b.bytes -= total
	b.underWay++
	b.prompt++
	return calls
}

// fly sends the statement of the calls, and further ones for as long as it is time for
// one at the end of the last.
func (b *Batcher[T, R]) fly(calls []*call[T, R]) {
	for again := true; again; {
		release := sync.OnceFunc(func() { b.prompt-- }) // nobody waits for it
		late := time.AfterFunc(patience, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			release()
			b.start()
		})
		if len(calls) == 1 {
			_ = b.single(calls[0]) // which its caller hears
		} else {
			b.shared(calls)
		}
		late.Stop()
		// Those who have been answered may come back at once, and so go out together.
		runtime.Gosched()
		b.mu.Lock()
		b.underWay--
		release()
		if again = b.due(); again {
			calls = b.take()
			b.start()
		}
		b.mu.Unlock()
	}
}

func (b *Batcher[T, R]) shared(calls []*call[T, R]) {
	items := make([]T, len(calls))
	for i, c := range calls {
		items[i] = c.item
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(calls[0].ctx), Timeout)
	defer cancel()
	results, err := b.run(ctx, items)
	retry := err != nil && !away(err) && ctx.Err() == nil
	for i, c := range calls {
		switch {
		case retry:
			// When the store goes away meanwhile, not each is to wait for it behind the others.
			if alone := b.single(c); away(alone) && c.ctx.Err() == nil {
				retry, err = false, alone
			}
			continue
		case err != nil:
			c.err = err
		default:
			c.result = results[i]
		}
		close(c.done)
	}
}

// away reports whether an error means that the store is.
func away(err error) bool {
	return errors.Is(err, coord.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

func (b *Batcher[T, R]) single(c *call[T, R]) error {
	ctx, cancel := context.WithTimeout(c.ctx, Timeout)
	defer cancel()
	results, err := b.run(ctx, []T{c.item})
	if c.err = err; err == nil {
		c.result = results[0]
	}
	close(c.done)
	return err
}
