package pg_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// pools keeps what an observer is told of a backend's pools.
type pools struct {
	mu    sync.Mutex
	stats map[string]func() sql.DBStats
}

func (p *pools) Observe(context.Context, coord.Observation) {}

func (p *pools) Pool(name string, stats func() sql.DBStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stats == nil {
		p.stats = make(map[string]func() sql.DBStats)
	}
	p.stats[name] = stats
}

// All connections of the work pool are in use, by statements that wait for a lock. Who finds none
// free is told within a bounded time that the store is unavailable, and is not left waiting.
// Meanwhile leases are extended, limits decided, other replicas heard, and the server is found to
// be well.
func TestWorkPoolIsExhausted(t *testing.T) {
	t.Parallel()
	database := testenv.NewDatabase(t, "coord_live", migrate)
	work, err := pg.OpenDB(database, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = work.Close() })
	probe, err := pg.OpenProbe(work)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = probe.Close() })
	told, log := &pools{}, newLines()
	options := log.options()
	options.Observer = told
	// On a busy machine a first statement may take longer than the limiter waits. In the work pool it would wait
	// for longer than this, too.
	options.Limiter.Deadline = 5 * time.Second
	b := openWith(t, pg.Options{URL: database, DB: work, Probe: probe, Poll: 100 * time.Millisecond, Options: options})
	log.wait(t, "listening for other replicas", 1)
	other := openWith(t, pg.Options{URL: database, Poll: time.Hour})
	s := subscribe(t, b, "a")
	term, err := b.Elector().Stand(t.Context(), coord.Candidacy{Name: "n", Candidate: "c"})
	if err != nil {
		t.Fatal(err)
	}

	db := admin(t, database)
	lock := begin(t, db)
	exec(t, lock, `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE coord_tasks`)
	var blocked sync.WaitGroup
	for i := range 2 {
		blocked.Go(func() {
			_, _ = b.Claimer().PutTask(t.Context(), coord.Task{Name: fmt.Sprint(i), Kind: "k"})
		})
	}
	eventually(t, "both connections are in use", func(context.Context) (bool, error) {
		told.mu.Lock()
		defer told.mu.Unlock()
		return told.stats["work"]().InUse == 2, nil
	})
	var refused sync.WaitGroup
	var late atomic.Int32 // who waited for as long as may be; lock_timeout frees connections for a few
	for range 8 {
		refused.Go(func() {
			_, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "more", Kind: "k"})
			if !errors.Is(err, coord.ErrUnavailable) {
				t.Errorf("a call that finds no free connection: %v, want ErrUnavailable", err)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				late.Add(1)
			}
		})
	}

	for range 3 {
		if err := b.Ping(t.Context()); err != nil {
			t.Errorf("Ping beside a busy pool: %v", err)
		}
	}
	if d, err := b.Limiter().Allow(t.Context(), coord.Limit{Key: "k", Rate: 100, Per: time.Second}); err != nil || d.Degraded {
		t.Errorf("Allow beside a busy pool: %+v, %v", d, err)
	}
	publish(t, other, "a", "heard")
	want(t, "beside a busy pool", receive(t, s, 1), "heard")
	if _, err := b.Elector().Extend(t.Context(), term.Term, time.Minute); err != nil {
		t.Errorf("Extend beside a busy pool: %v", err)
	}
	refused.Wait()
	blocked.Wait()
	if late.Load() < 4 {
		t.Errorf("the wait of %d of 8 calls was bounded", late.Load())
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "after", Kind: "k"}); err != nil {
		t.Errorf("when the pool is free again: %v", err)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	for name, most := range map[string]int{"work": 2, "limiter": 4, "coordination": 4, "probe": 1} {
		if stats := told.stats[name]; stats == nil || stats().MaxOpenConnections != most {
			t.Errorf("the pool %q was told of wrongly", name)
		}
	}
	if told.stats["work"]().WaitCount == 0 {
		t.Error("nobody has waited for a connection")
	}
}

