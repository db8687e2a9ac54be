package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// badCall is a request that must be refused with the name of a field.
type badCall struct {
	field string
	why   string
	do    func(f *fixture) error
}

var validationTests = []test{
	{"tasks", refuses(badTasks)},
	{"runs", refuses(badRuns)},
	{"claims", refuses(badClaims)},
	{"tickets", refuses(badTickets)},
	{"limits", refuses(badLimits)},
	{"events", refuses(badEvents)},
	{"entries", refuses(badEntries)},
	{"receipts", refuses(badReceipts)},
	{"leaders", refuses(badLeaders)},
	{"rings", refuses(badRings)},
	{"nothing to do is no error", func(f *fixture) {
		c := f.one.Claimer()
		runs, err := c.Enqueue(f.ctx)
		must(f, "Enqueue of nothing", err)
		equal(f, "the runs of an Enqueue of nothing", len(runs), 0)
		must(f, "Finish of nothing", c.Finish(f.ctx))
		must(f, "Report of nothing", c.Report(f.ctx))
		_, err = c.Extend(f.ctx, time.Minute)
		must(f, "Extend of nothing", err)
		_, err = f.one.Broadcaster().Publish(f.ctx)
		must(f, "Publish of nothing", err)
		_, err = f.one.Limiter().AllowAll(f.ctx)
		must(f, "AllowAll of nothing", err)
		heads, err := f.one.Broadcaster().Heads(f.ctx)
		must(f, "Heads of nothing", err)
		equal(f, "the heads of nothing", len(heads), 0)
		found, err := f.one.Directory().Lookup(f.ctx)
		must(f, "Lookup of nothing", err)
		equal(f, "the entries of nothing", len(found), 0)
		must(f, "Deregister of nothing", f.join(f.one, "m").Deregister(f.ctx))
	}},
	{"a cancelled context is its own error", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		_, err := f.one.Claimer().Enqueue(ctx, coord.NewRun{Kind: "k"})
		is(f, "Enqueue with a cancelled context", err, context.Canceled)
		_, err = f.one.Claimer().Claim(ctx, want("k", 1))
		is(f, "Claim with a cancelled context", err, context.Canceled)
		err = firstError(f.one.Claimer().Runs(ctx, coord.RunFilter{}))
		is(f, "Runs with a cancelled context", err, context.Canceled)
		_, err = f.one.Broadcaster().Publish(ctx, event("t", "x"))
		is(f, "Publish with a cancelled context", err, context.Canceled)
		_, err = f.one.Limiter().Allow(ctx, coord.Limit{Key: "k", Rate: 1, Per: time.Second})
		is(f, "Allow with a cancelled context", err, context.Canceled)
		_, err = f.one.Tickets().Issue(ctx, pass("s"))
		is(f, "Issue with a cancelled context", err, context.Canceled)
		_, err = f.one.Receipts().Begin(ctx, order("k", "ada"))
		is(f, "Begin with a cancelled context", err, context.Canceled)
		_, err = f.one.Elector().Stand(ctx, candidacy("reaper", "ada"))
		is(f, "Stand with a cancelled context", err, context.Canceled)
		_, err = f.one.Keyring().Load(ctx, coord.Ring{Name: "tokens"})
		is(f, "Load with a cancelled context", err, context.Canceled)
		_, err = f.one.Claimer().Trigger(ctx, "n", coord.TriggerOptions{})
		is(f, "Trigger with a cancelled context", err, context.Canceled)
		_, _, err = f.one.Claimer().NextDue(ctx)
		is(f, "NextDue with a cancelled context", err, context.Canceled)
		err = firstError(f.one.Claimer().Log(ctx, 1, 0))
		is(f, "Log with a cancelled context", err, context.Canceled)
		err = f.one.Claimer().Report(ctx, coord.Report{Progress: 1})
		is(f, "Report with a cancelled context", err, context.Canceled)
		_, err = f.one.Directory().Join(ctx, coord.NewMember{Name: "m"})
		is(f, "Join with a cancelled context", err, context.Canceled)
		_, err = f.one.Directory().Lookup(ctx, "k")
		is(f, "Lookup with a cancelled context", err, context.Canceled)
		m := f.join(f.one, "m")
		_, err = m.Register(ctx, "k", nil)
		is(f, "Register with a cancelled context", err, context.Canceled)
		_, err = m.Renew(ctx)
		is(f, "Renew with a cancelled context", err, context.Canceled)
		equal(f, "how many entries are stored", len(f.listed()), 0)
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 0)
	}},
}

