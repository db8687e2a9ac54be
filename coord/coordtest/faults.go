package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// persist makes a call until it is acknowledged, and returns how often that was.
func (f *fixture) persist(what string, call func() error) (times int) {
	f.Helper()
	for {
		times++
		err := call()
		if err == nil {
			return times
		}
		if !errors.Is(err, coord.ErrUnavailable) {
			f.Fatalf("%s, attempt %d: %v; want success or an injected fault", what, times, err)
		}
		wrapped(f, what, err)
		must(f, what+": the test's time", f.ctx.Err())
	}
}

var faultTests = []test{
	{"every loss is heard of, whatever answers are lost", lossesBehindFaults},
	{"publishing again until it is acknowledged loses nothing", func(f *fixture) {
		b := Faulty(f.one, Random(1, Rates{Fail: 0.2, Cut: 0.2}, "broadcaster.publish"))
		stream := f.subscribe(f.two, at("t", coord.Head))
		const n = 100
		calls := 0
		for i := range n {
			calls += f.persist("Publish", func() error {
				_, err := b.Broadcaster().Publish(f.ctx, event("t", fmt.Sprint(i)))
				return err
			})
		}
		// Some are stored twice, those whose answer was lost; none is missing, and
		// none comes before one that was acknowledged earlier.
		stored := int(f.head("t").Seq)
		if stored < n || stored > calls {
			f.Errorf("%d events are stored after %d calls for %d", stored, calls, n)
		}
		last := -1
		for _, e := range f.next(stream, stored) {
			var i int
			if _, err := fmt.Sscan(string(e.Payload), &i); err != nil || i != last && i != last+1 {
				f.Fatalf("event %q came after %d", e.Payload, last)
			}
			last = i
		}
		equal(f, "the last event", last, n-1)
	}},
	{"publishing again under a key publishes once", func(f *fixture) {
		b := Faulty(f.one, Random(6, Rates{Fail: 0.2, Cut: 0.3}, "broadcaster.publish", "backend.tx", "tx.publish"))
		stream := f.subscribe(f.two, at("t", coord.Head))
		const n = 60
		for i := range n {
			e := event("t", fmt.Sprint(i+1))
			e.Key = fmt.Sprint(i)
			f.persist("Publish", func() error {
				if i%3 == 0 {
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Publish(ctx, e) })
				}
				_, err := b.Broadcaster().Publish(f.ctx, e)
				return err
			})
		}
		f.nextNumbered(stream, "t", 1, n)
		equal(f, "how many events there are", f.head("t").Seq, int64(n))
	}},
	{"queuing again under a unique key queues once", func(f *fixture) {
		b := Faulty(f.one, Random(2, Rates{Fail: 0.2, Cut: 0.3}, "claimer.enqueue"))
		const n = 60
		for i := range n {
			f.persist("Enqueue", func() error {
				_, err := b.Claimer().Enqueue(f.ctx, coord.NewRun{Kind: "k", UniqueKey: fmt.Sprint(i)})
				return err
			})
		}
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{Limit: 1000})), n)
	}},
	{"a transaction again under a unique key happens once", func(f *fixture) {
		b := Faulty(f.one, Random(3, Rates{Fail: 0.2, Cut: 0.3}, "backend.tx", "tx.publish"))
		const n = 40
		for i := range n {
			f.persist("InTx", func() error {
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
					runs, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k", UniqueKey: fmt.Sprint(i)})
					if err != nil || runs[0].Duplicate {
						return err
					}
					return tx.Publish(ctx, event("t", fmt.Sprint(i+1)))
				})
			})
		}
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{Limit: 1000})), n)
		f.areNumbered(f.read("t", coord.Start, 1000), "t", 1)
		equal(f, "how many events are stored", int(f.head("t").Seq), n)
	}},
	{"a claim whose answer is lost comes back when its lease ends", func(f *fixture) {
		b := Faulty(f.one, Nth("claimer.claim", 1, Fault{Cut: true}))
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		claims, err := b.Claimer().Claim(f.ctx, want("k", 1))
		is(f, "Claim that was cut", err, coord.ErrUnknownOutcome)
		equal(f, "how many claims it returned", len(claims), 0)
		f.claimNone(f.two, "k", "somebody holds the lease, although nobody knows")
		f.store.Advance(2 * lease)
		c := f.claimOne(f.two, "k")
		equal(f, "the run", c.Run.ID, r.ID)
		equal(f, "Attempt", c.Run.Attempt, 2)
	}},
	{"finishing again after a lost answer changes nothing", func(f *fixture) {
		b := Faulty(f.one, Nth("claimer.finish", 1, Fault{Cut: true}))
		r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 5}})
		c := f.claimOne(f.one, "k")
		fail := coord.Result{Claim: c, Outcome: coord.Fail, Error: "once"}
		is(f, "Finish that was cut", b.Claimer().Finish(f.ctx, fail), coord.ErrUnknownOutcome)
		after := f.state(r.ID, coord.Queued)
		fenced(f, "Finish, again", b.Claimer().Finish(f.ctx, fail), c)
		sameRun(f, "after the second Finish", f.run(r.ID), after)
	}},
	{"a redemption whose answer is lost lets nobody in", func(f *fixture) {
		b := Faulty(f.one, Nth("tickets.redeem", 1, Fault{Cut: true}))
		t := pass("s")
		ticket := f.issue(f.one, t)
		what, err := b.Tickets().Redeem(f.ctx, ticket.Secret, using(t))
		is(f, "Redeem that was cut", err, coord.ErrUnknownOutcome)
		equal(f, "what it told", what, coord.TicketFor{})
		is(f, "Redeem, again", f.redeem(b, ticket.Secret, t), coord.ErrNotFound)
	}},
	{"an effect that is asked for behind faults is made once", doHistory},
	{"Do that is cut off anywhere has its outcome stored once", receiptDeaths},
	{"who leads behind faults leads on, or another can", leaderFaults},
	{"a stream goes on after faults", func(f *fixture) {
		b := Faulty(f.two, Random(4, Rates{Fail: 0.3, Cut: 0.3}, "stream.next"))
		stream, err := b.Broadcaster().Subscribe(f.ctx, at("t", coord.Head))
		must(f, "Subscribe", err)
		defer stream.Close()
		const n = 50
		for i := range n {
			f.publish(f.one, event("t", fmt.Sprint(i+1)))
			f.persist("Next", func() error {
				events, err := stream.Next(f.ctx)
				if err == nil {
					f.areNumbered(events, "t", i+1)
				}
				return err
			})
		}
	}},
	{"triggering again under a key triggers once", func(f *fixture) {
		f.put(coord.Task{Name: "n", Kind: "k", Overlap: coord.OverlapAllow})
		b := Faulty(f.one, Random(6, Rates{Fail: 0.2, Cut: 0.3}, "claimer.trigger"))
		const n = 40
		for i := range n {
			f.persist("Trigger", func() error {
				_, err := b.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{Key: fmt.Sprint(i)})
				return err
			})
		}
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{Limit: 1000})), n)
	}},
	{"reporting again until it is acknowledged loses no line", func(f *fixture) {
		b := Faulty(f.one, Random(7, Rates{Fail: 0.2, Cut: 0.2}, "claimer.report"))
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		const n = 50
		calls := 0
		for i := range n {
			calls += f.persist("Report", func() error {
				return b.Claimer().Report(f.ctx, coord.Report{Claim: c, Progress: i + 1, Lines: []string{fmt.Sprint(i)}})
			})
		}
		lines := f.log(c.Run.ID, 0)
		if len(lines) < n || len(lines) > calls {
			f.Errorf("%d lines are stored after %d calls for %d", len(lines), calls, n)
		}
		last := -1
		for _, line := range lines { // those whose answer was lost are there twice
			var i int
			if _, err := fmt.Sscan(line.Text, &i); err != nil || i != last && i != last+1 {
				f.Fatalf("line %q came after %d", line.Text, last)
			}
			last = i
		}
		equal(f, "Progress", f.run(c.Run.ID).Progress, n)
	}},
	{"a worker that dies at any point loses nothing", deaths},
	{"workers that are cut off again and again give back all places", func(f *fixture) {
		b := Faulty(f.one, Random(8, Rates{Fail: 0.1, Cut: 0.15}, "claimer.claim", "claimer.finish", "claimer.extend"))
		const n, places = 40, 3
		f.enqueue(f.two, slices.Repeat([]coord.NewRun{keyed("k", "x", places)}, n)...)
		running := func() (n int) { return len(f.runs(coord.RunFilter{State: coord.Running})) }
		for done := 0; done < n; {
			must(f, "the test's time", f.ctx.Err())
			claims, err := b.Claimer().Claim(f.ctx, want("k", 2))
			if n := running(); n > places {
				f.Fatalf("%d runs of a key with %d places are running", n, places)
			}
			if err == nil && len(claims) == 0 {
				f.store.Advance(2 * lease) // the places are held by calls whose answer was lost
			}
			for i, c := range claims {
				if i%2 == 1 {
					continue // its worker vanishes
				}
				err := b.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
				if err != nil && !errors.Is(err, coord.ErrUnavailable) {
					f.Fatalf("Finish: %v", err)
				}
			}
			done = len(f.runs(coord.RunFilter{State: coord.Succeeded, Limit: 1000}))
		}
		equal(f, "how many are running in the end", running(), 0)
		f.enqueue(f.two, slices.Repeat([]coord.NewRun{keyed("k", "x", places)}, places+1)...)
		f.claimCount("of a key whose places are all free", f.two, want("k", 10), places)
	}},
	{"a worker that is cut off again and again loses no run", func(f *fixture) {
		b := Faulty(f.one, Random(5, Rates{Fail: 0.1, Cut: 0.1}, "claimer.claim", "claimer.finish", "claimer.extend"))
		const n = 50
		for range n {
			f.enqueueOne(f.two, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 100}})
		}
		for done := 0; done < n; {
			must(f, "the test's time", f.ctx.Err())
			claims, err := b.Claimer().Claim(f.ctx, want("k", 7))
			if err == nil && len(claims) == 0 {
				f.store.Advance(2 * lease) // what is left is leased by calls whose answer was lost
			}
			for _, c := range claims {
				err := b.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
				if err != nil && !errors.Is(err, coord.ErrUnavailable) {
					f.Fatalf("Finish: %v", err)
				}
			}
			done = len(f.runs(coord.RunFilter{State: coord.Succeeded, Limit: 1000}))
		}
		f.store.Advance(time.Hour)
		f.claimNone(f.two, "k", "all have succeeded")
	}},
}

