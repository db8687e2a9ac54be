package pg

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net"
	"time"
)

// lib/pq answers the end of a context by asking the server to cancel, and waits
// for the server's answer: for ever, when the server is frozen or the network
// dead. A guarded connection gives the server a moment and then breaks off.

// cancelGrace is that moment.
const cancelGrace = 500 * time.Millisecond

// guarded is a connection of lib/pq and the socket below it.
type guarded struct {
	pqConn
	socket net.Conn
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

func guard(conn driver.Conn, socket net.Conn) (driver.Conn, error) {
	able, ok := conn.(pqConn)
	if !ok || socket == nil {
		return nil, fmt.Errorf("a connection of lib/pq is a %T on a %T; it can't be guarded", conn, socket)
	}
	return &guarded{able, socket}, nil
}

// watch breaks the connection off soon after ctx ends, until release is called.
// A connection that was broken off is never used again: lib/pq itself
// gives it up when a context ends.
func (g *guarded) watch(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { _ = g.socket.SetDeadline(time.Now().Add(cancelGrace)) })
}

func (g *guarded) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	release := g.watch(ctx)
	r, err := g.pqConn.QueryContext(ctx, query, args)
	if err != nil {
		release()
		return nil, err
	}
	able, ok := r.(pqRows)
	if !ok {
		release()
		return nil, fmt.Errorf("rows of lib/pq are a %T; they can't be guarded", r)
	}
	return &guardedRows{able, release}, nil
}

func (g *guarded) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	defer g.watch(ctx)()
	return g.pqConn.ExecContext(ctx, query, args)
}

func (g *guarded) Ping(ctx context.Context) error {
	defer g.watch(ctx)()
	return g.pqConn.Ping(ctx)
}

func (g *guarded) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	release := g.watch(ctx)
	tx, err := g.pqConn.BeginTx(ctx, opts)
	if err != nil {
		release()
		return nil, err
	}
	return &guardedTx{tx, release}, nil
}

// guardedRows are watched until they are closed.
type guardedRows struct {
	pqRows
	release func() bool
}

func (r *guardedRows) Close() error {
	defer r.release()
	return r.pqRows.Close()
}

// guardedTx is watched until it ends.
type guardedTx struct {
	driver.Tx
	release func() bool
}

func (t *guardedTx) Commit() error {
	defer t.release()
	return t.Tx.Commit()
}

func (t *guardedTx) Rollback() error {
	defer t.release()
	return t.Tx.Rollback()
}
