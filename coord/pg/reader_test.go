package pg

import (
	"context"
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
