package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

var errAway = fmt.Errorf("test: %w", coord.ErrUnavailable)

func noop(context.Context, *Run) error { return nil }

// untilDone waits for the end of the context, as good handlers do.
func untilDone(ctx context.Context, _ *Run) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestOptions(t *testing.T) {
	good := Options{Name: "n", Handlers: map[string]Handler{kind: noop}}
	if w, err := New(nil, good); err != nil || w.o.Concurrency != 10 || w.o.Lease != 30*time.Second || w.o.Poll > time.Second || w.o.Grace != 10*time.Second {
		t.Errorf("the defaults are %+v (%v)", w.o, err)
	}
	for name, change := range map[string]func(o *Options){
		"no name":           func(o *Options) { o.Name = "" },
		"no handlers":       func(o *Options) { o.Handlers = nil },
		"no concurrency":    func(o *Options) { o.Concurrency = -1 },
		"a lease too short": func(o *Options) { o.Lease = time.Second - 1 },
		"a poll too short":  func(o *Options) { o.Poll = time.Microsecond },
		"a negative grace":  func(o *Options) { o.Grace = -1 },
		"a limit of none":   func(o *Options) { o.Limits = map[string]int{kind: 0} },
		"a limit of others": func(o *Options) { o.Limits = map[string]int{"other": 1} },
	} {
		o := good
		change(&o)
		if _, err := New(nil, o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestEnds(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		handler Handler
		state   coord.State
		attempt int
		error   string
		finish  string
	}{
		"success":   {noop, coord.Succeeded, 1, "", "succeed"},
		"failure":   {func(context.Context, *Run) error { return boom }, coord.Queued, 1, "boom", "fail"},
		"giving up": {func(context.Context, *Run) error { return GiveUp(boom) }, coord.Failed, 1, "boom", "give up"},
		"wrapped giving up": {func(context.Context, *Run) error {
			return fmt.Errorf("so: %w", GiveUp(boom))
		}, coord.Failed, 1, "so: boom", "give up"},
		"snooze": {func(context.Context, *Run) error { return Snooze(time.Hour) }, coord.Queued, 0, "", "snooze"},
		"panic":  {func(context.Context, *Run) error { panic("boom") }, coord.Queued, 1, "panic: boom", "fail"},
		"panic of the runtime": {func(_ context.Context, r *Run) error {
			none := r.Run.Payload
			none[0]++
			return nil
		}, coord.Queued, 1, "panic: runtime error", "fail"},
		"exit": {func(context.Context, *Run) error {
			runtime.Goexit()
			return nil
		}, coord.Queued, 1, "ended its goroutine", "fail"},
		"timeout": {func(ctx context.Context, r *Run) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, coord.Queued, 1, context.DeadlineExceeded.Error(), "fail"},
		"cancelled": {func(context.Context, *Run) error { return ErrCancelled }, coord.Cancelled, 1, "cancelled", "cancel"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				w := e.start(e.options(test.handler))
				id := e.enqueue(coord.NewRun{Kind: kind, Timeout: 5 * time.Second, Retry: coord.Retry{Backoff: time.Hour, MaxBackoff: time.Hour}})[0].ID
				time.Sleep(20 * time.Second)
				r := e.expect(name, id, test.state, test.attempt)
				if !strings.Contains(r.Error, test.error) || test.error == "" && r.Error != "" {
					e.Errorf("the error is %q, want %q", r.Error, test.error)
				}
				if (test.finish == "fail" && strings.HasPrefix(test.error, "panic")) != strings.Contains(r.Error, "worker_test.go") {
					e.Errorf("a panic, and nothing else, must come with its stack: %q", r.Error)
				}
				if e.count("finish: ") != 1 || e.count("finish: "+test.finish) != 1 {
					e.Errorf("the calls were %v, want one %s", e.calls(""), test.finish)
				}
				if name == "snooze" && !r.DueAt.Equal(time.Now().Add(time.Hour-20*time.Second).UTC()) {
					e.Errorf("the run is due at %v", r.DueAt)
				}
				w.idle()
				w.drain()
			})
		})
	}
}

