package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type claimer struct{ b *backend }

// after returns the moment d after now.
func after(now row.Time, d time.Duration) row.Time { return row.Time{Time: now.Add(d)} }

// stored returns a time as the store keeps it.
func stored(t time.Time) row.Time { return row.Time{Time: time.UnixMicro(t.UnixMicro()).UTC()} }

func (c claimer) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		queued, err = tx.enqueue(ctx, runs)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	c.b.ring(news{runs: true})
	return queued, nil
}

func (t transaction) enqueue(ctx context.Context, runs []coord.NewRun) ([]coord.Run, error) {
	queued := make([]coord.Run, len(runs))
	for i, r := range runs {
		due := t.now
		switch {
		case r.Delay > 0:
			due = after(t.now, r.Delay)
		case !r.DueAt.IsZero():
			due = stored(r.DueAt)
		}
		run := row.Run{
			Kind: r.Kind, Payload: r.Payload, UniqueKey: r.UniqueKey, DueAt: due,
			MaxAttempts: r.Retry.MaxAttempts, Backoff: row.Micros(r.Retry.Backoff), MaxBackoff: row.Micros(r.Retry.MaxBackoff),
			Timeout: row.Micros(r.Timeout), Priority: r.Priority,
			Gate: gate.Of(r.Concurrency), Limit: r.Concurrency.Limit, AtMostOnce: r.AtMostOnce,
		}
		inserted, err := t.insert(ctx, &run, false)
		if err == nil && !inserted {
			queued[i], _, err = t.duplicate(ctx, 0, r.UniqueKey)
		} else {
			queued[i] = run.Coord()
		}
		if err != nil {
			return nil, err
		}
	}
	return queued, nil
}

// insert queues a run and completes it, unless a unique index has its like.
func (t transaction) insert(ctx context.Context, r *row.Run, exclusive bool) (bool, error) {
	r.State, r.At, r.CreatedAt = string(coord.Queued), r.DueAt, t.now
	result, err := t.exec(ctx, t.prepared.insert, null(r.TaskID), r.Kind, row.Bytes(r.Payload), null(r.UniqueKey), exclusive,
		micros(r.ScheduledFor), r.At.UnixMicro(), r.DueAt.UnixMicro(), r.MaxAttempts, r.Backoff, r.MaxBackoff, r.Timeout,
		r.Priority, null(r.Gate), r.Limit, r.AtMostOnce, r.CreatedAt.UnixMicro())
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err == nil && n > 0 {
		r.ID, err = result.LastInsertId()
	}
	return n > 0, err
}

// duplicate finds the run of a task, or of none, that has a key.
func (t transaction) duplicate(ctx context.Context, task int64, key string) (run coord.Run, found bool, err error) {
	var id int64
	err = t.each(ctx, t.prepared.byKey, []any{task, key}, func(rows *sql.Rows) error { return rows.Scan(&id) })
	if err != nil || id == 0 {
		return run, false, err
	}
	run, err = row.FindRun(ctx, t.Tx, coord.RunID(id))
	run.Duplicate = true
	return run, err == nil, err
}

// Claim fires and takes in one transaction. A look at the file tells first
// whether there is anything to do, so that polling takes no lock.
func (c claimer) Claim(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, err error) {
	if !c.b.plenty.Load() { // a look from outside costs more than the one in the transaction
		if there, err := c.peek(ctx, o.Kinds); err != nil || there == (work{}) {
			return nil, storeError(ctx, err)
		}
	}
	for {
		var did turn
		err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) (err error) {
			did, err = tx.fireAndClaim(ctx, o)
			return err
		})
		if err != nil {
			break
		}
		claims, o.Limit = append(claims, did.claims...), o.Limit-len(did.claims)
		c.b.plenty.Store(o.Limit == 0)
		more := did.fired > 0 && o.Limit == 0       // than fits, perhaps
		c.b.ring(news{runs: more || did.ended > 0}) // which have made way
		if err = did.bad; did.fired == 0 || o.Limit == 0 {
			break
		}
	}
	if len(claims) > 0 {
		return claims, nil // they are leased; what is wrong will come again
	}
	return nil, storeError(ctx, err)
}

// turn is what one transaction of a claim did.
type turn struct {
	claims []coord.Claim
	ended  int   // runs that were lost
	fired  int   // tasks; others may be due
	bad    error // what is wrong with a task that could not fire
}

// work is what is due.
type work struct{ free, gated, tasks bool }

