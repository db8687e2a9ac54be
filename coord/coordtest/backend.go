package coordtest

import (
	"context"
	"errors"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
)

var backendTests = []test{
	{"ping answers", func(f *fixture) {
		must(f, "Ping", f.one.Ping(f.ctx))
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		err := f.one.Ping(ctx)
		is(f, "Ping with a cancelled context", err, context.Canceled)
	}},
	{"every call after Close is ErrClosed", afterClose},
	{"Close may be called again", func(f *fixture) {
		b := f.open0()
		must(f, "Close", b.Close(f.ctx))
		must(f, "Close, again", b.Close(f.ctx))
	}},
	{"Close returns when its context is done", func(f *fixture) {
		b := f.open0()
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = b.Close(ctx) // an error is allowed: it may not have been able to say goodbye
		}()
		select {
		case <-done:
		case <-f.ctx.Done():
			f.Fatalf("Close with a cancelled context has not returned after %v", patience)
		}
		must(f, "Close, again", b.Close(f.ctx))
	}},
	{"Close ends the streams", func(f *fixture) {
		b := f.open0()
		stream, err := b.Broadcaster().Subscribe(f.ctx, map[string]coord.Position{"t": coord.Head})
		must(f, "Subscribe", err)
		waiting := make(chan error, 1)
		go func() {
			_, err := stream.Next(f.ctx)
			waiting <- err
		}()
		must(f, "Close", b.Close(f.ctx))
		is(f, "Next that waited while the backend was closed", <-waiting, coord.ErrClosed)
		_, err = stream.Next(f.ctx)
		is(f, "Next after the backend was closed", err, coord.ErrClosed)
		stream.Close()
	}},
	{"Close leaves other handles alone", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.SeveralHandles, "SeveralHandles") {
			return
		}
		b := f.open()
		must(f, "Close", b.Close(f.ctx))
		f.enqueue(f.one, coord.NewRun{Kind: "k"})
		f.claimOne(f.two, "k")
		stream := f.subscribe(f.two, map[string]coord.Position{"t": coord.Head})
		f.publish(f.one, event("t", "after"))
		f.next(stream, 1)
	}},
	{"Close leaves no goroutine", noLeak},
}

// open0 opens a handle on a store that can have one more, and else on a store
// of its own.
func (f *fixture) open0() coord.Backend {
	f.Helper()
	if f.harness.Capabilities.SeveralHandles {
		return f.open()
	}
	f.store = f.harness.New(f.T)
	return f.open()
}

