package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type calls struct{ b *backend }

func (c calls) Open(ctx context.Context, n coord.NewCall) (opened coord.Call, err error) {
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		opened, err = tx.openCall(ctx, n)
		return err
	})
	return opened, storeError(ctx, err)
}

func (t transaction) openCall(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	var rows []row.Call
	err := t.NewRaw(`INSERT INTO coord_calls (id, key, target, kind, payload, state, created_at, deadline)
		VALUES (?, ?, ?, ?, ?, 'open', ?, ?) ON CONFLICT (key) DO NOTHING RETURNING `+row.CallColumns,
		string(coord.NewCallID()), null(n.Key), n.Target, n.Kind, row.Bytes(n.Payload), t.now, after(t.now, n.TTL)).Scan(ctx, &rows)
	if err != nil {
		return coord.Call{}, err
	}
	if len(rows) > 0 {
		return rows[0].Coord(), nil
	}
	if err := t.expireCalls(ctx, `key = ?`, n.Key); err != nil {
		return coord.Call{}, err
	}
	earlier, err := readCalls(ctx, t.Tx, `key = ?`, n.Key)
	if err != nil {
		return coord.Call{}, err
	}
	earlier[0].Duplicate = true
	return earlier[0], nil
}

func (c calls) Answer(ctx context.Context, a coord.Answer) error {
	return c.end(ctx, func(ctx context.Context, tx transaction) error {
		return tx.endCall(ctx, coord.CallAnswered, row.Bytes(a.Result), a.Error, `id = ? AND target = ?`, string(a.ID), a.Target)
	})
}

func (c calls) Cancel(ctx context.Context, id coord.CallID, reason string) error {
	return c.end(ctx, func(ctx context.Context, tx transaction) error { return tx.cancelCall(ctx, id, reason) })
}

// end ends a call and tells those who wait, if it has ended by that.
func (c calls) end(ctx context.Context, fn func(ctx context.Context, tx transaction) error) error {
	err := c.b.inTx(ctx, fn)
	if err == nil || errors.Is(err, coord.ErrExpired) {
		c.b.ring(news{calls: true})
	}
	return storeError(ctx, err)
}

func (t transaction) cancelCall(ctx context.Context, id coord.CallID, reason string) error {
	return t.endCall(ctx, coord.CallCancelled, nil, reason, `id = ?`, string(id))
}

// endCall ends the one call for which a condition holds, if it is open: as expired,
// when its deadline has passed.
func (t transaction) endCall(ctx context.Context, state coord.CallState, result []byte, text, which string, args ...any) error {
	if err := t.expireCalls(ctx, which, args...); err != nil {
		return err
	}
	res, err := t.NewRaw(`UPDATE coord_calls SET state = ?, result = ?, error = ?, ended_at = ? WHERE state = 'open' AND `+which,
		append([]any{string(state), result, text, t.now}, args...)...).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	var states []string
	if err := t.NewRaw(`SELECT state FROM coord_calls WHERE `+which, args...).Scan(ctx, &states); err != nil {
		return err
	}
	return row.CallEnded(append(states, "")[0])
}

// expireCalls ends those calls for which a condition holds that are overdue.
func (t transaction) expireCalls(ctx context.Context, which string, args ...any) error {
	_, err := t.NewRaw(`UPDATE coord_calls SET state = 'expired', ended_at = deadline
		WHERE state = 'open' AND deadline <= ? AND `+which, append([]any{t.now}, args...)...).Exec(ctx)
	return err
}

func readCalls(ctx context.Context, db bun.IDB, which string, args ...any) ([]coord.Call, error) {
	var rows []row.Call
	err := db.NewRaw(`SELECT `+row.CallColumns+` FROM coord_calls WHERE `+which, args...).Scan(ctx, &rows)
	return row.Calls(rows), err
}

// findCalls returns the calls for which a condition holds, once those that are
// overdue have ended. Expiry is an end like the others, which one of those who would
// end a call has to write: what a look alone makes of it, an answer that is under way
// could belie.
func (b *backend) findCalls(ctx context.Context, which string, args ...any) ([]coord.Call, error) {
	for {
		found, err := readCalls(ctx, b.db.Read, which, args...)
		if err != nil || !anyOverdue(found, b.now()) {
			return found, storeError(ctx, err)
		}
		err = b.inTx(ctx, func(ctx context.Context, tx transaction) error { return tx.expireCalls(ctx, which, args...) })
		if err != nil {
			return nil, storeError(ctx, err)
		}
	}
}

func anyOverdue(calls []coord.Call, now row.Time) bool {
	for _, c := range calls {
		if !c.Ended() && !now.Before(c.Deadline) {
			return true
		}
	}
	return false
}

func (c calls) Get(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return c.findOne(ctx, `id = ?`, string(id))
}

func (c calls) Find(ctx context.Context, key string) (coord.Call, error) {
	return c.findOne(ctx, `key = ?`, key)
}

func (c calls) findOne(ctx context.Context, which string, args ...any) (coord.Call, error) {
	found, err := c.b.findCalls(ctx, which, args...)
	switch {
	case err != nil:
		return coord.Call{}, err
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
	list, err := names(row.CallIDs(ids))
	if err != nil {
		return nil, nil, err
	}
	var rows []row.CallGlance
	err = b.db.Read.NewRaw(`SELECT id, state = 'open' AND deadline > ? AS open FROM coord_calls
		WHERE id IN (SELECT value FROM json_each(?))`, b.now(), list).Scan(ctx, &rows)
	if err != nil {
		return nil, nil, storeError(ctx, err)
	}
	over, missing := row.SortCalls(ids, rows)
	if len(over) == 0 {
		return nil, missing, nil
	}
	if list, err = names(over); err != nil {
		return nil, nil, err
	}
	ended, err := b.findCalls(ctx, `id IN (SELECT value FROM json_each(?))`, list)
	return ended, missing, err
}

func (c calls) Pending(ctx context.Context, target string) ([]coord.Call, error) {
	var rows []row.Call
	err := c.b.db.Read.NewRaw(`SELECT `+row.CallColumns+` FROM coord_calls
		WHERE target = ? AND state = 'open' AND deadline > ? ORDER BY n LIMIT ?`, target, c.b.now(), coord.MaxBatch).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Calls(rows), nil
}

func (c calls) Reap(ctx context.Context, age time.Duration) (int, error) {
	return c.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		return tx.NewRaw(`DELETE FROM coord_calls WHERE n IN (
			SELECT n FROM coord_calls WHERE deadline <= ? ORDER BY deadline LIMIT ?)`, after(now, -age), reapBatch)
	})
}
