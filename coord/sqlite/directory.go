package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/highwater"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type directory struct{ b *backend }

func (d directory) Join(ctx context.Context, n coord.NewMember) (coord.Member, error) {
	m := &member{b: d.b, id: coord.NewMemberID(), lease: n.Lease}
	err := d.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		if _, err := tx.nextEpoch(ctx); err != nil {
			return err
		}
		_, err := tx.NewRaw(`INSERT INTO coord_members (id, name, data, since, lease_until) VALUES (?, ?, ?, ?, ?)`,
			string(m.id), n.Name, row.Bytes(n.Data), tx.now, after(tx.now, n.Lease)).Exec(ctx)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	d.b.ring(news{entries: true})
	return m, nil
}

func (d directory) Members(ctx context.Context) ([]coord.MemberInfo, error) {
	var rows []row.Member
	err := d.b.db.Read.NewRaw(`SELECT id, name, data, since, lease_until FROM coord_members INDEXED BY coord_members_lease
		WHERE lease_until > ?`, d.b.now()).Scan(ctx, &rows)
	return row.Members(rows), storeError(ctx, err)
}

func (d directory) Lookup(ctx context.Context, keys ...string) (map[string]coord.Entry, error) {
	var rows []row.Entry
	err := d.b.db.Read.NewRaw(`SELECT `+row.EntryColumns+` FROM coord_entries e JOIN coord_members m ON m.id = e.member_id
		WHERE e.key IN (?) AND m.lease_until > ?`, bun.List(keys), d.b.now()).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.EntriesByKey(rows), nil
}

// List asks for each prefix by itself, since SQLite ends no search of a join early.
func (d directory) List(ctx context.Context, f coord.EntryFilter) ([]coord.Entry, error) {
	var found []coord.Entry
	for _, prefix := range f.Prefixes {
		if len(found) == f.Limit {
			break
		}
		var rows []row.Entry
		err := d.b.db.Read.NewRaw(`SELECT `+row.EntryColumns+` FROM coord_entries e CROSS JOIN coord_members m ON m.id = e.member_id
			WHERE e.key >= ? AND e.key <= ? AND e.key > ? AND m.lease_until > ? ORDER BY e.key LIMIT ?`,
			prefix, row.LastUnder(prefix), f.After, d.b.now(), f.Limit-len(found)).Scan(ctx, &rows)
		if err != nil {
			return nil, storeError(ctx, err)
		}
		found = append(found, row.Entries(rows)...)
	}
	return found, nil
}

// sweepBatch bounds what one call of Sweep removes.
const sweepBatch = 1000

// Sweep takes the lock only if there is somebody to sweep.
func (d directory) Sweep(ctx context.Context) ([]coord.Entry, error) {
	var gone []bool
	err := d.b.db.Read.NewRaw(`SELECT EXISTS (SELECT 1 FROM coord_members WHERE lease_until <= ?)`, d.b.now()).Scan(ctx, &gone)
	if err != nil || !gone[0] {
		return nil, storeError(ctx, err)
	}
	var rows []row.Entry
	err = d.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		if _, err := tx.nextEpoch(ctx); err != nil {
			return err
		}
		rows = nil
		err := tx.NewRaw(`SELECT `+row.EntryColumns+` FROM coord_members m JOIN coord_entries e ON e.member_id = m.id
			WHERE m.lease_until <= ? LIMIT ?`, tx.now, sweepBatch).Scan(ctx, &rows)
		if err != nil {
			return err
		}
		keys := make([]string, len(rows))
		for i, r := range rows {
			keys[i] = r.Key
		}
		if _, err := tx.NewRaw(`DELETE FROM coord_entries WHERE key IN (?)`, bun.List(keys)).Exec(ctx); err != nil {
			return err
		}
		const empty = `lease_until <= ? AND NOT EXISTS (SELECT 1 FROM coord_entries e WHERE e.member_id = coord_members.id)`
		_, err = tx.NewRaw(`DELETE FROM coord_losses WHERE member_id IN (SELECT id FROM coord_members WHERE `+empty+`)`,
			tx.now).Exec(ctx)
		if err != nil {
			return err
		}
		_, err = tx.NewRaw(`DELETE FROM coord_members WHERE `+empty, tx.now).Exec(ctx)
		return err
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	d.b.ring(news{entries: true})
	return row.Entries(rows), nil
}

func (d directory) Changes() (<-chan struct{}, func()) { return d.b.changes.Hints() }

// member is a coord.Member.
type member struct {
	b     *backend
	id    coord.MemberID
	lease time.Duration
	heard highwater.Mark // up to which loss Renew has told of them
}

func (m *member) ID() coord.MemberID { return m.id }

// Deadline is kept by the seam.
func (m *member) Deadline() time.Time { return time.Time{} }

// nextEpoch returns an epoch that no entry has had. Every change of the directory
// takes one, so that other processes see by it that there was one.
func (t transaction) nextEpoch(ctx context.Context) (int64, error) {
	var epochs []int64
	if err := t.NewRaw(`UPDATE coord_epoch SET epoch = epoch + 1 WHERE one = 1 RETURNING epoch`).Scan(ctx, &epochs); err != nil {
		return 0, err
	}
	return epochs[0], nil
}

