package pg

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// migrate fills the template that the tests inside the package copy.
func migrate(url string) error {
	db, err := OpenDB(url, 4)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
	return err
}

// openBackend returns a backend without its loops.
func openBackend(t *testing.T, url string) *backend {
	t.Helper()
	b, err := open(Options{URL: url, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, db := range b.own {
			_ = db.Close()
		}
	})
	return b
}

// afterInsert calls fn after each INSERT.
type afterInsert func()

func (afterInsert) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (fn afterInsert) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.HasPrefix(e.Query, "INSERT") {
		fn()
	}
}

// A bucket that owes nothing is reaped while several are asked together. What
// they grant is charged all the same.
func TestReapTakesNoBucketFromAllowAll(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_inside", migrate)
	b, janitor := openBackend(t, url), openBackend(t, url)
	b.limits = b.limits.WithQueryHook(afterInsert(func() {
		if _, err := (limiter{janitor}).Reap(t.Context()); err != nil {
			t.Error(err)
		}
	}))
	limits := []coord.Limit{
		{Key: "a", Rate: 1, Per: time.Hour, Burst: 3, Cost: 1},
		{Key: "b", Rate: 1, Per: time.Hour, Burst: 3, Cost: 1},
	}
	for _, limit := range limits {
		_, err := b.db.NewRaw(`INSERT INTO coord_limits VALUES (?, 1)`, limitKey(limit.Key)).Exec(t.Context())
		if err != nil {
			t.Fatal(err)
		}
	}
	for call := range 4 {
		ds, err := limiter{b}.AllowAll(t.Context(), limits...)
		if err != nil || ds[0].Allowed != (call < 3) {
			t.Errorf("call %d: allowed %t, %v", call, ds[0].Allowed, err)
		}
	}
}
