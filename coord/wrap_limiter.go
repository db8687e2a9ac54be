package coord

import (
	"context"
	"slices"
	"time"
)

// How many keys a backend remembers denials of, and how many it limits by itself while
// the store is away.
const (
	mostDenied = 10_000
	mostLocal  = 50_000
)

type limiterSeam struct {
	*seam
	driver   Limiter
	guard    *limiterGuard   // nil: the driver decides within the process
	observer LimiterObserver // may be nil
}

func newLimiterSeam(s *seam, driver Limiter, o Options) *limiterSeam {
	l := &limiterSeam{seam: s, driver: driver}
	l.observer, _ = o.Observer.(LimiterObserver)
	if _, ok := driver.(LocalLimiter); ok {
		return l
	}
	orDefault(&o.Limiter.Deadline, DefaultLimiterDeadline)
	orDefault(&o.Limiter.Cooldown, 500*time.Millisecond)
	orDefault(&o.Limiter.DenyFor, time.Second)
	l.guard = &limiterGuard{
		seam: s, start: time.Now(), denyFor: o.Limiter.DenyFor.Microseconds(),
		breaker: breaker{deadline: o.Limiter.Deadline, cooldown: o.Limiter.Cooldown, log: o.Logger, observer: l.observer},
		denied:  debts{most: mostDenied}, local: debts{most: mostLocal},
	}
	return l
}

func (s *limiterSeam) Allow(ctx context.Context, l Limit) (d Decision, err error) {
	const op = "limiter.allow"
	bad := l.complete()
	switch {
	case s.guard != nil:
		var ds []Decision
		if ds, err = s.guarded(ctx, op, l.Key, []Limit{l}, bad, true); err == nil {
			d = ds[0]
		}
	case s.seam.observer == nil:
		// The same as below, without what a decision within the process would spend most
		// of its time on.
		if s.inside(ctx) {
			bad = errInside
		}
		if err = bad; s.closed.Load() {
			err = ErrClosed
		}
		if err == nil {
			d, err = s.driver.Allow(ctx, l)
		}
		if err != nil {
			err = wrapError(op, l.Key, err)
		}
		return d, err
	default:
		err = s.do(ctx, op, l.Key, 1, bad, func() (err error) {
			d, err = s.driver.Allow(ctx, l)
			return err
		})
	}
	if err == nil && s.observer != nil {
		s.observer.Decided(ctx, d)
	}
	return d, err
}

func (s *limiterSeam) AllowAll(ctx context.Context, limits ...Limit) (ds []Decision, err error) {
	const op = "limiter.allow_all"
	limits = slices.Clone(limits)
	bad := completeLimits(limits)
	if s.guard != nil && len(limits) > 0 {
		ds, err = s.guarded(ctx, op, "", limits, bad, true)
	} else {
		err = s.do(ctx, op, "", len(limits), bad, func() (err error) {
			if len(limits) > 0 {
				ds, err = s.driver.AllowAll(ctx, limits...)
			}
			return err
		})
	}
	if err == nil && s.observer != nil && len(ds) > 0 {
		s.observer.Decided(ctx, ds[0])
	}
	return ds, err
}

func completeLimits(limits []Limit) error {
	if err := between("limits", len(limits), 0, MaxBatch); err != nil {
		return err
	}
	keys := make(map[string]bool, len(limits))
	for i := range limits {
		if err := limits[i].complete(); err != nil {
			return err
		}
		if keys[limits[i].Key] {
			return fieldError("limits", "name the key %q twice", limits[i].Key)
		}
		keys[limits[i].Key] = true
	}
	return nil
}

func (s *limiterSeam) Peek(ctx context.Context, l Limit) (d Decision, err error) {
	const op = "limiter.peek"
	bad := l.complete()
	if s.guard == nil {
		err = s.do(ctx, op, l.Key, 1, bad, func() (err error) {
			d, err = s.driver.Peek(ctx, l)
			return err
		})
		return d, err
	}
	ds, err := s.guarded(ctx, op, l.Key, []Limit{l}, bad, false)
	if err == nil {
		d = ds[0]
	}
	return d, err
}

func (s *limiterSeam) Reset(ctx context.Context, key string) error {
	var bad error
	if len(key) == 0 || len(key) > maxKey {
		bad = fieldError("key", "has %d bytes, must have 1 to %d", len(key), maxKey)
	}
	const op = "limiter.reset"
	if s.guard == nil {
		return s.do(ctx, op, key, 1, bad, func() error { return s.driver.Reset(ctx, key) })
	}
	if s.inside(ctx) {
		bad = errInside
	}
	items := 0 // as in guarded
	return s.count(ctx, op, key, &items, bad, func() error {
		items = 1
		defer s.guard.forget(key)
		return s.guard.ask(ctx, op, time.Now(), false, func(ctx context.Context) error { return s.driver.Reset(ctx, key) })
	})
}

func (s *limiterSeam) Reap(ctx context.Context) (n int, err error) {
	err = s.do(ctx, "limiter.reap", "", 1, nil, func() (err error) {
		n, err = s.driver.Reap(ctx)
		return err
	})
	return n, err
}

