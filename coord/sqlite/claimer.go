package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type claimer struct{ b *backend }

// runColumns are row.RunColumns for RETURNING, which knows no alias.
var runColumns = strings.ReplaceAll(row.RunColumns, "r.", "")

// after returns the moment d after now.
func after(now row.Time, d time.Duration) row.Time { return row.Time{Time: now.Add(d)} }

func (c claimer) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		queued, err = enqueue(ctx, tx, now, runs)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	c.b.ring(false, true)
	return queued, nil
}

func enqueue(ctx context.Context, tx bun.Tx, now row.Time, runs []coord.NewRun) ([]coord.Run, error) {
	var list row.Values
	for _, r := range runs {
		due := now
		switch {
		case r.Delay > 0:
			due = after(now, r.Delay)
		case !r.DueAt.IsZero():
			due = row.Time{Time: r.DueAt}
		}
		list.Add("(?, ?, NULLIF(?, ''), ?, ?, ?, ?, ?, ?, ?, ?, 'queued', FALSE, ?)",
			r.Kind, row.Bytes(r.Payload), r.UniqueKey, due, due, r.Retry.MaxAttempts, row.Micros(r.Retry.Backoff),
			row.Micros(r.Retry.MaxBackoff), row.Micros(r.Timeout), r.Priority, r.AtMostOnce, now)
	}
	var rows []row.Run
	err := tx.NewRaw(`INSERT INTO coord_runs (kind, payload, unique_key, at, due_at, max_attempts, backoff, max_backoff,
			timeout, priority, at_most_once, state, exclusive, created_at)
		VALUES `+list.String()+`
		ON CONFLICT (COALESCE(task_id, 0), unique_key) WHERE unique_key IS NOT NULL DO NOTHING
		RETURNING `+runColumns, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	if len(rows) == len(runs) {
		return row.Runs(rows), nil // inserted, and returned, in the order of the list
	}
	earlier, err := runsByKey(ctx, tx, 0, row.UniqueKeys(runs)...)
	if err != nil {
		return nil, err
	}
	return row.WithDuplicates(runs, rows, earlier)
}

// runsByKey finds runs of a task, or of none.
func runsByKey(ctx context.Context, tx bun.Tx, task int64, keys ...string) (map[string]coord.Run, error) {
	var rows []row.Run
	err := tx.NewRaw(`SELECT `+row.RunColumns+` FROM coord_runs r
		WHERE COALESCE(task_id, 0) = ? AND unique_key IS NOT NULL AND unique_key IN (?)`, task, bun.List(keys)).Scan(ctx, &rows)
	return row.ByKey(rows), err
}

func (c claimer) Trigger(ctx context.Context, name, key string) (run coord.Run, err error) {
	err = c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		run, err = trigger(ctx, tx, now, name, key)
		return err
	})
	if err != nil {
		return coord.Run{}, storeError(ctx, err)
	}
	c.b.ring(false, true)
	return run, nil
}

func trigger(ctx context.Context, tx bun.Tx, now row.Time, name, key string) (coord.Run, error) {
	var tasks []int64
	if err := tx.NewRaw(`SELECT id FROM coord_tasks WHERE name = ?`, name).Scan(ctx, &tasks); err != nil {
		return coord.Run{}, err
	}
	if len(tasks) == 0 {
		return coord.Run{}, coord.ErrNotFound
	}
	var rows []row.Run
	err := tx.NewRaw(`INSERT INTO coord_runs (task_id, kind, payload, unique_key, state, exclusive, at, due_at,
			max_attempts, backoff, max_backoff, timeout, priority, at_most_once, created_at)
		SELECT id, kind, payload, NULLIF(?1, ''), 'queued', overlap = 'forbid', ?0, ?0,
			max_attempts, backoff, max_backoff, timeout, priority, at_most_once, ?0
		FROM coord_tasks t WHERE id = ?2 AND `+notInTheWay+`
		ON CONFLICT DO NOTHING RETURNING `+runColumns, now, key, tasks[0]).Scan(ctx, &rows)
	if err != nil {
		return coord.Run{}, err
	}
	if len(rows) == 1 {
		return rows[0].Coord(), nil
	}
	byKey, err := runsByKey(ctx, tx, tasks[0], key)
	if err != nil {
		return coord.Run{}, err
	}
	earlier, ok := byKey[key]
	if !ok {
		return coord.Run{}, fmt.Errorf("%w: the task has a run that has not ended", coord.ErrConflict)
	}
	earlier.Duplicate = true
	return earlier, nil
}

