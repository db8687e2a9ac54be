package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// shared is the store of a SQL driver, which other processes can use too.
type shared interface {
	store
	// connect opens a further backend, as another process does; without hints it
	// hears of the others' runs only by polling.
	connect(ctx context.Context, hints bool) (coord.Backend, error)
	// jobs makes the floor's table.
	jobs(ctx context.Context) (backlog, error)
	// river makes River's tables, on the same server or in a file beside ours.
	river(ctx context.Context) (peer, error)
	// rest brings the tables that were just filled to rest: their statistics are
	// known and nothing waits to be written.
	rest(ctx context.Context, tables ...string) error
	// succeeded counts our runs that have.
	succeeded(ctx context.Context) (int, error)
	// multiply adds n copies of each run that the store holds.
	multiply(ctx context.Context, n int) error
}

// queue is what is compared: ours or River's.
type queue interface {
	// add queues n runs, 1,000 in one call.
	add(ctx context.Context, n int) error
	// rest is called when runs were added, before something is measured.
	rest(ctx context.Context) error
	// enqueue queues one run, and says when.
	enqueue(ctx context.Context, at time.Time) error
	// work starts the workers, whose handler is handle. River has decoded the job by
	// then; ours hands over bytes, and job decodes them. stop waits until the end of each
	// run that has started is written.
	work(ctx context.Context, handle func(job func() job)) (stop func() error, err error)
	// succeeded counts the runs that have.
	succeeded(ctx context.Context) (int, error)
	close()
}

// peer opens River's clients.
type peer func(ctx context.Context, o peerOptions) (queue, error)

// crew says how our workers work.
type crew struct {
	replicas, handlers int  // 0: as by default
	local              bool // the one replica enqueues too; else it is another process
	mute               bool // without hints
}

// job is what a run carries, with River too.
type job struct {
	At int64 `json:"at"` // nanoseconds since 1970
}

// Kind is River's name for it.
func (job) Kind() string { return kind }

const kind = "bench"

func (j job) time() time.Time { return time.Unix(0, j.At) }

// queueRows are the rows of queueing, for which the backlog is such that it lasts
// at these rates, which are about what two cores do.
func queueRows(ours, rivers int) []measurement {
	all := []measurement{
		{"enqueue-1000/1", measureEnqueue},
		{"work/1000", func(ctx context.Context, sub subject, length time.Duration, prepares func(string)) (row, error) {
			return queueRow(ctx, sub, crew{handlers: 1000}, func(s shared, q queue) (row, error) {
				r, err := rival(ctx, s, peerOptions{handlers: 1000, tuned: true})
				if err != nil {
					return row{}, err
				}
				defer r.close()
				return compare(ctx, length, work(q, ours, prepares), "river", work(r, rivers, prepares))
			})
		}},
	}
	for _, start := range []struct {
		name   string
		crew   crew
		beside string
		peer   peerOptions
	}{
		{"start", crew{}, "river", peerOptions{}},
		{"start-tuned", crew{}, "river tuned", peerOptions{tuned: true}},
		{"start-local", crew{local: true}, "river", peerOptions{local: true}},
		{"start-poll", crew{mute: true}, "river polls", peerOptions{pollOnly: true}},
	} {
		all = append(all, measurement{
			start.name,
			func(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
				return queueRow(ctx, sub, start.crew, func(s shared, q queue) (row, error) {
					r, err := rival(ctx, s, start.peer)
					if err != nil {
						return row{}, err
					}
					defer r.close()
					result, err := compare(ctx, length, startLatency(q), start.beside, startLatency(r))
					result.Ratio = result.BesideP50 / result.P50
					return result, err
				})
			},
		})
	}
	all = append(all, backlogRows(2*ours)...)
	for _, n := range []int{1, 2, 4, 8, 16} {
		all = append(all, measurement{
			fmt.Sprintf("replicas/%d", n),
			func(ctx context.Context, sub subject, length time.Duration, prepares func(string)) (row, error) {
				return queueRow(ctx, sub, crew{replicas: n, handlers: 100}, func(s shared, q queue) (row, error) {
					one := newTandem(s, crew{handlers: 100})
					defer one.close()
					return compare(ctx, length, work(q, ours, prepares), "1 replica", work(one, ours, prepares))
				})
			},
		})
	}
	return all
}

