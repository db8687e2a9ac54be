// Package httplimit is net/http middleware that holds requests to limits of a [coord.Limiter], which
// are the same on all replicas of a program.
//
// Answers tell clients where they stand, by draft-ietf-httpapi-ratelimit-headers-11:
//
//	RateLimit-Policy: "minute";q=100;w=60
//	RateLimit: "minute";r=50;t=30
//
// q is what a policy grants at once after a pause, its burst, and w the whole seconds in which that
// comes again. r is what could be taken now, and t the seconds for which it is meant: who spreads r
// over t goes at the policy's pace. A refusal has 429, a Retry-After and, by RFC 9457, the problem type
// quota-exceeded; there t is what the policy that has refused wants to be waited for, and the policies
// that have not refused give none. A request that costs more than a policy ever grants gets no
// Retry-After, for waiting does not help. A refusal that an outage of the store is the reason of has 503
// and the problem type temporary-reduced-capacity. When the limiter can't decide, the answer is 503 too.
//
// A client can lower what it is granted by asking for much, and nothing else: [Clients] believes only
// what proxies say that the program trusts.
package httplimit

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Policy is one limit, of which every key has a bucket. Policies of the same name are the same limit, in
// whichever middleware, program or replica: a bucket is found by the name and the key.
type Policy struct {
	// Name is what clients and the answers call the policy: 1–100 letters, digits, '-', '_' and '.'.
	Name string
	// Limit is without a key. Its Cost is that of each request, unless there is a function Cost.
	Limit coord.Limit
	// Key returns whose bucket pays for a request: an address, an account, a session. It may have any
	// length and be a secret. With "" the policy does not apply to the request.
	Key func(*http.Request) string
	// Cost returns what a request costs, if it is not the same for all. Below 1 the policy does not
	// apply to the request. It is asked only when there is a key.
	Cost func(*http.Request) int
	// ShowKey sends the key to the client as the draft's partition key, for clients that use several
	// keys. Not for keys that are secret, or that the client does not know.
	ShowKey bool
}

// Options tune the middleware; the zero value is good.
type Options struct {
	// Refuse answers a request that is not served, when the fields RateLimit, RateLimit-Policy and
	// Retry-After are set already. Default: [WriteProblem].
	Refuse func(http.ResponseWriter, *http.Request, Refusal)
}

// Refusal says why a request is not served.
type Refusal struct {
	Policies   []string      // names of those that have refused it
	RetryAfter time.Duration // after this the same request may be served; or coord.Never
	Outage     bool          // the store is away, and one of them grants nothing then: [coord.OutageDeny]
	Err        error         // of the limiter, which could not decide; the other fields are empty then
}

// New returns middleware that serves a request when all policies that apply to it grant it, and takes
// nothing from any when one does not. All are decided in one call of the limiter. The handler behind it
// may change the fields that it has set. An error names the policy that is wrong.
func New(limiter coord.Limiter, o Options, policies ...Policy) (func(http.Handler) http.Handler, error) {
	if o.Refuse == nil {
		o.Refuse = WriteProblem
	}
	m := &middleware{limiter: limiter, refuse: o.Refuse}
	names := map[string]bool{}
	for _, p := range policies {
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("policy %q: %w", p.Name, err)
		}
		if names[p.Name] {
			return nil, fmt.Errorf("policy %q: is there twice", p.Name)
		}
		names[p.Name] = true
		m.policies = append(m.policies, newPolicy(p))
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

func (p Policy) check() error {
	const allowed = "-_.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	switch {
	case p.Name == "" || len(p.Name) > 100 || strings.Trim(p.Name, allowed) != "":
		return errors.New("the name must have 1 to 100 letters, digits, '-', '_' and '.'")
	case p.Key == nil:
		return errors.New("it has no function Key")
	case p.Limit.Key != "":
		return errors.New("its limit must have no key")
	case p.Limit.Rate < 1 || p.Limit.Per.Microseconds() < int64(p.Limit.Rate) || p.Limit.Burst < 0 || p.Limit.Cost < 0:
		return errors.New("its limit must have a rate of at most one per microsecond, and nothing below 0")
	case p.Limit.Per > longest || micros(p.Limit.GCRA().Interval, cmp.Or(p.Limit.Burst, p.Limit.Rate)) > longest:
		return fmt.Errorf("its limit must count, and its burst must come again, within %v", longest)
	case !slices.Contains([]coord.Outage{"", coord.OutageDegrade, coord.OutageDeny, coord.OutageAllow}, p.Limit.Outage):
		return errors.New("its limit must say degrade, deny or allow for an outage")
	}
	return nil
}

type middleware struct {
	limiter  coord.Limiter
	policies []policy
	refuse   func(http.ResponseWriter, *http.Request, Refusal)
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	charges := make([]charge, 0, len(m.policies))
	limits := make([]coord.Limit, 0, len(m.policies))
	for i := range m.policies {
		if c, applies := m.policies[i].charge(r); applies {
			charges, limits = append(charges, c), append(limits, c.limit)
		}
	}
	if len(charges) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	decisions, err := m.decide(r, limits)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		m.refuse(w, r, Refusal{Err: err})
		return
	}
	setFields(w.Header(), charges, decisions)
	if decisions[0].Allowed {
		next.ServeHTTP(w, r)
		return
	}
	refusal := Refusal{}
	for i, d := range decisions {
		if d.RetryAfter > 0 {
			refusal.Policies = append(refusal.Policies, charges[i].Name)
			refusal.RetryAfter = max(refusal.RetryAfter, d.RetryAfter)
			refusal.Outage = refusal.Outage || d.Degraded && limits[i].Outage == coord.OutageDeny
		}
	}
	if refusal.RetryAfter != coord.Never {
		w.Header().Set("Retry-After", seconds(refusal.RetryAfter))
	}
	m.refuse(w, r, refusal)
}

func (m *middleware) decide(r *http.Request, limits []coord.Limit) ([]coord.Decision, error) {
	if len(limits) > 1 {
		return m.limiter.AllowAll(r.Context(), limits...)
	}
	d, err := m.limiter.Allow(r.Context(), limits[0])
	return []coord.Decision{d}, err
}

// policy is a checked Policy.
type policy struct {
	Policy
	quota string // its item of RateLimit-Policy
}

// charge is what a policy that applies asks of a request.
type charge struct {
	*policy
	limit coord.Limit
	key   string
}

func (p *policy) charge(r *http.Request) (c charge, applies bool) {
	c = charge{policy: p, limit: p.Limit, key: p.Key(r)}
	if c.key == "" {
		return c, false
	}
	if p.Cost != nil {
		if c.limit.Cost = p.Cost(r); c.limit.Cost < 1 {
			return c, false
		}
	}
	c.limit.Key = Bucket(p.Name, c.key)
	return c, true
}

// Bucket returns the key that a bucket has in the limiter, as for [coord.Limiter.Reset]. It holds only a
// hash of the policy's key, which may be a secret: errors name what they are about.
func Bucket(policy, key string) string {
	hash := sha256.Sum256([]byte(key))
	return policy + ":" + base64.RawURLEncoding.EncodeToString(hash[:])
}
