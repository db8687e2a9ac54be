package web_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/webhook"
)

// loopbackToo lets tasks call this machine.
func loopbackToo(c *app.Config) { c.HTTPTasksAllow = []string{"127.0.0.1"} }

// change expects the next change of a run on a socket that follows the topic of its
// task, and adds the lines that come before it to the log.
func (s *socket) change(log *[]string) body {
	s.t.Helper()
	for {
		frame := s.expect("event")
		payload := frame["payload"].(body)
		if frame["kind"] == "run.changed" {
			return payload
		}
		for _, line := range payload["lines"].([]any) {
			*log = append(*log, line.(body)["text"].(string))
		}
	}
}

func (s *socket) untilRun(state string, log *[]string) body {
	s.t.Helper()
	for {
		if run := s.change(log); run["state"] == state {
			return run
		}
	}
}

func TestTaskAndRunInJSON(t *testing.T) {
	rp := start(t, newDatabase(t), func(c *app.Config) { c.Poll = time.Hour })
	c := rp.admin(t, "Ada")
	id, _ := c.room("Reports")
	made := c.call("POST", "/api/v1/tasks", body{
		"name": "call", "kind": "http", "room_id": id, "http": body{"url": "https://example.com"}, "schedule": "@daily",
	}, 201)["task"].(body)
	wantKeys(t, made, "name", "kind", "room_id", "room", "text", "http", "report", "schedule", "zone", "description", "next_at",
		"overlap", "misfire", "misfire_cap", "retry", "timeout_s", "priority", "concurrency", "at_most_once", "paused", "version", "webhook",
		"topic")
	wantKeys(t, made["retry"].(body), "max_attempts", "backoff_s", "max_backoff_s")
	wantKeys(t, made["concurrency"].(body), "key", "limit")
	if got := c.call("GET", "/api/v1/tasks/call", nil, 200)["task"].(body); got["report"] != "failures" || got["version"] != 1.0 {
		t.Errorf("got %v", got)
	}
	for field, wrong := range map[string]body{
		"http.url":           {"http": body{"url": 5}},
		"retry.max_attempts": {"retry": body{"max_attempts": "x"}},
		"http.method":        {"http": body{"url": "https://example.com", "method": "x"}},
		"priority":           {"priority": 9},
		"timezone":           {"timezone": "Europe/Berlin"}, // which would be another time if it were passed over
		"max_attempt":        {"retry": body{"max_attempt": 1}},
	} {
		b := maps.Clone(made)
		b["name"] = "other"
		maps.Copy(b, wrong)
		if got := c.call("POST", "/api/v1/tasks", b, 422); got["field"] != field {
			t.Errorf("%s: got %v", field, got)
		}
	}
	c.call("GET", "/api/v1/tasks/none", nil, 404)

	c.call("POST", "/api/v1/tasks", body{"name": "later", "room_id": id, "text": "x"}, 201)
	run := c.call("POST", "/api/v1/tasks/later/run", body{}, 202)["run"].(body)
	always := []string{
		"id", "task", "kind", "state", "due_at", "created_at", "attempt", "max_attempts", "rescues", "progress", "log_lines", "worker",
		"error", "cancel_requested", "trigger",
	}
	wantKeys(t, run, always...)
	eventually(t, "the end of the run", func() bool {
		run = c.call("GET", fmt.Sprintf("/api/v1/runs/%.0f", run["id"]), nil, 200)["run"].(body)
		return run["state"] == "succeeded"
	})
	wantKeys(t, run, append(always, "started_at", "finished_at")...)
}

func wantKeys(t *testing.T, b body, keys ...string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(b))
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("the keys are %q, want %q", got, keys)
	}
}

func TestEditsOfOneTask(t *testing.T) {
	db := newDatabase(t)
	replicas := []*replica{start(t, db, nil), start(t, db, nil)}
	c := replicas[0].user(t, "Ada")
	id, _ := c.room("Reports")
	task := c.call("POST", "/api/v1/tasks", body{"name": "report", "room_id": id, "text": "v0"}, 201)["task"].(body)
	var won, lost atomic.Int32
	var winner atomic.Value
	clients := make([]*client, 8)
	for i := range clients {
		clients[i] = replicas[i%2].user(t, "Ada")
	}
	together(len(clients), func(i int) {
		mine := maps.Clone(task)
		mine["text"] = fmt.Sprint("by ", i)
		answer, value := clients[i].do("PUT", "/api/v1/tasks/report", mine, nil)
		switch {
		case answer.StatusCode == http.StatusOK:
			won.Add(1)
			winner.Store(mine["text"])
		case answer.StatusCode == http.StatusConflict && value["detail"] == "changed by somebody else meanwhile":
			lost.Add(1)
		default:
			t.Errorf("got %s %v", answer.Status, value)
		}
	})
	got := c.call("GET", "/api/v1/tasks/report", nil, 200)["task"].(body)
	if won.Load() != 1 || lost.Load() != 7 || got["text"] != winner.Load() || got["version"] != 2.0 {
		t.Errorf("%d won and %d lost: %v", won.Load(), lost.Load(), got)
	}
}

