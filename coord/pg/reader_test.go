package pg

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// A pooler connects the reader with another server, as after a failover. Numbers
// of transactions that were visible on the old one are given again there.
func TestReaderIsOnAnotherServer(t *testing.T) {
	b := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate))
	s, err := b.feed.Subscribe(t.Context(), map[string]coord.Position{"a": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, seen, err := b.reader.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := (broadcaster{b}).Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	now, err := b.reader.look(t.Context(), conn, snapshot{server: "another", next: "9999999999"})
	if err != nil || now.server != seen.server {
		t.Fatalf("the snapshot is of server %q, %v; want %q", now.server, err, seen.server)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if events, err := s.Next(ctx); err != nil || len(events) != 1 {
		t.Errorf("%d events, %v, want 1", len(events), err)
	}
}

// The address leads to a standby, when the reader connects or later, by way of a pooler. Events
// that it would miss there make no hole where nothing follows them.
func TestReaderIsOnAStandby(t *testing.T) {
	cluster, err := testenv.StartCluster(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	b := openBackend(t, cluster.NewDatabase(t, "coord_inside", migrate)+"&target_session_attrs=any")
	if err := cluster.Recover(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	before := b.route.era.Load()
	conn, _, err := b.reader.connect(t.Context())
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, coord.ErrUnavailable) || !before.isOver() {
		t.Errorf("a reader that connects to a standby: %v, want ErrUnavailable, and that nobody uses the connection again", err)
	}
	if conn, err = b.coordination.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reader.look(t.Context(), conn, snapshot{server: "another", next: "3"}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("a look at a standby that has taken the place of another server: %v, want ErrUnavailable", err)
	}
	_ = conn.Close()
	if err := cluster.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A standby may not have yet what a stream was told of: what it says of a topic is neither that its
// history is another one nor that it has ended.
func TestEventsAreReadOnAStandby(t *testing.T) {
	cluster, err := testenv.StartCluster(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	b := openBackend(t, cluster.NewDatabase(t, "coord_inside", migrate)+"&target_session_attrs=any")
	if _, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Recover(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"t", "none"} {
		for what, read := range map[string]func() error{
			"Read from the start": func() error { return second(b.Broadcaster().Read(t.Context(), topic, coord.Start, 10)) },
			"Read of what is not there yet": func() error {
				return second(b.Broadcaster().Read(t.Context(), topic, coord.Position{Seq: 2, Tag: 3}, 10))
			},
			"Heads": func() error { return second(b.Broadcaster().Heads(t.Context(), topic)) },
		} {
			before := b.route.era.Load()
			if err := read(); !errors.Is(err, coord.ErrUnavailable) || !before.isOver() {
				t.Errorf("%s, topic %s: %v, want ErrUnavailable, and that nobody uses the connection again", what, topic, err)
			}
		}
	}
	if err := cluster.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if events, err := b.Broadcaster().Read(t.Context(), "t", coord.Start, 10); err != nil || len(events) != 1 {
		t.Errorf("Read on the primary: %v, %v", events, err)
	}
}

func second[T any](_ T, err error) error { return err }

// The server crashes while a pooler keeps the reader's connection. It gives numbers of
// transactions again that nobody had made durable, as those of rings are not.
func TestReaderAfterACrash(t *testing.T) {
	cluster, err := testenv.StartCluster(t.Context(), testenv.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	b := openBackend(t, cluster.NewDatabase(t, "coord_inside", migrate))
	s, err := b.feed.Subscribe(t.Context(), map[string]coord.Position{"a": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := b.coordination.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	for range 20 { // which uses up a number
		if err := conn.NewRaw(`SET synchronous_commit = off; SELECT pg_notify('elsewhere', '')`).Scan(t.Context(), new(string)); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := b.reader.snapshot(t.Context(), conn)
	if err == nil {
		err = conn.NewRaw(`SELECT pg_backend_pid()`).Scan(t.Context(), &pid)
	}
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for { // until the server has started itself again
		now := seen
		if conn, err = b.coordination.Conn(ctx); err == nil {
			now, err = b.reader.snapshot(ctx, conn)
			_ = conn.Close()
		}
		if err == nil && now.server != seen.server {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the server is the same: %v, %v", now, err)
		}
	}
	for {
		_, err := (broadcaster{b}).Publish(ctx, coord.NewEvent{Topic: "a", Kind: "k", Key: "once"})
		if err == nil {
			break
		}
		if !errors.Is(err, coord.ErrUnavailable) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for looked := false; !looked; { // with a connection that is not of before
		if conn, err = b.coordination.Conn(ctx); err == nil {
			_, err = b.reader.look(ctx, conn, seen)
			_ = conn.Close()
		}
		if looked = err == nil; ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if lag := s.Lag(); lag != 1 {
		t.Errorf("the stream knows of %d events, want 1", lag)
	}
}

// Events were restored from a server that had given out many more numbers of
// transactions. They are history, not news, of which every look would be full.
func TestEventsOfAnotherServer(t *testing.T) {
	b := openBackend(t, migrated(t))
	_, err := b.coordination.ExecContext(t.Context(), `INSERT INTO coord_topics VALUES ('a', 1, 7, 0);
		INSERT INTO coord_events (topic, seq, tag, prev, xid, kind, payload, at) VALUES ('a', 1, 7, 0, '9999999999', 'restored', '', now())`)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	err = b.coordination.NewRaw(`SELECT kind FROM coord_news('1', '{}') WHERE topic IS NOT NULL`).Scan(t.Context(), &found)
	if err != nil || len(found) != 0 {
		t.Errorf("a look finds %v, %v", found, err)
	}
	if _, err := (broadcaster{b}).Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: "new"}); err != nil {
		t.Fatal(err)
	}
	s, err := b.feed.Subscribe(t.Context(), map[string]coord.Position{"a": coord.Start})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	events, err := s.Next(t.Context())
	if err != nil || len(events) != 2 || events[0].Kind != "restored" || events[1].Kind != "new" {
		t.Errorf("a stream from the start returns %v, %v", events, err)
	}
}