// refuses makes the calls and checks that they are refused and leave nothing.
func refuses(calls []badCall) func(f *fixture) {
	return func(f *fixture) {
		for _, call := range calls {
			what := fmt.Sprintf("a request whose %s %s", call.field, call.why)
			err := call.do(f)
			e, ok := errors.AsType[*coord.InvalidError](err)
			switch {
			case !ok || !errors.Is(err, coord.ErrInvalid):
				f.Errorf("%s: the error is %v; want a *coord.InvalidError", what, err)
				continue
			case e.Field != call.field:
				f.Errorf("%s: the error names the field %q", what, e.Field)
			case e.Reason == "":
				f.Errorf("%s: the error gives no reason", what)
			}
			wrapped(f, what, err)
		}
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 0)
		tasks := collect(f, "Tasks", f.one.Claimer().Tasks(f.ctx))
		equal(f, "how many tasks are stored", len(tasks), 0)
		heads, err := f.one.Broadcaster().Heads(f.ctx, "t")
		must(f, "Heads", err)
		equal(f, "the head of the topic", heads["t"], coord.Start)
	}
}

const bad = "is wrong"

func badTask(field, why string, change func(t *coord.Task)) badCall {
	return badCall{field, why, func(f *fixture) error {
		t := coord.Task{Name: "n", Kind: "k", Schedule: "@every 1m"}
		change(&t)
		_, err := f.one.Claimer().PutTask(f.ctx, t)
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.PutTask(ctx, t)
			return err
		})
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.PutTask of a task whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		return err
	}}
}

var badTasks = []badCall{
	badTask("Task.Name", "is empty", func(t *coord.Task) { t.Name = "" }),
	badTask("Task.Name", "is too long", func(t *coord.Task) { t.Name = strings.Repeat("x", 201) }),
	badTask("Task.Name", "is not UTF-8", func(t *coord.Task) { t.Name = "\xff" }),
	badTask("Task.Name", "has a NUL", func(t *coord.Task) { t.Name = "a\x00b" }),
	badTask("Task.Kind", "is empty", func(t *coord.Task) { t.Kind = "" }),
	badTask("Task.Kind", "is too long", func(t *coord.Task) { t.Kind = strings.Repeat("x", 101) }),
	badTask("Task.Payload", "is too long", func(t *coord.Task) { t.Payload = make([]byte, coord.MaxPayload+1) }),
	badTask("Task.Schedule", "is no schedule", func(t *coord.Task) { t.Schedule = "every now and then" }),
	badTask("Task.Zone", "is no zone", func(t *coord.Task) { t.Zone = "Mars/Olympus" }),
	badTask("Task.Zone", "is no zone, without a schedule", func(t *coord.Task) { t.Schedule, t.Zone = "", "Mars/Olympus" }),
	badTask("Task.Overlap", bad, func(t *coord.Task) { t.Overlap = "perhaps" }),
	badTask("Task.Misfire", bad, func(t *coord.Task) { t.Misfire = "perhaps" }),
	badTask("Task.MisfireCap", "is too high", func(t *coord.Task) { t.MisfireCap = 1001 }),
	badTask("Task.MisfireCap", "is negative", func(t *coord.Task) { t.MisfireCap = -1 }),
	badTask("Task.Retry.MaxAttempts", "is too high", func(t *coord.Task) { t.Retry.MaxAttempts = 101 }),
	badTask("Task.Retry.Backoff", "is negative", func(t *coord.Task) { t.Retry.Backoff = -time.Second }),
	badTask("Task.Retry.MaxBackoff", "is below Backoff", func(t *coord.Task) {
		t.Retry = coord.Retry{Backoff: time.Minute, MaxBackoff: time.Second}
	}),
	badTask("Task.Timeout", "is negative", func(t *coord.Task) { t.Timeout = -1 }),
	badTask("Task.Priority", "is too high", func(t *coord.Task) { t.Priority = 5 }),
	badTask("Task.Schedule", "is a single time of no day", func(t *coord.Task) { t.Schedule = "@at 2026-02-30 12:00" }),
	badTask("Task.Concurrency.Key", "is too long", func(t *coord.Task) { t.Concurrency.Key = strings.Repeat("x", 201) }),
	badTask("Task.Concurrency.Key", "has a NUL", func(t *coord.Task) { t.Concurrency.Key = "a\x00b" }),
	badTask("Task.Concurrency.Limit", "is of no key", func(t *coord.Task) { t.Concurrency.Limit = 1 }),
	badTask("Task.Concurrency.Limit", "is too high", func(t *coord.Task) {
		t.Concurrency = coord.Concurrency{Key: "key", Limit: 10001}
	}),
	badTask("Task.Version", "is negative", func(t *coord.Task) { t.Version = -1 }),
}

