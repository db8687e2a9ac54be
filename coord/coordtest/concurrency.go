package coordtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// keyed is a run that is bound by a key.
func keyed(kind, key string, limit int) coord.NewRun {
	return coord.NewRun{
		Kind: kind, Concurrency: coord.Concurrency{Key: key, Limit: limit},
		Retry: coord.Retry{MaxAttempts: 100, Backoff: time.Second, MaxBackoff: time.Second},
	}
}

// bounded asks for runs of some kinds, of which limits bind some.
func bounded(limit int, limits map[string]int, kinds ...string) coord.ClaimOptions {
	o := want("", limit)
	o.Kinds, o.Limits = kinds, limits
	return o
}

// claimExactly claims and checks which runs that took, in any order.
func (f *fixture) claimExactly(what string, b coord.Backend, o coord.ClaimOptions, want ...coord.RunID) []coord.Claim {
	f.Helper()
	claims := f.claim(b, o)
	got := make([]coord.RunID, 0, len(claims))
	for _, c := range claims {
		got = append(got, c.Run.ID)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.Fatalf("%s: Claim took the runs %v; want %v", what, got, want)
	}
	return claims
}

// claimCount claims and checks how many runs that took.
func (f *fixture) claimCount(what string, b coord.Backend, o coord.ClaimOptions, want int) []coord.Claim {
	f.Helper()
	claims := f.claim(b, o)
	if len(claims) != want {
		f.Fatalf("%s: Claim took %d runs; want %d", what, len(claims), want)
	}
	return claims
}

