package web_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/coord"
)

func TestTicketOpensOneSocket(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	c := rp.user(t, "Ada")
	elsewhere := other.client(t)

	ticket := c.ticket()
	if s, answer := elsewhere.handshake(ticket, c.base); s != nil || answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusForbidden {
		t.Errorf("an origin that is not that replica's: got %s", answer.Status)
	}
	if s, _ := c.handshake(ticket, c.base); s != nil {
		t.Error("a ticket was good after a wrong origin")
	}

	ticket = c.ticket()
	if s, answer := c.handshake(ticket, c.base); s == nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s", answer.Status)
	}
	if s, answer := c.handshake(ticket, c.base); s != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("the same ticket again: got %s", answer.Status)
	}

	for origin, ticket := range map[string]string{"https://evil.example": c.ticket(), "": c.ticket(), c.base: "unknown"} {
		if s, answer := c.handshake(ticket, origin); s != nil || answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("origin %q, ticket %q: got %s", origin, ticket, answer.Status)
		}
	}
	c.call("GET", "/ws", nil, 401)

	old := c.ticket()
	db.advance(time.Minute)
	if s, answer := c.handshake(old, c.base); s != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("an expired ticket: got %s", answer.Status)
	}

	ticket = c.ticket()
	c.call("DELETE", "/api/v1/session", nil, 204)
	if s, answer := c.handshake(ticket, c.base); s != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a ticket of a session that has ended: got %s", answer.Status)
	}
}

func TestTicketRace(t *testing.T) {
	db := newDatabase(t)
	replicas := []*replica{start(t, db, nil), start(t, db, nil)}
	c := replicas[0].user(t, "Ada")
	_, value := c.do("POST", "/api/v1/ws-tickets", nil, nil) // of a program, which sends no origin
	const racers = 16
	status := make([]int, racers)
	clients := make([]*client, racers)
	for i := range clients {
		clients[i] = replicas[i%2].client(t)
	}
	together(racers, func(i int) {
		_, answer := clients[i].handshake(value["ticket"].(string), "")
		status[i] = answer.StatusCode
	})
	slices.Sort(status)
	if status[0] != 101 || status[1] != 401 || status[racers-1] != 401 {
		t.Errorf("got %v, want one 101", status)
	}
}

func TestTicketDuringAnOutage(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	ticket := c.ticket()
	if err := rp.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, answer := c.handshake(ticket, c.base); s != nil || answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %s, want 503", answer.Status)
	}
}

func TestSignInDuringAnOutage(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	rp.user(t, "Ada")
	if err := rp.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	rp.client(t).call("POST", "/api/v1/session", body{"name": "Ada", "password": password}, http.StatusServiceUnavailable)
}

