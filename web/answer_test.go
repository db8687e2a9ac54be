package web

import (
	"bytes"
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

func TestUnexpectedConflictNamesNoInternals(t *testing.T) {
	p := problemOf(&coord.Error{Op: "claimer.pause", Err: errors.Join(coord.ErrConflict, errors.New("row 7"))})
	if p.Status != http.StatusConflict || strings.Contains(p.Detail, "row 7") || strings.Contains(p.Detail, "conflict:") {
		t.Errorf("got %+v", p)
	}
}
