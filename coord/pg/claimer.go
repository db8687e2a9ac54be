package pg

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type claimer struct{ b *backend }

func (c claimer) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		queued, err = enqueue(ctx, tx, runs)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	c.b.ring(false, true)
	return queued, nil
}

func enqueue(ctx context.Context, db bun.IDB, runs []coord.NewRun) ([]coord.Run, error) {
	var list row.Values
	for _, r := range runs {
		due := "coord_clock()"
		at := []any{}
		switch {
		case r.Delay > 0:
			due = "coord_clock() + ? * interval '1 microsecond'"
			at = []any{row.Micros(r.Delay)}
		case !r.DueAt.IsZero():
			due = "?"
			at = []any{row.Time{Time: r.DueAt}}
		}
		vs := append([]any{r.Kind, row.Bytes(r.Payload), r.UniqueKey}, at...)
		vs = append(vs, r.Retry.MaxAttempts, row.Micros(r.Retry.Backoff), row.Micros(r.Retry.MaxBackoff),
			row.Micros(r.Timeout), r.Priority, r.AtMostOnce)
		list.Add("(?, ?::bytea, NULLIF(?, ''), "+due+", ?, ?, ?, ?, ?, ?)", vs...)
	}
	// Numbered in the order of the list and inserted in the order of the keys, so
	// that calls with the same keys can't deadlock.
	var rows []row.Run
	err := db.NewRaw(`INSERT INTO coord_runs AS r (id, kind, payload, unique_key, at, due_at, max_attempts, backoff, max_backoff,
			timeout, priority, at_most_once, state, exclusive, created_at) OVERRIDING SYSTEM VALUE
		SELECT v.id, v.kind, v.payload, v.unique_key, v.due, v.due, v.max_attempts, v.backoff, v.max_backoff,
			v.timeout, v.priority, v.at_most_once, 'queued', false, coord_clock()
		FROM (SELECT nextval('coord_runs_id_seq') AS id, * FROM (VALUES `+list.String()+`) AS list) AS v (id, kind, payload,
			unique_key, due, max_attempts, backoff, max_backoff, timeout, priority, at_most_once)
		ORDER BY v.unique_key COLLATE "C", v.id
		ON CONFLICT (task_id, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
		RETURNING `+row.RunColumns, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b row.Run) int { return cmp.Compare(a.ID, b.ID) })
	if len(rows) == len(runs) {
		return row.Runs(rows), nil
	}
	earlier, err := runsByKey(ctx, db, 0, row.UniqueKeys(runs)...)
	if err != nil {
		return nil, err
	}
	return row.WithDuplicates(runs, rows, earlier)
}

// runsByKey finds runs of a task, or of none.
func runsByKey(ctx context.Context, db bun.IDB, task int64, keys ...string) (map[string]coord.Run, error) {
	q := db.NewSelect().TableExpr("coord_runs AS r").ColumnExpr(row.RunColumns).Where("unique_key IN (?)", bun.List(keys))
	if task == 0 {
		q = q.Where("task_id IS NULL")
	} else {
		q = q.Where("task_id = ?", task)
	}
	var rows []row.Run
	err := q.Scan(ctx, &rows)
	return row.ByKey(rows), err
}

func (c claimer) Trigger(ctx context.Context, name, key string) (run coord.Run, err error) {
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		run, err = trigger(ctx, tx, name, key)
		return err
	})
	if err != nil {
		return coord.Run{}, storeError(ctx, err)
	}
	c.b.ring(false, true)
	return run, nil
}

