package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// tinyStore is a limiter's store that counts what it is asked, and that answers, refuses
// or says nothing.
type tinyStore struct {
	*fake

	mu      sync.Mutex
	tats    map[string]int64
	asked   int
	refuses error
	silent  bool
	takes   time.Duration // for each answer
}

func (s *tinyStore) Limiter() Limiter { return s }

func (s *tinyStore) set(refuses error, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses, s.silent = refuses, silent
}

// times returns how often it was asked since the last time.
func (s *tinyStore) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked
	s.asked = 0
	return n
}

func (s *tinyStore) answer(ctx context.Context, take bool, limits ...Limit) ([]Decision, error) {
	s.mu.Lock()
	s.asked++
	refuses, silent, takes := s.refuses, s.silent, s.takes
	s.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(takes / 2)
	s.mu.Lock()
	if refuses != nil {
		s.mu.Unlock()
		return nil, refuses
	}
	tats := make([]int64, len(limits))
	for i, l := range limits {
		tats[i] = s.tats[l.Key]
	}
	ds, store := DecideAll(limits, tats, time.Now().UnixMicro())
	for i, tat := range store {
		if take {
			s.tats[limits[i].Key] = tat
		}
	}
	s.mu.Unlock()
	time.Sleep(takes / 2)
	return ds, ctx.Err()
}

func (s *tinyStore) Allow(ctx context.Context, l Limit) (d Decision, err error) {
	ds, err := s.answer(ctx, true, l)
	if err == nil {
		d = ds[0]
	}
	return d, err
}

func (s *tinyStore) AllowAll(ctx context.Context, limits ...Limit) ([]Decision, error) {
	return s.answer(ctx, true, limits...)
}

func (s *tinyStore) Peek(ctx context.Context, l Limit) (d Decision, err error) {
	ds, err := s.answer(ctx, false, l)
	if err == nil {
		d = ds[0]
	}
	return d, err
}

func (s *tinyStore) Reset(ctx context.Context, key string) error {
	if _, err := s.answer(ctx, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tats, key)
	return nil
}

func (s *tinyStore) Reap(context.Context) (int, error) { return 0, nil }

// decisions is a LimiterObserver.
type decisions struct {
	watcher
	mu       sync.Mutex
	by       map[Source]int
	degraded []bool
}

func (d *decisions) Decided(_ context.Context, decision Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil {
		d.by = make(map[Source]int)
	}
	d.by[decision.Source]++
}

func (d *decisions) Degraded(degraded bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.degraded = append(d.degraded, degraded)
}

type guarded struct {
	*testing.T
	store *tinyStore
	Limiter
	logs *logBook
	seen *decisions
}

// withGuard runs a test on the clock of a bubble.
func withGuard(t *testing.T, o LimiterOptions, test func(g guarded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := guarded{
			T: t, store: &tinyStore{fake: &fake{}, tats: make(map[string]int64)}, logs: &logBook{}, seen: &decisions{},
		}
		g.Limiter = Wrap(g.store, Options{Logger: slog.New(g.logs), Observer: g.seen, Limiter: o}).Limiter()
		test(g)
	})
}

// ask asks and returns how long that took, too.
func (g guarded) ask(l Limit) (Decision, time.Duration) {
	g.Helper()
	began := time.Now()
	d, err := g.Allow(g.Context(), l)
	if err != nil {
		g.Fatalf("Allow: %v", err)
	}
	return d, time.Since(began)
}

