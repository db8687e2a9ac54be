package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// starts is a handler that tells when it was called.
func starts(times chan<- time.Time) Handler {
	return func(context.Context, *Run) error {
		times <- time.Now()
		return nil
	}
}

func runsOf(n int, r coord.NewRun) []coord.NewRun {
	runs := make([]coord.NewRun, n)
	for i := range runs {
		runs[i] = r
	}
	return runs
}

func TestLooksAtOnce(t *testing.T) {
	bubble(t, func(e *env) {
		times := make(chan time.Time, 1)
		o := e.options(starts(times))
		o.Poll = time.Hour
		e.enqueue(coord.NewRun{Kind: kind})
		began := time.Now()
		w := e.start(o)
		if took := (<-times).Sub(began); took != 0 {
			e.Errorf("what waited for the worker was started after %v", took)
		}
		w.drain()
	})
}

// TestWhatFallsDueIsStartedThen polls once an hour and gets no hints of time passing.
func TestWhatFallsDueIsStartedThen(t *testing.T) {
	bubble(t, func(e *env) {
		times := make(chan time.Time, 9)
		o := e.options(starts(times))
		o.Poll = time.Hour
		w := e.start(o)
		expect := func(what string, due time.Time) {
			e.Helper()
			if late := (<-times).Sub(due); late < 0 || late > w.calm() {
				e.Errorf("%s was started %v after it was due", what, late)
			}
		}
		began := time.Now()
		e.enqueue(
			coord.NewRun{Kind: kind, Delay: 7 * time.Minute}, coord.NewRun{Kind: kind, Delay: 1500 * time.Millisecond},
			coord.NewRun{Kind: kind, Delay: 3 * time.Millisecond}, coord.NewRun{Kind: kind, Delay: 1501 * time.Millisecond})
		expect("a run that is due almost at once", began.Add(3*time.Millisecond))
		expect("a run that is due soon", began.Add(1500*time.Millisecond))
		expect("one right behind it", began.Add(1501*time.Millisecond))
		expect("a run that is due later", began.Add(7*time.Minute))

		began = time.Now()
		if _, err := e.Claimer().PutTask(e.Context(), coord.Task{Name: "tick", Kind: kind, Schedule: "@every 10s"}); err != nil {
			e.Fatal(err)
		}
		for i := range 5 {
			expect("an occurrence", began.Add(time.Duration(i+1)*10*time.Second))
		}
		w.drain()
	})
}

// TestOthersWorkWakesNobody has runs fall due and leases end of kinds that the worker
// has no handler for.
func TestOthersWorkWakesNobody(t *testing.T) {
	bubble(t, func(e *env) {
		times := make(chan time.Time, 1)
		o := e.options(starts(times))
		o.Poll = time.Hour
		w := e.start(o)
		for i := range 300 {
			e.enqueue(coord.NewRun{Kind: "other", Delay: time.Duration(i+1) * time.Second})
		}
		due := time.Now().Add(10 * time.Minute)
		e.enqueue(coord.NewRun{Kind: kind, DueAt: due})
		time.Sleep(time.Second)
		looks := len(e.looks())
		if late := (<-times).Sub(due); late < 0 || late > w.calm() {
			e.Errorf("the run was started %v after it was due", late)
		}
		synctest.Wait()
		if n := len(e.looks()) - looks; n > 2 {
			e.Errorf("before it was started the worker looked %d times", n)
		}
		w.drain()
	})
}

func TestSnoozedAndFailedRunsComeBackInTime(t *testing.T) {
	bubble(t, func(e *env) {
		hints := make(chan struct{}, 1)
		e.mute, e.hints = true, hints // the store says nothing of what a worker ended itself
		var times []time.Time
		o := e.options(func(_ context.Context, r *Run) error {
			times = append(times, time.Now())
			switch len(times) {
			case 1:
				return Snooze(20 * time.Millisecond)
			case 2:
				return errAway
			}
			return nil
		})
		o.Poll = time.Hour
		w := e.start(o)
		id := e.enqueue(coord.NewRun{Kind: kind, Retry: coord.Retry{Backoff: time.Second}})[0].ID
		hints <- struct{}{}
		time.Sleep(2 * time.Second)
		e.expect("the run", id, coord.Succeeded, 2)
		if len(times) != 3 || times[1].Sub(times[0]) > 26*time.Millisecond || times[2].Sub(times[1]) > 1006*time.Millisecond {
			e.Errorf("it was started at %v", times)
		}
		w.drain()
	})
}

