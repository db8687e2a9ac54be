package pg

import (
	"context"
	"slices"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type limiter struct{ b *backend }

// micros is the clock in microseconds since 1970.
const micros = `(extract(epoch FROM coord_clock()) * 1000000)::bigint`

// Allow asks the snapshot first, which may only deny: that takes no lock and
// writes nothing. A grant is decided on the locked row, by conditions that read
// the clock after the lock.
func (l limiter) Allow(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	g, key := limit.GCRA(), row.LimitKey(limit.Key)
	tats, now, err := l.read(ctx, l.b.limits, [][]byte{key})
	if err != nil {
		return coord.Decision{}, err
	}
	if d, tat := g.Decide(tats[0], now); !d.Allowed && tat >= tats[0] {
		return d, nil
	}
	var granted []struct {
		TAT int64 `bun:"tat"`
		Now int64 `bun:"now"`
	}
	err = l.b.limits.NewRaw(`INSERT INTO coord_limits AS l (key, tat) SELECT ?0, `+micros+` + ?1 WHERE ?1 <= ?2
		ON CONFLICT (key) DO UPDATE SET tat = greatest(least(l.tat, `+micros+` + ?2), `+micros+`) + ?1
		WHERE least(l.tat, `+micros+` + ?2) + ?1 <= `+micros+` + ?2
		RETURNING tat, `+micros+` AS now`, key, g.Cost, g.Window).Scan(ctx, &granted)
	if err != nil {
		return coord.Decision{}, storeError(ctx, err)
	}
	if len(granted) == 1 {
		d, _ := g.Decide(granted[0].TAT-g.Cost, granted[0].Now)
		return d, nil
	}
	// Others have taken what the snapshot still showed, or the clock stepped back
	// and the bucket has to heal.
	ds, err := l.locked(ctx, limit)
	if err != nil {
		return coord.Decision{}, err
	}
	return ds[0], nil
}

// read returns the TATs of keys, 0 for those that have none, and the clock.
func (l limiter) read(ctx context.Context, db bun.IDB, keys [][]byte) (tats []int64, now int64, err error) {
	var rows []struct {
		Key []byte `bun:"key"`
		TAT int64  `bun:"tat"`
		Now int64  `bun:"now"`
	}
	err = db.NewRaw(`SELECT l.key, COALESCE(l.tat, 0) AS tat, `+micros+` AS now
		FROM (SELECT) AS one LEFT JOIN coord_limits AS l ON l.key IN (?)`, bun.List(keys)).Scan(ctx, &rows)
	if err != nil {
		return nil, 0, storeError(ctx, err)
	}
	byKey := make(map[string]int64, len(rows))
	for _, r := range rows {
		byKey[string(r.Key)] = r.TAT
		now = max(now, r.Now)
	}
	tats = make([]int64, len(keys))
	for i, key := range keys {
		tats[i] = byKey[string(key)]
	}
	return tats, now, nil
}

// AllowAll asks the snapshot first, which may only deny.
func (l limiter) AllowAll(ctx context.Context, limits ...coord.Limit) ([]coord.Decision, error) {
	if len(limits) == 1 {
		d, err := l.Allow(ctx, limits[0])
		return []coord.Decision{d}, err
	}
	keys := make([][]byte, len(limits))
	for i, limit := range limits {
		keys[i] = row.LimitKey(limit.Key)
	}
	tats, now, err := l.read(ctx, l.b.limits, keys)
	if err != nil {
		return nil, err
	}
	if ds, store := coord.DecideAll(limits, tats, now); store == nil {
		return ds, nil
	}
	return l.locked(ctx, limits...)
}

// locked decides on the locked rows, which are locked in the order of their
// keys.
func (l limiter) locked(ctx context.Context, limits ...coord.Limit) (ds []coord.Decision, err error) {
	order := make([]int, len(limits))
	keys := make([][]byte, len(limits))
	for i, limit := range limits {
		order[i], keys[i] = i, row.LimitKey(limit.Key)
	}
	slices.SortFunc(order, func(i, j int) int { return slices.Compare(keys[i], keys[j]) })
	err = inTx(ctx, l.b.limits, func(tx bun.Tx) error {
		var list row.Values
		for _, i := range order {
			list.Add("(?::bytea, 0)", keys[i])
		}
		// Locks the rows that are there and makes those that are not: nobody can take
		// one away in between.
		_, err := tx.NewRaw(`INSERT INTO coord_limits AS l (key, tat) VALUES `+list.String()+`
			ON CONFLICT (key) DO UPDATE SET tat = l.tat WHERE false`, list.Args...).Exec(ctx)
		if err != nil {
			return err
		}
		tats, now, err := l.read(ctx, tx, keys)
		if err != nil {
			return err
		}
		var store []int64
		if ds, store = coord.DecideAll(limits, tats, now); store == nil {
			return nil
		}
		list = row.Values{}
		for i, tat := range store {
			list.Add("(?::bytea, ?::bigint)", keys[i], tat)
		}
		_, err = tx.NewRaw(`UPDATE coord_limits l SET tat = v.tat FROM (VALUES `+list.String()+`) AS v (key, tat)
			WHERE l.key = v.key`, list.Args...).Exec(ctx)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return ds, nil
}

func (l limiter) Peek(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	tats, now, err := l.read(ctx, l.b.limits, [][]byte{row.LimitKey(limit.Key)})
	if err != nil {
		return coord.Decision{}, err
	}
	d, _ := limit.GCRA().Decide(tats[0], now)
	return d, nil
}

func (l limiter) Reset(ctx context.Context, key string) error {
	_, err := l.b.limits.NewRaw(`DELETE FROM coord_limits WHERE key = ?`, row.LimitKey(key)).Exec(ctx)
	return storeError(ctx, err)
}

func (l limiter) Reap(ctx context.Context) (int, error) {
	res, err := l.b.limits.NewRaw(`DELETE FROM coord_limits WHERE key IN (
		SELECT key FROM coord_limits WHERE tat <= `+micros+` LIMIT ? FOR UPDATE SKIP LOCKED)`, reapBatch).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
