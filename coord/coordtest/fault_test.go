package coordtest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) coord.Backend {
	t.Helper()
	b := memory.Open(memory.Options{})
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

func TestFailedCallIsNotMade(t *testing.T) {
	b := open(t)
	faulty := coordtest.Faulty(b, coordtest.Nth("claimer.enqueue", 2, coordtest.Fault{Fail: true}))
	for n := range 3 {
		runs, err := faulty.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"})
		if failed := n == 1; failed != errors.Is(err, coord.ErrUnavailable) || failed != (runs == nil) {
			t.Errorf("call %d: %v, %v", n+1, runs, err)
		}
		if errors.Is(err, coord.ErrUnknownOutcome) {
			t.Errorf("call %d was not made, and its outcome is called unknown: %v", n+1, err)
		}
	}
	if stored := count(t, b); stored != 2 {
		t.Errorf("%d runs are stored; want 2", stored)
	}
}

func TestCutCallIsMade(t *testing.T) {
	b := open(t)
	faulty := coordtest.Faulty(b, coordtest.Nth("claimer.enqueue", 1, coordtest.Fault{Cut: true}))
	runs, err := faulty.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"})
	if !errors.Is(err, coord.ErrUnknownOutcome) || runs != nil {
		t.Errorf("the cut call returned %v, %v; want only ErrUnknownOutcome", runs, err)
	}
	if stored := count(t, b); stored != 1 {
		t.Errorf("%d runs are stored; want 1", stored)
	}
}

func count(t *testing.T, b coord.Backend) (n int) {
	t.Helper()
	for _, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func TestCutTransactionIsCommitted(t *testing.T) {
	b := open(t)
	faulty := coordtest.Faulty(b, coordtest.Nth("backend.tx", 1, coordtest.Fault{Cut: true}))
	enqueue := func(ctx context.Context, tx coord.Tx) error {
		_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"})
		return err
	}
	if err := faulty.InTx(t.Context(), enqueue); !errors.Is(err, coord.ErrUnknownOutcome) {
		t.Errorf("the cut transaction returned %v; want ErrUnknownOutcome", err)
	}
	if stored := count(t, b); stored != 1 {
		t.Errorf("%d runs are stored; want 1", stored)
	}

	faulty = coordtest.Faulty(b, coordtest.Nth("tx.enqueue", 1, coordtest.Fault{Fail: true}))
	if err := faulty.InTx(t.Context(), enqueue); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("the transaction whose Enqueue failed returned %v; want ErrUnavailable", err)
	}
	if stored := count(t, b); stored != 1 {
		t.Errorf("%d runs are stored after a failed Enqueue; want 1", stored)
	}
}

func TestFencedErrorComesThrough(t *testing.T) {
	faulty := coordtest.Faulty(open(t), coordtest.Random(1, coordtest.Rates{}))
	stale := coord.Claim{Run: coord.Run{ID: 1}, Token: 1}
	err := faulty.Claimer().Finish(t.Context(), coord.Result{Claim: stale, Outcome: coord.Succeed})
	if fenced, ok := errors.AsType[*coord.FencedError](err); !ok || len(fenced.Claims) != 1 {
		t.Errorf("Finish of a stale claim returned %v; want a FencedError that names it", err)
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.Open(memory.Options{})
		faulty := coordtest.Faulty(b, func(string, int) coordtest.Fault { return coordtest.Fault{Delay: 3 * time.Second} })
		began := time.Now()
		if err := faulty.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("a call with a delay of 3s took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		err := faulty.Ping(ctx)
		if took := time.Since(began); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a delayed call with a timeout of 1s took %v and returned %v", took, err)
		}
		if err := faulty.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestRandomPlanRepeats(t *testing.T) {
	rates := coordtest.Rates{Fail: 0.2, Cut: 0.3, Delay: 0.5, MaxDelay: time.Millisecond}
	plan, again, other := coordtest.Random(7, rates), coordtest.Random(7, rates), coordtest.Random(8, rates)
	const n = 2000
	failed, cut, delayed, differ := 0, 0, 0, 0
	for i := n; i > 0; i-- { // the order of the questions does not matter
		fault := plan("claimer.claim", i)
		if fault != again("claimer.claim", i) {
			t.Fatalf("call %d meets different faults by plans of one seed", i)
		}
		if fault != other("claimer.claim", i) || fault != plan("claimer.finish", i) {
			differ++
		}
		if fault.Fail && fault.Cut || fault.Delay >= rates.MaxDelay {
			t.Errorf("call %d meets %+v", i, fault)
		}
		failed, cut, delayed = failed+one(fault.Fail), cut+one(fault.Cut), delayed+one(fault.Delay > 0)
	}
	for what, share := range map[string][2]float64{
		"failed": {float64(failed) / n, rates.Fail}, "cut": {
			float64(cut) / n,
			rates.Cut,
		}, "delayed": {float64(delayed) / n, rates.Delay},
	} {
		if share[0] < share[1]-0.05 || share[0] > share[1]+0.05 {
			t.Errorf("%.2f of the calls were %s; want about %.2f", share[0], what, share[1])
		}
	}
	if differ < n/2 {
		t.Errorf("only %d of %d calls meet other faults by another seed or of another operation", differ, n)
	}
	if fault := coordtest.Random(7, coordtest.Rates{Fail: 1}, "tickets.issue")("claimer.claim",
		1); fault != (coordtest.Fault{}) {
		t.Errorf("an operation that was not named meets %+v", fault)
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestEveryOperationMeetsThePlan calls everything that can fail. The names that
// the plan is asked about are those that the errors carry.
func TestEveryOperationMeetsThePlan(t *testing.T) {
	var mu sync.Mutex
	asked, failing := map[string]bool{}, false
	plan := func(op string, _ int) coordtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		asked[op] = true
		return coordtest.Fault{Fail: failing}
	}
	inner := open(t)
	b := coordtest.Faulty(inner, plan)
	ctx := t.Context()
	c, tickets, broadcaster := b.Claimer(), b.Tickets(), b.Broadcaster()
	// One for each call: a limiter that has met an outage leaves its store alone, and its
	// decisions don't fail.
	limiter := func() coord.Limiter { return coordtest.Faulty(inner, plan).Limiter() }
	degraded := make(map[string]bool)
	stream, err := broadcaster.Subscribe(ctx, map[string]coord.Position{"t": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	limit := coord.Limit{Key: "k", Rate: 1, Per: time.Second}
	head := map[string]coord.Position{"u": coord.Head}
	claim := coord.Claim{Run: coord.Run{ID: 1}}
	inTx := func(fn func(ctx context.Context, tx coord.Tx) error) func() error {
		return func() error {
			var own error
			err := b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				own = fn(ctx, tx)
				return own
			})
			return errors.Join(own, err)
		}
	}
	calls := map[string]func() error{
		"backend.ping":        func() error { return b.Ping(ctx) },
		"backend.tx":          inTx(func(context.Context, coord.Tx) error { return nil }),
		"claimer.put_task":    func() error { return last(c.PutTask(ctx, coord.Task{Name: "n", Kind: "k"})) },
		"claimer.task":        func() error { return last(c.Task(ctx, "n")) },
		"claimer.tasks":       func() error { return firstOf(c.Tasks(ctx)) },
		"claimer.delete_task": func() error { return c.DeleteTask(ctx, "n") },
		"claimer.pause_task":  func() error { return c.PauseTask(ctx, "n", true) },
		"claimer.trigger":     func() error { return last(c.Trigger(ctx, "n", coord.TriggerOptions{})) },
		"claimer.enqueue":     func() error { return last(c.Enqueue(ctx, coord.NewRun{Kind: "k"})) },
		"claimer.claim": func() error {
			return last(c.Claim(ctx, coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Hour}))
		},
		"claimer.extend": func() error { return last(c.Extend(ctx, time.Hour, claim)) },
		"claimer.finish": func() error { return c.Finish(ctx, coord.Result{Claim: claim, Outcome: coord.Succeed}) },
		"claimer.report": func() error { return c.Report(ctx, coord.Report{Claim: claim, Progress: 1}) },
		"claimer.log":    func() error { return firstOf(c.Log(ctx, 1, 0)) },
		"claimer.next_due": func() error {
			_, _, err := c.NextDue(ctx)
			return err
		},
		"claimer.cancel": func() error { return c.Cancel(ctx, 1) },
		"claimer.run":    func() error { return last(c.Run(ctx, 1)) },
		"claimer.runs":   func() error { return firstOf(c.Runs(ctx, coord.RunFilter{})) },
		"claimer.prune":  func() error { return last(c.Prune(ctx, coord.RunRetention{Keep: 1})) },
		"tickets.issue": func() error {
			return last(tickets.Issue(ctx,
				coord.TicketFor{Purpose: "p", User: "u", Session: "s"}))
		},
		"tickets.redeem": func() error { return last(tickets.Redeem(ctx, coord.NewTicketSecret(), coord.TicketUse{})) },
		"tickets.reap":   func() error { return last(tickets.Reap(ctx)) },
		"limiter.allow": func() error {
			d, err := limiter().Allow(ctx, limit)
			degraded["limiter.allow"] = d.Degraded
			return err
		},
		"limiter.allow_all": func() error {
			ds, err := limiter().AllowAll(ctx, limit)
			degraded["limiter.allow_all"] = len(ds) == 1 && ds[0].Degraded
			return err
		},
		"limiter.peek": func() error {
			d, err := limiter().Peek(ctx, limit)
			degraded["limiter.peek"] = d.Degraded
			return err
		},
		"limiter.reset":         func() error { return limiter().Reset(ctx, "k") },
		"limiter.reap":          func() error { return last(limiter().Reap(ctx)) },
		"broadcaster.publish":   func() error { return last(broadcaster.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})) },
		"broadcaster.subscribe": func() error { return last(broadcaster.Subscribe(ctx, head)) },
		"broadcaster.read":      func() error { return last(broadcaster.Read(ctx, "t", coord.Start, 1)) },
		"broadcaster.heads":     func() error { return last(broadcaster.Heads(ctx, "t")) },
		"broadcaster.trim":      func() error { return last(broadcaster.Trim(ctx, coord.EventRetention{Keep: 1})) },
		"elector.stand": func() error {
			return last(b.Elector().Stand(ctx, coord.Candidacy{Name: "n", Candidate: "c"}))
		},
		"elector.extend":  func() error { return last(b.Elector().Extend(ctx, coord.Term{Name: "n", Epoch: 1}, time.Minute)) },
		"elector.resign":  func() error { return b.Elector().Resign(ctx, coord.Term{Name: "n", Epoch: 1}) },
		"elector.leaders": func() error { return last(b.Elector().Leaders(ctx)) },
		"stream.next":     func() error { return last(stream.Next(ctx)) },
		"stream.add":      func() error { return stream.Add(ctx, head) },
	}
	failing = true
	for op, call := range calls {
		err := call()
		if err == nil && degraded[op] {
			continue
		}
		if e, ok := errors.AsType[*coord.Error](err); !ok || e.Op != op || !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%s: the error is %v; want ErrUnavailable with that Op", op, err)
		}
	}
	if got, want := slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(calls)); !slices.Equal(got, want) {
		t.Errorf("the plan was asked about\n%q; want\n%q", got, want)
	}
	failing = false
	for name, call := range map[string]func(context.Context, coord.Tx) error{
		"tx.put_task": func(ctx context.Context, tx coord.Tx) error {
			return last(tx.PutTask(ctx, coord.Task{Name: "n", Kind: "k"}))
		},
		"tx.delete_task": func(ctx context.Context, tx coord.Tx) error { return tx.DeleteTask(ctx, "n") },
		"tx.pause_task":  func(ctx context.Context, tx coord.Tx) error { return tx.PauseTask(ctx, "n", true) },
		"tx.trigger": func(ctx context.Context, tx coord.Tx) error {
			return last(tx.Trigger(ctx, "n", coord.TriggerOptions{}))
		},
		"tx.report": func(ctx context.Context, tx coord.Tx) error {
			return tx.Report(ctx, coord.Report{Claim: claim, Progress: 1})
		},
		"tx.cancel":  func(ctx context.Context, tx coord.Tx) error { return tx.Cancel(ctx, 1) },
		"tx.enqueue": func(ctx context.Context, tx coord.Tx) error { return last(tx.Enqueue(ctx, coord.NewRun{Kind: "k"})) },
		"tx.finish": func(ctx context.Context, tx coord.Tx) error {
			return tx.Finish(ctx, coord.Result{Claim: claim, Outcome: coord.Succeed})
		},
		"tx.publish": func(ctx context.Context, tx coord.Tx) error {
			return tx.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})
		},
		"tx.fence": func(ctx context.Context, tx coord.Tx) error { return tx.Fence(ctx, coord.Term{Name: "n", Epoch: 1}) },
	} {
		err := b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			failing = true
			defer func() { failing = false }()
			return call(ctx, tx)
		})
		if e, ok := errors.AsType[*coord.Error](err); !ok || e.Op != name || !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%s: the error is %v; want ErrUnavailable with that Op", name, err)
		}
	}
}

