package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

type postgresError string

func (e postgresError) Error() string    { return "postgres: " + string(e) }
func (e postgresError) SQLState() string { return string(e) }

type sqliteError int

func (e sqliteError) Error() string { return fmt.Sprint("sqlite: ", int(e)) }
func (e sqliteError) Code() int     { return int(e) }

// errRowsClosed is what a statement of a transaction says that is rolled back while its answer is read.
func errRowsClosed(t *testing.T) error {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	rows, err := tx.QueryContext(t.Context(), `SELECT 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() {
		t.Fatal(rows.Err())
	}
	cancel()
	for {
		var one int
		if err := rows.Scan(&one); err != nil {
			return err
		}
	}
}

func TestFault(t *testing.T) {
	for _, test := range []struct {
		err  error
		away bool
	}{
		{driver.ErrBadConn, true},
		{sql.ErrTxDone, true}, // its time was up, and it was rolled back
		{errRowsClosed(t), true},
		{io.ErrUnexpectedEOF, true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{context.DeadlineExceeded, true},
		{context.Canceled, false},
		{postgresError("57P01"), true},
		{postgresError("08006"), true},
		{postgresError("25006"), true},
		{postgresError("53100"), true}, // its disk is full
		{postgresError("58030"), true},
		{postgresError("58000"), true},
		{postgresError("25P03"), true}, // it stood still in a transaction
		{postgresError("25P04"), true},
		{postgresError("40P01"), true}, // a deadlock
		{postgresError("57P04"), true},
		{postgresError("23505"), false},
		{postgresError("55000"), false},
		{sqliteError(5 | 2<<8), true},
		{sqliteError(19), false},
		{errors.New("other"), false},
	} {
		got := fault(fmt.Errorf("wrapped: %w", test.err))
		if errors.Is(got, coord.ErrUnavailable) != test.away || !errors.Is(got, test.err) {
			t.Errorf("%v: got %v", test.err, got)
		}
	}
	if fault(nil) != nil {
		t.Error("no error became one")
	}
}
