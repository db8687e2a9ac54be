package main

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord/keyring"
)

// secrets are what no output may hold, by what they are.
type secrets map[string]string

// in names the secrets that a text holds, in any of the forms in which they travel.
func (s secrets) in(text string) (found []string) {
	for what, secret := range s {
		for _, form := range []string{secret, url.QueryEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
			if strings.Contains(text, form) {
				found = append(found, what)
				break
			}
		}
	}
	return found
}

// send sends a request with headers of its own and returns the status.
func (p *person) send(method, url, body string, headers ...string) int {
	p.tb.Helper()
	r, err := http.NewRequestWithContext(p.tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		p.tb.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := p.http.Do(r)
	if err != nil {
		p.tb.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// cookie is the secret of the person's session.
func (p *person) cookie(at string) string {
	p.tb.Helper()
	u, err := url.Parse(at)
	if err != nil {
		p.tb.Fatal(err)
	}
	for _, c := range p.http.Jar.Cookies(u) {
		if c.Name == "tandem_session" {
			return c.Value
		}
	}
	p.tb.Fatal("there is no cookie of a session")
	return ""
}

// TestOutputHoldsNoSecret uses everything that has to do with secrets, rightly and wrongly, while the
// program logs as much as it can, and looks for them in all that it has written.
func TestOutputHoldsNoSecret(t *testing.T) {
	t.Parallel()
	known := secrets{
		"password": password, "wrong password": "hunter2 hunter2 hunter2", "new password": "a better battery", "guessed token": "guessed-guessed-guessed",
		"metrics token": "metrics-metrics-metrics", "wrong metrics token": "cirtem-cirtem-cirtem",
		"password of a URL": "url-pass-url-pass", "query of a URL": "url-query-url-query", "header of a task": "task-header-task-header",
	}
	database := newDatabase(t)
	known["key-encryption key"] = keyring.NewKEK()
	keks := known["key-encryption key"] + "," + keyring.NewKEK()
	r := serve(t, "one", database, "--key-encryption-key", keks, "--log", "debug", "--metrics-token", known["metrics token"], "--poll", "100ms")
	link := r.setupLink()
	known["set-up token"] = tokenOf(link)
	api := r.url + "/api/v1"

	// Setting up and signing in.
	p := newPerson(t)
	p.want(http.StatusForbidden, "POST", api+"/setup", credentials{known["guessed token"], adminName, password}, nil)
	p.want(http.StatusCreated, "POST", api+"/setup", credentials{known["set-up token"], adminName, password}, nil)
	known["first cookie"] = p.cookie(r.url)
	newPerson(t).want(http.StatusForbidden, "POST", api+"/setup", credentials{known["set-up token"], "eve", password}, nil)
	for status := 0; status != http.StatusTooManyRequests; { // beyond the limit of tries
		a, err := newPerson(t).ask("POST", api+"/session", credentials{Name: adminName, Password: known["wrong password"]})
		if err != nil {
			t.Fatal(err)
		}
		status = a.status
	}
	p.send("POST", api+"/session", `{"name":"ada","password":"`+known["wrong password"]+`"`, "Content-Type", "application/json")
	p.send("GET", api+"/me", "", "Authorization", "Bearer "+known["guessed token"])
	newPerson(t).send("GET", api+"/me", "", "Cookie", "tandem_session="+known["guessed token"])

	// Tokens, invitations and new passwords.
	var token struct{ Secret string }
	p.want(http.StatusCreated, "POST", api+"/tokens", map[string]any{"name": "script", "scopes": []string{"read"}}, &token)
	known["bearer token"] = token.Secret
	if got := newPerson(t).send("GET", api+"/rooms", "", "Authorization", "Bearer "+token.Secret); got != http.StatusOK {
		t.Errorf("a token: status %d", got)
	}
	newPerson(t).send("POST", api+"/tasks", "{}", "Authorization", "Bearer "+token.Secret, "Content-Type", "application/json")
	made := func(path string, body any) string {
		var link struct{ Path string }
		p.want(http.StatusCreated, "POST", api+path, body, &link)
		_, secret, _ := strings.Cut(link.Path, "=")
		return secret
	}
	known["invitation"] = made("/invitations", map[string]string{"role": "member"})
	invited := newPerson(t)
	invited.want(http.StatusOK, "POST", api+"/links", map[string]string{"token": known["invitation"]}, nil)
	invited.want(http.StatusCreated, "POST", api+"/invitations/accept", credentials{known["invitation"], "bob", password}, nil)
	known["cookie of the invited"] = invited.cookie(r.url)
	if a, err := newPerson(t).ask("POST", api+"/invitations/accept", credentials{known["invitation"], "eve", password}); err != nil || a.status < 400 {
		t.Errorf("an invitation twice: %d, %v", a.status, err)
	}
	var me struct{ User struct{ ID int64 } }
	invited.want(http.StatusOK, "GET", api+"/me", nil, &me)
	known["reset link"] = made(fmt.Sprintf("/people/%d/reset", me.User.ID), nil)
	reset := map[string]string{"token": known["reset link"], "password": known["new password"]}
	newPerson(t).want(http.StatusOK, "POST", api+"/password/reset", reset, nil)
	if a, err := newPerson(t).ask("POST", api+"/password/reset", reset); err != nil || a.status < 400 {
		t.Errorf("a link twice: %d, %v", a.status, err)
	}
	if driverName != "memory" { // where nobody else has the database
		add := start(t, "add", func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader(known["new password"] + "\n") },
			"user", "add", "dan", "--password-stdin", "--database-url", database, "--key-encryption-key", keks, "--log", "debug")
		if code := add.wait(); code != 0 {
			t.Errorf("user add ended with code %d", code)
		}
		if found := known.in(add.stdout.String() + add.stderr.String()); found != nil {
			t.Errorf("user add has written: %v", found)
		}
		known["mangled key-encryption key"] = "x" + known["key-encryption key"]
		for _, command := range []struct {
			code      int
			kek, args string
		}{
			{0, keks, "keys rotate"},
			{0, keks, "keys list"},
			{0, keyring.NewKEK(), "keys list"},
			{2, keyring.NewKEK(), "keys rotate"},
			{2, known["mangled key-encryption key"], "keys list"},
			{2, known["mangled key-encryption key"], "serve"},
		} {
			args := append(strings.Fields(command.args), "--database-url", database, "--key-encryption-key", command.kek, "--log", "debug")
			run := start(t, command.args, nil, args...)
			if code := run.wait(); code != command.code {
				t.Errorf("%s ended with code %d: %s", command.args, code, run.stderr.String())
			}
			if found := known.in(run.stdout.String() + run.stderr.String()); found != nil {
				t.Errorf("%s has written: %v", command.args, found)
			}
		}
	}

	// Tickets: by the header, by the query, again, and where there is no handshake.
	ticket := func(name string) string {
		secret, err := p.ticket(r.url)
		if err != nil {
			t.Fatal(err)
		}
		known["ticket "+name] = secret
		return secret
	}
	byHeader, byQuery := ticket("of a header"), ticket("of a query")
	conn, status, err := dial(t, r.url, byHeader)
	if err != nil {
		t.Fatalf("a ticket of a header: status %d: %v", status, err)
	}
	ws := "ws" + strings.TrimPrefix(r.url, "http") + "/ws?ticket=" + byQuery
	other, response, err := websocket.DefaultDialer.DialContext(t.Context(), ws, nil)
	if err != nil {
		t.Fatalf("a ticket of a query: %v", err)
	}
	_ = response.Body.Close()
	_ = conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"`+known["guessed token"]+`"`)) // breaks off
	_ = conn.WriteMessage(websocket.BinaryMessage, nil)
	_ = conn.Close()
	_ = other.Close()
	for _, secret := range []string{byHeader, known["guessed token"]} {
		if _, status, _ := dial(t, r.url, secret); status != http.StatusUnauthorized {
			t.Errorf("a ticket that is none: status %d", status)
		}
	}
	p.send("GET", r.url+"/ws?ticket="+ticket("without a handshake"), "")
	raw(t, r.url, "GET /ws?ticket="+ticket("of a bad request")+" HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n")

	// Webhooks, and a task whose request holds secrets and fails.
	room := p.makeRoom(r.url, "general")
	p.want(http.StatusCreated, "POST", api+"/tasks", map[string]any{"name": "hooked", "room_id": room, "text": "hello"}, nil)
	var hook struct{ Secret string }
	p.want(http.StatusCreated, "POST", api+"/tasks/hooked/webhook", nil, &hook)
	known["webhook secret"], known["webhook key"] = hook.Secret, strings.TrimPrefix(hook.Secret, "whsec_")
	key, err := webhook.ParseSecret(hook.Secret)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"ref":"main"}`
	for id, want := range map[string]int{"first": http.StatusAccepted, "forged": http.StatusUnauthorized} {
		signature := webhook.Sign(key, time.Now(), "first", []byte(body))
		known["signature"] = strings.TrimPrefix(signature, "v1,")
		got := newPerson(t).send("POST", r.url+tasks.WebhookPath+"hooked", body, webhook.HeaderID, id,
			webhook.HeaderTimestamp, strconv.FormatInt(time.Now().Unix(), 10), webhook.HeaderSignature, signature)
		if got != want {
			t.Errorf("the webhook %s: status %d, want %d", id, got, want)
		}
	}
	p.want(http.StatusCreated, "POST", api+"/tasks", map[string]any{
		"name": "request", "kind": "http", "room_id": room, "retry": map[string]int{"max_attempts": 1},
		"http": map[string]any{
			"url":     "http://ada:" + known["password of a URL"] + "@127.0.0.1:1/?key=" + known["query of a URL"],
			"headers": map[string]string{"X-Key": known["header of a task"]},
		},
	}, nil)
	p.want(http.StatusAccepted, "POST", api+"/tasks/request/run", nil, nil)
	if runs := p.settled(r.url, "request"); len(runs) != 1 || runs[0].State != "failed" {
		t.Errorf("the runs of the request: %+v", runs)
	}

	// What operators ask, and the end.
	if p.send("GET", r.url+"/metrics", "", "Authorization", "Bearer "+known["metrics token"]) != http.StatusOK ||
		p.send("GET", r.url+"/metrics", "", "Authorization", "Bearer "+known["wrong metrics token"]) != http.StatusForbidden {
		t.Error("the token of the metrics does not decide")
	}
	p.want(http.StatusNoContent, "DELETE", api+"/session", nil, nil)
	r.signal(syscall.SIGTERM)
	if code := r.wait(); code != 0 {
		t.Errorf("it ended with code %d", code)
	}

	printed, log := r.stdout.String(), r.stderr.String()
	if strings.Count(printed, link) != 1 {
		t.Errorf("the link was printed %d times", strings.Count(printed, link))
	}
	for line := range strings.Lines(strings.Replace(printed, link, "", 1) + log) {
		if found := known.in(line); found != nil {
			t.Errorf("%v: %s", found, line)
		}
	}
	for what, secret := range known {
		if len(secret) < 16 {
			t.Errorf("%s is %q, which is too short to be looked for", what, secret)
		}
	}
	for _, logged := range []string{
		"level=DEBUG", "path=/ws status=101", "path=/ws status=401", "path=/api/v1/session status=429", "path=" + tasks.WebhookPath + "hooked status=202",
		"path=" + tasks.WebhookPath + "hooked status=401", "path=/metrics status=403", "path=/api/v1/setup status=201", "path=/api/v1/tokens status=201",
	} {
		if !strings.Contains(log, logged) {
			t.Errorf("the log does not have %q: is it the whole?", logged)
		}
	}
}

// raw sends what no client sends, and waits for the answer.
func raw(tb testing.TB, at, text string) {
	tb.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(at, "http://"), patience)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte(text)); err != nil {
		tb.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, " 400 ") {
		tb.Errorf("the answer is %q, %v", line, err)
	}
}
