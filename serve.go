package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/coord"
)

type serveCmd struct{}

// Run serves until the context ends.
func (serveCmd) Run(e *env, c *Config) error {
	if err := c.check(); err != nil {
		return err
	}
	a, err := c.application(e.stdout)
	if err != nil {
		return err
	}
	server, cleanup, err := initializePatiently(e.ctx, c, a, c.logger(e.stderr))
	if err != nil {
		return asSetting(err)
	}
	err = server.Run(e.ctx)
	return errors.Join(err, closeWithin(a.ClosingTime(), cleanup))
}

// closeWithin calls end, which may hang where a network is dead, and waits for it no longer than that.
func closeWithin(most time.Duration, end func()) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(most):
		return fmt.Errorf("the connections to the database were not closed within %v", most)
	}
}

// The pause before another attempt to start grows from the first to the second.
const (
	startPause    = 200 * time.Millisecond
	startPauseMax = 5 * time.Second
)

// initializePatiently waits for a database that is away, for as long as StartWait.
func initializePatiently(ctx context.Context, c *Config, a app.Config, log *slog.Logger) (*app.Server, func(), error) {
	began, pause := time.Now(), startPause
	for {
		server, cleanup, err := initialize(ctx, c, a, log)
		waited := time.Since(began)
		switch {
		case err == nil:
			if pause != startPause {
				log.InfoContext(ctx, "the database is there", "waited", waited)
			}
			return server, cleanup, nil
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case !errors.Is(err, coord.ErrUnavailable):
			return nil, nil, err
		case waited >= c.StartWait:
			return nil, nil, fmt.Errorf("the database was not there for %v: %w", c.StartWait, err)
		}
		if pause == startPause {
			log.WarnContext(ctx, "the database is not there; waiting for it", "most", c.StartWait, "error", err)
		}
		select {
		case <-time.After(min(pause/2+rand.N(pause/2), c.StartWait-waited)):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		pause = min(2*pause, startPauseMax)
	}
}
