package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// TokenPrefix begins every token, so that one that has leaked is recognised.
const TokenPrefix = "tdm_"

const (
	maxSessions  = 100 // of one person's browsers
	maxTokens    = 50  // of one person
	maxTokenName = 100 // characters
	maxTokenLife = 10 * 365 * 24 * time.Hour
)

// SignIn checks a password and makes a session. Every try is charged to the account and
// to the address before it is looked at; success forgives the account. Errors:
// ErrWrongCredentials, *LimitedError, coord.ErrUnavailable.
func (s *Service) SignIn(ctx context.Context, name, password string) (SignedIn, error) {
	if err := s.charge(ctx, name); err != nil {
		return SignedIn{}, err
	}
	if len(password) > maxPassword || checkLine("name", strings.TrimSpace(name), maxName) != nil { // nobody has one, and looking costs
		return SignedIn{}, ErrWrongCredentials
	}
	known, err := s.store.Credentials(ctx, name)
	if err != nil && !errors.Is(err, coord.ErrNotFound) {
		return SignedIn{}, err
	}
	// An unknown name has no hash, and costs as much time as a known one.
	match, err := s.hasher.compare(ctx, password, known.PasswordHash)
	if err != nil {
		return SignedIn{}, err
	}
	var in SignedIn
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if !match { // what was typed in place of an unknown name may be a password
			return audit.Write(ctx, u, audit.Entry{Action: audit.SignInFailed, Target: known.Name})
		}
		now, err := u.LockCredentials(ctx, known.ID)
		if err == nil && (now.Deactivated || now.PasswordHash != known.PasswordHash) { // meanwhile
			err = ErrWrongCredentials
		}
		if err != nil {
			return err
		}
		in, err = signIn(ctx, u, now.User)
		return err
	})
	switch {
	case err != nil:
		return SignedIn{}, err
	case !match:
		return SignedIn{}, ErrWrongCredentials
	}
	s.forgive(ctx, known.User)
	return in, nil
}

// signIn makes a session of a browser. Of those beyond maxSessions the ones end that were
// not used for the longest time.
func signIn(ctx context.Context, u store.Unit, user store.User) (in SignedIn, err error) {
	client := audit.ClientOf(ctx)
	secret, hash := newSecret()
	in.Secret = secret
	in.Session, err = u.AddSession(ctx, store.NewSession{
		Hash: hash, User: user, Address: client.Address, UserAgent: client.Agent,
	})
	if err != nil {
		return in, err
	}
	ended, err := end(ctx, u, store.Ending{User: user.ID, Kind: store.Browser, Keep: maxSessions})
	if err != nil {
		return in, err
	}
	line := audit.Entry{By: user, Action: audit.SignedIn, Target: user.Name}
	if len(ended) > 0 {
		line.Details = map[string]any{"sessions_ended": len(ended)}
	}
	return in, audit.Write(ctx, u, line)
}

func accountKey(name string) string {
	key := store.NameKey(name)
	return "signin.account:" + key[:min(len(key), 4*maxName)]
}

// charge counts a try of a password.
func (s *Service) charge(ctx context.Context, name string) error {
	byAccount, byAddress := s.o.ByAccount, s.o.ByAddress
	byAccount.Key, byAddress.Key = accountKey(name), "signin.address:"+audit.ClientOf(ctx).Network
	return s.limit(ctx, byAccount, byAddress)
}

// chargeLink counts a try of a link.
func (s *Service) chargeLink(ctx context.Context) error {
	limit := s.o.Links
	limit.Key = "link.address:" + audit.ClientOf(ctx).Network
	return s.limit(ctx, limit)
}

// limit takes from the buckets, or returns a *LimitedError.
func (s *Service) limit(ctx context.Context, limits ...coord.Limit) error {
	decisions, err := s.limiter.AllowAll(ctx, limits...)
	if err != nil {
		return err
	}
	var wait time.Duration
	for _, d := range decisions {
		if !d.Allowed {
			wait = max(wait, d.RetryAfter)
		}
	}
	if wait > 0 {
		return &LimitedError{RetryAfter: wait}
	}
	return nil
}

// forgive lets somebody whose password was right try again as often as at first.
func (s *Service) forgive(ctx context.Context, user store.User) {
	if err := s.limiter.Reset(ctx, accountKey(user.Name)); err != nil {
		s.log.WarnContext(ctx, "the sign-in limit of an account was not reset", "user_id", user.ID, "error", err)
	}
}

// Authenticate returns the session of a browser's secret, or ErrSignedOut.
func (s *Service) Authenticate(ctx context.Context, secret string) (store.Session, error) {
	if secret == "" {
		return store.Session{}, ErrSignedOut
	}
	session, err := s.store.Session(ctx, store.Browser, hashSecret(secret), s.o.Sessions)
	return session, signedOut(err)
}

// AuthenticateToken returns the session of a token, or ErrSignedOut.
func (s *Service) AuthenticateToken(ctx context.Context, token string) (store.Session, error) {
	if !strings.HasPrefix(token, TokenPrefix) {
		return store.Session{}, ErrSignedOut
	}
	session, err := s.store.Session(ctx, store.Token, hashSecret(token), s.o.Sessions)
	return session, signedOut(err)
}

