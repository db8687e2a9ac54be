package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

// The functions below make the parts of the application from its settings.

// NewMetrics returns the metrics; they are made before the backend, whose
// observer they are.
func NewMetrics(c Config) *metrics.Metrics { return metrics.New(c.Version, c.Driver) }

// NewHealth returns the health of a replica on that backend. [Server.Run] runs it.
func NewHealth(backend coord.Backend, schema health.Schema, m *metrics.Metrics, log *slog.Logger) *health.Health {
	h := health.New(health.Options{Ping: backend.Ping, Schema: schema, Observer: m, Logger: log})
	h.Watch("listening", m.Polling)
	return h
}

// NewAuth returns the accounts and sessions.
func NewAuth(c Config, st *store.Store, backend coord.Backend, k *keys.Keys, log *slog.Logger) *auth.Service {
	o := c.Auth
	o.Join, o.Tokens = rooms.Join, k.Tokens
	return auth.New(st, backend, o, log)
}

// NewAudit returns the audit log.
func NewAudit(st *store.Store) *audit.Service { return audit.New(st) }

// NewPresence returns who is connected. [Server.Run] runs it.
func NewPresence(
	c Config, st *store.Store, backend coord.Backend, m *metrics.Metrics, log *slog.Logger,
) *presence.Service {
	o := c.Presence
	o.Node, o.Version = c.Node, c.Version
	return presence.New(st, backend, m, o, log)
}

// NewTools returns the calls of tools in people's browsers. [Server.Run] drains it.
func NewTools(st *store.Store, backend coord.Backend, p *presence.Service, log *slog.Logger) *tools.Service {
	t := tools.New(st, backend, p)
	p.OnGone(func(ctx context.Context, user int64, connection string) {
		if err := t.ConnectionGone(ctx, user, connection); err != nil && !errors.Is(err, coord.ErrUnavailable) {
			log.WarnContext(ctx, "calls of a connection that is gone stay open until their deadline", "error", err)
		}
	})
	return t
}

// NewHub returns the connections of this replica. [Server.Run] drains it.
func NewHub(
	c Config, backend coord.Backend, a *auth.Service, r *rooms.Service, p *presence.Service, t *tools.Service,
	m *metrics.Metrics, log *slog.Logger,
) *hub.Hub {
	o := c.Hub
	o.Node, o.CheckOrigin = c.Node, c.OriginAllowed
	h := hub.New(backend, hub.Services{Sessions: a, Rooms: r, Presence: p, Tools: t}, m, o, log)
	p.OnReplaced(func(_ int64, connection string) { h.CloseReplaced(connection) })
	return h
}

// NewOutbound returns the client that makes the requests of tasks.
func NewOutbound(c Config) (*outbound.Client, error) {
	allow, err := c.httpTasksAllow()
	return outbound.New(outbound.Options{Allow: allow}), err
}

// NewWorker returns the worker that executes tasks.
func NewWorker(c Config, t *tasks.Service, log *slog.Logger) (*worker.Worker, error) {
	return worker.New(t.Claimer(), worker.Options{
		Name: c.Node, Handlers: t.Handlers(), Concurrency: c.Workers, Lease: c.Lease, Poll: c.Poll,
		Spread: min(c.Poll, startSpread), Grace: handlerGrace(c), Logger: log,
	})
}

// startSpread is within how long replicas that start at once look for work.
const startSpread = 250 * time.Millisecond

// handlerGrace leaves time to release what is unfinished.
func handlerGrace(c Config) time.Duration { return (c.ShutdownTimeout - c.DrainGrace) * 2 / 3 }
