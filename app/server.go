package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord/worker"
)

// Server is one replica.
type Server struct {
	config   Config
	handler  http.Handler
	auth     *auth.Service
	health   *health.Health
	hub      *hub.Hub
	presence *presence.Service
	tools    *tools.Service
	worker   *worker.Worker
	jobs     *jobs.Registry
	log      *slog.Logger
}

// NewServer returns a replica that serves the handler.
func NewServer(
	c Config, handler http.Handler, a *auth.Service, hl *health.Health, h *hub.Hub, p *presence.Service,
	t *tools.Service, w *worker.Worker, j *jobs.Registry, log *slog.Logger,
) *Server {
	return &Server{
		config: c, handler: handler, auth: a, health: hl, hub: h, presence: p, tools: t, worker: w, jobs: j, log: log,
	}
}

// Run listens and serves until ctx is done, and then stops in order: the replica
// says that it is not ready, DrainGrace passes, nothing more is claimed or
// accepted, sockets are closed over a window, requests and runs end. The stop
// takes at most ShutdownTimeout, less [Config.ClosingTime], whatever the database and
// the clients do. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.config.Addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.config.Addr, err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Run on a listener, which it closes.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.log.InfoContext(ctx, "tandem is listening", "driver", s.config.Driver, "version", s.config.Version,
		"address", listener.Addr().String(), "node", s.config.Node)

	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	there, leave := context.WithCancel(context.WithoutCancel(ctx)) // as long as there are sockets
	defer leave()
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second, // sockets have their own
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	var runs, background sync.WaitGroup
	failed := make(chan error, 3)
	background.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve: %w", err)
		}
	})
	runs.Go(func() {
		if err := s.worker.Run(work); err != nil {
			failed <- err
		}
	})
	background.Go(func() {
		if err := s.jobs.Run(work); err != nil {
			failed <- err
		}
	})
	background.Go(func() {
		if err := s.presence.Run(there); err != nil {
			s.log.WarnContext(there, "the directory still has this replica, until its lease ends", "error", err)
		}
	})
	background.Go(func() { s.health.Run(there) })
	background.Go(func() { s.offerSetup(work, listener.Addr()) })

	var problem error
	select {
	case <-ctx.Done():
	case problem = <-failed:
	}
	s.log.InfoContext(ctx, "tandem is stopping")
	return errors.Join(problem, s.stop(ctx, server, stopWork, leave, &runs, &background))
}

// stop ends everything in time.
func (s *Server) stop(ctx context.Context, server *http.Server, stopWork, leave func(), runs, background *sync.WaitGroup) error {
	most := s.config.ShutdownTimeout - s.config.ClosingTime()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	s.health.Drain()
	if s.config.DrainGrace > 0 {
		s.log.InfoContext(ctx, "serving on, not ready", "for", s.config.DrainGrace)
		time.Sleep(s.config.DrainGrace)
	}
	stopWork()
	s.tools.Drain()
	// The hub closes its sockets while requests that are under way end; each has
	// some of the time left for what must be cut off.
	soft, cancelSoft := context.WithTimeout(ctx, (s.config.ShutdownTimeout-s.config.DrainGrace)*3/4)
	defer cancelSoft()
	return s.endAll(ctx, most, map[string]func() error{
		"sockets": func() error {
			defer leave()
			return s.hub.Drain(soft)
		},
		"requests": func() error {
			err := server.Shutdown(soft)
			if err != nil {
				err = errors.Join(fmt.Errorf("requests did not end in time: %w", err), server.Close())
			}
			return err
		},
		"runs": func() error {
			runs.Wait()
			return nil
		},
		"background": func() error {
			background.Wait()
			return nil
		},
	})
}

// endAll ends the parts of the replica at once, tells of each how long that took, and waits for
// them as long as ctx lasts.
func (s *Server) endAll(ctx context.Context, most time.Duration, parts map[string]func() error) error {
	type end struct {
		part string
		took time.Duration
		err  error
	}
	began, ends := time.Now(), make(chan end, len(parts))
	for part, stop := range parts {
		go func() {
			err := stop()
			ends <- end{part, time.Since(began), err}
		}()
	}
	var problems []error
	for len(parts) > 0 {
		select {
		case e := <-ends:
			delete(parts, e.part)
			problems = append(problems, e.err)
			s.log.InfoContext(ctx, "a part has stopped", "part", e.part, "took", e.took)
		case <-ctx.Done():
			left := slices.Sorted(maps.Keys(parts))
			return errors.Join(append(problems, fmt.Errorf("not everything ended within %v: %s", most, strings.Join(left, ", ")))...)
		}
	}
	s.log.InfoContext(ctx, "tandem has stopped")
	return errors.Join(problems...)
}

// offerSetup prints a link for the set-up while there is no user. Whoever starts Tandem waits for it, so it is
// tried until it is known whether there is one.
func (s *Server) offerSetup(ctx context.Context, addr net.Addr) {
	for wait := setupRetry; ; wait = min(2*wait, time.Minute) {
		token, err := s.auth.SetupToken(ctx)
		switch {
		case token != "" && err == nil:
			_, _ = fmt.Fprintf(s.config.Output, "\nOpen this link to set Tandem up. It works once, within %.0f hours:\n\n  %s\n\n",
				auth.SetupTTL.Hours(), s.config.setupLink(addr, token))
			return
		case err == nil || ctx.Err() != nil:
			return
		case wait == setupRetry:
			s.log.ErrorContext(ctx, "no set-up link could be made; trying on", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// setupRetry is when the set-up link is tried again the first time; the pause doubles each time.
const setupRetry = time.Second

// setupLink carries the token in the fragment, which browsers send to nobody.
func (c Config) setupLink(addr net.Addr, token string) string {
	base := c.PublicURL
	if base == "" {
		base = "http://" + addr.String()
	}
	return base + "/#setup=" + token
}