func TestFinishedByTheHandler(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		bubble(t, func(e *env) {
			w := e.start(e.options(func(ctx context.Context, r *Run) error {
				err := e.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
					return tx.Finish(ctx, coord.Result{Claim: r.Claim, Outcome: coord.Succeed})
				})
				if err != nil {
					return err
				}
				if wrapped {
					return fmt.Errorf("done: %w", ErrFinished)
				}
				return ErrFinished
			}))
			id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
			time.Sleep(time.Minute)
			e.expect("finished by its handler", id, coord.Succeeded, 1)
			if e.count("finish") != 0 || e.count("extend") != 0 {
				e.Errorf("the worker wrote too: %v", e.calls(""))
			}
			w.idle()
			w.drain()
		})
	}
}

// TestSlotsComeBeforeClaims is C7.
func TestSlotsComeBeforeClaims(t *testing.T) {
	bubble(t, func(e *env) {
		var atWork, most atomic.Int32
		o := e.options(func(_ context.Context, r *Run) error {
			n := atWork.Add(1)
			defer atWork.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				continue
			}
			time.Sleep(time.Duration(r.Run.ID%5+1) * 300 * time.Millisecond)
			return nil
		})
		o.Concurrency = 3
		e.hook(func(_ context.Context, call string) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		}, nil)
		w := e.start(o)
		for range 40 {
			e.enqueue(coord.NewRun{Kind: kind})
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			held := 0
			for _, err := range e.Claimer().Runs(e.Context(), coord.RunFilter{State: coord.Running}) {
				if err != nil {
					e.Fatal(err)
				}
				held++
			}
			// A run stays leased until its end is written, after its slot is free.
			if ended := w.unwrittenEnds(); held > 3+ended {
				e.Errorf("%d runs are leased, %d of them have ended; at most 3 can be run", held, ended)
			}
		}
		time.Sleep(time.Minute)
		for _, look := range e.looks() {
			if look.limit > 3 || look.got > look.limit {
				e.Errorf("a look was for %d runs and got %d", look.limit, look.got)
			}
		}
		if n := most.Load(); n != 3 {
			e.Errorf("at most %d handlers were at work, want 3", n)
		}
		if n := e.count("finish: succeed"); n != 40 {
			e.Errorf("%d runs were finished, want 40", n)
		}
		e.hook(nil, nil)
		time.Sleep(time.Second)
		w.idle()
		w.drain()
	})
}

func TestHintsWakeAtOnce(t *testing.T) {
	bubble(t, func(e *env) {
		started := make(chan time.Time, 1)
		o := e.options(func(context.Context, *Run) error { started <- time.Now(); return nil })
		o.Poll = time.Hour
		w := e.start(o)
		for range 3 {
			time.Sleep(7 * time.Minute)
			asked := time.Now()
			e.enqueue(coord.NewRun{Kind: kind})
			if took := (<-started).Sub(asked); took != 0 {
				e.Errorf("with a hint it took %v", took)
			}
		}
		w.drain()
	})
}

func TestPollsWithinItsInterval(t *testing.T) {
	bubble(t, func(e *env) {
		started := make(chan time.Time, 1)
		e.mute = true
		w := e.start(e.options(func(context.Context, *Run) error { started <- time.Now(); return nil }))
		for range 30 {
			asked := time.Now()
			e.enqueue(coord.NewRun{Kind: kind})
			if took := (<-started).Sub(asked); took > time.Second {
				e.Errorf("without a hint it took %v", took)
			}
		}
		time.Sleep(time.Minute)
		looks := e.looks()
		gaps := make(map[time.Duration]bool)
		for i := 2; i < len(looks); i++ { // the second one is soon after the first
			gap := looks[i].at.Sub(looks[i-1].at)
			gaps[gap] = true
			if gap > time.Second || gap < time.Second/2 {
				e.Errorf("between two looks were %v", gap)
			}
		}
		if len(gaps) < len(looks)/2 {
			e.Errorf("%d looks had %d different gaps: that is hardly random", len(looks), len(gaps))
		}
		w.drain()
	})
}