// TestLeaseThatEndsElsewhereIsNoticed has another worker vanish, and a poll far away.
func TestLeaseThatEndsElsewhereIsNoticed(t *testing.T) {
	bubble(t, func(e *env) {
		e.enqueue(coord.NewRun{Kind: kind})
		dead, err := e.Claimer().Claim(e.Context(), coord.ClaimOptions{Worker: "dead", Kinds: []string{kind}, Limit: 1, Lease: time.Minute})
		if err != nil || len(dead) != 1 {
			e.Fatal(dead, err)
		}
		ends := time.Now().Add(time.Minute)
		times := make(chan time.Time, 1)
		o := e.options(starts(times))
		o.Poll = time.Hour
		w := e.start(o)
		if late := (<-times).Sub(ends); late < 0 || late > w.calm() {
			e.Errorf("the run was started again %v after the end of its lease", late)
		}
		w.drain()
	})
}

// TestQuestionsAreFew counts what is asked besides claims: nothing while hints or
// runs keep the worker busy, and one question with each look of an idle one.
func TestQuestionsAreFew(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(noop))
		time.Sleep(time.Second)
		asked := e.count("next")
		for range 200 {
			e.enqueue(coord.NewRun{Kind: kind})
			time.Sleep(4 * time.Millisecond)
		}
		if n := e.count("next") - asked; n != 0 {
			e.Errorf("a busy worker asked %d times what is due next", n)
		}
		time.Sleep(10 * time.Millisecond)
		asked, looks := e.count("next"), len(e.looks())
		time.Sleep(time.Minute)
		asked, looks = e.count("next")-asked, len(e.looks())-looks
		if asked != looks || looks < 60 || looks > 120 {
			e.Errorf("in an idle minute it asked %d times and looked %d times, want one with each look", asked, looks)
		}
		w.drain()
	})
}

// TestBackoff has an outage in which hints keep coming.
func TestBackoff(t *testing.T) {
	bubble(t, func(e *env) {
		hints := make(chan struct{}, 1)
		e.mute, e.hints = true, hints
		o := e.options(noop)
		o.Poll = 4 * time.Second
		w := e.start(o)
		time.Sleep(time.Minute)
		away := true
		var mu sync.Mutex
		e.hook(func(context.Context, string) error {
			mu.Lock()
			defer mu.Unlock()
			if away {
				return errAway
			}
			return nil
		}, nil)
		before := len(e.looks())
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			select {
			case hints <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		}
		looks := e.looks()[before:]
		if n := len(looks); n < 150 || n > 320 {
			e.Errorf("in ten minutes it looked %d times", n)
		}
		gaps := make(map[time.Duration]bool)
		for i := 1; i < len(looks); i++ {
			gap := looks[i].at.Sub(looks[i-1].at)
			gaps[gap] = true
			want := min(firstBackoff<<min(i-1, 20), o.Poll)
			if gap > want+time.Millisecond || gap < want/2 {
				e.Errorf("between the looks %d and %d were %v, want up to %v", i-1, i, gap, want)
			}
		}
		if len(gaps) < len(looks)/2 {
			e.Errorf("%d looks had %d different gaps: that is hardly random", len(looks), len(gaps))
		}
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(o.Poll)
		synctest.Wait()
		e.expect("the run after the outage", id, coord.Succeeded, 1)
		// The next outage begins anew.
		before = len(e.looks())
		mu.Lock()
		away = true
		mu.Unlock()
		hints <- struct{}{}
		time.Sleep(time.Second)
		if n := len(e.looks()) - before; n < 4 {
			e.Errorf("in the first second of an outage it looked %d times", n)
		}
		if n := e.log.lines(`trying on" call=claim`); n != 2 {
			e.Errorf("two outages made %d lines", n)
		}
		e.hook(nil, nil)
		w.drain()
	})
}

