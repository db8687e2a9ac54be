//go:build unix

package checker

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/internal/testenv"
)

// TestRollingRestart restarts three replicas under load, one after another, as an operator does
// with a new version. Each ends by itself although a client of it reads nothing, and nobody misses
// anything.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	database := testenv.NewDatabase(t, "", nil)
	at, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	clients := 120
	if os.Getenv("TANDEM_STRESS") != "" {
		clients = 1000
	}
	s := &storm{T: t, extent: settings(t), driver: "pg"}
	for i := range 3 {
		s.replicas = append(s.replicas, newReplicaPG(t, fmt.Sprintf("replica-%d", i), database, at.Host))
	}
	s.weather = func(storm context.Context) {
		for _, r := range s.replicas {
			s.stuck(r)
			wait(storm, time.Second)
			began := time.Now()
			r.stop()
			s.restarts.Add(1)
			ended := time.Since(began)
			wait(storm, time.Second)
			r.start()
			s.Logf("%s ended in %v; until now at most %d clients came back within a second",
				r.name, ended.Round(time.Millisecond), s.counts.crowd())
		}
	}
	s.run(database, clients)
}

// stuck opens a socket that follows a room and reads nothing.
func (s *storm) stuck(r *replica) {
	s.Helper()
	var ticket struct{ Ticket string }
	if err := s.everyone[0].ask(s.done, http.MethodPost, r.url()+"/api/v1/ws-tickets", nil, &ticket); err != nil {
		s.Fatalf("a ticket of %s: %v", r.name, err)
	}
	dialer := websocket.Dialer{Subprotocols: []string{"tandem.v1", "ticket." + ticket.Ticket}}
	conn, answer, err := dialer.DialContext(s.done, "ws"+strings.TrimPrefix(r.url(), "http")+"/ws", nil)
	if err != nil {
		s.Fatalf("a socket of %s: %v", r.name, err)
	}
	_ = answer.Body.Close()
	s.Cleanup(func() { _ = conn.Close() })
	subscribe := fmt.Sprintf(`{"type":"subscribe","id":"1","topics":{%q:"head"}}`, s.busy[0].topic())
	if err := conn.WriteMessage(websocket.TextMessage, []byte(subscribe)); err != nil {
		s.Fatal(err)
	}
}