// TestFreedSlotLooksAgain has more runs than slots and a poll far away.
func TestFreedSlotLooksAgain(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(context.Context, *Run) error { time.Sleep(time.Second); return nil })
		o.Poll, o.Concurrency = time.Hour, 2
		runs := make([]coord.NewRun, 9)
		for i := range runs {
			runs[i].Kind = kind
		}
		w := e.start(o)
		synctest.Wait()
		e.enqueue(runs...)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := e.count("finish: succeed"); n != 9 {
			e.Errorf("after 5 s %d runs of 9 have ended", n)
		}
		w.drain()
	})
}

// TestAnySlotLooksAgain frees a slot that was not taken by the last look, on a
// store that hints only at what is queued.
func TestAnySlotLooksAgain(t *testing.T) {
	bubble(t, func(e *env) {
		hints := make(chan struct{}, 1)
		e.mute, e.hints = true, hints
		o := e.options(func(_ context.Context, r *Run) error {
			took := map[string]time.Duration{"short": 10 * time.Second, "long": 10 * time.Minute}[string(r.Run.Payload)]
			time.Sleep(took)
			return nil
		})
		o.Poll, o.Concurrency = 24*time.Hour, 2
		w := e.start(o)
		queue := func(payload string) coord.RunID {
			id := e.enqueue(coord.NewRun{Kind: kind, Payload: []byte(payload)})[0].ID
			hints <- struct{}{}
			synctest.Wait()
			return id
		}
		queue("short")
		queue("long")
		id := queue("waits")
		time.Sleep(11 * time.Second)
		e.expect("one that waited for any slot", id, coord.Succeeded, 1)
		time.Sleep(10 * time.Minute)
		w.drain()
	})
}

func TestOtherKindsAreLeftAlone(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(noop))
		id := e.enqueue(coord.NewRun{Kind: "unknown"})[0].ID
		time.Sleep(time.Minute)
		e.expect("a run without a handler", id, coord.Queued, 0)
		w.drain()
	})
}

func TestLeaseIsExtended(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(ctx context.Context, _ *Run) error {
			select {
			case <-time.After(10 * time.Minute):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(11 * time.Minute)
		e.expect("a run of ten minutes", id, coord.Succeeded, 1)
		if n := e.count("extend"); n < 50 || n > 61 {
			e.Errorf("in ten minutes the lease was extended %d times, want one each 10 s", n)
		}
		w.idle()
		w.drain()
	})
}

func TestCancelFromElsewhere(t *testing.T) {
	bubble(t, func(e *env) {
		causes := make(chan error, 2)
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			if string(r.Run.Payload) == "done anyway" {
				return nil
			}
			return ctx.Err()
		}))
		runs := e.enqueue(coord.NewRun{Kind: kind}, coord.NewRun{Kind: kind, Payload: []byte("done anyway")})
		time.Sleep(3 * time.Second)
		began := time.Now()
		for _, r := range runs {
			if err := e.Claimer().Cancel(e.Context(), r.ID); err != nil {
				e.Fatal(err)
			}
			if cause := <-causes; !errors.Is(cause, ErrCancelled) {
				e.Errorf("the cause is %v", cause)
			}
			if took := time.Since(began); took > 20*time.Second {
				e.Errorf("the worker heard of it after %v", took)
			}
		}
		synctest.Wait()
		e.expect("a cancelled run", runs[0].ID, coord.Cancelled, 1)
		e.expect("one that was done all the same", runs[1].ID, coord.Succeeded, 1)
		w.idle()
		w.drain()
	})
}

