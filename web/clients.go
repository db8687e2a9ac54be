package web

import (
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/realclientip/realclientip-go"
)

const forwardedFor = "X-Forwarded-For"

// clients finds out who sent a request.
type clients struct {
	trusted  []net.IPNet
	strategy realclientip.Strategy
}

func newClients(trustedProxies []string) (*clients, error) {
	if len(trustedProxies) == 0 {
		return &clients{}, nil
	}
	trusted, err := realclientip.AddressesAndRangesToIPNets(trustedProxies...)
	if err != nil {
		return nil, fmt.Errorf("trusted proxies: %w", err)
	}
	strategy, err := realclientip.NewRightmostTrustedRangeStrategy(forwardedFor, trusted)
	if err != nil {
		return nil, fmt.Errorf("trusted proxies: %w", err)
	}
	return &clients{trusted: trusted, strategy: strategy}, nil
}

// address returns the right-most address of a request's way that is not a
// trusted proxy. What a client itself puts into a header does not count.
func (c *clients) address(r *http.Request) netip.Addr {
	peer := parseAddr(r.RemoteAddr)
	if !c.isTrusted(peer) {
		return peer
	}
	if client := parseAddr(c.strategy.ClientIP(r.Header, r.RemoteAddr)); client.IsValid() {
		return client
	}
	return peer
}

func (c *clients) isTrusted(addr netip.Addr) bool {
	for _, network := range c.trusted {
		if network.Contains(addr.AsSlice()) {
			return true
		}
	}
	return false
}

// limitKey is the address as a limit counts it: an IPv6 network of 64 bits is
// one client.
func limitKey(addr netip.Addr) string {
	if addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.String()
		}
	}
	return addr.String()
}

// parseAddr reads an address with or without a port; IPv4 in IPv6 is IPv4.
func parseAddr(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	addr, _ := netip.ParseAddr(s)
	return addr.Unmap().WithZone("")
}

// operator reports whether a request comes from who runs the program: it has the
// metrics token or, without one, is from this machine and came through no proxy.
// A proxy on this machine may say nothing of itself, so that counts only where
// there is none.
func (h *handler) operator(r *http.Request) bool {
	if token := h.config.MetricsToken; token != "" {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
	}
	return h.config.Local() && parseAddr(r.RemoteAddr).IsLoopback() && r.Header.Get(forwardedFor) == ""
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
