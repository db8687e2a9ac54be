package pg_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

	entrance sync.Mutex // held: whoever connects waits

	mu     sync.Mutex
	frozen bool
	dead   map[net.Conn]bool // lets no byte pass
	cut    string
	deaf   string // see stall
	stuck  chan struct{}
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

// dropPackets lets no byte pass on the connections that are open, while they stay so.
func (p *proxy) dropPackets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = make(map[net.Conn]bool)
	for _, c := range p.conns {
		p.dead[c] = true
	}
}

// cutAfter closes the next connection that asks for a statement with this text,
// once the server has answered and before the client hears of it.
func (p *proxy) cutAfter(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = text
}

// stall passes nothing more to the connection that asks next for a statement with
// this text, nor takes anything for it from the server, until go on is called.
func (p *proxy) stall(text string) (goOn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.stuck = text, make(chan struct{})
	return sync.OnceFunc(func() { close(p.stuck) })
}

// stalls returns what the answer to a request waits for; nil: nothing.
func (p *proxy) stalls(request []byte) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf == "" || !bytes.Contains(request, []byte(p.deaf)) {
		return nil
	}
	p.deaf = ""
	return p.stuck
}

// doomed reports whether a request is the one to be cut.
func (p *proxy) doomed(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == "" || !bytes.Contains(request, []byte(p.cut)) {
		return false
	}
	p.cut = ""
	return true
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.entrance.Lock()
	p.entrance.Unlock() //nolint:staticcheck // passing through is all
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
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	_, _ = server.Write(slices.Concat(startup, body))
	var pipes sync.WaitGroup
	var cut atomic.Bool
	var stalled atomic.Pointer[chan struct{}]
	pipes.Go(func() {
		p.pipe(server, client, func(request []byte) bool {
			if p.doomed(request) {
				cut.Store(true)
			}
			if c := p.stalls(request); c != nil {
				stalled.Store(&c)
			}
			return true
		})
	})
	pipes.Go(func() {
		p.pipe(client, server, func([]byte) bool {
			if c := stalled.Swap(nil); c != nil {
				<-*c
			}
			return !cut.Load()
		})
	})
	pipes.Wait()
}

