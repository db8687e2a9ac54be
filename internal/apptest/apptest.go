// Package apptest opens databases for tests of the application, on each driver.
package apptest

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"sync/atomic"
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

// Database is one that several replicas share, with all tables.
type Database struct {
	Driver  string // memory, sqlite or pg
	open    func(t *testing.T, o coord.Options) (coord.Backend, store.Options)
	advance func(t *testing.T, by time.Duration)
}

// Open returns the backend of another replica, and the options of its store, until the test ends. On
// memory the options of the first one are those of all.
func (d *Database) Open(t *testing.T, o coord.Options) (coord.Backend, store.Options) {
	t.Helper()
	b, rows := d.open(t, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	rows.Backend = b
	return b, rows
}

// Store opens another replica whose options are the default ones.
func (d *Database) Store(t *testing.T) (coord.Backend, *store.Store) {
	t.Helper()
	b, o := d.Open(t, coord.Options{})
	return b, store.New(o)
}

// Advance moves the clock of a database of OnEachStopped.
func (d *Database) Advance(t *testing.T, by time.Duration) {
	t.Helper()
	d.advance(t, by)
}

// OnEach runs a test on every driver.
func OnEach(t *testing.T, test func(*testing.T, *Database)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, Memory(t, time.Now)) })
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t, time.Now)) })
	t.Run("pg", func(t *testing.T) { test(t, PostgreSQL(t)) })
}

// clock is one that stands still until it is advanced.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return began.Add(time.Duration(c.ahead.Load())) }

func (c *clock) advance(_ *testing.T, by time.Duration) { c.ahead.Add(int64(by)) }

var began = time.Date(2026, time.March, 4, 5, 6, 7, 0, time.UTC)

// OnEachStopped runs a test on every driver, with clocks of package coord that only
// [Database.Advance] moves.
func OnEachStopped(t *testing.T, test func(*testing.T, *Database)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T, func() time.Time) *Database{"memory": Memory, "sqlite": SQLite} {
		t.Run(name, func(t *testing.T) { test(t, stopped(t, open)) })
	}
	t.Run("pg", func(t *testing.T) { test(t, stoppedPostgreSQL(t)) })
}

// StoppedMemory is that database of OnEachStopped which is of memory.
func StoppedMemory(t *testing.T) *Database {
	t.Helper()
	return stopped(t, Memory)
}

func stopped(t *testing.T, open func(*testing.T, func() time.Time) *Database) *Database {
	t.Helper()
	c := &clock{}
	d := open(t, c.now)
	d.advance = c.advance
	return d
}

// memoryRows opens what the application has in SQLite beside the memory driver.
func memoryRows(t *testing.T) *bun.DB {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	up(t, rows, migrations.App)
	return bun.NewDB(rows, sqlitedialect.New())
}

// Memory is a database of memory.
func Memory(t *testing.T, now func() time.Time) *Database {
	t.Helper()
	rows := memoryRows(t)
	var once sync.Once
	var shared *memory.Store
	return &Database{Driver: "memory", open: func(_ *testing.T, o coord.Options) (coord.Backend, store.Options) {
		once.Do(func() { shared = memory.NewStore(memory.Options{Now: now, Options: o}) })
		return shared.Open(), store.Options{Write: rows, Now: now}
	}}
}

// SQLite is a file.
func SQLite(t *testing.T, now func() time.Time) *Database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	return &Database{Driver: "sqlite", open: func(t *testing.T, o coord.Options) (coord.Backend, store.Options) {
		t.Helper()
		db, err := sqlite.OpenDB(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		up(t, db.Write.DB, migrations.Coord, migrations.App)
		b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db, Now: now, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		return b, store.Options{Write: db.Write, Read: db.Read, Now: now}
	}}
}

func up(t *testing.T, db *sql.DB, sets ...migrations.Set) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), db, migrations.SQLite, sets...); err != nil {
		t.Fatal(err)
	}
}

// PostgreSQL is a database of the shared server.
func PostgreSQL(t *testing.T) *Database {
	t.Helper()
	return postgreSQL(testenv.NewDatabase(t, "app", migrate))
}

func stoppedPostgreSQL(t *testing.T) *Database {
	t.Helper()
	url := testenv.NewDatabase(t, "stopped", func(url string) error {
		if err := migrate(url); err != nil {
			return err
		}
		return onPostgreSQL(url, `
			CREATE TABLE test_clock (now timestamptz NOT NULL);
			INSERT INTO test_clock VALUES (?);
			CREATE OR REPLACE FUNCTION coord_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now FROM test_clock';
			CREATE OR REPLACE FUNCTION coord_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM test_clock'`, began)
	})
	d := postgreSQL(url)
	d.advance = func(t *testing.T, by time.Duration) {
		t.Helper()
		if err := onPostgreSQL(url, `UPDATE test_clock SET now = now + ? * interval '1 microsecond'`, by.Microseconds()); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func postgreSQL(url string) *Database {
	return &Database{Driver: "pg", open: func(t *testing.T, o coord.Options) (coord.Backend, store.Options) {
		t.Helper()
		db, err := pg.OpenDB(url, 16)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		b, err := pg.Open(t.Context(), pg.Options{URL: url, DB: db, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		return b, store.Options{Write: db}
	}}
}

func migrate(url string) error {
	db, err := pg.OpenDB(url, 2)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
	return err
}

func onPostgreSQL(url, statements string, args ...any) error {
	db, err := pg.OpenDB(url, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(context.Background(), statements, args...)
	return err
}
