//go:build pg

package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestClusterEndsSessions wants the sockets of a session closed on every replica when it ends on one,
// also while no replica hears the others.
func TestClusterEndsSessions(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	admin := setUp(t, c.replicas[0])
	code, _, stderr := execute(t, password+"\n", "user", "add", "bob", "--password-stdin", "--database-url", c.url)
	if code != 0 {
		t.Fatal(stderr)
	}
	db := c.open()
	for i, cut := range []bool{false, true} {
		bob := newPerson(t)
		var me struct{ User struct{ ID int64 } }
		bob.want(http.StatusOK, "POST", c.replicas[0].url+"/api/v1/session", credentials{Name: "bob", Password: password}, &me)
		var sockets []*websocket.Conn
		for _, r := range c.replicas {
			ticket, err := bob.ticket(r.url)
			if err != nil {
				t.Fatal(err)
			}
			conn, status, err := dial(t, r.url, ticket)
			if err != nil {
				t.Fatalf("%s: status %d: %v", r.name, status, err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			sockets = append(sockets, conn)
		}
		if cut {
			if n := count(t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND query ILIKE 'LISTEN%'`); n < len(c.replicas) {
				t.Errorf("%d connections were listening", n)
			}
		}
		began := time.Now()
		admin.want(http.StatusOK, "DELETE", fmt.Sprintf("%s/api/v1/people/%d/sessions", c.replicas[i].url, me.User.ID), nil, nil)
		for j, conn := range sockets {
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			err := error(nil)
			for err == nil {
				_, _, err = conn.ReadMessage()
			}
			if !websocket.IsCloseError(err, 4001) {
				t.Errorf("on %s: got %v, want close code 4001", c.replicas[j].name, err)
			}
			t.Logf("listening cut: %v: closed on %s after %v", cut, c.replicas[j].name, time.Since(began).Round(time.Millisecond))
		}
		if a, err := bob.ask("GET", c.replicas[2].url+"/api/v1/me", nil); err != nil || a.status != http.StatusUnauthorized {
			t.Errorf("got %d, %v", a.status, err)
		}
	}
}
