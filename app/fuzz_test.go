package app_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
)

const secret = "hunter2hunter2"

// showsSecret reports whether the secret stands in a URL elsewhere than as its password.
func showsSecret(s string) bool {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		return strings.Contains(u.Redacted(), secret)
	}
	return strings.Contains(strings.ReplaceAll(s, ":"+secret+"@", ""), secret)
}

// FuzzConfig wants that settings which pass can be used, and that the others are told by their field and
// without a word of a password.
func FuzzConfig(f *testing.F) {
	f.Add("127.0.0.1:8080", "", "", "", "", "")
	f.Add(":80", "https://chat.example.com/", "https://a.example", "https://b.example:8443", "10.0.0.0/8", "192.168.0.0/16")
	f.Add("[::1]:0", "http://localhost:1", "http://127.0.0.1", "http://[::1]:80", "fe80::1%eth0", "fd00::1")
	f.Add("x", "https://ada:"+secret+"@a", "https://:"+secret+"@", "https://a?"+secret, "::ffff:10.0.0.0/104", "::ffff:10.0.0.1")
	f.Add("[::1]:80", "https://ada:"+secret+"@a", "", "", "", "")
	f.Add(":80", "https://a", "https://ada:"+secret+"@a", "https://b", "", "")
	f.Add(":80", "https://a", "", "https://ada:"+secret+"@a", "", "")
	f.Add("[::1]:80", "ada:"+secret+"@a", "https:ada:"+secret+"@a", "https:/ada:"+secret+"@a", "", "")
	f.Add("h:p", "https://a b", "HTTPS://EXAMPLE.COM", "https://a:b:c", "10.0.0.1/99", "")
	fields := map[string]bool{
		"Addr": true, "PublicURL": true, "Origins": true, "Endpoints": true, "TrustedProxies": true, "HTTPTasksAllow": true, "DrainGrace": true,
	}
	list := func(s string) []string {
		if s == "" {
			return nil
		}
		return []string{s}
	}
	f.Fuzz(func(t *testing.T, addr, public, origin, endpoint, proxy, allow string) {
		c := app.Config{
			Addr: addr, PublicURL: public, Origins: list(origin), Endpoints: list(endpoint),
			TrustedProxies: list(proxy), HTTPTasksAllow: list(allow),
		}
		if err := c.Complete(); err != nil {
			bad, ok := errors.AsType[*coord.InvalidError](err)
			if !ok || !fields[bad.Field] || bad.Reason == "" {
				t.Fatalf("%#v", err)
			}
			if strings.Contains(err.Error(), secret) && !showsSecret(public) && !showsSecret(origin) && !showsSecret(endpoint) {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := httplimit.NewClients(c.TrustedProxies...); err != nil {
			t.Errorf("the proxy %q passes, and then: %v", proxy, err)
		}
		if _, err := app.NewOutbound(c); err != nil {
			t.Errorf("the address %q passes, and then: %v", allow, err)
		}
		protection := http.NewCrossOriginProtection()
		for _, allowed := range c.AllowedOrigins() {
			if err := protection.AddTrustedOrigin(allowed); err != nil {
				t.Errorf("the origin %q passes, and then: %v", allowed, err)
			}
		}
		if again := c; again.Complete() != nil || again.PublicURL != c.PublicURL {
			t.Errorf("%q is not complete when it was completed", c.PublicURL)
		}
	})
}