var concurrencyTests = []test{
	{"the limit of a key is 1 by default", func(f *fixture) {
		r := f.enqueueOne(f.one, keyed("k", "key", 0))
		equal(f, "Concurrency as Enqueue returned it", r.Concurrency, coord.Concurrency{Key: "key", Limit: 1})
		equal(f, "Concurrency as stored", f.run(r.ID).Concurrency, r.Concurrency)
		c := f.claimOne(f.two, "k")
		equal(f, "Concurrency as claimed", c.Run.Concurrency, r.Concurrency)
		held, err := f.two.Claimer().Extend(f.ctx, lease, c)
		must(f, "Extend", err)
		equal(f, "Concurrency as extended", held[0].Run.Concurrency, r.Concurrency)
		equal(f, "Concurrency of a run without one", f.enqueueOne(f.one, coord.NewRun{Kind: "k"}).Concurrency,
			coord.Concurrency{})
	}},
	{"a place is free again when its run has ended or was given back", placesComeBack},
	{"a key binds runs of all kinds, and no others", func(f *fixture) {
		r := f.enqueue(f.one, keyed("a", "x", 1), keyed("b", "x", 1), keyed("a", "y", 1), keyed("a", "", 0), keyed("b", "", 0))
		f.claimExactly("with nothing running", f.one, want("a", 10), r[0].ID, r[2].ID, r[3].ID)
		f.claimExactly("with a run of the key running, of another kind", f.two, want("b", 10), r[4].ID)
	}},
	{"runs of one key obey each its own limit", func(f *fixture) {
		r := f.enqueue(f.one, keyed("k", "x", 3), keyed("k", "x", 1), keyed("k", "x", 3))
		high := f.claimExactly("with nothing running", f.one, want("k", 10), r[0].ID, r[2].ID)
		f.claimExactly("with two running", f.two, want("k", 10))
		f.succeed(high[0])
		f.claimExactly("with one running", f.two, want("k", 10))
		f.succeed(high[1])
		f.claimExactly("with none running", f.two, want("k", 10), r[1].ID)
		later := f.enqueueOne(f.one, keyed("k", "x", 2))
		f.claimExactly("with one running that would bear no other", f.one, want("k", 10), later.ID)
	}},
	{"a lower limit waits until fewer are running", func(f *fixture) {
		t := f.put(coord.Task{
			Name: "n", Kind: "k", Overlap: coord.OverlapAllow, Concurrency: coord.Concurrency{Key: "x", Limit: 3},
		})
		f.trigger("n")
		f.trigger("n")
		f.trigger("n")
		running := f.claimCount("with nothing running", f.one, want("k", 10), 3)
		t.Concurrency.Limit = 1
		t = f.put(t)
		lowered := f.trigger("n")
		for _, c := range running {
			f.claimExactly("with runs of the higher limit running", f.two, want("k", 10))
			f.succeed(c)
		}
		f.claimExactly("when they have ended", f.two, want("k", 10), lowered.ID)
		t.Concurrency.Limit = 2
		f.put(t)
		raised := f.trigger("n")
		f.claimExactly("with one running and a limit of two", f.two, want("k", 10), raised.ID)
	}},
	{"runs with and without a key share one order", sharedOrder},
	{"vanished workers' runs are taken again by priority", func(f *fixture) {
		for _, key := range []string{"", "x"} {
			var runs []coord.NewRun
			for priority := 1; priority <= 3; priority++ {
				n := keyed("k", key, 0)
				n.Priority, n.Concurrency.Limit = priority, 9*len(key)
				runs = append(runs, n)
			}
			r := f.enqueue(f.one, runs...)
			// The lower the priority, the sooner the lease ends.
			for _, c := range f.claimCount("at first", f.one, want("k", 9), 3) {
				_, err := f.one.Claimer().Extend(f.ctx, lease-time.Duration(c.Run.Priority)*time.Second, c)
				must(f, "Extend", err)
			}
			f.store.Advance(2 * lease)
			between := f.enqueueOne(f.one, runs[1])
			for i, next := range []coord.RunID{r[0].ID, r[1].ID, between.ID, r[2].ID} {
				f.succeed(f.claimExactly(fmt.Sprintf("key %q, claim %d of one run", key, i+1), f.two, want("k", 1), next)...)
			}
		}
	}},
	{"a backlog of one key keeps nobody else waiting", func(f *fixture) {
		first := keyed("k", "full", 1)
		first.Priority = 1
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{first}, 1200)...)
		held := f.claimCount("of the backlog", f.one, want("k", 10), 1)
		last := func(r coord.NewRun) coord.NewRun {
			r.Priority, r.Delay = 4, time.Second
			return r
		}
		r := f.enqueue(f.one, last(keyed("k", "", 0)), last(keyed("k", "free", 1)), last(keyed("k", "free", 1)))
		f.store.Advance(time.Second)
		f.claimExactly("behind the backlog", f.two, want("k", 2), r[0].ID, r[1].ID)
		f.claimExactly("when all that is free is taken", f.two, want("k", 2))
		f.succeed(held...)
		f.claimCount("of the backlog", f.two, want("k", 10), 1)
	}},
	{"a backlog of keys keeps nobody waiting", func(f *fixture) {
		var runs []coord.NewRun
		for i := range 300 {
			runs = append(runs, keyed("k", fmt.Sprint(i), 1), keyed("k", fmt.Sprint(i), 1))
		}
		f.enqueue(f.one, runs...)
		f.claimCount("of 300 keys", f.one, want("k", 1000), 300)
		r := f.enqueueOne(f.one, keyed("k", "another", 1))
		f.claimExactly("behind 300 keys that are full", f.two, want("k", 5), r.ID)
	}},
	{"a vanished worker's run keeps its place", func(f *fixture) {
		gone := f.enqueueOne(f.one, keyed("a", "x", 1))
		f.claimOne(f.one, "a")
		urgent := keyed("b", "x", 1)
		urgent.Priority = 1
		waiting := f.enqueueOne(f.one, urgent)
		f.store.Advance(2 * lease)
		f.claimExactly("of a kind that the vanished run is not of", f.two, want("b", 10))
		c := f.claimExactly("of both kinds", f.two, bounded(10, nil, "a", "b"), gone.ID)
		equal(f, "Attempt of the run that was taken again", c[0].Run.Attempt, 2)
		f.claimExactly("with the run taken again", f.one, bounded(10, nil, "a", "b"))
		f.store.Advance(2 * lease)
		c = f.claimExactly("when its second worker vanished", f.two, bounded(10, nil, "a", "b"), gone.ID)
		f.succeed(c...)
		f.claimExactly("when it has ended", f.two, bounded(10, nil, "a", "b"), waiting.ID)
	}},
	{"a run that ends as lost gives its place back", func(f *fixture) {
		once, last, asked := keyed("once", "once", 2), keyed("last", "last", 2), keyed("asked", "asked", 2)
		once.AtMostOnce = true
		last.Retry.MaxAttempts = 1
		for _, n := range []coord.NewRun{once, last, asked} {
			gone := f.enqueue(f.one, n, n)
			f.claimCount(n.Kind+", at first", f.one, want(n.Kind, 10), 2)
			if n.Kind == asked.Kind {
				must(f, "Cancel", f.two.Claimer().Cancel(f.ctx, gone[0].ID))
				must(f, "Cancel", f.two.Claimer().Cancel(f.ctx, gone[1].ID))
			}
			f.enqueue(f.one, slices.Repeat([]coord.NewRun{keyed(n.Kind, n.Kind, 2)}, 3)...)
			f.claimCount(n.Kind+", while they are running", f.two, want(n.Kind, 10), 0)
			f.store.Advance(2 * lease)
			// The claim that ends them finds their places free, or the next one does.
			claimed := len(f.claim(f.two, want(n.Kind, 10)))
			claimed += len(f.claim(f.two, want(n.Kind, 10)))
			equal(f, n.Kind+": how many were claimed when they had ended", claimed, 2)
			for _, r := range gone {
				if n.Kind == asked.Kind {
					f.state(r.ID, coord.Cancelled)
				} else {
					f.lost(r.ID)
				}
			}
		}
	}},
	{"a cancelled run", func(f *fixture) {
		r := f.enqueue(f.one, keyed("k", "x", 1), keyed("k", "x", 1), keyed("k", "x", 1))
		c := f.claimExactly("at first", f.one, want("k", 10), r[0].ID)
		must(f, "Cancel of a queued run", f.two.Claimer().Cancel(f.ctx, r[1].ID))
		must(f, "Cancel of a running run", f.two.Claimer().Cancel(f.ctx, r[0].ID))
		f.claimExactly("while a run that is to stop is still running", f.two, want("k", 10))
		f.finish(f.one, coord.Result{Claim: c[0], Outcome: coord.CancelRun})
		f.claimExactly("when it has stopped", f.two, want("k", 10), r[2].ID)
	}},
	{"a vanished worker's run that nobody handles gives its place back when it is cancelled", func(f *fixture) {
		for how, cancel := range map[string]func(id coord.RunID) error{
			"Cancel": func(id coord.RunID) error { return f.two.Claimer().Cancel(f.ctx, id) },
			"Cancel in a transaction": func(id coord.RunID) error {
				return f.two.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Cancel(ctx, id) })
			},
			"DeleteTask": func(coord.RunID) error { return f.two.Claimer().DeleteTask(f.ctx, "n") },
		} {
			key := coord.Concurrency{Key: how, Limit: 1}
			f.put(coord.Task{Name: "n", Kind: "old", Overlap: coord.OverlapAllow, Concurrency: key})
			f.trigger("n")
			gone := f.claimOne(f.one, "old")
			waiting := f.enqueueOne(f.one, keyed("new", how, 1))
			f.store.Advance(2 * lease)
			f.claimExactly(how+": while the vanished run has the place", f.two, want("new", 10))
			must(f, how, cancel(gone.Run.ID))
			f.succeed(f.claimExactly(how+": when it was cancelled", f.two, want("new", 10), waiting.ID)...)
			if how != "DeleteTask" {
				must(f, "DeleteTask", f.one.Claimer().DeleteTask(f.ctx, "n"))
			}
		}
	}},
	{"runs of tasks are bound by their task's key", func(f *fixture) {
		limit := coord.Concurrency{Key: "x", Limit: 1}
		for i := range 2 {
			t := minutely(coord.OverlapAllow, coord.MisfireLatest)
			t.Name, t.Concurrency = fmt.Sprint("n", i), limit
			equal(f, "Concurrency of the task", f.put(t).Concurrency, limit)
		}
		f.store.Advance(time.Minute)
		first := f.claimCount("of two occurrences", f.two, want("k", 10), 1)
		equal(f, "Concurrency of an occurrence", first[0].Run.Concurrency, limit)
		third := f.trigger("n0")
		equal(f, "Concurrency of a triggered run", third.Concurrency, limit)
		f.claimCount("with one occurrence running", f.one, want("k", 10), 0)
		f.succeed(first...)
		second := f.claimCount("with one that has ended", f.one, want("k", 10), 1)
		if second[0].Run.TaskID == first[0].Run.TaskID {
			f.Errorf("the second run is the one that was triggered, and not the occurrence of the other task")
		}
		f.succeed(second...)
		f.claimExactly("with both occurrences ended", f.one, want("k", 10), third.ID)
	}},
	{"places and transactions", func(f *fixture) {
		r := f.enqueue(f.one, keyed("k", "x", 1), keyed("k", "x", 1))
		c := f.claimExactly("at first", f.one, want("k", 10), r[0].ID)
		end := func(ctx context.Context, tx coord.Tx) error {
			if _, err := tx.Enqueue(ctx, keyed("k", "y", 1)); err != nil {
				return err
			}
			return tx.Finish(ctx, coord.Result{Claim: c[0], Outcome: coord.Succeed})
		}
		f.rollsBack(end)
		f.claimExactly("after a rollback", f.two, want("k", 10))
		f.inTx(f.one, end)
		f.claimCount("after a commit", f.two, want("k", 10), 2)
	}},
	{"many claimers keep to the limits", manyClaimers},
	{"the last place goes to one of many claimers", func(f *fixture) {
		// Each asks for a kind of its own, so that no two of them want the same run.
		for round := range 20 {
			var runs []coord.NewRun
			all := bounded(10, nil)
			for i := range 8 {
				all.Kinds = append(all.Kinds, fmt.Sprint("k", i))
				runs = append(runs, keyed(all.Kinds[i], fmt.Sprint(round), 2))
			}
			f.enqueue(f.one, runs...)
			var mu sync.Mutex
			claimed := 0
			f.together(8, func(i int, b coord.Backend) {
				claims, err := b.Claimer().Claim(f.ctx, want(all.Kinds[i], 3))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					f.Errorf("Claim: %v", err)
				}
				claimed += len(claims)
			})
			claimed += len(f.claim(f.one, all))
			equal(f, "how many of a key with two places were claimed", claimed, 2)
			for _, r := range f.runs(coord.RunFilter{Limit: 8}) { // none is left for the next round
				if r.State == coord.Queued {
					must(f, "Cancel", f.one.Claimer().Cancel(f.ctx, r.ID))
				}
			}
		}
	}},
	{"the limit of a kind", kindLimits},
	{"a keyed run of a limited kind obeys both", func(f *fixture) {
		r := f.enqueue(f.one, keyed("k", "x", 1), keyed("k", "x", 1), keyed("k", "", 0), keyed("k", "", 0), keyed("other", "x", 1))
		o := bounded(10, map[string]int{"k": 2}, "k", "other")
		c := f.claimExactly("with nothing running", f.one, o, r[0].ID, r[2].ID)
		f.claimExactly("with the kind and the key full", f.two, o)
		f.succeed(c[slices.IndexFunc(c, func(c coord.Claim) bool { return c.Run.ID == r[2].ID })])
		f.claimExactly("with the key full", f.two, o, r[3].ID)
		f.succeed(c[slices.IndexFunc(c, func(c coord.Claim) bool { return c.Run.ID == r[0].ID })])
		f.claimExactly("with both free", f.two, o, r[1].ID)
	}},
	{"a backlog of a limited kind keeps no other waiting", func(f *fixture) {
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "k", Priority: 1}}, 1200)...)
		o := bounded(10, map[string]int{"k": 1}, "k", "other")
		held := f.claimCount("of the backlog", f.one, o, 1)
		r := f.enqueue(f.one, coord.NewRun{Kind: "other", Priority: 4}, keyed("other", "x", 1))
		f.claimExactly("behind the backlog", f.two, o, r[0].ID, r[1].ID)
		f.succeed(held...)
		f.claimCount("of the backlog", f.two, o, 1)
		f.claimExactly("without the limit's kind", f.two, bounded(10, o.Limits, "other"))
	}},
	{"a backlog without a handler keeps no limited kind waiting", func(f *fixture) {
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "new", Priority: 1}}, 1200)...)
		f.store.Advance(time.Second)
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		f.claimExactly("behind the backlog", f.two, bounded(10, map[string]int{"k": 1}, "k"), r.ID)
	}},
}

