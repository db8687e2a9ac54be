package coordtest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

const lease = 30 * time.Second

// want asks for runs of one kind.
func want(kind string, limit int) coord.ClaimOptions {
	return coord.ClaimOptions{Worker: "worker", Kinds: []string{kind}, Limit: limit, Lease: lease}
}

func (f *fixture) enqueue(b coord.Backend, runs ...coord.NewRun) []coord.Run {
	f.Helper()
	queued, err := b.Claimer().Enqueue(f.ctx, runs...)
	must(f, "Enqueue", err)
	if len(queued) != len(runs) {
		f.Fatalf("Enqueue of %d runs returned %d", len(runs), len(queued))
	}
	return queued
}

func (f *fixture) enqueueOne(b coord.Backend, run coord.NewRun) coord.Run {
	f.Helper()
	return f.enqueue(b, run)[0]
}

func (f *fixture) claim(b coord.Backend, o coord.ClaimOptions) []coord.Claim {
	f.Helper()
	claims, err := b.Claimer().Claim(f.ctx, o)
	must(f, "Claim", err)
	if len(claims) > o.Limit {
		f.Fatalf("Claim with Limit %d returned %d claims", o.Limit, len(claims))
	}
	return claims
}

// claimOne claims the only due run of a kind.
func (f *fixture) claimOne(b coord.Backend, kind string) coord.Claim {
	f.Helper()
	claims := f.claim(b, want(kind, 10))
	if len(claims) != 1 {
		f.Fatalf("Claim of kind %q returned %d claims; want the one run that is due", kind, len(claims))
	}
	return claims[0]
}

func (f *fixture) claimNone(b coord.Backend, kind, why string) {
	f.Helper()
	if claims := f.claim(b, want(kind, 10)); len(claims) > 0 {
		f.Fatalf("Claim of kind %q returned run %d (%s, attempt %d); want nothing: %s",
			kind, claims[0].Run.ID, claims[0].Run.State, claims[0].Run.Attempt, why)
	}
}

func (f *fixture) finish(b coord.Backend, results ...coord.Result) {
	f.Helper()
	must(f, "Finish", b.Claimer().Finish(f.ctx, results...))
}

func (f *fixture) run(id coord.RunID) coord.Run {
	f.Helper()
	run, err := f.two.Claimer().Run(f.ctx, id)
	must(f, fmt.Sprintf("Run(%d)", id), err)
	return run
}

// runs lists what a filter selects, the newest first.
func (f *fixture) runs(filter coord.RunFilter) []coord.Run {
	f.Helper()
	return collect(f, "Runs", f.two.Claimer().Runs(f.ctx, filter))
}

func (f *fixture) state(id coord.RunID, want coord.State) coord.Run {
	f.Helper()
	run := f.run(id)
	if run.State != want {
		f.Fatalf("run %d is %s (attempt %d, error %q); want %s", id, run.State, run.Attempt, run.Error, want)
	}
	return run
}

// sameRun compares all that is stored of a run.
func sameRun(r reporter, what string, got, want coord.Run) {
	r.Helper()
	id := fmt.Sprintf("%s: run %d: ", what, want.ID)
	equal(r, id+"ID", got.ID, want.ID)
	equal(r, id+"TaskID", got.TaskID, want.TaskID)
	equal(r, id+"Kind", got.Kind, want.Kind)
	equal(r, id+"Payload", string(got.Payload), string(want.Payload))
	equal(r, id+"State", got.State, want.State)
	equal(r, id+"ScheduledFor", got.ScheduledFor, want.ScheduledFor)
	equal(r, id+"Attempt", got.Attempt, want.Attempt)
	equal(r, id+"Rescues", got.Rescues, want.Rescues)
	equal(r, id+"Retry", got.Retry, want.Retry)
	equal(r, id+"Timeout", got.Timeout, want.Timeout)
	equal(r, id+"Priority", got.Priority, want.Priority)
	equal(r, id+"Concurrency", got.Concurrency, want.Concurrency)
	equal(r, id+"AtMostOnce", got.AtMostOnce, want.AtMostOnce)
	equal(r, id+"CancelRequested", got.CancelRequested, want.CancelRequested)
	equal(r, id+"Progress", got.Progress, want.Progress)
	equal(r, id+"LogLines", got.LogLines, want.LogLines)
	equal(r, id+"Worker", got.Worker, want.Worker)
	equal(r, id+"LeaseUntil", got.LeaseUntil, want.LeaseUntil)
	equal(r, id+"Error", got.Error, want.Error)
	equal(r, id+"CreatedAt", got.CreatedAt, want.CreatedAt)
	equal(r, id+"FinishedAt", got.FinishedAt, want.FinishedAt)
}

// fenced checks that an error names exactly the claims that are no longer held.
func fenced(r reporter, what string, err error, want ...coord.Claim) {
	r.Helper()
	is(r, what, err, coord.ErrFenced)
	e, ok := errors.AsType[*coord.FencedError](err)
	if !ok {
		r.Fatalf("%s: the error is %v; want a *coord.FencedError", what, err)
	}
	ids := func(claims []coord.Claim) (ids []coord.RunID) {
		for _, c := range claims {
			ids = append(ids, c.Run.ID)
		}
		slices.Sort(ids)
		return ids
	}
	equal(r, what+": the runs that the FencedError names", ids(e.Claims), ids(want))
}

// endings are all the ways to end a claim.
func endings(c coord.Claim) []coord.Result {
	return []coord.Result{
		{Claim: c, Outcome: coord.Succeed},
		{Claim: c, Outcome: coord.Fail, Error: "stale"},
		{Claim: c, Outcome: coord.GiveUp, Error: "stale"},
		{Claim: c, Outcome: coord.Snooze, Delay: time.Hour},
		{Claim: c, Outcome: coord.Release},
		{Claim: c, Outcome: coord.CancelRun},
	}
}

