package pg

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

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
	b, err := open(Options{URL: url, MaxConns: 2, Options: coord.Options{Limiter: coord.LimiterOptions{Deadline: time.Minute}}})
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

// Buckets that owe nothing are reaped and forgiven while several are asked together. What
// is granted is charged all the same.
func TestReapTakesNoBucketFromAllowAll(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_inside", migrate)
	b, janitor := openBackend(t, url), openBackend(t, url)
	limits := []coord.Limit{
		{Key: "a", Rate: 1, Per: time.Hour, Burst: 3, Cost: 1},
		{Key: "b", Rate: 1, Per: time.Hour, Burst: 3, Cost: 1},
	}
	ctx, stop := context.WithCancel(t.Context())
	var reaping sync.WaitGroup
	reaping.Go(func() {
		for ctx.Err() == nil {
			if _, err := (limiter{janitor}).Reap(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for round := range 30 {
		_, err := b.db.NewRaw(`INSERT INTO coord_limits VALUES (?0, 1), (?1, 1) ON CONFLICT (key) DO UPDATE SET tat = 1`,
			row.LimitKey("a"), row.LimitKey("b")).Exec(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var granted atomic.Int64
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				ds, err := limiter{b}.AllowAll(t.Context(), limits...)
				if err != nil {
					t.Error(err)
				} else if ds[0].Allowed {
					granted.Add(1)
				}
			})
		}
		callers.Wait()
		if n := granted.Load(); n != 3 {
			t.Fatalf("round %d: %d were granted, want 3", round, n)
		}
	}
	stop()
	reaping.Wait()
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

	// What has written, or locked a row, has a transaction number; what has none has left no
	// trace in the log either.
	for name, ask := range map[string]func(db bun.IDB) error{
		"one": func(db bun.IDB) error {
			a := newAnswers(both[:1])
			return a.simple(t.Context(), db, a.asks())
		},
		"several": func(db bun.IDB) error {
			a := newAnswers(both)
			return a.rest(t.Context(), db, a.asks())
		},
		"one that can never be": func(db bun.IDB) error {
			never := limit("new")
			never.Cost = 2
			a := newAnswers([]coord.Limit{never})
			return a.simple(t.Context(), db, a.asks())
		},
	} {
		var numbered bool
		err := inTx(t.Context(), b.db, func(tx bun.Tx) error {
			if err := ask(tx); err != nil {
				return err
			}
			return tx.NewRaw(`SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(t.Context(), &numbered)
		})
		if err != nil || numbered {
			t.Errorf("%s: a denial got a transaction number: %t, %v", name, numbered, err)
		}
	}
}

// Over any time no more than the burst and the rate grant is admitted, however many wait
// for the row of one key: who waits must not decide by the time at which it began to.
func TestContendedBucketMintsNothing(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_inside", migrate)
	backends := []*backend{openBackend(t, url), openBackend(t, url), openBackend(t, url)}
	const callers, rate, burst = 24, 500, 8
	both := func(i int) []coord.Limit { // alone, together with another, and twice as expensive
		l := coord.Limit{Key: "hot", Rate: rate, Per: time.Second, Burst: burst, Cost: 1 + i%2}
		if i%3 == 0 {
			return []coord.Limit{{Key: fmt.Sprint("own", i), Rate: 1000, Per: time.Second, Burst: 1000, Cost: 1}, l}
		}
		return []coord.Limit{l}
	}
	var granted atomic.Int64
	var working sync.WaitGroup
	began := time.Now()
	for i := range callers {
		working.Go(func() {
			for time.Since(began) < time.Second {
				limits := both(i)
				ds, err := limiter{backends[i%len(backends)]}.AllowAll(t.Context(), limits...)
				if err != nil {
					t.Error(err)
					return
				}
				if ds[0].Allowed {
					granted.Add(int64(limits[len(limits)-1].Cost))
				}
			}
		})
	}
	working.Wait()
	most := int64(burst + rate*time.Since(began).Seconds())
	t.Logf("%d of at most %d were granted", granted.Load(), most)
	if granted.Load() > most || granted.Load() < burst {
		t.Errorf("%d were granted within %v, want at most %d", granted.Load(), time.Since(began), most)
	}
}

// TestLimitPlans pins that buckets are found by their key, though the plans were made when
// there was none.
func TestLimitPlans(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	ask := func() {
		t.Helper()
		var calls [][]coord.Limit
		for i := range 20 {
			calls = append(calls, []coord.Limit{{Key: fmt.Sprint(i), Rate: 1, Per: time.Hour, Burst: 2, Cost: 1}})
		}
		calls = append(calls, slices.Concat(calls...))
		a := newAnswers(calls...)
		if err := a.simple(t.Context(), db, a.asks()); err != nil {
			t.Fatal(err)
		}
		if err := a.rest(t.Context(), db, a.asks()); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	_, err := db.ExecContext(t.Context(), `ALTER TABLE coord_limits SET (autovacuum_enabled = off);
		INSERT INTO coord_limits SELECT substring(sha256(i::text::bytea) FOR 16), 0 FROM generate_series(100, 20000) AS i`)
	if err != nil {
		t.Fatal(err)
	}
	*plans = nil
	ask()
	all := strings.Join(*plans, "\n")
	if strings.Contains(all, "Seq Scan on coord_limits") || !strings.Contains(all, "using coord_limits_pkey on coord_limits") {
		t.Errorf("a bucket is not found by its key:\n%s", all)
	}
	for _, found := range regexp.MustCompile(`Rows Removed by (?:Join )?Filter: (\d+)`).FindAllStringSubmatch(all, -1) {
		if n, _ := strconv.Atoi(found[1]); n > 21 {
			t.Errorf("%s:\n%s", found[0], all)
		}
	}
}

// counted is how many statements a pool has carried out.
type counted struct{ atomic.Int64 }

func (*counted) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (c *counted) AfterQuery(context.Context, *bun.QueryEvent) { c.Add(1) }

// An attack on a key that is denied costs the database next to nothing.
func TestAttackCostsFewStatements(t *testing.T) {
	b, statements := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate)), &counted{}
	b.limits = b.limits.WithQueryHook(statements)
	l := coord.Wrap(b, coord.Options{Limiter: coord.LimiterOptions{Deadline: time.Minute}}).Limiter()
	const callers, calls = 32, 100_000
	var attacking sync.WaitGroup
	began := time.Now()
	for range callers {
		attacking.Go(func() {
			for range calls / callers {
				if _, err := l.Allow(t.Context(), coord.Limit{Key: "k", Rate: 5, Per: time.Minute, Burst: 5}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	attacking.Wait()
	took := time.Since(began)
	// The burst, and whoever comes while it is known that there is none left, share some.
	most := int64(10 + 10*took.Seconds())
	t.Logf("%d calls in %v cost %d statements", calls, took, statements.Load())
	if n := statements.Load(); n > most {
		t.Errorf("%d calls in %v cost %d statements, want at most %d", calls, took, n, most)
	}
}