// trigger queues a run of a task.
func (f *fixture) trigger(name string) coord.Run {
	f.Helper()
	r, err := f.two.Claimer().Trigger(f.ctx, name, coord.TriggerOptions{})
	must(f, "Trigger", err)
	return r
}

func placesComeBack(f *fixture) {
	names := []string{"succeed", "fail", "give up", "snooze", "release", "cancel"}
	for i, name := range names {
		const places = 3
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{keyed(name, name, places)}, 4*places)...)
		held := f.claimCount(name+", at first", f.one, want(name, 100), places)
		f.claimCount(name+", with all places taken", f.two, want(name, 100), 0)
		_, err := f.one.Claimer().Extend(f.ctx, lease, held...)
		must(f, "Extend", err)
		f.claimCount(name+", with leases extended", f.two, want(name, 100), 0)

		f.finish(f.two, endings(held[0])[i])
		fenced(f, "Finish, again", f.one.Claimer().Finish(f.ctx, endings(held[0])[i]), held[0])
		again := f.claimCount(name+", with one place free", f.two, want(name, 100), 1)
		f.claimCount(name+", with that place taken", f.one, want(name, 100), 0)

		f.store.Advance(2 * lease) // all workers vanish
		held = f.claimCount(name+", when the workers have vanished", f.one, want(name, 100), places)
		for _, c := range held {
			equal(f, "Rescues of a run that was taken again", c.Run.Rescues, 1)
		}
		fenced(f, "Finish of a lost lease", f.two.Claimer().Finish(f.ctx, endings(again[0])[i]), again[0])
		f.claimCount(name+", with all taken again", f.two, want(name, 100), 0)
		for len(held) > 0 {
			f.succeed(held...)
			f.store.Advance(2 * lease)
			held = f.claim(f.two, want(name, 100))
			if len(held) > places {
				f.Fatalf("%s: %d runs of a key with %d places are running", name, len(held), places)
			}
		}
	}
	for _, r := range f.runs(coord.RunFilter{Limit: 1000}) {
		if !r.State.Ended() && r.Kind != "snooze" {
			f.Errorf("run %d, of the key %q, is %s in the end", r.ID, r.Concurrency.Key, r.State)
		}
	}
}