var claimerTests = []test{
	{"runs that end as lost take no place of others", func(f *fixture) {
		for range 5 {
			f.enqueueOne(f.one, coord.NewRun{Kind: "k", AtMostOnce: true})
		}
		equal(f, "how many were claimed at first", len(f.claim(f.one, want("k", 5))), 5)
		f.store.Advance(2 * lease)
		f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "k"}}, 3)...)
		equal(f, "how many were claimed behind the lost ones", len(f.claim(f.two, want("k", 2))), 2)
		equal(f, "how many were left", len(f.claim(f.one, want("k", 2))), 1)
	}},
	{"a run from queued to succeeded", lifeOfARun},
	{"defaults are filled in", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		equal(f, "Priority", r.Priority, 2)
		equal(f, "Retry", r.Retry, coord.Retry{MaxAttempts: 3, Backoff: time.Second, MaxBackoff: time.Hour})
		r = f.enqueueOne(f.one, coord.NewRun{Kind: "k", AtMostOnce: true})
		equal(f, "MaxAttempts of an at-most-once run", r.Retry.MaxAttempts, 1)
	}},
	{"nothing due is an empty result", func(f *fixture) {
		f.claimNone(f.one, "k", "nothing was queued")
	}},
	{"runs come back in the order given, with rising ids", func(f *fixture) {
		var runs []coord.NewRun
		for i := range 2500 {
			runs = append(runs, coord.NewRun{Kind: "k", Payload: fmt.Append(nil, i)})
		}
		queued := f.enqueue(f.one, runs...)
		for i, r := range queued {
			if string(r.Payload) != fmt.Sprint(i) || i > 0 && r.ID <= queued[i-1].ID {
				f.Fatalf("run %d of the call came back with payload %q and id %d", i, r.Payload, r.ID)
			}
		}
		later := f.enqueueOne(f.two, coord.NewRun{Kind: "k"})
		if last := queued[len(queued)-1].ID; later.ID <= last {
			f.Errorf("a later run has id %d; want one above %d", later.ID, last)
		}
	}},
	{"payloads are kept as they are", func(f *fixture) {
		for _, payload := range [][]byte{nil, {}, {0}, []byte("\x00\xff\xfe"), []byte(`{"a":"é😀"}`), bytes.Repeat([]byte{0xAB}, coord.MaxPayload)} {
			sent := bytes.Clone(payload)
			r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Payload: sent})
			clear(sent) // the caller may use its slice again
			c := f.claimOne(f.two, "k")
			if !bytes.Equal(c.Run.Payload, payload) {
				f.Errorf("a payload of %d bytes came back as %d bytes: %s", len(payload), len(c.Run.Payload),
					show(string(c.Run.Payload)))
			}
			clear(c.Run.Payload) // and so may who claimed it
			if again := f.run(r.ID); !bytes.Equal(again.Payload, payload) {
				f.Errorf("a payload of %d bytes was changed in the store", len(payload))
			}
			f.finish(f.two, coord.Result{Claim: c, Outcome: coord.Succeed})
		}
	}},
	{"a delayed run waits", func(f *fixture) {
		now := f.store.Now()
		r := f.enqueue(f.one,
			coord.NewRun{Kind: "k", Delay: time.Minute, DueAt: now.Add(time.Hour)},
			coord.NewRun{Kind: "k", DueAt: now.Add(2 * time.Minute)},
			coord.NewRun{Kind: "k", DueAt: now.Add(-time.Hour)})
		equal(f, "DueAt of a run with Delay and DueAt", r[0].DueAt, now.Add(time.Minute))
		equal(f, "DueAt of a run with DueAt", r[1].DueAt, now.Add(2*time.Minute))
		claimed := func(what string, id coord.RunID) {
			c := f.claimOne(f.two, "k")
			equal(f, what, c.Run.ID, id)
			f.finish(f.two, coord.Result{Claim: c, Outcome: coord.Succeed})
		}
		claimed("the run that is due before now", r[2].ID)
		f.store.Advance(time.Minute - time.Microsecond)
		f.claimNone(f.two, "k", "the next run is due in a microsecond")
		f.store.Advance(time.Microsecond)
		claimed("the run that is due after its Delay", r[0].ID)
		f.store.Advance(time.Minute)
		claimed("the run that is due at its DueAt", r[1].ID)
	}},
	{"priority goes before due time", func(f *fixture) {
		now := f.store.Now()
		r := f.enqueue(f.one,
			coord.NewRun{Kind: "k", Priority: 4, DueAt: now.Add(-4 * time.Hour)},
			coord.NewRun{Kind: "k", Priority: 2, DueAt: now.Add(-1 * time.Hour)},
			coord.NewRun{Kind: "k", Priority: 2, DueAt: now.Add(-2 * time.Hour)},
			coord.NewRun{Kind: "k", Priority: 1, DueAt: now},
			coord.NewRun{Kind: "other", Priority: 1, DueAt: now.Add(-9 * time.Hour)},
			coord.NewRun{Kind: "k", Priority: 1, DueAt: now.Add(time.Microsecond)})
		for i, id := range []coord.RunID{r[3].ID, r[2].ID, r[1].ID, r[0].ID} {
			claims := f.claim(f.two, want("k", 1))
			if len(claims) != 1 || claims[0].Run.ID != id {
				f.Fatalf("claim %d took %v; want run %d", i+1, claims, id)
			}
		}
	}},
	{"several kinds share one order", func(f *fixture) {
		now := f.store.Now()
		r := f.enqueue(f.one,
			coord.NewRun{Kind: "a", DueAt: now.Add(-3 * time.Minute)},
			coord.NewRun{Kind: "b", DueAt: now.Add(-2 * time.Minute)},
			coord.NewRun{Kind: "a", DueAt: now.Add(-1 * time.Minute)})
		o := want("a", 2)
		o.Kinds = []string{"b", "a", "b", "none"}
		got := map[coord.RunID]bool{}
		for _, c := range f.claim(f.two, o) {
			got[c.Run.ID] = true
		}
		equal(f, "the two runs claimed", got, map[coord.RunID]bool{r[0].ID: true, r[1].ID: true})
	}},
	{"runs without a handler are left alone", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "new", Retry: coord.Retry{MaxAttempts: 1}})
		f.claimNone(f.one, "old", "no run of that kind is queued")
		sameRun(f, "after a claim of another kind", f.run(r.ID), r)
		c := f.claimOne(f.two, "new")
		f.store.Advance(2 * lease)
		before := f.run(c.Run.ID)
		f.claimNone(f.one, "old", "the run whose lease ran out is of another kind")
		sameRun(f, "after a claim of another kind", f.run(r.ID), before)
	}},
	{"a lost lease is fenced", lostLease},
	{"a rescue touches only what is expired", rescueOnlyExpired},
	{"a rescue that meets an end leaves it alone", rescuesMeetEnds},
	{"rescuers at once rescue once", func(f *fixture) {
		var runs []coord.NewRun
		for range 20 {
			runs = append(runs, coord.NewRun{Kind: "k"})
		}
		f.enqueue(f.one, runs...)
		equal(f, "how many runs were claimed", len(f.claim(f.one, want("k", 100))), 20)
		f.store.Advance(2 * lease)
		rescued := f.claimAll(8, "k", 7)
		equal(f, "how many runs were rescued", len(rescued), 20)
		for id, times := range rescued {
			r := f.run(id)
			if times != 1 || r.Attempt != 2 || r.Rescues != 1 {
				f.Errorf("run %d was rescued %d times and is at attempt %d with %d rescues; want 1, 2 and 1", id, times,
					r.Attempt, r.Rescues)
			}
		}
	}},
	{"some of a batch are fenced", someFenced},
	{"a failure is retried after a pause", retries},
	{"an error's text is cut", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		text := "a" + strings.Repeat("é", coord.MaxErrorText) + "\x00"
		f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, "k"), Outcome: coord.GiveUp, Error: text})
		got := f.state(r.ID, coord.Failed).Error
		if len(got) < coord.MaxErrorText-8 || len(got) > coord.MaxErrorText+8 || !strings.HasPrefix(got, "aéé") {
			f.Errorf("an error of %d bytes is stored as %d bytes: %s", len(text), len(got), show(got))
		}
	}},
	{"a snooze does not spend the attempt", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 1}})
		for range 3 {
			c := f.claimOne(f.one, "k")
			equal(f, "Attempt", c.Run.Attempt, 1)
			f.finish(f.two, coord.Result{Claim: c, Outcome: coord.Snooze, Delay: time.Minute})
			snoozed := f.state(r.ID, coord.Queued)
			equal(f, "Attempt of the snoozed run", snoozed.Attempt, 0)
			equal(f, "DueAt of the snoozed run", snoozed.DueAt, f.store.Now().Add(time.Minute))
			equal(f, "LeaseUntil of the snoozed run", snoozed.LeaseUntil, time.Time{})
			f.store.Advance(time.Minute - time.Microsecond)
			f.claimNone(f.one, "k", "it is snoozed for another microsecond")
			f.store.Advance(time.Microsecond)
		}
	}},
	{"a released run is claimable at once", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 1}})
		var token int64
		for range 3 {
			c := f.claimOne(f.one, "k")
			equal(f, "Attempt", c.Run.Attempt, 1)
			if c.Token <= token {
				f.Errorf("the token is %d after %d; it must grow with every claim", c.Token, token)
			}
			token = c.Token
			f.finish(f.one, coord.Result{Claim: c, Outcome: coord.Release})
			fenced(f, "Finish after Release", f.one.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed}), c)
		}
		f.finish(f.two, coord.Result{Claim: f.claimOne(f.two, "k"), Outcome: coord.Succeed})
		f.state(r.ID, coord.Succeeded)
	}},
	{"Extend renews a lease", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		for range 3 {
			f.store.Advance(lease - time.Second)
			before := time.Now()
			held, err := f.two.Claimer().Extend(f.ctx, lease, c)
			must(f, "Extend", err)
			if len(held) != 1 || held[0].Run.ID != r.ID || held[0].Token != c.Token {
				f.Fatalf("Extend returned %+v; want the claim that was extended", held)
			}
			inTime(f, "Deadline after Extend", held[0].Deadline, before, lease)
			equal(f, "LeaseUntil after Extend", f.run(r.ID).LeaseUntil, f.store.Now().Add(lease))
			c = held[0]
		}
		f.claimNone(f.two, "k", "its lease was extended")
		must(f, "Cancel", f.two.Claimer().Cancel(f.ctx, r.ID))
		held, err := f.one.Claimer().Extend(f.ctx, lease, c)
		must(f, "Extend", err)
		equal(f, "CancelRequested as the worker hears of it", held[0].Run.CancelRequested, true)
		f.finish(f.one, coord.Result{Claim: held[0], Outcome: coord.CancelRun})
		f.state(r.ID, coord.Cancelled)
	}},
	{"a unique key queues one run", uniqueKeys},
	{"unique keys hold against callers at once", func(f *fixture) {
		var mu sync.Mutex
		queued, ids := 0, map[coord.RunID]bool{}
		f.together(16, func(_ int, b coord.Backend) {
			runs, err := b.Claimer().Enqueue(f.ctx, coord.NewRun{Kind: "k", UniqueKey: "a"}, coord.NewRun{Kind: "k", UniqueKey: "b"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				f.Errorf("Enqueue: %v", err)
				return
			}
			for _, r := range runs {
				ids[r.ID] = true
				if !r.Duplicate {
					queued++
				}
			}
		})
		equal(f, "how many runs were queued, by what the callers were told", queued, 2)
		equal(f, "how many ids the callers were told", len(ids), 2)
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 2)
	}},
	{"a due time is an instant, whatever its zone", func(f *fixture) {
		for _, hours := range []int{-12, 1, 14} {
			due := f.store.Now().Add(time.Second).In(time.FixedZone("away", hours*3600))
			r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", DueAt: due})
			equal(f, "DueAt", r.DueAt, due)
			equal(f, "DueAt's location", r.DueAt.Location(), time.UTC)
			f.claimNone(f.two, "k", "it is due in a second")
			f.store.Advance(time.Second)
			f.succeed(f.claimOne(f.two, "k"))
		}
	}},
	{"Cancel", cancels},
	{"Cancel ends a run whose worker vanished", cancelsVanished},
	{"an at-most-once run is lost with its worker", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", AtMostOnce: true, Retry: coord.Retry{MaxAttempts: 5}})
		c := f.claimOne(f.one, "k")
		f.store.Advance(2 * lease)
		f.claimNone(f.two, "k", "the run is at-most-once")
		f.lost(r.ID)
		fenced(f, "Finish of a lost run", f.one.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed}), c)
		f.lost(r.ID)
	}},
	{"a run without attempts left is lost with its worker", func(f *fixture) {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 2}})
		for attempt := range 2 {
			equal(f, "Attempt", f.claimOne(f.one, "k").Run.Attempt, attempt+1)
			f.store.Advance(2 * lease)
		}
		f.claimNone(f.two, "k", "both attempts are spent")
		f.lost(r.ID)
		f.store.Advance(24 * time.Hour)
		f.claimNone(f.two, "k", "it has ended")
	}},
	{"Run of an unknown id", func(f *fixture) {
		_, err := f.one.Claimer().Run(f.ctx, 1<<40)
		is(f, "Run of an unknown id", err, coord.ErrNotFound)
	}},
	{"Runs filters and pages", listRuns},
	{"Prune keeps what the retention covers", prunes},
	{"Prune reaches the runs of deleted tasks", prunesDeleted},
	{"ten claimers share a thousand runs", func(f *fixture) {
		var runs []coord.NewRun
		for range 1000 {
			runs = append(runs, coord.NewRun{Kind: "k"})
		}
		f.enqueue(f.one, runs...)
		claimed := f.claimAll(10, "k", 23)
		equal(f, "how many of the runs were claimed", len(claimed), 1000)
		for id, times := range claimed {
			if times != 1 {
				f.Errorf("run %d was claimed %d times; want once", id, times)
			}
		}
	}},
	{"hints tell of new runs", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Hints, "Hints") {
			return
		}
		for _, b := range f.handles() {
			hints, stop := b.Claimer().Hints()
			for range 2 { // what opening has sent may be in the way
				f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
				select {
				case <-hints:
				case <-f.ctx.Done():
					f.Fatalf("no hint within %v of a run being queued", patience)
				}
			}
			stop()
			f.enqueueOne(f.one, coord.NewRun{Kind: "k"}) // a channel that was given up is in nobody's way
			stop()
		}
	}},
}

