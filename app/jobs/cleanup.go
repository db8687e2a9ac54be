package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

// Keep says how long things are kept. The zero value has good defaults.
type Keep struct {
	Events []coord.EventRetention // default 7 days; of tasks and their runs the last 1000, of runs 1 day, of presence 1 h
	Runs   coord.RunRetention     // default 30 days and 1000 per task
	Calls  time.Duration          // behind their deadlines; default 1 day
	Audit  time.Duration          // lines of the audit log; default 365 days

	Sessions store.Lifetime // that of auth.Options
}

func (k *Keep) complete() {
	if k.Events == nil {
		k.Events = []coord.EventRetention{
			{Age: 7 * 24 * time.Hour},
			{Prefix: tasks.Topic, Keep: 1000},
			{Prefix: tasks.RunsPrefix, Age: 24 * time.Hour, Keep: 1000},
			{Prefix: presence.Topic, Age: time.Hour, Keep: 1000},
		}
	}
	if k.Runs == (coord.RunRetention{}) {
		k.Runs = coord.RunRetention{Age: 30 * 24 * time.Hour, Keep: 1000}
	}
	if k.Calls == 0 {
		k.Calls = 24 * time.Hour
	}
	if k.Audit == 0 {
		k.Audit = 365 * 24 * time.Hour
	}
}

const (
	idempotent = "It deletes what is over by the store's clock, in one short statement: two that meet do no harm."
	settled    = "What is gone can't be had back, and how long it is kept is a setting: a replica that stood still, " +
		"or has an older setting, deletes nothing once another leads."
)

// Cleanup are the jobs that delete what is no longer needed. They can be listed without a
// backend and a store.
func Cleanup(backend coord.Backend, st *store.Store, k Keep) []Job {
	k.complete()
	return []Job{
		{
			"tickets.reap", "Deletes tickets that have expired.", idempotent, time.Minute,
			ReplicaSafe(func(ctx context.Context) (int, error) { return backend.Tickets().Reap(ctx) }),
		},
		{
			"receipts.reap", "Deletes receipts that have expired.", idempotent, time.Minute,
			ReplicaSafe(func(ctx context.Context) (int, error) { return backend.Receipts().Reap(ctx) }),
		},
		{
			"limits.reap", "Deletes buckets of the limiter that owe nothing.", idempotent, time.Minute,
			ReplicaSafe(func(ctx context.Context) (int, error) { return backend.Limiter().Reap(ctx) }),
		},
		{
			"calls.reap", "Deletes calls of tools a day behind their deadlines.", idempotent, time.Minute,
			ReplicaSafe(func(ctx context.Context) (int, error) { return backend.Calls().Reap(ctx, k.Calls) }),
		},
		{
			"runs.prune", "Deletes runs that ended 30 days ago, and beyond 1,000 of a task.",
			"It deletes runs that have ended, by the store's clock, in short statements: two that meet do no harm.", time.Minute,
			ReplicaSafe(func(ctx context.Context) (int, error) { return backend.Claimer().Prune(ctx, k.Runs) }),
		},
		{
			"events.trim", "Deletes events after 7 days; of changed tasks beyond the last 1,000, of runs after a day, of presence after an hour.",
			"It deletes a topic's oldest events, in short statements; who comes back for them is told.", time.Minute,
			ReplicaSafe(func(ctx context.Context) (deleted int, err error) {
				for _, class := range k.Events {
					n, failure := backend.Broadcaster().Trim(ctx, class)
					deleted, err = deleted+n, errors.Join(err, failure)
				}
				return deleted, err
			}),
		},
		{
			"webhooks.forget", "Deletes earlier secrets of webhooks that sign no more.", idempotent, 10 * time.Minute,
			ReplicaSafe(st.ForgetOldSecrets),
		},
		{
			"sessions.reap", "Deletes sessions, tokens and links that have ended.", settled, 10 * time.Minute,
			reap(func(ctx context.Context, u store.Unit) (int, error) { return u.Reap(ctx, k.Sessions) }),
		},
		{
			"audit.reap", "Deletes lines of the audit log that are older than TANDEM_AUDIT_KEEP.", settled, time.Hour,
			reap(func(ctx context.Context, u store.Unit) (int, error) { return u.ReapAudit(ctx, k.Audit) }),
		},
	}
}

// reap deletes a bounded number in one fenced transaction.
func reap(some func(context.Context, store.Unit) (int, error)) LeaderOnly {
	return func(ctx context.Context, fenced Fenced) (n int, err error) {
		err = fenced(ctx, func(ctx context.Context, u store.Unit) (err error) {
			n, err = some(ctx, u)
			return err
		})
		return n, err
	}
}
