package pg_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// TestIsolationIsOurs: whatever an administrator or a connection string says, directly
// and through a pooler, single statements and transactions are READ COMMITTED, and
// replicas that want the same rows at the same time don't fail.
func TestIsolationIsOurs(t *testing.T) {
	pooler := testenv.NewPooler(t)
	for name, test := range map[string]struct {
		database, role string
		through        func(url string) string
	}{
		"database":                    {database: "serializable"},
		"database, pooled":            {database: "serializable", through: pooler.Through},
		"repeatable read":             {database: "repeatable read"},
		"repeatable read, pooled":     {database: "repeatable read", through: pooler.Through},
		"connection string":           {through: func(url string) string { return url + "&default_transaction_isolation=serializable" }},
		"options in the string":       {through: func(url string) string { return url + "&options=-c%20default_transaction_isolation%3Dserializable" }},
		"connection string, pooled":   {through: func(url string) string { return pooler.Through(url) + "&default_transaction_isolation=serializable" }},
		"not changed":                 {},
		"not changed, through pooler": {through: pooler.Through},
	} {
		t.Run(name, func(t *testing.T) {
			url := testenv.NewDatabase(t, "coord_live", migrate)
			if test.database != "" {
				exec(t, admin(t, url), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L',
					current_database(), '`+test.database+`'); END $$`)
			}
			through := url
			if test.through != nil {
				through = test.through(url)
			}
			db, err := pg.OpenDB(through, 2)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			level := func(what string, q bun.IConn) {
				t.Helper()
				for _, query := range []string{"SELECT current_setting('transaction_isolation')", "\n\tWITH a AS (\n SELECT 1) select current_setting('transaction_isolation') FROM a"} {
					var level string
					if err := q.QueryRowContext(t.Context(), query).Scan(&level); err != nil || level != "read committed" {
						t.Errorf("%s is %q, %v", what, level, err)
					}
				}
			}
			level("a single statement", db)
			b := openWith(t, pg.Options{URL: through, ListenURL: url, Poll: time.Hour})
			err = b.InTx(t.Context(), func(_ context.Context, tx coord.Tx) error {
				level("a transaction", tx.Unwrap().(bun.Tx))
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			level("a single statement after a transaction", db)
			contend(t, b, openWith(t, pg.Options{URL: through, ListenURL: url, Poll: time.Hour}))
		})
	}
}

// contend has two replicas claim, extend, cancel and end the same runs at the same time.
func contend(t *testing.T, replicas ...coord.Backend) {
	t.Helper()
	const runs = 200
	task := coord.Task{Name: "n", Kind: "k", Overlap: coord.OverlapAllow}
	if _, err := replicas[0].Claimer().PutTask(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		n := keyed("x", 5)
		if i%2 == 0 {
			n.Concurrency = coord.Concurrency{}
		}
		enqueue(t, replicas[0], n)
	}
	var mu sync.Mutex
	var all []coord.Claim
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			c := replicas[i%len(replicas)].Claimer()
			check := func(what string, err error) {
				if err != nil && t.Context().Err() == nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for empty := 0; empty < 3; {
				claims, err := c.Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 7, Lease: time.Minute})
				check("Claim", err)
				if empty++; len(claims) == 0 {
					continue
				}
				empty = 0
				mu.Lock()
				all = append(all, claims...)
				mu.Unlock()
				var others sync.WaitGroup
				others.Go(func() { check("Cancel", c.Cancel(t.Context(), claims[0].Run.ID)) })
				others.Go(func() {
					_, err := c.Extend(t.Context(), time.Minute, claims...)
					check("Extend", err)
				})
				others.Go(func() {
					_, err := c.Enqueue(t.Context(), coord.NewRun{Kind: "other", UniqueKey: "the same"})
					check("Enqueue", err)
				})
				others.Go(func() {
					_, err := c.Trigger(t.Context(), "n", coord.TriggerOptions{Key: "the same"})
					check("Trigger", err)
				})
				others.Wait()
				var results []coord.Result
				for _, claim := range claims {
					results = append(results, coord.Result{Claim: claim, Outcome: coord.Succeed})
				}
				check("Finish", c.Finish(t.Context(), results...))
			}
		})
	}
	callers.Wait()
	claimed := ids(all)
	slices.Sort(claimed)
	if n := len(slices.Compact(claimed)); n != len(all) || n < runs {
		t.Errorf("%d runs were claimed, %d times", n, len(all))
	}
}
