package web_test

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/web"
)

// document is docs/api.md.
func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The document has every route and its right, in order, and no other.
func TestRoutesAreDocumented(t *testing.T) {
	text := document(t)
	var documented, served []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\| (?:`([a-z_]+)`)? ?\\|").FindAllStringSubmatch(text, -1) {
		documented = append(documented, row[1]+" "+row[2])
	}
	for _, r := range web.Routes() {
		path := regexp.MustCompile(`[:*]([a-z]+)`).ReplaceAllString(r.Path, "{$1}")
		served = append(served, r.Method+" "+path+" "+string(r.Right))
	}
	for i := range max(len(documented), len(served)) {
		has, want := at(documented, i), at(served, i)
		if has != want {
			t.Fatalf("entry %d of the document is %q, and of the routes %q", i+1, has, want)
		}
	}
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// The document has the rights of each role and scope as they are, and each action of the audit
// log.
func TestRightsAreDocumented(t *testing.T) {
	text := document(t)
	var rows []string
	for _, right := range auth.Rights(store.Session{User: store.User{Role: store.Admin}}) {
		scope := "none: no token has it"
		for _, s := range []auth.Scope{auth.ScopeRead, auth.ScopeChat, auth.ScopeTasks, auth.ScopeAdmin} {
			if auth.May(store.Session{Kind: store.Token, Scopes: string(s), User: store.User{Role: store.Admin}}, right) == nil {
				scope = "`" + string(s) + "`"
			}
		}
		var roles []string
		for _, role := range []store.Role{store.Admin, store.Member, store.Guest} {
			if auth.May(store.Session{User: store.User{Role: role}}, right) == nil {
				roles = append(roles, string(role))
			}
		}
		rows = append(rows, "| `"+string(right)+"` | "+scope+" | "+strings.Join(roles, ", ")+" |")
	}
	if !strings.Contains(text, strings.Join(rows, "\n")) {
		t.Errorf("the table of rights should be\n%s", strings.Join(rows, "\n"))
	}
	var actions []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
		actions = append(actions, row[1])
	}
	var want []string
	for _, a := range audit.Actions {
		want = append(want, string(a))
	}
	if !slices.Equal(actions, want) {
		t.Errorf("the document has the actions\n%q, and there are\n%q", actions, want)
	}
}

// Every answer has the headers that keep browsers from doing what they should not, whatever the
// answer is.
func TestHeadersOfEveryAnswer(t *testing.T) {
	for _, public := range []string{"", "https://chat.example.com"} {
		rp := start(t, newDatabase(t), func(c *app.Config) { c.PublicURL = public })
		c := rp.client(t)
		check := func(method, path string, header http.Header) {
			t.Helper()
			answer, _ := c.do(method, path, nil, header)
			forPage := path == "/" || strings.HasPrefix(path, "/static/") || path == "/nothing"
			for name, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
				"Origin-Agent-Cluster": "?1", "X-Permitted-Cross-Domain-Policies": "none",
			} {
				if got := answer.Header.Get(name); got != want {
					t.Errorf("%s %s: %d: %s is %q, want %q", method, path, answer.StatusCode, name, got, want)
				}
			}
			policy, cache := answer.Header.Get("Content-Security-Policy"), answer.Header.Get("Cache-Control")
			switch {
			case strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'"):
				t.Errorf("%s %s: the policy is %q", method, path, policy)
			case !forPage && (!strings.HasPrefix(policy, "default-src 'none'") || !strings.HasPrefix(cache, "no-store")):
				t.Errorf("%s %s: the policy is %q, and it is kept: %q", method, path, policy, cache)
			case !forPage && answer.Header.Get("Vary") == "":
				t.Errorf("%s %s: does not say that it varies", method, path)
			case cache == "" || !strings.Contains(answer.Header.Get("Permissions-Policy"), "camera=()"):
				t.Errorf("%s %s: kept: %q, permissions %q", method, path, cache, answer.Header.Get("Permissions-Policy"))
			}
			if (answer.Header.Get("Strict-Transport-Security") != "") != (public != "") {
				t.Errorf("%s %s: HSTS is %q", method, path, answer.Header.Get("Strict-Transport-Security"))
			}
			if server := answer.Header.Get("Server") + answer.Header.Get("X-Powered-By"); server != "" {
				t.Errorf("%s %s: says that it is %q", method, path, server)
			}
		}
		seen := 0
		for _, r := range web.Routes() {
			path := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(r.Path, "1")
			path = strings.Replace(path, "*path", "app.js", 1)
			check(r.Method, path, nil)
			check("OPTIONS", path, nil)
			check(r.Method, path, http.Header{"Sec-Fetch-Site": {"cross-site"}})
			if seen++; seen == 1 {
				check("GET", "/nothing", nil)
				check("GET", "/api/v1/nothing", nil)
			}
		}
		if seen < 60 {
			t.Errorf("only %d routes", seen)
		}
	}
}

// Without a session nothing is answered that takes a right, and with a token nothing that is for
// people.
func TestEveryRouteChecksItsRight(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	admin, guest, nobody := rp.admin(t, "Ada"), rp.signedIn(t, "Gus", store.Guest), rp.client(t)
	token := func(c *client, scopes ...string) http.Header {
		made := c.call("POST", "/api/v1/tokens", body{"name": "t", "scopes": scopes}, 201)
		return http.Header{"Authorization": {"Bearer " + made["secret"].(string)}}
	}
	scopes := []string{"read", "chat", "tasks", "admin"}
	tokens := map[string]http.Header{}
	for _, scope := range scopes {
		tokens[scope] = token(admin, scope)
	}
	for _, r := range web.Routes() {
		if r.Right == "" {
			continue
		}
		path := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(r.Path, "77")
		name := r.Method + " " + r.Path
		if answer, _ := nobody.do(r.Method, path, nil, nil); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a session: got %s", name, answer.Status)
		}
		for _, scope := range scopes {
			s := store.Session{Kind: store.Token, Scopes: scope, User: store.User{Role: store.Admin}}
			// The cookie of an administrator does not help.
			answer, _ := admin.do(r.Method, path, nil, tokens[scope])
			if refused := auth.May(s, r.Right) != nil; (answer.StatusCode == http.StatusForbidden) != refused {
				t.Errorf("%s with the scope %s: got %s", name, scope, answer.Status)
			}
		}
		if auth.May(store.Session{User: store.User{Role: store.Guest}}, r.Right) != nil {
			if answer, _ := guest.do(r.Method, path, nil, nil); answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s by a guest: got %s", name, answer.Status)
			}
		}
	}
	answer, _ := admin.do("DELETE", "/api/v1/session", nil, tokens["admin"])
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a token signed itself out: %s", answer.Status)
	}
}

// A page elsewhere whose name was made to lead to this machine is refused.
func TestOtherHostsAreRefused(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	c := rp.client(t)
	for host, want := range map[string]int{
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
		"localhost": 200, "localhost:8080": 200, "127.0.0.1:1": 200, "[::1]:8080": 200,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base+"/api/v1/setup", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: got %s, want %d", host, answer.Status, want)
		}
	}
}
