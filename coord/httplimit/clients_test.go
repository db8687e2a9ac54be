package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tandemhq/tandem/coord/httplimit"
)

func TestClients(t *testing.T) {
	behind, err := httplimit.NewClients("10.0.0.0/8", "192.168.7.1", "fd00::/8")
	if err != nil {
		t.Fatal(err)
	}
	direct, err := httplimit.NewClients()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, peer string
		forwarded  []string
		want, key  string
	}{
		{"no proxy", "192.0.2.1:5", nil, "192.0.2.1", "192.0.2.1"},
		{"a forged header", "192.0.2.1:5", []string{"198.51.100.1", "10.0.0.2"}, "192.0.2.1", "192.0.2.1"},
		{"a proxy", "10.0.0.1:5", []string{"192.0.2.1"}, "192.0.2.1", "192.0.2.1"},
		{"a proxy as IPv4 in IPv6", "[::ffff:10.0.0.1]:5", []string{"::ffff:192.0.2.1"}, "192.0.2.1", "192.0.2.1"},
		{"two proxies", "10.0.0.1:5", []string{"192.0.2.1, 192.168.7.1"}, "192.0.2.1", "192.0.2.1"},
		{"forged hops before", "10.0.0.1:5", []string{"10.0.0.9, 198.51.100.1, 192.0.2.1 , 10.0.0.2"}, "192.0.2.1", "192.0.2.1"},
		{"several lines", "10.0.0.1:5", []string{"198.51.100.1", "192.0.2.1", "10.0.0.2"}, "192.0.2.1", "192.0.2.1"},
		{"a port", "10.0.0.1:5", []string{"192.0.2.1:4711"}, "192.0.2.1", "192.0.2.1"},
		{"IPv6", "[fd00::1]:5", []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"IPv6 with a port", "[fd00::1]:5", []string{"[2001:db8:1:2:3:4:5:6]:80"}, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"a zone", "[fe80::1%eth0]:5", nil, "fe80::1", "fe80::/64"},
		{"a zone of a hop", "10.0.0.1:5", []string{"fe80::1%x"}, "fe80::1", "fe80::/64"},
		{"a proxy that says nothing", "10.0.0.1:5", nil, "10.0.0.1", "10.0.0.1"},
		{"a proxy's own request", "10.0.0.1:5", []string{"10.0.0.2"}, "10.0.0.1", "10.0.0.1"},
		{"garbage at the end", "10.0.0.1:5", []string{"192.0.2.1, who"}, "10.0.0.1", "10.0.0.1"},
		{"garbage before", "10.0.0.1:5", []string{"who, , 192.0.2.1"}, "192.0.2.1", "192.0.2.1"},
		{"nothing at the end", "10.0.0.1:5", []string{"192.0.2.1,"}, "10.0.0.1", "10.0.0.1"},
		{"no address", "@", []string{"192.0.2.1"}, "invalid IP", "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = test.peer
			r.Header["X-Forwarded-For"] = test.forwarded
			if got := behind.Address(r).String(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if got := behind.Key(r); got != test.key {
				t.Errorf("got the key %s, want %s", got, test.key)
			}
			if got, want := direct.Address(r), httplimit.ParseAddr(test.peer); got != want {
				t.Errorf("without proxies: got %s, want %s", got, want)
			}
		})
	}
	for _, wrong := range []string{"", "10.0.0.0/33", "fe80::1%eth0", "proxy.example.com"} {
		if _, err := httplimit.NewClients(wrong); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}
