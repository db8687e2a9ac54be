package pg

import (
	"context"
	"strings"
	"testing"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// TestClaimPlan pins the plan of the claim with many runs that ended, many that
// are not due and many tasks: it searches the partial indexes, priority by
// priority, and reads no more than it takes.
func TestClaimPlan(t *testing.T) {
	url := testenv.NewDatabase(t, "coord", func(url string) error {
		db, err := OpenDB(url, 4)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
		return err
	})
	db, err := OpenDB(url, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `
		INSERT INTO coord_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff, timeout,
			priority, at_most_once, created_at)
		SELECT 'a', '', CASE WHEN i % 2 = 0 THEN 'succeeded' ELSE 'queued' END, false,
			now() + (i % 2) * interval '1 hour' * i, now(), 3, 1, 1, 0, 2, false, now()
		FROM generate_series(1, 100000) AS i;
		INSERT INTO coord_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff, timeout,
			priority, at_most_once, created_at)
		SELECT 'a', '', 'queued', false, now() - interval '1 minute', now(), 3, 1, 1, 0, 3, false, now()
		FROM generate_series(1, 50);
		INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap, max_attempts, backoff,
			max_backoff, timeout, priority, at_most_once, paused, version, next_at, created_at, updated_at)
		SELECT 't' || i, 'a', '', '@hourly', 'UTC', 'forbid', 'latest', 10, 3, 1, 1, 0, 2, false, false, 1,
			now() + i * interval '1 minute', now(), now()
		FROM generate_series(1, 10000) AS i;
		ANALYZE`)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	err = db.NewRaw(`EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) `+takeSQL,
		bun.List([]string{"a", "b"}), 10, 1000000, "w", "lost").Scan(t.Context(), &lines)
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	for _, want := range []string{
		"Index Scan using coord_runs_claim on coord_runs", "Index Cond: ((priority = p.priority) AND (at <= ",
		"using coord_tasks_due on coord_tasks",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan lacks %q", want)
		}
	}
	for _, bad := range []string{"Seq Scan on coord_", "Sort", "Bitmap", "Rows Removed"} {
		if strings.Contains(plan, bad) {
			t.Errorf("the plan has a %q", bad)
		}
	}
	if t.Failed() {
		t.Log(plan)
	}
}