// Claim fires and takes in one transaction. A look at the file tells first
// whether there is anything to do, so that polling takes no lock.
func (c claimer) Claim(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, err error) {
	if due, err := c.due(ctx, o.Kinds); err != nil || !due {
		return nil, storeError(ctx, err)
	}
	var bad error
	ended := 0
	err = c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		if bad, err = fire(ctx, tx, now, o.Kinds); err != nil {
			return err
		}
		claims, ended, err = take(ctx, tx, now, o)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	c.b.ring(false, ended > 0) // they have made way
	if len(claims) > 0 {
		return claims, nil // they are leased; what is bad will come again
	}
	return nil, bad
}

// claimable is the condition under which a run can be claimed at ?0. The index is
// searched once per priority, and each search ends at the limit, whatever lies
// in the future.
const claimable = `priority IN (1, 2, 3, 4) AND state IN ('queued', 'running') AND at <= ?0 AND kind IN (?1)`

// dueSQL says whether there is anything to fire or to take.
const dueSQL = `SELECT EXISTS (SELECT 1 FROM coord_runs WHERE ` + claimable + `) OR EXISTS (
	SELECT 1 FROM coord_tasks t WHERE next_at <= ?0 AND NOT paused AND kind IN (?1) AND ` + notInTheWay + `)`

func (c claimer) due(ctx context.Context, kinds []string) (bool, error) {
	var due []bool
	err := c.b.db.Read.NewRaw(dueSQL, c.b.now(), bun.List(kinds)).Scan(ctx, &due)
	return len(due) == 1 && due[0], err
}

// again is the condition under which a claimable run may run, and need not end
// because its worker vanished.
const again = `(state = 'queued' OR NOT (cancel_requested OR at_most_once OR attempt >= max_attempts))`

// takeSQL claims due runs.
var takeSQL = `UPDATE coord_runs SET
		state = CASE WHEN ` + again + ` THEN 'running' WHEN cancel_requested THEN 'cancelled' ELSE 'failed' END,
		at = CASE WHEN ` + again + ` THEN ?3 ELSE ?0 END,
		token = token + 1,
		attempt = attempt + ` + again + `,
		rescues = rescues + (state = 'running'),
		worker = CASE WHEN ` + again + ` THEN ?4 ELSE worker END,
		error = CASE WHEN ` + again + ` OR cancel_requested THEN error ELSE ?5 END,
		started_at = CASE WHEN ` + again + ` THEN ?0 ELSE started_at END,
		finished_at = CASE WHEN ` + again + ` THEN NULL ELSE ?0 END
	WHERE id IN (SELECT id FROM coord_runs WHERE ` + claimable + ` ORDER BY priority, at, id LIMIT ?2)
	RETURNING ` + runColumns

// take claims due runs and reports how many had to end instead.
func take(ctx context.Context, tx bun.Tx, now row.Time, o coord.ClaimOptions) (claims []coord.Claim, ended int, err error) {
	for {
		var rows []row.Run
		err = tx.NewRaw(takeSQL, now, bun.List(o.Kinds), o.Limit, after(now, o.Lease), o.Worker, coord.LostError).Scan(ctx, &rows)
		if err != nil {
			return nil, 0, err
		}
		found, taken := len(rows), row.Claims(rows)
		claims, ended = append(claims, taken...), ended+found-len(taken)
		if found < o.Limit || found == len(taken) {
			return claims, ended, nil
		}
		o.Limit -= len(taken) // runs that had to end took the places of others
	}
}

func (c claimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	var list row.Values
	for _, claim := range claims {
		list.Add("(?, ?)", claim.Run.ID, claim.Token)
	}
	var rows []row.Run
	err := c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		list.Args = append(list.Args, after(now, lease))
		return tx.NewRaw(`WITH held (id, token) AS (VALUES `+list.String()+`)
			UPDATE coord_runs AS r SET at = ?
			FROM held WHERE r.state = 'running' AND r.id = held.id AND r.token = held.token
			RETURNING `+runColumns, list.Args...).Scan(ctx, &rows)
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Held(claims, rows)
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) (err error) {
	queued := false
	var fenced error
	err = c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		queued, err = finish(ctx, tx, now, results)
		if errors.Is(err, coord.ErrFenced) {
			fenced, err = err, nil // the others are finished
		}
		return err
	})
	if err != nil {
		return storeError(ctx, err)
	}
	c.b.ring(false, queued)
	return fenced
}

