package memory

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func (c claimer) Run(ctx context.Context, id coord.RunID) (found coord.Run, err error) {
	missing := false
	err = c.store.read(ctx, func() {
		if r := c.store.work.runs[id]; r != nil {
			found = r.out()
		} else {
			missing = true
		}
	})
	if err == nil && missing {
		err = coord.ErrNotFound
	}
	return found, err
}

func wanted(r *run, f coord.RunFilter) bool {
	return (f.TaskID == 0 || r.TaskID == f.TaskID) && (f.Kind == "" || r.Kind == f.Kind) &&
		(f.State == "" || r.State == f.State)
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		var found []*run
		var runs []coord.Run
		err := c.store.read(ctx, func() {
			history := c.store.work.history
			if f.Before > 0 {
				end, _ := slices.BinarySearchFunc(history, f.Before, func(r *run, id coord.RunID) int { return cmp.Compare(r.ID, id) })
				history = history[:end]
			}
			for _, r := range slices.Backward(history) {
				if len(found) == f.Limit {
					break
				}
				if wanted(r, f) {
					found = append(found, r)
				}
			}
			runs = outAll(found)
		})
		yieldAll(yield, runs, err)
	}
}

// yieldAll yields the items of a listing, or the error that prevented it.
func yieldAll[T any](yield func(T, error) bool, items []T, err error) {
	if err != nil {
		var zero T
		yield(zero, err)
		return
	}
	for _, item := range items {
		if !yield(item, nil) {
			return
		}
	}
}

func (s *Store) report(now time.Time, reports []coord.Report) error {
	var fenced []coord.Claim
	for _, report := range reports {
		r := s.held(report.Claim)
		if r == nil {
			fenced = append(fenced, report.Claim)
			continue
		}
		progress, lines, log := r.Progress, r.LogLines, r.log
		s.onRollback(func() { r.Progress, r.LogLines, r.log = progress, lines, log })
		if report.Progress > 0 {
			r.Progress = report.Progress
		}
		r.LogLines += len(report.Lines)
		for _, text := range report.Lines[:min(len(report.Lines), coord.MaxLogLines-len(r.log))] {
			r.log = append(r.log, coord.LogLine{Number: len(r.log) + 1, Attempt: r.Attempt, At: now, Text: text})
		}
	}
	return fencedError(fenced)
}

func (c claimer) Report(ctx context.Context, reports ...coord.Report) error {
	return c.store.write(ctx, func(now time.Time) error { return c.store.report(now, reports) })
}

func (c claimer) Log(ctx context.Context, id coord.RunID, after int) iter.Seq2[coord.LogLine, error] {
	return func(yield func(coord.LogLine, error) bool) {
		var lines []coord.LogLine
		err := c.store.read(ctx, func() {
			if r := c.store.work.runs[id]; r != nil {
				lines = slices.Clone(r.log[min(after, len(r.log)):])
			}
		})
		yieldAll(yield, lines, err)
	}
}

func (c claimer) Prune(ctx context.Context, keep coord.RunRetention) (n int, err error) {
	err = c.store.write(ctx, func(now time.Time) error {
		w := &c.store.work
		ended := make(map[coord.TaskID]int) // how many newer ones each task has
		prune := make(map[*run]bool)
		for _, r := range slices.Backward(w.history) {
			if !r.State.Ended() {
				continue
			}
			old := keep.Age > 0 && now.Sub(r.FinishedAt) >= keep.Age
			if keep.Keep > 0 && r.TaskID != 0 {
				ended[r.TaskID]++
				old = old || ended[r.TaskID] > keep.Keep
			}
			if old {
				prune[r] = true
				c.store.forget(r)
			}
			if len(prune) == batch {
				break
			}
		}
		w.history = slices.DeleteFunc(w.history, func(r *run) bool { return prune[r] })
		n = len(prune)
		return nil
	})
	return n, err
}
