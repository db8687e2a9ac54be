package coordtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

// claimerModel holds every run and task as it must be stored.
type claimerModel struct {
	model
	before  coord.RunID // runs up to this id are of earlier checks
	limited []string    // the kinds of which a claim names a limit
	runs    map[coord.RunID]*coord.Run
	logs    map[coord.RunID][]coord.LogLine
	tokens  map[coord.RunID]int64 // of the last claim
	claims  []coord.Claim         // all that were given out
	tasks   map[string]*coord.Task
	keys    map[string]coord.RunID // by task id and key
}

func newClaimerModel(m model, t *rapid.T) *claimerModel {
	c := &claimerModel{
		model: m, runs: make(map[coord.RunID]*coord.Run), logs: make(map[coord.RunID][]coord.LogLine),
		tokens: make(map[coord.RunID]int64), tasks: make(map[string]*coord.Task), keys: make(map[string]coord.RunID),
	}
	// What runs of a kind were claimed without a limit need not count, so all or none are.
	for _, kind := range []string{"a", "task"} {
		if pick(t, "limit "+kind, true, false) {
			c.limited = append(c.limited, m.name(kind))
		}
	}
	// Tasks of the check before must not fire into this one.
	for _, t := range collect(m, "Tasks", m.one.Claimer().Tasks(m.ctx)) {
		must(m, "DeleteTask", m.one.Claimer().DeleteTask(m.ctx, t.Name))
	}
	for r, err := range m.one.Claimer().Runs(m.ctx, coord.RunFilter{Limit: 1}) {
		must(m, "Runs", err)
		c.before = r.ID
	}
	return c
}

func (m *claimerModel) actions() actions {
	return actions{
		"enqueue": m.enqueueSome, "claim": m.claimSome, "claim again": m.claimSome, "extend": m.extendSome, "finish": m.finishSome,
		"finish again": m.finishSome, "report": m.reportSome, "cancel": m.cancelOne, "advance": m.advance, "put a task": m.putTask,
		"pause": m.pauseTask, "trigger": m.trigger, "delete a task": m.deleteTask, "transaction": m.transaction,
		"next due": m.nextDue, "": m.compare,
	}
}

func (m *claimerModel) kind(k string) string { return m.name(k) }

// writer is what a Claimer and a Tx have in common.
type writer interface {
	PutTask(ctx context.Context, t coord.Task) (coord.Task, error)
	DeleteTask(ctx context.Context, name string) error
	PauseTask(ctx context.Context, name string, paused bool) error
	Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error)
	Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error)
	Finish(ctx context.Context, results ...coord.Result) error
	Report(ctx context.Context, reports ...coord.Report) error
	Cancel(ctx context.Context, id coord.RunID) error
}

// write draws through what a call goes: a handle, or a transaction of its own,
// which an error rolls back.
func (m *claimerModel) write(t *rapid.T, call func(ctx context.Context, w writer) error) (inTx bool, err error) {
	b := m.backend(t)
	if !pick(t, "in a transaction", false, false, true) {
		return false, call(m.ctx, b.Claimer())
	}
	return true, b.InTx(m.ctx, func(ctx context.Context, tx coord.Tx) error { return call(ctx, tx) })
}

func (m *claimerModel) drawConcurrency(t *rapid.T) (c coord.Concurrency) {
	if key := pick(t, "concurrency key", "", "", "p", "q"); key != "" {
		c = coord.Concurrency{Key: m.name(key), Limit: pick(t, "places", 1, 1, 2)}
	}
	return c
}

func (m *claimerModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", 100*time.Millisecond, time.Second, 7*time.Second, 30*time.Second, 2*time.Minute))
}

func (m *claimerModel) drawRuns(t *rapid.T) (runs []coord.NewRun) {
	for range rapid.IntRange(1, 3).Draw(t, "how many") {
		n := coord.NewRun{
			Kind:        m.kind(pick(t, "kind", "a", "b")),
			Priority:    rapid.IntRange(1, 4).Draw(t, "priority"),
			Delay:       pick(t, "delay", 0, 0, 0, 5*time.Second),
			AtMostOnce:  pick(t, "at most once", false, false, true),
			Concurrency: m.drawConcurrency(t),
			Retry: coord.Retry{
				MaxAttempts: rapid.IntRange(1, 3).Draw(t, "attempts"), Backoff: time.Second,
				MaxBackoff: 3 * time.Second,
			},
		}
		if key := pick(t, "key", "", "", "x", "y", "z"); key != "" {
			n.UniqueKey = m.name(key)
		}
		runs = append(runs, n)
	}
	return runs
}

