package sqlite_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// statements notes what a pool is asked.
type statements struct {
	mu   sync.Mutex
	list []string
}

func (s *statements) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, verb := range []string{"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"} {
		if strings.HasPrefix(e.Query, verb) {
			s.list = append(s.list, e.Query)
		}
	}
	return ctx
}

func (*statements) AfterQuery(context.Context, *bun.QueryEvent) {}

// scanned finds, in a plan, a table that is read from end to end, or sorted. Two
// indexes hold nothing but what is asked for.
var scanned = regexp.MustCompile(`SCAN (coord_\w+|[rethk]|old)\b|TEMP B-TREE`)

var whole = regexp.MustCompile(`SCAN coord_runs USING (COVERING )?INDEX coord_runs_(cancels|gated_running)`)

// TestPlans pins the plans with many runs that ended, many that are not due and
// many tasks: nothing reads more of a table than it is about, with statistics
// and without.
func TestPlans(t *testing.T) {
	_, db := newFile(t)
	for _, fill := range []string{
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
			INSERT INTO coord_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff,
				timeout, priority, gate, at_most_once, created_at, finished_at)
			SELECT 'a', x'', iif(i % 2, 'succeeded', 'queued'), FALSE, iif(i % 2, i, i << 40), 0, 3, 1, 1, 0, 2,
				iif(i % 10, NULL, 'key:' || i), FALSE, 0, iif(i % 2, i, NULL) FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
			INSERT INTO coord_tasks (name, kind, payload, schedule, zone, overlap, misfire, misfire_cap, max_attempts, backoff,
				max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once, paused, version, next_at, created_at,
				updated_at)
			SELECT 't' || i, 'a', x'', '@hourly', 'UTC', 'forbid', 'latest', 10, 3, 1, 1, 0, 2, '', 0, FALSE, FALSE, 1, i << 50, 0, 0 FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
			INSERT INTO coord_events (topic, seq, tag, prev, kind, payload, at) SELECT 'u', i, 0, 0, 'k', x'', i << 40 FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
			INSERT INTO coord_calls (id, key, target, kind, payload, state, created_at, deadline)
			SELECT 'call ' || i, 'key ' || i, 'target ' || i % 100, 'k', x'', iif(i % 10, 'answered', 'open'), 0, i << 40 FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
			INSERT INTO coord_members (id, name, data, since, lease_until) SELECT 'm' || i, '', x'', 0, i << 50 FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
			INSERT INTO coord_entries (key, epoch, member_id, data, since, updated_at)
			SELECT 'key/' || i, i, 'm' || (1 + i % 100), x'', 0, 0 FROM n`,
		`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
			INSERT INTO coord_receipts (key, fingerprint, holder, keep, until) SELECT randomblob(32), randomblob(32), 'a', 1, i << 40 FROM n`,
	} {
		if _, err := db.Write.ExecContext(t.Context(), fill); err != nil {
			t.Fatal(err)
		}
	}
	var asked statements
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: &sqlite.DB{
		Write: db.Write.WithQueryHook(&asked), Read: db.Read.WithQueryHook(&asked),
	}})
	if err != nil {
		t.Fatal(err)
	}
	use(t, b)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(asked.list) < 20 {
		t.Fatalf("only %d statements were noted", len(asked.list))
	}
	asked.list = append(asked.list, sqlite.Prepared()...)
	for _, statistics := range []string{"", `ANALYZE`} {
		if _, err := db.Write.ExecContext(t.Context(), statistics); err != nil {
			t.Fatal(err)
		}
		claims := 0
		for _, query := range asked.list {
			plan := explain(t, db, query)
			if table := scanned.FindString(whole.ReplaceAllString(plan, "")); table != "" {
				t.Errorf("with %q the plan has a %q:\n%s\n%s", statistics, table, plan, query)
			}
			if strings.Contains(query, "priority IN (1, 2, 3, 4) AND finished_at IS NULL AND gate IS NULL") {
				claims++
				if !strings.Contains(plan, "USING INDEX coord_runs_claim (priority=? AND at<?)") {
					t.Errorf("with %q the claim does not search its index:\n%s", statistics, plan)
				}
			}
			if strings.HasPrefix(query, "WITH RECURSIVE first") && !strings.Contains(plan, "(gate,concurrency_limit)>(?,?)") {
				t.Errorf("with %q the lanes are not told apart by their index:\n%s", statistics, plan)
			}
			if strings.Contains(query, "task_id = ") && strings.HasPrefix(query, "UPDATE") && !strings.Contains(plan, "coord_runs_active") {
				t.Errorf("with %q the runs in flight are not searched in their index:\n%s", statistics, plan)
			}
			if strings.Contains(query, "overlap = 'forbid' AND EXISTS") && !strings.Contains(plan, "coord_runs_active (task_id=?)") {
				t.Errorf("with %q the run in the way is not searched in its index:\n%s", statistics, plan)
			}
		}
		if claims < 3 {
			t.Error("the statements of the claim were not found")
		}
	}
}

// use makes the calls that a busy program makes, with something to do for each.
func use(t *testing.T, b coord.Backend) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, br := b.Claimer(), b.Broadcaster()
	task, err := c.PutTask(ctx, coord.Task{Name: "n", Kind: "b"})
	must(err)
	task.Schedule = "@every 1h"
	_, err = c.PutTask(ctx, task)
	must(err)
	_, err = c.Trigger(ctx, "n", coord.TriggerOptions{Key: "key"})
	must(err)
	_, err = c.Trigger(ctx, "n", coord.TriggerOptions{Key: "key"})
	must(err)
	_, err = c.Enqueue(ctx, coord.NewRun{Kind: "b", UniqueKey: "x"}, coord.NewRun{Kind: "b", UniqueKey: "x"})
	must(err)
	claims, err := c.Claim(ctx, coord.ClaimOptions{Worker: "w", Kinds: []string{"a", "b"}, Limit: 7, Lease: time.Minute})
	must(err)
	if len(claims) < 2 {
		t.Fatalf("claimed %d runs", len(claims))
	}
	claims, err = c.Extend(ctx, time.Minute, claims...)
	must(err)
	must(c.Report(ctx, coord.Report{Claim: claims[0], Progress: 1, Lines: []string{"line"}}))
	for _, err := range c.Log(ctx, claims[0].Run.ID, 0) {
		must(err)
	}
	_, _, err = c.NextDue(ctx, "b")
	must(err)
	for _, f := range []coord.RunFilter{{TaskID: task.ID}, {State: coord.Failed}, {Before: 10}} {
		for _, err := range c.Runs(ctx, f) {
			must(err)
		}
	}
	must(c.Cancel(ctx, claims[0].Run.ID))
	must(c.Finish(ctx, coord.Result{Claim: claims[0], Outcome: coord.Release}, coord.Result{Claim: claims[1], Outcome: coord.Succeed}))
	must(c.PauseTask(ctx, "n", true))
	must(c.DeleteTask(ctx, "n"))
	_, err = c.Prune(ctx, coord.RunRetention{Age: time.Hour, Keep: 1})
	must(err)
	question := coord.NewCall{Key: "key", Target: "t", Kind: "k"}
	call, err := b.Calls().Open(ctx, question)
	must(err)
	_, err = b.Calls().Open(ctx, question)
	must(err)
	_, err = b.Calls().Pending(ctx, "t")
	must(err)
	must(b.Calls().Answer(ctx, coord.Answer{ID: call.ID, Target: "t"}))
	_, err = b.Calls().Wait(ctx, call.ID)
	must(err)
	_, err = b.Calls().Find(ctx, "key")
	must(err)
	_, err = b.Calls().Reap(ctx, time.Hour)
	must(err)
	useDirectory(t, b.Directory())
	limit := coord.Limit{Key: "k", Rate: 1, Per: time.Hour}
	_, err = b.Limiter().Allow(ctx, limit)
	must(err)
	_, err = b.Limiter().Allow(ctx, limit)
	must(err)
	must(b.Limiter().Reset(ctx, "k"))
	ticket, err := b.Tickets().Issue(ctx, coord.TicketFor{Purpose: "p", User: "u", Session: "s"})
	must(err)
	_, err = b.Tickets().Redeem(ctx, ticket.Secret, coord.TicketUse{Purpose: "p"})
	must(err)
	_, err = b.Tickets().Reap(ctx)
	must(err)
	held, err := b.Receipts().Begin(ctx, coord.ReceiptFor{Key: "k"})
	must(err)
	must(b.Receipts().Release(ctx, held))
	_, err = b.Receipts().Reap(ctx)
	must(err)
	stream, err := br.Subscribe(ctx, map[string]coord.Position{"t": coord.Head})
	must(err)
	positions, err := br.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"}, coord.NewEvent{Topic: "t", Kind: "k"})
	must(err)
	_, err = stream.Next(ctx)
	must(err)
	_, err = br.Read(ctx, "t", positions[0], 10)
	must(err)
	_, err = br.Trim(ctx, coord.EventRetention{Age: time.Hour})
	must(err)
}

func useDirectory(t *testing.T, d coord.Directory) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := d.Join(ctx, coord.NewMember{Name: "m"})
	must(err)
	r, err := m.Register(ctx, "k", nil)
	must(err)
	must(m.Update(ctx, r, nil))
	_, err = d.Members(ctx)
	must(err)
	_, err = d.Lookup(ctx, "k", "x")
	must(err)
	_, err = d.List(ctx, coord.EntryFilter{Prefixes: []string{"key/1", "k"}})
	must(err)
	_, err = m.Renew(ctx)
	must(err)
	must(m.Deregister(ctx, r))
	must(m.Leave(ctx))
	swept, err := d.Sweep(ctx)
	must(err)
	if len(swept) == 0 {
		t.Fatal("nobody was swept")
	}
}

// explain returns the plan of a statement, one step a line.
func explain(t *testing.T, db *sqlite.DB, query string) string {
	t.Helper()
	var steps []struct {
		ID      int    `bun:"id"`
		Parent  int    `bun:"parent"`
		NotUsed int    `bun:"notused"`
		Detail  string `bun:"detail"`
	}
	unknown := make([]any, 20) // at least as many as a statement has parameters
	rows, err := db.Write.DB.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+query, unknown...)
	if err != nil {
		t.Fatalf("%v: %s", err, query)
	}
	defer rows.Close()
	if err := errors.Join(db.Write.ScanRows(t.Context(), rows, &steps), rows.Err()); err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for _, s := range steps {
		plan.WriteString(s.Detail + "\n")
	}
	return plan.String()
}
