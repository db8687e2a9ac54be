//go:build pg

package main

import (
	"context"
	"fmt"
	"log/slog"
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

// migrate goes past a pooler where that is possible.
func (d *database) migrate(ctx context.Context) ([]migrations.Migration, error) {
	db := d.work
	if d.listenURL != "" {
		direct, err := pg.OpenDB(d.listenURL, 2)
		if err != nil {
			return nil, unusable("TANDEM_LISTEN_URL", d.listenURL, err)
		}
		defer direct.Close()
		db = direct
	}
	return migrations.Up(ctx, db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
}

func (d *database) status(ctx context.Context) ([]migrations.Migration, error) {
	return migrations.Status(ctx, d.work.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
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