func trigger(ctx context.Context, tx bun.Tx, name, key string) (coord.Run, error) {
	var tasks []int64
	if err := tx.NewRaw(`SELECT id FROM coord_tasks WHERE name = ? FOR SHARE`, name).Scan(ctx, &tasks); err != nil {
		return coord.Run{}, err
	}
	if len(tasks) == 0 {
		return coord.Run{}, coord.ErrNotFound
	}
	var rows []row.Run
	err := tx.NewRaw(`INSERT INTO coord_runs AS r (task_id, kind, payload, unique_key, state, exclusive, at, due_at,
			max_attempts, backoff, max_backoff, timeout, priority, at_most_once, created_at)
		SELECT id, kind, payload, NULLIF(?, ''), 'queued', overlap = 'forbid', coord_clock(), coord_clock(),
			max_attempts, backoff, max_backoff, timeout, priority, at_most_once, coord_clock()
		FROM coord_tasks t WHERE id = ? AND `+notInTheWay+`
		ON CONFLICT DO NOTHING RETURNING `+row.RunColumns, key, tasks[0]).Scan(ctx, &rows)
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

func (c claimer) Claim(ctx context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	claims, tasksDue, err := c.take(ctx, o)
	if !tasksDue || err != nil {
		return claimed(ctx, claims, err)
	}
	made, bad, err := c.b.fire(ctx, o.Kinds)
	err = cmp.Or(err, bad)
	if made > 0 && len(claims) < o.Limit {
		o.Limit -= len(claims)
		more, _, takeErr := c.take(ctx, o)
		claims, err = append(claims, more...), takeErr
	}
	return claimed(ctx, claims, err)
}

// claimed returns an error only without claims: those are leased, and the error
// will come again.
func claimed(ctx context.Context, claims []coord.Claim, err error) ([]coord.Claim, error) {
	if len(claims) > 0 {
		return claims, nil
	}
	return nil, storeError(ctx, err)
}

// takeSQL claims due runs and says whether there are tasks to fire.
//
// MATERIALIZED keeps the planner from running the subquery again, which would
// claim more than the limit. One search per priority keeps each an index scan
// that ends at the limit, whatever lies in the future.
const takeSQL = `WITH due AS MATERIALIZED (
		SELECT r.id, r.again FROM unnest('{1,2,3,4}'::smallint[]) AS p(priority)
		CROSS JOIN LATERAL (
			SELECT id, state = 'queued' OR NOT (cancel_requested OR at_most_once OR attempt >= max_attempts) AS again
			FROM coord_runs
			WHERE priority = p.priority AND state IN ('queued', 'running') AND at <= coord_now() AND kind IN (?0)
			ORDER BY at, id LIMIT ?1 FOR UPDATE SKIP LOCKED
		) AS r LIMIT ?1
	), taken AS (
		UPDATE coord_runs AS r SET
			state = CASE WHEN due.again THEN 'running' WHEN r.cancel_requested THEN 'cancelled' ELSE 'failed' END,
			at = coord_clock() + CASE WHEN due.again THEN ?2 ELSE 0 END * interval '1 microsecond',
			token = r.token + 1,
			attempt = r.attempt + due.again::int,
			rescues = r.rescues + (r.state = 'running')::int,
			worker = CASE WHEN due.again THEN ?3 ELSE r.worker END,
			error = CASE WHEN due.again OR r.cancel_requested THEN r.error ELSE ?4 END,
			started_at = CASE WHEN due.again THEN coord_clock() ELSE r.started_at END,
			finished_at = CASE WHEN due.again THEN NULL ELSE coord_clock() END
		FROM due WHERE r.id = due.id
		RETURNING ` + row.RunColumns + `
	)
	SELECT EXISTS (SELECT FROM coord_tasks t WHERE next_at <= coord_now() AND NOT paused AND kind IN (?0) AND ` + notInTheWay + `) AS tasks_due,
		COALESCE(taken.id, 0) AS id, taken.*
	FROM (SELECT) AS one LEFT JOIN taken ON true`

func (c claimer) take(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, tasksDue bool, err error) {
	for {
		var rows []struct {
			TasksDue bool `bun:"tasks_due"`
			row.Run
		}
		err = c.b.db.NewRaw(takeSQL, bun.List(o.Kinds), o.Limit, row.Micros(o.Lease), o.Worker, coord.LostError).Scan(ctx, &rows)
		if err != nil {
			return claims, tasksDue, err
		}
		runs := make([]row.Run, 0, len(rows))
		for _, r := range rows {
			tasksDue = r.TasksDue
			if r.ID != 0 {
				runs = append(runs, r.Run)
			}
		}
		found, taken := len(runs), row.Claims(runs)
		claims = append(claims, taken...)
		if found < o.Limit || found == len(taken) {
			return claims, tasksDue, nil
		}
		o.Limit -= len(taken) // runs that had to end took the places of others
	}
}

func (c claimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	var list row.Values
	for _, claim := range claims {
		list.Add("(?::bigint, ?::bigint)", claim.Run.ID, claim.Token)
	}
	list.Args = append(list.Args, row.Micros(lease))
	var rows []row.Run
	err := c.b.coordination.NewRaw(`WITH held AS MATERIALIZED (
			SELECT id FROM coord_runs r
			WHERE state = 'running' AND (id, token) IN (VALUES `+list.String()+`) ORDER BY id FOR UPDATE
		)
		UPDATE coord_runs AS r SET at = coord_clock() + ? * interval '1 microsecond'
		FROM held WHERE r.id = held.id RETURNING `+row.RunColumns, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Held(claims, rows)
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) error {
	queued, err := finish(ctx, c.b.db, results)
	if queued {
		c.b.ring(false, true)
	}
	return storeError(ctx, err)
}

// finish ends claims and reports whether runs were queued by it.
func finish(ctx context.Context, db bun.IDB, results []coord.Result) (queued bool, err error) {
	var list row.Values
	claims := make([]coord.Claim, len(results))
	for i, r := range results {
		s := r.Settle()
		claims[i] = r.Claim
		// A task that waits for the end of this run may fire now.
		queued = queued || s.State == coord.Queued && s.Delay == 0 || r.Claim.Run.TaskID != 0
		list.Add("(?::bigint, ?::bigint, ?, ?::bigint, ?::int, ?)",
			r.Claim.Run.ID, r.Claim.Token, s.State, row.Micros(s.Delay), row.Refund(s), s.Error)
	}
	var rows []row.Run
	err = db.NewRaw(`WITH result (id, token, state, delay, refund, error) AS (VALUES `+list.String()+`),
		held AS MATERIALIZED (
			SELECT r.id, result.delay, result.refund, result.error,
				CASE WHEN result.state = 'queued' AND r.cancel_requested THEN 'cancelled' ELSE result.state END AS state
			FROM coord_runs r JOIN result ON r.id = result.id AND r.token = result.token
			WHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r
		)
		UPDATE coord_runs AS r SET
			state = held.state,
			at = coord_clock() + CASE WHEN held.state = 'queued' THEN held.delay ELSE 0 END * interval '1 microsecond',
			due_at = CASE WHEN held.state = 'queued' THEN coord_clock() + held.delay * interval '1 microsecond' ELSE r.due_at END,
			attempt = r.attempt - held.refund,
			error = CASE WHEN held.error = '' THEN r.error ELSE held.error END,
			finished_at = CASE WHEN held.state = 'queued' THEN NULL ELSE coord_clock() END
		FROM held WHERE r.id = held.id RETURNING `+row.RunColumns, list.Args...).Scan(ctx, &rows)
	if err != nil {
		return false, err
	}
	_, err = row.Held(claims, rows)
	return queued, err
}

// cancelSet ends a queued run and asks a running one to stop.
const cancelSet = `cancel_requested = (state = 'running'),
	at = CASE WHEN state = 'queued' THEN coord_clock() ELSE at END,
	finished_at = CASE WHEN state = 'queued' THEN coord_clock() END,
	state = CASE WHEN state = 'queued' THEN 'cancelled' ELSE state END`

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	var ids []int64
	err := c.b.db.NewRaw(`UPDATE coord_runs SET `+cancelSet+` WHERE id = ? AND state IN ('queued', 'running') RETURNING id`,
		id).Scan(ctx, &ids)
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
	run, err := row.FindRun(ctx, c.b.db, id)
	return run, storeError(ctx, err)
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		runs, err := row.FindRuns(ctx, c.b.db, f)
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

func (c claimer) Prune(ctx context.Context, r coord.RunRetention) (int, error) {
	const ended = `state IN ('succeeded', 'failed', 'cancelled')`
	var n int64
	if r.Age > 0 {
		res, err := c.b.db.NewRaw(`DELETE FROM coord_runs WHERE id IN (
			SELECT id FROM coord_runs WHERE `+ended+` AND at < coord_now() - ? * interval '1 microsecond'
			ORDER BY at LIMIT ? FOR UPDATE SKIP LOCKED)`, row.Micros(r.Age), reapBatch).Exec(ctx)
		if err != nil {
			return 0, storeError(ctx, err)
		}
		n, _ = res.RowsAffected()
	}
	if r.Keep > 0 {
		res, err := c.b.db.NewRaw(`DELETE FROM coord_runs WHERE id IN (
			SELECT id FROM coord_runs WHERE id IN (
				SELECT old.id FROM coord_tasks t CROSS JOIN LATERAL (
					SELECT id FROM coord_runs WHERE task_id = t.id AND `+ended+` ORDER BY id DESC OFFSET ? LIMIT ?
				) AS old LIMIT ?
			) FOR UPDATE SKIP LOCKED)`, r.Keep, reapBatch, reapBatch).Exec(ctx)
		if err != nil {
			return int(n), storeError(ctx, err)
		}
		more, _ := res.RowsAffected()
		n += more
	}
	return int(n), nil
}

func (c claimer) Hints() (<-chan struct{}, func()) { return c.b.hints.Hints() }
