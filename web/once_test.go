package web_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// key is the header of a request that is to be carried out once.
func key(k string) http.Header { return http.Header{"Idempotency-Key": {k}} }

// elsewhere is the same browser at another replica.
func (c *client) elsewhere(rp *replica) *client {
	return &client{t: c.t, base: rp.base, http: c.http}
}

// TestIdempotencyKeys sends requests with a key to two replicas, at once and again.
func TestIdempotencyKeys(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.user(t, "Ada")
	both := []*client{ada, ada.elsewhere(two)}

	answers := make([]string, 10)
	together(len(answers), func(i int) {
		answer, value := both[i%2].do("POST", "/api/v1/rooms", body{"name": "Plans"}, key(`"plans"`))
		if answer.StatusCode != http.StatusCreated || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %s %v, %v", answer.Status, value, answer.Header)
		}
		answers[i] = answer.Header.Get("Idempotency-Replayed") + fmt.Sprint(value["room"].(body)["id"])
	})
	slices.Sort(answers)
	if "true"+answers[0] != answers[1] || len(slices.Compact(answers)) != 2 {
		t.Errorf("got %q", answers)
	}

	// A failure is an outcome too, until there is another key.
	taken := func(c *client, k, again string) {
		t.Helper()
		answer, value := c.do("POST", "/api/v1/rooms", body{"name": "plans"}, key(k))
		if answer.StatusCode != http.StatusConflict || value["field"] != "name" || answer.Header.Get("Idempotency-Replayed") != again {
			t.Errorf("got %s %v, %v", answer.Status, value, answer.Header)
		}
		if kind := answer.Header.Get("Content-Type"); kind != "application/problem+json" {
			t.Errorf("a failure is %s", kind)
		}
	}
	taken(both[0], "again", "")
	taken(both[1], "again", "true")
	taken(both[1], "another", "")

	// A key is of one request and one session.
	answer, value := both[1].do("POST", "/api/v1/rooms", body{"name": "Other"}, key("plans"))
	if answer.StatusCode != http.StatusUnprocessableEntity || value["field"] != "Idempotency-Key" {
		t.Errorf("another body: got %s %v", answer.Status, value)
	}
	answer, value = both[0].do("POST", "/api/v1/rooms", body{"name": "Other"}, key("a, b"))
	if answer.StatusCode != http.StatusBadRequest || !strings.Contains(value["detail"].(string), "Idempotency-Key") {
		t.Errorf("two keys: got %s %v", answer.Status, value)
	}
	taken(two.user(t, "Ada"), "plans", "")
	bob := two.user(t, "Bob")
	taken(bob, "plans", "")

	// Nothing is given to who may not have it any more.
	ada.call("DELETE", "/api/v1/session", nil, 204)
	if answer, value := both[1].do("POST", "/api/v1/rooms", body{"name": "Plans"}, key("plans")); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("signed out: got %s %v", answer.Status, value)
	}

	// Who is nobody has no keys: signing in twice makes two sessions.
	c := one.client(t)
	for range 2 {
		answer, _ := c.do("POST", "/api/v1/session", body{"name": "Bob", "password": password}, key("in"))
		if answer.StatusCode != http.StatusOK || answer.Header.Get("Set-Cookie") == "" || answer.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("got %s, %v", answer.Status, answer.Header)
		}
	}
}

// TestSecretsAreShownOnce makes everything with a secret twice under one key: it is made once, and its
// secret is given once.
func TestSecretsAreShownOnce(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	admin := rp.admin(t, "Ada")
	rp.user(t, "Bob")
	room, _ := admin.room("Reports")
	admin.call("POST", "/api/v1/tasks", body{"name": "standup", "room_id": room, "text": "x"}, 201)
	for path, test := range map[string]struct {
		body   body
		secret string // the field that has it
		list   string // of what was made
	}{
		"/api/v1/tokens":                {body{"name": "a", "scopes": []string{"read"}}, "secret", "/api/v1/tokens"},
		"/api/v1/invitations":           {body{"role": "member"}, "path", "/api/v1/invitations"},
		"/api/v1/people/2/reset":        {body{}, "path", ""},
		"/api/v1/tasks/standup/webhook": {body{}, "secret", ""},
		"/api/v1/ws-tickets":            {body{}, "ticket", ""},
	} {
		header := key(path)
		answer, value := admin.do("POST", path, test.body, header)
		secret, _ := value[test.secret].(string)
		if answer.StatusCode != http.StatusCreated || secret == "" {
			t.Errorf("%s: got %s %v", path, answer.Status, value)
		}
		answer, value = admin.do("POST", path, test.body, header)
		if answer.StatusCode != http.StatusConflict || answer.Header.Get("Idempotency-Replayed") != "true" || value[test.secret] != nil {
			t.Errorf("%s again: got %s %v", path, answer.Status, value)
		}
		if test.list == "" {
			continue
		}
		for _, list := range admin.call("GET", test.list, nil, 200) {
			if n := len(list.([]any)); n != 1 {
				t.Errorf("%s: there are %d", path, n)
			}
		}
	}
	// A body is optional there.
	if made := admin.call("POST", "/api/v1/tasks/standup/webhook", body{"overlap_s": 60}, 201); made["old_until"] == nil {
		t.Errorf("the secret before is good no longer: %v", made)
	}
	if made := admin.call("POST", "/api/v1/tasks/standup/webhook", nil, 201); made["old_until"] != nil {
		t.Errorf("the secret before is still good: %v", made)
	}
	admin.call("POST", "/api/v1/tasks/standup/webhook", body{"overlap_s": -1}, 422)
	// Of passwords nothing is kept: the second one is another request.
	change := body{"current": password, "password": "a better battery"}
	for _, want := range []int{http.StatusNoContent, http.StatusUnprocessableEntity} {
		if answer, value := admin.do("POST", "/api/v1/password", change, key("p")); answer.StatusCode != want {
			t.Errorf("a password: got %s %v, want %d", answer.Status, value, want)
		}
	}
}
