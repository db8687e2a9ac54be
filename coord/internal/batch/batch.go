// Package batch lets concurrent callers share a statement.
package batch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Timeout ends a statement, for which others than its callers wait too.
const Timeout = 10 * time.Second

// Batcher collects the items of concurrent callers while earlier statements
// are under way, and sends them together. There is no timer: when nothing is
// under way an item goes out at once, so a single caller never waits.
//
// It is safe for concurrent use.
type Batcher[T, R any] struct {
	most int
	size func(T) int // nil: sizes do not count
	max  int
	slot chan struct{} // one token per statement that may be under way
	run  func(ctx context.Context, items []T) ([]R, error)

	mu      sync.Mutex
	waiting []*call[T, R]
}

type call[T, R any] struct {
	ctx    context.Context //nolint:containedctx // the caller waits for as long as the call exists
	item   T
	result R
	err    error
	done   chan struct{}
}

// New returns a batcher of at most most items a statement and at most flights
// statements at a time. run returns one result per item, in order. When it
// refuses a shared statement, the items are tried one by one, so that none can
// fail the others; when the store is unavailable every caller gets that error,
// since the statement may have happened.
func New[T, R any](most, flights int, run func(ctx context.Context, items []T) ([]R, error)) *Batcher[T, R] {
	return &Batcher[T, R]{most: most, slot: make(chan struct{}, flights), run: run}
}

// Bound keeps the items of a statement below most bytes together; one that is
// larger goes alone. It is called before the first Do.
func (b *Batcher[T, R]) Bound(most int, size func(T) int) *Batcher[T, R] {
	b.max, b.size = most, size
	return b
}

// Do sends one item and returns its result. When ctx ends first, the item may
// have been carried out or not.
func (b *Batcher[T, R]) Do(ctx context.Context, item T) (R, error) {
	if err := ctx.Err(); err != nil {
		var zero R
		return zero, err
	}
	c := &call[T, R]{ctx: ctx, item: item, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	b.mu.Unlock()
	for {
		select {
		case <-c.done:
			return c.result, c.err
		case <-ctx.Done():
			b.drop(c)
			var zero R
			return zero, ctx.Err()
		case b.slot <- struct{}{}:
			// Not in this goroutine: its caller may leave before the others.
			go func() {
				b.flush()
				<-b.slot
			}()
			select {
			case <-c.done:
			case <-ctx.Done():
			}
		}
	}
}

// drop forgets a call whose caller has left, if it has not gone out yet.
func (b *Batcher[T, R]) drop(c *call[T, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, w := range b.waiting {
		if w == c {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return
		}
	}
}

// take returns the calls of the next statement, in the order they came.
func (b *Batcher[T, R]) take() []*call[T, R] {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), b.most)
	if b.size != nil {
		total := 0
		for i, c := range b.waiting[:n] {
			if total += b.size(c.item); i > 0 && total > b.max {
				n = i
				break
			}
		}
	}
	calls := b.waiting[:n:n]
	b.waiting = append([]*call[T, R](nil), b.waiting[n:]...)
	return calls
}

func (b *Batcher[T, R]) flush() {
	// Until nothing waits: a caller whose call was beyond this statement's bound
	// counts on it.
	for calls := b.take(); len(calls) > 0; calls = b.take() {
		if len(calls) == 1 {
			b.single(calls[0])
			continue
		}
		b.shared(calls)
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
	retry := err != nil && !errors.Is(err, coord.ErrUnavailable) && ctx.Err() == nil
	for i, c := range calls {
		switch {
		case retry:
			b.single(c)
			continue
		case err != nil:
			c.err = err
		default:
			c.result = results[i]
		}
		close(c.done)
	}
}

func (b *Batcher[T, R]) single(c *call[T, R]) {
	ctx, cancel := context.WithTimeout(c.ctx, Timeout)
	defer cancel()
	results, err := b.run(ctx, []T{c.item})
	if c.err = err; err == nil {
		c.result = results[0]
	}
	close(c.done)
}
