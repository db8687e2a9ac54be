// Package tasks_test holds what docs/tasks.md shows, as examples that run. A part that the document
// quotes stands between the lines //doc:begin and //doc:end.
package tasks_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// store is a backend in memory whose clock stands still until it is moved.
type store struct {
	coord.Backend

	mu       sync.Mutex
	now      time.Time
	finished chan int // how many ends were written, each time
}

// example runs the body of an example on an empty store. It prints its error.
func example(body func(ctx context.Context, s *store) error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &store{now: time.Date(2026, time.October, 2, 8, 0, 0, 0, time.UTC), finished: make(chan int, 100)}
	s.Backend = memory.Open(memory.Options{Now: s.clock, Options: coord.Options{Observer: s}})
	defer s.Close(ctx)
	if err := body(ctx, s); err != nil {
		fmt.Println("error:", err)
	}
}

func (s *store) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *store) wait(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// Observe is [coord.Observer.Observe].
func (s *store) Observe(_ context.Context, o coord.Observation) {
	if o.Err == nil && (o.Op == "claimer.finish" || o.Op == "tx.finish") {
		s.finished <- o.Items
	}
}

// until returns a context that is done when so many more ends were written.
func (s *store) until(ctx context.Context, ends int) context.Context {
	ctx, done := context.WithCancel(ctx)
	go func() {
		for ; ends > 0; ends -= <-s.finished {
			continue
		}
		done()
	}()
	return ctx
}

// claim takes what is due, as a worker does.
func (s *store) claim(ctx context.Context, worker string, kinds ...string) ([]coord.Claim, error) {
	return s.Claimer().Claim(ctx, coord.ClaimOptions{Worker: worker, Kinds: kinds, Limit: 100, Lease: time.Minute})
}

// claimOne takes a run that must be due.
func (s *store) claimOne(ctx context.Context, worker, kind string) (coord.Claim, error) {
	claims, err := s.claim(ctx, worker, kind)
	if err == nil && len(claims) != 1 {
		err = fmt.Errorf("%d runs are due", len(claims))
	}
	if err != nil {
		return coord.Claim{}, err
	}
	return claims[0], nil
}