func (g guarded) want(what string, got, want any) {
	g.Helper()
	if got != want {
		g.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func per(rate int, span time.Duration, burst int) Limit {
	return Limit{Key: "k", Rate: rate, Per: span, Burst: burst}
}

func of(l Limit, key string) Limit {
	l.Key = key
	return l
}

func costing(l Limit, n int) Limit {
	l.Cost = n
	return l
}

// A store that is silent costs each who waits already the deadline, once, and afterwards
// one caller per cooldown. It is used again soon after it answers again.
func TestSilentStoreCostsOneDeadlinePerCooldown(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		l := per(1, time.Minute, 3)
		g.ask(of(l, "other"))
		g.store.times()
		g.store.set(nil, true)
		var callers sync.WaitGroup
		began := time.Now()
		for i := range 100 {
			callers.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // the last ones wait for less
				if d, _ := g.ask(l); d.Source != SourceFallback || !d.Degraded {
					g.Errorf("the decision is %+v", d)
				}
			})
		}
		callers.Wait()
		g.want("when all who waited were answered", time.Since(began), 250*time.Millisecond)
		g.want("how many of them asked the store", g.store.times(), 100)

		waited, granted := 0, 0
		for began = time.Now(); time.Since(began) < 30*time.Second; time.Sleep(time.Millisecond) {
			d, took := g.ask(of(l, "new"))
			if took > 0 {
				waited++
				g.want("how long a call that asked took", took, 250*time.Millisecond)
			}
			if d.Allowed {
				granted++
			}
			g.want("whether it is degraded", d.Degraded, true)
		}
		g.want("how many were granted in half a period", granted, 3)
		if most := 30_000 / 750; waited > most || waited < most-1 {
			g.Errorf("%d calls waited in 30 s, want %d", waited, most)
		}
		g.want("how often the store was asked", g.store.times(), waited)

		time.Sleep(time.Second)
		for range 50 { // at once: one of them is to find out
			callers.Go(func() { g.ask(l) })
		}
		callers.Wait()
		g.want("how many of those at once asked the store", g.store.times(), 1)

		g.store.set(nil, false)
		began = time.Now()
		for d, _ := g.ask(of(l, "back")); d.Degraded; d, _ = g.ask(of(l, "back")) {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			g.Errorf("the store was used again after %v", took)
		}
		g.logs.expect(g.T, "the outage", "WARN", "INFO")
		if !slices.Equal(g.seen.degraded, []bool{true, false}) || g.seen.by[SourceFallback] < 30_000/2 || g.seen.by[SourceStore] != 2 {
			g.Errorf("the observer heard of %v, %v", g.seen.degraded, g.seen.by)
		}
	})
}

// A store that says that it is away is not waited for, and grants of the outage are few.
func TestOutageKeepsTheLimit(t *testing.T) {
	for _, cause := range []error{ErrUnavailable, ErrUnknownOutcome, context.DeadlineExceeded, &BackpressureError{Waiting: 1}} {
		withGuard(t, LimiterOptions{}, func(g guarded) {
			g.store.set(fmt.Errorf("driver: %w", cause), false)
			l := per(3, time.Hour, 3)
			granted := 0
			for range 100 {
				d, took := g.ask(l)
				g.want("how long it took", took, time.Duration(0))
				if d.Allowed {
					granted++
				}
			}
			g.want("how many of 100 were granted", granted, 3)
			g.want("how often the store was asked", g.store.times(), 1)
			d, err := g.Peek(g.Context(), l)
			want := Decision{Limit: 3, RetryAfter: 20 * time.Minute, ResetAfter: time.Hour, Source: SourceFallback, Degraded: true}
			if err != nil || d != want {
				g.Errorf("Peek: %+v, %v", d, err)
			}
			if err := g.Reset(g.Context(), "k"); !errors.Is(err, ErrUnavailable) || len(chain(err)) != 1 {
				g.Errorf("Reset: %v", err)
			}
			time.Sleep(time.Second)
			if d, _ := g.ask(costing(l, 4)); d.Allowed || d.RetryAfter != Never {
				g.Errorf("a cost above the burst: %+v", d)
			}
		})
	}
}

// Which errors are no outage: those of the caller and those of the request.
func TestCallersWhoLeaveAreNoOutage(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		l := per(1, time.Minute, 3)
		leave := func() {
			ctx, cancel := context.WithTimeout(g.Context(), 100*time.Millisecond)
			defer cancel()
			if d, err := g.Allow(ctx, l); !errors.Is(err, context.DeadlineExceeded) || d.Degraded {
				g.Errorf("a caller who leaves: %+v, %v", d, err)
			}
		}
		g.store.set(nil, true)
		leave()
		g.store.set(errors.New("a fault"), false)
		if _, err := g.Allow(g.Context(), l); err == nil || errors.Is(err, ErrUnavailable) {
			g.Errorf("a fault: %v", err)
		}
		g.store.set(nil, false)
		d, _ := g.ask(l)
		g.want("whether it is degraded", d.Degraded, false)
		g.logs.expect(g.T, "no outage")

		// One who was to find out whether the store is back leaves it to the next.
		g.store.set(nil, true)
		g.ask(l)
		time.Sleep(500 * time.Millisecond)
		leave()
		g.store.set(nil, false)
		d, _ = g.ask(l)
		g.want("whether it is degraded after a probe that was left", d.Degraded, false)
	})
}

