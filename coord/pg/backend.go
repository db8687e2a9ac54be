// Package pg is the PostgreSQL driver of package coord, for several replicas on
// one database and nothing else. It needs PostgreSQL 15 or newer and the
// schema of package migrations.
//
// Everything but LISTEN works behind a pooler in transaction mode: there are no
// session locks, session settings or named prepared statements. LISTEN takes a
// connection string of its own, direct to the server; without one, or when it
// can't be had, other replicas' events and runs are found by polling.
package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/await"
	"github.com/tandemhq/tandem/coord/internal/batch"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/hint"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// Options configure [Open].
type Options struct {
	URL       string        // of the database, directly or behind a pooler
	ListenURL string        // direct to the server, for LISTEN; default: URL
	DB        *bun.DB       // optional: the caller's own pool for the work, see OpenDB; it stays the caller's
	Probe     *bun.DB       // optional: the caller's own pool for Ping, made by OpenProbe of DB; it stays the caller's
	MaxConns  int           // of the work pool, if DB is nil; default 20
	Poll      time.Duration // longest wait for what no doorbell announced; default 500 ms
	coord.Options
}

// Open connects to the database and returns its backend. Errors:
// [coord.ErrUnavailable], or what is wrong with the options.
func Open(ctx context.Context, o Options) (coord.Backend, error) {
	b, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("pg: %w", err)
	}
	if err := b.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("pg: %w", err), b.Close(ctx))
	}
	b.pools()
	b.start(ctx)
	return coord.Wrap(b, o.Options), nil
}

