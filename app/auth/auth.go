// Package auth knows who somebody is: set-up of the first administrator,
// accounts, signing in and out, sessions.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

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

// UserTopic is the topic on which is published what concerns one user alone.
func UserTopic(id int64) string { return "user:" + strconv.FormatInt(id, 10) }

// Revoked says which session has ended.
type Revoked struct {
	Session int64 `json:"session"`
}

// Options configure a [Service]. The zero value has good defaults.
type Options struct {
	ByAccount coord.Limit // tries per account; default 10 per minute
	ByAddress coord.Limit // tries per address; default 30 per minute
	Hashing   Hashing     // default [DefaultHashing]
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
	if o.ByAccount.Rate == 0 {
		o.ByAccount = coord.Limit{Rate: 10, Per: time.Minute}
	}
	if o.ByAddress.Rate == 0 {
		o.ByAddress = coord.Limit{Rate: 30, Per: time.Minute}
	}
	if o.Hashing == (Hashing{}) {
		o.Hashing = DefaultHashing
	}
	return &Service{store: st, limiter: backend.Limiter(), log: log, o: o, hasher: newHasher(o.Hashing)}
}

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
	secret, hash := newSecret()
	return secret, s.store.AddSetupToken(ctx, hash, SetupTTL)
}

// Setup makes the first user, an administrator, and signs them in. Of several
// callers, with whatever tokens, one succeeds. Errors: ErrSetupToken,
// coord.ErrInvalid with the field, coord.ErrUnavailable.
func (s *Service) Setup(ctx context.Context, token, name, password string) (SignedIn, error) {
	tokenHash := hashSecret(token)
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
		var hash []byte
		in.Secret, hash = newSecret()
		in.Session, err = u.AddSession(ctx, user, hash)
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
		return u.DropSetupTokens(ctx)
	})
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a user named %q already", name),
		}
	}
	return user, password, err
}

// SignIn checks a password and makes a session. Every try is charged to the
// account and to the address before it is looked at; success forgives the
// account. Errors: ErrWrongCredentials, *LimitedError, coord.ErrUnavailable.
func (s *Service) SignIn(ctx context.Context, name, password, address string) (SignedIn, error) {
	account, err := s.charge(ctx, name, address)
	if err != nil {
		return SignedIn{}, err
	}
	if len(password) > maxPassword || CheckName(name) != nil { // nobody has one, and looking costs
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
	if !match {
		return SignedIn{}, ErrWrongCredentials
	}
	secret, hash := newSecret()
	session, err := s.store.AddSession(ctx, known.User, hash)
	if err != nil {
		return SignedIn{}, err
	}
	if err := s.limiter.Reset(ctx, account); err != nil {
		s.log.WarnContext(ctx, "the sign-in limit of an account was not reset", "user_id", known.ID, "error", err)
	}
	return SignedIn{Session: session, Secret: secret}, nil
}

func (s *Service) charge(ctx context.Context, name, address string) (accountKey string, err error) {
	key := store.NameKey(name)
	byAccount, byAddress := s.o.ByAccount, s.o.ByAddress
	byAccount.Key = "signin.account:" + key[:min(len(key), 4*maxName)]
	byAddress.Key = "signin.address:" + address
	decisions, err := s.limiter.AllowAll(ctx, byAccount, byAddress)
	if err != nil {
		return "", err
	}
	var wait time.Duration
	for _, d := range decisions {
		if !d.Allowed {
			wait = max(wait, d.RetryAfter)
		}
	}
	if wait > 0 {
		return "", &LimitedError{RetryAfter: wait}
	}
	return byAccount.Key, nil
}

// SignOut ends a session; its sockets on all replicas hear of it.
func (s *Service) SignOut(ctx context.Context, id int64) error {
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		user, there, err := u.EndSession(ctx, id)
		if err != nil || !there {
			return err
		}
		payload, err := json.Marshal(Revoked{Session: id})
		if err != nil {
			return err
		}
		return u.Coord.Publish(ctx, coord.NewEvent{Topic: UserTopic(user), Kind: KindRevoked, Payload: payload})
	})
}

// Authenticate returns the session of a secret, or ErrSignedOut.
func (s *Service) Authenticate(ctx context.Context, secret string) (store.Session, error) {
	if secret == "" {
		return store.Session{}, ErrSignedOut
	}
	session, err := s.store.Session(ctx, hashSecret(secret))
	return session, signedOut(err)
}

// Session returns a session that is known by its id, or ErrSignedOut.
func (s *Service) Session(ctx context.Context, id int64) (store.Session, error) {
	session, err := s.store.SessionByID(ctx, id)
	return session, signedOut(err)
}

func signedOut(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return ErrSignedOut
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
