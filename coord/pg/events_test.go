package pg_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// patience bounds what is waited for; only a failing test gets that far.
const patience = 30 * time.Second

// replica is a handle on a database with the real clock.
func replica(t *testing.T, url string, poll time.Duration) coord.Backend {
	t.Helper()
	return openWith(t, pg.Options{URL: url, MaxConns: 4, Poll: poll})
}

func openWith(t *testing.T, o pg.Options) coord.Backend {
	t.Helper()
	b, err := pg.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func admin(t *testing.T, url string) *bun.DB {
	t.Helper()
	db, err := pg.OpenDB(url, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func publish(t *testing.T, b coord.Backend, topic, kind string) coord.Position {
	t.Helper()
	ps, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: topic, Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	return ps[0]
}

func subscribe(t *testing.T, b coord.Backend, topics ...string) coord.Stream {
	t.Helper()
	from := make(map[string]coord.Position)
	for _, topic := range topics {
		from[topic] = coord.Head
	}
	s, err := b.Broadcaster().Subscribe(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// receive waits for the next events and returns their kinds.
func receive(t *testing.T, s coord.Stream, n int) (kinds []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(kinds) < n {
		events, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", kinds, err)
		}
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

func want(t *testing.T, what string, got []string, wanted ...string) {
	t.Helper()
	if strings.Join(got, " ") != strings.Join(wanted, " ") {
		t.Fatalf("%s: got %q, want %q", what, got, wanted)
	}
}

// A transaction that began first and commits last: what others commit in
// between is delivered at once, and its own events when it commits.
func TestLateCommitIsDelivered(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	one, two := replica(t, url, time.Second), replica(t, url, time.Second)
	s := subscribe(t, two, "a", "b")

	inserted, commit := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- one.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
			// The events of InTx are written last; a row of the caller's takes the
			// transaction's id early.
			if _, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `SELECT pg_current_xact_id()`); err != nil {
				return err
			}
			if err := tx.Publish(ctx, coord.NewEvent{Topic: "a", Kind: "late"}); err != nil {
				return err
			}
			close(inserted)
			<-commit
			return nil
		})
	}()
	<-inserted
	for range 3 {
		publish(t, one, "b", "early")
		want(t, "while the other transaction is open", receive(t, s, 1), "early")
	}
	close(commit)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, "after the late commit", receive(t, s, 1), "late")
}

// A transaction that inserted its event and stays open, and one that is idle in
// another database, delay nobody else's events.
func TestOpenTransactionsDelayNobody(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	other := testenv.NewDatabase(t, "coord_live", migrate)
	b := replica(t, url, time.Second)
	s := subscribe(t, b, "a", "b")
	var open []*sql.Tx
	for _, u := range []string{url, other} {
		tx, err := admin(t, u).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		_, err = tx.ExecContext(t.Context(), `
			INSERT INTO coord_topics VALUES ('a', 1, 7, 0);
			INSERT INTO coord_events (topic, seq, tag, prev, kind, payload, at) VALUES ('a', 1, 7, 0, 'open', '', now())`)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tx.Tx)
	}
	publish(t, b, "b", "one")
	want(t, "while they are open", receive(t, s, 1), "one")
	publish(t, b, "b", "two")
	want(t, "while they are open", receive(t, s, 1), "two")
	if err := open[0].Commit(); err != nil {
		t.Fatal(err)
	}
	want(t, "once it has committed", receive(t, s, 1), "open")
}

// The LISTEN connection is killed and an event is committed; nothing else
// happens. It arrives by polling.
func TestListenerIsKilled(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	one, two := replica(t, url, 200*time.Millisecond), replica(t, url, 200*time.Millisecond)
	s := subscribe(t, two, "a")
	db := admin(t, url)
	for i := range 5 {
		terminate(t, db, `query LIKE 'LISTEN%'`)
		kind := fmt.Sprint(i)
		publish(t, one, "a", kind)
		want(t, "after the LISTEN connection was killed", receive(t, s, 1), kind)
	}
}

// Every connection is killed again and again while events are published: those
// that were acknowledged arrive once each, in order.
func TestConnectionsAreKilled(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	one, two := replica(t, url, 100*time.Millisecond), replica(t, url, 100*time.Millisecond)
	s := subscribe(t, two, "a")
	db := admin(t, url)
	var acknowledged []string
	for i := range 60 {
		if i%10 == 5 {
			terminate(t, db, `true`)
		}
		kind := fmt.Sprint(i)
		if _, err := one.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: kind}); err == nil {
			acknowledged = append(acknowledged, kind)
		}
	}
	last := "last"
	for {
		if _, err := one.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: last}); err == nil {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := make(map[string]int)
	next := int64(1)
	for seen[last] == 0 {
		events, err := s.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				t.Fatalf("%d events, then: %v", len(seen), err)
			}
			continue // unavailable for now
		}
		for _, e := range events {
			if e.Position.Seq != next {
				t.Fatalf("event %d has number %d", next, e.Position.Seq)
			}
			next++
			seen[e.Kind]++
		}
	}
	for _, kind := range acknowledged {
		if seen[kind] != 1 {
			t.Errorf("acknowledged event %s was seen %d times", kind, seen[kind])
		}
	}
}

// terminate kills the other connections to the database that match.
func terminate(t *testing.T, db *bun.DB, which string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND `+which)
	if err != nil {
		t.Fatal(err)
	}
}

// Neither an event nor a run rings inside the transaction that makes it: a
// NOTIFY there would make the commits of the whole server wait for each other.
func TestDoorbellRingsOutsideTheTransaction(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	db := admin(t, url)
	var hook notifyHook
	db = db.WithQueryHook(&hook)
	b := openWith(t, pg.Options{URL: url, DB: db, Poll: time.Hour})
	other := openWith(t, pg.Options{URL: url, Poll: time.Hour})
	hints, stop := other.Claimer().Hints()
	defer stop()
	s := subscribe(t, other, "a")
	publish(t, b, "a", "alone")
	want(t, "rung by the doorbell", receive(t, s, 1), "alone")
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"}); err != nil {
			return err
		}
		return tx.Publish(ctx, coord.NewEvent{Topic: "a", Kind: "in tx"})
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "rung by the doorbell", receive(t, s, 1), "in tx")
	select {
	case <-hints:
	case <-time.After(patience):
		t.Fatal("no hint came")
	}
	if n := hook.notifies.Load(); n != 0 {
		t.Errorf("%d statements of the work pool notified", n)
	}
	if hook.queries.Load() == 0 {
		t.Error("the hook saw no statement")
	}
}

// notifyHook counts the statements of a pool, and those that notify.
type notifyHook struct{ queries, notifies atomic.Int64 }

func (h *notifyHook) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	h.queries.Add(1)
	if strings.Contains(strings.ToLower(e.Query), "notify") {
		h.notifies.Add(1)
	}
	return ctx
}

func (*notifyHook) AfterQuery(context.Context, *bun.QueryEvent) {}
