package coord

import (
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bucket is the plain reference for GCRA: the debt in time that there was at some
// moment, and which is paid as time passes, in arithmetic that can't overflow.
type bucket struct {
	debt, at *big.Int // nil: nothing was ever charged
}

func (b *bucket) set(debt *big.Int, now int64) { b.debt, b.at = debt, big.NewInt(now) }

// ask answers a request and charges it when it is granted.
func (b *bucket) ask(l Limit, now int64) Decision {
	per, rate := big.NewInt(l.Per.Microseconds()), big.NewInt(int64(l.Rate))
	interval, rest := new(big.Int).DivMod(per, rate, new(big.Int))
	if rest.Sign() > 0 {
		interval.Add(interval, big.NewInt(1))
	}
	window := new(big.Int).Mul(interval, big.NewInt(int64(l.Burst)))
	cost := new(big.Int).Mul(interval, big.NewInt(int64(l.Cost)))

	debt := new(big.Int)
	if b.debt != nil {
		debt.Sub(b.debt, new(big.Int).Sub(big.NewInt(now), b.at))
	}
	if debt.Sign() < 0 {
		debt.SetInt64(0)
	}
	if debt.Cmp(window) > 0 { // the clock was set back: that heals
		debt.Set(window)
		b.set(debt, now)
	}
	after := new(big.Int).Add(debt, cost)
	d := Decision{Limit: l.Burst, Source: SourceStore, Allowed: after.Cmp(window) <= 0}
	switch {
	case d.Allowed:
		debt = after
		b.set(debt, now)
	case cost.Cmp(window) > 0:
		d.RetryAfter = Never
	default:
		d.RetryAfter = time.Duration(new(big.Int).Sub(after, window).Int64()) * time.Microsecond
	}
	d.Remaining = int(new(big.Int).Div(new(big.Int).Sub(window, debt), interval).Int64())
	d.ResetAfter = time.Duration(debt.Int64()) * time.Microsecond
	return d
}

// validLimit draws a limit, small or near its bounds, as the seam completes it.
func validLimit(t *rapid.T, name string) Limit {
	per := rapid.OneOf(
		rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, time.Minute, maxSpan}),
		rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(1000, int64(maxSpan)).Draw(t, "per"))
		}),
	).Draw(t, name+" per")
	rate := rapid.OneOf(
		rapid.IntRange(1, int(min(per.Microseconds(), 100))),
		rapid.IntRange(1, int(per.Microseconds())),
		rapid.Just(int(per.Microseconds())),
	).Draw(t, name+" rate")
	interval := (per.Microseconds() + int64(rate) - 1) / int64(rate)
	most := int(maxWindow / interval)
	burst := rapid.OneOf(rapid.IntRange(1, min(most, 20)), rapid.IntRange(1, most), rapid.Just(most)).Draw(t, name+" burst")
	cost := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, burst), rapid.Just(math.MaxInt)).Draw(t, name+" cost")
	l := Limit{Key: name, Rate: rate, Per: per, Burst: burst, Cost: cost}
	if err := l.complete(); err != nil {
		t.Fatalf("%+v is refused: %v", l, err)
	}
	return l
}

func TestGCRAAgreesWithThePlainBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := validLimit(t, "l")
		g := l.GCRA()
		now := rapid.SampledFrom([]int64{0, 1_772_953_200_000_000, 253_402_300_799_999_999}).Draw(t, "now")
		var b bucket
		var tat int64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.OneOf(
				rapid.Just(int64(0)),
				rapid.Int64Range(0, 2*g.Interval),
				rapid.Int64Range(0, 2*g.Window),
				rapid.Int64Range(-g.Window, 0), // the clock is set back
				rapid.Just(int64(-3_600_000_000)),
			).Draw(t, "passed")
			now = max(now, 0) // no clock stands before 1970, which a new bucket counts from
			if cost := rapid.IntRange(1, 4).Draw(t, "cost"); l.Cost <= l.Burst && cost <= l.Burst {
				l.Cost = cost
				g = l.GCRA()
			}
			want := b.ask(l, now)
			got, newTAT := g.Decide(tat, now)
			if got != want {
				t.Fatalf("%+v at %d with the TAT %d: %+v, want %+v", l, now, tat, got, want)
			}
			if !got.Allowed && got.RetryAfter != Never {
				checkRetry(t, g, tat, now, got.RetryAfter)
			}
			if got.Allowed || newTAT < tat {
				tat = newTAT
			}
			// After ResetAfter the bucket owes nothing.
			if d, _ := (GCRA{Interval: g.Interval, Window: g.Window}).Decide(tat, now+got.ResetAfter.Microseconds()); d.Remaining != l.Burst {
				t.Fatalf("%+v: after ResetAfter %d of %d remain", l, d.Remaining, l.Burst)
			}
		}
	})
}

