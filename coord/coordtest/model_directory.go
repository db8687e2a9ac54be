package coordtest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelMember is a member that has joined.
type modelMember struct {
	coord.Member
	name  string
	until time.Time
	left  bool
	lost  []coord.Registration // since it has heard
}

// modelEntry is what is stored of a key, whether its member lives or not.
type modelEntry struct {
	coord.Entry
	of *modelMember
}

type directoryModel struct {
	model
	members []*modelMember
	entries map[string]*modelEntry
	given   []coord.Registration // all that there have been
	epochs  map[string]int64     // the highest of each key
}

func newDirectoryModel(m model) *directoryModel {
	return &directoryModel{model: m, entries: make(map[string]*modelEntry), epochs: make(map[string]int64)}
}

func (m *directoryModel) actions() actions {
	return actions{
		"join": m.joinOne, "register": m.registerOne, "register again": m.registerOne, "register once more": m.registerOne,
		"update": m.updateOne, "deregister": m.deregisterSome, "renew": m.renewOne, "renew again": m.renewOne, "leave": m.leaveOne,
		"sweep": m.sweepAll, "lookup": m.lookupSome, "advance": m.advance, "": m.compare,
	}
}

func (m *directoryModel) live(of *modelMember) bool {
	return !of.left && m.store.Now().Before(of.until)
}

func (m *directoryModel) joinOne(t *rapid.T) {
	m.store.Advance(time.Millisecond) // so that which is the oldest is no matter of chance
	joined := &modelMember{name: m.name(pick(t, "name", "one", "two")), until: m.store.Now().Add(lease)}
	var err error
	joined.Member, err = m.backend(t).Directory().Join(m.ctx, coord.NewMember{Name: joined.name, Lease: lease})
	must(t, "Join", err)
	m.members = append(m.members, joined)
}

// member draws a member; the newest are the most likely to be alive.
func (m *directoryModel) member(t *rapid.T) *modelMember {
	if len(m.members) == 0 {
		m.joinOne(t)
	}
	return m.members[max(0, len(m.members)-1-rapid.IntRange(0, 3).Draw(t, "how many newer"))]
}

func (m *directoryModel) key(t *rapid.T) string {
	return m.name(pick(t, "key", "a/1", "a/2", "b/1", "c"))
}

func (m *directoryModel) registerOne(t *rapid.T) {
	of, key := m.member(t), m.key(t)
	data := pick(t, "data", "", "x", "y")
	r, err := of.Register(m.ctx, key, []byte(data))
	if !m.live(of) {
		is(t, "Register of a member that is no more", err, coord.ErrFenced)
		return
	}
	must(t, "Register", err)
	if r.Key != key || r.Epoch <= m.epochs[key] {
		t.Fatalf("the registration of %q is %+v after epoch %d", key, r, m.epochs[key])
	}
	if last := m.entries[key]; last != nil {
		last.of.lost = append(last.of.lost, last.Registration)
	}
	now := m.store.Now()
	m.entries[key] = &modelEntry{coord.Entry{
		Registration: r, Member: of.ID(), MemberName: of.name, Data: []byte(data), Since: now, UpdatedAt: now,
	}, of}
	m.epochs[key] = r.Epoch
	m.given = append(m.given, r)
}

// registration draws one that there has been.
func (m *directoryModel) registration(t *rapid.T) (r coord.Registration, some bool) {
	if len(m.given) == 0 {
		return r, false
	}
	return m.given[max(0, len(m.given)-1-rapid.IntRange(0, 5).Draw(t, "how many later"))], true
}

// holds returns the entry of a registration that a member has, or nil.
func (m *directoryModel) holds(of *modelMember, r coord.Registration) *modelEntry {
	e := m.entries[r.Key]
	if e == nil || e.of != of || e.Registration != r || !m.live(of) {
		return nil
	}
	return e
}

func (m *directoryModel) updateOne(t *rapid.T) {
	of := m.member(t)
	r, some := m.registration(t)
	if !some {
		return
	}
	err := of.Update(m.ctx, r, []byte("updated"))
	e := m.holds(of, r)
	if e == nil {
		is(t, "Update of what the member does not hold", err, coord.ErrFenced)
		return
	}
	must(t, "Update", err)
	e.Data, e.UpdatedAt = []byte("updated"), m.store.Now()
}

