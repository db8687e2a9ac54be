// Package auth knows who somebody is and what they may do: set-up of the first
// administrator, accounts, signing in and out, sessions and tokens, links that let
// somebody in.
//
// What changes an account is one unit of work with what follows from it: sessions end,
// their connections on all replicas hear of it, and the audit log says who did it.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

var (
	// ErrWrongCredentials means that the name is unknown or the password another
	// one.
	ErrWrongCredentials = errors.New("the name or the password is wrong")
	// ErrSignedOut means that there is no such session, or that it has ended.
	ErrSignedOut = errors.New("not signed in")
	// ErrSetupToken means that the set-up token is unknown, used or expired, or
	// that set-up was done already.
	ErrSetupToken = errors.New("the set-up link is not valid any more; start the program again for a new one")
	// ErrLink means that a link is unknown, used, withdrawn or expired, or for something
	// else.
	ErrLink = errors.New("the link is not valid any more; ask for a new one")
)

// LimitedError says that there were too many attempts.
type LimitedError struct {
	RetryAfter time.Duration
}

func (e *LimitedError) Error() string { return "too many attempts, try again later" }

// SetupTTL is how long a set-up token is good.
const SetupTTL = 24 * time.Hour

// KindRevoked is the kind of the event that ends a session, on the [UserTopic]
// of its user. Its payload is a [Revoked].
const KindRevoked = "session.revoked"

// KindChanged is the kind of the event that tells that somebody may do other things by
// now, on the [UserTopic] of that person: their connections are to begin anew.
const KindChanged = "account.changed"

// UserTopic is the topic on which is published what concerns one user alone.
func UserTopic(id int64) string { return "user:" + strconv.FormatInt(id, 10) }

// Revoked says which session has ended.
type Revoked struct {
	Session int64 `json:"session"`
}

// Options configure a [Service]. Zero fields have the defaults named.
type Options struct {
	ByAccount coord.Limit // tries of passwords per account; default 10 per minute
	ByAddress coord.Limit // and per address; default 30 per minute
	Links     coord.Limit // tries of links per address; default 30 per minute
	Hashing   Hashing     // default [DefaultHashing]

	// Sessions is how long one lasts.
	Sessions store.Lifetime

	// Tokens signs links. Nil: they are not signed.
	Tokens Signer

	// Join makes somebody a member of a room to which they were invited, in the unit of
	// work that makes their account. Nil: nobody is invited to rooms.
	Join func(ctx context.Context, u store.Unit, user store.User, room int64) error
}

// Service is safe for concurrent use.
type Service struct {
	store   *store.Store
	limiter coord.Limiter
	log     *slog.Logger
	o       Options
	hasher  *hasher
}

// New returns the service.
func New(st *store.Store, backend coord.Backend, o Options, log *slog.Logger) *Service {
	for limit, otherwise := range map[*coord.Limit]coord.Limit{
		&o.ByAccount: {Rate: 10, Per: time.Minute},
		&o.ByAddress: {Rate: 30, Per: time.Minute},
		&o.Links:     {Rate: 30, Per: time.Minute},
	} {
		if limit.Rate == 0 {
			*limit = otherwise
		}
	}
	if o.Hashing == (Hashing{}) {
		o.Hashing = DefaultHashing
	}
	if o.Sessions.Idle == 0 {
		o.Sessions.Idle = store.SessionIdle
	}
	if o.Sessions.Absolute == 0 {
		o.Sessions.Absolute = store.SessionAbsolute
	}
	return &Service{store: st, limiter: backend.Limiter(), log: log, o: o, hasher: newHasher(o.Hashing)}
}

// SessionLength is how long a session of a browser lasts at most.
func (s *Service) SessionLength() time.Duration { return s.o.Sessions.Absolute }

// SignedIn is a new session and the secret that the client shows for it.
type SignedIn struct {
	store.Session
	Secret string
}

// SetupNeeded reports whether there is no user yet.
func (s *Service) SetupNeeded(ctx context.Context) (bool, error) {
	has, err := s.store.HasUsers(ctx)
	return err == nil && !has, err
}

