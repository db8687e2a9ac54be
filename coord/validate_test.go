package coord

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// field returns the field that an error names, or "" for none.
func field(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*InvalidError](err); ok && errors.Is(err, ErrInvalid) && e.Reason != "" {
		return e.Field
	}
	return "not an InvalidError: " + err.Error()
}

// TestBounds tries requests at their bounds and just beyond.
func TestBounds(t *testing.T) {
	s := func(n int) string { return strings.Repeat("x", n) }
	task := func(change func(t *Task)) error {
		t := okTask
		change(&t)
		return t.complete()
	}
	run := func(change func(r *NewRun)) error {
		r := NewRun{Kind: "k"}
		change(&r)
		return r.complete("runs[0]")
	}
	claim := func(change func(o *ClaimOptions)) error {
		o := ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute}
		change(&o)
		return o.complete()
	}
	report := func(change func(r *Report)) error {
		r := Report{Claim: okClaim}
		change(&r)
		return r.complete()
	}
	limit := func(change func(l *Limit)) error {
		l := okLimit
		change(&l)
		return l.complete()
	}
	ticket := func(change func(t *TicketFor)) error {
		t := okTicket
		change(&t)
		return t.complete()
	}
	year := func(y int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.UTC) }
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"a long name", task(func(t *Task) { t.Name = s(200) }), ""},
		{"a name too long", task(func(t *Task) { t.Name = s(201) }), "Task.Name"},
		{"a name with a line break", task(func(t *Task) { t.Name = "a\nb" }), "Task.Name"},
		{"a name with an escape of the terminal", task(func(t *Task) { t.Name = "a\x9bb" }), "Task.Name"},
		{"a name in Arabic", task(func(t *Task) { t.Name = "مهمة 🌙" }), ""},
		{"no schedule", task(func(t *Task) { t.Schedule = "" }), ""},
		{"no schedule and the local zone", task(func(t *Task) { t.Schedule, t.Zone = "", "Local" }), "Task.Zone"},
		{"the local zone", task(func(t *Task) { t.Zone = "Local" }), "Task.Zone"},
		{"a timeout of a millisecond", task(func(t *Task) { t.Timeout = time.Millisecond }), ""},
		{"a timeout that would be stored as none", task(func(t *Task) { t.Timeout = 999 * time.Nanosecond }), "Task.Timeout"},
		{"a negative timeout", task(func(t *Task) { t.Timeout = -1 }), "Task.Timeout"},
		{"ten years of timeout", task(func(t *Task) { t.Timeout = maxSpan }), ""},
		{"more than that", task(func(t *Task) { t.Timeout = maxSpan + 1 }), "Task.Timeout"},
		{"a backoff above an hour", task(func(t *Task) { t.Retry.Backoff = 2 * time.Hour }), ""},
		{"a backoff above its bound", task(func(t *Task) { t.Retry = Retry{Backoff: 2, MaxBackoff: 1} }), "Task.Retry.Backoff"},
		{"a bound below the backoff", task(func(t *Task) { t.Retry = Retry{Backoff: time.Minute, MaxBackoff: time.Second} }), "Task.Retry.MaxBackoff"},
		{"no limit without a key", task(func(t *Task) { t.Concurrency = Concurrency{Limit: 2} }), "Task.Concurrency.Limit"},
		{"the longest key", task(func(t *Task) { t.Concurrency.Key = s(200) }), ""},
		{"a key too long", task(func(t *Task) { t.Concurrency.Key = s(201) }), "Task.Concurrency.Key"},
		{"a key with a line break", task(func(t *Task) { t.Concurrency.Key = "a\nb" }), "Task.Concurrency.Key"},
		{"the highest limit", task(func(t *Task) { t.Concurrency = Concurrency{"key", maxPlaces} }), ""},
		{"a limit too high", task(func(t *Task) { t.Concurrency = Concurrency{"key", maxPlaces + 1} }), "Task.Concurrency.Limit"},
		{"a negative version", task(func(t *Task) { t.Version = -1 }), "Task.Version"},

		{"the largest payload", run(func(r *NewRun) { r.Payload = make([]byte, MaxPayload) }), ""},
		{"a payload too large", run(func(r *NewRun) { r.Payload = make([]byte, MaxPayload+1) }), "runs[0].Payload"},
		{"due in the year 9999", run(func(r *NewRun) { r.DueAt = year(9999) }), ""},
		{"due in the year 10000", run(func(r *NewRun) { r.DueAt = year(10000) }), "runs[0].DueAt"},
		{"due in the year 0", run(func(r *NewRun) { r.DueAt = year(0) }), "runs[0].DueAt"},
		{"due in the year 1", run(func(r *NewRun) { r.DueAt = year(1) }), ""},
		{
			"due in a zone in which it is the year 10000 already",
			run(func(r *NewRun) {
				r.DueAt = time.Date(10000, 1, 1, 0, 30, 0, 0, time.FixedZone("", 3600))
			}), "",
		},
		{"a timeout that would be stored as none", run(func(r *NewRun) { r.Timeout = 1 }), "runs[0].Timeout"},
		{"a negative limit", run(func(r *NewRun) { r.Concurrency = Concurrency{"key", -1} }), "runs[0].Concurrency.Limit"},
		{"a limit without a key", run(func(r *NewRun) { r.Concurrency.Limit = 1 }), "runs[0].Concurrency.Limit"},
		{"a negative delay", run(func(r *NewRun) { r.Delay = -1 }), "runs[0].Delay"},

		{"no kind", claim(func(o *ClaimOptions) { o.Kinds = nil }), "ClaimOptions.Kinds"},
		{"a kind that PostgreSQL can't take", claim(func(o *ClaimOptions) { o.Kinds = []string{"k", "a\x00"} }), "ClaimOptions.Kinds"},
		{"an empty kind", claim(func(o *ClaimOptions) { o.Kinds = []string{""} }), "ClaimOptions.Kinds"},
		{"the limit of a kind", claim(func(o *ClaimOptions) { o.Limits = map[string]int{"k": maxPlaces} }), ""},
		{"the limit of a kind that is not asked for", claim(func(o *ClaimOptions) { o.Limits = map[string]int{"other": 1} }), ""},
		{"a limit of none", claim(func(o *ClaimOptions) { o.Limits = map[string]int{"k": 0} }), "ClaimOptions.Limits[k]"},
		{"a limit too high", claim(func(o *ClaimOptions) { o.Limits = map[string]int{"k": maxPlaces + 1} }), "ClaimOptions.Limits[k]"},
		{"the limit of no kind", claim(func(o *ClaimOptions) { o.Limits = map[string]int{"": 1} }), "ClaimOptions.Limits[]"},
		{"the shortest lease", claim(func(o *ClaimOptions) { o.Lease = time.Second }), ""},
		{"a lease too short", claim(func(o *ClaimOptions) { o.Lease = time.Second - 1 }), "ClaimOptions.Lease"},
		{"a lease too long", claim(func(o *ClaimOptions) { o.Lease = 24*time.Hour + 1 }), "ClaimOptions.Lease"},
		{"the most", claim(func(o *ClaimOptions) { o.Limit = MaxBatch }), ""},
		{"more than the most", claim(func(o *ClaimOptions) { o.Limit = MaxBatch + 1 }), "ClaimOptions.Limit"},

		{"a report of nothing", report(func(*Report) {}), ""},
		{"all of it", report(func(r *Report) { r.Progress = 100 }), ""},
		{"more than that", report(func(r *Report) { r.Progress = 101 }), "Report.Progress"},
		{"less than nothing", report(func(r *Report) { r.Progress = -1 }), "Report.Progress"},
		{"the most lines", report(func(r *Report) { r.Lines = make([]string, MaxBatch) }), ""},
		{"more lines", report(func(r *Report) { r.Lines = make([]string, MaxBatch+1) }), "Report.Lines"},

		{"one per microsecond", limit(func(l *Limit) { l.Rate, l.Per = 1, time.Microsecond }), ""},
		{"more than one per microsecond", limit(func(l *Limit) { l.Rate, l.Per = 2, time.Microsecond }), "Limit.Rate"},
		{"per a nanosecond", limit(func(l *Limit) { l.Rate, l.Per = 1, 1 }), "Limit.Per"},
		{"one in ten years", limit(func(l *Limit) { l.Rate, l.Per = 1, maxSpan }), ""},
		{"two at once in ten years", limit(func(l *Limit) { l.Rate, l.Per, l.Burst = 1, maxSpan, 2 }), "Limit.Burst"},
		{"a huge rate", limit(func(l *Limit) { l.Rate = math.MaxInt }), "Limit.Rate"},
		{"a huge burst", limit(func(l *Limit) { l.Burst = math.MaxInt }), "Limit.Burst"},
		{"a huge cost, which is never", limit(func(l *Limit) { l.Cost = math.MaxInt }), ""},
		{"a negative cost", limit(func(l *Limit) { l.Cost = -1 }), "Limit.Cost"},
		{"a key of any bytes", limit(func(l *Limit) { l.Key = "\x00\xff" + s(498) }), ""},
		{"a key too long", limit(func(l *Limit) { l.Key = s(501) }), "Limit.Key"},

		{"an hour", ticket(func(t *TicketFor) { t.TTL = time.Hour }), ""},
		{"more than an hour", ticket(func(t *TicketFor) { t.TTL = time.Hour + 1 }), "TicketFor.TTL"},
		{"no session", ticket(func(t *TicketFor) { t.Session = "" }), "TicketFor.Session"},

		{"a topic too long", checkPositions(map[string]Position{s(201): Head}), "from"},
		{"a negative position", checkPositions(map[string]Position{"t": {Seq: -2}}), "from[t]"},
		{"Head with a tag", checkPositions(map[string]Position{"t": {Seq: -1, Tag: 1}}), "from[t]"},
		{"too many events", checkEvents(make([]NewEvent, MaxBatch+1)), "events"},
		{"a long key of an event", checkEvents([]NewEvent{{Topic: "t", Kind: "k", Key: strings.Repeat("k", 501)}}), "events[0].Key"},
		{"an event without a topic", checkEvents([]NewEvent{okEvent, {Kind: "k"}}), "events[1].Topic"},
	} {
		if got := field(test.err); got != test.want {
			t.Errorf("%s: the error names %q, want %q (%v)", test.name, got, test.want, test.err)
		}
	}
}