// guarded decides about the limits with the store's help, or without.
func (s *limiterSeam) guarded(ctx context.Context, op, key string, limits []Limit, bad error, take bool) (ds []Decision, err error) {
	if s.inside(ctx) {
		bad = errInside
	}
	items := 0 // whether the store is there is noted where it is asked
	err = s.count(ctx, op, key, &items, bad, func() (err error) {
		items = len(limits)
		ds, err = s.guard.decide(ctx, op, limits, take, func(ctx context.Context) (ds []Decision, err error) {
			switch {
			case take && op == "limiter.allow_all":
				return s.driver.AllowAll(ctx, limits...)
			case take:
				ds = make([]Decision, 1)
				ds[0], err = s.driver.Allow(ctx, limits[0])
			default:
				ds = make([]Decision, 1)
				ds[0], err = s.driver.Peek(ctx, limits[0])
			}
			return ds, err
		})
		return err
	})
	return ds, err
}

// limiterGuard stands between callers and a store that may be slow or away, or asked the
// same again and again.
type limiterGuard struct {
	seam    *seam
	start   time.Time // of its clock
	denyFor int64     // µs
	breaker breaker
	denied  debts  // at least these, says the store
	resets  uint64 // that there were; guarded by denied.mu
	local   debts  // from what was granted while the store was away
}

// micros is the guard's clock, which nobody sets.
func (g *limiterGuard) micros(t time.Time) int64 { return t.Sub(g.start).Microseconds() }

// decide takes from the buckets, or only looks.
func (g *limiterGuard) decide(
	ctx context.Context, op string, limits []Limit, take bool, ask func(context.Context) ([]Decision, error),
) (ds []Decision, err error) {
	began := time.Now()
	var resets uint64
	if take && g.denyFor > 0 {
		if ds, resets = g.repeated(limits, g.micros(began)); ds != nil {
			return ds, ctx.Err()
		}
	}
	err = g.ask(ctx, op, began, !take, func(ctx context.Context) (err error) {
		ds, err = ask(ctx)
		return err
	})
	switch {
	case err == nil:
		// Below another seam, somebody else than the store may have denied.
		if take && g.denyFor > 0 && !ds[0].Allowed && ds[0].Source == SourceStore {
			g.remember(limits, ds, g.micros(began), resets)
		}
		return ds, nil
	case ctx.Err() == nil && away(err):
		return g.alone(limits, take), nil
	}
	return nil, err
}

// ask calls the store, if it is there, and notes whether it is.
func (g *limiterGuard) ask(ctx context.Context, op string, began time.Time, look bool, call func(context.Context) error) error {
	asked, err := g.breaker.do(ctx, began, look, call)
	if asked && err != errSlow { //nolint:errorlint // who is slow is not away for those who have time
		g.seam.note(ctx, op, began, err)
	}
	return err
}

// repeated denies what can't be granted by what is known of the store, or returns nil.
// A debt only grows, so this is a snapshot, which may only deny: a smaller cost or a
// larger burst is seen to be one.
func (g *limiterGuard) repeated(limits []Limit, now int64) (ds []Decision, resets uint64) {
	g.denied.mu.Lock()
	defer g.denied.mu.Unlock()
	tats, known := make([]int64, len(limits)), false
	for i, l := range limits {
		tats[i] = g.denied.get(l.Key, now)
		known = known || tats[i] > 0
	}
	if !known {
		return nil, g.resets
	}
	ds, store := DecideAll(limits, tats, now)
	if store != nil {
		return nil, g.resets
	}
	for i := range ds {
		ds[i].Source = SourceDeniedCache
	}
	return ds, 0
}

// remember keeps what a denial told. The store counted from a moment after the call
// began: by the guard's clock it owes at least this.
func (g *limiterGuard) remember(limits []Limit, ds []Decision, began int64, resets uint64) {
	g.denied.mu.Lock()
	defer g.denied.mu.Unlock()
	if resets != g.resets { // what was forgiven may have been counted
		return
	}
	for i, l := range limits {
		if owes := ds[i].ResetAfter.Microseconds(); owes > 0 {
			g.denied.put(l.Key, began+owes, began+min(owes, g.denyFor))
		}
	}
}

// forget forgives a key here.
func (g *limiterGuard) forget(key string) {
	g.denied.mu.Lock()
	g.resets++
	g.denied.forget(key)
	g.denied.mu.Unlock()
	g.local.mu.Lock()
	g.local.forget(key)
	g.local.mu.Unlock()
}

// alone decides without the store.
func (g *limiterGuard) alone(limits []Limit, take bool) []Decision {
	g.local.mu.Lock()
	defer g.local.mu.Unlock()
	now := g.micros(time.Now())
	tats := make([]int64, len(limits))
	for i, l := range limits {
		switch l.Outage {
		case OutageAllow:
		case OutageDeny:
			tats[i] = now + l.GCRA().Window
		default:
			tats[i] = g.local.get(l.Key, now)
		}
	}
	ds, store := DecideAll(limits, tats, now)
	for i, l := range limits {
		ds[i].Source, ds[i].Degraded = SourceFallback, true
		switch {
		case l.Outage == OutageDeny && ds[i].RetryAfter != Never:
			ds[i].RetryAfter, ds[i].ResetAfter = g.breaker.cooldown, g.breaker.cooldown
		case l.Outage == OutageDegrade && take && store != nil:
			g.local.put(l.Key, store[i], store[i])
		}
	}
	return ds
}
