package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
	codes "modernc.org/sqlite/lib"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// begin starts a transaction that holds the writer lock. When another process
// keeps that lock for longer than SQLite waits, it tries again until ctx is
// done.
func (b *backend) begin(ctx context.Context, start func() (bun.Tx, error)) (tx bun.Tx, err error) {
	if err := b.db.inPlace(); err != nil {
		return tx, fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	}
	err = untilFree(ctx, func() error {
		tx, err = start()
		return err
	})
	return tx, err
}

// alone runs fn in a transaction of its own, whose context is the caller's.
func (b *backend) alone(ctx context.Context, fn func(tx transaction) error) error {
	tx, err := b.begin(ctx, func() (bun.Tx, error) { return b.db.Write.BeginTx(ctx, nil) })
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // fn panicked
			_ = tx.Rollback()
		}
	}()
	err = fn(b.locked(tx))
	done = true
	if err != nil {
		// The error of fn is the one that counts.
		_ = tx.Rollback()
		return err
	}
	return commitError(tx.Commit())
}

func (b *backend) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	t := &tx{}
	defer func() { t.broken = coord.ErrClosed }()
	err := b.alone(ctx, func(own transaction) error {
		t.transaction = own
		if err := fn(ctx, t); err != nil {
			return err
		}
		if err := t.usable(ctx); err != nil {
			return err
		}
		if len(t.events) > 0 {
			if _, err := own.publish(ctx, t.events); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return storeError(ctx, err)
	}
	t.news.events = len(t.events) > 0
	b.ring(t.news)
	return nil
}

// tx is a transaction on its way.
type tx struct {
	transaction
	events []row.NewEvent // published as the last statement
	news   news           // of what was done
	broken error          // why nothing more can be done in it
}

// do runs one call, unless an earlier one has failed.
func (t *tx) do(ctx context.Context, call func() error) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	err := storeError(ctx, call())
	if !harmless(err) {
		t.broken = err
	}
	return err
}

var errRolledBack = errors.New("a statement of the caller failed and SQLite rolled the transaction back")

// usable refuses a transaction in which something has failed: SQLite rolls back
// by itself on some errors, as when a writing statement is interrupted, and what
// comes afterwards would be committed at once. The caller's own statements may
// have failed unseen; that a transaction can't begin here tells that one is open.
func (t *tx) usable(ctx context.Context) error {
	if t.broken != nil {
		return t.broken
	}
	switch _, err := t.Tx.Tx.ExecContext(ctx, `BEGIN`); {
	case err == nil:
		t.broken = errRolledBack
	case code(err) != codes.SQLITE_ERROR:
		t.broken = storeError(ctx, err)
	}
	return t.broken
}

func (t *tx) PutTask(ctx context.Context, task coord.Task) (stored coord.Task, err error) {
	err = t.do(ctx, func() (err error) {
		stored, err = putTask(ctx, t.Tx, t.now, task)
		t.news.runs = true
		return err
	})
	return stored, err
}

func (t *tx) DeleteTask(ctx context.Context, name string) error {
	return t.do(ctx, func() error {
		t.news.runs, t.news.cancels = true, true
		return deleteTask(ctx, t.Tx, t.now, name)
	})
}

func (t *tx) PauseTask(ctx context.Context, name string, paused bool) error {
	return t.do(ctx, func() error {
		t.news.runs = t.news.runs || !paused
		return pauseTask(ctx, t.Tx, t.now, name, paused)
	})
}

func (t *tx) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (run coord.Run, err error) {
	err = t.do(ctx, func() (err error) {
		run, err = t.trigger(ctx, name, o)
		t.news.runs = true
		return err
	})
	return run, err
}

func (t *tx) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = t.do(ctx, func() (err error) {
		queued, err = t.enqueue(ctx, runs)
		t.news.runs = true
		return err
	})
	return queued, err
}

func (t *tx) Finish(ctx context.Context, results ...coord.Result) error {
	return t.do(ctx, func() error {
		queued, err := t.finish(ctx, results, false)
		t.news.runs = t.news.runs || queued
		return err
	})
}

func (t *tx) Report(ctx context.Context, reports ...coord.Report) error {
	return t.do(ctx, func() error { return t.tell(ctx, reports) })
}

func (t *tx) Cancel(ctx context.Context, id coord.RunID) error {
	return t.do(ctx, func() error {
		t.news.runs, t.news.cancels = true, true
		return t.cancel(ctx, id)
	})
}

func (t *tx) Publish(ctx context.Context, events ...coord.NewEvent) error {
	return t.do(ctx, func() error {
		t.events = append(t.events, row.Tagged(events)...)
		return nil
	})
}

func (t *tx) OpenCall(ctx context.Context, n coord.NewCall) (opened coord.Call, err error) {
	err = t.do(ctx, func() (err error) {
		opened, err = t.openCall(ctx, n)
		return err
	})
	return opened, err
}

func (t *tx) CancelCall(ctx context.Context, id coord.CallID, reason string) error {
	return t.do(ctx, func() error {
		t.news.calls = true
		return t.cancelCall(ctx, id, reason)
	})
}

func (t *tx) CompleteReceipt(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	return t.do(ctx, func() error {
		t.news.receipts = true
		return t.completeReceipt(ctx, held, o)
	})
}

func (t *tx) Fence(ctx context.Context, term coord.Term) error {
	return t.do(ctx, func() error {
		_, err := t.fence(ctx, term)
		return err
	})
}

func (t *tx) ChangeRing(ctx context.Context, c coord.RingChange) (r coord.Ring, err error) {
	err = t.do(ctx, func() (err error) {
		t.news.keys = true
		r, err = t.changeRing(ctx, c)
		return err
	})
	return r, err
}

func (t *tx) HoldRing(ctx context.Context, known coord.Ring) (r coord.Ring, err error) {
	err = t.do(ctx, func() (err error) {
		r, err = row.LoadRing(ctx, t.Tx, t.now, known)
		return err
	})
	return r, err
}

func (t *tx) Unwrap() any { return t.Tx }

// news is what a transaction may have brought.
type news struct {
	events   bool
	runs     bool // that have become due
	cancels  bool // running runs were asked to stop
	calls    bool // that have ended
	entries  bool // of the directory have changed
	receipts bool // were completed or released
	leaders  bool // have resigned
	keys     bool // of a ring have changed
}

// ring announces what a transaction has committed, at once to this process. The
// others see that the file has changed.
func (b *backend) ring(n news) {
	if n.events {
		b.reader.ring()
	}
	if n.runs {
		b.hints.Notify()
	}
	if n.cancels {
		b.cancels.Notify()
	}
	if n.calls {
		b.waits.Wake()
	}
	if n.entries {
		b.changes.Notify()
	}
	if n.receipts {
		b.receiptChanges.Notify()
	}
	if n.leaders {
		b.leaderChanges.Notify()
	}
	if n.keys {
		b.keyChanges.Notify()
	}
}
