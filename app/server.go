package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/health"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/maintenance"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord/worker"
)

// Server is one replica.
type Server struct {
	config      Config
	handler     http.Handler
	auth        *auth.Service
	health      *health.Health
	hub         *hub.Hub
	presence    *presence.Service
	tools       *tools.Service
	worker      *worker.Worker
	maintenance *maintenance.Maintenance
	log         *slog.Logger
}

// NewServer returns a replica that serves the handler.
func NewServer(
	c Config, handler http.Handler, a *auth.Service, hl *health.Health, h *hub.Hub, p *presence.Service,
	t *tools.Service, w *worker.Worker, m *maintenance.Maintenance, log *slog.Logger,
) *Server {
	return &Server{
		config: c, handler: handler, auth: a, health: hl, hub: h, presence: p, tools: t, worker: w, maintenance: m, log: log,
	}
}

// Run listens and serves until ctx is done, and then stops in order: the replica
// says that it is not ready, DrainGrace passes, nothing more is claimed or
// accepted, sockets are closed over a window, requests and runs end. The stop
// takes at most ShutdownTimeout. It may be called once.
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
	var background sync.WaitGroup
	failed := make(chan error, 2)
	background.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve: %w", err)
		}
	})
	background.Go(func() {
		if err := s.worker.Run(work); err != nil {
			failed <- err
		}
	})
	background.Go(func() { s.maintenance.Run(work) })
	background.Go(func() {
		if err := s.presence.Run(there); err != nil {
			s.log.WarnContext(there, "the directory still has this replica, until its lease ends", "error", err)
		}
	})
	background.Go(func() { s.offerSetup(work, listener.Addr()) })

	var problem error
	select {
	case <-ctx.Done():
	case problem = <-failed:
	}
	s.log.InfoContext(ctx, "tandem is stopping")
	return errors.Join(problem, s.stop(ctx, server, stopWork, leave, &background))
}

// stop ends everything within ShutdownTimeout.
func (s *Server) stop(ctx context.Context, server *http.Server, stopWork, leave func(), background *sync.WaitGroup) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownTimeout)
	defer cancel()
	s.health.Drain()
	if s.config.DrainGrace > 0 {
		time.Sleep(s.config.DrainGrace)
	}
	stopWork()
	s.tools.Drain()
	// The hub closes its sockets while requests that are under way end; each has
	// some of the time left for what must be cut off.
	soft, cancelSoft := context.WithTimeout(ctx, (s.config.ShutdownTimeout-s.config.DrainGrace)*3/4)
	defer cancelSoft()
	var hubErr, serverErr error
	var stopping sync.WaitGroup
	stopping.Go(func() {
		defer leave()
		hubErr = s.hub.Drain(soft)
	})
	stopping.Go(func() {
		if serverErr = server.Shutdown(soft); serverErr != nil {
			serverErr = errors.Join(fmt.Errorf("requests did not end in time: %w", serverErr), server.Close())
		}
	})
	done := make(chan struct{})
	go func() {
		stopping.Wait()
		background.Wait()
		close(done)
	}()
	select {
	case <-done:
		s.log.InfoContext(ctx, "tandem has stopped")
		return errors.Join(hubErr, serverErr)
	case <-ctx.Done():
		return fmt.Errorf("not everything ended within %v", s.config.ShutdownTimeout)
	}
}

// offerSetup prints a link for the set-up while there is no user.
func (s *Server) offerSetup(ctx context.Context, addr net.Addr) {
	token, err := s.auth.SetupToken(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		s.log.ErrorContext(ctx, "no set-up link could be made", "error", err)
	case token != "":
		_, _ = fmt.Fprintf(s.config.Output, "\nOpen this link to set Tandem up. It works once, within %.0f hours:\n\n  %s\n\n",
			auth.SetupTTL.Hours(), s.config.setupLink(addr, token))
	}
}

// setupLink carries the token in the fragment, which browsers send to nobody.
func (c Config) setupLink(addr net.Addr, token string) string {
	base := c.PublicURL
	if base == "" {
		base = "http://" + addr.String()
	}
	return base + "/#setup=" + token
}