// inTime checks a deadline on the monotonic clock of a lease that was asked for
// between before and now.
func inTime(f *fixture, what string, deadline, before time.Time, lease time.Duration) {
	f.Helper()
	if deadline.Before(before.Add(lease)) || deadline.After(time.Now().Add(lease)) {
		f.Errorf("%s is %v from now; want the lease of %v, counted from before the request", what, time.Until(deadline), lease)
	}
}

// lost checks that a run ended because its worker vanished.
func (f *fixture) lost(id coord.RunID) {
	f.Helper()
	r := f.state(id, coord.Failed)
	equal(f, "Error of a lost run", r.Error, coord.LostError)
	if r.FinishedAt.IsZero() || !r.LeaseUntil.IsZero() {
		f.Errorf("a lost run has FinishedAt %v and LeaseUntil %v; want the first set and the second not", r.FinishedAt,
			r.LeaseUntil)
	}
}

// claimAll lets n claimers at once claim until nothing is left, and returns how
// often each run was claimed.
func (f *fixture) claimAll(n int, kind string, limit int) map[coord.RunID]int {
	var mu sync.Mutex
	claimed := map[coord.RunID]int{}
	f.together(n, func(i int, b coord.Backend) {
		o := want(kind, limit)
		o.Worker = fmt.Sprintf("worker-%d", i)
		// A claim may come back empty while another one holds the rows.
		for empty := 0; empty < 3; {
			claims, err := b.Claimer().Claim(f.ctx, o)
			if err != nil {
				f.Errorf("Claim: %v", err)
				return
			}
			if len(claims) == 0 {
				empty++
			}
			mu.Lock()
			for _, c := range claims {
				claimed[c.Run.ID]++
			}
			mu.Unlock()
		}
	})
	for _, c := range f.claim(f.one, want(kind, 1000)) {
		claimed[c.Run.ID]++
	}
	return claimed
}

