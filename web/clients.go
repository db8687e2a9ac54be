package web

import (
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tandemhq/tandem/coord/httplimit"
)

const forwardedFor = "X-Forwarded-For"

// clients finds out who sent a request.
type clients struct{ httplimit.Clients }

func newClients(trustedProxies []string) (*clients, error) {
	known, err := httplimit.NewClients(trustedProxies...)
	if err != nil {
		return nil, err
	}
	return &clients{*known}, nil
}

func (c *clients) address(r *http.Request) netip.Addr { return c.Address(r) }

// operator reports whether a request comes from who runs the program: it has the
// metrics token or, without one, is from this machine and came through no proxy.
// A proxy on this machine may say nothing of itself, so that counts only where
// there is none.
func (h *handler) operator(r *http.Request) bool {
	if token := h.config.MetricsToken; token != "" {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
	}
	return h.config.Local() && httplimit.ParseAddr(r.RemoteAddr).IsLoopback() && r.Header.Get(forwardedFor) == ""
}

// private serves the operator alone.
func (h *handler) private(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.operator(r) {
			writeProblem(w, problem{Status: http.StatusForbidden, Detail: "metrics need the metrics token"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
