package row

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/coord"
)

// Member is a row of coord_members.
type Member struct {
	ID         string `bun:"id"`
	Name       string `bun:"name"`
	Data       []byte `bun:"data"`
	Since      Time   `bun:"since"`
	LeaseUntil Time   `bun:"lease_until"`
}

// Members returns the members, the oldest first.
func Members(rows []Member) []coord.MemberInfo {
	members := make([]coord.MemberInfo, len(rows))
	for i, r := range rows {
		members[i] = coord.MemberInfo{
			ID: coord.MemberID(r.ID), Name: r.Name, Data: r.Data, Since: r.Since.Time, LeaseUntil: r.LeaseUntil.Time,
		}
	}
	slices.SortFunc(members, func(a, b coord.MemberInfo) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	return members
}

// EntryColumns are the columns of an [Entry], of tables that are called e and m.
const EntryColumns = `e.key, e.epoch, e.member_id, m.name, e.data, e.since, e.updated_at`

// Entry is a row of coord_entries, with the name of its member.
type Entry struct {
	Key       string `bun:"key"`
	Epoch     int64  `bun:"epoch"`
	MemberID  string `bun:"member_id"`
	Name      string `bun:"name"`
	Data      []byte `bun:"data"`
	Since     Time   `bun:"since"`
	UpdatedAt Time   `bun:"updated_at"`
}

// Coord returns the entry.
func (r Entry) Coord() coord.Entry {
	return coord.Entry{
		Registration: coord.Registration{Key: r.Key, Epoch: r.Epoch}, Member: coord.MemberID(r.MemberID), MemberName: r.Name,
		Data: r.Data, Since: r.Since.Time, UpdatedAt: r.UpdatedAt.Time,
	}
}

// Entries returns the entries, in order.
func Entries(rows []Entry) []coord.Entry {
	entries := make([]coord.Entry, len(rows))
	for i, r := range rows {
		entries[i] = r.Coord()
	}
	return entries
}

// EntriesByKey returns the entries.
func EntriesByKey(rows []Entry) map[string]coord.Entry {
	entries := make(map[string]coord.Entry, len(rows))
	for _, r := range rows {
		entries[r.Key] = r.Coord()
	}
	return entries
}

// Loss is a row of coord_losses; the zero Loss is none.
type Loss struct {
	ByEpoch int64  `bun:"by_epoch"`
	Key     string `bun:"key"`
	Epoch   int64  `bun:"epoch"`
}

// Losses returns the registrations that were lost, and the last mark of their rows,
// or the one given.
func Losses(rows []Loss, heard int64) ([]coord.Registration, int64) {
	var lost []coord.Registration
	for _, r := range rows {
		if r.ByEpoch > 0 {
			lost, heard = append(lost, coord.Registration{Key: r.Key, Epoch: r.Epoch}), r.ByEpoch
		}
	}
	return lost, heard
}

// LastUnder returns a text that is behind all keys with a prefix, in the order of
// bytes, and before all others behind them.
func LastUnder(prefix string) string { return prefix + strings.Repeat("\U0010FFFF", 50) }
