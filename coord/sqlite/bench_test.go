package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// BenchmarkWorkloads runs those that all drivers share.
func BenchmarkWorkloads(b *testing.B) {
	coordtest.Bench(b, coordtest.BenchHarness{Open: openBench})
}

func openBench(b *testing.B) coord.Backend {
	path, _ := newFile(b)
	backend, err := sqlite.Open(b.Context(), sqlite.Options{Path: path})
	if err != nil {
		b.Fatal(err)
	}
	return backend
}

// cycles lets callers take, over and over, up to n of what stock adds a thousand
// of at a time. The stock is added off the clock.
func cycles(b *testing.B, callers, n int, stock func() error, take func(ctx context.Context) (int, error)) {
	const ahead = 50_000
	var items atomic.Int64
	var took time.Duration
	b.ResetTimer()
	for left := b.N; left > 0; {
		round := min(left, max(ahead/n, 1))
		left -= round
		b.StopTimer()
		for stocked := 0; stocked < round*n; stocked += 1000 {
			if err := stock(); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		began := time.Now()
		var ops atomic.Int64
		var working sync.WaitGroup
		for range callers {
			working.Go(func() {
				for ops.Add(1) <= int64(round) {
					got, err := take(b.Context())
					if err != nil {
						b.Error(err)
						return
					}
					items.Add(int64(got))
				}
			})
		}
		working.Wait()
		took += time.Since(began)
	}
	b.StopTimer()
	b.ReportMetric(float64(items.Load())/took.Seconds(), "items/s")
}

// BenchmarkClaimAndFinish claims and finishes runs, beside plain SQL that does the
// least of it: there is no fence, no history and no policy.
func BenchmarkClaimAndFinish(b *testing.B) {
	for _, callers := range []int{1, 8} {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("plain/batch=%d/callers=%d", n, callers), func(b *testing.B) { plain(b, callers, n) })
			b.Run(fmt.Sprintf("claimer/batch=%d/callers=%d", n, callers), func(b *testing.B) {
				backend := openBench(b)
				defer backend.Close(context.WithoutCancel(b.Context()))
				c := backend.Claimer()
				o := coord.ClaimOptions{Worker: "bench", Kinds: []string{"k"}, Limit: n, Lease: time.Minute}
				runs := repeat(1000, coord.NewRun{Kind: "k", Payload: []byte(`{"n":1}`)})
				cycles(b, callers, n, func() error {
					_, err := c.Enqueue(b.Context(), runs...)
					return err
				}, func(ctx context.Context) (int, error) {
					claims, err := c.Claim(ctx, o)
					if err != nil {
						return 0, err
					}
					results := make([]coord.Result, len(claims))
					for i, claim := range claims {
						results[i] = coord.Result{Claim: claim, Outcome: coord.Succeed}
					}
					return len(claims), c.Finish(ctx, results...)
				})
			})
		}
	}
}

func plain(b *testing.B, callers, n int) {
	_, db := newFile(b)
	for _, text := range []string{
		`CREATE TABLE jobs (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, run_at INTEGER NOT NULL,
			lease_until INTEGER, attempt INTEGER NOT NULL DEFAULT 0, payload TEXT NOT NULL)`,
		`CREATE INDEX jobs_ready ON jobs (queue, run_at, id) WHERE state = 0`,
		`CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 1`,
	} {
		if _, err := db.Write.ExecContext(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
	prepare := func(text string) *sql.Stmt {
		s, err := db.Write.DB.PrepareContext(b.Context(), text)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	fill := prepare(`WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000)
		INSERT INTO jobs (queue, run_at, payload) SELECT 'q', n, '{"n":1}' FROM s`)
	claim := prepare(`UPDATE jobs SET state = 1, lease_until = ?1 + 30000, attempt = attempt + 1 WHERE id IN (
		SELECT id FROM jobs WHERE queue = 'q' AND state = 0 AND run_at <= ?1 ORDER BY run_at, id LIMIT ?2) RETURNING id, payload`)
	finish := prepare(`DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?))`)
	cycles(b, callers, n, func() error {
		_, err := fill.ExecContext(b.Context())
		return err
	}, func(ctx context.Context) (int, error) {
		rows, err := claim.QueryContext(ctx, time.Now().UnixMilli(), n)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		ids := make([]int64, 0, n)
		for rows.Next() {
			var id int64
			var payload string
			if err := rows.Scan(&id, &payload); err != nil {
				return 0, err
			}
			ids = append(ids, id)
		}
		if err := rows.Err(); err != nil {
			return 0, err
		}
		_ = rows.Close()
		list, err := json.Marshal(ids)
		if err != nil {
			return 0, err
		}
		_, err = finish.ExecContext(ctx, string(list))
		return len(ids), err
	})
}

// BenchmarkEnqueue queues a thousand runs in one call.
func BenchmarkEnqueue(b *testing.B) {
	backend := openBench(b)
	defer backend.Close(context.WithoutCancel(b.Context()))
	runs := repeat(1000, coord.NewRun{Kind: "k", Payload: []byte(`{"n":1}`)})
	for b.Loop() {
		if _, err := backend.Claimer().Enqueue(b.Context(), runs...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(runs))/b.Elapsed().Seconds(), "runs/s")
}
