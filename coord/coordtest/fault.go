package coordtest

import (
	"context"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Fault is what happens to one call. The zero Fault is none.
type Fault struct {
	Delay time.Duration // before the call, at most as long as its context lasts
	Fail  bool          // the call is not made; the caller gets ErrUnavailable
	// Cut: the call is made and its answer lost. The caller gets
	// ErrUnknownOutcome from what writes, and ErrUnavailable from what reads.
	Cut bool
}

// Plan decides the fate of the n-th call, counted from 1, of an operation. The
// operations have the names of [coord.Error].Op: "claimer.enqueue",
// "backend.tx", "tx.publish", "stream.next" … A Plan must be safe for concurrent
// use.
type Plan func(op string, n int) Fault

// Rates are the probabilities of faults, each from 0 to 1.
type Rates struct {
	Fail, Cut, Delay float64
	MaxDelay         time.Duration // of a delay; default 5 ms
}

// Random returns a plan that meets the calls of the operations named, or of all
// when none is, with faults at random. The fate of a call depends on the seed, the
// operation and its number alone, so that a seed repeats a plan whatever the
// order in which goroutines come.
func Random(seed uint64, rates Rates, ops ...string) Plan {
	if rates.MaxDelay == 0 {
		rates.MaxDelay = 5 * time.Millisecond
	}
	return func(op string, n int) Fault {
		if len(ops) > 0 && !slices.Contains(ops, op) {
			return Fault{}
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(op)) // never fails
		r := rand.New(rand.NewPCG(seed, h.Sum64()+uint64(n)))
		var fault Fault
		if r.Float64() < rates.Delay {
			fault.Delay = time.Duration(r.Int64N(int64(rates.MaxDelay)))
		}
		switch p := r.Float64(); {
		case p < rates.Fail:
			fault.Fail = true
		case p < rates.Fail+rates.Cut:
			fault.Cut = true
		}
		return fault
	}
}

// Nth returns a plan with one fault, for the n-th call of an operation.
func Nth(op string, n int, fault Fault) Plan {
	return func(o string, i int) Fault {
		if o == op && i == n {
			return fault
		}
		return Fault{}
	}
}

// Faulty returns a backend whose calls meet the faults of a plan, as between a
// program and a store that is far away. It closes b when it is closed. Decisions of the
// limiter don't fail for a fault: they are degraded.
//
// Hints, Cancels, Changes, Stream.Remove, Stream.Positions, Stream.Lag and the Close methods meet none. A
// Stream.Next that is cut fails before it takes anything: the answer that is lost
// is the store's, not the stream's.
func Faulty(b coord.Backend, plan Plan) coord.Backend {
	return coord.Wrap(faulty{b, &injector{plan: plan, calls: make(map[string]int)}}, coord.Options{})
}

type injector struct {
	plan Plan

	mu    sync.Mutex
	calls map[string]int
}

func (i *injector) next(op string) Fault {
	i.mu.Lock()
	i.calls[op]++
	n := i.calls[op]
	i.mu.Unlock()
	return i.plan(op, n)
}

// meet lets a call meet its fault; lost is the error of one whose answer is cut.
func (i *injector) meet(ctx context.Context, op string, lost error, call func() error) error {
	fault := i.next(op)
	if fault.Delay > 0 {
		delay := time.NewTimer(fault.Delay)
		defer delay.Stop()
		select {
		case <-delay.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fault.Fail {
		return coord.ErrUnavailable
	}
	err := call()
	if fault.Cut {
		return lost
	}
	return err
}

func (i *injector) write(ctx context.Context, op string, call func() error) error {
	return i.meet(ctx, op, coord.ErrUnknownOutcome, call)
}

func (i *injector) read(ctx context.Context, op string, call func() error) error {
	return i.meet(ctx, op, coord.ErrUnavailable, call)
}

// answer makes a call with a result, which is lost with the answer.
func answer[T any](
	ctx context.Context, meet func(context.Context, string, func() error) error, op string, call func() (T, error),
) (result T, err error) {
	err = meet(ctx, op, func() (err error) {
		result, err = call()
		return err
	})
	if err != nil && isLost(err) {
		var none T
		return none, err
	}
	return result, err
}

// isLost reports whether an error is the injector's own: such a call has no
// result, while one that is fenced may have.
func isLost(err error) bool {
	return err == coord.ErrUnknownOutcome || err == coord.ErrUnavailable //nolint:errorlint // the very errors
}

type faulty struct {
	coord.Backend
	*injector
}

func (f faulty) Claimer() coord.Claimer { return faultyClaimer{f.Backend.Claimer(), f.injector} }
func (f faulty) Tickets() coord.Tickets { return faultyTickets{f.Backend.Tickets(), f.injector} }
func (f faulty) Limiter() coord.Limiter { return faultyLimiter{f.Backend.Limiter(), f.injector} }
func (f faulty) Broadcaster() coord.Broadcaster {
	return faultyBroadcaster{f.Backend.Broadcaster(), f.injector}
}

func (f faulty) Directory() coord.Directory {
	return faultyDirectory{f.Backend.Directory(), f.injector}
}

func (f faulty) Calls() coord.Calls { return faultyCalls{f.Backend.Calls(), f.injector} }

func (f faulty) Receipts() coord.Receipts {
	return faultyReceipts{f.Backend.Receipts(), f.injector}
}

func (f faulty) Elector() coord.Elector { return faultyElector{f.Backend.Elector(), f.injector} }
func (f faulty) Keyring() coord.Keyring { return faultyKeyring{f.Backend.Keyring(), f.injector} }

func (f faulty) Ping(ctx context.Context) error {
	return f.read(ctx, "backend.ping", func() error { return f.Backend.Ping(ctx) })
}

// InTx is cut at the commit. What fn returns is never lost: it stays on this side.
func (f faulty) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	var own error
	err := f.write(ctx, "backend.tx", func() error {
		return f.Backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			own = fn(ctx, faultyTx{tx, f.injector})
			return own
		})
	})
	if own != nil {
		return own
	}
	return err
}

