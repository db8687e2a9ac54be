package row

import (
	"context"

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

// FindRuns returns the runs of a filter, the newest first.
func FindRuns(ctx context.Context, db bun.IDB, f coord.RunFilter) ([]coord.Run, error) {
	q := db.NewSelect().TableExpr("coord_runs AS r").ColumnExpr(RunColumns).OrderExpr("r.id DESC").Limit(int64(f.Limit))
	if f.TaskID != 0 {
		q = q.Where("r.task_id = ?", f.TaskID)
	}
	if f.State != "" {
		q = q.Where("r.state = ?", f.State)
	}
	if f.Before != 0 {
		q = q.Where("r.id < ?", f.Before)
	}
	var rows []Run
	err := q.Scan(ctx, &rows)
	return Runs(rows), err
}
