package outbound

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

var (
	// nat64 is the prefix by which hosts without IPv4 reach it (RFC 6052); the last four bytes
	// are the IPv4 address. A network that has only IPv6 needs it for every public IPv4 host.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
	// global is all of IPv6 that may be public. What lies outside is reserved or worse.
	global = netip.MustParsePrefix("2000::/3")
)

// special are the networks that are not public, after the IANA special-purpose address
// registries. The first that fits gives the word. Of those that the registries call globally
// reachable, a few that serve no web pages are included.
var special = []struct {
	prefix netip.Prefix
	is     string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "of a carrier's network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "of a cloud's own services"}, // Azure
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "of a tunnel"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("2001::/32"), "of a tunnel"}, // Teredo, which carries IPv4 addresses
	{netip.MustParsePrefix("2001::/23"), "reserved"},
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("2002::/16"), "of a tunnel"}, // 6to4, which carries IPv4 addresses
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "private"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// notPublic says what an address is that is not public, and nothing of one that is. The
// address must be unmapped and without a zone: no prefix contains one with a zone.
func notPublic(addr netip.Addr) string {
	if nat64.Contains(addr) {
		b := addr.As16()
		return notPublic(netip.AddrFrom4([4]byte(b[12:])))
	}
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return s.is
		}
	}
	if addr.Is4() || global.Contains(addr) && !isatap(addr) {
		return ""
	}
	return "reserved"
}

// isatap reports whether the lower half of an IPv6 address asks for a tunnel to the IPv4
// address in its last four bytes (RFC 5214).
func isatap(addr netip.Addr) bool {
	b := addr.As16()
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// guard refuses connections to addresses that are neither public nor allowed.
type guard struct {
	allow []netip.Prefix
}

// control is a [net.Dialer]'s: it is called for each address that is about to be connected to,
// when nothing resolves a name any more.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return refusal{fmt.Errorf("the address %q is not one that tasks can reach", address)}
	}
	addr := to.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return nil
	}
	if is := notPublic(addr); is != "" {
		return refusal{fmt.Errorf("the address %v is not allowed for tasks: it is %s", addr, is)}
	}
	return nil
}