func (w *work) scan(rows *sql.Rows) error {
	return rows.Scan(into(&w.free), into(&w.gated), into(&w.tasks))
}

// peek looks from outside of a transaction.
func (c claimer) peek(ctx context.Context, kinds []string) (there work, err error) {
	of, err := names(kinds)
	if err != nil {
		return there, err
	}
	rows, err := c.b.prepared.peek.QueryContext(ctx, c.b.now().UnixMicro(), of)
	err = eachRow(rows, err, there.scan)
	return there, err
}

func (t transaction) look(ctx context.Context, kinds []string) (there work, err error) {
	of, err := names(kinds)
	if err != nil {
		return there, err
	}
	err = t.each(ctx, t.prepared.look, []any{t.now.UnixMicro(), of}, there.scan)
	return there, err
}

// fireAndClaim takes due runs, also those of occurrences that are due now, and
// reports how many had to end instead.
func (t transaction) fireAndClaim(ctx context.Context, o coord.ClaimOptions) (did turn, err error) {
	there, err := t.look(ctx, o.Kinds)
	if err != nil {
		return turn{}, err
	}
	if there.tasks {
		if did.fired, did.bad, err = t.fire(ctx, o.Kinds); err == nil {
			there, err = t.look(ctx, o.Kinds)
		}
		if err != nil {
			return turn{}, err
		}
	}
	if there.free || there.gated {
		did.claims, did.ended, err = t.claim(ctx, o, there.gated || len(o.Limits) > 0)
	}
	return did, err
}

// claim takes due runs and reports how many had to end instead.
func (t transaction) claim(ctx context.Context, o coord.ClaimOptions, gated bool) (claims []coord.Claim, ended int, err error) {
	for {
		var found []row.Run
		if gated {
			found, err = t.admitted(ctx, o)
		} else {
			found, err = t.free(ctx, o.Kinds, o.Limit)
		}
		if err != nil {
			return nil, 0, err
		}
		taken, err := t.take(ctx, found, o)
		if err != nil {
			return nil, 0, err
		}
		claims, ended = append(claims, taken...), ended+len(found)-len(taken)
		o.Limit -= len(taken)
		// Runs that had to end took the places of others. Places of gates are found free
		// until none is.
		if o.Limit == 0 || len(found) == 0 || len(found) == len(taken) && !gated {
			return claims, ended, nil
		}
	}
}

// free finds due runs that no gate binds, in order.
func (t transaction) free(ctx context.Context, kinds []string, limit int) ([]row.Run, error) {
	of, err := names(kinds)
	if err != nil {
		return nil, err
	}
	return t.runs(ctx, t.prepared.due, limit, t.now.UnixMicro(), of)
}

// runs reads the rows of a statement that returns freeColumns or gatedColumns, and
// whose last argument is a limit.
func (t transaction) runs(ctx context.Context, s *sql.Stmt, limit int, args ...any) ([]row.Run, error) {
	var r row.Run
	columns := claimed(&r)
	if s == t.prepared.due {
		columns = columns[:len(columns)-2]
	}
	found := make([]row.Run, 0, min(limit, 100))
	err := t.each(ctx, s, append(args, limit), func(rows *sql.Rows) error {
		err := rows.Scan(columns...)
		found = append(found, r)
		return err
	})
	return found, err
}

// take leases those of due runs that may run, and ends those that may not because
// their worker vanished.
func (t transaction) take(ctx context.Context, found []row.Run, o coord.ClaimOptions) ([]coord.Claim, error) {
	var started, cancelled, lost []int64
	claims := make([]coord.Claim, 0, len(found))
	until := after(t.now, o.Lease)
	for _, r := range found {
		rescued := r.State == string(coord.Running)
		switch {
		case rescued && r.CancelRequested:
			cancelled = append(cancelled, r.ID)
			continue
		case rescued && (r.AtMostOnce || r.Attempt >= r.MaxAttempts):
			lost = append(lost, r.ID)
			continue
		case rescued:
			r.Rescues++
		}
		started = append(started, r.ID)
		r.State, r.At, r.Worker, r.StartedAt = string(coord.Running), until, o.Worker, t.now
		r.Token++
		r.Attempt++
		claims = append(claims, coord.Claim{Run: r.Coord(), Token: r.Token})
	}
	now := t.now.UnixMicro()
	var err error
	if len(started) > 0 {
		_, err = t.exec(ctx, t.prepared.start, ids(started), until.UnixMicro(), o.Worker, now)
	}
	if err == nil && len(cancelled) > 0 {
		_, err = t.exec(ctx, t.prepared.end, ids(cancelled), string(coord.Cancelled), now, nil)
	}
	if err == nil && len(lost) > 0 {
		_, err = t.exec(ctx, t.prepared.end, ids(lost), string(coord.Failed), now, coord.LostError)
	}
	row.SortClaims(claims)
	return claims, err
}

