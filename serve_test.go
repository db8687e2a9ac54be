package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

func TestSetUpLink(t *testing.T) {
	t.Parallel()
	r := serve(t, "one", newDatabase(t))
	token := tokenOf(r.setupLink())
	if !strings.HasPrefix(r.setupLink(), r.url+"/#setup=") {
		t.Errorf("the link %s does not lead to %s", r.setupLink(), r.url)
	}
	if strings.Contains(r.stderr.String(), token) {
		t.Error("the token of the link is in the log")
	}
	p := newPerson(t)
	api := r.url + "/api/v1"
	needed := func(want bool) {
		t.Helper()
		var got struct{ Needed bool }
		if p.want(http.StatusOK, "GET", api+"/setup", nil, &got); got.Needed != want {
			t.Errorf("set-up is needed: %v, want %v", got.Needed, want)
		}
	}
	needed(true)
	p.want(http.StatusUnauthorized, "GET", api+"/rooms", nil, nil)
	p.want(http.StatusForbidden, "POST", api+"/setup", credentials{"guessed", adminName, password}, nil)
	p.want(http.StatusUnprocessableEntity, "POST", api+"/setup", credentials{token, adminName, "short"}, nil)
	needed(true) // a refused try does not burn the link

	var me struct {
		User struct{ Name, Role string }
	}
	p.want(http.StatusCreated, "POST", api+"/setup", credentials{token, adminName, password}, nil)
	p.want(http.StatusOK, "GET", api+"/me", nil, &me)
	if me.User.Name != adminName || me.User.Role != "admin" {
		t.Errorf("who set up is %+v", me.User)
	}
	needed(false)
	newPerson(t).want(http.StatusForbidden, "POST", api+"/setup", credentials{token, "eve", password}, nil)

	p.want(http.StatusNoContent, "DELETE", api+"/session", nil, nil)
	p.want(http.StatusUnauthorized, "GET", api+"/me", nil, nil)
	stranger := newPerson(t)
	stranger.want(http.StatusUnauthorized, "POST", api+"/session", credentials{Name: adminName, Password: "wrong"}, nil)
	signIn(t, r.url).want(http.StatusOK, "GET", api+"/rooms", nil, nil)
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	r := serve(t, "one", newDatabase(t), "--drain-grace", "3s") // some requests are to fit into it, on a busy machine too
	p := newPerson(t)
	p.want(http.StatusOK, "GET", r.url+"/healthz/live", nil, nil)
	var health struct {
		Status string
		Checks []struct {
			Name string
			OK   bool
		}
	}
	p.want(http.StatusOK, "GET", r.url+"/healthz/ready", nil, &health)
	if health.Status != "ready" || len(health.Checks) == 0 {
		t.Errorf("ready: %+v", health)
	}
	metrics := p.want(http.StatusOK, "GET", r.url+"/metrics", nil, nil)
	if !strings.Contains(string(metrics.body), `driver="`+driverName+`"`) {
		t.Errorf("the metrics do not name the driver %s:\n%s", driverName, metrics.body)
	}
	page := p.want(http.StatusOK, "GET", r.url+"/", nil, nil)
	if policy := page.header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'self'") {
		t.Errorf("the page's Content-Security-Policy is %q", policy)
	}
	if got := p.want(http.StatusNotFound, "GET", r.url+"/api/v1/nothing", nil, nil); !json.Valid(got.body) ||
		got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("an unknown address of the API: %s: %s", got.header.Get("Content-Type"), got.body)
	}

	r.signal(syscall.SIGTERM)
	eventually(t, func() string {
		a, err := p.ask("GET", r.url+"/healthz/ready", nil)
		if err != nil {
			t.Fatalf("it went away before it said that it is not ready: %v", err)
		}
		if a.status != http.StatusServiceUnavailable {
			return "a program that is stopping says that it is ready"
		}
		return ""
	})
	p.want(http.StatusOK, "GET", r.url+"/healthz/live", nil, nil)
	if code := r.wait(); code != 0 {
		t.Errorf("it ended with code %d", code)
	}
}

func TestRoomAndTask(t *testing.T) {
	t.Parallel()
	r := serve(t, "one", newDatabase(t), "--poll", "100ms")
	admin := setUp(t, r)
	room := admin.makeRoom(r.url, "general")
	admin.say(r.url, room, "first")
	stored, position := admin.history(r.url, room)
	if len(stored) != 1 || stored[0].Text != "first" || stored[0].Author != adminName {
		t.Errorf("the history is %+v", stored)
	}
	f := admin.follow(r.url, room, position)
	if err := f.send("second"); err != nil {
		t.Fatal(err)
	}
	admin.want(http.StatusOK, "POST", messagesURL(r.url, room), newMessage{"second", "again"}, nil)
	admin.say(r.url, room, "third")
	f.awaitText("third")
	admin.schedule(r.url, room, "tick")
	f.awaitText("tick reports")
	if runs := admin.settled(r.url, "tick"); len(runs) == 0 || runs[0].State != "succeeded" || runs[0].Worker != "one" {
		t.Errorf("the runs of the task: %+v", runs)
	}
	got := f.messages()
	for i, want := range []string{"second", "third", "tick reports"} {
		if got[i].Text != want {
			t.Errorf("message %d is %q, want %q", i+1, got[i].Text, want)
		}
	}

	r.signal(syscall.SIGTERM)
	if l := f.awaitClose(); l.code != 1012 || !l.sentAway {
		t.Errorf("the socket was closed with code %d, sent away before: %v", l.code, l.sentAway)
	}
	if code := r.wait(); code != 0 {
		t.Errorf("it ended with code %d", code)
	}
}
