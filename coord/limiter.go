package coord

import (
	"context"
	"time"
)

// Limiter enforces one limit for all replicas, by the generic cell rate
// algorithm (GCRA; ITU-T I.371) in whole microseconds.
//
// Over any time t at most Burst + Rate·t/Per is granted, whatever the number of
// callers and replicas. A grant is decided on the locked row with one reading
// of the clock after the lock; a denial takes no lock and writes nothing.
//
// A denial is remembered for as long as it holds, a second at most, and repeated
// without asking the store ([SourceDeniedCache]); a [Limiter.Reset] through another
// backend is heard of when that is over. While the store is away, or takes longer than
// [LimiterOptions].Deadline, each backend decides by itself as [Limit].Outage says
// ([SourceFallback]). So Allow, AllowAll and Peek return no [ErrUnavailable] unless
// the caller's own context ends.
type Limiter interface {
	// Allow takes l.Cost from the bucket, or nothing.
	Allow(ctx context.Context, l Limit) (Decision, error)
	// AllowAll takes the cost of every limit, or nothing from any. Each key may
	// be named once. The decisions are in the order given; Allowed is the joint
	// outcome, the same in each, and those with a RetryAfter refused.
	AllowAll(ctx context.Context, limits ...Limit) ([]Decision, error)
	// Peek says what Allow would, and takes nothing.
	Peek(ctx context.Context, l Limit) (Decision, error)
	// Reset forgives the debt of a key. While the store is away it is an
	// ErrUnavailable.
	Reset(ctx context.Context, key string) error
	// Reap deletes a bounded number of buckets that owe nothing and returns how
	// many. Call it until it returns 0.
	Reap(ctx context.Context) (int, error)
}

// LocalLimiter is a [Limiter] that decides within the process and waits for nothing;
// for authors of drivers. [Wrap] asks it as it is: its store is never away, and its
// denials are as quick as remembered ones.
type LocalLimiter interface {
	Limiter
	// Local does nothing.
	Local()
}

// Limit is one bucket and what is asked of it. Changing Rate, Per or Burst of
// a key keeps its debt, measured in time. It is a value: a policy is a Limit without a
// Key, of which each call uses a copy with one.
type Limit struct {
	Key    string        // 1–500 bytes; stored as a hash
	Rate   int           // this many …
	Per    time.Duration // … per this time; Per/Rate is rounded up to whole microseconds
	Burst  int           // at once after a pause; default Rate
	Cost   int           // of this call; 0 means 1
	Outage Outage        // what decides while the store is away; default OutageDegrade
}

// Outage is what decides while the store is away.
type Outage string

// The choices for an outage.
const (
	// OutageDegrade: each backend keeps to the whole limit by itself. What it grants is
	// not charged to the store afterwards.
	OutageDegrade Outage = "degrade"
	OutageDeny    Outage = "deny"  // nothing is granted
	OutageAllow   Outage = "allow" // whatever the burst allows is granted, and nothing counted
)

// Never is the RetryAfter of a request whose cost is above the burst.
const Never time.Duration = 1<<63 - 1

// Source says who decided.
type Source string

// The sources of a decision.
const (
	SourceStore       Source = "store"        // the store
	SourceDeniedCache Source = "denied-cache" // an earlier denial of the store; others may have taken since
	SourceFallback    Source = "fallback"     // this backend, while the store is away
)

// Decision is the answer of a limiter.
type Decision struct {
	Allowed    bool
	Limit      int           // the burst
	Remaining  int           // what could be taken at once now
	RetryAfter time.Duration // when denied: after this the same call may be granted; or Never
	ResetAfter time.Duration // after this the bucket owes nothing
	Source     Source
	Degraded   bool // the store did not decide, for it is away
}

// DefaultLimiterDeadline is the default of [LimiterOptions].Deadline.
const DefaultLimiterDeadline = 250 * time.Millisecond

