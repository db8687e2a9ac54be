package httplimit

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tandemhq/tandem/coord"
)

// The types of the problems that a refused request gets.
const (
	QuotaExceeded            = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TemporaryReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// problem is the body of a refusal, by RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

// WriteProblem answers with a problem: 429 of the type [QuotaExceeded], 503 of the type
// [TemporaryReducedCapacity] when the reason is an outage, or 503 of no type when the limiter could not
// decide. What the limiter's error says is for the program, not for the client.
func WriteProblem(w http.ResponseWriter, _ *http.Request, f Refusal) {
	p := problem{
		Type: "about:blank", Title: "Service Unavailable", Status: http.StatusServiceUnavailable,
		Detail: "it can't be decided at the moment whether the request is within the limits, try again",
	}
	if f.Err == nil {
		p = problem{Type: QuotaExceeded, Title: "Quota Exceeded", Status: http.StatusTooManyRequests, Violated: f.Policies}
		names := strings.Join(f.Policies, " and ")
		switch {
		case f.Outage:
			p.Type, p.Title, p.Status = TemporaryReducedCapacity, "Temporary Reduced Capacity", http.StatusServiceUnavailable
			p.Detail = "nothing is served at the moment that the limit " + names + " is for, try again"
		case f.RetryAfter == coord.Never:
			p.Detail = "the request asks for more than the limit " + names + " ever grants"
		default:
			p.Detail = "these are more requests than the limit " + names + " grants, try again in " +
				seconds(f.RetryAfter) + " s"
		}
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // fails when the client is gone
}
