package sqlite

import (
	"context"
	"database/sql"

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
func read(ctx context.Context, tat *sql.Stmt, keys [][]byte) ([]int64, error) {
	tats := make([]int64, len(keys))
	for i, key := range keys {
		err := tat.QueryRowContext(ctx, key).Scan(into(&tats[i]))
		if err != nil && err != sql.ErrNoRows {
			return nil, err
		}
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
	tats, err := read(ctx, l.b.prepared.owed, keys)
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
		tats, err := read(ctx, tx.bind(ctx, tx.prepared.tat), keys)
		if err != nil {
			return err
		}
		var store []int64
		ds, store = coord.DecideAll(limits, tats, tx.now.UnixMicro())
		for i, tat := range store {
			if _, err := tx.exec(ctx, tx.prepared.setTAT, keys[i], tat); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return ds, nil
}

func (l limiter) Peek(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	tats, err := read(ctx, l.b.prepared.owed, [][]byte{row.LimitKey(limit.Key)})
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
