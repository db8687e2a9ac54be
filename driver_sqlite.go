//go:build !pg && !memory

package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

const (
	driverName       = "sqlite"
	driverScheme     = "sqlite"
	driverDefaultURL = "sqlite:tandem.db"
	driverURLForm    = "sqlite:PATH"
)

// database is where this build keeps everything.
type database struct {
	*sqlite.DB
}

func openDatabase(_ context.Context, c *Config) (*database, func(), error) {
	db, err := sqlite.OpenDB(strings.TrimPrefix(c.DatabaseURL, "sqlite:"))
	if err != nil {
		return nil, nil, &settingError{"TANDEM_DATABASE_URL", fmt.Sprintf("can't be used (%v); set %s", err, driverURLForm)}
	}
	return &database{db}, func() { _ = db.Close() }, nil
}

func (d *database) migrate(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Up(ctx, d.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

func (d *database) status(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Status(ctx, d.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

// fits reports whether the schema does.
func (d *database) fits(ctx context.Context) error {
	return migrations.Fits(ctx, d.Read.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

func newBackend(ctx context.Context, d migratedDatabase, m *metrics.Metrics, log *slog.Logger) (
	coord.Backend, func(), error,
) {
	b, err := sqlite.Open(ctx, sqlite.Options{DB: d.DB, Options: coord.Options{Logger: log, Observer: m}})
	if err != nil {
		return nil, nil, err
	}
	return b, closer(ctx, b, log), nil
}

func newStore(d migratedDatabase, b coord.Backend, k *keys.Keys) *store.Store {
	return store.New(store.Options{Write: d.Write, Read: d.Read, Backend: b, Secrets: k})
}
