package pg_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// present is what a test looks at of a run.
type present struct {
	State           string `bun:"state"`
	Token           int64  `bun:"token"`
	Attempt         int    `bun:"attempt"`
	Worker          string `bun:"worker"`
	CancelRequested bool   `bun:"cancel_requested"`
}

func look(t *testing.T, db bun.IDB, id coord.RunID) present {
	t.Helper()
	var rows []present
	err := db.NewRaw(`SELECT state, token, attempt, worker, cancel_requested FROM coord_runs WHERE id = ?`, id).Scan(t.Context(), &rows)
	if err != nil || len(rows) != 1 {
		t.Fatalf("run %d: %d rows, %v", id, len(rows), err)
	}
	return rows[0]
}

// held makes two claims; stale lets their leases run out.
func held(t *testing.T, b coord.Backend) []coord.Claim {
	t.Helper()
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}, coord.NewRun{Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	claims := claim(t, b, 2)
	if len(claims) != 2 {
		t.Fatalf("%d claims, want 2", len(claims))
	}
	return claims
}

func stale(t *testing.T, db bun.IDB) {
	t.Helper()
	exec(t, db, `UPDATE coord_runs SET at = now() - interval '1 minute' + id * interval '1 second'`)
}

// The rescuer has begun to read. Before it comes to the second of two stale runs,
// that is changed by somebody else.
func TestRescueOfWhatIsNoLongerStale(t *testing.T) {
	// A claim waits at its first look at the clock, until the test lets it go on.
	url := testenv.NewDatabase(t, "coord_gate", func(url string) error {
		if err := migrate(url); err != nil {
			return err
		}
		return execOnce(url, `CREATE OR REPLACE FUNCTION coord_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
			'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN clock_timestamp(); END'`)
	})
	b, db := replica(t, url, time.Hour), admin(t, url)
	for name, c := range map[string]struct {
		change string
		want   present
		taken  int
	}{
		"finished":  {`state = 'succeeded'`, present{"succeeded", 1, 1, "w", false}, 1},
		"extended":  {`at = now() + interval '1 minute'`, present{"running", 1, 1, "w", false}, 1},
		"claimed":   {`at = now() + interval '1 minute', token = 2, attempt = 2, worker = 'x'`, present{"running", 2, 2, "x", false}, 1},
		"snoozed":   {`state = 'queued', at = now() + interval '1 minute', attempt = 0`, present{"queued", 1, 0, "w", false}, 1},
		"released":  {`state = 'queued', at = now(), attempt = 0, worker = ''`, present{"running", 2, 1, "w", false}, 2},
		"cancelled": {`state = 'cancelled'`, present{"cancelled", 1, 1, "w", false}, 1},
		"to cancel": {`cancel_requested = true`, present{"cancelled", 2, 1, "w", true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, db, `DELETE FROM coord_runs`)
			claims := held(t, b)
			stale(t, db)
			gate := begin(t, db)
			exec(t, gate, `SELECT pg_advisory_xact_lock(7)`)
			rescued := make(chan []coord.Claim, 1)
			go func() {
				defer close(rescued)
				rescued <- claim(t, b, 2)
			}()
			waitForLock(t, db)
			exec(t, db, `UPDATE coord_runs SET `+c.change+` WHERE id = ?`, claims[1].Run.ID)
			if err := gate.Commit(); err != nil {
				t.Fatal(err)
			}
			if taken := <-rescued; len(taken) != c.taken || len(taken) > 0 && taken[0].Run.ID != claims[0].Run.ID || taken[0].Token != 2 {
				t.Errorf("the rescuer took %v, want %d", taken, c.taken)
			}
			if got := look(t, db, claims[1].Run.ID); got != c.want {
				t.Errorf("the other run is %+v, want %+v", got, c.want)
			}
		})
	}
}

// Finish and Extend wait for the row of a run that somebody else is changing, and
// then look at what it has become.
func TestFencedWhileWaiting(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	for name, write := range map[string]func(claims []coord.Claim) error{
		"Extend": func(claims []coord.Claim) error {
			_, err := b.Claimer().Extend(t.Context(), time.Minute, claims...)
			return err
		},
		"Finish": func(claims []coord.Claim) error {
			return b.Claimer().Finish(t.Context(),
				coord.Result{Claim: claims[1], Outcome: coord.Succeed}, coord.Result{Claim: claims[0], Outcome: coord.Succeed})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for change, want := range map[string]present{
				`token = 2, attempt = 2, worker = 'x', at = now() + interval '1 minute'`: {"running", 2, 2, "x", false},
				`state = 'failed', token = 2`:                                            {"failed", 2, 1, "w", false},
				`state = 'queued', attempt = 0`:                                          {"queued", 1, 0, "w", false},
			} {
				exec(t, db, `DELETE FROM coord_runs`)
				claims := held(t, b)
				tx := begin(t, db)
				exec(t, tx, `UPDATE coord_runs SET `+change+` WHERE id = ?`, claims[0].Run.ID)
				written := make(chan error, 1)
				go func() { written <- write(claims) }()
				waitForLock(t, db)
				exec(t, db, `SELECT FROM coord_runs WHERE id = ? FOR UPDATE NOWAIT`, claims[1].Run.ID) // locked in order
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				fenced, ok := errors.AsType[*coord.FencedError](<-written)
				if !ok || len(fenced.Claims) != 1 || fenced.Claims[0].Run.ID != claims[0].Run.ID {
					t.Errorf("%s: %v, want the first run to be fenced", change, fenced)
				}
				if got := look(t, db, claims[0].Run.ID); got != want {
					t.Errorf("%s: the run is %+v, want %+v", change, got, want)
				}
			}
		})
	}
}

// Somebody changes one of the runs for longer than its worker waits. The leases of
// the others are extended.
func TestExtendBesideALockedRun(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	claims := held(t, b)
	tx := begin(t, db)
	exec(t, tx, `SELECT FROM coord_runs WHERE id = ? FOR UPDATE`, claims[0].Run.ID)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	type answer struct {
		extended []coord.Claim
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		extended, err := b.Claimer().Extend(ctx, time.Hour, claims...)
		answered <- answer{extended, err}
	}()
	waitForLock(t, db) // for the one that is locked: with the others it did not wait
	leave()
	if a := receiveOne(t, answered); !slices.Equal(ids(a.extended), []coord.RunID{claims[1].Run.ID}) || !errors.Is(a.err, context.Canceled) {
		t.Errorf("the runs %v were extended, %v; want run %d and no more in time", ids(a.extended), a.err, claims[1].Run.ID)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if extended, err := b.Claimer().Extend(t.Context(), time.Hour, claims...); len(extended) != 2 || err != nil {
		t.Errorf("the runs %v were extended, %v; want both", ids(extended), err)
	}
}

// A retry that was decided before a cancellation came does not undo it.
func TestCancelIsNotUndone(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	claims := held(t, b)
	tx := begin(t, db)
	exec(t, tx, `UPDATE coord_runs SET cancel_requested = true WHERE id = ?`, claims[0].Run.ID)
	finished := make(chan error, 1)
	go func() {
		finished <- b.Claimer().Finish(t.Context(), coord.Result{Claim: claims[0], Outcome: coord.Fail, Error: "e"})
	}()
	waitForLock(t, db)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	if got := look(t, db, claims[0].Run.ID); got.State != "cancelled" {
		t.Errorf("the run is %+v, want it cancelled", got)
	}
}
