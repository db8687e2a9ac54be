package pg

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/tandemhq/tandem/coord"
)

// What the server says that it can't do now, as opposed to what is wrong with the request.
func TestSQLStates(t *testing.T) {
	t.Parallel()
	type want struct{ unavailable, unknown, connecting, refused bool }
	both := want{unavailable: true, connecting: true}
	lost := want{unavailable: true, unknown: true, connecting: true}
	for state, w := range map[pqerror.Code]want{
		"08000": both, "08001": both, "08003": both, "08004": both, "08006": both, "08P01": both,
		"08007": lost,                // transaction resolution unknown
		"25006": both,                // read-only
		"25P03": both, "25P04": both, // idle in, or for too long in, a transaction
		"40001": both, "40P01": both,
		"40003": {unavailable: true, unknown: true}, // statement completion unknown
		"53000": both, "53100": both, "53200": both, "53300": both, "53400": both,
		"55P03": both,               // lock timeout
		"55000": {connecting: true}, // the database takes no connections; as to a statement it is wrong
		"57000": both, "57014": both, "57P01": both, "57P02": both, "57P03": both, "57P04": both, "57P05": both,
		"58000": both, "58030": both, "58P01": both, "58P02": both,
		"72000": both, // a snapshot that is too old

		"28000": {refused: true}, "28P01": {refused: true}, "3D000": {refused: true},

		"22001": {}, "23505": {}, "25001": {}, "25P02": {}, "40002": {}, "42501": {}, "42601": {}, "42P01": {}, "54000": {},
		"55006": {}, "F0000": {}, "XX000": {}, "XX001": {},
	} {
		e := &pq.Error{Code: state}
		answer, connecting := storeError(t.Context(), e), connectError(e)
		got := want{
			errors.Is(answer, coord.ErrUnavailable), errors.Is(answer, coord.ErrUnknownOutcome),
			errors.Is(connecting, coord.ErrUnavailable), errors.Is(connecting, ErrRefused),
		}
		if got != w {
			t.Errorf("%s: %+v, want %+v", state, got, w)
		}
		if !errors.Is(answer, error(e)) || !errors.Is(connecting, error(e)) {
			t.Errorf("%s: what the server said is lost", state)
		}
		if errors.Is(connecting, coord.ErrUnknownOutcome) {
			t.Errorf("%s: nothing was asked for yet", state)
		}
	}
}

// A transaction is rolled back because its time is up, while the answer to one of its statements is read.
func TestRowsOfATransactionThatIsOver(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(instant{})
	defer db.Close()
	during, over := context.WithCancel(t.Context())
	defer over()
	tx, err := db.BeginTx(during, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	rows, err := tx.QueryContext(t.Context(), `SELECT 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	over()
	for err == nil {
		_, err = rows.Columns()
	}
	if got := storeError(t.Context(), err); !errors.Is(got, coord.ErrUnavailable) || errors.Is(got, coord.ErrUnknownOutcome) {
		t.Errorf("%v: %v", err, got)
	}
	if err := rows.Err(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Several servers, one of which is away. Roles and databases are the same on all, so that nobody
// waits when another refuses them; it may be that only one has not allowed the role.
func TestOneOfSeveralRefuses(t *testing.T) {
	t.Parallel()
	away := connectError(&pq.Error{Code: "57P03"})
	for state, waits := range map[pqerror.Code]bool{"28P01": false, "3D000": false, "28000": true, "53300": true} {
		err := noServer([]error{away, connectError(&pq.Error{Code: state})})
		if errors.Is(err, coord.ErrUnavailable) != waits {
			t.Errorf("%s from the other: %v", state, err)
		}
		if errors.Is(err, ErrRefused) != (state != "53300") {
			t.Errorf("%s from the other: %v, and ErrRefused is wrong", state, err)
		}
	}
	if err := noServer([]error{connectError(&pq.Error{Code: "28000"}), connectError(&pq.Error{Code: "28000"})}); errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("both refuse: %v", err)
	}
}
