package pg

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

const clock = bun.Safe(`coord_clock()`)

type keyring struct{ b *backend }

func (k keyring) Load(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	r, err := row.LoadRing(ctx, k.b.coordination, clock, known)
	return r, storeError(ctx, err)
}

// ringLocks are advisory locks of rings, of the transaction, so that a pooler can't hand them on. Who waits for
// one is not passed by those that come later and would share it, as with the lock of a row: a ring that is held
// again and again could not be changed. Names that have a lock in common wait for each other.
const ringLocks = 0x72696e67 // an arbitrary number

// changeRing decides on the locked ring, of which the lock may have come late: the clock and the keys
// are read after it.
func changeRing(ctx context.Context, tx bun.Tx, c coord.RingChange) (coord.Ring, error) {
	if _, err := tx.NewRaw(`SELECT pg_advisory_xact_lock(?, hashtext(?))`, ringLocks, c.Ring).Exec(ctx); err != nil {
		return coord.Ring{}, err
	}
	if c.Revision == 0 {
		_, err := tx.NewRaw(`INSERT INTO coord_rings (name, revision, changed_at) VALUES (?, 0, coord_clock())
			ON CONFLICT DO NOTHING`, c.Ring).Exec(ctx)
		if err != nil {
			return coord.Ring{}, err
		}
	}
	// Who changes it by the version before has this lock alone.
	if _, err := tx.NewRaw(`SELECT FROM coord_rings WHERE name = ? FOR UPDATE`, c.Ring).Exec(ctx); err != nil {
		return coord.Ring{}, err
	}
	return row.ChangeRing(ctx, tx, clock, c)
}

// holdRing reads what it has locked, as changeRing does.
func holdRing(ctx context.Context, tx bun.Tx, known coord.Ring) (coord.Ring, error) {
	if _, err := tx.NewRaw(`SELECT pg_advisory_xact_lock_shared(?, hashtext(?))`, ringLocks, known.Name).Exec(ctx); err != nil {
		return coord.Ring{}, err
	}
	return row.LoadRing(ctx, tx, clock, known)
}

func (k keyring) Changes() (<-chan struct{}, func()) { return k.b.keyChanges.Hints() }
