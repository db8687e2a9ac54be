// Package migrations holds the schema and brings a database up to it.
//
// There are two sets: what package coord needs, and the application's own
// tables. A program that uses coord as a library applies [Coord] alone. Each set
// numbers its migrations for itself and keeps its own table of those applied.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed pg sqlite
var files embed.FS

// Dialect is the kind of database.
type Dialect string

// The dialects.
const (
	PostgreSQL Dialect = "pg"
	SQLite     Dialect = "sqlite"
)

// Set is a group of migrations that belong together.
type Set string

// The sets, in the order in which they are to be applied.
const (
	Coord Set = "coord"
	App   Set = "app"
)

// Migration is one step of a set.
type Migration struct {
	Set     Set
	Version int64
	Name    string
	Applied time.Time // zero: not yet
}

// lockKey names the advisory lock under which PostgreSQL is migrated.
const lockKey = 7205759403792793

// Up applies what is missing of the sets and returns it. Each migration and the
// note that it was applied are one transaction. Any number of processes may call
// it at once.
func Up(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) ([]Migration, error) {
	unlock, err := lock(ctx, db, d)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	defer unlock()
	var done []Migration
	for _, set := range sets {
		results, err := up(ctx, db, d, set)
		done = append(done, results...)
		if err != nil {
			return done, fmt.Errorf("migrations: %s: %w", set, err)
		}
	}
	return done, nil
}

func up(ctx context.Context, db *sql.DB, d Dialect, set Set) ([]Migration, error) {
	p, err := provider(db, d, set)
	if err != nil {
		return nil, err
	}
	for {
		before, beforeErr := p.GetDBVersion(ctx)
		results, err := p.Up(ctx)
		if err == nil {
			done := make([]Migration, len(results))
			for i, r := range results {
				done[i] = Migration{Set: set, Version: r.Source.Version, Name: path.Base(r.Source.Path), Applied: time.Now()}
			}
			return done, nil
		}
		// On SQLite nothing but each migration's own transaction keeps two processes
		// apart. The one that came second fails, and finds the version moved on.
		after, afterErr := p.GetDBVersion(ctx)
		if afterErr != nil || beforeErr == nil && after <= before {
			return nil, err
		}
	}
}

// Status lists all migrations of the sets and when they were applied.
func Status(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) ([]Migration, error) {
	var all []Migration
	for _, set := range sets {
		p, err := provider(db, d, set)
		if err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
		status, err := p.Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("migrations: %s: %w", set, err)
		}
		for _, s := range status {
			all = append(all, Migration{Set: set, Version: s.Source.Version, Name: path.Base(s.Source.Path), Applied: s.AppliedAt})
		}
	}
	return all, nil
}

func provider(db *sql.DB, d Dialect, set Set) (*goose.Provider, error) {
	dir, err := fs.Sub(files, path.Join(string(d), string(set)))
	if err != nil {
		return nil, err
	}
	dialect := goose.DialectPostgres
	if d == SQLite {
		dialect = goose.DialectSQLite3
	}
	return newProvider(db, dialect, dir, set)
}

func newProvider(db *sql.DB, dialect goose.Dialect, dir fs.FS, set Set) (*goose.Provider, error) {
	return goose.NewProvider(dialect, db, dir,
		goose.WithTableName(string(set)+"_migrations"), goose.WithDisableGlobalRegistry(true))
}

// lock keeps other processes from migrating the same PostgreSQL database. The
// lock belongs to a transaction, so that it holds behind a pooler too.
func lock(ctx context.Context, db *sql.DB, d Dialect) (unlock func(), err error) {
	if d != PostgreSQL {
		return func() {}, nil
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf(`SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(%d)`, lockKey))
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return func() { _ = tx.Rollback() }, nil
}
