package coord

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
)

// fake is a driver whose every method notes that it was called and returns err.
type fake struct {
	mu     sync.Mutex
	err    error
	called []string
	hook   func() // runs inside every call
}

func (f *fake) call(method string) error {
	f.mu.Lock()
	f.called = append(f.called, method)
	err, hook := f.err, f.hook
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	return err
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// calls returns the methods called since it was last asked.
func (f *fake) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	called := f.called
	f.called = nil
	return called
}

type (
	fakeClaimer     struct{ *fake }
	fakeTickets     struct{ *fake }
	fakeLimiter     struct{ *fake }
	fakeBroadcaster struct{ *fake }
	fakeDirectory   struct{ *fake }
	fakeMember      struct{ *fake }
	fakeStream      struct{ *fake }
	fakeCalls       struct{ *fake }
	fakeReceipts    struct{ *fake }
	fakeElector     struct{ *fake }
	fakeKeyring     struct{ *fake }
	fakeTx          struct{ *fake }
)

func (f *fake) Claimer() Claimer           { return fakeClaimer{f} }
func (f *fake) Tickets() Tickets           { return fakeTickets{f} }
func (f *fake) Limiter() Limiter           { return fakeLimiter{f} }
func (f *fake) Broadcaster() Broadcaster   { return fakeBroadcaster{f} }
func (f *fake) Directory() Directory       { return fakeDirectory{f} }
func (f *fake) Calls() Calls               { return fakeCalls{f} }
func (f *fake) Receipts() Receipts         { return fakeReceipts{f} }
func (f *fake) Elector() Elector           { return fakeElector{f} }
func (f *fake) Keyring() Keyring           { return fakeKeyring{f} }
func (f *fake) Ping(context.Context) error { return f.call("Backend.Ping") }
func (f *fake) Close(context.Context) error {
	return f.call("Backend.Close")
}

func (f *fake) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	if err := f.call("Backend.InTx"); err != nil {
		return err
	}
	return fn(ctx, fakeTx{f})
}

func (f fakeClaimer) PutTask(_ context.Context, t Task) (Task, error) {
	return t, f.call("Claimer.PutTask")
}

func (f fakeClaimer) Task(context.Context, string) (Task, error) {
	return Task{}, f.call("Claimer.Task")
}

func (f fakeClaimer) Tasks(context.Context) iter.Seq2[Task, error] {
	return func(yield func(Task, error) bool) {
		if err := f.call("Claimer.Tasks"); err != nil {
			yield(Task{}, err)
			return
		}
		_ = yield(Task{Name: "a"}, nil) && yield(Task{Name: "b"}, nil)
	}
}

func (f fakeClaimer) DeleteTask(context.Context, string) error { return f.call("Claimer.DeleteTask") }

func (f fakeClaimer) PauseTask(context.Context, string, bool) error {
	return f.call("Claimer.PauseTask")
}

func (f fakeClaimer) Trigger(context.Context, string, TriggerOptions) (Run, error) {
	return Run{}, f.call("Claimer.Trigger")
}

func (f fakeClaimer) Enqueue(_ context.Context, runs ...NewRun) ([]Run, error) {
	return make([]Run, len(runs)), f.call("Claimer.Enqueue")
}

func (f fakeClaimer) Claim(context.Context, ClaimOptions) ([]Claim, error) {
	return []Claim{{Run: Run{ID: 1}, Token: 1}}, f.call("Claimer.Claim")
}

func (f fakeClaimer) Extend(_ context.Context, _ time.Duration, claims ...Claim) ([]Claim, error) {
	return slices.Clone(claims), f.call("Claimer.Extend")
}
func (f fakeClaimer) Finish(context.Context, ...Result) error { return f.call("Claimer.Finish") }
func (f fakeClaimer) Report(context.Context, ...Report) error { return f.call("Claimer.Report") }
func (f fakeClaimer) Cancel(context.Context, RunID) error     { return f.call("Claimer.Cancel") }
func (f fakeClaimer) Run(context.Context, RunID) (Run, error) { return Run{}, f.call("Claimer.Run") }

func (f fakeClaimer) Runs(context.Context, RunFilter) iter.Seq2[Run, error] {
	return func(yield func(Run, error) bool) {
		if err := f.call("Claimer.Runs"); err != nil {
			yield(Run{}, err)
			return
		}
		_ = yield(Run{ID: 2}, nil) && yield(Run{ID: 1}, nil)
	}
}

