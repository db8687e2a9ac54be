package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/coord"
)

// stream is an event stream of a client.
type stream struct {
	t      testing.TB
	answer *http.Response
	lines  *bufio.Reader
	id     string // of the last event
	retry  string
	end    context.CancelFunc
}

func eventsPath(topics ...string) string {
	return "/api/v1/events?" + url.Values{"topic": topics}.Encode()
}

// events opens an event stream behind an id and reads its welcome.
func (c *client) events(after string, topics ...string) (*stream, body) {
	c.t.Helper()
	ctx, end := context.WithCancel(c.t.Context())
	c.t.Cleanup(end)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+eventsPath(topics...), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if after != "" {
		r.Header.Set("Last-Event-ID", after)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		c.t.Fatalf("got %s, %v", answer.Status, answer.Header)
	}
	s := &stream{t: c.t, answer: answer, lines: bufio.NewReader(answer.Body), end: end}
	return s, s.expect("welcome")
}

// next returns the name and the frame of the next event.
func (s *stream) next() (name string, frame body, err error) {
	id, data := s.id, ""
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "id":
			id = value // which counts when the event is whole
		case "event":
			name = value
		case "data":
			data += value
		case "retry":
			s.retry = value
		case "":
			if data == "" {
				continue
			}
			s.id = id
			if err := documented([]byte(data)); err != nil {
				return name, nil, err
			}
			return name, frame, json.Unmarshal([]byte(data), &frame)
		}
	}
}

func (s *stream) expect(name string) body {
	s.t.Helper()
	got, frame, err := s.next()
	if err != nil || got != name {
		s.t.Fatalf("got %q %v, %v; want %q", got, frame, err, name)
	}
	return frame
}

func (s *stream) text() string {
	s.t.Helper()
	frame := s.expect("")
	if frame["type"] != "event" || !strings.Contains(s.id, frame["position"].(string)) {
		s.t.Fatalf("got %v with the id %s", frame, s.id)
	}
	return frame["payload"].(body)["text"].(string)
}

func (c *client) post(room int64, text string) {
	c.t.Helper()
	c.call("POST", fmt.Sprintf("/api/v1/rooms/%d/messages", room), body{"client_id": text, "text": text}, 201)
}

func TestEventStreamResumes(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	c, elsewhere := rp.user(t, "Ada"), other.user(t, "Bob")
	one, first := c.room("One")
	two, second := c.room("Two")
	c.post(one, "a0")
	s, welcome := c.events("", first, second)
	if at := welcome["positions"].(body); !strings.HasPrefix(at[first].(string), "1.") || at[second] != "0" || s.id != fmt.Sprint(at[first], ",0") {
		t.Errorf("got %v with the id %s", welcome, s.id)
	}
	if s.retry == "" || s.answer.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("retry %q, header %v", s.retry, s.answer.Header)
	}
	begin := s.id
	c.post(one, "a1")
	c.post(two, "b1")
	got := []string{s.text(), s.text()}
	if slices.Sort(got); !slices.Equal(got, []string{"a1", "b1"}) {
		t.Errorf("got %v", got)
	}
	s.end()
	for i := 2; i < 400; i++ {
		c.post(one, fmt.Sprint("a", i))
	}
	c.post(two, "b2")
	// On the other replica, and behind what was seen of both topics.
	s, _ = elsewhere.events(s.id, first, second)
	got = nil
	for range 399 {
		got = append(got, s.text())
	}
	b := slices.Index(got, "b2")
	if b < 0 {
		t.Fatalf("b2 is missing in %v", got)
	}
	for i, text := range slices.Delete(got, b, b+1) {
		if text != fmt.Sprint("a", i+2) {
			t.Fatalf("got %s, want a%d", text, i+2)
		}
	}
	if s.id != elsewhere.positions(one, two) {
		t.Errorf("the last id is %s, the heads are %s", s.id, elsewhere.positions(one, two))
	}
	s.end()

	// As a page begins.
	answer, _ := c.do("HEAD", eventsPath(first), nil, nil)
	if answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: got %s", answer.Status)
	}
	r := c.base + eventsPath(first, second) + "&last_event_id=" + url.QueryEscape(begin)
	page, err := c.http.Get(r)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	s = &stream{t: t, lines: bufio.NewReader(page.Body)}
	s.expect("welcome")
	if text := s.text(); text != "a1" && text != "b1" {
		t.Errorf("got %s", text)
	}
}

