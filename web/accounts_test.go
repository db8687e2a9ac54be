package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// list is a list in an answer.
func (b listed) of(t *testing.T, c *client) []body {
	t.Helper()
	var list []body
	for _, item := range c.call("GET", "/api/v1/"+b.path, nil, 200)[b.name].([]any) {
		list = append(list, item.(body))
	}
	return list
}

type listed struct{ path, name string }

var (
	sessions    = listed{"sessions", "sessions"}
	tokens      = listed{"tokens", "tokens"}
	people      = listed{"people", "people"}
	invitations = listed{"invitations", "invitations"}
)

// with is a client that shows a token, and the cookie of whoever c is.
func (c *client) with(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

// token makes a token.
func (c *client) token(scopes ...string) (secret string, id float64) {
	c.t.Helper()
	made := c.call("POST", "/api/v1/tokens", body{"name": "program", "scopes": scopes}, 201)
	return made["secret"].(string), made["token"].(body)["id"].(float64)
}

// as sends a request with a token.
func (c *client) as(token, method, path string, b body, want int) body {
	c.t.Helper()
	answer, value := c.do(method, path, b, c.with(token))
	if answer.StatusCode != want {
		c.t.Fatalf("%s %s: got %s %v, want %d", method, path, answer.Status, value, want)
	}
	return value
}

// cookie is that of the client's session.
func (c *client) cookie() string {
	c.t.Helper()
	u, err := url.Parse(c.base)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.http.Jar.Cookies(u)[0].Value
}

func TestSessionsAreListedAndEnded(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	laptop, phone, tablet := one.user(t, "Ada"), two.user(t, "Ada"), two.user(t, "Ada")
	bob := one.user(t, "Bob")
	answer, _ := phone.do("POST", "/api/v1/session", body{"name": "Ada", "password": password},
		http.Header{"User-Agent": {"Phone\u202e " + strings.Repeat("x", 500)}})
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	list := sessions.of(t, phone)
	if len(list) != 3 || list[0]["current"] != true || list[1]["current"] != false || list[0]["address"] != "127.0.0.1" {
		t.Fatalf("got %v", list)
	}
	if agent := list[0]["user_agent"].(string); !strings.HasPrefix(agent, "Phone x") || len(agent) > 200 {
		t.Errorf("the browser is called %q", agent)
	}
	// Its sockets and streams on all replicas end, and nobody else's.
	others := []*socket{phone.connect(), laptop.connect(), bob.connect()}
	stream, _ := phone.events("", "user:1")
	ended := tablet.connect()
	list = sessions.of(t, tablet)
	id := list[slices.IndexFunc(list, func(s body) bool { return s["current"] == true })]["id"]
	bob.call("DELETE", fmt.Sprintf("/api/v1/sessions/%.0f", id), nil, 404)
	began := time.Now()
	laptop.call("DELETE", fmt.Sprintf("/api/v1/sessions/%.0f", id), nil, 204)
	ended.expectClose(4001)
	t.Logf("the socket on the other replica was closed after %v", time.Since(began).Round(time.Millisecond))
	tablet.call("GET", "/api/v1/me", nil, 401)
	laptop.call("DELETE", fmt.Sprintf("/api/v1/sessions/%.0f", id), nil, 404)

	if got := laptop.call("DELETE", "/api/v1/sessions", nil, 200); got["ended"] != 1.0 {
		t.Errorf("got %v", got)
	}
	others[0].expectClose(4001)
	for err := error(nil); err == nil; { // until it ends
		_, _, err = stream.next()
	}
	phone.call("GET", "/api/v1/me", nil, 401)
	for _, s := range others[1:] {
		s.send(body{"type": "ping", "id": "1"})
		s.expect("pong")
	}
	if list := sessions.of(t, laptop); len(list) != 1 {
		t.Errorf("got %v", list)
	}
}

func TestTokens(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	room, topic := ada.room("General")
	for field, b := range map[string]body{
		"name":         {"name": " ", "scopes": []string{"read"}},
		"scopes":       {"name": "x", "scopes": []string{}},
		"expires_in_s": {"name": "x", "scopes": []string{"read"}, "expires_in_s": -1},
	} {
		if got := ada.call("POST", "/api/v1/tokens", b, 422); got["field"] != field {
			t.Errorf("%s: got %v", field, got)
		}
	}
	for _, scope := range []string{"admin", "everything", ""} { // the first is not for a member
		if got := ada.call("POST", "/api/v1/tokens", body{"name": "x", "scopes": []string{scope}}, 422); got["field"] != "scopes" {
			t.Errorf("%s: got %v", scope, got)
		}
	}
	program := two.client(t)
	reader, _ := ada.token("read")
	writer, id := ada.token("read", "chat", "read")
	if !strings.HasPrefix(writer, "tdm_") || len(writer) != 47 {
		t.Errorf("a token has %d characters", len(writer))
	}
	list := tokens.of(t, ada)
	if len(list) != 2 || fmt.Sprint(list[0]["scopes"]) != "[chat read]" || list[0]["last_used_at"] != nil || list[0]["expires_at"] != nil {
		t.Errorf("got %v", list)
	}
	if strings.Contains(fmt.Sprint(list), "tdm_") {
		t.Error("a token is shown again")
	}
	me := program.as(writer, "GET", "/api/v1/me", nil, 200)
	if me["user"].(body)["name"] != "Ada" || fmt.Sprint(me["rights"]) != "[read see_people chat make_rooms]" {
		t.Errorf("got %v", me)
	}
	if list := tokens.of(t, ada); list[0]["last_used_at"] == nil {
		t.Errorf("got %v", list)
	}
	path := fmt.Sprintf("/api/v1/rooms/%d/messages", room)
	answer, _ := program.do("POST", path, body{"client_id": "1", "text": "x"}, program.with(reader))
	if answer.StatusCode != http.StatusForbidden ||
		answer.Header.Get("WWW-Authenticate") != `Bearer error="insufficient_scope", scope="chat"` {
		t.Errorf("got %s, %q", answer.Status, answer.Header.Get("WWW-Authenticate"))
	}
	// No browser adds a token by itself, so that another site may be where it is from; with a
	// cookie it may not.
	for _, header := range []http.Header{{"Origin": {"https://evil.example"}}, {"Sec-Fetch-Site": {"cross-site"}}} {
		for i, path := range []string{path, "/api/v1/ws-tickets"} {
			b := body{"client_id": "2", "text": "hello"}
			if i == 1 {
				b = nil
			}
			bare := header.Clone()
			if answer, _ := ada.do("POST", path, b, bare); answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s by a cookie: got %s", path, answer.Status)
			}
			header.Set("Authorization", "Bearer "+writer)
			if answer, _ := ada.do("POST", path, b, header); answer.StatusCode >= 300 {
				t.Errorf("%s by a token: got %s", path, answer.Status)
			}
			header.Set("Authorization", "bearer tdm_nobody's")
			if answer, _ := ada.do("POST", path, b, header); answer.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s by a token that is none: got %s", path, answer.Status)
			}
			header.Del("Authorization")
		}
	}
	// A cookie is no token, a token no cookie, two tokens are none.
	for _, header := range []http.Header{
		{"Authorization": {"Bearer " + ada.cookie()}},
		{"Authorization": {"Bearer tdm_" + ada.cookie()}},
		{"Cookie": {"tandem_session=" + writer}},
		{"Authorization": {"Bearer " + writer, "Bearer " + reader}},
		{"Authorization": {"Bearer"}},
	} {
		if answer, _ := program.do("GET", "/api/v1/me", nil, header); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%v: got %s", header, answer.Status)
		}
	}
	// What a proxy wants to know is not for the program.
	if answer, _ := ada.do("GET", "/api/v1/me", nil, http.Header{"Authorization": {"Basic eDp5"}}); answer.StatusCode != http.StatusOK {
		t.Errorf("got %s", answer.Status)
	}

	// By way of a ticket it opens sockets, which may do what its scopes are for.
	open := func(token string) *socket {
		ticket := program.as(token, "POST", "/api/v1/ws-tickets", nil, 201)["ticket"].(string)
		s, answer := program.handshake(ticket, "")
		if s == nil {
			t.Fatalf("got %s", answer.Status)
		}
		s.expect("welcome")
		return s
	}
	listens, talks := open(reader), open(writer)
	listens.subscribe(topic, "head")
	listens.send(body{"type": "send", "id": "s", "room": room, "client_id": "3", "text": "x"})
	if got := listens.expect("error"); got["code"] != "forbidden" {
		t.Errorf("got %v", got)
	}
	talks.send(body{"type": "send", "id": "s", "room": room, "client_id": "4", "text": "live"})
	talks.expect("ack")
	if text, _ := listens.text(); text != "live" {
		t.Errorf("heard %q", text)
	}
	ada.call("DELETE", fmt.Sprintf("/api/v1/tokens/%.0f", id), nil, 204)
	talks.expectClose(4001)
	program.as(writer, "GET", "/api/v1/me", nil, 401)
	ada.call("DELETE", fmt.Sprintf("/api/v1/tokens/%.0f", id), nil, 404)
	listens.send(body{"type": "ping", "id": "1"})
	listens.expect("pong")

	short := ada.call("POST", "/api/v1/tokens", body{"name": "short", "scopes": []string{"read"}, "expires_in_s": 60}, 201)["secret"].(string)
	program.as(short, "GET", "/api/v1/me", nil, 200)
	db.advance(61 * time.Second)
	program.as(short, "GET", "/api/v1/me", nil, 401)
	program.as(reader, "GET", "/api/v1/me", nil, 200)
}

