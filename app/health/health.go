// Package health answers whether this replica can serve.
package health

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Deadline is how long a probe of the database may take.
const Deadline = 2 * time.Second

// Check is the state of one thing that serving depends on.
type Check struct {
	Name  string    `json:"name"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since"` // since when it has been so
}

// Health is safe for concurrent use.
type Health struct {
	ping  func(context.Context) error
	probe singleflight.Group // many callers cost one probe

	mu       sync.Mutex
	database Check
	drain    Check
}

// New returns the health of a replica whose database answers to ping.
func New(ping func(context.Context) error) *Health {
	now := time.Now()
	return &Health{
		ping:     ping,
		database: Check{Name: "database", OK: true, Since: now},
		drain:    Check{Name: "accepting", OK: true, Since: now},
	}
}

// Drain makes the replica unready for good.
func (h *Health) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drain.set("the replica is stopping")
}

// Ready probes the database and returns all checks. It returns within
// [Deadline] even when the database hangs.
func (h *Health) Ready(ctx context.Context) (ready bool, checks []Check) {
	timer := time.NewTimer(Deadline)
	defer timer.Stop()
	result := h.probe.DoChan("", func() (any, error) {
		// Shared by callers, so the end of one must not end it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Deadline)
		defer cancel()
		return nil, h.ping(ctx)
	})
	problem := ""
	select {
	case r := <-result:
		if r.Err != nil {
			problem = r.Err.Error()
		}
	case <-timer.C:
		problem = fmt.Sprintf("no answer within %v", Deadline)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.database.set(problem)
	return h.database.OK && h.drain.OK, []Check{h.database, h.drain}
}

func (c *Check) set(problem string) {
	if ok := problem == ""; ok != c.OK {
		c.OK, c.Since = ok, time.Now()
	}
	c.Error = problem
}
