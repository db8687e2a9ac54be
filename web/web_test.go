package web_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app"
)

func TestSetup(t *testing.T) {
	var output safeBuffer
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Output = &output })
	c := rp.client(t)
	if c.call("GET", "/api/v1/setup", nil, 200)["needed"] != true {
		t.Error("set-up is not needed at the beginning")
	}
	link := regexp.MustCompile(regexp.QuoteMeta(rp.base) + `/#setup=(\S+)`)
	eventually(t, "the set-up link", func() bool { return link.MatchString(output.String()) })
	token := link.FindStringSubmatch(output.String())[1]

	c.call("POST", "/api/v1/setup", body{"token": "wrong", "name": "Ada", "password": password}, 403)
	for _, test := range []struct{ field, name, password string }{
		{"name", " ", password},
		{"name", strings.Repeat("x", 65), password},
		{"name", "a\u200bb", password},
		{"password", "Ada", "1234567"},
		{"password", "Ada", strings.Repeat("x", 257)},
	} {
		got := c.call("POST", "/api/v1/setup", body{"token": token, "name": test.name, "password": test.password}, 422)
		if got["field"] != test.field {
			t.Errorf("%+v: got %v", test, got)
		}
	}
	user := c.call("POST", "/api/v1/setup", body{"token": token, "name": "Ada", "password": password}, 201)["user"].(body)
	if user["name"] != "Ada" || user["role"] != "admin" {
		t.Errorf("got %v", user)
	}
	me := c.call("GET", "/api/v1/me", nil, 200)
	if me["user"].(body)["name"] != "Ada" || me["node"] != t.Name() || me["driver"] != "memory" {
		t.Errorf("got %v", me)
	}
	if c.call("GET", "/api/v1/setup", nil, 200)["needed"] != false {
		t.Error("set-up is needed still")
	}
	c.call("POST", "/api/v1/setup", body{"token": token, "name": "Bob", "password": password}, 403)
}

// A database that fails as Tandem starts costs nobody the link.
func TestSetupLinkAfterAFailure(t *testing.T) {
	var output, logged safeBuffer
	db := newDatabase(t)
	rename := func(from, to string) {
		t.Helper()
		if _, err := db.rows.ExecContext(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to); err != nil {
			t.Fatal(err)
		}
	}
	rename("app_setup_tokens", "hidden")
	startLogged(t, db, func(c *app.Config) { c.Output = &output }, slog.New(slog.NewTextHandler(&logged, nil)))
	eventually(t, "the failure", func() bool { return strings.Contains(logged.String(), "no set-up link could be made; trying on") })
	rename("hidden", "app_setup_tokens")
	eventually(t, "the set-up link", func() bool { return strings.Contains(output.String(), "#setup=") })
}

func TestSignInAndOut(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	rp.client(t).call("GET", "/api/v1/me", nil, 401)
	c := rp.user(t, "Ada")
	c.call("GET", "/api/v1/me", nil, 200)
	c.call("DELETE", "/api/v1/session", nil, 204)
	c.call("GET", "/api/v1/me", nil, 401)
	c.call("DELETE", "/api/v1/session", nil, 204)
	c.call("POST", "/api/v1/session", body{"name": "ada ", "password": password}, 200)
	c.call("POST", "/api/v1/session", body{"name": "Ada", "password": password + "x"}, 401)
	c.call("POST", "/api/v1/session", body{"name": "Ada", "password": strings.Repeat("x", 5000)}, 401)
	c.call("POST", "/api/v1/session", body{"name": "Nobody", "password": password}, 401)
	c.call("POST", "/api/v1/session", body{"name": strings.Repeat("x", 3000), "password": password}, 401)
}

func TestSignInTwiceEndsTheOldSession(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	cookie := func() string {
		u, err := url.Parse(c.base)
		if err != nil {
			t.Fatal(err)
		}
		return c.http.Jar.Cookies(u)[0].Value
	}
	old := cookie()
	c.call("POST", "/api/v1/session", body{"name": "Ada", "password": password}, 200)
	if cookie() == old {
		t.Fatal("the session was not renewed")
	}
	answer, _ := rp.client(t).do("GET", "/api/v1/me", nil, http.Header{"Cookie": {"tandem_session=" + old}})
	if answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("the old session: got %s", answer.Status)
	}
}