// checkRetry asks again after RetryAfter, and just before.
func checkRetry(t *rapid.T, g GCRA, tat, now int64, retry time.Duration) {
	tat = min(tat, now+g.Window) // what is stored of one beyond the window
	if retry < time.Microsecond {
		t.Fatalf("RetryAfter is %v", retry)
	}
	if d, _ := g.Decide(tat, now+retry.Microseconds()); !d.Allowed {
		t.Fatalf("after RetryAfter %v it is denied again", retry)
	}
	if d, _ := g.Decide(tat, now+retry.Microseconds()-1); d.Allowed {
		t.Fatalf("RetryAfter %v is too long", retry)
	}
}

// TestGrantsAreBounded is the promise: over any time t at most Burst + Rate·t/Per.
func TestGrantsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{
			Key: "k", Rate: rapid.IntRange(1, 1000).Draw(t, "rate"), Per: time.Duration(rapid.IntRange(1, 100).Draw(t, "per")) * time.Second,
			Burst: rapid.IntRange(1, 30).Draw(t, "burst"),
		}
		if err := l.complete(); err != nil {
			t.Fatal(err)
		}
		g := l.GCRA()
		type grant struct{ at, cost int64 }
		var grants []grant
		tat, now := int64(0), int64(1_772_953_200_000_000)
		for range 120 {
			now += rapid.Int64Range(0, 2*g.Interval).Draw(t, "passed")
			l.Cost = rapid.IntRange(1, l.Burst).Draw(t, "cost")
			if d, newTAT := l.GCRA().Decide(tat, now); d.Allowed {
				tat = newTAT
				grants = append(grants, grant{now, int64(l.Cost)})
			}
		}
		for i := range grants {
			total := int64(0)
			for _, last := range grants[i:] {
				total += last.cost
				took := last.at - grants[i].at
				if extra := total - int64(l.Burst); extra*l.Per.Microseconds() > took*int64(l.Rate) {
					t.Fatalf("%+v: %d granted within %d µs", l, total, took)
				}
			}
		}
	})
}

func TestGCRA(t *testing.T) {
	const now = 1_000_000_000
	for _, test := range []struct {
		name    string
		limit   Limit
		tat     int64
		want    Decision
		wantTAT int64
	}{
		{
			"a new bucket",
			Limit{Rate: 10, Per: time.Second, Burst: 5},
			0,
			Decision{Allowed: true, Limit: 5, Remaining: 4, ResetAfter: 100 * time.Millisecond, Source: SourceStore},
			now + 100_000,
		},
		{
			"the last one",
			Limit{Rate: 10, Per: time.Second, Burst: 5},
			now + 400_000,
			Decision{Allowed: true, Limit: 5, ResetAfter: 500 * time.Millisecond, Source: SourceStore},
			now + 500_000,
		},
		{
			"one µs too early",
			Limit{Rate: 10, Per: time.Second, Burst: 5},
			now + 400_001,
			Decision{Limit: 5, RetryAfter: time.Microsecond, ResetAfter: 400_001 * time.Microsecond, Source: SourceStore},
			now + 400_001,
		},
		{
			"burst 1",
			Limit{Rate: 1, Per: time.Second, Burst: 1},
			now + 1,
			Decision{Limit: 1, RetryAfter: time.Microsecond, ResetAfter: time.Microsecond, Source: SourceStore},
			now + 1,
		},
		{
			"a cost above the burst",
			Limit{Rate: 10, Per: time.Second, Burst: 5, Cost: 6},
			0,
			Decision{Limit: 5, Remaining: 5, RetryAfter: Never, Source: SourceStore},
			now,
		},
		{
			"a far future",
			Limit{Rate: 10, Per: time.Second, Burst: 5},
			math.MaxInt64,
			Decision{Limit: 5, RetryAfter: 100 * time.Millisecond, ResetAfter: 500 * time.Millisecond, Source: SourceStore},
			now + 500_000,
		},
		{
			"a far past",
			Limit{Rate: 10, Per: time.Second, Burst: 5},
			math.MinInt64,
			Decision{Allowed: true, Limit: 5, Remaining: 4, ResetAfter: 100 * time.Millisecond, Source: SourceStore},
			now + 100_000,
		},
		{
			"an interval that is rounded up",
			Limit{Rate: 3, Per: 10 * time.Microsecond, Burst: 2},
			0,
			Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: 4 * time.Microsecond, Source: SourceStore},
			now + 4,
		},
	} {
		test.limit.Key = "k"
		if err := test.limit.complete(); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, tat := test.limit.GCRA().Decide(test.tat, now)
		if got != test.want || tat != test.wantTAT {
			t.Errorf("%s: %+v and the TAT %d, want %+v and %d", test.name, got, tat, test.want, test.wantTAT)
		}
	}
}

