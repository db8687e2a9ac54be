package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/highwater"
)

// book is the directory of a store.
type book struct {
	members map[coord.MemberID]*member
	entries map[string]*coord.Entry
	epoch   int64 // the highest that an entry has had
}

func newBook() book {
	return book{members: make(map[coord.MemberID]*member), entries: make(map[string]*coord.Entry)}
}

// member is what the store has of a member. It is there until it has left or was
// swept.
type member struct {
	coord.MemberInfo
	lost []loss
}

// loss is a registration that was taken over.
type loss struct {
	coord.Registration
	by int64 // the epoch of the one that did
}

// live reports whether the lease has not ended.
func (m *member) live(now time.Time) bool { return m != nil && now.Before(m.LeaseUntil) }

// holds returns the entry of a registration of a live member, or nil.
func (b *book) holds(now time.Time, id coord.MemberID, r coord.Registration) *coord.Entry {
	e := b.entries[r.Key]
	if e == nil || e.Member != id || e.Epoch != r.Epoch || !b.members[id].live(now) {
		return nil
	}
	return e
}

// copied is an entry for the caller to keep.
func copied(e *coord.Entry) coord.Entry {
	c := *e
	c.Data = slices.Clone(c.Data)
	return c
}

// of returns the entries of a member in the order of their keys, at most most.
func (b *book) of(id coord.MemberID, most int) (list []coord.Entry) {
	for _, key := range slices.Sorted(maps.Keys(b.entries)) {
		if e := b.entries[key]; e.Member == id && len(list) < most {
			list = append(list, copied(e))
		}
	}
	return list
}

func (b *book) remove(entries []coord.Entry) {
	for _, e := range entries {
		delete(b.entries, e.Key)
	}
}

type directory struct{ store *Store }

func (d directory) Join(ctx context.Context, n coord.NewMember) (coord.Member, error) {
	m := &membership{store: d.store, id: coord.NewMemberID(), lease: n.Lease}
	err := d.store.write(ctx, func(now time.Time) error {
		d.store.book.members[m.id] = &member{MemberInfo: coord.MemberInfo{
			ID: m.id, Name: n.Name, Data: slices.Clone(n.Data), Since: now, LeaseUntil: until(now, n.Lease),
		}}
		d.store.ringChanges = true
		return nil
	})
	return m, err
}

// until is when a lease ends that begins now.
func until(now time.Time, lease time.Duration) time.Time {
	return now.Add(lease).Truncate(time.Microsecond)
}

func (d directory) Members(ctx context.Context) (list []coord.MemberInfo, err error) {
	err = d.store.read(ctx, func() {
		now := d.store.now()
		for _, m := range d.store.book.members {
			if m.live(now) {
				info := m.MemberInfo
				info.Data = slices.Clone(info.Data)
				list = append(list, info)
			}
		}
	})
	slices.SortFunc(list, func(a, b coord.MemberInfo) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	return list, err
}

func (d directory) Lookup(ctx context.Context, keys ...string) (map[string]coord.Entry, error) {
	found := make(map[string]coord.Entry)
	err := d.store.read(ctx, func() {
		now := d.store.now()
		for _, key := range keys {
			if e := d.store.book.entries[key]; e != nil && d.store.book.members[e.Member].live(now) {
				found[key] = copied(e)
			}
		}
	})
	return found, err
}

func (d directory) List(ctx context.Context, f coord.EntryFilter) (list []coord.Entry, err error) {
	err = d.store.read(ctx, func() {
		now := d.store.now()
		for _, key := range slices.Sorted(maps.Keys(d.store.book.entries)) {
			e := d.store.book.entries[key]
			in := slices.ContainsFunc(f.Prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
			if in && key > f.After && d.store.book.members[e.Member].live(now) && len(list) < f.Limit {
				list = append(list, copied(e))
			}
		}
	})
	return list, err
}

func (d directory) Sweep(ctx context.Context) (swept []coord.Entry, err error) {
	b := &d.store.book
	err = d.store.write(ctx, func(now time.Time) error {
		for id, m := range b.members {
			if m.live(now) {
				continue
			}
			left := b.of(id, batch-len(swept))
			b.remove(left)
			swept = append(swept, left...)
			if len(swept) == batch { // there may be more of this one
				break
			}
			delete(b.members, id)
			d.store.ringChanges = true
		}
		d.store.ringChanges = d.store.ringChanges || len(swept) > 0
		return nil
	})
	return swept, err
}

func (d directory) Changes() (<-chan struct{}, func()) { return d.store.changes.Hints() }

// membership is a coord.Member.
type membership struct {
	store *Store
	id    coord.MemberID
	lease time.Duration
	heard highwater.Mark // up to which loss Renew has told of them
}

func (m *membership) ID() coord.MemberID { return m.id }

// Deadline is kept by the seam.
func (m *membership) Deadline() time.Time { return time.Time{} }

func (m *membership) Register(ctx context.Context, key string, data []byte) (r coord.Registration, err error) {
	b := &m.store.book
	data = slices.Clone(data)
	err = m.store.write(ctx, func(now time.Time) error {
		mine := b.members[m.id]
		if !mine.live(now) {
			return coord.ErrFenced
		}
		b.epoch++
		r = coord.Registration{Key: key, Epoch: b.epoch}
		if last := b.entries[key]; last != nil {
			of := b.members[last.Member]
			of.lost = append(of.lost, loss{last.Registration, r.Epoch})
		}
		b.entries[key] = &coord.Entry{
			Registration: r, Member: m.id, MemberName: mine.Name, Data: data, Since: now, UpdatedAt: now,
		}
		m.store.ringChanges = true
		return nil
	})
	return r, err
}

func (m *membership) Update(ctx context.Context, r coord.Registration, data []byte) error {
	data = slices.Clone(data)
	return m.store.write(ctx, func(now time.Time) error {
		e := m.store.book.holds(now, m.id, r)
		if e == nil {
			return coord.ErrFenced
		}
		e.Data, e.UpdatedAt = data, now
		m.store.ringChanges = true
		return nil
	})
}

func (m *membership) Deregister(ctx context.Context, rs ...coord.Registration) error {
	return m.store.write(ctx, func(now time.Time) error {
		for _, r := range rs {
			if m.store.book.holds(now, m.id, r) != nil {
				delete(m.store.book.entries, r.Key)
				m.store.ringChanges = true
			}
		}
		return nil
	})
}

func (m *membership) Renew(ctx context.Context) (lost []coord.Registration, err error) {
	heard := m.heard.Get()
	err = m.store.write(ctx, func(now time.Time) error {
		mine := m.store.book.members[m.id]
		if !mine.live(now) {
			return coord.ErrFenced
		}
		mine.LeaseUntil = until(now, m.lease)
		mine.lost = slices.DeleteFunc(mine.lost, func(l loss) bool { return l.by <= heard })
		for _, l := range mine.lost {
			lost, heard = append(lost, l.Registration), l.by
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.heard.Raise(heard)
	return lost, nil
}

func (m *membership) Leave(ctx context.Context) error {
	b := &m.store.book
	return m.store.write(ctx, func(now time.Time) error {
		if b.members[m.id].live(now) {
			b.remove(b.of(m.id, len(b.entries)))
			delete(b.members, m.id)
			m.store.ringChanges = true
		}
		return nil
	})
}
