package coordtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func (f *fixture) join(b coord.Backend, name string) coord.Member {
	f.Helper()
	m, err := b.Directory().Join(f.ctx, coord.NewMember{Name: name, Lease: lease})
	must(f, "Join", err)
	return m
}

func (f *fixture) register(m coord.Member, key, data string) coord.Registration {
	f.Helper()
	r, err := m.Register(f.ctx, key, []byte(data))
	must(f, "Register", err)
	equal(f, "the key of a registration", r.Key, key)
	return r
}

// renew renews and checks which registrations are said to be lost.
func (f *fixture) renew(when string, m coord.Member, want ...coord.Registration) {
	f.Helper()
	lost, err := m.Renew(f.ctx)
	must(f, "Renew "+when, err)
	slices.SortFunc(lost, func(a, b coord.Registration) int { return cmp.Compare(a.Epoch, b.Epoch) })
	if len(lost)+len(want) > 0 {
		equal(f, "what Renew says is lost "+when, lost, want)
	}
}

// listed returns all live entries under some prefixes, as "key=data by name".
func (f *fixture) listed(prefixes ...string) (list []string) {
	f.Helper()
	after := ""
	for {
		page, err := f.two.Directory().List(f.ctx, coord.EntryFilter{Prefixes: prefixes, After: after, Limit: 3})
		must(f, "List", err)
		for _, e := range page {
			list = append(list, describe(e))
			after = e.Key
		}
		if len(page) < 3 {
			return list
		}
	}
}

func describe(e coord.Entry) string { return fmt.Sprintf("%s=%s by %s", e.Key, e.Data, e.MemberName) }

// sweep removes all that there is to sweep, through a handle.
func (f *fixture) sweep(b coord.Backend) (list []string) {
	f.Helper()
	for {
		swept, err := b.Directory().Sweep(f.ctx)
		must(f, "Sweep", err)
		if len(swept) == 0 {
			slices.Sort(list)
			return list
		}
		for _, e := range swept {
			list = append(list, describe(e))
		}
	}
}

func (f *fixture) memberNames(when string, want ...string) {
	f.Helper()
	members, err := f.two.Directory().Members(f.ctx)
	must(f, "Members", err)
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	slices.Sort(names)
	if len(names)+len(want) > 0 {
		equal(f, "the members "+when, names, want)
	}
}

// has checks the one entry of a key; "" is none.
func (f *fixture) has(when, key, want string) {
	f.Helper()
	found, err := f.two.Directory().Lookup(f.ctx, key)
	must(f, "Lookup "+when, err)
	got := ""
	if e, ok := found[key]; ok {
		got = describe(e)
	}
	equal(f, "the entry "+when, got, want)
}