type faultyTx struct {
	coord.Tx
	*injector
}

func (f faultyTx) PutTask(ctx context.Context, t coord.Task) (coord.Task, error) {
	return answer(ctx, f.read, "tx.put_task", func() (coord.Task, error) { return f.Tx.PutTask(ctx, t) })
}

func (f faultyTx) DeleteTask(ctx context.Context, name string) error {
	return f.read(ctx, "tx.delete_task", func() error { return f.Tx.DeleteTask(ctx, name) })
}

func (f faultyTx) PauseTask(ctx context.Context, name string, paused bool) error {
	return f.read(ctx, "tx.pause_task", func() error { return f.Tx.PauseTask(ctx, name, paused) })
}

func (f faultyTx) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error) {
	return answer(ctx, f.read, "tx.trigger", func() (coord.Run, error) { return f.Tx.Trigger(ctx, name, o) })
}

func (f faultyTx) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	return answer(ctx, f.read, "tx.enqueue", func() ([]coord.Run, error) { return f.Tx.Enqueue(ctx, runs...) })
}

func (f faultyTx) Finish(ctx context.Context, results ...coord.Result) error {
	return f.read(ctx, "tx.finish", func() error { return f.Tx.Finish(ctx, results...) })
}

func (f faultyTx) Report(ctx context.Context, reports ...coord.Report) error {
	return f.read(ctx, "tx.report", func() error { return f.Tx.Report(ctx, reports...) })
}

func (f faultyTx) Cancel(ctx context.Context, id coord.RunID) error {
	return f.read(ctx, "tx.cancel", func() error { return f.Tx.Cancel(ctx, id) })
}

func (f faultyTx) Publish(ctx context.Context, events ...coord.NewEvent) error {
	return f.read(ctx, "tx.publish", func() error { return f.Tx.Publish(ctx, events...) })
}

func (f faultyTx) OpenCall(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	return answer(ctx, f.read, "tx.open_call", func() (coord.Call, error) { return f.Tx.OpenCall(ctx, n) })
}