// deaths lets a worker die at each point between its claim and the end of its
// run, and another one take over when the lease has ended. The occurrence is not
// lost. What was written in one transaction with the end of its run happened once,
// and so did what has a receipt.
func deaths(f *fixture) {
	inOne := func(b coord.Backend, c coord.Claim) error {
		return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Publish(ctx, event(c.Run.ScheduledFor.String(), "effect")); err != nil {
				return err
			}
			return tx.Finish(ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
		})
	}
	withReceipt := func(b coord.Backend, c coord.Claim) error {
		if _, err := b.Claimer().Enqueue(f.ctx, coord.NewRun{Kind: "effect", UniqueKey: c.Run.ScheduledFor.String()}); err != nil {
			return err
		}
		return b.Claimer().Finish(f.ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
	}
	effects := func(at time.Time) int {
		n := int(f.head(at.String()).Seq)
		for _, r := range f.runs(coord.RunFilter{Kind: "effect"}) {
			if r.UniqueKey == at.String() {
				n++
			}
		}
		return n
	}
	fail, cut := Fault{Fail: true}, Fault{Cut: true}
	for _, point := range []struct {
		op    string
		fault Fault
		work  func(b coord.Backend, c coord.Claim) error
	}{
		{"claimer.claim", fail, inOne},
		{"claimer.claim", cut, inOne},
		{"backend.tx", fail, inOne},
		{"tx.publish", cut, inOne},
		{"tx.finish", fail, inOne},
		{"tx.finish", cut, inOne},
		{"backend.tx", cut, inOne},
		{"claimer.enqueue", fail, withReceipt},
		{"claimer.enqueue", cut, withReceipt},
		{"claimer.finish", fail, withReceipt},
		{"claimer.finish", cut, withReceipt},
	} {
		what := fmt.Sprintf("a death at %s, %+v: ", point.op, point.fault)
		t, at := f.putOnce(coord.MisfireLatest)
		f.store.Advance(at.Sub(f.store.Now()))
		mortal := Faulty(f.one, Nth(point.op, 1, point.fault))
		claims, err := mortal.Claimer().Claim(f.ctx, want("k", 1))
		if err == nil && len(claims) == 1 {
			err = point.work(mortal, claims[0])
		}
		is(f, what+"the fault that the worker died of", err, coord.ErrUnavailable)
		f.store.Advance(2 * lease)
		for _, c := range f.claim(f.two, want("k", 10)) {
			must(f, what+"the work of who took over", point.work(f.two, c))
		}
		runs := f.runs(coord.RunFilter{TaskID: t.ID})
		equal(f, what+"how many runs the occurrence has", len(runs), 1)
		f.state(runs[0].ID, coord.Succeeded)
		equal(f, what+"how many effects there are", effects(at), 1)
		must(f, "DeleteTask", f.two.Claimer().DeleteTask(f.ctx, t.Name))
	}
}