func TestInvitations(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, nil)
	ada, bob := rp.admin(t, "Ada"), rp.user(t, "Bob")
	room := int64(ada.call("POST", "/api/v1/rooms", body{"name": "Plans", "kind": "private"}, 201)["room"].(body)["id"].(float64))
	secret := int64(bob.call("POST", "/api/v1/rooms", body{"name": "Bob's", "kind": "private"}, 201)["room"].(body)["id"].(float64))
	bob.call("POST", "/api/v1/invitations", body{"role": "admin"}, 403)
	for field, b := range map[string]body{
		"role": {"role": "king"}, "room_id": {"role": "guest", "room_id": secret}, "expires_in_s": {"role": "guest", "expires_in_s": 1},
	} {
		if got := ada.call("POST", "/api/v1/invitations", b, 422); got["field"] != field {
			t.Errorf("%s: got %v", field, got)
		}
	}
	invite := func(b body) string {
		t.Helper()
		_, token, ok := strings.Cut(ada.call("POST", "/api/v1/invitations", b, 201)["path"].(string), "/#invite=")
		if !ok {
			t.Fatal("there is no path")
		}
		return token
	}
	s := ada.connect()
	s.subscribe(fmt.Sprintf("room:%d", room), "head")
	token := invite(body{"role": "guest", "room_id": room})
	if list := invitations.of(t, ada); len(list) != 1 || list[0]["room"] != "Plans" || list[0]["by"] != "Ada" || list[0]["role"] != "guest" ||
		strings.Contains(fmt.Sprint(list), token) {
		t.Errorf("got %v", list)
	}
	gus := rp.client(t)
	if got := gus.call("POST", "/api/v1/links", body{"token": token}, 200); got["kind"] != "invitation" || got["role"] != "guest" || got["room"] != "Plans" {
		t.Errorf("got %v", got)
	}
	accept := func(c *client, token, name string, want int) body {
		t.Helper()
		return c.call("POST", "/api/v1/invitations/accept", body{"token": token, "name": name, "password": password}, want)
	}
	accept(gus, token, " ", 422)
	if got := accept(gus, token, "ADA", 409); got["field"] != "name" { // and the link is still good
		t.Errorf("got %v", got)
	}
	gus.call("POST", "/api/v1/password/reset", body{"token": token, "password": password}, 403) // for something else
	if got := accept(gus, token, "Gus", 201)["user"].(body); got["role"] != "guest" || got["name"] != "Gus" {
		t.Errorf("got %v", got)
	}
	if got := s.expect("event"); got["kind"] != "room.member_added" {
		t.Errorf("heard %v", got)
	}
	if list := gus.call("GET", "/api/v1/rooms", nil, 200)["rooms"].([]any); len(list) != 1 || list[0].(body)["name"] != "Plans" {
		t.Errorf("got %v", list)
	}
	accept(rp.client(t), token, "Gil", 403)

	// Once, whoever is first.
	token = invite(body{"role": "member"})
	var won atomic.Int32
	racers := make([]*client, 8)
	for i := range racers {
		racers[i] = rp.client(t)
	}
	together(len(racers), func(i int) {
		answer, _ := racers[i].do("POST", "/api/v1/invitations/accept",
			body{"token": token, "name": fmt.Sprint("racer ", i), "password": password}, nil)
		switch answer.StatusCode {
		case http.StatusCreated:
			won.Add(1)
		case http.StatusForbidden:
		default:
			t.Errorf("got %s", answer.Status)
		}
	})
	if won.Load() != 1 {
		t.Errorf("%d have used one invitation", won.Load())
	}

	token = invite(body{"role": "member"})
	id := invitations.of(t, ada)[0]["id"].(float64)
	bob.call("DELETE", fmt.Sprintf("/api/v1/invitations/%.0f", id), nil, 403)
	ada.call("DELETE", fmt.Sprintf("/api/v1/invitations/%.0f", id), nil, 204)
	ada.call("DELETE", fmt.Sprintf("/api/v1/invitations/%.0f", id), nil, 404)
	accept(rp.client(t), token, "Late", 403)

	token = invite(body{"role": "member", "expires_in_s": 60})
	db.advance(61 * time.Second)
	accept(rp.client(t), token, "Later", 403)
	if list := invitations.of(t, ada); len(list) != 0 {
		t.Errorf("got %v", list)
	}

	// Who is no administrator any more has invited nobody.
	cat := rp.admin(t, "Cat")
	_, token, _ = strings.Cut(cat.call("POST", "/api/v1/invitations", body{"role": "admin"}, 201)["path"].(string), "=")
	ada.call("PATCH", fmt.Sprintf("/api/v1/people/%d", cat.id()), body{"role": "member"}, 200)
	accept(rp.client(t), token, "Dan", 403)
}

