//go:build unix

package stress

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	_ "time/tzdata" // as the program has it

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/schedule"
	"github.com/tandemhq/tandem/internal/testenv"
)

// clock is how a replica's wall clock and zone are set; the zero clock is the machine's.
type clock struct {
	zone  string        // TZ
	ahead time.Duration // of the machine's clock, in whole seconds
}

// env is what a replica gets in its environment: its zone is also that of its sessions.
func (c clock) env() []string {
	if c.zone == "" {
		return nil
	}
	return []string{"TZ=" + c.zone, "PGOPTIONS=-c TimeZone=" + c.zone}
}

// zones are those of the replicas and of the tasks.
var zones = []string{"America/New_York", "Asia/Kolkata", "Pacific/Chatham", "UTC"}

// Work of a replica's own, and the zone that is nobody else's.
const (
	ownDelay = 1500 * time.Millisecond
	ownZone  = "Asia/Kathmandu"
)

// TestClocks has replicas in different zones, their wall clocks minutes and an hour wrong,
// queue runs, fire occurrences, run them, and take them over from one another. The
// database's clock decides what is due and whose lease is over; an occurrence is the same
// instant, and runs once, whoever makes it, and every replica reads all times in UTC.
//
// Processes on a file of SQLite share the machine, and so its clock.
func TestClocks(t *testing.T) {
	t.Run("pg", func(t *testing.T) {
		t.Parallel()
		url := testenv.NewDatabase(t, "stress", preparePG)
		if err := setZone(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		clocks(t, "pg", url, time.Hour, -time.Hour, 90*time.Second, -90*time.Second)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "clocks.db")
		if err := prepareSQLite(path); err != nil {
			t.Fatal(err)
		}
		clocks(t, "sqlite", path, 0, 0, 0, 0)
	})
}

