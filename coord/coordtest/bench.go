package coordtest

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// BenchHarness tells the benchmarks how to get at a driver.
type BenchHarness struct {
	// Open makes an empty store, on the clock that it has in production, and opens
	// a handle on it, which the benchmark closes.
	Open func(b *testing.B) coord.Backend
}

// Bench runs every workload as a sub-benchmark, "claim/callers=8" and so on. An
// operation of a benchmark is a call of Workload.Op; items/s and p99-ns are
// reported besides.
func Bench(b *testing.B, h BenchHarness) {
	for i, w := range Workloads(nil) {
		b.Run(fmt.Sprintf("%s/callers=%d", w.Name, w.Callers), func(b *testing.B) {
			backend := h.Open(b)
			w := Workloads(backend)[i]
			if err := w.Setup(b.Context()); err != nil {
				b.Fatal(err)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			sample, err := measure(b.Context(), w.Name, w.Callers, func(time.Time) bool { return left.Add(-1) >= 0 }, w.Op)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(sample.PerSecond, "items/s")
			b.ReportMetric(float64(sample.P99), "p99-ns")
			w.Close()
			if err := backend.Close(context.WithoutCancel(b.Context())); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// Workload is something that a number of callers do over and over.
type Workload struct {
	Name    string // "claim", "claim-single", "decision-uniform" …
	Callers int
	// Setup prepares the store; call it once, before Op.
	Setup func(ctx context.Context) error
	// Op does a piece of it and returns how many items that were: runs, decisions,
	// tickets or events. A caller, counted from 0, calls it again when it returns.
	Op func(ctx context.Context, caller int) (n int, err error)
	// Close gives up what Setup took.
	Close func()
}

// Workloads returns the workloads on a backend, each for 1, 8 and 32 callers:
//
//	claim                claims up to 100 runs of 10,000 and releases them
//	claim-single         claims one run of 1,000 and releases it
//	decision-uniform     a granted decision on one of 10,000 keys
//	decision-hot-denied  a denied decision on one key
//	ticket               issues a ticket of one of 1,000 sessions and redeems it
//	receipt              does what is asked for under a fresh key, which is nothing
//	receipt-again        gets the stored outcome of one of 1,000 keys, 200 bytes
//	publish-many         publishes an event of 200 bytes on one of 1,000 topics
//	publish-hot          publishes an event of 200 bytes on one topic
//	deliver              publishes an event and reads a stream of all callers' events up
//	                     to it; its items are the events that were read
func Workloads(b coord.Backend) []Workload {
	var all []Workload
	for _, callers := range []int{1, 8, 32} {
		l := load{b, coord.NewTicketSecret()} // names that no other load has
		all = append(all,
			l.claims("claim", callers, 10_000, 100),
			l.claims("claim-single", callers, 1_000, 1),
			l.decisions(callers),
			l.denials(callers),
			l.tickets(callers),
			l.receipts(callers),
			l.replays(callers),
			l.publishes("publish-many", callers, 1_000),
			l.publishes("publish-hot", callers, 1),
			l.deliveries(callers),
		)
	}
	return all
}

type load struct {
	coord.Backend
	id string
}

func nothing(context.Context) error { return nil }

// randoms returns one source per caller.
func randoms(callers int) []*rand.Rand {
	sources := make([]*rand.Rand, callers)
	for i := range sources {
		sources[i] = rand.New(rand.NewPCG(1, uint64(i)))
	}
	return sources
}

// names returns n names that no other load has, made beforehand so that making
// them is not measured.
func (l load) names(kind string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%s/%d", kind, l.id, i)
	}
	return names
}

func (l load) claims(name string, callers, backlog, limit int) Workload {
	o := coord.ClaimOptions{Worker: "bench", Kinds: l.names(name, 1), Limit: limit, Lease: time.Hour}
	return Workload{
		Name: name, Callers: callers, Close: func() {},
		Setup: func(ctx context.Context) error {
			runs := make([]coord.NewRun, min(backlog, 1000))
			for i := range runs {
				runs[i] = coord.NewRun{Kind: o.Kinds[0], Payload: []byte("benchmark")}
			}
			for queued := 0; queued < backlog; queued += len(runs) {
				if _, err := l.Claimer().Enqueue(ctx, runs...); err != nil {
					return err
				}
			}
			return nil
		},
		// They are released and not finished, so that the backlog stays as it is.
		Op: func(ctx context.Context, _ int) (int, error) {
			claims, err := l.Claimer().Claim(ctx, o)
			if err != nil {
				return 0, err
			}
			results := make([]coord.Result, len(claims))
			for i, c := range claims {
				results[i] = coord.Result{Claim: c, Outcome: coord.Release}
			}
			return len(claims), l.Claimer().Finish(ctx, results...)
		},
	}
}

func (l load) decisions(callers int) Workload {
	keys, random := l.names("key", 10_000), randoms(callers)
	return Workload{
		Name: "decision-uniform", Callers: callers, Setup: nothing, Close: func() {},
		Op: func(ctx context.Context, caller int) (int, error) {
			key := keys[random[caller].IntN(len(keys))]
			d, err := l.Limiter().Allow(ctx, coord.Limit{Key: key, Rate: 1_000_000, Per: time.Second})
			if err == nil && (!d.Allowed || d.Degraded) {
				err = fmt.Errorf("a decision that should be granted is %+v", d)
			}
			return 1, err
		},
	}
}

func (l load) denials(callers int) Workload {
	limit := coord.Limit{Key: l.names("hot", 1)[0], Rate: 1, Per: 24 * time.Hour}
	allow := func(ctx context.Context, want bool) error {
		d, err := l.Limiter().Allow(ctx, limit)
		if err == nil && d.Allowed != want {
			err = fmt.Errorf("the decision on a hot key is %v", d.Allowed)
		}
		return err
	}
	return Workload{
		Name: "decision-hot-denied", Callers: callers, Close: func() {},
		Setup: func(ctx context.Context) error { return allow(ctx, true) },
		Op:    func(ctx context.Context, _ int) (int, error) { return 1, allow(ctx, false) },
	}
}

func (l load) tickets(callers int) Workload {
	sessions, random := l.names("session", 1_000), randoms(callers)
	return Workload{
		Name: "ticket", Callers: callers, Setup: nothing, Close: func() {},
		Op: func(ctx context.Context, caller int) (int, error) {
			t := pass(sessions[random[caller].IntN(len(sessions))])
			ticket, err := l.Tickets().Issue(ctx, t)
			if err != nil {
				return 0, err
			}
			_, err = l.Tickets().Redeem(ctx, ticket.Secret, using(t))
			return 1, err
		},
	}
}

// nothingDone is what is done under a key.
func nothingDone(context.Context, coord.Receipt) ([]byte, error) { return benchPayload, nil }

func (l load) receipts(callers int) Workload {
	var number atomic.Int64
	return Workload{
		Name: "receipt", Callers: callers, Setup: nothing, Close: func() {},
		Op: func(ctx context.Context, _ int) (int, error) {
			key := fmt.Sprintf("receipt/%s/%d", l.id, number.Add(1))
			_, _, err := coord.Do(ctx, l.Receipts(), coord.ReceiptFor{Key: key, Fingerprint: benchPayload}, nothingDone)
			return 1, err
		},
	}
}

func (l load) replays(callers int) Workload {
	keys, random := l.names("done", 1_000), randoms(callers)
	do := func(ctx context.Context, key string) error {
		_, _, err := coord.Do(ctx, l.Receipts(), coord.ReceiptFor{Key: key, Fingerprint: benchPayload}, nothingDone)
		return err
	}
	return Workload{
		Name: "receipt-again", Callers: callers, Close: func() {},
		Setup: func(ctx context.Context) error {
			for _, key := range keys {
				if err := do(ctx, key); err != nil {
					return err
				}
			}
			return nil
		},
		Op: func(ctx context.Context, caller int) (int, error) {
			return 1, do(ctx, keys[random[caller].IntN(len(keys))])
		},
	}
}

var benchPayload = make([]byte, 200)

func (l load) publishes(name string, callers, topics int) Workload {
	names, random := l.names(name, topics), randoms(callers)
	return Workload{
		Name: name, Callers: callers, Setup: nothing, Close: func() {},
		Op: func(ctx context.Context, caller int) (int, error) {
			topic := names[random[caller].IntN(len(names))]
			_, err := l.Broadcaster().Publish(ctx, coord.NewEvent{Topic: topic, Kind: "bench", Payload: benchPayload})
			return 1, err
		},
	}
}

func (l load) deliveries(callers int) Workload {
	topic := l.names("deliver", 1)[0]
	streams := make([]coord.Stream, callers)
	read := make([]int64, callers) // the number of the last event that the caller has read
	return Workload{
		Name: "deliver", Callers: callers,
		Setup: func(ctx context.Context) (err error) {
			for i := range streams {
				streams[i], err = l.Broadcaster().Subscribe(ctx, map[string]coord.Position{topic: coord.Head})
				if err != nil {
					return err
				}
			}
			return nil
		},
		Op: func(ctx context.Context, caller int) (n int, err error) {
			own, err := l.Broadcaster().Publish(ctx, coord.NewEvent{Topic: topic, Kind: "bench", Payload: benchPayload})
			if err != nil {
				return 0, err
			}
			for read[caller] < own[0].Seq {
				events, err := streams[caller].Next(ctx)
				if err != nil {
					return n, err
				}
				n += len(events)
				read[caller] = events[len(events)-1].Position.Seq
			}
			return n, nil
		},
		Close: func() {
			for _, stream := range streams {
				if stream != nil {
					stream.Close()
				}
			}
		},
	}
}

// Sample is what was measured of a workload.
type Sample struct {
	Name      string
	Callers   int
	Calls     int64
	PerSecond float64       // items
	P50, P99  time.Duration // of a call; exact to 3 %
}

// Measure lets the callers call op over and over for a duration. The first
// error ends it.
func Measure(
	ctx context.Context, name string, callers int, d time.Duration, op func(ctx context.Context, caller int) (n int,
		err error),
) (Sample, error) {
	end := time.Now().Add(d)
	return measure(ctx, name, callers, func(now time.Time) bool { return now.Before(end) }, op)
}

func measure(
	ctx context.Context, name string, callers int, more func(now time.Time) bool, op func(context.Context, int) (int, error),
) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var items atomic.Int64
	spreads := make([]spread, callers)
	var working sync.WaitGroup
	began := time.Now()
	for caller := range callers {
		working.Go(func() {
			own := 0
			for now := time.Now(); more(now); {
				n, err := op(ctx, caller)
				if err != nil {
					cancel(fmt.Errorf("%s: %w", name, err))
					return
				}
				own += n
				returned := time.Now()
				spreads[caller].add(returned.Sub(now))
				now = returned
			}
			items.Add(int64(own))
		})
	}
	working.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return Sample{}, err
	}
	var all spread
	for i := range spreads {
		all.merge(&spreads[i])
	}
	return Sample{
		Name: name, Callers: callers, Calls: all.total,
		PerSecond: float64(items.Load()) / took.Seconds(), P50: all.quantile(0.50), P99: all.quantile(0.99),
	}, nil
}

// spread counts durations in classes whose width is 1/32 of their value.
type spread struct {
	counts [64 * 32]int64
	total  int64
}

func (s *spread) add(d time.Duration) {
	s.counts[class(d)]++
	s.total++
}

func (s *spread) merge(o *spread) {
	for i, n := range o.counts {
		s.counts[i] += n
	}
	s.total += o.total
}

// class keeps the five bits behind the leading one.
func class(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 32 {
		return int(v)
	}
	shift := bits.Len64(v) - 6
	return (shift+1)*32 + int(v>>shift) - 32
}

// lowest is the lowest duration of a class.
func lowest(class int) time.Duration {
	if class < 32 {
		return time.Duration(class)
	}
	return time.Duration(uint64(class%32+32) << (class/32 - 1))
}

func (s *spread) quantile(q float64) time.Duration {
	rank := int64(q * float64(s.total))
	for i, n := range s.counts {
		if rank -= n; rank < 0 {
			return lowest(i)
		}
	}
	return 0
}
