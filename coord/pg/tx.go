package pg

import (
	"context"
	"database/sql"
	"errors"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// inTx runs fn in a transaction of the pool.
func inTx(ctx context.Context, db *bun.DB, fn func(tx bun.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
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

// brief is for a transaction of the driver's own, of several statements, while others
// wait for what it locks or pass that over: the server ends it soon when this process
// stands still.
const brief = `SET LOCAL idle_in_transaction_session_timeout = 3000`

func (b *backend) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	t := &tx{b: b}
	err := inTx(ctx, b.db, func(sqlTx bun.Tx) error {
		t.Tx = sqlTx
		// It has its connection, and waits for none.
		if err := fn(coord.WithPatience(ctx, poolPatience), t); err != nil {
			return err
		}
		if len(t.events) > 0 {
			if _, err := publish(ctx, t.Tx, t.events); err != nil {
				return err
			}
		}
		return nil
	})
	if len(t.events) > 0 {
		t.news |= newEvents
	}
	err = storeError(ctx, err)
	if err == nil || errors.Is(err, coord.ErrUnknownOutcome) { // it may be committed
		b.ring(t.news)
	}
	return err
}

// tx is a transaction on its way.
type tx struct {
	bun.Tx
	b      *backend
	events []row.NewEvent // published as the last statement
	news   news           // what there is to ring about
}

func (t *tx) PutTask(ctx context.Context, task coord.Task) (coord.Task, error) {
	task, err := putTask(ctx, t.Tx, task)
	t.news |= newRuns
	return task, storeError(ctx, err)
}

func (t *tx) DeleteTask(ctx context.Context, name string) error {
	t.news |= newRuns | newCancels
	return storeError(ctx, deleteTask(ctx, t.Tx, name))
}

func (t *tx) PauseTask(ctx context.Context, name string, paused bool) error {
	news, err := pauseTask(ctx, t.Tx, name, paused)
	t.news |= news
	return storeError(ctx, err)
}

func (t *tx) Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error) {
	run, err := trigger(ctx, t.Tx, name, o)
	t.news |= newRuns
	return run, storeError(ctx, err)
}

func (t *tx) Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error) {
	queued, err := enqueue(ctx, t.Tx, runs)
	t.news |= newRuns
	return queued, storeError(ctx, err)
}

func (t *tx) Finish(ctx context.Context, results ...coord.Result) error {
	news, err := finish(ctx, t.Tx, results)
	t.news |= news
	return storeError(ctx, err)
}

func (t *tx) Report(ctx context.Context, reports ...coord.Report) error {
	return storeError(ctx, report(ctx, t.Tx, reports))
}

func (t *tx) Cancel(ctx context.Context, id coord.RunID) error {
	news, err := cancel(ctx, t.Tx, id)
	t.news |= news
	return storeError(ctx, err)
}

func (t *tx) Publish(_ context.Context, events ...coord.NewEvent) error {
	t.events = append(t.events, row.Tagged(events)...)
	return nil
}

func (t *tx) OpenCall(ctx context.Context, n coord.NewCall) (coord.Call, error) {
	opened, err := openCall(ctx, t.Tx, n)
	return opened, storeError(ctx, err)
}

func (t *tx) CancelCall(ctx context.Context, id coord.CallID, reason string) error {
	t.news |= newCalls
	return storeError(ctx, cancelCall(ctx, t.Tx, id, reason))
}

func (t *tx) CompleteReceipt(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	t.news |= newReceipts
	completed, err := completeReceipts(ctx, t.Tx, []completion{{held, o}})
	if err == nil && !completed[0] {
		return coord.ErrFenced
	}
	return storeError(ctx, err)
}

func (t *tx) Fence(ctx context.Context, term coord.Term) error {
	return storeError(ctx, fence(ctx, t.Tx, term))
}

func (t *tx) ChangeRing(ctx context.Context, c coord.RingChange) (coord.Ring, error) {
	t.news |= newKeys
	r, err := changeRing(ctx, t.Tx, c)
	return r, storeError(ctx, err)
}

func (t *tx) HoldRing(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	r, err := holdRing(ctx, t.Tx, known)
	return r, storeError(ctx, err)
}

func (t *tx) Unwrap() any { return t.Tx }

// news is what a change may be to others.
type news uint32

const (
	newEvents   news = 1 << iota
	newRuns          // runs may have become due
	newCancels       // running ones are to stop
	newCalls         // calls have ended
	newEntries       // the directory has changed
	newReceipts      // were completed or released
	newLeaders       // may be elected: one has resigned
	newKeys          // rings have changed

	anything = newEvents | newRuns | newCancels | newCalls | newEntries | newReceipts | newLeaders | newKeys
)

// ring announces what was committed: at once to this process, and by the doorbell
// to the others.
func (b *backend) ring(n news) {
	b.wake(n)
	b.bell.ring(n)
}

// wake lets this process look for what is new.
func (b *backend) wake(n news) {
	if n&newEvents != 0 && b.feed.Listening() { // who comes later looks for themselves
		b.reader.wake()
	}
	if n&newRuns != 0 {
		b.hints.Notify()
	}
	if n&newCancels != 0 {
		b.cancels.Notify()
	}
	if n&newCalls != 0 {
		b.waits.Wake()
	}
	if n&newEntries != 0 {
		b.changes.Notify()
	}
	if n&newReceipts != 0 {
		b.receiptChanges.Notify()
	}
	if n&newLeaders != 0 {
		b.leaderChanges.Notify()
	}
	if n&newKeys != 0 {
		b.keyChanges.Notify()
	}
}
