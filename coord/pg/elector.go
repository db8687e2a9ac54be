package pg

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type elector struct{ b *backend }

func (e elector) Stand(ctx context.Context, c coord.Candidacy) (coord.Leadership, error) {
	var rows []row.Leadership
	err := e.b.coordination.NewRaw(`SELECT * FROM coord_stand(?, ?, ?, ?)`, c.Name, c.Holder, c.Candidate, row.Micros(c.Lease)).Scan(ctx, &rows)
	if err != nil {
		return coord.Leadership{}, storeError(ctx, err)
	}
	return rows[0].Coord(), nil
}

func (e elector) Extend(ctx context.Context, t coord.Term, lease time.Duration) (coord.Leadership, error) {
	var rows []row.Leadership
	err := e.b.coordination.NewRaw(`WITH held AS MATERIALIZED (
			SELECT name AS held_name, until AS held_until FROM coord_leaders WHERE name = ? AND epoch = ? FOR NO KEY UPDATE
		), judged AS MATERIALIZED (
			SELECT *, coord_clock() AS clock FROM held
		)
		UPDATE coord_leaders SET lease = ?, until = clock + ? * interval '1 microsecond' FROM judged
		WHERE name = held_name AND held_until > clock RETURNING `+row.LeadershipColumns+`, true AS mine`,
		t.Name, t.Epoch, row.Micros(lease), row.Micros(lease)).Scan(ctx, &rows)
	switch {
	case err != nil:
		return coord.Leadership{}, storeError(ctx, err)
	case len(rows) == 0:
		return coord.Leadership{}, coord.ErrFenced
	}
	return rows[0].Coord(), nil
}

// Resign waits for the transactions that are fenced by the term: none has an effect when it
// is over.
func (e elector) Resign(ctx context.Context, t coord.Term) error {
	res, err := e.b.coordination.NewRaw(`WITH held AS MATERIALIZED (
			SELECT name AS held_name, until AS held_until FROM coord_leaders WHERE name = ? AND epoch = ? FOR UPDATE)
		UPDATE coord_leaders SET holder = '', candidate = '', since = NULL, until = NULL FROM held
		WHERE name = held_name AND held_until > coord_clock()`, t.Name, t.Epoch).Exec(ctx)
	if err != nil {
		return storeError(ctx, err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return coord.ErrFenced
	}
	e.b.ring(newLeaders)
	return nil
}

func fence(ctx context.Context, db bun.IDB, t coord.Term) error {
	var lasts []bool
	err := db.NewRaw(`SELECT coord_fence(?, ?)`, t.Name, t.Epoch).Scan(ctx, &lasts)
	if err == nil && !lasts[0] {
		err = coord.ErrFenced
	}
	return err
}

func (e elector) Leaders(ctx context.Context) ([]coord.Leadership, error) {
	var rows []row.Leadership
	err := e.b.coordination.NewRaw(`SELECT `+row.LeadershipColumns+` FROM coord_leaders WHERE until > coord_clock() ORDER BY name`).Scan(ctx, &rows)
	return row.Leaderships(rows), storeError(ctx, err)
}

func (e elector) Changes() (<-chan struct{}, func()) { return e.b.leaderChanges.Hints() }
