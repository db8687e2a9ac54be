package coordtest

import (
	"context"
	"errors"
	"fmt"
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
