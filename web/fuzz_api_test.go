package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzAPI sends anything to the whole of the API, as an administrator, and wants an answer each time: never
// a fault of the server, and every refusal a problem that says what is wrong and nothing of the inside.
func FuzzAPI(f *testing.F) {
	for _, seed := range []struct{ request, body string }{
		{"GET /api/v1/me", ""},
		{"GET /api/v1/rooms/1/messages?before=2&limit=1000", ""},
		{"POST /api/v1/rooms", `{"kind":"private","name":"a room","description":"d"}`},
		{"POST /api/v1/rooms", `{"kind":"direct","user_id":2}`},
		{"PATCH /api/v1/rooms/1", `{"description":"\u0000\ud800"}`},
		{"POST /api/v1/rooms/1/messages", `{"client_id":"c","text":"hello <b>"}`},
		{"PATCH /api/v1/rooms/1/messages/1", `{"text":""}`},
		{"PUT /api/v1/rooms/1/members/2", `{"role":"owner"}`},
		{"POST /api/v1/rooms/1/read", `{"message_id":9223372036854775807}`},
		{"GET /api/v1/presence?users=1,2,x", ""},
		{"GET /api/v1/people", ""},
		{"PATCH /api/v1/people/2", `{"role":"guest"}`},
		{"POST /api/v1/people/2/reset", ""},
		{"POST /api/v1/invitations", `{"role":"member","room_id":1,"expires_in_s":60}`},
		{"POST /api/v1/invitations/accept", `{"token":"x","name":"y","password":"correct horse"}`},
		{"POST /api/v1/links", `{"token":"\u0000"}`},
		{"POST /api/v1/tokens", `{"name":"t","scopes":["read"],"expires_in_s":-1}`},
		{"DELETE /api/v1/tokens/0", ""},
		{"GET /api/v1/audit?actor=1&since=2026-01-02T15:04:05Z&limit=1&action=%00", ""},
		{"GET /api/v1/jobs", ""},
		{"GET /api/v1/runs?state=failed&kind=message&before=1", ""},
		{"GET /api/v1/runs/1/log?after=0", ""},
		{"POST /api/v1/tasks", `{"name":"tick","room_id":1,"text":"t","schedule":"@every 1h"}`},
		{"PUT /api/v1/tasks/tick", `{"name":"tick","version":-1}`},
		{"POST /api/v1/tasks/%2e%2e/run", ""},
		{"GET /api/v1/schedule?schedule=*+*+*+*+*&zone=Europe/Berlin", ""},
		{"POST /api/v1/users/2/tools", `{"tool":"confirm","args":{"text":"?"},"timeout_s":1}`},
		{"GET /api/v1/calls/AAAAAAAAAAAAAAAAAAAAAA?wait_s=0", ""},
		{"POST /hooks/v1/tasks/tick", "{}"},
		{"GET /api/v1/rooms/1e3", ""},
		{"DELETE /api/v1/people/0x1/sessions", ""},
		{"GET /%zz", ""},
		{"BREW /api/v1/me", ""},
	} {
		f.Add(seed.request, seed.body, "")
	}
	f.Add("POST /api/v1/rooms", "{}", "text/plain")
	db := newDatabase(f)
	rp := start(f, db, nil)
	rp.user(f, "Bob")
	admin := rp.admin(f, "Ada")
	admin.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	f.Fuzz(func(t *testing.T, request, body, contentType string) {
		method, target, _ := strings.Cut(request, " ")
		if contentType == "" {
			contentType = "application/json"
		}
		r, err := http.NewRequestWithContext(t.Context(), method, rp.base+target, strings.NewReader(body))
		if err != nil || !strings.HasPrefix(target, "/") || method == "CONNECT" {
			return
		}
		path := r.URL.Path
		switch {
		case path == "/api/v1/events" || path == "/ws" || r.URL.Query().Has("wait_s"): // which go on
			return
		case strings.Contains(path, "task") && method != "GET": // could make requests, to anywhere
			if strings.ContainsAny(body, `h\`) {
				return
			}
		}
		r.Header["Content-Type"] = []string{contentType}
		db.advance(time.Minute) // so that no limit ends it
		answer, err := admin.http.Do(r)
		if err != nil {
			return // what no client can send
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		if strings.HasPrefix(string(text), "400 Bad Request") { // by package http, which could not read it
			return
		}
		if answer.StatusCode >= 500 || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %q: %s %s", request, body, answer.Status, text)
		}
		if answer.StatusCode == http.StatusUnauthorized {
			admin.http.Jar = rp.admin(t, "Ada").http.Jar
		}
		if answer.StatusCode < 400 || method == "HEAD" || !strings.HasPrefix(path, "/api/") {
			return
		}
		var p struct {
			Type, Title, Detail, Field string
			Status                     int
		}
		if answer.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(text, &p) != nil ||
			p.Title == "" || p.Status != answer.StatusCode || p.Status == 422 && p.Field == "" && !strings.Contains(body, `""`) {
			t.Errorf("%s %q: %s %s", request, body, answer.Status, text)
		}
		if slices.ContainsFunc([]string{"coord:", "sql", "SQL", "constraint", "goroutine", ".go:"}, func(inside string) bool {
			return strings.Contains(p.Detail, inside) && !strings.Contains(body+target, inside)
		}) {
			t.Errorf("%s %q: %s", request, body, text)
		}
	})
}
