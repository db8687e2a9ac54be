package sqlite

import (
	"cmp"
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
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		stored, err = putTask(ctx, tx.Tx, tx.now, t)
		return err
	})
	if err != nil {
		return coord.Task{}, storeError(ctx, err)
	}
	c.b.ring(news{runs: true})
	return stored, nil
}

func putTask(ctx context.Context, tx bun.Tx, now row.Time, t coord.Task) (coord.Task, error) {
	var old []row.Task
	err := tx.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks WHERE name = ?`, t.Name).Scan(ctx, &old)
	switch {
	case err != nil:
		return coord.Task{}, err
	case len(old) == 0 && t.Version == 0:
		return createTask(ctx, tx, now, t)
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
			misfire_cap = ?, max_attempts = ?, backoff = ?, max_backoff = ?, timeout = ?, priority = ?,
			concurrency_key = ?, concurrency_limit = ?, at_most_once = ?, paused = ?, next_at = ?, version = version + 1, updated_at = ?
		WHERE id = ? RETURNING `+row.TaskColumns,
		t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire,
		t.MisfireCap, t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff),
		row.Micros(t.Timeout), t.Priority,
		t.Concurrency.Key, t.Concurrency.Limit, t.AtMostOnce, t.Paused, next, now, old[0].ID).Scan(ctx, &rows)
	return row.OnlyTask(rows, err, coord.ErrNotFound)
}

func createTask(ctx context.Context, tx bun.Tx, now row.Time, t coord.Task) (coord.Task, error) {
	next, err := first(t, now)
	if err != nil {
		return coord.Task{}, err
	}
	var rows []row.Task
	err = tx.NewRaw(`INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap,
			max_attempts, backoff, max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once,
			paused, version, next_at, created_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)
		RETURNING `+row.TaskColumns,
		t.Name, t.Kind, row.Bytes(t.Payload), t.Schedule, t.Zone, t.Overlap, t.Misfire, t.MisfireCap,
		t.Retry.MaxAttempts, row.Micros(t.Retry.Backoff), row.Micros(t.Retry.MaxBackoff), row.Micros(t.Timeout),
		t.Priority, t.Concurrency.Key, t.Concurrency.Limit, t.AtMostOnce, t.Paused, next, now, now).Scan(ctx, &rows)
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
	err := c.b.inTx(ctx, func(ctx context.Context, tx transaction) error { return deleteTask(ctx, tx.Tx, tx.now, name) })
	if err != nil {
		return storeError(ctx, err)
	}
	c.b.ring(news{runs: true, cancels: true})
	return nil
}

func deleteTask(ctx context.Context, tx bun.Tx, now row.Time, name string) error {
	var ids []int64
	err := tx.NewRaw(`DELETE FROM coord_tasks WHERE name = ? RETURNING id`, name).Scan(ctx, &ids)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return coord.ErrNotFound
	}
	_, err = tx.NewRaw(`UPDATE coord_runs INDEXED BY coord_runs_active SET `+cancelSet+`
		WHERE task_id = ?1 AND `+inFlight, now, ids[0]).Exec(ctx)
	return err
}

func (c claimer) PauseTask(ctx context.Context, name string, paused bool) error {
	err := c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		return pauseTask(ctx, tx.Tx, tx.now, name, paused)
	})
	if err != nil {
		return storeError(ctx, err)
	}
	c.b.ring(news{runs: !paused})
	return nil
}

func pauseTask(ctx context.Context, tx bun.Tx, now row.Time, name string, paused bool) error {
	var ids []int64
	err := tx.NewRaw(`UPDATE coord_tasks SET paused = ?, version = version + 1, updated_at = ? WHERE name = ? RETURNING id`,
		paused, now, name).Scan(ctx, &ids)
	if err == nil && len(ids) == 0 {
		return coord.ErrNotFound
	}
	return err
}

func (c claimer) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (run coord.Run, err error) {
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		run, err = tx.trigger(ctx, name, o)
		return err
	})
	if err != nil {
		return coord.Run{}, storeError(ctx, err)
	}
	c.b.ring(news{runs: true})
	return run, nil
}