func TestOnlyAdministrators(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	admin, member, nobody := rp.admin(t, "Ada"), rp.user(t, "Mel"), rp.client(t)
	id, _ := admin.room("Reports")
	call := body{"name": "call", "kind": "http", "room_id": id, "http": body{"url": "https://example.com/?secret", "headers": body{"X-Key": "secret"}}}
	member.call("POST", "/api/v1/tasks", call, 403)
	made := admin.call("POST", "/api/v1/tasks", call, 201)["task"].(body)
	admin.call("POST", "/api/v1/tasks", body{"name": "post", "room_id": id, "text": "x"}, 201)
	member.call("PUT", "/api/v1/tasks/call", made, 403)
	member.call("POST", "/api/v1/tasks/post/webhook", body{}, 403)
	member.call("DELETE", "/api/v1/tasks/post/webhook", nil, 403)
	for _, path := range []string{"/api/v1/tasks", "/api/v1/tasks/call"} {
		if text := fmt.Sprint(member.call("GET", path, nil, 200)); strings.Contains(text, "secret") {
			t.Errorf("a member sees %s", text)
		}
	}
	for _, test := range []struct{ method, path string }{
		{"GET", "/tasks"},
		{"GET", "/tasks/call"},
		{"PUT", "/tasks/call"},
		{"POST", "/tasks/call/run"},
		{"POST", "/tasks/call/webhook"},
		{"DELETE", "/tasks/call/webhook"},
		{"GET", "/tasks/call/runs"},
		{"GET", "/runs"},
		{"GET", "/runs/1"},
		{"GET", "/runs/1/log"},
		{"POST", "/runs/1/cancel"},
	} {
		nobody.call(test.method, "/api/v1"+test.path, nil, 401)
	}
}

// A run is cancelled on one replica, executed by another, and followed on a third.
func TestCancelFromAnotherReplica(t *testing.T) {
	db := newDatabase(t)
	named := func(name string, more func(*app.Config)) func(*app.Config) {
		return func(c *app.Config) {
			loopbackToo(c)
			c.Node, c.Poll = name, time.Hour // only hints
			if more != nil {
				more(c)
			}
		}
	}
	replicas := map[string]*replica{"a": start(t, db, named("a", nil)), "b": start(t, db, named("b", nil))}
	asked := make(chan string, 1)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "working\n")
		_ = http.NewResponseController(w).Flush()
		asked <- r.Header.Get("Idempotency-Key")
		<-r.Context().Done()
	}))
	t.Cleanup(service.Close)
	admin := replicas["a"].admin(t, "Ada")
	id, roomTopic := admin.room("Reports")
	admin.call("POST", "/api/v1/tasks", body{
		"name": "slow", "kind": "http", "room_id": id, "report": "always", "http": body{"url": service.URL, "method": "POST"},
	}, 201)
	sockets := map[string]*socket{}
	for name, rp := range replicas {
		sockets[name] = rp.user(t, "Mel").connect()
		sockets[name].subscribe("runs:slow", "head")
	}
	run := admin.call("POST", "/api/v1/tasks/slow/run", body{}, 202)["run"].(body)
	path := fmt.Sprintf("/api/v1/runs/%.0f", run["id"])
	<-asked
	running := admin.call("GET", path, nil, 200)["run"].(body)
	other := replicas[map[any]string{"a": "b", "b": "a"}[running["worker"]]]
	canceller := other.user(t, "Mel")
	if got := canceller.call("POST", path+"/cancel", body{}, 202)["run"].(body); got["cancel_requested"] != true {
		t.Errorf("got %v", got)
	}
	for name, s := range sockets {
		var states, log []string
		for {
			change := s.change(&log)
			states = append(states, fmt.Sprint(change["state"], change["cancel_requested"]))
			if change["state"] == "cancelled" {
				break
			}
		}
		if states = slices.Compact(states); fmt.Sprint(states[:3]) != "[queuedfalse runningfalse runningtrue]" {
			t.Errorf("%s heard %q", name, states)
		}
		if len(log) < 1 || log[0] != "POST "+service.URL {
			t.Errorf("%s heard the log %q", name, log)
		}
	}
	canceller.call("POST", path+"/cancel", body{}, 409)
	canceller.call("POST", "/api/v1/runs/999/cancel", body{}, 404)
	canceller.call("GET", "/api/v1/runs/x", nil, 404)
	if got := admin.call("GET", path, nil, 200)["run"].(body); got["state"] != "cancelled" || got["finished_at"] == nil {
		t.Errorf("got %v", got)
	}
	if page := admin.call("GET", "/api/v1/rooms/"+strings.TrimPrefix(roomTopic, "room:")+"/messages", nil, 200); len(page["messages"].([]any)) != 0 {
		t.Errorf("posted %v", page)
	}
}

