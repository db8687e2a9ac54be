package pg

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// inTx runs fn in a transaction of the pool.
func inTx(ctx context.Context, db *bun.DB, fn func(tx bun.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // fn panicked
			_ = tx.Rollback()
		}
	}()
	if err := fn(tx); err != nil {
		done = true
		// The error of fn is the one that counts.
		_ = tx.Rollback()
		return err
	}
	done = true
	return tx.Commit()
}

func (b *backend) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	t := &tx{b: b}
	err := inTx(ctx, b.db, func(sqlTx bun.Tx) error {
		t.Tx = sqlTx
		if err := fn(ctx, t); err != nil {
			return err
		}
		if len(t.events) > 0 {
			if _, err := publish(ctx, t.Tx, t.events); err != nil {
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
	events []row.NewEvent // published as the last statement
	queued bool           // runs were
}

func (t *tx) PutTask(ctx context.Context, task coord.Task) (coord.Task, error) {
	task, err := putTask(ctx, t.Tx, task)
	t.queued = true
	return task, storeError(ctx, err)
}

func (t *tx) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	queued, err := enqueue(ctx, t.Tx, runs)
	t.queued = true
	return queued, storeError(ctx, err)
}

func (t *tx) Finish(ctx context.Context, results ...coord.Result) error {
	queued, err := finish(ctx, t.Tx, results)
	t.queued = t.queued || queued
	return storeError(ctx, err)
}

func (t *tx) Publish(_ context.Context, events ...coord.NewEvent) error {
	t.events = append(t.events, row.Tagged(events)...)
	return nil
}

func (t *tx) Unwrap() any { return t.Tx }

// ring announces what a transaction has committed: at once to this process,
// and by the doorbell to the others.
func (b *backend) ring(events, runs bool) {
	if events {
		b.reader.wake()
	}
	if runs {
		b.hints.Notify()
	}
	b.bell.ring(events, runs)
}
