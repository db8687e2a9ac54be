// Package health answers whether this replica can serve.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/tandemhq/tandem/coord"
)

const (
	// Deadline is how long a probe of the database may take.
	Deadline = 2 * time.Second
	// every is how often the database is probed although nobody asks.
	every = time.Second
	// schemaEvery is how often the schema is looked at, which seldom changes.
	schemaEvery = 5 * time.Second
)

// Check is the state of one thing.
type Check struct {
	Name  string    `json:"name"`
	OK    bool      `json:"ok"`
	Aside bool      `json:"aside,omitempty"` // the replica serves all the same when it is not OK
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since"` // since when it has been so
}

// Schema reports whether the database has what this version of the program needs;
// [coord.ErrUnavailable] when that can't be found out.
type Schema func(ctx context.Context) error

// Observer is told what came of a probe of the database, once for each who waited for it. It must be quick and safe for concurrent use.
type Observer interface {
	Probed(err error)
}

// Options are what a replica's health depends on.
type Options struct {
	Ping     func(context.Context) error // of the database: it answers and can be written to
	Schema   Schema                      // default: not looked at
	Observer Observer                    // default: nobody
	Logger   *slog.Logger                // default: discards
}

// Health is safe for concurrent use.
type Health struct {
	o     Options
	probe singleflight.Group // many callers cost one probe

	mu       sync.Mutex
	database Check
	drain    Check
	schema   Check
	looked   time.Time // at the schema
	asides   []aside
}

type aside struct {
	check   Check
	problem func() error
}

// New returns the health of a replica.
func New(o Options) *Health {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	fine := func(name string) Check { return Check{Name: name, OK: true, Since: time.Now()} }
	return &Health{o: o, database: fine("database"), drain: fine("accepting"), schema: fine("schema")}
}

// Watch adds a check that people see and that does not make the replica unready. problem is asked
// whenever somebody asks for the checks, and must be quick. Call it before [Health.Run].
func (h *Health) Watch(name string, problem func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asides = append(h.asides, aside{Check{Name: name, OK: true, Aside: true, Since: time.Now()}, problem})
}

// Drain makes the replica unready for good.
func (h *Health) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drain.set("the replica is stopping")
}

// Run probes the database every second until ctx is done, and logs when the replica becomes
// unready and ready again.
func (h *Health) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	was := true
	for {
		ready, checks := h.Ready(ctx)
		if ctx.Err() != nil {
			return
		}
		if ready != was {
			was = ready
			h.tell(ctx, ready, checks)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *Health) tell(ctx context.Context, ready bool, checks []Check) {
	if ready {
		h.o.Logger.InfoContext(ctx, "the replica is ready again")
		return
	}
	for _, c := range checks {
		if !c.OK && !c.Aside {
			h.o.Logger.WarnContext(ctx, "the replica is not ready", "check", c.Name, "error", c.Error)
		}
	}
}

// Ready probes the database and returns all checks. It returns within
// [Deadline] even when the database hangs, and with ctx, without having found out.
func (h *Health) Ready(ctx context.Context) (ready bool, checks []Check) {
	timer := time.NewTimer(Deadline)
	defer timer.Stop()
	result := h.probe.DoChan("", func() (any, error) {
		// Shared by callers, so the end of one must not end it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Deadline)
		defer cancel()
		return nil, h.ask(ctx)
	})
	select {
	case r := <-result:
		h.note(r.Err)
	case <-timer.C:
		h.note(fmt.Errorf("no answer within %v", Deadline))
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	checks = []Check{h.database, h.drain}
	if h.o.Schema != nil {
		checks = append(checks, h.schema)
	}
	ready = h.database.OK && h.drain.OK && h.schema.OK
	for i := range h.asides {
		a := &h.asides[i]
		a.check.set(text(a.problem()))
		checks = append(checks, a.check)
	}
	return ready, checks
}

// ask probes the database, and looks at its schema now and then.
func (h *Health) ask(ctx context.Context) error {
	if err := h.o.Ping(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	due := h.o.Schema != nil && time.Since(h.looked) >= schemaEvery
	h.mu.Unlock()
	if !due {
		return nil
	}
	err := h.o.Schema(ctx)
	if errors.Is(err, coord.ErrUnavailable) {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked = time.Now()
	h.schema.set(text(err))
	return nil
}

// note keeps what came of a probe.
func (h *Health) note(err error) {
	if h.o.Observer != nil {
		h.o.Observer.Probed(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.database.set(text(err))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (c *Check) set(problem string) {
	if ok := problem == ""; ok != c.OK {
		c.OK, c.Since = ok, time.Now()
	}
	c.Error = problem
}