// queued takes what Enqueue returned into the model.
func (m *claimerModel) queued(t *rapid.T, asked []coord.NewRun, got []coord.Run) {
	equal(t, "how many runs Enqueue returned", len(got), len(asked))
	for i, n := range asked {
		key := "0/" + n.UniqueKey
		if id, known := m.keys[key]; known && n.UniqueKey != "" {
			equal(t, "Duplicate for a known key", got[i].Duplicate, true)
			equal(t, "the run for a known key", got[i].ID, id)
			continue
		}
		equal(t, "Duplicate for a new run", got[i].Duplicate, false)
		m.keys[key] = got[i].ID
		m.add(t, coord.Run{
			ID: got[i].ID, Kind: n.Kind, DueAt: m.store.Now().Add(n.Delay), Retry: n.Retry, Priority: n.Priority,
			Concurrency: n.Concurrency, AtMostOnce: n.AtMostOnce,
		})
	}
}

// add notes a run that was queued now.
func (m *claimerModel) add(t *rapid.T, r coord.Run) {
	if r.ID <= m.before || m.runs[r.ID] != nil {
		t.Fatalf("a new run has the id %d, which is not new", r.ID)
	}
	r.State, r.CreatedAt = coord.Queued, m.store.Now()
	m.runs[r.ID] = &r
}

func (m *claimerModel) enqueueSome(t *rapid.T) {
	asked := m.drawRuns(t)
	var got []coord.Run
	_, err := m.write(t, func(ctx context.Context, w writer) (err error) {
		got, err = w.Enqueue(ctx, asked...)
		return err
	})
	must(t, "Enqueue", err)
	m.queued(t, asked, got)
}

// claimableAt is when a run may be claimed: when it is due or when its lease ends.
func claimableAt(r *coord.Run) time.Time {
	if r.State == coord.Running {
		return r.LeaseUntil
	}
	return r.DueAt
}

func (m *claimerModel) claimable(r *coord.Run, o coord.ClaimOptions, now time.Time) bool {
	return !r.State.Ended() && !claimableAt(r).After(now) && slices.Contains(o.Kinds, r.Kind)
}

func lostIfExpired(r *coord.Run) bool {
	return r.State == coord.Running && (r.CancelRequested || r.AtMostOnce || r.Attempt >= r.Retry.MaxAttempts)
}

func (m *claimerModel) claimSome(t *rapid.T) {
	now := m.store.Now()
	o := coord.ClaimOptions{
		Worker: m.name(pick(t, "worker", "v", "w")),
		Kinds:  []string{m.kind("task")}, // always, so that the model knows when tasks fire
		Limit:  pick(t, "limit", 1, 2, 5, 1000),
		Lease:  pick(t, "lease", 5*time.Second, 20*time.Second),
	}
	for _, kind := range []string{"a", "b"} {
		if pick(t, "with "+kind, true, true, false) {
			o.Kinds = append(o.Kinds, m.kind(kind))
		}
	}
	for _, kind := range m.limited {
		if o.Limits == nil {
			o.Limits = make(map[string]int)
		}
		o.Limits[kind] = pick(t, "limit of "+kind, 1, 2, 2, 3)
	}
	fired := m.fire(now)
	taken := m.places()
	claims, err := m.backend(t).Claimer().Claim(m.ctx, o)
	must(t, "Claim", err)
	var lost []*coord.Run
	for _, r := range m.runs {
		if m.claimable(r, o, now) && lostIfExpired(r) {
			lost = append(lost, r)
		}
	}
	ended := m.lose(t, lost)
	if ended > 0 {
		fired = append(fired, m.fireBehind(t, now)...)
	}
	m.found(t, fired)

	var free []*coord.Run
	for _, r := range m.runs {
		if m.claimable(r, o, now) && !lostIfExpired(r) {
			free = append(free, r)
		}
	}
	if len(claims) > o.Limit {
		t.Fatalf("Claim with limit %d took %d runs", o.Limit, len(claims))
	}
	// Ending a run that is lost may count as taking one.
	if full := len(claims)+ended >= o.Limit; !full && ended < len(lost) {
		t.Fatalf("Claim with limit %d took %d runs and ended only %d of %d that were lost", o.Limit, len(claims), ended,
			len(lost))
	}
	m.keepsToLimits(t, claims, m.places(), o)
	m.inOrder(t, claims, free, fired, taken, o, len(claims)+ended >= o.Limit)
	for _, c := range claims {
		m.claimed(t, c, o)
	}
}

// places are how many runs are running, by the keys and the kinds that limits bind.
type places struct{ byKey, byKind map[string]int }

func (m *claimerModel) places() places {
	p := places{make(map[string]int), make(map[string]int)}
	for _, r := range m.runs {
		if r.State == coord.Running {
			p.take(r)
		}
	}
	return p
}

func (p places) take(r *coord.Run) {
	p.byKey[r.Concurrency.Key]++
	p.byKind[r.Kind]++
}