var directoryTests = []test{
	{"an entry is found until it is deregistered", func(f *fixture) {
		began := f.store.Now()
		m, err := f.one.Directory().Join(f.ctx, coord.NewMember{Name: "one", Lease: lease, Data: []byte("v1")})
		must(f, "Join", err)
		f.store.Advance(time.Second)
		r := f.register(m, "user/1/a", "hello")
		f.store.Advance(time.Second)
		must(f, "Update", m.Update(f.ctx, r, []byte("changed")))

		for _, b := range f.handles() {
			found, err := b.Directory().Lookup(f.ctx, "user/1/a", "user/1/b", "user/1", "user/1/a")
			must(f, "Lookup", err)
			want := coord.Entry{
				Registration: r, Member: m.ID(), MemberName: "one", Data: []byte("changed"),
				Since: began.Add(time.Second), UpdatedAt: began.Add(2 * time.Second),
			}
			equal(f, "what Lookup finds", found, map[string]coord.Entry{"user/1/a": want})
			list, err := b.Directory().List(f.ctx, coord.EntryFilter{})
			must(f, "List", err)
			equal(f, "what List finds", list, []coord.Entry{want})
			members, err := b.Directory().Members(f.ctx)
			must(f, "Members", err)
			equal(f, "the members", members, []coord.MemberInfo{
				{ID: m.ID(), Name: "one", Data: []byte("v1"), Since: began, LeaseUntil: began.Add(lease)},
			})
		}
		must(f, "Deregister", m.Deregister(f.ctx, r))
		must(f, "Deregister, again", m.Deregister(f.ctx, r))
		f.has("after Deregister", "user/1/a", "")
		is(f, "Update after Deregister", m.Update(f.ctx, r, nil), coord.ErrFenced)
		equal(f, "what Sweep finds of a live member", len(f.sweep(f.two)), 0)
	}},
	{"nothing is there at first", func(f *fixture) {
		found, err := f.one.Directory().Lookup(f.ctx, "k")
		must(f, "Lookup", err)
		equal(f, "how many entries Lookup finds", len(found), 0)
		equal(f, "what List finds", len(f.listed()), 0)
		f.memberNames("at first")
		equal(f, "what Sweep finds", len(f.sweep(f.one)), 0)
	}},
	{"a key is taken over, and a late change of the loser is none", func(f *fixture) {
		one, two := f.join(f.one, "one"), f.join(f.two, "two")
		first := f.register(one, "k", "first")
		second := f.register(two, "k", "second")
		if second.Epoch <= first.Epoch {
			f.Fatalf("the epoch of the second registration is %d after %d", second.Epoch, first.Epoch)
		}
		// A slow old disconnect after a new connect removes nothing.
		must(f, "Deregister of what was taken over", one.Deregister(f.ctx, first))
		is(f, "Update of what was taken over", one.Update(f.ctx, first, []byte("late")), coord.ErrFenced)
		f.has("after the late changes", "k", "k=second by two")
		// Nor does one that names the other's epoch.
		must(f, "Deregister of another member's registration", one.Deregister(f.ctx, second))
		is(f, "Update of another member's registration", one.Update(f.ctx, second, []byte("forged")), coord.ErrFenced)
		f.has("after the forged changes", "k", "k=second by two")

		f.renew("of the loser", one, first)
		f.renew("of the winner", two)
		f.renew("of the loser, when it has heard", one)
		third := f.register(one, "k", "third")
		f.has("taken back", "k", "k=third by one")
		f.renew("when it was taken back", two, second)
		must(f, "Update of what was taken back", one.Update(f.ctx, third, []byte("mine")))
		f.has("updated", "k", "k=mine by one")
	}},
	{"a member takes a key over from itself", func(f *fixture) {
		m := f.join(f.one, "one")
		first, second := f.register(m, "k", "first"), f.register(m, "k", "second")
		f.renew("", m, first)
		f.renew("again", m)
		must(f, "Deregister of the first", m.Deregister(f.ctx, first))
		f.has("after Deregister of the first", "k", "k=second by one")
		must(f, "Deregister of the second", m.Deregister(f.ctx, second))
		f.has("after Deregister of the second", "k", "")
	}},
	{"several losses are told of in one answer", func(f *fixture) {
		one, two := f.join(f.one, "one"), f.join(f.two, "two")
		var lost []coord.Registration
		for i := range 20 {
			key := fmt.Sprintf("k%02d", i)
			r := f.register(one, key, "")
			f.register(two, key, "")
			if i%2 == 0 { // and taken back, and taken over again
				r2 := f.register(one, key, "")
				f.register(two, key, "")
				lost = append(lost, r, r2)
				continue
			}
			lost = append(lost, r)
		}
		slices.SortFunc(lost, func(a, b coord.Registration) int { return cmp.Compare(a.Epoch, b.Epoch) })
		f.renew("of the loser", one, lost...)
		f.renew("of the loser, when it has heard", one)
	}},
	{"epochs of a key grow, also after it was removed", func(f *fixture) {
		last := int64(0)
		grown := func(r coord.Registration) {
			f.Helper()
			if r.Epoch <= last {
				f.Fatalf("the epoch %d came after %d", r.Epoch, last)
			}
			last = r.Epoch
		}
		for range 3 {
			one, two := f.join(f.one, "one"), f.join(f.two, "two")
			r := f.register(one, "k", "")
			grown(r)
			must(f, "Deregister", one.Deregister(f.ctx, r))
			grown(f.register(two, "k", ""))
			must(f, "Leave", two.Leave(f.ctx))
			grown(f.register(one, "k", ""))
			f.store.Advance(lease)
			f.sweep(f.one)
		}
	}},
	{"an entry lives as long as its member's lease", func(f *fixture) {
		one, two := f.join(f.one, "one"), f.join(f.two, "two")
		for i := range 5 {
			f.register(one, fmt.Sprint("one/", i), "x")
		}
		f.register(two, "two/0", "x")
		f.store.Advance(lease - time.Microsecond)
		f.renew("a microsecond before the end", two)
		equal(f, "how many entries there are a microsecond before the end", len(f.listed()), 6)
		equal(f, "what Sweep finds a microsecond before the end", len(f.sweep(f.two)), 0)
		f.memberNames("a microsecond before the end", "one", "two")

		f.store.Advance(time.Microsecond)
		equal(f, "the entries at the end of a lease", f.listed(), []string{"two/0=x by two"})
		f.has("at the end of its lease", "one/0", "")
		f.memberNames("at the end of a lease", "two")
		equal(f, "what Sweep returns", f.sweep(f.two), []string{
			"one/0=x by one", "one/1=x by one", "one/2=x by one", "one/3=x by one", "one/4=x by one",
		})
		equal(f, "what Sweep returns then", len(f.sweep(f.one)), 0)
		f.has("of a member that has renewed", "two/0", "two/0=x by two")
	}},
	{"a member whose lease has ended finds out, and can change nothing", func(f *fixture) {
		for _, swept := range []bool{false, true} {
			frozen, other := f.join(f.one, "frozen"), f.join(f.two, "other")
			mine, taken := f.register(frozen, "mine", "x"), f.register(frozen, "taken", "x")
			f.store.Advance(lease / 2)
			f.renew("", other)
			f.store.Advance(lease / 2)
			if swept {
				f.sweep(f.two)
			}
			f.register(other, "taken", "y")

			_, err := frozen.Renew(f.ctx)
			is(f, "Renew after the end", err, coord.ErrFenced)
			_, err = frozen.Register(f.ctx, "new", nil)
			is(f, "Register after the end", err, coord.ErrFenced)
			is(f, "Update after the end", frozen.Update(f.ctx, mine, []byte("z")), coord.ErrFenced)
			is(f, "Update after the end of what was taken over", frozen.Update(f.ctx, taken, []byte("z")), coord.ErrFenced)
			must(f, "Deregister after the end", frozen.Deregister(f.ctx, mine, taken))
			must(f, "Leave after the end", frozen.Leave(f.ctx))
			equal(f, "the entries", f.listed(), []string{"taken=y by other"})
			if !swept {
				equal(f, "what Sweep returns", f.sweep(f.two), []string{"mine=x by frozen"})
			}
			// It joins and registers anew.
			again := f.join(f.one, "frozen")
			if again.ID() == frozen.ID() {
				f.Errorf("the member that joined anew has the id of the one before")
			}
			f.register(again, "mine", "again")
			equal(f, "the entries", f.listed(), []string{"mine=again by frozen", "taken=y by other"})
			must(f, "Leave", again.Leave(f.ctx))
			must(f, "Leave", other.Leave(f.ctx))
		}
	}},
	{"who takes over what a vanished member left returns it to nobody", func(f *fixture) {
		gone, other := f.join(f.one, "gone"), f.join(f.two, "other")
		f.register(gone, "kept", "x")
		f.register(gone, "left", "x")
		f.store.Advance(lease / 2)
		f.renew("", other)
		f.store.Advance(lease / 2)
		f.register(other, "kept", "y")
		equal(f, "what Sweep returns", f.sweep(f.one), []string{"left=x by gone"})
		f.has("that was taken over", "kept", "kept=y by other")
		f.renew("", other)
	}},
	{"Leave removes what the member has, at once", func(f *fixture) {
		one, two := f.join(f.one, "one"), f.join(f.two, "two")
		r := f.register(one, "a", "")
		f.register(one, "b", "")
		f.register(two, "b", "") // one loses it, and never hears
		must(f, "Leave", one.Leave(f.ctx))
		equal(f, "the entries after Leave", f.listed(), []string{"b= by two"})
		f.memberNames("after Leave", "two")
		equal(f, "what Sweep finds after Leave", len(f.sweep(f.two)), 0)
		must(f, "Leave, again", one.Leave(f.ctx))
		must(f, "Deregister after Leave", one.Deregister(f.ctx, r))
		_, err := one.Renew(f.ctx)
		is(f, "Renew after Leave", err, coord.ErrFenced)
		_, err = one.Register(f.ctx, "a", nil)
		is(f, "Register after Leave", err, coord.ErrFenced)
		is(f, "Update after Leave", one.Update(f.ctx, r, nil), coord.ErrFenced)
	}},
	{"the deadline ends before the lease", func(f *fixture) {
		for _, span := range []time.Duration{time.Second, 10 * time.Second, 24 * time.Hour} {
			before := time.Now()
			m, err := f.one.Directory().Join(f.ctx, coord.NewMember{Name: "m", Lease: span})
			must(f, "Join", err)
			margin := min(span/10, 2*time.Second)
			first := m.Deadline()
			if after := time.Now(); first.Before(before.Add(span-margin)) || first.After(after.Add(span-margin)) {
				f.Errorf("the deadline of a lease of %v is %v after Join", span, first.Sub(before))
			}
			before = time.Now()
			f.renew("", m)
			if d := m.Deadline(); d.Before(before.Add(span-margin)) || !d.After(first) {
				f.Errorf("the deadline of a lease of %v is %v after Renew", span, d.Sub(before))
			}
			f.store.Advance(span)
			last := m.Deadline()
			_, err = m.Renew(f.ctx)
			is(f, "Renew after the end", err, coord.ErrFenced)
			equal(f, "the deadline after a Renew that was refused", m.Deadline(), last)
		}
	}},
	{"pages and prefixes", directoryPages},
	{"odd keys and data", func(f *fixture) {
		m := f.join(f.one, "Zoë 😀 %_'\"\\")
		keys := []string{
			"a", "A", "ä", "%", "_", "'", "\"", "\\", "{}", "a,b", " ", "😀", "\U0010FFFF", "user/1", "user/10", strings.Repeat("x", 200),
			"NULL", "null", "\u202e",
		}
		data := []string{"", "\x00\x01\xff", "{}", "NULL", strings.Repeat("y", coord.MaxEntryData)}
		for i, key := range keys {
			f.register(m, key, data[i%len(data)])
		}
		found, err := f.two.Directory().Lookup(f.ctx, keys...)
		must(f, "Lookup", err)
		for i, key := range keys {
			e, ok := found[key]
			if !ok || string(e.Data) != data[i%len(data)] || e.MemberName != "Zoë 😀 %_'\"\\" {
				f.Errorf("Lookup finds %v, %s of %q by %q", ok, show(string(e.Data)), key, e.MemberName)
			}
		}
		slices.Sort(keys)
		list, err := f.two.Directory().List(f.ctx, coord.EntryFilter{})
		must(f, "List", err)
		for i, e := range list {
			equal(f, "a key in the order of bytes", e.Key, keys[i])
		}
		equal(f, "how many entries List finds", len(list), len(keys))
		for _, key := range keys {
			e := found[key]
			must(f, "Update", m.Update(f.ctx, e.Registration, nil))
			must(f, "Deregister", m.Deregister(f.ctx, e.Registration))
		}
		equal(f, "what is left", len(f.listed()), 0)
	}},
	{"what the caller changes afterwards is not what is stored", func(f *fixture) {
		data := []byte("as it was")
		m, err := f.one.Directory().Join(f.ctx, coord.NewMember{Name: "m", Data: data})
		must(f, "Join", err)
		r, err := m.Register(f.ctx, "k", data)
		must(f, "Register", err)
		must(f, "Update", m.Update(f.ctx, r, data))
		data[0] = 'X'
		f.has("", "k", "k=as it was by m")
		found, err := f.one.Directory().Lookup(f.ctx, "k")
		must(f, "Lookup", err)
		found["k"].Data[0] = 'Y'
		f.has("again", "k", "k=as it was by m")
		members, err := f.one.Directory().Members(f.ctx)
		must(f, "Members", err)
		equal(f, "the member's data", string(members[0].Data), "as it was")
	}},
	{"many entries, swept by several at once, each once", func(f *fixture) {
		const n = 1500
		gone := f.join(f.one, "gone")
		var registering sync.WaitGroup
		for i := range 50 {
			registering.Go(func() {
				for j := range n / 50 {
					if _, err := gone.Register(f.ctx, fmt.Sprintf("k/%02d/%03d", i, j), nil); err != nil {
						f.Errorf("Register: %v", err)
						return
					}
				}
			})
		}
		registering.Wait()
		f.renew("of many entries", gone)
		f.store.Advance(lease)
		var mu sync.Mutex
		seen := make(map[string]int)
		f.together(4, func(_ int, b coord.Backend) {
			for {
				swept, err := b.Directory().Sweep(f.ctx)
				if err != nil {
					f.Errorf("Sweep: %v", err)
					return
				}
				if len(swept) == 0 { // nothing left, or others are at it
					return
				}
				mu.Lock()
				for _, e := range swept {
					seen[e.Key]++
				}
				mu.Unlock()
			}
		})
		for _, left := range f.sweep(f.one) {
			key, _, _ := strings.Cut(left, "=")
			seen[key]++
		}
		equal(f, "how many entries were swept", len(seen), n)
		for key, times := range seen {
			if times > 1 {
				f.Errorf("%s was returned to %d callers", key, times)
			}
		}
	}},
	{"of many who register a key one has it, and all others hear", func(f *fixture) {
		const n = 16
		members := make([]coord.Member, n)
		for i := range members {
			members[i] = f.join(f.handles()[i%2], fmt.Sprint("m", i))
		}
		for round := range 5 {
			key := fmt.Sprint("k", round)
			rs := make([]coord.Registration, n)
			f.together(n, func(i int, _ coord.Backend) {
				r, err := members[i].Register(f.ctx, key, fmt.Append(nil, i))
				if err != nil {
					f.Errorf("Register: %v", err)
				}
				rs[i] = r
			})
			last := slices.MaxFunc(rs, func(a, b coord.Registration) int { return cmp.Compare(a.Epoch, b.Epoch) })
			epochs := make(map[int64]bool)
			for i, r := range rs {
				epochs[r.Epoch] = true
				if r == last {
					f.renew("of the one who has it", members[i])
					f.has("that one has", key, fmt.Sprintf("%s=%d by m%d", key, i, i))
					continue
				}
				f.renew("of one who has lost it", members[i], r)
			}
			equal(f, "how many epochs there are", len(epochs), n)
		}
	}},
	{"registering and leaving at once leaves nothing behind", func(f *fixture) {
		for range 10 {
			m := f.join(f.one, "m")
			f.together(8, func(i int, _ coord.Backend) {
				if i == 3 {
					if err := m.Leave(f.ctx); err != nil {
						f.Errorf("Leave: %v", err)
					}
					return
				}
				_, err := m.Register(f.ctx, fmt.Sprint("k", i), nil)
				if err != nil && !errors.Is(err, coord.ErrFenced) {
					f.Errorf("Register: %v; want success or ErrFenced", err)
				}
			})
			equal(f, "the entries after Leave", len(f.listed()), 0)
		}
		f.store.Advance(lease)
		equal(f, "what Sweep finds", len(f.sweep(f.one)), 0)
	}},
	{"changes are hinted at", directoryChanges},
}