// queueRow opens an empty store with our queue on it.
func queueRow(ctx context.Context, sub subject, c crew, measure func(s shared, q queue) (row, error)) (row, error) {
	st, err := sub.store(ctx)
	if err != nil {
		return row{}, err
	}
	defer st.close()
	q := newTandem(st.(shared), c)
	defer q.close()
	return measure(st.(shared), q)
}

func rival(ctx context.Context, s shared, o peerOptions) (queue, error) {
	open, err := s.river(ctx)
	if err != nil {
		return nil, fmt.Errorf("river: %w", err)
	}
	return open(ctx, o)
}

// addBatch is how many runs are queued in one call.
const addBatch = 1000

// measureEnqueue queues 1,000 runs in one call, over and over.
func measureEnqueue(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
	return queueRow(ctx, sub, crew{}, func(s shared, q queue) (row, error) {
		r, err := rival(ctx, s, peerOptions{})
		if err != nil {
			return row{}, err
		}
		defer r.close()
		adding := func(q queue) side {
			return repeated("enqueue-1000", 1, func(ctx context.Context, _ int) (int, error) {
				return addBatch, q.add(ctx, addBatch)
			})
		}
		return compare(ctx, length, adding(q), "river", adding(r))
	})
}

// work measures the whole path from the claim of the runs that were queued before
// to the last end that is written. The clock starts with the first handler.
func work(q queue, rate int, prepares func(string)) side {
	left := 0
	return func(ctx context.Context, d time.Duration) (sample, error) {
		total := max(addBatch, int(float64(rate)*d.Seconds()))
		prepares(fmt.Sprintf("queueing %d runs", total-left))
		if err := errors.Join(q.add(ctx, total-left), q.rest(ctx)); err != nil {
			return sample{}, err
		}
		before, err := q.succeeded(ctx)
		if err != nil {
			return sample{}, err
		}
		var once sync.Once
		var handled atomic.Int64
		first, all := make(chan time.Time, 1), make(chan struct{})
		stop, err := q.work(ctx, func(func() job) {
			once.Do(func() { first <- time.Now() })
			if handled.Add(1) == int64(total) {
				close(all)
			}
		})
		if err != nil {
			return sample{}, err
		}
		var began time.Time
		select {
		case began = <-first:
			select {
			case <-all:
			case <-time.After(d):
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		err = errors.Join(stop(), ctx.Err())
		took := time.Since(began)
		if err != nil {
			return sample{}, err
		}
		after, err := q.succeeded(ctx)
		done := after - before
		left = total - done
		// What was handled twice, or not written, is not what was asked for.
		if err == nil && int64(done) != handled.Load() {
			err = fmt.Errorf("%d runs were handled and %d succeeded", handled.Load(), done)
		}
		return sampled(done, took, nil), err
	}
}

// startPause is the time between two runs that are enqueued on an idle system.
const startPause = 20 * time.Millisecond

// startLatency measures from before a run is enqueued to the start of its handler.
func startLatency(q queue) side {
	return func(ctx context.Context, d time.Duration) (_ sample, err error) {
		count := max(2, int(d/startPause))
		started := make(chan time.Duration, count+1)
		stop, err := q.work(ctx, func(job func() job) { started <- time.Since(job().time()) })
		if err != nil {
			return sample{}, err
		}
		defer func() { err = errors.Join(err, stop()) }()
		wait := func() (took time.Duration, err error) {
			select {
			case took = <-started:
			case <-ctx.Done():
				err = ctx.Err()
			}
			return took, err
		}
		// The first one finds the workers up; then all is idle.
		if err := q.enqueue(ctx, time.Now()); err != nil {
			return sample{}, err
		}
		if _, err := wait(); err != nil {
			return sample{}, err
		}
		time.Sleep(min(d, time.Second))
		began := time.Now()
		tick := time.NewTicker(startPause)
		defer tick.Stop()
		for range count {
			<-tick.C
			if err := q.enqueue(ctx, time.Now()); err != nil {
				return sample{}, err
			}
		}
		times := make([]time.Duration, count)
		for i := range times {
			if times[i], err = wait(); err != nil {
				return sample{}, err
			}
		}
		return sampled(count, time.Since(began), times), nil
	}
}

func stamp(at time.Time) []byte {
	text, err := json.Marshal(job{at.UnixNano()})
	if err != nil {
		panic(err) // a number
	}
	return text
}
