package testenv

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestPooler(t *testing.T) {
	url := NewDatabase(t, "", nil)
	var p *Pooler
	t.Run("in use", func(t *testing.T) {
		p = NewPooler(t)
		if got, want := query(t, p.Through(url), `SELECT current_database()`), query(t, url, `SELECT current_database()`); got != want {
			t.Errorf("the database is %s, want %s", got, want)
		}
		db, err := sql.Open("postgres", p.Through(url))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		// More transactions in turn than there are server connections, by as many clients.
		backends := map[string]bool{}
		for range 2 * poolerConns {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var pid string
			if err := conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			backends[pid] = true
		}
		if len(backends) > poolerConns {
			t.Errorf("the clients have %d connections to the server; want at most %d", len(backends), poolerConns)
		}
	})
	if !p.server.Ended() {
		t.Error("it still runs")
	}
	if _, err := os.Stat(p.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}
