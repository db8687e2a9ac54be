package pg

import (
	"context"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type receipts struct{ b *backend }

// Concurrent calls of Begin of one replica share a statement, and those of Complete do.
const (
	receiptBatch   = 50      // calls
	receiptBytes   = 4 << 20 // of outcomes that are stored
	receiptFlights = 3       // statements at a time, when they take long
)

func (r receipts) Begin(ctx context.Context, f coord.ReceiptFor) (coord.Receipt, error) {
	got, err := share(ctx, r.b, r.b.begins, f)
	if err != nil {
		return coord.Receipt{}, err
	}
	return got.Coord(f.Key)
}

// beginShared asks for the keys of several calls.
func (b *backend) beginShared(ctx context.Context, asked []coord.ReceiptFor) ([]row.Receipt, error) {
	order := byKey(asked, func(f coord.ReceiptFor) string { return f.Key })
	var keys, fingerprints []byte
	var holders pq.StringArray
	var leases, keeps pq.Int64Array
	for _, k := range order {
		f := asked[k.place]
		same := f.Hash()
		keys, fingerprints = append(keys, k.hash...), append(fingerprints, same[:]...)
		holders, leases, keeps = append(holders, f.Holder), append(leases, row.Micros(f.Lease)), append(keeps, row.Micros(f.Keep))
	}
	var rows []row.Receipt
	err := b.db.NewRaw(`SELECT * FROM coord_begin(?, ?, ?, ?, ?)`, keys, fingerprints, holders, leases, keeps).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return inPlace(order, rows), nil
}

// keyed is a key and the place of the call that has it.
type keyed struct {
	hash  []byte
	place int
}

// byKey returns the keys of calls in the order in which they are locked.
func byKey[T any](calls []T, key func(T) string) []keyed {
	order := make([]keyed, len(calls))
	for i, c := range calls {
		order[i] = keyed{row.ReceiptKey(key(c)), i}
	}
	slices.SortStableFunc(order, func(a, b keyed) int { return slices.Compare(a.hash, b.hash) })
	return order
}

// inPlace returns answers in the order of their calls.
func inPlace[T any](order []keyed, answers []T) []T {
	all := make([]T, len(answers))
	for i, k := range order {
		all[k.place] = answers[i]
	}
	return all
}

func (r receipts) Extend(ctx context.Context, held coord.Receipt, lease time.Duration) (coord.Receipt, error) {
	var until []row.Moment
	err := r.b.db.NewRaw(`UPDATE coord_receipts SET until = coord_clock() + ? * interval '1 microsecond'
		WHERE key = ? AND token = ? AND NOT done RETURNING until AS at`,
		row.Micros(lease), row.ReceiptKey(held.Key), held.Token).Scan(ctx, &until)
	switch {
	case err != nil:
		return coord.Receipt{}, storeError(ctx, err)
	case len(until) == 0:
		return coord.Receipt{}, coord.ErrFenced
	}
	held.Until = until[0].At.Time
	return held, nil
}

// completion is one call of Complete.
type completion struct {
	held    coord.Receipt
	outcome coord.ReceiptOutcome
}

func (r receipts) Complete(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	completed, err := share(ctx, r.b, r.b.completions, completion{held, o})
	switch {
	case err != nil:
		return err
	case !completed:
		return coord.ErrFenced
	}
	return nil
}

// completeShared stores the outcomes of several calls.
func (b *backend) completeShared(ctx context.Context, calls []completion) ([]bool, error) {
	completed, err := completeReceipts(ctx, b.db, calls)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	if slices.Contains(completed, true) {
		b.ring(newReceipts)
	}
	return completed, nil
}

// completeReceipts stores outcomes and returns for each whether its key was held.
func completeReceipts(ctx context.Context, db bun.IDB, calls []completion) ([]bool, error) {
	order := byKey(calls, func(c completion) string { return c.held.Key })
	var keys, bodies []byte
	var texts pq.StringArray
	var tokens pq.Int64Array
	cuts := pq.Int64Array{1}
	for _, k := range order {
		c := calls[k.place]
		keys, bodies = append(keys, k.hash...), append(bodies, c.outcome.Body...)
		tokens, texts = append(tokens, c.held.Token), append(texts, c.outcome.Error)
		cuts = append(cuts, int64(len(bodies)+1))
	}
	var completed pq.BoolArray
	err := db.NewRaw(`SELECT coord_complete(?, ?, ?, ?, ?)`, keys, tokens, texts, cuts, row.Bytes(bodies)).Scan(ctx, &completed)
	if err != nil {
		return nil, err
	}
	return inPlace(order, completed), nil
}

// Release draws another token, so that the one that was held is good no more, and lets the
// lease have ended whatever the clock shows. It does not wait for the work: those release who
// found no free connection.
func (r receipts) Release(ctx context.Context, held coord.Receipt) error {
	res, err := r.b.coordination.NewRaw(`UPDATE coord_receipts SET holder = '', token = nextval('coord_receipt_tokens'), until = '-infinity'
		WHERE key = ? AND token = ? AND NOT done`, row.ReceiptKey(held.Key), held.Token).Exec(ctx)
	if err != nil {
		return storeError(ctx, err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return coord.ErrFenced
	}
	r.b.ring(newReceipts)
	return nil
}

func (r receipts) Changes() (<-chan struct{}, func()) { return r.b.receiptChanges.Hints() }

func (r receipts) Reap(ctx context.Context) (int, error) {
	res, err := r.b.db.NewRaw(`DELETE FROM coord_receipts WHERE key IN (
		SELECT key FROM coord_receipts WHERE until <= coord_now() ORDER BY until LIMIT ? FOR UPDATE SKIP LOCKED)`,
		reapBatch).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