func lifeOfARun(f *fixture) {
	now := f.store.Now()
	asked := coord.NewRun{
		Kind: "mail", Payload: []byte("hello"), UniqueKey: "one", Priority: 3, Timeout: 90 * time.Second,
		Concurrency: coord.Concurrency{Key: "mail", Limit: 2},
		Retry:       coord.Retry{MaxAttempts: 7, Backoff: 1500 * time.Millisecond, MaxBackoff: time.Minute},
	}
	queued := f.enqueueOne(f.one, asked)
	if queued.ID <= 0 {
		f.Errorf("the id of a run is %d; want a positive one", queued.ID)
	}
	expect := coord.Run{
		ID: queued.ID, Kind: "mail", Payload: []byte("hello"), UniqueKey: "one", State: coord.Queued, Priority: 3,
		Timeout: asked.Timeout, Retry: asked.Retry, Concurrency: asked.Concurrency, CreatedAt: now,
	}
	sameRun(f, "as Enqueue returned it", queued, expect)
	equal(f, "UniqueKey", queued.UniqueKey, "one")
	equal(f, "DueAt", queued.DueAt, now)
	equal(f, "Duplicate", queued.Duplicate, false)
	sameRun(f, "as stored", f.run(queued.ID), expect)

	f.store.Advance(time.Second)
	before := time.Now()
	claims := f.claim(f.two, coord.ClaimOptions{Worker: "w", Kinds: []string{"mail"}, Limit: 5, Lease: 20 * time.Second})
	if len(claims) != 1 {
		f.Fatalf("Claim returned %d claims; want 1", len(claims))
	}
	c := claims[0]
	expect.State, expect.Attempt, expect.Worker = coord.Running, 1, "w"
	expect.LeaseUntil = now.Add(21 * time.Second)
	sameRun(f, "as claimed", c.Run, expect)
	equal(f, "StartedAt", c.Run.StartedAt, now.Add(time.Second))
	inTime(f, "Deadline", c.Deadline, before, 20*time.Second)
	if c.Token <= 0 {
		f.Errorf("the token is %d; want a positive one", c.Token)
	}
	sameRun(f, "as stored while running", f.run(queued.ID), expect)
	f.claimNone(f.one, "mail", "its lease is held")

	f.store.Advance(time.Second)
	f.finish(f.two, coord.Result{Claim: c, Outcome: coord.Succeed})
	expect.State, expect.LeaseUntil, expect.FinishedAt = coord.Succeeded, time.Time{}, now.Add(2*time.Second)
	sameRun(f, "as stored when it has ended", f.run(queued.ID), expect)
	fenced(f, "Finish, again", f.two.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed}), c)
	_, err := f.two.Claimer().Extend(f.ctx, lease, c)
	fenced(f, "Extend of a run that has ended", err, c)
	f.store.Advance(time.Hour)
	f.claimNone(f.one, "mail", "it has ended")
}

