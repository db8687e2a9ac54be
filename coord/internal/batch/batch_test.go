package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is what a batcher sends to: each statement takes a second.
type store struct {
	mu         sync.Mutex
	statements [][]int
	fail       func(items []int) error
}

func (s *store) run(ctx context.Context, items []int) ([]int, error) {
	s.mu.Lock()
	s.statements = append(s.statements, slices.Clone(items))
	s.mu.Unlock()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fail != nil {
		if err := s.fail(items); err != nil {
			return nil, err
		}
	}
	results := make([]int, len(items))
	for i, item := range items {
		results[i] = item * 10
	}
	return results, nil
}

// sent returns the statements, those of one item as they are.
func (s *store) sent() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.statements)
}

func (s *store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = nil
}

// caller calls Do from a goroutine of its own and lets that get as far as it can.
type caller struct {
	result int
	err    error
	took   time.Duration
	done   chan struct{}
}

func do(ctx context.Context, b *Batcher[int, int], item int) *caller {
	c := &caller{done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.result, c.err = b.Do(ctx, item)
		c.took = time.Since(began)
	}()
	synctest.Wait()
	return c
}

func (c *caller) expect(t *testing.T, what string, result int, took time.Duration) {
	t.Helper()
	<-c.done
	if c.err != nil || c.result != result || c.took != took {
		t.Errorf("%s: %d, %v after %v; want %d after %v", what, c.result, c.err, c.took, result, took)
	}
}

func (c *caller) expectError(t *testing.T, what string, want error) {
	t.Helper()
	<-c.done
	if !errors.Is(c.err, want) || c.result != 0 {
		t.Errorf("%s: %d, %v; want the error %v", what, c.result, c.err, want)
	}
}

func equal(t *testing.T, got, want [][]int) {
	t.Helper()
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the statements were %v, want %v", got, want)
	}
}

func TestSingleCallerNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(10, 1, s.run)
		for i := range 3 {
			do(t.Context(), b, i).expect(t, "a single caller", i*10, time.Second)
		}
		equal(t, s.sent(), [][]int{{0}, {1}, {2}})
	})
}

func TestCallersShareWhileOneIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(3, 1, s.run)
		callers := make([]*caller, 9)
		for i := range callers {
			callers[i] = do(t.Context(), b, i)
		}
		for i, seconds := range []int{1, 2, 2, 2, 3, 3, 3, 4, 4} {
			callers[i].expect(t, fmt.Sprintf("caller %d", i), i*10, time.Duration(seconds)*time.Second)
		}
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}, {4, 5, 6}, {7, 8}})
	})
}

func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(10, 1, s.run).Bound(10, func(item int) int { return item })
		items := []int{1, 4, 6, 1, 50, 10, 2, 8, 1}
		callers := make([]*caller, len(items))
		for i, item := range items {
			callers[i] = do(t.Context(), b, item)
		}
		for i, c := range callers {
			<-c.done
			if c.err != nil || c.result != items[i]*10 {
				t.Errorf("caller %d: %d, %v", i, c.result, c.err)
			}
		}
		equal(t, s.sent(), [][]int{{1}, {4, 6}, {1}, {50}, {10}, {2, 8}, {1}})
	})
}

// TestSecondStatement goes out when the first takes long, or when it is full.
func TestSecondStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(3, 2, s.run)
		callers := []*caller{do(t.Context(), b, 0), do(t.Context(), b, 1), do(t.Context(), b, 2)}
		equal(t, s.sent(), [][]int{{0}})
		callers = append(callers, do(t.Context(), b, 3), do(t.Context(), b, 4)) // the third fills it
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}})
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}, {4}})
		callers = append(callers, do(t.Context(), b, 5))
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}, {4}})
		time.Sleep(patience)
		synctest.Wait()
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}, {4}, {5}})
		time.Sleep(patience)
		callers = append(callers, do(t.Context(), b, 6), do(t.Context(), b, 7), do(t.Context(), b, 8)) // no third
		equal(t, s.sent(), [][]int{{0}, {1, 2, 3}, {4}, {5}})
		for i, took := range []time.Duration{time.Second, time.Second, time.Second, time.Second, 2 * time.Second, time.Second + patience} {
			callers[i].expect(t, fmt.Sprintf("caller %d", i), i*10, took)
		}
		for i, c := range callers[6:] {
			<-c.done
			if c.err != nil || c.result != (6+i)*10 {
				t.Errorf("caller %d: %d, %v", 6+i, c.result, c.err)
			}
		}
	})
}

