// Package httpreceipt is net/http middleware that carries a request with an Idempotency-Key out under a
// receipt of [coord.Receipts]: whoever sends it again, to whichever replica, gets the first answer,
// failures included, and nothing is done again. The field is that of
// draft-ietf-httpapi-idempotency-key-header.
//
// A key belongs to who sends it, and to one request: the same method, path, query, media type and body.
//
//	400  the key can't be read, see [ParseKey]
//	409  the first request with it is still at work, after a short wait; Retry-After
//	413  the body is larger than it may be
//	422  the key was used for another request
//	503  the store is away: nothing was begun; Retry-After
//
// An answer that was given before has Idempotency-Replayed: true. Answers are kept for a day.
//
// No outcome is an answer that invites the same request again: one with Retry-After, or of the statuses
// 408, 425, 429, 502, 503 and 504. It is given to who waits for it, and the key is free.
//
// Once begun, a request is carried out whether or not its client stays: its context ends only when the
// lease of the key is lost, see [coord.Do]. When its handler panics, or the process dies, the key is
// free as soon as the lease has ended, and the next request with it is carried out. What a handler does
// in the store happens once even then when it completes the receipt in its transaction: see [Held].
//
// An answer is held back until it is complete, and has at most 1 MiB with what is kept of its header. So
// the middleware is not for streams: what is behind it can't flush, hijack or set deadlines.
package httpreceipt

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// The fields of this package.
const (
	Header         = "Idempotency-Key"
	ReplayedHeader = "Idempotency-Replayed" // "true" in an answer that was given before
)

// Options tune the middleware. Only Caller must be there.
type Options struct {
	// Caller returns whose key it is: a session, a token, an account. It may have any length and be a
	// secret; only a hash is stored. With "" the request is served as one without a key: who is nobody
	// could be given somebody else's answer.
	Caller func(*http.Request) string
	// Secret says that an answer below 400 holds a secret, such as a token that is shown only once. Only
	// its status is kept then, and who sends the request again gets 409: it was carried out.
	Secret bool
	// Headers are kept of an answer besides Content-Type, Content-Encoding, Content-Language,
	// Content-Location, ETag, Last-Modified, Link and Location. Not for what holds a secret, as
	// Set-Cookie does.
	Headers []string
	// MaxBody is how large the body of a request with a key may be. Default 1 MiB.
	MaxBody int64
	// Wait is how long a request waits for the first one with its key. Default 3 s.
	Wait time.Duration
	// Lease and Keep are those of the receipts, with the defaults and bounds of [coord.ReceiptFor].
	Lease, Keep time.Duration
	// Refuse answers a request that is not served, when Retry-After and Idempotency-Replayed are set
	// already. Default: [WriteProblem].
	Refuse func(http.ResponseWriter, *http.Request, Refusal)
}

// Refusal says why a request is not served.
type Refusal struct {
	Status int    // 400, 409, 413, 422, 500 or 503
	Detail string // for who sent it
	Err    error  // of the store, for the program; else nil
}

const (
	defaultBody = 1 << 20
	defaultWait = 3 * time.Second
)

// kept are the headers of an answer that are stored.
var kept = []string{
	"Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Etag", "Last-Modified", "Link", "Location",
}

// New returns middleware for requests by POST and PATCH that have an Idempotency-Key; all others pass.
// It stands behind what finds out who asks and what they may do, for an answer is given to whoever has
// the key and is the same caller. Errors: a *coord.InvalidError that names the option.
func New(receipts coord.Receipts, o Options) (func(http.Handler) http.Handler, error) {
	if o.MaxBody == 0 {
		o.MaxBody = defaultBody
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Refuse == nil {
		o.Refuse = WriteProblem
	}
	outside := func(d, least, most time.Duration) bool { return d != 0 && (d < least || d > most) }
	for _, check := range []struct {
		field, reason string
		bad           bool
	}{
		{"Options.Caller", "must be there", o.Caller == nil},
		{"Options.MaxBody", "must not be negative", o.MaxBody < 0},
		{"Options.Wait", "must not be negative", o.Wait < 0},
		{"Options.Lease", "must be between 1 s and 1 h", outside(o.Lease, time.Second, time.Hour)},
		{"Options.Keep", "must be between 1 s and 10 years", outside(o.Keep, time.Second, 10*365*24*time.Hour)},
	} {
		if check.bad {
			return nil, &coord.InvalidError{Field: check.field, Reason: check.reason}
		}
	}
	m := &middleware{Options: o, receipts: receipts, kept: slices.Concat(kept, o.Headers)}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

type middleware struct {
	Options
	receipts coord.Receipts
	kept     []string
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodPost && r.Method != http.MethodPatch || r.Header.Values(Header) == nil {
		next.ServeHTTP(w, r)
		return
	}
	caller := m.Caller(r)
	if caller == "" {
		next.ServeHTTP(w, r)
		return
	}
	key, err := ParseKey(r)
	if err != nil {
		m.Refuse(w, r, Refusal{Status: http.StatusBadRequest, Detail: err.Error()})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.MaxBody))
	if err != nil {
		refusal := Refusal{Status: http.StatusBadRequest, Detail: "the body broke off"}
		if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
			refusal.Status = http.StatusRequestEntityTooLarge
			refusal.Detail = fmt.Sprintf("the body may have at most %d bytes", e.Limit)
		}
		m.Refuse(w, r, refusal)
		return
	}
	secret := []byte(caller + "\x00" + key)
	m.once(w, r, next, body, coord.ReceiptFor{
		Key: receiptKey(secret), Fingerprint: fingerprint(secret, r, body), Lease: m.Lease, Keep: m.Keep,
	})
}

