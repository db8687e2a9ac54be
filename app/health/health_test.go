package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func TestReadyTellsSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var problem error
		h := New(Options{Ping: func(context.Context) error { return problem }})
		began := time.Now()
		time.Sleep(time.Hour)
		if ready, checks := h.Ready(t.Context()); !ready || !checks[0].Since.Equal(began) {
			t.Errorf("got %v, %+v", ready, checks)
		}
		problem = errors.New("gone")
		lost := time.Now()
		for range 3 {
			ready, checks := h.Ready(t.Context())
			if ready || checks[0].OK || checks[0].Error != "gone" || !checks[0].Since.Equal(lost) {
				t.Errorf("got %v, %+v", ready, checks)
			}
			time.Sleep(time.Minute)
		}
		problem = nil
		if ready, checks := h.Ready(t.Context()); !ready || checks[0].Error != "" {
			t.Errorf("got %v, %+v", ready, checks)
		}
		h.Drain()
		if ready, checks := h.Ready(t.Context()); ready || !checks[0].OK || checks[1].OK {
			t.Errorf("got %v, %+v", ready, checks)
		}
	})
}

func TestReadyDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var probes atomic.Int32
		h := New(Options{Ping: func(context.Context) error { // ignores its context, as a dead network may
			probes.Add(1)
			<-release
			return nil
		}})
		began := time.Now()
		for range 5 {
			go h.Ready(t.Context())
		}
		if ready, _ := h.Ready(t.Context()); ready {
			t.Error("ready while the database hangs")
		}
		if took := time.Since(began); took > Deadline {
			t.Errorf("took %v", took)
		}
		if probes.Load() != 1 {
			t.Errorf("%d probes hang", probes.Load())
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		if ready, _ := h.Ready(ended); ready || time.Since(began) != 0 {
			t.Errorf("with a context that has ended: %v, after %v", ready, time.Since(began))
		}
		close(release)
		synctest.Wait()
		if ready, _ := h.Ready(t.Context()); !ready {
			t.Error("not ready after the database came back")
		}
	})
}

// The schema is looked at now and then. That it can't be looked at says nothing about it.
func TestSchemaIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer error
		looks := 0
		h := New(Options{
			Ping: func(context.Context) error { return nil },
			Schema: func(context.Context) error {
				looks++
				return answer
			},
		})
		expect := func(ready, database, schema bool) {
			t.Helper()
			got, checks := h.Ready(t.Context())
			if got != ready || checks[0].OK != database || checks[2].OK != schema || checks[2].Name != "schema" {
				t.Errorf("ready %v, %+v; want %v, %v, %v", got, checks, ready, database, schema)
			}
		}
		for range 50 {
			expect(true, true, true)
		}
		if looks != 1 {
			t.Errorf("the schema was looked at %d times at once", looks)
		}
		answer = errors.New("does not fit")
		time.Sleep(schemaEvery)
		expect(false, true, false)
		answer = fmt.Errorf("%w: gone", coord.ErrUnavailable)
		time.Sleep(schemaEvery)
		expect(false, false, false)
		answer = nil
		expect(true, true, true)
	})
}

// probes counts what it is told of.
type probes struct{ good, bad atomic.Int32 }

func (p *probes) Probed(err error) {
	if err == nil {
		p.good.Add(1)
	} else {
		p.bad.Add(1)
	}
}

// changing is an error that comes and goes.
type changing struct{ atomic.Pointer[error] }

func (c *changing) set(err error) { c.Store(&err) }

func (c *changing) get() error {
	if err := c.Load(); err != nil {
		return *err
	}
	return nil
}

// Without anybody asking, the database is probed, and the log says once when the replica becomes
// unready and once when it is ready again. What is aside changes nothing about that.
func TestRunProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var problem, polling changing
		var log strings.Builder
		var told probes
		h := New(Options{
			Ping:     func(context.Context) error { return problem.get() },
			Observer: &told, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		h.Watch("listening", polling.get)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.Run(ctx)
		}()
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		pass(10*time.Second + every/2)
		if told.good.Load() != 11 || told.bad.Load() != 0 {
			t.Errorf("told of %d and %d", told.good.Load(), told.bad.Load())
		}
		polling.set(errors.New("deaf"))
		pass(time.Minute)
		if ready, checks := h.Ready(t.Context()); !ready || checks[2].OK || !checks[2].Aside || checks[2].Error != "deaf" {
			t.Errorf("got %v, %+v", ready, checks)
		}
		if log.Len() > 0 {
			t.Errorf("the log has: %s", &log)
		}
		problem.set(errors.New("gone"))
		pass(time.Minute)
		problem.set(nil)
		pass(time.Minute)
		cancel()
		<-ended
		if told.bad.Load() != 60 || strings.Count(log.String(), "\n") != 2 || !strings.Contains(log.String(), "check=database error=gone") {
			t.Errorf("told of %d; the log has: %s", told.bad.Load(), &log)
		}
	})
}