// pipe passes on what comes, until pass says no.
func (p *proxy) pipe(to, from net.Conn, pass func(data []byte) bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		frozen := p.frozen || p.dead[from]
		p.mu.Unlock()
		if frozen {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if !pass(buffer[:n]) {
			_ = to.Close()
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

// A pooler that refuses settings gets connections without them, and transactions that
// set them for themselves.
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
	migrator, err := pg.OpenMigrator(database)
	if err != nil {
		t.Fatal(err)
	}
	defer migrator.Close()
	for setting, want := range map[string]string{
		"statement_timeout": "0", "tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3",
	} {
		if err := migrator.QueryRowContext(t.Context(), `SHOW `+setting).Scan(&timeout); err != nil || timeout != want {
			t.Errorf("for migrations %s is %q, %v, want %q", setting, timeout, err, want)
		}
	}
	tx := begin(t, db)
	for setting, want := range map[string]string{
		"statement_timeout": "15s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "10s",
	} {
		if err := tx.QueryRowContext(t.Context(), `SHOW `+setting).Scan(&timeout); err != nil || timeout != want {
			t.Errorf("in a transaction behind the pooler %s is %q, %v", setting, timeout, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRowContext(t.Context(), `SHOW lock_timeout`).Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("after it lock_timeout is %q, %v", timeout, err)
	}
}

// The answer to a commit is lost. Others hear of what was committed, although they don't poll.
func TestAnswerToACommitIsLost(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	b := openWith(t, pg.Options{URL: through, ListenURL: database, Poll: time.Hour})
	other := openWith(t, pg.Options{URL: database, Poll: time.Hour})
	s := subscribe(t, other, "a")
	publish(t, b, "a", "before")
	want(t, "before", receive(t, s, 1), "before")
	p.cutAfter("COMMIT\x00")
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Publish(ctx, coord.NewEvent{Topic: "a", Kind: "committed"})
	})
	if !errors.Is(err, coord.ErrUnknownOutcome) {
		t.Fatalf("InTx: %v, want ErrUnknownOutcome", err)
	}
	want(t, "when its answer was lost", receive(t, s, 1), "committed")
}

// The answer to a statement that was carried out is lost. It is carried out
// once, and the caller learns that nobody knows.
func TestAnswerIsLost(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	b := openWith(t, pg.Options{URL: through, ListenURL: database, Poll: time.Second})
	db := admin(t, database)
	lose := func(what, statement string, call func() error) {
		t.Helper()
		p.cutAfter(statement)
		if err := call(); !errors.Is(err, coord.ErrUnknownOutcome) {
			t.Errorf("%s: %v, want ErrUnknownOutcome", what, err)
		}
	}
	count := func(what string, wanted int) {
		t.Helper()
		var n int
		if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+what).Scan(&n); err != nil || n != wanted {
			t.Errorf("%d %s, %v, want %d", n, what, err, wanted)
		}
	}
	lose("Publish", "coord_publish", func() error {
		_, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: "k"})
		return err
	})
	count("coord_events", 1)
	lose("Enqueue", "coord_enqueue", func() error {
		_, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"})
		return err
	})
	count("coord_runs", 1)
	claims, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute})
	if err != nil || len(claims) != 1 {
		t.Fatalf("Claim: %d, %v", len(claims), err)
	}
	lose("Finish", "coord_finish", func() error {
		return b.Claimer().Finish(t.Context(), coord.Result{Claim: claims[0], Outcome: coord.Succeed})
	})
	count("coord_runs WHERE state = 'succeeded'", 1)
	ticket, err := b.Tickets().Issue(t.Context(), coord.TicketFor{Purpose: "ws", User: "u", Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	lose("Redeem", "coord_redeem", func() error {
		_, err := b.Tickets().Redeem(t.Context(), ticket.Secret, coord.TicketUse{Purpose: "ws"})
		return err
	})
	for _, statement := range []string{"coord_begin", "coord_complete"} { // Do finds out
		calls := 0
		p.cutAfter(statement)
		o, replayed, err := coord.Do(t.Context(), b.Receipts(), coord.ReceiptFor{Key: statement},
			func(context.Context, coord.Receipt) ([]byte, error) {
				calls++
				return []byte("x"), nil
			})
		if err != nil || replayed || string(o.Body) != "x" || calls != 1 {
			t.Errorf("Do whose answer to %s is lost: %+v, %v, %v after %d calls", statement, o, replayed, err, calls)
		}
	}
	count("coord_receipts WHERE done", 2)
	lose("InTx", "COMMIT\x00", func() error {
		return b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
			return tx.Publish(ctx, coord.NewEvent{Topic: "a", Kind: "k"})
		})
	})
	count("coord_events", 2)
	p.cutAfter("coord_publish") // within the transaction, which is rolled back
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Publish(ctx, coord.NewEvent{Topic: "a", Kind: "k"})
	})
	if !errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUnknownOutcome) {
		t.Errorf("InTx: %v, want ErrUnavailable and a known outcome", err)
	}
	count("coord_events", 2)
}

// A server that was restarted has closed the idle connections. Nobody's request
// is the one that finds out.
func TestIdleConnectionsAreClosed(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	b := openWith(t, pg.Options{URL: database, MaxConns: 4, Poll: time.Hour})
	db := admin(t, database)
	for range 10 {
		publish(t, b, "a", "k")
		terminate(t, db, `true`)
		publish(t, b, "a", "k")
	}
}

// A replica listens later than it opens. What rang in between is looked for.
func TestListensLate(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	p.entrance.Lock()
	b := openWith(t, pg.Options{URL: database, ListenURL: through, Poll: time.Hour})
	s := subscribe(t, b, "a")
	hints, stop := b.Claimer().Hints()
	defer stop()
	exec(t, admin(t, database), `INSERT INTO coord_topics VALUES ('a', 1, 7, 0);
		INSERT INTO coord_events (topic, seq, tag, prev, kind, payload, at) VALUES ('a', 1, 7, 0, 'early', '', now())`)
	p.entrance.Unlock()
	want(t, "once the replica listens", receive(t, s, 1), "early")
	select {
	case <-hints:
	case <-time.After(patience):
		t.Error("no hint came")
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

// The database is there and empty.
func TestNoSchema(t *testing.T) {
	url := testenv.NewDatabase(t, "", nil)
	_, err := pg.Open(t.Context(), pg.Options{URL: url})
	if err == nil || !strings.Contains(err.Error(), "lacks the schema") || errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Open: %v, want that the schema is missing", err)
	}
}
