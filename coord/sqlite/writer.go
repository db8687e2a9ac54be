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
	now      row.Time // read once it held the lock
}

// each calls read for every row that a prepared statement returns.
func (t transaction) each(ctx context.Context, s *sql.Stmt, args []any, read func(*sql.Rows) error) error {
	rows, err := t.Tx.StmtContext(ctx, s).QueryContext(ctx, args...)
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
	return t.Tx.StmtContext(ctx, s).ExecContext(ctx, args...)
}

// harmless reports whether a call that failed has left the transaction as its
// caller may want it committed: it has changed nothing, or only what it could.
func harmless(err error) bool {
	for _, refusal := range []error{coord.ErrNotFound, coord.ErrConflict, coord.ErrFenced, coord.ErrInvalid} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// mostShared is how many changes share a transaction.
const mostShared = 100

// writer lets concurrent callers share a transaction, and with it the lock and the
// wait for the disk. There is no timer: what comes while a transaction is under way
// makes the next one.
//
// A transaction is not interrupted when a caller leaves, since others may share it
// and none takes long.
type writer struct {
	b    *backend
	work chan struct{} // one slot: somebody waits

	mu      sync.Mutex
	waiting []*change
	closed  bool
}

// change is what one caller wants to be done in a transaction. It is tried again
// alone when one of those that it shared a transaction with has failed.
type change struct {
	do   func(ctx context.Context, tx transaction) error
	err  error
	done chan struct{}
	left bool // its caller has; under the writer's lock
}

func newWriter(b *backend) *writer { return &writer{b: b, work: make(chan struct{}, 1)} }

// inTx has fn called in a transaction, with a context that the statements are to
// use. When ctx ends while the lock is waited for, fn is not called; what has begun
// ends soon, and is waited for.
func (b *backend) inTx(ctx context.Context, fn func(ctx context.Context, tx transaction) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &change{do: fn, done: make(chan struct{})}
	if err := b.writer.add(c); err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if b.writer.drop(c) {
			return ctx.Err()
		}
		<-c.done
	}
	return c.err
}

func (w *writer) add(c *change) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return coord.ErrClosed
	}
	w.waiting = append(w.waiting, c)
	select {
	case w.work <- struct{}{}:
	default:
	}
	return nil
}

// drop forgets a change whose caller has left, and reports whether that was in
// time.
func (w *writer) drop(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.left = true
	i := slices.Index(w.waiting, c)
	if i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
	return i >= 0
}

// take returns those who make the next transaction, in the order they came.
func (w *writer) take() []*change {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.waiting), mostShared)
	changes := slices.Clone(w.waiting[:n])
	w.waiting = slices.Delete(w.waiting, 0, n)
	return changes
}

// wanted reports whether somebody waits for the next transaction.
func (w *writer) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) > 0
}

// run serves callers until ctx is done, and then turns them away.
func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.work:
			for w.wanted() && ctx.Err() == nil {
				w.serve(ctx)
			}
		}
	}
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for changes := w.take(); len(changes) > 0; changes = w.take() {
		answer(coord.ErrClosed, changes...)
	}
}

// answer lets the callers go, with an error that is all theirs or with their own.
func answer(err error, changes ...*change) {
	for _, c := range changes {
		if err != nil {
			c.err = err
		}
		close(c.done)
	}
}

// serve makes one transaction of the changes that wait once it holds the lock.
func (w *writer) serve(ctx context.Context) {
	tx, end, err := w.begin(ctx, w.wanted)
	if errors.Is(err, errUnwanted) || err != nil && ctx.Err() != nil {
		return
	}
	changes := w.take()
	failed := false
	if err == nil {
		failed, err = w.b.apply(ctx, tx, changes)
		end()
	}
	if !failed || len(changes) == 1 {
		answer(err, changes...)
		return
	}
	// One that fails must fail no other.
	for _, c := range changes {
		tx, end, err := w.begin(ctx, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !c.left
		})
		if err == nil {
			_, err = w.b.apply(ctx, tx, []*change{c})
			end()
		}
		answer(err, c)
	}
}

// errUnwanted ends the wait for the lock when all who wanted it have left.
var errUnwanted = errors.New("nobody waits for the lock")

// begin starts a transaction that holds the lock, which it waits for as long as
// that is wanted.
func (w *writer) begin(ctx context.Context, wanted func() bool) (tx bun.Tx, end func(), err error) {
	// The wait for the connection can be interrupted, the transaction can't.
	conn, err := w.b.db.Write.Conn(ctx)
	if err != nil {
		return tx, nil, err
	}
	end = func() { _ = conn.Close() }
	tx, err = w.b.begin(ctx, func() (bun.Tx, error) {
		if !wanted() {
			return bun.Tx{}, errUnwanted
		}
		return conn.BeginTx(context.WithoutCancel(ctx), nil)
	})
	if err != nil {
		end()
	}
	return tx, end, err
}

// apply makes changes in one transaction and commits them. When one of them failed,
// none is made.
func (b *backend) apply(ctx context.Context, tx bun.Tx, changes []*change) (failed bool, err error) {
	ctx = context.WithoutCancel(ctx)
	t := transaction{tx, &b.prepared, b.now()}
	for _, c := range changes {
		if c.err = c.do(ctx, t); c.err != nil && !harmless(c.err) {
			_ = tx.Rollback() // the error of the change is the one that counts
			return true, nil
		}
	}
	return false, commitError(tx.Commit())
}
