package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is in the clock of the test, which does not wait for it.
const patience = time.Hour

type body = map[string]any

// network has servers by the names of their hosts, without a wire, so that a test can have a clock of
// its own.
type network struct {
	transport *http.Transport

	mu      sync.Mutex
	servers map[string]*server
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{servers: map[string]*server{}}
	n.transport = &http.Transport{DialContext: n.dial, DisableKeepAlives: true}
	return n
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := strings.Cut(address, ":")
	n.mu.Lock()
	s := n.servers[host]
	n.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("%s refuses", host)
	}
	ours, theirs := net.Pipe()
	select {
	case s.incoming <- theirs:
		return ours, nil
	case <-s.closed:
		return nil, fmt.Errorf("%s refuses", host)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// options are those of a client in this network, of servers by their hosts.
func (n *network) options(hosts ...string) client.Options {
	o := client.Options{Name: "ada", Password: "secret", HTTPClient: &http.Client{Transport: n.transport}}
	for _, host := range hosts {
		o.Endpoints = append(o.Endpoints, "http://"+host)
	}
	return o
}

// connect dials a client and returns it with the socket that the server has of it.
func (n *network) connect(t *testing.T, o client.Options) (*client.Client, *socket) {
	t.Helper()
	c, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	at, ok := c.Connection()
	if !ok {
		t.Fatal("there is no connection")
	}
	return c, n.servers[strings.TrimPrefix(at.Endpoint, "http://")].socket(t)
}

// server speaks the protocol; what it says on a socket is up to the test.
type server struct {
	host     string
	http     *http.Server
	incoming chan net.Conn
	closed   chan struct{}
	sockets  chan *socket

	mu       sync.Mutex
	attempts []time.Time    // for a ticket
	refuse   int            // status of the answer to those; 0: none
	header   http.Header    // of that answer
	tickets  map[string]int // how often each was used
	sessions int
	ahead    time.Duration // of the server's clock
	mute     bool          // sockets get no welcome
}

func newServer(host string) *server {
	s := &server{
		host: host, incoming: make(chan net.Conn), closed: make(chan struct{}), sockets: make(chan *socket, 1000),
		tickets: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/session", s.signIn)
	mux.HandleFunc("POST /api/v1/ws-tickets", s.ticket)
	mux.HandleFunc("GET /ws", s.upgrade)
	s.http = &http.Server{Handler: mux}
	return s
}

func (n *network) serve(t *testing.T, host string) *server {
	t.Helper()
	s := newServer(host)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.http.Serve(s) })
	n.mu.Lock()
	n.servers[host] = s
	n.mu.Unlock()
	t.Cleanup(func() {
		_ = s.http.Close()
		serving.Wait()
		n.transport.CloseIdleConnections()
	})
	return s
}

