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
	if e, ok := errors.AsType[*pq.Error](err); ok {
		if unavailable(e) {
			return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
		}
		return err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	}
	switch {
	case err.Error() == poolClosed:
		return coord.ErrClosed
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	case isNet(err):
		// The request may have arrived before the connection broke.
		return fmt.Errorf("%w: %w", coord.ErrUnknownOutcome, err)
	}
	return err
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
