package httplimit

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

const (
	policyField = "RateLimit-Policy"
	limitField  = "RateLimit"
	largest     = 999_999_999_999_999       // integer of a structured field, RFC 9651
	forever     = time.Duration(1 << 62)    // can be added to
	longest     = 10 * 365 * 24 * time.Hour // that a coord.Limit may take
)

func newPolicy(p Policy) policy {
	if p.Limit.Burst == 0 {
		p.Limit.Burst = p.Limit.Rate
	}
	g := p.Limit.GCRA()
	quota, window := int64(p.Limit.Burst), micros(g.Interval, p.Limit.Burst)
	if window < time.Second { // which no window may be: what comes in one
		quota, window = time.Second.Microseconds()/g.Interval, time.Second
	}
	return policy{p, `"` + p.Name + `";q=` + number(quota) + ";w=" + seconds(window)}
}

// setFields adds to what other middleware may have said.
func setFields(h http.Header, charges []charge, decisions []coord.Decision) {
	policies, limits := make([]string, len(charges)), make([]string, len(charges))
	for i, c := range charges {
		d := decisions[i]
		policies[i] = c.quota
		limits[i] = `"` + c.Name + `";r=` + number(int64(d.Remaining))
		if window := c.window(d); window > 0 {
			limits[i] += ";t=" + seconds(window)
		}
		if c.ShowKey {
			pk := ";pk=:" + base64.StdEncoding.EncodeToString([]byte(c.key)) + ":"
			policies[i] += pk
			limits[i] += pk
		}
	}
	h.Add(policyField, strings.Join(policies, ", "))
	h.Add(limitField, strings.Join(limits, ", "))
}

// window is how long what remains is to last; 0: nothing is to be said of it, as of a policy that has not
// refused what others have. Its window could end behind Retry-After, which the draft rules out.
func (p *policy) window(d coord.Decision) time.Duration {
	switch {
	case d.RetryAfter == coord.Never:
		return 0
	case !d.Allowed:
		return d.RetryAfter
	}
	interval := p.Limit.GCRA().Interval
	next := d.ResetAfter - micros(interval, p.Limit.Burst-d.Remaining-1) // until there is one more
	return max(next, micros(interval, d.Remaining), time.Microsecond)
}

// micros is n times so many microseconds, or very long.
func micros(us int64, n int) time.Duration {
	if n > 0 && us > int64(forever/time.Microsecond)/int64(n) {
		return forever
	}
	return time.Duration(us*int64(n)) * time.Microsecond
}

// seconds are whole ones, rounded up, and at least 1.
func seconds(d time.Duration) string {
	whole := int64(d / time.Second)
	if d%time.Second > 0 {
		whole++
	}
	return number(max(whole, 1))
}

func number(n int64) string { return strconv.FormatInt(min(max(n, 0), largest), 10) }