func badRun(field, why string, change func(r *coord.NewRun)) badCall {
	return badCall{"runs[1]." + field, why, func(f *fixture) error {
		r := coord.NewRun{Kind: "k"}
		change(&r)
		_, err := f.one.Claimer().Enqueue(f.ctx, coord.NewRun{Kind: "good"}, r)
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "good"}, r)
			return err
		})
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.Enqueue of a run whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		return err
	}}
}

var badRuns = []badCall{
	badRun("Kind", "is empty", func(r *coord.NewRun) { r.Kind = "" }),
	badRun("Kind", "has a control character", func(r *coord.NewRun) { r.Kind = "a\nb" }),
	{"runs", "are too large together", func(f *fixture) error {
		r := coord.NewRun{Kind: "k", Payload: make([]byte, coord.MaxPayload)}
		_, err := f.one.Claimer().Enqueue(f.ctx, slices.Repeat([]coord.NewRun{r}, 65)...)
		return err
	}},
	badRun("Payload", "is too long", func(r *coord.NewRun) { r.Payload = make([]byte, coord.MaxPayload+1) }),
	badRun("UniqueKey", "is too long", func(r *coord.NewRun) { r.UniqueKey = strings.Repeat("x", 201) }),
	badRun("Delay", "is negative", func(r *coord.NewRun) { r.Delay = -time.Second }),
	badRun("Retry.MaxAttempts", "is negative", func(r *coord.NewRun) { r.Retry.MaxAttempts = -1 }),
	badRun("Timeout", "is negative", func(r *coord.NewRun) { r.Timeout = -1 }),
	badRun("Priority", "is too high", func(r *coord.NewRun) { r.Priority = 5 }),
	badRun("Concurrency.Key", "is not UTF-8", func(r *coord.NewRun) { r.Concurrency.Key = "\xff" }),
	badRun("Concurrency.Limit", "is of no key", func(r *coord.NewRun) { r.Concurrency.Limit = 2 }),
	badRun("Concurrency.Limit", "is negative", func(r *coord.NewRun) {
		r.Concurrency = coord.Concurrency{Key: "key", Limit: -1}
	}),
	{"runs", "are too many", func(f *fixture) error {
		_, err := f.one.Claimer().Enqueue(f.ctx, make([]coord.NewRun, coord.MaxEnqueue+1)...)
		return err
	}},
	{"RunFilter.Limit", "is too high", func(f *fixture) error {
		return firstError(f.one.Claimer().Runs(f.ctx, coord.RunFilter{Limit: 1001}))
	}},
	{"RunFilter.State", bad, func(f *fixture) error {
		return firstError(f.one.Claimer().Runs(f.ctx, coord.RunFilter{State: "asleep"}))
	}},
	{"RunFilter.Kind", "has a NUL", func(f *fixture) error {
		return firstError(f.one.Claimer().Runs(f.ctx, coord.RunFilter{Kind: "a\x00"}))
	}},
	{"after", "is negative", func(f *fixture) error { return firstError(f.one.Claimer().Log(f.ctx, 1, -1)) }},
	{"RunRetention.Age", "is negative", func(f *fixture) error {
		_, err := f.one.Claimer().Prune(f.ctx, coord.RunRetention{Age: -1})
		return err
	}},
	{"RunRetention.Keep", "is negative", func(f *fixture) error {
		_, err := f.one.Claimer().Prune(f.ctx, coord.RunRetention{Keep: -1})
		return err
	}},
}

