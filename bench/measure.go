package main

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
)

// measurement makes one row.
type measurement struct {
	name string
	// measure opens an empty store of the subject, so that no row finds another's
	// data. prepares is told what takes long before anything is measured.
	measure func(ctx context.Context, sub subject, length time.Duration, prepares func(what string)) (row, error)
}

// row is one line of the result: ours, and what is beside it. Its ratio is above 1 where
// ours is better: of the rates, or, where the rate is given, of the p50.
type row struct {
	Driver          string  `json:"driver"`
	Name            string  `json:"name"`
	PerSecond       float64 `json:"per_second"`
	P50             float64 `json:"p50_us"`
	P99             float64 `json:"p99_us"`
	Beside          string  `json:"beside"`
	BesidePerSecond float64 `json:"beside_per_second"`
	BesideP50       float64 `json:"beside_p50_us"`
	BesideP99       float64 `json:"beside_p99_us"`
	Ratio           float64 `json:"ratio"`
	Note            string  `json:"note,omitempty"` // what else was measured
}

// subject is a driver that is measured.
type subject interface {
	// store opens an empty store.
	store(ctx context.Context) (store, error)
	close()
}

// store is a backend and, beside it, what the floors work on.
type store interface {
	backend() coord.Backend
	floor(ctx context.Context, w coordtest.Workload) (floor, error)
	close()
}

// side is one of the two that a row compares. It is called once a turn, for about d.
type side func(ctx context.Context, d time.Duration) (sample, error)

// sample is what a side did in a turn.
type sample struct {
	items     int
	perSecond float64
	p50, p99  time.Duration // of a call, or of what the row is about
}

// compare lets the sides take turns, so that a disturbance hits both.
func compare(ctx context.Context, length time.Duration, ours side, beside string, other side) (r row, err error) {
	r.Beside = beside
	turns := 2
	if length < 100*time.Millisecond { // only to see that all works
		turns = 1
	}
	for range turns {
		s, err := labelled(ctx, "ours", ours, length/time.Duration(turns))
		if err != nil {
			return row{}, err
		}
		o, err := labelled(ctx, beside, other, length/time.Duration(turns))
		if err != nil {
			return row{}, fmt.Errorf("%s: %w", beside, err)
		}
		add := func(sum *float64, v float64) { *sum += v / float64(turns) }
		add(&r.PerSecond, s.perSecond)
		add(&r.P50, float64(s.p50.Nanoseconds())/1000)
		add(&r.P99, float64(s.p99.Nanoseconds())/1000)
		add(&r.BesidePerSecond, o.perSecond)
		add(&r.BesideP50, float64(o.p50.Nanoseconds())/1000)
		add(&r.BesideP99, float64(o.p99.Nanoseconds())/1000)
	}
	r.Ratio = r.PerSecond / r.BesidePerSecond
	return r, nil
}

// labelled marks in the profile whose turn it is.
func labelled(ctx context.Context, name string, s side, d time.Duration) (done sample, err error) {
	pprof.Do(ctx, pprof.Labels("side", name), func(ctx context.Context) { done, err = s(ctx, d) })
	return done, err
}

// floor is the plainest way to do what a workload does.
type floor struct {
	setup func(ctx context.Context) error // may be nil
	op    func(ctx context.Context, caller int) (int, error)
}

// workloads are the rows that every driver has, beside their floors.
func workloads() []measurement {
	var all []measurement
	for i, w := range coordtest.Workloads(nil) {
		all = append(all, measurement{
			name: fmt.Sprintf("%s/%d", w.Name, w.Callers),
			measure: func(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
				return measureWorkload(ctx, sub, i, length)
			},
		})
	}
	return all
}

// measureWorkload measures the i-th workload.
func measureWorkload(ctx context.Context, sub subject, i int, length time.Duration) (row, error) {
	st, err := sub.store(ctx)
	if err != nil {
		return row{}, err
	}
	defer st.close()
	w := coordtest.Workloads(st.backend())[i]
	f, err := st.floor(ctx, w)
	if err != nil {
		return row{}, err
	}
	if err := w.Setup(ctx); err != nil {
		return row{}, err
	}
	defer w.Close()
	if f.setup != nil {
		if err := f.setup(ctx); err != nil {
			return row{}, fmt.Errorf("floor: %w", err)
		}
	}
	return compare(ctx, length, repeated(w.Name, w.Callers, w.Op), "floor", repeated(w.Name, w.Callers, f.op))
}

// repeated is a side whose callers do op over and over.
func repeated(name string, callers int, op func(ctx context.Context, caller int) (int, error)) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s, err := coordtest.Measure(ctx, name, callers, d, op)
		return sample{perSecond: s.PerSecond, p50: s.P50, p99: s.P99}, err
	}
}

// consume lets the callers call op until the time is over or an op finds nothing
// left, which is n = 0.
func consume(
	ctx context.Context, callers int, d time.Duration, op func(ctx context.Context) (n int, err error),
) (sample, error) {
	var (
		working sync.WaitGroup
		mu      sync.Mutex
		items   int
		times   []time.Duration
		failed  error
	)
	began := time.Now()
	for range callers {
		working.Go(func() {
			var own []time.Duration
			sum := 0
			n, err := 1, error(nil)
			for now := began; n > 0 && err == nil && now.Sub(began) < d; {
				n, err = op(ctx)
				returned := time.Now()
				sum += n
				own = append(own, returned.Sub(now))
				now = returned
			}
			mu.Lock()
			defer mu.Unlock()
			items, times = items+sum, append(times, own...)
			if failed == nil {
				failed = err
			}
		})
	}
	working.Wait()
	return sampled(items, time.Since(began), times), failed
}

// sampled sums up what was done and how long each piece of it took.
func sampled(items int, took time.Duration, times []time.Duration) sample {
	s := sample{items: items, perSecond: float64(items) / took.Seconds()}
	if len(times) > 0 {
		slices.Sort(times)
		s.p50, s.p99 = times[len(times)/2], times[len(times)*99/100]
	}
	return s
}
