package memory_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that stands still until it is advanced.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, time.March, 4, 5, 6, 7, 8000, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// store is a coordtest.Store.
type store struct {
	*clock
	store *memory.Store
}

func (s store) Open(*testing.T) coord.Backend { return s.store.Open() }

func newStore() store {
	c := newClock()
	return store{c, memory.NewStore(memory.Options{Now: c.Now})}
}

func TestConformance(t *testing.T) {
	coordtest.Run(t, coordtest.Harness{
		New:          func(*testing.T) coordtest.Store { return newStore() },
		Capabilities: coordtest.Capabilities{SeveralHandles: true, ClockBack: true, Hints: true},
	})
}

// TestTasksByTheClock lets two workers run a task by the clock of the process:
// each of its occurrences once, though one worker vanishes in the middle of a
// run, with the handler's event and the end of its run in one transaction.
func TestTasksByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewStore(memory.Options{})
		one, two := s.Open(), s.Open()
		_, err := one.Claimer().PutTask(t.Context(), coord.Task{
			Name: "tick", Kind: "tick", Schedule: "@every 10s", Overlap: coord.OverlapAllow, Misfire: coord.MisfireAll,
		})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := two.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{"ticks": coord.Head})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		for i, b := range []coord.Backend{one, two} {
			w, err := worker.New(b.Claimer(), worker.Options{
				Name: fmt.Sprint("worker-", i), Lease: 3 * time.Second,
				Handlers: map[string]worker.Handler{"tick": func(ctx context.Context, r *worker.Run) error {
					payload := fmt.Append(nil, r.Run.ScheduledFor.Unix())
					return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
						if err := tx.Publish(ctx, coord.NewEvent{Topic: "ticks", Kind: "tick", Payload: payload}); err != nil {
							return err
						}
						return r.FinishIn(ctx, tx)
					})
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			workers.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}

		began := time.Now()
		time.Sleep(65 * time.Second)
		// A third worker claims an occurrence at the moment when it is due, and vanishes. The other
		// two wake at the same moment and may be the first: then it takes a later one.
		vanishing := coord.ClaimOptions{Worker: "vanishing", Kinds: []string{"tick"}, Limit: 1, Lease: 3 * time.Second}
		vanished := 0
		for next := began.Add(70 * time.Second); vanished == 0 && next.Before(began.Add(95*time.Second)); next = next.Add(10 * time.Second) {
			time.Sleep(time.Until(next))
			claims, err := two.Claimer().Claim(t.Context(), vanishing)
			if err != nil {
				t.Fatal(err)
			}
			vanished = len(claims)
		}
		if vanished != 1 {
			t.Errorf("the worker that is to vanish claimed %d runs of three occurrences, want one", vanished)
		}
		time.Sleep(time.Until(began.Add(100*time.Second + 500*time.Millisecond)))

		seen := map[string]bool{}
		for len(seen) < 10 {
			events, err := stream.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if seen[string(e.Payload)] {
					t.Errorf("the occurrence %s was run twice", e.Payload)
				}
				seen[string(e.Payload)] = true
			}
		}
		for i := range 10 {
			if at := fmt.Sprint(began.Add(time.Duration(i+1) * 10 * time.Second).Unix()); !seen[at] {
				t.Errorf("the occurrence %s was not run", at)
			}
		}
		stop()
		workers.Wait()
		for _, b := range []coord.Backend{one, two} {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
	})
}

func BenchmarkDriver(b *testing.B) {
	coordtest.Bench(b, coordtest.BenchHarness{
		Open: func(*testing.B) coord.Backend { return memory.Open(memory.Options{}) },
	})
}