func TestSecretsAreNotLogged(t *testing.T) {
	var log safeBuffer
	rp := startLogged(t, newDatabase(t), nil, slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	c := rp.user(t, "Ada")
	ticket := c.ticket()
	ws, answer, err := websocket.DefaultDialer.DialContext(t.Context(),
		strings.Replace(c.base, "http", "ws", 1)+"/ws?ticket="+ticket, http.Header{"Origin": {c.base}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if got := answer.Header.Get("Sec-Websocket-Protocol"); got != "" {
		t.Errorf("the server speaks %q, which was not offered", got)
	}
	s := &socket{t: t, ws: ws}
	s.expect("welcome")
	c.call("DELETE", "/api/v1/session", nil, 204)
	s.expectClose(hub.CloseUnauthorised)
	eventually(t, "the log line of the socket", func() bool { return strings.Contains(log.String(), `"path":"/ws"`) })
	for what, secret := range map[string]string{"ticket": ticket, "password": password, "cookie": "tandem_session"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has the %s in it", what)
		}
	}
}

func TestMessageOnceForOneClientID(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	ada, bob := rp.user(t, "Ada"), other.user(t, "Bob")
	id, topic := ada.room("General")
	s := bob.connect()
	s.subscribe(topic, "head")
	path := fmt.Sprintf("/api/v1/rooms/%d/messages", id)
	first := ada.call("POST", path, body{"client_id": "one", "text": "hello"}, 201)["message"].(body)
	again := ada.call("POST", path, body{"client_id": "one", "text": "hello"}, 200)["message"].(body)
	if first["id"] != again["id"] {
		t.Errorf("got %v and %v", first, again)
	}
	// The same over a socket, whose ack carries the message.
	sender := ada.connect()
	sender.send(body{"type": "send", "id": "7", "room": id, "client_id": "one", "text": "hello"})
	if ack := sender.expect("ack"); ack["id"] != "7" || ack["message"].(body)["id"] != first["id"] {
		t.Errorf("got %v", ack)
	}
	sender.send(body{"type": "send", "id": "8", "room": id, "client_id": "two", "text": "bye"})
	sender.expect("ack")
	for seq, want := range []string{"hello", "bye"} {
		text, position := s.text()
		if text != want || !strings.HasPrefix(position, fmt.Sprint(seq+1, ".")) {
			t.Errorf("got %q at %s, want %q at %d", text, position, want, seq+1)
		}
	}
	if list := ada.call("GET", path, nil, 200)["messages"].([]any); len(list) != 2 {
		t.Errorf("got %v", list)
	}
}

func TestParallelSendsOfOneMessage(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, nil)
	c := rp.user(t, "Ada")
	id, topic := c.room("General")
	var created [8]int
	together(len(created), func(i int) {
		answer, _ := c.do("POST", fmt.Sprintf("/api/v1/rooms/%d/messages", id), body{"client_id": "one", "text": "x"}, nil)
		created[i] = answer.StatusCode
	})
	slices.Sort(created[:])
	if created[6] != 200 || created[7] != 201 {
		t.Errorf("got %v, want one 201", created)
	}
	events, err := rp.backend.Broadcaster().Read(t.Context(), topic, coord.Start, 10)
	if err != nil || len(events) != 1 {
		t.Errorf("got %v, %v; want one event", events, err)
	}
}

func TestResumeWithoutGapOrDuplicate(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	c := rp.user(t, "Ada")
	id, topic := c.room("General")
	posted := 0
	post := func(n int) {
		for range n {
			c.call("POST", fmt.Sprintf("/api/v1/rooms/%d/messages", id),
				body{"client_id": fmt.Sprint(posted), "text": fmt.Sprint(posted)}, 201)
			posted++
		}
	}
	post(3)
	position := c.call("GET", fmt.Sprintf("/api/v1/rooms/%d/messages", id), nil, 200)["position"].(string)
	seen := 3
	read := func(s *socket, n int) {
		t.Helper()
		for range n {
			text, at := s.text()
			if text != fmt.Sprint(seen) {
				t.Fatalf("got %q, want %d", text, seen)
			}
			seen, position = seen+1, at
		}
	}
	post(2)
	s := c.connect()
	s.subscribe(topic, position)
	read(s, 2)
	post(5)
	read(s, 3)
	_ = s.ws.Close() // with two on their way
	post(20)
	elsewhere := other.user(t, "Bob")
	s = elsewhere.connect()
	if got := s.subscribe(topic, position); got != position {
		t.Errorf("the subscription starts at %s, want %s", got, position)
	}
	read(s, posted-seen)
	post(1)
	read(s, 1)

	s = c.connect()
	s.subscribe(topic, "0")
	seen = 0
	read(s, posted)

	s = c.connect()
	s.subscribe(topic, "7.00000bad")
	if got := s.expect("reset"); got["topic"] != topic || got["reason"] != coord.ResetDiverged || got["position"] != position {
		t.Errorf("got %v, want a reset at %s", got, position)
	}
	post(1)
	read(s, 1)
}

func TestHeadIsAPlaceToResumeFrom(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	id, topic := c.room("General")
	path := fmt.Sprintf("/api/v1/rooms/%d/messages", id)
	c.call("POST", path, body{"client_id": "a", "text": "before"}, 201)
	s := c.connect()
	position := s.subscribe(topic, "")
	c.call("POST", path, body{"client_id": "b", "text": "after"}, 201)
	_ = s.ws.Close() // before or after the event came
	s = c.connect()
	s.subscribe(topic, position)
	if text, _ := s.text(); text != "after" {
		t.Errorf("got %q", text)
	}
}

func TestSubscriptions(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Hub.Topics = 3 })
	c := rp.user(t, "Ada")
	id, topic := c.room("General")
	s := c.connect()
	refused := func(code string, frame body) {
		t.Helper()
		frame["id"] = s.id()
		s.send(frame)
		if got := s.expect("error"); got["code"] != code || got["id"] != frame["id"] {
			t.Errorf("%v: got %v, want %s", frame, got, code)
		}
	}
	refused("forbidden", body{"type": "subscribe", "topics": body{"session:1": "0"}})
	refused("forbidden", body{"type": "subscribe", "topics": body{"room:1x": "0"}})
	refused("forbidden", body{"type": "subscribe", "topics": body{"room:01": "0"}})
	refused("not_found", body{"type": "subscribe", "topics": body{topic: "0", "room:999": "0"}})
	refused("limited", body{"type": "subscribe", "topics": body{topic: "0", "room:7": "0", "room:8": "0", "room:9": "0"}})
	refused("invalid", body{"type": "subscribe", "topics": body{topic: "elsewhere"}})
	refused("invalid", body{"type": "subscribe", "topics": []string{topic}})
	refused("invalid", body{"type": "unsubscribe", "topics": body{topic: "0"}})
	refused("invalid", body{"type": "dance"})
	refused("not_found", body{"type": "send", "room": 999, "client_id": "x", "text": "x"})
	refused("invalid", body{"type": "send", "room": id, "client_id": "x", "text": ""})
	for _, forged := range []body{
		{"type": "send", "id": "x1", "room": id, "client_id": "x", "text": "x", "user_id": 7},
		{"type": "send", "id": "x2", "room": id, "client_id": "x", "text": "x", "target": "all"},
		{"type": "ping", "id": "x", "connection": "other"},
	} {
		s.send(forged)
		if got := s.expect("error"); got["code"] != "invalid" {
			t.Errorf("%v: got %v", forged, got)
		}
	}

	s.subscribe(topic, "head")
	s.subscribe("rooms", "head")
	if got := s.subscribe(topic, "0"); got != "0" {
		t.Errorf("subscribed again: got %s", got)
	}
	other, otherTopic := c.room("Other")
	if got := s.expect("event"); got["kind"] != "room.created" || got["payload"].(body)["name"] != "Other" {
		t.Errorf("got %v", got)
	}
	s.subscribe(otherTopic, "head")
	refused("limited", body{"type": "subscribe", "topics": body{"tasks": "head"}})
	s.send(body{"type": "unsubscribe", "id": "u", "topics": []string{topic, "room:999"}})
	s.expect("ack")
	s.subscribe("tasks", "head")

	// Frames in an array are answered one by one.
	if err := s.ws.WriteJSON([]body{
		{"type": "send", "id": "a1", "room": id, "client_id": "a", "text": "unheard"},
		{"type": "send", "id": "a2", "room": other, "client_id": "b", "text": "heard"},
		{"type": "ping", "id": "3"},
	}); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for range 4 {
		frame, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if frame["type"] == "event" && frame["payload"].(body)["text"] != "heard" {
			t.Errorf("got %v", frame)
		}
		got[frame["type"].(string)]++
	}
	if got["ack"] != 2 || got["event"] != 1 || got["pong"] != 1 {
		t.Errorf("got %v", got)
	}
}