func badClaim(field, why string, change func(o *coord.ClaimOptions)) badCall {
	return badCall{"ClaimOptions." + field, why, func(f *fixture) error {
		o := want("k", 1)
		change(&o)
		_, err := f.one.Claimer().Claim(f.ctx, o)
		return err
	}}
}

var badClaims = []badCall{
	badClaim("Worker", "is empty", func(o *coord.ClaimOptions) { o.Worker = "" }),
	badClaim("Kinds", "are none", func(o *coord.ClaimOptions) { o.Kinds = nil }),
	badClaim("Limit", "is zero", func(o *coord.ClaimOptions) { o.Limit = 0 }),
	badClaim("Limit", "is too high", func(o *coord.ClaimOptions) { o.Limit = 1001 }),
	badClaim("Lease", "is too short", func(o *coord.ClaimOptions) { o.Lease = time.Millisecond }),
	badClaim("Lease", "is too long", func(o *coord.ClaimOptions) { o.Lease = 25 * time.Hour }),
	badClaim("Limits[k]", "is zero", func(o *coord.ClaimOptions) { o.Limits = map[string]int{"k": 0} }),
	badClaim("Limits[k]", "is too high", func(o *coord.ClaimOptions) { o.Limits = map[string]int{"k": 10001} }),
	badClaim("Limits[]", "is of no kind", func(o *coord.ClaimOptions) { o.Limits = map[string]int{"": 1} }),
	{"lease", "is too short", func(f *fixture) error {
		_, err := f.one.Claimer().Extend(f.ctx, 0, coord.Claim{Run: coord.Run{ID: 1}})
		return err
	}},
	{"Result.Outcome", "was forgotten", func(f *fixture) error {
		return f.one.Claimer().Finish(f.ctx, coord.Result{})
	}},
	{"Result.Delay", "is negative", func(f *fixture) error {
		return f.one.Claimer().Finish(f.ctx, coord.Result{Outcome: coord.Snooze, Delay: -time.Second})
	}},
	{"results", "name a run twice", func(f *fixture) error {
		r := coord.Result{Claim: coord.Claim{Run: coord.Run{ID: 1}}, Outcome: coord.Succeed}
		return f.one.Claimer().Finish(f.ctx, r, r)
	}},
	badReport("Report.Progress", "is negative", coord.Report{Progress: -1}),
	badReport("Report.Progress", "is beyond the end", coord.Report{Progress: 101}),
	badReport("Report.Lines", "are too many", coord.Report{Lines: make([]string, coord.MaxBatch+1)}),
	badReport("reports", "name a run twice", coord.Report{Progress: 1}, coord.Report{Progress: 2}),
	badReport("reports", "are too many", make([]coord.Report, coord.MaxBatch+1)...),
	badTrigger("TriggerOptions.Key", "is too long", coord.TriggerOptions{Key: strings.Repeat("x", 201)}),
	badTrigger("TriggerOptions.Key", "has a NUL", coord.TriggerOptions{Key: "a\x00"}),
	badTrigger("TriggerOptions.Payload", "is too long", coord.TriggerOptions{Payload: make([]byte, coord.MaxPayload+1)}),
}

func badReport(field, why string, reports ...coord.Report) badCall {
	return badCall{field, why, func(f *fixture) error {
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Report(ctx, reports...) })
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.Report whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		return f.one.Claimer().Report(f.ctx, reports...)
	}}
}

func badTrigger(field, why string, o coord.TriggerOptions) badCall {
	return badCall{field, why, func(f *fixture) error {
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.Trigger(ctx, "n", o)
			return err
		})
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.Trigger whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		_, err := f.one.Claimer().Trigger(f.ctx, "n", o)
		return err
	}}
}

func badTicket(field, why string, change func(t *coord.TicketFor)) badCall {
	return badCall{"TicketFor." + field, why, func(f *fixture) error {
		t := pass("s")
		change(&t)
		_, err := f.one.Tickets().Issue(f.ctx, t)
		return err
	}}
}