// LimiterOptions are what a backend's limiter does about a store that is slow, away or
// asked the same again and again. They don't matter to a [LocalLimiter].
type LimiterOptions struct {
	// Deadline is how long the store may take for an answer, from the start of the call;
	// default DefaultLimiterDeadline.
	Deadline time.Duration
	// Cooldown is how long a store that is away is left alone before one call asks it
	// again; default 500 ms.
	Cooldown time.Duration
	// DenyFor is how long a denial is repeated without asking the store, at most; default
	// 1 s. Negative: never, as where the store's clock is not that of the process.
	DenyFor time.Duration
}

// LimiterObserver is an [Observer] that also hears of decisions, and of the limiter being
// degraded. It must be quick and safe for concurrent use.
type LimiterObserver interface {
	Observer
	// Decided tells of one call of Allow or AllowAll; of the latter, the first decision.
	Decided(ctx context.Context, d Decision)
	// Degraded tells that a backend's limiter has begun to decide without the store, or no
	// longer does.
	Degraded(degraded bool)
}

// GCRA is the arithmetic of one [Limit], in microseconds; for authors of
// drivers. A bucket is one number, the theoretical arrival time (TAT): the
// moment at which it owes nothing.
type GCRA struct {
	Interval int64 // between two grants at the steady rate
	Cost     int64 // what this call adds to the TAT
	Window   int64 // how far the TAT may lie ahead of now: Interval·Burst
	Burst    int
}

// GCRA returns the arithmetic of a valid limit.
func (l Limit) GCRA() GCRA {
	per, rate := l.Per.Microseconds(), int64(l.Rate)
	interval := (per + rate - 1) / rate
	return GCRA{Interval: interval, Cost: interval * int64(l.Cost), Window: interval * int64(l.Burst), Burst: l.Burst}
}

// Decide answers a request at now against a bucket's TAT (0 for a new one) and
// returns the TAT to store when it is granted. A TAT further ahead than the
// window, as after a clock that stepped back, is clamped; when the returned TAT
// is below the given one it is to be stored although the request is denied, so
// that the bucket heals within one burst period.
func (g GCRA) Decide(tat, now int64) (d Decision, newTAT int64) {
	tat = min(max(tat, now), now+g.Window)
	newTAT = tat + g.Cost
	d = Decision{
		Allowed: newTAT <= now+g.Window,
		Limit:   g.Burst,
		Source:  SourceStore,
	}
	if d.Allowed {
		return g.fill(d, newTAT, now), newTAT
	}
	d.RetryAfter = Never
	if g.Cost <= g.Window {
		d.RetryAfter = time.Duration(newTAT-g.Window-now) * time.Microsecond
	}
	return g.fill(d, tat, now), tat
}

// fill adds what a bucket at tat has left.
func (g GCRA) fill(d Decision, tat, now int64) Decision {
	d.Remaining = int((now + g.Window - tat) / g.Interval)
	d.ResetAfter = time.Duration(tat-now) * time.Microsecond
	return d
}

// DecideAll answers a joint request against the TATs of its buckets, in the
// order of the limits; for authors of drivers. store are the TATs to store, or
// nil when nothing is to be written: a denial writes only where a TAT lies
// further ahead than the window and has to heal.
func DecideAll(limits []Limit, tats []int64, now int64) (ds []Decision, store []int64) {
	ds, store = make([]Decision, len(limits)), make([]int64, len(limits))
	allowed := true
	for i, l := range limits {
		ds[i], store[i] = l.GCRA().Decide(tats[i], now)
		allowed = allowed && ds[i].Allowed
	}
	if allowed {
		return ds, store
	}
	heal := false
	for i, l := range limits {
		g := l.GCRA()
		if ds[i].Allowed { // it would have granted: say what it has, with nothing taken
			g.Cost = 0
			ds[i], _ = g.Decide(tats[i], now)
			ds[i].Allowed = false
		}
		store[i] = min(tats[i], now+g.Window)
		heal = heal || store[i] < tats[i]
	}
	if !heal {
		return ds, nil
	}
	return ds, store
}