func sharedOrder(f *fixture) {
	now := f.store.Now()
	at := func(r coord.NewRun, priority int, ago time.Duration) coord.NewRun {
		r.Priority, r.DueAt = priority, now.Add(-ago)
		return r
	}
	r := f.enqueue(f.one,
		at(keyed("k", "y", 9), 3, 9*time.Minute),   // 6th
		at(keyed("k", "", 0), 1, 1*time.Minute),    // 3rd
		at(keyed("k", "x", 9), 1, 3*time.Minute),   // 1st
		at(keyed("k", "", 0), 2, 8*time.Minute),    // 4th
		at(keyed("k", "y", 9), 1, 2*time.Minute),   // 2nd
		at(keyed("k", "x", 9), 2, 7*time.Minute),   // 5th
		at(keyed("k", "x", 9), 1, -1*time.Second),  // not due
		at(keyed("other", "x", 9), 1, 1*time.Hour)) // of another kind
	for i, next := range []int{2, 4, 1, 3, 5, 0} {
		f.claimExactly(fmt.Sprintf("claim %d of one run", i+1), f.two, want("k", 1), r[next].ID)
	}
	f.claimExactly("when all are claimed", f.two, want("k", 1))

	f.store.Advance(lease + time.Second) // all are to be taken again, since a second ago
	soon := f.enqueue(f.one, keyed("k", "", 0), keyed("k", "x", 9))
	first := f.claimCount("of priority 1", f.two, want("k", 4), 4)
	for _, c := range first {
		equal(f, "Priority of what is claimed first", c.Run.Priority, 1)
	}
	f.claimExactly("of priority 2, the vanished ones first", f.two, want("k", 2), r[3].ID, r[5].ID)
	f.claimExactly("of priority 2", f.two, want("k", 2), soon[0].ID, soon[1].ID)
	f.claimExactly("of priority 3", f.two, want("k", 2), r[0].ID)
}