var badTickets = []badCall{
	badTicket("Purpose", "is empty", func(t *coord.TicketFor) { t.Purpose = "" }),
	badTicket("User", "is empty", func(t *coord.TicketFor) { t.User = "" }),
	badTicket("Session", "is empty", func(t *coord.TicketFor) { t.Session = "" }),
	badTicket("Session", "is too long", func(t *coord.TicketFor) { t.Session = strings.Repeat("x", 201) }),
	badTicket("Origin", "is not UTF-8", func(t *coord.TicketFor) { t.Origin = "\xff" }),
	badTicket("Scope", "is too long", func(t *coord.TicketFor) { t.Scope = strings.Repeat("x", 201) }),
	badTicket("TTL", "is too short", func(t *coord.TicketFor) { t.TTL = time.Millisecond }),
	badTicket("TTL", "is too long", func(t *coord.TicketFor) { t.TTL = 2 * time.Hour }),
}

func badLimit(field, why string, change func(l *coord.Limit)) badCall {
	return badCall{"Limit." + field, why, func(f *fixture) error {
		l := coord.Limit{Key: "k", Rate: 1, Per: time.Second, Burst: 1}
		change(&l)
		for name, err := range map[string]error{
			"Peek":     second(f.one.Limiter().Peek(f.ctx, l)),
			"AllowAll": second(f.one.Limiter().AllowAll(f.ctx, coord.Limit{Key: "other", Rate: 1, Per: time.Second}, l)),
		} {
			if !errors.Is(err, coord.ErrInvalid) {
				f.Errorf("%s of a limit whose %s %s: the error is %v; want ErrInvalid", name, field, why, err)
			}
		}
		_, err := f.one.Limiter().Allow(f.ctx, l)
		return err
	}}
}

func second[T any](_ T, err error) error { return err }

var badLimits = []badCall{
	badLimit("Key", "is empty", func(l *coord.Limit) { l.Key = "" }),
	badLimit("Key", "is too long", func(l *coord.Limit) { l.Key = strings.Repeat("x", 501) }),
	badLimit("Rate", "is zero", func(l *coord.Limit) { l.Rate = 0 }),
	badLimit("Rate", "is finer than the clock", func(l *coord.Limit) { l.Rate, l.Per = 10, time.Microsecond }),
	badLimit("Per", "is zero", func(l *coord.Limit) { l.Per = 0 }),
	badLimit("Burst", "is negative", func(l *coord.Limit) { l.Burst = -1 }),
	badLimit("Burst", "would overflow", func(l *coord.Limit) { l.Burst, l.Per = 1<<62, time.Hour }),
	badLimit("Cost", "is negative", func(l *coord.Limit) { l.Cost = -1 }),
	{"limits", "name a key twice", func(f *fixture) error {
		l := coord.Limit{Key: "k", Rate: 1, Per: time.Second}
		_, err := f.one.Limiter().AllowAll(f.ctx, l, l)
		return err
	}},
	{"key", "is empty", func(f *fixture) error { return f.one.Limiter().Reset(f.ctx, "") }},
}

func badEvent(field, why string, change func(e *coord.NewEvent)) badCall {
	return badCall{"events[1]." + field, why, func(f *fixture) error {
		e := event("t", "x")
		change(&e)
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Publish(ctx, event("t", "y"), e) })
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.Publish of an event whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		_, err := f.one.Broadcaster().Publish(f.ctx, event("t", "y"), e)
		return err
	}}
}

var badEvents = []badCall{
	badEvent("Topic", "is empty", func(e *coord.NewEvent) { e.Topic = "" }),
	badEvent("Topic", "has a NUL", func(e *coord.NewEvent) { e.Topic = "a\x00" }),
	badEvent("Kind", "is empty", func(e *coord.NewEvent) { e.Kind = "" }),
	badEvent("Payload", "is too long", func(e *coord.NewEvent) { e.Payload = make([]byte, coord.MaxPayload+1) }),
	{"events", "are too many", func(f *fixture) error {
		_, err := f.one.Broadcaster().Publish(f.ctx, make([]coord.NewEvent, coord.MaxBatch+1)...)
		return err
	}},
	{"events", "are too large together", func(f *fixture) error {
		e := coord.NewEvent{Topic: "t", Kind: "k", Payload: make([]byte, coord.MaxPayload)}
		_, err := f.one.Broadcaster().Publish(f.ctx, slices.Repeat([]coord.NewEvent{e}, 65)...)
		return err
	}},
	{"from[t]", "is no position", func(f *fixture) error {
		_, err := f.one.Broadcaster().Subscribe(f.ctx, map[string]coord.Position{"t": {Seq: -2}})
		return err
	}},
	{"limit", "is zero", func(f *fixture) error {
		_, err := f.one.Broadcaster().Read(f.ctx, "t", coord.Start, 0)
		return err
	}},
	{"EventRetention.Keep", "is negative", func(f *fixture) error {
		_, err := f.one.Broadcaster().Trim(f.ctx, coord.EventRetention{Keep: -1})
		return err
	}},
	{"EventRetention.Age", "is negative", func(f *fixture) error {
		_, err := f.one.Broadcaster().Trim(f.ctx, coord.EventRetention{Age: -1})
		return err
	}},
}

