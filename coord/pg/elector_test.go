package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

func stand(t *testing.T, b coord.Backend, holder string) coord.Leadership {
	t.Helper()
	l, err := b.Elector().Stand(t.Context(), coord.Candidacy{Name: "n", Candidate: holder, Holder: holder, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func fence(ctx context.Context, b coord.Backend, term coord.Term) error {
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Fence(ctx, term) })
}

// A fenced transaction is in the way of new terms and resignations. Neither who stands waits
// for it, nor the leader who extends or is fenced in another transaction.
func TestWhoWaitsForAFence(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	term := stand(t, b, "ada").Term
	// Whoever would wait fails instead.
	waitless := replica(t, url+"&lock_timeout=1", time.Hour)
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if err := tx.Fence(ctx, term); err != nil {
			return err
		}
		if _, err := waitless.Elector().Extend(t.Context(), term, 10*time.Minute); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if err := fence(t.Context(), waitless, term); err != nil {
			t.Errorf("Fence in another transaction: %v", err)
		}
		if l := stand(t, waitless, "ada"); l.Mine || l.Term != term {
			t.Errorf("Stand of the holder: %+v", l)
		}
		if err := waitless.Elector().Resign(t.Context(), term); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Resign: %v; want it to wait until it must not any more", err)
		}
		return fence(t.Context(), waitless, term)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := waitless.Elector().Resign(t.Context(), term); err != nil {
		t.Errorf("Resign after it: %v", err)
	}
	if l := stand(t, waitless, "bob"); !l.Mine || l.Epoch <= term.Epoch {
		t.Errorf("Stand after it: %+v", l)
	}
	// Neither is who stands at the same time waited for, nor who changes the row otherwise.
	exec(t, db, `UPDATE coord_leaders SET until = now()`)
	for _, lock := range []string{`FOR KEY SHARE`, `FOR NO KEY UPDATE`, `FOR UPDATE`} {
		tx := begin(t, db)
		exec(t, tx, `SELECT FROM coord_leaders `+lock)
		if l := stand(t, waitless, "eve"); l.Mine {
			t.Errorf("Stand beside a transaction that holds the row %s: %+v", lock, l)
		}
		_ = tx.Rollback()
	}
}

// A fence that waits for whoever begins a term is decided by what the row is then.
func TestFenceWhileATermBegins(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	for name, take := range map[string]struct {
		change   string
		rollBack bool
		want     error
	}{
		"another term":                        {`SELECT coord_stand('n', 'ada', 'ada', 60000000)`, false, coord.ErrFenced},
		"one after a resignation and another": {`UPDATE coord_leaders SET until = NULL; SELECT coord_stand('n', 'bob', 'bob', 1), coord_stand('n', 'ada', 'ada', 1)`, false, coord.ErrFenced},
		"none, it is rolled back":             {`SELECT coord_stand('n', 'ada', 'ada', 60000000)`, true, nil},
		"none, and the lease ends meanwhile":  {`SELECT FROM coord_leaders FOR UPDATE`, true, coord.ErrFenced},
	} {
		exec(t, db, `DELETE FROM coord_leaders`)
		term := stand(t, b, "ada").Term
		if name == "none, and the lease ends meanwhile" {
			exec(t, db, `UPDATE coord_leaders SET until = clock_timestamp() + interval '200 ms'`)
		}
		tx := begin(t, db)
		exec(t, tx, take.change)
		fenced := make(chan error, 1)
		go func() { fenced <- fence(t.Context(), b, term) }()
		waitForLock(t, db)
		waitFor(t, db, `SELECT count(*) FROM coord_leaders WHERE until <= clock_timestamp() OR until > clock_timestamp() + interval '10 s'`)
		end(t, tx, !take.rollBack)
		if err := <-fenced; !errors.Is(err, take.want) {
			t.Errorf("%s: %v, want %v", name, err, take.want)
		}
	}
}

// A fence that looks at the row as it was before an extension keeps new terms from beginning,
// too. One that looks at it as it was before another term has no lock.
func TestFenceOfAnOlderRow(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	term := stand(t, b, "ada").Term
	// A snapshot that is older than the change: that of a repeatable read.
	snapshot := func(change func()) (held int64) {
		tx := begin(t, db)
		exec(t, tx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM coord_leaders`)
		change()
		locked, err := tx.ExecContext(t.Context(), `SELECT FROM coord_leaders WHERE epoch = ? FOR KEY SHARE`, term.Epoch)
		if err == nil {
			held, _ = locked.RowsAffected()
		}
		if held > 0 {
			if l := stand(t, b, "bob"); l.Mine {
				t.Errorf("a term begins beside the lock on an older row: %+v", l)
			}
		} else if err == nil {
			t.Error("there is no row")
		}
		_ = tx.Rollback()
		return held
	}
	extend := func() {
		if _, err := b.Elector().Extend(t.Context(), term, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if snapshot(extend) != 1 {
		t.Error("the row before an extension can't be locked")
	}
	if snapshot(func() { stand(t, b, "ada") }) != 0 {
		t.Error("the row before another term can be locked")
	}
}

// Who follows changes nothing and locks nothing.
func TestFollowingWritesNothing(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	stand(t, b, "ada")
	row := func() (ctid, xmax string) {
		if err := db.QueryRowContext(t.Context(), `SELECT ctid::text, xmax::text FROM coord_leaders`).Scan(&ctid, &xmax); err != nil {
			t.Fatal(err)
		}
		return ctid, xmax
	}
	ctid, xmax := row()
	for range 3 {
		if stand(t, b, "bob").Mine {
			t.Fatal("two lead")
		}
	}
	if c, x := row(); c != ctid || x != xmax {
		t.Errorf("the row was %s, %s and is %s, %s", ctid, xmax, c, x)
	}
}

// end commits or rolls back.
func end(t *testing.T, tx bun.Tx, commit bool) {
	t.Helper()
	finish := tx.Rollback
	if commit {
		finish = tx.Commit
	}
	if err := finish(); err != nil {
		t.Fatal(err)
	}
}
