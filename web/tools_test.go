package web_test

import (
	"fmt"
	"maps"
	"net/http"
	"testing"

	"github.com/tandemhq/tandem/app/tools"
)

// use calls a tool in a user's browser and returns the call.
func (c *client) use(user int64, tool string, args body) body {
	c.t.Helper()
	path := fmt.Sprintf("/api/v1/users/%d/tools", user)
	return c.call("POST", path, body{"tool": tool, "args": args}, 202)["call"].(body)
}

func (c *client) await(call body) body {
	c.t.Helper()
	return c.call("GET", fmt.Sprintf("/api/v1/calls/%s?wait_s=8", call["id"]), nil, 200)["call"].(body)
}

// quiet makes sure that nothing was sent to a socket.
func (s *socket) quiet() {
	s.t.Helper()
	id := s.id()
	s.send(body{"type": "ping", "id": id})
	if got := s.expect("pong"); got["id"] != id {
		s.t.Errorf("got %v", got)
	}
}

func (s *socket) result(call body, more body) (answer body) {
	s.t.Helper()
	frame := body{"type": "tool.result", "id": s.id(), "call": call["id"]}
	maps.Copy(frame, more)
	s.send(frame)
	answer, err := s.next()
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// Two tabs of a person are on two replicas: a tool runs in one of them, and whoever
// waits on the other replica gets its answer.
func TestToolRunsInOneTab(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	root := one.admin(t, "Root")
	ada := one.user(t, "Ada")
	user := ada.id()
	left := ada.connect()
	right := two.user(t, "Ada").connect()
	foreign := two.user(t, "Bob").connect()
	right.send(body{"type": "presence", "id": right.id(), "state": "online"}) // the one most recently active
	right.expect("ack")

	call := root.use(user, "confirm", body{"text": "Deploy?"})
	wantKeys(t, call, "id", "user_id", "tool", "args", "state", "created_at", "deadline")
	frame := right.expect("tool.call")
	wantKeys(t, frame, "type", "call", "tool", "args", "deadline")
	if frame["call"] != call["id"] || frame["tool"] != "confirm" || frame["args"].(body)["text"] != "Deploy?" || frame["deadline"] != call["deadline"] {
		t.Errorf("the frame is %v of the call %v", frame, call)
	}
	left.quiet()
	foreign.quiet()

	for name, s := range map[string]*socket{"another tab": left, "another person": foreign} {
		if got := s.result(call, body{"result": "forged"}); got["type"] != "error" || got["code"] != "not_found" {
			t.Errorf("the answer of %s: %v", name, got)
		}
	}
	if got := left.result(call, body{"result": "forged", "connection": "right"}); got["type"] != "error" || got["code"] != "invalid" {
		t.Errorf("an answer that names its connection: %v", got)
	}
	if got := right.result(call, body{"result": body{"ok": true}}); got["type"] != "ack" {
		t.Errorf("the answer: %v", got)
	}
	if got := right.result(call, body{"result": body{"ok": false}}); got["type"] != "error" || got["code"] != "conflict" {
		t.Errorf("a second answer: %v", got)
	}
	got := root.await(call)
	wantKeys(t, got, "id", "user_id", "tool", "args", "state", "result", "created_at", "deadline", "ended_at")
	if got["state"] != "answered" || got["result"].(body)["ok"] != true {
		t.Errorf("the call is %v", got)
	}
	if got := ada.await(call); got["state"] != "answered" {
		t.Errorf("the person sees %v", got)
	}

	call = root.use(user, "confirm", nil)
	right.expect("tool.call")
	if got := right.result(call, body{"error": "no, thank you"}); got["type"] != "ack" {
		t.Errorf("the answer: %v", got)
	}
	if got := root.await(call); got["state"] != "answered" || got["error"] != "no, thank you" || got["result"] != nil {
		t.Errorf("the call is %v", got)
	}
}

func TestCancelledToolCall(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	tab := two.user(t, "Ada").connect()
	call := ada.use(ada.id(), "pick", nil)
	tab.expect("tool.call")
	path := fmt.Sprintf("/api/v1/calls/%s/cancel", call["id"])
	if got := ada.call("POST", path, nil, 200)["call"].(body); got["state"] != "cancelled" {
		t.Errorf("the call is %v", got)
	}
	if got := tab.expect("tool.cancel"); got["call"] != call["id"] || got["reason"] != "cancelled" {
		t.Errorf("the frame is %v", got)
	}
	if got := tab.result(call, body{"result": 1}); got["type"] != "error" {
		t.Errorf("an answer after it: %v", got)
	}
	if got := ada.call("POST", path, nil, 200)["call"].(body); got["state"] != "cancelled" {
		t.Errorf("the call is %v", got)
	}
}

// A connection that was sent a call, and ends, ends it.
func TestToolCallOfAConnectionThatEnds(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	tab := two.user(t, "Ada").connect()
	call := ada.use(ada.id(), "pick", nil)
	tab.expect("tool.call")
	if err := tab.ws.Close(); err != nil {
		t.Fatal(err)
	}
	if got := ada.await(call); got["state"] != "cancelled" || got["error"] != tools.ReasonGone {
		t.Errorf("the call of a tab that was closed is %v", got)
	}
	eventually(t, "the end of the presence", func() bool {
		answer, _ := ada.do("POST", fmt.Sprintf("/api/v1/users/%d/tools", ada.id()), body{"tool": "pick"}, nil)
		return answer.StatusCode == http.StatusConflict
	})
	tab = two.user(t, "Ada").connect()
	call = ada.use(ada.id(), "pick", nil)
	tab.expect("tool.call")
	two.cancel()
	if got := ada.await(call); got["state"] != "cancelled" || got["error"] != tools.ReasonGone {
		t.Errorf("the call of a replica that left is %v", got)
	}
}

func TestWhoMayCallTools(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, bob, root := rp.user(t, "Ada"), rp.user(t, "Bob"), rp.admin(t, "Root")
	user := ada.id()
	path := fmt.Sprintf("/api/v1/users/%d/tools", user)
	root.call("POST", path, body{"tool": "pick"}, 409) // not connected
	tab := ada.connect()
	bob.call("POST", path, body{"tool": "pick"}, 403)
	rp.client(t).call("POST", path, body{"tool": "pick"}, 401)
	call := root.use(user, "pick", nil)
	tab.expect("tool.call")
	for _, b := range []body{
		{"tool": "Pick one"}, {"tool": "pick", "args": []int{1}}, {"tool": "pick", "timeout_s": 5000}, {"tool": "pick", "connection": "x"},
	} {
		root.call("POST", path, b, 422)
	}
	one := fmt.Sprintf("/api/v1/calls/%s", call["id"])
	bob.call("GET", one, nil, 404)
	bob.call("POST", one+"/cancel", nil, 404)
	rp.client(t).call("GET", one, nil, 401)
	ada.call("GET", one+"?wait_s=x", nil, 422)
	ada.call("GET", one+"?wait_s=0", nil, 200)
	ada.call("GET", "/api/v1/calls/none", nil, 404)
	if got := ada.call("GET", one, nil, 200)["call"].(body); got["state"] != "open" {
		t.Errorf("the call is %v", got)
	}

	key := http.Header{"Idempotency-Key": {"0198c5a2"}}
	first, value := root.do("POST", path, body{"tool": "pick", "timeout_s": 90}, key)
	again, same := root.do("POST", path, body{"tool": "pick", "timeout_s": 90}, key)
	if first.StatusCode != http.StatusAccepted || again.StatusCode != http.StatusAccepted || value["call"].(body)["id"] != same["call"].(body)["id"] {
		t.Errorf("with one key: %s %v and %s %v", first.Status, value, again.Status, same)
	}
	if answer, _ := root.do("POST", path, body{"tool": "confirm"}, key); answer.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("another call with the key: %s", answer.Status)
	}
	tab.expect("tool.call")
	tab.quiet()
}

// Who waits for a call does not keep a replica from stopping.
func TestReplicaStopsWhileACallIsAwaited(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	user := ada.id()
	tab := two.user(t, "Ada").connect()
	call := ada.use(user, "pick", nil)
	tab.expect("tool.call")
	waited := make(chan body, 1)
	go func() {
		defer close(waited)
		_, value := ada.do("GET", fmt.Sprintf("/api/v1/calls/%s?wait_s=30", call["id"]), nil, nil)
		waited <- value
	}()
	eventually(t, "the request", func() bool { return db.gets.Load() > 0 })
	one.cancel()
	if got, ok := (<-waited)["call"].(body); !ok || got["state"] != "open" {
		t.Errorf("the call is %v", got)
	}
	elsewhere := two.user(t, "Ada")
	if got := tab.result(call, body{"result": 1}); got["type"] != "ack" {
		t.Errorf("the answer: %v", got)
	}
	if got := elsewhere.await(call); got["state"] != "answered" {
		t.Errorf("the call is %v", got)
	}
}
