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
type Limiter interface {
	// Allow takes l.Cost from the bucket, or nothing.
	Allow(ctx context.Context, l Limit) (Decision, error)
	// AllowAll takes the cost of every limit, or nothing from any. Each key may
	// be named once. The decisions are in the order given; Allowed is the joint
	// outcome, the same in each, and those with a RetryAfter refused.
	AllowAll(ctx context.Context, limits ...Limit) ([]Decision, error)
	// Peek says what Allow would, and takes nothing.
	Peek(ctx context.Context, l Limit) (Decision, error)
	// Reset forgives the debt of a key.
	Reset(ctx context.Context, key string) error
	// Reap deletes a bounded number of buckets that owe nothing and returns how
	// many. Call it until it returns 0.
	Reap(ctx context.Context) (int, error)
}

// Limit is one bucket and what is asked of it. Changing Rate, Per or Burst of
// a key keeps its debt, measured in time.
type Limit struct {
	Key   string        // 1–500 bytes; stored as a hash
	Rate  int           // this many …
	Per   time.Duration // … per this time; Per/Rate is rounded up to whole microseconds
	Burst int           // at once after a pause; default Rate
	Cost  int           // of this call; 0 means 1
}

// Never is the RetryAfter of a request whose cost is above the burst.
const Never time.Duration = 1<<63 - 1

// Source says who decided.
type Source string

// The sources of a decision.
const (
	SourceStore Source = "store" // the store
)

// Decision is the answer of a limiter.
type Decision struct {
	Allowed    bool
	Limit      int           // the burst
	Remaining  int           // what could be taken at once now
	RetryAfter time.Duration // when denied: after this the same call may be granted; or Never
	ResetAfter time.Duration // after this the bucket owes nothing
	Source     Source
}

// GCRA is the arithmetic of one [Limit], in microseconds; for authors of
// drivers. A bucket is one number, the theoretical arrival time (TAT): the
// moment at which it owes nothing.
type GCRA struct {
	Interval int64 // between two grants at the steady rate
	Cost     int64 // what this call adds to the TAT
	Window   int64 // how far the TAT may lie ahead of now: Interval·Burst
}

// GCRA returns the arithmetic of a valid limit.
func (l Limit) GCRA() GCRA {
	per, rate := l.Per.Microseconds(), int64(l.Rate)
	interval := (per + rate - 1) / rate
	return GCRA{Interval: interval, Cost: interval * int64(l.Cost), Window: interval * int64(l.Burst)}
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
		Limit:   int(g.Window / g.Interval),
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
