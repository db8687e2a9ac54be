package web

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/coord"
)

// Without its services a handler panics.
func TestPanicIsAnswered(t *testing.T) {
	var logged bytes.Buffer
	h := &handler{
		config: app.Config{}, metrics: metrics.New("test", "memory"), clients: &clients{},
		writes: func(next http.Handler) http.Handler { return next },
		once:   func(_ route, next http.Handler) http.Handler { return next },
		log:    slog.New(slog.NewTextHandler(&logged, nil)),
	}
	routes, err := h.router()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/setup", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"status":500`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if !strings.Contains(logged.String(), "getSetup") {
		t.Errorf("the log does not say where: %s", &logged)
	}
}

// A request that is not carried out because its client has gone is no failure of the server.
func TestClientHasGone(t *testing.T) {
	for _, test := range []struct {
		name   string
		leaves bool
		err    error
		logged string
		class  string
	}{
		{"gone, and told to stop", true, coord.ErrUnavailable, "status=499", "4xx"},
		{"gone, and failed", true, errors.New("no such table"), "status=499", "4xx"},
		{"gone, and refused", true, coord.ErrNotFound, "status=404", "4xx"},
		{"gone, and done", true, nil, "status=204", "2xx"},
		{"there", false, coord.ErrUnavailable, "status=503", "5xx"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var logged bytes.Buffer
			known, err := newClients(nil)
			if err != nil {
				t.Fatal(err)
			}
			h := &handler{clients: known, metrics: metrics.New("test", "memory"), log: slog.New(slog.NewTextHandler(&logged, nil))}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			served := h.logged(h.handler(route{"GET", "/api/v1/thing", "", noBody, func(http.ResponseWriter, *http.Request) (int, any, error) {
				if test.leaves {
					leave()
				}
				return http.StatusNoContent, nil, test.err
			}, nil}))
			served.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/api/v1/thing", nil))
			if !strings.Contains(logged.String(), test.logged) || strings.Contains(logged.String(), "ERROR") {
				t.Errorf("logged %s, want %s", &logged, test.logged)
			}
			counts := httptest.NewRecorder()
			h.metrics.Handler().ServeHTTP(counts, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			if want := `tandem_http_requests_total{method="GET",status="` + test.class + `"} 1`; !strings.Contains(counts.Body.String(), want) {
				t.Errorf("%s is not counted", want)
			}
		})
	}
}

func TestUnexpectedConflictNamesNoInternals(t *testing.T) {
	p := problemOf(&coord.Error{Op: "claimer.pause", Err: errors.Join(coord.ErrConflict, errors.New("row 7"))})
	if p.Status != http.StatusConflict || strings.Contains(p.Detail, "row 7") || strings.Contains(p.Detail, "conflict:") {
		t.Errorf("got %+v", p)
	}
}
