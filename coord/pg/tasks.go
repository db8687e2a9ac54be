package pg

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/plan"
	"github.com/tandemhq/tandem/coord/internal/row"
)

func (c claimer) PutTask(ctx context.Context, t coord.Task) (stored coord.Task, err error) {
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		stored, err = putTask(ctx, tx, t)
		return err
	})
	if err != nil {
		return coord.Task{}, storeError(ctx, err)
	}
	c.b.ring(newRuns)
	return stored, nil
}

func putTask(ctx context.Context, db bun.IDB, t coord.Task) (coord.Task, error) {
	var old []row.Task
	err := db.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name = ? FOR UPDATE`, t.Name).Scan(ctx, &old)
	switch {
	case err != nil:
		return coord.Task{}, err
	case len(old) == 0 && t.Version == 0:
		return createTask(ctx, db, t)
	case len(old) == 0:
		return coord.Task{}, coord.ErrNotFound
	case old[0].Version != t.Version:
		return coord.Task{}, coord.ErrConflict
	}
	next := old[0].NextAt.Time
	if old[0].Schedule != t.Schedule || old[0].Zone != t.Zone {
		if next, err = first(ctx, db, t); err != nil {
			return coord.Task{}, err
		}
	}
	var rows []row.Task
	err = db.NewRaw(`UPDATE coord_tasks SET kind = ?, payload = ?, schedule = ?, zone = ?, overlap = ?, misfire = ?,
			misfire_cap = ?, max_attempts = ?, backoff = ?, max_backoff = ?, timeout = ?, priority = ?, concurrency_key = ?,
			concurrency_limit = ?, at_most_once = ?, paused = ?, next_at = ?, version = version + 1, updated_at = coord_clock()
		WHERE id = ? RETURNING `+row.TaskColumns,
		t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire,
		t.MisfireCap, t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff),
		row.Micros(t.Timeout), t.Priority, t.Concurrency.Key, t.Concurrency.Limit, t.AtMostOnce,
		t.Paused, row.Time{Time: next}, old[0].ID).Scan(ctx, &rows)
	return row.OnlyTask(rows, err, coord.ErrNotFound)
}

func createTask(ctx context.Context, db bun.IDB, t coord.Task) (coord.Task, error) {
	next, err := first(ctx, db, t)
	if err != nil {
		return coord.Task{}, err
	}
	var rows []row.Task
	err = db.NewRaw(`INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap,
			max_attempts, backoff, max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once,
			paused, version, next_at, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, coord_clock(), coord_clock())
		ON CONFLICT (name) DO NOTHING RETURNING `+row.TaskColumns,
		t.Name, t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire, t.MisfireCap,
		t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff), row.Micros(t.Timeout),
		t.Priority, t.Concurrency.Key, t.Concurrency.Limit, t.AtMostOnce, t.Paused, row.Time{Time: next}).Scan(ctx, &rows)
	return row.OnlyTask(rows, err, coord.ErrConflict)
}

// first returns the first occurrence of a new schedule.
func first(ctx context.Context, db bun.IDB, t coord.Task) (time.Time, error) {
	var now []row.Moment
	if err := db.NewRaw(`SELECT coord_clock() AS at`).Scan(ctx, &now); err != nil {
		return time.Time{}, err
	}
	return plan.First(t, now[0].At.Time)
}

func (c claimer) Task(ctx context.Context, name string) (coord.Task, error) {
	var rows []row.Task
	err := c.b.db.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name = ?`, name).Scan(ctx, &rows)
	return row.OnlyTask(rows, storeError(ctx, err), coord.ErrNotFound)
}

