package sqlite

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/plan"
	"github.com/tandemhq/tandem/coord/internal/row"
)

func (c claimer) PutTask(ctx context.Context, t coord.Task) (stored coord.Task, err error) {
	err = c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		stored, err = putTask(ctx, tx, now, t)
		return err
	})
	if err != nil {
		return coord.Task{}, storeError(ctx, err)
	}
	c.b.ring(false, true)
	return stored, nil
}

func putTask(ctx context.Context, tx bun.Tx, now row.Time, t coord.Task) (coord.Task, error) {
	if t.Version == 0 {
		return createTask(ctx, tx, now, t)
	}
	var old []row.Task
	err := tx.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name = ?`, t.Name).Scan(ctx, &old)
	switch {
	case err != nil:
		return coord.Task{}, err
	case len(old) == 0:
		return coord.Task{}, coord.ErrNotFound
	case old[0].Version != t.Version:
		return coord.Task{}, coord.ErrConflict
	}
	next := old[0].NextAt
	if old[0].Schedule != t.Schedule || old[0].Zone != t.Zone {
		if next, err = first(t, now); err != nil {
			return coord.Task{}, err
		}
	}
	var rows []row.Task
	err = tx.NewRaw(`UPDATE coord_tasks SET kind = ?, payload = ?, schedule = ?, zone = ?, overlap = ?, misfire = ?,
			misfire_cap = ?, max_attempts = ?, backoff = ?, max_backoff = ?, timeout = ?, priority = ?, at_most_once = ?,
			paused = ?, next_at = ?, version = version + 1, updated_at = ?
		WHERE id = ? RETURNING `+row.TaskColumns,
		t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire,
		t.MisfireCap, t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff),
		row.Micros(t.Timeout), t.Priority, t.AtMostOnce,
		t.Paused, next, now, old[0].ID).Scan(ctx, &rows)
	return row.OnlyTask(rows, err, coord.ErrNotFound)
}

func createTask(ctx context.Context, tx bun.Tx, now row.Time, t coord.Task) (coord.Task, error) {
	next, err := first(t, now)
	if err != nil {
		return coord.Task{}, err
	}
	var rows []row.Task
	err = tx.NewRaw(`INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap,
			max_attempts, backoff, max_backoff, timeout, priority, at_most_once, paused, version, next_at,
			created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)
		ON CONFLICT (name) DO NOTHING RETURNING `+row.TaskColumns,
		t.Name, t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire, t.MisfireCap,
		t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff), row.Micros(t.Timeout),
		t.Priority, t.AtMostOnce, t.Paused, next, now, now).Scan(ctx, &rows)
	return row.OnlyTask(rows, err, coord.ErrConflict)
}

// first returns the first occurrence of a new schedule.
func first(t coord.Task, now row.Time) (row.Time, error) {
	next, err := plan.First(t, now.Time)
	return row.Time{Time: next}, err
}

func (c claimer) Task(ctx context.Context, name string) (coord.Task, error) {
	var rows []row.Task
	err := c.b.db.Read.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name = ?`, name).Scan(ctx, &rows)
	return row.OnlyTask(rows, storeError(ctx, err), coord.ErrNotFound)
}

func (c claimer) Tasks(ctx context.Context) iter.Seq2[coord.Task, error] {
	return func(yield func(coord.Task, error) bool) {
		const page = 100
		after := ""
		for {
			var rows []row.Task
			err := c.b.db.Read.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name > ?
				ORDER BY name LIMIT ?`, after, page).Scan(ctx, &rows)
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
	err := c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		var ids []int64
		err := tx.NewRaw(`DELETE FROM coord_tasks WHERE name = ? RETURNING id`, name).Scan(ctx, &ids)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return coord.ErrNotFound
		}
		_, err = tx.NewRaw(`UPDATE coord_runs SET `+cancelSet+` WHERE task_id = ?1 AND state IN ('queued', 'running')`,
			now, ids[0]).Exec(ctx)
		return err
	})
	return storeError(ctx, err)
}

func (c claimer) PauseTask(ctx context.Context, name string, paused bool) error {
	err := c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		var ids []int64
		err := tx.NewRaw(`UPDATE coord_tasks SET paused = ?, updated_at = ? WHERE name = ? RETURNING id`,
			paused, now, name).Scan(ctx, &ids)
		if err == nil && len(ids) == 0 {
			return coord.ErrNotFound
		}
		return err
	})
	if err != nil {
		return storeError(ctx, err)
	}
	c.b.ring(false, !paused)
	return nil
}

// notInTheWay: a task that forbids overlap waits while it has a run. The planner
// would search the whole history of a task when statistics know of none.
const notInTheWay = `NOT (overlap = 'forbid' AND EXISTS (
	SELECT 1 FROM coord_runs r INDEXED BY coord_runs_active WHERE r.task_id = t.id AND r.state IN ('queued', 'running')))`

// fireBatch is how many tasks are fired in one transaction.
const fireBatch = 100

// fire turns due occurrences into queued runs and moves the tasks on. A task
// whose schedule can't be computed here is left as it is and keeps no other from
// firing; bad says what is wrong with the last such.
func fire(ctx context.Context, tx bun.Tx, now row.Time, kinds []string) (bad, err error) {
	var last row.Task
	for fired := false; !fired; {
		var tasks []row.Task
		err = tx.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks t
			WHERE next_at <= ? AND NOT paused AND kind IN (?) AND `+notInTheWay+` AND (next_at, id) > (?, ?)
			ORDER BY next_at, id LIMIT ?`, now, bun.List(kinds), last.NextAt.UnixMicro(), last.ID, fireBatch).Scan(ctx, &tasks)
		if err != nil || len(tasks) == 0 {
			return bad, err
		}
		for _, t := range tasks {
			due, next, err := plan.Fire(t.Coord(), now.Time)
			if err != nil {
				bad = fmt.Errorf("task %q: %w", t.Name, err)
				continue
			}
			if err := fireTask(ctx, tx, now, t, due, next); err != nil {
				return nil, err
			}
			fired = true
		}
		last = tasks[len(tasks)-1] // when none could fire, look behind them
	}
	return bad, nil
}

func fireTask(ctx context.Context, tx bun.Tx, now row.Time, t row.Task, due []time.Time, next time.Time) error {
	for _, at := range due {
		_, err := tx.NewRaw(`INSERT INTO coord_runs (task_id, kind, payload, state, exclusive, scheduled_for, at, due_at,
				max_attempts, backoff, max_backoff, timeout, priority, at_most_once, created_at)
			VALUES (?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL DO NOTHING`,
			t.ID, t.Kind, row.Bytes(t.Payload), t.Overlap == string(coord.OverlapForbid),
			row.Time{Time: at}, row.Time{Time: at}, row.Time{Time: at},
			t.MaxAttempts, t.Backoff, t.MaxBackoff, t.Timeout, t.Priority, t.AtMostOnce, now).Exec(ctx)
		if err != nil {
			return err
		}
	}
	_, err := tx.NewRaw(`UPDATE coord_tasks SET next_at = ? WHERE id = ?`, row.Time{Time: next}, t.ID).Exec(ctx)
	return err
}
