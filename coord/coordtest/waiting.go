package coordtest

import (
	"context"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// waitingTests are about what lets a worker sleep: when it must look next, and
// what wakes it.
var waitingTests = []test{
	{"NextDue of nothing", func(f *fixture) {
		f.nothingDue("in an empty store")
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		f.nothingDue("when all is due already")
		f.succeed(f.claimOne(f.one, "k"))
		f.nothingDue("when all has ended")
		f.put(coord.Task{Name: "n", Kind: "k"})
		f.nothingDue("with a task without a schedule")
	}},
	{"NextDue of runs", func(f *fixture) {
		// The nearest is found whatever its priority, its kind and its key.
		var last coord.RunID
		for i := 16; i > 0; i-- {
			n := coord.NewRun{Kind: string(rune('a' + i)), Priority: 1 + i%4, Delay: time.Duration(i) * time.Minute}
			if i%3 == 0 {
				n.Concurrency.Key = "x"
			}
			last = f.enqueueOne(f.one, n).ID
			f.nextDue("with a nearer run", n.Delay)
		}
		f.store.Advance(20 * time.Second)
		f.nextDue("20 seconds later", 40*time.Second)
		must(f, "Cancel", f.one.Claimer().Cancel(f.ctx, last))
		f.nextDue("when the nearest was cancelled", 100*time.Second)
		f.store.Advance(100*time.Second - time.Microsecond)
		f.nextDue("a microsecond before", time.Microsecond)
		f.store.Advance(time.Microsecond)
		f.nextDue("when it is due", time.Minute)
	}},
	{"NextDue of leases and retries", func(f *fixture) {
		f.enqueue(f.one, coord.NewRun{Kind: "k"}, keyed("k", "x", 1), keyed("k", "x", 1))
		claims := f.claimCount("at first", f.one, want("k", 10), 2)
		f.nextDue("with two leases", lease)
		_, err := f.one.Claimer().Extend(f.ctx, 2*lease, claims...)
		must(f, "Extend", err)
		f.nextDue("with the leases extended", 2*lease)
		f.finish(f.one, coord.Result{Claim: claims[0], Outcome: coord.Snooze, Delay: 10 * time.Second})
		f.nextDue("with one of them snoozed", 10*time.Second)
		f.store.Advance(10 * time.Second)
		f.nextDue("when the snooze is over", 2*lease-10*time.Second)
		f.store.Advance(2*lease - 10*time.Second)
		f.nothingDue("when the lease is over")
		limited := bounded(10, map[string]int{"limited": 1}, "limited")
		f.enqueue(f.one, coord.NewRun{Kind: "limited"}, coord.NewRun{Kind: "limited"})
		f.claimCount("of a limited kind", f.one, limited, 1)
		f.nextDue("with a lease of a limited kind", lease)
	}},
	{"NextDue of tasks", func(f *fixture) {
		c := f.two.Claimer()
		f.put(minutely("", ""))
		f.nextDue("with a task", time.Minute)
		f.enqueueOne(f.one, coord.NewRun{Kind: "k", Delay: 2 * time.Minute})
		f.nextDue("with a run that is due later", time.Minute)
		must(f, "PauseTask", c.PauseTask(f.ctx, "n", true))
		f.nextDue("with the task paused", 2*time.Minute)
		must(f, "PauseTask", c.PauseTask(f.ctx, "n", false))
		f.nextDue("with the task resumed", time.Minute)
		f.store.Advance(time.Minute)
		f.nextDue("with the occurrence due", time.Minute)
		f.succeed(f.claimOne(f.one, "k"))
		f.nextDue("with the occurrence claimed", time.Minute) // the next one's, and the run's
		f.store.Advance(30 * time.Second)
		f.nextDue("half a minute later", 30*time.Second)
		must(f, "DeleteTask", c.DeleteTask(f.ctx, "n"))
		f.nextDue("with the task deleted", 30*time.Second)
		f.store.Advance(30 * time.Second)
		f.nothingDue("with the run due")
	}},
	{"NextDue of some kinds", func(f *fixture) {
		task := minutely("", "")
		task.Kind = "task"
		f.put(task)
		f.enqueue(f.one, coord.NewRun{Kind: "a", Delay: 10 * time.Second}, coord.NewRun{Kind: "b", Delay: 20 * time.Second},
			coord.NewRun{Kind: "b"}, keyed("keyed", "x", 1), keyed("keyed", "x", 1))
		f.nextDue("of any kind", 10*time.Second)
		f.nextDue("of a run", 20*time.Second, "b")
		f.nextDue("of two kinds", 20*time.Second, "task", "b", "none", "b")
		f.nextDue("of a task", time.Minute, "task")
		f.nothingDue("of a kind that waits for nothing", "keyed")
		f.nothingDue("of a kind that there is not", "none")
		f.claimOne(f.one, "b")
		f.claimOne(f.one, "keyed")
		f.store.Advance(20 * time.Second)
		f.nextDue("of a lease", lease-20*time.Second, "b")
		f.nextDue("of the lease of a run with a key", lease-20*time.Second, "keyed")
		f.nothingDue("of a kind that is due already", "a")
		_, _, err := f.two.Claimer().NextDue(f.ctx, "a", "")
		is(f, "NextDue of a kind without a name", err, coord.ErrInvalid)
	}},
	{"NextDue behind a backlog of other kinds", func(f *fixture) {
		// It may come too soon, but not too late, and not for each of them.
		var others []coord.NewRun
		for i := range 300 {
			r := keyed("other", "", 0)
			if i%2 == 0 {
				r.Concurrency = coord.Concurrency{Key: fmt.Sprint(i)}
			}
			r.Priority, r.Delay = 1+i%4, time.Duration(i+1)*time.Second
			others = append(others, r)
		}
		f.enqueue(f.one, others...)
		for priority, key := range []string{"", "x"} {
			due := f.store.Now().Add(time.Hour)
			n := keyed("k", key, len(key))
			n.Priority, n.Delay = 1+priority, time.Hour
			f.enqueueOne(f.one, n)
			asked := 0
			for f.store.Now().Before(due) {
				wait, some, err := f.two.Claimer().NextDue(f.ctx, "k")
				must(f, "NextDue", err)
				if left := due.Sub(f.store.Now()); !some || wait <= 0 || wait > left {
					f.Fatalf("NextDue is %v, %v; want at most the %v that are left", wait, some, left)
				}
				f.store.Advance(wait)
				asked++
			}
			if asked > len(others)/10 {
				f.Errorf("NextDue was to be asked %d times", asked)
			}
			f.succeed(f.claimOne(f.two, "k"))
		}
	}},
	{"hints tell of the end that a run waits for", hintsOfEnds},
	{"cancels tell of running runs that are to stop", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Hints, "Hints") {
			return
		}
		f.put(coord.Task{Name: "n", Kind: "k", Overlap: coord.OverlapAllow})
		for name, cancel := range map[string]func(b coord.Backend, id coord.RunID) error{
			"Cancel": func(b coord.Backend, id coord.RunID) error { return b.Claimer().Cancel(f.ctx, id) },
			"Cancel in a transaction": func(b coord.Backend, id coord.RunID) error {
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Cancel(ctx, id) })
			},
			"DeleteTask": func(b coord.Backend, _ coord.RunID) error {
				if err := b.Claimer().DeleteTask(f.ctx, "n"); err != nil {
					return err
				}
				_, err := b.Claimer().PutTask(f.ctx, coord.Task{Name: "n", Kind: "k", Overlap: coord.OverlapAllow})
				return err
			},
		} {
			for _, b := range f.handles() {
				cancels, stop := b.Claimer().Cancels()
				for _, by := range f.handles() {
					f.trigger("n")
					claim := f.claimOne(f.one, "k")
					select { // what came before is in the way
					case <-cancels:
					default:
					}
					must(f, name, cancel(by, claim.Run.ID))
					select {
					case <-cancels:
					case <-f.ctx.Done():
						f.Fatalf("%s: no word within %v that a running run is to stop", name, patience)
					}
					held, err := b.Claimer().Extend(f.ctx, lease, claim)
					must(f, "Extend", err)
					equal(f, name+": CancelRequested when the word has come", held[0].Run.CancelRequested, true)
					f.finish(b, coord.Result{Claim: claim, Outcome: coord.CancelRun})
				}
				stop()
				stop()
			}
		}
	}},
}

