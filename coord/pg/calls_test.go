package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

func ask(t *testing.T, b coord.Backend) coord.Call {
	t.Helper()
	c, err := b.Calls().Open(t.Context(), coord.NewCall{Target: "ada", Kind: "confirm", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await waits for a call in the background; the first look of the wait has been
// taken when it returns.
func await(t *testing.T, b coord.Backend, id coord.CallID) (result func() string) {
	t.Helper()
	out := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := b.Calls().Wait(ctx, id)
		if err != nil {
			t.Errorf("Wait: %v", err)
		}
		out <- string(c.Result)
	}()
	// Somebody who waits for what does not exist is told by a look that began later.
	for range 2 {
		if _, err := b.Calls().Wait(t.Context(), coord.NewCallID()); err == nil {
			t.Error("there is a call that nobody opened")
		}
	}
	return func() string { return <-out }
}

func reply(t *testing.T, b coord.Backend, c coord.Call, result string) {
	t.Helper()
	if err := b.Calls().Answer(t.Context(), coord.Answer{ID: c.ID, Target: c.Target, Result: []byte(result)}); err != nil {
		t.Fatal(err)
	}
}

// The end of a call rings, so that nobody waits for the next poll.
func TestEndOfACallRings(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	one, two := replica(t, url, time.Hour), replica(t, url, time.Hour)
	eventually(t, "both listen", func(context.Context) (bool, error) {
		c := ask(t, one)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		reply(t, one, c, "")
		_, err := two.Calls().Wait(ctx, c.ID)
		return err == nil, nil
	})
	for _, b := range []coord.Backend{one, two} {
		for _, by := range []coord.Backend{one, two} {
			c := ask(t, b)
			result := await(t, b, c.ID)
			reply(t, by, c, "yes")
			if got := result(); got != "yes" {
				t.Errorf("the result is %q", got)
			}
		}
	}
}

// A call that is answered when nobody listens, or after the listening connection was
// killed, is heard of all the same.
func TestWaitNeedsNoDoorbell(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	db := admin(t, url)
	answering := replica(t, url, time.Hour)

	deaf := openWith(t, pg.Options{
		URL: url, ListenURL: "postgres://nobody@127.0.0.1:1/nowhere?sslmode=disable&connect_timeout=1", Poll: 100 * time.Millisecond,
	})
	c := ask(t, answering)
	result := await(t, deaf, c.ID)
	reply(t, answering, c, "polled")
	if got := result(); got != "polled" {
		t.Errorf("the result is %q", got)
	}

	for range 3 {
		listening := replica(t, url, 200*time.Millisecond)
		c = ask(t, answering)
		result = await(t, listening, c.ID)
		terminate(t, db, `query ILIKE 'LISTEN%'`)
		reply(t, answering, c, "anyhow")
		if got := result(); got != "anyhow" {
			t.Errorf("the result is %q", got)
		}
	}
}

// An answer that is written when its call is overdue for others, but was begun in
// time, and one that expired first, can't both be told.
func TestExpiryAndAnswerExclude(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_frozen", frozen)
	db := admin(t, url)
	one, two := replica(t, url, time.Hour), replica(t, url, 20*time.Millisecond)
	c, err := one.Calls().Open(t.Context(), coord.NewCall{Target: "ada", Kind: "confirm", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	// A cancellation in a transaction has ended the call in time, and is not
	// committed yet when the deadline passes.
	looked := make(chan coord.CallState, 1)
	err = one.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if err := tx.CancelCall(ctx, c.ID, "in time"); err != nil {
			return err
		}
		if _, err := db.ExecContext(ctx, `UPDATE test_clock SET now = now + interval '1 hour'`); err != nil {
			return err
		}
		go func() {
			got, err := two.Calls().Get(context.WithoutCancel(t.Context()), c.ID)
			if err != nil {
				t.Errorf("Get: %v", err)
			}
			looked <- got.State
		}()
		// Until the look waits for the transaction.
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for {
			var waiting int
			err := db.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
			if err != nil || waiting > 0 {
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if state := <-looked; state != coord.CallCancelled {
		t.Errorf("the call was seen %s, and is cancelled", state)
	}
}