func (t transaction) trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error) {
	var tasks []struct {
		row.Task
		Busy bool `bun:"busy"`
	}
	err := t.NewRaw(`SELECT `+row.TaskColumns+`, NOT `+notInTheWay+` AS busy
		FROM coord_tasks t WHERE name = ?`, name).Scan(ctx, &tasks)
	switch {
	case err != nil:
		return coord.Run{}, err
	case len(tasks) == 0:
		return coord.Run{}, coord.ErrNotFound
	}
	task := tasks[0]
	if o.Key != "" {
		run, found, err := t.duplicate(ctx, task.ID, o.Key)
		if err != nil || found {
			return run, err
		}
	}
	inTheWay := fmt.Errorf("%w: the task has a run that has not ended", coord.ErrConflict)
	if task.Busy {
		return coord.Run{}, inTheWay
	}
	run := runOf(task.Task)
	run.UniqueKey, run.DueAt = o.Key, t.now
	if o.Payload != nil {
		run.Payload = o.Payload
	}
	if inserted, err := t.insert(ctx, &run, forbids(task.Task)); err != nil || !inserted {
		return coord.Run{}, cmp.Or(err, inTheWay)
	}
	return run.Coord(), nil
}

// runOf returns a run of a task, which lacks when it is due.
func runOf(t row.Task) row.Run {
	return row.Run{
		TaskID: t.ID, Kind: t.Kind, Payload: t.Payload, MaxAttempts: t.MaxAttempts, Backoff: t.Backoff, MaxBackoff: t.MaxBackoff,
		Timeout: t.Timeout, Priority: t.Priority, Gate: gate.Of(t.Coord().Concurrency), Limit: t.Limit, AtMostOnce: t.AtMostOnce,
	}
}

func forbids(t row.Task) bool { return t.Overlap == string(coord.OverlapForbid) }

// notInTheWay: a task that forbids overlap waits while it has a run. The planner
// would search the whole history of a task when statistics know of none.
const notInTheWay = `NOT (overlap = 'forbid' AND EXISTS (
	SELECT 1 FROM coord_runs r INDEXED BY coord_runs_active WHERE r.task_id = t.id AND r.finished_at IS NULL))`

// fireBatch is how many tasks are fired in one transaction.
const fireBatch = 100

// fireRuns is after how many runs a transaction fires no further task.
const fireRuns = 1000

// fire turns due occurrences into queued runs and moves the tasks on. A task
// whose schedule can't be computed here is left as it is and keeps no other from
// firing; bad says what is wrong with the last such.
func (t transaction) fire(ctx context.Context, kinds []string) (fired int, bad, err error) {
	var last row.Task
	made := 0
	for fired == 0 {
		var tasks []row.Task
		err = t.NewRaw(`SELECT `+row.TaskColumns+` FROM coord_tasks t
			WHERE next_at <= ? AND NOT paused AND kind IN (?) AND `+notInTheWay+` AND (next_at, id) > (?, ?)
			ORDER BY next_at, id LIMIT ?`, t.now, bun.List(kinds), last.NextAt.UnixMicro(), last.ID, fireBatch).Scan(ctx, &tasks)
		if err != nil || len(tasks) == 0 {
			return 0, bad, err
		}
		for _, task := range tasks {
			due, next, err := plan.Fire(task.Coord(), t.now.Time)
			if err != nil {
				bad = fmt.Errorf("task %q: %w", task.Name, err)
				continue
			}
			if err := t.fireTask(ctx, task, due, next); err != nil {
				return 0, bad, err
			}
			fired++
			if made += len(due); made >= fireRuns {
				break
			}
		}
		last = tasks[len(tasks)-1] // when none could fire, look behind them
	}
	return fired, bad, nil
}

func (t transaction) fireTask(ctx context.Context, task row.Task, due []time.Time, next time.Time) error {
	for _, at := range due {
		run := runOf(task)
		run.ScheduledFor, run.DueAt = row.Time{Time: at}, row.Time{Time: at}
		if _, err := t.insert(ctx, &run, forbids(task)); err != nil {
			return err
		}
	}
	_, err := t.NewRaw(`UPDATE coord_tasks SET next_at = ? WHERE id = ?`, row.Time{Time: next}, task.ID).Exec(ctx)
	return err
}
