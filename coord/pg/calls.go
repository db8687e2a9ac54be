package pg

import (
	"context"
	"errors"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type calls struct{ b *backend }

func (c calls) Open(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	opened, err := openCall(ctx, c.b.db, n)
	return opened, storeError(ctx, err)
}

func openCall(ctx context.Context, db bun.IDB, n coord.NewCall) (coord.Call, error) {
	var key any
	if n.Key != "" {
		key = n.Key
	}
	for {
		var rows []row.Call
		err := db.NewRaw(`INSERT INTO coord_calls (id, key, target, kind, payload, state, created_at, deadline)
			SELECT ?, ?, ?, ?, ?, 'open', clock.now, clock.now + ? * interval '1 microsecond'
			FROM (SELECT coord_clock() AS now OFFSET 0) AS clock
			ON CONFLICT (key) DO NOTHING RETURNING `+row.CallColumns,
			string(coord.NewCallID()), key, n.Target, n.Kind, row.Bytes(n.Payload), row.Micros(n.TTL)).Scan(ctx, &rows)
		if err != nil {
			return coord.Call{}, err
		}
		if len(rows) > 0 {
			return rows[0].Coord(), nil
		}
		earlier, err := findCalls(ctx, db, `key = ?`, n.Key)
		if err != nil {
			return coord.Call{}, err
		}
		if len(earlier) > 0 { // else it was reaped meanwhile
			earlier[0].Duplicate = true
			return earlier[0], nil
		}
	}
}

func (c calls) Answer(ctx context.Context, a coord.Answer) error {
	err := endCall(ctx, c.b.db, coord.CallAnswered, row.Bytes(a.Result), a.Error, `id = ? AND target = ?`, string(a.ID), a.Target)
	return c.ended(ctx, err)
}

func (c calls) Cancel(ctx context.Context, id coord.CallID, reason string) error {
	return c.ended(ctx, cancelCall(ctx, c.b.db, id, reason))
}

// ended tells those who wait that a call has ended, if it has by that.
func (c calls) ended(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, coord.ErrExpired) {
		c.b.ring(newCalls)
	}
	return storeError(ctx, err)
}

func cancelCall(ctx context.Context, db bun.IDB, id coord.CallID, reason string) error {
	return endCall(ctx, db, coord.CallCancelled, nil, reason, `id = ?`, string(id))
}

// endCall ends the one call for which a condition holds, if it is open: as expired,
// when its deadline has passed on a clock that is read once the row is locked.
func endCall(ctx context.Context, db bun.IDB, state coord.CallState, result []byte, text, which string, args ...any) error {
	var states []string
	err := db.NewRaw(`WITH open AS MATERIALIZED (
			SELECT id, deadline FROM coord_calls WHERE `+which+` AND state = 'open' FOR UPDATE
		), judged AS MATERIALIZED (
			SELECT id, coord_clock() AS now FROM open
		)
		UPDATE coord_calls AS c SET
			state = CASE WHEN judged.now < c.deadline THEN ? ELSE 'expired' END,
			result = CASE WHEN judged.now < c.deadline THEN ?::bytea END,
			error = CASE WHEN judged.now < c.deadline THEN ? ELSE '' END,
			ended_at = LEAST(judged.now, c.deadline)
		FROM judged WHERE c.id = judged.id RETURNING c.state`,
		append(append([]any{}, args...), string(state), result, text)...).Scan(ctx, &states)
	if err != nil {
		return err
	}
	if len(states) > 0 && states[0] == string(state) {
		return nil
	}
	if len(states) == 0 {
		if err := db.NewRaw(`SELECT state FROM coord_calls WHERE `+which, args...).Scan(ctx, &states); err != nil {
			return err
		}
	}
	return row.CallEnded(append(states, "")[0])
}

// overdue are open calls whose deadline has passed.
const overdue = `state = 'open' AND deadline <= coord_now()`

// findCalls returns the calls for which a condition holds, once those that are
// overdue have ended. Expiry is an end like the others, which one of those who would
// end a call has to write: what a look alone makes of it, an answer that is under way
// could belie.
func findCalls(ctx context.Context, db bun.IDB, which string, args ...any) ([]coord.Call, error) {
	for {
		var rows []struct {
			row.Call
			Overdue bool `bun:"overdue"`
		}
		err := db.NewRaw(`SELECT `+row.CallColumns+`, `+overdue+` AS overdue FROM coord_calls WHERE `+which, args...).Scan(ctx, &rows)
		if err != nil {
			return nil, err
		}
		late := false
		found := make([]coord.Call, len(rows))
		for i, r := range rows {
			late = late || r.Overdue
			found[i] = r.Coord()
		}
		if !late {
			return found, nil
		}
		_, err = db.NewRaw(`UPDATE coord_calls SET state = 'expired', ended_at = deadline WHERE state = 'open' AND id IN (
			SELECT id FROM coord_calls WHERE (`+which+`) AND `+overdue+` ORDER BY n FOR UPDATE)`, args...).Exec(ctx)
		if err != nil {
			return nil, err
		}
	}
}

func (c calls) Get(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return c.findOne(ctx, `id = ?`, string(id))
}

func (c calls) Find(ctx context.Context, key string) (coord.Call, error) {
	return c.findOne(ctx, `key = ?`, key)
}

func (c calls) findOne(ctx context.Context, which string, args ...any) (coord.Call, error) {
	found, err := findCalls(ctx, c.b.db, which, args...)
	switch {
	case err != nil:
		return coord.Call{}, storeError(ctx, err)
	case len(found) == 0:
		return coord.Call{}, coord.ErrNotFound
	}
	return found[0], nil
}

func (c calls) Wait(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return c.b.waits.Wait(ctx, id)
}

// lookAtCalls is the look of all who wait. It reads next to nothing of calls that are
// open.
func (b *backend) lookAtCalls(ctx context.Context, ids []coord.CallID) ([]coord.Call, []coord.CallID, error) {
	var rows []row.CallGlance
	err := b.coordination.NewRaw(`SELECT id, NOT (state <> 'open' OR `+overdue+`) AS open FROM coord_calls
		WHERE id = ANY (?::text[])`, pq.StringArray(row.CallIDs(ids))).Scan(ctx, &rows)
	if err != nil {
		return nil, nil, storeError(ctx, err)
	}
	over, missing := row.SortCalls(ids, rows)
	if len(over) == 0 {
		return nil, missing, nil
	}
	ended, err := findCalls(ctx, b.coordination, `id = ANY (?::text[])`, pq.StringArray(over))
	return ended, missing, storeError(ctx, err)
}

func (c calls) Pending(ctx context.Context, target string) ([]coord.Call, error) {
	var rows []row.Call
	err := c.b.db.NewRaw(`SELECT `+row.CallColumns+` FROM coord_calls
		WHERE target = ? AND state = 'open' AND deadline > coord_now() ORDER BY n LIMIT ?`, target, coord.MaxBatch).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Calls(rows), nil
}

func (c calls) Reap(ctx context.Context, age time.Duration) (int, error) {
	res, err := c.b.db.NewRaw(`DELETE FROM coord_calls WHERE id IN (
		SELECT id FROM coord_calls WHERE deadline <= coord_now() - ? * interval '1 microsecond'
		ORDER BY deadline LIMIT ? FOR UPDATE SKIP LOCKED)`, row.Micros(age), reapBatch).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