func TestChangedRateKeepsTheDebtInTime(t *testing.T) {
	slow := Limit{Key: "k", Rate: 1, Per: time.Second, Burst: 10, Cost: 10}
	fast := Limit{Key: "k", Rate: 100, Per: time.Second, Burst: 2000, Cost: 1}
	for _, l := range []*Limit{&slow, &fast} {
		if err := l.complete(); err != nil {
			t.Fatal(err)
		}
	}
	_, tat := slow.GCRA().Decide(0, 0)
	if d, _ := fast.GCRA().Decide(tat, 0); !d.Allowed || d.ResetAfter != 10*time.Second+10*time.Millisecond {
		t.Errorf("ten seconds of debt become %+v", d)
	}
}

func TestDecideAll(t *testing.T) {
	limit := func(key string, burst, cost int) Limit {
		l := Limit{Key: key, Rate: 1, Per: time.Second, Burst: burst, Cost: cost}
		if err := l.complete(); err != nil {
			t.Fatal(err)
		}
		return l
	}
	const now, second = 1_000_000_000, 1_000_000
	limits := []Limit{limit("a", 5, 2), limit("b", 3, 1), limit("c", 2, 1)}

	ds, store := DecideAll(limits, []int64{0, now + second, 0}, now)
	if !slices.Equal(store, []int64{now + 2*second, now + 2*second, now + second}) {
		t.Errorf("granted together, the TATs are %v", store)
	}
	for i, remaining := range []int{3, 1, 1} {
		if d := ds[i]; !d.Allowed || d.Remaining != remaining || d.RetryAfter != 0 || d.Limit != limits[i].Burst {
			t.Errorf("granted together, the decision about %s is %+v", limits[i].Key, d)
		}
	}

	ds, store = DecideAll(limits, []int64{0, now + 3*second, now + 2*second}, now)
	if store != nil {
		t.Errorf("denied, the TATs are %v", store)
	}
	want := []Decision{
		{Limit: 5, Remaining: 5, Source: SourceStore},
		{Limit: 3, RetryAfter: time.Second, ResetAfter: 3 * time.Second, Source: SourceStore},
		{Limit: 2, RetryAfter: time.Second, ResetAfter: 2 * time.Second, Source: SourceStore},
	}
	if !slices.Equal(ds, want) {
		t.Errorf("denied, the decisions are %+v, want %+v", ds, want)
	}
	// One that lies too far ahead heals, and the others stay as they are.
	ds, store = DecideAll(limits, []int64{7, now + 3*second, now + 2*second + 1}, now)
	if !slices.Equal(store, []int64{7, now + 3*second, now + 2*second}) || !slices.Equal(ds, want) {
		t.Errorf("healed, the TATs are %v and the decisions %+v", store, ds)
	}

	limits[1] = limit("b", 3, 4)
	ds, store = DecideAll(limits, []int64{0, 0, now + 500_000}, now)
	if store != nil || ds[1].RetryAfter != Never || ds[1].Remaining != 3 || ds[0].Allowed || ds[2].Remaining != 1 || ds[2].RetryAfter != 0 {
		t.Errorf("with one that can never be, %+v and %v", ds, store)
	}
	if ds, store := DecideAll(nil, nil, now); len(ds) != 0 || len(store) != 0 {
		t.Errorf("of nothing, %v and %v", ds, store)
	}
}

// TestDecideAllIsAllOrNothing compares it with one decision after the other.
func TestDecideAllIsAllOrNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := make([]Limit, rapid.IntRange(1, 5).Draw(t, "n"))
		tats := make([]int64, len(limits))
		const now = 1_772_953_200_000_000
		all := true
		single := make([]Decision, len(limits))
		for i := range limits {
			limits[i] = validLimit(t, string(rune('a'+i)))
			w := limits[i].GCRA().Window
			tats[i] = now + rapid.Int64Range(-w, 2*w).Draw(t, "debt")
			single[i], _ = limits[i].GCRA().Decide(tats[i], now)
			all = all && single[i].Allowed
		}
		ds, store := DecideAll(limits, tats, now)
		for i, tat := range tats {
			if all || store == nil {
				continue
			}
			if want := min(tat, now+limits[i].GCRA().Window); store[i] != want {
				t.Fatalf("denied, the TAT %d becomes %d, want %d", tat, store[i], want)
			}
		}
		healed := false
		for i, tat := range tats {
			healed = healed || tat > now+limits[i].GCRA().Window
		}
		if (store != nil) != (all || healed) {
			t.Fatalf("each alone: %+v; together: %+v, %v", single, ds, store)
		}
		for i, d := range ds {
			switch {
			case d.Allowed != all:
				t.Fatalf("the decisions differ: %+v", ds)
			case !all && (d.RetryAfter > 0) == single[i].Allowed:
				t.Fatalf("RetryAfter must name those that refused: %+v, each alone %+v", ds, single)
			case all && d != single[i], !all && !single[i].Allowed && d != single[i]:
				t.Fatalf("%+v, alone %+v", d, single[i])
			case !all && single[i].Allowed && d.Remaining < single[i].Remaining:
				t.Fatalf("%+v was store, alone %+v", d, single[i])
			}
		}
	})
}