// hintsOfEnds has runs that may not start before another has ended, for one reason or
// another. Who waits for them looks when a hint comes, and at no other time.
func hintsOfEnds(f *fixture) {
	if f.lacks(f.harness.Capabilities.Hints, "Hints") {
		return
	}
	kind := 0
	for why, n := range map[string]coord.NewRun{
		"a key": keyed("", "x", 1), "the limit of a kind": {}, "the limit of a kind, and a key that is free": keyed("", "y", 9),
	} {
		for how, end := range map[string]func(b coord.Backend, c coord.Claim) error{
			"Finish": func(b coord.Backend, c coord.Claim) error {
				return b.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
			},
			"Finish in a transaction": func(b coord.Backend, c coord.Claim) error {
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
					return tx.Finish(ctx, coord.Result{Claim: c, Outcome: coord.GiveUp})
				})
			},
			"Finish of a run that is tried again": func(b coord.Backend, c coord.Claim) error {
				return b.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Snooze, Delay: time.Hour})
			},
			"Cancel when the worker has vanished": func(b coord.Backend, c coord.Claim) error {
				f.store.Advance(2 * lease)
				return b.Claimer().Cancel(f.ctx, c.Run.ID)
			},
		} {
			for _, waiting := range f.handles() {
				kind++
				n := n
				n.Kind = fmt.Sprint(kind)
				if n.Concurrency.Key != "" {
					n.Concurrency.Key += n.Kind
				}
				o := bounded(1, nil, n.Kind)
				if n.Concurrency.Limit != 1 {
					o.Limits = map[string]int{n.Kind: 1}
				}
				what := how + " of a run that is bound by " + why
				hints, stop := waiting.Claimer().Hints()
				f.enqueue(f.one, n, n)
				first := f.claimCount(what, f.one, o, 1)[0]
				f.claimCount(what, waiting, o, 0)
				f.allHeard(waiting)
				select { // what came before is in the way
				case <-hints:
				default:
				}
				must(f, what, end(f.one, first))
				for f.heard(what, hints); len(f.claim(waiting, o)) == 0; {
					f.heard(what, hints)
				}
				stop()
			}
		}
	}
}

