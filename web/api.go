package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Sessions travel in one cookie. Its name binds it to https and this host, which
// browsers enforce; plain http is for loopback alone.
const (
	secureCookie = "__Host-tandem"
	plainCookie  = "tandem_session"
)

func (h *handler) cookieName() string {
	if h.config.Secure() {
		return secureCookie
	}
	return plainCookie
}

// setCookie hands the secret of a session to the browser; "" takes it away.
func (h *handler) setCookie(w http.ResponseWriter, secret string) {
	age := int(h.auth.SessionLength() / time.Second)
	if secret == "" {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{
		Name: h.cookieName(), Value: secret, Path: "/", MaxAge: age,
		HttpOnly: true, Secure: h.config.Secure(), SameSite: http.SameSiteLaxMode,
	})
}

// bearer returns the token that a request shows. given is true also for one that can't be
// a good one: with it, a cookie does not count.
func bearer(r *http.Request) (token string, given bool) {
	values := r.Header.Values("Authorization")
	for _, value := range values {
		scheme, rest, _ := strings.Cut(value, " ")
		if strings.EqualFold(scheme, "Bearer") {
			token, given = strings.TrimSpace(rest), true
		}
	}
	if len(values) > 1 {
		token = ""
	}
	return token, given
}

// session returns the session of a request, or auth.ErrSignedOut.
func (h *handler) session(r *http.Request) (store.Session, error) {
	if token, given := bearer(r); given {
		return h.auth.AuthenticateToken(r.Context(), token)
	}
	cookie, err := r.Cookie(h.cookieName())
	if err != nil {
		return store.Session{}, auth.ErrSignedOut
	}
	return h.auth.Authenticate(r.Context(), cookie.Value)
}

type sessionKey struct{}

// allowed serves who has a right.
func (h *handler) allowed(right auth.Right, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := h.session(r)
		if err == nil {
			err = auth.May(s, right)
		}
		if err != nil {
			h.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(auth.WithSession(context.WithValue(r.Context(), sessionKey{}, s), s)))
	})
}

// promptly is how long a body may take to come in before who sends it is asked again.
const promptly = time.Millisecond

// whole reads the body, behind allowed. A request takes as long to come in as its client
// likes; what is done by then is done only for who still has the right.
func (h *handler) whole(right auth.Right, next http.Handler) http.Handler {
	again := h.allowed(right, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			p, ok := tooLarge(err)
			if !ok {
				p = problem{Status: http.StatusBadRequest, Detail: "the body broke off"}
			}
			h.fail(w, r, p)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if time.Since(began) > promptly {
			again.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sessionOf is for endpoints behind allowed.
func sessionOf(r *http.Request) store.Session { return r.Context().Value(sessionKey{}).(store.Session) }

func param(r *http.Request, name string) string {
	return httprouter.ParamsFromContext(r.Context()).ByName(name)
}

// pathID is an id in the path.
func pathID(r *http.Request, name string) (int64, error) {
	id, err := strconv.ParseInt(param(r, name), 10, 64)
	if err != nil {
		return 0, coord.ErrNotFound
	}
	return id, nil
}

func (h *handler) getSetup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	needed, err := h.auth.SetupNeeded(r.Context())
	return http.StatusOK, map[string]bool{"needed": needed}, err
}

type userAnswer struct {
	User store.User `json:"user"`
}

func (h *handler) postSetup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Token, Name, Password string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	in, err := h.auth.Setup(r.Context(), body.Token, body.Name, body.Password)
	if err != nil {
		return 0, nil, err
	}
	h.enter(w, r, in)
	return http.StatusCreated, userAnswer{in.User}, nil
}

func (h *handler) getMe(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	s := sessionOf(r)
	return http.StatusOK, struct {
		userAnswer
		Rights    []auth.Right `json:"rights"`
		Node      string       `json:"node"`
		Driver    string       `json:"driver"`
		Endpoints []string     `json:"endpoints"` // for WebSockets; none: where the page comes from
	}{userAnswer{s.User}, auth.Rights(s), h.config.Node, h.config.Driver, orEmpty(h.config.Endpoints)}, nil
}

func (h *handler) postSession(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Name, Password string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	in, err := h.auth.SignIn(r.Context(), body.Name, body.Password)
	if err != nil {
		return 0, nil, err
	}
	h.enter(w, r, in)
	return http.StatusOK, userAnswer{in.User}, nil
}

// enter gives a browser its new session. It forgets its old one, so nobody else should
// know that either.
func (h *handler) enter(w http.ResponseWriter, r *http.Request, in auth.SignedIn) {
	if old, err := h.session(r); err == nil && old.Kind == store.Browser {
		if err := h.signOut(r, old); err != nil {
			h.log.WarnContext(r.Context(), "an old session was not ended", "session_id", old.ID, "error", err)
		}
	}
	h.setCookie(w, in.Secret)
}

func (h *handler) deleteSession(w http.ResponseWriter, r *http.Request) (int, any, error) {
	s, err := h.session(r)
	if err == nil {
		err = auth.May(s, auth.Own)
	}
	if err == nil {
		err = h.signOut(r, s)
	}
	if err != nil && !errors.Is(err, auth.ErrSignedOut) {
		return 0, nil, err
	}
	h.setCookie(w, "")
	return http.StatusNoContent, nil, nil
}

func (h *handler) signOut(r *http.Request, s store.Session) error {
	if err := h.auth.SignOut(r.Context(), s); err != nil {
		return err
	}
	h.hub.CloseSession(s.ID) // here at once; other replicas hear of it
	return nil
}

// number reads a query parameter that is a positive number; 0 when it is absent.
func number(r *http.Request, name string) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, &coord.InvalidError{Field: name, Reason: "must be a positive number"}
	}
	return n, nil
}

func (h *handler) postTickets(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	if _, given := bearer(r); !given && !h.config.OriginAllowed(r) {
		return 0, nil, problem{Status: http.StatusForbidden, Detail: "the request comes from a page of another site"}
	}
	ticket, err := h.hub.Ticket(r.Context(), sessionOf(r), r.Header.Get("Origin"))
	return http.StatusCreated, struct {
		Ticket    string    `json:"ticket"`
		ExpiresAt time.Time `json:"expires_at"`
	}{ticket.Secret, ticket.Expires.UTC()}, err
}

func (h *handler) getSchedule(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	query := r.URL.Query()
	description, next, err := h.tasks.Preview(query.Get("schedule"), query.Get("zone"))
	return http.StatusOK, struct {
		Description string      `json:"description"`
		Next        []time.Time `json:"next"`
	}{description, orEmpty(next)}, err
}

// orEmpty is a list that is [] in JSON, never null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