// TestClaimsWhenTheQuestionFails: it only makes things quick.
func TestClaimsWhenTheQuestionFails(t *testing.T) {
	bubble(t, func(e *env) {
		e.mute = true
		e.hook(func(ctx context.Context, call string) error {
			if call == "next" {
				<-ctx.Done()
				return errAway
			}
			return nil
		}, nil)
		times := make(chan time.Time, 1)
		w := e.start(e.options(starts(times)))
		for range 20 {
			asked := time.Now()
			e.enqueue(coord.NewRun{Kind: kind})
			if took := (<-times).Sub(asked); took > w.o.Poll+askTime {
				e.Errorf("it took %v", took)
			}
		}
		if n := e.log.lines(`trying on" call=next_due`); n != 1 {
			e.Errorf("%d lines tell of it", n)
		}
		e.hook(nil, nil)
		time.Sleep(3 * time.Second)
		if n := e.log.lines(`again" call=next_due`); n != 1 {
			e.Errorf("%d lines tell of its end", n)
		}
		w.drain()
	})
}

// TestUnderLoad has a long backlog and a store that takes its time: claims, handlers
// and the writing of ends go on side by side, in large batches.
func TestUnderLoad(t *testing.T) {
	bubble(t, func(e *env) {
		const slots, total = 300, 6000
		e.enqueue(runsOf(total, coord.NewRun{Kind: kind})...)
		var claims, ends, both atomic.Int32
		e.hook(func(_ context.Context, call string) error {
			switch call {
			case "claim":
				claims.Add(1)
				defer claims.Add(-1)
			case "finish":
				ends.Add(1)
				defer ends.Add(-1)
			}
			time.Sleep(10 * time.Millisecond)
			if claims.Load() > 0 && ends.Load() > 0 {
				both.Add(1)
			}
			return nil
		}, nil)
		o := e.options(noop)
		o.Concurrency, o.Poll = slots, time.Hour
		began := time.Now()
		w := e.start(o)
		for e.count("finish: succeed") < total {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(began)
		const turns = total / slots * parts
		looks, writes := len(e.looks()), e.count("ends of")
		if looks > turns+10 || writes > 2*turns {
			e.Errorf("%d runs took %d claims and %d writes", total, looks, writes)
		}
		if took > 2*turns*10*time.Millisecond || both.Load() < turns/2 {
			e.Errorf("it took %v, with %d times a claim and a write together", took, both.Load())
		}
		time.Sleep(time.Second)
		w.idle()
		w.drain()
	})
}

// TestLimits has two workers and kinds of which few may run.
func TestLimits(t *testing.T) {
	bubble(t, func(e *env) {
		var mu sync.Mutex
		atWork, most := map[string]int{}, map[string]int{}
		h := func(_ context.Context, r *Run) error {
			mu.Lock()
			atWork[r.Run.Kind]++
			most[r.Run.Kind] = max(most[r.Run.Kind], atWork[r.Run.Kind])
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			atWork[r.Run.Kind]--
			mu.Unlock()
			return nil
		}
		e.mute = true // no hint: the end of a run that had a place wakes
		o := e.options(nil)
		o.Handlers = map[string]Handler{"one": h, "three": h, "free": h, "keyed": h}
		o.Limits = map[string]int{"one": 1, "three": 3}
		o.Concurrency, o.Poll = 20, time.Hour
		e.enqueue(runsOf(5, coord.NewRun{Kind: "one"})...)
		e.enqueue(runsOf(15, coord.NewRun{Kind: "three"})...)
		e.enqueue(runsOf(12, coord.NewRun{Kind: "free"})...)
		e.enqueue(runsOf(10, coord.NewRun{Kind: "keyed", Concurrency: coord.Concurrency{Key: "k", Limit: 2}})...)
		w := e.start(o)
		o.Name = "two"
		other := e.start(o)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := e.count("finish: succeed"); n != 42 {
			e.Errorf("%d runs of 42 have ended", n)
		}
		if most["one"] != 1 || most["three"] != 3 || most["free"] != 12 || most["keyed"] != 2 {
			e.Errorf("at a time ran %v", most)
		}
		w.idle()
		other.idle()
		w.drain()
		other.drain()
	})
}

// TestEndOfAKeyedRunWakes: the store gives no hint.
func TestEndOfAKeyedRunWakes(t *testing.T) {
	bubble(t, func(e *env) {
		e.mute = true
		o := e.options(func(context.Context, *Run) error { time.Sleep(time.Second); return nil })
		o.Poll = time.Hour
		e.enqueue(runsOf(5, coord.NewRun{Kind: kind, Concurrency: coord.Concurrency{Key: "k"}})...)
		w := e.start(o)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := e.count("finish: succeed"); n != 5 {
			e.Errorf("after 5 s %d runs of 5 have ended", n)
		}
		w.drain()
	})
}

// TestFenceOfMany has leases that end at different times, all of them cut off.
func TestFenceOfMany(t *testing.T) {
	bubble(t, func(e *env) {
		var mu sync.Mutex
		lasted := map[time.Duration]int{}
		o := e.options(func(ctx context.Context, _ *Run) error {
			began := time.Now()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			lasted[time.Since(began)]++
			return ctx.Err()
		})
		o.Concurrency = 50
		e.hook(func(_ context.Context, call string) error {
			if call == "extend" {
				return errAway
			}
			return nil
		}, nil)
		w := e.start(o)
		for range 50 {
			e.enqueue(coord.NewRun{Kind: kind, AtMostOnce: true})
			time.Sleep(333 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(lasted) != 1 || lasted[28*time.Second] != 50 {
			e.Errorf("the handlers lasted %v, want 28 s all", lasted)
		}
		if n := e.log.lines(`trying on" call=extend`); n != 1 {
			e.Errorf("%d lines tell of it", n)
		}
		w.idle()
		w.drain()
	})
}

// TestCancelIsHeardAtOnce cancels many runs, on another replica.
func TestCancelIsHeardAtOnce(t *testing.T) {
	bubble(t, func(e *env) {
		times := make(chan time.Time, 200)
		o := e.options(func(ctx context.Context, _ *Run) error {
			<-ctx.Done()
			times <- time.Now()
			return context.Cause(ctx)
		})
		o.Concurrency = 200
		runs := e.enqueue(runsOf(200, coord.NewRun{Kind: kind})...)
		w := e.start(o)
		time.Sleep(3 * time.Second)
		began := time.Now()
		other := e.store.Open()
		for _, r := range runs {
			if err := other.Claimer().Cancel(e.Context(), r.ID); err != nil {
				e.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond)
		}
		for range runs {
			if took := (<-times).Sub(began); took > 20*time.Millisecond+extendGap {
				e.Errorf("a handler heard of it after %v", took)
			}
		}
		if n := e.count("extend"); n > 4 {
			e.Errorf("200 cancelled runs made %d heartbeats", n)
		}
		synctest.Wait()
		for _, r := range runs {
			e.expect("a cancelled run", r.ID, coord.Cancelled, 1)
		}
		if err := other.Close(e.Context()); err != nil {
			e.Error(err)
		}
		w.idle()
		w.drain()
	})
}

// TestCancelDuringTheClaim: the run is not at work yet when the signal comes.
func TestCancelDuringTheClaim(t *testing.T) {
	bubble(t, func(e *env) {
		ended := make(chan time.Time, 1)
		w := e.start(e.options(func(ctx context.Context, _ *Run) error {
			<-ctx.Done()
			ended <- time.Now()
			return context.Cause(ctx)
		}))
		time.Sleep(time.Second)
		e.hook(nil, func(_ context.Context, call string) error {
			if call == "claim" {
				time.Sleep(time.Second) // the answer is slow
			}
			return nil
		})
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(500 * time.Millisecond)
		if err := e.Claimer().Cancel(e.Context(), id); err != nil {
			e.Fatal(err)
		}
		began := time.Now()
		if took := (<-ended).Sub(began); took > 500*time.Millisecond+extendGap {
			e.Errorf("the handler heard of it after %v", took)
		}
		synctest.Wait()
		e.expect("the run", id, coord.Cancelled, 1)
		e.hook(nil, nil)
		w.drain()
	})
}
