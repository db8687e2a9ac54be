package coord

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"
)

type claimerSeam struct {
	*seam
	driver Claimer
}

func (id RunID) key() string { return strconv.FormatInt(int64(id), 10) }

// taskName checks the name of a task that is looked for.
func taskName(name string) error { return text("name", name, 1, maxName) }

func (s claimerSeam) PutTask(ctx context.Context, t Task) (stored Task, err error) {
	bad := t.complete()
	err = s.do(ctx, "claimer.put_task", t.Name, 1, bad, func() (err error) {
		stored, err = s.driver.PutTask(ctx, t)
		return err
	})
	return stored, err
}

func (s claimerSeam) Task(ctx context.Context, name string) (t Task, err error) {
	err = s.do(ctx, "claimer.task", name, 1, taskName(name), func() (err error) {
		t, err = s.driver.Task(ctx, name)
		return err
	})
	return t, err
}

func (s claimerSeam) Tasks(ctx context.Context) iter.Seq2[Task, error] {
	return list(ctx, s.seam, "claimer.tasks", nil, func() iter.Seq2[Task, error] { return s.driver.Tasks(ctx) })
}

func (s claimerSeam) DeleteTask(ctx context.Context, name string) error {
	return s.do(ctx, "claimer.delete_task", name, 1, taskName(name), func() error { return s.driver.DeleteTask(ctx, name) })
}

func (s claimerSeam) PauseTask(ctx context.Context, name string, paused bool) error {
	return s.do(ctx, "claimer.pause_task", name, 1, taskName(name), func() error {
		return s.driver.PauseTask(ctx, name, paused)
	})
}

func (o TriggerOptions) check(name string) error {
	return invalid(taskName(name), text("TriggerOptions.Key", o.Key, 0, maxName), payload("TriggerOptions.Payload", o.Payload))
}

func (s claimerSeam) Trigger(ctx context.Context, name string, o TriggerOptions) (r Run, err error) {
	err = s.do(ctx, "claimer.trigger", name, 1, o.check(name), func() (err error) {
		r, err = s.driver.Trigger(ctx, name, o)
		return err
	})
	return r, err
}

func completeRuns(runs []NewRun) ([]NewRun, error) {
	if len(runs) > MaxEnqueue {
		return nil, fieldError("runs", "are %d, at most %d can be queued in one call", len(runs), MaxEnqueue)
	}
	runs = slices.Clone(runs)
	bytes := 0
	for i := range runs {
		if err := runs[i].complete(fmt.Sprintf("runs[%d]", i)); err != nil {
			return nil, err
		}
		bytes += len(runs[i].Payload)
	}
	return runs, payloads("runs", bytes)
}

func (s claimerSeam) Enqueue(ctx context.Context, runs ...NewRun) (queued []Run, err error) {
	runs, bad := completeRuns(runs)
	err = s.do(ctx, "claimer.enqueue", "", len(runs), bad, func() (err error) {
		if len(runs) > 0 {
			queued, err = s.driver.Enqueue(ctx, runs...)
		}
		return err
	})
	return queued, err
}

func (s claimerSeam) Claim(ctx context.Context, o ClaimOptions) (claims []Claim, err error) {
	bad := o.complete()
	if s.inside(ctx) {
		bad = errInside
	}
	deadline, items := time.Now().Add(o.Lease), o.Limit
	err = s.count(ctx, "claimer.claim", o.Worker, &items, bad, func() (err error) {
		claims, err = s.driver.Claim(ctx, o)
		items = len(claims)
		return err
	})
	return withDeadline(claims, deadline), err
}

func withDeadline(claims []Claim, deadline time.Time) []Claim {
	for i := range claims {
		claims[i].Deadline = deadline
	}
	return claims
}

func (s claimerSeam) Extend(ctx context.Context, lease time.Duration, claims ...Claim) (held []Claim, err error) {
	deadline := time.Now().Add(lease)
	bad := invalid(span("lease", lease, minLease, maxLease), between("claims", len(claims), 0, MaxBatch))
	err = s.do(ctx, "claimer.extend", "", len(claims), bad, func() (err error) {
		if len(claims) > 0 {
			held, err = s.driver.Extend(ctx, lease, claims...)
		}
		return err
	})
	return withDeadline(held, deadline), err
}

func completeResults(results []Result) ([]Result, error) {
	if err := between("results", len(results), 0, MaxBatch); err != nil {
		return nil, err
	}
	results = slices.Clone(results)
	seen := make(map[RunID]bool, len(results))
	for i := range results {
		if err := results[i].complete(); err != nil {
			return nil, err
		}
		id := results[i].Claim.Run.ID
		if seen[id] {
			return nil, fieldError("results", "name run %d twice", id)
		}
		seen[id] = true
	}
	return results, nil
}

