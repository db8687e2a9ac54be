package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// limiterKeys is how many keys there are where it isn't one.
const limiterKeys = 10_000

// decider is one side of a row about the limiter: it asks for one from the bucket of a
// key, by a limit that grants all the time or one that has granted its last.
type decider struct {
	name    string
	granted func(ctx context.Context, key string) (bool, error)
	denied  func(ctx context.Context, key string) (bool, error)
	close   func()
}

// limiterRow compares ours with another on uniform keys, on one hot key, or on one
// that is denied.
func limiterRow(
	kind string, callers int, ours, other func(ctx context.Context, st store) (decider, error),
) func(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
	return func(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
		st, err := sub.store(ctx)
		if err != nil {
			return row{}, err
		}
		defer st.close()
		us, err := ours(ctx, st)
		if err != nil {
			return row{}, err
		}
		defer us.close()
		them, err := other(ctx, st)
		if err != nil {
			return row{}, err
		}
		defer them.close()
		keys := make([]string, limiterKeys)
		for i := range keys {
			keys[i] = fmt.Sprint("key/", i)
		}
		if kind != "uniform" {
			keys = keys[:1]
		}
		op := func(d decider) (func(ctx context.Context, caller int) (int, error), error) {
			ask, want := d.granted, true
			if kind != "denied" { // so that the keys are known
				if err := eachKey(ctx, keys, d.granted); err != nil {
					return nil, err
				}
			} else {
				ask, want = d.denied, false
				for range 2 { // the burst, and one more
					if _, err := ask(ctx, keys[0]); err != nil {
						return nil, err
					}
				}
			}
			return func(ctx context.Context, _ int) (int, error) {
				got, err := ask(ctx, keys[rand.IntN(len(keys))])
				if err == nil && got != want {
					err = fmt.Errorf("%s: the decision is %t", d.name, got)
				}
				return 1, err
			}, nil
		}
		mine, err := op(us)
		if err != nil {
			return row{}, err
		}
		theirs, err := op(them)
		if err != nil {
			return row{}, err
		}
		return compare(ctx, length, repeated(us.name, callers, mine), them.name, repeated(them.name, callers, theirs))
	}
}

// eachKey asks for each key once, by several callers.
func eachKey(ctx context.Context, keys []string, ask func(ctx context.Context, key string) (bool, error)) (failed error) {
	var asking sync.WaitGroup
	var once sync.Once
	for part := range slices.Chunk(keys, (len(keys)+31)/32) {
		asking.Go(func() {
			for _, key := range part {
				if _, err := ask(ctx, key); err != nil {
					once.Do(func() { failed = err })
				}
			}
		})
	}
	asking.Wait()
	return failed
}

// limiterPGRows are those of the pg driver: with remembered denials, "denied", and without,
// beside what writes each time and beside redis_rate on a Redis server.
func limiterPGRows() (rows []measurement) {
	for _, callers := range []int{1, 8, 32, 128} {
		for _, r := range []struct {
			name, kind  string
			ours, other func(context.Context, store) (decider, error)
		}{
			{"limit-denied-upsert", "denied", openRemembering, openUpsert},
			{"limit-asked-upsert", "denied", openOurs, openUpsert},
			{"limit-uniform-redis", "uniform", openOurs, openRedisRate},
			{"limit-hot-redis", "hot", openOurs, openRedisRate},
			{"limit-denied-redis", "denied", openRemembering, openRedisRate},
			{"limit-asked-redis", "denied", openOurs, openRedisRate},
		} {
			rows = append(rows, measurement{fmt.Sprintf("%s/%d", r.name, callers), limiterRow(r.kind, callers, r.ours, r.other)})
		}
	}
	return rows
}

// limiterMemoryRows are those of the memory driver, beside two that are usual within one
// process.
func limiterMemoryRows() (rows []measurement) {
	for _, callers := range []int{1, 8, 32} {
		for _, kind := range []string{"uniform", "denied"} { // one key can't grant more than one per µs
			rows = append(rows,
				measurement{fmt.Sprintf("limit-%s-store/%d", kind, callers), limiterRow(kind, callers, openOurs, openMemoryStore)},
				measurement{fmt.Sprintf("limit-%s-map/%d", kind, callers), limiterRow(kind, callers, openOurs, openRateMap)},
			)
		}
	}
	return rows
}

func openOurs(_ context.Context, st store) (decider, error) {
	return oursOn(st.backend(), func() {}), nil
}