func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(10, 1, s.run).Bound(1000, func(item int) int { return item }).Refuse(3, 100)
		refused := func(what string, item, waiting int, lag time.Duration) {
			t.Helper()
			c := do(t.Context(), b, item)
			c.expectError(t, what, coord.ErrBackpressure)
			e, ok := errors.AsType[*coord.BackpressureError](c.err)
			if !ok || *e != (coord.BackpressureError{Waiting: waiting, Lag: lag}) || c.took != 0 {
				t.Errorf("%s: %v after %v", what, c.err, c.took)
			}
		}
		first := do(t.Context(), b, 500)
		large := do(t.Context(), b, 400) // nobody else waits
		time.Sleep(100 * time.Millisecond)
		refused("beyond the bytes", 1, 1, 100*time.Millisecond)
		first.expect(t, "the first", 5000, time.Second)
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		waiting := []*caller{do(t.Context(), b, 50), do(gone, b, 40), do(t.Context(), b, 10)}
		refused("beyond the calls", 0, 3, 0)
		leave()
		<-waiting[1].done
		waiting[1] = do(t.Context(), b, 39) // its place is free
		refused("beyond the calls again", 0, 3, 0)
		large.expect(t, "the large one", 4000, 2*time.Second)
		for i, item := range []int{50, 39, 10} {
			<-waiting[i].done
			if waiting[i].err != nil || waiting[i].result != 10*item {
				t.Errorf("%d: %d, %v", item, waiting[i].result, waiting[i].err)
			}
		}
		equal(t, s.sent(), [][]int{{500}, {400}, {50, 10, 39}})
		do(t.Context(), b, 7).expect(t, "when all is done", 70, time.Second)
	})
}

func TestCallerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(10, 1, s.run)
		first, cancelFirst := context.WithCancel(t.Context())
		waiting, cancelWaiting := context.WithCancel(t.Context())
		a := do(first, b, 0)
		gone := do(waiting, b, 1)
		c, d := do(t.Context(), b, 2), do(t.Context(), b, 3)
		// Before its item went out: it never does.
		cancelWaiting()
		gone.expectError(t, "a caller that left while it waited", context.Canceled)
		// After: a lone statement ends with its caller, and the next can go.
		cancelFirst()
		a.expectError(t, "a caller that left its statement", context.Canceled)
		c.expect(t, "one behind it", 20, time.Second)
		d.expect(t, "another", 30, time.Second)
		equal(t, s.sent(), [][]int{{0}, {2, 3}})
		s.forget()

		// A shared statement goes on without the caller that began it.
		lead, cancelLead := context.WithCancel(t.Context())
		e := do(t.Context(), b, 4)
		f, g := do(lead, b, 5), do(t.Context(), b, 6)
		e.expect(t, "the first", 40, time.Second)
		synctest.Wait()
		cancelLead()
		f.expectError(t, "the one that led", context.Canceled)
		g.expect(t, "the one that shared", 60, 2*time.Second)
		equal(t, s.sent(), [][]int{{4}, {5, 6}})
	})
}

func TestCancelledBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		b := New(10, 1, s.run)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		do(ctx, b, 1).expectError(t, "a caller whose context is over", context.Canceled)
		do(t.Context(), b, 2).expect(t, "the next caller", 20, time.Second)
		if sent := s.sent(); len(sent) != 1 {
			t.Errorf("the statements were %v, want one", sent)
		}
	})
}

func TestRefusedSharedStatementIsTriedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := errors.New("poison")
		s := &store{fail: func(items []int) error {
			if slices.Contains(items, 3) {
				return poison
			}
			return nil
		}}
		b := New(10, 1, s.run)
		gone, cancel := context.WithCancel(t.Context())
		callers := []*caller{do(t.Context(), b, 1)}
		for i := 2; i <= 5; i++ {
			ctx := t.Context()
			if i == 4 {
				ctx = gone
			}
			callers = append(callers, do(ctx, b, i))
		}
		callers[0].expect(t, "the first", 10, time.Second)
		synctest.Wait()
		cancel() // one leaves after its item went out, before it is tried alone
		callers[1].expect(t, "a good one", 20, 3*time.Second)
		callers[2].expectError(t, "the bad one", poison)
		callers[3].expectError(t, "the one that left", context.Canceled)
		callers[4].expect(t, "another good one", 50, 5*time.Second)
		synctest.Wait()
		equal(t, s.sent(), [][]int{{1}, {2, 3, 4, 5}, {2}, {3}, {4}, {5}})
	})
}

func TestUnavailableIsNotTriedAgain(t *testing.T) {
	for _, err := range []error{coord.ErrUnavailable, coord.ErrUnknownOutcome, fmt.Errorf("away: %w", coord.ErrUnavailable)} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{fail: func(items []int) error {
				if len(items) > 1 {
					return err
				}
				return nil
			}}
			b := New(10, 1, s.run)
			first := do(t.Context(), b, 1)
			callers := []*caller{do(t.Context(), b, 2), do(t.Context(), b, 3)}
			first.expect(t, "the first", 10, time.Second)
			for _, c := range callers {
				c.expectError(t, "one of the shared statement", err)
			}
			do(t.Context(), b, 4).expect(t, "the next", 40, time.Second)
			equal(t, s.sent(), [][]int{{1}, {2, 3}, {4}})
		})
	}
}

