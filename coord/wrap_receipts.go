package coord

import (
	"context"
	"time"
)

type receiptsSeam struct {
	*seam
	driver Receipts
}

func (r *ReceiptFor) complete() error {
	if r.Holder == "" {
		r.Holder = newHolder()
	}
	orDefault(&r.Lease, 30*time.Second)
	orDefault(&r.Keep, 24*time.Hour)
	return invalid(
		receiptKey("ReceiptFor.Key", r.Key),
		text("ReceiptFor.Holder", r.Holder, 1, maxName),
		receiptLease("ReceiptFor.Lease", r.Lease),
		span("ReceiptFor.Keep", r.Keep, time.Second, maxSpan),
	)
}

func receiptKey(field, key string) error {
	if len(key) == 0 || len(key) > maxKey {
		return fieldError(field, "has %d bytes, must have 1 to %d", len(key), maxKey)
	}
	return nil
}

func receiptLease(field string, lease time.Duration) error {
	return span(field, lease, minLease, time.Hour)
}

func (o *ReceiptOutcome) complete() error {
	o.Error = errorText(o.Error)
	return payload("ReceiptOutcome.Body", o.Body)
}

// held spares the store a receipt that is not the caller's.
func (r Receipt) held(call func() error) func() error {
	if r.State == ReceiptMine {
		return call
	}
	return func() error { return ErrFenced }
}

func (s receiptsSeam) Begin(ctx context.Context, r ReceiptFor) (got Receipt, err error) {
	bad := r.complete()
	err = s.do(ctx, "receipts.begin", r.Key, 1, bad, func() (err error) {
		got, err = s.driver.Begin(ctx, r)
		return err
	})
	if len(got.Outcome.Body) == 0 {
		got.Outcome.Body = nil
	}
	return got, err
}

func (s receiptsSeam) Extend(ctx context.Context, held Receipt, lease time.Duration) (extended Receipt, err error) {
	bad := invalid(receiptKey("Receipt.Key", held.Key), receiptLease("lease", lease))
	err = s.do(ctx, "receipts.extend", held.Key, 1, bad, held.held(func() (err error) {
		extended, err = s.driver.Extend(ctx, held, lease)
		return err
	}))
	return extended, err
}

func (s receiptsSeam) Complete(ctx context.Context, held Receipt, o ReceiptOutcome) error {
	bad := invalid(receiptKey("Receipt.Key", held.Key), o.complete())
	return s.do(ctx, "receipts.complete", held.Key, 1, bad, held.held(func() error {
		return s.driver.Complete(ctx, held, o)
	}))
}

func (s receiptsSeam) Release(ctx context.Context, held Receipt) error {
	bad := receiptKey("Receipt.Key", held.Key)
	return s.do(ctx, "receipts.release", held.Key, 1, bad, held.held(func() error {
		return s.driver.Release(ctx, held)
	}))
}

func (s receiptsSeam) Changes() (<-chan struct{}, func()) { return s.driver.Changes() }

func (s receiptsSeam) Reap(ctx context.Context) (n int, err error) {
	err = s.do(ctx, "receipts.reap", "", 1, nil, func() (err error) {
		n, err = s.driver.Reap(ctx)
		return err
	})
	return n, err
}