// SetupToken returns a new token for [Service.Setup], or "" when there is a user
// already. Each replica that starts may have one: they are good for [SetupTTL],
// and all void as soon as there is a user.
func (s *Service) SetupToken(ctx context.Context) (string, error) {
	needed, err := s.SetupNeeded(ctx)
	if err != nil || !needed {
		return "", err
	}
	secret, hash, err := s.newLinkSecret(setupLink)
	if err != nil {
		return "", err
	}
	return secret, s.store.AddSetupToken(ctx, hash, SetupTTL)
}

// Setup makes the first user, an administrator, and signs them in. Of several
// callers, with whatever tokens, one succeeds. Errors: ErrSetupToken,
// coord.ErrInvalid with the field, *LimitedError, coord.ErrUnavailable.
func (s *Service) Setup(ctx context.Context, token, name, password string) (SignedIn, error) {
	tokenHash := hashSecret(token)
	if err := s.checkLinkSecret(ctx, setupLink, token); err != nil {
		if errors.Is(err, ErrLink) {
			err = ErrSetupToken
		}
		return SignedIn{}, err
	}
	if err := s.chargeLink(ctx); err != nil {
		return SignedIn{}, err
	}
	good, err := s.store.SetupTokenGood(ctx, tokenHash)
	if err == nil && !good {
		err = ErrSetupToken
	}
	if err == nil {
		err = errors.Join(CheckName(name), CheckPassword(password))
	}
	if err != nil {
		return SignedIn{}, err
	}
	passwordHash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return SignedIn{}, err
	}
	var in SignedIn
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if has, err := u.HasUsers(ctx); err != nil || has {
			return errors.Join(err, coord.ErrConflict)
		}
		// Racers queue for the founder's place before they hold anything else that
		// the winner needs.
		user, err := u.AddUser(ctx, store.NewUser{
			Name: name, Role: store.Admin, PasswordHash: passwordHash, Founder: true,
		})
		if err != nil {
			return err
		}
		if err := u.UseSetupToken(ctx, tokenHash); err != nil {
			return err
		}
		if err := u.DropSetupTokens(ctx); err != nil {
			return err
		}
		if err := audit.Write(ctx, u, audit.Entry{By: user, Action: audit.SetUp, Target: user.Name}); err != nil {
			return err
		}
		in, err = signIn(ctx, u, user)
		return err
	})
	if errors.Is(err, coord.ErrNotFound) || errors.Is(err, coord.ErrConflict) {
		err = ErrSetupToken
	}
	if err != nil {
		return SignedIn{}, err
	}
	return in, nil
}

// AddUser makes an account. An empty password is replaced by a random one; the
// password is returned. Errors: coord.ErrInvalid with the field,
// coord.ErrConflict when the name is taken.
func (s *Service) AddUser(ctx context.Context, name, password string, role store.Role) (store.User, string, error) {
	if password == "" {
		password, _ = newSecret()
	}
	if err := errors.Join(CheckName(name), CheckPassword(password)); err != nil {
		return store.User{}, "", err
	}
	hash, err := s.hasher.hash(ctx, password)
	if err != nil {
		return store.User{}, "", err
	}
	var user store.User
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		user, err = u.AddUser(ctx, store.NewUser{Name: name, Role: role, PasswordHash: hash})
		if err != nil {
			return err
		}
		if err := u.DropSetupTokens(ctx); err != nil {
			return err
		}
		return audit.Write(ctx, u, audit.Entry{
			Action: audit.UserCreated, Target: user.Name, Details: map[string]any{"role": role},
		})
	})
	return user, password, nameTaken(err, name)
}

// nameTaken says of a conflict what it is about.
func nameTaken(err error, name string) error {
	if errors.Is(err, coord.ErrConflict) {
		return &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a user named %q already", name),
		}
	}
	return err
}

// newSecret returns 256 random bits and the hash under which they are stored.
func newSecret() (secret string, hash []byte) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	secret = base64.RawURLEncoding.EncodeToString(b[:])
	return secret, hashSecret(secret)
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