func directoryPages(f *fixture) {
	one, two := f.join(f.one, "one"), f.join(f.two, "two")
	want := make(map[string]string)
	for i := range 30 {
		m, name := one, "one"
		if i%3 == 0 {
			m, name = two, "two"
		}
		key := fmt.Sprintf("user/%d/%d", i%4, i)
		f.register(m, key, "")
		want[key] = fmt.Sprintf("%s= by %s", key, name)
	}
	gone := f.join(f.one, "gone") // whose entries are in the way
	for i := range 30 {
		f.register(gone, fmt.Sprintf("user/%d/%d-gone", i%4, i), "")
	}
	f.store.Advance(lease / 2)
	f.renew("", one)
	f.renew("", two)
	f.store.Advance(lease / 2)

	for _, prefixes := range [][]string{
		nil,
		{""},
		{"user/"},
		{"user/1/"},
		{"user/3/", "user/1/"},
		{"user/1", "user/1/", "user/1/1"},
		{"user/1/", "user/1/"},
		{"user/2/", "x", "user/9/", "user/0/0"},
		{"nobody/"},
		{"user/3", ""},
		{"USER/"},
		{strings.Repeat("u", 200)},
	} {
		var expected []string
		for _, key := range slices.Sorted(maps.Keys(want)) {
			in := len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
			if in {
				expected = append(expected, want[key])
			}
		}
		equal(f, fmt.Sprintf("what List finds under %q", prefixes), f.listed(prefixes...), expected)
	}
	list, err := f.one.Directory().List(f.ctx, coord.EntryFilter{After: "user/3"})
	must(f, "List", err)
	equal(f, "how many entries are behind user/3", len(list), 7)
	list, err = f.one.Directory().List(f.ctx, coord.EntryFilter{After: "user/4", Prefixes: []string{"user/1/"}})
	must(f, "List", err)
	equal(f, "how many entries under user/1/ are behind user/4", len(list), 0)
}

