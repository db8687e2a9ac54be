package jobs_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

// advance moves the clocks. On PostgreSQL the application's rows go by the server's.
func advance(t *testing.T, db *apptest.Database, by time.Duration) {
	t.Helper()
	db.Advance(t, by)
	if db.Driver != "pg" {
		return
	}
	_, st := db.Store(t)
	err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
		_, err := u.Coord.Unwrap().(bun.Tx).ExecContext(ctx, `UPDATE app_jobs SET next_at = next_at - ? * interval '1 microsecond'`, by.Microseconds())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