func TestFencedByExtend(t *testing.T) {
	bubble(t, func(e *env) {
		causes := make(chan error, 1)
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			if string(r.Run.Payload) == "other" {
				time.Sleep(time.Minute)
				return ctx.Err()
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}))
		runs := e.enqueue(coord.NewRun{Kind: kind}, coord.NewRun{Kind: kind, Payload: []byte("other")})
		time.Sleep(2 * time.Second)
		// The run is taken away behind the worker's back: released, and claimed again
		// before the worker, which hears of the release, looks for it.
		stolen := make(chan struct{})
		e.hook(func(_ context.Context, call string) error {
			if call == "claim" {
				<-stolen
			}
			return nil
		}, nil)
		synctest.Wait()
		stale := coord.Claim{Run: e.run(runs[0].ID), Token: 1}
		if err := e.Claimer().Finish(e.Context(), coord.Result{Claim: stale, Outcome: coord.Release}); err != nil {
			e.Fatal(err)
		}
		thief, err := e.Claimer().Claim(e.Context(), coord.ClaimOptions{Worker: "thief", Kinds: []string{kind}, Limit: 1, Lease: time.Hour})
		if err != nil || len(thief) != 1 {
			e.Fatal(thief, err)
		}
		close(stolen)
		if cause := <-causes; !errors.Is(cause, coord.ErrFenced) {
			e.Errorf("the cause is %v", cause)
		}
		time.Sleep(2 * time.Minute)
		if e.count("finish") != 1 || e.count("finish: succeed") != 1 {
			e.Errorf("the calls were %v, want only the other run's success", e.calls(""))
		}
		if r := e.run(runs[0].ID); r.State != coord.Running || r.Worker != "thief" {
			e.Errorf("the thief's run is %s, held by %s", r.State, r.Worker)
		}
		e.expect("the run beside", runs[1].ID, coord.Succeeded, 1)
		if n := e.log.lines("lease lost"); n != 1 {
			e.Errorf("%d lines tell of the lost lease", n)
		}
		w.idle()
		w.drain()
	})
}

// TestHandlersErrFencedIsNotFinished is a handler whose own Tx.Finish was fenced.
func TestHandlersErrFencedIsNotFinished(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(context.Context, *Run) error {
			return fmt.Errorf("tx: %w", &coord.FencedError{})
		}))
		e.enqueue(coord.NewRun{Kind: kind})
		time.Sleep(5 * time.Second)
		if e.count("finish") != 0 {
			e.Errorf("the calls were %v", e.calls(""))
		}
		w.idle()
		w.drain()
	})
}

// TestSelfFencing is C6 and case 4: heartbeats hang past the lease.
func TestSelfFencing(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 3 * time.Second, 30 * time.Second, 10 * time.Minute} {
		for _, deaf := range []bool{false, true} { // a call that ignores its context, too
			t.Run(fmt.Sprintf("%v deaf=%v", lease, deaf), func(t *testing.T) {
				bubble(t, func(e *env) {
					type span struct{ from, to time.Time }
					var mu sync.Mutex
					var spans []span
					var cause error
					o := e.options(func(ctx context.Context, _ *Run) error {
						began := time.Now()
						<-ctx.Done()
						mu.Lock()
						defer mu.Unlock()
						spans = append(spans, span{began, time.Now()})
						cause = context.Cause(ctx)
						return ctx.Err()
					})
					o.Lease, o.Poll, o.Concurrency = lease, 100*time.Millisecond, 1
					release := make(chan struct{})
					claimed := false
					e.hook(func(ctx context.Context, call string) error {
						switch {
						case call == "claim" && !claimed:
							return nil
						case call != "extend":
							return errAway // this worker comes no more
						case deaf:
							<-release
						default:
							<-ctx.Done()
						}
						return errAway
					}, func(context.Context, string) error { claimed = true; return nil })
					id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
					w := e.start(o)
					time.Sleep(o.Poll)
					synctest.Wait()
					until := e.run(id).LeaseUntil
					w2 := o
					w2.Name = "two"
					other := e.startOn(e.Claimer(), w2) // whose heartbeats work
					time.Sleep(lease + time.Second)
					mu.Lock()
					if len(spans) != 1 || !errors.Is(cause, coord.ErrFenced) {
						e.Fatalf("the handler ended %d times, at last by %v", len(spans), cause)
					}
					margin := until.Sub(spans[0].to)
					mu.Unlock()
					if want := min(lease/10, 2*time.Second); margin < want-time.Microsecond || margin > lease/3 {
						e.Errorf("the handler was cancelled %v before the end of its lease, want %v", margin, want)
					}
					if r := e.run(id); r.Attempt != 2 || r.StartedAt.Before(until) {
						e.Errorf("the second attempt is %d, at %v; the lease ended at %v", r.Attempt, r.StartedAt, until)
					}
					if e.count("finish") != 0 {
						e.Errorf("a fenced handler was finished: %v", e.calls(""))
					}
					close(release)
					e.hook(nil, nil)
					w.stop()
					other.drain()
					w.drain()
					w.idle()
				})
			})
		}
	}
}