func TestSignInIsLimitedByAccount(t *testing.T) {
	db := newDatabase(t)
	replicas := []*replica{start(t, db, nil), start(t, db, nil), start(t, db, nil)}
	replicas[0].user(t, "Ada")
	var verified, limited atomic.Int32
	clients := make([]*client, 50)
	for i := range clients {
		clients[i] = replicas[i%3].client(t)
	}
	var retryAfter atomic.Value
	db.stop()                  // every six seconds there is one try more
	together(25, func(i int) { // below the limit by address
		answer, _ := clients[i].do("POST", "/api/v1/session", body{"name": "ADA", "password": "wrong password"}, nil)
		switch answer.StatusCode {
		case http.StatusUnauthorized:
			verified.Add(1)
		case http.StatusTooManyRequests:
			limited.Add(1)
			retryAfter.Store(answer.Header.Get("Retry-After"))
		default:
			t.Errorf("got %s", answer.Status)
		}
	})
	if verified.Load() != 10 || limited.Load() != 15 {
		t.Errorf("%d were verified and %d refused, want 10 and 15", verified.Load(), limited.Load())
	}
	if s, err := strconv.Atoi(retryAfter.Load().(string)); err != nil || s < 1 || s > 6 {
		t.Errorf("Retry-After is %q", retryAfter.Load())
	}
	clients[0].call("POST", "/api/v1/session", body{"name": "Ada", "password": password}, 429)
	db.advance(6 * time.Second)
	clients[0].call("POST", "/api/v1/session", body{"name": "Ada", "password": password}, 200)
	// Success forgave the account.
	for range 3 {
		clients[0].call("POST", "/api/v1/session", body{"name": "Ada", "password": "wrong password"}, 401)
	}
}

// Many correct sign-ins of one person at once are not taken for an attack: each that
// succeeds forgives the account.
func TestParallelSignInsOfOnePerson(t *testing.T) {
	db := newDatabase(t)
	replicas := []*replica{start(t, db, nil), start(t, db, nil)}
	replicas[0].user(t, "Ada")
	var in atomic.Int32
	clients := make([]*client, 20) // twice the limit by account, below that by address
	for i := range clients {
		clients[i] = replicas[i%2].client(t)
	}
	together(len(clients), func(i int) {
		answer, _ := clients[i].do("POST", "/api/v1/session", body{"name": "Ada", "password": password}, nil)
		if answer.StatusCode == http.StatusOK {
			in.Add(1)
		}
	})
	if in.Load() < 10 {
		t.Errorf("%d of %d were let in, want the burst at least", in.Load(), len(clients))
	}
	clients[0].call("POST", "/api/v1/session", body{"name": "Ada", "password": password}, 200)
}

func TestForgedAddressChangesNothing(t *testing.T) {
	db := newDatabase(t)
	rp := start(t, db, nil)
	c := rp.client(t)
	db.stop() // every two seconds there is one try more
	try := func(i int) int {
		answer, _ := c.do("POST", "/api/v1/session", body{"name": fmt.Sprint("user", i), "password": password},
			http.Header{
				"X-Forwarded-For": {fmt.Sprintf("192.0.2.%d", i)}, "X-Real-Ip": {fmt.Sprintf("192.0.2.%d", i)},
				"Forwarded": {fmt.Sprintf("for=192.0.2.%d", i)},
			})
		return answer.StatusCode
	}
	for i := range 30 {
		if got := try(i); got != 401 {
			t.Fatalf("try %d: got %d", i, got)
		}
	}
	if got := try(30); got != 429 {
		t.Errorf("the 31st try: got %d, want 429", got)
	}
}

func TestOnlyTrustedProxiesAreBelieved(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.TrustedProxies = []string{"10.0.0.0/8"} // not where the test comes from
		c.Auth.ByAddress.Rate, c.Auth.ByAddress.Per = 1, time.Hour
	})
	c := rp.client(t)
	for i, want := range []int{401, 429} {
		answer, _ := c.do("POST", "/api/v1/session", body{"name": "Ada", "password": password},
			http.Header{"X-Forwarded-For": {fmt.Sprintf("192.0.2.%d, 10.0.0.1", i)}})
		if answer.StatusCode != want {
			t.Errorf("try %d: got %s, want %d", i, answer.Status, want)
		}
	}
}

