package app

import (
	"context"
	"time"

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/store"
)

// rotation is the job that replaces the shared keys in time.
func rotation(k *keys.Keys, st *store.Store) jobs.Job {
	return jobs.Job{
		Name:  "keys.rotate",
		About: "Adds the next key an hour before it signs, lets it sign in place of one that did for 30 days, and retires that 31 days later.",
		Why:   "A key that is retired is gone for good: a replica that stood still retires nothing once another leads.",
		Every: 10 * time.Minute,
		Work: jobs.LeaderOnly(func(ctx context.Context, fenced jobs.Fenced) (int, error) {
			return k.RotateDue(ctx, st, keys.Fenced(fenced))
		}),
	}
}
