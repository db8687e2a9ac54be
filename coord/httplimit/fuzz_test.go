package httplimit_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
)

// FuzzAddress wants that nothing a client writes into a header counts: only the hop that the first
// trusted proxy has seen does.
func FuzzAddress(f *testing.F) {
	for _, forged := range []string{
		"", "198.51.100.1", "10.0.0.1, ::1", ",", "who", "\"[2001:db8::1]:80\"", "fe80::1%eth0", "::ffff:10.0.0.9", "10.0.0.1:", "0.0.0.0",
	} {
		f.Add("192.0.2.1:5", forged, []byte{192, 0, 2, 7}, uint8(1))
		f.Add("[::ffff:10.0.0.1]:80", forged, []byte("0123456789abcdef"), uint8(2))
	}
	behind, err := httplimit.NewClients("10.0.0.0/8", "fd00::/8")
	if err != nil {
		f.Fatal(err)
	}
	direct, err := httplimit.NewClients()
	if err != nil {
		f.Fatal(err)
	}
	trusted := func(a netip.Addr) bool {
		return netip.MustParsePrefix("10.0.0.0/8").Contains(a) || netip.MustParsePrefix("fd00::/8").Contains(a)
	}
	f.Fuzz(func(t *testing.T, peer, forged string, client []byte, proxies uint8) {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {forged}}}
		from := httplimit.ParseAddr(peer)
		if from.Zone() != "" || from.Is4In6() || from.IsValid() && httplimit.ParseAddr(from.String()) != from {
			t.Fatalf("%q is read as %v", peer, from)
		}
		if got := direct.Address(r); got != from {
			t.Errorf("without proxies %q from %q is %v", forged, peer, got)
		}
		if got := behind.Address(r); !trusted(from) && got != from {
			t.Errorf("%q from %q, which is no proxy, is %v", forged, peer, got)
		}
		key := behind.Key(r)
		if network, err := netip.ParsePrefix(key); key != "unknown" && !httplimit.ParseAddr(key).Is4() && (err != nil || network.Bits() != 64) {
			t.Errorf("%q from %q has the key %q", forged, peer, key)
		}

		hop, ok := netip.AddrFromSlice(client)
		if hop = hop.Unmap(); !ok || trusted(hop) || hop.IsUnspecified() {
			return
		}
		hops := append([]string{forged, hop.String()}, slices.Repeat([]string{"10.0.0.9"}, int(proxies%4))...)
		for name, lines := range map[string][]string{"one line": {strings.Join(hops, ", ")}, "lines": hops} {
			r := &http.Request{RemoteAddr: "10.0.0.1:5", Header: http.Header{"X-Forwarded-For": lines}}
			if got := behind.Address(r); got != hop {
				t.Errorf("%q in %s is %v, want %v", hops, name, got, hop)
			}
		}
	})
}

// decides is a Limiter that answers what it is told.
type decides struct {
	coord.Limiter
	decisions []coord.Decision
}

func (d decides) AllowAll(context.Context, ...coord.Limit) ([]coord.Decision, error) {
	return d.decisions, nil
}

var (
	quotaItem = regexp.MustCompile(`^"[ab]";q=(\d{1,15});w=(\d{1,15})(?:;pk=:([A-Za-z0-9+/]+={0,2}):)?$`)
	limitItem = regexp.MustCompile(`^"[ab]";r=(\d{1,15})(?:;t=(\d{1,15}))?(?:;pk=:([A-Za-z0-9+/]+={0,2}):)?$`)
)

// FuzzFields wants structured fields and numbers that make sense, whatever the limits and decisions are.
func FuzzFields(f *testing.F) {
	f.Add(100, int64(time.Minute), 0, "key", true, int64(0), int64(time.Second), 5)
	f.Add(1, int64(time.Hour), 3, "\x00\xff\"", false, int64(time.Millisecond), int64(0), 0)
	f.Add(1_000_000, int64(time.Second), 1, "k", false, int64(coord.Never), int64(coord.Never), -1)
	f.Add(1, int64(1<<62), 1<<40, "k", true, int64(1), int64(1<<62), 1<<62)
	f.Fuzz(func(t *testing.T, rate int, per int64, burst int, key string, allowed bool, retry, reset int64, remaining int) {
		limiter := decides{decisions: []coord.Decision{
			{Allowed: allowed, Remaining: remaining, ResetAfter: time.Duration(reset)},
			{Allowed: allowed, Remaining: remaining / 2, ResetAfter: time.Duration(reset / 2)},
		}}
		if !allowed {
			limiter.decisions[0].RetryAfter = time.Duration(max(retry, 1))
		}
		policy := httplimit.Policy{
			Limit:   coord.Limit{Rate: rate, Per: time.Duration(per), Burst: burst},
			Key:     func(*http.Request) string { return key },
			ShowKey: true,
		}
		one, other := policy, policy
		one.Name, other.Name = "a", "b"
		limit, err := httplimit.New(limiter, httplimit.Options{}, one, other)
		if err != nil || key == "" {
			return
		}
		w := httptest.NewRecorder()
		limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		wait, err := strconv.ParseInt(w.Header().Get("Retry-After"), 10, 64)
		if waits := !allowed && time.Duration(retry) != coord.Never; waits != (err == nil && wait >= 1) || w.Code != map[bool]int{true: 404, false: 429}[allowed] {
			t.Fatalf("%d with %v", w.Code, w.Header())
		}
		for field, item := range map[string]*regexp.Regexp{"RateLimit-Policy": quotaItem, "RateLimit": limitItem} {
			items := strings.Split(w.Header().Get(field), ", ")
			if len(items) != 2 {
				t.Fatalf("%s: %v", field, w.Header())
			}
			for _, text := range items {
				m := item.FindStringSubmatch(text)
				if m == nil {
					t.Fatalf("%s has %s", field, text)
				}
				if pk, err := base64.StdEncoding.DecodeString(m[3]); err != nil || string(pk) != key {
					t.Errorf("%s has the key %q (%v), want %q", field, pk, err, key)
				}
				if m[2] == "" {
					continue
				}
				if seconds, err := strconv.ParseInt(m[2], 10, 64); err != nil || seconds < 1 || field == "RateLimit" && !allowed && seconds > wait {
					t.Errorf("%s has %s, Retry-After is %d", field, text, wait)
				}
			}
		}
	})
}
