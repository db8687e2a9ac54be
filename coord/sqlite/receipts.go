package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type receipts struct{ b *backend }

// Begin looks from outside of a transaction first: who only looks needs no lock.
func (r receipts) Begin(ctx context.Context, f coord.ReceiptFor) (got coord.Receipt, err error) {
	key := row.ReceiptKey(f.Key)
	rows, err := r.b.prepared.seen.QueryContext(ctx, key)
	stored, err := scanReceipt(rows, err)
	if err != nil {
		return coord.Receipt{}, storeError(ctx, err)
	}
	got, err = stored.Begin(f, r.b.now().Time)
	if err != nil || got.State == coord.ReceiptHeld || got.State == coord.ReceiptDone {
		return got, err
	}
	err = r.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		got, err = tx.begin(ctx, key, f)
		return err
	})
	return got, storeError(ctx, err)
}

func (t transaction) begin(ctx context.Context, key []byte, f coord.ReceiptFor) (got coord.Receipt, err error) {
	rows, err := t.bind(ctx, t.prepared.receipt).QueryContext(ctx, key) //nolint:sqlclosecheck // scanReceipt closes the rows, and the transaction the statement
	stored, err := scanReceipt(rows, err)
	if err != nil {
		return coord.Receipt{}, err
	}
	got, err = stored.Begin(f, t.now.Time)
	if err != nil || got.State == coord.ReceiptHeld || got.State == coord.ReceiptDone {
		return got, err
	}
	until := after(t.now, f.Lease)
	token := stored.Token
	if got.State == coord.ReceiptMine {
		_, err = t.exec(ctx, t.prepared.extendReceipt, until.UnixMicro(), row.Micros(f.Keep), key, token)
	} else {
		same := f.Hash()
		var res sql.Result
		res, err = t.exec(ctx, t.prepared.takeReceipt, key, same[:], f.Holder, row.Micros(f.Keep), until.UnixMicro())
		if err == nil {
			token, err = res.LastInsertId()
		}
	}
	return coord.Receipt{Key: f.Key, State: coord.ReceiptMine, Token: token, Until: until.Time}, err
}

// scanReceipt reads what is stored of a key, which is the zero value when nothing is.
func scanReceipt(rows *sql.Rows, err error) (s coord.StoredReceipt, _ error) {
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var fingerprint []byte
		var until row.Time
		err := rows.Scan(&fingerprint, &s.Holder, &s.Token, &s.Done, &until, &s.Outcome.Error, &s.Outcome.Body)
		s.Fingerprint, s.Until = [sha256.Size]byte(fingerprint), until.Time
		return err
	})
	return s, err
}

func (r receipts) Extend(ctx context.Context, held coord.Receipt, lease time.Duration) (coord.Receipt, error) {
	err := r.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		until := after(tx.now, lease)
		held.Until = until.Time
		return touched(tx.exec(ctx, tx.prepared.extendReceipt, until.UnixMicro(), nil, row.ReceiptKey(held.Key), held.Token))
	})
	if err != nil {
		return coord.Receipt{}, storeError(ctx, err)
	}
	return held, nil
}

// touched is ErrFenced when a write that names a token has found nothing.
func touched(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return coord.ErrFenced
}

func (r receipts) Complete(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return r.giveUp(ctx, func(ctx context.Context, tx transaction) error { return tx.completeReceipt(ctx, held, o) })
}

func (t transaction) completeReceipt(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return touched(t.exec(ctx, t.prepared.completeReceipt,
		o.Error, row.Bytes(o.Body), t.now.UnixMicro(), row.ReceiptKey(held.Key), held.Token))
}

func (r receipts) Release(ctx context.Context, held coord.Receipt) error {
	return r.giveUp(ctx, func(ctx context.Context, tx transaction) error {
		return touched(tx.NewRaw(`DELETE FROM coord_receipts WHERE key = ? AND token = ? AND NOT done`,
			row.ReceiptKey(held.Key), held.Token).Exec(ctx))
	})
}

// giveUp gives a key up and tells those who wait for it.
func (r receipts) giveUp(ctx context.Context, fn func(ctx context.Context, tx transaction) error) error {
	err := r.b.inTx(ctx, fn)
	if err == nil {
		r.b.ring(news{receipts: true})
	}
	return storeError(ctx, err)
}

func (r receipts) Changes() (<-chan struct{}, func()) { return r.b.receiptChanges.Hints() }

func (r receipts) Reap(ctx context.Context) (int, error) {
	return r.b.reap(ctx, func(tx bun.Tx, now row.Time) *bun.RawQuery {
		return tx.NewRaw(`DELETE FROM coord_receipts WHERE token IN (
			SELECT token FROM coord_receipts WHERE until <= ? ORDER BY until LIMIT ?)`, now, reapBatch)
	})
}
