package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// What a hold allows waits for the row while somebody else takes the key, and then
// looks at what it has become.
func TestReceiptIsFencedWhileWaiting(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	o := coord.ReceiptOutcome{Body: []byte("late")}
	for name, write := range map[string]func(held coord.Receipt) error{
		"Complete": func(held coord.Receipt) error { return b.Receipts().Complete(t.Context(), held, o) },
		"Release":  func(held coord.Receipt) error { return b.Receipts().Release(t.Context(), held) },
		"Extend": func(held coord.Receipt) error {
			_, err := b.Receipts().Extend(t.Context(), held, time.Minute)
			return err
		},
		"Tx.CompleteReceipt": func(held coord.Receipt) error {
			return b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error { return tx.CompleteReceipt(ctx, held, o) })
		},
	} {
		for _, change := range []string{`token = token + 1, holder = 'x'`, `done = true, body = 'first'`} {
			exec(t, db, `DELETE FROM coord_receipts`)
			held, err := b.Receipts().Begin(t.Context(), coord.ReceiptFor{Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			tx := begin(t, db)
			exec(t, tx, `UPDATE coord_receipts SET `+change)
			written := make(chan error, 1)
			go func() { written <- write(held) }()
			waitForLock(t, db)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := <-written; !errors.Is(err, coord.ErrFenced) {
				t.Errorf("%s, %s: %v, want ErrFenced", name, change, err)
			}
		}
	}
}

// An outcome is stored by a transaction that has not committed yet. Who asks hears that
// the key is held, without waiting; when the lease has ended, they wait for what becomes
// of it.
func TestReceiptThatIsBeingCompleted(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	asked := coord.ReceiptFor{Key: "k", Holder: "bob"}
	for _, commit := range []bool{true, false} {
		exec(t, db, `DELETE FROM coord_receipts`)
		held, err := b.Receipts().Begin(t.Context(), coord.ReceiptFor{Key: "k", Holder: "ada"})
		if err != nil {
			t.Fatal(err)
		}
		ended := begin(t, db)
		exec(t, ended, `UPDATE coord_receipts SET done = true, holder = '', body = 'first', until = now() + interval '1 hour'`)
		if got, err := b.Receipts().Begin(t.Context(), asked); err != nil || got.State != coord.ReceiptHeld {
			t.Errorf("Begin beside the transaction: %+v, %v", got, err)
		}
		_ = ended.Rollback()
		exec(t, db, `UPDATE coord_receipts SET until = now()`)
		ended = begin(t, db)
		exec(t, ended, `UPDATE coord_receipts SET done = true, holder = '', body = 'first', until = now() + interval '1 hour'`)
		begun := make(chan coord.Receipt, 1)
		go func() {
			got, err := b.Receipts().Begin(t.Context(), asked)
			if err != nil {
				t.Error(err)
			}
			begun <- got
		}()
		waitForLock(t, db)
		if commit {
			err = ended.Commit()
		} else {
			err = ended.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
		got := <-begun
		if commit && (got.State != coord.ReceiptDone || string(got.Outcome.Body) != "first") ||
			!commit && (got.State != coord.ReceiptMine || got.Token <= held.Token) {
			t.Errorf("Begin when the lease has ended, committed %v: %+v", commit, got)
		}
	}
}

// There is one ticket more than are good, as issuers leave behind that race. The newest is
// being burnt by a transaction that has not committed when the oldest is redeemed.
func TestOldestTicketWhileTheNewestIsBurnt(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	secrets := make([]string, coord.MaxTickets+1)
	for i := range secrets {
		secrets[i] = coord.NewTicketSecret()
		hash := coord.HashTicket(secrets[i])
		exec(t, db, `INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
			VALUES (?, 'p', 'u', 's', '', '', 1, now() + interval '1 hour')`, hash[:])
	}
	newest := coord.HashTicket(secrets[coord.MaxTickets])
	tx := begin(t, db)
	exec(t, tx, `SELECT coord_redeem(ARRAY[?::bytea], ?)`, newest[:], coord.MaxTickets)
	redeemed := make(chan error, 1)
	go func() {
		_, err := b.Tickets().Redeem(t.Context(), secrets[0], coord.TicketUse{Purpose: "p"})
		redeemed <- err
	}()
	waitForLock(t, db)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-redeemed; !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("Redeem of the oldest: %v, want ErrNotFound", err)
	}
	for _, secret := range secrets[1:coord.MaxTickets] {
		if _, err := b.Tickets().Redeem(t.Context(), secret, coord.TicketUse{Purpose: "p"}); err != nil {
			t.Errorf("Redeem of one of the others: %v", err)
		}
	}
}
