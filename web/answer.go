package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/hub"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httplimit"
)

// How large a request's body may be.
const (
	noBody   = 0
	authBody = 64 << 10
	hookBody = 256 << 10
	maxBody  = 1 << 20
)

// endpoint answers a request with a status and a value for JSON, or an error;
// a nil value has no body.
type endpoint func(w http.ResponseWriter, r *http.Request) (status int, value any, err error)

// bounded bounds the body of a request, and notes where it comes from.
func (h *handler) bounded(bodyLimit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
		address := h.clients.address(r)
		next.ServeHTTP(w, r.WithContext(audit.WithClient(r.Context(), audit.Client{
			Address: address.String(), Network: httplimit.AddressKey(address), Agent: r.UserAgent(),
		})))
	})
}

// answer makes a handler of an endpoint.
func (h *handler) answer(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, value, err := e(w, r)
		switch {
		case err != nil:
			h.fail(w, r, err)
		case value == nil:
			w.WriteHeader(status)
		default:
			writeJSON(w, status, value)
		}
	})
}

// problem is the body of an error, by RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Field  string `json:"field,omitempty"`

	retryAfter time.Duration // for the header; 0: none
	challenge  string        // for WWW-Authenticate; empty: none
}

func (p problem) Error() string { return p.Detail }

func writeProblem(w http.ResponseWriter, p problem) {
	p.Type, p.Title = "about:blank", http.StatusText(p.Status)
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", wholeSeconds(p.retryAfter))
	}
	if p.challenge != "" {
		w.Header().Set("WWW-Authenticate", p.challenge)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	writeBody(w, p.Status, p)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	writeBody(w, status, value)
}

func writeBody(w http.ResponseWriter, status int, value any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails when the client is gone
}

// fail writes the problem that an error is.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if _, given := bearer(r); given && p.Status == http.StatusUnauthorized {
		p.challenge = "Bearer"
	}
	switch {
	case r.Context().Err() != nil: // nobody hears the answer
	case p.Status == http.StatusInternalServerError:
		h.log.ErrorContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	case p.Status == http.StatusServiceUnavailable:
		p.retryAfter = time.Second
		h.log.DebugContext(r.Context(), "a request was not possible", "path", r.URL.Path, "error", err)
	}
	writeProblem(w, p)
}

// wholeSeconds rounds up, and is at least 1.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}

func problemOf(err error) problem {
	if p, ok := errors.AsType[problem](err); ok {
		return p
	}
	if invalid, ok := errors.AsType[*coord.InvalidError](err); ok {
		return problem{Status: http.StatusUnprocessableEntity, Detail: invalid.Reason, Field: invalid.Field}
	}
	if reason, ok := errors.AsType[*store.ReasonError](err); ok {
		status := http.StatusConflict
		switch {
		case errors.Is(reason, coord.ErrNotFound):
			status = http.StatusNotFound
		case errors.Is(reason, rooms.ErrForbidden):
			status = http.StatusForbidden
		}
		return problem{Status: status, Detail: reason.Reason, Field: reason.Field}
	}
	if forbidden, ok := errors.AsType[*auth.ForbiddenError](err); ok {
		p := problem{Status: http.StatusForbidden, Detail: forbidden.Reason}
		if forbidden.Scope != "" {
			p.challenge = fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", forbidden.Scope)
		}
		return p
	}
	if limited, ok := errors.AsType[*auth.LimitedError](err); ok {
		return problem{Status: http.StatusTooManyRequests, Detail: limited.Error(), retryAfter: limited.RetryAfter}
	}
	if later, ok := errors.AsType[*tasks.RetryError](err); ok {
		status := http.StatusConflict
		if errors.Is(later, tasks.ErrLimited) {
			status = http.StatusTooManyRequests
		}
		return problem{Status: status, Detail: later.Reason, retryAfter: later.After}
	}
	if handshake, ok := errors.AsType[*hub.HandshakeError](err); ok {
		return problem{Status: handshake.Status, Detail: handshake.Reason}
	}
	for _, unsigned := range []error{webhook.ErrHeader, webhook.ErrTime, webhook.ErrSignature} {
		if errors.Is(err, unsigned) { // with what is wrong with the request
			return problem{Status: http.StatusUnauthorized, Detail: err.Error()}
		}
	}
	for _, known := range []struct {
		err    error
		status int
	}{
		{auth.ErrWrongCredentials, http.StatusUnauthorized},
		{auth.ErrSignedOut, http.StatusUnauthorized},
		{hub.ErrTicket, http.StatusUnauthorized},
		{auth.ErrSetupToken, http.StatusForbidden},
		{auth.ErrLink, http.StatusForbidden},
		{hub.ErrTooMany, http.StatusTooManyRequests},
		{tasks.ErrAdminOnly, http.StatusForbidden},
		{tools.ErrForbidden, http.StatusForbidden},
		{hub.ErrDraining, http.StatusServiceUnavailable},
		{hub.ErrFull, http.StatusServiceUnavailable},
	} {
		if errors.Is(err, known.err) {
			return problem{Status: known.status, Detail: known.err.Error()}
		}
	}
	switch {
	case errors.Is(err, coord.ErrNotFound):
		return problem{Status: http.StatusNotFound, Detail: "there is no such thing"}
	case errors.Is(err, coord.ErrConflict):
		return problem{Status: http.StatusConflict, Detail: "something else was done meanwhile, look again"}
	case errors.Is(err, coord.ErrUnavailable), errors.Is(err, coord.ErrBackpressure), errors.Is(err, coord.ErrClosed),
		errors.Is(err, coord.ErrFenced):
		return problem{Status: http.StatusServiceUnavailable, Detail: "the server can't do this at the moment, try again"}
	}
	return problem{Status: http.StatusInternalServerError}
}

// tooLarge is the problem of a body that is larger than it may be.
func tooLarge(err error) (problem, bool) {
	e, ok := errors.AsType[*http.MaxBytesError](err)
	if !ok {
		return problem{}, false
	}
	return problem{
		Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the body may have at most %d bytes", e.Limit),
	}, true
}

// readJSON reads the body of a request. A field that is not known is an error: it is
// most likely misspelt, and what was meant would be lost.
func readJSON(r *http.Request, into any) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return problem{Status: http.StatusUnsupportedMediaType, Detail: "the body must be application/json"}
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, next := d.Token(); next != io.EOF {
			err = errors.New("there is something behind the JSON value")
		}
	}
	if p, ok := tooLarge(err); ok {
		return p
	}
	unknown, isUnknown := unknownField(err)
	wrong, isType := errors.AsType[*json.UnmarshalTypeError](err) // its text names types of this program
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return problem{Status: http.StatusBadRequest, Detail: "the body is empty"}
	case isUnknown:
		return &coord.InvalidError{Field: unknown, Reason: "is not a field that is known here"}
	case isType && wrong.Field == "":
		return problem{Status: http.StatusBadRequest, Detail: "the body must be a JSON object"}
	case isType:
		return &coord.InvalidError{Field: strings.ToLower(wrong.Field), Reason: "is of the wrong type"}
	}
	return problem{Status: http.StatusBadRequest, Detail: "the body is not JSON: " + err.Error()}
}

// unknownField is the name of the field that a decoder does not know, of which it has no
// type of error.
func unknownField(err error) (string, bool) {
	if err == nil {
		return "", false
	}
	quoted, ok := strings.CutPrefix(err.Error(), "json: unknown field ")
	if !ok {
		return "", false
	}
	name, err := strconv.Unquote(quoted)
	return name, err == nil
}
