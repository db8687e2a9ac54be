package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/migrations"
)

// migratedDatabase is one that has the schema.
type migratedDatabase struct{ *database }

func migrated(ctx context.Context, d *database, log *slog.Logger) (migratedDatabase, error) {
	applied, err := d.migrate(ctx)
	for _, m := range applied {
		log.InfoContext(ctx, "migration applied", "set", m.Set, "name", m.Name)
	}
	return migratedDatabase{d}, err
}

// firstUse says whether a command makes the schema in an empty database.
type firstUse bool

// fitting wants the schema that this version needs, for commands that write. They migrate nothing: one of a new
// version would surprise the replicas of the version before. An empty database has nobody to surprise.
func fitting(ctx context.Context, d *database, first firstUse, log *slog.Logger) (migratedDatabase, error) {
	if first || driverName == "memory" { // where each process begins with an empty one
		applied, err := d.applied(ctx)
		if err != nil {
			return migratedDatabase{}, err
		}
		if len(applied) == 0 {
			return migrated(ctx, d, log)
		}
	}
	return migratedDatabase{d}, unfit(d.fits(ctx))
}

// unfit says what to do about a schema that does not fit.
func unfit(err error) error {
	switch {
	case errors.Is(err, migrations.ErrBehind):
		return fmt.Errorf("%w; run tandem migrate, or use the version of the program that the replicas have", err)
	case errors.Is(err, migrations.ErrContracted):
		return fmt.Errorf("%w; use the version of the program that the replicas have", err)
	}
	return err
}

// withReadOnly calls act with a database that has the schema, for commands that only list. Nothing is made or
// changed in it, no backend is opened, and no key.
func withReadOnly(e *env, c *Config, act func(d *database) error) error {
	if err := c.check(); err != nil {
		return err
	}
	d, closeDB, err := openReadOnly(e.ctx, c)
	if err != nil {
		return err
	}
	defer closeDB()
	if driverName == "memory" {
		_, err = d.migrate(e.ctx)
	} else {
		err = unfit(d.fits(e.ctx))
	}
	if err != nil {
		return err
	}
	return act(d)
}

// schemaFits looks whether the database still has what this version needs.
func schemaFits(d migratedDatabase) health.Schema {
	return func(ctx context.Context) error {
		err := d.fits(ctx)
		if err != nil && !errors.Is(err, migrations.ErrBehind) && !errors.Is(err, migrations.ErrContracted) {
			return fmt.Errorf("%w: %w", coord.ErrUnavailable, err)
		}
		return err
	}
}

// closer ends a backend, for a while at most.
func closer(ctx context.Context, b coord.Backend, log *slog.Logger) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			log.WarnContext(ctx, "the backend did not close in time", "error", err)
		}
	}
}
