//go:build !memory

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord/keyring"
)

// listings are the commands that only list.
var listings = [][]string{{"jobs"}, {"jobs", "--json"}, {"keys"}, {"keys", "list", "--json"}, {"user", "list"}}

// change executes a statement on a database.
func change(tb testing.TB, database, statement string) {
	tb.Helper()
	d, closeDB, err := openDatabase(tb.Context(), &Config{DatabaseURL: database, DatabaseConns: 2})
	if err != nil {
		tb.Fatal(err)
	}
	defer closeDB()
	if _, err := d.writer().ExecContext(tb.Context(), statement); err != nil {
		tb.Fatal(err)
	}
}

// countApplied counts the migrations that were applied.
func countApplied(tb testing.TB, database string) int {
	tb.Helper()
	d, closeDB, err := openDatabase(tb.Context(), &Config{DatabaseURL: database, DatabaseConns: 2})
	if err != nil {
		tb.Fatal(err)
	}
	defer closeDB()
	list, err := d.applied(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return len(list)
}

// wantRefused wants that a command fails with one sentence, which names those things.
func wantRefused(tb testing.TB, database string, args []string, names ...string) {
	tb.Helper()
	code, stdout, stderr := inProcess(tb, append(args, "--database-url", database, "--database-conns", "2")...)
	if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
		tb.Errorf("%v: code %d: %s%s", args, code, stdout, stderr)
	}
	for _, name := range names {
		if !strings.Contains(stderr, name) {
			tb.Errorf("%v: no %q in: %s", args, name, stderr)
		}
	}
}

// TestCommandsDontMigrate runs commands where there is no schema, where it is that of an earlier version, and where
// a later version has taken something away: they say so, and leave it.
func TestCommandsDontMigrate(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	changes := [][]string{
		{"user", "role", "ada", "guest"},
		{"user", "deactivate", "ada"},
		{"user", "reactivate", "ada"},
		{"user", "reset", "ada"},
		{"user", "sign-out", "ada"},
		{"keys", "rotate"},
		{"keys", "revoke", "tokens", "1"},
		{"keys", "unseal"},
	}
	for _, args := range append(listings, changes...) {
		wantRefused(t, database, args, "tandem migrate")
	}
	if code, stdout, stderr := inProcess(t, "migrate", "status", "--database-url", database); code != 0 || strings.Contains(stdout, "Z\n") {
		t.Errorf("migrate status: code %d: %s%s", code, stdout, stderr)
	}
	if driverName == "sqlite" {
		if _, err := os.Stat(strings.TrimPrefix(database, "sqlite:")); err == nil {
			t.Error("a file was made")
		}
	} else if n := countApplied(t, database); n != 0 {
		t.Errorf("%d migrations were applied", n)
	}

	migrate(t, database)
	all := countApplied(t, database)
	change(t, database, `DELETE FROM app_migrations WHERE version_id = (SELECT max(version_id) FROM app_migrations)`)
	everything := append(append(listings, changes...), []string{"user", "add", "ada"})
	for _, args := range everything {
		wantRefused(t, database, args, "lacks migrations", "tandem migrate")
	}
	if n := countApplied(t, database); n != all-1 {
		t.Errorf("there are %d migrations, of %d but one", n, all)
	}
	change(t, database, `CREATE TABLE coord_floor (version bigint)`)
	change(t, database, `INSERT INTO coord_floor VALUES (9999)`)
	for _, args := range everything {
		wantRefused(t, database, args, "a later version", "use the version")
	}
}

// TestListingsMakeNothing lists where no replica ever ran, and what one has left, without its key-encryption key.
func TestListingsMakeNothing(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	migrate(t, database)
	list := func(args []string) string {
		t.Helper()
		code, stdout, stderr := inProcess(t, append(args, "--database-url", database, "--database-conns", "2")...)
		if code != 0 || stderr != "" {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
		return stdout
	}
	unchanged := func(look func()) {
		t.Helper()
		if driverName != "sqlite" {
			look()
			return
		}
		dir := filepath.Dir(strings.TrimPrefix(database, "sqlite:"))
		before := snapshot(t, dir)
		look()
		if after := snapshot(t, dir); after != before {
			t.Errorf("there were\n%sand are\n%s", before, after)
		}
	}
	unchanged(func() {
		for _, args := range listings {
			list(args)
		}
		if stdout := list([]string{"keys", "--json"}); stdout != "" {
			t.Errorf("keys were made: %s", stdout)
		}
	})

	kek := keyring.NewKEK()
	r := serve(t, "sealing", database, "--key-encryption-key", kek)
	for _, args := range listings { // while it runs
		list(args)
	}
	r.signal(os.Interrupt)
	if code := r.wait(); code != 0 {
		t.Errorf("the server ended with code %d", code)
	}
	unchanged(func() {
		if stdout := list([]string{"jobs"}); !strings.Contains(stdout, "audit.reap") {
			t.Errorf("jobs without the key-encryption key:\n%s", stdout)
		}
		if stdout := list([]string{"keys"}); !strings.Contains(stdout, "tokens") || !strings.Contains(stdout, "kek_") {
			t.Errorf("keys without the key-encryption key:\n%s", stdout)
		}
		list([]string{"user", "list"})
	})
}
