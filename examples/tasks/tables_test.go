package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/schedule"
	"github.com/tandemhq/tandem/coord/worker"
)

const minute = "2006-01-02 15:04"

// TestTimes computes the tables of schedules and their times.
func TestTimes(t *testing.T) {
	for _, row := range table(t, "schedule", "zone", "in words", "first times after 2026-10-02 08:00 in UTC") {
		s := parse(t, row)
		from := time.Date(2026, time.October, 2, 8, 0, 0, 0, time.UTC)
		wantRow(t, row, row[0], row[1], s.Describe(), times(t, s, from, row[3]))
	}
	for _, row := range table(t, "schedule", "zone", "from", "is due at") {
		s := parse(t, row)
		from, err := time.ParseInLocation(minute, row[2], location(t, s))
		if err != nil {
			t.Fatal(err)
		}
		wantRow(t, row, row[0], row[1], row[2], times(t, s, from, row[3]))
	}
}

func parse(t *testing.T, row []string) schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(code(row[0]), row[1])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func location(t *testing.T, s schedule.Schedule) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(s.Zone())
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// times are as many as the cell has; a date stands where it is another one than before.
func times(t *testing.T, s schedule.Schedule, from time.Time, cell string) string {
	t.Helper()
	zone := location(t, s)
	day := from.In(zone).Format(time.DateOnly)
	var list []string
	for _, at := range schedule.Preview(s, from, strings.Count(cell, ",")+1) {
		at = at.In(zone)
		layout := "15:04 -07:00"
		if today := at.Format(time.DateOnly); today != day {
			day, layout = today, time.DateOnly+" "+layout
		}
		list = append(list, at.Format(layout))
	}
	return strings.Join(list, ", ")
}

// replay lets one replica look for runs at given times, and tells which occurrences it began when.
type replay struct {
	*testing.T
	now     time.Time
	claimer coord.Claimer
}

func newReplay(t *testing.T, now string) *replay {
	t.Helper()
	r := &replay{T: t}
	r.at(now)
	r.claimer = memory.Open(memory.Options{Now: func() time.Time { return r.now }}).Claimer()
	return r
}

func (r *replay) at(clock string) {
	r.Helper()
	now, err := time.Parse(minute+":05", "2026-10-02 "+clock)
	if err != nil {
		r.Fatal(err)
	}
	r.now = now
}

func (r *replay) put(task coord.Task) {
	r.Helper()
	task.Name, task.Kind = "t", "k"
	if _, err := r.claimer.PutTask(r.Context(), task); err != nil {
		r.Fatal(err)
	}
}

func (r *replay) claim() []coord.Claim {
	r.Helper()
	claims, err := r.claimer.Claim(r.Context(), coord.ClaimOptions{
		Worker: "w", Kinds: []string{"k"}, Limit: 100, Lease: time.Hour,
	})
	if err != nil {
		r.Fatal(err)
	}
	return claims
}

func (r *replay) finish(claims ...coord.Claim) {
	r.Helper()
	for _, c := range claims {
		if err := r.claimer.Finish(r.Context(), coord.Result{Claim: c, Outcome: coord.Succeed}); err != nil {
			r.Fatal(err)
		}
	}
}

// runAll runs what is due, with what that lets become due, and says what it was.
func (r *replay) runAll() string {
	r.Helper()
	var rounds []string
	for claims := r.claim(); len(claims) > 0; claims = r.claim() {
		var together []string
		for _, c := range claims {
			together = append(together, c.Run.ScheduledFor.Format("15:04"))
		}
		rounds = append(rounds, strings.Join(together, " + "))
		r.finish(claims...)
	}
	if rounds == nil {
		return "nothing"
	}
	return strings.Join(rounds, ", then ")
}

func (r *replay) next() string {
	r.Helper()
	task, err := r.claimer.Task(r.Context(), "t")
	if err != nil {
		r.Fatal(err)
	}
	return task.NextAt.Format("15:04")
}