// receiptDeaths cuts Do off, or fails it, at each of its calls. It, or whoever asks again
// when the lease has ended, has the outcome; what was done together with it happened once,
// and so did what was not where Do itself could find out.
func receiptDeaths(f *fixture) {
	alone := func(b coord.Backend, topic string) func(context.Context, coord.Receipt) ([]byte, error) {
		return func(ctx context.Context, _ coord.Receipt) ([]byte, error) {
			_, err := f.two.Broadcaster().Publish(ctx, event(topic, "effect"))
			return []byte("stored"), err
		}
	}
	fail, cut := Fault{Fail: true}, Fault{Cut: true}
	for i, point := range []struct {
		op    string
		fault Fault
		do    func(b coord.Backend, topic string) func(context.Context, coord.Receipt) ([]byte, error)
		dies  bool
	}{
		{"receipts.begin", fail, effectIn, true},
		{"receipts.begin", cut, effectIn, false},
		{"receipts.begin", cut, alone, false},
		{"backend.tx", fail, effectIn, true},
		{"backend.tx", cut, effectIn, true},
		{"tx.publish", cut, effectIn, true},
		{"tx.complete_receipt", fail, effectIn, true},
		{"tx.complete_receipt", cut, effectIn, true},
		{"receipts.complete", fail, effectIn, false},
		{"receipts.complete", cut, effectIn, false},
		{"receipts.complete", fail, alone, false},
		{"receipts.complete", cut, alone, false},
	} {
		what := fmt.Sprintf("%s, %+v: ", point.op, point.fault)
		key := fmt.Sprint(i)
		mortal := Faulty(f.one, Nth(point.op, 1, point.fault))
		o, _, err := coord.Do(f.ctx, mortal.Receipts(), order(key, ""), point.do(mortal, key))
		if point.dies {
			is(f, what+"Do", err, coord.ErrUnavailable)
		} else {
			must(f, what+"Do", err)
			equal(f, what+"the outcome", string(o.Body), "stored")
		}
		o, replayed, err := coord.Do(f.ctx, f.two.Receipts(), order(key, ""), point.do(f.two, key))
		must(f, what+"Do, again", err)
		equal(f, what+"the outcome", string(o.Body), "stored")
		equal(f, what+"how many effects there are", f.head(key).Seq, 1)
		if !point.dies {
			equal(f, what+"whether it was replayed", replayed, true)
		}
	}
}

