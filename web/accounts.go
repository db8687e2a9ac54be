package web

import (
	"net/http"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// postLinks says what a link is for, before somebody uses it.
func (h *handler) postLinks(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Token string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	link, err := h.auth.Link(r.Context(), body.Token)
	return http.StatusOK, struct {
		Kind      store.LinkKind `json:"kind"`
		Role      store.Role     `json:"role,omitzero"`
		Room      string         `json:"room,omitzero"`
		Name      string         `json:"name,omitzero"`
		ExpiresAt store.Time     `json:"expires_at"`
	}{link.Kind, link.Role, link.Room, link.User, link.ExpiresAt}, err
}

func (h *handler) acceptInvitation(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Token, Name, Password string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	in, err := h.auth.Accept(r.Context(), body.Token, body.Name, body.Password)
	if err != nil {
		return 0, nil, err
	}
	h.enter(w, r, in)
	return http.StatusCreated, userAnswer{in.User}, nil
}

func (h *handler) resetPassword(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Token, Password string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	in, err := h.auth.ResetPassword(r.Context(), body.Token, body.Password)
	if err != nil {
		return 0, nil, err
	}
	h.enter(w, r, in)
	return http.StatusOK, userAnswer{in.User}, nil
}

func (h *handler) postPassword(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct{ Current, Password string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.auth.ChangePassword(r.Context(), sessionOf(r), body.Current, body.Password)
}

func (h *handler) getSessions(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.auth.Sessions(r.Context(), sessionOf(r))
	return http.StatusOK, map[string]any{"sessions": orEmpty(list)}, err
}

// ended is the answer of what ends sessions.
type ended struct {
	Ended int `json:"ended"`
}

func (h *handler) deleteSessions(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	n, err := h.auth.EndOtherSessions(r.Context(), sessionOf(r))
	return http.StatusOK, ended{n}, err
}

func (h *handler) deleteOneSession(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.auth.EndSession(r.Context(), sessionOf(r), id)
}

func (h *handler) getTokens(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.auth.Tokens(r.Context(), userOf(r))
	return http.StatusOK, map[string]any{"tokens": orEmpty(list)}, err
}

func (h *handler) postTokens(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Name       string       `json:"name"`
		Scopes     []auth.Scope `json:"scopes"`
		ExpiresInS int64        `json:"expires_in_s"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	expires, err := seconds("expires_in_s", body.ExpiresInS)
	if err != nil {
		return 0, nil, err
	}
	token, secret, err := h.auth.MakeToken(r.Context(), userOf(r), auth.NewToken{Name: body.Name, Scopes: body.Scopes, Expires: expires})
	return http.StatusCreated, struct {
		Token  auth.Token `json:"token"`
		Secret string     `json:"secret"` // shown only now
	}{token, secret}, err
}

// seconds is a length of time from a body.
func seconds(field string, n int64) (time.Duration, error) {
	if n < 0 || n > int64(1<<63-1)/int64(time.Second) {
		return 0, &coord.InvalidError{Field: field, Reason: "must be a number of seconds"}
	}
	return time.Duration(n) * time.Second, nil
}

func (h *handler) deleteToken(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.auth.RevokeToken(r.Context(), userOf(r), id)
}

func (h *handler) getPeople(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.auth.People(r.Context())
	return http.StatusOK, map[string]any{"people": orEmpty(list)}, err
}

// patchPerson changes one thing at a time, so that there is nothing half done.
func (h *handler) patchPerson(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	var body struct {
		Role   *store.Role
		Active *bool
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	switch {
	case (body.Role == nil) == (body.Active == nil):
		err = &coord.InvalidError{Field: "role", Reason: "either it or active must be given"}
	case body.Role != nil:
		err = h.auth.SetRole(r.Context(), userOf(r), id, *body.Role)
	default:
		err = h.auth.SetActive(r.Context(), userOf(r), id, *body.Active)
	}
	if err != nil {
		return 0, nil, err
	}
	person, err := h.auth.Person(r.Context(), id)
	return http.StatusOK, map[string]any{"person": person}, err
}

func (h *handler) deletePersonSessions(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	n, err := h.auth.EndSessionsOf(r.Context(), userOf(r), id)
	return http.StatusOK, ended{n}, err
}

// linkAnswer is a link that was made. Its path is behind the page's address; only now is
// it shown.
type linkAnswer struct {
	Path      string      `json:"path"`
	ExpiresAt store.Time  `json:"expires_at"`
	Made      *store.Link `json:"invitation,omitempty"`
}

func (h *handler) postReset(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	link, secret, err := h.auth.MakeReset(r.Context(), userOf(r), id)
	return http.StatusCreated, linkAnswer{Path: auth.ResetPath + secret, ExpiresAt: link.ExpiresAt}, err
}

func (h *handler) getInvitations(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.auth.Invitations(r.Context())
	return http.StatusOK, map[string]any{"invitations": orEmpty(list)}, err
}

func (h *handler) postInvitations(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Role       store.Role `json:"role"`
		RoomID     int64      `json:"room_id"`
		ExpiresInS int64      `json:"expires_in_s"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	ttl, err := seconds("expires_in_s", body.ExpiresInS)
	if err != nil {
		return 0, nil, err
	}
	link, secret, err := h.auth.Invite(r.Context(), userOf(r), auth.NewInvitation{Role: body.Role, RoomID: body.RoomID, TTL: ttl})
	return http.StatusCreated, linkAnswer{auth.InvitationPath + secret, link.ExpiresAt, &link}, err
}

func (h *handler) deleteInvitation(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.auth.Withdraw(r.Context(), userOf(r), id)
}

func (h *handler) getAudit(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	query := r.URL.Query()
	f := audit.Filter{Action: query.Get("action"), Target: query.Get("target")}
	var err error
	if f.ActorID, err = number(r, "actor"); err != nil {
		return 0, nil, err
	}
	if f.Before, err = h.before(r); err != nil {
		return 0, nil, err
	}
	limit, err := number(r, "limit")
	if err != nil {
		return 0, nil, err
	}
	f.Limit = int(min(limit, maxBody))
	for name, into := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := query.Get(name); text != "" {
			if *into, err = time.Parse(time.RFC3339, text); err != nil {
				return 0, nil, &coord.InvalidError{Field: name, Reason: "must be a time such as 2026-01-02T15:04:05Z"}
			}
		}
	}
	lines, more, err := h.audit.List(r.Context(), f)
	next := ""
	if len(lines) > 0 {
		next = h.next(r, more, lines[len(lines)-1].ID)
	}
	return http.StatusOK, struct {
		Lines []store.AuditLine `json:"lines"`
		More  bool              `json:"more"`
		Next  string            `json:"next,omitzero"`
	}{orEmpty(lines), more, next}, err
}
