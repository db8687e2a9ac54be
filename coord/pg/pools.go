package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/batch"
)

// The pools for limiter, coordination and probe are apart from that of the work, so
// that a busy application starves none of them.
const (
	limiterConns      = 4
	coordinationConns = 4
	probeConns        = 1
	migratorConns     = 2
)

// PoolObserver is a [coord.Observer] that is also told of the driver's pools of connections, once,
// when a backend is opened: "work", "limiter", "coordination" and "probe".
type PoolObserver interface {
	coord.Observer
	// Pool may keep stats and call it at any time.
	Pool(name string, stats func() sql.DBStats)
}

// pools tells the observer of them.
func (b *backend) pools() {
	o, ok := b.o.Observer.(PoolObserver)
	if !ok {
		return
	}
	for name, db := range map[string]*bun.DB{"work": b.db, "limiter": b.limits, "coordination": b.coordination, "probe": b.probe} {
		o.Pool(name, db.Stats)
	}
}

// poolPatience bounds a statement, or a transaction, that finds all connections of the work pool
// in use: what it waits for one, and all that comes then. Of a context's patience it spends what
// the statement takes, or BEGIN.
const poolPatience = 10 * time.Second

// boundWaiting keeps those who find no free connection from waiting without end: database/sql
// waits for as long as the context lasts.
type boundWaiting struct{ db *sql.DB }

// over is the key of what tells that a wait is over.
type over struct{}

func (h boundWaiting) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if !exhausted(h.db) {
		return ctx
	}
	ctx, done := coord.Wait(ctx, poolPatience)
	if e.Stash == nil {
		e.Stash = make(map[any]any)
	}
	e.Stash[over{}] = done
	return ctx
}

func (boundWaiting) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if done, ok := e.Stash[over{}].(func()); ok {
		done()
	}
}

func exhausted(db *sql.DB) bool {
	s := db.Stats()
	return s.InUse >= s.MaxOpenConnections
}

// share sends an item of a statement of the work pool that several callers share. Who finds the pool exhausted
// waits for as long as they would alone. The statement itself goes by nobody's patience.
func share[T, R any](ctx context.Context, b *backend, by *batch.Batcher[T, R], item T) (R, error) {
	waiting, done := ctx, func() {}
	if exhausted(b.db.DB) {
		waiting, done = coord.Wait(ctx, poolPatience)
	}
	defer done()
	result, err := by.Do(coord.WithPatience(waiting, poolPatience), item)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil && !errors.Is(err, coord.ErrUnavailable) {
		// It may be under way.
		return result, fmt.Errorf("%w: %w", coord.ErrUnknownOutcome, err)
	}
	return result, storeError(ctx, err)
}

// probeTime is how long a server may take to say that it is there.
const probeTime = 2 * time.Second

// OpenProbe returns a pool of one connection for [Options.Probe], on which nobody waits for
// longer than two seconds. It leads where the work pool does, which OpenDB has returned.
func OpenProbe(work *bun.DB) (*bun.DB, error) {
	d, ok := work.Driver().(routedDriver)
	if !ok {
		return nil, errors.New("pg: the work pool was not opened by OpenDB")
	}
	return openProbe(d.route)
}

func openProbe(r *route) (*bun.DB, error) {
	limit := strconv.FormatInt(probeTime.Milliseconds(), 10)
	return openDB(r, probeConns, map[string]string{
		"statement_timeout": limit, "lock_timeout": limit, "idle_in_transaction_session_timeout": limit,
	})
}

// Ping asks on a connection of its own, so that it tells of the server and not of how busy the
// pools are, and takes two seconds at most.
func (b *backend) Ping(ctx context.Context) error {
	now := b.route.era.Load()
	asking, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var readOnly []bool
	err := b.probe.NewRaw(`SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool`).Scan(asking, &readOnly)
	switch {
	case ctx.Err() == nil && asking.Err() != nil:
		return fmt.Errorf("%w: no answer within %v", coord.ErrUnavailable, probeTime)
	case errors.Is(err, coord.ErrUnknownOutcome) && ctx.Err() == nil:
		// Nothing was to come out of it.
		return fmt.Errorf("%w: %v", coord.ErrUnavailable, err) //nolint:errorlint // it is not that
	case err != nil:
		return storeError(ctx, err)
	case len(readOnly) == 1 && readOnly[0]:
		return now.standby()
	}
	return nil
}
