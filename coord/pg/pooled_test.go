package pg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// pooledStore is a store behind a pooler in transaction mode.
type pooledStore struct {
	*store
	pooler *testenv.Pooler
	listen bool // directly; else nothing is heard
}

func newPooledStore(t *testing.T, pooler *testenv.Pooler, listen bool) *pooledStore {
	t.Helper()
	return &pooledStore{newStore(t).(*store), pooler, listen}
}

func (s *pooledStore) Open(t *testing.T) coord.Backend {
	t.Helper()
	o := pg.Options{
		URL: s.pooler.Through(s.url), MaxConns: 8, Poll: 100 * time.Millisecond,
		Options: coord.Options{Limiter: coordtest.LimiterOptions},
	}
	if s.listen {
		o.ListenURL = s.url
	}
	b, err := pg.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// open opens a backend for a test that is not of the suite.
func (s *pooledStore) open(t *testing.T) coord.Backend {
	t.Helper()
	b := s.Open(t)
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestPooledConformance runs the suite of all drivers through a pooler.
func TestPooledConformance(t *testing.T) {
	pooler := testenv.NewPooler(t)
	coordtest.Run(t, coordtest.Harness{
		New:          func(t *testing.T) coordtest.Store { return newPooledStore(t, pooler, true) },
		Capabilities: coordtest.Capabilities{SeveralHandles: true, Rows: true, ClockBack: true, Hints: true},
		Checks:       2,
		Steps:        20,
	})
}

// TestPooledWithoutListen has news that nobody announces arrive by polling: what one
// handle publishes, alone, in bulk and in transactions, another sees in order and whole.
func TestPooledWithoutListen(t *testing.T) {
	s := newPooledStore(t, testenv.NewPooler(t), false)
	one, two := s.open(t), s.open(t)
	stream, err := two.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{"t": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	const publishers, each = 4, 30
	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for i := range each {
				e := coord.NewEvent{Topic: "t", Kind: "k"}
				var err error
				switch i % 3 {
				case 0:
					_, err = one.Broadcaster().Publish(t.Context(), e)
				case 1:
					_, err = one.Broadcaster().Publish(t.Context(), e, e)
				case 2:
					err = one.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error { return tx.Publish(ctx, e, e, e) })
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	const total = publishers * each / 3 * (1 + 2 + 3)
	for seen := int64(0); seen < total; {
		events, err := stream.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if seen++; e.Position.Seq != seen {
				t.Fatalf("event %d came as number %d", e.Position.Seq, seen)
			}
		}
	}
	publishing.Wait()

	queued, err := one.Claimer().Enqueue(t.Context(), slices.Repeat([]coord.NewRun{{Kind: "k"}}, 20)...)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := two.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "two", Kinds: []string{"k"}, Limit: 100, Lease: time.Minute})
	if err != nil || len(claims) != len(queued) {
		t.Errorf("%d runs were claimed, %v; want %d", len(claims), err, len(queued))
	}
}

// TestPooledContextsEnd has callers give up while their statements wait for a lock. The
// pooler, which in some versions ends on a cancel request, gets none, and others work on through it.
func TestPooledContextsEnd(t *testing.T) {
	pooler := testenv.NewPooler(t)
	s := newPooledStore(t, pooler, true)
	b := s.open(t)
	for round := range 5 {
		tx, err := s.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), `LOCK TABLE coord_runs`); err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for i := range 6 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+i)*time.Millisecond)
				defer cancel()
				_, err := b.Claimer().Enqueue(ctx, coord.NewRun{Kind: "k", UniqueKey: fmt.Sprint(round, i)})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a call that waited for a lock: %v", err)
				}
				if err := b.Ping(t.Context()); err != nil {
					t.Errorf("Ping: %v", err)
				}
			})
		}
		callers.Wait()
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k", UniqueKey: fmt.Sprint(round, i)}); err != nil {
				t.Errorf("again, when the lock was free: %v", err)
			}
		}
	}
	if strings.Contains(pooler.Log(), "cancel request") {
		t.Error("the pooler was sent cancel requests")
	}
}