// Accept, Close and Addr make the server its own listener.
func (s *server) Accept() (net.Conn, error) {
	select {
	case conn := <-s.incoming:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (s *server) Addr() net.Addr { return &net.TCPAddr{} }

func (s *server) signIn(w http.ResponseWriter, r *http.Request) {
	var who struct{ Name, Password string }
	if json.NewDecoder(r.Body).Decode(&who) != nil || who.Name != "ada" || who.Password != "secret" {
		problem(w, http.StatusUnauthorized, "the name or the password is wrong")
		return
	}
	s.mu.Lock()
	s.sessions++
	s.mu.Unlock()
	http.SetCookie(w, &http.Cookie{Name: "other", Value: "x"})
	http.SetCookie(w, &http.Cookie{Name: "tandem_session", Value: "good", HttpOnly: true})
	_, _ = w.Write([]byte(`{"user":{"id":1}}`))
}

func (s *server) ticket(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts = append(s.attempts, time.Now())
	cookie, err := r.Cookie("tandem_session")
	switch {
	case s.refuse != 0:
		maps.Copy(w.Header(), s.header)
		problem(w, s.refuse, "not now")
	case err != nil || cookie.Value != "good":
		problem(w, http.StatusUnauthorized, "not signed in")
	default:
		secret := fmt.Sprintf("t%d", len(s.tickets))
		s.tickets[secret] = 0
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(body{"ticket": secret})
	}
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body{"title": http.StatusText(status), "status": status, "detail": detail})
}

func (s *server) upgrade(w http.ResponseWriter, r *http.Request) {
	protocols := websocket.Subprotocols(r)
	if len(protocols) != 2 || protocols[0] != "tandem.v1" || r.Header.Get("Origin") != "" {
		problem(w, http.StatusBadRequest, "the protocols are wrong")
		return
	}
	secret := strings.TrimPrefix(protocols[1], "ticket.")
	s.mu.Lock()
	used, known := s.tickets[secret]
	s.tickets[secret]++
	ahead, mute := s.ahead, s.mute
	s.mu.Unlock()
	if !known || used > 0 {
		problem(w, http.StatusUnauthorized, "the ticket is not valid")
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{"tandem.v1"}}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	k := &socket{ws: ws, frames: make(chan body, 1000)}
	if !mute {
		k.send(body{
			"type": "welcome", "connection": secret, "node": s.host, "server_time": time.Now().Add(ahead),
			"limits": body{"frame_bytes": 65536, "topics": 5},
		})
	}
	s.sockets <- k
	k.read()
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// socket returns the next connection of a client.
func (s *server) socket(t *testing.T) *socket {
	t.Helper()
	select {
	case k := <-s.sockets:
		k.t = t
		return k
	case <-time.After(patience):
		t.Fatalf("nobody connects to %s", s.host)
		return nil
	}
}

// schema is what the frames of both sides keep to.
var schema = sync.OnceValue(func() *testenv.Protocol {
	p, err := testenv.NewProtocol("../docs/protocol.schema.json")
	if err != nil {
		panic(err)
	}
	return p
})

// socket is the server's end of a connection.
type socket struct {
	t      *testing.T
	ws     *websocket.Conn
	frames chan body
	end    error // when frames is closed

	writing sync.Mutex
}

func (k *socket) read() {
	defer close(k.frames)
	for {
		var message []byte
		if _, message, k.end = k.ws.ReadMessage(); k.end == nil {
			k.end = schema().Check("client", message)
		}
		if k.end != nil {
			return
		}
		var f body
		if k.end = json.Unmarshal(message, &f); k.end != nil {
			return
		}
		k.frames <- f
	}
}

func (k *socket) send(frames ...body) {
	k.writing.Lock()
	defer k.writing.Unlock()
	var value any = frames
	if len(frames) == 1 {
		value = frames[0]
	}
	message, err := json.Marshal(value)
	if err == nil {
		err = schema().Check("server", message)
	}
	if err != nil {
		panic(err)
	}
	_ = k.ws.WriteMessage(websocket.TextMessage, message) // fails when the client has gone, which it may
}

// expect returns the next frame of the client, which is of that type.
func (k *socket) expect(kind string) body {
	k.t.Helper()
	select {
	case f, ok := <-k.frames:
		if !ok {
			k.t.Fatalf("waiting for %s: the client has gone: %v", kind, k.end)
		}
		if f["type"] != kind || f["id"] == "" {
			k.t.Fatalf("got %v, want %s", f, kind)
		}
		return f
	case <-time.After(patience):
		k.t.Fatalf("no %s has come", kind)
		return nil
	}
}

// subscribed expects a subscription of one topic from a position, and confirms it.
func (k *socket) subscribed(topic, from string) {
	k.t.Helper()
	f := k.expect("subscribe")
	asked := f["topics"].(body)
	if len(asked) != 1 || asked[topic] != from {
		k.t.Fatalf("the client subscribes to %v, want %s from %s", asked, topic, from)
	}
	if from == "head" {
		from = at(0)
	}
	k.send(body{"type": "ack", "id": f["id"], "positions": body{topic: from}})
}

// gone waits until the client has ended the connection, and returns how.
func (k *socket) gone() error {
	k.t.Helper()
	for {
		select {
		case _, ok := <-k.frames:
			if !ok {
				return k.end
			}
		case <-time.After(patience):
			k.t.Fatal("the client is still there")
		}
	}
}

// stored is the answer to a message.
func stored(send body) body {
	return body{"type": "ack", "id": send["id"], "message": body{
		"id": 8, "room_id": send["room"], "user_id": 1, "author": "ada", "text": send["text"],
		"client_id": send["client_id"], "created_at": "2026-01-02T15:04:05Z",
	}}
}

// at is the position of an event.
func at(seq int) string {
	if seq == 0 {
		return "0"
	}
	return fmt.Sprintf("%d.%08x", seq, seq*7)
}

func event(topic string, seq int) body {
	return body{
		"type": "event", "topic": topic, "position": at(seq), "kind": "k", "payload": body{"n": seq},
		"at": "2026-01-02T15:04:05.123456Z",
	}
}

func events(topic string, from, to int) (list []body) {
	for seq := from; seq <= to; seq++ {
		list = append(list, event(topic, seq))
	}
	return list
}

// while calls the client while the server does its part, and returns the client's error.
func while(serve func(), call func() error) (err error) {
	var calling sync.WaitGroup
	calling.Go(func() { err = call() })
	serve()
	calling.Wait()
	return err
}

// subscribe lets the client follow a topic.
func subscribe(t *testing.T, c *client.Client, k *socket, topic, from string) {
	t.Helper()
	position, err := coord.ParsePosition(from)
	if err == nil {
		err = while(func() { k.subscribed(topic, from) }, func() error {
			return c.Subscribe(t.Context(), map[string]coord.Position{topic: position})
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// follower checks that events come once and in order.
type follower struct {
	t    *testing.T
	c    *client.Client
	seen map[string]int
}

func follow(t *testing.T, c *client.Client) *follower {
	return &follower{t, c, map[string]int{}}
}

// until reads events until the one with that number is seen.
func (f *follower) until(topic string, seq int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	for f.seen[topic] < seq {
		list, err := f.c.Next(ctx)
		if err != nil {
			f.t.Fatalf("waiting for %d of %s, seen %v: %v", seq, topic, f.seen, err)
		}
		for _, e := range list {
			f.seen[e.Topic]++
			want := f.seen[e.Topic]
			if e.Position.String() != at(want) || string(e.Payload) != fmt.Sprintf(`{"n":%d}`, want) || e.Kind != "k" || e.At.IsZero() {
				f.t.Fatalf("got %v of %s, want %s", e.Position, e.Topic, at(want))
			}
		}
	}
}

// end waits for the error with which the client has stopped.
func end(t *testing.T, c *client.Client, want error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.Next(ctx); !errors.Is(err, want) {
		t.Errorf("the client has stopped with %v, want %v", err, want)
	}
}