func (f faultyTx) CancelCall(ctx context.Context, id coord.CallID, reason string) error {
	return f.read(ctx, "tx.cancel_call", func() error { return f.Tx.CancelCall(ctx, id, reason) })
}

func (f faultyTx) CompleteReceipt(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return f.read(ctx, "tx.complete_receipt", func() error { return f.Tx.CompleteReceipt(ctx, held, o) })
}

func (f faultyTx) Fence(ctx context.Context, t coord.Term) error {
	return f.read(ctx, "tx.fence", func() error { return f.Tx.Fence(ctx, t) })
}

func (f faultyTx) ChangeRing(ctx context.Context, c coord.RingChange) (coord.Ring, error) {
	return answer(ctx, f.read, "tx.change_ring", func() (coord.Ring, error) { return f.Tx.ChangeRing(ctx, c) })
}

func (f faultyTx) HoldRing(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	return answer(ctx, f.read, "tx.hold_ring", func() (coord.Ring, error) { return f.Tx.HoldRing(ctx, known) })
}

type faultyClaimer struct {
	coord.Claimer
	*injector
}

func (f faultyClaimer) PutTask(ctx context.Context, t coord.Task) (coord.Task, error) {
	return answer(ctx, f.write, "claimer.put_task", func() (coord.Task, error) { return f.Claimer.PutTask(ctx, t) })
}

func (f faultyClaimer) Task(ctx context.Context, name string) (coord.Task, error) {
	return answer(ctx, f.read, "claimer.task", func() (coord.Task, error) { return f.Claimer.Task(ctx, name) })
}

func (f faultyClaimer) Tasks(ctx context.Context) iter.Seq2[coord.Task, error] {
	return listing(ctx, f.injector, "claimer.tasks", f.Claimer.Tasks(ctx))
}

func (f faultyClaimer) DeleteTask(ctx context.Context, name string) error {
	return f.write(ctx, "claimer.delete_task", func() error { return f.Claimer.DeleteTask(ctx, name) })
}

func (f faultyClaimer) PauseTask(ctx context.Context, name string, paused bool) error {
	return f.write(ctx, "claimer.pause_task", func() error { return f.Claimer.PauseTask(ctx, name, paused) })
}

func (f faultyClaimer) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error) {
	return answer(ctx, f.write, "claimer.trigger", func() (coord.Run, error) { return f.Claimer.Trigger(ctx, name, o) })
}

func (f faultyClaimer) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	return answer(ctx, f.write, "claimer.enqueue", func() ([]coord.Run, error) { return f.Claimer.Enqueue(ctx, runs...) })
}

func (f faultyClaimer) Claim(ctx context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	return answer(ctx, f.write, "claimer.claim", func() ([]coord.Claim, error) { return f.Claimer.Claim(ctx, o) })
}

func (f faultyClaimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	return answer(ctx, f.write, "claimer.extend", func() ([]coord.Claim,
		error,
	) {
		return f.Claimer.Extend(ctx, lease, claims...)
	})
}

func (f faultyClaimer) Finish(ctx context.Context, results ...coord.Result) error {
	return f.write(ctx, "claimer.finish", func() error { return f.Claimer.Finish(ctx, results...) })
}

func (f faultyClaimer) Report(ctx context.Context, reports ...coord.Report) error {
	return f.write(ctx, "claimer.report", func() error { return f.Claimer.Report(ctx, reports...) })
}

func (f faultyClaimer) Cancel(ctx context.Context, id coord.RunID) error {
	return f.write(ctx, "claimer.cancel", func() error { return f.Claimer.Cancel(ctx, id) })
}

func (f faultyClaimer) Run(ctx context.Context, id coord.RunID) (coord.Run, error) {
	return answer(ctx, f.read, "claimer.run", func() (coord.Run, error) { return f.Claimer.Run(ctx, id) })
}

func (f faultyClaimer) Runs(ctx context.Context, filter coord.RunFilter) iter.Seq2[coord.Run, error] {
	return listing(ctx, f.injector, "claimer.runs", f.Claimer.Runs(ctx, filter))
}

