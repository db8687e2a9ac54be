// Package maintenance deletes what is no longer needed. Every replica does it:
// each deletion is a short statement of its own, and two that meet do no harm.
package maintenance

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

// Options say how long things are kept and how often that is looked at. The
// zero value has good defaults.
type Options struct {
	Every  time.Duration          // default 1 min, jittered by a half
	Events []coord.EventRetention // default 7 days; of tasks and their runs the last 1000, of runs 1 day, of presence 1 h
	Runs   coord.RunRetention     // default 30 days and 1000 per task
	Calls  time.Duration          // behind their deadlines; default 1 day
	Audit  time.Duration          // lines of the audit log; default 365 days

	Sessions store.Lifetime // that of auth.Options
}

// maxRounds bounds what one job deletes before the next has its turn.
const maxRounds = 100

// Maintenance runs the jobs.
type Maintenance struct {
	every time.Duration
	jobs  []job
	log   *slog.Logger
}

type job struct {
	name string
	run  func(context.Context) (int, error) // deletes a bounded number
}

// New returns the maintenance of a backend and a store.
func New(backend coord.Backend, st *store.Store, o Options, log *slog.Logger) *Maintenance {
	if o.Every == 0 {
		o.Every = time.Minute
	}
	if o.Events == nil {
		o.Events = []coord.EventRetention{
			{Age: 7 * 24 * time.Hour},
			{Prefix: tasks.Topic, Keep: 1000},
			{Prefix: tasks.RunsPrefix, Age: 24 * time.Hour, Keep: 1000},
			{Prefix: presence.Topic, Age: time.Hour, Keep: 1000},
		}
	}
	if o.Runs == (coord.RunRetention{}) {
		o.Runs = coord.RunRetention{Age: 30 * 24 * time.Hour, Keep: 1000}
	}
	if o.Calls == 0 {
		o.Calls = 24 * time.Hour
	}
	if o.Audit == 0 {
		o.Audit = 365 * 24 * time.Hour
	}
	m := &Maintenance{every: o.Every, log: log}
	m.jobs = []job{
		{"tickets", backend.Tickets().Reap},
		{"receipts", backend.Receipts().Reap},
		{"limits", backend.Limiter().Reap},
		{"calls", func(ctx context.Context) (int, error) { return backend.Calls().Reap(ctx, o.Calls) }},
		{"sessions", func(ctx context.Context) (int, error) { return st.Reap(ctx, o.Sessions) }},
		{"audit", func(ctx context.Context) (int, error) { return st.ReapAudit(ctx, o.Audit) }},
		{"runs", func(ctx context.Context) (int, error) { return backend.Claimer().Prune(ctx, o.Runs) }},
	}
	for _, r := range o.Events {
		name := "events"
		if r.Prefix != "" {
			name += " of " + r.Prefix
		}
		m.jobs = append(m.jobs, job{name, func(ctx context.Context) (int, error) {
			return backend.Broadcaster().Trim(ctx, r)
		}})
	}
	return m
}

// Run runs all jobs every now and then until ctx is done.
func (m *Maintenance) Run(ctx context.Context) {
	for {
		pause := time.NewTimer(m.every/2 + rand.N(m.every))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		m.Once(ctx)
	}
}

// Once runs every job until nothing is left for it to delete.
func (m *Maintenance) Once(ctx context.Context) {
	for _, j := range m.jobs {
		deleted, err := j.do(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, coord.ErrUnavailable): // an outage is told of once, elsewhere
			m.log.WarnContext(ctx, "maintenance failed", "job", j.name, "error", err)
		case deleted > 0:
			m.log.DebugContext(ctx, "maintenance deleted", "job", j.name, "count", deleted)
		}
	}
}

func (j job) do(ctx context.Context) (deleted int, err error) {
	for range maxRounds {
		n, err := j.run(ctx)
		deleted += n
		if err != nil || n == 0 {
			return deleted, err
		}
	}
	return deleted, nil
}