func TestBoundsOfTheSeam(t *testing.T) {
	f := &fake{}
	b := Wrap(f, Options{})
	c, ctx := b.Claimer(), t.Context()
	results := make([]Result, MaxBatch+1)
	for i := range results {
		results[i] = Result{Claim: Claim{Run: Run{ID: RunID(i + 1)}}, Outcome: Succeed}
	}
	lines := make([]Report, MaxEnqueue/MaxBatch+1)
	for i := range lines {
		lines[i] = Report{Claim: results[i].Claim, Lines: make([]string, MaxBatch)}
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"too many runs":               {one(c.Enqueue(ctx, make([]NewRun, MaxEnqueue+1)...)), "runs"},
		"too many results":            {c.Finish(ctx, results...), "results"},
		"a run twice":                 {c.Finish(ctx, okResult, okResult), "results"},
		"no outcome":                  {c.Finish(ctx, Result{Claim: okClaim}), "Result.Outcome"},
		"an outcome beyond":           {c.Finish(ctx, Result{Claim: okClaim, Outcome: CancelRun + 1}), "Result.Outcome"},
		"too many claims":             {one(c.Extend(ctx, time.Minute, make([]Claim, MaxBatch+1)...)), "claims"},
		"a short extension":           {one(c.Extend(ctx, time.Millisecond, okClaim)), "lease"},
		"a task with a NUL":           {one(c.Task(ctx, "a\x00")), "name"},
		"pausing nothing":             {c.PauseTask(ctx, "", true), "name"},
		"deleting what is no text":    {c.DeleteTask(ctx, "\xff"), "name"},
		"triggering a long name":      {one(c.Trigger(ctx, strings.Repeat("x", 201), TriggerOptions{})), "name"},
		"triggering by a long key":    {one(c.Trigger(ctx, "n", TriggerOptions{Key: strings.Repeat("x", 201)})), "TriggerOptions.Key"},
		"triggering with too much":    {one(c.Trigger(ctx, "n", TriggerOptions{Payload: make([]byte, MaxPayload+1)})), "TriggerOptions.Payload"},
		"too many reports":            {c.Report(ctx, make([]Report, MaxBatch+1)...), "reports"},
		"a report twice":              {c.Report(ctx, okReport, okReport), "reports"},
		"reports of too many lines":   {c.Report(ctx, lines...), "reports"},
		"progress beyond the end":     {c.Report(ctx, Report{Claim: okClaim, Progress: 101}), "Report.Progress"},
		"the log before its start":    {last(c.Log(ctx, 7, -1)), "after"},
		"runs of what is no kind":     {last(c.Runs(ctx, RunFilter{Kind: "a\x00"})), "RunFilter.Kind"},
		"an odd state":                {last(c.Runs(ctx, RunFilter{State: "asleep"})), "RunFilter.State"},
		"too many of a listing":       {last(c.Runs(ctx, RunFilter{Limit: MaxBatch + 1})), "RunFilter.Limit"},
		"a negative age":              {one(c.Prune(ctx, RunRetention{Age: -1})), "RunRetention.Age"},
		"a key twice":                 {one(b.Limiter().AllowAll(ctx, okLimit, okLimit)), "limits"},
		"too many limits":             {one(b.Limiter().AllowAll(ctx, make([]Limit, MaxBatch+1)...)), "limits"},
		"resetting no key":            {b.Limiter().Reset(ctx, ""), "key"},
		"reading nothing":             {one(b.Broadcaster().Read(ctx, "t", Start, 0)), "limit"},
		"the head of what is no text": {one(b.Broadcaster().Heads(ctx, "t", "\x00")), "topics"},
		"a negative keep":             {one(b.Broadcaster().Trim(ctx, EventRetention{Keep: -1})), "EventRetention.Keep"},
		"reading an odd topic":        {one(b.Broadcaster().Read(ctx, "", Start, 1)), "from"},
		"subscribing to an odd topic": {one(b.Broadcaster().Subscribe(ctx, map[string]Position{"": Head})), "from"},
	} {
		if got := field(test.err); got != test.want {
			t.Errorf("%s: the error names %q, want %q (%v)", name, got, test.want, test.err)
		}
	}
	if calls := f.calls(); len(calls) > 0 {
		t.Errorf("invalid requests reached the driver: %v", calls)
	}
}

