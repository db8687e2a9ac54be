package sqlite_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

func TestRatioScratch(t *testing.T) {
	if os.Getenv("RATIO") == "" {
		return
	}
	ctx := context.Background()
	for _, n := range []int{1, 100} {
		dir, err := os.MkdirTemp(os.Getenv("RATIO"), "ratio")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		fdb, err := sqlite.OpenDB(filepath.Join(dir, "floor.db"))
		if err != nil {
			t.Fatal(err)
		}
		odb, _ := sqlite.OpenDB(filepath.Join(dir, "ours.db"))
		if _, err := migrations.Up(ctx, odb.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			t.Fatal(err)
		}
		b, err := sqlite.Open(ctx, sqlite.Options{DB: odb})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{
			`CREATE TABLE jobs (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, run_at INTEGER NOT NULL,
			lease_until INTEGER, attempt INTEGER NOT NULL DEFAULT 0, payload TEXT NOT NULL)`,
			`CREATE INDEX jobs_ready ON jobs (queue, run_at, id) WHERE state = 0`,
			`CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 1`,
			`WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 100000) INSERT INTO jobs (queue, run_at, payload) SELECT 'q', n, '{"n":1}' FROM s`,
		} {
			if _, err := fdb.Write.DB.ExecContext(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			if _, err := b.Claimer().Enqueue(ctx, repeat(1000, coord.NewRun{Kind: "k", Payload: []byte(`{"n":1}`)})...); err != nil {
				t.Fatal(err)
			}
		}
		prepare := func(s string) *sql.Stmt {
			st, err := fdb.Write.DB.PrepareContext(ctx, s)
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		claim := prepare(`UPDATE jobs SET state = 1, lease_until = ?1 + 30000, attempt = attempt + 1 WHERE id IN (
		SELECT id FROM jobs WHERE queue = 'q' AND state = 0 AND run_at <= ?1 ORDER BY run_at, id LIMIT ?2) RETURNING id, payload`)
		finish := prepare(`DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?))`)
		floor := func() {
			rows, err := claim.QueryContext(ctx, time.Now().UnixMilli(), n)
			if err != nil {
				t.Fatal(err)
			}
			ids := make([]int64, 0, n)
			for rows.Next() {
				var id int64
				var payload string
				if err := rows.Scan(&id, &payload); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			rows.Close()
			list, _ := json.Marshal(ids)
			if _, err = finish.ExecContext(ctx, string(list)); err != nil || len(ids) != n {
				t.Fatal(err, len(ids))
			}
		}
		o := coord.ClaimOptions{Worker: "bench", Kinds: []string{"k"}, Limit: n, Lease: time.Minute}
		ours := func() {
			claims, err := b.Claimer().Claim(ctx, o)
			if err != nil || len(claims) != n {
				t.Fatal(err, len(claims))
			}
			results := make([]coord.Result, len(claims))
			for i, claim := range claims {
				results[i] = coord.Result{Claim: claim, Outcome: coord.Succeed}
			}
			if err := b.Claimer().Finish(ctx, results...); err != nil {
				t.Fatal(err)
			}
		}
		var d [2][]time.Duration
		for range 900 {
			for i, f := range []func(){floor, ours} {
				began := time.Now()
				f()
				d[i] = append(d[i], time.Since(began))
			}
		}
		sum := [2]time.Duration{}
		for i := range d {
			for _, x := range d[i] {
				sum[i] += x
			}
			slices.Sort(d[i])
		}
		k := len(d[0])
		fmt.Printf("n=%d floor p10 %v p50 %v mean %v; ours p10 %v p50 %v mean %v; ratio p10 %.2f p50 %.2f mean %.2f\n", n, d[0][k/10], d[0][k/2], sum[0]/time.Duration(k),
			d[1][k/10], d[1][k/2], sum[1]/time.Duration(k), float64(d[0][k/10])/float64(d[1][k/10]), float64(d[0][k/2])/float64(d[1][k/2]), float64(sum[0])/float64(sum[1]))
		_ = b.Close(ctx)
		fdb.Close()
		odb.Close()
	}
}
