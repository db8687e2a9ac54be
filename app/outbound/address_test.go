package outbound

import (
	"net/netip"
	"strings"
	"testing"
)

func TestWhatIsPublic(t *testing.T) {
	for is, addresses := range map[string]string{
		"": "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 " +
			"168.63.129.15 169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 " +
			"198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2606:4700::1111 2a00:1450:4001::1 " +
			"::ffff:8.8.8.8 64:ff9b::8.8.8.8",
		"unspecified": "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0 64:ff9b::",
		"private": "10.0.0.7 10.255.255.255 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fd00:ec2::254 fec0::1 " +
			"fd12::1%eth0 ::ffff:10.0.0.7 64:ff9b::10.0.0.7 64:ff9b::172.16.0.1",
		"loopback": "127.0.0.1 127.255.255.254 ::1 ::1%lo ::ffff:127.0.0.1 64:ff9b::127.0.0.1",
		"link-local": "169.254.169.254 169.254.0.1 fe80::1 fe80::1%eth0 ::ffff:169.254.169.254 " +
			"64:ff9b::169.254.169.254",
		"of a carrier's network":    "100.64.0.1 100.100.100.200 100.127.255.255 ::ffff:100.64.0.1",
		"of a cloud's own services": "168.63.129.16 ::ffff:168.63.129.16",
		"multicast":                 "224.0.0.1 239.255.255.255 ff02::1 ff0e::1",
		"broadcast":                 "255.255.255.255",
		"for documentation":         "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1",
		"for benchmarks":            "198.18.0.1 198.19.255.255",
		"of a tunnel":               "192.88.99.1 2002:7f00:1:: 2002:a00:7::1 2002:808:808::1 2001::1 2001:0:5ef5:79fd::1",
		"reserved": "192.0.0.1 192.0.0.192 240.0.0.1 255.255.255.254 " + // 192.0.0.192: Oracle's metadata
			"::7f00:1 ::10.0.0.7 ::ffff:0:10.0.0.7 64:ff9b:1::10.0.0.7 100::1 2001:2::1 2001:20::1 4000::1 5f00::1 " +
			"2606:4700::5efe:10.0.0.7 2606:4700::200:5efe:10.0.0.7",
	} {
		for address := range strings.FieldsSeq(addresses) {
			if got := notPublic(netip.MustParseAddr(address).Unmap().WithZone("")); got != is {
				t.Errorf("%s is %q, want %q", address, got, is)
			}
			host := netip.AddrPortFrom(netip.MustParseAddr(address), 80).String()
			err := guard{}.control("tcp", host, nil)
			if refused := err != nil; refused != (is != "") {
				t.Errorf("%s: got %v", host, err)
			}
			everything := guard{allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
			if err := everything.control("tcp", host, nil); err != nil {
				t.Errorf("%s where everything is allowed: got %v", host, err)
			}
		}
	}
}

func TestAllowIsOfTheAddressItself(t *testing.T) {
	g := guard{allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd12::/16")}}
	for address, allowed := range map[string]bool{
		"10.1.2.3:80": true, "[::ffff:10.1.2.3]:80": true, "[fd12::1]:80": true, "[fd12::1%eth0]:80": true,
		"10.2.0.1:80": false, "[fd13::1]:80": false, "127.0.0.1:80": false,
		// Behind a translator 10.1.2.3 is another host than beside us.
		"[64:ff9b::10.1.2.3]:80": false,
		"":                       false, "localhost:80": false, "10.1.2.3": false,
	} {
		if err := g.control("tcp", address, nil); (err == nil) != allowed {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

// Whatever the table says, nothing that package netip knows to be special is public, in no way
// to write it.
func FuzzNotPublic(f *testing.F) {
	for s := range strings.FieldsSeq("1.1.1.1 10.0.0.7 ::1 fe80::1 64:ff9b::a00:7 2002:a00:7:: 2606:4700::1111") {
		b := netip.MustParseAddr(s).As16()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 16 {
			return
		}
		addr := netip.AddrFrom16([16]byte(b)).Unmap()
		if addr.Is4() {
			v4 := addr.As4()
			var embedded [16]byte
			copy(embedded[:], []byte{0, 0x64, 0xff, 0x9b})
			copy(embedded[12:], v4[:])
			if one, other := notPublic(addr), notPublic(netip.AddrFrom16(embedded)); one != other {
				t.Errorf("%v is %q, and %q through NAT64", addr, one, other)
			}
		}
		if notPublic(addr) == "" && (!addr.IsGlobalUnicast() || addr.IsPrivate() || addr.IsLoopback()) {
			t.Errorf("%v passes", addr)
		}
	})
}