func kindLimits(f *fixture) {
	two := bounded(10, map[string]int{"k": 2}, "k", "other")
	f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "k"}}, 9)...)
	f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "other"}}, 4)...)
	kinds := func(claims []coord.Claim) (n map[string]int) {
		n = map[string]int{}
		for _, c := range claims {
			n[c.Run.Kind]++
		}
		return n
	}
	held := f.claim(f.one, two)
	equal(f, "how many of each kind were claimed", kinds(held), map[string]int{"k": 2, "other": 4})
	f.claimCount("with the kind full", f.two, two, 0)
	held = slices.DeleteFunc(held, func(c coord.Claim) bool {
		if c.Run.Kind == "other" {
			f.succeed(c)
		}
		return c.Run.Kind == "other"
	})
	f.finish(f.two, coord.Result{Claim: held[0], Outcome: coord.Release})
	held = append(held[1:], f.claimCount("with one given back", f.two, two, 1)...)
	f.store.Advance(2 * lease)
	ids := []coord.RunID{held[0].Run.ID, held[1].Run.ID}
	held = f.claimExactly("when both workers have vanished", f.two, two, ids...)
	f.claimCount("with both taken again", f.one, two, 0)

	three := bounded(10, map[string]int{"k": 3}, "k")
	held = append(held, f.claimCount("by a higher limit", f.one, three, 1)...)
	f.succeed(held[0])
	f.claimCount("by the lower limit again", f.two, two, 0)
	f.succeed(held[1])
	held = append(held[2:], f.claimCount("by the lower limit, with one running", f.two, two, 1)...)
	f.claimCount("by a worker that names no limit", f.one, want("k", 10), 5)
	f.succeed(held...)
}