func last[T any](_ T, err error) error { return err }

func firstOf[T any](list func(yield func(T, error) bool)) (first error) {
	for _, err := range list {
		first = err
		break
	}
	return first
}

func TestMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sample, err := coordtest.Measure(t.Context(), "nap", 4, 10*time.Second, func(_ context.Context, caller int) (int, error) {
			<-time.After(time.Duration(caller+1) * 100 * time.Millisecond)
			return 10, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// 100, 50, 34 and 25 calls, which end after 10.2 s.
		if sample.Calls != 209 || sample.Name != "nap" || sample.Callers != 4 || int(sample.PerSecond) != 204 {
			t.Errorf("the sample is %+v", sample)
		}
		near := func(got, want time.Duration) bool { return got <= want && got > want*96/100 }
		if !near(sample.P50, 200*time.Millisecond) || !near(sample.P99, 400*time.Millisecond) {
			t.Errorf("the sample has P50 %v and P99 %v; want 200ms and 400ms, at most 3 %% less", sample.P50, sample.P99)
		}
	})
	boom := errors.New("boom")
	_, err := coordtest.Measure(t.Context(), "fail", 2, time.Hour, func(ctx context.Context, caller int) (int, error) {
		if caller == 0 {
			return 0, boom
		}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if !errors.Is(err, boom) {
		t.Errorf("a measurement whose operation fails returned %v", err)
	}
}

// TestWorkloads does each workload a few times.
func TestWorkloads(t *testing.T) {
	b := open(t)
	names := map[string]bool{}
	for _, w := range coordtest.Workloads(b) {
		name := fmt.Sprintf("%s/%d", w.Name, w.Callers)
		if names[name] {
			t.Errorf("two workloads are called %s", name)
		}
		names[name] = true
		if err := w.Setup(t.Context()); err != nil {
			t.Fatalf("%s: Setup: %v", name, err)
		}
		var callers sync.WaitGroup
		for caller := range w.Callers {
			callers.Go(func() {
				for range 3 {
					if n, err := w.Op(t.Context(), caller); err != nil || n < 1 {
						t.Errorf("%s: Op returned %d, %v", name, n, err)
					}
				}
			})
		}
		callers.Wait()
		w.Close()
	}
	if len(names) != 30 {
		t.Errorf("there are %d workloads; want 10 for each of 3 numbers of callers: %q", len(names),
			slices.Sorted(maps.Keys(names)))
	}
}
