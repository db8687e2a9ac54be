package main

import (
	"context"
	"strings"

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
		if _, err := migrations.Up(ctx, db.DB, migrations.PostgreSQL, migrations.Coord); err != nil {
			return nil, err
		}
		return pg.Open(ctx, pg.Options{URL: database})
	default:
		db, err := sqlite.OpenDB(database)
		if err != nil {
			return nil, err
		}
		defer db.Close()
		if _, err := migrations.Up(ctx, db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			return nil, err
		}
		return sqlite.Open(ctx, sqlite.Options{Path: database})
	}
}
