package pg

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/batch"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type limiter struct{ b *backend }

// Concurrent decisions of one replica share a statement.
const (
	limitBatch   = 32     // calls
	limitBuckets = 256    // that they ask for together; a call for more goes alone
	limitFlights = 3      // statements at a time, when they are full or take long
	limitWaiting = 10_000 // calls that wait for one
)

// limiterTimeouts are those of the limiter's pool: nobody waits for longer than the
// deadline.
func limiterTimeouts(deadline time.Duration) map[string]string {
	return map[string]string{
		"statement_timeout": strconv.FormatInt(max(1, deadline.Milliseconds()), 10),
		"lock_timeout":      strconv.FormatInt(max(1, deadline.Milliseconds()*4/5), 10),
	}
}

// limitTime bounds a statement that the server does not end in time, so that those who
// come later find a connection. That its caller leaves, who does not wait for it, does not
// end it: that would cost the connection.
func (b *backend) limitTime(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(2*b.o.Limiter.Deadline, batch.Timeout))
	stop := context.AfterFunc(bounded, b.giveUpIdle)
	return bounded, func() {
		stop()
		cancel()
	}
}

// giveUpIdle closes the limiter's idle connections. Where one leads to nowhere they do too,
// and not each is to be found out by a caller of its own.
func (b *backend) giveUpIdle() { pool{b.limits.DB, limiterConns}.giveUpIdle() }

// limitError is storeError for a statement that limitTime has bounded.
func (b *backend) limitError(bounded context.Context, err error) error {
	err = storeError(context.WithoutCancel(bounded), err)
	if errors.Is(err, coord.ErrUnavailable) && bounded.Err() == nil {
		b.giveUpIdle()
	}
	return err
}

// micros is the clock in microseconds since 1970.
const micros = `coord_micros()`

func (l limiter) Allow(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	ds, err := l.AllowAll(ctx, limit)
	if err != nil {
		return coord.Decision{}, err
	}
	return ds[0], nil
}

func (l limiter) AllowAll(ctx context.Context, limits ...coord.Limit) ([]coord.Decision, error) {
	return l.b.decisions.Do(ctx, limits)
}

// Peek shares a statement too, for then it ends with its context at once.
func (l limiter) Peek(ctx context.Context, limit coord.Limit) (coord.Decision, error) {
	return l.b.looks.Do(ctx, limit)
}

// lookShared answers several calls of Peek.
func (b *backend) lookShared(ctx context.Context, limits []coord.Limit) ([]coord.Decision, error) {
	bounded, cancel := b.limitTime(ctx)
	defer cancel()
	keys := make([]byte, 0, row.LimitKeyBytes*len(limits))
	for _, limit := range limits {
		keys = append(keys, row.LimitKey(limit.Key)...)
	}
	var ahead pq.Int64Array
	err := b.limits.NewRaw(`SELECT array_agg(greatest(COALESCE(
			(SELECT l.tat FROM coord_limits l WHERE l.key = substring(?0::bytea FROM i * 16 - 15 FOR 16)), 0), clock) - clock ORDER BY i)
		FROM generate_series(1, ?1) AS i, (SELECT `+micros+` AS clock OFFSET 0) AS c`, keys, len(limits)).Scan(bounded, &ahead)
	if err != nil {
		return nil, b.limitError(bounded, err)
	}
	ds := make([]coord.Decision, len(limits))
	for i, limit := range limits {
		ds[i], _ = limit.GCRA().Decide(ahead[i], 0)
	}
	return ds, nil
}

// decideShared answers several calls of Allow and AllowAll. Most ask for one bucket that
// nobody else asks for, and are answered by one statement. What that one can't answer,
// another does.
func (b *backend) decideShared(ctx context.Context, calls [][]coord.Limit) ([][]coord.Decision, error) {
	bounded, cancel := b.limitTime(ctx)
	defer cancel()
	a := newAnswers(calls...)
	asks := a.asks()
	err := a.simple(bounded, b.limits, asks)
	if err == nil {
		err = a.rest(bounded, b.limits, asks)
	}
	if err != nil {
		return nil, b.limitError(bounded, err)
	}
	return a.ds, nil
}

// ask is one bucket of a call.
type ask struct {
	gcra coord.GCRA
	key  []byte
	call int
}

func inKeyOrder(a, b ask) int { return bytes.Compare(a.key, b.key) }

// answers are the decisions of calls, nil for those that have none yet.
type answers struct {
	calls [][]coord.Limit
	ds    [][]coord.Decision
}

func newAnswers(calls ...[]coord.Limit) *answers {
	return &answers{calls: calls, ds: make([][]coord.Decision, len(calls))}
}

