package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// backlog is many runs that are due, ours or the floor's, of which callers claim
// some and finish them, over and over.
type backlog interface {
	add(ctx context.Context, n int) error
	rest(ctx context.Context) error
	// cycle claims up to limit runs, finishes them, and returns how many they were.
	cycle(ctx context.Context, limit int) (int, error)
}

// backlogRows are the rows of claiming and finishing; the backlog lasts at that rate.
func backlogRows(rate int) (all []measurement) {
	sizes := []struct {
		suffix string
		limit  int
		rate   int
	}{{"", 100, rate}, {"-single", 1, rate / 8}}
	for _, callers := range []int{1, 8, 32} {
		for _, size := range sizes {
			all = append(all, measurement{
				fmt.Sprintf("claim-finish%s/%d", size.suffix, callers),
				func(ctx context.Context, sub subject, length time.Duration, prepares func(string)) (row, error) {
					return queueRow(ctx, sub, crew{}, func(s shared, q queue) (row, error) {
						plain, err := s.jobs(ctx)
						if err != nil {
							return row{}, err
						}
						claim := func(b backlog) side { return claimFinish(b, callers, size.limit, size.rate, prepares) }
						return compare(ctx, length, claim(oursBacklog{q, s.backend()}), "floor", claim(plain))
					})
				},
			})
		}
	}
	for _, size := range sizes {
		const callers = 8
		all = append(all, measurement{
			fmt.Sprintf("aged%s/%d", size.suffix, callers),
			func(ctx context.Context, sub subject, length time.Duration, prepares func(string)) (row, error) {
				return queueRow(ctx, sub, crew{}, func(aged shared, agedQueue queue) (row, error) {
					if err := age(ctx, aged, agedQueue, length, prepares); err != nil {
						return row{}, err
					}
					return queueRow(ctx, sub, crew{}, func(empty shared, emptyQueue queue) (row, error) {
						claim := func(s shared, q queue) side {
							return claimFinish(oursBacklog{q, s.backend()}, callers, size.limit, size.rate, prepares)
						}
						return compare(ctx, length, claim(aged, agedQueue), "empty", claim(empty, emptyQueue))
					})
				})
			},
		})
	}
	return all
}

// age fills the store with a million runs of tomorrow and a million that ended, or
// with fewer when less than a second is to be measured.
func age(ctx context.Context, s shared, q queue, length time.Duration, prepares func(string)) error {
	n := int(min(1, length.Seconds()) * 1_000_000)
	prepares(fmt.Sprintf("adding %d future and %d ended runs", n, n))
	if err := q.add(ctx, 1); err != nil {
		return err
	}
	if _, err := (oursBacklog{q, s.backend()}).cycle(ctx, 1); err != nil {
		return err
	}
	future := coord.NewRun{Kind: kind, Payload: stamp(time.Now()), Delay: 24 * time.Hour}
	if _, err := s.backend().Claimer().Enqueue(ctx, future); err != nil {
		return err
	}
	return s.multiply(ctx, n)
}

// claimFinish measures the callers at a backlog that is topped up before.
func claimFinish(b backlog, callers, limit, rate int, prepares func(string)) side {
	left := 0
	return func(ctx context.Context, d time.Duration) (sample, error) {
		total := max(callers*limit, int(float64(rate)*d.Seconds()))
		prepares(fmt.Sprintf("queueing %d runs", total-left))
		if err := b.add(ctx, total-left); err != nil {
			return sample{}, err
		}
		if err := b.rest(ctx); err != nil {
			return sample{}, err
		}
		s, err := consume(ctx, callers, d, func(ctx context.Context) (int, error) { return b.cycle(ctx, limit) })
		left = total - s.items
		return s, err
	}
}

type oursBacklog struct {
	queue
	coord.Backend
}

func (b oursBacklog) cycle(ctx context.Context, limit int) (int, error) {
	claims, err := b.Claimer().Claim(ctx, coord.ClaimOptions{
		Worker: "bench", Kinds: []string{kind}, Limit: limit, Lease: time.Minute,
	})
	if err != nil {
		return 0, err
	}
	results := make([]coord.Result, len(claims))
	for i, c := range claims {
		results[i] = coord.Result{Claim: c, Outcome: coord.Succeed}
	}
	return len(claims), b.Claimer().Finish(ctx, results...)
}
