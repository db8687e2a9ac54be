package web_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A request whose session ends before its body has come makes nothing that would outlive that.
func TestBodiesThatComeLate(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada := rp.admin(t, "Ada")
	rp.admin(t, "Bob")
	id := 0.0
	for _, p := range people.of(t, ada) {
		if p["name"] == "Bob" {
			id = p["id"].(float64)
		}
	}
	for path, text := range map[string]string{
		"tokens":         `{"name":"t","scopes":["admin"]}`,
		"invitations":    `{"role":"admin"}`,
		"rooms":          `{"name":"late"}`,
		"people/1/reset": `{}`,
	} {
		bob := rp.admin(t, "Bob")
		conn, err := net.Dial("tcp", strings.TrimPrefix(rp.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST /api/v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: tandem_session=%s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", path, bob.cookie(), len(text))
		answers := bufio.NewReader(conn)
		// The server asks for the body when the session has been looked at.
		if answer, err := http.ReadResponse(answers, nil); err != nil || answer.StatusCode != http.StatusContinue {
			t.Fatalf("%s: got %v, %v", path, answer, err)
		}
		ada.call("DELETE", fmt.Sprintf("/api/v1/people/%.0f/sessions", id), nil, 200)
		for asked := time.Now(); time.Since(asked) < 5*time.Millisecond; { // a body that comes at once is no late one
			ada.call("GET", "/api/v1/me", nil, 200)
		}
		_, _ = conn.Write([]byte(text))
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: got %s, want 401", path, answer.Status)
		}
	}
}
