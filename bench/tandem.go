package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

// tandem is our queue, used as any program uses it: each replica has a backend and
// a worker, with the defaults but for the number of handlers.
type tandem struct {
	crew
	store    shared
	backends []coord.Backend // of the replicas, once they have worked
	client   coord.Backend   // who enqueues
}

func newTandem(s shared, c crew) *tandem { return &tandem{crew: c, store: s, client: s.backend()} }

func (q *tandem) add(ctx context.Context, n int) error {
	runs := make([]coord.NewRun, min(n, addBatch))
	for i := range runs {
		runs[i] = coord.NewRun{Kind: kind, Payload: stamp(time.Now())}
	}
	for ; n > 0; n -= len(runs) {
		if _, err := q.client.Claimer().Enqueue(ctx, runs[:min(n, len(runs))]...); err != nil {
			return err
		}
	}
	return nil
}

func (q *tandem) rest(ctx context.Context) error { return q.store.rest(ctx, "coord_runs") }

func (q *tandem) enqueue(ctx context.Context, at time.Time) error {
	_, err := q.client.Claimer().Enqueue(ctx, coord.NewRun{Kind: kind, Payload: stamp(at)})
	return err
}

func (q *tandem) work(ctx context.Context, handle func(job func() job)) (stop func() error, err error) {
	for len(q.backends) < max(1, q.replicas) {
		b, err := q.store.connect(ctx, !q.mute)
		if err != nil {
			return nil, err
		}
		q.backends = append(q.backends, b)
	}
	if q.local {
		q.client = q.backends[0]
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	errs := make(chan error, len(q.backends))
	for i, b := range q.backends {
		w, err := worker.New(b.Claimer(), worker.Options{
			Name: fmt.Sprintf("replica-%d", i+1), Concurrency: q.handlers,
			Handlers: map[string]worker.Handler{kind: handler(handle)},
		})
		if err != nil {
			cancel()
			running.Wait()
			return nil, err
		}
		running.Go(func() { errs <- w.Run(ctx) })
	}
	return func() (err error) {
		cancel()
		running.Wait()
		for range q.backends {
			err = errors.Join(err, <-errs)
		}
		return err
	}, nil
}

func handler(handle func(job func() job)) worker.Handler {
	return func(_ context.Context, r *worker.Run) (err error) {
		handle(func() (j job) {
			err = json.Unmarshal(r.Run.Payload, &j)
			return j
		})
		return err
	}
}

func (q *tandem) succeeded(ctx context.Context) (int, error) { return q.store.succeeded(ctx) }

func (q *tandem) close() {
	for _, b := range q.backends {
		_ = b.Close(context.Background())
	}
}