func directoryChanges(f *fixture) {
	if f.lacks(f.harness.Capabilities.Hints, "Hints") {
		return
	}
	m := f.join(f.one, "m")
	var r coord.Registration
	for _, change := range []struct {
		name string
		do   func()
	}{
		{"Register", func() { r = f.register(m, "k", "") }},
		{"Update", func() { must(f, "Update", m.Update(f.ctx, r, []byte("x"))) }},
		{"Deregister", func() { must(f, "Deregister", m.Deregister(f.ctx, r)) }},
		{"Leave", func() { must(f, "Leave", m.Leave(f.ctx)) }},
		{"Join", func() { m = f.join(f.one, "m") }},
		{"Sweep", func() {
			f.register(m, "k", "")
			f.store.Advance(lease)
			f.sweep(f.one)
			m = f.join(f.one, "m")
		}},
	} {
		for _, b := range f.handles() {
			changes, stop := b.Directory().Changes()
			change.do()
			select {
			case <-changes:
			case <-f.ctx.Done():
				f.Fatalf("%s: no hint within %v", change.name, patience)
			}
			stop()
			stop()
			if change.name == "Deregister" {
				r = f.register(m, "k", "")
			}
			if change.name == "Leave" {
				m = f.join(f.one, "m")
			}
		}
	}
}