func (c claimer) Tasks(ctx context.Context) iter.Seq2[coord.Task, error] {
	return func(yield func(coord.Task, error) bool) {
		const page = 100
		after := ""
		for {
			var rows []row.Task
			err := c.b.db.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name COLLATE "C" > ?
				ORDER BY name COLLATE "C" LIMIT ?`, after, page).Scan(ctx, &rows)
			if err != nil {
				yield(coord.Task{}, storeError(ctx, err))
				return
			}
			for _, r := range rows {
				if !yield(r.Coord(), nil) {
					return
				}
				after = r.Name
			}
			if len(rows) < page {
				return
			}
		}
	}
}

func (c claimer) DeleteTask(ctx context.Context, name string) error {
	err := inTx(ctx, c.b.db, func(tx bun.Tx) error { return deleteTask(ctx, tx, name) })
	if err != nil {
		return storeError(ctx, err)
	}
	c.b.ring(newRuns | newCancels)
	return nil
}

func deleteTask(ctx context.Context, tx bun.Tx, name string) error {
	var ids []int64
	err := tx.NewRaw(`DELETE FROM coord_tasks WHERE name = ? RETURNING id`, name).Scan(ctx, &ids)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return coord.ErrNotFound
	}
	_, err = tx.NewRaw(`WITH active AS MATERIALIZED (
			SELECT id FROM coord_runs WHERE task_id = ? AND state <= 'running' ORDER BY id FOR UPDATE
		)
		UPDATE coord_runs AS r SET `+cancelSet+` FROM active WHERE r.id = active.id`, ids[0]).Exec(ctx)
	return err
}

func (c claimer) PauseTask(ctx context.Context, name string, paused bool) error {
	news, err := pauseTask(ctx, c.b.db, name, paused)
	c.b.ring(news)
	return storeError(ctx, err)
}

func pauseTask(ctx context.Context, db bun.IDB, name string, paused bool) (news, error) {
	var ids []int64
	err := db.NewRaw(`UPDATE coord_tasks SET paused = ?, version = version + 1, updated_at = coord_clock() WHERE name = ? RETURNING id`,
		paused, name).Scan(ctx, &ids)
	switch {
	case err != nil:
		return 0, err
	case len(ids) == 0:
		return 0, coord.ErrNotFound
	case paused:
		return 0, nil
	}
	return newRuns, nil
}

func (c claimer) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (run coord.Run, err error) {
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		run, err = trigger(ctx, tx, name, o)
		return err
	})
	if err != nil {
		return coord.Run{}, storeError(ctx, err)
	}
	c.b.ring(newRuns)
	return run, nil
}

func trigger(ctx context.Context, tx bun.Tx, name string, o coord.TriggerOptions) (coord.Run, error) {
	var tasks []int64
	if err := tx.NewRaw(`SELECT id FROM coord_tasks WHERE name = ? FOR SHARE`, name).Scan(ctx, &tasks); err != nil {
		return coord.Run{}, err
	}
	if len(tasks) == 0 {
		return coord.Run{}, coord.ErrNotFound
	}
	var rows []row.Run
	err := tx.NewRaw(`INSERT INTO coord_runs AS r (task_id, kind, payload, unique_key, state, exclusive, at, due_at,
			max_attempts, backoff, max_backoff, timeout, priority, gate, concurrency_limit, at_most_once, created_at)
		SELECT id, kind, COALESCE(?::bytea, payload), NULLIF(?, ''), 'queued', overlap = 'forbid', coord_clock(), coord_clock(),
			max_attempts, backoff, max_backoff, timeout, priority, `+gateOf+`, concurrency_limit, at_most_once, coord_clock()
		FROM coord_tasks t WHERE id = ? AND `+notInTheWay+`
		ON CONFLICT DO NOTHING RETURNING `+row.RunColumns, o.Payload, o.Key, tasks[0]).Scan(ctx, &rows)
	if err != nil {
		return coord.Run{}, err
	}
	if len(rows) == 1 {
		return rows[0].Coord(), nil
	}
	byKey, err := runsByKey(ctx, tx, tasks[0], o.Key)
	if err != nil {
		return coord.Run{}, err
	}
	earlier, ok := byKey[o.Key]
	if !ok {
		return coord.Run{}, fmt.Errorf("%w: the task has a run that has not ended", coord.ErrConflict)
	}
	earlier.Duplicate = true
	return earlier, nil
}

// gateOf is gate.Of in SQL.
const gateOf = `'key:' || NULLIF(concurrency_key, '')`

// notInTheWay: a task that forbids overlap waits while it has a run. The unique
// index decides in the end.
const notInTheWay = `NOT (overlap = 'forbid' AND EXISTS (
	SELECT FROM coord_runs r WHERE r.task_id = t.id AND r.state <= 'running'))`

// fireBatch is how many tasks are fired in one transaction, which ends sooner when
// they have so many occurrences that it made fireRuns runs.
const (
	fireBatch = 100
	fireRuns  = 1000
)

// fire turns due occurrences into queued runs and moves the tasks on, in one
// transaction. It returns how many tasks it moved on, which may be less than are
// due. A task whose schedule can't be computed here is left as it is and keeps no
// other from firing; bad says what is wrong with the last such.
func (b *backend) fire(ctx context.Context, kinds []string) (fired int, bad, err error) {
	err = inTx(ctx, b.db, func(tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, brief); err != nil {
			return err
		}
		var last row.Task
		made := 0
		for fired == 0 {
			var tasks []struct {
				row.Task
				Now row.Time `bun:"now"`
			}
			err := tx.NewRaw(`SELECT `+row.TaskColumns+`, coord_clock() AS now FROM coord_tasks t
				WHERE next_at <= coord_now() AND NOT paused AND kind IN (?) AND `+notInTheWay+`
					AND (next_at, id) > (COALESCE(?, '-infinity'::timestamptz), ?)
				ORDER BY next_at, id LIMIT ? FOR UPDATE SKIP LOCKED`,
				bun.List(kinds), last.NextAt, last.ID, fireBatch).Scan(ctx, &tasks)
			if err != nil || len(tasks) == 0 {
				return err
			}
			for _, t := range tasks {
				due, next, err := plan.Fire(t.Coord(), t.Now.Time)
				if err != nil {
					bad = fmt.Errorf("task %q: %w", t.Name, err)
					continue
				}
				if err := fireTask(ctx, tx, t.Task, due, next); err != nil {
					return err
				}
				fired++
				if made += len(due); made >= fireRuns {
					break
				}
			}
			last = tasks[len(tasks)-1].Task // when none could fire, look behind them
		}
		return nil
	})
	if err != nil {
		return 0, bad, err
	}
	return fired, bad, nil
}

func fireTask(ctx context.Context, tx bun.Tx, t row.Task, due []time.Time, next time.Time) error {
	for _, at := range due {
		var ids []int64
		err := tx.NewRaw(`INSERT INTO coord_runs AS r (task_id, kind, payload, state, exclusive, scheduled_for, at, due_at,
				max_attempts, backoff, max_backoff, timeout, priority, gate, concurrency_limit, at_most_once, created_at)
			VALUES (?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, NULLIF(?, ''), ?, ?, coord_clock())
			ON CONFLICT DO NOTHING RETURNING id`,
			t.ID, t.Kind, row.Bytes(t.Payload), t.Overlap == string(coord.OverlapForbid),
			row.Time{Time: at}, row.Time{Time: at}, row.Time{Time: at},
			t.MaxAttempts, t.Backoff, t.MaxBackoff, t.Timeout, t.Priority,
			gate.Of(coord.Concurrency{Key: t.Key}), t.Limit, t.AtMostOnce).Scan(ctx, &ids)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			continue
		}
		// Either the occurrence has its run already, or another run of the task came
		// in between; then the occurrence keeps waiting.
		var known []int
		err = tx.NewRaw(`SELECT 1 FROM coord_runs WHERE task_id = ? AND scheduled_for = ?`,
			t.ID, row.Time{Time: at}).Scan(ctx, &known)
		if err != nil || len(known) == 0 {
			return err
		}
	}
	_, err := tx.NewRaw(`UPDATE coord_tasks SET next_at = ? WHERE id = ?`, row.Time{Time: next}, t.ID).Exec(ctx)
	return err
}
