package memory

import (
	"bytes"
	"context"
	"time"

	"github.com/tandemhq/tandem/coord"
)

type receipt struct {
	coord.StoredReceipt
	key   string
	keep  time.Duration
	index int // in holds.byEnd
}

// holds are the receipts of a store.
type holds struct {
	byKey map[string]*receipt
	byEnd pile[*receipt]
	token int64 // the last that was given
}

func newHolds() holds {
	return holds{
		byKey: make(map[string]*receipt),
		byEnd: pile[*receipt]{
			less:  func(a, b *receipt) bool { return a.Until.Before(b.Until) },
			place: func(r *receipt) *int { return &r.index },
		},
	}
}

func (h *holds) add(r *receipt) {
	h.byKey[r.key] = r
	h.byEnd.push(r)
}

func (h *holds) remove(r *receipt) {
	delete(h.byKey, r.key)
	h.byEnd.remove(r)
}

// held returns the receipt that somebody holds.
func (h *holds) held(held coord.Receipt) (*receipt, error) {
	r := h.byKey[held.Key]
	if r == nil || r.Done || r.Token != held.Token {
		return nil, coord.ErrFenced
	}
	return r, nil
}

// changeReceipt changes a receipt, and takes that back on a rollback.
func (s *Store) changeReceipt(r *receipt, change func()) {
	before := r.StoredReceipt
	apply := func(do func()) {
		s.holds.byEnd.remove(r) // the order depends on what changes
		do()
		s.holds.byEnd.push(r)
	}
	apply(change)
	s.onRollback(func() { apply(func() { r.StoredReceipt = before }) })
}

func (s *Store) completeReceipt(now time.Time, held coord.Receipt, o coord.ReceiptOutcome) error {
	r, err := s.holds.held(held)
	if err != nil {
		return err
	}
	s.changeReceipt(r, func() {
		o.Body = bytes.Clone(o.Body)
		r.Done, r.Outcome, r.Until = true, o, now.Add(r.keep)
	})
	s.ringReceipts = true
	return nil
}

type receipts struct{ store *Store }

func (k receipts) Begin(ctx context.Context, f coord.ReceiptFor) (got coord.Receipt, err error) {
	h := &k.store.holds
	err = k.store.write(ctx, func(now time.Time) error {
		r := h.byKey[f.Key]
		if r != nil {
			if got, err = r.Begin(f, now); err != nil || got.State == coord.ReceiptHeld || got.State == coord.ReceiptDone {
				got.Outcome.Body = bytes.Clone(got.Outcome.Body)
				return err
			}
			h.remove(r)
		}
		if got.State != coord.ReceiptMine {
			h.token++
			r = &receipt{StoredReceipt: coord.StoredReceipt{Fingerprint: f.Hash(), Holder: f.Holder, Token: h.token}, key: f.Key}
		}
		r.keep, r.Until = f.Keep, now.Add(f.Lease.Truncate(time.Microsecond))
		h.add(r)
		got = coord.Receipt{Key: f.Key, State: coord.ReceiptMine, Token: r.Token, Until: r.Until}
		return nil
	})
	return got, err
}

func (k receipts) Extend(ctx context.Context, held coord.Receipt, lease time.Duration) (coord.Receipt, error) {
	err := k.store.write(ctx, func(now time.Time) error {
		r, err := k.store.holds.held(held)
		if err != nil {
			held = coord.Receipt{}
			return err
		}
		held.Until = now.Add(lease.Truncate(time.Microsecond))
		k.store.changeReceipt(r, func() { r.Until = held.Until })
		return nil
	})
	return held, err
}

func (k receipts) Complete(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return k.store.write(ctx, func(now time.Time) error { return k.store.completeReceipt(now, held, o) })
}

func (k receipts) Release(ctx context.Context, held coord.Receipt) error {
	return k.store.write(ctx, func(time.Time) error {
		r, err := k.store.holds.held(held)
		if err == nil {
			k.store.holds.remove(r)
			k.store.ringReceipts = true
		}
		return err
	})
}

func (k receipts) Changes() (<-chan struct{}, func()) { return k.store.receiptChanges.Hints() }

func (k receipts) Reap(ctx context.Context) (n int, err error) {
	h := &k.store.holds
	err = k.store.write(ctx, func(now time.Time) error {
		for n < batch && h.byEnd.len() > 0 && !now.Before(h.byEnd.top().Until) {
			h.remove(h.byEnd.top())
			n++
		}
		return nil
	})
	return n, err
}
