package memory

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

const (
	limitShards = 64
	// A shard that has grown to twice what it owed at its last reaping, and to
	// this at least, is reaped by the call that makes it grow.
	reapFrom = 1024
)

// limits are the buckets of a store. They have locks of their own: a decision
// waits for no transaction.
type limits struct {
	now    func() int64 // the clock, in µs
	seed   maphash.Seed
	shards [limitShards]limitShard
}

type limitShard struct {
	mu     sync.Mutex
	tats   map[string]*int64 // when a bucket owes nothing, in µs
	reapAt int
	_      [40]byte // a cache line each
}

// init takes the store's clock, or none for that of the process. Then time is counted
// from here on: that is twice as quick, and nobody sets it.
func (l *limits) init(clock func() time.Time) {
	l.now = func() int64 { return clock().UnixMicro() }
	if clock == nil {
		began := time.Now()
		at := began.UnixMicro()
		l.now = func() int64 { return at + time.Since(began).Microseconds() }
	}
	l.seed = maphash.MakeSeed()
	for i := range l.shards {
		l.shards[i].tats = make(map[string]*int64)
		l.shards[i].reapAt = reapFrom
	}
}

func (l *limits) index(key string) int { return int(maphash.String(l.seed, key) % limitShards) }

// put stores a bucket. The shard is locked.
func (sh *limitShard) put(key string, tat, now int64) {
	if known := sh.tats[key]; known != nil {
		*known = tat
		return
	}
	sh.tats[key] = &tat
	if len(sh.tats) >= sh.reapAt {
		sh.reap(now, len(sh.tats))
		sh.reapAt = max(reapFrom, 2*len(sh.tats))
	}
}

// reap forgets up to most buckets that owe nothing. The shard is locked.
func (sh *limitShard) reap(now int64, most int) (n int) {
	for key, tat := range sh.tats {
		if n == most {
			break
		}
		if *tat <= now {
			delete(sh.tats, key)
			n++
		}
	}
	return n
}

type limiter struct{ store *Store }

// Local says that nothing is waited for.
func (limiter) Local() {}

func (l limiter) decide(ctx context.Context, limit coord.Limit, take bool) (coord.Decision, error) {
	if err := ctx.Err(); err != nil {
		return coord.Decision{}, err
	}
	sh := &l.store.limits.shards[l.store.limits.index(limit.Key)]
	g := limit.GCRA()
	sh.mu.Lock()
	now, before := l.store.limits.now(), int64(0)
	known := sh.tats[limit.Key]
	if known != nil {
		before = *known
	}
	d, tat := g.Decide(before, now)
	switch {
	case !take || !d.Allowed && tat >= before:
	case known != nil:
		*known = tat
	default:
		sh.put(limit.Key, tat, now)
	}
	sh.mu.Unlock()
	return d, nil
}

func (l limiter) Allow(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	return l.decide(ctx, limit, true)
}

func (l limiter) Peek(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	return l.decide(ctx, limit, false)
}

func (l limiter) AllowAll(ctx context.Context, limits ...coord.Limit) ([]coord.Decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	shards := make([]int, len(limits))
	for i, limit := range limits {
		shards[i] = l.store.limits.index(limit.Key)
	}
	locked := slices.Clone(shards)
	slices.Sort(locked)
	for _, i := range slices.Compact(locked) {
		sh := &l.store.limits.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
	}

	now := l.store.limits.now()
	tats := make([]int64, len(limits))
	for i, limit := range limits {
		if known := l.store.limits.shards[shards[i]].tats[limit.Key]; known != nil {
			tats[i] = *known
		}
	}
	decisions, changed := coord.DecideAll(limits, tats, now)
	for i, tat := range changed {
		l.store.limits.shards[shards[i]].put(limits[i].Key, tat, now)
	}
	return decisions, nil
}

func (l limiter) Reset(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh := &l.store.limits.shards[l.store.limits.index(key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.tats, key)
	return nil
}

func (l limiter) Reap(ctx context.Context) (n int, err error) {
	for i := range l.store.limits.shards {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		sh := &l.store.limits.shards[i]
		sh.mu.Lock()
		n += sh.reap(l.store.limits.now(), batch-n)
		sh.mu.Unlock()
		if n == batch {
			break
		}
	}
	return n, nil
}