// lossesBehindFaults lets two members take keys over from each other, through a
// store that often fails. What either believes in the end is what is stored.
func lossesBehindFaults(f *fixture) {
	type holder struct {
		coord.Member
		name string
		held map[string]coord.Registration
	}
	var holders []*holder
	for i, b := range f.handles() {
		faulty := Faulty(b, Random(uint64(7+i), Rates{Fail: 0.1, Cut: 0.2}, "member.register", "member.renew", "member.deregister"))
		name := fmt.Sprint("m", i)
		holders = append(holders, &holder{f.join(faulty, name), name, make(map[string]coord.Registration)})
	}
	renew := func(h *holder) {
		f.persist("Renew", func() error {
			lost, err := h.Renew(f.ctx)
			for _, r := range lost {
				if h.held[r.Key] == r { // and not one whose answer was lost
					delete(h.held, r.Key)
				}
			}
			return err
		})
	}
	for i := range 150 {
		h, key := holders[i%2], fmt.Sprint("k", i%7)
		switch {
		case i%10 == 9:
			renew(h)
		case i%5 == 3:
			if r, ok := h.held[key]; ok {
				f.persist("Deregister", func() error { return h.Deregister(f.ctx, r) })
				delete(h.held, key)
			}
		default:
			f.persist("Register", func() error {
				r, err := h.Register(f.ctx, key, nil)
				if err == nil {
					h.held[key] = r
				}
				return err
			})
		}
	}
	believed := make(map[string]string)
	for _, h := range holders {
		renew(h)
		for key, r := range h.held {
			if believed[key] != "" {
				f.Errorf("%s is believed to be held by %s and by %s", key, believed[key], h.name)
			}
			believed[key] = fmt.Sprintf("%s at %d", h.name, r.Epoch)
		}
	}
	stored := make(map[string]string)
	list, err := f.one.Directory().List(f.ctx, coord.EntryFilter{})
	must(f, "List", err)
	for _, e := range list {
		stored[e.Key] = fmt.Sprintf("%s at %d", e.MemberName, e.Epoch)
	}
	equal(f, "what is stored", stored, believed)
}
