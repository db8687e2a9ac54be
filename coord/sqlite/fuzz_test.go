package sqlite_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord/sqlite"
)

// FuzzOpenDB wants exactly the file that was named, whatever a URI makes of its name.
func FuzzOpenDB(f *testing.F) {
	for _, name := range []string{
		"tandem.db", "a b", "a?mode=memory", "a#b", "%41", "100%", "a&b=c", ":memory:", "file:x", "\\", "ü", "\xff", "'", "\"", "a\nb", " ", "~",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || name == "." || name == ".." || strings.Contains(name, "/") || len(name) > 100 {
			return
		}
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		db, err := sqlite.OpenDB(path)
		if err != nil {
			if !strings.Contains(err.Error(), "can't be opened") || !strings.Contains(name, "\x00") {
				t.Errorf("%q: %v", name, err)
			}
			return
		}
		defer db.Close()
		if _, err := db.Write.ExecContext(t.Context(), "CREATE TABLE t (x)"); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		var tables int
		if err := db.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM t").Scan(&tables); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, entry := range entries {
			found = found || entry.Name() == name
			if other := entry.Name(); other != name && other != name+"-wal" && other != name+"-shm" {
				t.Errorf("%q opens %q", name, other)
			}
		}
		if !found {
			t.Errorf("%q is not there", name)
		}
	})
}