// leaderFaults fails and cuts off each call of a leader. What it asks for again it gets, or
// hears that it leads no more; what was written was written by who led.
func leaderFaults(f *fixture) {
	fail, cut := Fault{Fail: true}, Fault{Cut: true}
	for i, point := range []struct {
		op     string
		fault  Fault
		again  error // of the same call, once more
		writes int64 // of the one that was asked for until it was acknowledged
	}{
		{"elector.stand", fail, nil, 1},
		{"elector.stand", cut, nil, 1},
		{"elector.extend", fail, nil, 1},
		{"elector.extend", cut, nil, 1},
		{"elector.resign", fail, nil, 1},
		{"elector.resign", cut, coord.ErrFenced, 1},
		{"tx.fence", fail, nil, 1},
		{"tx.fence", cut, nil, 1},
		{"backend.tx", fail, nil, 1},
		{"backend.tx", cut, nil, 2},
	} {
		what := fmt.Sprintf("%s, %+v: ", point.op, point.fault)
		b := Faulty(f.one, Nth(point.op, 1, point.fault))
		name := fmt.Sprint(i)
		var t coord.Term
		for _, step := range []struct {
			ops  []string
			call func() error
		}{
			{[]string{"elector.stand"}, func() error {
				l, err := b.Elector().Stand(f.ctx, candidacy(name, "ada"))
				t = l.Term
				if err == nil && !l.Mine {
					f.Errorf("%sStand: %s", what, show(l))
				}
				return err
			}},
			{[]string{"elector.extend"}, func() error { return second(b.Elector().Extend(f.ctx, t, 2*lease)) }},
			{[]string{"tx.fence", "backend.tx"}, func() error { return write(f.ctx, b, t) }},
			{[]string{"elector.resign"}, func() error { return b.Elector().Resign(f.ctx, t) }},
		} {
			err := step.call()
			if !slices.Contains(step.ops, point.op) {
				must(f, what+"another call", err)
				continue
			}
			is(f, what+"the call", err, coord.ErrUnavailable)
			if err := step.call(); !errors.Is(err, point.again) {
				f.Errorf("%sthe call once more: %v, want %v", what, err, point.again)
			}
		}
		equal(f, what+"how many writes there are", f.head(name).Seq, point.writes)
		if next := f.wins(f.two, candidacy(name, "bob")); next.Epoch <= t.Epoch {
			f.Errorf("%sthe epoch %d came after %d", what, next.Epoch, t.Epoch)
		}
	}
}