func TestDefaults(t *testing.T) {
	task := Task{Name: "n", Kind: "k"}
	if err := task.complete(); err != nil {
		t.Fatal(err)
	}
	want := Task{
		Name: "n", Kind: "k", Zone: "UTC", Overlap: OverlapForbid, Misfire: MisfireLatest, MisfireCap: 10, Priority: 2,
		Retry: Retry{MaxAttempts: 3, Backoff: time.Second, MaxBackoff: time.Hour},
	}
	if !reflect.DeepEqual(task, want) {
		t.Errorf("%+v, want %+v", task, want)
	}
	keyed := NewRun{Kind: "k", Concurrency: Concurrency{Key: "key"}}
	if err := keyed.complete("r"); err != nil || keyed.Concurrency != (Concurrency{"key", 1}) {
		t.Errorf("%+v (%v)", keyed, err)
	}
	once := NewRun{Kind: "k", AtMostOnce: true, Retry: Retry{Backoff: 3 * time.Hour}}
	if err := once.complete("r"); err != nil || once.Retry != (Retry{MaxAttempts: 1, Backoff: 3 * time.Hour, MaxBackoff: 3 * time.Hour}) {
		t.Errorf("%+v (%v)", once, err)
	}
	l := Limit{Key: "k", Rate: 3, Per: time.Second}
	if err := l.complete(); err != nil || l.Burst != 3 || l.Cost != 1 {
		t.Errorf("%+v (%v)", l, err)
	}
	l = Limit{Key: "k", Rate: 3, Per: time.Second, Cost: math.MaxInt}
	if err := l.complete(); err != nil || l.Cost != l.Burst+1 {
		t.Errorf("%+v (%v)", l, err)
	}
	ticket := okTicket
	if err := ticket.complete(); err != nil || ticket.TTL != 30*time.Second {
		t.Errorf("%+v (%v)", ticket, err)
	}
}

