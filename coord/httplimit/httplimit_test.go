package httplimit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
	"github.com/tandemhq/tandem/coord/memory"
)

// clock is one that a test moves.
type clock struct{ now time.Time }

func (c *clock) limiter(t testing.TB) coord.Limiter {
	c.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := memory.Open(memory.Options{Now: func() time.Time { return c.now }})
	t.Cleanup(func() { _ = b.Close(t.Context()) })
	return b.Limiter()
}

// header is a key function.
func header(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.Header.Get(name) }
}

func handler(t testing.TB, limiter coord.Limiter, o httplimit.Options, policies ...httplimit.Policy) http.Handler {
	t.Helper()
	limit, err := httplimit.New(limiter, o, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) }))
}

func ask(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// want compares an answer with one of the form "status | RateLimit-Policy | RateLimit | Retry-After".
func want(t *testing.T, w *httptest.ResponseRecorder, answer string) {
	t.Helper()
	join := func(field string) string { return strings.Join(w.Header().Values(field), ", ") }
	got := strings.Join([]string{
		strconv.Itoa(w.Code), join("RateLimit-Policy"), join("RateLimit"), join("Retry-After"),
	}, " | ")
	if got != answer {
		t.Errorf("got\n%s, want\n%s", got, answer)
	}
}

func TestFields(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit coord.Limit
		steps []string // answers, or how long to wait
	}{
		{"a minute", coord.Limit{Rate: 100, Per: time.Minute, Burst: 3}, []string{
			`200 | "p";q=3;w=2 | "p";r=2;t=2 | `,
			`200 | "p";q=3;w=2 | "p";r=1;t=1 | `,
			`200 | "p";q=3;w=2 | "p";r=0;t=1 | `,
			`429 | "p";q=3;w=2 | "p";r=0;t=1 | 1`,
			"600ms",
			`200 | "p";q=3;w=2 | "p";r=0;t=1 | `,
			"1h",
			`200 | "p";q=3;w=2 | "p";r=2;t=2 | `,
		}},
		{"the default burst", coord.Limit{Rate: 2, Per: time.Minute}, []string{
			`200 | "p";q=2;w=60 | "p";r=1;t=30 | `,
			`200 | "p";q=2;w=60 | "p";r=0;t=30 | `,
			"1ms", // of which the rest is still to be waited for
			`429 | "p";q=2;w=60 | "p";r=0;t=30 | 30`,
			"28999ms",
			`429 | "p";q=2;w=60 | "p";r=0;t=1 | 1`,
			"1s",
			`200 | "p";q=2;w=60 | "p";r=0;t=30 | `,
		}},
		{"below a second", coord.Limit{Rate: 10, Per: time.Second, Burst: 1}, []string{
			`200 | "p";q=10;w=1 | "p";r=0;t=1 | `,
			`429 | "p";q=10;w=1 | "p";r=0;t=1 | 1`,
		}},
		{"a cost of several", coord.Limit{Rate: 60, Per: time.Minute, Burst: 5, Cost: 3}, []string{
			`200 | "p";q=5;w=5 | "p";r=2;t=2 | `,
			`429 | "p";q=5;w=5 | "p";r=2;t=1 | 1`,
		}},
		{"a cost that never goes", coord.Limit{Rate: 1, Per: time.Second, Burst: 5, Cost: 6}, []string{
			`429 | "p";q=5;w=5 | "p";r=5 | `,
		}},
		{"years", coord.Limit{Rate: 1, Per: 9 * 365 * 24 * time.Hour}, []string{
			`200 | "p";q=1;w=283824000 | "p";r=0;t=283824000 | `,
			`429 | "p";q=1;w=283824000 | "p";r=0;t=283824000 | 283824000`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c clock
			h := handler(t, c.limiter(t), httplimit.Options{}, httplimit.Policy{Name: "p", Limit: test.limit, Key: header("K")})
			for _, step := range test.steps {
				if wait, err := time.ParseDuration(step); err == nil {
					c.now = c.now.Add(wait)
					continue
				}
				want(t, ask(h, "K", "k"), step)
			}
		})
	}
}

