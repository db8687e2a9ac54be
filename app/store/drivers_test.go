package store_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// database is a store and the backend that it shares transactions with.
type database struct {
	store   *store.Store
	backend coord.Backend
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(*testing.T, database)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, openMemory(t, time.Now)) })
	t.Run("sqlite", func(t *testing.T) { test(t, openSQLite(t)) })
	t.Run("pg", func(t *testing.T) { test(t, openPostgres(t)) })
}

func openMemory(t *testing.T, now func() time.Time) database {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	up(t, rows, migrations.SQLite, migrations.App)
	backend := closed(t, memory.Open(memory.Options{Now: now}))
	st := store.New(store.Options{Write: bun.NewDB(rows, sqlitedialect.New()), Backend: backend, Now: now})
	return database{st, backend}
}

func openSQLite(t *testing.T) database {
	t.Helper()
	db, err := sqlite.OpenDB(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	up(t, db.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
	backend, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, backend)
	return database{store.New(store.Options{Write: db.Write, Read: db.Read, Backend: backend}), backend}
}

func openPostgres(t *testing.T) database {
	t.Helper()
	url := testenv.NewDatabase(t, "tandem", func(url string) error {
		db, err := pg.OpenDB(url, 2)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	db, err := pg.OpenDB(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	backend, err := pg.Open(t.Context(), pg.Options{URL: url, DB: db})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, backend)
	return database{store.New(store.Options{Write: db, Backend: backend}), backend}
}

func up(t *testing.T, db *sql.DB, d migrations.Dialect, sets ...migrations.Set) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), db, d, sets...); err != nil {
		t.Fatal(err)
	}
}

// closed closes a backend at the end of the test.
func closed(t *testing.T, backend coord.Backend) coord.Backend {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := backend.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return backend
}