func lostLease(f *fixture) {
	r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 5}})
	a := f.claimOne(f.one, "k")
	f.store.Advance(lease - time.Microsecond)
	f.claimNone(f.two, "k", "its lease lasts another microsecond")
	f.store.Advance(2 * time.Microsecond)
	b := f.claimOne(f.two, "k")
	equal(f, "Attempt after the rescue", b.Run.Attempt, 2)
	equal(f, "Rescues after the rescue", b.Run.Rescues, 1)
	if b.Token <= a.Token {
		f.Errorf("the token after the rescue is %d; want one above %d", b.Token, a.Token)
	}
	asB := f.run(r.ID)
	for _, result := range endings(a) {
		fenced(f, fmt.Sprintf("Finish of a lost lease with outcome %d", result.Outcome), f.one.Claimer().Finish(f.ctx, result), a)
		sameRun(f, "after a fenced Finish", f.run(r.ID), asB)
	}
	held, err := f.one.Claimer().Extend(f.ctx, time.Hour, a)
	fenced(f, "Extend of a lost lease", err, a)
	equal(f, "how many claims were extended", len(held), 0)
	sameRun(f, "after a fenced Extend", f.run(r.ID), asB)

	forged := b
	forged.Token = b.Token + 1
	fenced(f, "Finish with a token that was never given",
		f.one.Claimer().Finish(f.ctx, coord.Result{Claim: forged, Outcome: coord.Succeed}), forged)
	unknown := coord.Claim{Run: coord.Run{ID: 1 << 40}, Token: 1}
	fenced(f, "Finish of an unknown run", f.one.Claimer().Finish(f.ctx,
		coord.Result{Claim: unknown, Outcome: coord.Succeed}), unknown)
	sameRun(f, "after forged claims", f.run(r.ID), asB)

	f.finish(f.two, coord.Result{Claim: b, Outcome: coord.Succeed})
	f.state(r.ID, coord.Succeeded)
}

func rescueOnlyExpired(f *fixture) {
	var runs []coord.NewRun
	for range 5 {
		runs = append(runs, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}})
	}
	queued := f.enqueue(f.one, runs...)
	byID := map[coord.RunID]coord.Claim{}
	for _, c := range f.claim(f.one, want("k", 10)) {
		byID[c.Run.ID] = c
	}
	finished, released, extended := byID[queued[0].ID], byID[queued[1].ID], byID[queued[2].ID]
	f.store.Advance(lease / 2)
	_, err := f.one.Claimer().Extend(f.ctx, lease, extended)
	must(f, "Extend", err)
	f.finish(f.one,
		coord.Result{Claim: finished, Outcome: coord.Succeed},
		coord.Result{Claim: released, Outcome: coord.Release})
	f.store.Advance(lease/2 + time.Second)
	attempts := map[coord.RunID]int{}
	for _, c := range f.claim(f.two, want("k", 10)) {
		attempts[c.Run.ID] = c.Run.Attempt
	}
	equal(f, "the runs claimed, with their attempts (released: 1, rescued: 2)", attempts,
		map[coord.RunID]int{queued[1].ID: 1, queued[3].ID: 2, queued[4].ID: 2})
	f.state(finished.Run.ID, coord.Succeeded)
	equal(f, "Attempt of the run whose lease was extended", f.state(extended.Run.ID, coord.Running).Attempt, 1)
}

// rescuesMeetEnds lets the holders of leases that ran out end them while rescuers
// are at work: each run goes one of both ways, whole.
func rescuesMeetEnds(f *fixture) {
	const runs = 48
	f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}}}, runs)...)
	stale := f.claimCount("at first", f.one, want("k", runs), runs)
	f.store.Advance(2 * lease)
	var mu sync.Mutex
	rescued, ended := map[coord.RunID][]coord.Claim{}, map[coord.RunID]string{}
	f.together(8, func(i int, b coord.Backend) {
		c := b.Claimer()
		if i < 4 {
			for range 5 {
				claims, err := c.Claim(f.ctx, want("k", 3))
				mu.Lock()
				if err != nil {
					f.Errorf("Claim: %v", err)
				}
				for _, c := range claims {
					rescued[c.Run.ID] = append(rescued[c.Run.ID], c)
				}
				mu.Unlock()
			}
			return
		}
		for n, claim := range stale {
			if n%4 != i-4 {
				continue
			}
			var err error
			how := []string{"succeed", "release", "extend"}[n/4%3]
			switch how {
			case "succeed":
				err = c.Finish(f.ctx, coord.Result{Claim: claim, Outcome: coord.Succeed})
			case "release":
				err = c.Finish(f.ctx, coord.Result{Claim: claim, Outcome: coord.Release})
			case "extend":
				_, err = c.Extend(f.ctx, lease, claim)
			}
			mu.Lock()
			switch {
			case err == nil:
				ended[claim.Run.ID] = how
			case !errors.Is(err, coord.ErrFenced):
				f.Errorf("%s: %v", how, err)
			}
			mu.Unlock()
		}
	})
	for _, c := range f.claim(f.two, want("k", runs)) {
		rescued[c.Run.ID] = append(rescued[c.Run.ID], c)
	}
	for _, claim := range stale {
		r, taken := f.run(claim.Run.ID), rescued[claim.Run.ID]
		what := fmt.Sprintf("run %d, %s: the attempts that were claimed, with the rescues before", r.ID,
			cmp.Or(ended[r.ID], "fenced"))
		var attempts [][2]int
		for _, c := range taken {
			attempts = append(attempts, [2]int{c.Run.Attempt, c.Run.Rescues})
		}
		state, want := coord.Running, [][2]int{{2, 1}}
		switch ended[r.ID] {
		case "succeed":
			state, want = coord.Succeeded, nil
		case "release":
			want = [][2]int{{1, 0}}
		case "extend":
			want = nil
		}
		equal(f, what, attempts, want)
		equal(f, fmt.Sprintf("State of run %d", r.ID), r.State, state)
	}
}