// TestTextIsCut cuts the text of an error that a handler returned, and the lines of a log.
func TestTextIsCut(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"short":                   {"boom", "boom"},
		"as long as may be":       {strings.Repeat("x", MaxErrorText), strings.Repeat("x", MaxErrorText)},
		"too long":                {strings.Repeat("x", MaxErrorText+1), strings.Repeat("x", MaxErrorText)},
		"too long, at a letter":   {strings.Repeat("x", MaxErrorText-1) + "é", strings.Repeat("x", MaxErrorText-1)},
		"a NUL":                   {"a\x00b", "a\uFFFDb"},
		"broken UTF-8":            {"a\xff\xfeb", "a\uFFFDb"},
		"many NULs":               {strings.Repeat("\x00", MaxErrorText), strings.Repeat("\uFFFD", MaxErrorText/3)},
		"broken near the bound":   {strings.Repeat("x", MaxErrorText-1) + "\xffrest", strings.Repeat("x", MaxErrorText-1)},
		"line breaks, which stay": {"panic:\n\tat", "panic:\n\tat"},
	} {
		r := Result{Claim: okClaim, Outcome: Fail, Error: test.text}
		if err := r.complete(); err != nil || r.Error != test.want {
			t.Errorf("%s: %d bytes %.40q (%v), want %d bytes", name, len(r.Error), r.Error, err, len(test.want))
		}
	}
	given := []string{"ok", strings.Repeat("x", MaxLogLine) + "rest"}
	r := Report{Claim: okClaim, Lines: given}
	if err := r.complete(); err != nil || r.Lines[0] != "ok" || len(r.Lines[1]) != MaxLogLine {
		t.Errorf("the lines are %.40q (%v)", r.Lines, err)
	}
	if len(given[1]) != MaxLogLine+4 {
		t.Error("the caller's lines were changed")
	}
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.SampledFrom([]byte("ax\x00\xff\xc3\xa9\xf0\x9f\x98\x80")), 0, 5000).Draw(t, "text"))
		r := Result{Claim: okClaim, Outcome: Fail, Error: text}
		if err := r.complete(); err != nil || len(r.Error) > MaxErrorText || !utf8.ValidString(r.Error) || strings.Contains(r.Error, "\x00") {
			t.Fatalf("%d bytes: %v", len(r.Error), err)
		}
	})
}

func TestTickets(t *testing.T) {
	seen := make(map[string]bool)
	for range 100 {
		s := NewTicketSecret()
		if len(s) != 22 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" || seen[s] {
			t.Errorf("the secret %q is odd, or not new", s)
		}
		seen[s] = true
	}
	if a, again := HashTicket("a"), HashTicket("a"); a == HashTicket("b") || a != again {
		t.Error("the hash does not tell secrets apart")
	}
	issued := TicketFor{Purpose: "ws", Origin: "https://a", Scope: "r"}
	for use, want := range map[TicketUse]bool{
		{"ws", "https://a", "r"}:  true,
		{"WS", "https://a", "r"}:  false,
		{"ws", "https://a/", "r"}: false,
		{"ws", "", "r"}:           false,
		{"ws", "https://a", ""}:   false,
	} {
		if use.Fits(issued) != want {
			t.Errorf("%+v fits: %v", use, !want)
		}
	}
}
