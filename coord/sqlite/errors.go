package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	engine "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/tandemhq/tandem/coord"
)

// The texts of errors for which database/sql has no name.
const (
	poolClosed      = "sql: database is closed"
	statementClosed = "sql: statement is closed"
)

// storeError gives an error of the database its sentinel.
func storeError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, coord.ErrUnknownOutcome) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err.Error() == poolClosed, err.Error() == statementClosed:
		return coord.ErrClosed
	case errors.Is(err, coord.ErrUnavailable):
		return err
	case unavailable(err), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
	}
	return err
}

// commitError is for the error of a commit: when the disk failed, what was
// written may be found after a restart all the same.
func commitError(err error) error {
	if code(err) == codes.SQLITE_IOERR {
		return fmt.Errorf("%w: %w", coord.ErrUnknownOutcome, err)
	}
	return err
}

// code returns the primary result code of an error of SQLite, else 0.
func code(err error) int {
	if e, ok := errors.AsType[*engine.Error](err); ok {
		return e.Code() & 0xff
	}
	return codes.SQLITE_OK
}

// busy reports whether another connection keeps the lock.
func busy(err error) bool {
	c := code(err)
	return c == codes.SQLITE_BUSY || c == codes.SQLITE_LOCKED
}

// unavailable reports whether SQLite says that the file can't serve now, as
// opposed to that the request is wrong.
func unavailable(err error) bool {
	switch code(err) {
	case codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_PROTOCOL,
		codes.SQLITE_READONLY, codes.SQLITE_FULL, codes.SQLITE_IOERR, codes.SQLITE_CANTOPEN,
		codes.SQLITE_NOMEM:
		return true
	}
	return false
}
