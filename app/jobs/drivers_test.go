package jobs_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(leakless{m})) }

// leakless are tests that leave no goroutine behind.
type leakless struct{ *testing.M }

func (l leakless) Run() int {
	code := l.M.Run()
	if err := goleak.Find(goleak.IgnoreAnyFunction(testenv.GoroutineName)); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// clock is one that stands still until it is advanced.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Date(2026, time.March, 4, 5, 6, 7, 0, time.UTC).Add(time.Duration(c.ahead.Load()))
}

// database is one that several replicas share, with a clock that only the test moves.
type database struct {
	// open returns the backend of a replica and its store, until the test ends.
	open    func(t *testing.T) (coord.Backend, *store.Store)
	advance func(t *testing.T, d time.Duration)
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(*testing.T, database)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		c := &clock{}
		db := memoryDatabase(t, c.now)
		db.advance = func(_ *testing.T, d time.Duration) { c.ahead.Add(int64(d)) }
		test(t, db)
	})
	t.Run("sqlite", func(t *testing.T) { test(t, sqliteDatabase(t)) })
	t.Run("pg", func(t *testing.T) { test(t, pgDatabase(t)) })
}

// closed closes a backend at the end of the test.
func closed(t *testing.T, b coord.Backend) coord.Backend {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return b
}

func memoryDatabase(t *testing.T, now func() time.Time) database {
	t.Helper()
	shared, rows := memory.NewStore(memory.Options{Now: now}), memoryRows(t)
	return database{open: func(t *testing.T) (coord.Backend, *store.Store) {
		t.Helper()
		b := closed(t, shared.Open())
		return b, store.New(store.Options{Write: rows, Backend: b, Now: now})
	}}
}

func memoryRows(t *testing.T) *bun.DB {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	up(t, rows, migrations.SQLite, migrations.App)
	return bun.NewDB(rows, sqlitedialect.New())
}

func sqliteDatabase(t *testing.T) database {
	t.Helper()
	c := &clock{}
	path := filepath.Join(t.TempDir(), "test.db")
	return database{
		open: func(t *testing.T) (coord.Backend, *store.Store) {
			t.Helper()
			db, err := sqlite.OpenDB(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			up(t, db.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
			b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db, Now: c.now})
			if err != nil {
				t.Fatal(err)
			}
			closed(t, b)
			return b, store.New(store.Options{Write: db.Write, Read: db.Read, Backend: b, Now: c.now})
		},
		advance: func(_ *testing.T, d time.Duration) { c.ahead.Add(int64(d)) },
	}
}

func pgDatabase(t *testing.T) database {
	t.Helper()
	url := testenv.NewDatabase(t, "jobs", func(url string) error {
		db, err := pg.OpenDB(url, 2)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		if err == nil {
			_, err = db.ExecContext(context.Background(), `
				CREATE TABLE test_clock (now timestamptz NOT NULL);
				INSERT INTO test_clock VALUES ('2026-03-04 05:06:07+00');
				CREATE OR REPLACE FUNCTION coord_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now FROM test_clock';
				CREATE OR REPLACE FUNCTION coord_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM test_clock'`)
		}
		return err
	})
	db, err := pg.OpenDB(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return database{
		open: func(t *testing.T) (coord.Backend, *store.Store) {
			t.Helper()
			b, err := pg.Open(t.Context(), pg.Options{URL: url, DB: db})
			if err != nil {
				t.Fatal(err)
			}
			closed(t, b)
			return b, store.New(store.Options{Write: db, Backend: b})
		},
		advance: func(t *testing.T, d time.Duration) {
			t.Helper()
			// The application's rows go by the server's clock.
			_, err := db.ExecContext(t.Context(), `
				UPDATE test_clock SET now = now + ?0 * interval '1 microsecond';
				UPDATE app_jobs SET next_at = next_at - ?0 * interval '1 microsecond'`, d.Microseconds())
			if err != nil {
				t.Fatal(err)
			}
		},
	}
}

func up(t *testing.T, db *sql.DB, d migrations.Dialect, sets ...migrations.Set) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), db, d, sets...); err != nil {
		t.Fatal(err)
	}
}