func (f fakeClaimer) Log(context.Context, RunID, int) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		if err := f.call("Claimer.Log"); err != nil {
			yield(LogLine{}, err)
			return
		}
		_ = yield(LogLine{Number: 1}, nil) && yield(LogLine{Number: 2}, nil)
	}
}

func (f fakeClaimer) NextDue(context.Context, ...string) (time.Duration, bool, error) {
	return time.Minute, true, f.call("Claimer.NextDue")
}

func (f fakeClaimer) Prune(context.Context, RunRetention) (int, error) {
	return 1, f.call("Claimer.Prune")
}
func (f fakeClaimer) Hints() (<-chan struct{}, func())   { return nil, func() {} }
func (f fakeClaimer) Cancels() (<-chan struct{}, func()) { return nil, func() {} }

func (f fakeTickets) Issue(context.Context, TicketFor) (Ticket, error) {
	return Ticket{Secret: secret}, f.call("Tickets.Issue")
}

func (f fakeTickets) Redeem(context.Context, string, TicketUse) (TicketFor, error) {
	return TicketFor{}, f.call("Tickets.Redeem")
}
func (f fakeTickets) Reap(context.Context) (int, error) { return 1, f.call("Tickets.Reap") }

func (f fakeLimiter) Allow(context.Context, Limit) (Decision, error) {
	return Decision{}, f.call("Limiter.Allow")
}

func (f fakeLimiter) AllowAll(_ context.Context, limits ...Limit) ([]Decision, error) {
	return make([]Decision, len(limits)), f.call("Limiter.AllowAll")
}

func (f fakeLimiter) Peek(context.Context, Limit) (Decision, error) {
	return Decision{}, f.call("Limiter.Peek")
}
func (f fakeLimiter) Reset(context.Context, string) error { return f.call("Limiter.Reset") }
func (f fakeLimiter) Reap(context.Context) (int, error)   { return 1, f.call("Limiter.Reap") }

func (f fakeBroadcaster) Publish(_ context.Context, events ...NewEvent) ([]Position, error) {
	return make([]Position, len(events)), f.call("Broadcaster.Publish")
}

func (f fakeBroadcaster) Subscribe(context.Context, map[string]Position) (Stream, error) {
	if err := f.call("Broadcaster.Subscribe"); err != nil {
		return nil, err
	}
	return fakeStream(f), nil
}

func (f fakeBroadcaster) Read(context.Context, string, Position, int) ([]Event, error) {
	return nil, f.call("Broadcaster.Read")
}

func (f fakeBroadcaster) Heads(context.Context, ...string) (map[string]Position, error) {
	return nil, f.call("Broadcaster.Heads")
}

func (f fakeBroadcaster) Trim(context.Context, EventRetention) (int, error) {
	return 1, f.call("Broadcaster.Trim")
}

func (f fakeStream) Next(context.Context) ([]Event, error) {
	return []Event{{Topic: "t"}}, f.call("Stream.Next")
}

func (f fakeStream) Add(context.Context, map[string]Position) error { return f.call("Stream.Add") }
func (f fakeStream) Remove(...string)                               { _ = f.call("Stream.Remove") }
func (f fakeStream) Positions() map[string]Position                 { return map[string]Position{"t": Start} }
func (f fakeStream) Lag() int64                                     { return 0 }
func (f fakeStream) Close()                                         { _ = f.call("Stream.Close") }

func (f fakeCalls) Open(context.Context, NewCall) (Call, error) {
	return Call{}, f.call("Calls.Open")
}
func (f fakeCalls) Answer(context.Context, Answer) error         { return f.call("Calls.Answer") }
func (f fakeCalls) Cancel(context.Context, CallID, string) error { return f.call("Calls.Cancel") }
func (f fakeCalls) Get(context.Context, CallID) (Call, error)    { return Call{}, f.call("Calls.Get") }

func (f fakeCalls) Find(context.Context, string) (Call, error) { return Call{}, f.call("Calls.Find") }

func (f fakeCalls) Wait(context.Context, CallID) (Call, error) { return Call{}, f.call("Calls.Wait") }

func (f fakeCalls) Pending(context.Context, string) ([]Call, error) {
	return []Call{{ID: okCall}}, f.call("Calls.Pending")
}

func (f fakeCalls) Reap(context.Context, time.Duration) (int, error) { return 1, f.call("Calls.Reap") }

