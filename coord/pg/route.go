package pg

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

// Servers have this long to take a connection. Of several that a connection string names, those
// that are away are to keep nobody waiting for as long.
const (
	connectTimeout       = 5 * time.Second
	connectTimeoutOfMany = 2 * time.Second
)

// route is the way to the server that takes writes, which the pools of a backend share. A
// connection string may name several servers, and the one behind an address may change.
type route struct {
	text    string // the connection string, as given
	servers []pq.Config
	last    atomic.Int32 // the server that was connected to last, which is asked first
	era     atomic.Pointer[era]

	mu    sync.Mutex
	pools []pool
}

// pool is one of the pools on a route.
type pool struct {
	db   *sql.DB
	idle int // most idle connections
}

func (r *route) add(p pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools = append(r.pools, p)
}

// giveUpIdle closes the idle connections of all pools. The others are closed by who gives them back.
func (r *route) giveUpIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		p.giveUpIdle()
	}
}

func (p pool) giveUpIdle() {
	p.db.SetMaxIdleConns(0)
	p.db.SetMaxIdleConns(p.idle)
}

// era is a time in which no server was found that refuses to write. When one is, all
// connections are left, also those that are idle or only read: the answers of a standby, or of
// a primary that was, are old.
type era struct {
	route *route
	over  chan struct{}
}

// end leaves all connections that were made in this era.
func (e *era) end() {
	if e.route.era.CompareAndSwap(e, &era{e.route, make(chan struct{})}) {
		close(e.over)
		go e.route.giveUpIdle() // a statement is under way
	}
}

// standby is the error of who has read on a standby, which may not have what others were told of
// already: it ends the era.
func (e *era) standby() error {
	e.end()
	return errReadOnly
}

func (e *era) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// newRoute reads a connection string. Its error holds no part of it that may be secret, if it is
// a URL.
func newRoute(text string) (*route, error) {
	cfg, err := parse(text)
	if err != nil {
		return nil, err
	}
	r := &route{text: text}
	r.era.Store(&era{r, make(chan struct{})})
	for _, server := range append([]pq.ConfigMultihost{{Host: cfg.Host, Hostaddr: cfg.Hostaddr, Port: cfg.Port}}, cfg.Multi...) {
		one := cfg.Clone()
		one.Multi = nil
		one.Host, one.Hostaddr, one.Port = server.Host, server.Hostaddr, server.Port
		r.servers = append(r.servers, one)
	}
	return r, nil
}

// parse reads a connection string and adds what it does not say itself.
func parse(text string) (pq.Config, error) {
	if isURL(text) {
		text = spread(text)
		if _, err := url.Parse(text); err != nil {
			// What it says may hold a part of the password.
			return pq.Config{}, errors.New("it is not a URL; special characters in a password must be percent-encoded")
		}
	}
	cfg, err := pq.NewConfig(text)
	if err != nil {
		return pq.Config{}, err
	}
	switch cfg.TargetSessionAttrs {
	case "", pq.TargetSessionAttrsAny, pq.TargetSessionAttrsPrimary, pq.TargetSessionAttrsReadWrite:
	default:
		return pq.Config{}, fmt.Errorf("target_session_attrs is %q; a server is needed that takes writes, read-write or primary",
			cfg.TargetSessionAttrs)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
		if len(cfg.Multi) > 0 {
			cfg.ConnectTimeout = connectTimeoutOfMany
		}
	}
	if cfg.ApplicationName == "" {
		cfg.ApplicationName = "tandem"
	}
	return cfg, nil
}

// connectors returns one for each server.
func (r *route) connectors(settings map[string]string) (list []*pq.Connector, err error) {
	for _, cfg := range r.servers {
		cfg := cfg.Clone()
		// Without it a backslash in a text could end the text.
		runtime := map[string]string{"standard_conforming_strings": "on"}
		maps.Copy(runtime, settings)
		maps.Copy(runtime, cfg.Runtime)
		if delete(runtime, isolation); settings != nil {
			runtime[isolation] = "read committed"
			// Behind a pooler it would say little: what it is asked next, another server may answer.
			if cfg.TargetSessionAttrs == "" {
				cfg.TargetSessionAttrs = pq.TargetSessionAttrsReadWrite
			}
		}
		cfg.Runtime = runtime
		c, err := pq.NewConnectorConfig(cfg)
		if err != nil {
			return nil, err
		}
		c.Dialer(dialer())
		list = append(list, c)
	}
	return list, nil
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// spread writes a URL with several hosts that have ports, a:1,b:2, in the way that lib/pq reads.
func spread(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, rest := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@') + 1
	servers := strings.Split(authority[at:], ",")
	if len(servers) == 1 || !slices.ContainsFunc(servers, func(s string) bool { return strings.Contains(s, ":") }) {
		return text
	}
	hosts, ports := make([]string, len(servers)), make([]string, len(servers))
	for i, server := range servers {
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			host, port = strings.Trim(server, "[]"), ""
		}
		if port == "" {
			port = "5432"
		}
		hosts[i], ports[i] = host, port
	}
	rest, fragment, _ := strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	q := url.Values{"host": {strings.Join(hosts, ",")}, "port": {strings.Join(ports, ",")}}.Encode()
	if query != "" {
		q += "&" + query
	}
	if fragment != "" {
		q += "#" + fragment
	}
	return scheme + "://" + authority[:at] + path + "?" + q
}

// listenText returns a connection string for lib/pq's listener, which knows no other way to be
// told what it wants of a server.
func listenText(text string) (string, error) {
	cfg, err := parse(text)
	if err != nil {
		return "", err
	}
	if cfg.TargetSessionAttrs == "" {
		cfg.TargetSessionAttrs = pq.TargetSessionAttrsReadWrite
	}
	wants := url.Values{
		"connect_timeout":      {strconv.Itoa(max(1, int(cfg.ConnectTimeout.Seconds())))},
		"target_session_attrs": {string(cfg.TargetSessionAttrs)},
		"application_name":     {cfg.ApplicationName},
	}
	if !isURL(text) {
		quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
		for name := range wants {
			text += " " + name + "='" + quote.Replace(wants.Get(name)) + "'"
		}
		return text, nil
	}
	text, _, _ = strings.Cut(spread(text), "#")
	if strings.Contains(text, "?") {
		return text + "&" + wants.Encode(), nil
	}
	return text + "?" + wants.Encode(), nil
}