// positions are those of rooms, as in the id of an event.
func (c *client) positions(rooms ...int64) string {
	c.t.Helper()
	var list []string
	for _, room := range rooms {
		list = append(list, c.call("GET", fmt.Sprintf("/api/v1/rooms/%d/messages", room), nil, 200)["position"].(string))
	}
	return strings.Join(list, ",")
}

func TestEventStreamReset(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	id, topic := c.room("General")
	c.post(id, "x")
	s, _ := c.events("7.00000bad,head", topic, "rooms")
	if got := s.expect("reset"); got["topic"] != topic || got["reason"] != coord.ResetDiverged || !strings.HasPrefix(s.id, got["position"].(string)) {
		t.Errorf("got %v with the id %s", got, s.id)
	}
	c.post(id, "y")
	if text := s.text(); text != "y" {
		t.Errorf("got %s", text)
	}
}

func TestEventStreamRefusals(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Hub.Topics = 3 })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	rp.client(t).call("GET", eventsPath(topic), nil, 401)
	c.call("GET", eventsPath(topic, "room:999"), nil, 404)
	c.call("GET", eventsPath(topic, "session:1"), nil, 403)
	c.call("GET", eventsPath(), nil, 422)
	c.call("GET", eventsPath("room:1", "room:2", "room:3", "room:4"), nil, 422)
	c.call("GET", eventsPath(topic, topic), nil, 422)
	for _, id := range []string{"elsewhere", "1.0", "0,0", ",", "0,"} {
		c.call("GET", eventsPath(topic)+"&last_event_id="+url.QueryEscape(id), nil, 422)
	}
	answer, _ := c.do("GET", eventsPath(topic), nil, http.Header{"Origin": {"https://evil.example"}})
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("another site: got %s", answer.Status)
	}
}

func TestEventStreamEnds(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, func(c *app.Config) { c.Hub.PingEvery = 10 * time.Millisecond })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	elsewhere := &client{t: t, base: other.base, http: c.http} // cookies know no ports
	s, _ := elsewhere.events("", topic)
	if line, err := s.lines.ReadString('\n'); err != nil || line != ":\n" {
		t.Errorf("no heartbeat: %q, %v", line, err)
	}
	c.call("DELETE", "/api/v1/session", nil, 204)
	if name, frame, err := s.next(); err == nil {
		t.Errorf("signed out: got %s %v", name, frame)
	}

	s, _ = rp.user(t, "Bob").events("", topic)
	rp.cancel()
	if got := s.expect("reconnect"); got["jitter_ms"] == nil {
		t.Errorf("got %v", got)
	}
	if name, frame, err := s.next(); err == nil {
		t.Errorf("drained: got %s %v", name, frame)
	}
}

// A client that takes nothing does not hold up the end, whatever it has opened.
func TestStuckEventStreamDoesNotHoldUpTheEnd(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.ShutdownTimeout = 3 * time.Second })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	u, err := url.Parse(c.base)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", eventsPath(topic), u.Host, c.http.Jar.Cookies(u)[0])
	eventually(t, "the stream", func() bool {
		return strings.Contains(c.call("GET", "/metrics", nil, 200)["text"].(string), "tandem_socket_connections 1")
	})
	rp.publish(t, topic, 24, 512<<10)
	rp.cancel()
	select {
	case err := <-rp.ended:
		rp.ended <- err
	case <-time.After(deadline):
		t.Fatal("the server did not end")
	}
}

func TestSlowEventStreamIsEnded(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Hub.SlowAfter = time.Second })
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	s, _ := c.events("", topic)
	rp.publish(t, topic, 40, 512<<10) // more than the system keeps for a socket
	eventually(t, "the end", func() bool {
		return strings.Contains(c.call("GET", "/metrics", nil, 200)["text"].(string), `tandem_socket_closes_total{code="4008"} 1`)
	})
	seen := 0
	for {
		if _, _, err := s.next(); err != nil {
			break
		}
		seen++
	}
	if seen == 40 {
		t.Error("it got everything")
	}
	for seen < 40 { // as often as a machine that is busy makes it slow again
		s, _ = c.events(s.id, topic)
		for ; seen < 40; seen++ {
			_, got, err := s.next()
			if err != nil {
				break
			}
			if !strings.HasPrefix(got["position"].(string), fmt.Sprint(seen+1, ".")) {
				t.Fatalf("got %v behind %d", got["position"], seen)
			}
		}
	}
}

