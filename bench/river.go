package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/rivermigrate"
)

// peerOptions say how River works: as by default, or
type peerOptions struct {
	handlers int  // 0: 100, River has no default
	tuned    bool // with the shortest cooldown, and frequent polls
	pollOnly bool // without LISTEN
	local    bool // the client that works enqueues too
}

func (o peerOptions) config() *river.Config {
	c := &river.Config{Logger: slog.New(slog.DiscardHandler), PollOnly: o.pollOnly}
	if o.tuned {
		c.FetchCooldown, c.FetchPollInterval = river.FetchCooldownMin, 20*time.Millisecond
	}
	return c
}

// riverPool is a pool of connections for a client of River.
type riverPool[TTx any] struct {
	driver riverdriver.Driver[TTx]
	db     riverDB
}

// riverDB is what the measurements ask of the pool themselves.
type riverDB struct {
	rest  func(ctx context.Context) error
	count func(ctx context.Context, query string) (int, error)
	close func()
}

// riverQueue is River, as its documentation has it.
type riverQueue[TTx any] struct {
	riverPool[TTx]
	o      peerOptions
	client *river.Client[TTx] // enqueues
}

// newRiver migrates River's tables and returns how clients on them are opened.
func newRiver[TTx any](ctx context.Context, open func(ctx context.Context) (riverPool[TTx], error)) (peer, error) {
	pool, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer pool.db.close()
	m, err := rivermigrate.New(pool.driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	return func(ctx context.Context, o peerOptions) (queue, error) {
		pool, err := open(ctx)
		if err != nil {
			return nil, err
		}
		q := &riverQueue[TTx]{riverPool: pool, o: o}
		// Its cooldown bounds how often the client that enqueues rings the others.
		if q.client, err = river.NewClient(pool.driver, o.config()); err != nil {
			pool.db.close()
			return nil, err
		}
		return q, nil
	}, nil
}

func (q *riverQueue[TTx]) add(ctx context.Context, n int) error {
	params := make([]river.InsertManyParams, min(n, addBatch))
	for i := range params {
		params[i].Args = job{time.Now().UnixNano()}
	}
	for ; n > 0; n -= len(params) {
		if _, err := q.client.InsertManyFast(ctx, params[:min(n, len(params))]); err != nil {
			return err
		}
	}
	return nil
}

func (q *riverQueue[TTx]) rest(ctx context.Context) error { return q.db.rest(ctx) }

func (q *riverQueue[TTx]) enqueue(ctx context.Context, at time.Time) error {
	_, err := q.client.Insert(ctx, job{at.UnixNano()}, nil)
	return err
}

func (q *riverQueue[TTx]) work(ctx context.Context, handle func(job func() job)) (stop func() error, err error) {
	c := q.o.config()
	handlers := q.o.handlers
	if handlers == 0 {
		handlers = 100
	}
	c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: handlers}}
	c.Workers = river.NewWorkers()
	river.AddWorker(c.Workers, river.WorkFunc(func(_ context.Context, j *river.Job[job]) error {
		handle(func() job { return j.Args })
		return nil
	}))
	client, err := river.NewClient(q.driver, c)
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	inserting := q.client
	if q.o.local {
		q.client = client
	}
	return func() error {
		q.client = inserting
		return client.Stop(context.WithoutCancel(ctx)) // which writes what has ended
	}, nil
}

func (q *riverQueue[TTx]) succeeded(ctx context.Context) (int, error) {
	return q.db.count(ctx, `SELECT count(*) FROM river_job WHERE state = 'completed'`)
}

func (q *riverQueue[TTx]) close() { q.db.close() }