// lastEpoch returns the last epoch that was taken.
func lastEpoch(ctx context.Context, db bun.IDB) (int64, error) {
	var epochs []int64
	if err := db.NewRaw(`SELECT epoch FROM coord_epoch WHERE one = 1`).Scan(ctx, &epochs); err != nil {
		return 0, err
	}
	return epochs[0], nil
}

// change runs fn in a transaction, with a new epoch, if the member's lease has not
// ended.
func (m *member) change(ctx context.Context, fn func(ctx context.Context, tx transaction, epoch int64) error) error {
	err := m.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		var live []bool
		err := tx.NewRaw(`SELECT EXISTS (SELECT 1 FROM coord_members WHERE id = ? AND lease_until > ?)`,
			string(m.id), tx.now).Scan(ctx, &live)
		if err == nil && !live[0] {
			err = coord.ErrFenced
		}
		if err != nil {
			return err
		}
		epoch, err := tx.nextEpoch(ctx)
		if err != nil {
			return err
		}
		return fn(ctx, tx, epoch)
	})
	if err != nil {
		return storeError(ctx, err)
	}
	m.b.ring(news{entries: true})
	return nil
}

func (m *member) Register(ctx context.Context, key string, data []byte) (coord.Registration, error) {
	r := coord.Registration{Key: key}
	err := m.change(ctx, func(ctx context.Context, tx transaction, epoch int64) error {
		r.Epoch = epoch
		_, err := tx.NewRaw(`INSERT INTO coord_losses (member_id, by_epoch, key, epoch)
			SELECT m.id, ?, e.key, e.epoch FROM coord_entries e JOIN coord_members m ON m.id = e.member_id WHERE e.key = ?`,
			epoch, key).Exec(ctx)
		if err != nil {
			return err
		}
		_, err = tx.NewRaw(`INSERT INTO coord_entries (key, epoch, member_id, data, since, updated_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch, member_id = excluded.member_id, data = excluded.data,
				since = excluded.since, updated_at = excluded.updated_at`,
			key, r.Epoch, string(m.id), row.Bytes(data), tx.now, tx.now).Exec(ctx)
		return err
	})
	if err != nil {
		return coord.Registration{}, err
	}
	return r, nil
}

// holds is the condition on an entry that a registration is the one that has it.
const holds = `key = ? AND epoch = ? AND member_id = ?`

func (m *member) Update(ctx context.Context, r coord.Registration, data []byte) error {
	return m.change(ctx, func(ctx context.Context, tx transaction, _ int64) error {
		res, err := tx.NewRaw(`UPDATE coord_entries SET data = ?, updated_at = ? WHERE `+holds,
			row.Bytes(data), tx.now, r.Key, r.Epoch, string(m.id)).Exec(ctx)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return coord.ErrFenced
	})
}

func (m *member) Deregister(ctx context.Context, rs ...coord.Registration) error {
	err := m.change(ctx, func(ctx context.Context, tx transaction, _ int64) error {
		for _, r := range rs {
			if _, err := tx.NewRaw(`DELETE FROM coord_entries WHERE `+holds, r.Key, r.Epoch, string(m.id)).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, coord.ErrFenced) {
		return nil
	}
	return err
}

func (m *member) Renew(ctx context.Context) ([]coord.Registration, error) {
	heard := m.heard.Get()
	var rows []row.Loss
	err := m.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		res, err := tx.NewRaw(`UPDATE coord_members SET lease_until = ? WHERE id = ? AND lease_until > ?`,
			after(tx.now, m.lease), string(m.id), tx.now).Exec(ctx)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, coord.ErrFenced)
		}
		if _, err := tx.NewRaw(`DELETE FROM coord_losses WHERE member_id = ? AND by_epoch <= ?`, string(m.id), heard).Exec(ctx); err != nil {
			return err
		}
		rows = nil
		return tx.NewRaw(`SELECT by_epoch, key, epoch FROM coord_losses WHERE member_id = ? ORDER BY by_epoch`,
			string(m.id)).Scan(ctx, &rows)
	})
	if err != nil {
		return nil, storeError(ctx, err)
	}
	lost, heard := row.Losses(rows, heard)
	m.heard.Raise(heard)
	return lost, nil
}

func (m *member) Leave(ctx context.Context) error {
	left := false
	err := m.b.inTx(ctx, func(ctx context.Context, tx transaction) error {
		res, err := tx.NewRaw(`DELETE FROM coord_members WHERE id = ? AND lease_until > ?`, string(m.id), tx.now).Exec(ctx)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if left = n > 0; err != nil || !left {
			return err
		}
		if _, err := tx.nextEpoch(ctx); err != nil {
			return err
		}
		if _, err := tx.NewRaw(`DELETE FROM coord_losses WHERE member_id = ?`, string(m.id)).Exec(ctx); err != nil {
			return err
		}
		_, err = tx.NewRaw(`DELETE FROM coord_entries WHERE member_id = ?`, string(m.id)).Exec(ctx)
		return err
	})
	if err != nil {
		return storeError(ctx, err)
	}
	if left {
		m.b.ring(news{entries: true})
	}
	return nil
}
