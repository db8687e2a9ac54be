package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// treadmill is a store without a store: it always has runs, until enough were
// finished.
type treadmill struct {
	coord.Claimer
	total          int64
	given          int64
	finished       atomic.Int64
	claims, writes atomic.Int64
	done           chan struct{}
}

func (t *treadmill) Hints() (<-chan struct{}, func())   { return nil, func() {} }
func (t *treadmill) Cancels() (<-chan struct{}, func()) { return nil, func() {} }

func (t *treadmill) NextDue(context.Context, ...string) (time.Duration, bool, error) {
	return 0, false, nil
}

func (t *treadmill) Claim(_ context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	n := min(int64(o.Limit), t.total-t.given)
	if n > 0 {
		t.claims.Add(1)
	}
	claims := make([]coord.Claim, n)
	deadline := time.Now().Add(o.Lease)
	for i := range claims {
		t.given++
		claims[i] = coord.Claim{Run: coord.Run{ID: coord.RunID(t.given), Kind: kind, Attempt: 1}, Token: 1, Deadline: deadline}
	}
	return claims, nil
}

func (t *treadmill) Finish(_ context.Context, results ...coord.Result) error {
	t.writes.Add(1)
	if t.finished.Add(int64(len(results))) == t.total {
		close(t.done)
	}
	return nil
}

// BenchmarkRun is the way of a run through a worker of 1,000 handlers: claimed,
// handed to one that does nothing, and finished.
func BenchmarkRun(b *testing.B) {
	options := Options{Name: "bench", Handlers: map[string]Handler{kind: noop}, Concurrency: 1000}
	work := func(b *testing.B, c coord.Claimer, done <-chan struct{}) {
		w, err := New(c, options)
		if err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = w.Run(ctx)
		}()
		<-done
		b.StopTimer()
		stop()
		<-ended
	}
	b.Run("worker alone", func(b *testing.B) {
		b.ReportAllocs()
		t := &treadmill{total: int64(b.N), done: make(chan struct{})}
		work(b, t, t.done)
		b.ReportMetric(float64(b.N)/float64(t.claims.Load()), "runs/claim")
		b.ReportMetric(float64(b.N)/float64(t.writes.Load()), "runs/finish")
	})
	b.Run("memory", func(b *testing.B) {
		b.ReportAllocs()
		backend := memory.Open(memory.Options{})
		defer backend.Close(context.WithoutCancel(b.Context()))
		runs := slices.Repeat([]coord.NewRun{{Kind: kind}}, b.N)
		for part := range slices.Chunk(runs, coord.MaxEnqueue) {
			if _, err := backend.Claimer().Enqueue(b.Context(), part...); err != nil {
				b.Fatal(err)
			}
		}
		c := &counter{Claimer: backend.Claimer(), total: int64(b.N), done: make(chan struct{})}
		b.ResetTimer()
		work(b, c, c.done)
	})
}

// counter counts what is finished.
type counter struct {
	coord.Claimer
	total    int64
	finished atomic.Int64
	done     chan struct{}
}

func (c *counter) Finish(ctx context.Context, results ...coord.Result) error {
	if err := c.Claimer.Finish(ctx, results...); err != nil {
		return err
	}
	if c.finished.Add(int64(len(results))) == c.total {
		close(c.done)
	}
	return nil
}