func (f fakeReceipts) Begin(_ context.Context, r ReceiptFor) (Receipt, error) {
	return Receipt{Key: r.Key, State: ReceiptMine, Token: 1}, f.call("Receipts.Begin")
}

func (f fakeReceipts) Extend(_ context.Context, held Receipt, _ time.Duration) (Receipt, error) {
	return held, f.call("Receipts.Extend")
}

func (f fakeReceipts) Complete(context.Context, Receipt, ReceiptOutcome) error {
	return f.call("Receipts.Complete")
}
func (f fakeReceipts) Release(context.Context, Receipt) error { return f.call("Receipts.Release") }
func (f fakeReceipts) Changes() (<-chan struct{}, func())     { return nil, func() {} }
func (f fakeReceipts) Reap(context.Context) (int, error)      { return 1, f.call("Receipts.Reap") }

func (f fakeElector) Stand(_ context.Context, c Candidacy) (Leadership, error) {
	return Leadership{Term: Term{c.Name, 1}, Mine: true}, f.call("Elector.Stand")
}

func (f fakeElector) Extend(_ context.Context, t Term, _ time.Duration) (Leadership, error) {
	return Leadership{Term: t, Mine: true}, f.call("Elector.Extend")
}
func (f fakeElector) Resign(context.Context, Term) error { return f.call("Elector.Resign") }
func (f fakeElector) Leaders(context.Context) ([]Leadership, error) {
	return nil, f.call("Elector.Leaders")
}
func (f fakeElector) Changes() (<-chan struct{}, func()) { return nil, func() {} }

func (f fakeKeyring) Load(_ context.Context, known Ring) (Ring, error) {
	return known, f.call("Keyring.Load")
}
func (f fakeKeyring) Changes() (<-chan struct{}, func()) { return nil, func() {} }

func (f fakeDirectory) Join(context.Context, NewMember) (Member, error) {
	if err := f.call("Directory.Join"); err != nil {
		return nil, err
	}
	return fakeMember(f), nil
}

func (f fakeDirectory) Members(context.Context) ([]MemberInfo, error) {
	return []MemberInfo{{Name: "a"}}, f.call("Directory.Members")
}

func (f fakeDirectory) Lookup(context.Context, ...string) (map[string]Entry, error) {
	return map[string]Entry{}, f.call("Directory.Lookup")
}

func (f fakeDirectory) List(context.Context, EntryFilter) ([]Entry, error) {
	return []Entry{{Member: "m"}}, f.call("Directory.List")
}

func (f fakeDirectory) Sweep(context.Context) ([]Entry, error) {
	return []Entry{{Member: "m"}}, f.call("Directory.Sweep")
}
func (f fakeDirectory) Changes() (<-chan struct{}, func()) { return nil, func() {} }

func (f fakeMember) ID() MemberID        { return "m" }
func (f fakeMember) Deadline() time.Time { return time.Time{} }
func (f fakeMember) Register(_ context.Context, key string, _ []byte) (Registration, error) {
	return Registration{Key: key, Epoch: 1}, f.call("Member.Register")
}

func (f fakeMember) Update(context.Context, Registration, []byte) error {
	return f.call("Member.Update")
}

func (f fakeMember) Deregister(context.Context, ...Registration) error {
	return f.call("Member.Deregister")
}

func (f fakeMember) Renew(context.Context) ([]Registration, error) {
	return []Registration{{Key: "k", Epoch: 1}}, f.call("Member.Renew")
}
func (f fakeMember) Leave(context.Context) error { return f.call("Member.Leave") }

func (f fakeTx) PutTask(_ context.Context, t Task) (Task, error) { return t, f.call("Tx.PutTask") }
func (f fakeTx) DeleteTask(context.Context, string) error        { return f.call("Tx.DeleteTask") }
func (f fakeTx) PauseTask(context.Context, string, bool) error   { return f.call("Tx.PauseTask") }
func (f fakeTx) Trigger(context.Context, string, TriggerOptions) (Run, error) {
	return Run{}, f.call("Tx.Trigger")
}

func (f fakeTx) Enqueue(_ context.Context, runs ...NewRun) ([]Run, error) {
	return make([]Run, len(runs)), f.call("Tx.Enqueue")
}
func (f fakeTx) Finish(context.Context, ...Result) error    { return f.call("Tx.Finish") }
func (f fakeTx) Report(context.Context, ...Report) error    { return f.call("Tx.Report") }
func (f fakeTx) Cancel(context.Context, RunID) error        { return f.call("Tx.Cancel") }
func (f fakeTx) Publish(context.Context, ...NewEvent) error { return f.call("Tx.Publish") }

