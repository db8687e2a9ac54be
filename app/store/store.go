// Package store keeps the application's own rows: users, sessions, rooms, messages
// and the secrets of webhooks. It is the only package that knows their tables.
//
// The clock that decides is that of the database. Errors are those of package
// coord: ErrNotFound, ErrConflict, ErrUnavailable, and otherwise a fault of the
// database that none of them names.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// Options say where the rows are.
type Options struct {
	Write   *bun.DB          // the database; on SQLite the pool that may write
	Read    *bun.DB          // for reads outside a unit of work; default Write
	Backend coord.Backend    // shares transactions with Write, unless it has no rows
	Now     func() time.Time // the clock where the database has none (SQLite); default time.Now
	Secrets Sealer           // of what is stored; nil: it is stored as it is
}

// Store is safe for concurrent use.
type Store struct {
	write, read *bun.DB
	backend     coord.Backend
	now         func() time.Time
	secrets     Sealer
}

// New returns a store on a database whose tables exist already.
func New(o Options) *Store {
	s := &Store{write: o.Write, read: o.Read, backend: o.Backend, now: o.Now, secrets: o.Secrets}
	if s.read == nil {
		s.read = s.write
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// Unit is one unit of work: what its methods write and what is done through
// Coord happens whole or not at all. It is used by one goroutine, until the
// function that received it returns.
type Unit struct {
	Coord coord.Tx
	db    bun.IDB
	store *Store
}

// InTx runs fn in one transaction and commits when fn returns nil. The rules
// are those of [coord.Backend.InTx]: fn is brief, is called once, and inside it
// only the Unit may be used. An error of fn is returned as it is.
//
// On a backend that keeps no rows, the rows have a transaction of their own
// inside that of the backend, and are committed as its last act.
func (s *Store) InTx(ctx context.Context, fn func(ctx context.Context, u Unit) error) error {
	return s.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if db, ok := tx.Unwrap().(bun.IDB); ok {
			return fn(ctx, Unit{Coord: tx, db: db, store: s})
		}
		rows, err := s.write.BeginTx(ctx, nil)
		if err != nil {
			return fault(err)
		}
		defer func() { _ = rows.Rollback() }() // does nothing after the commit
		if err := fn(ctx, Unit{Coord: tx, db: rows, store: s}); err != nil {
			return err
		}
		return fault(rows.Commit())
	})
}

// clock is the present, or a moment as far from it, for a statement.
func (s *Store) clock(shift time.Duration) present { return present{now: s.now, shift: shift} }

// query reads all rows of a statement, also of one that writes: a SQLite
// statement with RETURNING is only done when it was read to its end.
func query[T any](ctx context.Context, db bun.IDB, text string, args ...any) ([]T, error) {
	var rows []T
	if err := db.NewRaw(text, args...).Scan(ctx, &rows); err != nil {
		return nil, fault(err)
	}
	return rows, nil
}

// queryOne is query for at most one row; [coord.ErrNotFound] when there is none.
func queryOne[T any](ctx context.Context, db bun.IDB, text string, args ...any) (T, error) {
	rows, err := query[T](ctx, db, text, args...)
	if err == nil && len(rows) == 0 {
		err = coord.ErrNotFound
	}
	if err != nil {
		var none T
		return none, err
	}
	return rows[0], nil
}

// exec is a unit of work of one statement. Every write goes through the backend,
// which knows how long to wait for a lock.
func (s *Store) exec(ctx context.Context, text string, args ...any) (n int, err error) {
	err = s.InTx(ctx, func(ctx context.Context, u Unit) error {
		n, err = exec(ctx, u.db, text, args...)
		return err
	})
	return n, err
}

func exec(ctx context.Context, db bun.IDB, text string, args ...any) (int, error) {
	result, err := db.NewRaw(text, args...).Exec(ctx)
	if err != nil {
		return 0, fault(err)
	}
	n, err := result.RowsAffected()
	return int(n), fault(err)
}

// fault tells an outage of the database from other errors, without knowing its
// driver.
func fault(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if unavailable(err) {
		return fmt.Errorf("store: %w: %w", coord.ErrUnavailable, err)
	}
	return fmt.Errorf("store: %w", err)
}

// rowsClosed is the text of an error for which database/sql has no name: a transaction was rolled back for its
// time while its answer was read.
const rowsClosed = "sql: Rows are closed"

func unavailable(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok { // context.DeadlineExceeded is one
		return true
	}
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrTxDone) || strings.HasSuffix(err.Error(), rowsClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) {
		return true
	}
	type postgres interface {
		error
		SQLState() string
	}
	if e, ok := errors.AsType[postgres](err); ok {
		return postgresAway(e.SQLState())
	}
	type sqlite interface {
		error
		Code() int
	}
	e, ok := errors.AsType[sqlite](err)
	return ok && sqliteAway(e.Code())
}

// postgresAway knows the SQLSTATEs of a server that can't be reached, is
// starting, stopping or read-only, has no connection, memory or room on its disk left,
// can't read or write there, did not answer in time, or gave up a transaction for others. Package
// coord/pg knows the same ones.
func postgresAway(state string) bool {
	switch state {
	case "25006", "25P03", "25P04", "40001", "40P01", "55P03", "72000":
		return true
	}
	for _, class := range []string{"08", "53", "57", "58"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}

// sqliteAway knows the result codes of a file that is locked for too long, or
// can't be opened, read or written.
func sqliteAway(code int) bool {
	switch code & 0xff {
	case 5, 6, 8, 10, 13, 14: // BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN
		return true
	}
	return false
}
