package pg

import (
	"context"
	"maps"
	"slices"

	"github.com/lib/pq"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// gatedLock lets one claim at a time count who runs behind the gates. It belongs to
// the transaction, so that a pooler can't hand it on.
const gatedLock = 0x74616e64656d // an arbitrary number

// takeGated takes due runs, those with a gate included, as far as there are places
// for them, and tells how many it found that were lost. What it takes it reads only
// when all is committed: a replica that is slow to receive, or doesn't, keeps no other
// waiting.
func (c claimer) takeGated(ctx context.Context, o coord.ClaimOptions) (claims []coord.Claim, ended int, err error) {
	tokens := make(map[int64]int64)
	err = inTx(ctx, c.b.db, func(tx bun.Tx) error {
		if _, err := tx.NewRaw(brief+`; SELECT pg_advisory_xact_lock(?)`, gatedLock).Exec(ctx); err != nil {
			return err
		}
		chosen, err := pickGated(ctx, tx, o)
		if err != nil || len(chosen) == 0 {
			return err
		}
		var taken []struct {
			What      string
			ID, Token int64
		}
		err = tx.NewRaw(`SELECT what, id, token FROM coord_claim(?, ?, ?, ?, ?, ?) WHERE id IS NOT NULL`,
			pq.StringArray(o.Kinds), o.Limit, pq.Int64Array(chosen), row.Micros(o.Lease), o.Worker, coord.LostError).Scan(ctx, &taken)
		for _, r := range taken {
			if r.What == string(coord.Running) {
				tokens[r.ID] = r.Token
			}
		}
		ended = len(taken) - len(tokens)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if len(tokens) == 0 {
		return nil, ended, nil
	}
	var rows []row.Run
	err = c.b.db.NewRaw(`SELECT `+row.RunColumns+` FROM coord_runs r WHERE id = ANY (?::bigint[])`,
		pq.Int64Array(slices.Collect(maps.Keys(tokens)))).Scan(ctx, &rows)
	if err != nil {
		return nil, ended, err
	}
	return claimsOf(slices.DeleteFunc(rows, func(r row.Run) bool { return r.Token != tokens[r.ID] })), ended, nil
}

// pickGated chooses among the due runs.
func pickGated(ctx context.Context, tx bun.Tx, o coord.ClaimOptions) ([]int64, error) {
	if len(o.Limits) > 0 {
		if err := bindKinds(ctx, tx, o); err != nil {
			return nil, err
		}
	}
	// Places are counted first: a run that is given back after that leaves one free for
	// later, while one that was given back before it were counted would have two.
	taken, err := places(ctx, tx)
	if err != nil {
		return nil, err
	}
	limited := func(kind string) bool { return o.Limits[kind] > 0 }
	full := func(kind string) bool { return limited(kind) && taken.ByKind[kind] >= o.Limits[kind] }
	var gates []string
	var counts []int64
	for gate, n := range taken.ByGate {
		gates, counts = append(gates, gate), append(counts, int64(n))
	}
	// A lane is where runs of a gate, a limit and a kind wait: if one has to, all have
	// to. What a lane can give is looked at only if there is a place for it.
	var candidates []gate.Candidate
	err = tx.NewRaw(`WITH RECURSIVE lanes (gate, places, kind) AS (
			(SELECT gate, concurrency_limit, kind FROM coord_runs WHERE gate IS NOT NULL AND state = 'queued'
				ORDER BY gate, concurrency_limit, kind LIMIT 1)
			UNION ALL
			SELECT next.* FROM lanes CROSS JOIN LATERAL (
				SELECT gate, concurrency_limit, kind FROM coord_runs WHERE gate IS NOT NULL AND state = 'queued'
					AND (gate, concurrency_limit, kind) > (lanes.gate, lanes.places, lanes.kind)
				ORDER BY gate, concurrency_limit, kind LIMIT 1) AS next
		)
		SELECT id, kind, COALESCE(gate, '') AS gate, concurrency_limit AS "limit", state = 'running' AS running FROM (
			(`+duePerPriority+`)
			UNION ALL
			(SELECT `+dueColumns+` FROM coord_runs
				WHERE gate IS NOT NULL AND state = 'running' AND at <= coord_now() AND kind = ANY (?2::text[])
				ORDER BY priority, at, id LIMIT ?0)
			UNION ALL
			SELECT r.* FROM lanes LEFT JOIN unnest(?4::text[], ?5::bigint[]) AS taken (gate, n) ON taken.gate = lanes.gate
			CROSS JOIN unnest('{1,2,3,4}'::smallint[]) AS p (priority)
			CROSS JOIN LATERAL (
				SELECT `+dueColumns+` FROM coord_runs
				WHERE gate = lanes.gate AND concurrency_limit = lanes.places AND kind = lanes.kind AND state = 'queued'
					AND priority = p.priority AND at <= coord_now()
				ORDER BY at, id LIMIT ?0
			) AS r
			WHERE lanes.kind = ANY (?3::text[]) AND (lanes.places = 0 OR lanes.places > COALESCE(taken.n, 0))
		) AS due ORDER BY priority, at, id`,
		o.Limit, bun.SafeQuery("kind = ANY (?::text[])", pq.StringArray(slices.DeleteFunc(slices.Clone(o.Kinds), limited))),
		pq.StringArray(o.Kinds), pq.StringArray(slices.DeleteFunc(slices.Clone(o.Kinds), full)),
		pq.StringArray(gates), pq.Int64Array(counts)).Scan(ctx, &candidates)
	if err != nil {
		return nil, err
	}
	return gate.Pick(candidates, o.Limit, o.Limits, taken), nil
}

// bindKinds gives the first due runs of limited kinds a gate, so that they stand in
// nobody's way from then on.
func bindKinds(ctx context.Context, tx bun.Tx, o coord.ClaimOptions) error {
	_, err := tx.NewRaw(`UPDATE coord_runs r SET gate = '`+gate.OfKind("")+`' || r.kind WHERE r.id = ANY (ARRAY(
		SELECT id FROM coord_runs WHERE id IN (SELECT id FROM (`+duePerPriority+`) AS front WHERE kind = ANY (?2::text[]))
			AND gate IS NULL AND state <= 'running' FOR UPDATE SKIP LOCKED))`,
		gateFront, bun.SafeQuery("kind = ANY (?::text[])", pq.StringArray(o.Kinds)),
		pq.StringArray(slices.Collect(maps.Keys(o.Limits)))).Exec(ctx)
	return err
}

// places counts the runs that have one.
func places(ctx context.Context, tx bun.Tx) (gate.Places, error) {
	var running []struct {
		Gate, Kind string
		N          int
	}
	err := tx.NewRaw(`SELECT gate, kind, count(*) AS n FROM coord_runs
		WHERE gate IS NOT NULL AND state = 'running' GROUP BY gate, kind`).Scan(ctx, &running)
	taken := gate.Places{ByGate: make(map[string]int), ByKind: make(map[string]int)}
	for _, r := range running {
		taken.ByGate[r.Gate] += r.N
		taken.ByKind[r.Kind] += r.N
	}
	return taken, err
}

// gateFront is how far a claim looks for runs of limited kinds.
const gateFront = 1000

const dueColumns = `id, kind, gate, concurrency_limit, state, priority, at`

// duePerPriority finds the first ?0 due runs without a gate for which ?1 holds.
const duePerPriority = `SELECT r.* FROM unnest('{1,2,3,4}'::smallint[]) AS p (priority) CROSS JOIN LATERAL (
	SELECT ` + dueColumns + ` FROM coord_runs
	WHERE priority = p.priority AND gate IS NULL AND state <= 'running' AND at <= coord_now() AND ?1
	ORDER BY at, id LIMIT ?0) AS r LIMIT ?0`

func (c claimer) tasksDue(ctx context.Context, kinds []string) (bool, error) {
	var due []bool
	err := c.b.db.NewRaw(`SELECT EXISTS (SELECT FROM coord_tasks t
		WHERE next_at <= coord_now() AND NOT paused AND kind IN (?) AND `+notInTheWay+`)`, bun.List(kinds)).Scan(ctx, &due)
	return len(due) == 1 && due[0], err
}