// receiptKey hashes what may hold a secret: errors name the keys of receipts.
func receiptKey(secret []byte) string {
	hash := sha256.Sum256(secret)
	return "http:" + base64.RawURLEncoding.EncodeToString(hash[:])
}

// fingerprint is what must be the same whenever a key comes again. Who reads the store and does not know
// the key can't use it to guess what was sent.
func fingerprint(secret []byte, r *http.Request, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s %s\n%s\n", r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type")) // a hash never fails
	_, _ = mac.Write(body)
	return mac.Sum(nil)
}

// once carries a request out under its receipt, or answers with what is there already.
func (m *middleware) once(w http.ResponseWriter, r *http.Request, next http.Handler, body []byte, f coord.ReceiptFor) {
	// Who waits goes with their client, or when they have waited enough; who is at work does not.
	ctx, giveUp := context.WithCancel(context.WithoutCancel(r.Context()))
	defer giveUp()
	stay := context.AfterFunc(r.Context(), giveUp)
	defer stay()
	enough := time.AfterFunc(m.Wait, giveUp)
	defer enough.Stop()

	seen := &watched{Receipts: m.receipts}
	var given *recorder // what the handler has answered
	o, replayed, err := coord.Do(ctx, seen, f, func(ctx context.Context, held coord.Receipt) ([]byte, error) {
		if !stay() || !enough.Stop() {
			return nil, coord.ErrTransient
		}
		ctx = context.WithValue(ctx, heldKey{}, held)
		again := r.WithContext(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		answer := newRecorder(w)
		next.ServeHTTP(answer, again)
		given = answer
		return m.outcome(ctx, answer)
	})
	if replayed {
		w.Header().Set(ReplayedHeader, "true")
	}
	switch {
	case err == nil && o.Error != "":
		m.Refuse(w, r, Refusal{Status: http.StatusInternalServerError, Detail: o.Error})
	case replayed:
		m.replay(w, r, o.Body)
	case given != nil && !errors.Is(err, coord.ErrFenced): // if it could not be stored, it is what happened all the same
		given.send()
	default:
		m.refuse(w, r, seen.held, err)
	}
}

// outcome is what is stored of an answer, or an error when it is none.
func (m *middleware) outcome(ctx context.Context, a *recorder) ([]byte, error) {
	status := a.code()
	switch {
	case a.tooLarge:
		return nil, errTooLarge
	case isTransient(status, a.Header()), status >= 400 && ctx.Err() != nil: // it was told to stop
		return nil, coord.ErrTransient
	case m.Secret && status < 400:
		return encode(status, nil, nil), nil
	}
	header := http.Header{}
	for _, name := range m.kept {
		if values := a.Header().Values(name); values != nil {
			header[http.CanonicalHeaderKey(name)] = values
		}
	}
	stored := encode(status, header, a.body.Bytes())
	if len(stored) > coord.MaxPayload {
		return nil, errTooLarge
	}
	return stored, nil
}

// isTransient reports whether an answer invites the same request again.
func isTransient(status int, header http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return header.Get("Retry-After") != ""
}

// replay answers as the first time.
func (m *middleware) replay(w http.ResponseWriter, r *http.Request, stored []byte) {
	status, header, body, err := decode(stored)
	switch {
	case err != nil:
		m.Refuse(w, r, Refusal{Status: http.StatusInternalServerError, Detail: "the first answer can't be read", Err: err})
	case m.Secret && status < 400:
		m.Refuse(w, r, Refusal{
			Status: http.StatusConflict, Detail: "this was done, and its answer is not given again, for it holds a secret",
		})
	default:
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		_, _ = w.Write(body) // fails when the client is gone, or the status has no body
	}
}

// refuse answers a request that was not carried out. held: by another one at work.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, held bool, err error) {
	if errors.Is(err, coord.ErrConflict) {
		m.Refuse(w, r, Refusal{Status: http.StatusUnprocessableEntity, Detail: "the " + Header + " was used for another request"})
		return
	}
	w.Header().Set("Retry-After", "1")
	if held && errors.Is(err, context.Canceled) {
		m.Refuse(w, r, Refusal{Status: http.StatusConflict, Detail: "the first request with this " + Header + " is still at work"})
		return
	}
	m.Refuse(w, r, Refusal{
		Status: http.StatusServiceUnavailable, Err: err,
		Detail: "it can't be told at the moment whether the request was carried out before, try again",
	})
}

// watched notes whether another one held a key when it was last told.
type watched struct {
	coord.Receipts
	held bool
}

func (s *watched) Begin(ctx context.Context, f coord.ReceiptFor) (coord.Receipt, error) {
	got, err := s.Receipts.Begin(ctx, f)
	if err == nil {
		s.held = got.State == coord.ReceiptHeld
	}
	return got, err
}

type heldKey struct{}

// Held returns the receipt under which a request is carried out; ok is false when it has no key. A
// handler that completes it in the transaction of what it does, by [coord.Tx.CompleteReceipt] with an
// [Outcome], has done that once, whenever its process dies. It should then give that same answer.
func Held(ctx context.Context) (held coord.Receipt, ok bool) {
	held, ok = ctx.Value(heldKey{}).(coord.Receipt)
	return held, ok
}