// full reports whether a run that is not running finds no place.
func (p places) full(r *coord.Run, o coord.ClaimOptions) bool {
	limit, limited := o.Limits[r.Kind]
	return limited && p.byKind[r.Kind] >= limit || r.Concurrency.Key != "" && p.byKey[r.Concurrency.Key] >= r.Concurrency.Limit
}

// keepsToLimits checks that there is an order in which each of the runs found a
// place when it was taken. Runs that were running keep the places that they have.
func (m *claimerModel) keepsToLimits(t *rapid.T, claims []coord.Claim, taken places, o coord.ClaimOptions) {
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b coord.Claim) int { return cmp.Compare(a.Run.Concurrency.Limit, b.Run.Concurrency.Limit) })
	for _, c := range claims {
		r := m.runs[c.Run.ID]
		if r == nil || r.State == coord.Running {
			continue
		}
		if taken.full(r, o) {
			t.Fatalf("Claim with limits %v took run %d, of kind %q and with %+v, while so many were running: %+v", o.Limits,
				r.ID, r.Kind, r.Concurrency, taken)
		}
		taken.take(r)
	}
}

// inOrder checks that no run was left that should have gone before one that was
// taken, or in its own right when the claim was not full. Which of equals is taken
// is open, and so is whether a run that this very claim made of an occurrence
// stands behind those that were queued already. A run may be left when it found no
// place, the places of runs that have just ended included, and also when as many
// as the claim may take stand before it with the same key and found none.
func (m *claimerModel) inOrder(
	t *rapid.T, claims []coord.Claim, free []*coord.Run, fired []occurrence, taken places, o coord.ClaimOptions, full bool,
) {
	took := make(map[*coord.Run]bool)
	for _, c := range claims {
		r := m.runs[c.Run.ID]
		if r == nil || !slices.Contains(free, r) {
			t.Fatalf("Claim took run %d (%s), which is not claimable", c.Run.ID, show(c.Run))
		}
		took[r] = true
	}
	isNew := func(r *coord.Run) bool {
		return slices.ContainsFunc(fired, func(o occurrence) bool { return o.task.ID == r.TaskID && o.at.Equal(r.ScheduledFor) })
	}
	// Equals that were taken go first.
	order := func(a, b *coord.Run) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), claimableAt(a).Compare(claimableAt(b)))
	}
	slices.SortFunc(free, func(a, b *coord.Run) int {
		if c := order(a, b); c != 0 || took[a] == took[b] {
			return c
		}
		if took[a] {
			return -1
		}
		return 1
	})
	after := places{maps.Clone(taken.byKey), maps.Clone(taken.byKind)}
	for r := range took {
		if r.State != coord.Running {
			after.take(r)
		}
	}
	behind := func(r *coord.Run) (n int) { // those with its key that wait
		for _, w := range free {
			if w.State == coord.Queued && !took[w] && w.Concurrency.Key == r.Concurrency.Key && order(w, r) <= 0 && after.full(w, o) {
				n++
			}
		}
		return n
	}
	var skipped []*coord.Run // that found a place, and were left
	for _, r := range free {
		switch running := r.State == coord.Running; {
		case took[r]:
			for _, left := range skipped {
				if order(left, r) < 0 {
					t.Fatalf("Claim took run %d and left run %d, which goes before it, at %v, with %+v, of:%s", r.ID, left.ID,
						m.store.Now(), o, list(free, took))
				}
			}
			if !running {
				taken.take(r)
			}
		case !running && (taken.full(r, o) || isNew(r) && after.full(r, o)):
		case !running && r.Concurrency.Key != "" && behind(r) >= o.Limit:
		case !full:
			t.Fatalf("Claim took only %d runs and left run %d, which has a place, at %v, with %+v, of:%s", len(claims), r.ID,
				m.store.Now(), o, list(free, took))
		case !isNew(r):
			skipped = append(skipped, r)
		}
	}
}

// list prints the claimable runs, in order, with what was taken.
func list(free []*coord.Run, took map[*coord.Run]bool) string {
	var lines strings.Builder
	for _, r := range free {
		fmt.Fprintf(&lines, "\n  run %d of kind %s, %s, priority %d, claimable at %v, %+v, taken: %v", r.ID, r.Kind, r.State,
			r.Priority, claimableAt(r), r.Concurrency, took[r])
	}
	return lines.String()
}

func (m *claimerModel) claimed(t *rapid.T, c coord.Claim, o coord.ClaimOptions) {
	now, r := m.store.Now(), m.runs[c.Run.ID]
	if r.State == coord.Running {
		r.Rescues++
	}
	r.State, r.Worker, r.Attempt, r.Progress = coord.Running, o.Worker, r.Attempt+1, 0
	r.LeaseUntil, r.StartedAt = now.Add(o.Lease), now
	m.compareRun(t, "as claimed", c.Run, *r)
	if c.Token <= m.tokens[r.ID] {
		t.Fatalf("run %d was claimed with token %d after %d", r.ID, c.Token, m.tokens[r.ID])
	}
	m.tokens[r.ID] = c.Token
	m.claims = append(m.claims, c)
}

