package httplimit

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/realclientip/realclientip-go"
)

const forwardedFor = "X-Forwarded-For"

// Clients finds out who sends requests, in a program that may be behind proxies.
type Clients struct {
	trusted  []net.IPNet
	strategy realclientip.Strategy
}

// NewClients believes the X-Forwarded-For of trusted proxies, which are given as addresses or ranges
// (CIDR), and of nobody else.
func NewClients(trustedProxies ...string) (*Clients, error) {
	if len(trustedProxies) == 0 {
		return &Clients{}, nil
	}
	trusted, err := realclientip.AddressesAndRangesToIPNets(trustedProxies...)
	if err != nil {
		return nil, fmt.Errorf("trusted proxies: %w", err)
	}
	strategy, err := realclientip.NewRightmostTrustedRangeStrategy(forwardedFor, trusted)
	if err != nil {
		return nil, fmt.Errorf("trusted proxies: %w", err)
	}
	return &Clients{trusted: trusted, strategy: strategy}, nil
}

// Address returns the right-most address on a request's way that is not a trusted proxy. What a client
// itself puts into a header does not count. Where a proxy gives no address that can be read, it is the
// proxy's own. It has no zone, and IPv4 in IPv6 is IPv4. It is the zero Addr when the connection has no
// address, as one by a Unix socket.
func (c *Clients) Address(r *http.Request) netip.Addr {
	peer := ParseAddr(r.RemoteAddr)
	if !c.isTrusted(peer) {
		return peer
	}
	if client := ParseAddr(c.strategy.ClientIP(r.Header, r.RemoteAddr)); client.IsValid() {
		return client
	}
	return peer
}

// Key is the [AddressKey] of a request's address, for a [Policy].
func (c *Clients) Key(r *http.Request) string { return AddressKey(c.Address(r)) }

func (c *Clients) isTrusted(addr netip.Addr) bool {
	for _, network := range c.trusted {
		if network.Contains(addr.AsSlice()) {
			return true
		}
	}
	return false
}

// AddressKey is an address as a limit counts it: an IPv6 network of 64 bits is one client. Those without
// an address are one client too.
func AddressKey(addr netip.Addr) string {
	if !addr.IsValid() {
		return "unknown"
	}
	if addr = addr.Unmap(); addr.Is6() {
		network, _ := addr.Prefix(64) // 64 bits are never too many
		return network.String()
	}
	return addr.String()
}

// ParseAddr reads an address with or without a port and a zone, neither of which it returns; IPv4 in
// IPv6 is IPv4. It returns the zero Addr for what is none.
func ParseAddr(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	addr, _ := netip.ParseAddr(s)
	return addr.Unmap().WithZone("")
}