// setZone makes the server show times in that zone where nobody says otherwise.
func setZone(ctx context.Context, url string) error {
	db, err := pg.OpenDB(url, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''`+ownZone+`''', current_database()); END $$`)
	return err
}

// clocks runs a replica in each zone, the i-th with its wall clock so much ahead: first all
// together, and then one after the other, each of which takes over what the one before
// had when it was killed.
func clocks(t *testing.T, driver, url string, ahead ...time.Duration) {
	b, err := open(t.Context(), driver, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	execute(t, b, map[string]string{"pg": seenPG, "sqlite": seenSQLite}[driver])
	h := history{every: every, forbids: make(map[coord.TaskID]bool)}
	names := putTasks(t, b, h.forbids)
	began := databaseNow(t, b, driver)
	backlogs := putBacklogs(t, b, driver, began)
	r := &rig{t: t, config: replica{
		Driver: driver, URL: url, Seed: rand.Uint64(), Clocks: true,
		Due: began.Add(4 * time.Second).Truncate(time.Microsecond),
	}}

	var running []*process
	killAll := func() {
		for _, p := range running {
			p.kill()
		}
		running = nil
	}
	defer killAll()
	looks := make(map[string]clock) // by the name of a replica
	start := func(i int) {
		p := r.start(clock{zones[i], ahead[i]})
		if p == nil {
			t.FailNow()
		}
		looks[p.name] = p.clock
		running = append(running, p)
	}
	for i := range zones {
		start(i)
	}
	var own []string // the names of those that made work of their own
	for _, p := range running {
		own = append(own, p.name)
	}
	h.queued = 2 * len(own)
	until(t, "each replica has run something, and what they have queued has ended", func() bool {
		workers := make(map[string]bool)
		for _, s := range readSeen(t, b) {
			workers[s.Worker] = true
		}
		return len(workers) == len(zones) && endedOwn(t, b, own)
	})
	killAll()
	due := r.config.Due
	r.config.Due = time.Time{}

	start(0)
	for i := range zones {
		h.queued++
		run := enqueueOne(t, b, coord.NewRun{Kind: kind, Payload: []byte(holds), Retry: patient})
		until(t, "the run is held", func() bool {
			return slices.ContainsFunc(readSeen(t, b), func(s seen) bool { return s.Run == int64(run) })
		})
		killAll()
		start((i + 1) % len(zones))
		until(t, "the next replica has ended the run", func() bool {
			run, err := b.Claimer().Run(t.Context(), run)
			if err != nil {
				t.Fatal(err)
			}
			return run.State == coord.Succeeded && run.Rescues > 0
		})
	}
	for _, name := range names {
		if err := b.Claimer().PauseTask(t.Context(), name, true); err != nil {
			t.Error(err)
		}
	}
	waitForEnds(t, b)
	for _, p := range running {
		p.end()
	}

	if h.journal, err = readJournal(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.runs = allRuns(t, b)
	n, faults := check(h)
	for _, fault := range faults {
		t.Error(fault)
	}
	again := make(map[int64]bool) // runs that fell due more than once
	for _, e := range h.journal {
		again[e.Run] = again[e.Run] || e.Token > 1
		if e.What == "queued>running" && e.LateMs < 0 {
			t.Errorf("entry %d: run %d was claimed %v before it was due", e.Seq, e.Run, time.Duration(-e.LateMs)*time.Millisecond)
		}
	}
	checkSeen(t, readSeen(t, b), looks, h.runs, again)
	checkBacklogs(t, backlogs, h.runs, began)
	checkOwn(t, b, own, due, h.runs, again, began, databaseNow(t, b, driver))
	t.Logf("%s: %d runs, %d occurrences, %d rescues (the slowest %v after the end of the lease), %d executions by %d replicas",
		driver, len(h.runs), n.Occurrences, n.Rescues, n.Slowest, n.Executions, len(looks))
	if n.Rescues < len(zones) {
		t.Error("no run was taken over: the test proves nothing")
	}
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-patient.C:
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

func execute(t *testing.T, b coord.Backend, statement string, args ...any) {
	t.Helper()
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		_, err := tx.Unwrap().(bun.Tx).NewRaw(statement, args...).Exec(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func enqueueOne(t *testing.T, b coord.Backend, n coord.NewRun) coord.RunID {
	t.Helper()
	runs, err := b.Claimer().Enqueue(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return runs[0].ID
}

// databaseNow reads the clock that decides.
func databaseNow(t *testing.T, b coord.Backend, driver string) time.Time {
	t.Helper()
	if driver == "sqlite" {
		return time.Now()
	}
	var now []time.Time
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT clock_timestamp()`).Scan(ctx, &now)
	})
	if err != nil {
		t.Fatal(err)
	}
	return now[0].UTC()
}

// ownWork makes a run that is due in a while, one that is due at a time, which is that of
// the replica's own zone, and a task whose next occurrence is soon but doesn't come.
func (r *replica) ownWork(ctx context.Context) error {
	_, err := r.backend.Claimer().Enqueue(ctx,
		coord.NewRun{Kind: kind, Retry: patient, UniqueKey: r.Name + " later", Delay: ownDelay},
		coord.NewRun{Kind: kind, Retry: patient, UniqueKey: r.Name + " at", DueAt: r.Due.Local()})
	if err != nil {
		return err
	}
	_, err = r.backend.Claimer().PutTask(ctx, coord.Task{Name: r.Name, Kind: kind, Schedule: "* * * * *", Zone: ownZone, Paused: true})
	return err
}

// endedOwn reports whether the runs that replicas have made have ended.
func endedOwn(t *testing.T, b coord.Backend, names []string) bool {
	t.Helper()
	ended := 0
	for _, run := range allRuns(t, b) {
		if run.UniqueKey != "" && run.State.Ended() {
			ended++
		}
	}
	return ended == 2*len(names)
}

// checkOwn checks what replicas have made: a delay counts from the database's clock, a time
// is that time, and the next occurrence of a task is what comes next by the database's clock.
func checkOwn(t *testing.T, b coord.Backend, names []string, due time.Time, runs []coord.Run, again map[int64]bool,
	began, ended time.Time,
) {
	t.Helper()
	within := func(what string, at time.Time) {
		t.Helper()
		const coarse = time.Millisecond // SQLite's file and this process read the clock differently
		if at.Before(began.Add(-coarse)) || at.After(ended.Add(coarse)) {
			t.Errorf("%s was made at %v, which is not between %v and %v", what, at, began, ended)
		}
	}
	for _, name := range names {
		for _, run := range runs {
			switch run.UniqueKey {
			case name + " later":
				within(run.UniqueKey, run.CreatedAt)
				if d := run.DueAt.Sub(run.CreatedAt); d != ownDelay && !again[int64(run.ID)] {
					t.Errorf("%s is due %v after it was made, want %v", run.UniqueKey, d, ownDelay)
				}
			case name + " at":
				if !run.DueAt.Equal(due) && !again[int64(run.ID)] {
					t.Errorf("%s is due at %v, want %v", run.UniqueKey, run.DueAt, due)
				}
			}
		}
		task, err := b.Claimer().Task(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		within(task.Name, task.UpdatedAt)
		if want := task.UpdatedAt.Truncate(time.Minute).Add(time.Minute); !task.NextAt.Equal(want) {
			t.Errorf("the task of %s, made at %v, comes next at %v, want %v", name, task.UpdatedAt, task.NextAt, want)
		}
	}
}

// backlog is a task that has missed occurrences for more than a year.
type backlog struct {
	task  coord.TaskID
	first time.Time
	s     schedule.Schedule
}

// putBacklogs creates a task in each zone whose time is within the changes of clocks there.
func putBacklogs(t *testing.T, b coord.Backend, driver string, now time.Time) (backlogs []backlog) {
	t.Helper()
	for _, zone := range zones {
		const spec = "30 2 * * 0"
		s, err := schedule.Parse(spec, zone)
		if err != nil {
			t.Fatal(err)
		}
		task, err := b.Claimer().PutTask(t.Context(), coord.Task{
			Name: "weekly " + zone, Kind: kind, Schedule: spec, Zone: zone, Retry: patient,
			Overlap: coord.OverlapAllow, Misfire: coord.MisfireAll, MisfireCap: 1000,
		})
		if err != nil {
			t.Fatal(err)
		}
		first := s.Next(now.AddDate(-1, -1, 0))
		at := any(first.UTC())
		if driver == "sqlite" {
			at = first.UnixMicro()
		}
		execute(t, b, `UPDATE coord_tasks SET next_at = ? WHERE id = ?`, at, task.ID)
		backlogs = append(backlogs, backlog{task.ID, first, s})
	}
	return backlogs
}

// checkBacklogs checks that each occurrence has one run, at the instant that this process
// computes.
func checkBacklogs(t *testing.T, backlogs []backlog, runs []coord.Run, began time.Time) {
	t.Helper()
	for _, l := range backlogs {
		var got []time.Time
		for _, run := range runs {
			if run.TaskID == l.task {
				got = append(got, run.ScheduledFor)
			}
		}
		slices.SortFunc(got, time.Time.Compare)
		at := l.first
		for i, occurrence := range got {
			if !occurrence.Equal(at) || occurrence.Location() != time.UTC {
				t.Errorf("the occurrence %d in %s is %v, want %v in UTC", i, l.s.Zone(), occurrence, at.UTC())
			}
			at = l.s.Next(at)
		}
		if !at.After(began) {
			t.Errorf("%d occurrences in %s, and none at %v", len(got), l.s.Zone(), at)
		}
	}
}

// seen is how the times looked to who executed a run.
type seen struct {
	Run    int64  `bun:"run"`
	Token  int64  `bun:"token"`
	Worker string `bun:"worker"`
	AtMs   int64  `bun:"at_ms"`   // by the database's clock
	WallMs int64  `bun:"wall_ms"` // by the replica's
	Offset string `bun:"zone"`    // of the replica's zone
	Times  string `bun:"times"`   // JSON of times
}

// times are those of a run, as a program would print them.
type times struct{ CreatedAt, ScheduledFor, DueAt time.Time }

func timesOf(r coord.Run) times { return times{r.CreatedAt, r.ScheduledFor, r.DueAt} }

const (
	seenColumns = `run bigint NOT NULL, token bigint NOT NULL, worker text NOT NULL, wall_ms bigint NOT NULL,
		zone text NOT NULL, times text NOT NULL`
	seenPG     = `CREATE TABLE stress_seen (at_ms bigint NOT NULL DEFAULT stress_ms(clock_timestamp()), ` + seenColumns + `)`
	seenSQLite = `CREATE TABLE stress_seen (at_ms integer NOT NULL
		DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), ` + seenColumns + `)`
)

// noteClock notes how the times look to this replica.
func (r *replica) noteClock(ctx context.Context, tx coord.Tx, c coord.Claim) error {
	text, err := json.Marshal(timesOf(c.Run))
	if err != nil {
		return err
	}
	now := time.Now()
	_, err = tx.Unwrap().(bun.Tx).NewRaw(`INSERT INTO stress_seen (run, token, worker, wall_ms, zone, times) VALUES (?, ?, ?, ?, ?, ?)`,
		c.Run.ID, c.Token, r.Name, now.UnixMilli(), now.Format("-07:00"), string(text)).Exec(ctx)
	return err
}

func readSeen(t *testing.T, b coord.Backend) (all []seen) {
	t.Helper()
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT run, token, worker, at_ms, wall_ms, zone, times FROM stress_seen ORDER BY at_ms`).Scan(ctx, &all)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkSeen checks that the replicas' clocks and zones were what they should be, so that the
// test proves something, and that all have read the same times, in UTC.
func checkSeen(t *testing.T, all []seen, looks map[string]clock, runs []coord.Run, again map[int64]bool) {
	t.Helper()
	byID := make(map[int64]coord.Run)
	for _, run := range runs {
		byID[int64(run.ID)] = run
	}
	workers := make(map[string]int)
	for _, s := range all {
		c := looks[s.Worker]
		workers[s.Worker]++
		loc, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		wall := time.UnixMilli(s.WallMs)
		if offset := wall.In(loc).Format("-07:00"); s.Offset != offset {
			t.Errorf("%s is at %s from UTC, want %s", s.Worker, s.Offset, offset)
		}
		ahead := c.ahead
		if !shifts {
			ahead = 0
		}
		const slow = 30 * time.Second // a machine at most, between two readings
		if d := wall.Sub(time.UnixMilli(s.AtMs)) - ahead; d.Abs() > slow {
			t.Errorf("the clock of %s is %v ahead, want %v", s.Worker, d+ahead, ahead)
		}
		run := byID[s.Run]
		want := timesOf(run)
		var got times
		if err := json.Unmarshal([]byte(s.Times), &got); err != nil {
			t.Fatal(err)
		}
		if again[s.Run] {
			want.DueAt = got.DueAt.UTC()
		}
		if text, err := json.Marshal(want); err != nil || !bytes.Equal(text, []byte(s.Times)) {
			t.Errorf("to %s the times of run %d are %s, want %s, %v", s.Worker, s.Run, s.Times, text, err)
		}
	}
	for name := range looks {
		if workers[name] == 0 {
			t.Errorf("%s has run nothing", name)
		}
	}
}