// TestFencedRunIsNotExtendedAgain has a handler that ignores its context after
// an outage that was longer than its lease.
func TestFencedRunIsNotExtendedAgain(t *testing.T) {
	bubble(t, func(e *env) {
		release := make(chan struct{})
		var started atomic.Int32
		w := e.start(e.options(func(context.Context, *Run) error {
			if started.Add(1) == 1 {
				<-release
			}
			return nil
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		synctest.Wait()
		e.hook(func(context.Context, string) error { return errAway }, nil)
		time.Sleep(28*time.Second + 500*time.Millisecond) // past the fence, before the lease's end
		e.hook(nil, nil)
		time.Sleep(time.Minute)
		if n := started.Load(); n != 2 {
			e.Errorf("the run was started %d times, want once more after the lease", n)
		}
		e.expect("the run", id, coord.Succeeded, 2)
		close(release)
		synctest.Wait()
		e.expect("the run, after the first handler has ended", id, coord.Succeeded, 2)
		w.idle()
		w.drain()
	})
}

func TestDrainWaitsForHandlers(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(ctx context.Context, _ *Run) error {
			time.Sleep(5 * time.Second)
			return ctx.Err()
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(2 * time.Second)
		w.stop()
		synctest.Wait()
		late := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		w.drain()
		if w.took != 3*time.Second {
			e.Errorf("the drain took %v", w.took)
		}
		e.expect("a run that ended within the grace", id, coord.Succeeded, 1)
		e.expect("a run that came after", late, coord.Queued, 0)
		w.idle()
	})
}

func TestDrainReleasesWhatDoesNotEnd(t *testing.T) {
	bubble(t, func(e *env) {
		causes := make(chan error, 1)
		w := e.start(e.options(func(ctx context.Context, _ *Run) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}))
		id := e.enqueue(coord.NewRun{Kind: kind, Retry: coord.Retry{MaxAttempts: 1}})[0].ID
		time.Sleep(time.Minute)
		w.drain()
		if cause := <-causes; w.took != 10*time.Second || !errors.Is(cause, ErrDraining) {
			e.Errorf("the drain took %v, the cause was %v", w.took, cause)
		}
		r := e.expect("a run that ended with the grace", id, coord.Queued, 0)
		if r.DueAt.After(time.Now()) {
			e.Errorf("the released run is due at %v, now is %v", r.DueAt, time.Now())
		}
		w.idle()
	})
}

func TestDrainDoesNotRepeatWhatMayRunOnce(t *testing.T) {
	bubble(t, func(e *env) {
		release := make(chan struct{})
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			if string(r.Run.Payload) == "deaf" {
				<-release
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}))
		runs := e.enqueue(
			coord.NewRun{Kind: kind, Payload: []byte("deaf"), AtMostOnce: true},
			coord.NewRun{Kind: kind, AtMostOnce: true})
		time.Sleep(time.Second)
		w.drain()
		e.expect("one whose handler is deaf", runs[0].ID, coord.Failed, 1)
		e.expect("one that was cut off", runs[1].ID, coord.Failed, 1)
		close(release)
		w.idle()
	})
}

// TestDrainWithADeafHandler is case 12 and C8.
func TestDrainWithADeafHandler(t *testing.T) {
	bubble(t, func(e *env) {
		release := make(chan struct{})
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			switch string(r.Run.Payload) {
			case "deaf":
				<-release
				return errors.New("too late")
			case "soon":
				time.Sleep(5 * time.Second)
				return nil
			}
			<-ctx.Done()
			time.Sleep(300 * time.Millisecond) // tidies up
			return ctx.Err()
		}))
		runs := e.enqueue(
			coord.NewRun{Kind: kind, Payload: []byte("deaf"), Retry: coord.Retry{MaxAttempts: 1}},
			coord.NewRun{Kind: kind, Payload: []byte("soon")},
			coord.NewRun{Kind: kind, Payload: []byte("good")})
		time.Sleep(time.Second)
		w.drain()
		if w.took > 12*time.Second {
			e.Errorf("the drain took %v", w.took)
		}
		e.expect("one that ended within the grace", runs[1].ID, coord.Succeeded, 1)
		e.expect("one that ended soon after it", runs[2].ID, coord.Queued, 0)
		e.expect("the deaf one", runs[0].ID, coord.Queued, 0)
		if n := e.log.lines("were released"); n != 1 {
			e.Errorf("%d lines tell of the deaf handler", n)
		}
		// Elsewhere it runs at once, and the first handler's end changes nothing.
		again, err := e.Claimer().Claim(e.Context(), coord.ClaimOptions{Worker: "two", Kinds: []string{kind}, Limit: 9, Lease: time.Hour})
		if err != nil || len(again) != 2 {
			e.Fatalf("elsewhere %d runs can be claimed (%v), want 2", len(again), err)
		}
		close(release)
		synctest.Wait()
		e.expect("the deaf one, elsewhere", runs[0].ID, coord.Running, 1)
		w.idle()
	})
}

