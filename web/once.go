package web

import (
	"net/http"
	"strconv"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httpreceipt"
)

// showsSecret are the routes whose answers hold what is shown only once.
var showsSecret = map[string]bool{
	"POST " + api + "/tokens":              true,
	"POST " + api + "/people/:id/reset":    true,
	"POST " + api + "/invitations":         true,
	"POST " + api + "/tasks/:name/webhook": true,
	"POST " + api + "/ws-tickets":          true,
}

// takesPassword are the routes of whose requests nothing is kept, not even a fingerprint.
var takesPassword = map[string]bool{"POST " + api + "/password": true}

// newOnce returns what carries a request with an Idempotency-Key of one session out once,
// behind allowed.
func (h *handler) newOnce(receipts coord.Receipts) (func(route, http.Handler) http.Handler, error) {
	o := httpreceipt.Options{
		Caller: func(r *http.Request) string { return strconv.FormatInt(sessionOf(r).ID, 10) },
		Refuse: h.refuseOnce,
	}
	plain, err := httpreceipt.New(receipts, o)
	if err != nil {
		return nil, err
	}
	o.Secret = true
	secret, err := httpreceipt.New(receipts, o)
	if err != nil {
		return nil, err
	}
	return func(rt route, next http.Handler) http.Handler {
		switch name := rt.method + " " + rt.path; {
		case takesPassword[name]:
			return next
		case showsSecret[name]:
			return secret(next)
		}
		return plain(next)
	}, nil
}

func (h *handler) refuseOnce(w http.ResponseWriter, r *http.Request, f httpreceipt.Refusal) {
	if f.Err != nil {
		h.log.DebugContext(r.Context(), "a request was not possible", "path", r.URL.Path, "error", f.Err)
	}
	p := problem{Status: f.Status, Detail: f.Detail}
	if f.Status == http.StatusUnprocessableEntity {
		p.Field = httpreceipt.Header
	}
	writeProblem(w, p)
}