func (f fakeTx) OpenCall(context.Context, NewCall) (Call, error) {
	return Call{}, f.call("Tx.OpenCall")
}
func (f fakeTx) CancelCall(context.Context, CallID, string) error { return f.call("Tx.CancelCall") }
func (f fakeTx) CompleteReceipt(context.Context, Receipt, ReceiptOutcome) error {
	return f.call("Tx.CompleteReceipt")
}
func (f fakeTx) Fence(context.Context, Term) error { return f.call("Tx.Fence") }
func (f fakeTx) ChangeRing(_ context.Context, c RingChange) (Ring, error) {
	return Ring{Name: c.Ring, Revision: c.Revision + 1}, f.call("Tx.ChangeRing")
}

func (f fakeTx) HoldRing(_ context.Context, known Ring) (Ring, error) {
	return known, f.call("Tx.HoldRing")
}
func (f fakeTx) Unwrap() any { return f.fake }

// secret is that of a ticket. It must not turn up anywhere.
const secret = "s3cr3t-s3cr3t-s3cr3t-0"

// objects are what the operations are called on.
type objects struct {
	b  Backend
	s  Stream
	m  Member
	tx Tx
}

// operation is one method with a good request.
type operation struct {
	method string // of the interface, as the fake notes it
	op     string // as errors and observations name it
	key    string
	items  int
	do     func(ctx context.Context, o objects) error
}

func one[T any](_ T, err error) error { return err }

// last drains a listing.
func last[T any](list iter.Seq2[T, error]) (last error) {
	for _, err := range list {
		last = err
	}
	return last
}

const okCall CallID = "AAECAwQFBgcICQoLDA0ODw"

var (
	okTask   = Task{Name: "nightly", Kind: "k", Schedule: "@daily"}
	okClaim  = Claim{Run: Run{ID: 7}, Token: 3}
	okResult = Result{Claim: okClaim, Outcome: Succeed}
	okReport = Report{Claim: okClaim, Progress: 50, Lines: []string{"half"}}
	okLimit  = Limit{Key: "sign-in", Rate: 3, Per: time.Minute}
	okFrom   = map[string]Position{"t": Head}
	okEvent  = NewEvent{Topic: "room:1", Kind: "k"}
	okTicket = TicketFor{Purpose: "ws", User: "ann", Session: "s"}
	okAsk    = NewCall{Target: "user:1", Kind: "confirm"}
	okHold   = Receipt{Key: "order-7", State: ReceiptMine, Token: 1}
	okTerm   = Term{Name: "reaper", Epoch: 1}
)

