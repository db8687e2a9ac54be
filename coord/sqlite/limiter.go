package sqlite

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type limiter struct{ b *backend }

func (l limiter) Allow(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	ds, err := l.AllowAll(ctx, limit)
	if err != nil {
		return coord.Decision{}, err
	}
	return ds[0], nil
}

// read returns the TATs of keys, 0 for those that have none.
func (l limiter) read(ctx context.Context, db bun.IDB, keys [][]byte) ([]int64, error) {
	var rows []struct {
		Key []byte `bun:"key"`
		TAT int64  `bun:"tat"`
	}
	err := db.NewRaw(`SELECT key, tat FROM coord_limits WHERE key IN (?)`, bun.List(keys)).Scan(ctx, &rows)
	if err != nil {
		return nil, err
	}
	byKey := make(map[string]int64, len(rows))
	for _, r := range rows {
		byKey[string(r.Key)] = r.TAT
	}
	tats := make([]int64, len(keys))
	for i, key := range keys {
		tats[i] = byKey[string(key)]
	}
	return tats, nil
}

// AllowAll looks at what is committed first, which may only deny: that takes no
// lock and writes nothing.
func (l limiter) AllowAll(ctx context.Context, limits ...coord.Limit) ([]coord.Decision, error) {
	keys := make([][]byte, len(limits))
	for i, limit := range limits {
		keys[i] = row.LimitKey(limit.Key)
	}
	tats, err := l.read(ctx, l.b.db.Read, keys)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	if ds, store := coord.DecideAll(limits, tats, l.b.now().UnixMicro()); store == nil {
		return ds, nil
	}
	return l.locked(ctx, limits, keys)
}

// locked decides with the writer lock held.
func (l limiter) locked(ctx context.Context, limits []coord.Limit, keys [][]byte) (ds []coord.Decision, err error) {
	err = l.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		tats, err := l.read(ctx, tx.Tx, keys)
		if err != nil {
			return err
		}
		var store []int64
		if ds, store = coord.DecideAll(limits, tats, tx.now.UnixMicro()); store == nil {
			return nil
		}
		var list row.Values
		for i, tat := range store {
			list.Add("(?, ?)", keys[i], tat)
		}
		_, err = tx.NewRaw(`INSERT INTO coord_limits (key, tat) VALUES `+list.String()+`
			ON CONFLICT (key) DO UPDATE SET tat = excluded.tat`, list.Args...).Exec(ctx)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return ds, nil
}

func (l limiter) Peek(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	tats, err := l.read(ctx, l.b.db.Read, [][]byte{row.LimitKey(limit.Key)})
	if err != nil {
		return coord.Decision{}, storeError(ctx, err)
	}
	d, _ := limit.GCRA().Decide(tats[0], l.b.now().UnixMicro())
	return d, nil
}

func (l limiter) Reset(ctx context.Context, key string) error {
	err := l.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		_, err := tx.NewRaw(`DELETE FROM coord_limits WHERE key = ?`, row.LimitKey(key)).Exec(ctx)
		return err
	})
	return storeError(ctx, err)
}

func (l limiter) Reap(ctx context.Context) (int, error) {
	return l.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		return tx.NewRaw(`DELETE FROM coord_limits WHERE key IN (
			SELECT key FROM coord_limits WHERE tat <= ? LIMIT ?)`, now, reapBatch)
	})
}
