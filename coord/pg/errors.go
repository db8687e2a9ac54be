package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
)

// SQLSTATEs that mean something to the driver.
const (
	protocolViolation = "08P01" // a pooler refuses settings
	undefinedTable    = "42P01" // the schema is missing
	readOnly          = "25006" // a standby, or a primary that was
	notSupported      = "0A000" // as an answer to BEGIN: a standby
	closedDatabase    = "55000" // as an answer to who connects: the database takes no connections now
	wrongPassword     = "28P01" // or there is no such role
	notAllowed        = "28000" // by pg_hba.conf, or to that role
	unknownDatabase   = "3D000"
)

// ErrRefused says that a server answers, and refuses the password, the role or the database of the
// connection string. Of several servers, one of which is away, it is also a
// [coord.ErrUnavailable] when that one may allow what another does not.
var ErrRefused = errors.New("the server refuses the connection")

// errReadOnly: a server refused to write, and what it says may be old.
var errReadOnly = fmt.Errorf("%w: the server is read-only", coord.ErrUnavailable)

// The texts of errors for which database/sql has no name.
const (
	poolClosed = "sql: database is closed"
	rowsClosed = "sql: Rows are closed"
)

// storeError gives an error of the database its sentinel.
func storeError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, coord.ErrUnknownOutcome) {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, coord.ErrUnavailable) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) { // not the caller's
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	}
	if e, ok := errors.AsType[*pq.Error](err); ok {
		switch {
		case unknown(e):
			return fmt.Errorf("%w: %w", coord.ErrUnknownOutcome, err)
		case unavailable(e):
			return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
		}
		return err
	}
	switch {
	case err.Error() == poolClosed:
		return coord.ErrClosed
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, sql.ErrTxDone), err.Error() == rowsClosed: // rolled back for poolPatience, the latter beside its answer
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	case isNet(err):
		// The request may have arrived before the connection broke.
		return fmt.Errorf("%w: %w", coord.ErrUnknownOutcome, err)
	}
	return err
}

// connectError gives an error of an attempt to connect its sentinel. Nothing was asked for yet,
// so that its outcome is known.
func connectError(err error) error {
	e, answered := errors.AsType[*pq.Error](err)
	switch {
	case answered && (e.Code == notAllowed || foreverRefused(e)):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case answered && (unavailable(e) || e.Code == closedDatabase), !answered && (isNet(err) || errors.Is(err, context.DeadlineExceeded)), refusesWrites(err):
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	case errors.Is(err, driver.ErrBadConn):
		// Not wrapped: database/sql would ask again at once.
		return fmt.Errorf("%w: %v", coord.ErrUnavailable, err) //nolint:errorlint // see above
	}
	return err
}

// foreverRefused reports whether no other server of the same cluster will say anything else:
// roles, passwords and databases are the same on all, as pg_hba.conf is not.
func foreverRefused(e *pq.Error) bool { return e.Code == wrongPassword || e.Code == unknownDatabase }

// noServer is the error when none of the servers could be used. Where one has refused for good,
// nobody is to wait for those that are away.
func noServer(problems []error) error {
	if len(problems) == 1 {
		return problems[0]
	}
	all := fmt.Errorf("none of the servers can be used: %w", errors.Join(problems...))
	for _, problem := range problems {
		if e, ok := errors.AsType[*pq.Error](problem); ok && foreverRefused(e) {
			return fmt.Errorf("%w: %v", ErrRefused, all) //nolint:errorlint // that others are away does not count
		}
	}
	return all
}

// refusesWrites reports whether a server was refused for the session's attributes. lib/pq has no
// name for that.
func refusesWrites(err error) bool {
	text := err.Error()
	return text == "session is read-only" || text == "server is in hot standby mode"
}

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// unavailable reports whether the server says that it can't serve now, or gave
// up, as opposed to that the request is wrong.
func unavailable(e *pq.Error) bool {
	switch e.Code {
	case readOnly,
		"55P03",          // lock timeout
		"25P03",          // idle in transaction too long
		"25P04",          // in a transaction for too long
		"72000",          // a snapshot that is too old
		"40001", "40P01": // serialization, deadlock
		return true
	}
	switch e.Code.Class() {
	case "08", // connection
		"53", // resources
		"57", // operator intervention, and the statement timeout
		"58": // the system below the server: its disk can't be read or written
		return true
	}
	return false
}

// unknown reports whether the server, or one in between, says that it does not know whether a
// commit has happened.
func unknown(e *pq.Error) bool {
	return e.Code == "08007" || e.Code == "40003"
}
