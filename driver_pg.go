//go:build pg

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"

	"github.com/uptrace/bun"

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
	work           *bun.DB
}

func openDatabase(_ context.Context, c *Config) (*database, func(), error) {
	work, err := pg.OpenDB(c.DatabaseURL, c.DatabaseConns)
	if err != nil {
		return nil, nil, unusable("TANDEM_DATABASE_URL", c.DatabaseURL, err)
	}
	return &database{url: c.DatabaseURL, listenURL: c.ListenURL, work: work}, func() { _ = work.Close() }, nil
}

// unusable says that a connection string can't be read. What the parser says of one that is not
// a URL may hold a part of the password.
func unusable(env, connection string, err error) error {
	reason := err.Error()
	if u, parseErr := url.Parse(connection); parseErr != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		reason = "it is not a URL; special characters in a password must be percent-encoded"
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

func (d *database) status(ctx context.Context) (all []migrations.Migration, err error) {
	err = d.direct(func(db *bun.DB) error {
		all, err = migrations.Status(ctx, db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	return all, err
}

// direct calls fn with a small pool of its own, past a pooler where that is
// possible.
func (d *database) direct(fn func(db *bun.DB) error) error {
	env, connection := "TANDEM_DATABASE_URL", d.url
	if d.listenURL != "" {
		env, connection = "TANDEM_LISTEN_URL", d.listenURL
	}
	db, err := pg.OpenDB(connection, 2)
	if err != nil {
		return unusable(env, connection, err)
	}
	defer db.Close()
	err = fn(db)
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return fmt.Errorf("the server that %s names can't be reached: %w", env, e)
	}
	return err
}

func newBackend(ctx context.Context, d migratedDatabase, c *Config, m *metrics.Metrics, log *slog.Logger) (
	coord.Backend, func(), error,
) {
	b, err := pg.Open(ctx, pg.Options{
		URL: d.url, ListenURL: d.listenURL, DB: d.work, Poll: c.Poll,
		Options: coord.Options{Logger: log, Observer: m},
	})
	if err != nil {
		return nil, nil, err
	}
	return b, closer(ctx, b, log), nil
}

func newStore(d migratedDatabase, b coord.Backend) *store.Store {
	return store.New(store.Options{Write: d.work, Backend: b})
}
