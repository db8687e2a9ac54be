// Package app is the application: a team chat with scheduled tasks, on whatever
// coordination backend it is given.
package app

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
)

// Config are the settings of one replica. Call [Config.Complete] before use.
type Config struct {
	// Addr is the address to listen on. Default 127.0.0.1:8080.
	Addr string
	// PublicURL is where browsers find the program, such as
	// https://chat.example.com. It decides which origins are accepted, whether
	// cookies are Secure, and the set-up link. It must be https unless its host is
	// a loopback address. Empty: browsers on this machine only, at Addr.
	PublicURL string
	// Origins are further origins that are accepted besides that of PublicURL.
	Origins []string
	// Endpoints are where pages open their WebSockets, such as the replicas by their own names, in
	// the order in which they are tried. Default: where a page comes from.
	Endpoints []string
	// TrustedProxies are addresses or ranges (CIDR) of proxies whose
	// X-Forwarded-For is believed. Empty: none.
	TrustedProxies []string
	// MetricsToken is the bearer token for /metrics. Empty: /metrics answers only
	// while browsers are on this machine only, to requests from this machine that
	// came through no proxy.
	MetricsToken string

	// HTTPTasksAllow are addresses or ranges (CIDR) that tasks may make requests to
	// although they are not public. Empty: none.
	HTTPTasksAllow []string

	// Node names this replica, for people to read.
	Node string
	// Version of the program and Driver of the backend, for people to read.
	Version, Driver string
	// Output gets what is not for the log: the set-up link. Default: nowhere.
	Output io.Writer

	// Workers is how many runs are executed at a time. Default 10.
	Workers int
	// Lease is how long a run stays with a replica that vanished. Default 30 s.
	Lease time.Duration
	// Poll is the longest time until work that is due is noticed. Default 500 ms.
	Poll time.Duration

	// DrainGrace is how long the replica goes on serving after it was told to stop
	// and says that it is not ready, so that a load balancer can notice. Default 0.
	DrainGrace time.Duration
	// ShutdownTimeout bounds the stop as a whole, DrainGrace included. Default 20 s.
	ShutdownTimeout time.Duration

	// Writes are the requests of one person that change something. Default 50 per second,
	// burst 500.
	Writes coord.Limit

	// JobsOff are background jobs that are not done, by name.
	JobsOff []string

	// Auth, Hub and Presence tune those parts, and Keep says how long things are kept; the zero
	// values are good.
	Auth     auth.Options
	Hub      hub.Options
	Presence presence.Options
	Keep     jobs.Keep
}

// Complete fills in the defaults and checks the settings. Its error is a
// *coord.InvalidError that names the field.
func (c *Config) Complete() error {
	if c.Addr == "" {
		c.Addr = "127.0.0.1:8080"
	}
	if c.Output == nil {
		c.Output = io.Discard
	}
	if c.Node == "" {
		c.Node = "tandem"
	}
	if c.Workers == 0 {
		c.Workers = 10
	}
	if c.Lease == 0 {
		c.Lease = 30 * time.Second
	}
	if c.Poll == 0 {
		c.Poll = 500 * time.Millisecond
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 20 * time.Second
	}
	if c.Writes.Rate == 0 {
		c.Writes = coord.Limit{Rate: 50, Per: time.Second, Burst: 500}
	}
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return invalid("Addr", "%q is not of the form host:port", c.Addr)
	}
	if c.PublicURL == "" && !loopback(host) {
		return invalid("PublicURL", "must be set when Addr (%s) can be reached from other machines", c.Addr)
	}
	if c.PublicURL != "" {
		c.PublicURL = strings.TrimRight(c.PublicURL, "/")
		if reason := badOrigin(c.PublicURL); reason != "" {
			return invalid("PublicURL", "%q %s", redacted(c.PublicURL), reason)
		}
	}
	for _, origin := range c.Origins {
		if reason := badOrigin(origin); reason != "" {
			return invalid("Origins", "%q %s", redacted(origin), reason)
		}
	}
	for _, endpoint := range c.Endpoints {
		if reason := badOrigin(endpoint); reason != "" {
			return invalid("Endpoints", "%q %s", redacted(endpoint), reason)
		}
	}
	for _, proxy := range c.TrustedProxies {
		if _, err := httplimit.NewClients(proxy); err != nil {
			return invalid("TrustedProxies", "%q is neither an address nor a range such as 10.0.0.0/8", proxy)
		}
	}
	if _, err := c.httpTasksAllow(); err != nil {
		return err
	}
	if err := c.checkSessions(); err != nil {
		return err
	}
	if c.DrainGrace < 0 || c.DrainGrace >= c.ShutdownTimeout {
		return invalid("DrainGrace", "is %v, must be shorter than ShutdownTimeout (%v)", c.DrainGrace, c.ShutdownTimeout)
	}
	return nil
}