func TestRequestTaskAndItsLog(t *testing.T) {
	rp := start(t, newDatabase(t), loopbackToo)
	c := rp.admin(t, "Ada")
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("line\n", 50))
	}))
	t.Cleanup(service.Close)
	c.call("POST", "/api/v1/tasks", body{"name": "call", "kind": "http", "report": "never", "http": body{"url": service.URL}}, 201)
	s := c.connect()
	s.subscribe("runs:call", "head")
	c.call("POST", "/api/v1/tasks/call/run", nil, 202)
	var heard []string
	run := s.untilRun("succeeded", &heard)
	path := fmt.Sprintf("/api/v1/runs/%.0f", run["id"])
	var read []string
	for _, after := range []string{"", "?after=0", "?after=1", "?after=52", "?after=99999999999"} {
		page := c.call("GET", path+"/log"+after, nil, 200)
		lines := page["lines"].([]any)
		if after == "" {
			for _, line := range lines {
				wantKeys(t, line.(body), "number", "attempt", "at", "text")
				read = append(read, line.(body)["text"].(string))
			}
		}
		if want := map[string]int{"": 52, "?after=0": 52, "?after=1": 51}[after]; len(lines) != want || page["more"] != false {
			t.Errorf("%q: got %d lines", after, len(lines))
		}
	}
	if !slices.Equal(heard, read) || len(read) != 52 || read[51] != "line" || run["log_lines"] != 52.0 || run["progress"] != 100.0 {
		t.Errorf("heard %q, read %q of %v", heard, read, run)
	}
	c.call("GET", path+"/log?after=x", nil, 422)
	c.call("GET", "/api/v1/runs/999/log", nil, 404)
}

func TestTasksDoNotReachThisMachine(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.admin(t, "Ada")
	id, _ := c.room("Reports")
	s := c.connect()
	for i, url := range []string{rp.base + "/metrics", "http://localhost:1/", "http://169.254.169.254/latest/meta-data/", "http://[::1]:1/"} {
		name := fmt.Sprint("call", i)
		c.call("POST", "/api/v1/tasks", body{"name": name, "kind": "http", "room_id": id, "http": body{"url": url}}, 201)
		s.subscribe("runs:"+name, "head")
		c.call("POST", "/api/v1/tasks/"+name+"/run", nil, 202)
		var log []string
		run := s.untilRun("failed", &log)
		if run["attempt"] != 1.0 || !strings.Contains(run["error"].(string), "is not allowed for tasks") {
			t.Errorf("%s: got %v", url, run)
		}
	}
}

