//go:build !pg && !memory

package main

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/uptrace/bun"
)

func (d *database) writer() *bun.DB { return d.Write }

// snapshot tells of each file of a folder what it holds and when it was written.
func snapshot(tb testing.TB, dir string) string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			tb.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %v %v %x\n", e.Name(), info.Mode(), info.ModTime(), sha256.Sum256(text))
	}
	return all.String()
}

// TestDoctorOnlyReads looks at a file as a replica has left it, and at one in another journal mode.
func TestDoctorOnlyReads(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	migrate(t, database)
	path := strings.TrimPrefix(database, "sqlite:")
	dir := filepath.Dir(path)
	for mode, level := range map[string]string{"wal": "ok", "delete": "warning"} {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `PRAGMA journal_mode = `+mode); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		before := snapshot(t, dir)
		code, checks, _ := doctorSays(t, "--database-url", database)
		if r := checks["database"]; code != 1 || r.Level != level || !strings.Contains(r.Found, mode) && mode != "wal" {
			t.Errorf("%s: code %d: %+v", mode, code, r)
		}
		for _, name := range []string{"schema", "indexes", "replicas", "leaders", "jobs", "keys"} {
			if checks[name].Level != "ok" {
				t.Errorf("%s: %s: %+v", mode, name, checks[name])
			}
		}
		if after := snapshot(t, dir); after != before {
			t.Errorf("%s: there were\n%sand are\n%s", mode, before, after)
		}
	}

	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, checks, _ := doctorSays(t, "--database-url", "sqlite:"+text)
	if r := checks["database"]; code != 1 || r.Level != "unknown" || !strings.Contains(r.Found, "not a database") {
		t.Errorf("no database: code %d: %+v", code, r)
	}
}
