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
	}
}

func interval(l coord.Limit) time.Duration {
	exact := float64(l.Per.Microseconds()) / float64(l.Rate)
	whole := int64(exact)
	if float64(whole) < exact {
		whole++
	}
	return time.Duration(whole) * time.Microsecond
}

// debt is what a key owes now, as time.
func (m *limiterModel) debt(key string) time.Duration {
	return max(0, m.paidAt[key].Sub(m.store.Now()))
}

// decide says what a limit alone must answer.
func (m *limiterModel) decide(l coord.Limit) coord.Decision {
	each, debt := interval(l), m.debt(l.Key)
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
	m.paidAt[l.Key] = m.store.Now().Add(m.debt(l.Key) + interval(l)*time.Duration(l.Cost))
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
		switch {
		case all:
			m.take(l)
		case want[i].Allowed: // it would have granted, and keeps what it has
			each, debt := interval(l), m.debt(l.Key)
			want[i] = denied(l.Burst, int((each*time.Duration(l.Burst)-debt)/each), 0, debt)
		}
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

func (m *limiterModel) reapAll(t *rapid.T) {
	_, err := m.backend(t).Limiter().Reap(m.ctx)
	must(t, "Reap", err)
}

func (m *limiterModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", time.Microsecond, 99*time.Millisecond, 142857*time.Microsecond, time.Second, 10*time.Second))
}