// TestDrainKeepsWhatAHandlerDecided: an explicit end counts more than the drain.
func TestDrainKeepsWhatAHandlerDecided(t *testing.T) {
	bubble(t, func(e *env) {
		ends := map[string]error{"snooze": Snooze(time.Hour), "give up": GiveUp(errors.New("no use")), "done": nil}
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			<-ctx.Done()
			return ends[string(r.Run.Payload)]
		}))
		runs := e.enqueue(
			coord.NewRun{Kind: kind, Payload: []byte("snooze")},
			coord.NewRun{Kind: kind, Payload: []byte("give up")},
			coord.NewRun{Kind: kind, Payload: []byte("done")})
		time.Sleep(time.Second)
		w.drain()
		if r := e.expect("snooze", runs[0].ID, coord.Queued, 0); !r.DueAt.After(time.Now().Add(59 * time.Minute)) {
			e.Errorf("the snoozed run is due at %v", r.DueAt)
		}
		e.expect("giving up", runs[1].ID, coord.Failed, 1)
		e.expect("done", runs[2].ID, coord.Succeeded, 1)
	})
}

// TestClaimUnderWayAtDrain has an answer that comes after the drain began.
func TestClaimUnderWayAtDrain(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(context.Context, *Run) error { e.Error("a run was started"); return nil }))
		time.Sleep(2 * time.Second)
		committed := make(chan struct{})
		var once sync.Once
		e.hook(nil, func(ctx context.Context, call string) error {
			if call != "claim" {
				return nil
			}
			once.Do(func() { close(committed) })
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done(): // the answer is lost
				return ctx.Err()
			}
		})
		runs := e.enqueue(coord.NewRun{Kind: kind, Retry: coord.Retry{MaxAttempts: 1}}, coord.NewRun{Kind: kind, AtMostOnce: true})
		<-committed
		w.drain()
		for _, r := range runs {
			e.expect("a run that was claimed by the worker that drains", r.ID, coord.Queued, 0)
		}
		w.idle()
	})
}

// TestDrainDuringAnOutage must end although no call is answered.
func TestDrainDuringAnOutage(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(untilDone))
		e.enqueue(coord.NewRun{Kind: kind})
		time.Sleep(time.Second)
		e.hook(func(ctx context.Context, _ string) error { <-ctx.Done(); return errAway }, nil)
		time.Sleep(time.Second)
		w.drain()
		if w.took > 10*time.Second+time.Second+2*releaseTime {
			e.Errorf("the drain took %v", w.took)
		}
		time.Sleep(time.Minute) // the last Finish gives up with its lease
		w.idle()
	})
}

// TestDrainWaitsForTheEndBeingWritten: a result that is under way at the end of
// the grace is not cut off.
func TestDrainWaitsForTheEndBeingWritten(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(ctx context.Context, _ *Run) error { <-ctx.Done(); return nil }))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(time.Second)
		e.hook(func(_ context.Context, call string) error {
			if call == "finish" {
				time.Sleep(3 * time.Second)
			}
			return nil
		}, nil)
		w.drain()
		e.expect("the run", id, coord.Succeeded, 1)
		if w.took != 13*time.Second {
			e.Errorf("the drain took %v", w.took)
		}
	})
}

