package row

import (
	"context"
	"iter"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// FindRun returns one run, or [coord.ErrNotFound].
func FindRun(ctx context.Context, db bun.IDB, id coord.RunID) (coord.Run, error) {
	var rows []Run
	err := db.NewRaw(`SELECT `+RunColumns+` FROM coord_runs r WHERE id = ?`, id).Scan(ctx, &rows)
	switch {
	case err != nil:
		return coord.Run{}, err
	case len(rows) == 0:
		return coord.Run{}, coord.ErrNotFound
	}
	return rows[0].Coord(), nil
}

// FindRuns returns the runs of a filter, the newest first. One of a kind, or of a state
// that few have, may walk through the whole history, some 10 ms per 100,000 runs on
// PostgreSQL: an index for it would make each end of a run cost a quarter more.
func FindRuns(ctx context.Context, db bun.IDB, f coord.RunFilter) ([]coord.Run, error) {
	q := db.NewSelect().TableExpr("coord_runs AS r").ColumnExpr(RunColumns).OrderExpr("r.id DESC").Limit(int64(f.Limit))
	if f.TaskID != 0 {
		q = q.Where("r.task_id = ?", f.TaskID)
	}
	if f.Kind != "" {
		q = q.Where("r.kind = ?", f.Kind)
	}
	if f.State != "" {
		q = q.Where("r.state = ?", f.State)
		if f.State == coord.Failed || f.State == coord.Cancelled {
			// What an index of such runs asks for; SQLite doesn't infer it.
			q = q.Where("r.finished_at IS NOT NULL AND r.state IN ('failed', 'cancelled')")
		}
	}
	if f.Before != 0 {
		q = q.Where("r.id < ?", f.Before)
	}
	var rows []Run
	err := q.Scan(ctx, &rows)
	return Runs(rows), err
}

// logPage is how many lines of a log are read at a time.
const logPage = 1000

// Log lists the lines of a run behind the one numbered after.
func Log(
	ctx context.Context, db bun.IDB, id coord.RunID, after int, wrap func(context.Context, error) error,
) iter.Seq2[coord.LogLine, error] {
	return func(yield func(coord.LogLine, error) bool) {
		for {
			var rows []LogLine
			err := db.NewRaw(`SELECT number, attempt, at, line FROM coord_run_log WHERE run_id = ? AND number > ?
				ORDER BY number LIMIT ?`, id, after, logPage).Scan(ctx, &rows)
			if err != nil {
				yield(coord.LogLine{}, wrap(ctx, err))
				return
			}
			for _, r := range rows {
				if !yield(r.Coord(), nil) {
					return
				}
				after = r.Number
			}
			if len(rows) < logPage {
				return
			}
		}
	}
}