// A transaction has waited for a connection, and the time for both runs out while it is under way.
func TestPatienceEndsInATransaction(t *testing.T) {
	t.Parallel()
	database := testenv.NewDatabase(t, "coord_live", migrate)
	work, err := pg.OpenDB(database, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = work.Close() })
	b := openWith(t, pg.Options{URL: database, ListenURL: nobody, DB: work, Poll: time.Hour})
	for name, more := range map[string]func(ctx context.Context, tx coord.Tx) error{
		"at a statement": func(ctx context.Context, tx coord.Tx) error {
			for {
				if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"}); err != nil {
					return err
				}
			}
		},
		"at the commit": func(_ context.Context, tx coord.Tx) error {
			for {
				if _, err := tx.Unwrap().(bun.Tx).Exec(`SELECT 1`); err != nil {
					return nil //nolint:nilerr // what the commit says then is looked at
				}
			}
		},
	} {
		held, err := work.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before, ended := work.Stats().WaitCount, make(chan error, 1)
		go func() { ended <- b.InTx(t.Context(), more) }()
		eventually(t, "it waits for a connection", func(context.Context) (bool, error) { return work.Stats().WaitCount > before, nil })
		_ = held.Close()
		if err := receiveOne(t, ended); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
}

// The server stands still, or its packets are dropped. Ping says so within seconds, whatever its
// caller's patience, and says soon that it is over.
func TestPingFindsOut(t *testing.T) {
	t.Run("the server stands still", func(t *testing.T) {
		t.Parallel()
		server := ownCluster(t)
		url := server.NewDatabase(t, "coord_live", migrate)
		b := openWith(t, pg.Options{URL: url})
		for range 2 {
			thaw := freeze(t, server, url)
			for range 2 {
				pingFails(t, b)
			}
			thaw()
			eventually(t, "Ping works again", func(ctx context.Context) (bool, error) { return b.Ping(ctx) == nil, nil })
		}
	})
	t.Run("packets are dropped", func(t *testing.T) {
		t.Parallel()
		database := testenv.NewDatabase(t, "coord_live", migrate)
		p, through := startProxy(t, database, false)
		b := openWith(t, pg.Options{URL: through, ListenURL: nobody})
		for range 2 {
			p.dropPackets()
			pingFails(t, b)
			eventually(t, "Ping works again, on another connection", func(ctx context.Context) (bool, error) { return b.Ping(ctx) == nil, nil })
		}
	})
}

func pingFails(t *testing.T, b coord.Backend) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- b.Ping(context.WithoutCancel(t.Context())) }()
	if err := receiveOne(t, ended); !errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUnknownOutcome) {
		t.Errorf("Ping: %v, want ErrUnavailable and nothing about an outcome", err)
	}
}

// The answer to what only reads is lost. The caller notices nothing.
func TestReadsAreRepeated(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	b := openWith(t, pg.Options{URL: through, ListenURL: database, Poll: time.Second})
	queued := enqueue(t, b, coord.NewRun{Kind: "k"})[0]
	p.cutAfter("coord_runs")
	if run, err := b.Claimer().Run(t.Context(), queued.ID); err != nil || run.ID != queued.ID {
		t.Errorf("Run: %+v, %v", run, err)
	}
	p.cutAfter("coord_leaders")
	if _, err := b.Elector().Leaders(t.Context()); err != nil {
		t.Errorf("Leaders: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut != "" {
		t.Errorf("no answer to a statement with %q was lost", p.cut)
	}
}

// Whoever stands before a server that takes no connection any more, for it has as many as it may, is
// told so.
func TestServerHasNoConnectionLeft(t *testing.T) {
	c, err := testenv.StartCluster(t.Context(), testenv.Options{Settings: map[string]string{
		"max_connections": "12", "superuser_reserved_connections": "0", "max_wal_senders": "0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	url := c.NewDatabase(t, "coord_live", migrate)
	b := openWith(t, pg.Options{URL: url, MaxConns: 20, Poll: 100 * time.Millisecond})
	greedy, err := pg.OpenDB(url, 12)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = greedy.Close() })
	var held []bun.Conn
	for {
		conn, err := greedy.Conn(t.Context())
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}); !errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUnknownOutcome) {
		t.Errorf("Enqueue: %v, want ErrUnavailable and a known outcome", err)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	_ = greedy.Close()
	eventually(t, "runs can be queued again", func(ctx context.Context) (bool, error) {
		_, err := b.Claimer().Enqueue(ctx, coord.NewRun{Kind: "k"})
		return err == nil, nil
	})
}
