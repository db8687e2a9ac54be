package pg

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
)

// A guarded connection makes good three habits of lib/pq:
//
//   - At the end of a context it asks the server to cancel, and waits for the
//     server's answer: for ever, when the server is frozen or the network dead.
//     The guard gives the server a moment and then breaks off. It breaks off at once,
//     and nobody is asked, behind a pooler, for that ends PgBouncer 1.18 to 1.20; and
//     where a commit may be under way, for one that waits for a synchronous standby is
//     then done without it: the server reports success, who asks again sees that it is
//     done, and a failover undoes it.
//   - It says nothing when somebody else cancels that wait. The guard reports
//     coord.ErrUnknownOutcome.
//   - When the answer to a statement is lost it reports driver.ErrBadConn, and
//     database/sql sends the statement again, although it may have been carried
//     out. The guard reports coord.ErrUnknownOutcome.
//   - It finds out that the server has closed an idle connection only when it has
//     sent the next statement. The guard looks before.
//
// And it ends the era when a server refuses to write: other connections may lead to the one that
// has taken its place.

// syncWait is what the server calls its wait for a synchronous standby. A notice from there
// says that it has given up waiting.
const syncWait = "SyncRepWaitForLSN"

// cancelGrace is the moment that a server has to answer after a context ended.
const cancelGrace = 500 * time.Millisecond

// guarded is a connection of lib/pq and the socket below it.
type guarded struct {
	pqConn
	socket net.Conn
	era    *era        // in which it was made
	pooled bool        // there is a pooler in between
	inTx   bool        // nothing is carried out before the commit
	broken atomic.Bool // not to be used again, of which lib/pq took no notice
	alone  atomic.Bool // a commit was done without the standby that is to have it
}

// pqConn are the abilities of a connection of lib/pq.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.QueryerContext
	driver.ExecerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// pqRows are the abilities of rows of lib/pq.
type pqRows interface {
	driver.Rows
	driver.RowsNextResultSet
	driver.RowsColumnTypeScanType
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypePrecisionScale
}

func guard(conn driver.Conn, socket net.Conn, era *era, pooled bool) (driver.Conn, error) {
	able, ok := conn.(pqConn)
	if !ok || socket == nil {
		return nil, fmt.Errorf("a connection of lib/pq is a %T on a %T; it can't be guarded", conn, socket)
	}
	return &guarded{pqConn: able, socket: socket, era: era, pooled: pooled}, nil
}

// watch breaks the connection off soon after ctx ends, until release is called,
// once. It returns the context for lib/pq. A connection that may have been given a
// deadline is never used again.
func (g *guarded) watch(ctx context.Context) (below context.Context, release func()) {
	below, grace := ctx, cancelGrace
	if g.pooled || !g.inTx {
		below, grace = context.WithoutCancel(ctx), 0
	}
	stop := context.AfterFunc(ctx, func() { _ = g.socket.SetDeadline(time.Now().Add(grace)) })
	return below, func() {
		if !stop() {
			g.broken.Store(true)
		}
	}
}

// IsValid reports whether the connection may go back into the pool.
func (g *guarded) IsValid() bool {
	return !g.broken.Load() && !g.era.isOver() && g.pqConn.IsValid()
}

// ResetSession refuses a connection that is not fit to be used again.
func (g *guarded) ResetSession(ctx context.Context) error {
	if !g.IsValid() || !silent(g.socket) {
		return driver.ErrBadConn
	}
	return g.pqConn.ResetSession(ctx)
}

// notice takes what the server says beside its answers.
func (g *guarded) notice(n *pq.Error) {
	if n.Routine == syncWait {
		g.alone.Store(true)
	}
}

// outcome turns the loss of an answer into an unknown outcome, and looks whether the
// server writes. valid says whether lib/pq thought that the connection was, before the request
// went out: else it sends none.
func (g *guarded) outcome(valid bool, err error) error {
	if e, ok := errors.AsType[*pq.Error](err); ok && e.Code == readOnly {
		g.era.end()
	}
	if g.alone.Swap(false) && err == nil {
		return fmt.Errorf("%w: no synchronous standby has it", coord.ErrUnknownOutcome)
	}
	if valid && !g.inTx && (errors.Is(err, driver.ErrBadConn) || isNet(err)) {
		// Not wrapped: for ErrBadConn database/sql would repeat the request.
		return fmt.Errorf("%w: no answer: %v", coord.ErrUnknownOutcome, err) //nolint:errorlint // see above
	}
	return err
}

