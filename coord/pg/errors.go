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
)

// errReadOnly: a server refused to write, and what it says may be old.
var errReadOnly = fmt.Errorf("%w: the server is read-only", coord.ErrUnavailable)

// poolClosed is the text of an error for which database/sql has no name.
const poolClosed = "sql: database is closed"

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
		if unavailable(e) {
			return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
		}
		return err
	}
	switch {
	case err.Error() == poolClosed:
		return coord.ErrClosed
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, sql.ErrTxDone): // rolled back for poolPatience
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
	case answered && unavailable(e), !answered && (isNet(err) || errors.Is(err, context.DeadlineExceeded)), refusesWrites(err):
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	case errors.Is(err, driver.ErrBadConn):
		// Not wrapped: database/sql would ask again at once.
		return fmt.Errorf("%w: %v", coord.ErrUnavailable, err) //nolint:errorlint // see above
	}
	return err
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
		"57014",          // statement timeout
		"55P03",          // lock timeout
		"25P03",          // idle in transaction too long
		"40001", "40P01": // serialization, deadlock
		return true
	}
	switch e.Code.Class() {
	case "08", // connection
		"53", // resources
		"57": // operator intervention
		return true
	}
	return false
}
