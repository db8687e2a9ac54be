package web_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the rows

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/migrations"
	"github.com/tandemhq/tandem/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	deadline = 30 * time.Second // for what should happen at once, on a busy machine too
	password = "correct horse"
)

// database is what replicas share: rows in SQLite in memory, coordination in
// package memory, one clock for both.
type database struct {
	rows  *bun.DB
	coord *memory.Store
	ahead atomic.Int64 // of the machine's clock
	still atomic.Pointer[time.Time]
	gets  atomic.Int64 // how often a call was looked at
}

func (d *database) now() time.Time {
	now := time.Now()
	if at := d.still.Load(); at != nil {
		now = *at
	}
	return now.Add(time.Duration(d.ahead.Load()))
}

// stop lets the clock stand still, but for what it is put forward.
func (d *database) stop() {
	now := time.Now()
	d.still.Store(&now)
}

// Observe hears of each operation.
func (d *database) Observe(_ context.Context, o coord.Observation) {
	if o.Op == "calls.get" {
		d.gets.Add(1)
	}
}

// advance puts the clock forward.
func (d *database) advance(by time.Duration) { d.ahead.Add(int64(by)) }

func newDatabase(t testing.TB) *database {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	if _, err := migrations.Up(t.Context(), rows, migrations.SQLite, migrations.App); err != nil {
		t.Fatal(err)
	}
	d := &database{rows: bun.NewDB(rows, sqlitedialect.New())}
	// Limits are exact on a busy machine too: each call waits for the store.
	o := coord.Options{Observer: d, Limiter: coord.LimiterOptions{Deadline: deadline}}
	d.coord = memory.NewStore(memory.Options{Now: d.now, Options: o})
	return d
}

// open returns what a further replica works with, until the end of the test.
func (d *database) open(t testing.TB) (coord.Backend, *store.Store) {
	t.Helper()
	backend := d.coord.Open()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := backend.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return backend, store.New(store.Options{Write: d.rows, Backend: backend, Now: d.now})
}