func afterClose(f *fixture) {
	b := f.open0()
	c, tickets, limiter, broadcaster, calls := b.Claimer(), b.Tickets(), b.Limiter(), b.Broadcaster(), b.Calls()
	limit := coord.Limit{Key: "k", Rate: 1, Per: time.Second}
	directory, member := b.Directory(), f.join(b, "m")
	receipts, held := b.Receipts(), f.begin(b, order("k", "ada"), coord.ReceiptMine)
	elector, term := b.Elector(), f.wins(b, candidacy("reaper", "ada"))
	must(f, "Close", b.Close(f.ctx))
	first := func(_ any, err error) error { return err }
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"Ping", func() error { return b.Ping(f.ctx) }},
		{"InTx", func() error { return b.InTx(f.ctx, func(context.Context, coord.Tx) error { return nil }) }},
		{"PutTask", func() error { return first(c.PutTask(f.ctx, coord.Task{Name: "n", Kind: "k"})) }},
		{"Task", func() error { return first(c.Task(f.ctx, "n")) }},
		{"Tasks", func() error { return firstError(c.Tasks(f.ctx)) }},
		{"DeleteTask", func() error { return c.DeleteTask(f.ctx, "n") }},
		{"PauseTask", func() error { return c.PauseTask(f.ctx, "n", true) }},
		{"Trigger", func() error { return first(c.Trigger(f.ctx, "n", coord.TriggerOptions{})) }},
		{"Enqueue", func() error { return first(c.Enqueue(f.ctx, coord.NewRun{Kind: "k"})) }},
		{"Claim", func() error { return first(c.Claim(f.ctx, want("k", 1))) }},
		{"Extend", func() error { return first(c.Extend(f.ctx, time.Minute, coord.Claim{})) }},
		{"Finish", func() error { return c.Finish(f.ctx, coord.Result{Outcome: coord.Succeed}) }},
		{"Report", func() error { return c.Report(f.ctx, coord.Report{Progress: 1}) }},
		{"Cancel", func() error { return c.Cancel(f.ctx, 1) }},
		{"Run", func() error { return first(c.Run(f.ctx, 1)) }},
		{"Runs", func() error { return firstError(c.Runs(f.ctx, coord.RunFilter{})) }},
		{"Log", func() error { return firstError(c.Log(f.ctx, 1, 0)) }},
		{"NextDue", func() error {
			_, _, err := c.NextDue(f.ctx)
			return err
		}},
		{"Prune", func() error { return first(c.Prune(f.ctx, coord.RunRetention{Keep: 1})) }},
		{"Issue", func() error { return first(tickets.Issue(f.ctx, pass("s"))) }},
		{"Redeem", func() error { return first(tickets.Redeem(f.ctx, coord.NewTicketSecret(), coord.TicketUse{})) }},
		{"tickets' Reap", func() error { return first(tickets.Reap(f.ctx)) }},
		{"Allow", func() error { return first(limiter.Allow(f.ctx, limit)) }},
		{"AllowAll", func() error { return first(limiter.AllowAll(f.ctx, limit)) }},
		{"Peek", func() error { return first(limiter.Peek(f.ctx, limit)) }},
		{"Reset", func() error { return limiter.Reset(f.ctx, "k") }},
		{"limiter's Reap", func() error { return first(limiter.Reap(f.ctx)) }},
		{"Publish", func() error { return first(broadcaster.Publish(f.ctx, event("t", "x"))) }},
		{"Subscribe", func() error {
			return first(broadcaster.Subscribe(f.ctx, map[string]coord.Position{"t": coord.Head}))
		}},
		{"Read", func() error { return first(broadcaster.Read(f.ctx, "t", coord.Start, 1)) }},
		{"Heads", func() error { return first(broadcaster.Heads(f.ctx, "t")) }},
		{"Trim", func() error { return first(broadcaster.Trim(f.ctx, coord.EventRetention{Keep: 1})) }},
		{"Join", func() error { return first(directory.Join(f.ctx, coord.NewMember{Name: "m"})) }},
		{"Members", func() error { return first(directory.Members(f.ctx)) }},
		{"Lookup", func() error { return first(directory.Lookup(f.ctx, "k")) }},
		{"List", func() error { return first(directory.List(f.ctx, coord.EntryFilter{})) }},
		{"Sweep", func() error { return first(directory.Sweep(f.ctx)) }},
		{"Register", func() error { return first(member.Register(f.ctx, "k", nil)) }},
		{"Update", func() error { return member.Update(f.ctx, coord.Registration{Key: "k"}, nil) }},
		{"Deregister", func() error { return member.Deregister(f.ctx, coord.Registration{Key: "k"}) }},
		{"Renew", func() error { return first(member.Renew(f.ctx)) }},
		{"Leave", func() error { return member.Leave(f.ctx) }},
		{"Open", func() error { return first(calls.Open(f.ctx, question("ada"))) }},
		{"Answer", func() error { return calls.Answer(f.ctx, coord.Answer{ID: coord.NewCallID(), Target: "ada"}) }},
		{"calls' Cancel", func() error { return calls.Cancel(f.ctx, coord.NewCallID(), "") }},
		{"Get", func() error { return first(calls.Get(f.ctx, coord.NewCallID())) }},
		{"Find", func() error { return first(calls.Find(f.ctx, "k")) }},
		{"Wait", func() error { return first(calls.Wait(f.ctx, coord.NewCallID())) }},
		{"Pending", func() error { return first(calls.Pending(f.ctx, "ada")) }},
		{"calls' Reap", func() error { return first(calls.Reap(f.ctx, 0)) }},
		{"Begin", func() error { return first(receipts.Begin(f.ctx, order("k", "ada"))) }},
		{"receipts' Extend", func() error { return first(receipts.Extend(f.ctx, held, lease)) }},
		{"Complete", func() error { return receipts.Complete(f.ctx, held, coord.ReceiptOutcome{}) }},
		{"Release", func() error { return receipts.Release(f.ctx, held) }},
		{"receipts' Reap", func() error { return first(receipts.Reap(f.ctx)) }},
		{"Do", func() error {
			_, _, err := coord.Do(f.ctx, receipts, order("k", "bob"), nil)
			return err
		}},
		{"Stand", func() error { return first(elector.Stand(f.ctx, candidacy("reaper", "bob"))) }},
		{"elector's Extend", func() error { return first(elector.Extend(f.ctx, term, lease)) }},
		{"Resign", func() error { return elector.Resign(f.ctx, term) }},
		{"Leaders", func() error { return first(elector.Leaders(f.ctx)) }},
		{"Load", func() error { return first(b.Keyring().Load(f.ctx, coord.Ring{Name: "tokens"})) }},
	} {
		err := call.do()
		if !errors.Is(err, coord.ErrClosed) {
			f.Errorf("%s after Close: the error is %v; want ErrClosed", call.name, err)
			continue
		}
		wrapped(f, call.name+" after Close", err)
	}
}