func TestTrustedProxyNamesTheClient(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) {
		c.TrustedProxies = []string{"127.0.0.1", "10.0.0.0/8"}
		c.Auth.ByAddress.Rate, c.Auth.ByAddress.Per = 1, time.Hour
	})
	c := rp.client(t)
	for _, test := range []struct {
		forwarded string
		want      int
	}{
		{"192.0.2.1", 401},
		{"192.0.2.1", 429},
		{"198.51.100.7, 192.0.2.1, 10.1.1.1", 429}, // the left-most is what the client wrote itself
		{"::ffff:192.0.2.1", 429},
		{"192.0.2.2", 401},
		{"2001:db8:1:1::1", 401},
		{"2001:db8:1:1:ffff::2", 429}, // one network is one client
		{"2001:db8:1:2::1", 401},
	} {
		answer, _ := c.do("POST", "/api/v1/session", body{"name": "Ada", "password": password},
			http.Header{"X-Forwarded-For": {test.forwarded}})
		if answer.StatusCode != test.want {
			t.Errorf("%s: got %s, want %d", test.forwarded, answer.Status, test.want)
		}
	}
}

func TestRooms(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	if list := c.call("GET", "/api/v1/rooms", nil, 200)["rooms"].([]any); len(list) != 0 {
		t.Errorf("got %v", list)
	}
	id, _ := c.room("General")
	if got := c.call("POST", "/api/v1/rooms", body{"name": "general"}, 409); got["field"] != "name" ||
		got["detail"] != `there is a room named "general" already` {
		t.Errorf("got %v", got)
	}
	for _, name := range []any{"\t", "\u200b", "a\u202eb", 5} {
		if got := c.call("POST", "/api/v1/rooms", body{"name": name}, 422); got["field"] != "name" {
			t.Errorf("%q: got %v", name, got)
		}
	}
	c.room("👩\u200d💻")
	path := fmt.Sprintf("/api/v1/rooms/%d/messages", id)
	if got := c.call("GET", path, nil, 200); got["position"] != "0" || got["more"] != false || len(got["messages"].([]any)) != 0 {
		t.Errorf("got %v", got)
	}
	for i := range 5 {
		c.call("POST", path, body{"client_id": fmt.Sprint("c", i), "text": fmt.Sprint("m", i)}, 201)
	}
	page := c.call("GET", path+"?limit=2", nil, 200)
	messages := page["messages"].([]any)
	if page["more"] != true || len(messages) != 2 || messages[1].(body)["text"] != "m4" {
		t.Fatalf("got %v", page)
	}
	older := c.call("GET", fmt.Sprintf("%s?before=%.0f", path, messages[0].(body)["id"]), nil, 200)
	if list := older["messages"].([]any); older["more"] != false || len(list) != 3 || list[0].(body)["text"] != "m0" {
		t.Errorf("got %v", older)
	}
	for query, field := range map[string]string{"?limit=201": "limit", "?limit=x": "limit", "?before=-1": "before"} {
		if got := c.call("GET", path+query, nil, 422); got["field"] != field {
			t.Errorf("%s: got %v", query, got)
		}
	}
	for field, b := range map[string]body{
		"text":      {"client_id": "x", "text": " "},
		"client_id": {"text": "x"},
	} {
		if got := c.call("POST", path, b, 422); got["field"] != field {
			t.Errorf("%v: got %v", b, got)
		}
	}
	c.call("POST", path, body{"client_id": "y", "text": "a\x00b"}, 422)
	c.call("GET", "/api/v1/rooms/999/messages", nil, 404)
	c.call("GET", "/api/v1/rooms/x/messages", nil, 404)
	if got := c.call("POST", "/api/v1/rooms/999/messages", body{"client_id": "z", "text": "x"}, 404); got["detail"] != "there is no such room" {
		t.Errorf("got %v", got)
	}
	other, _ := c.room("Other")
	got := c.call("POST", fmt.Sprintf("/api/v1/rooms/%d/messages", other), body{"client_id": "c0", "text": "m0"}, 409)
	if got["field"] != "client_id" || got["detail"] != "was used in another room" {
		t.Errorf("got %v", got)
	}
}