func TestTypingReadAndPresence(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	ada, bob := rp.user(t, "Ada"), other.user(t, "Bob")
	id, topic := ada.room("General")
	me := fmt.Sprint("user:", ada.call("GET", "/api/v1/me", nil, 200)["user"].(body)["id"])
	a, second, b := ada.connect(), ada.connect(), bob.connect()
	b.subscribe(topic, "head")
	b.subscribe("presence", "0")
	for range 2 { // that both came, which is told when their replicas get to it
		if got := b.expect("event"); got["kind"] != "presence" || got["payload"].(body)["state"] != "online" {
			t.Errorf("got %v", got)
		}
	}
	second.subscribe(me, "head")
	ask := func(s *socket, want string, frame body) body {
		t.Helper()
		frame["id"] = s.id()
		s.send(frame)
		got := s.expect(want)
		if got["id"] != frame["id"] {
			t.Errorf("%v: got %v", frame, got)
		}
		return got
	}
	for range 3 {
		ask(a, "ack", body{"type": "typing", "room": id})
	}
	if got := b.expect("event"); got["kind"] != "typing" || got["payload"].(body)["name"] != "Ada" {
		t.Errorf("got %v", got)
	}
	m := ask(a, "ack", body{"type": "send", "room": id, "client_id": "1", "text": "Hello"})["message"].(body)
	if got := b.expect("event"); got["kind"] != "message.created" { // typing was told once
		t.Errorf("got %v", got)
	}
	ask(a, "ack", body{"type": "read", "room": id, "message_id": m["id"]})
	if got := second.expect("event"); got["kind"] != "read" || got["payload"].(body)["message_id"] != m["id"] {
		t.Errorf("got %v", got)
	}
	ask(a, "ack", body{"type": "presence", "state": "away"})
	ask(second, "ack", body{"type": "presence", "state": "away"})
	for state := ""; state != "away"; {
		got := b.expect("event")
		if got["kind"] != "presence" {
			t.Fatalf("got %v", got)
		}
		state = got["payload"].(body)["state"].(string)
	}
	for code, frame := range map[string]body{
		"invalid":   {"type": "presence", "state": "asleep"},
		"not_found": {"type": "typing", "room": 999},
		"forbidden": {"type": "subscribe", "topics": body{"user:999": "head"}},
	} {
		if got := ask(a, "error", frame); got["code"] != code {
			t.Errorf("%v: got %v", frame, got)
		}
	}
	if got := ask(a, "error", body{"type": "tool.result", "call": "AAECAwQFBgcICQoLDA0ODw", "result": 1}); got["code"] != "not_found" {
		t.Errorf("got %v", got)
	}
}

func TestSameIDSameAnswer(t *testing.T) {
	const pause = 3 * time.Second // more than four frames take on a busy machine
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.Hub.SendRate = coord.Limit{Rate: 1, Per: pause, Burst: 1, Cost: 1}
	})
	c := rp.user(t, "Ada")
	id, _ := c.room("General")
	s := c.connect()
	for range 3 { // the same answer, though the other text would be another message
		s.send(body{"type": "send", "id": "a", "room": id, "client_id": "1", "text": "one"})
	}
	s.send(body{"type": "send", "id": "b", "room": 999, "client_id": "2", "text": "two"})
	var answers []string
	for len(answers) < 4 {
		frame, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, fmt.Sprint(frame))
	}
	if answers[0] != answers[1] || answers[1] != answers[2] {
		t.Errorf("got %v", answers)
	}
	if !strings.Contains(answers[3], "limited") {
		t.Errorf("got %s, want limited", answers[3])
	}
	time.Sleep(pause) // which is what that asks for
	s.send(body{"type": "send", "id": "b", "room": 999, "client_id": "2", "text": "two"})
	if got := s.expect("error"); got["code"] != "not_found" {
		t.Errorf("tried again: got %v", got)
	}
}