// Session returns a session that is known by its id, or ErrSignedOut.
func (s *Service) Session(ctx context.Context, id int64) (store.Session, error) {
	session, err := s.store.SessionByID(ctx, id, s.o.Sessions)
	return session, signedOut(err)
}

type sessionKey struct{}

// WithSession returns a context for what is done in the name of a session. What makes a
// secret or changes people is done only if the session has not ended meanwhile: a request
// takes as long to come in as its client likes.
func WithSession(ctx context.Context, by store.Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, by.ID)
}

// stillSignedIn returns ErrSignedOut when the session of the context has ended. It comes
// behind the lock that whoever ends all sessions of that person takes first.
func (s *Service) stillSignedIn(ctx context.Context, u store.Unit) error {
	id, ok := ctx.Value(sessionKey{}).(int64)
	if !ok { // the command line
		return nil
	}
	alive, err := u.SessionAlive(ctx, id, s.o.Sessions)
	if err == nil && !alive {
		err = ErrSignedOut
	}
	return err
}

func signedOut(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return ErrSignedOut
	}
	return err
}

// SignOut ends a session; its connections on all replicas hear of it.
func (s *Service) SignOut(ctx context.Context, session store.Session) error {
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		ended, err := end(ctx, u, store.Ending{User: session.User.ID, ID: session.ID})
		if err != nil || len(ended) == 0 {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{By: session.User, Action: audit.SignedOut, Target: session.User.Name})
	})
}

// end ends sessions and tells their connections.
func end(ctx context.Context, u store.Unit, e store.Ending) ([]store.Ended, error) {
	ended, err := u.EndSessions(ctx, e)
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(ended, coord.MaxBatch) {
		events := make([]coord.NewEvent, len(some))
		for i, session := range some {
			if events[i], err = event(session.UserID, KindRevoked, Revoked{Session: session.ID}); err != nil {
				return nil, err
			}
		}
		if err := u.Coord.Publish(ctx, events...); err != nil {
			return nil, err
		}
	}
	return ended, nil
}

func event(user int64, kind string, payload any) (coord.NewEvent, error) {
	b, err := json.Marshal(payload)
	return coord.NewEvent{Topic: UserTopic(user), Kind: kind, Payload: b}, err
}

// Browser is a session as its owner sees it.
type Browser struct {
	ID        int64      `json:"id"`
	Current   bool       `json:"current"` // that of the request
	CreatedAt store.Time `json:"created_at"`
	SeenAt    store.Time `json:"seen_at"` // to the minute
	Address   string     `json:"address"` // where it was made
	UserAgent string     `json:"user_agent"`
}

// Sessions lists where somebody is signed in, the last used first.
func (s *Service) Sessions(ctx context.Context, by store.Session) ([]Browser, error) {
	found, err := s.store.Sessions(ctx, by.User.ID, store.Browser, s.o.Sessions)
	list := make([]Browser, len(found))
	for i, f := range found {
		list[i] = Browser{
			ID: f.ID, Current: f.ID == by.ID, CreatedAt: f.CreatedAt, SeenAt: f.SeenAt, Address: f.Address, UserAgent: f.UserAgent,
		}
	}
	return list, err
}

// EndSession ends one of somebody's own sessions, or returns coord.ErrNotFound.
func (s *Service) EndSession(ctx context.Context, by store.Session, id int64) error {
	none := &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such session"}
	if id < 1 { // that would be all of them
		return none
	}
	n, err := s.revoke(ctx, by.User, by.User.Name, store.Ending{User: by.User.ID, Kind: store.Browser, ID: id})
	if err == nil && n == 0 {
		return none
	}
	return err
}

// EndOtherSessions ends somebody's sessions but the one they use, and returns how many.
func (s *Service) EndOtherSessions(ctx context.Context, by store.Session) (int, error) {
	return s.revoke(ctx, by.User, by.User.Name, store.Ending{User: by.User.ID, Kind: store.Browser, Except: by.ID})
}

func (s *Service) revoke(ctx context.Context, by store.User, target string, e store.Ending) (n int, err error) {
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		ended, err := end(ctx, u, e)
		if n = len(ended); err != nil || n == 0 {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.SessionsRevoked, Target: target, Details: map[string]any{"count": n},
		})
	})
	return n, err
}

// Token is how a program acts for somebody, as they see it.
type Token struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	Scopes     []string   `json:"scopes"`
	CreatedAt  store.Time `json:"created_at"`
	ExpiresAt  store.Time `json:"expires_at,omitzero"`   // never, when it is missing
	LastUsedAt store.Time `json:"last_used_at,omitzero"` // to the minute
}

// NewToken is a token to be made.
type NewToken struct {
	Name    string
	Scopes  []Scope
	Expires time.Duration // 0: never
}

