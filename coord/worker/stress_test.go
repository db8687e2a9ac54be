package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// TestChaos lets workers come and go, calls fail, hang and lose their answers, and
// handlers end in every way. In the end each run has ended, all slots are back, and
// at no time had two handlers that were not cancelled the same run, or more of them
// the same concurrency key than it allows.
func TestChaos(t *testing.T) {
	const seeds = 40
	first := rand.Uint64()
	for i := range seeds {
		seed := first + uint64(i)
		bubble(t, func(e *env) { chaos(e, seed) })
		if t.Failed() {
			t.Fatalf("the seed was %d", seed)
		}
	}
}

func chaos(e *env, seed uint64) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 4))
	n := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	calm := false
	flaky := func(ctx context.Context, _ string) error {
		mu.Lock()
		still := calm
		mu.Unlock()
		if still {
			return nil
		}
		switch n(12) {
		case 0:
			return errAway
		case 1:
			<-ctx.Done()
			return fmt.Errorf("%w: %w", coord.ErrUnavailable, ctx.Err())
		case 2:
			time.Sleep(time.Duration(n(2000)) * time.Millisecond)
		}
		return nil
	}
	e.hook(flaky, flaky)

	live := make(map[coord.RunID]int) // handlers whose context is not cancelled
	keyed := 0                        // those whose run has the key
	key := coord.Concurrency{Key: "key", Limit: 2}
	handler := func(ctx context.Context, r *Run) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		mu.Lock()
		if live[r.Run.ID]++; live[r.Run.ID] > 1 {
			e.Errorf("run %d has %d handlers that believe in their lease", r.Run.ID, live[r.Run.ID])
		}
		if r.Run.Concurrency == key {
			if keyed++; keyed > key.Limit {
				e.Errorf("the key has %d handlers that believe in their lease", keyed)
			}
		}
		mu.Unlock()
		var once sync.Once
		leave := func() {
			once.Do(func() {
				mu.Lock()
				defer mu.Unlock()
				live[r.Run.ID]--
				if r.Run.Concurrency == key {
					keyed--
				}
			})
		}
		defer leave()
		stop := context.AfterFunc(ctx, leave)
		defer stop()
		took := time.Duration(n(4000)) * time.Millisecond
		if n(10) == 0 {
			time.Sleep(10 * took) // deaf
		}
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return ctx.Err()
		}
		switch n(12) {
		case 0:
			return errors.New("failed")
		case 1:
			return Snooze(time.Second)
		case 2:
			panic("chaos")
		case 3:
			return GiveUp(errors.New("no use"))
		case 4:
			return errors.Join(r.Log(ctx, "half-way"), r.Progress(ctx, 50))
		case 5:
			leave() // the end of its run is the end of its place, too
			return e.InTx(ctx, r.FinishIn)
		}
		return nil
	}

	const total = 60
	for range total {
		run := coord.NewRun{
			Kind: kind, Delay: time.Duration(n(20000)) * time.Millisecond,
			Retry: coord.Retry{MaxAttempts: 1 + n(4)}, AtMostOnce: n(5) == 0,
		}
		if n(3) == 0 {
			run.Concurrency = key
		}
		e.enqueue(run)
	}
	var workers []*running
	start := func() {
		o := e.options(handler)
		o.Concurrency, o.Lease, o.Grace = 1+n(5), 3*time.Second, 2*time.Second
		workers = append(workers, e.start(o))
	}
	start()
	for range 6 {
		start()
		time.Sleep(time.Duration(n(8000)) * time.Millisecond)
		err := e.Claimer().Cancel(e.Context(), coord.RunID(1+n(total)))
		if err != nil && !errors.Is(err, coord.ErrConflict) {
			e.Error(err)
		}
		workers[n(len(workers))].stop()
	}
	mu.Lock()
	calm = true
	mu.Unlock()
	start()
	time.Sleep(10 * time.Minute)
	for _, w := range workers {
		w.drain()
	}
	time.Sleep(time.Minute)
	for _, w := range workers {
		w.idle()
	}
	ended := 0
	for run, err := range e.Claimer().Runs(e.Context(), coord.RunFilter{Limit: 1000}) {
		if err != nil {
			e.Fatal(err)
		}
		ended++
		if !run.State.Ended() {
			e.Errorf("run %d is still %s in attempt %d of %d", run.ID, run.State, run.Attempt, run.Retry.MaxAttempts)
		}
		if run.Attempt > run.Retry.MaxAttempts {
			e.Errorf("run %d had %d attempts, %d are allowed", run.ID, run.Attempt, run.Retry.MaxAttempts)
		}
	}
	if ended != total {
		e.Errorf("%d runs are known, want %d", ended, total)
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range live {
		if n != 0 {
			e.Errorf("%d handlers of run %d are left", n, id)
		}
	}
	synctest.Wait()
}