// TestHangingStatementIsEnded has callers without a deadline behind a store that
// does not answer.
func TestHangingStatementIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := true
		b := New(10, 1, func(ctx context.Context, items []int) ([]int, error) {
			if hanging {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return items, nil
		})
		lone := do(t.Context(), b, 1)
		shared := []*caller{do(t.Context(), b, 2), do(t.Context(), b, 3)}
		lone.expectError(t, "a lone caller", context.DeadlineExceeded)
		for _, c := range shared {
			c.expectError(t, "one of a shared statement", context.DeadlineExceeded)
			if c.took != 2*Timeout {
				t.Errorf("it took %v, want %v", c.took, 2*Timeout)
			}
		}
		hanging = false
		do(t.Context(), b, 4).expect(t, "the next", 4, 0)
	})
}

// TestStoreThatHangsAfterARefusal has a shared statement refused, and the store gone when its
// items are tried one by one.
func TestStoreThatHangsAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		hanging := false
		b := New(10, 1, func(ctx context.Context, items []int) ([]int, error) {
			if hanging {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			time.Sleep(time.Second)
			if len(items) > 1 {
				hanging = true
				return nil, refused
			}
			return items, nil
		})
		first := do(t.Context(), b, 1)
		short, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		callers := []*caller{do(short, b, 2)} // whose time is over says nothing of the store
		for i := 3; i < 10; i++ {
			callers = append(callers, do(t.Context(), b, i))
		}
		first.expect(t, "the first", 1, time.Second)
		for i, c := range callers {
			c.expectError(t, "one of the shared statement", context.DeadlineExceeded)
			if i > 0 && c.took != 4*time.Second+Timeout {
				t.Errorf("caller %d was told after %v", i, c.took)
			}
		}
	})
}

// TestCrowd lets many callers come and go against a moody store. Each must get
// its own result, and no statement may be larger than allowed.
func TestCrowd(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	const most, flights, callers, calls = 7, 3, 40, 50
	type plan struct {
		item  int
		delay time.Duration
		leave time.Duration // 0: stays
	}
	plans := make([][]plan, callers)
	for i := range plans {
		for j := range calls {
			p := plan{item: i*calls + j, delay: time.Duration(rng.IntN(3000)) * time.Microsecond}
			if rng.IntN(5) == 0 {
				p.leave = time.Duration(1+rng.IntN(4000)) * time.Microsecond
			}
			plans[i] = append(plans[i], p)
		}
	}
	bad := errors.New("bad")
	synctest.Test(t, func(t *testing.T) {
		var underWay, carried atomic.Int32
		var mu sync.Mutex
		b := New(most, flights, func(ctx context.Context, items []int) ([]string, error) {
			if n := underWay.Add(1); n > flights {
				t.Errorf("%d statements at a time, at most %d are allowed", n, flights)
			}
			defer underWay.Add(-1)
			if len(items) > most || len(items) == 0 {
				t.Errorf("a statement of %d items, at most %d are allowed", len(items), most)
			}
			carried.Add(int32(len(items)))
			mu.Lock()
			pause := time.Duration(200+rng.IntN(2000)) * time.Microsecond
			mood := rng.IntN(30)
			mu.Unlock()
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if mood == 0 {
				return nil, coord.ErrUnavailable
			}
			results := make([]string, len(items))
			for i, item := range items {
				if item%17 == 0 {
					return nil, fmt.Errorf("%w: %d", bad, item)
				}
				results[i] = fmt.Sprint("result of ", item)
			}
			return results, nil
		})
		var all sync.WaitGroup
		for _, plans := range plans {
			all.Go(func() {
				for _, p := range plans {
					time.Sleep(p.delay)
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if p.leave > 0 {
						ctx, cancel = context.WithTimeout(ctx, p.leave)
					}
					result, err := b.Do(ctx, p.item)
					left := ctx.Err() != nil
					cancel()
					switch {
					case err == nil && p.item%17 == 0:
						t.Errorf("the bad item %d got %q", p.item, result)
					case err == nil && result != fmt.Sprint("result of ", p.item):
						t.Errorf("the item %d got %q", p.item, result)
					case errors.Is(err, bad) && err.Error() != fmt.Sprintf("bad: %d", p.item):
						t.Errorf("the item %d got the error %v", p.item, err)
					case err != nil && !errors.Is(err, bad) && !errors.Is(err, coord.ErrUnavailable) && !left:
						t.Errorf("the item %d got the error %v", p.item, err)
					}
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if len(b.waiting) > 0 || underWay.Load() > 0 || b.underWay > 0 || b.prompt > 0 || b.bytes > 0 {
			t.Errorf("%d items wait and %d statements are under way after the last call", len(b.waiting), underWay.Load())
		}
		t.Logf("%d items in statements for %d calls", carried.Load(), callers*calls)
	})
}
