package sqlite

import (
	"context"
	"database/sql"
	"iter"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

func (c claimer) Run(ctx context.Context, id coord.RunID) (coord.Run, error) {
	run, err := row.FindRun(ctx, c.b.db.Read, id)
	return run, storeError(ctx, err)
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		runs, err := row.FindRuns(ctx, c.b.db.Read, f)
		if err != nil {
			yield(coord.Run{}, storeError(ctx, err))
			return
		}
		for _, run := range runs {
			if !yield(run, nil) {
				return
			}
		}
	}
}

func (c claimer) Report(ctx context.Context, reports ...coord.Report) error {
	err := c.b.inTx(ctx, func(ctx context.Context, tx transaction) error { return tx.tell(ctx, reports) })
	return storeError(ctx, err)
}

// tell writes reports.
func (t transaction) tell(ctx context.Context, reports []coord.Report) error {
	claims := make([]coord.Claim, len(reports))
	held := make(map[fence]bool, len(reports))
	for i, r := range reports {
		claims[i] = r.Claim
		var run row.Run
		args := []any{r.Claim.Run.ID, r.Claim.Token, r.Progress, len(r.Lines)}
		err := t.each(ctx, t.prepared.report, args, func(rows *sql.Rows) error {
			held[fence{r.Claim.Run.ID, r.Claim.Token}] = true
			return rows.Scan(into(&run.Attempt), into(&run.LogLines))
		})
		if err != nil {
			return err
		}
		if !held[fence{r.Claim.Run.ID, r.Claim.Token}] {
			continue
		}
		for n, line := range r.Lines {
			number := run.LogLines - len(r.Lines) + n + 1
			if number > coord.MaxLogLines {
				break
			}
			if _, err := t.exec(ctx, t.prepared.logLine, r.Claim.Run.ID, number, run.Attempt, t.now.UnixMicro(), line); err != nil {
				return err
			}
		}
	}
	_, err := fenced(claims, func(f fence, _ *coord.Claim) bool { return held[f] })
	return err
}

func (c claimer) Log(ctx context.Context, id coord.RunID, after int) iter.Seq2[coord.LogLine, error] {
	return row.Log(ctx, c.b.db.Read, id, after, storeError)
}

// reapBatch is how many rows one clean-up statement deletes.
const reapBatch = 1000

// reap runs a clean-up statement and returns how many rows it deleted.
func (b *backend) reap(ctx context.Context, statement func(tx bun.Tx, now row.Time) *bun.RawQuery) (int, error) {
	var n int64
	err := b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		res, err := statement(tx.Tx, tx.now).Exec(ctx)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	if err != nil {
		return 0, storeError(ctx, err)
	}
	return int(n), nil
}

const ended = `finished_at IS NOT NULL`

func (c claimer) Prune(ctx context.Context, r coord.RunRetention) (n int, err error) {
	if r.Age > 0 {
		n, err = c.prune(ctx, func(now row.Time) (string, []any) {
			return `SELECT id, log_lines FROM coord_runs WHERE ` + ended + ` AND finished_at < ?0 ORDER BY finished_at LIMIT ?1`,
				[]any{after(now, -r.Age), reapBatch}
		})
		if err != nil {
			return 0, err
		}
	}
	if r.Keep > 0 {
		more, err := c.prune(ctx, func(row.Time) (string, []any) {
			// Tasks are looked for where deleted ones are found as well, one step of the
			// index each. CROSS JOIN keeps them outside.
			return `WITH RECURSIVE tasks (id) AS (
					SELECT (SELECT min(task_id) FROM coord_runs WHERE task_id IS NOT NULL)
					UNION ALL
					SELECT (SELECT min(task_id) FROM coord_runs WHERE task_id > tasks.id) FROM tasks WHERE id IS NOT NULL
				)
				SELECT old.id, old.log_lines FROM tasks CROSS JOIN coord_runs old ON old.task_id = tasks.id AND old.id <= (
					SELECT id FROM coord_runs WHERE task_id = tasks.id AND ` + ended + ` ORDER BY id DESC LIMIT 1 OFFSET ?0
				) WHERE old.` + ended + ` LIMIT ?1`, []any{r.Keep, reapBatch}
		})
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// pruneLines is about how many lines of logs one clean-up deletes with their runs.
const pruneLines = 20 * reapBatch

// prune deletes runs with their logs.
func (c claimer) prune(ctx context.Context, which func(now row.Time) (string, []any)) (n int, err error) {
	err = c.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		query, args := which(tx.now)
		var found []row.Run
		if err := tx.NewRaw(query, args...).Scan(ctx, &found); err != nil {
			return err
		}
		var list []int64
		for lines := 0; len(list) < len(found) && lines < pruneLines; {
			r := found[len(list)]
			list = append(list, r.ID)
			lines += min(r.LogLines, coord.MaxLogLines)
		}
		if n = len(list); n == 0 {
			return nil
		}
		for _, from := range []string{`coord_run_log WHERE run_id`, `coord_runs WHERE id`} {
			if _, err := tx.NewRaw(`DELETE FROM `+from+` IN (SELECT value FROM json_each(?))`, ids(list)).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, storeError(ctx, err)
	}
	return n, nil
}
