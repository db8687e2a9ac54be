package coordtest

import (
	"context"
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

func (f *fixture) nextDue(when string, want time.Duration) {
	f.Helper()
	wait, some, err := f.two.Claimer().NextDue(f.ctx)
	must(f, "NextDue "+when, err)
	if !some || wait != want {
		f.Fatalf("NextDue %s is %v, %v; want %v", when, wait, some, want)
	}
}

func (f *fixture) nothingDue(when string) {
	f.Helper()
	wait, some, err := f.two.Claimer().NextDue(f.ctx)
	must(f, "NextDue "+when, err)
	if some {
		f.Fatalf("NextDue %s is %v; want nothing", when, wait)
	}
}