// lose ends those runs that may not run again and that the claim has ended.
func (m *claimerModel) lose(t *rapid.T, lost []*coord.Run) (ended int) {
	for _, r := range lost {
		stored, err := m.two.Claimer().Run(m.ctx, r.ID)
		must(t, "Run", err)
		if stored.State == coord.Running {
			continue
		}
		ended++
		r.State, r.FinishedAt, r.LeaseUntil = coord.Cancelled, m.store.Now(), time.Time{}
		if !r.CancelRequested {
			r.State, r.Error = coord.Failed, coord.LostError
		}
		r.Rescues = stored.Rescues // whether the last loss counts is open
	}
	return ended
}

// occurrence is a run that a task must have made.
type occurrence struct {
	task *coord.Task
	at   time.Time
}

// fire moves the tasks on and returns the occurrences that become runs.
func (m *claimerModel) fire(now time.Time) (fired []occurrence) {
	for _, t := range m.tasks {
		at, next := m.due(t, now)
		fired, t.NextAt = append(fired, at...), next
	}
	return fired
}

// fireBehind is fire for the tasks whose runs have just ended as lost. Whether
// the same claim makes their next runs, or the next claim, is open.
func (m *claimerModel) fireBehind(t *rapid.T, now time.Time) (fired []occurrence) {
	for _, task := range m.tasks {
		at, next := m.due(task, now)
		if next.Equal(task.NextAt) {
			continue
		}
		stored, err := m.two.Claimer().Task(m.ctx, task.Name)
		must(t, "Task", err)
		if stored.NextAt.Equal(next) {
			fired, task.NextAt = append(fired, at...), next
		}
	}
	return fired
}

// due returns the occurrences of a task that become runs now, and the next one.
// It steps through all occurrences where drivers compute the last ones.
func (m *claimerModel) due(t *coord.Task, now time.Time) (fired []occurrence, next time.Time) {
	next = t.NextAt
	if t.Paused || next.IsZero() || next.After(now) || t.Overlap == coord.OverlapForbid && m.inFlight(t.ID) > 0 {
		return nil, next
	}
	s, err := schedule.Parse(t.Schedule, t.Zone)
	must(m, "schedule.Parse", err)
	var due []time.Time
	for ; !next.IsZero() && !next.After(now); next = s.Next(next) {
		due = append(due, next)
	}
	switch t.Misfire {
	case coord.MisfireAll:
		due = due[max(0, len(due)-t.MisfireCap):]
	case coord.MisfireLatest:
		due = due[len(due)-1:]
	case coord.MisfireSkip:
		due = slices.DeleteFunc(due, func(at time.Time) bool { return now.Sub(at) > coord.MisfireGrace })
	}
	if t.Overlap == coord.OverlapForbid && len(due) > 1 {
		due, next = due[:1], due[1]
	}
	for _, at := range due {
		fired = append(fired, occurrence{t, at})
	}
	return fired, next
}

func (m *claimerModel) inFlight(id coord.TaskID) (n int) {
	for _, r := range m.runs {
		if r.TaskID == id && !r.State.Ended() {
			n++
		}
	}
	return n
}

// found takes the runs of the occurrences into the model, with the ids and due
// times that they got.
func (m *claimerModel) found(t *rapid.T, fired []occurrence) {
	if len(fired) == 0 {
		return
	}
	stored := m.stored(t, len(m.runs)+len(fired))
	for _, o := range fired {
		i := slices.IndexFunc(stored, func(r coord.Run) bool { return r.TaskID == o.task.ID && r.ScheduledFor.Equal(o.at) })
		if i < 0 {
			t.Fatalf("task %s (%s, overlap %s, misfire %s) has no run for its occurrence %v", o.task.Name, o.task.Schedule,
				o.task.Overlap, o.task.Misfire, o.at)
		}
		m.add(t, coord.Run{
			ID: stored[i].ID, TaskID: o.task.ID, Kind: o.task.Kind, Payload: o.task.Payload, ScheduledFor: o.at,
			DueAt: stored[i].DueAt, Retry: o.task.Retry, Priority: o.task.Priority, Concurrency: o.task.Concurrency,
		})
		if due := stored[i].DueAt; due.After(m.store.Now()) {
			t.Fatalf("the run of the occurrence %v is due at %v, which is later than now", o.at, due)
		}
	}
}

// drawClaims draws some of the claims that were given out, at most one of a run.
func (m *claimerModel) drawClaims(t *rapid.T) (claims []coord.Claim) {
	recent := m.claims[max(0, len(m.claims)-8):]
	if len(recent) == 0 {
		return nil
	}
	for range rapid.IntRange(1, 3).Draw(t, "how many") {
		c := recent[rapid.IntRange(0, len(recent)-1).Draw(t, "claim")]
		if !slices.ContainsFunc(claims, func(o coord.Claim) bool { return o.Run.ID == c.Run.ID }) {
			claims = append(claims, c)
		}
	}
	return claims
}

