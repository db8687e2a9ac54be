package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// Who changes a ring waits for those that hold it, and not for those that come later: otherwise a ring that is
// held again and again could not be changed.
func TestNobodyPassesWhoWaitsForARing(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	change := func(ctx context.Context, c coord.RingChange) error {
		return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Fence(ctx, term(t, b)); err != nil {
				return err
			}
			_, err := tx.ChangeRing(ctx, c)
			return err
		})
	}
	key := func(version int64, state coord.KeyState) []coord.KeyChange {
		return []coord.KeyChange{{Version: version, State: state, Material: []byte("secret")}}
	}
	if err := change(t.Context(), coord.RingChange{Ring: "r", Keys: key(1, coord.KeyActive)}); err != nil {
		t.Fatal(err)
	}
	changed, later := make(chan error, 1), make(chan int64, 1)
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.HoldRing(ctx, coord.Ring{Name: "r"}); err != nil {
			return err
		}
		go func() {
			changed <- change(t.Context(), coord.RingChange{Ring: "r", Revision: 1, Keys: key(2, coord.KeyNext)})
		}()
		waitForLock(t, db)
		go func() {
			var r coord.Ring
			err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) (err error) {
				r, err = tx.HoldRing(ctx, coord.Ring{Name: "r"})
				return err
			})
			if err != nil {
				t.Errorf("HoldRing: %v", err)
			}
			later <- r.Revision
		}()
		waitFor(t, db, `SELECT count(*) / 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		// Who holds it already is not in its own way.
		_, err := tx.HoldRing(ctx, coord.Ring{Name: "r"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Errorf("ChangeRing: %v", err)
	}
	if revision := <-later; revision != 2 {
		t.Errorf("who came later has held revision %d, want 2", revision)
	}
}

func term(t *testing.T, b coord.Backend) coord.Term {
	t.Helper()
	return stand(t, b, "ada").Term
}
