package pg_test

import (
	"database/sql"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// Somebody holds an old snapshot while thousands of runs pass through, so that
// nothing of them can be cleaned away. Work goes on, and as soon as the snapshot is
// gone a claim reads as little as before.
func TestOldSnapshot(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	exec(t, db, `ALTER TABLE coord_runs SET (autovacuum_enabled = off)`)
	pass := func(rounds int) {
		t.Helper()
		runs := make([]coord.NewRun, 1000)
		for i := range runs {
			runs[i] = coord.NewRun{Kind: "k"}
		}
		for range rounds {
			if _, err := b.Claimer().Enqueue(t.Context(), runs...); err != nil {
				t.Fatal(err)
			}
			done := 0
			for done < len(runs) {
				claims := claim(t, b, 250)
				results := make([]coord.Result, len(claims))
				for i, c := range claims {
					results[i] = coord.Result{Claim: c, Outcome: coord.Succeed}
				}
				if err := b.Claimer().Finish(t.Context(), results...); err != nil {
					t.Fatal(err)
				}
				if done += len(claims); len(claims) == 0 {
					t.Fatalf("%d of %d runs are not claimable", len(runs)-done, len(runs))
				}
			}
		}
	}
	pass(1)
	before := pagesOfClaim(t, url)
	old, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback()
	exec(t, old, `SELECT count(*) FROM coord_runs`)
	pass(5)
	during := pagesOfClaim(t, url)
	if err := old.Rollback(); err != nil {
		t.Fatal(err)
	}
	claim(t, b, 1) // passes over what is dead for the last time
	after := pagesOfClaim(t, url)
	t.Logf("a claim reads %d pages before, %d while the snapshot is held, %d after", before, during, after)
	if during > 5*2*1000+before {
		t.Errorf("while the snapshot is held a claim reads %d pages, more than there are dead entries", during)
	}
	if after > before+50 {
		t.Errorf("after the snapshot a claim reads %d pages, and %d before it", after, before)
	}
}

// pagesOfClaim returns how many pages the search of a claim that finds nothing reads.
func pagesOfClaim(t *testing.T, url string) (pages int) {
	t.Helper()
	connector, err := pq.NewConnector(url)
	if err != nil {
		t.Fatal(err)
	}
	conn := sql.OpenDB(pq.ConnectorWithNoticeHandler(connector, func(notice *pq.Error) {
		if !strings.Contains(notice.Message, "ids := ARRAY") {
			return
		}
		_, counted, _ := strings.Cut(notice.Message, "Buffers: shared hit=")
		hit, _, _ := strings.Cut(counted, " ")
		hit, _, _ = strings.Cut(hit, "\n")
		pages, _ = strconv.Atoi(hit)
	}))
	defer conn.Close()
	conn.SetMaxOpenConns(1)
	_, err = conn.ExecContext(t.Context(), `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on;
		SET client_min_messages = log`)
	if err == nil {
		_, err = conn.ExecContext(t.Context(), `SELECT * FROM coord_claim('{k}', 10, NULL, 1000000, 'w', 'lost')`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Fatal("the server does not tell how many pages it has read")
	}
	return pages
}
