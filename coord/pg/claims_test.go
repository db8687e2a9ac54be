package pg_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// beforeQuery is called before each statement of a pool.
type beforeQuery func(statement string)

func (f beforeQuery) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	f(e.Query)
	return ctx
}

func (beforeQuery) AfterQuery(context.Context, *bun.QueryEvent) {}

// watched is a replica whose statements pass before f.
func watched(t *testing.T, url string, f beforeQuery) coord.Backend {
	t.Helper()
	db := admin(t, url).WithQueryHook(f)
	return openWith(t, pg.Options{URL: url, DB: db, Poll: time.Hour})
}

func enqueue(t *testing.T, b coord.Backend, runs ...coord.NewRun) []coord.Run {
	t.Helper()
	queued, err := b.Claimer().Enqueue(t.Context(), runs...)
	if err != nil {
		t.Fatal(err)
	}
	return queued
}

func keyed(key string, limit int) coord.NewRun {
	return coord.NewRun{Kind: "k", Concurrency: coord.Concurrency{Key: key, Limit: limit}}
}

// ids returns the runs that were claimed.
func ids(claims []coord.Claim) (ids []coord.RunID) {
	for _, c := range claims {
		ids = append(ids, c.Run.ID)
	}
	return ids
}

// The server has sent the rows of a claim and then can't commit it. Nobody holds
// what was not committed.
func TestClaimThatIsNotCommitted(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no commit''; END';
		CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON coord_runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			EXECUTE FUNCTION refuse()`)
	for _, n := range []coord.NewRun{{Kind: "k"}, keyed("x", 1)} {
		run := enqueue(t, b, n)[0]
		claims, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 9, Lease: time.Minute})
		if err == nil || len(claims) > 0 {
			t.Errorf("key %q: claims of the runs %v, %v; want an error", n.Concurrency.Key, ids(claims), err)
		}
		if got := look(t, db, run.ID); got.State != "queued" {
			t.Errorf("the run is %+v", got)
		}
		exec(t, db, `DELETE FROM coord_runs`)
	}
}

// A claim has taken runs, and looks for more in place of those that were lost. Then it
// finds that a run with a key has come. It keeps what it has.
func TestKeyedRunComesDuringAClaim(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	db, other := admin(t, url), replica(t, url, time.Hour)
	looks := 0
	b := watched(t, url, func(statement string) {
		if strings.Contains(statement, "FROM coord_claim(") {
			if looks++; looks == 2 {
				enqueue(t, other, keyed("x", 1))
			}
		}
	})
	enqueue(t, other, slices.Repeat([]coord.NewRun{{Kind: "k", AtMostOnce: true}}, 2)...)
	claim(t, other, 2)
	stale(t, db)
	enqueue(t, other, slices.Repeat([]coord.NewRun{{Kind: "k"}}, 2)...)
	claims := claim(t, b, 3)
	var running int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM coord_runs WHERE state = 'running'`).Scan(&running); err != nil {
		t.Fatal(err)
	}
	if len(claims) != 3 || running != 3 {
		t.Errorf("the runs %v were claimed and %d are running, want 3", ids(claims), running)
	}
}