func badMember(field, why string, n coord.NewMember) badCall {
	return badCall{"NewMember." + field, why, func(f *fixture) error {
		_, err := f.one.Directory().Join(f.ctx, n)
		return err
	}}
}

// byMember is a request of a member.
func byMember(field, why string, do func(f *fixture, m coord.Member) error) badCall {
	return badCall{field, why, func(f *fixture) error { return do(f, f.join(f.one, "m")) }}
}

func badFilter(field, why string, filter coord.EntryFilter) badCall {
	return badCall{"EntryFilter." + field, why, func(f *fixture) error {
		_, err := f.one.Directory().List(f.ctx, filter)
		return err
	}}
}

var badEntries = []badCall{
	badMember("Name", "is empty", coord.NewMember{}),
	badMember("Name", "has a NUL", coord.NewMember{Name: "a\x00"}),
	badMember("Lease", "is too short", coord.NewMember{Name: "m", Lease: time.Millisecond}),
	badMember("Lease", "is too long", coord.NewMember{Name: "m", Lease: 25 * time.Hour}),
	badMember("Data", "is too long", coord.NewMember{Name: "m", Data: make([]byte, coord.MaxEntryData+1)}),
	byMember("key", "is empty", func(f *fixture, m coord.Member) error { return second(m.Register(f.ctx, "", nil)) }),
	byMember("key", "is not UTF-8", func(f *fixture, m coord.Member) error { return second(m.Register(f.ctx, "\xff", nil)) }),
	byMember("key", "is too long", func(f *fixture, m coord.Member) error {
		return second(m.Register(f.ctx, strings.Repeat("x", 201), nil))
	}),
	byMember("data", "is too long", func(f *fixture, m coord.Member) error {
		return second(m.Register(f.ctx, "k", make([]byte, coord.MaxEntryData+1)))
	}),
	byMember("data", "is too long", func(f *fixture, m coord.Member) error {
		return m.Update(f.ctx, coord.Registration{Key: "k"}, make([]byte, coord.MaxEntryData+1))
	}),
	byMember("Registration.Key", "is empty", func(f *fixture, m coord.Member) error {
		return m.Update(f.ctx, coord.Registration{}, nil)
	}),
	byMember("Registration.Key", "has a NUL", func(f *fixture, m coord.Member) error {
		return m.Deregister(f.ctx, coord.Registration{Key: "k"}, coord.Registration{Key: "a\x00"})
	}),
	byMember("registrations", "are too many", func(f *fixture, m coord.Member) error {
		return m.Deregister(f.ctx, make([]coord.Registration, coord.MaxBatch+1)...)
	}),
	{"keys", "are too many", func(f *fixture) error {
		return second(f.one.Directory().Lookup(f.ctx, make([]string, coord.MaxBatch+1)...))
	}},
	{"keys", "have an empty one", func(f *fixture) error { return second(f.one.Directory().Lookup(f.ctx, "k", "")) }},
	badFilter("Limit", "is too high", coord.EntryFilter{Limit: 1001}),
	badFilter("Limit", "is negative", coord.EntryFilter{Limit: -1}),
	badFilter("After", "has a NUL", coord.EntryFilter{After: "a\x00"}),
	badFilter("Prefixes", "have one that is not UTF-8", coord.EntryFilter{Prefixes: []string{"a", "\xff"}}),
	badFilter("Prefixes", "are too many", coord.EntryFilter{Prefixes: make([]string, coord.MaxBatch+1)}),
}

