package testenv

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/lib/pq"
)

func TestRecovery(t *testing.T) {
	c := start(t, Options{})
	address := c.NewDatabase(t, "", nil)
	refused := func(statement string) string {
		t.Helper()
		db, err := sql.Open("postgres", address)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		_, err = db.ExecContext(t.Context(), statement)
		e, ok := errors.AsType[*pq.Error](err)
		if err != nil && !ok {
			t.Fatalf("%s: %v", statement, err)
		}
		if !ok {
			return ""
		}
		return string(e.Code)
	}
	for _, step := range []struct {
		hot         bool
		read, write string
	}{
		{false, codeStarting, codeStarting},
		{true, "", "25006"},
		{false, codeStarting, codeStarting}, // once more, after a promotion
	} {
		if err := c.Recover(t.Context(), step.hot); err != nil {
			t.Fatal(err)
		}
		if code := refused(`SELECT 1`); code != step.read {
			t.Errorf("hot %v: a read was refused with %q, want %q", step.hot, code, step.read)
		}
		if code := refused(`CREATE TABLE made ()`); code != step.write {
			t.Errorf("hot %v: a write was refused with %q, want %q", step.hot, code, step.write)
		}
		if log, err := c.Log(); err != nil || !strings.Contains(log, "entering standby mode") {
			t.Errorf("hot %v: the server's log is %q, %v", step.hot, log, err)
		}
		if err := c.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		if code := refused(`CREATE TABLE made (); DROP TABLE made`); code != "" {
			t.Errorf("hot %v: after the promotion a write was refused with %q", step.hot, code)
		}
	}
	foreign := &Cluster{}
	if foreign.Recover(t.Context(), true) == nil || foreign.Promote(t.Context()) == nil {
		t.Error("somebody else's server was disturbed")
	}
}