// manyClaimers lets claimers at once work off runs of several keys and of a
// limited kind. A run counts as running from after its claim until before its end,
// which is less than the store knows of.
func manyClaimers(f *fixture) {
	limits := map[string]int{"one": 1, "two": 2, "five": 5}
	var runs []coord.NewRun
	for range 24 {
		for key, limit := range limits {
			runs = append(runs, keyed([]string{"k", "limited"}[len(runs)%2], key, limit))
		}
		runs = append(runs, coord.NewRun{Kind: "limited"}, coord.NewRun{Kind: "k"})
	}
	f.enqueue(f.one, runs...)
	const limited = "limited kind"
	limits[limited] = 4
	var mu sync.Mutex
	running, most, left := map[string]int{}, map[string]int{}, len(runs)
	count := func(c coord.Claim, n int) {
		keys := []string{c.Run.Concurrency.Key}
		if c.Run.Kind == "limited" {
			keys = append(keys, limited)
		}
		for _, key := range keys {
			running[key] += n
			most[key] = max(most[key], running[key])
		}
	}
	f.together(8, func(i int, b coord.Backend) {
		random := rand.New(rand.NewPCG(51, uint64(i)))
		for {
			mu.Lock()
			done := left == 0
			mu.Unlock()
			if done || f.ctx.Err() != nil {
				return
			}
			kinds := [][]string{{"k"}, {"limited"}, {"k", "limited"}}[random.IntN(3)]
			claims, err := b.Claimer().Claim(f.ctx, bounded(1+random.IntN(6), map[string]int{"limited": 4}, kinds...))
			if err != nil {
				f.Errorf("Claim: %v", err)
				return
			}
			var results []coord.Result
			mu.Lock()
			for _, c := range claims {
				count(c, 1)
			}
			mu.Unlock()
			ended := 0
			for _, c := range claims {
				result := coord.Result{Claim: c, Outcome: coord.Succeed}
				if random.IntN(4) == 0 {
					result.Outcome = coord.Release
				} else {
					ended++
				}
				results = append(results, result)
			}
			mu.Lock()
			for _, c := range claims {
				count(c, -1)
			}
			mu.Unlock()
			if err := b.Claimer().Finish(f.ctx, results...); err != nil {
				f.Errorf("Finish: %v", err)
				return
			}
			mu.Lock()
			left -= ended
			mu.Unlock()
		}
	})
	must(f, "the test's time", f.ctx.Err())
	for key, limit := range limits {
		if most[key] > limit {
			f.Errorf("%d runs of %q were running at a time; the limit is %d", most[key], key, limit)
		}
	}
	equal(f, "how many runs have succeeded", len(f.runs(coord.RunFilter{State: coord.Succeeded, Limit: 1000})), len(runs))
	for key, limit := range limits {
		if key == limited {
			continue
		}
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{keyed(key, key, limit)}, limit+1)...)
		f.claimCount("of a key whose places are all free", f.two, want(key, 100), limit)
	}
}