func badReceipt(field, why string, change func(r *coord.ReceiptFor)) badCall {
	return badCall{"ReceiptFor." + field, why, func(f *fixture) error {
		r := order("k", "ada")
		change(&r)
		if _, _, err := coord.Do(f.ctx, f.one.Receipts(), r, nil); !errors.Is(err, coord.ErrInvalid) {
			f.Errorf("Do for a receipt whose %s %s: the error is %v; want ErrInvalid", field, why, err)
		}
		return second(f.one.Receipts().Begin(f.ctx, r))
	}}
}

// byHold is a request of whoever holds a key.
func byHold(field, why string, do func(f *fixture, held coord.Receipt) error) badCall {
	return badCall{field, why, func(f *fixture) error { return do(f, f.begin(f.one, order(why, "ada"), coord.ReceiptMine)) }}
}

var badReceipts = []badCall{
	badReceipt("Key", "is empty", func(r *coord.ReceiptFor) { r.Key = "" }),
	badReceipt("Key", "is too long", func(r *coord.ReceiptFor) { r.Key = strings.Repeat("x", 501) }),
	badReceipt("Holder", "is too long", func(r *coord.ReceiptFor) { r.Holder = strings.Repeat("x", 201) }),
	badReceipt("Holder", "has a NUL", func(r *coord.ReceiptFor) { r.Holder = "a\x00" }),
	badReceipt("Lease", "is too short", func(r *coord.ReceiptFor) { r.Lease = time.Millisecond }),
	badReceipt("Lease", "is too long", func(r *coord.ReceiptFor) { r.Lease = 2 * time.Hour }),
	badReceipt("Keep", "is negative", func(r *coord.ReceiptFor) { r.Keep = -1 }),
	badReceipt("Keep", "is too long", func(r *coord.ReceiptFor) { r.Keep = 11 * 365 * 24 * time.Hour }),
	byHold("lease", "is too short", func(f *fixture, held coord.Receipt) error {
		return second(f.one.Receipts().Extend(f.ctx, held, 0))
	}),
	byHold("ReceiptOutcome.Body", "is too long", func(f *fixture, held coord.Receipt) error {
		return f.one.Receipts().Complete(f.ctx, held, coord.ReceiptOutcome{Body: make([]byte, coord.MaxPayload+1)})
	}),
	byHold("ReceiptOutcome.Body", "is too long in a transaction", func(f *fixture, held coord.Receipt) error {
		return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			return tx.CompleteReceipt(ctx, held, coord.ReceiptOutcome{Body: make([]byte, coord.MaxPayload+1)})
		})
	}),
	{"Receipt.Key", "is empty", func(f *fixture) error {
		return f.one.Receipts().Release(f.ctx, coord.Receipt{State: coord.ReceiptMine, Token: 1})
	}},
}

func badCandidacy(field, why string, change func(c *coord.Candidacy)) badCall {
	return badCall{"Candidacy." + field, why, func(f *fixture) error {
		c := candidacy("reaper", "ada")
		change(&c)
		return second(f.one.Elector().Stand(f.ctx, c))
	}}
}

var badLeaders = []badCall{
	badCandidacy("Name", "is empty", func(c *coord.Candidacy) { c.Name = "" }),
	badCandidacy("Name", "is too long", func(c *coord.Candidacy) { c.Name = strings.Repeat("x", 201) }),
	badCandidacy("Candidate", "is empty", func(c *coord.Candidacy) { c.Candidate = "" }),
	badCandidacy("Candidate", "has a NUL", func(c *coord.Candidacy) { c.Candidate = "a\x00" }),
	badCandidacy("Holder", "is too long", func(c *coord.Candidacy) { c.Holder = strings.Repeat("x", 201) }),
	badCandidacy("Lease", "is too short", func(c *coord.Candidacy) { c.Lease = time.Millisecond }),
	badCandidacy("Lease", "is too long", func(c *coord.Candidacy) { c.Lease = 11 * time.Minute }),
	{"lease", "is too short", func(f *fixture) error {
		return second(f.one.Elector().Extend(f.ctx, f.wins(f.one, candidacy("reaper", "ada")), 0))
	}},
	{"Term.Name", "is empty", func(f *fixture) error { return f.one.Elector().Resign(f.ctx, coord.Term{Epoch: 1}) }},
	{"Term.Name", "is empty in a transaction", func(f *fixture) error {
		return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Fence(ctx, coord.Term{Epoch: 1}) })
	}},
}
