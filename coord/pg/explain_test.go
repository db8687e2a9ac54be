package pg

import (
	"context"
	"database/sql"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// explained is a connection that tells the plans of the statements in functions.
func explained(t *testing.T, url string) (db *sql.DB, plans *[]string) {
	t.Helper()
	plans = new([]string)
	connector, err := pq.NewConnector(url)
	if err != nil {
		t.Fatal(err)
	}
	db = sql.OpenDB(pq.ConnectorWithNoticeHandler(connector, func(notice *pq.Error) {
		if strings.Contains(notice.Message, "plan:") {
			*plans = append(*plans, notice.Message)
		}
	}))
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
		SET client_min_messages = log`)
	if err != nil {
		t.Fatal(err)
	}
	return db, plans
}

// migrated returns a database that has the schema.
func migrated(t *testing.T) (url string) {
	return testenv.NewDatabase(t, "coord", func(url string) error {
		db, err := OpenDB(url, 4)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
		return err
	})
}

// TestGatedPlan pins the plans of a look for runs behind gates, of which nearly all
// are full or hold runs of a kind that is: it reads nothing of their backlog, nor of
// what has ended or has no handler.
func TestGatedPlan(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	const run = `INSERT INTO coord_runs (payload, exclusive, due_at, max_attempts, backoff, max_backoff, timeout,
		at_most_once, created_at, state, at, priority, gate, concurrency_limit, kind) SELECT '', false, now(), 3, 1, 1, 0, false, now(), `
	exec(`ALTER TABLE coord_runs SET (autovacuum_enabled = off)`)
	exec(run + `'succeeded', now() - interval '1 minute', 2, NULL, 0, 'a' FROM generate_series(1, 100000)`)
	exec(run + `'queued', now() - interval '1 minute', 2, 'key:' || i % 100, 1, 'a' FROM generate_series(1, 50000) AS i`)
	exec(run + `'running', now() + interval '1 minute', 2, 'key:' || i, 1, 'a' FROM generate_series(1, 99) AS i`)
	exec(run + `'queued', now() - interval '1 minute', 2, 'key:b', 9, 'b' FROM generate_series(1, 5000) AS i`)
	exec(run + `'queued', now() - interval '1 minute', 2, 'kind:b', 0, 'b' FROM generate_series(1, 5000) AS i`)
	exec(run + `'queued', now() - interval '1 minute', 2, 'key:b', 9, 'without a handler' FROM generate_series(1, 5000) AS i`)
	exec(run + `'running', now() + interval '1 minute', 2, 'kind:b', 0, 'b'`)
	exec(`ANALYZE coord_runs`)
	*plans = nil
	err := inTx(t.Context(), db, func(tx bun.Tx) error {
		ids, err := pickGated(t.Context(), tx, coord.ClaimOptions{Kinds: []string{"a", "b"}, Limit: 5, Limits: map[string]int{"b": 1}})
		if err == nil && len(ids) != 1 {
			t.Errorf("the runs %v were picked, want one", ids)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(*plans, "\n")
	for _, want := range []string{
		"using coord_runs_gated on coord_runs", "using coord_runs_gated_running on coord_runs",
		"Index Cond: ((gate = lanes.gate) AND (concurrency_limit = lanes.places) AND (kind = lanes.kind)", "using coord_runs_claim on coord_runs",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the plans lack %q", want)
		}
	}
	for _, read := range regexp.MustCompile(`on coord_runs.*actual rows=(\d+) loops=(\d+)`).FindAllStringSubmatch(all, -1) {
		rows, _ := strconv.Atoi(read[1])
		loops, _ := strconv.Atoi(read[2])
		if rows*loops > 1000 {
			t.Errorf("a look reads %d rows: %s", rows*loops, read[0])
		}
	}
	if strings.Contains(all, "Seq Scan on coord_") {
		t.Error("a look reads the whole table")
	}
	if t.Failed() {
		t.Log(all)
	}
}

// TestClaimPlan pins the plans of a claim and of finishing, with a million runs
// that ended or are not due, and many tasks: they search the indexes,
// priority by priority, and read no more than they take. The plans were made when
// there was one run, and nobody has looked at the tables since.
func TestClaimPlan(t *testing.T) {
	t.Run("nothing known", func(t *testing.T) { claimPlan(t, ``) })
	t.Run("one run known", func(t *testing.T) { claimPlan(t, `VACUUM ANALYZE coord_runs`) })
}

// claimPlan has the plans made when there is one run, of which before may tell the planner.
func claimPlan(t *testing.T, before string) {
	db, plans := explained(t, migrated(t))
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	const (
		claim  = `SELECT * FROM coord_claim('{a,b}', 10, NULL, 1000000, 'w', 'lost')`
		finish = `SELECT coord_finish('{1000002,1000003}', '{1,1}', NULL, NULL, NULL, NULL)`
		next   = `SELECT coord_next_due('{b}')` // all is of another kind
	)
	const run = `INSERT INTO coord_runs (kind, payload, exclusive, due_at, max_attempts, backoff, max_backoff, timeout,
		at_most_once, created_at, state, at, priority) SELECT 'a', '', false, now(), 3, 1, 1, 0, false, now(), `
	exec(`ALTER TABLE coord_runs SET (autovacuum_enabled = off)`)
	exec(run + `'queued', now(), 2`)
	exec(before)
	exec(claim)
	exec(finish)
	exec(next)
	exec(run + `'succeeded', now() - interval '1 minute', 2 FROM generate_series(1, 500000)`)
	exec(run + `'queued', now() + interval '1 minute' * i, 2 FROM generate_series(1, 500000) AS i`)
	exec(run + `'queued', now() - interval '1 minute', 3 FROM generate_series(1, 50)`)
	exec(`INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap, max_attempts, backoff,
			max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once, paused, version, next_at,
			created_at, updated_at)
		SELECT 't' || i, 'a', '', '@hourly', 'UTC', 'forbid', 'latest', 10, 3, 1, 1, 0, 2, '', 0, false, false, 1,
			now() + i * interval '1 minute', now(), now()
		FROM generate_series(1, 10000) AS i`)
	*plans = nil
	exec(claim)
	exec(finish)
	all := strings.Join(*plans, "\n")
	for _, want := range []string{
		"Index Scan using coord_runs_claim on coord_runs", "Index Cond: ((priority = p.priority) AND (at <= ",
		"using coord_tasks_due on coord_tasks", "using coord_runs_gated_due on coord_runs",
		"Index Scan using coord_runs_pkey on coord_runs r", "Index Cond: (id = ANY (ARRAY[f.id]))", "Index Cond: (id = ANY",
		"Update on coord_runs r  (cost=", "rows=10 loops=1", "rows=2 loops=1",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the plans lack %q", want)
		}
	}
	for _, bad := range []string{"Seq Scan on coord_", "Sort", "Bitmap", "Rows Removed", "Hash"} {
		if strings.Contains(all, bad) {
			t.Errorf("the plans have a %q", bad)
		}
	}
	if t.Failed() {
		t.Log(all)
	}

	*plans = nil
	exec(next)
	all = strings.Join(*plans, "\n")
	for _, want := range []string{
		"using coord_runs_claim on coord_runs", "Index Cond: ((priority = p.priority) AND (at > ",
		"using coord_runs_gated_due on coord_runs", "using coord_tasks_due on coord_tasks", "(actual rows=50 loops=1)",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the plan of what comes next lacks %q", want)
		}
	}
	for _, read := range regexp.MustCompile(`on coord_.*actual rows=(\d+) loops=(\d+)`).FindAllStringSubmatch(all, -1) {
		rows, _ := strconv.Atoi(read[1])
		loops, _ := strconv.Atoi(read[2])
		if rows*loops > 100 {
			t.Errorf("what comes next takes reading %d rows: %s", rows*loops, read[0])
		}
	}
	for _, bad := range []string{"Seq Scan on coord_", "Sort", "Bitmap", "Rows Removed"} {
		if strings.Contains(all, bad) {
			t.Errorf("the plan of what comes next has a %q", bad)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}

// TestDirectoryPlan pins the plans of the directory, with a hundred thousand entries:
// they search the indexes. The plans were made when there was nothing.
func TestDirectoryPlan(t *testing.T) {
	db, plans := explained(t, migrated(t))
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	statements := []string{
		`SELECT * FROM coord_change('{register,update,remove}', '{m1,m1,m1}', '{k,key/1,key/101}', '{0,1,101}', '{x,x,x}')`,
		`SELECT coord_leave('m2')`,
		`SELECT * FROM coord_sweep(1000)`,
	}
	exec(`ALTER TABLE coord_entries SET (autovacuum_enabled = off)`)
	for _, statement := range statements {
		exec(statement)
	}
	exec(`INSERT INTO coord_members (id, name, data, since, lease_until)
		SELECT 'm' || i, '', '', now(), now() + CASE WHEN i = 7 THEN -1 ELSE 1 END * interval '1 hour' FROM generate_series(0, 99) AS i`)
	exec(`INSERT INTO coord_entries (key, epoch, member_id, data, since, updated_at)
		SELECT 'key/' || i, i, 'm' || i % 100, '', now(), now() FROM generate_series(1, 100000) AS i`)
	*plans = nil
	for _, statement := range statements {
		exec(statement)
	}
	exec(`ANALYZE coord_entries`)
	b := &backend{db: bun.NewDB(db, pgdialect.New())}
	if found, err := (directory{b}).Lookup(t.Context(), "key/1", "key/9"); err != nil || len(found) != 2 {
		t.Errorf("Lookup finds %v, %v", found, err)
	}
	f := coord.EntryFilter{Prefixes: []string{"key/1", "key/2", "nobody"}, After: "key/15", Limit: 100}
	if list, err := (directory{b}).List(t.Context(), f); err != nil || len(list) != 100 {
		t.Errorf("List finds %d entries, %v", len(list), err)
	}
	all := strings.Join(*plans, "\n")
	for _, want := range []string{"using coord_entries_pkey on coord_entries", "coord_entries_member"} {
		if !strings.Contains(all, want) {
			t.Errorf("the plans lack %q", want)
		}
	}
	for _, read := range regexp.MustCompile(`on coord_entries.*actual rows=(\d+) loops=(\d+)`).FindAllStringSubmatch(all, -1) {
		rows, _ := strconv.Atoi(read[1])
		loops, _ := strconv.Atoi(read[2])
		if rows*loops > 1100 { // what a member has, and a little
			t.Errorf("%d entries are read: %s", rows*loops, read[0])
		}
	}
	for _, bad := range []string{"Seq Scan on coord_entries", "Seq Scan on coord_epoch", "JIT"} {
		if strings.Contains(all, bad) {
			t.Errorf("the plans have a %q", bad)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}
