package worker

import (
	"context"
	"errors"

	"github.com/tandemhq/tandem/coord"
)

// report sends news of the run together with those of others.
func (r *Run) report(ctx context.Context, news coord.Report) error {
	w := r.worker
	if w == nil {
		return nil
	}
	// An empty call is refused inside a transaction, where a shared one would wait
	// for it.
	if err := w.claimer.Report(ctx); err != nil {
		return err
	}
	news.Claim = r.Claim
	refused, err := w.reports.Do(ctx, news)
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	return refused
}

// report sends what was collected, one report for each claim, and returns what
// became of each item.
func (w *Worker) report(ctx context.Context, items []coord.Report) ([]error, error) {
	var reports []coord.Report
	index := make(map[coord.RunID]int, len(items))
	for _, item := range items {
		i, ok := index[item.Claim.Run.ID]
		if !ok || reports[i].Claim.Token != item.Claim.Token {
			index[item.Claim.Run.ID] = len(reports)
			reports = append(reports, item)
			continue
		}
		reports[i].Lines = append(reports[i].Lines, item.Lines...)
		if item.Progress != 0 {
			reports[i].Progress = item.Progress
		}
	}
	err := w.claimer.Report(ctx, reports...)
	fenced, ok := errors.AsType[*coord.FencedError](err)
	if err != nil && !ok {
		return nil, err
	}
	answers := make([]error, len(items))
	if ok {
		w.lost(fenced.Claims)
		for i, item := range items {
			answers[i] = fencedError(fenced.Claims, item.Claim)
		}
	}
	return answers, nil
}

// fencedError is a [coord.FencedError] of the claim if it is among the fenced.
func fencedError(fenced []coord.Claim, claim coord.Claim) error {
	for _, c := range fenced {
		if c.Run.ID == claim.Run.ID && c.Token == claim.Token {
			return &coord.FencedError{Claims: []coord.Claim{claim}}
		}
	}
	return nil
}
