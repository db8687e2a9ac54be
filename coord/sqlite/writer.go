package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// transaction holds the writer lock.
type transaction struct {
	bun.Tx
	prepared *statements
	bound    map[*sql.Stmt]*sql.Stmt // prepared ones, to this transaction
	now      row.Time                // read once it held the lock
}

// locked begins what is done in a transaction that has just got the lock.
func (b *backend) locked(tx bun.Tx) transaction {
	return transaction{tx, &b.prepared, make(map[*sql.Stmt]*sql.Stmt), b.now()}
}

// bind returns a prepared statement for use in the transaction, with which it ends.
func (t transaction) bind(ctx context.Context, s *sql.Stmt) *sql.Stmt {
	bound := t.bound[s]
	if bound == nil {
		bound = t.StmtContext(ctx, s)
		t.bound[s] = bound
	}
	return bound
}

// each calls read for every row that a prepared statement returns.
func (t transaction) each(ctx context.Context, s *sql.Stmt, args []any, read func(*sql.Rows) error) error {
	rows, err := t.bind(ctx, s).QueryContext(ctx, args...) //nolint:sqlclosecheck // eachRow does
	return eachRow(rows, err, read)
}

// eachRow calls read for every row of a query, which it closes.
func eachRow(rows *sql.Rows, err error, read func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// exec runs a prepared statement that returns no rows.
func (t transaction) exec(ctx context.Context, s *sql.Stmt, args ...any) (sql.Result, error) {
	return t.bind(ctx, s).ExecContext(ctx, args...) //nolint:sqlclosecheck // the transaction does
}

// harmless reports whether a call that failed has left the transaction as its
// caller may want it committed: it has changed nothing, or only what it could.
func harmless(err error) bool {
	for _, refusal := range []error{coord.ErrNotFound, coord.ErrConflict, coord.ErrFenced, coord.ErrExpired, coord.ErrInvalid} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// errAlone asks for the change to be tried again in a transaction of its own.
var errAlone = errors.New("the change is to be made alone")

// mostShared is how many changes share a transaction.
const mostShared = 100

// writer lets concurrent callers share a transaction, and with it the lock and the
// wait for the disk. There is no timer and no goroutine: the first in the queue
// leads, which is to make the transaction for all who have come until it gets the
// lock. Then the next one leads.
//
// A transaction is not interrupted when a caller leaves, since others may share it
// and none takes long.
type writer struct {
	b *backend

	mu     sync.Mutex
	queue  []*change // the first leads
	served int       // how many of the first are under way
}

// change is what one caller wants to be done in a transaction.
type change struct {
	do    func(ctx context.Context, tx transaction) error
	alone bool          // one that it shared a transaction with has failed
	turn  chan struct{} // one slot: it has been made, or leads
	made  bool
	err   error
}

// inTx has fn called in a transaction, with a context that the statements are to
// use. It is called again when the transaction was rolled back because of another
// that shared it. When ctx ends while the lock is waited for, fn is not called;
// what has begun ends soon, and is waited for.
func (b *backend) inTx(ctx context.Context, fn func(ctx context.Context, tx transaction) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w, c := b.writer, &change{do: fn, turn: make(chan struct{}, 1)}
	w.join(c)
	for {
		select {
		case <-c.turn:
		case <-ctx.Done():
			if w.leave(c) {
				return ctx.Err()
			}
			<-c.turn
		}
		if c.made {
			return c.err
		}
		if err := w.lead(ctx); err != nil {
			return err
		}
	}
}

// join puts a change at the end of the queue.
func (w *writer) join(c *change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue = append(w.queue, c); len(w.queue) == 1 {
		c.turn <- struct{}{}
	}
}

// leave takes a change out of the queue, if it is not under way and does not lead.
func (w *writer) leave(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.queue, c)
	if i < max(w.served, 1) {
		return false
	}
	w.queue = slices.Delete(w.queue, i, i+1)
	return true
}

// start returns those who share a transaction with the first of the queue.
func (w *writer) start() []*change {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.served = 1; w.served < min(len(w.queue), mostShared); w.served++ {
		if w.queue[0].alone || w.queue[w.served].alone {
			break
		}
	}
	return slices.Clone(w.queue[:w.served])
}

// end lets the first of the queue go, and the next one lead. The others that were
// under way are tried again alone.
func (w *writer) end(gone int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range w.queue[:max(gone, w.served)] {
		if i >= gone {
			c.alone = true
			continue
		}
		c.made = true
		c.turn <- struct{}{}
	}
	w.queue, w.served = slices.Delete(w.queue, 0, gone), 0
	if len(w.queue) > 0 {
		w.queue[0].turn <- struct{}{}
	}
}

// lead makes one transaction of what is in the queue once it holds the lock. An
// error is that of the first alone; the others go on without it.
func (w *writer) lead(ctx context.Context) error {
	gone := 1
	defer func() { w.end(gone) }()
	var conn bun.Conn
	tx, err := w.b.begin(ctx, func() (tx bun.Tx, err error) {
		if conn, err = w.b.db.Write.Conn(ctx); err != nil {
			return tx, err
		}
		if tx, err = conn.BeginTx(context.WithoutCancel(ctx), nil); err != nil {
			_ = conn.Close()
		}
		return tx, err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer func() { _ = tx.Rollback() }() // which does nothing after a commit
	changes := w.start()
	if err := w.b.make(context.WithoutCancel(ctx), tx, changes); err != nil {
		if changes[0].err = err; len(changes) > 1 || errors.Is(err, errAlone) {
			gone = 0
		}
		return nil
	}
	gone = len(changes)
	if err := commitError(tx.Commit()); err != nil {
		for _, c := range changes {
			c.err = err
		}
	}
	return nil
}

// make makes changes in a transaction until one fails. What is refused has changed
// nothing, and does not fail the others.
func (b *backend) make(ctx context.Context, tx bun.Tx, changes []*change) error {
	t := b.locked(tx)
	for _, c := range changes {
		if c.err = c.do(ctx, t); c.err != nil && !harmless(c.err) {
			return c.err
		}
	}
	return nil
}
