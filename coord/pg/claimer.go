package pg

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type claimer struct{ b *backend }

func (c claimer) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	queued, err := c.enqueue(ctx, runs)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	c.b.ring(newRuns)
	return queued, nil
}

// enqueue queues all runs or none: an earlier run that has a key may go before it is
// looked up.
func (c claimer) enqueue(ctx context.Context, runs []coord.NewRun) (queued []coord.Run, err error) {
	if len(runs) == 1 || len(uniqueKeys(runs)) == 0 {
		return enqueue(ctx, c.b.db, runs)
	}
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		queued, err = enqueue(ctx, tx, runs)
		return err
	})
	return queued, err
}

// enqueue queues runs by one statement, and looks up those that have their keys.
func enqueue(ctx context.Context, db bun.IDB, runs []coord.NewRun) ([]coord.Run, error) {
	n := len(runs)
	kinds, payloads, keys, gates := make([]string, n), make([][]byte, n), make([]string, n), make([]string, n)
	delays, dues := make([]int64, n), make([]sql.NullString, n)
	attempts, backoffs, maxBackoffs := make([]int64, n), make([]int64, n), make([]int64, n)
	timeouts, priorities, places, once := make([]int64, n), make([]int64, n), make([]int64, n), make([]bool, n)
	for i, r := range runs {
		kinds[i], payloads[i], keys[i], gates[i] = r.Kind, row.Bytes(r.Payload), r.UniqueKey, gate.Of(r.Concurrency)
		delays[i] = row.Micros(r.Delay)
		if r.Delay == 0 && !r.DueAt.IsZero() {
			dues[i] = sql.NullString{String: row.Timestamp(r.DueAt), Valid: true}
		}
		attempts[i], backoffs[i], maxBackoffs[i] = int64(r.Retry.MaxAttempts), row.Micros(r.Retry.Backoff), row.Micros(r.Retry.MaxBackoff)
		timeouts[i], priorities[i], places[i] = row.Micros(r.Timeout), int64(r.Priority), int64(r.Concurrency.Limit)
		once[i] = r.AtMostOnce
	}
	var anyKeys any // NULL when there is none
	if slices.ContainsFunc(keys, func(key string) bool { return key != "" }) {
		anyKeys = pq.StringArray(keys)
	}
	var rows []queuedRow
	err := db.NewRaw(`SELECT * FROM coord_enqueue(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		pq.StringArray(kinds), pq.ByteaArray(payloads), anyKeys, pq.Int64Array(delays), pq.Array(dues),
		pq.Int64Array(attempts), pq.Int64Array(backoffs), pq.Int64Array(maxBackoffs),
		pq.Int64Array(timeouts), pq.Int64Array(priorities), pq.StringArray(gates), pq.Int64Array(places), pq.BoolArray(once),
	).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	now, rows := rows[0].Clock.Time, rows[1:]
	slices.SortFunc(rows, func(a, b queuedRow) int { return cmp.Compare(a.ID, b.ID) })
	var earlier map[string]coord.Run
	if len(rows) < n {
		if earlier, err = runsByKey(ctx, db, 0, uniqueKeys(runs)...); err != nil {
			return nil, err
		}
	}
	return enqueued(runs, now, rows, earlier)
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
	byKey := make(map[string]coord.Run, len(rows))
	for _, r := range rows {
		byKey[r.UniqueKey] = r.Coord()
	}
	return byKey, err
}

func (c claimer) Claim(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, err error) {
	for fired := 0; ; {
		found, left, err := c.look(ctx, o)
		claims, o.Limit = append(claims, found...), o.Limit-len(found)
		more := fired > 0 && o.Limit == 0 // than fits, perhaps
		if more || left.ended > 0 {       // which have made way
			c.b.ring(newRuns)
		}
		if more || !left.tasks || err != nil {
			return claimed(ctx, claims, err)
		}
		var bad error
		fired, bad, err = c.b.fire(ctx, o.Kinds)
		switch {
		case fired == 0 || err != nil:
			return claimed(ctx, claims, cmp.Or(err, bad))
		case o.Limit == 0:
			c.b.ring(newRuns)
			return claims, nil
		}
	}
}

// look takes what is due, the gated way if there is need to.
func (c claimer) look(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, left left, err error) {
	if len(o.Limits) == 0 {
		claims, left, err = c.take(ctx, o)
	} else {
		left.gated = true
		left.tasks, err = c.tasksDue(ctx, o.Kinds)
	}
	if !left.gated || err != nil {
		return claims, left, err
	}
	for o.Limit -= len(claims); o.Limit > 0; {
		taken, ended, err := c.takeGated(ctx, o)
		claims, left.ended, o.Limit = append(claims, taken...), left.ended+ended, o.Limit-len(taken)
		if err != nil || ended == 0 { // runs that had to end took the places of others
			return claims, left, err
		}
	}
	return claims, left, nil
}

// claimed returns an error only without claims: those are leased, and the error
// will come again.
func claimed(ctx context.Context, claims []coord.Claim, err error) ([]coord.Claim, error) {
	if len(claims) > 0 {
		return claims, nil
	}
	return nil, storeError(ctx, err)
}

// take leases due runs that have no gate, and says what else there is to do.
func (c claimer) take(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, all left, err error) {
	for {
		taken, left, err := c.takeOnce(ctx, o)
		claims = append(claims, taken...)
		left.ended += all.ended
		// Runs that had to end took the places of others.
		full := len(taken)+left.ended-all.ended == o.Limit
		all = left
		if o.Limit -= len(taken); err != nil || !full || o.Limit == 0 {
			return claims, all, err
		}
	}
}

// left is what a look for runs has found besides those that it took.
type left struct {
	tasks, gated bool // are due
	ended        int  // runs that were lost
}

func (c claimer) takeOnce(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, left left, err error) {
	rows, err := c.b.db.QueryContext(ctx, `SELECT * FROM coord_claim(?, ?, NULL, ?, ?, ?)`,
		pq.StringArray(o.Kinds), o.Limit, row.Micros(o.Lease), o.Worker, coord.LostError)
	if err != nil {
		return nil, left, err
	}
	defer rows.Close()
	var now time.Time
	for rows.Next() {
		var what text
		var r claimedRow
		err := rows.Scan(&what, &r.ID, &r.Kind, &r.Payload, &r.DueAt, &r.Attempt, &r.Token, &r.MaxAttempts, &r.Backoff,
			&r.MaxBackoff, &r.Priority, &r.CreatedAt, &r.Rest)
		if err != nil {
			return nil, left, err
		}
		switch what {
		case "now":
			now = r.DueAt.Time
		case text(coord.Running):
			claim, err := r.claim(o, now)
			if err != nil {
				return nil, left, err
			}
			if claims == nil {
				claims = make([]coord.Claim, 0, o.Limit) // where there is one there are more
			}
			claims = append(claims, claim)
		case "tasks":
			left.tasks = true
		case "gated":
			left.gated = true
		default:
			left.ended++
		}
	}
	// The rows come before the commit. When that fails, the next claim gets the same
	// tokens.
	if err := rows.Err(); err != nil {
		return nil, left, err
	}
	row.SortClaims(claims)
	return claims, left, nil
}

func (c claimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	held, err := c.extend(ctx, lease, claims, "SKIP LOCKED")
	lost, ok := errors.AsType[*coord.FencedError](err)
	if !ok {
		return held, err
	}
	// Those are lost, or somebody is changing their runs and may take long about it.
	// The others don't wait for that.
	late, err := c.extend(ctx, lease, lost.Claims, "")
	return append(held, late...), err
}

func (c claimer) extend(ctx context.Context, lease time.Duration, claims []coord.Claim, wait string) ([]coord.Claim, error) {
	ids, tokens := tokensOf(claims)
	var rows []leaseRow
	err := c.b.coordination.NewRaw(`WITH held AS MATERIALIZED (
			SELECT r.id FROM coord_runs r JOIN unnest(?::bigint[], ?::bigint[]) AS c (id, token) ON r.id = c.id AND r.token = c.token
			WHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r `+wait+`
		)
		UPDATE coord_runs AS r SET at = coord_clock() + ? * interval '1 microsecond'
		FROM held WHERE r.id = held.id RETURNING `+leaseColumns,
		pq.Int64Array(ids), pq.Int64Array(tokens), row.Micros(lease)).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return extended(claims, rows)
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) error {
	news, err := finish(ctx, c.b.db, results)
	c.b.ring(news)
	return storeError(ctx, err)
}

// finish ends claims and tells whether runs may have become due by it: some of these,
// or others that waited for their ends.
func finish(ctx context.Context, db bun.IDB, results []coord.Result) (news, error) {
	slices.SortFunc(results, func(a, b coord.Result) int { return cmp.Compare(a.Claim.Run.ID, b.Claim.Run.ID) })
	n := len(results)
	var due news
	ids, tokens, delays, refunds := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	states, texts := make([]string, n), make([]string, n)
	plain := true // all have succeeded
	for i, r := range results {
		s := r.Settle()
		if s.State == coord.Queued && s.Delay == 0 {
			due = newRuns
		}
		plain = plain && s.State == coord.Succeeded
		ids[i], tokens[i], states[i] = int64(r.Claim.Run.ID), r.Claim.Token, string(s.State)
		delays[i], refunds[i], texts[i] = row.Micros(s.Delay), int64(row.Refund(s)), s.Error
	}
	args := []any{pq.Int64Array(ids), pq.Int64Array(tokens), nil, nil, nil, nil}
	if !plain {
		args = append(args[:2], pq.StringArray(states), pq.Int64Array(delays), pq.Int64Array(refunds), pq.StringArray(texts))
	}
	var awaited bool
	var lost pq.Int64Array
	err := db.NewRaw(`SELECT awaited, lost FROM coord_finish(?, ?, ?, ?, ?, ?)`, args...).Scan(ctx, &awaited, &lost)
	if err != nil {
		return 0, err
	}
	if awaited {
		due = newRuns
	}
	if len(lost) == 0 {
		return due, nil
	}
	claims := make([]coord.Claim, n)
	for i, r := range results {
		claims[i] = r.Claim
	}
	return due, fenced(claims, lost)
}

// cancelSet ends a run that is queued or whose worker has vanished, and asks one that
// is running to stop. Which it is must be the same for all columns, hence coord_now; it
// may be too early to say, and then the run is asked.
const (
	vanished  = `(state = 'running' AND at <= coord_now())`
	cancelSet = `cancel_requested = (state = 'running'),
	token = token + ` + vanished + `::int,
	rescues = rescues + ` + vanished + `::int,
	at = CASE WHEN state = 'queued' OR ` + vanished + ` THEN coord_clock() ELSE at END,
	finished_at = CASE WHEN state = 'queued' OR ` + vanished + ` THEN coord_clock() END,
	state = CASE WHEN state = 'queued' OR ` + vanished + ` THEN 'cancelled' ELSE state END`
)

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	news, err := cancel(ctx, c.b.db, id)
	c.b.ring(news)
	return storeError(ctx, err)
}

// cancel tells what it changed: runs that are to stop, or that made way.
func cancel(ctx context.Context, db bun.IDB, id coord.RunID) (news, error) {
	var ended []bool
	err := db.NewRaw(`UPDATE coord_runs SET `+cancelSet+` WHERE id = ? AND state <= 'running' RETURNING state > 'running'`, id).
		Scan(ctx, &ended)
	switch {
	case err != nil:
		return 0, err
	case len(ended) == 1 && ended[0]:
		return newRuns, nil
	case len(ended) == 1:
		return newCancels, nil
	}
	if _, err := row.FindRun(ctx, db, id); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("%w: the run has ended", coord.ErrConflict)
}

func (c claimer) NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error) {
	var waits []int64
	err = c.b.coordination.NewRaw(`SELECT COALESCE(coord_next_due(?), -1)`, pq.StringArray(kinds)).Scan(ctx, &waits)
	if err != nil || len(waits) == 0 || waits[0] < 0 {
		return 0, false, storeError(ctx, err)
	}
	return time.Duration(min(waits[0], math.MaxInt64/int64(time.Microsecond))) * time.Microsecond, true, nil
}

func (c claimer) Hints() (<-chan struct{}, func()) { return c.b.hints.Hints() }

func (c claimer) Cancels() (<-chan struct{}, func()) { return c.b.cancels.Hints() }
