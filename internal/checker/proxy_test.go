//go:build unix

package checker

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is a TCP proxy at an address that stays, for a server that may be started at another one.
type proxy struct {
	listener net.Listener
	running  sync.WaitGroup
	late     atomic.Int64 // by how much now and then something arrives late, ns

	mu       sync.Mutex
	upstream string        // empty: there is none
	thawed   chan struct{} // closed while the proxy forwards
	frozen   bool
	links    map[*link]struct{}
	ended    bool
}

// link is a connection through a proxy.
type link struct {
	ends [2]net.Conn
	cut  chan struct{}
	once sync.Once
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.cut)
		for _, end := range l.ends {
			if end != nil {
				_ = end.Close()
			}
		}
	})
}

// newProxy starts a proxy, which ends with the test.
func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, upstream: upstream, thawed: make(chan struct{}), links: make(map[*link]struct{})}
	close(p.thawed)
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// through returns the URL that leads through the proxy.
func (p *proxy) through(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.address()
	return u.String()
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{ends: [2]net.Conn{conn}, cut: make(chan struct{})}
		p.mu.Lock()
		if p.ended {
			_ = conn.Close()
		} else {
			p.links[l] = struct{}{}
			p.running.Go(func() { p.serve(l) })
		}
		p.mu.Unlock()
	}
}

func (p *proxy) serve(l *link) {
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if !p.pass(l) {
		return
	}
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	if upstream == "" {
		return
	}
	server, err := net.DialTimeout("tcp4", upstream, patience)
	if err != nil {
		return
	}
	p.mu.Lock()
	l.ends[1] = server
	p.mu.Unlock()
	select {
	case <-l.cut: // before there was a second end to close
		_ = server.Close()
	default:
	}
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() {
			p.forward(l, l.ends[i], l.ends[1-i])
			l.close()
		})
	}
	both.Wait()
}

func (p *proxy) forward(l *link, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !p.pass(l) { // the end of a connection is news too
			return
		}
		if d := time.Duration(p.late.Load()); d > 0 && rand.IntN(4) == 0 {
			select {
			case <-time.After(d):
			case <-l.cut:
				return
			}
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while the proxy is frozen, and reports whether the link goes on.
func (p *proxy) pass(l *link) bool {
	for {
		p.mu.Lock()
		thawed, frozen := p.thawed, p.frozen
		p.mu.Unlock()
		if !frozen {
			select {
			case <-l.cut:
				return false
			default:
				return true
			}
		}
		select {
		case <-thawed:
		case <-l.cut:
			return false
		}
	}
}

// freeze makes every connection half open: it stays, takes what it is sent, and nothing arrives.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen {
		p.frozen, p.thawed = true, make(chan struct{})
	}
}

// thaw ends that. What was sent meanwhile arrives.
func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen {
		p.frozen = false
		close(p.thawed)
	}
}

// lead makes new connections lead to another server; those that there are go on.
func (p *proxy) lead(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// target is where new connections lead.
func (p *proxy) target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream
}

// cut ends all connections.
func (p *proxy) cut() { p.cutSome(nil) }

// cutSome ends every fourth connection.
func (p *proxy) cutSome(rng *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if rng == nil || rng.IntN(4) == 0 {
			l.close()
		}
	}
}

// TestProxy sees that a frozen link forwards nothing, and that nothing is lost by that.
func TestProxy(t *testing.T) {
	var lc net.ListenConfig
	server, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := newProxy(t, server.Addr().String())
	near, err := net.Dial("tcp4", p.address())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	heard := func(c net.Conn, d time.Duration) string {
		_ = c.SetReadDeadline(time.Now().Add(d))
		buffer := make([]byte, 100)
		n, _ := c.Read(buffer)
		return string(buffer[:n])
	}
	say := func(c net.Conn, text string) {
		if _, err := c.Write([]byte(text)); err != nil {
			t.Error(err)
		}
	}
	say(near, "a")
	if got := heard(far, patience); got != "a" {
		t.Errorf("heard %q, want a", got)
	}
	p.freeze()
	say(near, "b")
	say(far, "c")
	if got := heard(far, 50*time.Millisecond) + heard(near, 50*time.Millisecond); got != "" {
		t.Errorf("heard %q through a frozen link", got)
	}
	p.thaw()
	if got := heard(far, patience) + heard(near, patience); got != "bc" {
		t.Errorf("heard %q, want bc", got)
	}
	p.freeze()
	p.cut()
	_ = far.SetReadDeadline(time.Now().Add(patience))
	if _, err := far.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a cut link has not ended: %v", err)
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
