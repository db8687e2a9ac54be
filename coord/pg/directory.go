package pg

import (
	"context"
	"slices"
	"time"

	"github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/highwater"
	"github.com/tandemhq/tandem/coord/internal/row"
)

type directory struct{ b *backend }

func (d directory) Join(ctx context.Context, n coord.NewMember) (coord.Member, error) {
	m := &member{b: d.b, id: coord.NewMemberID(), lease: row.Micros(n.Lease)}
	_, err := d.b.coordination.NewRaw(`INSERT INTO coord_members (id, name, data, since, lease_until)
		SELECT ?, ?, ?::bytea, now, now + ? * interval '1 microsecond' FROM coord_clock() AS now`,
		string(m.id), n.Name, row.Bytes(n.Data), m.lease).Exec(ctx)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	d.b.ring(newEntries)
	return m, nil
}

func (d directory) Members(ctx context.Context) ([]coord.MemberInfo, error) {
	var rows []row.Member
	err := d.b.db.NewRaw(`SELECT id, name, data, since, lease_until FROM coord_members
		WHERE lease_until > coord_now()`).Scan(ctx, &rows)
	return row.Members(rows), storeError(ctx, err)
}

func (d directory) Lookup(ctx context.Context, keys ...string) (map[string]coord.Entry, error) {
	var rows []row.Entry
	err := d.b.db.NewRaw(`SELECT `+row.EntryColumns+` FROM coord_entries e JOIN coord_members m ON m.id = e.member_id
		WHERE e.key = ANY (?::text[]) AND m.lease_until > coord_now()`, pq.StringArray(keys)).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.EntriesByKey(rows), nil
}

func (d directory) List(ctx context.Context, f coord.EntryFilter) ([]coord.Entry, error) {
	ends := make([]string, len(f.Prefixes))
	for i, prefix := range f.Prefixes {
		ends[i] = row.LastUnder(prefix)
	}
	var rows []row.Entry
	err := d.b.db.NewRaw(`SELECT found.* FROM unnest(?0::text[], ?1::text[]) AS p (prefix, last) CROSS JOIN LATERAL (
			SELECT `+row.EntryColumns+` FROM coord_entries e JOIN coord_members m ON m.id = e.member_id
			WHERE e.key >= p.prefix AND e.key <= p.last AND e.key > ?2 AND m.lease_until > coord_now()
			ORDER BY e.key LIMIT ?3
		) AS found ORDER BY found.key LIMIT ?3`,
		pq.StringArray(f.Prefixes), pq.StringArray(ends), f.After, f.Limit).Scan(ctx, &rows)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	return row.Entries(rows), nil
}

// sweepBatch bounds what one call of Sweep removes.
const sweepBatch = 1000

func (d directory) Sweep(ctx context.Context) ([]coord.Entry, error) {
	var rows []row.Entry
	if err := d.b.coordination.NewRaw(`SELECT * FROM coord_sweep(?)`, sweepBatch).Scan(ctx, &rows); err != nil {
		return nil, storeError(ctx, err)
	}
	if len(rows) > 0 {
		d.b.ring(newEntries)
	}
	return row.Entries(rows), nil
}

func (d directory) Changes() (<-chan struct{}, func()) { return d.b.changes.Hints() }

// Concurrent changes of entries of one replica share a statement. All changes take
// turns anyway, so there is one statement at a time.
const (
	changeBatch   = 200 // calls
	changeEntries = 1000
	changeFlights = 1
)

// change is what is to become of one entry.
type change struct {
	kind   string // of those that follow
	member coord.MemberID
	coord.Registration
	data []byte
}

// The kinds of a change.
const (
	register = "register"
	update   = "update"
	remove   = "remove"
)

// changed makes changes, and returns the epoch of each, 0 where the member or the
// registration is no longer good.
func (b *backend) changed(ctx context.Context, changes ...change) ([]int64, error) {
	return share(ctx, b, b.entries, changes)
}