var operations = []operation{
	{"Backend.Ping", "backend.ping", "", 1, func(ctx context.Context, o objects) error { return o.b.Ping(ctx) }},
	{"Backend.InTx", "backend.tx", "", 1, func(ctx context.Context, o objects) error {
		return o.b.InTx(ctx, func(context.Context, Tx) error { return nil })
	}},

	{"Claimer.PutTask", "claimer.put_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().PutTask(ctx, okTask))
	}},
	{"Claimer.Task", "claimer.task", "nightly", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Task(ctx, "nightly"))
	}},
	{"Claimer.Tasks", "claimer.tasks", "", 1, func(ctx context.Context, o objects) error {
		return last(o.b.Claimer().Tasks(ctx))
	}},
	{"Claimer.DeleteTask", "claimer.delete_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return o.b.Claimer().DeleteTask(ctx, "nightly")
	}},
	{"Claimer.PauseTask", "claimer.pause_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return o.b.Claimer().PauseTask(ctx, "nightly", true)
	}},
	{"Claimer.Trigger", "claimer.trigger", "nightly", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Trigger(ctx, "nightly", TriggerOptions{Key: "key"}))
	}},
	{"Claimer.Enqueue", "claimer.enqueue", "", 2, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Enqueue(ctx, NewRun{Kind: "a"}, NewRun{Kind: "b"}))
	}},
	{"Claimer.Claim", "claimer.claim", "me", 9, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Claim(ctx, ClaimOptions{Worker: "me", Kinds: []string{"k"}, Limit: 9, Lease: time.Minute}))
	}},
	{"Claimer.Extend", "claimer.extend", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Extend(ctx, time.Minute, okClaim))
	}},
	{"Claimer.Finish", "claimer.finish", "7", 1, func(ctx context.Context, o objects) error {
		return o.b.Claimer().Finish(ctx, okResult)
	}},
	{"Claimer.Report", "claimer.report", "7", 1, func(ctx context.Context, o objects) error {
		return o.b.Claimer().Report(ctx, okReport)
	}},
	{"Claimer.Cancel", "claimer.cancel", "7", 1, func(ctx context.Context, o objects) error {
		return o.b.Claimer().Cancel(ctx, 7)
	}},
	{"Claimer.Run", "claimer.run", "7", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Run(ctx, 7))
	}},
	{"Claimer.Runs", "claimer.runs", "", 1, func(ctx context.Context, o objects) error {
		return last(o.b.Claimer().Runs(ctx, RunFilter{}))
	}},
	{"Claimer.Log", "claimer.log", "", 1, func(ctx context.Context, o objects) error {
		return last(o.b.Claimer().Log(ctx, 7, 0))
	}},
	{"Claimer.NextDue", "claimer.next_due", "", 1, func(ctx context.Context, o objects) error {
		_, _, err := o.b.Claimer().NextDue(ctx)
		return err
	}},
	{"Claimer.Prune", "claimer.prune", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Claimer().Prune(ctx, RunRetention{Keep: 1}))
	}},

	{"Tickets.Issue", "tickets.issue", "ann", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Tickets().Issue(ctx, okTicket))
	}},
	{"Tickets.Redeem", "tickets.redeem", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Tickets().Redeem(ctx, secret, TicketUse{Purpose: "ws"}))
	}},
	{"Tickets.Reap", "tickets.reap", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Tickets().Reap(ctx))
	}},

	{"Limiter.Allow", "limiter.allow", "sign-in", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Limiter().Allow(ctx, okLimit))
	}},
	{"Limiter.AllowAll", "limiter.allow_all", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Limiter().AllowAll(ctx, okLimit))
	}},
	{"Limiter.Peek", "limiter.peek", "sign-in", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Limiter().Peek(ctx, okLimit))
	}},
	{"Limiter.Reset", "limiter.reset", "sign-in", 1, func(ctx context.Context, o objects) error {
		return o.b.Limiter().Reset(ctx, "sign-in")
	}},
	{"Limiter.Reap", "limiter.reap", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Limiter().Reap(ctx))
	}},

	{"Broadcaster.Publish", "broadcaster.publish", "room:1", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Broadcaster().Publish(ctx, okEvent))
	}},
	{"Broadcaster.Subscribe", "broadcaster.subscribe", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Broadcaster().Subscribe(ctx, okFrom))
	}},
	{"Broadcaster.Read", "broadcaster.read", "t", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Broadcaster().Read(ctx, "t", Start, 1))
	}},
	{"Broadcaster.Heads", "broadcaster.heads", "", 2, func(ctx context.Context, o objects) error {
		return one(o.b.Broadcaster().Heads(ctx, "t", "u"))
	}},
	{"Broadcaster.Trim", "broadcaster.trim", "room:", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Broadcaster().Trim(ctx, EventRetention{Prefix: "room:", Keep: 1}))
	}},

	{"Calls.Open", "calls.open", "user:1", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Open(ctx, okAsk))
	}},
	{"Calls.Answer", "calls.answer", string(okCall), 1, func(ctx context.Context, o objects) error {
		return o.b.Calls().Answer(ctx, Answer{ID: okCall, Target: "user:1"})
	}},
	{"Calls.Cancel", "calls.cancel", string(okCall), 1, func(ctx context.Context, o objects) error {
		return o.b.Calls().Cancel(ctx, okCall, "no longer needed")
	}},
	{"Calls.Get", "calls.get", string(okCall), 1, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Get(ctx, okCall))
	}},
	{"Calls.Find", "calls.find", "order-7", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Find(ctx, "order-7"))
	}},
	{"Calls.Wait", "calls.wait", string(okCall), 0, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Wait(ctx, okCall))
	}},
	{"Calls.Pending", "calls.pending", "user:1", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Pending(ctx, "user:1"))
	}},
	{"Receipts.Begin", "receipts.begin", "order-7", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Receipts().Begin(ctx, ReceiptFor{Key: "order-7"}))
	}},
	{"Receipts.Extend", "receipts.extend", "order-7", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Receipts().Extend(ctx, okHold, time.Minute))
	}},
	{"Receipts.Complete", "receipts.complete", "order-7", 1, func(ctx context.Context, o objects) error {
		return o.b.Receipts().Complete(ctx, okHold, ReceiptOutcome{})
	}},
	{"Receipts.Release", "receipts.release", "order-7", 1, func(ctx context.Context, o objects) error {
		return o.b.Receipts().Release(ctx, okHold)
	}},
	{"Receipts.Reap", "receipts.reap", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Receipts().Reap(ctx))
	}},
	{"Elector.Stand", "elector.stand", "reaper", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Elector().Stand(ctx, Candidacy{Name: "reaper", Candidate: "node-1"}))
	}},
	{"Elector.Extend", "elector.extend", "reaper", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Elector().Extend(ctx, okTerm, time.Minute))
	}},
	{"Elector.Resign", "elector.resign", "reaper", 1, func(ctx context.Context, o objects) error {
		return o.b.Elector().Resign(ctx, okTerm)
	}},
	{"Elector.Leaders", "elector.leaders", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Elector().Leaders(ctx))
	}},
	{"Keyring.Load", "keyring.load", "tokens", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Keyring().Load(ctx, Ring{Name: "tokens"}))
	}},
	{"Calls.Reap", "calls.reap", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Calls().Reap(ctx, time.Hour))
	}},

	{"Directory.Join", "directory.join", "node-1", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Directory().Join(ctx, NewMember{Name: "node-1"}))
	}},
	{"Directory.Members", "directory.members", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Directory().Members(ctx))
	}},
	{"Directory.Lookup", "directory.lookup", "", 2, func(ctx context.Context, o objects) error {
		return one(o.b.Directory().Lookup(ctx, "a", "b"))
	}},
	{"Directory.List", "directory.list", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Directory().List(ctx, EntryFilter{Prefixes: []string{"user/"}}))
	}},
	{"Directory.Sweep", "directory.sweep", "", 1, func(ctx context.Context, o objects) error {
		return one(o.b.Directory().Sweep(ctx))
	}},

	{"Member.Register", "member.register", "k", 1, func(ctx context.Context, o objects) error {
		return one(o.m.Register(ctx, "k", nil))
	}},
	{"Member.Update", "member.update", "k", 1, func(ctx context.Context, o objects) error {
		return o.m.Update(ctx, Registration{Key: "k", Epoch: 1}, nil)
	}},
	{"Member.Deregister", "member.deregister", "k", 1, func(ctx context.Context, o objects) error {
		return o.m.Deregister(ctx, Registration{Key: "k", Epoch: 1})
	}},
	{"Member.Renew", "member.renew", "", 1, func(ctx context.Context, o objects) error { return one(o.m.Renew(ctx)) }},
	{"Member.Leave", "member.leave", "", 1, func(ctx context.Context, o objects) error { return o.m.Leave(ctx) }},

	{"Stream.Next", "stream.next", "", 0, func(ctx context.Context, o objects) error { return one(o.s.Next(ctx)) }},
	{"Stream.Add", "stream.add", "", 1, func(ctx context.Context, o objects) error { return o.s.Add(ctx, okFrom) }},

	{"Tx.PutTask", "tx.put_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.PutTask(ctx, okTask))
	}},
	{"Tx.DeleteTask", "tx.delete_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return o.tx.DeleteTask(ctx, "nightly")
	}},
	{"Tx.PauseTask", "tx.pause_task", "nightly", 1, func(ctx context.Context, o objects) error {
		return o.tx.PauseTask(ctx, "nightly", true)
	}},
	{"Tx.Trigger", "tx.trigger", "nightly", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.Trigger(ctx, "nightly", TriggerOptions{Key: "key"}))
	}},
	{"Tx.Enqueue", "tx.enqueue", "", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.Enqueue(ctx, NewRun{Kind: "k"}))
	}},
	{"Tx.Finish", "tx.finish", "7", 1, func(ctx context.Context, o objects) error { return o.tx.Finish(ctx, okResult) }},
	{"Tx.Report", "tx.report", "7", 1, func(ctx context.Context, o objects) error { return o.tx.Report(ctx, okReport) }},
	{"Tx.Cancel", "tx.cancel", "7", 1, func(ctx context.Context, o objects) error { return o.tx.Cancel(ctx, 7) }},
	{"Tx.Publish", "tx.publish", "room:1", 1, func(ctx context.Context, o objects) error { return o.tx.Publish(ctx, okEvent) }},

	{"Tx.OpenCall", "tx.open_call", "user:1", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.OpenCall(ctx, okAsk))
	}},
	{"Tx.CompleteReceipt", "tx.complete_receipt", "order-7", 1, func(ctx context.Context, o objects) error {
		return o.tx.CompleteReceipt(ctx, okHold, ReceiptOutcome{})
	}},
	{"Tx.Fence", "tx.fence", "reaper", 1, func(ctx context.Context, o objects) error { return o.tx.Fence(ctx, okTerm) }},
	{"Tx.ChangeRing", "tx.change_ring", "tokens", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.ChangeRing(ctx, RingChange{Ring: "tokens"}))
	}},
	{"Tx.HoldRing", "tx.hold_ring", "tokens", 1, func(ctx context.Context, o objects) error {
		return one(o.tx.HoldRing(ctx, Ring{Name: "tokens"}))
	}},
	{"Tx.CancelCall", "tx.cancel_call", string(okCall), 1, func(ctx context.Context, o objects) error {
		return o.tx.CancelCall(ctx, okCall, "no longer needed")
	}},

	{"Backend.Close", "backend.close", "", 0, func(ctx context.Context, o objects) error { return o.b.Close(ctx) }},
}

