package coordtest

import (
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelOffice is what is known of a name that was stood for.
type modelOffice struct {
	coord.Leadership // the last
	holder           string
	lease            time.Duration
	resigned         bool
	writes           int64
}

type electorModel struct {
	model
	offices map[string]*modelOffice
	terms   []coord.Term // all that there were
}

func newElectorModel(m model) *electorModel {
	return &electorModel{model: m, offices: make(map[string]*modelOffice)}
}

func (m *electorModel) actions() actions {
	return actions{
		"": m.compare, "stand": m.stand, "stand again": m.stand, "extend": m.extend, "resign": m.resign,
		"write": m.write, "advance": m.advance,
	}
}

func (m *electorModel) lasts(o *modelOffice) bool {
	return o != nil && !o.resigned && m.store.Now().Before(o.Until)
}

func (m *electorModel) stand(t *rapid.T) {
	c := coord.Candidacy{
		Name:      m.name(pick(t, "name", "a", "b")),
		Candidate: pick(t, "candidate", "one", "two"),
		Holder:    pick(t, "holder", "ada", "bob", "eve"),
		Lease:     pick(t, "lease", 10*time.Second, time.Minute),
	}
	got, err := m.backend(t).Elector().Stand(m.ctx, c)
	must(t, "Stand", err)
	now, o := m.store.Now(), m.offices[c.Name]
	if m.lasts(o) && o.holder != c.Holder {
		if most := now.Add(o.lease); o.Until.After(most) {
			o.Until = most
		}
		sameLeadership(t, "who leads", got, o.Leadership)
		return
	}
	if o == nil {
		o = &modelOffice{}
		m.offices[c.Name] = o
	}
	if got.Epoch <= o.Epoch {
		t.Fatalf("the epoch %d came after %d", got.Epoch, o.Epoch)
	}
	o.Leadership = coord.Leadership{
		Term: coord.Term{Name: c.Name, Epoch: got.Epoch}, Candidate: c.Candidate, Since: now, Until: now.Add(c.Lease),
	}
	o.holder, o.lease, o.resigned = c.Holder, c.Lease, false
	m.terms = append(m.terms, got.Term)
	want := o.Leadership
	want.Mine = true
	sameLeadership(t, "the new leader", got, want)
}

func sameLeadership(t *rapid.T, what string, got, want coord.Leadership) {
	equal(t, "Since of "+what, got.Since, want.Since)
	equal(t, "Until of "+what, got.Until, want.Until)
	got.Since, got.Until = want.Since, want.Until
	equal(t, what, got, want)
}

// draw picks one of the last terms, and its office while it lasts.
func (m *electorModel) draw(t *rapid.T) (coord.Term, *modelOffice) {
	if len(m.terms) == 0 {
		return coord.Term{Name: m.name("a"), Epoch: 1}, nil
	}
	term := m.terms[max(0, len(m.terms)-1-rapid.IntRange(0, 3).Draw(t, "how many newer"))]
	if o := m.offices[term.Name]; o.Term == term && m.lasts(o) {
		return term, o
	}
	return term, nil
}

// allowed checks the answer of a call that a term allows, and reports whether it did.
func allowed(t *rapid.T, what string, o *modelOffice, err error) bool {
	if o == nil {
		is(t, what+" of a term that is over", err, coord.ErrFenced)
		return false
	}
	must(t, what, err)
	return true
}

func (m *electorModel) extend(t *rapid.T) {
	term, o := m.draw(t)
	length := pick(t, "lease", 5*time.Second, 30*time.Second)
	got, err := m.backend(t).Elector().Extend(m.ctx, term, length)
	if allowed(t, "Extend", o, err) {
		o.lease, o.Until = length, m.store.Now().Add(length)
		want := o.Leadership
		want.Mine = true
		sameLeadership(t, "what was extended", got, want)
	}
}

func (m *electorModel) resign(t *rapid.T) {
	term, o := m.draw(t)
	if allowed(t, "Resign", o, m.backend(t).Elector().Resign(m.ctx, term)) {
		o.resigned = true
	}
}

func (m *electorModel) write(t *rapid.T) {
	term, o := m.draw(t)
	if allowed(t, "Tx.Fence", o, write(m.ctx, m.backend(t), term)) {
		o.writes++
	}
}

func (m *electorModel) advance(t *rapid.T) {
	by := []time.Duration{time.Second, 9 * time.Second, 10 * time.Second, 31 * time.Second}
	if m.harness.Capabilities.ClockBack {
		by = append(by, -20*time.Second)
	}
	m.store.Advance(pick(t, "by", by...))
}

func (m *electorModel) compare(t *rapid.T) {
	list, err := m.backend(t).Elector().Leaders(m.ctx)
	must(t, "Leaders", err)
	list = slices.DeleteFunc(list, func(l coord.Leadership) bool { return !strings.HasPrefix(l.Name, m.prefix) })
	for _, name := range []string{m.name("a"), m.name("b")} {
		o := m.offices[name]
		if m.lasts(o) {
			if len(list) == 0 {
				t.Fatalf("nobody leads %q; want %s", name, show(o.Leadership))
			}
			sameLeadership(t, "who is listed", list[0], o.Leadership)
			list = list[1:]
		}
		if o != nil {
			equal(t, "how many writes there are", m.head(name).Seq, o.writes)
		}
	}
	equal(t, "how many more lead", len(list), 0)
}