// TestMisfires lets all replicas be away from 08:30 on.
func TestMisfires(t *testing.T) {
	for _, row := range table(t, "misfire", "overlap", "back at 12:20", "back at 12:00:40", "next") {
		want := row[:2:2]
		var next []string
		for _, back := range []string{"12:20:00", "12:00:40"} {
			r := newReplay(t, "08:30:00")
			misfire, limit, _ := strings.Cut(row[0], ", cap ")
			most, _ := strconv.Atoi(limit) // no cap: the default
			r.put(coord.Task{
				Schedule: "@hourly", Misfire: coord.Misfire(code(misfire)), MisfireCap: most, Overlap: coord.Overlap(code(row[1])),
			})
			r.at(back)
			want = append(want, r.runAll())
			next = append(next, r.next())
		}
		wantRow(t, row, append(want, slices.Compact(next)...)...)
	}
}

// TestOverlaps lets the run of 09:00 take until 09:25, and the others no time.
func TestOverlaps(t *testing.T) {
	for _, row := range table(t, "overlap", "misfire", "at 09:10", "at 09:20", "at 09:25", "at 09:30") {
		r := newReplay(t, "08:55:00")
		r.put(coord.Task{
			Schedule: "*/10 * * * *", Overlap: coord.Overlap(code(row[0])), Misfire: coord.Misfire(code(row[1])),
		})
		r.at("09:00:00")
		long := r.claim()
		want := row[:2:2]
		for _, clock := range []string{"09:10:00", "09:20:00", "09:25:00", "09:30:00"} {
			r.at(clock)
			if clock == "09:25:00" {
				r.finish(long...)
			}
			want = append(want, r.runAll())
		}
		wantRow(t, row, want...)
	}
}

// TestPauses compares the pauses between attempts with what [coord.Retry.Pause] says.
func TestPauses(t *testing.T) {
	r := coord.Retry{MaxAttempts: 20, Backoff: time.Second, MaxBackoff: time.Hour}
	for _, row := range table(t, "after attempt", "from", "to") {
		attempt, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 20_000 {
			pause := r.Pause(attempt)
			least, most = min(least, pause), max(most, pause)
		}
		// They are random: the bounds are as near as one in a thousand.
		near := func(d time.Duration) string { return d.Round(d / 500).String() }
		from, errFrom := time.ParseDuration(row[1])
		to, errTo := time.ParseDuration(row[2])
		if errors.Join(errFrom, errTo) != nil || (least-from).Abs() > to/1000 || (most-to).Abs() > to/1000 {
			t.Errorf("after attempt %d the pauses are from %s to %s, not from %s to %s", attempt, near(least), near(most), row[1], row[2])
		}
	}
}

