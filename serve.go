package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
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
		var server *app.Server
		var cleanup func()
		err := whileAnswering(ctx, c, func(ctx context.Context) (err error) {
			server, cleanup, err = initialize(ctx, c, a, log)
			return err
		})
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

// The database is asked for an answer that often. It may be silent for longer than StartWait, when that is less than this.
const (
	askPause     = time.Second
	leastSilence = 5 * time.Second
)

// whileAnswering calls fn, and ends its context when the database has said nothing for as long as
// StartWait: where a server is frozen, or packets are dropped, an answer would be waited for
// without end. Migrations may take as long as they do while it answers others.
func whileAnswering(ctx context.Context, c *Config, fn func(ctx context.Context) error) error {
	ask, closeAsk, err := openAsk(c)
	if err != nil {
		return err
	}
	if ask == nil {
		return fn(ctx)
	}
	defer closeAsk()
	most := max(c.StartWait, leastSilence)
	ctx, end := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		if silent(ctx, most, ask) {
			end(fmt.Errorf("%w: it has said nothing for %v", coord.ErrUnavailable, most))
		}
	})
	err = fn(ctx)
	cause := context.Cause(ctx)
	end(nil)
	asking.Wait()
	if err != nil && cause != nil {
		return cause
	}
	return err
}

// silent reports whether ask has had no answer for as long as most; false when ctx ended before.
// One that does not come is waited for and not asked for again: another connection may lead to
// another server.
func silent(ctx context.Context, most time.Duration, ask func(context.Context) error) bool {
	for heard := time.Now(); time.Since(heard) < most; {
		bounded, cancel := context.WithDeadline(ctx, heard.Add(most))
		if err := ask(bounded); err == nil {
			heard = time.Now()
		}
		cancel()
		select {
		case <-time.After(min(askPause, most-time.Since(heard))):
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}