func (g *guarded) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	valid := g.pqConn.IsValid()
	ctx, release := g.watch(ctx)
	r, err := g.pqConn.QueryContext(ctx, query, args)
	if err != nil {
		release()
		return nil, g.outcome(valid, err)
	}
	able, ok := r.(pqRows)
	if !ok {
		release()
		return nil, fmt.Errorf("rows of lib/pq are a %T; they can't be guarded", r)
	}
	return &guardedRows{pqRows: able, g: g, release: release}, nil
}

func (g *guarded) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	valid := g.pqConn.IsValid()
	ctx, release := g.watch(ctx)
	defer release()
	res, err := g.pqConn.ExecContext(ctx, query, args)
	return res, g.outcome(valid, err)
}

func (g *guarded) Ping(ctx context.Context) error {
	ctx, release := g.watch(ctx)
	defer release()
	return g.pqConn.Ping(ctx)
}

// BeginTx gives a transaction through a pooler the timeouts that the connection could
// not be given: what a process has locked that stands still, others wait for.
func (g *guarded) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	ctx, release := g.watch(ctx)
	tx, err := g.pqConn.BeginTx(ctx, opts)
	if err == nil && g.pooled {
		if _, err = g.pqConn.ExecContext(ctx, setTimeouts, nil); err != nil {
			_ = tx.Rollback()
		}
	}
	if err != nil {
		release()
		// lib/pq asks for a transaction that writes, which a standby refuses in this way.
		if e, ok := errors.AsType[*pq.Error](err); ok && e.Code == notSupported {
			g.era.end()
			err = fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
		}
		return nil, err
	}
	g.inTx = true
	return &guardedTx{tx, g, release}, nil
}

// guardedRows are watched until they are closed.
type guardedRows struct {
	pqRows
	g       *guarded
	release func()

	// What comes after the first row, while a commit may be under way. Who wants one row reads no
	// further, and what Close says is lost.
	read     int
	ahead    []driver.Value
	aheadErr error
}

func (r *guardedRows) Next(dest []driver.Value) error {
	r.read++
	switch {
	case r.read == 1 && !r.g.inTx:
		if err := r.next(dest); err != nil {
			return err
		}
		for i, v := range dest {
			if b, ok := v.([]byte); ok { // of lib/pq's buffer
				dest[i] = bytes.Clone(b)
			}
		}
		r.ahead = make([]driver.Value, len(dest))
		if r.aheadErr = r.next(r.ahead); r.aheadErr != io.EOF { //nolint:errorlint // never wrapped
			return r.aheadErr
		}
		return nil
	case r.read == 2 && r.ahead != nil:
		copy(dest, r.ahead)
		return r.aheadErr
	}
	return r.next(dest)
}

// NextResultSet begins to count anew.
func (r *guardedRows) NextResultSet() error {
	r.read, r.ahead, r.aheadErr = 0, nil, nil
	return r.pqRows.NextResultSet()
}

func (r *guardedRows) next(dest []driver.Value) error {
	err := r.pqRows.Next(dest)
	if err == io.EOF { //nolint:errorlint // the end of the rows, never wrapped
		if alone := r.g.outcome(true, nil); alone != nil {
			return alone
		}
		return err
	}
	return r.g.outcome(true, err)
}

func (r *guardedRows) Close() error {
	defer r.release()
	return r.g.outcome(true, r.pqRows.Close())
}

// guardedTx is watched until it ends.
type guardedTx struct {
	driver.Tx
	g       *guarded
	release func()
}

func (t *guardedTx) Commit() error {
	defer t.release()
	valid := t.g.pqConn.IsValid()
	t.g.inTx = false
	return t.g.outcome(valid, t.Tx.Commit())
}

func (t *guardedTx) Rollback() error {
	defer t.release()
	t.g.inTx = false
	return t.Tx.Rollback()
}