func resultsKey(results []Result) string {
	if len(results) == 1 {
		return results[0].Claim.Run.ID.key()
	}
	return ""
}

func (s claimerSeam) Finish(ctx context.Context, results ...Result) error {
	results, bad := completeResults(results)
	return s.do(ctx, "claimer.finish", resultsKey(results), len(results), bad, func() error {
		if len(results) == 0 {
			return nil
		}
		return s.driver.Finish(ctx, results...)
	})
}

func completeReports(reports []Report) ([]Report, error) {
	if err := between("reports", len(reports), 0, MaxBatch); err != nil {
		return nil, err
	}
	reports = slices.Clone(reports)
	seen := make(map[RunID]bool, len(reports))
	lines := 0
	for i := range reports {
		if err := reports[i].complete(); err != nil {
			return nil, err
		}
		id := reports[i].Claim.Run.ID
		if seen[id] {
			return nil, fieldError("reports", "name run %d twice", id)
		}
		seen[id] = true
		lines += len(reports[i].Lines)
	}
	return reports, between("reports", lines, 0, MaxEnqueue)
}

func reportsKey(reports []Report) string {
	if len(reports) == 1 {
		return reports[0].Claim.Run.ID.key()
	}
	return ""
}

func (s claimerSeam) Report(ctx context.Context, reports ...Report) error {
	reports, bad := completeReports(reports)
	return s.do(ctx, "claimer.report", reportsKey(reports), len(reports), bad, func() error {
		if len(reports) == 0 {
			return nil
		}
		return s.driver.Report(ctx, reports...)
	})
}

func (s claimerSeam) Cancel(ctx context.Context, id RunID) error {
	return s.do(ctx, "claimer.cancel", id.key(), 1, nil, func() error { return s.driver.Cancel(ctx, id) })
}

func (s claimerSeam) Run(ctx context.Context, id RunID) (r Run, err error) {
	err = s.do(ctx, "claimer.run", id.key(), 1, nil, func() (err error) {
		r, err = s.driver.Run(ctx, id)
		return err
	})
	return r, err
}

func (s claimerSeam) Runs(ctx context.Context, f RunFilter) iter.Seq2[Run, error] {
	orDefault(&f.Limit, 100)
	bad := between("RunFilter.Limit", f.Limit, 1, MaxBatch)
	bad = invalid(bad, text("RunFilter.Kind", f.Kind, 0, maxKind))
	if f.State != "" {
		bad = invalid(bad, oneOf("RunFilter.State", f.State, Queued, Running, Succeeded, Failed, Cancelled))
	}
	return list(ctx, s.seam, "claimer.runs", bad, func() iter.Seq2[Run, error] { return s.driver.Runs(ctx, f) })
}

func (s claimerSeam) Log(ctx context.Context, id RunID, after int) iter.Seq2[LogLine, error] {
	bad := between("after", after, 0, 1<<31-1)
	return list(ctx, s.seam, "claimer.log", bad, func() iter.Seq2[LogLine, error] { return s.driver.Log(ctx, id, after) })
}

func (s claimerSeam) NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error) {
	err = s.do(ctx, "claimer.next_due", "", 1, kindNames("kinds", kinds), func() (err error) {
		wait, some, err = s.driver.NextDue(ctx, kinds...)
		return err
	})
	return wait, some, err
}

func (s claimerSeam) Prune(ctx context.Context, r RunRetention) (n int, err error) {
	bad := invalid(span("RunRetention.Age", r.Age, 0, maxSpan), between("RunRetention.Keep", r.Keep, 0, 1<<30))
	err = s.do(ctx, "claimer.prune", "", 1, bad, func() (err error) {
		n, err = s.driver.Prune(ctx, r)
		return err
	})
	return n, err
}

func (s claimerSeam) Hints() (<-chan struct{}, func()) { return s.driver.Hints() }

func (s claimerSeam) Cancels() (<-chan struct{}, func()) { return s.driver.Cancels() }

// list passes a driver's listing on, its error as that of one operation.
func list[T any](ctx context.Context, s *seam, op string, bad error, open func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stopped := false
		err := s.do(ctx, op, "", 1, bad, func() error {
			for item, err := range open() {
				if err != nil {
					return err
				}
				if !yield(item, nil) {
					stopped = true
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			var zero T
			yield(zero, err)
		}
	}
}
