//go:build unix

package checker

import (
	"context"
	"encoding/json"
	"hash/crc32"
	"testing"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// sum is that of a payload, in each process the same.
func sum(payload []byte) uint64 { return uint64(crc32.ChecksumIEEE(payload)) }

// openBackend opens a database; it is closed with the test.
func openBackend(t *testing.T, driver, address string) coord.Backend {
	t.Helper()
	var b coord.Backend
	var err error
	if driver == "sqlite" {
		b, err = sqlite.Open(t.Context(), sqlite.Options{Path: address})
	} else {
		b, err = pg.Open(t.Context(), pg.Options{URL: address, MaxConns: 8})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

// query reads rows with a statement of one's own.
func query(ctx context.Context, b coord.Backend, into any, statement string, args ...any) error {
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(statement, args...).Scan(ctx, into)
	})
}

// heads reads where each topic ends.
func heads(t *testing.T, b coord.Backend) map[string]coord.Position {
	t.Helper()
	var rows []struct {
		Topic    string
		Seq, Tag int64
	}
	if err := query(t.Context(), b, &rows, `SELECT topic, seq, tag FROM coord_topics`); err != nil {
		t.Fatal(err)
	}
	list := make(map[string]coord.Position)
	for _, r := range rows {
		list[r.Topic] = coord.Position{Seq: r.Seq, Tag: coord.Tag(r.Tag)}
	}
	return list
}

// readLog reads all events, and how many have each id.
func readLog(t *testing.T, b coord.Backend) (log map[string][]event, stored map[string]int) {
	t.Helper()
	var rows []struct {
		Topic    string
		Seq, Tag int64
		Kind     string
		Payload  []byte
	}
	if err := query(t.Context(), b, &rows, `SELECT topic, seq, tag, kind, payload FROM coord_events ORDER BY topic, seq`); err != nil {
		t.Fatal(err)
	}
	log, stored = make(map[string][]event), make(map[string]int)
	for _, r := range rows {
		log[r.Topic] = append(log[r.Topic], event{coord.Position{Seq: r.Seq, Tag: coord.Tag(r.Tag)}, r.Kind, sum(r.Payload)})
		var message struct {
			ID string `json:"client_id"`
		}
		if json.Unmarshal(r.Payload, &message) == nil && message.ID != "" {
			stored[message.ID]++
		}
	}
	return log, stored
}
