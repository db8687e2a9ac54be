package main

import (
	"context"
	"strings"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

// open makes the tables and opens the backend. A program that knows its database needs one of the
// three cases, and links one driver.
func open(ctx context.Context, database string) (coord.Backend, error) {
	switch scheme, _, _ := strings.Cut(database, ":"); scheme {
	case "memory":
		return memory.Open(memory.Options{}), nil
	case "postgres", "postgresql":
		db, err := pg.OpenDB(database, 2)
		if err != nil {
			return nil, err
		}
		defer db.Close()
		if err := migrate(ctx, db, migrations.PostgreSQL); err != nil {
			return nil, err
		}
		return pg.Open(ctx, pg.Options{URL: database})
	default:
		db, err := sqlite.OpenDB(database)
		if err != nil {
			return nil, err
		}
		defer db.Close()
		if err := migrate(ctx, db.Write, migrations.SQLite); err != nil {
			return nil, err
		}
		return sqlite.Open(ctx, sqlite.Options{Path: database})
	}
}

func migrate(ctx context.Context, db *bun.DB, d migrations.Dialect) error {
	if _, err := migrations.Up(ctx, db.DB, d, migrations.Coord); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS notes (note TEXT PRIMARY KEY)`)
	return err
}

// exec writes rows of our own in the transaction. On the memory driver there are none.
func exec(ctx context.Context, tx coord.Tx, query string, args ...any) error {
	rows, ok := tx.Unwrap().(bun.Tx)
	if !ok {
		return nil
	}
	_, err := rows.ExecContext(ctx, query, args...)
	return err
}
