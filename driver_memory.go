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

func (d *database) migrate(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Up(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

func (d *database) status(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Status(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

// fits reports whether the schema does.
func (d *database) fits(ctx context.Context) error {
	return migrations.Fits(ctx, d.rows.DB, migrations.SQLite, migrations.App)
}

func newBackend(ctx context.Context, _ migratedDatabase, m *metrics.Metrics, log *slog.Logger) (coord.Backend, func(), error) {
	b := memory.Open(memory.Options{Options: coord.Options{Logger: log, Observer: m}})
	return b, closer(ctx, b, log), nil
}

func newStore(d migratedDatabase, b coord.Backend, k *keys.Keys) *store.Store {
	return store.New(store.Options{Write: d.rows, Backend: b, Secrets: k})
}