// fence is what a fenced statement asks of a running run.
type fence struct {
	id    coord.RunID
	token int64
}

// fenced splits claims into those that a statement found held and an error that
// names the others.
func fenced(claims []coord.Claim, held func(f fence, c *coord.Claim) bool) (kept []coord.Claim, err error) {
	var lost []coord.Claim
	for _, c := range claims {
		if held(fence{c.Run.ID, c.Token}, &c) {
			kept = append(kept, c)
		} else {
			lost = append(lost, c)
		}
	}
	if len(lost) > 0 {
		err = &coord.FencedError{Claims: lost}
	}
	return kept, err
}

func (c claimer) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) (kept []coord.Claim, err error) {
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		kept, err = tx.extend(ctx, lease, claims)
		return err
	})
	return kept, storeError(ctx, err)
}

func (t transaction) extend(ctx context.Context, lease time.Duration, claims []coord.Claim) ([]coord.Claim, error) {
	byToken := make(map[int64][]int64)
	for _, c := range claims {
		byToken[c.Token] = append(byToken[c.Token], int64(c.Run.ID))
	}
	until := after(t.now, lease)
	held := make(map[fence]row.Run, len(claims))
	for token, list := range byToken {
		err := t.each(ctx, t.prepared.extend, []any{ids(list), token, until.UnixMicro()}, func(rows *sql.Rows) error {
			var r row.Run
			err := rows.Scan(into(&r.ID), &r.CancelRequested, into(&r.Progress), into(&r.LogLines))
			held[fence{coord.RunID(r.ID), token}] = r
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return fenced(claims, func(f fence, c *coord.Claim) bool {
		r, ok := held[f]
		c.Run.LeaseUntil, c.Run.CancelRequested, c.Run.Progress, c.Run.LogLines = until.Time, r.CancelRequested, r.Progress, r.LogLines
		return ok
	})
}

func (c claimer) Finish(ctx context.Context, results ...coord.Result) (err error) {
	queued, sure := false, true
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		queued, err = tx.finish(ctx, results, sure)
		if errors.Is(err, errAlone) {
			sure = false
		}
		return err
	})
	if err == nil || errors.Is(err, coord.ErrFenced) { // the others are finished
		c.b.ring(news{runs: queued})
	}
	return storeError(ctx, err)
}

// ending is how claims end that share a statement.
type ending struct {
	token int64
	coord.Settlement
}

// finish ends claims and reports whether runs may have become due by it. Who is
// sure that all are held saves the time to find out which are, and gets errAlone if
// they are not: then the transaction is to be rolled back.
func (t transaction) finish(ctx context.Context, results []coord.Result, sure bool) (queued bool, err error) {
	claims := make([]coord.Claim, len(results))
	alike := make(map[ending][]int64)
	for i, r := range results {
		s := r.Settle()
		claims[i] = r.Claim
		// A task that waits for the end of this run may fire now, and a run that waits
		// for its place may start. One that only a limit of its kind keeps waiting is left
		// to those who see the file change, since to know of it costs more than it gains.
		queued = queued || s.State == coord.Queued && s.Delay == 0 || r.Claim.Run.TaskID != 0 || r.Claim.Run.Concurrency.Key != ""
		end := ending{r.Claim.Token, s}
		alike[end] = append(alike[end], int64(r.Claim.Run.ID))
	}
	held := make(map[fence]bool)
	for end, list := range alike {
		if !sure {
			list, err = t.held(ctx, end.token, list)
			if err != nil {
				return false, err
			}
			for _, id := range list {
				held[fence{coord.RunID(id), end.token}] = true
			}
		}
		n, err := t.settle(ctx, end, list)
		if err != nil {
			return false, err
		}
		if n < int64(len(list)) {
			return false, errAlone
		}
	}
	if sure {
		return queued, nil
	}
	_, err = fenced(claims, func(f fence, _ *coord.Claim) bool { return held[f] })
	return queued, err
}

// held returns those of running runs that have a token.
func (t transaction) held(ctx context.Context, token int64, list []int64) (held []int64, err error) {
	err = t.each(ctx, t.prepared.held, []any{ids(list), token}, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(into(&id))
		held = append(held, id)
		return err
	})
	return held, err
}

