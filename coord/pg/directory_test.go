package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// A renewal that is not committed yet when the lease would have ended counts all the
// same: its member is not swept, and hears of what was taken over meanwhile.
func TestRenewalUnderWay(t *testing.T) {
	s := newStore(t).(*store)
	one, two := s.Open(t), s.Open(t)
	for _, b := range []coord.Backend{one, two} {
		t.Cleanup(func() { _ = b.Close(context.WithoutCancel(t.Context())) })
	}
	join := func(b coord.Backend, lease time.Duration) coord.Member {
		t.Helper()
		m, err := b.Directory().Join(t.Context(), coord.NewMember{Name: "m", Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	slow, other := join(one, 10*time.Second), join(two, time.Hour)
	kept, err := slow.Register(t.Context(), "kept", nil)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := slow.Register(t.Context(), "taken", nil)
	if err != nil {
		t.Fatal(err)
	}

	s.Advance(9 * time.Second)
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE coord_members SET lease_until = lease_until + interval '10 seconds'
		WHERE id = ? AND lease_until > coord_clock()`, string(slow.ID())); err != nil {
		t.Fatal(err)
	}
	s.Advance(2 * time.Second)
	swept, err := two.Directory().Sweep(t.Context())
	if err != nil || len(swept) > 0 {
		t.Errorf("during the renewal %v were swept, %v", swept, err)
	}
	if _, err := other.Register(t.Context(), "taken", nil); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}

	found, err := two.Directory().Lookup(t.Context(), "kept", "taken")
	if err != nil || found["kept"].Registration != kept || found["taken"].Member != other.ID() {
		t.Errorf("after the renewal %v are found, %v", found, err)
	}
	if lost, err := slow.Renew(t.Context()); err != nil || len(lost) != 1 || lost[0] != taken {
		t.Errorf("after the renewal %v are said to be lost, %v; want %v", lost, err, taken)
	}
}

// A registration that is not committed yet when its member leaves leaves nothing
// behind.
func TestLeaveDuringARegistration(t *testing.T) {
	s := newStore(t).(*store)
	b := s.Open(t)
	t.Cleanup(func() { _ = b.Close(context.WithoutCancel(t.Context())) })
	m, err := b.Directory().Join(t.Context(), coord.NewMember{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var epoch int64
	if err := tx.QueryRowContext(t.Context(), `SELECT * FROM coord_change('{register}', ARRAY[?], '{k}', '{0}', '{""}')`,
		string(m.ID())).Scan(&epoch); err != nil || epoch == 0 {
		t.Fatalf("registered as %d, %v", epoch, err)
	}
	left := make(chan error, 1)
	go func() { left <- m.Leave(t.Context()) }()
	waitForLock(t, s.db)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	var entries int
	if err := s.db.QueryRowContext(t.Context(), `SELECT count(*) FROM coord_entries`).Scan(&entries); err != nil || entries > 0 {
		t.Errorf("%d entries were left behind, %v", entries, err)
	}
}