// finish ends claims and reports whether runs were queued by it.
func finish(ctx context.Context, tx bun.Tx, now row.Time, results []coord.Result) (queued bool, err error) {
	var list row.Values
	claims := make([]coord.Claim, len(results))
	for i, r := range results {
		s := r.Settle()
		claims[i] = r.Claim
		// A task that waits for the end of this run may fire now.
		queued = queued || s.State == coord.Queued && s.Delay == 0 || r.Claim.Run.TaskID != 0
		list.Add("(?, ?, ?, ?, ?, ?)",
			r.Claim.Run.ID, r.Claim.Token, s.State, after(now, s.Delay), row.Refund(s), s.Error)
	}
	list.Args = append(list.Args, now, now)
	var rows []row.Run
	err = tx.NewRaw(`WITH result (id, token, state, due, refund, error) AS (VALUES `+list.String()+`),
		held AS (
			SELECT r.id, result.due, result.refund, result.error,
				CASE WHEN result.state = 'queued' AND r.cancel_requested THEN 'cancelled' ELSE result.state END AS state
			FROM coord_runs r JOIN result ON r.id = result.id AND r.token = result.token
			WHERE r.state = 'running'
		)
		UPDATE coord_runs AS r SET
			state = held.state,
			at = CASE WHEN held.state = 'queued' THEN held.due ELSE ? END,
			due_at = CASE WHEN held.state = 'queued' THEN held.due ELSE r.due_at END,
			attempt = r.attempt - held.refund,
			error = CASE WHEN held.error = '' THEN r.error ELSE held.error END,
			finished_at = CASE WHEN held.state = 'queued' THEN NULL ELSE ? END
		FROM held WHERE r.id = held.id RETURNING `+runColumns, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return false, err
	}
	_, err = row.Held(claims, rows)
	return queued, err
}

// cancelSet ends a queued run at ?0 and asks a running one to stop.
const cancelSet = `cancel_requested = (state = 'running'),
	at = CASE WHEN state = 'queued' THEN ?0 ELSE at END,
	finished_at = CASE WHEN state = 'queued' THEN ?0 END,
	state = CASE WHEN state = 'queued' THEN 'cancelled' ELSE state END`

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	var ids []int64
	err := c.b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		return tx.NewRaw(`UPDATE coord_runs SET `+cancelSet+` WHERE id = ?1 AND state IN ('queued', 'running') RETURNING id`,
			now, id).Scan(ctx, &ids)
	})
	if err != nil {
		return storeError(ctx, err)
	}
	if len(ids) == 1 {
		c.b.ring(false, true)
		return nil
	}
	if _, err := c.Run(ctx, id); err != nil {
		return err
	}
	return fmt.Errorf("%w: the run has ended", coord.ErrConflict)
}

func (c claimer) Run(ctx context.Context, id coord.RunID) (coord.Run, error) {
	run, err := row.FindRun(ctx, c.b.db.Read, id)
	return run, storeError(ctx, err)
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		runs, err := row.FindRuns(ctx, c.b.db.Read, f)
		if err != nil {
			yield(coord.Run{}, storeError(ctx, err))
			return
		}
		for _, run := range runs {
			if !yield(run, nil) {
				return
			}
		}
	}
}

// reapBatch is how many rows one clean-up statement deletes.
const reapBatch = 1000

// reap runs a clean-up statement and returns how many rows it deleted.
func (b *backend) reap(ctx context.Context, statement func(tx bun.Tx, now row.Time) *bun.RawQuery) (int, error) {
	var n int64
	err := b.inTx(ctx, func(tx bun.Tx, now row.Time) error {
		res, err := statement(tx, now).Exec(ctx)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	if err != nil {
		return 0, storeError(ctx, err)
	}
	return int(n), nil
}

func (c claimer) Prune(ctx context.Context, r coord.RunRetention) (n int, err error) {
	const ended = `state IN ('succeeded', 'failed', 'cancelled')`
	if r.Age > 0 {
		n, err = c.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
			return tx.NewRaw(`DELETE FROM coord_runs WHERE id IN (
				SELECT id FROM coord_runs WHERE `+ended+` AND at < ? ORDER BY at LIMIT ?)`, after(now, -r.Age), reapBatch)
		})
		if err != nil {
			return 0, err
		}
	}
	if r.Keep > 0 {
		more, err := c.b.reap(ctx, func(tx bun.Tx, _ row.Time) *bun.RawQuery {
			// CROSS JOIN keeps the tasks outside.
			return tx.NewRaw(`DELETE FROM coord_runs WHERE id IN (
				SELECT old.id FROM coord_tasks t CROSS JOIN coord_runs old ON old.task_id = t.id AND old.id <= (
					SELECT id FROM coord_runs WHERE task_id = t.id AND `+ended+` ORDER BY id DESC LIMIT 1 OFFSET ?
				) WHERE old.`+ended+` LIMIT ?)`, r.Keep, reapBatch)
		})
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c claimer) Hints() (<-chan struct{}, func()) { return c.b.hints.Hints() }
