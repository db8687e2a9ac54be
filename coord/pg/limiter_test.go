package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
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

// A call that was refused by what somebody else took meanwhile has locked that bucket all the
// same. It lets go of it before buckets are locked that come earlier in the order of keys.
func TestRefusedCallsWaitInNoCircle(t *testing.T) {
	b := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate))
	limit := func(key string) coord.Limit {
		return coord.Limit{Key: key, Rate: 1, Per: time.Hour, Burst: 2, Cost: 1}
	}
	early, late := limit("a"), limit("b")
	if bytes.Compare(row.LimitKey(early.Key), row.LimitKey(late.Key)) > 0 {
		early, late = late, early
	}
	exec := func(db bun.IDB, query string, args ...any) {
		t.Helper()
		if _, err := db.NewRaw(query, args...).Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() bun.Tx {
		tx, err := b.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		return tx
	}
	// The early one is to heal, which is what the second function is for.
	exec(b.db, `INSERT INTO coord_limits VALUES (?0, 1::bigint << 60), (?1, 0)`, row.LimitKey(early.Key), row.LimitKey(late.Key))
	admin := openBackend(t, b.o.URL).db
	blocks := func(tx bun.Tx) {
		t.Helper()
		var pid int
		if err := tx.NewRaw(`SELECT pg_backend_pid()`).Scan(t.Context(), &pid); err != nil {
			t.Fatal(err)
		}
		for blocked := false; !blocked; {
			err := admin.NewRaw(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid)))`, pid).
				Scan(t.Context(), &blocked)
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	taker, other := begin(), begin()
	exec(taker, `UPDATE coord_limits SET tat = coord_micros() + ? WHERE key = ?`, late.GCRA().Window, row.LimitKey(late.Key))
	exec(other, `SELECT FROM coord_limits WHERE key = ? FOR UPDATE`, row.LimitKey(early.Key))
	type answer struct {
		ds  [][]coord.Decision
		err error
	}
	answers := make(chan answer)
	go func() {
		ds, err := b.decideShared(t.Context(), [][]coord.Limit{{early}, {late}})
		answers <- answer{ds, err}
	}()
	blocks(taker)
	if err := taker.Commit(); err != nil {
		t.Fatal(err)
	}
	blocks(other)
	exec(other, `SELECT FROM coord_limits WHERE key = ? FOR UPDATE`, row.LimitKey(late.Key))
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.err != nil || a.ds[0][0].Allowed || a.ds[1][0].Allowed {
		t.Errorf("the decisions are %+v, %v", a.ds, a.err)
	}
}

// TestLimitPlans pins that buckets are found by their key, though the plans were made when
// there was none, or one.
func TestLimitPlans(t *testing.T) {
	for name, before := range map[string]string{
		"nothing known": ``,
		"one bucket":    `INSERT INTO coord_limits VALUES ('\x00', 0); VACUUM ANALYZE coord_limits`,
	} {
		t.Run(name, func(t *testing.T) { limitPlans(t, before) })
	}
}

func limitPlans(t *testing.T, before string) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	for text := range strings.SplitSeq(`ALTER TABLE coord_limits SET (autovacuum_enabled = off);`+before, ";") {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
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
	_, err := db.ExecContext(t.Context(),
		`INSERT INTO coord_limits SELECT substring(sha256(i::text::bytea) FOR 16), 0 FROM generate_series(100, 20000) AS i`)
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

// A bucket that holds the least or the largest number there is answers all the same, and
// heals.
func TestBucketsFarOffHeal(t *testing.T) {
	b := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate))
	l := limiter{b}
	for _, test := range []struct {
		name    string
		tat     int64
		allowed bool
	}{{"future", math.MaxInt64, false}, {"past", math.MinInt64, true}} {
		for name, ask := range map[string]func(limit coord.Limit) (coord.Decision, error){
			"Peek":  func(limit coord.Limit) (coord.Decision, error) { return l.Peek(t.Context(), limit) },
			"Allow": func(limit coord.Limit) (coord.Decision, error) { return l.Allow(t.Context(), limit) },
			"AllowAll": func(limit coord.Limit) (coord.Decision, error) {
				other := coord.Limit{Key: "other", Rate: 1000, Per: time.Second, Burst: 1000, Cost: 1}
				ds, err := l.AllowAll(t.Context(), other, limit)
				if err != nil {
					return coord.Decision{}, err
				}
				return ds[1], nil
			},
		} {
			limit := coord.Limit{Key: test.name + name, Rate: 1, Per: time.Hour, Burst: 2, Cost: 1}
			_, err := b.db.NewRaw(`INSERT INTO coord_limits VALUES (?, ?)`, row.LimitKey(limit.Key), test.tat).Exec(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d, err := ask(limit); err != nil || d.Allowed != test.allowed || d.ResetAfter > 2*time.Hour {
				t.Errorf("%s in the far %s: %+v, %v", name, test.name, d, err)
			}
			if name == "Peek" {
				continue
			}
			if d, err := l.Peek(t.Context(), limit); err != nil || d.ResetAfter > 2*time.Hour || d.ResetAfter == 0 {
				t.Errorf("%s in the far %s left %+v, %v", name, test.name, d, err)
			}
		}
	}
}

// Callers who leave cost no connection: neither their own nor the idle ones.
func TestCallersWhoLeaveCostNoConnection(t *testing.T) {
	b := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate))
	l := limiter{b}
	limit := coord.Limit{Key: "k", Rate: 1, Per: time.Hour, Burst: 1000, Cost: 1}
	for name, ask := range map[string]func(ctx context.Context) error{
		"Allow": func(ctx context.Context) error {
			_, err := l.Allow(ctx, limit)
			return err
		},
		"Reset": func(ctx context.Context) error { return l.Reset(ctx, limit.Key) },
	} {
		if _, err := l.Allow(t.Context(), limit); err != nil {
			t.Fatal(err)
		}
		holder, err := b.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := holder.ExecContext(t.Context(), `SELECT FROM coord_limits FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		left := make(chan error)
		go func() { left <- ask(ctx) }()
		for waits := false; !waits; {
			err := b.db.NewRaw(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND query LIKE '%coord_%')`).Scan(t.Context(), &waits)
			if err != nil {
				t.Fatal(err)
			}
		}
		other := limit
		other.Key = "other of " + name
		if _, err := l.Allow(t.Context(), other); err != nil { // by another connection
			t.Fatal(err)
		}
		before := b.limits.Stats().OpenConnections
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: who left got %v", name, err)
		}
		if err := holder.Rollback(); err != nil {
			t.Fatal(err)
		}
		for b.limits.Stats().InUse > 0 && t.Context().Err() == nil {
			runtime.Gosched()
		}
		if after := b.limits.Stats(); before < 2 || after.OpenConnections != before || after.MaxIdleClosed > 0 {
			t.Errorf("%s: there were %d connections, and then %d; %d idle ones were closed",
				name, before, after.OpenConnections, after.MaxIdleClosed)
		}
	}
}

// longest is the length of the longest statement that a pool has carried out.
type longest struct{ atomic.Int64 }

func (*longest) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (l *longest) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	for n := int64(len(e.Query)); n > l.Load(); {
		l.Store(n)
	}
}

// Calls for very many buckets don't share a statement, for which all others would wait.
func TestLargeCallsAreNotGathered(t *testing.T) {
	b, statements := openBackend(t, testenv.NewDatabase(t, "coord_inside", migrate)), &longest{}
	b.limits = b.limits.WithQueryHook(statements)
	var callers sync.WaitGroup
	for caller := range 32 {
		callers.Go(func() {
			limits := make([]coord.Limit, 200)
			for i := range limits {
				limits[i] = coord.Limit{Key: fmt.Sprint(caller, "/", i), Rate: 1, Per: time.Second, Burst: 9, Cost: 1}
			}
			if _, err := (limiter{b}).AllowAll(t.Context(), limits...); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	// Some 60 bytes each.
	if n := statements.Load(); n > 100*limitBuckets {
		t.Errorf("a statement has %d bytes", n)
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