// asks are the buckets of all calls, call by call.
func (a *answers) asks() []ask {
	asks := make([]ask, 0, len(a.calls))
	for call, limits := range a.calls {
		for _, limit := range limits {
			asks = append(asks, ask{limit.GCRA(), row.LimitKey(limit.Key), call})
		}
	}
	return asks
}

// simple asks for calls of one bucket each, those of one key and cost together. Calls of
// the same key that differ are answered when they can't be granted behind those.
func (a *answers) simple(ctx context.Context, db bun.IDB, asks []ask) error {
	single := make([]ask, 0, len(asks))
	for _, k := range asks {
		if len(a.calls[k.call]) == 1 {
			single = append(single, k)
		}
	}
	if len(single) == 0 {
		return nil
	}
	slices.SortStableFunc(single, inKeyOrder)
	keys := make([]byte, 0, row.LimitKeyBytes*len(single))
	var costs, totals, most pq.Int64Array
	for i, k := range single {
		switch last := len(costs) - 1; {
		case i == 0 || !bytes.Equal(k.key, single[i-1].key):
			keys = append(keys, k.key...)
			costs, totals, most = append(costs, k.gcra.Cost), append(totals, k.gcra.Cost), append(most, k.gcra.Window)
		case costs[last] == k.gcra.Cost && most[last] == k.gcra.Window:
			totals[last] += k.gcra.Cost
		}
	}
	var ahead pq.Int64Array
	err := db.NewRaw(`SELECT coord_allow(?, ?, ?, ?)`, keys, costs, totals, most).Scan(ctx, &ahead)
	if err != nil {
		return err
	}
	at := 0
	for i, k := range single {
		if i > 0 && !bytes.Equal(k.key, single[i-1].key) {
			at++
		}
		if ahead[at] < 0 {
			continue
		}
		d, tat := k.gcra.Decide(ahead[at], 0)
		switch asked := costs[at] == k.gcra.Cost && most[at] == k.gcra.Window; {
		case asked:
			ahead[at] = tat
		case d.Allowed || tat < ahead[at]:
			continue
		}
		a.ds[k.call] = []coord.Decision{d}
	}
	return nil
}

// rest asks for all that has no answer yet.
func (a *answers) rest(ctx context.Context, db bun.IDB, asks []ask) error {
	asks = slices.DeleteFunc(asks, func(k ask) bool { return a.ds[k.call] != nil })
	if len(asks) == 0 {
		return nil
	}
	sorted := slices.Clone(asks)
	slices.SortFunc(sorted, inKeyOrder)
	sorted = slices.CompactFunc(sorted, func(a, b ask) bool { return bytes.Equal(a.key, b.key) })
	keys := make([]byte, 0, row.LimitKeyBytes*len(sorted))
	for _, k := range sorted {
		keys = append(keys, k.key...)
	}
	calls, places := make(pq.Int64Array, len(asks)), make(pq.Int64Array, len(asks))
	costs, most := make(pq.Int64Array, len(asks)), make(pq.Int64Array, len(asks))
	for i, k := range asks {
		place, _ := slices.BinarySearchFunc(sorted, k, inKeyOrder)
		calls[i], places[i], costs[i], most[i] = int64(k.call), int64(place+1), k.gcra.Cost, k.gcra.Window
	}
	var ahead pq.Int64Array
	err := db.NewRaw(`SELECT coord_allow_all(?, ?, ?, ?, ?)`, keys, calls, places, costs, most).Scan(ctx, &ahead)
	if err != nil {
		return err
	}
	for i := 0; i < len(asks); {
		call := asks[i].call
		n := len(a.calls[call])
		a.ds[call], _ = coord.DecideAll(a.calls[call], ahead[i:i+n], 0)
		i += n
	}
	return nil
}

// Reset has a statement of its own, but for Peek's reason does not wait for it by itself.
func (l limiter) Reset(ctx context.Context, key string) error {
	_, err := l.b.resets.Do(ctx, key)
	return err
}

// reset forgives one key.
func (b *backend) reset(ctx context.Context, key []string) ([]struct{}, error) {
	bounded, cancel := b.limitTime(ctx)
	defer cancel()
	_, err := b.limits.NewRaw(`DELETE FROM coord_limits WHERE key = ?`, row.LimitKey(key[0])).Exec(bounded)
	return make([]struct{}, 1), b.limitError(bounded, err)
}

// Reap uses the pool for the work, where a statement may take its time.
func (l limiter) Reap(ctx context.Context) (int, error) {
	res, err := l.b.db.NewRaw(`DELETE FROM coord_limits WHERE key IN (
		SELECT key FROM coord_limits WHERE tat <= `+micros+` LIMIT ? FOR UPDATE SKIP LOCKED)`, reapBatch).Exec(ctx)
	if err != nil {
		return 0, storeError(ctx, err)
	}
	n, _ := res.RowsAffected()
	return int(n), nil
}