// A store that only looks have found to be away is found to be back by looks. They prove
// nothing when it has refused to be written to.
func TestLooksFindTheStoreAgain(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		degraded := func() bool {
			d, err := g.Peek(g.Context(), per(1, time.Minute, 3))
			if err != nil {
				g.Errorf("Peek: %v", err)
			}
			return d.Degraded
		}
		for _, silent := range []bool{false, true} {
			g.store.set(ErrUnavailable, silent)
			g.want("whether it is degraded when the store is away", degraded(), true)
			time.Sleep(500 * time.Millisecond)
			g.want("whether it is degraded when the store is still away", degraded(), true)
			g.store.set(nil, false)
			g.want("whether it is degraded before the cooldown has ended", degraded(), true)
			time.Sleep(500 * time.Millisecond)
			g.want("whether it is degraded when the store is back", degraded(), false)
		}
		g.store.set(ErrUnavailable, false)
		degraded()
		time.Sleep(500 * time.Millisecond)
		g.ask(per(1, time.Minute, 3)) // is refused too
		g.store.set(nil, false)
		time.Sleep(time.Second)
		g.want("whether it is degraded when nobody has taken again", degraded(), true)
		g.ask(per(1, time.Minute, 3))
		g.want("whether it is degraded when somebody has", degraded(), false)
		if !slices.Equal(g.seen.degraded, []bool{true, false, true, false, true, false}) {
			g.Errorf("of three outages the observer heard %v", g.seen.degraded)
		}
	})
}

// Wrapped twice, a backend remembers only what its store has denied, and for no longer.
func TestWrappedTwiceRemembersOnlyTheStore(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		inner := Wrap(g.store, Options{})
		g.Limiter = Wrap(inner, Options{}).Limiter()
		l := per(1, time.Hour, 1)
		g.ask(l)
		if _, err := inner.Limiter().Allow(g.Context(), l); err != nil { // which remembers it
			g.Fatal(err)
		}
		time.Sleep(900 * time.Millisecond)
		d, _ := g.ask(l)
		g.want("who decided", d.Source, SourceDeniedCache)
		g.store.tats = make(map[string]int64) // another backend has forgiven it
		time.Sleep(100 * time.Millisecond)
		d, _ = g.ask(l)
		g.want("whether it is granted when a second is over", d.Allowed, true)
	})
}

func TestOutagePolicies(t *testing.T) {
	withGuard(t, LimiterOptions{Cooldown: 2 * time.Second}, func(g guarded) {
		g.store.set(ErrUnavailable, false)
		degrade := per(1, time.Minute, 2)
		deny, allow := of(degrade, "deny"), of(degrade, "allow")
		deny.Outage, allow.Outage = OutageDeny, OutageAllow
		refused := Decision{Limit: 2, RetryAfter: 2 * time.Second, ResetAfter: 2 * time.Second, Source: SourceFallback, Degraded: true}
		granted := Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: time.Minute, Source: SourceFallback, Degraded: true}
		for range 5 {
			d, _ := g.ask(deny)
			g.want("deny", d, refused)
			d, _ = g.ask(allow)
			g.want("allow", d, granted)
		}
		d, _ := g.ask(of(degrade, "allow"))
		g.want("what allow has counted", d, granted)
		d, _ = g.ask(costing(allow, 3))
		g.want("when a cost above the burst is allowed", d.RetryAfter, Never)

		ds, err := g.AllowAll(g.Context(), degrade, deny)
		if err != nil || ds[0].Allowed || ds[0].RetryAfter != 0 || ds[1] != refused {
			g.Errorf("with one that denies: %+v, %v", ds, err)
		}
		for i := range 3 {
			ds, err = g.AllowAll(g.Context(), allow, degrade)
			if err != nil || ds[0].Allowed != (i < 2) || ds[1].Allowed != (i < 2) || !ds[0].Degraded {
				g.Errorf("with one that allows: %+v, %v", ds, err)
			}
		}
		_, err = g.Allow(g.Context(), Limit{Key: "k", Rate: 1, Per: time.Second, Outage: "hope"})
		if invalid, ok := errors.AsType[*InvalidError](err); !ok || invalid.Field != "Limit.Outage" {
			g.Errorf("an unknown policy: %v", err)
		}
	})
}