// logger discards what is logged, unless TANDEM_TEST_LOG is set.
func logger(t testing.TB) *slog.Logger {
	t.Helper()
	out := io.Discard
	if os.Getenv("TANDEM_TEST_LOG") != "" {
		out = t.Output()
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// replica is a whole server on a port of its own.
type replica struct {
	base    string
	auth    *auth.Service
	backend coord.Backend
	cancel  context.CancelFunc
	ended   chan error
}

// start runs a replica until the end of the test.
func start(t testing.TB, db *database, configure func(*app.Config)) *replica {
	t.Helper()
	return startLogged(t, db, configure, logger(t))
}

func startLogged(t testing.TB, db *database, configure func(*app.Config), log *slog.Logger) *replica {
	t.Helper()
	backend, st := db.open(t)
	c := app.Config{
		Node: t.Name(), Driver: "memory", Version: "test", ShutdownTimeout: 5 * time.Second, Poll: 20 * time.Millisecond,
		Auth: auth.Options{Hashing: auth.Hashing{Memory: 64, Iterations: 1}},
	}
	if configure != nil {
		configure(&c)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	m := app.NewMetrics(c)
	hl := app.NewHealth(backend, nil, m, log)
	k, err := keys.Open(t.Context(), backend, keys.Options{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	a, r := app.NewAuth(c, st, backend, k, log), rooms.New(st, backend)
	calls, err := app.NewOutbound(c)
	if err != nil {
		t.Fatal(err)
	}
	ts := tasks.New(st, backend, r, calls, log)
	p := app.NewPresence(c, st, backend, m, log)
	tl := app.NewTools(st, backend, p, log)
	h := app.NewHub(c, backend, a, r, p, tl, m, log)
	w, err := app.NewWorker(c, ts, log)
	if err != nil {
		t.Fatal(err)
	}
	j, err := app.NewJobs(c, backend, st, k, m, log)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := web.New(c, a, r, ts, h, p, tl, app.NewAudit(st), k, j, backend, hl, m, log)
	if err != nil {
		t.Fatal(err)
	}
	s := app.NewServer(c, handler, a, hl, h, p, tl, w, j, log)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	rp := &replica{base: "http://" + listener.Addr().String(), auth: a, backend: backend, cancel: cancel, ended: make(chan error, 1)}
	go func() { rp.ended <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-rp.ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return rp
}

// client is a browser, more or less.
type client struct {
	t    testing.TB
	base string
	http *http.Client
}

func (rp *replica) client(t testing.TB) *client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, base: rp.base, http: &http.Client{Transport: transport, Jar: jar, Timeout: deadline}}
}

// user is a client that is signed in as a user, who is made if need be.
func (rp *replica) user(t testing.TB, name string) *client {
	t.Helper()
	return rp.signedIn(t, name, store.Member)
}

// admin is user for an administrator.
func (rp *replica) admin(t testing.TB, name string) *client {
	t.Helper()
	return rp.signedIn(t, name, store.Admin)
}

func (rp *replica) signedIn(t testing.TB, name string, role store.Role) *client {
	t.Helper()
	_, _, err := rp.auth.AddUser(t.Context(), name, password, role)
	if err != nil && !errors.Is(err, coord.ErrConflict) {
		t.Fatal(err)
	}
	c := rp.client(t)
	c.call("POST", "/api/v1/session", body{"name": name, "password": password}, 200)
	return c
}

type body = map[string]any

// do sends a request and returns its answer.
func (c *client) do(method, path string, b body, header http.Header) (*http.Response, body) {
	c.t.Helper()
	var reader io.Reader
	if b != nil {
		encoded, err := json.Marshal(b)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	maps.Copy(r.Header, header)
	if b != nil && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var value body
	if len(text) > 0 && strings.HasSuffix(answer.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &value); err != nil {
			c.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	} else {
		value = body{"text": string(text)}
	}
	return answer, value
}

// call is do with the status that is wanted.
func (c *client) call(method, path string, b body, want int) body {
	c.t.Helper()
	answer, value := c.do(method, path, b, nil)
	if answer.StatusCode != want {
		c.t.Fatalf("%s %s: got %s %v, want %d", method, path, answer.Status, value, want)
	}
	if want >= 400 && answer.Header.Get("Content-Type") != "application/problem+json" {
		c.t.Errorf("%s %s: an error of type %q", method, path, answer.Header.Get("Content-Type"))
	}
	return value
}

func (c *client) room(name string) (id int64, topic string) {
	c.t.Helper()
	id = int64(c.call("POST", "/api/v1/rooms", body{"name": name}, 201)["room"].(body)["id"].(float64))
	return id, rooms.Topic(id)
}

func (c *client) ticket() string {
	c.t.Helper()
	answer, value := c.do("POST", "/api/v1/ws-tickets", nil, http.Header{"Origin": {c.base}})
	if answer.StatusCode != http.StatusCreated {
		c.t.Fatalf("a ticket: got %s %v", answer.Status, value)
	}
	return value["ticket"].(string)
}

// socket is a WebSocket of a client.
type socket struct {
	t       testing.TB
	ws      *websocket.Conn
	waiting []body
	lastID  int
}

// id returns a fresh id for a frame.
func (s *socket) id() string {
	s.lastID++
	return fmt.Sprint(s.lastID)
}

// handshake opens a socket with a ticket and an origin, or returns the answer.
func (c *client) handshake(ticket, origin string) (*socket, *http.Response) {
	c.t.Helper()
	return c.handshakeWith(&websocket.Dialer{Subprotocols: []string{"tandem.v1", "ticket." + ticket}}, origin)
}

func (c *client) handshakeWith(d *websocket.Dialer, origin string) (*socket, *http.Response) {
	c.t.Helper()
	u, err := url.Parse(c.base)
	if err != nil {
		c.t.Fatal(err)
	}
	u.Scheme, u.Path = "ws", "/ws"
	header := http.Header{}
	if origin != "" {
		header.Set("Origin", origin)
	}
	ws, answer, err := d.DialContext(c.t.Context(), u.String(), header)
	if err != nil {
		if answer == nil {
			c.t.Fatal(err)
		}
		return nil, answer
	}
	c.t.Cleanup(func() { _ = ws.Close() })
	return &socket{t: c.t, ws: ws}, answer
}

// connect opens a socket and reads its welcome.
func (c *client) connect() *socket {
	c.t.Helper()
	s, answer := c.handshake(c.ticket(), c.base)
	if s == nil {
		c.t.Fatalf("the handshake was refused: %s", answer.Status)
	}
	if got := answer.Header.Get("Sec-Websocket-Protocol"); got != "tandem.v1" {
		c.t.Errorf("the server speaks %q", got)
	}
	s.expect("welcome")
	return s
}

func (s *socket) send(frame body) {
	s.t.Helper()
	if err := s.ws.WriteJSON(frame); err != nil {
		s.t.Fatal(err)
	}
}

// next returns the next frame, or the error with which the socket ended.
func (s *socket) next() (body, error) {
	for len(s.waiting) == 0 {
		if err := s.ws.SetReadDeadline(time.Now().Add(deadline)); err != nil {
			return nil, err
		}
		_, message, err := s.ws.ReadMessage()
		if err != nil {
			return nil, err
		}
		if err := documented(message); err != nil {
			return nil, err
		}
		if message[0] != '[' {
			message = append(append([]byte("["), message...), ']')
		}
		if err := json.Unmarshal(message, &s.waiting); err != nil {
			return nil, err
		}
	}
	frame := s.waiting[0]
	s.waiting = s.waiting[1:]
	return frame, nil
}

// expect reads the next frame, which is of the given type.
func (s *socket) expect(kind string) body {
	s.t.Helper()
	frame, err := s.next()
	if err != nil {
		s.t.Fatalf("waiting for %s: %v", kind, err)
	}
	if frame["type"] != kind {
		s.t.Fatalf("got %v, want %s", frame, kind)
	}
	return frame
}

// expectClose reads until the socket is closed with the given code.
func (s *socket) expectClose(code int) {
	s.t.Helper()
	for {
		_, err := s.next()
		if err == nil {
			continue
		}
		if closed, ok := errors.AsType[*websocket.CloseError](err); !ok || closed.Code != code {
			s.t.Fatalf("got %v, want close code %d", err, code)
		}
		return
	}
}

// subscribe subscribes to a topic from a position and returns where it starts.
func (s *socket) subscribe(topic, from string) string {
	s.t.Helper()
	s.send(body{"type": "subscribe", "id": s.id(), "topics": body{topic: from}})
	return s.expect("ack")["positions"].(body)[topic].(string)
}

// text reads the next event, a message, and returns its text and position.
func (s *socket) text() (text, position string) {
	s.t.Helper()
	frame := s.expect("event")
	return frame["payload"].(body)["text"].(string), frame["position"].(string)
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(deadline); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %v", what, deadline)
		}
	}
}

// together runs a function n times at once.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
