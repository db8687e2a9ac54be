package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func TestObserve(t *testing.T) {
	m := New("1.2", "memory")
	for _, err := range []error{
		nil, coord.ErrFenced, coord.ErrUnknownOutcome, fmt.Errorf("x: %w", coord.ErrUnavailable), errors.New("a fault"),
	} {
		m.Observe(t.Context(), coord.Observation{Op: "claimer.claim", Items: 3, Err: err, Took: time.Millisecond})
	}
	m.Observe(t.Context(), coord.Observation{Op: "claimer.claim", Err: context.Canceled})
	m.Decided(t.Context(), coord.Decision{Allowed: true, Source: coord.SourceStore})
	m.Decided(t.Context(), coord.Decision{Source: coord.SourceDeniedCache})
	for _, degraded := range []bool{true, false, true} {
		m.Degraded(degraded)
	}
	m.FollowLag(func() int64 { return 7 })
	m.JobOverdue("a.b", true)
	m.JobOverdue("c.d", true)
	m.JobOverdue("c.d", false)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for _, line := range []string{
		`tandem_coord_operations_total{op="claimer.claim",outcome="ok"} 1`,
		`tandem_coord_operations_total{op="claimer.claim",outcome="fenced"} 1`,
		`tandem_coord_operations_total{op="claimer.claim",outcome="unknown_outcome"} 1`,
		`tandem_coord_operations_total{op="claimer.claim",outcome="unavailable"} 1`,
		`tandem_coord_operations_total{op="claimer.claim",outcome="cancelled"} 1`,
		`tandem_coord_operations_total{op="claimer.claim",outcome="error"} 1`,
		`tandem_coord_items_total{op="claimer.claim"} 3`,
		`tandem_coord_operation_seconds_count{op="claimer.claim"} 6`,
		`tandem_limiter_decisions_total{outcome="granted",source="store"} 1`,
		`tandem_limiter_decisions_total{outcome="denied",source="denied-cache"} 1`,
		`tandem_limiter_degraded 1`,
		`tandem_limiter_outages_total 2`,
		`tandem_event_lag 7`,
		`tandem_job_overdue{job="a.b"} 1`,
		`tandem_job_overdue{job="c.d"} 0`,
		`tandem_build_info{driver="memory",version="1.2"} 1`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
}
