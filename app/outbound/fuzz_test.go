package outbound

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

// FuzzRequest wants that what passes the check can be sent, and that what does not is told by its field
// without a word of a password.
func FuzzRequest(f *testing.F) {
	for _, text := range []string{
		`{"url":"https://example.com/report"}`,
		`{"method":"POST","url":"http://user:hunter2hunter2@example.com:8080/?q=1#f","headers":{"X-A":"1","x-a":"2"},"body":"b"}`,
		`{"url":"https://[::1%25eth0]:99999/","timeout_s":601}`,
		`{"url":"ftp://x"}`, `{"url":"https://"}`, `{"url":"https://:80"}`, `{"url":"https:example.com"}`,
		`{"method":"PUT","url":"https://a","headers":{"A\r\nB":"c"},"expect_status":[99]}`,
		`{"method":"PUT","url":"https://a","headers":{"A":"b\r\nC: d"},"expect_status":[204,599]}`,
		`{"url":"https://x:hunter2hunter2@a\u0000b"}`, `{"url":"https://ü.example/ü?ü"}`,
	} {
		f.Add([]byte(text))
	}
	fields := []string{"method", "url", "headers", "body", "expect_status", "timeout_s"}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Request
		if json.Unmarshal(text, &r) != nil {
			return
		}
		if err := r.Check(); err != nil {
			bad, ok := errors.AsType[*coord.InvalidError](err)
			if !ok || !slices.Contains(fields, bad.Field) || bad.Reason == "" {
				t.Fatalf("%s: %#v", text, err)
			}
			if strings.Contains(r.URL, ":hunter2hunter2@") && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", text, err)
			}
			return
		}
		req, err := r.first(t.Context())
		if err != nil {
			t.Fatalf("%s passes, and then %v", text, err)
		}
		if req.URL.Hostname() == "" || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
			t.Errorf("%s leads to %q", text, req.URL)
		}
		if err := req.Write(discard{}); err != nil {
			t.Errorf("%s passes, and can't be written: %v", text, err)
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// FuzzRedirect wants that headers and bodies go nowhere but where they were given for.
func FuzzRedirect(f *testing.F) {
	for _, to := range []string{
		"/next", "//evil.example/", "https://example.com/", "http://example.com:443/", "https://example.com.evil.example/",
		"https://EXAMPLE.com:443/a", "https://user:pw@example.com/", "ftp://example.com", "\x00", "?", "https://example.com@evil.example",
	} {
		f.Add("https://example.com/", to, 302, "GET")
		f.Add("http://example.com/", to, 307, "POST")
	}
	f.Fuzz(func(t *testing.T, from, to string, status int, method string) {
		r := Request{Method: method, URL: from, Header: map[string]string{"Authorization": "Bearer secret", "Content-Type": "text/plain"}}
		if !safe(method) {
			r.Body = "secret"
		}
		if r.Check() != nil {
			return
		}
		req, err := r.first(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		following, err := next(req, &http.Response{StatusCode: status, Header: http.Header{"Location": {to}}})
		if err != nil || following == nil {
			return
		}
		at := following.URL
		if status < 301 || status > 308 || at.Scheme != "http" && at.Scheme != "https" || at.Hostname() == "" {
			t.Fatalf("%d from %q to %q leads to %q", status, from, to, at)
		}
		same := strings.EqualFold(req.URL.Hostname(), at.Hostname()) && (req.URL.Scheme == at.Scheme || at.Scheme == "https")
		if given := following.Header.Get("Authorization") != "" || following.Body != nil && following.Method != http.MethodGet; given && !same {
			t.Errorf("%d from %q to %q: what was given goes to %q", status, from, to, at)
		}
		if following.Method != method && following.Method != http.MethodGet {
			t.Errorf("%s goes on as %s", method, following.Method)
		}
	})
}

// FuzzControl wants no address that is not public to be dialled, however it is written.
func FuzzControl(f *testing.F) {
	for _, address := range []string{
		"1.1.1.1:443", "127.0.0.1:80", "[::1]:80", "[::ffff:10.0.0.1]:80", "[fe80::1%eth0]:80", "0:80", "127.1:80", "[2606:4700::1111%x]:1", "",
	} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		err := guard{}.control("tcp", address, nil)
		to, parseErr := netip.ParseAddrPort(address)
		addr := to.Addr().Unmap().WithZone("")
		if err == nil && (parseErr != nil || !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.IsLinkLocalUnicast()) {
			t.Errorf("%q passes", address)
		}
		if _, ok := errors.AsType[refusal](err); err != nil && !ok {
			t.Errorf("%q: %v", address, err)
		}
	})
}