// openRemembering is ours as it is by default: a denial is repeated without asking the store.
func openRemembering(ctx context.Context, st store) (decider, error) {
	remembering := patient
	remembering.DenyFor = 0
	b, err := pg.Open(ctx, pg.Options{URL: st.(*pgStore).url, Options: coord.Options{Limiter: remembering}})
	if err != nil {
		return decider{}, err
	}
	return oursOn(b, func() { _ = b.Close(context.Background()) }), nil
}

func oursOn(b coord.Backend, end func()) decider {
	ask := func(l coord.Limit) func(context.Context, string) (bool, error) {
		return func(ctx context.Context, key string) (bool, error) {
			l := l
			l.Key = key
			d, err := b.Limiter().Allow(ctx, l)
			if err == nil && d.Degraded {
				err = errors.New("the store did not answer in time")
			}
			return d.Allowed, err
		}
	}
	return decider{
		name:    "tandem",
		granted: ask(coord.Limit{Rate: 1_000_000, Per: time.Second}),
		denied:  ask(coord.Limit{Rate: 1, Per: 24 * time.Hour, Burst: 1}),
		close:   end,
	}
}

// openUpsert counts by a statement that writes each time, whatever it decides, and waits for
// the disk as little as ours.
func openUpsert(ctx context.Context, st store) (decider, error) {
	s, err := st.(*pgStore).soon.PrepareContext(ctx, `INSERT INTO floor_limits AS l (key, tat) VALUES ($1, `+pgNow+` + $2)
		ON CONFLICT (key) DO UPDATE SET tat = CASE WHEN greatest(l.tat, `+pgNow+`) + $2 <= `+pgNow+` + $3
			THEN greatest(l.tat, `+pgNow+`) + $2 ELSE l.tat END
		RETURNING tat + $2 <= `+pgNow+` + $3`)
	if err != nil {
		return decider{}, err
	}
	ask := func(cost, window int64) func(context.Context, string) (bool, error) {
		return func(ctx context.Context, key string) (allowed bool, err error) {
			err = s.QueryRowContext(ctx, []byte(key), cost, window).Scan(&allowed)
			return allowed, err
		}
	}
	const day = 24 * 3_600_000_000
	return decider{name: "upsert", granted: ask(1, 1_000_000), denied: ask(day, day), close: func() { _ = s.Close() }}, nil
}

// openRedisRate is redis_rate on a Redis that keeps nothing on the disk.
func openRedisRate(ctx context.Context, _ store) (decider, error) {
	server, err := testenv.StartRedis(ctx)
	if err != nil {
		return decider{}, err
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	limiter := redis_rate.NewLimiter(client)
	ask := func(l redis_rate.Limit) func(context.Context, string) (bool, error) {
		return func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Allow(ctx, key, l)
			return err == nil && r.Allowed > 0, err
		}
	}
	return decider{
		name:    "redis_rate",
		granted: ask(redis_rate.Limit{Rate: 1_000_000, Burst: 1_000_000, Period: time.Second}),
		denied:  ask(redis_rate.Limit{Rate: 1, Burst: 1, Period: 24 * time.Hour}),
		close: func() {
			_ = client.Close()
			server.Stop()
		},
	}, nil
}

// openMemoryStore is the store of go-limiter that lives in memory.
func openMemoryStore(context.Context, store) (decider, error) {
	open := func(tokens uint64, interval time.Duration) (func(context.Context, string) (bool, error), func(), error) {
		s, err := memorystore.New(&memorystore.Config{Tokens: tokens, Interval: interval})
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, key string) (bool, error) {
			_, _, _, ok, err := s.Take(ctx, key)
			return ok, err
		}, func() { _ = s.Close(context.Background()) }, nil
	}
	granted, endGranted, err := open(1<<40, time.Hour)
	if err != nil {
		return decider{}, err
	}
	denied, endDenied, err := open(1, 24*time.Hour)
	if err != nil {
		endGranted()
		return decider{}, err
	}
	return decider{name: "go-limiter", granted: granted, denied: denied, close: func() {
		endGranted()
		endDenied()
	}}, nil
}

// openRateMap is a map of the limiters of x/time/rate.
func openRateMap(context.Context, store) (decider, error) {
	open := func(per rate.Limit, burst int) func(context.Context, string) (bool, error) {
		var mu sync.Mutex
		limiters := make(map[string]*rate.Limiter)
		return func(_ context.Context, key string) (bool, error) {
			mu.Lock()
			l := limiters[key]
			if l == nil {
				l = rate.NewLimiter(per, burst)
				limiters[key] = l
			}
			mu.Unlock()
			return l.Allow(), nil
		}
	}
	return decider{name: "x/time/rate", granted: open(1e9, 1<<30), denied: open(rate.Every(24*time.Hour), 1), close: func() {}}, nil
}
