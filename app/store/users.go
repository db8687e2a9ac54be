package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// Role is what a user may do.
type Role string

// The roles.
const (
	Admin  Role = "admin"
	Member Role = "member"
	Guest  Role = "guest" // sees nothing but the rooms that it is a member of
)

// User is a person with an account.
type User struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	Role Role   `json:"role"`
}

// NewUser is an account to be made.
type NewUser struct {
	Name         string
	Role         Role
	PasswordHash string
	Founder      bool // by the set-up link; there can be only one
}

// Credentials are a user and what a password is compared with.
type Credentials struct {
	User
	PasswordHash string
}

// NameKey is a name as it is compared: two that differ in case or in how many
// spaces there are only are one.
func NameKey(name string) string {
	// By way of upper case, which letters such as σ and ς share.
	return strings.ToLower(strings.ToUpper(strings.Join(strings.Fields(name), " ")))
}

// HasUsers reports whether there is any user.
func (s *Store) HasUsers(ctx context.Context) (bool, error) {
	return hasUsers(ctx, s.read)
}

// HasUsers is [Store.HasUsers].
func (u Unit) HasUsers(ctx context.Context) (bool, error) { return hasUsers(ctx, u.db) }

func hasUsers(ctx context.Context, db bun.IDB) (bool, error) {
	ids, err := query[int64](ctx, db, `SELECT id FROM app_users LIMIT 1`)
	return len(ids) > 0, err
}

// Credentials returns the user of that name, or ErrNotFound.
func (s *Store) Credentials(ctx context.Context, name string) (Credentials, error) {
	return queryOne[Credentials](ctx, s.read,
		`SELECT id, name, role, password_hash FROM app_users WHERE name_key = ?`, NameKey(name))
}

// Users lists all users by name.
func (s *Store) Users(ctx context.Context) ([]User, error) {
	return query[User](ctx, s.read, `SELECT id, name, role FROM app_users ORDER BY name_key`)
}

// User returns a user, or ErrNotFound.
func (u Unit) User(ctx context.Context, id int64) (User, error) {
	return queryOne[User](ctx, u.db, `SELECT id, name, role FROM app_users WHERE id = ?`, id)
}

// AddUser makes an account. ErrConflict when the name, or the place of the
// founder, is taken.
func (u Unit) AddUser(ctx context.Context, n NewUser) (User, error) {
	var founder any
	if n.Founder {
		founder = 1
	}
	user, err := queryOne[User](ctx, u.db, `
		INSERT INTO app_users (name, name_key, role, password_hash, founder, created_at)
		VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id, name, role`,
		strings.TrimSpace(n.Name), NameKey(n.Name), n.Role, n.PasswordHash, founder, u.store.clock(0))
	return user, missingIs(err, coord.ErrConflict)
}

// AddSetupToken stores the hash of a token that is good for ttl.
func (s *Store) AddSetupToken(ctx context.Context, hash []byte, ttl time.Duration) error {
	_, err := s.exec(ctx, `INSERT INTO app_setup_tokens (token_hash, expires_at) VALUES (?, ?)`,
		hash, s.clock(ttl))
	return err
}

// SetupTokenGood reports whether a set-up token is known and not expired.
func (s *Store) SetupTokenGood(ctx context.Context, hash []byte) (bool, error) {
	rows, err := query[int](ctx, s.read,
		`SELECT 1 FROM app_setup_tokens WHERE token_hash = ? AND expires_at > ?`, hash, s.clock(0))
	return len(rows) > 0, err
}

// UseSetupToken burns a set-up token; ErrNotFound when it is unknown, used or
// expired.
func (u Unit) UseSetupToken(ctx context.Context, hash []byte) error {
	n, err := exec(ctx, u.db,
		`DELETE FROM app_setup_tokens WHERE token_hash = ? AND expires_at > ?`, hash, u.store.clock(0))
	if err == nil && n == 0 {
		err = coord.ErrNotFound
	}
	return err
}

// DropSetupTokens voids all set-up tokens.
func (u Unit) DropSetupTokens(ctx context.Context) error {
	_, err := exec(ctx, u.db, `DELETE FROM app_setup_tokens`)
	return err
}

// missingIs gives "no row" the meaning that it has in a statement.
func missingIs(err, meaning error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return meaning
	}
	return err
}
