package pg

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
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
		_, err := b.db.NewRaw(`INSERT INTO coord_limits VALUES (?, 1)`, row.LimitKey(limit.Key)).Exec(t.Context())
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

// A denial is decided on a snapshot: it waits for nobody who holds the bucket, and leaves the
// row as it was.
func TestDenialTakesNoLockAndWritesNothing(t *testing.T) {
	b := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate))
	l := limiter{b}
	limit := func(key string) coord.Limit {
		return coord.Limit{Key: key, Rate: 1, Per: time.Hour, Burst: 1, Cost: 1}
	}
	both := []coord.Limit{limit("full"), limit("empty")}
	if d, err := l.Allow(t.Context(), both[0]); err != nil || !d.Allowed {
		t.Fatalf("the first decision is %+v, %v", d, err)
	}
	row := func() (version string) {
		err := b.db.NewRaw(`SELECT string_agg(xmin || ' ' || ctid || ' ' || tat, ',') FROM coord_limits`).Scan(t.Context(), &version)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	before := row()
	holder, err := b.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if _, err := holder.ExecContext(t.Context(), `SELECT FROM coord_limits FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Allow(t.Context(), both[0]); err != nil || d.Allowed {
		t.Errorf("Allow of a bucket that somebody holds: %+v, %v", d, err)
	}
	ds, err := l.AllowAll(t.Context(), both...)
	if err != nil || ds[0].Allowed || ds[1].Allowed {
		t.Errorf("AllowAll with a bucket that somebody holds: %+v, %v", ds, err)
	}
	if after := row(); after != before {
		t.Errorf("the buckets were %q and are %q", before, after)
	}
}