// withoutError are the methods that can't fail.
var withoutError = []string{
	"Backend.Claimer", "Backend.Tickets", "Backend.Limiter", "Backend.Broadcaster", "Backend.Directory", "Backend.Calls",
	"Backend.Receipts", "Backend.Elector", "Backend.Keyring",
	"Claimer.Hints", "Claimer.Cancels", "Stream.Remove", "Stream.Positions", "Stream.Lag", "Stream.Close", "Tx.Unwrap",
	"Directory.Changes", "Receipts.Changes", "Elector.Changes", "Keyring.Changes", "Member.ID", "Member.Deadline",
}

// TestEveryMethodIsTested fails when an interface gets a method that the tables
// above do not know.
func TestEveryMethodIsTested(t *testing.T) {
	known := slices.Clone(withoutError)
	for _, op := range operations {
		known = append(known, op.method)
	}
	var all []string
	for _, i := range []reflect.Type{
		reflect.TypeFor[Backend](), reflect.TypeFor[Claimer](), reflect.TypeFor[Tickets](), reflect.TypeFor[Limiter](),
		reflect.TypeFor[Broadcaster](), reflect.TypeFor[Directory](), reflect.TypeFor[Member](), reflect.TypeFor[Calls](), reflect.TypeFor[Receipts](), reflect.TypeFor[Elector](), reflect.TypeFor[Keyring](), reflect.TypeFor[Stream](), reflect.TypeFor[Tx](),
	} {
		for m := range i.Methods() {
			name := i.Name() + "." + m.Name
			all = append(all, name)
			if !slices.Contains(known, name) {
				t.Errorf("%s is in no table of the tests", name)
			}
		}
	}
	for _, name := range known {
		if !slices.Contains(all, name) {
			t.Errorf("there is no method %s", name)
		}
	}
}

