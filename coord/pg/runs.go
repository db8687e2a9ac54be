package pg

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

func (c claimer) Run(ctx context.Context, id coord.RunID) (coord.Run, error) {
	run, err := row.FindRun(ctx, c.b.db, id)
	return run, storeError(ctx, err)
}

func (c claimer) Runs(ctx context.Context, f coord.RunFilter) iter.Seq2[coord.Run, error] {
	return func(yield func(coord.Run, error) bool) {
		runs, err := row.FindRuns(ctx, c.b.db, f)
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

// reapBatch is how many rows one clean-up statement deletes, and reapLines how many
// lines of logs make it stop sooner.
const (
	reapBatch = 1000
	reapLines = 50000
)

func (c claimer) Prune(ctx context.Context, r coord.RunRetention) (n int, err error) {
	if r.Age > 0 {
		n, err = c.b.prune(ctx, `state > 'running' AND at < coord_now() - ? * interval '1 microsecond'`, row.Micros(r.Age))
		if err != nil {
			return 0, err
		}
	}
	if r.Keep > 0 {
		// Tasks are looked for where deleted ones are found as well, one step of the
		// index each.
		more, err := c.b.prune(ctx, `id IN (
				WITH RECURSIVE tasks (id) AS (
					(SELECT task_id FROM coord_runs WHERE task_id IS NOT NULL ORDER BY task_id LIMIT 1)
					UNION ALL
					SELECT (SELECT task_id FROM coord_runs WHERE task_id > tasks.id ORDER BY task_id LIMIT 1) FROM tasks WHERE id IS NOT NULL
				)
				SELECT old.id FROM tasks CROSS JOIN LATERAL (
					SELECT id FROM coord_runs WHERE task_id = tasks.id AND state > 'running' ORDER BY id DESC OFFSET ? LIMIT ?
				) AS old LIMIT ?
			)`, r.Keep, reapBatch, reapBatch)
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// prune deletes runs for which a condition holds, and their logs.
func (b *backend) prune(ctx context.Context, which string, args ...any) (int, error) {
	var gone []int
	err := b.db.NewRaw(`WITH old AS MATERIALIZED (
			SELECT id, LEAST(log_lines, ?) AS lines FROM coord_runs WHERE `+which+` LIMIT ? FOR UPDATE SKIP LOCKED
		), few AS (
			SELECT id, sum(lines) OVER (ROWS UNBOUNDED PRECEDING) - lines AS before FROM old
		), gone AS (
			DELETE FROM coord_runs WHERE id IN (SELECT id FROM few WHERE before < ?) RETURNING id
		), log AS (
			DELETE FROM coord_run_log WHERE run_id IN (SELECT id FROM gone)
		)
		SELECT count(*) FROM gone`, slices.Concat([]any{coord.MaxLogLines}, args, []any{reapBatch, reapLines})...).Scan(ctx, &gone)
	if err != nil || len(gone) == 0 {
		return 0, storeError(ctx, err)
	}
	return gone[0], nil
}

func (c claimer) Report(ctx context.Context, reports ...coord.Report) error {
	return storeError(ctx, report(ctx, c.b.db, reports))
}

// mostLines is where counting the lines of a run ends, with room in the column for
// those of one more report.
const mostLines = 2_000_000_000

// report notes progress and log lines of claims that are held, by one statement.
func report(ctx context.Context, db bun.IDB, reports []coord.Report) error {
	slices.SortFunc(reports, func(a, b coord.Report) int { return cmp.Compare(a.Claim.Run.ID, b.Claim.Run.ID) })
	n := len(reports)
	ids, tokens, progress, counts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	var owners, numbers []int64
	var lines []string
	claims := make([]coord.Claim, n)
	for i, r := range reports {
		claims[i] = r.Claim
		ids[i], tokens[i] = int64(r.Claim.Run.ID), r.Claim.Token
		progress[i], counts[i] = int64(r.Progress), int64(len(r.Lines))
		for k, line := range r.Lines {
			owners, numbers, lines = append(owners, ids[i]), append(numbers, int64(k+1)), append(lines, line)
		}
	}
	var lost []int64
	err := db.NewRaw(`WITH held AS MATERIALIZED (
			SELECT r.id, c.progress, c.lines FROM coord_runs r
			JOIN unnest(?::bigint[], ?::bigint[], ?::smallint[], ?::integer[]) AS c (id, token, progress, lines)
				ON r.id = c.id AND r.token = c.token
			WHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r
		), reported AS (
			UPDATE coord_runs AS r SET
				progress = CASE WHEN held.progress = 0 THEN r.progress ELSE held.progress END,
				log_lines = LEAST(r.log_lines, ?) + held.lines
			FROM held WHERE r.id = held.id RETURNING r.id, r.attempt, r.log_lines - held.lines AS before
		), logged AS (
			INSERT INTO coord_run_log (run_id, number, attempt, at, line)
			SELECT r.id, r.before + l.number, r.attempt, coord_clock(), l.line
			FROM unnest(?::bigint[], ?::integer[], ?::text[]) AS l (id, number, line) JOIN reported r ON r.id = l.id
			WHERE r.before + l.number <= ?
		)
		SELECT lost.id FROM unnest(?::bigint[]) AS lost (id) WHERE id NOT IN (SELECT id FROM reported)`,
		pq.Int64Array(ids), pq.Int64Array(tokens), pq.Int64Array(progress), pq.Int64Array(counts), mostLines,
		pq.Int64Array(owners), pq.Int64Array(numbers), pq.StringArray(lines), coord.MaxLogLines, pq.Int64Array(ids)).Scan(ctx, &lost)
	if err != nil {
		return err
	}
	return fenced(claims, lost)
}

func (c claimer) Log(ctx context.Context, id coord.RunID, after int) iter.Seq2[coord.LogLine, error] {
	return row.Log(ctx, c.b.db, id, after, storeError)
}
