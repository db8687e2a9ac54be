package app

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// NewJobs returns all background work. [Server.Run] runs it.
func NewJobs(
	c Config, backend coord.Backend, st *store.Store, ks *keys.Keys, m *metrics.Metrics, log *slog.Logger,
) (*jobs.Registry, error) {
	return jobs.New(backend.Elector(), st, jobs.Options{Node: c.Node, Off: c.JobsOff, Observer: m, Logger: log}, all(c, backend, st, ks)...)
}

// ListJobs lists all background work without what it takes to do it: st need only read.
func ListJobs(ctx context.Context, c Config, st *store.Store) ([]jobs.Status, error) {
	r, err := jobs.New(nil, st, jobs.Options{Node: c.Node, Off: c.JobsOff}, all(c, nil, st, nil)...)
	if err != nil {
		return nil, err
	}
	return r.List(ctx)
}

// all is the background work; nothing is asked of the backend and the keys before it is done.
func all(c Config, backend coord.Backend, st *store.Store, ks *keys.Keys) []jobs.Job {
	k := c.Keep
	k.Sessions = c.Auth.Sessions
	return slices.Concat(turns(backend, st, k, ks), jobs.Loops())
}

// turns are the jobs of which replicas take turns.
func turns(backend coord.Backend, st *store.Store, k jobs.Keep, ks *keys.Keys) []jobs.Job {
	return append(jobs.Cleanup(backend, st, k), rotation(ks, st))
}

// JobPeriods are the times between the turns of those jobs that are done, by name.
func (c Config) JobPeriods() map[string]time.Duration {
	periods := make(map[string]time.Duration)
	for _, j := range turns(nil, nil, jobs.Keep{}, nil) {
		if !slices.Contains(c.JobsOff, j.Name) {
			periods[j.Name] = j.Every
		}
	}
	return periods
}