func TestLinksAreLimitedByAddress(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, nil)
	c := rp.client(t)
	db.stop() // every two seconds there is one try more
	for i := range 31 {
		want := 403
		if i == 30 {
			want = 429
		}
		c.call("POST", "/api/v1/links", body{"token": fmt.Sprintf("%043d", i)}, want)
	}
	guess := strings.Repeat("x", 43) // as links are that were made before they were signed
	c.call("POST", "/api/v1/invitations/accept", body{"token": guess, "name": "x", "password": password}, 429)
	c.call("POST", "/api/v1/password/reset", body{"token": guess, "password": password}, 429)
	c.call("POST", "/api/v1/setup", body{"token": guess, "name": "x", "password": password}, 429)
	// Nothing is looked for on behalf of one that nobody has signed.
	c.call("POST", "/api/v1/links", body{"token": "x"}, 403)
	c.call("POST", "/api/v1/setup", body{"token": "x", "name": "x", "password": password}, 403)
	c.call("POST", "/api/v1/session", body{"name": "x", "password": password}, 401) // a limit of its own
}

func TestPasswords(t *testing.T) {
	const another = "battery staple"
	db := newDatabase(t)
	rp := start(t, db, nil)
	ada, bob, elsewhere := rp.admin(t, "Ada"), rp.user(t, "Bob"), rp.user(t, "Bob")
	token, _ := bob.token("read")
	socket := elsewhere.connect()
	change := func(current, password string, want int) body {
		t.Helper()
		return bob.call("POST", "/api/v1/password", body{"current": current, "password": password}, want)
	}
	if got := change("wrong", another, 422); got["field"] != "current" {
		t.Errorf("got %v", got)
	}
	if got := change(password, "short", 422); got["field"] != "password" {
		t.Errorf("got %v", got)
	}
	change(password, another, 204)
	socket.expectClose(4001)
	bob.call("GET", "/api/v1/me", nil, 200)
	elsewhere.call("GET", "/api/v1/me", nil, 401)
	rp.client(t).as(token, "GET", "/api/v1/me", nil, 200)
	elsewhere.call("POST", "/api/v1/session", body{"name": "Bob", "password": password}, 401)
	elsewhere.call("POST", "/api/v1/session", body{"name": "Bob", "password": another}, 200)
	// A session that was stolen does not help to find the password.
	db.stop() // every six seconds there is one try more
	for range 10 {
		change("wrong", password, 422)
	}
	change("wrong", password, 429)

	// By a link of an administrator.
	path := fmt.Sprintf("/api/v1/people/%d/reset", bob.id())
	bob.call("POST", path, nil, 403)
	link := func() string {
		t.Helper()
		_, token, _ := strings.Cut(ada.call("POST", path, nil, 201)["path"].(string), "/#reset=")
		return token
	}
	first, second := link(), link()
	c := rp.client(t)
	c.call("POST", "/api/v1/links", body{"token": first}, 403) // the second has its place
	if got := c.call("POST", "/api/v1/links", body{"token": second}, 200); got["kind"] != "reset" || got["name"] != "Bob" {
		t.Errorf("got %v", got)
	}
	c.call("POST", "/api/v1/invitations/accept", body{"token": second, "name": "x", "password": password}, 403)
	socket = bob.connect()
	if got := c.call("POST", "/api/v1/password/reset", body{"token": second, "password": "shorter"}, 422); got["field"] != "password" {
		t.Errorf("got %v", got)
	}
	c.call("POST", "/api/v1/password/reset", body{"token": second, "password": password}, 200)
	socket.expectClose(4001)
	c.call("GET", "/api/v1/me", nil, 200)
	bob.call("GET", "/api/v1/me", nil, 401)
	rp.client(t).as(token, "GET", "/api/v1/me", nil, 401)
	c.call("POST", "/api/v1/password/reset", body{"token": second, "password": another}, 403)
	// And whoever tried too often is forgiven.
	bob.call("POST", "/api/v1/session", body{"name": "Bob", "password": password}, 200)
}

