//go:build unix

package checker

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// TestRollingRestart restarts three replicas under load, one after another, as an operator does
// with a new version, while a crowd of clients follows rooms. Each replica ends by itself although a
// client of it reads nothing, the clients come back in waves, and nobody misses anything.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	clients, timeout := 500, "12s" // three quarters of which a stuck client gets
	if os.Getenv("TANDEM_STRESS") != "" {
		clients, timeout = 5000, "20s"
	}
	x := settings(t)
	t.Logf("%d clients with TANDEM_STRESS_SEED=%d", clients, x.seed)
	began := time.Now()
	passed := func() time.Duration { return time.Since(began).Round(time.Millisecond) }

	database := testenv.NewDatabase(t, "", nil)
	order := crowdOrder{Clients: clients, AtOnce: 50}
	var replicas []*replica
	for i := range 3 {
		r := newReplica(t, "pg", fmt.Sprintf("replica-%d", i), "--database-url", database, "--shutdown-timeout", timeout)
		if r.start(); t.Failed() {
			t.FailNow()
		}
		replicas = append(replicas, r)
		order.Endpoints = append(order.Endpoints, fmt.Sprintf("http://localhost:%d", i+1))
		order.Replicas = append(order.Replicas, r.front.target())
	}
	backend := openBackend(t, "pg", database)
	admin := people(t, replicas[0], 1, 1)[0]
	order.Sessions = visitorSessions(t, backend, clients, admin.cookies[0].Name)
	var rooms []room
	for i := range 50 {
		rooms = append(rooms, makeRoom(t, replicas[i%3], admin, fmt.Sprintf("room %d", i)))
		order.Topics = append(order.Topics, rooms[i].topic())
	}
	full := makeRoom(t, replicas[0], admin, "full") // of more than the system keeps for a socket
	for range 24 {
		text := fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 512<<10))
		if _, err := backend.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: full.topic(), Kind: "checker.note", Payload: text}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("all is prepared after %v", passed())
	crowd := startCrowd(t, order)
	t.Logf("%d clients follow after %v", clients, passed())

	storm, calm := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer calm()
	written := newLedger()
	for i, what := range []func(p *publisher, ctx context.Context) error{
		func(p *publisher, ctx context.Context) error { return p.publish(ctx, rooms) },
		func(p *publisher, ctx context.Context) error { return p.transact(ctx, rooms, 30*time.Millisecond) },
		func(p *publisher, ctx context.Context) error { return p.post(ctx, rooms) },
	} {
		p := &publisher{
			t: t, name: fmt.Sprintf("publisher-%d", i), backend: backend, ledger: written,
			person: admin, replicas: replicas, rng: x.random(uint64(i)),
		}
		publishing.Go(func() {
			p.repeat(storm, t.Context(), 100*time.Millisecond, func(ctx context.Context) error { return what(p, ctx) })
		})
	}
	for i, r := range replicas {
		stuck(t, r, admin, full)
		wait(storm, time.Second)
		stopping := time.Now()
		r.stop()
		t.Logf("%s ended in %v", r.name, time.Since(stopping).Round(time.Millisecond))
		wait(storm, time.Second)
		r.start()
		crowd.tell(crowdNews{Replica: i, Address: r.front.target()})
	}
	wait(storm, time.Second)
	calm()
	publishing.Wait()
	crowd.tell(crowdNews{Heads: heads(t, backend)})
	seen := crowd.hear()

	h := history{acknowledged: written.ids}
	h.log, h.stored = readLog(t, backend)
	maps.DeleteFunc(h.log, func(topic string, _ []event) bool { return topic == presence.Topic }) // of which little is kept
	for topic, events := range seen.Log {
		v := &view{client: "the crowd", topic: topic}
		for _, e := range events {
			v.steps = append(v.steps, step{event: event{e.At, e.Kind, e.Sum}})
		}
		h.views = append(h.views, v)
	}
	report(t, seen.Faults)
	report(t, check(h))
	acknowledged, rolledBack := written.counts()
	t.Logf("%d acknowledged, %d rolled back; %d deliveries, after publishing: %v; at most %d clients connected within a second, "+
		"and %d came back; %d reconnects, away: %v; attempts that failed: %v; %v", acknowledged, rolledBack, seen.Deliveries, seen.Late,
		seen.Connecting, seen.Returning, seen.Reconnects, seen.Away, seen.Failed, passed())
	if seen.Reconnects < clients || acknowledged == 0 {
		t.Error("nothing was disturbed: the test proves nothing")
	}
}

// visitorSessions makes people with five sessions each, without passwords that would have to be hashed.
func visitorSessions(t *testing.T, b coord.Backend, sessions int, cookie string) (list []*http.Cookie) {
	t.Helper()
	var secrets []string
	err := query(t.Context(), b, &secrets, `WITH people AS (
			INSERT INTO app_users (name, name_key, role, password_hash, created_at)
			SELECT 'visitor ' || n, 'visitor ' || n, 'member', '', now() FROM generate_series(1, ?) AS n RETURNING id
		), made AS (
			SELECT id, 'secret-' || id || '-' || n AS secret FROM people CROSS JOIN generate_series(1, 5) AS n
		), stored AS (
			INSERT INTO app_sessions (secret_hash, user_id, created_at, seen_at)
			SELECT sha256(convert_to(secret, 'UTF8')), id, now(), now() FROM made
		)
		SELECT secret FROM made`, sessions/5)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		list = append(list, &http.Cookie{Name: cookie, Value: secret})
	}
	return list
}

// stuck opens a socket that is to get all of a room, and reads nothing.
func stuck(t *testing.T, r *replica, p *person, of room) {
	t.Helper()
	var ticket struct{ Ticket string }
	if err := p.ask(t.Context(), http.MethodPost, r.url()+"/api/v1/ws-tickets", nil, &ticket); err != nil {
		t.Fatalf("a ticket of %s: %v", r.name, err)
	}
	dialer := websocket.Dialer{Subprotocols: []string{"tandem.v1", "ticket." + ticket.Ticket}}
	conn, answer, err := dialer.DialContext(t.Context(), "ws://"+r.front.target()+"/ws", nil)
	if err != nil {
		t.Fatalf("a socket of %s: %v", r.name, err)
	}
	_ = answer.Body.Close()
	t.Cleanup(func() { _ = conn.Close() })
	subscribe := fmt.Sprintf(`{"type":"subscribe","id":"1","topics":{%q:"0"}}`, of.topic())
	if err := conn.WriteMessage(websocket.TextMessage, []byte(subscribe)); err != nil {
		t.Fatal(err)
	}
}
