//go:build !pg && !memory

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
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
	return opened(sqlite.OpenDB(c.path()))
}

// openReadOnly opens the database for a command that only lists.
func openReadOnly(_ context.Context, c *Config) (*database, func(), error) {
	if err := c.databaseThere(); err != nil {
		return nil, nil, err
	}
	return opened(sqlite.OpenReadOnly(c.path()))
}

func opened(db *sqlite.DB, err error) (*database, func(), error) {
	if err != nil {
		return nil, nil, &settingError{"TANDEM_DATABASE_URL", fmt.Sprintf("can't be used (%v); set %s", err, driverURLForm)}
	}
	return &database{db}, func() { _ = db.Close() }, nil
}

// path is that of the file.
func (c *Config) path() string { return strings.TrimPrefix(c.DatabaseURL, "sqlite:") }

// databaseThere wants that there is a file, for commands that are to make none.
func (c *Config) databaseThere() error {
	if _, err := os.Stat(c.path()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database %s; tandem migrate makes it, and so does the first tandem serve", c.path())
	}
	return nil
}

func (d *database) migrate(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Up(ctx, d.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

// known are the migrations of this build.
func known() ([]migrations.Migration, error) {
	return migrations.Known(migrations.SQLite, migrations.Coord, migrations.App)
}

func (d *database) status(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Status(ctx, d.Read.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

// openAsk returns nothing: no server can fall silent.
func openAsk(*Config) (func(context.Context) error, func(), error) { return nil, nil, nil }

// fits reports whether the schema does.
func (d *database) fits(ctx context.Context) error {
	return migrations.Fits(ctx, d.Read.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

// applied are the migrations that were applied.
func (d *database) applied(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Applied(ctx, d.Read.DB, migrations.SQLite, migrations.Coord, migrations.App)
}

// ring reads a ring of keys.
func (d *database) ring(ctx context.Context, name string) (coord.Ring, error) {
	return sqlite.Diagnosis{DB: d.DB}.Ring(ctx, name)
}

// readStore returns a store that only reads.
func (d *database) readStore() *store.Store { return store.New(store.Options{Write: d.Read}) }

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