func firstError[T any](list func(yield func(T, error) bool)) (first error) {
	for _, err := range list {
		first = err
		break
	}
	return first
}

// noLeak uses a store whose only handle it opens and closes itself, so that
// nothing else starts goroutines meanwhile.
func noLeak(f *fixture) {
	for _, b := range f.handles() {
		must(f, "Close", b.Close(f.ctx))
	}
	f.store = f.harness.New(f.T)
	before := goleak.IgnoreCurrent()
	b := f.store.Open(f.T)
	_, stopHints := b.Claimer().Hints()
	_, stopCancels := b.Claimer().Cancels()
	r := f.enqueueOne(b, coord.NewRun{Kind: "k", Concurrency: coord.Concurrency{Key: "k"}})
	claim := f.claimOne(b, "k")
	must(f, "Cancel", b.Claimer().Cancel(f.ctx, r.ID))
	f.finish(b, coord.Result{Claim: claim, Outcome: coord.Succeed})
	_, err := b.Tickets().Issue(f.ctx, pass("s"))
	must(f, "Issue", err)
	_, err = b.Limiter().Allow(f.ctx, coord.Limit{Key: "k", Rate: 1, Per: time.Second})
	must(f, "Allow", err)
	stream, err := b.Broadcaster().Subscribe(f.ctx, map[string]coord.Position{"t": coord.Head})
	must(f, "Subscribe", err)
	f.publish(b, event("t", "x"))
	f.next(stream, 1)
	_, stopLeaders := b.Elector().Changes()
	_, stopKeys := b.Keyring().Changes()
	f.resign(b, f.wins(b, candidacy("reaper", "ada")))
	_, stopReceipts := b.Receipts().Changes()
	_, _, err = coord.Do(f.ctx, b.Receipts(), order("k", ""), effectIn(b, "t"))
	must(f, "Do", err)
	_, stopChanges := b.Directory().Changes()
	f.register(f.join(b, "m"), "k", "")
	waiting := f.waiting(f.ctx, b, f.openCall(b, question("ada")).ID)
	// Neither the stream nor the hints are given up: Close alone must do.
	must(f, "Close", b.Close(f.ctx))
	stopHints()
	stopCancels()
	stopChanges()
	stopReceipts()
	stopLeaders()
	stopKeys()
	f.received(waiting)
	if err := goleak.Find(before); err != nil {
		f.Errorf("after Close: %v", err)
	}
}