// sift checks that a FencedError names the claims that are not held, and
// returns the others. A lease that ran out and was not taken may be honoured.
func (m *claimerModel) sift(t *rapid.T, what string, err error, claims []coord.Claim) (held []coord.Claim) {
	named := map[int64]bool{}
	if fenced, ok := errors.AsType[*coord.FencedError](err); ok {
		for _, c := range fenced.Claims {
			named[int64(c.Run.ID)] = true
		}
	} else {
		must(t, what, err)
	}
	for _, c := range claims {
		r, fenced := m.runs[c.Run.ID], named[int64(c.Run.ID)]
		delete(named, int64(c.Run.ID))
		mine := r.State == coord.Running && m.tokens[r.ID] == c.Token
		expired := mine && !m.store.Now().Before(r.LeaseUntil)
		if mine == fenced && !expired {
			t.Fatalf("%s of run %d with token %d: fenced is %v, while the run is %s with token %d and a lease until %v at %v",
				what, r.ID, c.Token, fenced, r.State, m.tokens[r.ID], r.LeaseUntil, m.store.Now())
		}
		if !fenced {
			held = append(held, c)
		}
	}
	if len(named) > 0 {
		t.Fatalf("%s: the FencedError names claims that were not asked about: %v", what, err)
	}
	return held
}

func (m *claimerModel) extendSome(t *rapid.T) {
	claims := m.drawClaims(t)
	lease := pick(t, "lease", 5*time.Second, 20*time.Second)
	got, err := m.backend(t).Claimer().Extend(m.ctx, lease, claims...)
	held := m.sift(t, "Extend", err, claims)
	equal(t, "how many claims Extend returned", len(got), len(held))
	for _, c := range held {
		m.runs[c.Run.ID].LeaseUntil = m.store.Now().Add(lease)
	}
	for _, c := range got {
		m.compareRun(t, "as extended", c.Run, *m.runs[c.Run.ID])
	}
}

func (m *claimerModel) drawResults(t *rapid.T, claims []coord.Claim) (results []coord.Result) {
	for _, c := range claims {
		results = append(results, coord.Result{
			Claim: c, Delay: 3 * time.Second, Error: pick(t, "error", "e1", "e2"),
			Outcome: pick(t, "outcome", coord.Succeed, coord.Fail, coord.Fail, coord.GiveUp, coord.Snooze, coord.Release,
				coord.CancelRun),
		})
		if o := results[len(results)-1].Outcome; o != coord.Fail && o != coord.GiveUp {
			results[len(results)-1].Error = ""
		}
	}
	return results
}

// finished takes the end of a claim that was held into the model.
func (m *claimerModel) finished(t *rapid.T, result coord.Result) {
	now, r := m.store.Now(), m.runs[result.Claim.Run.ID]
	r.LeaseUntil = time.Time{}
	if result.Error != "" {
		r.Error = result.Error
	}
	again := func(from, to time.Duration) {
		if r.CancelRequested { // it is not to run again
			r.State, r.FinishedAt = coord.Cancelled, now
			return
		}
		r.State = coord.Queued
		stored, err := m.two.Claimer().Run(m.ctx, r.ID)
		must(t, "Run", err)
		if pause := stored.DueAt.Sub(now); pause < from || pause > to {
			t.Fatalf("run %d is due in %v after outcome %d; want between %v and %v", r.ID, pause, result.Outcome, from, to)
		}
		r.DueAt = stored.DueAt
	}
	switch result.Outcome {
	case coord.Snooze:
		again(result.Delay, result.Delay)
		r.Attempt--
	case coord.Release:
		again(0, 0)
		r.Attempt--
	case coord.Fail:
		if r.Attempt < r.Retry.MaxAttempts {
			pause := min(r.Retry.Backoff<<(r.Attempt-1), r.Retry.MaxBackoff)
			again(pause*4/5, pause)
			return
		}
		fallthrough
	case coord.GiveUp:
		r.State, r.FinishedAt = coord.Failed, now
	case coord.Succeed:
		r.State, r.FinishedAt = coord.Succeeded, now
	case coord.CancelRun:
		r.State, r.FinishedAt = coord.Cancelled, now
	}
}

func claimsOf(results []coord.Result) (claims []coord.Claim) {
	for _, r := range results {
		claims = append(claims, r.Claim)
	}
	return claims
}

func (m *claimerModel) finishSome(t *rapid.T) {
	results := m.drawResults(t, m.drawClaims(t))
	inTx, err := m.write(t, func(ctx context.Context, w writer) error { return w.Finish(ctx, results...) })
	held := m.sift(t, "Finish", err, claimsOf(results))
	if inTx && err != nil {
		return
	}
	for _, c := range held {
		m.finished(t, results[slices.IndexFunc(results, func(r coord.Result) bool { return r.Claim.Run.ID == c.Run.ID })])
	}
}