func TestRunNowIsIdempotent(t *testing.T) {
	db := newDatabase(t)
	replicas := []*replica{start(t, db, nil), start(t, db, nil)}
	c := replicas[0].user(t, "Ada")
	id, _ := c.room("Reports")
	c.call("POST", "/api/v1/tasks", body{"name": "report", "room_id": id, "text": "x", "overlap": "allow"}, 201)
	clients := make([]*client, 8)
	for i := range clients {
		clients[i] = replicas[i%2].user(t, "Ada")
	}
	ids := make([]any, len(clients))
	together(len(clients), func(i int) {
		answer, value := clients[i].do("POST", "/api/v1/tasks/report/run", nil, http.Header{"Idempotency-Key": {"one"}})
		if answer.StatusCode != http.StatusAccepted || value["run"].(body)["trigger"] != "api" {
			t.Errorf("got %s %v", answer.Status, value)
			return
		}
		ids[i] = value["run"].(body)["id"]
	})
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("the runs are %v, want one", ids)
	}
	answer, value := c.do("POST", "/api/v1/tasks/report/run", nil, http.Header{"Idempotency-Key": {strings.Repeat("x", 300)}})
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("got %s %v", answer.Status, value)
	}
	if run := c.call("POST", "/api/v1/tasks/report/run", nil, 202)["run"].(body); run["trigger"] != "manual" {
		t.Errorf("got %v", run)
	}
	// The page sends a key with each click, which is a person's all the same.
	click := http.Header{"Idempotency-Key": {"one"}, "Sec-Fetch-Site": {"same-origin"}}
	clicked := make([]any, 2)
	for i := range clicked {
		_, value := c.do("POST", "/api/v1/tasks/report/run", nil, click)
		run, _ := value["run"].(body)
		if clicked[i] = run["id"]; run["trigger"] != "manual" || clicked[i] != clicked[0] || clicked[i] == ids[0] {
			t.Errorf("a click: got %v", value)
		}
	}

	var seen []any
	query := "?limit=1"
	for {
		page := c.call("GET", "/api/v1/runs"+query, nil, 200)
		runs := page["runs"].([]any)
		if len(runs) != 1 || runs[0].(body)["task"] != "report" {
			t.Fatalf("got %v", page)
		}
		seen = append(seen, runs[0].(body)["id"])
		if page["more"] == false {
			break
		}
		query = fmt.Sprintf("?limit=1&before=%.0f", runs[0].(body)["id"])
	}
	if len(seen) != 3 || seen[0] != clicked[0] || seen[2] != ids[0] {
		t.Errorf("the pages have %v", seen)
	}
	for query, field := range map[string]string{
		"?limit=201": "limit", "?before=x": "before", "?state=x": "state", "?kind=x": "kind",
	} {
		if got := c.call("GET", "/api/v1/runs"+query, nil, 422); got["field"] != field {
			t.Errorf("%s: got %v", query, got)
		}
	}
	c.call("GET", "/api/v1/tasks/none/runs", nil, 404)
}

// hook sends a request to a webhook, signed with the secret.
func (c *client) hook(path, secret, id, text string) (*http.Response, string) {
	c.t.Helper()
	key, err := webhook.ParseSecret(secret)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.base+path, strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	now := time.Now()
	r.Header.Set(webhook.HeaderID, id)
	r.Header.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(webhook.HeaderSignature, webhook.Sign(key, now, id, []byte(text)))
	answer, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer, string(bytes.TrimSpace(got))
}