func TestFrameLimits(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")

	s := c.connect()
	s.send(body{"type": "ping", "id": "1", "text": strings.Repeat("x", 70<<10)})
	s.expectClose(websocket.CloseMessageTooBig)

	s = c.connect()
	if err := s.ws.WriteMessage(websocket.BinaryMessage, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	s.expectClose(websocket.CloseUnsupportedData)

	s = c.connect()
	for range 400 {
		if s.ws.WriteJSON(body{"type": "ping", "id": "1"}) != nil {
			break // closed already
		}
	}
	s.expectClose(websocket.ClosePolicyViolation)

	s = c.connect()
	if err := s.ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"ping"} {}`)); err != nil {
		t.Fatal(err)
	}
	if got := s.expect("error"); got["code"] != "invalid" {
		t.Errorf("got %v", got)
	}

	id, _ := c.room("General")
	limited := 0
	for i := range 60 {
		s.send(body{"type": "send", "id": fmt.Sprint(i), "room": id, "client_id": fmt.Sprint(i), "text": "x"})
	}
	for range 60 {
		frame, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		if frame["type"] == "error" && frame["code"] == "limited" {
			limited++
		}
	}
	if limited == 0 || limited > 30 {
		t.Errorf("%d of 60 messages at once were limited", limited)
	}
}

func TestMessagesWithoutFramesCount(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.Hub.FrameRate = coord.Limit{Rate: 1, Per: time.Hour, Burst: 10, Cost: 1}
	})
	c := rp.user(t, "Ada")
	for _, nothing := range []string{"{", "[]"} {
		s := c.connect()
		for range 11 {
			if err := s.ws.WriteMessage(websocket.TextMessage, []byte(nothing)); err != nil {
				t.Fatal(err)
			}
		}
		s.expectClose(websocket.ClosePolicyViolation)
	}
}

func TestSignOutClosesSockets(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	c := rp.user(t, "Ada")
	here := c.connect()
	elsewhere := &client{t: t, base: other.base, http: c.http} // cookies know no ports
	there := elsewhere.connect()
	bystander := other.user(t, "Ada").connect()
	c.call("DELETE", "/api/v1/session", nil, 204)
	here.expectClose(hub.CloseUnauthorised)
	there.expectClose(hub.CloseUnauthorised)
	bystander.send(body{"type": "ping", "id": "1"})
	bystander.expect("pong")
}

func TestExpiredSessionClosesSockets(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, func(c *app.Config) { c.Hub.Recheck = 10 * time.Millisecond })
	s := rp.user(t, "Ada").connect()
	db.advance(91 * 24 * time.Hour)
	s.expectClose(hub.CloseUnauthorised)
}

func TestDrain(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, nil)
	c := rp.user(t, "Ada")
	sockets := make([]*socket, 5)
	for i := range sockets {
		sockets[i] = c.connect()
	}
	rp.cancel()
	for _, s := range sockets {
		s.expect("reconnect")
		s.expectClose(websocket.CloseServiceRestart)
	}
	select {
	case err := <-rp.ended:
		rp.ended <- err
	case <-time.After(deadline):
		t.Fatal("the server did not end")
	}
	dialer := &net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(rp.base, "http://")); err == nil {
		_ = conn.Close()
		t.Error("the server accepts connections still")
	}
}

func TestDrainGraceKeepsServing(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.DrainGrace, c.ShutdownTimeout = 3*time.Second, 20*time.Second // time for some requests on a busy machine
	})
	c := rp.user(t, "Ada")
	s := c.connect()
	rp.cancel()
	eventually(t, "unready", func() bool {
		answer, value := c.do("GET", "/healthz/ready", nil, nil)
		return answer.StatusCode == http.StatusServiceUnavailable && value["checks"].([]any)[1].(body)["ok"] == false
	})
	c.call("GET", "/api/v1/me", nil, 200)
	s.send(body{"type": "ping", "id": "1"})
	s.expect("pong")
	s.expectClose(websocket.CloseServiceRestart)
}

// silent is a client that opens a socket with small buffers.
func (c *client) silent() *socket {
	c.t.Helper()
	dialer := &websocket.Dialer{
		Subprotocols: []string{"tandem.v1", "ticket." + c.ticket()},
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
			}
			return conn, err
		},
	}
	s, answer := c.handshakeWith(dialer, c.base)
	if s == nil {
		c.t.Fatalf("got %s", answer.Status)
	}
	s.expect("welcome")
	return s
}

func (rp *replica) publish(t *testing.T, topic string, n, size int) {
	t.Helper()
	payload := []byte(`{"text":"` + strings.Repeat("x", size) + `"}`)
	for range n {
		if _, err := rp.backend.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: topic, Kind: "k", Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
}

// positions reads one message without decoding it, which takes long for large
// ones, and returns the positions of the events in it.
func (s *socket) positions() ([]string, error) {
	if err := s.ws.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		return nil, err
	}
	_, message, err := s.ws.ReadMessage()
	var list []string
	for _, m := range eventPosition.FindAllSubmatch(message, -1) {
		list = append(list, string(m[1]))
	}
	return list, err
}

var eventPosition = regexp.MustCompile(`"type":"event","topic":"[^"]*","position":"([^"]*)"`)

// read checks that events come in order, behind those seen, until n are seen or
// the socket ends.
func (s *socket) read(seen, n int) (last string, now int, err error) {
	for seen < n {
		list, err := s.positions()
		if err != nil {
			return last, seen, err
		}
		for _, position := range list {
			if seen++; !strings.HasPrefix(position, fmt.Sprint(seen, ".")) {
				return last, seen, fmt.Errorf("got %s, want %d", position, seen)
			}
			last = position
		}
	}
	return last, seen, nil
}

func TestSlowClientIsClosedAndResumes(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Hub.SlowAfter = 2 * time.Second })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	slow, quick := c.silent(), c.connect()
	slow.subscribe(topic, "head")
	quick.subscribe(topic, "head")
	const most = 24 // twice what the system keeps for a socket
	events := 0
	eventually(t, "the end of the slow client", func() bool {
		if events < most { // one by one, so that on a busy machine too the quick client is never behind
			rp.publish(t, topic, 1, 512<<10)
			if _, _, err := quick.read(events, events+1); err != nil { // waits for nobody
				t.Fatalf("the quick client: %v", err)
			}
			events++
		}
		text := c.call("GET", "/metrics", nil, 200)["text"].(string)
		return strings.Contains(text, `tandem_socket_closes_total{code="4008"} 1`)
	})
	last, seen, err := slow.read(0, events)
	if !websocket.IsCloseError(err, hub.CloseSlow) {
		t.Fatalf("the slow client: got %v after %d events, want close code %d", err, seen, hub.CloseSlow)
	}
	resumed := c.connect()
	resumed.subscribe(topic, last)
	if _, _, err := resumed.read(seen, events); err != nil {
		t.Errorf("resumed behind %s: %v", last, err)
	}
}

func TestStuckClientDoesNotHoldUpTheEnd(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.ShutdownTimeout = 2 * time.Second })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	c.silent().subscribe(topic, "head")
	rp.publish(t, topic, 24, 512<<10)
	rp.cancel()
	select {
	case err := <-rp.ended:
		rp.ended <- err
	case <-time.After(deadline):
		t.Fatal("the server did not end")
	}
}

func TestBurstIsDeliveredWhole(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	s := c.connect()
	s.subscribe(topic, "head")
	const events = 3000
	rp.publish(t, topic, events, 10)
	for i := range events {
		if frame := s.expect("event"); !strings.HasPrefix(frame["position"].(string), fmt.Sprint(i+1, ".")) {
			t.Fatalf("got %v, want %d", frame["position"], i+1)
		}
	}
}
