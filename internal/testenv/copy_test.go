package testenv

import (
	"database/sql"
	"fmt"
	"testing"
	"time"
)

func TestCopy(t *testing.T) {
	c := start(t, Options{})
	open := func(c *Cluster) *sql.DB {
		t.Helper()
		db, err := sql.Open("postgres", c.URL(maintenance))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	copied := func(primary string) (*Cluster, *sql.DB) {
		t.Helper()
		other, err := c.Copy(t.Context(), Options{}, primary)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Stop)
		return other, open(other)
	}
	exec := func(db *sql.DB, statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	list := func(db *sql.DB) (texts string) {
		t.Helper()
		err := db.QueryRowContext(t.Context(), `SELECT coalesce(string_agg(text, ' ' ORDER BY text), '') FROM notes`).Scan(&texts)
		if err != nil {
			t.Fatal(err)
		}
		return texts
	}
	db := open(c)
	exec(db, `CREATE TABLE notes (text text); INSERT INTO notes VALUES ('a')`)
	_, backup := copied("")
	standby, follows := copied(c.URL(maintenance))
	exec(db, `INSERT INTO notes VALUES ('b')`)
	exec(backup, `INSERT INTO notes VALUES ('c')`)
	deadline := time.Now().Add(readyTimeout)
	for list(follows) != "a b" && time.Now().Before(deadline) {
		time.Sleep(recoverTime)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(follows, `INSERT INTO notes VALUES ('d')`)
	got := fmt.Sprintf("%q %q %q", list(db), list(backup), list(follows))
	if want := `"a b" "a c" "a b d"`; got != want {
		t.Errorf("the server, its copy and its standby have %s, want %s", got, want)
	}
}
