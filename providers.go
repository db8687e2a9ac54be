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