func (m *claimerModel) drawReports(t *rapid.T, claims []coord.Claim) (reports []coord.Report) {
	for _, c := range claims {
		r := coord.Report{Claim: c, Progress: pick(t, "progress", 0, 1, 100)}
		for range pick(t, "lines", 0, 1, 2) {
			r.Lines = append(r.Lines, fmt.Sprint("line ", len(r.Lines)))
		}
		reports = append(reports, r)
	}
	return reports
}

func (m *claimerModel) reportSome(t *rapid.T) {
	reports := m.drawReports(t, m.drawClaims(t))
	var claims []coord.Claim
	for _, r := range reports {
		claims = append(claims, r.Claim)
	}
	inTx, err := m.write(t, func(ctx context.Context, w writer) error { return w.Report(ctx, reports...) })
	held := m.sift(t, "Report", err, claims)
	for _, r := range reports {
		isHeld := slices.ContainsFunc(held, func(c coord.Claim) bool { return c.Run.ID == r.Claim.Run.ID })
		if isHeld && (err == nil || !inTx) {
			m.reported(r)
		}
		id := r.Claim.Run.ID
		after := rapid.IntRange(0, len(m.logs[id])).Draw(t, "after")
		sameLog(t, fmt.Sprintf("the log of run %d behind line %d", id, after),
			collect(t, "Log", m.two.Claimer().Log(m.ctx, id, after)), m.logs[id][after:])
	}
}

// reported takes news of a claim that was held into the model.
func (m *claimerModel) reported(report coord.Report) {
	r := m.runs[report.Claim.Run.ID]
	if report.Progress > 0 {
		r.Progress = report.Progress
	}
	for _, text := range report.Lines {
		r.LogLines++
		m.logs[r.ID] = append(m.logs[r.ID], coord.LogLine{Number: r.LogLines, Attempt: r.Attempt, At: m.store.Now(), Text: text})
	}
}

// transaction queues runs, reports on and ends claims that are held, and commits
// or not.
func (m *claimerModel) transaction(t *rapid.T) {
	asked := m.drawRuns(t)
	held := slices.DeleteFunc(m.drawClaims(t), func(c coord.Claim) bool {
		r := m.runs[c.Run.ID]
		return r.State != coord.Running || m.tokens[r.ID] != c.Token || !m.store.Now().Before(r.LeaseUntil)
	})
	reports, results := m.drawReports(t, held), m.drawResults(t, held)
	commit := rapid.Bool().Draw(t, "commit")
	var got []coord.Run
	err := m.backend(t).InTx(m.ctx, func(ctx context.Context, tx coord.Tx) (err error) {
		if got, err = tx.Enqueue(ctx, asked...); err != nil {
			return err
		}
		if err := tx.Report(ctx, reports...); err != nil {
			return err
		}
		if err := tx.Finish(ctx, results...); err != nil {
			return err
		}
		if !commit {
			return m.vain(ctx, t, tx)
		}
		return nil
	})
	if !commit {
		if !errors.Is(err, errOwn) {
			t.Fatalf("InTx: %v; want the error of its function", err)
		}
		return
	}
	must(t, "InTx", err)
	m.queued(t, asked, got)
	for _, r := range reports {
		m.reported(r)
	}
	for _, r := range results {
		m.finished(t, r)
	}
}

// vain does in a transaction that will be rolled back what may be refused.
func (m *claimerModel) vain(ctx context.Context, t *rapid.T, tx coord.Tx) error {
	name := m.taskName(t)
	errs := []error{second(tx.PutTask(ctx, coord.Task{Name: name, Kind: m.kind("vain"), Schedule: "@every 1s"}))}
	errs = append(errs, second(tx.Trigger(ctx, name, coord.TriggerOptions{Key: "x"})), tx.PauseTask(ctx, name, true))
	for _, r := range m.runs {
		errs = append(errs, tx.Cancel(ctx, r.ID))
	}
	errs = append(errs, tx.DeleteTask(ctx, name))
	for _, err := range errs {
		if err != nil && !errors.Is(err, coord.ErrConflict) && !errors.Is(err, coord.ErrNotFound) {
			return err
		}
	}
	return errOwn
}

func (m *claimerModel) cancelOne(t *rapid.T) {
	ids := m.ids()
	if len(ids) == 0 {
		return
	}
	r := m.runs[ids[max(0, len(ids)-1-rapid.IntRange(0, 6).Draw(t, "how many newer"))]]
	_, err := m.write(t, func(ctx context.Context, w writer) error { return w.Cancel(ctx, r.ID) })
	if r.State.Ended() {
		is(t, "Cancel of a run that has ended", err, coord.ErrConflict)
		return
	}
	must(t, "Cancel", err)
	m.cancelled(r)
}

