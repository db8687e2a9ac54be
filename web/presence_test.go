package web_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/store"
)

// atOnce keeps nothing of presence back.
func atOnce(c *app.Config) { c.Presence.Linger = -1 }

// id of the person who is signed in.
func (c *client) userID() int {
	return int(c.call("GET", "/api/v1/me", nil, 200)["user"].(body)["id"].(float64))
}

// presence is what the API says of a person, who is the only one asked for.
func (c *client) presence(user int) body {
	c.t.Helper()
	list := c.call("GET", fmt.Sprintf("/api/v1/presence?users=%d", user), nil, 200)["presence"].([]any)
	if len(list) != 1 {
		c.t.Fatalf("the presence of one person is %v", list)
	}
	return list[0].(body)
}

// A person who is connected to one replica is seen on another.
func TestPresence(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, atOnce), start(t, db, atOnce)
	ada, bob := one.admin(t, "Ada"), two.user(t, "Bob")
	watch := bob.connect()
	watch.subscribe("presence", "head")
	id := ada.userID()
	if p := bob.presence(id); p["state"] != "offline" {
		t.Errorf("at first: %v", p)
	}
	expect := func(when, state string) {
		t.Helper()
		for { // also that of the one who watches
			e := watch.expect("event")
			p := e["payload"].(body)
			if int(p["user_id"].(float64)) != id {
				continue
			}
			if e["kind"] != "presence" || p["state"] != state {
				t.Errorf("%s: heard %v, want %s", when, e, state)
			}
			wantKeys(t, p, "user_id", "state", "last_seen")
			break
		}
		if p := bob.presence(id); p["state"] != state {
			t.Errorf("%s: %v, want %s", when, p, state)
		}
	}
	ws := ada.connect()
	expect("connected", "online")
	ws.send(body{"type": "presence", "id": "away", "state": "away"})
	ws.expect("ack")
	expect("away", "away")
	ws.send(body{"type": "presence", "id": "bad", "state": "offline"})
	if e := ws.expect("error"); e["code"] != "invalid" {
		t.Errorf("offline while connected: %v", e)
	}
	if err := ws.ws.Close(); err != nil {
		t.Fatal(err)
	}
	expect("gone", "offline")
}

func TestPresenceOfWhom(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, guest := rp.admin(t, "Ada"), rp.signedIn(t, "Gus", store.Guest)
	for _, query := range []string{"", "?users=", "?users=x", "?users=1,,2", "?users=1;2", "?users=" + strings.Repeat("1,", 500) + "1"} {
		if answer := ada.call("GET", "/api/v1/presence"+query, nil, http.StatusUnprocessableEntity); answer["field"] != "users" {
			t.Errorf("%.30q: %v", query, answer)
		}
	}
	path := fmt.Sprintf("/api/v1/presence?users=%d,%d,99999", ada.userID(), guest.userID())
	if list := ada.call("GET", path, nil, 200)["presence"].([]any); len(list) != 2 {
		t.Errorf("a member is shown %v", list)
	}
	if list := guest.call("GET", path, nil, 200)["presence"].([]any); len(list) != 0 {
		t.Errorf("a guest who is in no room is shown %v", list)
	}
	rp.client(t).call("GET", path, nil, http.StatusUnauthorized)
}

// Everybody hears of a change, so one person makes few of them.
func TestPresenceLimit(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ws := rp.admin(t, "Ada").connect()
	for i := range 100 {
		ws.send(body{"type": "presence", "id": fmt.Sprint(i), "state": []string{"away", "online"}[i%2]})
	}
	taken := 0
	for range 100 {
		f, err := ws.next()
		switch {
		case err != nil:
			t.Fatal(err)
		case f["type"] == "ack":
			taken++
		case f["code"] != "limited":
			t.Errorf("got %v", f)
		}
	}
	if taken < 5 || taken > 20 {
		t.Errorf("%d of 100 changes at once were taken", taken)
	}
}

// That nobody knows who is there does not mean that nobody is.
func TestPresenceDuringAnOutage(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada := rp.admin(t, "Ada")
	ada.connect()
	path := fmt.Sprintf("/api/v1/presence?users=%d", ada.userID())
	if err := rp.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ada.call("GET", path, nil, http.StatusServiceUnavailable)
}