// Tokens lists somebody's tokens, the last used first.
func (s *Service) Tokens(ctx context.Context, by store.User) ([]Token, error) {
	found, err := s.store.Sessions(ctx, by.ID, store.Token, s.o.Sessions)
	list := make([]Token, len(found))
	for i, f := range found {
		list[i] = Token{ID: f.ID, Name: f.Name, Scopes: strings.Fields(f.Scopes), CreatedAt: f.CreatedAt, ExpiresAt: f.ExpiresAt}
		if f.SeenAt != f.CreatedAt {
			list[i].LastUsedAt = f.SeenAt
		}
	}
	return list, err
}

// MakeToken makes a token and returns it with its secret, which is stored nowhere. Errors:
// coord.ErrInvalid with the field, coord.ErrConflict when there are too many, ErrSignedOut.
func (s *Service) MakeToken(ctx context.Context, by store.User, n NewToken) (made Token, secret string, err error) {
	n.Name = strings.TrimSpace(n.Name)
	scopes, err := checkScopes(by.Role, n.Scopes)
	err = errors.Join(checkLine("name", n.Name, maxTokenName), err)
	switch {
	case err != nil:
		return made, "", err
	case n.Expires < 0 || n.Expires > maxTokenLife:
		return made, "", invalid("expires_in_s", fmt.Sprintf("must be between 1 and %.0f, or 0 for never", maxTokenLife.Seconds()))
	}
	random, _ := newSecret()
	secret = TokenPrefix + random
	var id int64
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		now, err := u.LockUser(ctx, by.ID)
		if err == nil && now.Deactivated {
			err = ErrSignedOut
		}
		if err == nil {
			err = s.stillSignedIn(ctx, u)
		}
		if err != nil {
			return err
		}
		there, err := u.CountTokens(ctx, by.ID)
		if err == nil && there >= maxTokens {
			err = &store.ReasonError{Err: coord.ErrConflict, Reason: fmt.Sprintf("there are %d tokens already: revoke one first", there)}
		}
		if err != nil {
			return err
		}
		session, err := u.AddSession(ctx, store.NewSession{
			Hash: hashSecret(secret), User: now, Address: audit.ClientOf(ctx).Address,
			Name: n.Name, Scopes: scopes, Expires: n.Expires,
		})
		if err != nil {
			return err
		}
		id = session.ID
		details := map[string]any{"id": id, "name": n.Name, "scopes": scopes}
		if n.Expires != 0 {
			details["expires_in_s"] = int64(n.Expires / time.Second)
		}
		return audit.Write(ctx, u, audit.Entry{By: by, Action: audit.TokenCreated, Target: by.Name, Details: details})
	})
	if err != nil {
		return made, "", err
	}
	list, err := s.Tokens(ctx, by)
	if i := slices.IndexFunc(list, func(t Token) bool { return t.ID == id }); i >= 0 {
		made = list[i]
	}
	return made, secret, err
}

// RevokeToken ends one of somebody's own tokens, or returns coord.ErrNotFound.
func (s *Service) RevokeToken(ctx context.Context, by store.User, id int64) error {
	none := &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such token"}
	if id < 1 { // that would be all of them
		return none
	}
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		ended, err := end(ctx, u, store.Ending{User: by.ID, Kind: store.Token, ID: id})
		switch {
		case err != nil:
			return err
		case len(ended) == 0:
			return none
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by, Action: audit.TokenRevoked, Target: by.Name, Details: map[string]any{"id": id, "name": ended[0].Name},
		})
	})
}

// ChangePassword gives somebody another password for their present one, and ends their
// other sessions; tokens stay. Errors: ErrWrongCredentials, coord.ErrInvalid with the
// field, *LimitedError.
func (s *Service) ChangePassword(ctx context.Context, by store.Session, present, password string) error {
	if err := CheckPassword(password); err != nil {
		return err
	}
	if err := s.charge(ctx, by.User.Name); err != nil {
		return err
	}
	known, err := s.store.Credentials(ctx, by.User.Name)
	if err != nil {
		return signedOut(err)
	}
	match := len(present) <= maxPassword
	if match {
		match, err = s.hasher.compare(ctx, present, known.PasswordHash)
	}
	if err == nil && !match {
		err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
			return audit.Write(ctx, u, audit.Entry{By: by.User, Action: audit.SignInFailed, Target: by.User.Name})
		})
		if err == nil {
			err = &coord.InvalidError{Field: "current", Reason: "is not the present password"}
		}
	}
	if err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		now, err := u.LockCredentials(ctx, by.User.ID)
		if err == nil && (now.Deactivated || now.PasswordHash != known.PasswordHash) { // meanwhile
			err = coord.ErrConflict
		}
		if err != nil {
			return err
		}
		if err := u.SetPassword(ctx, by.User.ID, hash); err != nil {
			return err
		}
		if err := u.DropResets(ctx, by.User.ID); err != nil {
			return err
		}
		ended, err := end(ctx, u, store.Ending{User: by.User.ID, Kind: store.Browser, Except: by.ID})
		if err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			By: by.User, Action: audit.PasswordChanged, Target: by.User.Name, Details: map[string]any{"sessions_ended": len(ended)},
		})
	})
	if err == nil {
		s.forgive(ctx, by.User)
	}
	return err
}