func someFenced(f *fixture) {
	f.enqueue(f.one, coord.NewRun{Kind: "a"}, coord.NewRun{Kind: "b"}, coord.NewRun{Kind: "b"})
	stale := f.claimOne(f.one, "a")
	f.store.Advance(2 * lease)
	f.claimOne(f.two, "a")
	asTwo := f.run(stale.Run.ID)
	good := f.claim(f.one, want("b", 10))
	if len(good) != 2 {
		f.Fatalf("Claim returned %d claims; want 2", len(good))
	}

	held, err := f.one.Claimer().Extend(f.ctx, 2*lease, good[0], stale, good[1])
	fenced(f, "Extend of two claims that are held and one that is not", err, stale)
	equal(f, "how many claims were extended", len(held), 2)
	for _, c := range good {
		equal(f, "LeaseUntil of a claim that was extended", f.run(c.Run.ID).LeaseUntil, f.store.Now().Add(2*lease))
	}
	err = f.one.Claimer().Finish(f.ctx,
		coord.Result{Claim: good[0], Outcome: coord.Succeed},
		coord.Result{Claim: stale, Outcome: coord.Succeed},
		coord.Result{Claim: good[1], Outcome: coord.GiveUp, Error: "no"})
	fenced(f, "Finish of two claims that are held and one that is not", err, stale)
	f.state(good[0].Run.ID, coord.Succeeded)
	equal(f, "Error", f.state(good[1].Run.ID, coord.Failed).Error, "no")
	sameRun(f, "the run that was fenced", f.run(stale.Run.ID), asTwo)
}

func retries(f *fixture) {
	retry := coord.Retry{MaxAttempts: 4, Backoff: 10 * time.Second, MaxBackoff: 25 * time.Second}
	r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: retry})
	for attempt, longest := range []time.Duration{10 * time.Second, 20 * time.Second, 25 * time.Second} {
		c := f.claimOne(f.one, "k")
		equal(f, "Attempt", c.Run.Attempt, attempt+1)
		f.finish(f.one, coord.Result{Claim: c, Outcome: coord.Fail, Error: fmt.Sprint("failure ", attempt)})
		failed := f.state(r.ID, coord.Queued)
		equal(f, "Error of the last attempt", failed.Error, fmt.Sprint("failure ", attempt))
		equal(f, "Attempt after a failure", failed.Attempt, attempt+1)
		pause := failed.DueAt.Sub(f.store.Now())
		if pause > longest || pause < longest*4/5 {
			f.Errorf("the pause after attempt %d is %v; want %v, shortened by at most a fifth", attempt+1, pause, longest)
		}
		f.store.Advance(pause - time.Microsecond)
		f.claimNone(f.two, "k", "its pause has not ended")
		f.store.Advance(time.Microsecond)
	}
	f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, "k"), Outcome: coord.Fail, Error: "the last"})
	ended := f.state(r.ID, coord.Failed)
	equal(f, "Error", ended.Error, "the last")
	equal(f, "FinishedAt", ended.FinishedAt, f.store.Now())

	r = f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: retry})
	f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, "k"), Outcome: coord.Fail, Error: "once"})
	f.store.Advance(time.Minute)
	f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, "k"), Outcome: coord.Succeed})
	equal(f, "Error of a run that succeeded after a failure", f.state(r.ID, coord.Succeeded).Error, "once")

	r = f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: retry})
	f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, "k"), Outcome: coord.GiveUp, Error: "hopeless"})
	equal(f, "Error", f.state(r.ID, coord.Failed).Error, "hopeless")
}

func uniqueKeys(f *fixture) {
	first := f.enqueueOne(f.one, coord.NewRun{Kind: "k", UniqueKey: "a", Payload: []byte("first")})
	equal(f, "Duplicate of the first run", first.Duplicate, false)
	again := f.enqueueOne(f.two, coord.NewRun{Kind: "other", UniqueKey: "a", Payload: []byte("second")})
	equal(f, "Duplicate of the second run", again.Duplicate, true)
	sameRun(f, "the run that was returned for a known key", again, first)

	runs := f.enqueue(f.one,
		coord.NewRun{Kind: "k", UniqueKey: "b"},
		coord.NewRun{Kind: "k"},
		coord.NewRun{Kind: "k", UniqueKey: "a"},
		coord.NewRun{Kind: "k", UniqueKey: "b"},
		coord.NewRun{Kind: "k"})
	equal(f, "the Duplicates of a call with the keys b, none, a, b, none",
		[]bool{runs[0].Duplicate, runs[1].Duplicate, runs[2].Duplicate, runs[3].Duplicate, runs[4].Duplicate},
		[]bool{false, false, true, true, false})
	equal(f, "the run returned for a key named twice in a call", runs[3].ID, runs[0].ID)
	equal(f, "the run returned for a key of an earlier call", runs[2].ID, first.ID)
	equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 4)

	for _, c := range f.claim(f.one, want("k", 10)) {
		f.finish(f.one, coord.Result{Claim: c, Outcome: coord.Succeed})
	}
	again = f.enqueueOne(f.two, coord.NewRun{Kind: "k", UniqueKey: "a"})
	equal(f, "Duplicate when the earlier run has ended", again.Duplicate, true)
	equal(f, "State of the earlier run as returned", again.State, coord.Succeeded)
	equal(f, "the run returned", again.ID, first.ID)
}