func (m *directoryModel) deregisterSome(t *rapid.T) {
	of := m.member(t)
	var rs []coord.Registration
	for range rapid.IntRange(0, 3).Draw(t, "how many") {
		if r, some := m.registration(t); some {
			rs = append(rs, r)
		}
	}
	must(t, "Deregister", of.Deregister(m.ctx, rs...))
	for _, r := range rs {
		if m.holds(of, r) != nil {
			delete(m.entries, r.Key)
		}
	}
}

func (m *directoryModel) renewOne(t *rapid.T) {
	of := m.member(t)
	lost, err := of.Renew(m.ctx)
	if !m.live(of) {
		is(t, "Renew of a member that is no more", err, coord.ErrFenced)
		return
	}
	must(t, "Renew", err)
	for _, list := range [][]coord.Registration{lost, of.lost} {
		slices.SortFunc(list, func(a, b coord.Registration) int { return cmp.Compare(a.Epoch, b.Epoch) })
	}
	if len(lost)+len(of.lost) > 0 {
		equal(t, "what Renew says is lost", lost, of.lost)
	}
	of.until, of.lost = m.store.Now().Add(lease), nil
}

func (m *directoryModel) leaveOne(t *rapid.T) {
	of := m.member(t)
	must(t, "Leave", of.Leave(m.ctx))
	if !m.live(of) {
		return
	}
	of.left = true
	maps.DeleteFunc(m.entries, func(_ string, e *modelEntry) bool { return e.of == of })
}

func (m *directoryModel) sweepAll(t *rapid.T) {
	var swept, want []coord.Entry
	b := m.backend(t)
	for {
		some, err := b.Directory().Sweep(m.ctx)
		must(t, "Sweep", err)
		if len(some) == 0 {
			break
		}
		swept = append(swept, some...)
	}
	swept = m.own(swept)
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if e := m.entries[key]; !m.live(e.of) {
			want = append(want, e.Entry)
			delete(m.entries, key)
		}
	}
	same(t, "what Sweep returns", swept, want)
}

// own returns those of the entries that are of this check, in the order of their keys.
func (m *directoryModel) own(list []coord.Entry) []coord.Entry {
	list = slices.DeleteFunc(list, func(e coord.Entry) bool { return !strings.HasPrefix(e.Key, m.prefix) })
	slices.SortFunc(list, func(a, b coord.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// same compares entries; no data is the same as empty.
func same(t *rapid.T, what string, got, want []coord.Entry) {
	t.Helper()
	equal(t, "how many entries are "+what, len(got), len(want))
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if string(g.Data) != string(w.Data) {
			t.Errorf("the data of %s in %s is %q; want %q", w.Key, what, g.Data, w.Data)
		}
		g.Data, w.Data = nil, nil
		equal(t, what, g, w)
	}
}

func (m *directoryModel) lookupSome(t *rapid.T) {
	keys := []string{m.key(t), m.key(t)}
	found, err := m.backend(t).Directory().Lookup(m.ctx, keys...)
	must(t, "Lookup", err)
	for _, key := range keys {
		var got, want []coord.Entry
		if e, ok := found[key]; ok {
			got = append(got, e)
		}
		if e := m.entries[key]; e != nil && m.live(e.of) {
			want = append(want, e.Entry)
		}
		same(t, "what Lookup finds of "+key, got, want)
	}
}

func (m *directoryModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", time.Second, lease/2, lease-time.Microsecond, lease))
}

// compare checks that what is listed is what the model holds.
func (m *directoryModel) compare(t *rapid.T) {
	prefix := m.name(pick(t, "prefix", "", "a/", "b"))
	var want []coord.Entry
	for _, key := range slices.Sorted(maps.Keys(m.entries)) {
		if e := m.entries[key]; m.live(e.of) && strings.HasPrefix(key, prefix) {
			want = append(want, e.Entry)
		}
	}
	list, err := m.two.Directory().List(m.ctx, coord.EntryFilter{Prefixes: []string{prefix}})
	must(t, "List", err)
	same(t, "what List finds", list, want)

	var names, wantNames []string
	members, err := m.two.Directory().Members(m.ctx)
	must(t, "Members", err)
	for _, info := range members {
		if strings.HasPrefix(info.Name, m.prefix) {
			names = append(names, info.Name)
		}
	}
	for _, of := range m.members {
		if m.live(of) {
			wantNames = append(wantNames, of.name)
		}
	}
	equal(t, "the members", names, wantNames)
}