func open(o Options) (b *backend, err error) {
	if o.ListenURL == "" {
		o.ListenURL = o.URL
	}
	if o.MaxConns == 0 {
		o.MaxConns = 20
	}
	if o.Poll == 0 {
		o.Poll = 500 * time.Millisecond
	}
	if o.Limiter.Deadline == 0 {
		o.Limiter.Deadline = coord.DefaultLimiterDeadline
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b = &backend{o: o, db: o.DB, stop: func() {}, closed: make(chan struct{})}
	if b.route, err = routeOf(o.DB, o.URL); err != nil {
		return nil, err
	}
	if b.listenText, err = listenText(o.ListenURL); err != nil {
		return nil, err
	}
	if b.db == nil {
		if b.db, err = openWork(b.route, o.MaxConns); err != nil {
			return nil, err
		}
		b.own = append(b.own, b.db)
	}
	if b.limits, err = openDB(b.route, limiterConns, limiterTimeouts(o.Limiter.Deadline)); err != nil {
		return nil, err
	}
	if b.coordination, err = openDB(b.route, coordinationConns, nil); err != nil {
		return nil, err
	}
	b.own = append(b.own, b.limits, b.coordination)
	if b.probe = o.Probe; b.probe == nil {
		if b.probe, err = openProbe(b.route); err != nil {
			return nil, err
		}
		b.own = append(b.own, b.probe)
	}
	b.feed = feed.New(broadcaster{b})
	b.publishes = batch.New(publishBatch, publishFlights, b.publishShared).Bound(publishBytes, row.Size).
		Refuse(row.WaitingPublishes, row.WaitingBytes)
	b.decisions = batch.New(limitBatch, limitFlights, b.decideShared).Refuse(limitWaiting, 0).
		Bound(limitBuckets, func(limits []coord.Limit) int { return len(limits) })
	b.looks = batch.New(limitBatch, 1, b.lookShared).Refuse(limitWaiting, 0)
	b.resets = batch.New(1, 1, b.reset).Refuse(limitWaiting, 0)
	b.entries = batch.New(changeBatch, changeFlights, b.changeShared).Bound(changeEntries, func(c []change) int { return len(c) })
	b.issues = batch.New(ticketBatch, ticketFlights, b.issueShared)
	b.redemptions = batch.New(ticketBatch, ticketFlights, b.redeemShared)
	b.begins = batch.New(receiptBatch, receiptFlights, b.beginShared)
	b.completions = batch.New(receiptBatch, receiptFlights, b.completeShared).
		Bound(receiptBytes, func(c completion) int { return len(c.outcome.Body) })
	b.bell = newDoorbell(b)
	b.reader = newReader(b)
	b.listener = newListener(b)
	b.waits = await.New(o.Poll, b.lookAtCalls)
	return b, nil
}

type backend struct {
	o            Options
	route        *route
	listenText   string  // ListenURL, for lib/pq's listener
	db           *bun.DB // the work
	limits       *bun.DB
	coordination *bun.DB // doorbell, reader, waits
	probe        *bun.DB // Ping
	own          []*bun.DB

	feed           *feed.Hub
	hints          hint.Hub // runs may be due
	cancels        hint.Hub // runs may have been asked to stop
	changes        hint.Hub // the directory may have changed
	receiptChanges hint.Hub
	leaderChanges  hint.Hub
	keyChanges     hint.Hub
	issues         *batch.Batcher[newTicket, time.Time]
	redemptions    *batch.Batcher[coord.TicketHash, *row.Ticket]
	begins         *batch.Batcher[coord.ReceiptFor, row.Receipt]
	completions    *batch.Batcher[completion, bool]
	entries        *batch.Batcher[[]change, []int64]
	publishes      *batch.Batcher[[]row.NewEvent, []coord.Position]
	decisions      *batch.Batcher[[]coord.Limit, []coord.Decision]
	looks          *batch.Batcher[coord.Limit, coord.Decision]
	resets         *batch.Batcher[string, struct{}]
	bell           *doorbell
	reader         *reader
	listener       *listener
	waits          *await.Hub // for calls to end

	stop    context.CancelFunc
	loops   sync.WaitGroup
	closing sync.Once
	closed  chan struct{} // when the last goroutine has ended
}

// ready reports whether the database can be used: it answers, and has the schema.
func (b *backend) ready(ctx context.Context) error {
	_, err := b.coordination.NewRaw(`SELECT FROM coord_runs, coord_topics, coord_limits, coord_tickets, coord_calls, coord_receipts, coord_leaders, coord_rings LIMIT 0`).Exec(ctx)
	if e, ok := errors.AsType[*pq.Error](err); ok && e.Code == undefinedTable {
		return fmt.Errorf("the database lacks the schema, see migrations.Up: %w", err)
	}
	if err != nil {
		return storeError(ctx, err)
	}
	return b.Ping(ctx) // which has no time for several servers that are away
}

// start runs the loops of the backend until Close.
func (b *backend) start(ctx context.Context) {
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.loops.Go(func() { b.reader.run(ctx) })
	b.loops.Go(func() { b.bell.run(ctx) })
	b.loops.Go(func() { b.listener.run(ctx) })
	b.loops.Go(func() { b.waits.Run(ctx) })
}

func (b *backend) Claimer() coord.Claimer         { return claimer{b} }
func (b *backend) Tickets() coord.Tickets         { return tickets{b} }
func (b *backend) Limiter() coord.Limiter         { return limiter{b} }
func (b *backend) Broadcaster() coord.Broadcaster { return broadcaster{b} }
func (b *backend) Directory() coord.Directory     { return directory{b} }
func (b *backend) Calls() coord.Calls             { return calls{b} }
func (b *backend) Receipts() coord.Receipts       { return receipts{b} }
func (b *backend) Elector() coord.Elector         { return elector{b} }
func (b *backend) Keyring() coord.Keyring         { return keyring{b} }

func (b *backend) Close(ctx context.Context) error {
	b.closing.Do(func() {
		b.feed.Close()
		b.waits.Close()
		b.stop()
		go func() {
			defer close(b.closed)
			b.loops.Wait()
			for _, db := range b.own {
				_ = db.Close()
			}
		}()
	})
	select {
	case <-b.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *backend) log() *slog.Logger { return b.o.Logger }