// TestEnds tries what may become of a run.
func TestEnds(t *testing.T) {
	const snoozed, leased = 7 * time.Minute, time.Minute
	failing := func(context.Context, *worker.Run) error { return errors.New("no") }
	untilDone := func(ctx context.Context, _ *worker.Run) error {
		<-ctx.Done()
		return ctx.Err()
	}
	last := coord.Retry{MaxAttempts: 1}
	type end struct {
		run     coord.NewRun
		handler worker.Handler // nil: its worker vanishes
		cancel  bool
	}
	ends := map[string]end{
		"the handler returns nil":                      {handler: func(context.Context, *worker.Run) error { return nil }},
		"it returns an error, and attempts are left":   {handler: failing},
		"it returns an error, and none is left":        {run: coord.NewRun{Retry: last}, handler: failing},
		"it panics, and attempts are left":             {handler: func(context.Context, *worker.Run) error { panic("no") }},
		"its timeout is over, and attempts are left":   {run: coord.NewRun{Timeout: time.Second}, handler: untilDone},
		"it returns `worker.GiveUp`":                   {handler: func(context.Context, *worker.Run) error { return worker.GiveUp(errors.New("no")) }},
		"it returns `worker.Snooze`":                   {handler: func(context.Context, *worker.Run) error { return worker.Snooze(snoozed) }},
		"the run was cancelled":                        {handler: untilDone, cancel: true},
		"its worker stops, and the grace is over":      {handler: untilDone},
		"the same, and it may run at most once":        {run: coord.NewRun{AtMostOnce: true}, handler: untilDone},
		"its worker vanishes, and attempts are left":   {},
		"its worker vanishes, and none is left":        {run: coord.NewRun{Retry: last}},
		"its worker vanishes; it may run at most once": {run: coord.NewRun{AtMostOnce: true}},
		"its worker vanishes, and it was cancelled":    {cancel: true},
	}
	rows := table(t, "what happens", "the run is then", "attempt", "runs again")
	for _, row := range rows {
		e, known := ends[row[0]]
		if !known {
			t.Errorf("no test tries %q", row[0])
			continue
		}
		delete(ends, row[0])
		var want []string
		synctest.Test(t, func(t *testing.T) {
			b := memory.Open(memory.Options{})
			defer b.Close(t.Context())
			e.run.Kind = "k"
			queued, err := b.Claimer().Enqueue(t.Context(), e.run)
			if err != nil {
				t.Fatal(err)
			}
			var ended time.Time // when the worker let go of the run
			if e.handler == nil {
				ended = vanish(t, b.Claimer(), queued[0].ID, e.cancel, leased)
			} else {
				ended = work(t, b.Claimer(), queued[0].ID, e.cancel, e.handler)
			}
			run, err := b.Claimer().Run(t.Context(), queued[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			attempt := "spent"
			if run.Attempt == 0 {
				attempt = "given back"
			}
			want = []string{row[0], "`" + string(run.State) + "`", attempt, again(run, ended, e.handler == nil, snoozed)}
			if lost := e.handler == nil && run.State == coord.Failed; lost != (run.Error == coord.LostError) {
				t.Errorf("%s: the error is %q", row[0], run.Error)
			}
		})
		wantRow(t, row, want...)
	}
	for what := range ends {
		t.Errorf("the table has no row %q", what)
	}
}

// again says when a run will run again, or was.
func again(run coord.Run, ended time.Time, vanished bool, snoozed time.Duration) string {
	pause := run.DueAt.Sub(ended)
	switch {
	case run.State.Ended():
		return "never"
	case vanished:
		return "when the lease ends"
	case pause <= 0:
		return "at once"
	case pause == snoozed:
		return "when it asked for"
	case pause > run.Retry.Backoff*4/5 && pause <= run.Retry.Backoff:
		return "after the pause"
	}
	return fmt.Sprint("after ", pause)
}

// vanish is a worker that claims the run and is not heard of again, and the next one's look.
func vanish(t *testing.T, c coord.Claimer, id coord.RunID, cancel bool, lease time.Duration) time.Time {
	t.Helper()
	claim := func() {
		_, err := c.Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: lease})
		if err != nil {
			t.Error(err)
		}
	}
	claim()
	if cancel {
		if err := c.Cancel(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(lease)
	claim()
	return time.Now()
}

// work runs a worker for less than the least pause after a failure, so that there is one attempt.
func work(t *testing.T, c coord.Claimer, id coord.RunID, cancel bool, h worker.Handler) (ended time.Time) {
	t.Helper()
	w, err := worker.New(c, worker.Options{
		Name: "w", Grace: 10 * time.Second,
		Handlers: map[string]worker.Handler{"k": func(ctx context.Context, r *worker.Run) error {
			defer func() { ended = time.Now() }()
			return h(ctx, r)
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer stop()
	if cancel {
		time.AfterFunc(100*time.Millisecond, func() { _ = c.Cancel(context.WithoutCancel(ctx), id) })
	}
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	return ended
}

// TestFields wants every field of a task that people set, with its default.
func TestFields(t *testing.T) {
	b := memory.Open(memory.Options{})
	defer b.Close(t.Context())
	stored, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k", Concurrency: coord.Concurrency{Key: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	set := []string{"ID", "Version", "NextAt", "CreatedAt", "UpdatedAt"} // by the store
	given := []string{"Name", "Kind", "Concurrency.Key"}                 // above
	rows := table(t, "in Go", "in the API", "what it says", "default")
	var want [][]string
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for field, value := range v.Fields() {
			name := prefix + field.Name
			switch {
			case slices.Contains(set, name):
			case value.Kind() == reflect.Struct:
				walk(name+".", value)
			case slices.Contains(given, name) || value.IsZero() || value.Kind() == reflect.Slice:
				want = append(want, []string{"`" + name + "`", "", "", ""})
			default:
				want = append(want, []string{"`" + name + "`", "", "", "`" + short(value.Interface()) + "`"})
			}
		}
	}
	walk("", reflect.ValueOf(stored))
	api := jsonNames("", reflect.TypeFor[tasks.Definition]())
	for i, row := range rows {
		for name := range strings.SplitSeq(row[1], ", ") {
			if !slices.Contains(api, code(name)) {
				t.Errorf("the API has no field %s", name)
			}
		}
		if i < len(want) {
			want[i][1], want[i][2] = row[1], row[2]
		}
	}
	wantRows(t, rows, want)
}

// jsonNames returns what a type's fields are called in JSON, those of structs in it by paths.
func jsonNames(prefix string, of reflect.Type) (names []string) {
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, prefix+name)
		if field.Type.Kind() == reflect.Struct {
			names = append(names, jsonNames(prefix+name+".", field.Type)...)
		}
	}
	return names
}

// short leaves out what is zero: 1h, not 1h0m0s.
func short(v any) string { return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(fmt.Sprint(v)) }

const (
	mebi = 1 << 20
	year = int64(365 * 24 * time.Hour)
)

// bound is what a value may be, from the least to the most. Its unit is "bytes" of a text, "time" in
// nanoseconds, or none; most is 0 where there is none.
type bound struct {
	what, unit  string
	least, most int64
	try         func(n int64) error
}

func (b bound) String() string {
	switch least, most := b.number(b.least), b.number(b.most); {
	case b.most == 0:
		return "at least " + least
	case b.least == 0:
		return "at most " + most
	case b.unit == "bytes":
		return fmt.Sprint(b.least, "–", most)
	default:
		return least + "–" + most
	}
}

func (b bound) number(n int64) string {
	digits := strconv.FormatInt(n, 10)
	if len(digits) > 3 {
		digits = digits[:len(digits)-3] + "," + digits[len(digits)-3:]
	}
	switch {
	case b.unit == "bytes" && n >= mebi:
		return fmt.Sprint(n/mebi, " MiB")
	case b.unit == "bytes":
		return digits + " bytes"
	case b.unit == "time" && n >= year:
		return fmt.Sprint(n/year, " years")
	case b.unit == "time":
		return regexp.MustCompile(`[a-z]+`).ReplaceAllString(short(time.Duration(n)), " $0")
	}
	return digits
}

// values returns some that are allowed, the outermost, and some that are not.
func (b bound) values() (good, bad []int64) {
	good = []int64{b.least}
	if b.most > 0 {
		good, bad = append(good, b.most), append(bad, b.most+1)
	}
	// A text has no fewer than 0 bytes, and 0 of a number often stands for the default.
	if b.least > 1 || b.unit == "time" || b.unit == "bytes" && b.least > 0 {
		bad = append(bad, b.least-1)
	}
	return good, bad
}

// TestBounds tries each bound, and one beyond it.
func TestBounds(t *testing.T) {
	b := memory.Open(memory.Options{})
	defer b.Close(t.Context())
	c := b.Claimer()
	number := 0
	put := func(change func(task *coord.Task, n int64)) func(n int64) error {
		return func(n int64) error {
			number++
			task := coord.Task{Name: strconv.Itoa(number), Kind: "k"}
			change(&task, n)
			_, err := c.PutTask(t.Context(), task)
			return err
		}
	}
	claim := func(change func(o *coord.ClaimOptions, n int64)) func(n int64) error {
		return func(n int64) error {
			o := coord.ClaimOptions{Worker: "w", Kinds: []string{"none"}, Limit: 1, Lease: time.Minute}
			change(&o, n)
			_, err := c.Claim(t.Context(), o)
			return err
		}
	}
	enqueue := func(runs ...coord.NewRun) error {
		_, err := c.Enqueue(t.Context(), runs...)
		return err
	}
	var held coord.Claim
	if err := enqueue(coord.NewRun{Kind: "held"}); err != nil {
		t.Fatal(err)
	}
	claims, err := c.Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"held"}, Limit: 1, Lease: time.Hour})
	if err != nil || len(claims) != 1 {
		t.Fatal(claims, err)
	}
	held = claims[0]
	text := func(n int64) string { return strings.Repeat("x", int(n)) }

	bounds := []bound{
		{"name of a task", "bytes", 1, 200, put(func(task *coord.Task, n int64) { task.Name = text(n) })},
		{"kind", "bytes", 1, 100, put(func(task *coord.Task, n int64) { task.Kind = text(n) })},
		{"payload", "bytes", 0, mebi, put(func(task *coord.Task, n int64) { task.Payload = []byte(text(n)) })},
		{"schedule", "bytes", 0, 512, put(func(task *coord.Task, n int64) {
			if n > 0 { // else none
				task.Schedule = "@daily" + strings.Repeat(" ", int(n)-len("@daily"))
			}
		})},
		{"`@every`", "time", int64(time.Second), 0, put(func(task *coord.Task, n int64) {
			task.Schedule = "@every " + time.Duration(n).String()
		})},
		{"`MisfireCap`", "", 1, 1000, put(func(task *coord.Task, n int64) { task.MisfireCap = int(n) })},
		{"attempts", "", 1, 100, put(func(task *coord.Task, n int64) { task.Retry.MaxAttempts = int(n) })},
		{"backoff, timeout", "time", int64(time.Millisecond), 10 * year, put(func(task *coord.Task, n int64) {
			task.Retry.Backoff, task.Timeout = time.Duration(n), time.Duration(n)
		})},
		{"priority", "", 1, 4, put(func(task *coord.Task, n int64) { task.Priority = int(n) })},
		{"concurrency key", "bytes", 0, 200, put(func(task *coord.Task, n int64) { task.Concurrency.Key = text(n) })},
		{"places of a concurrency key", "", 1, 10_000, put(func(task *coord.Task, n int64) {
			task.Concurrency = coord.Concurrency{Key: "k", Limit: int(n)}
		})},
		{"places of a kind", "", 1, 10_000, claim(func(o *coord.ClaimOptions, n int64) { o.Limits = map[string]int{"k": int(n)} })},
		{"unique key of a run", "bytes", 0, 200, func(n int64) error {
			return enqueue(coord.NewRun{Kind: "k", UniqueKey: text(n)})
		}},
		{"key of a trigger", "bytes", 0, 200, func(n int64) error {
			if err := put(func(*coord.Task, int64) {})(0); err != nil {
				return err
			}
			_, err := c.Trigger(t.Context(), strconv.Itoa(number), coord.TriggerOptions{Key: text(n)})
			return err
		}},
		{"delay of a run", "time", 0, 10 * year, func(n int64) error {
			return enqueue(coord.NewRun{Kind: "k", Delay: time.Duration(n)})
		}},
		{"runs of one `Enqueue`", "", 0, 10_000, func(n int64) error {
			return enqueue(slices.Repeat([]coord.NewRun{{Kind: "k"}}, int(n))...)
		}},
		{"payloads of one `Enqueue`, together", "bytes", 0, 64 * mebi, func(n int64) error {
			var runs []coord.NewRun
			for whole := []byte(text(mebi)); n > 0; n -= mebi {
				runs = append(runs, coord.NewRun{Kind: "k", Payload: whole[:min(n, mebi)]})
			}
			return enqueue(runs...)
		}},
		{"runs of one claim", "", 1, 1000, claim(func(o *coord.ClaimOptions, n int64) { o.Limit = int(n) })},
		{"lease", "time", int64(time.Second), int64(24 * time.Hour), claim(func(o *coord.ClaimOptions, n int64) {
			o.Lease = time.Duration(n)
		})},
		{"lines of one report of a run", "", 0, 1000, func(n int64) error {
			return c.Report(t.Context(), coord.Report{Claim: held, Lines: make([]string, n)})
		}},
		{"runs of a page", "", 1, 1000, func(n int64) error {
			for _, err := range c.Runs(t.Context(), coord.RunFilter{Limit: int(n)}) {
				return err
			}
			return nil
		}},
	}
	var want [][]string
	for _, bound := range bounds {
		want = append(want, []string{bound.what, bound.String()})
		good, bad := bound.values()
		for _, n := range good {
			if err := bound.try(n); err != nil {
				t.Errorf("%s of %d: %v", bound.what, n, err)
			}
		}
		for _, n := range bad {
			if err := bound.try(n); !errors.Is(err, coord.ErrInvalid) {
				t.Errorf("%s of %d: got %v, want invalid", bound.what, n, err)
			}
		}
	}
	wantRows(t, table(t, "what", "bounds"), want)
}

// TestKept compares what is cut with the constants.
func TestKept(t *testing.T) {
	wantRows(t, table(t, "of what", "is kept"), [][]string{
		{"the error of a run", bound{unit: "bytes"}.number(coord.MaxErrorText)},
		{"a line of a log", bound{unit: "bytes"}.number(coord.MaxLogLine)},
		{"the log of a run", bound{}.number(coord.MaxLogLines) + " lines"},
	})
}
