//go:build !memory

package main

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestUserCommands manages accounts at the command line while a server runs.
func TestUserCommands(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	r := serve(t, "one", database)
	setUp(t, r)
	user := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := execute(t, password+"\n", append(append([]string{"user"}, args...), "--database-url", database)...)
		if code != want {
			t.Fatalf("user %v: code %d, want %d: %s%s", args, code, want, stdout, stderr)
		}
		return stdout, stderr
	}
	user(0, "add", "bob", "--password-stdin")
	bob := newPerson(t)
	enter := func(password string, want int) {
		t.Helper()
		bob.want(want, "POST", r.url+"/api/v1/session", credentials{Name: "bob", Password: password}, nil)
	}
	me := func(want int) (role string) {
		t.Helper()
		var answer struct{ User struct{ Role string } }
		bob.want(want, "GET", r.url+"/api/v1/me", nil, &answer)
		return answer.User.Role
	}
	enter(password, http.StatusOK)

	if stdout, _ := user(0, "role", "BOB", "guest"); stdout != "made guest \"bob\"\n" {
		t.Errorf("got %q", stdout)
	}
	if role := me(http.StatusOK); role != "guest" {
		t.Errorf("bob is a %s", role)
	}
	user(2, "role", "bob", "king")
	if _, stderr := user(1, "role", "carl", "guest"); !strings.Contains(stderr, "no such person") {
		t.Errorf("got %q", stderr)
	}
	for _, last := range [][]string{{"role", adminName, "member"}, {"deactivate", adminName}} {
		if _, stderr := user(1, last...); !strings.Contains(lastLine(stderr), "there must be an administrator") {
			t.Errorf("%v: %q", last, stderr)
		}
	}

	user(0, "sign-out", "bob")
	me(http.StatusUnauthorized)
	enter(password, http.StatusOK)
	user(0, "deactivate", "bob")
	me(http.StatusUnauthorized)
	enter(password, http.StatusUnauthorized)
	if stdout, _ := user(0, "list"); !regexp.MustCompile(`(?m)^bob +guest +deactivated +0 +0$`).MatchString(stdout) {
		t.Errorf("the list is\n%s", stdout)
	}
	user(1, "reset", "bob")
	user(0, "reactivate", "bob")
	stdout, _ := user(0, "reset", "bob")
	link := regexp.MustCompile(`^http://\S+/#reset=(\S+)\n`).FindStringSubmatch(stdout)
	if link == nil {
		t.Fatalf("there is no link in %q", stdout)
	}
	body := map[string]string{"token": link[1], "password": "chosen by a link"}
	bob.want(http.StatusOK, "POST", r.url+"/api/v1/password/reset", body, nil)
	me(http.StatusOK)
	bob.want(http.StatusForbidden, "POST", r.url+"/api/v1/password/reset", body, nil)
	enter("chosen by a link", http.StatusOK)

	stdout, _ = user(0, "list", "--json")
	for line := range strings.Lines(stdout) {
		var p struct {
			Name        string
			Role        string
			Deactivated bool
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil || p.Deactivated || p.Name != "bob" && p.Role != "admin" {
			t.Errorf("got %+v of %s: %v", p, line, err)
		}
	}
}
