package web

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
)

// contentPolicy lets a page load from here alone, and open WebSockets to the endpoints.
func contentPolicy(endpoints []string) string {
	const policy = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; " +
		"form-action 'self'; frame-ancestors 'none'"
	if len(endpoints) == 0 {
		return policy
	}
	connect := []string{"; connect-src 'self'"}
	for _, endpoint := range endpoints {
		connect = append(connect, "ws"+strings.TrimPrefix(endpoint, "http"))
	}
	return policy + strings.Join(connect, " ")
}

// headers sets what every answer has.
func (h *handler) headers(next http.Handler) http.Handler {
	policy := contentPolicy(h.config.Endpoints)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		if h.config.Secure() {
			header.Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}

// logged writes the access log: the API, webhooks and sockets at info, the rest at debug.
// A query is never logged, since it may hold a ticket, and neither are headers.
func (h *handler) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		answer := &answerWriter{ResponseWriter: w}
		defer func() {
			h.metrics.HTTPRequests.WithLabelValues(methodLabel(r.Method), strconv.Itoa(answer.status/100)+"xx").Inc()
			level := slog.LevelDebug
			if strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, tasks.WebhookPath) || r.URL.Path == "/ws" {
				level = slog.LevelInfo
			}
			h.log.LogAttrs(r.Context(), level, "request",
				slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", answer.status),
				slog.Int64("bytes", answer.bytes), slog.Duration("took", time.Since(started)),
				slog.String("client", h.clients.address(r).String()))
		}()
		next.ServeHTTP(answer, r)
	})
}

func methodLabel(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE":
		return method
	}
	return "other"
}

// answerWriter remembers what was answered.
type answerWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Hijack is for WebSockets.
func (w *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap is for [http.ResponseController].
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
