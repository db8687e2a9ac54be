//go:build !memory

package main

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandemhq/tandem/coord/keyring"
)

// keysCommand runs a command about keys, which must succeed.
func keysCommand(tb testing.TB, database, keks string, args ...string) string {
	tb.Helper()
	args = append([]string{"keys"}, append(args, "--database-url", database, "--key-encryption-key", keks)...)
	code, stdout, stderr := execute(tb, "", args...)
	if code != 0 {
		tb.Fatalf("%v: code %d: %s", args, code, stderr)
	}
	return stdout
}

// keyStates are the keys that tandem keys lists, as "tokens 1 active".
func keyStates(tb testing.TB, database, keks string) (states []string, sealedBy map[string]int) {
	tb.Helper()
	sealedBy = make(map[string]int)
	decoder := json.NewDecoder(strings.NewReader(keysCommand(tb, database, keks, "--json")))
	for decoder.More() {
		var k struct {
			Ring, State string
			Version     int
			SealedBy    string `json:"sealed_by"`
		}
		if err := decoder.Decode(&k); err != nil {
			tb.Fatal(err)
		}
		states = append(states, k.Ring+" "+strconv.Itoa(k.Version)+" "+k.State)
		if k.State != "retired" {
			sealedBy[k.SealedBy]++
		}
	}
	return states, sealedBy
}

// TestKeysOfReplicas replaces and revokes keys, and the key-encryption key, under two replicas that go
// on making and opening links: none is refused that was not revoked.
func TestKeysOfReplicas(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	one, two := serve(t, "one", database), serve(t, "two", database)
	admin := setUp(t, one)
	both := []*replica{one, two}
	invite := func(at *replica) string {
		t.Helper()
		var made struct{ Path string }
		admin.want(http.StatusCreated, http.MethodPost, at.url+"/api/v1/invitations", map[string]any{"role": "member"}, &made)
		_, token, _ := strings.Cut(made.Path, "=")
		return token
	}
	open := func(at *replica, token string) int {
		return admin.send(http.MethodPost, at.url+"/api/v1/links", `{"token":"`+token+`"}`, "Content-Type", "application/json")
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() { // few enough for the limit of links
		for i := range 12 {
			if status := open(both[(i+1)%2], invite(both[i%2])); status != http.StatusOK {
				t.Errorf("a link that was just made: %d", status)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})

	if states, by := keyStates(t, database, ""); strings.Join(states, ", ") != "secrets 1 active, tokens 1 active" || by[""] != 2 {
		t.Errorf("at first there are %v, sealed by %v", states, by)
	}
	first := invite(one)
	old, newer := keyring.NewKEK(), keyring.NewKEK()
	if code, _, stderr := execute(t, "", "keys", "--database-url", database, "--key-encryption-key", "short"); code != 2 ||
		!strings.Contains(stderr, kekEnv) || strings.Contains(stderr, "short") {
		t.Errorf("a wrong key-encryption key: code %d: %s", code, stderr)
	}
	keysCommand(t, database, old, "rotate")
	if states, by := keyStates(t, database, old); strings.Join(states, ", ") != "secrets 1 active, secrets 2 next, tokens 1 active, tokens 2 next" || by[""] != 0 {
		t.Errorf("after a rotation there are %v, sealed by %v", states, by)
	}
	for _, r := range both { // which have no key-encryption key, and had the keys before
		if status := open(r, first); status != http.StatusOK {
			t.Errorf("a link from before the rotation: %d", status)
		}
	}
	keysCommand(t, database, newer+","+old, "rotate")
	code, _, stderr := execute(t, "", "serve", "--addr", "127.0.0.1:0", "--database-url", database, "--key-encryption-key", old)
	if code != 2 || !strings.Contains(stderr, kekEnv) || !regexp.MustCompile(`kek_[0-9a-f]{8}`).MatchString(stderr) {
		t.Errorf("serving without the key-encryption key: code %d: %s", code, stderr)
	}
	close(stop)
	load.Wait()

	// With the settings rolled out, a key is revoked: its links are void on all replicas.
	for i, r := range both {
		r.signal(syscall.SIGTERM)
		if code := r.wait(); code != 0 {
			t.Errorf("%s ended with code %d", r.name, code)
		}
		both[i] = serve(t, r.name+" again", database, "--key-encryption-key", newer)
	}
	if status := open(both[0], first); status != http.StatusOK {
		t.Errorf("a link from before the restart: %d", status)
	}
	var page struct{ Next string }
	admin.want(http.StatusOK, http.MethodGet, both[1].url+"/api/v1/audit?limit=1", nil, &page)
	admin.want(http.StatusOK, http.MethodGet, both[0].url+"/api/v1/audit?cursor="+page.Next, nil, nil)
	keysCommand(t, database, newer, "revoke", "tokens", "1")
	for _, r := range both {
		eventually(t, func() string { // there is no limit for cursors
			if a, err := admin.ask(http.MethodGet, r.url+"/api/v1/audit?cursor="+page.Next, nil); err != nil || a.status != http.StatusUnprocessableEntity {
				return "a cursor is still good on " + r.name
			}
			return ""
		})
		if status := open(r, first); status != http.StatusForbidden {
			t.Errorf("a link whose key was revoked: %d", status)
		}
	}
	if status := open(both[1], invite(both[0])); status != http.StatusOK {
		t.Errorf("a link that was made since: %d", status)
	}
}
