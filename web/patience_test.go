package web

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// An endpoint finds no free connection, time and again. It waits for ten seconds in all, and its
// next request as long.
func TestRequestsWaitForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known, err := newClients(nil)
		if err != nil {
			t.Fatal(err)
		}
		h := &handler{clients: known, log: slog.New(slog.DiscardHandler)}
		served := h.handler(route{"GET", "/", "", noBody, func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
			for range 3 {
				waiting, over := coord.Wait(r.Context(), 7*time.Second)
				<-waiting.Done()
				over()
			}
			return 0, nil, coord.ErrUnavailable
		}, nil})
		for range 2 {
			began, answer := time.Now(), httptest.NewRecorder()
			served.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
			if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
				t.Errorf("status %d, Retry-After %q", answer.Code, answer.Header().Get("Retry-After"))
			}
			if waited := time.Since(began); waited != 10*time.Second {
				t.Errorf("the request has waited for %v, want 10 s", waited)
			}
		}
	})
}
