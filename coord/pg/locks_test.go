package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// begin opens a transaction of somebody else.
func begin(t *testing.T, db *bun.DB) bun.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func exec(t *testing.T, db bun.IDB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// execOnce executes a statement on a connection of its own.
func execOnce(url, statement string) error {
	db, err := pg.OpenDB(url, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(context.Background(), statement)
	return err
}

// waitForLock returns when a statement waits for a lock in the database. Who rings the doorbell waits for one of
// the whole server, for a moment.
func waitForLock(t *testing.T, db *bun.DB) {
	t.Helper()
	waitFor(t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
		AND wait_event_type = 'Lock' AND wait_event <> 'object'`)
}

// waitFor returns when the count is above zero.
func waitFor(t *testing.T, db *bun.DB, count string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		var n int
		if err := db.QueryRowContext(t.Context(), count).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
	t.Fatalf("none: %s", count)
}

func claim(t *testing.T, b coord.Backend, limit int) []coord.Claim {
	t.Helper()
	claims, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{
		Worker: "w", Kinds: []string{"k"}, Limit: limit, Lease: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// Two calls queue runs with the same keys, in different orders.
func TestEnqueueOfTheSameKeysDoesNotDeadlock(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	run := func(key string) coord.NewRun { return coord.NewRun{Kind: "k", UniqueKey: key} }
	other := make(chan []coord.Run, 1)
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Enqueue(ctx, run("a")); err != nil {
			return err
		}
		go func() {
			runs, err := b.Claimer().Enqueue(t.Context(), run("b"), run(""), run("a"), run("c"), run("c"))
			if err != nil {
				t.Error(err)
			}
			other <- runs
		}()
		waitForLock(t, db)
		_, err := tx.Enqueue(ctx, run("b"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	runs := <-other
	if len(runs) != 5 {
		t.Fatalf("%d runs", len(runs))
	}
	for i, duplicate := range []bool{true, false, true, false, true} {
		if r := runs[i]; r.Duplicate != duplicate || r.UniqueKey != []string{"b", "", "a", "c", "c"}[i] {
			t.Errorf("run %d: key %q, duplicate %t", i, r.UniqueKey, r.Duplicate)
		}
	}
	if runs[1].ID > runs[3].ID || runs[3].ID != runs[4].ID {
		t.Errorf("ids %d, %d, %d", runs[1].ID, runs[3].ID, runs[4].ID)
	}
}

// DeleteTask locks the runs of a task in the order in which Finish and Extend do.
func TestDeleteTaskLocksInOrder(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k", Overlap: coord.OverlapAllow}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Claimer().Trigger(t.Context(), "t", coord.TriggerOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The first run now lies behind the other, and no index says better.
	exec(t, db, `DROP INDEX coord_runs_history; UPDATE coord_runs SET priority = 3 WHERE id = 1`)
	tx := begin(t, db)
	exec(t, tx, `SELECT FROM coord_runs WHERE id = 1 FOR UPDATE`)
	deleted := make(chan error, 1)
	go func() { deleted <- b.Claimer().DeleteTask(t.Context(), "t") }()
	waitForLock(t, db)
	exec(t, tx, `SELECT FROM coord_runs WHERE id = 2 FOR UPDATE NOWAIT`)
	_ = tx.Rollback()
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	for r, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{}) {
		if err != nil || r.State != coord.Cancelled {
			t.Errorf("run %d is %s, %v", r.ID, r.State, err)
		}
	}
}

// Clean-up does not wait for what somebody else holds, nor for other clean-up.
func TestCleanUpWaitsForNobody(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k", Overlap: coord.OverlapAllow}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		publish(t, b, "a", "k")
		run, err := b.Claimer().Trigger(t.Context(), "t", coord.TriggerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Claimer().Cancel(t.Context(), run.ID); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, `UPDATE coord_runs SET at = now() - interval '1 day' WHERE id = 1;
		UPDATE coord_events SET at = now() - interval '1 day' WHERE seq = 1`)
	tx := begin(t, db)
	exec(t, tx, `SELECT FROM coord_runs WHERE id = 1 FOR UPDATE; SELECT FROM coord_events WHERE seq = 1 FOR UPDATE`)
	for _, keep := range []int{0, 1} {
		if n, err := b.Claimer().Prune(t.Context(), coord.RunRetention{Age: time.Hour, Keep: keep}); n != keep || err != nil {
			t.Errorf("Prune: %d, %v, want %d", n, err, keep)
		}
		if n, err := b.Broadcaster().Trim(t.Context(), coord.EventRetention{Age: time.Hour, Keep: keep}); n != keep || err != nil {
			t.Errorf("Trim: %d, %v, want %d", n, err, keep)
		}
	}
}

// A trigger that meets another one which is not committed yet waits for it: that
// there is no run to be seen is not enough.
func TestTriggersDoNotOverlap(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Trigger(ctx, "t", coord.TriggerOptions{}); err != nil {
			return err
		}
		go func() {
			_, err := b.Claimer().Trigger(t.Context(), "t", coord.TriggerOptions{})
			second <- err
		}()
		waitForLock(t, db)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, coord.ErrConflict) {
		t.Errorf("the second trigger: %v, want ErrConflict", err)
	}
}

// Whatever a task believes its next occurrence to be, one that has had its run gets
// no other.
func TestOccurrenceHasOneRun(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	_, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k", Schedule: "@at 2100-01-01 00:00", Overlap: coord.OverlapAllow})
	if err != nil {
		t.Fatal(err)
	}
	back := func() {
		exec(t, db, `UPDATE coord_tasks SET next_at = '2026-01-02 03:04:05+00'`)
	}
	back()
	if claims := claim(t, b, 10); len(claims) != 1 {
		t.Fatalf("%d runs were claimed, want one", len(claims))
	}
	back()
	if claims := claim(t, b, 10); len(claims) != 0 {
		t.Errorf("the occurrence ran again: %v", claims)
	}
}