func TestRolesAndDeactivation(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada, bob := one.admin(t, "Ada"), two.user(t, "Bob")
	general, _ := ada.room("General")
	path := fmt.Sprintf("/api/v1/people/%d", bob.id())
	if list := people.of(t, ada); len(list) != 2 || list[1]["name"] != "Bob" || list[1]["sessions"] != 1.0 {
		t.Errorf("got %v", list)
	}
	bob.call("PATCH", path, body{"role": "admin"}, 403)
	for _, b := range []body{{}, {"role": "king"}, {"role": "guest", "active": true}} {
		if got := ada.call("PATCH", path, b, 422); got["field"] != "role" {
			t.Errorf("%v: got %v", b, got)
		}
	}
	ada.call("PATCH", "/api/v1/people/999", body{"role": "admin"}, 404)
	for _, b := range []body{{"role": "member"}, {"active": false}} { // the last one
		ada.call("PATCH", fmt.Sprintf("/api/v1/people/%d", ada.id()), b, 409)
	}

	// A socket on the other replica begins anew with the rights of the role.
	bob.call("PUT", fmt.Sprintf("/api/v1/rooms/%d/members/%d", general, bob.id()), body{"role": ""}, 200)
	mine, topic := bob.room("Bob's")
	s := bob.connect()
	s.subscribe(topic, "head")
	if got := ada.call("PATCH", path, body{"role": "guest"}, 200)["person"].(body); got["role"] != "guest" {
		t.Errorf("got %v", got)
	}
	s.expectClose(1012)
	bob.call("PATCH", fmt.Sprintf("/api/v1/rooms/%d", mine), body{"description": "still mine"}, 403) // a guest owns nothing
	bob.call("POST", "/api/v1/rooms", body{"name": "More"}, 403)
	s = bob.connect()
	s.send(body{"type": "subscribe", "id": "1", "topics": body{"tasks": "head"}})
	s.expect("error")

	token, _ := bob.token("read")
	bob.call("POST", "/api/v1/ws-tickets", nil, 201)
	ticket := bob.ticket()
	if got := ada.call("PATCH", path, body{"active": false}, 200)["person"].(body); got["deactivated"] != true || got["sessions"] != 0.0 {
		t.Errorf("got %v", got)
	}
	s.expectClose(4001)
	bob.call("GET", "/api/v1/me", nil, 401)
	bob.call("POST", "/api/v1/session", body{"name": "Bob", "password": password}, 401)
	one.client(t).as(token, "GET", "/api/v1/me", nil, 401)
	if s, answer := bob.handshake(ticket, bob.base); s != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Error("a ticket from before opened a socket")
	}
	ada.call("POST", path+"/reset", nil, 409)
	if list := ada.call("GET", "/api/v1/users", nil, 200)["users"].([]any); len(list) != 1 {
		t.Errorf("got %v", list)
	}
	ada.call("POST", "/api/v1/rooms", body{"kind": "direct", "user_id": int64(people.of(t, ada)[1]["id"].(float64))}, 422)
	ada.call("PATCH", path, body{"active": true}, 200)
	bob.call("GET", "/api/v1/me", nil, 401) // what has ended has ended
	bob.call("POST", "/api/v1/session", body{"name": "Bob", "password": password}, 200)

	s = bob.connect()
	if got := ada.call("DELETE", path+"/sessions", nil, 200); got["ended"] != 1.0 {
		t.Errorf("got %v", got)
	}
	s.expectClose(4001)
	bob.call("GET", "/api/v1/me", nil, 401)
}

