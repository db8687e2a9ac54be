package pg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// The standby is away that is to have every commit. A write whose caller gives up is not done
// on the primary alone: who asks again would be told that it is, and a failover would undo it. One
// that somebody else cancels is done, and its outcome is unknown.
func TestStandbyIsAway(t *testing.T) {
	c, err := testenv.StartCluster(t.Context(), testenv.Options{
		Settings: map[string]string{"synchronous_standby_names": "absent"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	database := c.NewDatabase(t, "", nil)
	outside := admin(t, database)
	exec(t, outside, `CREATE TABLE written (what text PRIMARY KEY)`)
	db, err := pg.OpenDB(database+"&synchronous_commit=on", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	const insert = `INSERT INTO written VALUES (?) RETURNING what`
	const waiting = `FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'`
	for name, write := range map[string]func(ctx context.Context, what string) error{
		"statement": func(ctx context.Context, what string) error {
			_, err := db.ExecContext(ctx, insert, what)
			return err
		},
		"rows": func(ctx context.Context, what string) error {
			var written []string
			return db.NewRaw(insert, what).Scan(ctx, &written)
		},
		"one row": func(ctx context.Context, what string) error {
			return db.NewRaw(insert, what).Scan(ctx, new(string))
		},
		"transaction": func(ctx context.Context, what string) error {
			return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				_, err := tx.ExecContext(ctx, insert, what)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for how, giveUp := range map[string]func(cancel context.CancelFunc){
				"context": func(cancel context.CancelFunc) { cancel() },
				"canceled": func(context.CancelFunc) {
					exec(t, outside, `SELECT pg_cancel_backend(pid) `+waiting)
				},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- write(ctx, name+" "+how) }()
				waitFor(t, outside, `SELECT count(*) `+waiting)
				giveUp(cancel)
				err := receiveOne(t, ended)
				cancel()
				if how == "canceled" {
					if !errors.Is(err, coord.ErrUnknownOutcome) {
						t.Errorf("a write that somebody else cancelled: %v, want ErrUnknownOutcome", err)
					}
					continue
				}
				if err == nil {
					t.Error("a write whose caller gave up is reported as done")
				}
				var seen int
				if err := outside.QueryRowContext(t.Context(), `SELECT count(*) FROM written WHERE what = ?`, name+" "+how).
					Scan(&seen); err != nil || seen != 0 {
					t.Errorf("%d rows are seen that a failover would undo, %v", seen, err)
				}
				exec(t, outside, `SELECT pg_terminate_backend(pid, 10000) `+waiting)
			}
		})
	}
}
