package coord

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// patience is how long the calls with a context may still wait, in all.
type patience struct{ left atomic.Int64 }

type patienceKey struct{}

// WithPatience returns a context whose calls wait for a free connection of the driver for at most
// that long in all, each for no longer than the driver lets any call wait. A call that waits too
// long fails with [ErrUnavailable]. What is carried out is not cut off by it, nor is a call that
// need not wait.
func WithPatience(ctx context.Context, most time.Duration) context.Context {
	p := &patience{}
	p.left.Store(int64(most))
	return context.WithValue(ctx, patienceKey{}, p)
}

// withoutPatience is for what has to be brought to an end, however long its caller has waited.
func withoutPatience(ctx context.Context) context.Context { return WithPatience(ctx, math.MaxInt64) }

// Wait is for drivers, which call it before something that is waited for. The context that it
// returns ends after most, or when that context's patience does; over tells that the wait is.
func Wait(ctx context.Context, most time.Duration) (waiting context.Context, over func()) {
	p, limited := ctx.Value(patienceKey{}).(*patience)
	if limited {
		most = min(most, max(0, time.Duration(p.left.Load())))
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, most)
	context.AfterFunc(waiting, cancel)
	return waiting, func() {
		if limited {
			p.left.Add(-int64(time.Since(began)))
		}
	}
}