func TestWebhook(t *testing.T) {
	db := newDatabase(t)
	idle := func(c *app.Config) { c.Poll = time.Hour }
	replicas := []*replica{start(t, db, idle), start(t, db, idle)}
	admin := replicas[0].admin(t, "Ada")
	id, topic := admin.room("Reports")
	admin.call("POST", "/api/v1/tasks", body{"name": "two words", "room_id": id, "text": "x"}, 201)
	made := admin.call("POST", "/api/v1/tasks/two%20words/webhook", body{}, 201)
	wantKeys(t, made, "secret", "path")
	path, secret := made["path"].(string), made["secret"].(string)
	s := admin.connect()
	s.subscribe(topic, "head")

	// The same request to several replicas at once makes one run.
	outside := make([]*client, 8)
	for i := range outside {
		outside[i] = replicas[i%2].client(t)
	}
	answers := make([]string, len(outside))
	together(len(outside), func(i int) {
		answer, text := outside[i].hook(path, secret, "m1", `{"text":"from outside"}`)
		if answer.StatusCode != http.StatusAccepted {
			t.Errorf("got %s %s", answer.Status, text)
		}
		answers[i] = text
	})
	slices.Sort(answers)
	if answers[0] != `{"run_id":1,"duplicate":false}` || len(slices.Compact(answers[1:])) != 1 || answers[1] != `{"run_id":1,"duplicate":true}` {
		t.Errorf("got %q", answers)
	}
	if text, _ := s.text(); text != "from outside" {
		t.Errorf("posted %q", text)
	}

	admin.call("PUT", "/api/v1/tasks/two%20words", body{
		"room_id": id, "text": "x", "version": 1, "concurrency": body{"key": "k"}, "kind": "http", "http": body{"url": "https://example.com"},
	}, 200)
	c := outside[0]
	for _, test := range []struct {
		path, secret, id, text string
		want                   int
	}{
		{path, webhook.NewSecret(), "m2", "", 401},
		{path + "x", secret, "m2", "", 401},
		{"/hooks/v1/tasks/none", secret, "m2", "", 401},
		{path, secret, "m.2", "", 401},
		{path, secret, "m2", strings.Repeat("x", 256<<10+1), 413},
		{path, secret, "m1", `{"text":"again"}`, 409},
		{path, secret, "m1", `{"text":"from outside"}`, 202},
	} {
		answer, text := c.hook(test.path, test.secret, test.id, test.text)
		if answer.StatusCode != test.want {
			t.Errorf("%.100v: got %s %s", test, answer.Status, text)
		}
		if test.want == http.StatusUnauthorized && answer.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("got %v", answer.Header)
		}
	}
	// Who wrote the sender is told what is wrong with its request.
	if _, text := c.hook(path, secret, "m.2", ""); !strings.Contains(text, "Webhook-Id must be at most 195 printable") {
		t.Errorf("got %s", text)
	}
	unknown, text := c.hook("/hooks/v1/tasks/none", secret, "m2", "")
	wrong, same := c.hook(path, webhook.NewSecret(), "m2", "")
	if unknown.StatusCode != wrong.StatusCode || text != same {
		t.Errorf("an unknown task: %s %s, a wrong secret: %s %s", unknown.Status, text, wrong.Status, same)
	}
	c.call("GET", path, nil, 405)

	admin.call("DELETE", "/api/v1/tasks/two%20words/webhook", nil, 204)
	admin.call("DELETE", "/api/v1/tasks/two%20words/webhook", nil, 404)
	if answer, text := c.hook(path, secret, "m1", ""); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("once it is gone: got %s %s", answer.Status, text)
	}
}

func TestWebhookWhileARunIsInTheWay(t *testing.T) {
	rp := start(t, newDatabase(t), loopbackToo)
	admin := rp.admin(t, "Ada")
	asked, release := make(chan struct{}, 10), make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	t.Cleanup(service.Close)
	admin.call("POST", "/api/v1/tasks", body{"name": "call", "kind": "http", "report": "never", "http": body{"url": service.URL}}, 201)
	made := admin.call("POST", "/api/v1/tasks/call/webhook", body{}, 201)
	path, secret := made["path"].(string), made["secret"].(string)
	hook := func(id string, want int) *http.Response {
		t.Helper()
		answer, text := admin.hook(path, secret, id, "")
		if answer.StatusCode != want {
			t.Fatalf("%s: got %s %s, want %d", id, answer.Status, text, want)
		}
		return answer
	}
	hook("m1", 202)
	<-asked
	after := hook("m2", 409).Header.Get("Retry-After")
	if n, err := strconv.Atoi(after); err != nil || n < 1 {
		t.Errorf("Retry-After is %q", after)
	}
	hook("m1", 202)
	if answer, _ := admin.do("POST", "/api/v1/tasks/call/run", nil, nil); answer.StatusCode != http.StatusConflict || answer.Header.Get("Retry-After") == "" {
		t.Errorf("run now: got %s", answer.Status)
	}
	close(release)
	eventually(t, "a place for the second", func() bool {
		answer, _ := admin.hook(path, secret, "m2", "")
		return answer.StatusCode == http.StatusAccepted
	})
	for range 60 {
		answer, _ := admin.hook(path, secret, "m1", "")
		if answer.StatusCode == http.StatusTooManyRequests {
			if answer.Header.Get("Retry-After") == "" {
				t.Error("there is no Retry-After")
			}
			return
		}
	}
	t.Error("webhooks are not limited")
}

func TestTopicsOfRuns(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	s := rp.user(t, "Ada").connect()
	if at := s.subscribe("runs:whatever", "head"); at != "0" {
		t.Errorf("starts at %q", at)
	}
	for _, topic := range []string{"runs:", "runs:a/b", "runs", "runs:" + strings.Repeat("x", 101)} {
		s.send(body{"type": "subscribe", "id": s.id(), "topics": body{topic: "head"}})
		if got := s.expect("error"); got["code"] != "forbidden" {
			t.Errorf("%s: got %v", topic, got)
		}
	}
}