// A denial is repeated for as long as it holds, and never longer, whatever is asked.
func TestDenialsAreRemembered(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		l := per(10, time.Second, 5)
		g.ask(costing(l, 5))
		g.store.times()
		first, _ := g.ask(l)
		g.want("the 1st denial", first, Decision{
			Limit: 5, RetryAfter: 100 * time.Millisecond, ResetAfter: 500 * time.Millisecond, Source: SourceStore,
		})
		time.Sleep(40 * time.Millisecond)
		for range 100 {
			d, _ := g.ask(l)
			g.want("a repeated denial", d, Decision{
				Limit: 5, RetryAfter: 60 * time.Millisecond, ResetAfter: 460 * time.Millisecond, Source: SourceDeniedCache,
			})
		}
		g.want("how often the store was asked", g.store.times(), 1)
		if d, _ := g.ask(per(10, time.Second, 6)); !d.Allowed {
			g.Errorf("with a larger burst: %+v", d)
		}
		if d, _ := g.ask(per(100, time.Second, 60)); !d.Allowed {
			g.Errorf("at a higher rate: %+v", d)
		}
		if d, _ := g.ask(of(l, "other")); !d.Allowed {
			g.Errorf("another key: %+v", d)
		}
		time.Sleep(time.Second)
		for range 4 {
			g.ask(l)
		}
		d, _ := g.ask(costing(l, 2))
		g.want("whether 2 of 1 are granted", d.Allowed, false)
		if d, _ = g.ask(l); !d.Allowed {
			g.Errorf("a smaller cost: %+v", d)
		}
		g.store.times()
		g.ask(l)
		time.Sleep(100 * time.Millisecond)
		if d, _ = g.ask(l); !d.Allowed {
			g.Errorf("after RetryAfter: %+v", d)
		}
		g.want("how often the store was asked", g.store.times(), 2)

		// Another backend may have forgiven it: that is heard of within a second.
		slow := of(per(1, time.Hour, 1), "slow")
		g.ask(slow)
		g.ask(slow)
		g.store.times()
		for range 10 {
			time.Sleep(250 * time.Millisecond)
			g.ask(slow)
		}
		g.want("how often the store was asked in 2.5 s", g.store.times(), 2)
		if err := g.Reset(g.Context(), "slow"); err != nil {
			g.Fatal(err)
		}
		if d, _ = g.ask(slow); !d.Allowed {
			g.Errorf("after Reset: %+v", d)
		}
		g.ask(slow)
		before := g.store.times()
		ds, err := g.AllowAll(g.Context(), of(l, "unknown"), slow)
		if err != nil || ds[0].Allowed || ds[0].RetryAfter != 0 || ds[1].RetryAfter == 0 || ds[1].Source != SourceDeniedCache {
			g.Errorf("together with an unknown one: %+v, %v", ds, err)
		}
		g.want("how often the store was asked about both", before+g.store.times(), before)
	})
}