func TestAuditLog(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, bob := rp.admin(t, "Ada"), rp.user(t, "Bob")
	room, _ := ada.room("General")
	bob.call("GET", "/api/v1/audit", nil, 403)
	eve := rp.client(t)
	forged := "Bob\n2026 Ada account.role"
	eve.call("POST", "/api/v1/session", body{"name": "Bob", "password": "wrong password"}, 401)
	eve.call("POST", "/api/v1/session", body{"name": "hunter2 typed in the wrong field", "password": "wrong password"}, 401)
	eve.call("POST", "/api/v1/session", body{"name": forged, "password": "wrong password"}, 401)
	ada.call("POST", "/api/v1/tasks", body{"name": "t", "room_id": room, "text": "x"}, 201)
	ada.call("POST", "/api/v1/tasks/t/pause", body{}, 200)
	secret := ada.call("POST", "/api/v1/tasks/t/webhook", body{}, 201)["secret"].(string)
	ada.call("DELETE", "/api/v1/tasks/t", nil, 204)
	token, _ := bob.token("read")
	ada.call("PATCH", fmt.Sprintf("/api/v1/people/%d", bob.id()), body{"role": "guest"}, 200)
	ada.call("PATCH", fmt.Sprintf("/api/v1/people/%d", ada.id()), body{"role": "guest"}, 409) // which leaves no line

	read := func(query string) (lines []string, all []body) {
		t.Helper()
		for _, l := range ada.call("GET", "/api/v1/audit"+query, nil, 200)["lines"].([]any) {
			line := l.(body)
			all = append(all, line)
			lines = append(lines, fmt.Sprint(line["actor"], " ", line["action"], " ", line["target"]))
		}
		return lines, all
	}
	want := []string{
		"Ada account.role Bob", "Bob token.created Bob", "Ada task.deleted t", "Ada task.webhook_created t", "Ada task.paused t",
		"Ada task.created t", "(unknown) session.failed ", "(unknown) session.failed Bob", "Bob session.signed_in Bob",
		"(command line) account.created Bob", "Ada session.signed_in Ada", "(command line) account.created Ada",
	}
	lines, all := read("")
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got\n%s", strings.Join(lines, "\n"))
	}
	if fmt.Sprint(all[0]["details"]) != "map[from:member to:guest]" || all[0]["address"] != "127.0.0.1" || all[0]["actor_id"] == nil ||
		all[6]["actor_id"] != nil {
		t.Errorf("got %v and %v", all[0], all[6])
	}
	for _, secret := range []string{secret, token, password, "hunter2", "wrong password", ada.cookie()} {
		if strings.Contains(fmt.Sprint(all), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
	for query, n := range map[string]int{
		"?action=task": 4, "?action=task.paused": 1, fmt.Sprintf("?actor=%d", ada.id()): 6, "?target=Bob": 5, "?target=Bob&action=account": 2,
		"?since=2100-01-01T00:00:00Z": 0, "?until=2100-01-01T00:00:00Z&limit=3": 3, fmt.Sprintf("?before=%.0f", all[9]["id"]): 2,
	} {
		if lines, _ := read(query); len(lines) != n {
			t.Errorf("%s: got %d lines, want %d: %q", query, len(lines), n, lines)
		}
	}
	for field, query := range map[string]string{"action": "?action=tas", "limit": "?limit=201", "since": "?since=yesterday", "actor": "?actor=Ada"} {
		if got := ada.call("GET", "/api/v1/audit"+query, nil, 422); got["field"] != field {
			t.Errorf("%s: got %v", query, got)
		}
	}
}

func TestWritesOfOnePersonAreLimited(t *testing.T) {
	db := newDatabase(t)
	few := func(c *app.Config) { c.Writes = coord.Limit{Rate: 5, Per: time.Minute} }
	one, two := start(t, db, few), start(t, db, few)
	ada, bob := one.user(t, "Ada"), two.user(t, "Bob")
	other := two.user(t, "Ada")
	for i := range 5 {
		[]*client{ada, other}[i%2].call("POST", "/api/v1/rooms", body{"name": fmt.Sprint(i)}, 201)
	}
	answer, problem := other.do("POST", "/api/v1/rooms", body{"name": "one more"}, nil)
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" || problem["status"] != 429.0 ||
		answer.Header.Get("RateLimit-Policy") != `"writes";q=5;w=60` || answer.Header.Get("RateLimit") == "" {
		t.Errorf("got %s %v %v", answer.Status, answer.Header, problem)
	}
	ada.call("GET", "/api/v1/rooms", nil, 200)
	bob.call("POST", "/api/v1/rooms", body{"name": "Bob's"}, 201)
	ada.call("DELETE", "/api/v1/session", nil, 204) // which everybody always may
}

func TestConnectionsOfOnePersonAreLimited(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Hub.PerPerson = 2 })
	ada, bob := rp.user(t, "Ada"), rp.user(t, "Bob")
	first := ada.connect()
	ada.connect()
	s, answer := ada.handshake(ada.ticket(), ada.base)
	if s != nil || answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the third: got %s", answer.Status)
	}
	ada.call("GET", "/api/v1/events?topic=rooms", nil, 429)
	bob.connect()
	_ = first.ws.Close()
	eventually(t, "there is room again", func() bool {
		s, _ := ada.handshake(ada.ticket(), ada.base)
		return s != nil
	})
}

// A cookie that is not renewed does not keep somebody signed in, and the settings say how long.
func TestSessionSettings(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, func(c *app.Config) {
		c.Auth.Sessions = store.Lifetime{Idle: time.Hour, Absolute: 2 * time.Hour}
	})
	c, idle := rp.user(t, "Ada"), rp.user(t, "Ada")
	answer, _ := c.do("POST", "/api/v1/session", body{"name": "Ada", "password": password}, nil)
	if got := answer.Header.Get("Set-Cookie"); !strings.Contains(got, "Max-Age=7200") {
		t.Errorf("the cookie is %q", got)
	}
	for range 3 {
		db.advance(35 * time.Minute)
		c.call("GET", "/api/v1/me", nil, 200)
	}
	idle.call("GET", "/api/v1/me", nil, 401)
	db.advance(35 * time.Minute)
	c.call("GET", "/api/v1/me", nil, 401)
}
