package pg_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// proxy stands between a replica and the server.
type proxy struct {
	net.Listener
	server string
	// likePooler refuses connections that bring settings, as PgBouncer does.
	likePooler bool

	mu     sync.Mutex
	frozen bool
	conns  []net.Conn
}

// startProxy returns the URL of the database through a proxy.
func startProxy(t *testing.T, database string, likePooler bool) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, server: u.Host, likePooler: likePooler}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		serving.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

// freeze lets no byte pass from now on, while all connections stay open.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	startup := make([]byte, 4)
	if _, err := io.ReadFull(client, startup); err != nil {
		return
	}
	body := make([]byte, binary.BigEndian.Uint32(startup)-4)
	if _, err := io.ReadFull(client, body); err != nil {
		return
	}
	if p.likePooler && bytes.Contains(body, []byte("statement_timeout")) {
		_, _ = client.Write(protocolViolation("unsupported startup parameter: statement_timeout"))
		return
	}
	server, err := net.Dial("tcp", p.server) //nolint:noctx // closed with the proxy
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	_, _ = server.Write(append(startup, body...))
	var pipes sync.WaitGroup
	pipes.Go(func() { p.pipe(server, client) })
	pipes.Go(func() { p.pipe(client, server) })
	pipes.Wait()
}

func (p *proxy) pipe(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, werr := to.Write(buffer[:n]); werr != nil || err != nil {
			_ = to.Close()
			return
		}
	}
}

// protocolViolation is the message of the protocol with that error.
func protocolViolation(message string) []byte {
	body := "SFATAL\x00C08P01\x00M" + message + "\x00\x00"
	packet := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(body)))
	return append(packet, body...)
}

// A pooler that refuses settings gets connections without them.
func TestPoolerRefusesSettings(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	_, through := startProxy(t, database, true)
	b := openWith(t, pg.Options{URL: through, ListenURL: database, Poll: time.Second})
	s := subscribe(t, b, "a")
	publish(t, b, "a", "through the pooler")
	want(t, "through the pooler", receive(t, s, 1), "through the pooler")
	db := admin(t, through)
	var timeout string
	if err := db.QueryRowContext(t.Context(), `SHOW statement_timeout`).Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("behind the pooler statement_timeout is %q, %v", timeout, err)
	}
	if err := admin(t, database).QueryRowContext(t.Context(), `SHOW statement_timeout`).Scan(&timeout); err != nil || timeout != "15s" {
		t.Errorf("directly statement_timeout is %q, %v", timeout, err)
	}
}

// The network is dead but nothing says so: calls end with their context as
// ErrUnavailable, and Close returns within its own.
func TestDeadNetwork(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	b, err := pg.Open(t.Context(), pg.Options{URL: through, Poll: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, b, "a")
	p.freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := b.Claimer().Claim(ctx, coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Claim: %v, want ErrUnavailable", err)
	}
	if _, err := b.Tickets().Redeem(ctx, coord.NewTicketSecret(), coord.TicketUse{}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Redeem: %v, want ErrUnavailable", err)
	}
	closing, cancelClosing := context.WithTimeout(t.Context(), time.Second)
	defer cancelClosing()
	_ = b.Close(closing) // nil, or that it did not end everything in time
	if _, err := s.Next(t.Context()); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Next after Close: %v, want ErrClosed", err)
	}
	if err := b.Ping(t.Context()); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Ping after Close: %v, want ErrClosed", err)
	}
}

// Nothing listens there.
func TestNoServer(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	if _, err := pg.Open(t.Context(), pg.Options{URL: "postgres://" + address + "/none?sslmode=disable"}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Open: %v, want ErrUnavailable", err)
	}
}