// TestTogether wants a request to take from all of its policies or from none, and says which refuse.
func TestTogether(t *testing.T) {
	var c clock
	policies := []httplimit.Policy{
		{Name: "address", Limit: coord.Limit{Rate: 3, Per: time.Minute}, Key: header("A")},
		{Name: "account", Limit: coord.Limit{Rate: 1, Per: time.Hour}, Key: header("B"), ShowKey: true, Cost: func(r *http.Request) int {
			return len(r.Header.Get("Cost"))
		}},
	}
	limiter := c.limiter(t)
	h := handler(t, limiter, httplimit.Options{}, policies...)
	const q1, q2 = `"address";q=3;w=60`, `"account";q=1;w=3600;pk=:Ym9i:`
	want(t, ask(h), `200 |  |  | `)
	want(t, ask(h, "B", "bob"), `200 |  |  | `) // for nothing
	want(t, ask(h, "A", "a", "B", "bob", "Cost", "x"),
		`200 | `+q1+", "+q2+` | "address";r=2;t=40, "account";r=0;t=3600;pk=:Ym9i: | `)
	for range 5 { // takes nothing from the address
		want(t, ask(h, "A", "a", "B", "bob", "Cost", "x"),
			`429 | `+q1+", "+q2+` | "address";r=2, "account";r=0;t=3600;pk=:Ym9i: | 3600`)
	}
	want(t, ask(h, "A", "a", "B", "eve", "Cost", "xx"),
		`429 | `+q1+", "+strings.ReplaceAll(q2, "Ym9i", "ZXZl")+` | "address";r=2, "account";r=1;pk=:ZXZl: | `)
	want(t, ask(h, "A", "a"), `200 | `+q1+` | "address";r=1;t=20 | `)

	// The same name and key is the same bucket, and other middleware's fields are kept.
	again := handler(t, limiter, httplimit.Options{}, policies[0])
	outer, err := httplimit.New(limiter, httplimit.Options{}, policies[1])
	if err != nil {
		t.Fatal(err)
	}
	want(t, ask(outer(again), "A", "a", "B", "dan", "Cost", "x"),
		`200 | `+strings.ReplaceAll(q2, "Ym9i", "ZGFu")+", "+q1+` | "account";r=0;t=3600;pk=:ZGFu:, "address";r=0;t=20 | `)
	w := ask(h, "A", "a", "B", "bob", "Cost", "x")
	want(t, w, `429 | `+q1+", "+q2+` | "address";r=0;t=20, "account";r=0;t=3600;pk=:Ym9i: | 3600`)

	var p struct {
		Type, Title, Detail string
		Status              int
		Violated            []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p.Type != httplimit.QuotaExceeded || p.Title != "Quota Exceeded" || p.Status != 429 ||
		!slices.Equal(p.Violated, []string{"address", "account"}) || !strings.Contains(p.Detail, "in 3600 s") ||
		w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %s with %v", w.Body, w.Header())
	}
}

// TestPacing wants the fields to be true: a client that goes by them alone is never refused, and gets
// what the policy grants.
func TestPacing(t *testing.T) {
	for _, limit := range []coord.Limit{
		{Rate: 100, Per: time.Minute},
		{Rate: 5, Per: time.Second, Burst: 40},
		{Rate: 7, Per: 11 * time.Second, Burst: 3},
	} {
		var c clock
		h := handler(t, c.limiter(t), httplimit.Options{}, httplimit.Policy{Name: "p", Limit: limit, Key: header("K")})
		began := c.now
		served := 0
		for c.now.Sub(began) < time.Hour {
			w := ask(h, "K", "k")
			if w.Code != http.StatusOK {
				t.Fatalf("%+v: refused after %v: %v", limit, c.now.Sub(began), w.Header())
			}
			served++
			_, fields, _ := strings.Cut(w.Header().Get("RateLimit"), ";r=")
			remaining, window, _ := strings.Cut(fields, ";t=")
			r, _ := strconv.Atoi(remaining)
			seconds, err := strconv.Atoi(window)
			if err != nil {
				t.Fatal(err)
			}
			c.now = c.now.Add(time.Duration(seconds) * time.Second / time.Duration(max(r, 1)))
		}
		granted := int(time.Hour / limit.Per * time.Duration(limit.Rate))
		if served < granted*3/4 { // the rest is lost to whole seconds
			t.Errorf("%+v: %d were served in an hour, of %d", limit, served, granted)
		}
	}
}

func TestRefuse(t *testing.T) {
	var refusals []httplimit.Refusal
	o := httplimit.Options{Refuse: func(w http.ResponseWriter, r *http.Request, f httplimit.Refusal) {
		refusals = append(refusals, f)
		w.WriteHeader(http.StatusTeapot)
	}}
	b := memory.Open(memory.Options{Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
	policy := httplimit.Policy{
		Name: "p", Limit: coord.Limit{Rate: 1, Per: time.Minute}, Key: header("K"),
		Cost: func(r *http.Request) int { return len(r.Header["Unit"]) },
	}
	h := handler(t, b.Limiter(), o, policy)
	plain := handler(t, b.Limiter(), httplimit.Options{}, policy)
	long := strings.Repeat("k", 10_000)
	want(t, ask(h, "K", long, "Unit", ""), `200 | "p";q=1;w=60 | "p";r=0;t=60 | `)
	want(t, ask(h, "K", long, "Unit", ""), `418 | "p";q=1;w=60 | "p";r=0;t=60 | 60`)
	want(t, ask(h, "K", long[1:], "Unit", "", "Unit", ""), `418 | "p";q=1;w=60 | "p";r=1 | `)
	if err := b.Limiter().Reset(t.Context(), httplimit.Bucket("p", long)); err != nil {
		t.Fatal(err)
	}
	want(t, ask(h, "K", long, "Unit", ""), `200 | "p";q=1;w=60 | "p";r=0;t=60 | `)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, ask(h, "K", "secret", "Unit", ""), `418 |  |  | 1`)
	w := ask(plain, "K", "k", "Unit", "")
	want(t, w, `503 |  |  | 1`)
	if body := w.Body.String(); !strings.Contains(body, `"about:blank"`) || strings.Contains(body, "closed") {
		t.Errorf("got %s", body)
	}
	if err := refusals[2].Err; strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), `"p:`) {
		t.Errorf("the error names %v", err)
	}
	if len(refusals) != 3 || refusals[0].RetryAfter != time.Minute || refusals[1].RetryAfter != coord.Never ||
		!slices.Equal(refusals[1].Policies, []string{"p"}) || !errors.Is(refusals[2].Err, coord.ErrClosed) {
		t.Errorf("got %+v", refusals)
	}
	if ask(h).Code != http.StatusOK {
		t.Error("a request without a key needs no limiter")
	}
}

