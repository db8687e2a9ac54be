package coordtest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// LimiterOptions are what a [Store] opens its handles with: a denial that is remembered
// would outlast what [Store].Advance does, and no machine is too slow for the suite.
var LimiterOptions = coord.LimiterOptions{Deadline: patience, DenyFor: -1}

// perSecond is a bucket that takes rate per second and burst at once.
func perSecond(key string, rate, burst int) coord.Limit {
	return coord.Limit{Key: key, Rate: rate, Per: time.Second, Burst: burst}
}

func costing(l coord.Limit, cost int) coord.Limit {
	l.Cost = cost
	return l
}

func (f *fixture) allow(b coord.Backend, l coord.Limit) coord.Decision {
	f.Helper()
	d, err := b.Limiter().Allow(f.ctx, l)
	must(f, "Allow", err)
	return d
}

func (f *fixture) peek(l coord.Limit) coord.Decision {
	f.Helper()
	d, err := f.two.Limiter().Peek(f.ctx, l)
	must(f, "Peek", err)
	return d
}

func (f *fixture) reapBuckets() (n int) {
	f.Helper()
	for {
		deleted, err := f.one.Limiter().Reap(f.ctx)
		must(f, "Reap", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

func granted(limit, remaining int, resetAfter time.Duration) coord.Decision {
	return coord.Decision{Allowed: true, Limit: limit, Remaining: remaining, ResetAfter: resetAfter, Source: coord.SourceStore}
}

func denied(limit, remaining int, retryAfter, resetAfter time.Duration) coord.Decision {
	return coord.Decision{
		Limit: limit, Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter,
		Source: coord.SourceStore,
	}
}

// exactly lets 32 callers at once ask for one each, over both handles.
func (f *fixture) exactly(what string, l coord.Limit, want int64) {
	f.Helper()
	var allowed atomic.Int64
	f.together(32, func(_ int, b coord.Backend) {
		d, err := b.Limiter().Allow(f.ctx, l)
		if err != nil || d.Degraded {
			f.Errorf("%s: Allow: %+v, %v", what, d, err)
		}
		if d.Allowed {
			allowed.Add(1)
		}
	})
	equal(f, what+": how many of 32 calls at once were granted", allowed.Load(), want)
}

var limiterTests = []test{
	{"a burst, then the rate", func(f *fixture) {
		l := perSecond("k", 10, 3)
		equal(f, "the 1st decision", f.allow(f.one, l), granted(3, 2, 100*time.Millisecond))
		equal(f, "the 2nd decision", f.allow(f.two, l), granted(3, 1, 200*time.Millisecond))
		equal(f, "the 3rd decision", f.allow(f.one, l), granted(3, 0, 300*time.Millisecond))
		equal(f, "the 4th decision", f.allow(f.two, l), denied(3, 0, 100*time.Millisecond, 300*time.Millisecond))
		equal(f, "the 5th decision", f.allow(f.one, l), denied(3, 0, 100*time.Millisecond, 300*time.Millisecond))
		f.store.Advance(100*time.Millisecond - time.Microsecond)
		equal(f, "a decision a microsecond early", f.allow(f.one, l),
			denied(3, 0, time.Microsecond, 200*time.Millisecond+time.Microsecond))
		f.store.Advance(time.Microsecond)
		equal(f, "a decision in time", f.allow(f.one, l), granted(3, 0, 300*time.Millisecond))
		f.store.Advance(250 * time.Millisecond)
		equal(f, "a decision after 2½ intervals", f.allow(f.one, l), granted(3, 1, 150*time.Millisecond))
		f.store.Advance(time.Hour)
		equal(f, "a decision after an hour", f.allow(f.one, l), granted(3, 2, 100*time.Millisecond))
	}},
	{"burst 1", func(f *fixture) {
		l := perSecond("k", 1, 1)
		for range 3 {
			equal(f, "the 1st decision", f.allow(f.one, l), granted(1, 0, time.Second))
			equal(f, "the 2nd decision", f.allow(f.two, l), denied(1, 0, time.Second, time.Second))
			f.store.Advance(time.Second)
		}
	}},
	{"the burst is the rate by default", func(f *fixture) {
		equal(f, "the decision", f.allow(f.one, coord.Limit{Key: "k", Rate: 5, Per: time.Minute}), granted(5, 4, 12*time.Second))
	}},
	{"an interval is rounded up to whole microseconds", func(f *fixture) {
		equal(f, "the decision", f.allow(f.one, perSecond("k", 3, 3)), granted(3, 2, 333334*time.Microsecond))
	}},
	{"costs", func(f *fixture) {
		l := perSecond("k", 10, 10)
		equal(f, "the decision on a cost of 7", f.allow(f.one, costing(l, 7)), granted(10, 3, 700*time.Millisecond))
		equal(f, "the decision on a cost of 4 with 3 left", f.allow(f.one, costing(l, 4)),
			denied(10, 3, 100*time.Millisecond, 700*time.Millisecond))
		equal(f, "the decision on a cost of 3 with 3 left", f.allow(f.one, costing(l, 3)), granted(10, 0, time.Second))
	}},
	{"a cost above the burst is never granted", func(f *fixture) {
		for _, l := range []coord.Limit{perSecond("k", 10, 5), perSecond("k", 10, 1)} {
			for _, cost := range []int{l.Burst + 1, l.Burst + 2, 1 << 40, 1<<63 - 1} {
				equal(f, fmt.Sprintf("the decision on a cost of %d", cost), f.allow(f.one, costing(l, cost)),
					denied(l.Burst, l.Burst, coord.Never, 0))
			}
		}
		equal(f, "how many buckets it left", f.reapBuckets(), 0)
		l := perSecond("k", 10, 5)
		f.allow(f.one, l)
		equal(f, "the decision on a used bucket", f.allow(f.one, costing(l, 6)), denied(5, 4, coord.Never, 100*time.Millisecond))
		equal(f, "the decision afterwards", f.allow(f.one, l), granted(5, 3, 200*time.Millisecond))
	}},
	{"32 callers at once on a new key", func(f *fixture) {
		for i := range 5 {
			f.exactly("a new key", perSecond(fmt.Sprint("k", i), 1, 8), 8)
		}
	}},
	{"32 callers at once on a hot key", func(f *fixture) {
		l := perSecond("k", 1, 8)
		f.exactly("a new key", l, 8)
		f.exactly("a key in debt", l, 0)
		f.store.Advance(3500 * time.Millisecond)
		f.exactly("a key after 3½ intervals", l, 3)
		f.store.Advance(time.Hour)
		f.exactly("a key after a pause", l, 8)
	}},
	{"callers at once on many keys", func(f *fixture) {
		var allowed atomic.Int64
		f.together(32, func(i int, b coord.Backend) {
			for k := range 8 {
				d, err := b.Limiter().Allow(f.ctx, perSecond(fmt.Sprint("k", (i+k)%8), 1, 3))
				if err != nil || d.Degraded {
					f.Errorf("Allow: %+v, %v", d, err)
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
		equal(f, "how many calls on 8 keys with burst 3 were granted", allowed.Load(), 24)
	}},
	{"a far-away debt heals within a burst period", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.ClockBack, "ClockBack") {
			return
		}
		for _, ask := range []struct {
			name   string
			decide func(l coord.Limit) (coord.Decision, error)
		}{
			{"Allow", func(l coord.Limit) (coord.Decision, error) { return f.one.Limiter().Allow(f.ctx, l) }},
			{"AllowAll", func(l coord.Limit) (coord.Decision, error) {
				ds, err := f.two.Limiter().AllowAll(f.ctx, perSecond("other", 1, 1), l)
				return ds[1], err
			}},
		} {
			l := perSecond(ask.name, 10, 5)
			f.store.Advance(time.Hour)
			f.allow(f.one, costing(l, 5))
			f.store.Advance(-time.Hour)
			d, err := ask.decide(l)
			must(f, ask.name, err)
			equal(f, ask.name+" when the clock has stepped back an hour", d,
				denied(5, 0, 100*time.Millisecond, 500*time.Millisecond))
			f.store.Advance(500 * time.Millisecond)
			d, err = ask.decide(l)
			must(f, ask.name, err)
			// A denial that leaves the debt an hour away denies for that hour: what
			// is beyond the burst period has to be taken off where it is stored.
			equal(f, ask.name+" a burst period later", d, granted(5, 4, 100*time.Millisecond))
		}
	}},
	{"a changed rate keeps the debt in time", func(f *fixture) {
		f.allow(f.one, costing(perSecond("k", 10, 10), 10)) // owes a second
		equal(f, "the decision at ten times the rate", f.allow(f.one, perSecond("k", 100, 200)),
			granted(200, 99, 1010*time.Millisecond))
		equal(f, "the decision at a tenth of the rate", f.allow(f.two, perSecond("k", 1, 3)),
			granted(3, 0, 2010*time.Millisecond))
		equal(f, "the decision with a smaller burst", f.allow(f.two, perSecond("k", 1, 1)),
			denied(1, 0, time.Second, time.Second))
	}},
	{"Peek takes nothing", func(f *fixture) {
		l := perSecond("k", 10, 2)
		for range 3 {
			equal(f, "what Peek says of a new key", f.peek(l), granted(2, 1, 100*time.Millisecond))
		}
		equal(f, "how many buckets Peek left", f.reapBuckets(), 0)
		equal(f, "what Allow says then", f.allow(f.one, l), granted(2, 1, 100*time.Millisecond))
		f.allow(f.one, l)
		for range 3 {
			equal(f, "what Peek says of a key in debt", f.peek(l), denied(2, 0, 100*time.Millisecond, 200*time.Millisecond))
		}
		equal(f, "what Peek says of a cost above the burst", f.peek(costing(l, 3)),
			denied(2, 0, coord.Never, 200*time.Millisecond))
	}},
	{"Reset forgives", func(f *fixture) {
		l := perSecond("k", 1, 2)
		must(f, "Reset of an unknown key", f.two.Limiter().Reset(f.ctx, "none"))
		f.allow(f.one, costing(l, 2))
		must(f, "Reset", f.two.Limiter().Reset(f.ctx, "k"))
		equal(f, "the decision after Reset", f.allow(f.one, costing(l, 2)), granted(2, 0, 2*time.Second))
	}},
	{"callers at once while time passes", contended},
	{"a flood of keys", flooded},
	{"an outage", limiterOutage},
	{"AllowAll takes all or nothing", allowAll},
	{"AllowAll at once, in any order", func(f *fixture) {
		a, b := perSecond("a", 1, 5), perSecond("b", 1, 7)
		var allowed atomic.Int64
		f.together(32, func(i int, h coord.Backend) {
			limits := []coord.Limit{a, b}
			if i%4 < 2 {
				limits = []coord.Limit{b, a}
			}
			ds, err := h.Limiter().AllowAll(f.ctx, limits...)
			if err != nil {
				f.Errorf("AllowAll: %v", err)
				return
			}
			if ds[0].Allowed != ds[1].Allowed {
				f.Errorf("AllowAll: the decisions differ: %+v", ds)
			}
			if ds[0].Allowed {
				allowed.Add(1)
			}
		})
		equal(f, "how many of 32 calls on bursts of 5 and 7 were granted", allowed.Load(), 5)
		equal(f, "Remaining of the smaller", f.peek(a).Remaining, 0)
		equal(f, "what Peek says of the larger", f.peek(b), granted(7, 1, 6*time.Second))
	}},
	{"keys are kept apart", func(f *fixture) {
		keys := []string{"a", "A", "a ", " a", "a\x00", "ä", "\xff", strings.Repeat("x", 500), strings.Repeat("x", 499), "'", "%"}
		for _, key := range keys {
			equal(f, fmt.Sprintf("the 1st decision on %q", key), f.allow(f.one, perSecond(key, 1, 1)).Allowed, true)
		}
		for _, key := range keys {
			equal(f, fmt.Sprintf("the 2nd decision on %q", key), f.allow(f.two, perSecond(key, 1, 1)).Allowed, false)
		}
	}},
	{"extreme limits", func(f *fixture) {
		year := 365 * 24 * time.Hour
		slow := coord.Limit{Key: "slow", Rate: 1, Per: 9 * year, Burst: 1}
		equal(f, "once in nine years", f.allow(f.one, slow), granted(1, 0, 9*year))
		equal(f, "once in nine years, again", f.allow(f.one, slow), denied(1, 0, 9*year, 9*year))
		fast := coord.Limit{Key: "fast", Rate: 1_000_000, Per: time.Second, Burst: 1_000_000}
		equal(f, "a million per second", f.allow(f.one, costing(fast, 1_000_000)), granted(1_000_000, 0, time.Second))
		f.store.Advance(time.Microsecond)
		equal(f, "a million per second, a microsecond later", f.allow(f.one, fast), granted(1_000_000, 0, time.Second))
	}},
	{"Reap deletes what owes nothing", func(f *fixture) {
		for i := range 20 {
			f.allow(f.one, perSecond(fmt.Sprint("short", i), 1, 1))
		}
		long := coord.Limit{Key: "long", Rate: 1, Per: time.Hour, Burst: 1}
		f.allow(f.one, long)
		equal(f, "how many buckets Reap deleted at once", f.reapBuckets(), 0)
		f.store.Advance(time.Minute)
		equal(f, "how many buckets Reap deleted after a minute", f.reapBuckets(), 20)
		equal(f, "how many buckets Reap deleted then", f.reapBuckets(), 0)
		equal(f, "the decision on the key that is still in debt", f.allow(f.two, long).Allowed, false)
		equal(f, "the decision on a key that was reaped", f.allow(f.two, perSecond("short0", 1, 1)).Allowed, true)
	}},
}

func allowAll(f *fixture) {
	decide := func(limits ...coord.Limit) []coord.Decision {
		f.Helper()
		ds, err := f.two.Limiter().AllowAll(f.ctx, limits...)
		must(f, "AllowAll", err)
		return ds
	}
	b, a, c := perSecond("b", 10, 3), perSecond("a", 1, 1), costing(perSecond("c", 10, 5), 2)
	equal(f, "the decisions on new keys, in the order given", decide(b, a, c), []coord.Decision{
		granted(3, 2, 100*time.Millisecond), granted(1, 0, time.Second), granted(5, 3, 200*time.Millisecond),
	})
	refused := []coord.Decision{
		denied(3, 2, 0, 100*time.Millisecond), denied(1, 0, time.Second, time.Second), denied(5, 3, 0, 200*time.Millisecond),
	}
	for range 2 {
		equal(f, "the decisions when one refuses: all denied, a RetryAfter where it refused, nothing taken",
			decide(b, a, c), refused)
	}
	equal(f, "what the others have left", f.peek(b), granted(3, 1, 200*time.Millisecond))
	f.store.Advance(time.Second)
	equal(f, "the decisions when none refuses", decide(a, b),
		[]coord.Decision{granted(1, 0, time.Second), granted(3, 2, 100*time.Millisecond)})
	f.store.Advance(time.Second)
	equal(f, "the decisions when one never grants", decide(a, costing(b, 9)), []coord.Decision{
		denied(1, 1, 0, 0), denied(3, 3, coord.Never, 0),
	})
	equal(f, "the decision on a new key that was named with a refusing one",
		decide(perSecond("new", 1, 1), costing(b, 9))[0], denied(1, 1, 0, 0))
	equal(f, "what the new key has", f.peek(perSecond("new", 1, 1)), granted(1, 0, time.Second))
	equal(f, "a single limit", decide(costing(c, 5)), []coord.Decision{granted(5, 0, 500*time.Millisecond)})
}

// contended has many wait for one bucket while the clock goes on: who waits must not decide
// by the time at which it began to.
func contended(f *fixture) {
	const steps, rate, burst = 40, 10, 4
	l := perSecond("k", rate, burst)
	var granted atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				limits := []coord.Limit{l}
				if n%2 == 1 {
					limits = append(limits, perSecond(fmt.Sprint("own", i), 1000, 1000))
				}
				ds, err := f.handles()[i%2].Limiter().AllowAll(f.ctx, limits...)
				if err != nil || ds[0].Degraded {
					f.Errorf("AllowAll: %+v, %v", ds, err)
					return
				}
				if ds[0].Allowed {
					granted.Add(1)
				}
			}
		})
	}
	// Each step waits for the grants that it makes possible, so that none is missed.
	for step := range steps {
		for granted.Load() < int64(burst+step) && f.ctx.Err() == nil && !f.Failed() {
			runtime.Gosched()
		}
		f.store.Advance(time.Second / rate)
	}
	for granted.Load() < burst+steps && f.ctx.Err() == nil && !f.Failed() {
		runtime.Gosched()
	}
	close(stop)
	callers.Wait()
	equal(f, "how many were granted", granted.Load(), burst+steps)
}

// flooded sprays keys that are new each time. They are reaped when they owe nothing, and
// one that owes for longer is not forgiven on the way.
func flooded(f *fixture) {
	const callers, each = 16, 100
	honest := coord.Limit{Key: "honest", Rate: 1, Per: 24 * time.Hour, Burst: 1}
	equal(f, "the decision on the honest key", f.allow(f.one, honest).Allowed, true)
	f.together(callers, func(i int, b coord.Backend) {
		for n := range each {
			d, err := b.Limiter().Allow(f.ctx, perSecond(fmt.Sprint("spray", i, "/", n), 1, 1))
			if err != nil || !d.Allowed {
				f.Errorf("a new key: %+v, %v", d, err)
			}
		}
	})
	equal(f, "how many buckets Reap deleted at once", f.reapBuckets(), 0)
	f.store.Advance(time.Minute)
	equal(f, "how many buckets Reap deleted after a minute", f.reapBuckets(), callers*each)
	equal(f, "the decision on the honest key, again", f.allow(f.two, honest).Allowed, false)
}

// limiterOutage has a handle that can't reach the store: it keeps to the limit by itself,
// says so, and leaves the store's buckets as they are.
func limiterOutage(f *fixture) {
	b := Faulty(f.one, func(string, int) Fault { return Fault{Fail: true} })
	l := coord.Limit{Key: "k", Rate: 3, Per: time.Hour}
	granted := 0
	for i := range 100 {
		var ds []coord.Decision
		var err error
		if i%2 == 0 {
			ds, err = b.Limiter().AllowAll(f.ctx, l)
		} else {
			ds = make([]coord.Decision, 1)
			ds[0], err = b.Limiter().Allow(f.ctx, l)
		}
		must(f, "Allow during an outage", err)
		if ds[0].Source != coord.SourceFallback || !ds[0].Degraded || ds[0].Limit != 3 {
			f.Fatalf("the decision during an outage is %+v", ds[0])
		}
		if ds[0].Allowed {
			granted++
		}
	}
	equal(f, "how many of 100 were granted during an outage", granted, 3)
	d, err := b.Limiter().Peek(f.ctx, l)
	must(f, "Peek during an outage", err)
	equal(f, "whether Peek says that it is degraded", d.Degraded, true)
	is(f, "Reset during an outage", b.Limiter().Reset(f.ctx, "k"), coord.ErrUnavailable)
	deny := l
	deny.Outage = coord.OutageDeny
	d, err = b.Limiter().Allow(f.ctx, deny)
	must(f, "Allow during an outage, which denies", err)
	equal(f, "whether it is granted", d.Allowed, false)
	equal(f, "what the store says", f.peek(l).Remaining, 2)
}