// settle ends claims alike and returns how many were held.
func (t transaction) settle(ctx context.Context, end ending, list []int64) (int64, error) {
	s, args := t.prepared.settle, []any{ids(list), end.token, string(end.State), t.now.UnixMicro(), null(end.Error)}
	if end.State == coord.Queued {
		s = t.prepared.requeue
		args = append(args[:2], after(t.now, end.Delay).UnixMicro(), t.now.UnixMicro(), row.Refund(end.Settlement), null(end.Error))
	}
	result, err := t.exec(ctx, s, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// cancelSet ends at ?0 a run that is queued or whose worker has vanished, and asks one
// that is running to stop.
const (
	vanished  = `(state = 'running' AND at <= ?0)`
	cancelSet = `cancel_requested = (state = 'running'),
	token = token + ` + vanished + `,
	rescues = rescues + ` + vanished + `,
	at = CASE WHEN state = 'queued' OR ` + vanished + ` THEN ?0 ELSE at END,
	finished_at = CASE WHEN state = 'queued' OR ` + vanished + ` THEN ?0 END,
	state = CASE WHEN state = 'queued' OR ` + vanished + ` THEN 'cancelled' ELSE state END`
)

func (c claimer) Cancel(ctx context.Context, id coord.RunID) error {
	err := c.b.inTx(ctx, func(ctx context.Context, tx transaction) error { return tx.cancel(ctx, id) })
	if err == nil {
		c.b.ring(news{runs: true, cancels: true})
	}
	return storeError(ctx, err)
}

func (t transaction) cancel(ctx context.Context, id coord.RunID) error {
	var found []bool // whether it has ended
	err := t.NewRaw(`SELECT finished_at IS NOT NULL FROM coord_runs WHERE id = ?`, id).Scan(ctx, &found)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return coord.ErrNotFound
	case found[0]:
		return fmt.Errorf("%w: the run has ended", coord.ErrConflict)
	}
	_, err = t.NewRaw(`UPDATE coord_runs SET `+cancelSet+` WHERE id = ?1`, t.now, id).Exec(ctx)
	return err
}

// NextDue looks behind now once per priority, since what is due lies before it.
func (c claimer) NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error) {
	now := c.b.now()
	var of any // NULL: all kinds
	if len(kinds) > 0 {
		if of, err = names(kinds); err != nil {
			return 0, false, err
		}
	}
	var found []row.Moment
	err = c.b.db.Read.NewRaw(nextDueSQL, now, of).Scan(ctx, &found)
	if err != nil || len(found) == 0 || found[0].At.IsZero() {
		return 0, false, storeError(ctx, err)
	}
	return found[0].At.Sub(now.Time), true, nil
}

// nextDueSQL searches indexes that don't know the kind, so each search reads a few that
// come next. When none of these is asked for, the answer is where it stopped: too soon,
// but at a price that no backlog of other kinds changes.
const (
	nextDueSQL = `SELECT min(at) AS at FROM (
	SELECT (SELECT ` + firstOfKinds + ` FROM (
			SELECT at, kind FROM coord_runs WHERE priority = p.value AND ` + free + ` AND at > ?0 ORDER BY at LIMIT 50)) AS at
		FROM json_each('[1, 2, 3, 4]') p
	UNION ALL SELECT ` + firstOfKinds + ` FROM (
		SELECT at, kind FROM coord_runs INDEXED BY coord_runs_gated_due WHERE ` + gated + ` AND at > ?0 ORDER BY at LIMIT 50)
	UNION ALL SELECT ` + firstOfKinds + ` FROM (
		SELECT next_at AS at, kind FROM coord_tasks WHERE next_at > ?0 AND NOT paused ORDER BY next_at LIMIT 50))`
	firstOfKinds = `COALESCE(min(iif(?1 IS NULL OR kind IN (SELECT value FROM json_each(?1)), at, NULL)),
		iif(count(*) = 50, max(at), NULL))`
)

func (c claimer) Hints() (<-chan struct{}, func()) { return c.b.hints.Hints() }

func (c claimer) Cancels() (<-chan struct{}, func()) { return c.b.cancels.Hints() }
