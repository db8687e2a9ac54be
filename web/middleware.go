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
	"github.com/tandemhq/tandem/coord"
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

const (
	// programPolicy is for what no page shows: nothing in it may be loaded or run.
	programPolicy = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

	// permissions takes from pages what they have no use for; one may read the clipboard
	// when somebody has agreed to a tool that asks for it.
	permissions = "accelerometer=(), autoplay=(), camera=(), clipboard-read=(self), display-capture=(), encrypted-media=(), " +
		"fullscreen=(), geolocation=(), gyroscope=(), hid=(), magnetometer=(), microphone=(), midi=(), payment=(), " +
		"publickey-credentials-get=(), screen-wake-lock=(), serial=(), usb=(), xr-spatial-tracking=()"
)

// forPrograms reports whether what is asked for is no page and no part of one.
func forPrograms(r *http.Request) bool {
	for _, prefix := range []string{"/api/", "/hooks/", "/ws", "/healthz/", "/metrics"} {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return true
		}
	}
	return false
}

// headers sets what every answer has, and refuses requests for another host.
func (h *handler) headers(next http.Handler) http.Handler {
	policy := contentPolicy(h.config.Endpoints)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		if forPrograms(r) {
			header.Set("Content-Security-Policy", programPolicy)
			header.Set("Vary", "Authorization, Cookie")
		}
		header.Set("Cache-Control", "no-store") // which files of the page know better
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("X-Permitted-Cross-Domain-Policies", "none")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Permissions-Policy", permissions)
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Origin-Agent-Cluster", "?1")
		if h.config.Secure() {
			header.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !h.config.HostAllowed(r) {
			writeProblem(w, problem{Status: http.StatusMisdirectedRequest, Detail: "the request is for another host"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// patience is how long a request waits for free connections to the database, in all.
const patience = 10 * time.Second

// patient lets a request wait no longer than that.
func patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(coord.WithPatience(r.Context(), patience)))
	})
}

// sameSite refuses what a page of another site makes a browser do. A request with a bearer
// token has nothing that a browser adds by itself: its cookie does not count.
func sameSite(p *http.CrossOriginProtection, next http.Handler) http.Handler {
	checked := p.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given := bearer(r); given {
			next.ServeHTTP(w, r)
			return
		}
		checked.ServeHTTP(w, r)
	})
}

// statusClientGone stands in the access log, as in that of nginx, for a request that could not be
// carried out because its client did not wait for the answer: that is no failure of the server.
const statusClientGone = 499

// logged writes the access log: the API, webhooks and sockets at info, the rest at debug.
// A query is never logged, since it may hold a ticket, and neither are headers.
func (h *handler) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		answer := &answerWriter{ResponseWriter: w}
		defer func() {
			if answer.status >= 500 && r.Context().Err() != nil {
				answer.status = statusClientGone
			}
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