func (m *claimerModel) cancelled(r *coord.Run) {
	now := m.store.Now()
	switch {
	case r.State == coord.Queued:
	case r.LeaseUntil.After(now):
		r.CancelRequested = true
		return
	default: // its worker has vanished
		r.CancelRequested, r.LeaseUntil = true, time.Time{}
		r.Rescues++
	}
	r.State, r.FinishedAt = coord.Cancelled, now
}

func (m *claimerModel) taskName(t *rapid.T) string { return m.name(pick(t, "task", "t1", "t2")) }

func (m *claimerModel) putTask(t *rapid.T) {
	n := coord.Task{
		Name: m.taskName(t), Kind: m.kind("task"), Payload: []byte("the task's"), Zone: "UTC",
		Schedule: pick(t, "schedule", "@every 5s", "@every 1m", "* * * * *", "",
			"@at "+m.store.Now().Add(pick(t, "from now", 20*time.Second, 20*time.Second, -10*time.Second)).Format(time.DateTime)),
		Overlap:     pick(t, "overlap", coord.OverlapForbid, coord.OverlapAllow),
		Misfire:     pick(t, "misfire", coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll),
		MisfireCap:  rapid.IntRange(1, 3).Draw(t, "cap"),
		Priority:    rapid.IntRange(1, 4).Draw(t, "priority"),
		Concurrency: m.drawConcurrency(t),
		// Never lost, so that which claim makes way for the next run is certain.
		Retry: coord.Retry{MaxAttempts: 100, Backoff: time.Second, MaxBackoff: 3 * time.Second},
	}
	known := m.tasks[n.Name]
	if known != nil {
		n.Version = known.Version + pick(t, "of another version", int64(0), 0, 0, 1, -known.Version)
	}
	var stored coord.Task
	_, err := m.write(t, func(ctx context.Context, w writer) (err error) {
		stored, err = w.PutTask(ctx, n)
		return err
	})
	if known != nil && n.Version != known.Version {
		is(t, "PutTask of another version", err, coord.ErrConflict)
		return
	}
	if changed := known == nil || known.Schedule != n.Schedule; changed && n.Schedule != "" {
		s, parseErr := schedule.Parse(n.Schedule, n.Zone)
		must(t, "schedule.Parse", parseErr)
		if n.NextAt = s.Next(m.store.Now()); n.NextAt.IsZero() {
			is(t, "PutTask of a time that has passed", err, coord.ErrInvalid)
			return
		}
	} else if !changed {
		n.NextAt = known.NextAt
	}
	must(t, "PutTask", err)
	n.ID, n.CreatedAt = stored.ID, m.store.Now()
	if known != nil {
		n.ID, n.CreatedAt = known.ID, known.CreatedAt
	}
	if stored.Version <= n.Version {
		t.Fatalf("PutTask stored version %d over %d", stored.Version, n.Version)
	}
	n.Version, n.UpdatedAt = stored.Version, m.store.Now()
	m.tasks[n.Name] = &n
	m.compareTask(t, "as put", stored, n)
}

func (m *claimerModel) pauseTask(t *rapid.T) {
	name, paused := m.taskName(t), rapid.Bool().Draw(t, "paused")
	_, err := m.write(t, func(ctx context.Context, w writer) error { return w.PauseTask(ctx, name, paused) })
	known := m.tasks[name]
	if known == nil {
		is(t, "PauseTask of an unknown task", err, coord.ErrNotFound)
		return
	}
	must(t, "PauseTask", err)
	known.Paused = paused
	stored, err := m.two.Claimer().Task(m.ctx, name)
	must(t, "Task", err)
	if stored.Version <= known.Version {
		t.Fatalf("PauseTask took the version from %d to %d", known.Version, stored.Version)
	}
	known.Version = stored.Version
}

func (m *claimerModel) trigger(t *rapid.T) {
	name, key := m.taskName(t), pick(t, "key", "", "x", "y")
	o := coord.TriggerOptions{Key: key, Payload: pick(t, "payload", nil, []byte("the trigger's"))}
	var got coord.Run
	_, err := m.write(t, func(ctx context.Context, w writer) (err error) {
		got, err = w.Trigger(ctx, name, o)
		return err
	})
	known := m.tasks[name]
	if known == nil {
		is(t, "Trigger of an unknown task", err, coord.ErrNotFound)
		return
	}
	unique := fmt.Sprintf("%d/%s", known.ID, key)
	switch id, isKnown := m.keys[unique]; {
	case isKnown && key != "":
		must(t, "Trigger with a known key", err)
		equal(t, "Duplicate for a known key", got.Duplicate, true)
		equal(t, "the run for a known key", got.ID, id)
	case known.Overlap == coord.OverlapForbid && m.inFlight(known.ID) > 0:
		is(t, "Trigger while a run is in the way", err, coord.ErrConflict)
	default:
		must(t, "Trigger", err)
		equal(t, "Duplicate for a new run", got.Duplicate, false)
		m.keys[unique] = got.ID
		if o.Payload == nil {
			o.Payload = known.Payload
		}
		m.add(t, coord.Run{
			ID: got.ID, TaskID: known.ID, Kind: known.Kind, Payload: o.Payload, DueAt: m.store.Now(), Retry: known.Retry,
			Priority: known.Priority, Concurrency: known.Concurrency,
		})
	}
}

