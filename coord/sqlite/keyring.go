package sqlite

import (
	"context"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type keyring struct{ b *backend }

func (k keyring) Load(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	r, err := row.LoadRing(ctx, k.b.db.Read, k.b.now(), known)
	return r, storeError(ctx, err)
}

func (t transaction) changeRing(ctx context.Context, c coord.RingChange) (coord.Ring, error) {
	if c.Revision == 0 {
		_, err := t.NewRaw(`INSERT OR IGNORE INTO coord_rings (name, revision, changed_at) VALUES (?, 0, ?)`, c.Ring, t.now).Exec(ctx)
		if err != nil {
			return coord.Ring{}, err
		}
	}
	return row.ChangeRing(ctx, t.Tx, t.now, c)
}

func (k keyring) Changes() (<-chan struct{}, func()) { return k.b.keyChanges.Hints() }