func TestClaimErrorsAreLoggedOnce(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(noop))
		for range 2 {
			e.hook(func(_ context.Context, call string) error {
				if call == "claim" {
					return errAway
				}
				return nil
			}, nil)
			time.Sleep(time.Minute)
			id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
			time.Sleep(time.Second)
			e.expect("a run during the outage", id, coord.Queued, 0)
			e.hook(nil, nil)
			time.Sleep(time.Second)
			synctest.Wait()
			e.expect("the run after the outage", id, coord.Succeeded, 1)
		}
		if fails, works := e.log.lines(`trying on" call=claim`), e.log.lines(`again" call=claim`); fails != 2 || works != 2 {
			e.Errorf("two outages made %d and %d lines", fails, works)
		}
		w.idle()
		w.drain()
	})
}

func TestFinishIsTriedUntilTheLeaseEnds(t *testing.T) {
	for name, test := range map[string]struct {
		away    time.Duration
		state   coord.State
		attempt int
		hanging bool
	}{
		"a short outage":                  {5 * time.Second, coord.Succeeded, 1, false},
		"a short outage of hanging calls": {5 * time.Second, coord.Succeeded, 1, true},
		"an outage beyond the lease":      {40 * time.Second, coord.Succeeded, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				w := e.start(e.options(noop))
				began := time.Now()
				e.hook(func(ctx context.Context, call string) error {
					if call != "finish" || time.Since(began) > test.away {
						return nil
					}
					if test.hanging {
						<-ctx.Done()
						return fmt.Errorf("%w: %w", coord.ErrUnavailable, ctx.Err())
					}
					return errAway
				}, nil)
				id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
				time.Sleep(2 * time.Minute)
				e.expect("the run", id, test.state, test.attempt)
				if n := e.count("finish"); n < 2 || n > 130 { // a poll interval lies between two, or half of one
					e.Errorf("Finish was tried %d times", n)
				}
				if got, want := e.log.lines("before their lease ended"), test.attempt-1; got != want {
					e.Errorf("%d lines tell that it could not be finished, want %d", got, want)
				}
				w.idle()
				w.drain()
			})
		})
	}
}

// TestLostAnswerToFinish: the write happened, its answer did not come.
func TestLostAnswerToFinish(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(noop))
		lost := false
		e.hook(nil, func(_ context.Context, call string) error {
			if call == "finish" && !lost {
				lost = true
				return coord.ErrUnknownOutcome
			}
			return nil
		})
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(time.Minute)
		e.expect("the run", id, coord.Succeeded, 1)
		if n := e.count("finish"); n != 2 {
			e.Errorf("Finish was tried %d times, want 2", n)
		}
		w.idle()
		w.drain()
	})
}

func TestRefusedFinishIsNotTriedAgain(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(context.Context, *Run) error { return Snooze(-time.Hour) }))
		e.enqueue(coord.NewRun{Kind: kind})
		time.Sleep(5 * time.Second)
		if n := e.count("finish"); n != 1 {
			e.Errorf("a result that is invalid was sent %d times", n)
		}
		w.idle()
		w.drain()
	})
}

// TestVanishedWorker is case 13: the process dies in the handler.
func TestVanishedWorker(t *testing.T) {
	bubble(t, func(e *env) {
		runs := e.enqueue(
			coord.NewRun{Kind: kind, Retry: coord.Retry{MaxAttempts: 1}}, coord.NewRun{Kind: kind, AtMostOnce: true}, coord.NewRun{Kind: kind})
		dead, err := e.Claimer().Claim(e.Context(), coord.ClaimOptions{Worker: "dead", Kinds: []string{kind}, Limit: 9, Lease: time.Minute})
		if err != nil || len(dead) != 3 {
			e.Fatal(dead, err)
		}
		started := make(chan coord.RunID, 9)
		w := e.start(e.options(func(_ context.Context, r *Run) error { started <- r.Run.ID; return nil }))
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if len(started) > 0 {
			e.Errorf("during the lease %d runs were started", len(started))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for _, r := range runs[:2] {
			if r := e.expect("a run that may not run again", r.ID, coord.Failed, 1); r.Error != coord.LostError {
				e.Errorf("its error is %q", r.Error)
			}
		}
		e.expect("a run that may", runs[2].ID, coord.Succeeded, 2)
		if len(started) != 1 || <-started != runs[2].ID {
			e.Error("not just the run that may was started")
		}
		w.drain()
	})
}
