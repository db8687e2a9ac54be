//go:build memory && !pg

package main

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the application's rows

	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/migrations"
)

const (
	driverName       = "memory"
	driverScheme     = "memory"
	driverDefaultURL = "memory:"
	driverURLForm    = "memory:"
)

// database keeps the application's rows in memory, for as long as the process
// lives. Coordination has its own memory.
type database struct {
	rows *bun.DB
}

func openDatabase(context.Context, *Config) (*database, func(), error) {
	db, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		return nil, nil, err
	}
	// Another connection would be another, empty database.
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	rows := bun.NewDB(db, sqlitedialect.New())
	return &database{rows}, func() { _ = rows.Close() }, nil
}

// openReadOnly opens a database as empty as any other that this build opens.
func openReadOnly(ctx context.Context, c *Config) (*database, func(), error) {
	return openDatabase(ctx, c)
}

// databaseThere is for the build that has files.
func (c *Config) databaseThere() error { return nil }

func (d *database) migrate(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Up(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

// known are the migrations of this build.
func known() ([]migrations.Migration, error) {
	return migrations.Known(migrations.SQLite, migrations.App)
}

func (d *database) status(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Status(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

// openAsk returns nothing: no server can fall silent.
func openAsk(*Config) (func(context.Context) error, func(), error) { return nil, nil, nil }

// fits reports whether the schema does.
func (d *database) fits(ctx context.Context) error {
	return migrations.Fits(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

// applied are the migrations that were applied.
func (d *database) applied(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Applied(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

// ring is a ring without keys: those that there are have other processes, in their memory.
func (d *database) ring(_ context.Context, name string) (coord.Ring, error) {
	return coord.Ring{Name: name}, nil
}

// readStore returns a store that only reads.
func (d *database) readStore() *store.Store { return store.New(store.Options{Write: d.rows}) }

func newBackend(ctx context.Context, _ migratedDatabase, m *metrics.Metrics, log *slog.Logger) (coord.Backend, func(), error) {
	b := memory.Open(memory.Options{Options: coord.Options{Logger: log, Observer: m}})
	return b, closer(ctx, b, log), nil
}

func newStore(d migratedDatabase, b coord.Backend, k *keys.Keys) *store.Store {
	return store.New(store.Options{Write: d.rows, Backend: b, Secrets: k})
}
