package pg

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
)

// TestTicketAndReceiptPlans pins that nothing about one ticket or key reads the others,
// by plans that were made when there were none.
func TestTicketAndReceiptPlans(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	b := &backend{db: db}
	issued := 0
	round := func() {
		var tickets []newTicket
		var burn []coord.TicketHash
		for range coord.MaxTickets + 2 { // so that some have to make room
			issued++
			hash := coord.HashTicket(fmt.Sprint(issued))
			tickets, burn = append(tickets, newTicket{coord.TicketFor{Session: "s", TTL: time.Minute}, hash}), append(burn, hash)
			if _, err := b.issueShared(t.Context(), tickets[len(tickets)-1:]); err != nil {
				t.Fatal(err)
			}
		}
		if burnt, err := b.redeemShared(t.Context(), burn); err != nil || burnt[0] != nil || burnt[len(burnt)-1] == nil {
			t.Errorf("redeemShared: %v, %v", burnt, err)
		}
		asked := []coord.ReceiptFor{
			{Key: fmt.Sprint("a", issued), Holder: "ada", Lease: time.Minute, Keep: time.Hour},
			{Key: fmt.Sprint("b", issued), Holder: "ada", Lease: time.Minute, Keep: time.Hour},
		}
		got, err := b.beginShared(t.Context(), asked)
		if err != nil {
			t.Fatal(err)
		}
		var done []completion
		for i, r := range got {
			held, err := r.Coord(asked[i].Key)
			if err != nil || held.State != coord.ReceiptMine {
				t.Errorf("begin: %+v, %v", held, err)
			}
			done = append(done, completion{held: held})
		}
		if completed, err := completeReceipts(t.Context(), db, done); err != nil || !completed[0] || !completed[1] {
			t.Errorf("completeReceipts: %v, %v", completed, err)
		}
		if got, err := b.beginShared(t.Context(), asked); err != nil || got[0].State != "done" {
			t.Errorf("begin: %+v, %v", got, err)
		}
	}
	round()
	_, err := db.ExecContext(t.Context(), `
		INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
		SELECT sha256(i::text::bytea), 'ws', 'u', 'session ' || i % 10000, '', '', 1, now() + i * interval '1 second'
		FROM generate_series(100000, 150000) AS i;
		INSERT INTO coord_receipts (key, fingerprint, holder, token, keep, until)
		SELECT sha256(i::text::bytea), '', 'bob', i, 1, now() + i * interval '1 second' FROM generate_series(100000, 150000) AS i;
		ANALYZE coord_tickets, coord_receipts`)
	if err != nil {
		t.Fatal(err)
	}
	*plans = nil
	round()
	if _, err := (tickets{b}).Reap(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := (receipts{b}).Reap(t.Context()); err != nil {
		t.Error(err)
	}
	all := strings.Join(*plans, "\n")
	for _, index := range []string{
		"coord_tickets_hash_key", "coord_tickets_session", "coord_tickets_expiry", "coord_receipts_pkey", "coord_receipts_until",
	} {
		if !strings.Contains(all, index) {
			t.Errorf("no plan searches %s", index)
		}
	}
	for _, table := range []string{"coord_tickets", "coord_receipts"} {
		if strings.Contains(all, "Seq Scan on "+table) {
			t.Errorf("a plan reads all of %s", table)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}

// TestReceiptsLockInOrder has two statements ask for the same keys, and complete them, in
// opposite orders at once.
func TestReceiptsLockInOrder(t *testing.T) {
	b := openBackend(t, migrated(t))
	for round := range 10 {
		var orders [2][]coord.ReceiptFor
		for i := range receiptBatch {
			orders[0] = append(orders[0], coord.ReceiptFor{
				Key: fmt.Sprint(round, "/", i), Holder: "ada", Lease: time.Minute, Keep: time.Hour,
			})
		}
		orders[1] = slices.Clone(orders[0])
		slices.Reverse(orders[1])
		var both sync.WaitGroup
		for _, asked := range orders {
			both.Go(func() {
				got, err := b.beginShared(t.Context(), asked)
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				var done []completion
				for i, r := range got {
					done = append(done, completion{held: coord.Receipt{Key: asked[i].Key, Token: r.Token}})
				}
				if _, err := completeReceipts(t.Context(), b.db, done); err != nil {
					t.Errorf("complete: %v", err)
				}
			})
		}
		both.Wait()
	}
}