// TestOutage wants a refusal for want of the store to be told from one for too many requests.
func TestOutage(t *testing.T) {
	deny := httplimit.Policy{Name: "a", Limit: coord.Limit{Rate: 1, Per: time.Minute, Outage: coord.OutageDeny}, Key: header("K")}
	degrade := httplimit.Policy{Name: "b", Limit: coord.Limit{Rate: 1, Per: time.Minute}, Key: header("K")}
	none := coord.Decision{RetryAfter: 1500 * time.Millisecond, ResetAfter: 1500 * time.Millisecond, Degraded: true}
	some := coord.Decision{Remaining: 1, Degraded: true}
	for _, test := range []struct {
		decisions    []coord.Decision
		answer, kind string
	}{
		{[]coord.Decision{none, some}, `503 | "a";q=1;w=60, "b";q=1;w=60 | "a";r=0;t=2, "b";r=1 | 2`, httplimit.TemporaryReducedCapacity},
		{[]coord.Decision{some, none}, `429 | "a";q=1;w=60, "b";q=1;w=60 | "a";r=1, "b";r=0;t=2 | 2`, httplimit.QuotaExceeded},
	} {
		w := ask(handler(t, decides{decisions: test.decisions}, httplimit.Options{}, deny, degrade), "K", "k")
		want(t, w, test.answer)
		if !strings.Contains(w.Body.String(), test.kind) {
			t.Errorf("got %s, want the type %s", w.Body, test.kind)
		}
	}
}

func TestNewTellsWhichPolicyIsWrong(t *testing.T) {
	good := httplimit.Policy{Name: "good", Limit: coord.Limit{Rate: 1, Per: time.Second}, Key: header("K")}
	for reason, change := range map[string]func(*httplimit.Policy){
		`policy "": the name`:                  func(p *httplimit.Policy) { p.Name = "" },
		`policy "a:b": the name`:               func(p *httplimit.Policy) { p.Name = "a:b" },
		`policy "q\"": the name`:               func(p *httplimit.Policy) { p.Name = `q"` },
		`policy "good": is there twice`:        func(*httplimit.Policy) {},
		`policy "new": it has no function`:     func(p *httplimit.Policy) { p.Key = nil },
		`policy "new": its limit must have no`: func(p *httplimit.Policy) { p.Limit.Key = "x" },
		`policy "new": its limit must have a`:  func(p *httplimit.Policy) { p.Limit.Per = 0 },
		`policy "new": its limit must say`:     func(p *httplimit.Policy) { p.Limit.Outage = "hope" },
	} {
		p := good
		if !strings.Contains(reason, `"good"`) {
			p.Name = "new"
		}
		change(&p)
		if _, err := httplimit.New(nil, httplimit.Options{}, good, p); err == nil || !strings.HasPrefix(err.Error(), reason) {
			t.Errorf("got %v, want %q", err, reason)
		}
	}
}

// What New takes the limiter takes too, and the other way round.
func TestNewKnowsWhichLimitsThereAre(t *testing.T) {
	limiter := memory.Open(memory.Options{}).Limiter()
	const longest = 10 * 365 * 24 * time.Hour
	good, bad := 0, 0
	for _, rate := range []int{-1, 0, 1, 7, 1_000_000, 1_000_001} {
		for _, per := range []time.Duration{0, time.Microsecond, time.Second, time.Hour, longest, longest + time.Microsecond, 1<<63 - 1} {
			for _, burst := range []int{-1, 0, 1, 2, 7, 1_000_000, 1 << 50, 1<<63 - 1} {
				limit := coord.Limit{Rate: rate, Per: per, Burst: burst}
				p := httplimit.Policy{Name: "p", Limit: limit, Key: header("K")}
				_, err := httplimit.New(limiter, httplimit.Options{}, p)
				limit.Key = fmt.Sprint(limit)
				if _, refused := limiter.Allow(t.Context(), limit); (refused != nil) != (err != nil) {
					t.Errorf("%s: the limiter says %v, New says %v", limit.Key, refused, err)
				}
				if err == nil {
					good++
				} else {
					bad++
				}
			}
		}
	}
	if good < 20 || bad < 20 {
		t.Errorf("%d limits are good and %d are not", good, bad)
	}
}
