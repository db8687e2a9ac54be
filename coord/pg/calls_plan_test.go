package pg

import (
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
)

// TestCallPlans pins that nothing about one call reads the others.
func TestCallPlans(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	_, err := db.ExecContext(t.Context(), `INSERT INTO coord_calls (id, key, target, kind, payload, state, created_at, deadline)
		SELECT 'call ' || i, 'key ' || i, 'target ' || i % 1000, 'k', '', CASE WHEN i % 10 = 0 THEN 'open' ELSE 'answered' END,
			now(), now() + i * interval '1 second' FROM generate_series(1, 50000) AS i`)
	if err == nil {
		_, err = db.ExecContext(t.Context(), `ANALYZE coord_calls`)
	}
	if err != nil {
		t.Fatal(err)
	}
	*plans = nil
	b := &backend{db: db, coordination: db}
	c := calls{b}
	n := coord.NewCall{Key: "k", Target: "ada", Kind: "k", TTL: time.Minute}
	opened, err := openCall(t.Context(), db, n)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := openCall(t.Context(), db, n); err != nil || again.ID != opened.ID {
		t.Errorf("openCall: %+v, %v", again, err)
	}
	if list, err := c.Pending(t.Context(), "ada"); err != nil || len(list) != 1 {
		t.Errorf("Pending: %v, %v", list, err)
	}
	if ended, missing, err := b.lookAtCalls(t.Context(), []coord.CallID{opened.ID, "call 1", "none"}); err != nil ||
		len(ended) != 1 || len(missing) != 1 {
		t.Errorf("lookAtCalls: %v, %v, %v", ended, missing, err)
	}
	if err := cancelCall(t.Context(), db, opened.ID, "enough"); err != nil {
		t.Error(err)
	}
	_, err = db.ExecContext(t.Context(), `UPDATE coord_calls SET deadline = now() WHERE id IN ('call 10', 'call 20')`)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := findCalls(t.Context(), db, `id = ANY (?::text[])`, pq.StringArray{"call 10", "call 20"}); err != nil ||
		len(found) != 2 || found[0].State != coord.CallExpired {
		t.Errorf("findCalls: %v, %v", found, err)
	}
	if _, err := c.Reap(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
	all := strings.Join(*plans, "\n")
	for _, index := range []string{"coord_calls_pkey", "coord_calls_key_key", "coord_calls_open", "coord_calls_deadline"} {
		if !strings.Contains(all, index) {
			t.Errorf("no plan searches %s", index)
		}
	}
	if strings.Contains(all, "Seq Scan on coord_calls") {
		t.Error("a plan reads the whole table")
	}
	if t.Failed() {
		t.Log(all)
	}
}
