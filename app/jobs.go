package app

import (
	"log/slog"
	"slices"

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
	k := c.Keep
	k.Sessions = c.Auth.Sessions
	return jobs.New(backend.Elector(), st, jobs.Options{Node: c.Node, Off: c.JobsOff, Observer: m, Logger: log},
		slices.Concat(jobs.Cleanup(backend, st, k), []jobs.Job{rotation(ks, st)}, jobs.Loops())...)
}