func TestTasks(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	id, topic := c.room("Reports")
	s := c.connect()
	s.subscribe(topic, "head")
	task := body{"name": "tick", "room_id": id, "text": "still here", "schedule": "@every 1s", "zone": "Europe/Berlin"}
	for field, value := range map[string]any{
		"name": "", "text": "", "schedule": "every day", "zone": "Mars/Olympus", "room_id": 999,
	} {
		wrong := body{}
		maps.Copy(wrong, task)
		wrong[field] = value
		if got := c.call("POST", "/api/v1/tasks", wrong, 422); got["field"] != field {
			t.Errorf("%s: got %v", field, got)
		}
	}
	got := c.call("POST", "/api/v1/tasks", task, 201)["task"].(body)
	if got["room"] != "Reports" || got["description"] != "every second, Europe/Berlin" && got["description"] != "every second" {
		t.Errorf("got %v", got)
	}
	if got := c.call("POST", "/api/v1/tasks", task, 409); got["field"] != "name" || got["detail"] != `there is a task named "tick" already` {
		t.Errorf("got %v", got)
	}
	for field, value := range map[string]string{"name": "a\x01b", "zone": "Mars"} { // found by package coord
		wrong := body{"name": "by hand", "room_id": id, "text": "now"}
		wrong[field] = value
		if got := c.call("POST", "/api/v1/tasks", wrong, 422); got["field"] != field {
			t.Errorf("%s: got %v", field, got)
		}
	}
	for range 2 {
		frame := s.expect("event")["payload"].(body)
		if frame["text"] != "still here" || frame["author"] != "tick" || frame["user_id"] != 0.0 {
			t.Errorf("got %v", frame)
		}
	}
	eventually(t, "a run that succeeded", func() bool {
		list := c.call("GET", "/api/v1/tasks/tick/runs", nil, 200)["runs"].([]any)
		return len(list) > 0 && list[len(list)-1].(body)["state"] == "succeeded"
	})
	if got := c.call("POST", "/api/v1/tasks/tick/pause", body{}, 200)["task"].(body); got["paused"] != true {
		t.Errorf("got %v", got)
	}
	if got := c.call("POST", "/api/v1/tasks/tick/resume", body{}, 200)["task"].(body); got["paused"] != false {
		t.Errorf("got %v", got)
	}
	if list := c.call("GET", "/api/v1/tasks", nil, 200)["tasks"].([]any); len(list) != 1 {
		t.Errorf("got %v", list)
	}
	c.call("DELETE", "/api/v1/tasks/tick", nil, 204)
	if got := c.call("DELETE", "/api/v1/tasks/tick", nil, 404); got["detail"] != "there is no such task" {
		t.Errorf("got %v", got)
	}
	c.call("GET", "/api/v1/tasks/tick/runs", nil, 404)

	c.call("POST", "/api/v1/tasks", body{"name": "by hand", "room_id": id, "text": "now"}, 201)
	c.call("POST", "/api/v1/tasks/by%20hand/run", body{}, 202)
	for {
		if text, _ := s.text(); text == "now" {
			break
		}
	}
}

func TestSchedulePreview(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	got := c.call("GET", "/api/v1/schedule?schedule=30+9+*+*+1-5&zone=Asia/Kolkata", nil, 200)
	next := got["next"].([]any)
	if got["description"] == "" || len(next) != 5 || !strings.HasSuffix(next[0].(string), "T09:30:00+05:30") {
		t.Errorf("got %v", got)
	}
	if got := c.call("GET", "/api/v1/schedule?schedule=x", nil, 422); got["field"] != "schedule" {
		t.Errorf("got %v", got)
	}
	if got := c.call("GET", "/api/v1/schedule?schedule=@daily&zone=x", nil, 422); got["field"] != "zone" {
		t.Errorf("got %v", got)
	}
}

