//go:build pg

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/migrations"
)

const (
	driverName       = "pg"
	driverScheme     = "postgres"
	driverDefaultURL = "postgres://localhost/tandem?sslmode=disable"
	driverURLForm    = "postgres://USER@HOST/DATABASE"
)

// database is where this build keeps everything.
type database struct {
	url, listenURL string
	work, probe    *bun.DB
}

func openDatabase(_ context.Context, c *Config) (*database, func(), error) {
	work, err := pg.OpenDB(c.DatabaseURL, c.DatabaseConns)
	if err != nil {
		return nil, nil, unusable("TANDEM_DATABASE_URL", c.DatabaseURL, err)
	}
	probe, err := pg.OpenProbe(work)
	if err != nil {
		return nil, nil, errors.Join(err, work.Close())
	}
	return &database{url: c.DatabaseURL, listenURL: c.ListenURL, work: work, probe: probe}, func() {
		_ = work.Close()
		_ = probe.Close()
	}, nil
}

// openReadOnly opens the database for a command that only lists.
func openReadOnly(ctx context.Context, c *Config) (*database, func(), error) {
	return openDatabase(ctx, c)
}

// databaseThere is for the build whose databases are made by opening them.
func (c *Config) databaseThere() error { return nil }

// unusable says that a connection string can't be read. What the parser says of one that is not
// a URL may hold a part of the password.
func unusable(env, connection string, err error) error {
	reason := err.Error()
	if !strings.HasPrefix(connection, "postgres://") && !strings.HasPrefix(connection, "postgresql://") {
		reason = "it is not a URL"
	}
	return &settingError{env, fmt.Sprintf("can't be used (%s); set %s", reason, driverURLForm)}
}

func (d *database) migrate(ctx context.Context) (applied []migrations.Migration, err error) {
	err = d.direct(func(db *bun.DB) error {
		applied, err = migrations.Up(ctx, db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	return applied, err
}

// known are the migrations of this build.
func known() ([]migrations.Migration, error) {
	return migrations.Known(migrations.PostgreSQL, migrations.Coord, migrations.App)
}

func (d *database) status(ctx context.Context) (all []migrations.Migration, err error) {
	err = d.direct(func(db *bun.DB) error {
		all, err = migrations.Status(ctx, db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	return all, err
}

// fits reports whether the schema does, on the connection of the probe.
func (d *database) fits(ctx context.Context) error {
	return migrations.Fits(ctx, d.probe.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
}

// applied are the migrations that were applied.
func (d *database) applied(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Applied(ctx, d.work.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
}

// ring reads a ring of keys.
func (d *database) ring(ctx context.Context, name string) (coord.Ring, error) {
	return pg.Diagnosis{DB: d.work}.Ring(ctx, name)
}

// readStore returns a store that only reads.
func (d *database) readStore() *store.Store { return store.New(store.Options{Write: d.work}) }

// directURL is where migrations go, and the setting that names it.
func directURL(database, listen string) (env, connection string) {
	if listen != "" {
		return "TANDEM_LISTEN_URL", listen
	}
	return "TANDEM_DATABASE_URL", database
}

// openAsk returns what asks the server for any answer at all, on a connection of its own that leads where
// migrations go. An error of the server is one.
func openAsk(c *Config) (ask func(context.Context) error, closeAsk func(), err error) {
	env, connection := directURL(c.DatabaseURL, c.ListenURL)
	db, err := pg.OpenDB(connection, 1)
	if err != nil {
		return nil, nil, unusable(env, connection, err)
	}
	return func(ctx context.Context) error {
		_, err := db.DB.ExecContext(ctx, `SELECT 1`)
		if _, answered := errors.AsType[interface {
			error
			SQLState() string
		}](err); answered {
			return nil
		}
		return err
	}, func() { _ = db.Close() }, nil
}

// direct calls fn with a small pool of its own, past a pooler where that is
// possible.
func (d *database) direct(fn func(db *bun.DB) error) error {
	env, connection := directURL(d.url, d.listenURL)
	db, err := pg.OpenMigrator(connection)
	if err != nil {
		return unusable(env, connection, err)
	}
	defer db.Close()
	err = refused(env, fn(db))
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return fmt.Errorf("the server that %s names can't be reached: %w", env, err)
	}
	return err
}

// refused makes it a wrong setting that the server refuses the password, the role or the
// database. Where another server is away that may not, it is none.
func refused(env string, err error) error {
	if !errors.Is(err, pg.ErrRefused) || errors.Is(err, coord.ErrUnavailable) {
		return err
	}
	return &settingError{env, fmt.Sprintf("can't be used (%v); set %s", err, driverURLForm)}
}

func newBackend(ctx context.Context, d migratedDatabase, c *Config, m *metrics.Metrics, log *slog.Logger) (
	coord.Backend, func(), error,
) {
	b, err := pg.Open(ctx, pg.Options{
		URL: d.url, ListenURL: d.listenURL, DB: d.work, Probe: d.probe, Poll: c.Poll,
		Options: coord.Options{Logger: log, Observer: m},
	})
	if err != nil {
		return nil, nil, refused("TANDEM_DATABASE_URL", err)
	}
	return b, closer(ctx, b, log), nil
}

func newStore(d migratedDatabase, b coord.Backend, k *keys.Keys) *store.Store {
	return store.New(store.Options{Write: d.work, Backend: b, Secrets: k})
}
