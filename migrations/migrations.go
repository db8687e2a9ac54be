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

// Up applies what is missing of the sets and returns it, also when it fails
// half-way. Each migration and the note that it was applied are one transaction.
// Any number of processes may call it at once. A database that was migrated further is left as it
// is; ErrContracted when this program can't work with it any more. On PostgreSQL db must allow two
// connections, one of which holds the lock. The pools that the drivers' OpenDB
// functions return have one in their field DB: of SQLite's it is Write.DB.
func Up(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) ([]Migration, error) {
	return up(ctx, db, d, files, sets...)
}

func up(ctx context.Context, db *sql.DB, d Dialect, from fs.FS, sets ...Set) ([]Migration, error) {
	unlock, err := lock(ctx, db, d)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	defer unlock()
	for _, set := range sets {
		mine, err := newest(from, d, set)
		if err != nil {
			return nil, err
		}
		err = aboveFloor(ctx, db, d, set, mine)
		for busy(err) && pause(ctx) {
			err = aboveFloor(ctx, db, d, set, mine)
		}
		if err != nil {
			return nil, err
		}
	}
	var done []Migration
	for _, set := range sets {
		applied, err := upSet(ctx, db, d, from, set)
		done = append(done, applied...)
		if err != nil {
			return done, fmt.Errorf("migrations: %s: %w", set, err)
		}
	}
	return done, nil
}

func upSet(ctx context.Context, db *sql.DB, d Dialect, from fs.FS, set Set) (done []Migration, err error) {
	p, err := provider(db, d, from, set)
	if err != nil {
		return nil, err
	}
	for {
		version, err := prepare(ctx, db, p, set)
		if busy(err) && pause(ctx) {
			continue
		}
		if err != nil {
			return done, err
		}
		results, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			version = r.Source.Version
			done = append(done, Migration{Set: set, Version: version, Name: path.Base(r.Source.Path), Applied: time.Now()})
		}
		if err == nil {
			return done, nil
		}
		if busy(err) && pause(ctx) {
			continue
		}
		// On SQLite nothing but each migration's own transaction keeps two processes
		// apart. The one that came second fails, and finds the version moved on.
		now, versionErr := p.GetDBVersion(ctx)
		if versionErr != nil || now <= version {
			return done, err
		}
	}
}

// busy reports whether another process has the lock of an SQLite file.
func busy(err error) bool {
	const sqliteBusy = 5
	e, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	return ok && e.Code()&0xff == sqliteBusy
}

// pause waits a moment; it is false when ctx is done.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(5 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// prepare makes the table of applied migrations, in which each version stands
// once: a migration that would succeed a second time still can't be applied by two
// processes. It returns the present version.
func prepare(ctx context.Context, db *sql.DB, p *goose.Provider, set Set) (version int64, err error) {
	if version, err = p.GetDBVersion(ctx); err != nil {
		return 0, err
	}
	table := tableName(set)
	_, err = db.ExecContext(ctx, fmt.Sprintf(`CREATE UNIQUE INDEX IF NOT EXISTS %s_once ON %s (version_id)`, table, table))
	return version, err
}

// Status lists all migrations of the sets and when they were applied. It writes nothing.
func Status(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) ([]Migration, error) {
	all, err := Known(d, sets...)
	if err != nil {
		return nil, err
	}
	applied, err := Applied(ctx, db, d, sets...)
	if err != nil {
		return nil, err
	}
	for i, k := range all {
		for _, a := range applied {
			if a.Set == k.Set && a.Version == k.Version {
				all[i].Applied = a.Applied
			}
		}
	}
	return all, nil
}

func tableName(set Set) string { return string(set) + "_migrations" }

func provider(db *sql.DB, d Dialect, from fs.FS, set Set) (*goose.Provider, error) {
	dir, err := fs.Sub(from, path.Join(string(d), string(set)))
	if err != nil {
		return nil, err
	}
	dialect := goose.DialectPostgres
	if d == SQLite {
		dialect = goose.DialectSQLite3
	}
	return goose.NewProvider(dialect, db, dir,
		goose.WithTableName(tableName(set)), goose.WithDisableGlobalRegistry(true))
}

// lock keeps other processes from migrating the same PostgreSQL database. The
// lock belongs to a transaction, so that it holds behind a pooler too.
func lock(ctx context.Context, db *sql.DB, d Dialect) (unlock func(), err error) {
	if d != PostgreSQL {
		return func() {}, nil
	}
	if db.Stats().MaxOpenConnections == 1 {
		return nil, errors.New("two connections are needed, one of which holds the lock, and db may open only one")
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
