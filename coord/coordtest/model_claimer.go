package coordtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	before coord.RunID // runs up to this id are of earlier checks
	runs   map[coord.RunID]*coord.Run
	tokens map[coord.RunID]int64 // of the last claim
	claims []coord.Claim         // all that were given out
	tasks  map[string]*coord.Task
	keys   map[string]coord.RunID // by task id and key
}

func newClaimerModel(m model) *claimerModel {
	c := &claimerModel{
		model: m, runs: make(map[coord.RunID]*coord.Run), tokens: make(map[coord.RunID]int64),
		tasks: make(map[string]*coord.Task), keys: make(map[string]coord.RunID),
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
		"finish again": m.finishSome, "cancel": m.cancelOne, "advance": m.advance, "put a task": m.putTask, "pause": m.pauseTask,
		"trigger": m.trigger, "delete a task": m.deleteTask, "transaction": m.transaction, "": m.compare,
	}
}

func (m *claimerModel) kind(k string) string { return m.name(k) }

func (m *claimerModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", 100*time.Millisecond, time.Second, 7*time.Second, 30*time.Second, 2*time.Minute))
}

func (m *claimerModel) drawRuns(t *rapid.T) (runs []coord.NewRun) {
	for range rapid.IntRange(1, 3).Draw(t, "how many") {
		n := coord.NewRun{
			Kind:       m.kind(pick(t, "kind", "a", "b")),
			Priority:   rapid.IntRange(1, 4).Draw(t, "priority"),
			Delay:      pick(t, "delay", 0, 0, 0, 5*time.Second),
			AtMostOnce: pick(t, "at most once", false, false, true),
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
			ID: got[i].ID, Kind: n.Kind, DueAt: m.store.Now().Add(n.Delay), Retry: n.Retry, Priority: n.Priority, AtMostOnce: n.AtMostOnce,
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
	got, err := m.backend(t).Claimer().Enqueue(m.ctx, asked...)
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
	fired := m.fire(now)
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
	// Ending a run that is lost may count as taking one.
	most := min(o.Limit, len(free))
	if len(claims) > most || len(claims) < min(most, o.Limit-ended) {
		t.Fatalf("Claim with limit %d took %d of %d claimable runs and ended %d lost ones", o.Limit, len(claims),
			len(free), ended)
	}
	if ended < len(lost) && len(claims)+ended < o.Limit {
		t.Fatalf("Claim with limit %d took %d runs and ended only %d of %d that were lost", o.Limit, len(claims), ended,
			len(lost))
	}
	m.inOrder(t, claims, free, fired)
	for _, c := range claims {
		m.claimed(t, c, o)
	}
}

// inOrder checks that no run was left that should have gone before one that was
// taken. Which of equals is taken is open, and so is whether a run that this very
// claim made of an occurrence stands behind those that were queued already.
func (m *claimerModel) inOrder(t *rapid.T, claims []coord.Claim, free []*coord.Run, fired []occurrence) {
	taken := func(r *coord.Run) bool {
		return slices.ContainsFunc(claims, func(c coord.Claim) bool { return c.Run.ID == r.ID })
	}
	isNew := func(r *coord.Run) bool {
		return slices.ContainsFunc(fired, func(o occurrence) bool { return o.task.ID == r.TaskID && o.at.Equal(r.ScheduledFor) })
	}
	for _, c := range claims {
		r := m.runs[c.Run.ID]
		if r == nil || !slices.Contains(free, r) {
			t.Fatalf("Claim took run %d (%s), which is not claimable", c.Run.ID, show(c.Run))
		}
		for _, left := range free {
			if taken(left) || isNew(left) {
				continue
			}
			if cmp.Or(cmp.Compare(left.Priority, r.Priority), claimableAt(left).Compare(claimableAt(r))) < 0 {
				t.Fatalf("Claim took run %d of priority %d, claimable at %v, and left run %d of priority %d, claimable at %v",
					r.ID, r.Priority, claimableAt(r), left.ID, left.Priority, claimableAt(left))
			}
		}
	}
}

func (m *claimerModel) claimed(t *rapid.T, c coord.Claim, o coord.ClaimOptions) {
	now, r := m.store.Now(), m.runs[c.Run.ID]
	if r.State == coord.Running {
		r.Rescues++
	}
	r.State, r.Worker, r.Attempt = coord.Running, o.Worker, r.Attempt+1
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
	for ; !next.After(now); next = s.Next(next) {
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
	stored := m.stored(t)
	for _, o := range fired {
		i := slices.IndexFunc(stored, func(r coord.Run) bool { return r.TaskID == o.task.ID && r.ScheduledFor.Equal(o.at) })
		if i < 0 {
			t.Fatalf("task %s (%s, overlap %s, misfire %s) has no run for its occurrence %v", o.task.Name, o.task.Schedule,
				o.task.Overlap, o.task.Misfire, o.at)
		}
		m.add(t, coord.Run{
			ID: stored[i].ID, TaskID: o.task.ID, Kind: o.task.Kind, ScheduledFor: o.at, DueAt: stored[i].DueAt,
			Retry: o.task.Retry, Priority: o.task.Priority,
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

func (m *claimerModel) finishSome(t *rapid.T) {
	results := m.drawResults(t, m.drawClaims(t))
	var claims []coord.Claim
	for _, r := range results {
		claims = append(claims, r.Claim)
	}
	err := m.backend(t).Claimer().Finish(m.ctx, results...)
	for _, c := range m.sift(t, "Finish", err, claims) {
		m.finished(t, results[slices.IndexFunc(results, func(r coord.Result) bool { return r.Claim.Run.ID == c.Run.ID })])
	}
}

// transaction queues runs and ends claims that are held, and commits or not.
func (m *claimerModel) transaction(t *rapid.T) {
	asked := m.drawRuns(t)
	results := m.drawResults(t, slices.DeleteFunc(m.drawClaims(t), func(c coord.Claim) bool {
		r := m.runs[c.Run.ID]
		return r.State != coord.Running || m.tokens[r.ID] != c.Token || !m.store.Now().Before(r.LeaseUntil)
	}))
	commit := rapid.Bool().Draw(t, "commit")
	var got []coord.Run
	err := m.backend(t).InTx(m.ctx, func(ctx context.Context, tx coord.Tx) (err error) {
		if got, err = tx.Enqueue(ctx, asked...); err != nil {
			return err
		}
		if err := tx.Finish(ctx, results...); err != nil {
			return err
		}
		if !commit {
			return errOwn
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
	for _, r := range results {
		m.finished(t, r)
	}
}

func (m *claimerModel) cancelOne(t *rapid.T) {
	ids := m.ids()
	if len(ids) == 0 {
		return
	}
	r := m.runs[ids[max(0, len(ids)-1-rapid.IntRange(0, 6).Draw(t, "how many newer"))]]
	err := m.backend(t).Claimer().Cancel(m.ctx, r.ID)
	if r.State.Ended() {
		is(t, "Cancel of a run that has ended", err, coord.ErrConflict)
		return
	}
	must(t, "Cancel", err)
	m.cancelled(r)
}

func (m *claimerModel) cancelled(r *coord.Run) {
	if r.State == coord.Running {
		r.CancelRequested = true
	} else {
		r.State, r.FinishedAt = coord.Cancelled, m.store.Now()
	}
}

func (m *claimerModel) taskName(t *rapid.T) string { return m.name(pick(t, "task", "t1", "t2")) }

func (m *claimerModel) putTask(t *rapid.T) {
	n := coord.Task{
		Name: m.taskName(t), Kind: m.kind("task"), Zone: "UTC",
		Schedule:   pick(t, "schedule", "@every 5s", "@every 1m", "* * * * *", ""),
		Overlap:    pick(t, "overlap", coord.OverlapForbid, coord.OverlapAllow),
		Misfire:    pick(t, "misfire", coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll),
		MisfireCap: rapid.IntRange(1, 3).Draw(t, "cap"),
		Priority:   rapid.IntRange(1, 4).Draw(t, "priority"),
		// Never lost, so that which claim makes way for the next run is certain.
		Retry: coord.Retry{MaxAttempts: 100, Backoff: time.Second, MaxBackoff: 3 * time.Second},
	}
	known := m.tasks[n.Name]
	if known != nil {
		n.Version = known.Version + pick(t, "of another version", int64(0), 0, 0, 1, -known.Version)
	}
	stored, err := m.backend(t).Claimer().PutTask(m.ctx, n)
	switch {
	case known != nil && n.Version != known.Version:
		is(t, "PutTask of another version", err, coord.ErrConflict)
		return
	case known != nil:
		n.ID, n.CreatedAt, n.NextAt = known.ID, known.CreatedAt, known.NextAt
	default:
		n.ID, n.CreatedAt = stored.ID, m.store.Now()
	}
	must(t, "PutTask", err)
	if known == nil || known.Schedule != n.Schedule {
		n.NextAt = time.Time{}
		if n.Schedule != "" {
			s, err := schedule.Parse(n.Schedule, n.Zone)
			must(t, "schedule.Parse", err)
			n.NextAt = s.Next(m.store.Now())
		}
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
	err := m.backend(t).Claimer().PauseTask(m.ctx, name, paused)
	known := m.tasks[name]
	if known == nil {
		is(t, "PauseTask of an unknown task", err, coord.ErrNotFound)
		return
	}
	must(t, "PauseTask", err)
	known.Paused = paused
	stored, err := m.two.Claimer().Task(m.ctx, name)
	must(t, "Task", err)
	if stored.Version < known.Version {
		t.Fatalf("PauseTask took the version from %d to %d", known.Version, stored.Version)
	}
	known.Version = stored.Version // whether it grows is open
}

func (m *claimerModel) trigger(t *rapid.T) {
	name, key := m.taskName(t), pick(t, "key", "", "x", "y")
	got, err := m.backend(t).Claimer().Trigger(m.ctx, name, key)
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
		m.add(t, coord.Run{
			ID: got.ID, TaskID: known.ID, Kind: known.Kind, DueAt: m.store.Now(), Retry: known.Retry, Priority: known.Priority,
		})
	}
}

func (m *claimerModel) deleteTask(t *rapid.T) {
	if !pick(t, "really", true, false, false) {
		return
	}
	name := m.taskName(t)
	err := m.backend(t).Claimer().DeleteTask(m.ctx, name)
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

// stored lists the runs of this check, the oldest first.
func (m *claimerModel) stored(t *rapid.T) (runs []coord.Run) {
	filter := coord.RunFilter{Limit: 1000}
	for {
		page := collect(t, "Runs", m.two.Claimer().Runs(m.ctx, filter))
		for _, r := range page {
			if r.ID <= m.before {
				slices.Reverse(runs)
				return runs
			}
			runs = append(runs, r)
		}
		if len(page) < filter.Limit {
			slices.Reverse(runs)
			return runs
		}
		filter.Before = page[len(page)-1].ID
	}
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
	stored := m.stored(t)
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
