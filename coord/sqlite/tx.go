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
func (b *backend) begin(ctx context.Context) (tx bun.Tx, err error) {
	if err := b.db.inPlace(); err != nil {
		return tx, fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	}
	err = untilFree(ctx, func() error {
		tx, err = b.db.Write.BeginTx(ctx, nil)
		return err
	})
	return tx, err
}

// inTx runs fn in a transaction that holds the writer lock; now is read once it
// does.
func (b *backend) inTx(ctx context.Context, fn func(tx bun.Tx, now row.Time) error) error {
	tx, err := b.begin(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // fn panicked
			_ = tx.Rollback()
		}
	}()
	if err := fn(tx, b.now()); err != nil {
		done = true
		// The error of fn is the one that counts.
		_ = tx.Rollback()
		return err
	}
	done = true
	return commitError(tx.Commit())
}

func (b *backend) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	t := &tx{b: b}
	defer func() { t.broken = coord.ErrClosed }()
	err := b.inTx(ctx, func(sqlTx bun.Tx, now row.Time) error {
		t.Tx, t.now = sqlTx, now
		if err := fn(ctx, t); err != nil {
			return err
		}
		if err := t.usable(ctx); err != nil {
			return err
		}
		if len(t.events) > 0 {
			if _, err := publish(ctx, t.Tx, t.now, t.events); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return storeError(ctx, err)
	}
	b.ring(len(t.events) > 0, t.queued)
	return nil
}

// tx is a transaction on its way.
type tx struct {
	bun.Tx
	b      *backend
	now    row.Time
	events []row.NewEvent // published as the last statement
	queued bool           // runs were
	broken error          // why nothing more can be done in it
}

// do runs one call, unless an earlier one has failed.
func (t *tx) do(ctx context.Context, call func() error) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	err := storeError(ctx, call())
	switch {
	case errors.Is(err, coord.ErrNotFound), errors.Is(err, coord.ErrConflict), errors.Is(err, coord.ErrFenced):
	default:
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
		t.queued = true
		return err
	})
	return stored, err
}

func (t *tx) Enqueue(ctx context.Context, runs ...coord.NewRun) (queued []coord.Run, err error) {
	err = t.do(ctx, func() (err error) {
		queued, err = enqueue(ctx, t.Tx, t.now, runs)
		t.queued = true
		return err
	})
	return queued, err
}

func (t *tx) Finish(ctx context.Context, results ...coord.Result) error {
	return t.do(ctx, func() error {
		queued, err := finish(ctx, t.Tx, t.now, results)
		t.queued = t.queued || queued
		return err
	})
}

func (t *tx) Publish(ctx context.Context, events ...coord.NewEvent) error {
	return t.do(ctx, func() error {
		t.events = append(t.events, row.Tagged(events)...)
		return nil
	})
}

func (t *tx) Unwrap() any { return t.Tx }

// ring announces what a transaction has committed, at once to this process. The
// others see that the file has changed.
func (b *backend) ring(events, runs bool) {
	if events {
		b.reader.wake()
	}
	if runs {
		b.hints.Notify()
	}
}