func cancels(f *fixture) {
	c := f.one.Claimer()
	is(f, "Cancel of an unknown run", c.Cancel(f.ctx, 1<<40), coord.ErrNotFound)

	queued := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
	must(f, "Cancel of a queued run", f.two.Claimer().Cancel(f.ctx, queued.ID))
	equal(f, "FinishedAt of a cancelled run", f.state(queued.ID, coord.Cancelled).FinishedAt, f.store.Now())
	f.claimNone(f.one, "k", "the run was cancelled")
	is(f, "Cancel of a cancelled run", c.Cancel(f.ctx, queued.ID), coord.ErrConflict)

	running := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
	claim := f.claimOne(f.one, "k")
	must(f, "Cancel of a running run", f.two.Claimer().Cancel(f.ctx, running.ID))
	must(f, "Cancel of a running run, again", f.two.Claimer().Cancel(f.ctx, running.ID))
	equal(f, "CancelRequested", f.state(running.ID, coord.Running).CancelRequested, true)
	f.finish(f.one, coord.Result{Claim: claim, Outcome: coord.CancelRun, Error: "stopped"})
	f.state(running.ID, coord.Cancelled)
	is(f, "Cancel of a run that has ended", c.Cancel(f.ctx, running.ID), coord.ErrConflict)

	// Whatever becomes of it, a run that was asked to stop does not run again.
	for name, outcome := range map[string]coord.Outcome{"Release": coord.Release, "Snooze": coord.Snooze, "Fail": coord.Fail} {
		asked := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		claim = f.claimOne(f.one, "k")
		must(f, "Cancel", c.Cancel(f.ctx, asked.ID))
		f.finish(f.one, coord.Result{Claim: claim, Outcome: outcome, Error: name})
		f.state(asked.ID, coord.Cancelled)
	}
	vanished := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}})
	f.claimOne(f.one, "k")
	must(f, "Cancel", c.Cancel(f.ctx, vanished.ID))
	f.store.Advance(2 * lease)
	f.claimNone(f.two, "k", "the run was asked to stop before its worker vanished")
	f.state(vanished.ID, coord.Cancelled)

	late := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
	claim = f.claimOne(f.one, "k")
	must(f, "Cancel", c.Cancel(f.ctx, late.ID))
	f.finish(f.one, coord.Result{Claim: claim, Outcome: coord.Succeed})
	f.state(late.ID, coord.Succeeded) // it was done before it heard
}

func cancelsVanished(f *fixture) {
	// Whether it was asked to stop before, and how the late worker goes on.
	for _, asked := range []bool{false, true} {
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}})
		late := f.claimOne(f.one, "k")
		f.store.Advance(lease - time.Microsecond)
		if asked {
			must(f, "Cancel while the lease lasts", f.two.Claimer().Cancel(f.ctx, r.ID))
			f.state(r.ID, coord.Running)
		}
		f.store.Advance(time.Microsecond)
		if asked {
			f.state(r.ID, coord.Running)
		}
		must(f, "Cancel when the lease has run out", f.two.Claimer().Cancel(f.ctx, r.ID))
		ended := f.state(r.ID, coord.Cancelled)
		equal(f, "FinishedAt", ended.FinishedAt, f.store.Now())
		equal(f, "LeaseUntil", ended.LeaseUntil, time.Time{})
		equal(f, "Rescues", ended.Rescues, 1)
		equal(f, "Attempt", ended.Attempt, 1)
		equal(f, "Error", ended.Error, "")
		is(f, "Cancel, again", f.one.Claimer().Cancel(f.ctx, r.ID), coord.ErrConflict)
		_, err := f.one.Claimer().Extend(f.ctx, lease, late)
		fenced(f, "Extend by the late worker", err, late)
		fenced(f, "Report by the late worker", f.one.Claimer().Report(f.ctx, coord.Report{Claim: late, Progress: 1}), late)
		for _, end := range endings(late) {
			fenced(f, "Finish by the late worker", f.one.Claimer().Finish(f.ctx, end), late)
		}
		sameRun(f, "the run that was cancelled", f.run(r.ID), ended)
		f.claimNone(f.two, "k", "the run was cancelled")
	}
	// A lease that was extended, or a run that was taken again, is not over.
	r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}})
	claim := f.claimOne(f.one, "k")
	f.store.Advance(2 * lease)
	_, err := f.one.Claimer().Extend(f.ctx, lease, claim)
	if err != nil { // a driver may refuse what came late
		is(f, "Extend of a lease that ran out", err, coord.ErrFenced)
	}
	if f.store.Advance(lease / 2); err != nil {
		claim = f.claimOne(f.two, "k")
	}
	must(f, "Cancel", f.two.Claimer().Cancel(f.ctx, r.ID))
	equal(f, "CancelRequested of a run whose lease goes on", f.state(r.ID, coord.Running).CancelRequested, true)
	f.finish(f.one, coord.Result{Claim: claim, Outcome: coord.CancelRun})
}

func listRuns(f *fixture) {
	c := f.one.Claimer()
	_, err := c.PutTask(f.ctx, coord.Task{Name: "n", Kind: "task"})
	must(f, "PutTask", err)
	var ids []coord.RunID // the newest first
	for i := range 12 {
		ids = append(ids, f.enqueueOne(f.one, coord.NewRun{Kind: fmt.Sprint("k", i%3)}).ID)
	}
	slices.Reverse(ids)
	triggered, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{})
	must(f, "Trigger", err)
	succeeded := f.claim(f.one, want("k0", 2))
	for _, claim := range succeeded {
		f.finish(f.one, coord.Result{Claim: claim, Outcome: coord.Succeed})
	}
	list := func(filter coord.RunFilter) (ids []coord.RunID) {
		for _, r := range f.runs(filter) {
			ids = append(ids, r.ID)
		}
		return ids
	}
	equal(f, "all runs", list(coord.RunFilter{}), append([]coord.RunID{triggered.ID}, ids...))
	equal(f, "runs of the task", list(coord.RunFilter{TaskID: triggered.TaskID}), []coord.RunID{triggered.ID})
	equal(f, "the newest three", list(coord.RunFilter{Limit: 3}), []coord.RunID{triggered.ID, ids[0], ids[1]})
	equal(f, "three before one", list(coord.RunFilter{Before: ids[4], Limit: 3}), ids[5:8])
	equal(f, "before the oldest", len(list(coord.RunFilter{Before: ids[11]})), 0)
	equal(f, "runs of a kind", list(coord.RunFilter{Kind: "k1"}), []coord.RunID{ids[1], ids[4], ids[7], ids[10]})
	equal(f, "runs of the task's kind", list(coord.RunFilter{Kind: "task"}), []coord.RunID{triggered.ID})
	equal(f, "how many of another kind the task has", len(list(coord.RunFilter{Kind: "k1", TaskID: triggered.TaskID})), 0)
	equal(f, "how many of a kind succeeded", len(list(coord.RunFilter{Kind: "k0", State: coord.Succeeded})), 2)
	equal(f, "how many of another kind succeeded", len(list(coord.RunFilter{Kind: "k1", State: coord.Succeeded})), 0)
	equal(f, "how many runs a kind without runs has", len(list(coord.RunFilter{Kind: "k"})), 0)
	var paged []coord.RunID
	for page := (coord.RunFilter{Kind: "k2", Limit: 3}); ; page.Before = paged[len(paged)-1] {
		some := list(page)
		if len(some) == 0 {
			break
		}
		paged = append(paged, some...)
	}
	equal(f, "runs of a kind, page by page", paged, []coord.RunID{ids[0], ids[3], ids[6], ids[9]})
	equal(f, "how many succeeded", len(list(coord.RunFilter{State: coord.Succeeded})), 2)
	equal(f, "how many are queued", len(list(coord.RunFilter{State: coord.Queued})), 11)
	equal(f, "how many of the task succeeded", len(list(coord.RunFilter{State: coord.Succeeded, TaskID: triggered.TaskID})), 0)
	for r, err := range c.Runs(f.ctx, coord.RunFilter{}) { // a listing may be left, and the backend called meanwhile
		must(f, "Runs", err)
		_, err := c.Run(f.ctx, r.ID)
		must(f, "Run during a listing", err)
		break
	}
	f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "k"}}, 150)...)
	equal(f, "how many runs are listed by default", len(list(coord.RunFilter{})), 100)
	equal(f, "how many runs are listed at most", len(list(coord.RunFilter{Limit: 1000})), 163)
}

