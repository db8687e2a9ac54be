package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	apiclient "github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// cable is how clients reach the replicas; it can be cut.
type cable struct {
	http *http.Client

	mu    sync.Mutex
	conns map[net.Conn]bool
	cuts  int // of connections
}

func newCable(t *testing.T) *cable {
	t.Helper()
	w := &cable{conns: map[net.Conn]bool{}}
	transport := &http.Transport{DialContext: w.dial}
	t.Cleanup(transport.CloseIdleConnections)
	w.http = &http.Client{Transport: transport, Timeout: deadline}
	return w
}

func (w *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &cableConn{conn.(*net.TCPConn), w}
	w.conns[c] = true
	return c, nil
}

type cableConn struct {
	*net.TCPConn
	cable *cable
}

func (c *cableConn) Close() error {
	c.cable.mu.Lock()
	delete(c.cable.conns, c)
	c.cable.mu.Unlock()
	return c.TCPConn.Close()
}

// cut resets every connection.
func (w *cable) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		_ = conn.(*cableConn).SetLinger(0)
		_ = conn.(*cableConn).TCPConn.Close()
		w.cuts++
	}
	clear(w.conns)
}

// program is a client of the API as programs use it, signed in as a user who is made if need be.
func program(t *testing.T, w *cable, name string, change func(*apiclient.Options), replicas ...*replica) *apiclient.Client {
	t.Helper()
	_, _, err := replicas[0].auth.AddUser(t.Context(), name, password, store.Member)
	if err != nil && !errors.Is(err, coord.ErrConflict) {
		t.Fatal(err)
	}
	o := apiclient.Options{
		Name: name, Password: password, HTTPClient: w.http, Logger: logger(t),
		MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	}
	for _, rp := range replicas {
		o.Endpoints = append(o.Endpoints, rp.base)
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	c, err := apiclient.Dial(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func subscribe(t *testing.T, c *apiclient.Client, topic string, from coord.Position) {
	t.Helper()
	if err := c.Subscribe(t.Context(), map[string]coord.Position{topic: from}); err != nil {
		t.Fatal(err)
	}
}

// wantEvents reads events of one topic, which come once and in order, until that many have come.
func wantEvents(t *testing.T, c *apiclient.Client, seen *int, until int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*deadline)
	defer cancel()
	for *seen < until {
		list, err := c.Next(ctx)
		if err != nil {
			t.Fatalf("after %d of %d events: %v", *seen, until, err)
		}
		for _, e := range list {
			if *seen++; e.Position.Seq != int64(*seen) {
				t.Fatalf("got event %v, want %d", e.Position, *seen)
			}
		}
	}
}

// TestClientOverABadCable sends and follows while connections are cut, on two replicas: each message
// is stored once, and each event comes once and in order.
func TestClientOverABadCable(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	id, topic := one.user(t, "Ada").room("General")
	w := newCable(t)
	sender := program(t, w, "Ada", nil, one, two)
	readers := []*apiclient.Client{program(t, w, "Bob", nil, two, one), program(t, w, "Cleo", nil, one, two)}
	for _, c := range readers {
		subscribe(t, c, topic, coord.Head)
	}
	const messages = 100
	stop := make(chan struct{})
	var working, cutting sync.WaitGroup
	cutting.Go(func() {
		// Each time a little later: to get on, a busy machine needs longer than an idle one.
		for pause := 30 * time.Millisecond; ; pause += 5 * time.Millisecond {
			select {
			case <-time.After(pause):
				w.cut()
			case <-stop:
				return
			}
		}
	})
	for part := range 4 {
		working.Go(func() {
			for i := range messages / 4 {
				text := strconv.Itoa(part*1000 + i)
				m, err := sender.Send(t.Context(), apiclient.NewMessage{Room: id, Text: text})
				if err != nil || m.Text != text || m.Room != id || m.Author != "Ada" {
					t.Errorf("sent %s, got %+v, %v", text, m, err)
					return
				}
			}
		})
	}
	for _, c := range readers {
		working.Go(func() {
			seen := 0
			wantEvents(t, c, &seen, messages)
			if got := c.Positions()[topic]; got.Seq != messages {
				t.Errorf("the position is %v", got)
			}
		})
	}
	working.Wait()
	close(stop)
	cutting.Wait()
	if w.cuts < 10 {
		t.Errorf("only %d connections were cut", w.cuts)
	}
	events, err := one.backend.Broadcaster().Read(t.Context(), topic, coord.Start, 1000)
	if err != nil || len(events) != messages {
		t.Errorf("%d messages are stored, want %d: %v", len(events), messages, err)
	}
}

// TestClientMovesWhenAReplicaStops wants no event to be missed, and the client on the other replica.
func TestClientMovesWhenAReplicaStops(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	_, topic := one.user(t, "Ada").room("General")
	c := program(t, newCable(t), "Ada", nil, one, two)
	subscribe(t, c, topic, coord.Head)
	seen := 0
	two.publish(t, topic, 3, 10)
	wantEvents(t, c, &seen, 3)
	one.cancel()
	two.publish(t, topic, 3, 10)
	wantEvents(t, c, &seen, 6)
	eventually(t, "the move", func() bool {
		at, ok := c.Connection()
		return ok && at.Endpoint == two.base
	})
	two.publish(t, topic, 3, 10)
	wantEvents(t, c, &seen, 9)
}

func TestClientThatIsSlowMissesNothing(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	id, topic := rp.user(t, "Ada").room("General")
	c := program(t, newCable(t), "Ada", func(o *apiclient.Options) { o.QueueBytes = 32 << 10 }, rp)
	subscribe(t, c, topic, coord.Start)
	rp.publish(t, topic, 50, 16<<10) // while nothing is read
	if _, err := c.Send(t.Context(), apiclient.NewMessage{Room: id, Text: "still there"}); err != nil {
		t.Fatal(err)
	}
	seen := 0
	wantEvents(t, c, &seen, 51)
}

func TestClientIsToldOfResets(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	_, topic := rp.user(t, "Ada").room("General")
	rp.publish(t, topic, 3, 10)
	c := program(t, newCable(t), "Ada", nil, rp)
	subscribe(t, c, topic, coord.Position{Seq: 2, Tag: 12345})
	_, err := c.Next(t.Context())
	if reset, ok := errors.AsType[*coord.ResetError](err); !ok || reset.Reason != coord.ResetDiverged || reset.Head.Seq != 3 {
		t.Fatalf("got %v", err)
	}
	rp.publish(t, topic, 1, 10)
	seen := 3
	wantEvents(t, c, &seen, 4)
}

func TestClientIsSignedOut(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := program(t, newCable(t), "Ada", nil, rp)
	if err := c.Do(t.Context(), "DELETE", "/api/v1/session", nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(t.Context()); !errors.Is(err, apiclient.ErrSignedOut) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	o := apiclient.Options{Endpoints: []string{rp.base}, Name: "Ada", Password: "wrong password"}
	if _, err := apiclient.Dial(ctx, o); !errors.Is(err, apiclient.ErrSignedOut) {
		t.Errorf("a wrong password: %v", err)
	}
}

// A program with a token does what its scopes are for, until the token is revoked.
func TestClientByToken(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	room, topic := ada.room("General")
	secret, id := ada.token("read", "chat")
	c := program(t, newCable(t), "Ada", func(o *apiclient.Options) { o.Token, o.Name, o.Password = secret, "", "" }, two)
	subscribe(t, c, topic, coord.Start)
	if _, err := c.Send(t.Context(), apiclient.NewMessage{Room: room, Text: "by a program"}); err != nil {
		t.Fatal(err)
	}
	seen := 0
	wantEvents(t, c, &seen, 1)
	err := c.Do(t.Context(), "POST", "/api/v1/tasks", body{"name": "t"}, nil)
	if refused, ok := errors.AsType[*apiclient.StatusError](err); !ok || refused.Status != http.StatusForbidden {
		t.Errorf("got %v", err)
	}
	ada.call("DELETE", fmt.Sprintf("/api/v1/tokens/%.0f", id), nil, 204)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if _, err := c.Next(ctx); !errors.Is(err, apiclient.ErrSignedOut) {
		t.Errorf("got %v", err)
	}
}

func TestClientIsRefused(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	id, topic := rp.user(t, "Ada").room("General")
	c := program(t, newCable(t), "Ada", nil, rp)
	code := func(err error) string {
		if refused, ok := errors.AsType[*apiclient.FrameError](err); ok {
			return refused.Code
		}
		return fmt.Sprint(err)
	}
	if _, err := c.Send(t.Context(), apiclient.NewMessage{Room: id + 1, Text: "x"}); code(err) != "not_found" {
		t.Errorf("an unknown room: %v", err)
	}
	if _, err := c.Send(t.Context(), apiclient.NewMessage{Room: id}); code(err) != "invalid" {
		t.Errorf("an empty message: %v", err)
	}
	if err := c.Subscribe(t.Context(), map[string]coord.Position{topic: coord.Head, "session:1": coord.Head}); code(err) != "forbidden" {
		t.Errorf("a topic that is not for clients: %v", err)
	}
	if got := c.Positions(); len(got) != 0 {
		t.Errorf("follows %v", got)
	}
}

// TestClientsLeaveNothingBehind is for goleak, which looks when all tests have ended, and for what a
// client keeps.
func TestClientsLeaveNothingBehind(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	w := newCable(t)
	program(t, w, "Ada", nil, rp).Close()
	cookie, err := apiclient.SignIn(t.Context(), w.http, rp.base, "Ada", password)
	if err != nil {
		t.Fatal(err)
	}
	together(20, func(int) {
		for range 5 {
			c := program(t, w, "Ada", func(o *apiclient.Options) {
				o.Name, o.Password = "", ""
				o.Session = func(context.Context) (*http.Cookie, error) { return cookie, nil }
			}, rp)
			c.Close()
			c.Close()
		}
	})
	w.http.CloseIdleConnections()
	eventually(t, "the end of the connections", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.conns) == 0
	})
}

// TestClientOfARemovedMember wants the removal to be the last that is heard of a room, and what is
// published elsewhere to come on.
func TestClientOfARemovedMember(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada, bob := one.user(t, "Ada"), two.user(t, "Bob")
	room := ada.call("POST", "/api/v1/rooms", body{"kind": "private", "name": "Secret"}, 201)["room"].(body)
	id, member := int64(room["id"].(float64)), fmt.Sprintf("/api/v1/rooms/%v/members/%d", room["id"], bob.id())
	other, _ := ada.room("Open")
	ada.call("PUT", member, body{"role": "member"}, 200)
	c := program(t, newCable(t), "Bob", nil, two)
	for _, room := range []int64{id, other} {
		subscribe(t, c, rooms.Topic(room), coord.Head)
	}
	say := func(room int64, text string) {
		ada.call("POST", fmt.Sprintf("/api/v1/rooms/%d/messages", room), body{"client_id": text, "text": text}, 201)
	}
	say(id, "before")
	ada.call("DELETE", member, nil, 204)
	say(id, "after")
	say(other, "elsewhere")

	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var kinds []string
	refused := ""
	for len(kinds) < 3 || refused == "" {
		list, err := c.Next(ctx)
		if e, ok := errors.AsType[*apiclient.RefusedError](err); ok {
			refused = e.Topic
		} else if err != nil {
			t.Fatalf("after %v: %v", kinds, err)
		}
		for _, e := range list {
			kinds = append(kinds, fmt.Sprint(e.Topic, " ", e.Kind))
		}
	}
	slices.Sort(kinds)
	want := []string{
		rooms.Topic(id) + " message.created", rooms.Topic(id) + " room.member_removed", rooms.Topic(other) + " message.created",
	}
	if !slices.Equal(kinds, want) || refused != rooms.Topic(id) {
		t.Errorf("got %v, and %q was refused; want %v", kinds, refused, want)
	}
	if _, still := c.Positions()[rooms.Topic(id)]; still {
		t.Error("the room is followed still")
	}
	err := c.Subscribe(ctx, map[string]coord.Position{rooms.Topic(id): coord.Head})
	if e, ok := errors.AsType[*apiclient.FrameError](err); !ok || e.Code != "not_found" {
		t.Errorf("subscribed again: %v", err)
	}
}

// TestClientAnswersToolCalls has two programs of one person, on two replicas.
func TestClientAnswersToolCalls(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	cancelled := make(chan error, 1)
	tool := func(ctx context.Context, call apiclient.ToolCall) (any, error) {
		switch call.Tool {
		case "add":
			var args struct{ A, B int }
			if err := json.Unmarshal(call.Args, &args); err != nil {
				return nil, err
			}
			return body{"sum": args.A + args.B}, nil
		case "wait":
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("there is no tool %s", call.Tool)
	}
	w := newCable(t)
	for _, rp := range []*replica{one, two} {
		program(t, w, "Ada", func(o *apiclient.Options) { o.Tool = tool }, rp, one)
	}
	for i := range 5 {
		call := ada.await(ada.use(ada.id(), "add", body{"a": i, "b": 10}))
		if call["state"] != "answered" || call["result"].(body)["sum"] != float64(10+i) {
			t.Errorf("got %v", call)
		}
	}
	if call := ada.await(ada.use(ada.id(), "dance", body{})); call["error"] != "there is no tool dance" {
		t.Errorf("got %v", call)
	}
	call := ada.use(ada.id(), "wait", body{})
	ada.call("POST", fmt.Sprintf("/api/v1/calls/%s/cancel", call["id"]), nil, 200)
	select {
	case err := <-cancelled:
		if !strings.Contains(err.Error(), "cancelled") {
			t.Errorf("the tool's context has ended with %v", err)
		}
	case <-time.After(deadline):
		t.Error("the tool was not told")
	}
}

func TestClientTellsStates(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada := rp.user(t, "Ada")
	id, topic := ada.room("General")
	watch := ada.connect()
	watch.subscribe(topic, "head")
	watch.subscribe(fmt.Sprint("user:", ada.id()), "head")
	c := program(t, newCable(t), "Ada", nil, rp)
	m, err := c.Send(t.Context(), apiclient.NewMessage{Room: id, Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		c.Typing(t.Context(), id), c.MarkRead(t.Context(), id, m.ID), c.SetState(t.Context(), apiclient.Away),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	seen := map[any]bool{}
	for !seen["typing"] || !seen["read"] {
		seen[watch.expect("event")["kind"]] = true
	}
}

func TestEndpointsOfPages(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Endpoints = []string{"http://127.0.0.1:1", "https://b.example"} })
	c := rp.user(t, "Ada")
	me := c.call("GET", "/api/v1/me", nil, 200)
	if list := me["endpoints"].([]any); len(list) != 2 || list[1] != "https://b.example" {
		t.Errorf("got %v", me)
	}
	answer, _ := c.do("GET", "/", nil, nil)
	if policy := answer.Header.Get("Content-Security-Policy"); !strings.HasSuffix(policy, "; connect-src 'self' ws://127.0.0.1:1 wss://b.example") {
		t.Errorf("the policy is %q", policy)
	}
	if me := start(t, newDatabase(t), nil).user(t, "Ada").call("GET", "/api/v1/me", nil, 200); len(me["endpoints"].([]any)) != 0 {
		t.Errorf("got %v", me)
	}
}
