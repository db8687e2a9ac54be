package coordtest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// limiterModel holds of each key the moment at which it owes nothing. The
// arithmetic is its own, in durations, and not that of coord.GCRA.
type limiterModel struct {
	model
	limits []coord.Limit
	paidAt map[string]time.Time
}

func newLimiterModel(m model) *limiterModel {
	return &limiterModel{
		model: m,
		limits: []coord.Limit{
			{Key: m.name("a"), Rate: 10, Per: time.Second, Burst: 5},
			{Key: m.name("b"), Rate: 1, Per: 3 * time.Second, Burst: 1},
			{Key: m.name("c"), Rate: 7, Per: time.Second, Burst: 20}, // 142,857.1 µs: rounded up
		},
		paidAt: make(map[string]time.Time),
	}
}

func (m *limiterModel) actions() actions {
	return actions{
		"allow": m.allowOne, "allow all": m.allowSome, "peek": m.peekOne, "reset": m.reset, "reap": m.reapAll, "advance": m.advance,
		"change a policy": m.change,
	}
}

// change gives a key another rate and burst, as a new release of a program does.
func (m *limiterModel) change(t *rapid.T) {
	l := &m.limits[rapid.IntRange(0, len(m.limits)-1).Draw(t, "limit")]
	l.Per = pick(t, "per", time.Millisecond, time.Second, time.Minute, 24*time.Hour)
	l.Rate = rapid.IntRange(1, min(1000, int(l.Per.Microseconds()))).Draw(t, "rate")
	l.Burst = rapid.IntRange(1, 50).Draw(t, "burst")
}

func interval(l coord.Limit) time.Duration {
	exact := float64(l.Per.Microseconds()) / float64(l.Rate)
	whole := int64(exact)
	if float64(whole) < exact {
		whole++
	}
	return time.Duration(whole) * time.Microsecond
}

// debt is what a key owes now, as time: never more than a burst, though the clock may have
// stepped back.
func (m *limiterModel) debt(l coord.Limit) time.Duration {
	return min(max(0, m.paidAt[l.Key].Sub(m.store.Now())), interval(l)*time.Duration(l.Burst))
}

// decide says what a limit alone must answer.
func (m *limiterModel) decide(l coord.Limit) coord.Decision {
	each, debt := interval(l), m.debt(l)
	room := each*time.Duration(l.Burst) - debt
	price := each * time.Duration(l.Cost)
	if price <= room {
		return granted(l.Burst, int((room-price)/each), debt+price)
	}
	retry := price - room
	if l.Cost > l.Burst {
		retry = coord.Never
	}
	return denied(l.Burst, int(room/each), retry, debt)
}

func (m *limiterModel) take(l coord.Limit) {
	m.paidAt[l.Key] = m.store.Now().Add(m.debt(l) + interval(l)*time.Duration(l.Cost))
}

// heal takes off what a key that was denied owes beyond a burst.
func (m *limiterModel) heal(l coord.Limit) {
	if most := m.store.Now().Add(interval(l) * time.Duration(l.Burst)); m.paidAt[l.Key].After(most) {
		m.paidAt[l.Key] = most
	}
}

// draw draws a limit with a cost, up to a little above its burst.
func (m *limiterModel) draw(t *rapid.T, limits []coord.Limit) coord.Limit {
	l := pick(t, "limit", limits...)
	l.Cost = rapid.IntRange(1, l.Burst+1).Draw(t, "cost")
	if rapid.Bool().Draw(t, "cost of one") {
		l.Cost = 1
	}
	return l
}

func (m *limiterModel) allowOne(t *rapid.T) {
	l := m.draw(t, m.limits)
	want := m.decide(l)
	got, err := m.backend(t).Limiter().Allow(m.ctx, l)
	must(t, "Allow", err)
	equal(t, "the decision on "+l.Key, got, want)
	if want.Allowed {
		m.take(l)
	} else {
		m.heal(l)
	}
}

func (m *limiterModel) allowSome(t *rapid.T) {
	limits := rapid.Permutation(m.limits).Draw(t, "limits")[:rapid.IntRange(1, 3).Draw(t, "how many")]
	want, all := make([]coord.Decision, len(limits)), true
	for i := range limits {
		limits[i] = m.draw(t, limits[i:i+1])
		want[i] = m.decide(limits[i])
		all = all && want[i].Allowed
	}
	for i, l := range limits {
		if all {
			m.take(l)
			continue
		}
		if want[i].Allowed { // it would have granted, and keeps what it has
			each, debt := interval(l), m.debt(l)
			want[i] = denied(l.Burst, int((each*time.Duration(l.Burst)-debt)/each), 0, debt)
		}
		m.heal(l)
	}
	got, err := m.backend(t).Limiter().AllowAll(m.ctx, limits...)
	must(t, "AllowAll", err)
	equal(t, "the joint decisions", got, want)
}

func (m *limiterModel) peekOne(t *rapid.T) {
	l := m.draw(t, m.limits)
	got, err := m.backend(t).Limiter().Peek(m.ctx, l)
	must(t, "Peek", err)
	equal(t, "what Peek says of "+l.Key, got, m.decide(l))
}

func (m *limiterModel) reset(t *rapid.T) {
	l := pick(t, "limit", m.limits...)
	must(t, "Reset", m.backend(t).Limiter().Reset(m.ctx, l.Key))
	delete(m.paidAt, l.Key)
}

// reapAll makes a difference when the clock steps back behind what was paid.
func (m *limiterModel) reapAll(t *rapid.T) {
	for n := 1; n > 0; {
		var err error
		n, err = m.backend(t).Limiter().Reap(m.ctx)
		must(t, "Reap", err)
	}
	for key, at := range m.paidAt {
		if !at.After(m.store.Now()) {
			delete(m.paidAt, key)
		}
	}
}

func (m *limiterModel) advance(t *rapid.T) {
	by := pick(t, "by", time.Microsecond, 99*time.Millisecond, 142857*time.Microsecond, time.Second, 10*time.Second, time.Hour)
	if m.harness.Capabilities.ClockBack && rapid.IntRange(0, 3).Draw(t, "back") == 0 {
		by = -by
	}
	m.store.Advance(by)
}