// 50,000 calls per second on one key that is denied hardly reach the store.
func TestAttackIsKeptFromTheStore(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		g.store.takes = 2 * time.Millisecond
		l := per(5, time.Minute, 5)
		const callers, seconds = 50, 10
		var attacking sync.WaitGroup
		var denied atomic.Int64
		for range callers {
			attacking.Go(func() {
				for range seconds * 1000 {
					if d, _ := g.ask(l); !d.Allowed {
						denied.Add(1)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		began := time.Now()
		attacking.Wait()
		took := time.Since(began)
		if d := denied.Load(); d < callers*seconds*1000-6 {
			g.Errorf("%d were denied", d)
		}
		// Those who come while it is asked again ask with it; on PostgreSQL they share a
		// statement, or two.
		asked, moments := g.store.times(), int(took.Seconds())+2
		if most := moments * 3 * callers; asked > most {
			g.Errorf("the store was asked %d times in %v, want at most %d", asked, took, most)
		}
	})
}

// Whatever is asked and by which policy, a denial that is repeated is one that the store
// would make, and it promises nothing that comes later there.
func TestRepeatedDenialsAreTheStores(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		random := rand.New(rand.NewPCG(3, 5))
		policies := []Limit{per(10, time.Second, 5), per(1, time.Second, 3), per(1, time.Minute, 2), per(100, time.Second, 50)}
		repeated := 0
		for range 30_000 {
			g.store.takes = time.Duration(random.IntN(3)) * time.Millisecond
			limits := []Limit{of(policies[random.IntN(4)], "a"), of(policies[random.IntN(4)], "b")}
			for i := range limits {
				limits[i] = costing(limits[i], 1+random.IntN(limits[i].Burst+1))
			}
			limits = limits[:1+random.IntN(2)]
			ds, err := g.AllowAll(g.Context(), limits...)
			if err != nil {
				g.Fatal(err)
			}
			if ds[0].Source == SourceDeniedCache {
				repeated++
				tats := []int64{g.store.tats["a"], g.store.tats["b"]}
				truth, _ := DecideAll(limits, tats[:len(limits)], time.Now().UnixMicro())
				for i := range ds {
					if truth[i].Allowed || ds[i].RetryAfter > truth[i].RetryAfter || ds[i].ResetAfter > truth[i].ResetAfter {
						g.Fatalf("%+v is repeated as %+v; the store would say %+v", limits[i], ds[i], truth[i])
					}
				}
			}
			time.Sleep(time.Duration(random.ExpFloat64() * float64(20*time.Millisecond)))
		}
		if repeated < 1000 {
			g.Errorf("only %d denials were repeated", repeated)
		}
	})
}

// A denial that was decided before a Reset is not remembered behind it.
func TestDenialIsNotRememberedBehindReset(t *testing.T) {
	withGuard(t, LimiterOptions{}, func(g guarded) {
		l := per(1, time.Hour, 1)
		g.ask(l)
		g.store.takes = 20 * time.Millisecond
		var late sync.WaitGroup
		late.Go(func() {
			if d, _ := g.ask(l); d.Allowed {
				g.Error("it is granted before the Reset")
			}
		})
		time.Sleep(11 * time.Millisecond) // it is decided, and on its way back
		g.store.mu.Lock()
		g.store.takes = 0
		g.store.mu.Unlock()
		if err := g.Reset(g.Context(), "k"); err != nil {
			g.Fatal(err)
		}
		late.Wait()
		if d, _ := g.ask(l); !d.Allowed {
			g.Errorf("after Reset: %+v", d)
		}
	})
}

func TestDenialsAreNotRememberedWhenTheyShallNot(t *testing.T) {
	withGuard(t, LimiterOptions{DenyFor: -1}, func(g guarded) {
		for range 10 {
			d, _ := g.ask(per(1, time.Hour, 1))
			g.want("who decided", d.Source, SourceStore)
		}
	})
}

// A million keys are sprayed: what is kept is bounded, and those who owe most are known
// to the end.
func TestSprayedKeysAreBounded(t *testing.T) {
	d := &debts{most: 1000}
	const hour, second = 3_600_000_000, 1_000_000
	for i := range 500 {
		d.put(fmt.Sprint("honest", i), hour+int64(i), hour+int64(i))
	}
	for now := range int64(1_000_000) {
		d.put(fmt.Sprint("spray", now), now+second, now+second)
		if len(d.byKey) > 1000 || len(d.byTime) > 1000 {
			t.Fatalf("%d keys and %d times are kept", len(d.byKey), len(d.byTime))
		}
	}
	for i := range 500 {
		if tat := d.get(fmt.Sprint("honest", i), second); tat != hour+int64(i) {
			t.Fatalf("honest key %d owes %d", i, tat)
		}
	}
	if tat := d.get("spray999999", 1_000_000); tat == 0 {
		t.Error("the last key is not known")
	}
	d.forget("honest7")
	if tat := d.get("honest7", 0); tat != 0 || len(d.byKey) != 999 || len(d.byTime) != 999 {
		t.Errorf("a forgotten key owes %d", tat)
	}
	// What is paid is worth nothing.
	if tat := d.get("honest8", hour+8); tat != 0 {
		t.Errorf("a paid key owes %d", tat)
	}
}