func (m *claimerModel) deleteTask(t *rapid.T) {
	if !pick(t, "really", true, false, false) {
		return
	}
	name := m.taskName(t)
	_, err := m.write(t, func(ctx context.Context, w writer) error { return w.DeleteTask(ctx, name) })
	known := m.tasks[name]
	if known == nil {
		is(t, "DeleteTask of an unknown task", err, coord.ErrNotFound)
		return
	}
	must(t, "DeleteTask", err)
	delete(m.tasks, name)
	for _, r := range m.runs {
		if r.TaskID == known.ID && !r.State.Ended() {
			m.cancelled(r)
		}
	}
}

// ids returns the ids of the runs, the oldest first.
func (m *claimerModel) ids() (ids []coord.RunID) {
	for id := range m.runs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// nextDue asks when the next run or occurrence of some kinds falls due.
func (m *claimerModel) nextDue(t *rapid.T) {
	var kinds []string
	for kind := range strings.FieldsSeq(pick(t, "kinds", "", "", "a", "b", "task", "a b", "b task")) {
		kinds = append(kinds, m.kind(kind))
	}
	var next time.Time
	var others []time.Time // when those of other kinds fall due
	later := func(kind string, at time.Time) {
		switch {
		case !at.After(m.store.Now()):
		case len(kinds) > 0 && !slices.Contains(kinds, kind):
			others = append(others, at)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	for _, r := range m.runs {
		if !r.State.Ended() {
			later(r.Kind, claimableAt(r))
		}
	}
	for _, task := range m.tasks {
		if !task.Paused {
			later(task.Kind, task.NextAt)
		}
	}
	wait, some, err := m.backend(t).Claimer().NextDue(m.ctx, kinds...)
	must(t, "NextDue", err)
	before := 0 // those of other kinds that come first, if the answer is right
	for _, at := range others {
		if next.IsZero() || at.Before(next) {
			before++
		}
	}
	if before >= manyOthers && some && wait > 0 && (next.IsZero() || wait <= next.Sub(m.store.Now())) {
		return // the driver may have looked no further
	}
	equal(t, "whether something falls due", some, !next.IsZero())
	if some {
		equal(t, "how long it is until something falls due", wait, next.Sub(m.store.Now()))
	}
}

// manyOthers are so many that NextDue need not look behind them.
const manyOthers = 20

// stored lists the runs of this check, the oldest first, of which there should
// be so many.
func (m *claimerModel) stored(t *rapid.T, n int) (runs []coord.Run) {
	for _, r := range collect(t, "Runs", m.two.Claimer().Runs(m.ctx, coord.RunFilter{Limit: min(n+1, 1000)})) {
		if r.ID > m.before {
			runs = append(runs, r)
		}
	}
	slices.Reverse(runs)
	return runs
}

func (m *claimerModel) compareRun(t *rapid.T, what string, got, want coord.Run) {
	sameRun(t, what, got, want)
	if want.State == coord.Queued {
		equal(t, fmt.Sprintf("%s: run %d: DueAt", what, want.ID), got.DueAt, want.DueAt)
	}
}

func (m *claimerModel) compareTask(t *rapid.T, what string, got, want coord.Task) {
	want.UpdatedAt = got.UpdatedAt // whether firing and pausing count is open
	sameTask(t, what, got, want)
}

func (m *claimerModel) compare(t *rapid.T) {
	stored := m.stored(t, len(m.runs))
	equal(t, "how many runs are stored", len(stored), len(m.runs))
	for _, r := range stored {
		want := m.runs[r.ID]
		if want == nil {
			t.Fatalf("run %d is stored (%s), and should not be", r.ID, show(r))
		}
		m.compareRun(t, "as stored", r, *want)
	}
	tasks := 0
	for _, task := range collect(t, "Tasks", m.two.Claimer().Tasks(m.ctx)) {
		if !strings.HasPrefix(task.Name, m.prefix) {
			continue
		}
		tasks++
		want := m.tasks[task.Name]
		if want == nil {
			t.Fatalf("task %s is stored, and should not be", task.Name)
		}
		m.compareTask(t, "as stored", task, *want)
	}
	equal(t, "how many tasks are stored", tasks, len(m.tasks))
}
