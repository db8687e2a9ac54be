package pg

import (
	"context"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// gatedLock lets one claim at a time count who runs behind the gates. It belongs to
// the transaction, so that a pooler can't hand it on.
const gatedLock = 0x74616e64656d // an arbitrary number

// takeGated takes due runs, those with a gate included, as far as there are places
// for them.
func (c claimer) takeGated(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, left left, err error) {
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		if _, err := tx.NewRaw(`SELECT pg_advisory_xact_lock(?)`, gatedLock).Exec(ctx); err != nil {
			return err
		}
		for len(claims) < o.Limit {
			most := o
			most.Limit -= len(claims)
			ids, err := pickGated(ctx, tx, most)
			if err != nil || len(ids) == 0 {
				return err
			}
			taken, looked, err := c.take(ctx, tx, most, ids)
			claims, left.ended = append(claims, taken...), left.ended+looked.ended
			if err != nil || looked.ended == 0 {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, left, err
	}
	left.tasks, err = c.tasksDue(ctx, o.Kinds)
	return claims, left, err
}

// pickGated chooses among the due runs.
func pickGated(ctx context.Context, tx bun.Tx, o coord.ClaimOptions) ([]int64, error) {
	limited := make([]string, 0, len(o.Limits))
	for kind := range o.Limits {
		limited = append(limited, kind)
	}
	if len(limited) > 0 {
		// Runs of limited kinds get a gate when they come to the front, and stand in
		// nobody's way from then on.
		_, err := tx.NewRaw(`UPDATE coord_runs r SET gate = 'kind:' || r.kind WHERE r.id = ANY (ARRAY(
			SELECT id FROM coord_runs WHERE id IN (SELECT id FROM (`+duePerPriority+`) AS front WHERE kind = ANY (?2::text[]))
				AND gate IS NULL AND state <= 'running' FOR UPDATE SKIP LOCKED))`,
			gateFront, bun.SafeQuery("kind = ANY (?::text[])", pq.StringArray(o.Kinds)), pq.StringArray(limited)).Exec(ctx)
		if err != nil {
			return nil, err
		}
	}
	kinds, ungated := pq.StringArray(o.Kinds), make([]string, 0, len(o.Kinds))
	for _, kind := range o.Kinds {
		if _, ok := o.Limits[kind]; !ok {
			ungated = append(ungated, kind)
		}
	}
	var candidates []gate.Candidate
	err := tx.NewRaw(`WITH RECURSIVE gates (gate) AS (
			(SELECT gate FROM coord_runs WHERE gate IS NOT NULL AND state <= 'running' ORDER BY gate LIMIT 1)
			UNION ALL
			SELECT (SELECT gate FROM coord_runs WHERE gate > gates.gate AND state <= 'running' ORDER BY gate LIMIT 1)
			FROM gates WHERE gates.gate IS NOT NULL
		)
		SELECT id, kind, COALESCE(gate, '') AS gate, concurrency_limit AS "limit", state = 'running' AS running FROM (
			(`+duePerPriority+`)
			UNION ALL
			SELECT r.id, r.kind, r.gate, r.concurrency_limit, r.state, r.priority, r.at FROM gates
			CROSS JOIN (VALUES ('queued'::coord_state), ('running')) AS s (state)
			CROSS JOIN unnest('{1,2,3,4}'::smallint[]) AS p (priority)
			CROSS JOIN LATERAL (
				SELECT id, kind, gate, concurrency_limit, state, priority, at FROM coord_runs
				WHERE gate = gates.gate AND state = s.state AND state <= 'running' AND priority = p.priority AND at <= coord_now()
					AND kind = ANY (?2::text[])
				ORDER BY at, id LIMIT ?0
			) AS r
		) AS due ORDER BY priority, at, id`,
		o.Limit, bun.SafeQuery("kind = ANY (?::text[])", pq.StringArray(ungated)), kinds).Scan(ctx, &candidates)
	if err != nil || len(candidates) == 0 {
		return nil, err
	}
	var running []struct {
		Gate, Kind string
		N          int
	}
	err = tx.NewRaw(`SELECT gate, kind, count(*) AS n FROM coord_runs
		WHERE gate IS NOT NULL AND state = 'running' GROUP BY gate, kind`).Scan(ctx, &running)
	if err != nil {
		return nil, err
	}
	taken := gate.Places{ByGate: make(map[string]int), ByKind: make(map[string]int)}
	for _, r := range running {
		taken.ByGate[r.Gate] += r.N
		taken.ByKind[r.Kind] += r.N
	}
	return gate.Pick(candidates, o.Limit, o.Limits, taken), nil
}

// gateFront is how far a claim looks for runs of limited kinds.
const gateFront = 1000

// duePerPriority finds the first ?0 due runs without a gate for which ?1 holds.
const duePerPriority = `SELECT r.* FROM unnest('{1,2,3,4}'::smallint[]) AS p (priority) CROSS JOIN LATERAL (
	SELECT id, kind, gate, concurrency_limit, state, priority, at FROM coord_runs
	WHERE priority = p.priority AND gate IS NULL AND state <= 'running' AND at <= coord_now() AND ?1
	ORDER BY at, id LIMIT ?0) AS r LIMIT ?0`

func (c claimer) tasksDue(ctx context.Context, kinds []string) (bool, error) {
	var due []bool
	err := c.b.db.NewRaw(`SELECT EXISTS (SELECT FROM coord_tasks t
		WHERE next_at <= coord_now() AND NOT paused AND kind IN (?) AND `+notInTheWay+`)`, bun.List(kinds)).Scan(ctx, &due)
	return len(due) == 1 && due[0], err
}
