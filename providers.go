package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/tandemhq/tandem/coord"
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