// changeShared makes the changes of several calls.
func (b *backend) changeShared(ctx context.Context, calls [][]change) ([][]int64, error) {
	var kinds, members, keys []string
	var epochs []int64
	var datas [][]byte
	for _, changes := range calls {
		for _, c := range changes {
			kinds, members, keys = append(kinds, c.kind), append(members, string(c.member)), append(keys, c.Key)
			epochs, datas = append(epochs, c.Epoch), append(datas, c.data)
		}
	}
	var made []int64
	err := b.db.NewRaw(`SELECT * FROM coord_change(?::text[], ?::text[], ?::text[], ?::bigint[], ?::bytea[])`,
		pq.StringArray(kinds), pq.StringArray(members), pq.StringArray(keys), pq.Int64Array(epochs), pq.ByteaArray(datas)).Scan(ctx, &made)
	if err != nil {
		return nil, storeError(ctx, err)
	}
	b.ring(newEntries)
	shares := make([][]int64, len(calls))
	for i, changes := range calls {
		shares[i], made = made[:len(changes):len(changes)], made[len(changes):]
	}
	return shares, nil
}

// member is a coord.Member.
type member struct {
	b     *backend
	id    coord.MemberID
	lease int64          // in microseconds
	heard highwater.Mark // up to which loss Renew has told of them
}

func (m *member) ID() coord.MemberID { return m.id }

// Deadline is kept by the seam.
func (m *member) Deadline() time.Time { return time.Time{} }

func (m *member) Register(ctx context.Context, key string, data []byte) (coord.Registration, error) {
	r := coord.Registration{Key: key}
	epochs, err := m.b.changed(ctx, change{register, m.id, r, slices.Clone(data)})
	switch {
	case err != nil:
		return coord.Registration{}, err
	case epochs[0] == 0:
		return coord.Registration{}, coord.ErrFenced
	}
	r.Epoch = epochs[0]
	return r, nil
}

func (m *member) Update(ctx context.Context, r coord.Registration, data []byte) error {
	epochs, err := m.b.changed(ctx, change{update, m.id, r, slices.Clone(data)})
	if err == nil && epochs[0] == 0 {
		return coord.ErrFenced
	}
	return err
}

func (m *member) Deregister(ctx context.Context, rs ...coord.Registration) error {
	changes := make([]change, len(rs))
	for i, r := range rs {
		changes[i] = change{remove, m.id, r, nil}
	}
	_, err := m.b.changed(ctx, changes...)
	return err
}

func (m *member) Renew(ctx context.Context) ([]coord.Registration, error) {
	heard := m.heard.Get()
	var rows []row.Loss
	err := m.b.coordination.NewRaw(`WITH lease AS (
			UPDATE coord_members SET lease_until = coord_clock() + ?1 * interval '1 microsecond'
			WHERE id = ?0 AND lease_until > coord_clock() RETURNING id
		), told AS (
			DELETE FROM coord_losses WHERE member_id = ?0 AND by_epoch <= ?2
		)
		SELECT COALESCE(l.by_epoch, 0) AS by_epoch, COALESCE(l.key, '') AS key, COALESCE(l.epoch, 0) AS epoch
		FROM lease LEFT JOIN coord_losses l ON l.member_id = lease.id AND l.by_epoch > ?2 ORDER BY l.by_epoch`,
		string(m.id), m.lease, heard).Scan(ctx, &rows)
	switch {
	case err != nil:
		return nil, storeError(ctx, err)
	case len(rows) == 0:
		return nil, coord.ErrFenced
	}
	lost, heard := row.Losses(rows, heard)
	m.heard.Raise(heard)
	return lost, nil
}

func (m *member) Leave(ctx context.Context) error {
	var left []bool
	if err := m.b.coordination.NewRaw(`SELECT coord_leave(?)`, string(m.id)).Scan(ctx, &left); err != nil {
		return storeError(ctx, err)
	}
	if left[0] {
		m.b.ring(newEntries)
	}
	return nil
}