func (f faultyClaimer) Log(ctx context.Context, id coord.RunID, after int) iter.Seq2[coord.LogLine, error] {
	return listing(ctx, f.injector, "claimer.log", f.Claimer.Log(ctx, id, after))
}

func (f faultyClaimer) NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error) {
	err = f.read(ctx, "claimer.next_due", func() (err error) {
		wait, some, err = f.Claimer.NextDue(ctx, kinds...)
		return err
	})
	return wait, some, err
}

func (f faultyClaimer) Prune(ctx context.Context, r coord.RunRetention) (int, error) {
	return answer(ctx, f.write, "claimer.prune", func() (int, error) { return f.Claimer.Prune(ctx, r) })
}

// listing lets a listing meet its fault before its first item.
func listing[T any](ctx context.Context, i *injector, op string, list iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := i.read(ctx, op, func() error { return nil }); err != nil {
			var none T
			yield(none, err)
			return
		}
		list(yield)
	}
}

type faultyTickets struct {
	coord.Tickets
	*injector
}

func (f faultyTickets) Issue(ctx context.Context, t coord.TicketFor) (coord.Ticket, error) {
	return answer(ctx, f.write, "tickets.issue", func() (coord.Ticket, error) { return f.Tickets.Issue(ctx, t) })
}

func (f faultyTickets) Redeem(ctx context.Context, secret string, use coord.TicketUse) (coord.TicketFor, error) {
	return answer(ctx, f.write, "tickets.redeem", func() (coord.TicketFor,
		error,
	) {
		return f.Tickets.Redeem(ctx, secret, use)
	})
}

func (f faultyTickets) Reap(ctx context.Context) (int, error) {
	return answer(ctx, f.write, "tickets.reap", func() (int, error) { return f.Tickets.Reap(ctx) })
}

type faultyLimiter struct {
	coord.Limiter
	*injector
}

func (f faultyLimiter) Allow(ctx context.Context, l coord.Limit) (coord.Decision, error) {
	return answer(ctx, f.write, "limiter.allow", func() (coord.Decision, error) { return f.Limiter.Allow(ctx, l) })
}

func (f faultyLimiter) AllowAll(ctx context.Context, limits ...coord.Limit) ([]coord.Decision, error) {
	return answer(ctx, f.write, "limiter.allow_all", func() ([]coord.Decision,
		error,
	) {
		return f.Limiter.AllowAll(ctx, limits...)
	})
}

func (f faultyLimiter) Peek(ctx context.Context, l coord.Limit) (coord.Decision, error) {
	return answer(ctx, f.read, "limiter.peek", func() (coord.Decision, error) { return f.Limiter.Peek(ctx, l) })
}

func (f faultyLimiter) Reset(ctx context.Context, key string) error {
	return f.write(ctx, "limiter.reset", func() error { return f.Limiter.Reset(ctx, key) })
}

func (f faultyLimiter) Reap(ctx context.Context) (int, error) {
	return answer(ctx, f.write, "limiter.reap", func() (int, error) { return f.Limiter.Reap(ctx) })
}

type faultyBroadcaster struct {
	coord.Broadcaster
	*injector
}

func (f faultyBroadcaster) Publish(ctx context.Context, events ...coord.NewEvent) ([]coord.Position, error) {
	return answer(ctx, f.write, "broadcaster.publish", func() ([]coord.Position,
		error,
	) {
		return f.Broadcaster.Publish(ctx, events...)
	})
}

func (f faultyBroadcaster) Subscribe(ctx context.Context, from map[string]coord.Position) (coord.Stream, error) {
	var stream coord.Stream
	err := f.read(ctx, "broadcaster.subscribe", func() (err error) {
		stream, err = f.Broadcaster.Subscribe(ctx, from)
		return err
	})
	if err != nil {
		if stream != nil {
			stream.Close()
		}
		return nil, err
	}
	return faultyStream{stream, f.injector}, nil
}