// Nothing behind a removal reaches who was removed, whichever replica they are at.
func TestRemovedFromARoom(t *testing.T) {
	db := newDatabase(t)
	rp, other := start(t, db, nil), start(t, db, nil)
	ada, bob := rp.user(t, "Ada"), other.user(t, "Bob")
	bobID := bob.call("GET", "/api/v1/me", nil, 200)["user"].(body)["id"]
	id := int64(ada.call("POST", "/api/v1/rooms", body{"name": "Secret", "kind": "private"}, 201)["room"].(body)["id"].(float64))
	topic := fmt.Sprint("room:", id)
	stranger := bob.connect()
	stranger.send(body{"type": "subscribe", "id": stranger.id(), "topics": body{topic: "head"}})
	if got := stranger.expect("error"); got["code"] != "not_found" {
		t.Errorf("no member: got %v", got)
	}
	bob.call("GET", eventsPath(topic), nil, 404)

	member := fmt.Sprintf("/api/v1/rooms/%d/members/%v", id, bobID)
	ada.call("PUT", member, body{}, 200)
	s := bob.connect()
	s.subscribe(topic, "head")
	events, _ := bob.events("", topic)
	ada.post(id, "for Bob")
	ada.call("DELETE", member, nil, 204)
	for i := range 20 {
		ada.post(id, fmt.Sprint("not for Bob ", i))
	}
	if text, _ := s.text(); text != "for Bob" {
		t.Errorf("got %s", text)
	}
	if got := s.expect("event"); got["kind"] != "room.member_removed" {
		t.Errorf("got %v", got)
	}
	if got := s.expect("error"); got["topic"] != topic || got["code"] != "forbidden" || got["id"] != "" {
		t.Errorf("got %v", got)
	}
	if text := events.text(); text != "for Bob" {
		t.Errorf("got %s", text)
	}
	if got := events.expect(""); got["kind"] != "room.member_removed" {
		t.Errorf("got %v", got)
	}
	if got := events.expect("ended"); got["topic"] != topic {
		t.Errorf("got %v", got)
	}
	s.send(body{"type": "ping", "id": "p"}) // and nothing else came meanwhile
	s.expect("pong")
	ada.call("PUT", member, body{}, 200)
	s.subscribe(topic, "head")
	ada.post(id, "for Bob again")
	if text, _ := s.text(); text != "for Bob again" {
		t.Errorf("got %s", text)
	}
}

// openFiles counts the file descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestConnectionsLeaveNothingBehind(t *testing.T) {
	const rounds, each = 20, 50
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.Writes = coord.Limit{Rate: rounds * each, Per: time.Second}
		c.Hub.PerPerson = each
	})
	c := rp.user(t, "Ada")
	_, topic := c.room("General")
	round := func() {
		var tickets []string
		for len(tickets) < each {
			_, value := c.do("POST", "/api/v1/ws-tickets", nil, nil) // of which few are good at a time
			tickets = append(tickets, value["ticket"].(string))
			if len(tickets)%4 != 0 && len(tickets) < each {
				continue
			}
			batch := tickets[len(tickets)-(len(tickets)-1)%4-1:]
			together(len(batch), func(i int) {
				s, answer := c.handshake(batch[i], "")
				if s == nil {
					t.Errorf("got %s", answer.Status)
					return
				}
				s.expect("welcome")
				s.subscribe(topic, []string{"head", "0"}[i%2])
				switch i {
				case 0: // as one should
					_ = s.ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
					s.expectClose(websocket.CloseNormalClosure)
				case 1: // as when a cable is pulled
					_ = s.ws.NetConn().(*net.TCPConn).SetLinger(0)
				}
				_ = s.ws.Close()
			})
		}
		s, _ := c.events("", topic)
		s.end()
		_, _, err := s.next()
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stream that was ended: %v", err)
		}
	}
	settled := func() bool {
		return strings.Contains(c.call("GET", "/metrics", nil, 200)["text"].(string), "tandem_socket_connections 0")
	}
	round()
	eventually(t, "the end of the first", settled)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range rounds {
		round()
	}
	eventually(t, "the end of all", settled)
	eventually(t, fmt.Sprintf("no more than %d goroutines and %d files", goroutines, files), func() bool {
		return runtime.NumGoroutine() <= goroutines && openFiles(t) <= files
	})
	if text := c.call("GET", "/metrics", nil, 200)["text"].(string); !strings.Contains(text, "tandem_socket_topics 0") ||
		!strings.Contains(text, "tandem_socket_history_bytes 0") {
		t.Error("topics, or their history, are kept")
	}
}