// checkSessions bounds what is kept of people.
func (c *Config) checkSessions() error {
	def(&c.Auth.Sessions.Idle, store.SessionIdle)
	def(&c.Auth.Sessions.Absolute, store.SessionAbsolute)
	def(&c.Keep.Audit, 365*day)
	for _, s := range []struct {
		field              string
		value, least, most time.Duration
	}{
		{"SessionIdle", c.Auth.Sessions.Idle, 5 * time.Minute, 365 * day}, // a use is written down once a minute
		{"SessionLength", c.Auth.Sessions.Absolute, c.Auth.Sessions.Idle, 365 * day},
		{"AuditKeep", c.Keep.Audit, day, 3650 * day},
	} {
		if s.value < s.least || s.value > s.most {
			return invalid(s.field, "is %v, must be between %v and %v", s.value, s.least, s.most)
		}
	}
	return nil
}

func def[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

const day = 24 * time.Hour

func (c Config) httpTasksAllow() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range c.HTTPTasksAllow {
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil || prefix.Addr().Is4In6() {
			return nil, invalid("HTTPTasksAllow", "%q is neither an address nor a range such as 10.0.0.0/8", text)
		}
		list = append(list, prefix)
	}
	return list, nil
}

func invalid(field, format string, args ...any) error {
	return &coord.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// badOrigin says what is wrong with an origin, the beginning of a URL.
func badOrigin(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return "is not a URL such as https://chat.example.com"
	case u.User != nil:
		return "must not hold a user name or a password"
	case u.Path != "" || u.RawQuery != "" || u.Fragment != "":
		return "must be a scheme and a host, without a path"
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "must be https: cookies and passwords would travel in the clear"
	}
	return ""
}

// redacted is what may be printed of a URL. Where a mistake hides the password from the
// parser, as a missing scheme does, that is nothing.
func redacted(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.User == nil && strings.Contains(s, "@") {
		return "…"
	}
	return u.Redacted()
}

// loopback reports whether a host is this machine by its name alone.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

// ClosingTime is what the end of [Server.Run] leaves of ShutdownTimeout to whoever closes what the
// replica stands on.
func (c Config) ClosingTime() time.Duration { return (c.ShutdownTimeout - c.DrainGrace) / 10 }

// Secure reports whether browsers reach the program over https only.
func (c Config) Secure() bool { return strings.HasPrefix(c.PublicURL, "https://") }

// Local reports whether browsers are on this machine only.
func (c Config) Local() bool {
	u, err := url.Parse(c.PublicURL)
	return c.PublicURL == "" || err == nil && loopback(u.Hostname())
}

// HostAllowed reports whether a request may name the host that it does. While browsers are
// on this machine only, that is this machine: a page from elsewhere whose name was made to
// lead here is not served.
func (c Config) HostAllowed(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return !c.Local() || loopback(host)
}

// PageURL is where people find the page, without a slash at its end, as far as that is
// known without a listener.
func (c Config) PageURL() string {
	if c.PublicURL != "" {
		return c.PublicURL
	}
	return "http://" + c.Addr
}

// AllowedOrigins are the origins that are accepted from other hosts than the
// one a request names.
func (c Config) AllowedOrigins() []string {
	list := slices.Clone(c.Origins)
	if c.PublicURL != "" {
		list = append(list, c.PublicURL)
	}
	return list
}

// OriginAllowed reports whether a request comes from a page of this program, or
// from a client that is not a browser and sends no origin. Without a PublicURL
// the page must be at the same loopback address as the request.
func (c Config) OriginAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(c.AllowedOrigins(), origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && c.PublicURL == "" && u.Host == r.Host && loopback(u.Hostname())
}
