package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// Network is that of a machine of its own: a namespace with one cable to a switch, to which this
// machine is plugged too. Nothing else can be reached from it.
type Network struct {
	name    string // of the namespace and of the switch
	port    string // of the switch, where the cable is
	inside  netip.Addr
	outside netip.Addr
}

// NewNetwork makes a network. It takes the ip program of package iproute2.
func NewNetwork(ctx context.Context) (_ *Network, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("make a network: %w", ErrPrivilege)
	}
	inside, outside, err := subnet()
	if err != nil {
		return nil, err
	}
	// Names of links have at most 15 characters.
	bytes := inside.As4()
	id := fmt.Sprintf("%x", bytes[1:3])
	n := &Network{name: "tandemrig" + id, port: "tandemcab" + id, inside: inside, outside: outside}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	for _, args := range [][]string{
		{"netns", "add", n.name},
		{"link", "add", n.name, "type", "bridge"},
		{"link", "add", n.port, "type", "veth", "peer", "name", "eth0", "netns", n.name},
		{"link", "set", n.port, "master", n.name},
		{"addr", "add", outside.String() + "/30", "dev", n.name},
		{"link", "set", n.name, "up"},
		{"link", "set", n.port, "up"},
		{"-n", n.name, "addr", "add", inside.String() + "/30", "dev", "eth0"},
		{"-n", n.name, "link", "set", "lo", "up"},
		{"-n", n.name, "link", "set", "eth0", "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// subnet chooses two addresses out of those that are meant for tests of networks (RFC 2544) and
// that this machine does not use.
func subnet() (inside, outside netip.Addr, err error) {
	used, err := net.InterfaceAddrs()
	if err != nil {
		return inside, outside, err
	}
	for range 100 {
		base := [4]byte{198, byte(18 + rand.N(2)), byte(rand.N(256)), 0}
		free := true
		for _, a := range used {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Contains(netip.AddrFrom4(base).Next()) {
				free = false
			}
		}
		if free {
			outside = netip.AddrFrom4(base).Next()
			return outside.Next(), outside, nil
		}
	}
	return inside, outside, errors.New("this machine uses all addresses that are meant for tests")
}

// Inside is the address of what runs in the network, as seen from both sides.
func (n *Network) Inside() string { return n.inside.String() }

// Outside is the address of this machine, as seen from the network.
func (n *Network) Outside() string { return n.outside.String() }

// Command returns what to run so that a program runs in the network. It has the process number
// of the program that is started.
func (n *Network) Command(program string, args ...string) []string {
	return append([]string{"ip", "netns", "exec", n.name, program}, args...)
}

// Unplug pulls the cable out of the switch: neither side is told, and what they send is lost.
func (n *Network) Unplug(ctx context.Context) error {
	return ip(ctx, "link", "set", n.port, "down")
}

// Plug puts it back.
func (n *Network) Plug(ctx context.Context) error { return ip(ctx, "link", "set", n.port, "up") }

// Close removes the network. What still runs in it is left without one.
func (n *Network) Close() error {
	ctx := context.Background() // whatever has ended, the network is to go
	var errs []error
	if _, err := net.InterfaceByName(n.port); err == nil {
		errs = append(errs, ip(ctx, "link", "del", n.port))
	}
	if _, err := net.InterfaceByName(n.name); err == nil {
		errs = append(errs, ip(ctx, "link", "del", n.name))
	}
	if _, err := os.Stat("/run/netns/" + n.name); err == nil {
		errs = append(errs, ip(ctx, "netns", "del", n.name))
	}
	return errors.Join(errs...)
}

// ip runs the ip program. The error holds what it has written.
func ip(ctx context.Context, args ...string) error {
	output, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