func prunes(f *fixture) {
	c, prune := f.one.Claimer(), f.prune
	_, err := c.PutTask(f.ctx, coord.Task{Name: "n", Kind: "k", Overlap: coord.OverlapAllow})
	must(f, "PutTask", err)
	endOne := func(kind string) {
		f.finish(f.one, coord.Result{Claim: f.claimOne(f.one, kind), Outcome: coord.Succeed})
		f.store.Advance(time.Second)
	}
	for range 5 {
		_, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{})
		must(f, "Trigger", err)
		endOne("k")
	}
	for range 4 {
		f.enqueueOne(f.one, coord.NewRun{Kind: "free"})
		endOne("free")
	}
	f.enqueueOne(f.one, coord.NewRun{Kind: "free", UniqueKey: "a"})
	f.claimOne(f.one, "free")
	queued := f.enqueueOne(f.one, coord.NewRun{Kind: "queued"})

	equal(f, "how many runs a Prune without a retention deleted", prune(coord.RunRetention{}), 0)
	equal(f, "how many runs Keep 3 deleted, of 5 of a task and 4 of none", prune(coord.RunRetention{Keep: 3}), 2)
	task, err := c.Task(f.ctx, "n")
	must(f, "Task", err)
	kept := f.runs(coord.RunFilter{TaskID: task.ID})
	equal(f, "how many runs of the task were kept", len(kept), 3)
	equal(f, "how many runs Age 1h deleted at once", prune(coord.RunRetention{Age: time.Hour}), 0)
	f.store.Advance(2 * time.Hour)
	equal(f, "how many runs Age 1h deleted after 2h", prune(coord.RunRetention{Age: time.Hour, Keep: 100}), 7)
	equal(f, "how many runs are left: one running, one queued", len(f.runs(coord.RunFilter{})), 2)
	f.state(queued.ID, coord.Queued)
	_, err = c.Run(f.ctx, kept[0].ID)
	is(f, "Run of a pruned run", err, coord.ErrNotFound)
	again := f.enqueueOne(f.one, coord.NewRun{Kind: "free", UniqueKey: "a"})
	equal(f, "Duplicate for the key of a run that was not pruned", again.Duplicate, true)

	runs := f.enqueue(f.one, slices.Repeat([]coord.NewRun{{Kind: "many"}}, 1500)...)
	for range 2 {
		var results []coord.Result
		for _, claim := range f.claim(f.one, want("many", 1000)) {
			results = append(results, coord.Result{Claim: claim, Outcome: coord.Succeed})
		}
		f.finish(f.one, results...)
	}
	f.store.Advance(2 * time.Hour)
	equal(f, "how many runs Age 1h deleted, in several calls", prune(coord.RunRetention{Age: time.Hour}), len(runs))
}

// prune prunes until nothing is left that the retention does not cover, and returns
// how many runs that deleted.
func (f *fixture) prune(r coord.RunRetention) (n int) {
	f.Helper()
	for {
		deleted, err := f.two.Claimer().Prune(f.ctx, r)
		must(f, "Prune", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

// prunesDeleted has tasks, of which some are deleted and one is made again under its
// name, that leave five runs each.
func prunesDeleted(f *fixture) {
	var ids []coord.TaskID
	for _, name := range []string{"deleted", "kept", "deleted", "last"} {
		ids = append(ids, f.put(coord.Task{Name: name, Kind: "k", Overlap: coord.OverlapAllow}).ID)
		for range 5 {
			f.trigger(name)
			f.succeed(f.claimOne(f.one, "k"))
			f.store.Advance(time.Second)
		}
		if name == "deleted" {
			f.trigger(name)
			running := f.claimOne(f.one, "k")
			f.trigger(name)
			must(f, "DeleteTask", f.one.Claimer().DeleteTask(f.ctx, name)) // a sixth run is cancelled
			f.finish(f.one, coord.Result{Claim: running, Outcome: coord.Release})
		}
	}
	f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
	f.succeed(f.claimOne(f.one, "k"))
	left := func() (n []int) {
		for _, id := range ids {
			n = append(n, len(f.runs(coord.RunFilter{TaskID: id})))
		}
		return n
	}
	equal(f, "how many runs of each task there are", left(), []int{7, 5, 7, 5})
	equal(f, "how many runs Keep 6 deleted", f.prune(coord.RunRetention{Keep: 6}), 2)
	equal(f, "how many runs of each task Keep 6 left", left(), []int{6, 5, 6, 5})
	newest := f.runs(coord.RunFilter{TaskID: ids[0]})[:2]
	equal(f, "how many runs Keep 2 deleted", f.prune(coord.RunRetention{Keep: 2}), 14)
	equal(f, "how many runs of each task Keep 2 left", left(), []int{2, 2, 2, 2})
	for _, r := range newest {
		sameRun(f, "one of the newest runs of a deleted task", f.run(r.ID), r)
	}
	equal(f, "how many runs Age 1h deleted at once", f.prune(coord.RunRetention{Age: time.Hour}), 0)
	f.store.Advance(2 * time.Hour)
	equal(f, "how many runs Age 1h deleted after 2h", f.prune(coord.RunRetention{Age: time.Hour, Keep: 100}), 9)
	equal(f, "how many runs are left", len(f.runs(coord.RunFilter{})), 0)
}