// While a claim looks for runs behind gates, a worker whose lease ran out gives its
// run back. The place goes to one run, and not to two.
func TestPlaceThatIsGivenBackDuringAClaim(t *testing.T) {
	// The look for candidates waits at the clock, until the test lets it go on.
	url := testenv.NewDatabase(t, "coord_gated", func(url string) error {
		if err := migrate(url); err != nil {
			return err
		}
		return execOnce(url, `CREATE OR REPLACE FUNCTION coord_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
			BEGIN
				IF current_query() LIKE '%RECURSIVE lanes%' THEN
					PERFORM pg_advisory_xact_lock_shared(7);
				END IF;
				RETURN clock_timestamp();
			END $$`)
	})
	b, db := replica(t, url, time.Hour), admin(t, url)
	for _, outcome := range []coord.Outcome{coord.Release, coord.Succeed} {
		exec(t, db, `DELETE FROM coord_runs`)
		enqueue(t, b, keyed("x", 1), keyed("x", 1))
		first := claim(t, b, 2)
		if len(first) != 1 {
			t.Fatalf("%d claims, want 1", len(first))
		}
		exec(t, db, `UPDATE coord_runs SET at = now() - interval '1 minute' WHERE state = 'running'`)
		gate := begin(t, db)
		exec(t, gate, `SELECT pg_advisory_xact_lock(7)`)
		claimed := make(chan []coord.Claim, 1)
		go func() {
			defer close(claimed)
			claimed <- claim(t, b, 2)
		}()
		waitForLock(t, db)
		if err := b.Claimer().Finish(t.Context(), coord.Result{Claim: first[0], Outcome: outcome}); err != nil {
			t.Fatal(err)
		}
		if err := gate.Commit(); err != nil {
			t.Fatal(err)
		}
		if claims := <-claimed; len(claims) > 1 {
			t.Errorf("outcome %d: the runs %v of a key with one place were claimed", outcome, ids(claims))
		}
		exec(t, db, `UPDATE coord_runs SET state = 'succeeded'`)
	}
}

// A replica stands still between two statements of a claim, or while it fires
// tasks. The others go on soon.
func TestStuckReplicaKeepsNobodyWaiting(t *testing.T) {
	for name, stuckAt := range map[string]string{"claiming": "RECURSIVE lanes", "firing": "INSERT INTO coord_runs"} {
		t.Run(name, func(t *testing.T) {
			url := testenv.NewDatabase(t, "coord_live", migrate)
			reached, thaw := make(chan struct{}), make(chan struct{})
			stop := sync.OnceFunc(func() {
				close(reached)
				<-thaw
			})
			frozen := watched(t, url, func(statement string) {
				if strings.Contains(statement, stuckAt) {
					stop()
				}
			})
			b, db := replica(t, url, time.Hour), admin(t, url)
			if name == "claiming" {
				enqueue(t, b, keyed("x", 1))
			} else if _, err := b.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k", Schedule: "@every 1h"}); err != nil {
				t.Fatal(err)
			}
			exec(t, db, `UPDATE coord_tasks SET next_at = now()`)
			var stuck sync.WaitGroup
			defer stuck.Wait()
			defer close(thaw)
			stuck.Go(func() {
				_, _ = frozen.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: "f", Kinds: []string{"k"}, Limit: 9, Lease: time.Minute})
			})
			<-reached
			start := time.Now()
			for len(claim(t, b, 9)) == 0 && time.Since(start) < patience {
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("others waited for %v", took)
			}
		})
	}
}

// A replica does not take what the server sends it, which is more than fits on the
// way. Others claim runs with keys meanwhile.
func TestDeafReplicaKeepsNobodyWaiting(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, url, false)
	deaf := openWith(t, pg.Options{URL: through, ListenURL: url, Poll: time.Hour})
	b, db := replica(t, url, time.Hour), admin(t, url)
	big := keyed("x", 20)
	big.Payload = make([]byte, coord.MaxPayload)
	enqueue(t, b, slices.Repeat([]coord.NewRun{big}, 20)...)
	goOn := p.stall("coord_claim(")
	defer goOn()
	// The limit of a kind that no run is of makes the first claim one behind gates.
	o := coord.ClaimOptions{Worker: "d", Kinds: []string{"k"}, Limits: map[string]int{"l": 1}, Limit: 20, Lease: time.Minute}
	var stuck sync.WaitGroup
	stuck.Go(func() { _, _ = deaf.Claimer().Claim(t.Context(), o) })
	waitFor(t, db, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted
		AND a.datname = current_database() AND a.query LIKE '%coord_claim(%'`)
	start := time.Now()
	if claims := claim(t, b, 1); len(claims) != 1 || time.Since(start) > 8*time.Second {
		t.Errorf("%d runs were claimed after %v, want one", len(claims), time.Since(start))
	}
	goOn()
	stuck.Wait()
}

// The only thing to come is due after all that a duration can hold.
func TestNextDueInManyYears(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b := replica(t, url, time.Hour)
	for year := 9999; year > 2300; year -= 1000 {
		due := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		enqueue(t, b, coord.NewRun{Kind: "k", DueAt: due})
		wait, some, err := b.Claimer().NextDue(t.Context())
		if err != nil || !some || wait < 200*365*24*time.Hour {
			t.Errorf("before the year %d: NextDue is %v, %t, %v", year, wait, some, err)
		}
	}
}

// However long the logs are, a call deletes a bounded number of lines.
func TestPruneOfLongLogs(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	runs := enqueue(t, b, slices.Repeat([]coord.NewRun{{Kind: "k"}}, 20)...)
	exec(t, db, `UPDATE coord_runs SET state = 'succeeded', at = now() - interval '1 day', log_lines = 1000000;
		INSERT INTO coord_run_log SELECT id, n, 1, now(), '' FROM coord_runs, generate_series(1, 10000) AS n`)
	pruned, calls := 0, 0
	for {
		n, err := b.Claimer().Prune(t.Context(), coord.RunRetention{Age: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if n > 10 {
			t.Errorf("a call deleted %d runs with 10,000 lines each", n)
		}
		pruned, calls = pruned+n, calls+1
	}
	var lines int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM coord_run_log`).Scan(&lines); err != nil {
		t.Fatal(err)
	}
	if pruned != len(runs) || lines > 0 {
		t.Errorf("%d runs were deleted by %d calls, and %d lines are left", pruned, calls, lines)
	}
}