func TestBodies(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.client(t)
	c.call("POST", "/api/v1/session", body{"name": "a\x00b", "password": "whatever"}, 401)
	if got := c.call("POST", "/api/v1/session", body{"name": 5}, 422); got["field"] != "name" || got["detail"] != "is of the wrong type" {
		t.Errorf("got %v", got)
	}
	c.call("POST", "/api/v1/session", body{"name": "x", "password": strings.Repeat("x", 65<<10)}, 413)
	for contentType, want := range map[string]int{"text/plain": 415, "application/json; charset=utf-8": 401} {
		answer, _ := c.do("POST", "/api/v1/session", body{"name": "x", "password": "y"}, http.Header{"Content-Type": {contentType}})
		if answer.StatusCode != want {
			t.Errorf("%s: got %s", contentType, answer.Status)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.base+"/api/v1/session", strings.NewReader(`{"name":`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("got %s", answer.Status)
	}
	c.call("GET", "/api/v1/nothing", nil, 404)
	c.call("PUT", "/api/v1/session", nil, 405)
}

func TestOtherSitesAreRefused(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.user(t, "Ada")
	for _, header := range []http.Header{
		{"Origin": {"https://evil.example"}},
		{"Sec-Fetch-Site": {"cross-site"}},
	} {
		for _, path := range []string{"/api/v1/rooms", "/api/v1/ws-tickets"} {
			if answer, _ := c.do("POST", path, body{"name": "x"}, header); answer.StatusCode != http.StatusForbidden {
				t.Errorf("%v: got %s", header, answer.Status)
			}
		}
	}
}

func TestPageAndHeaders(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.client(t)
	answer, _ := c.do("GET", "/", nil, nil)
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("got %s %v", answer.Status, answer.Header)
	}
	if csp := answer.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'self'") ||
		strings.Contains(csp, "unsafe") {
		t.Errorf("the policy is %q", csp)
	}
	if answer.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Error("there is no nosniff")
	}
	if again, _ := c.do("GET", "/", nil, http.Header{"If-None-Match": {answer.Header.Get("Etag")}}); again.StatusCode != http.StatusNotModified {
		t.Errorf("with the ETag: got %s", again.Status)
	}
	for _, path := range []string{"/", "/healthz/live", "/healthz/ready", "/metrics", "/api/v1/setup"} {
		if answer, _ := c.do("HEAD", path, nil, http.Header{"Accept-Encoding": {"identity"}}); answer.StatusCode != http.StatusOK {
			t.Errorf("HEAD %s: got %s", path, answer.Status)
		}
	}
	for path, want := range map[string]int{"/static/favicon.svg": 200, "/static/../web.go": 404, "/static/none": 404, "/nothing": 404} {
		if answer, _ := c.do("GET", path, nil, nil); answer.StatusCode != want {
			t.Errorf("%s: got %s, want %d", path, answer.Status, want)
		}
	}
}

func TestSecureCookie(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.PublicURL = "https://chat.example.com" })
	rp.user(t, "Ada") // its cookie jar refuses the cookie over http
	answer, _ := rp.client(t).do("POST", "/api/v1/session", body{"name": "Ada", "password": password}, nil)
	got := answer.Header.Get("Set-Cookie")
	for _, part := range []string{"__Host-tandem=", "Path=/", "HttpOnly", "Secure", "SameSite=Lax"} {
		if !strings.Contains(got, part) {
			t.Errorf("the cookie %q lacks %s", got, part)
		}
	}
	if answer.Header.Get("Strict-Transport-Security") == "" {
		t.Error("there is no HSTS")
	}
}

func TestHealthAndMetrics(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.client(t)
	c.call("GET", "/healthz/live", nil, 200)
	if got := c.call("GET", "/healthz/ready", nil, 200); got["status"] != "ready" {
		t.Errorf("got %v", got)
	}
	if text := c.call("GET", "/metrics", nil, 200)["text"].(string); !strings.Contains(text, `tandem_build_info{driver="memory",version="test"} 1`) {
		t.Errorf("got %s", text)
	}
	answer, _ := c.do("GET", "/metrics", nil, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("through a proxy: got %s", answer.Status)
	}
	if err := rp.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer, value := c.do("GET", "/healthz/ready", nil, nil)
	check := value["checks"].([]any)[0].(body)
	if answer.StatusCode != http.StatusServiceUnavailable || check["name"] != "database" || check["ok"] != false || check["since"] == nil || check["error"] == "" {
		t.Errorf("got %s %v", answer.Status, value)
	}
	c.call("GET", "/healthz/live", nil, 200)
}

// A proxy on the same machine need not say that it is one.
func TestOperatorBehindALocalProxy(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.PublicURL = "https://chat.example.com" })
	c := rp.client(t)
	c.call("GET", "/metrics", nil, 403)
	if err := rp.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, value := c.do("GET", "/healthz/ready", nil, nil)
	if check := value["checks"].([]any)[0].(body); check["ok"] != false || check["error"] != nil {
		t.Errorf("got %v", check)
	}
}

func TestMetricsToken(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.MetricsToken = "secret" })
	c := rp.client(t)
	c.call("GET", "/metrics", nil, 403)
	if answer, _ := c.do("GET", "/metrics", nil, http.Header{"Authorization": {"Bearer secret"}}); answer.StatusCode != http.StatusOK {
		t.Errorf("got %s", answer.Status)
	}
}

// safeBuffer can be written and read at the same time.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