func (f faultyBroadcaster) Read(ctx context.Context, topic string, from coord.Position, limit int) ([]coord.Event, error) {
	return answer(ctx, f.read, "broadcaster.read", func() ([]coord.Event,
		error,
	) {
		return f.Broadcaster.Read(ctx, topic, from, limit)
	})
}

func (f faultyBroadcaster) Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error) {
	return answer(ctx, f.read, "broadcaster.heads", func() (map[string]coord.Position,
		error,
	) {
		return f.Broadcaster.Heads(ctx, topics...)
	})
}

func (f faultyBroadcaster) Trim(ctx context.Context, r coord.EventRetention) (int, error) {
	return answer(ctx, f.write, "broadcaster.trim", func() (int, error) { return f.Broadcaster.Trim(ctx, r) })
}

type faultyDirectory struct {
	coord.Directory
	*injector
}

func (f faultyDirectory) Join(ctx context.Context, n coord.NewMember) (coord.Member, error) {
	m, err := answer(ctx, f.write, "directory.join", func() (coord.Member, error) { return f.Directory.Join(ctx, n) })
	if err != nil {
		return nil, err
	}
	return &faultyMember{Member: m, injector: f.injector}, nil
}

func (f faultyDirectory) Members(ctx context.Context) ([]coord.MemberInfo, error) {
	return answer(ctx, f.read, "directory.members", func() ([]coord.MemberInfo, error) { return f.Directory.Members(ctx) })
}

func (f faultyDirectory) Lookup(ctx context.Context, keys ...string) (map[string]coord.Entry, error) {
	return answer(ctx, f.read, "directory.lookup", func() (map[string]coord.Entry, error) {
		return f.Directory.Lookup(ctx, keys...)
	})
}

func (f faultyDirectory) List(ctx context.Context, filter coord.EntryFilter) ([]coord.Entry, error) {
	return answer(ctx, f.read, "directory.list", func() ([]coord.Entry, error) { return f.Directory.List(ctx, filter) })
}

func (f faultyDirectory) Sweep(ctx context.Context) ([]coord.Entry, error) {
	return answer(ctx, f.write, "directory.sweep", func() ([]coord.Entry, error) { return f.Directory.Sweep(ctx) })
}

type faultyMember struct {
	coord.Member
	*injector

	mu     sync.Mutex
	untold []coord.Registration // losses of which the answer was cut
}

func (f *faultyMember) Register(ctx context.Context, key string, data []byte) (coord.Registration, error) {
	return answer(ctx, f.write, "member.register", func() (coord.Registration, error) {
		return f.Member.Register(ctx, key, data)
	})
}

func (f *faultyMember) Update(ctx context.Context, r coord.Registration, data []byte) error {
	return f.write(ctx, "member.update", func() error { return f.Member.Update(ctx, r, data) })
}

func (f *faultyMember) Deregister(ctx context.Context, rs ...coord.Registration) error {
	return f.write(ctx, "member.deregister", func() error { return f.Member.Deregister(ctx, rs...) })
}

// Renew tells of a loss again that was in an answer which was cut, as a driver does
// that has not got the answer.
func (f *faultyMember) Renew(ctx context.Context) ([]coord.Registration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.write(ctx, "member.renew", func() error {
		lost, err := f.Member.Renew(ctx)
		f.untold = append(f.untold, lost...)
		return err
	})
	if err != nil {
		return nil, err
	}
	lost := f.untold
	f.untold = nil
	return lost, nil
}

func (f *faultyMember) Leave(ctx context.Context) error {
	return f.write(ctx, "member.leave", func() error { return f.Member.Leave(ctx) })
}

type faultyCalls struct {
	coord.Calls
	*injector
}

func (f faultyCalls) Open(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	return answer(ctx, f.write, "calls.open", func() (coord.Call, error) { return f.Calls.Open(ctx, n) })
}

func (f faultyCalls) Answer(ctx context.Context, a coord.Answer) error {
	return f.write(ctx, "calls.answer", func() error { return f.Calls.Answer(ctx, a) })
}