// Runs that wait for a place keep those of their key waiting that have the same limit
// and kind, and no others.
func TestBlockedRunsOfAKey(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b := replica(t, url, time.Hour)
	enqueue(t, b, keyed("x", 1))
	claim(t, b, 1)
	enqueue(t, b, slices.Repeat([]coord.NewRun{keyed("x", 1)}, 20)...)
	higher := enqueue(t, b, keyed("x", 2))[0]
	if claims := claim(t, b, 5); !slices.Equal(ids(claims), []coord.RunID{higher.ID}) {
		t.Errorf("the runs %v were claimed, want %d of the higher limit", ids(claims), higher.ID)
	}

	limited := keyed("y", 100)
	limited.Kind = "l"
	o := coord.ClaimOptions{Worker: "w", Kinds: []string{"k", "l"}, Limits: map[string]int{"l": 1}, Limit: 5, Lease: time.Minute}
	first := enqueue(t, b, slices.Repeat([]coord.NewRun{limited}, 20)...)[0]
	other := enqueue(t, b, keyed("y", 100))[0]
	claims, err := b.Claimer().Claim(t.Context(), o)
	if err != nil || !slices.Equal(ids(claims), []coord.RunID{first.ID, other.ID}) {
		t.Errorf("the runs %v were claimed, %v; want %d of the limited kind and %d of the other", ids(claims), err, first.ID, other.ID)
	}
}