// joined is a member of the backend's directory.
func joined(t *testing.T, b Backend) Member {
	t.Helper()
	m, err := b.Directory().Join(t.Context(), NewMember{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// within calls the operation with good objects, those of a transaction inside
// one whose own error must be that of the operation.
func (op operation) within(ctx context.Context, t *testing.T, f *fake, b Backend) error {
	t.Helper()
	f.mu.Lock()
	err := f.err
	f.err = nil
	f.mu.Unlock()
	o := objects{b: b}
	if op.method[:6] == "Member" {
		o.m = joined(t, b)
	}
	var openErr error
	if o.s, openErr = b.Broadcaster().Subscribe(context.WithoutCancel(ctx), nil); openErr != nil {
		t.Fatal(openErr)
	}
	if op.method[:2] != "Tx" {
		f.fail(err)
		f.calls()
		return op.do(ctx, o)
	}
	var got error
	own := errors.New("own")
	txErr := b.InTx(context.WithoutCancel(ctx), func(_ context.Context, tx Tx) error {
		o.tx = tx
		f.fail(err)
		f.calls()
		got = op.do(ctx, o)
		return own
	})
	if txErr != own { //nolint:errorlint // it must be the very same
		t.Errorf("%s: InTx returned %v", op.method, txErr)
	}
	return got
}