func (f faultyCalls) Cancel(ctx context.Context, id coord.CallID, reason string) error {
	return f.write(ctx, "calls.cancel", func() error { return f.Calls.Cancel(ctx, id, reason) })
}

func (f faultyCalls) Get(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return answer(ctx, f.read, "calls.get", func() (coord.Call, error) { return f.Calls.Get(ctx, id) })
}

func (f faultyCalls) Find(ctx context.Context, key string) (coord.Call, error) {
	return answer(ctx, f.read, "calls.find", func() (coord.Call, error) { return f.Calls.Find(ctx, key) })
}

func (f faultyCalls) Wait(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return answer(ctx, f.read, "calls.wait", func() (coord.Call, error) { return f.Calls.Wait(ctx, id) })
}

func (f faultyCalls) Pending(ctx context.Context, target string) ([]coord.Call, error) {
	return answer(ctx, f.read, "calls.pending", func() ([]coord.Call, error) { return f.Calls.Pending(ctx, target) })
}

func (f faultyCalls) Reap(ctx context.Context, age time.Duration) (int, error) {
	return answer(ctx, f.write, "calls.reap", func() (int, error) { return f.Calls.Reap(ctx, age) })
}

type faultyStream struct {
	coord.Stream
	*injector
}

func (f faultyStream) Next(ctx context.Context) ([]coord.Event, error) {
	if err := f.read(ctx, "stream.next", func() error { return nil }); err != nil {
		return nil, err
	}
	return f.Stream.Next(ctx)
}

func (f faultyStream) Add(ctx context.Context, from map[string]coord.Position) error {
	return f.read(ctx, "stream.add", func() error { return f.Stream.Add(ctx, from) })
}

type faultyReceipts struct {
	coord.Receipts
	*injector
}

func (f faultyReceipts) Begin(ctx context.Context, r coord.ReceiptFor) (coord.Receipt, error) {
	return answer(ctx, f.write, "receipts.begin", func() (coord.Receipt, error) { return f.Receipts.Begin(ctx, r) })
}

func (f faultyReceipts) Extend(ctx context.Context, held coord.Receipt, lease time.Duration) (coord.Receipt, error) {
	return answer(ctx, f.write, "receipts.extend", func() (coord.Receipt, error) { return f.Receipts.Extend(ctx, held, lease) })
}

func (f faultyReceipts) Complete(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return f.write(ctx, "receipts.complete", func() error { return f.Receipts.Complete(ctx, held, o) })
}

func (f faultyReceipts) Release(ctx context.Context, held coord.Receipt) error {
	return f.write(ctx, "receipts.release", func() error { return f.Receipts.Release(ctx, held) })
}

func (f faultyReceipts) Reap(ctx context.Context) (int, error) {
	return answer(ctx, f.write, "receipts.reap", func() (int, error) { return f.Receipts.Reap(ctx) })
}

type faultyElector struct {
	coord.Elector
	*injector
}

func (f faultyElector) Stand(ctx context.Context, c coord.Candidacy) (coord.Leadership, error) {
	return answer(ctx, f.write, "elector.stand", func() (coord.Leadership, error) { return f.Elector.Stand(ctx, c) })
}

func (f faultyElector) Extend(ctx context.Context, t coord.Term, lease time.Duration) (coord.Leadership, error) {
	return answer(ctx, f.write, "elector.extend", func() (coord.Leadership, error) { return f.Elector.Extend(ctx, t, lease) })
}

func (f faultyElector) Resign(ctx context.Context, t coord.Term) error {
	return f.write(ctx, "elector.resign", func() error { return f.Elector.Resign(ctx, t) })
}

func (f faultyElector) Leaders(ctx context.Context) ([]coord.Leadership, error) {
	return answer(ctx, f.read, "elector.leaders", func() ([]coord.Leadership, error) { return f.Elector.Leaders(ctx) })
}

type faultyKeyring struct {
	coord.Keyring
	*injector
}

func (f faultyKeyring) Load(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	return answer(ctx, f.read, "keyring.load", func() (coord.Ring, error) { return f.Keyring.Load(ctx, known) })
}