// More tasks than are fired in one transaction are due.
func TestManyTasksAreDue(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	for i := range 250 {
		task := coord.Task{Name: fmt.Sprint(i), Kind: "k", Schedule: "@every 24h"}
		if i < 120 {
			task.Misfire = coord.MisfireSkip
		}
		if _, err := b.Claimer().PutTask(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, `UPDATE coord_tasks SET next_at = now() - interval '1 hour'`)
	if claims := claim(t, b, 1000); len(claims) != 130 {
		t.Errorf("%d runs were claimed, want those of 130 tasks", len(claims))
	}
}

// Tasks that make up for many occurrences make their runs bit by bit.
func TestManyOccurrencesAreDue(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	for i := range 5 {
		_, err := b.Claimer().PutTask(t.Context(), coord.Task{
			Name: fmt.Sprint(i), Kind: "k", Schedule: "@every 1m", Overlap: coord.OverlapAllow, Misfire: coord.MisfireAll, MisfireCap: 600,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, `UPDATE coord_tasks SET next_at = now() - interval '600 minutes'`)
	for _, want := range []int{2, 4, 5} { // tasks that have fired
		if claims := claim(t, b, 1); len(claims) != 1 {
			t.Fatalf("%d runs were claimed", len(claims))
		}
		var tasks, runs int
		err := db.QueryRowContext(t.Context(), `SELECT count(DISTINCT task_id), count(*) FROM coord_runs`).Scan(&tasks, &runs)
		if err != nil || tasks != want || runs != 600*want {
			t.Fatalf("%d tasks made %d runs, %v; want %d tasks", tasks, runs, err, want)
		}
	}
}

// The run that has the key goes between the two statements of Enqueue. All is
// queued or none.
func TestEarlierRunGoesDuringEnqueue(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	db := admin(t, url)
	b := watched(t, url, func(statement string) {
		if strings.Contains(statement, "unique_key IN") {
			exec(t, db, `DELETE FROM coord_runs WHERE unique_key = 'a'`)
		}
	})
	enqueue(t, b, coord.NewRun{Kind: "k", UniqueKey: "a"})
	_, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k", UniqueKey: "a"}, coord.NewRun{Kind: "k"})
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM coord_runs`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if (err == nil) != (n == 2) || err != nil && n > 0 {
		t.Errorf("%d runs are queued, %v", n, err)
	}
}

// The number of lines of a run that never stops to report grows no further than its
// column does.
func TestLinesWithoutEnd(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	b, db := replica(t, url, time.Hour), admin(t, url)
	claims := held(t, b)
	exec(t, db, `UPDATE coord_runs SET log_lines = 2147483646 WHERE id = ?`, claims[0].Run.ID)
	err := b.Claimer().Report(t.Context(), coord.Report{Claim: claims[0], Lines: []string{"a", "b"}},
		coord.Report{Claim: claims[1], Lines: []string{"c"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, 1} {
		n := 0
		for _, err := range b.Claimer().Log(t.Context(), claims[i].Run.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != want {
			t.Errorf("%d lines of run %d were kept, want %d", n, i, want)
		}
	}
}

// Texts that mean something to an array, a pattern or a placeholder are only texts, also
// where a backslash is an escape.
func TestOddTexts(t *testing.T) {
	b := newStore(t).Open(t)
	defer b.Close(t.Context())
	odd := []string{
		`\`, `\\`, `"`, `'`, `''`, `{`, `}`, `{}`, `,`, `NULL`, `null`, ` `,
		`?`, `?0`, `\?`, `$1`, `%`, `_`, `key:`, `kind:k`, `\x00`, `\'`, `ü`, `😀`,
	}
	limits := make(map[string]int)
	var runs []coord.NewRun
	for _, text := range odd {
		for range 2 {
			runs = append(runs, coord.NewRun{Kind: text}, keyed(text, 1))
		}
		runs = append(runs, coord.NewRun{Kind: "k", UniqueKey: text}, coord.NewRun{Kind: "k", UniqueKey: text})
		limits[text] = 1
	}
	for i, r := range enqueue(t, b, runs...) {
		if r.Kind != runs[i].Kind || r.UniqueKey != runs[i].UniqueKey || r.Concurrency != runs[i].Concurrency ||
			r.Duplicate != (r.UniqueKey != "" && i%6 == 5) {
			t.Fatalf("run %d of %+v is %+v", i, runs[i], r)
		}
	}
	o := coord.ClaimOptions{Worker: `w\'?`, Kinds: append(odd, "k"), Limit: 1000, Lease: time.Minute, Limits: limits}
	claims, err := b.Claimer().Claim(t.Context(), o)
	if err != nil || len(claims) != 3*len(odd) {
		t.Fatalf("%d runs were claimed, %v; want of each text one of its kind, key and unique key", len(claims), err)
	}
	got := make(map[string]int)
	for _, c := range claims {
		if c.Run.Worker != o.Worker {
			t.Errorf("run %d was claimed by %q", c.Run.ID, c.Run.Worker)
		}
		got[c.Run.Kind+"/"+c.Run.UniqueKey+"/"+c.Run.Concurrency.Key]++
	}
	for _, text := range odd {
		for _, of := range []string{text + "//", "k/" + text + "/", "k//" + text} {
			if got[of] != 1 {
				t.Errorf("%d runs of %q were claimed", got[of], of)
			}
		}
	}
	if claims, err = b.Claimer().Claim(t.Context(), o); err != nil || len(claims) > 0 {
		t.Errorf("%d runs were claimed though all places are taken, %v", len(claims), err)
	}
}
