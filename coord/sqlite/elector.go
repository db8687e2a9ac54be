package sqlite

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type elector struct{ b *backend }

// Stand looks from outside of a transaction first: who only looks needs no lock.
func (e elector) Stand(ctx context.Context, c coord.Candidacy) (l coord.Leadership, err error) {
	stored, err := leadership(ctx, e.b.db.Read, c.Name)
	if err != nil {
		return coord.Leadership{}, storeError(ctx, err)
	}
	if next, mine := stored.Stand(c, e.b.now().Time); !mine && next == stored {
		return stored.Leadership(c.Name, false), nil
	}
	err = e.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		stored, err := leadership(ctx, tx.Tx, c.Name)
		if err != nil {
			return err
		}
		next, mine := stored.Stand(c, tx.now.Time)
		l = next.Leadership(c.Name, mine)
		return tx.setLeadership(ctx, c.Name, next)
	})
	if err != nil {
		return coord.Leadership{}, storeError(ctx, err)
	}
	return l, nil
}

func leadership(ctx context.Context, db bun.IDB, name string) (coord.StoredLeadership, error) {
	var rows []row.Leadership
	err := db.NewRaw(`SELECT `+row.LeadershipColumns+` FROM coord_leaders WHERE name = ?`, name).Scan(ctx, &rows)
	if err != nil || len(rows) == 0 {
		return coord.StoredLeadership{}, err
	}
	return rows[0].Stored(), nil
}

func (t transaction) setLeadership(ctx context.Context, name string, s coord.StoredLeadership) error {
	_, err := t.NewRaw(`INSERT OR REPLACE INTO coord_leaders (name, epoch, holder, candidate, lease, since, until)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		name, s.Epoch, s.Holder, s.Candidate, row.Micros(s.Lease), row.Time{Time: s.Since}, row.Time{Time: s.Until}).Exec(ctx)
	return err
}

// fence returns what is stored of a term, and ErrFenced when it is over.
func (t transaction) fence(ctx context.Context, term coord.Term) (coord.StoredLeadership, error) {
	stored, err := leadership(ctx, t.Tx, term.Name)
	if err == nil && !stored.Lasts(term.Epoch, t.now.Time) {
		err = coord.ErrFenced
	}
	return stored, err
}

func (e elector) Extend(ctx context.Context, t coord.Term, lease time.Duration) (l coord.Leadership, err error) {
	err = e.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		stored, err := tx.fence(ctx, t)
		if err != nil {
			return err
		}
		next := stored.Extend(lease, tx.now.Time)
		l = next.Leadership(t.Name, true)
		return tx.setLeadership(ctx, t.Name, next)
	})
	if err != nil {
		return coord.Leadership{}, storeError(ctx, err)
	}
	return l, nil
}

func (e elector) Resign(ctx context.Context, t coord.Term) error {
	err := e.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		stored, err := tx.fence(ctx, t)
		if err != nil {
			return err
		}
		return tx.setLeadership(ctx, t.Name, stored.Resigned())
	})
	if err == nil {
		e.b.ring(news{leaders: true})
	}
	return storeError(ctx, err)
}

func (e elector) Leaders(ctx context.Context) ([]coord.Leadership, error) {
	var rows []row.Leadership
	err := e.b.db.Read.NewRaw(`SELECT `+row.LeadershipColumns+` FROM coord_leaders WHERE until > ? ORDER BY name`, e.b.now()).Scan(ctx, &rows)
	return row.Leaderships(rows), storeError(ctx, err)
}

func (e elector) Changes() (<-chan struct{}, func()) { return e.b.leaderChanges.Hints() }