// heard waits for a hint.
func (f *fixture) heard(what string, hints <-chan struct{}) {
	f.Helper()
	select {
	case <-hints:
	case <-f.ctx.Done():
		f.Fatalf("%s: no hint within %v", what, patience)
	}
}

// allHeard returns when a handle has heard of a further run that is to stop, and so, from
// drivers that keep the order, of all that the first handle has rung about.
func (f *fixture) allHeard(b coord.Backend) {
	f.Helper()
	cancels, stop := b.Claimer().Cancels()
	defer stop()
	f.enqueueOne(f.one, coord.NewRun{Kind: "a mark"})
	mark := f.claimOne(f.one, "a mark")
	must(f, "Cancel", f.one.Claimer().Cancel(f.ctx, mark.Run.ID))
	f.heard("Cancel", cancels)
}

func (f *fixture) nextDue(when string, want time.Duration, kinds ...string) {
	f.Helper()
	wait, some, err := f.two.Claimer().NextDue(f.ctx, kinds...)
	must(f, "NextDue "+when, err)
	if !some || wait != want {
		f.Fatalf("NextDue %s is %v, %v; want %v", when, wait, some, want)
	}
}

func (f *fixture) nothingDue(when string, kinds ...string) {
	f.Helper()
	wait, some, err := f.two.Claimer().NextDue(f.ctx, kinds...)
	must(f, "NextDue "+when, err)
	if some {
		f.Fatalf("NextDue %s is %v; want nothing", when, wait)
	}
}
