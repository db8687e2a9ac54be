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
	ID          int64  `json:"id"`
	Name        string `json:"name"`
	Role        Role   `json:"role"`
	Deactivated bool   `json:"deactivated,omitzero"` // can't sign in
}

// Person is a user as administrators see them.
type Person struct {
	User
	CreatedAt Time `json:"created_at"`
	LastSeen  Time `json:"last_seen,omitzero"` // connected
	Sessions  int  `json:"sessions"`           // of browsers, those that are too old included
	Tokens    int  `json:"tokens"`             // likewise
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

const selectUser = `SELECT id, name, role, deactivated_at IS NOT NULL AS deactivated FROM app_users `

// Credentials returns the active user of that name, or ErrNotFound.
func (s *Store) Credentials(ctx context.Context, name string) (Credentials, error) {
	return queryOne[Credentials](ctx, s.read,
		`SELECT id, name, role, password_hash FROM app_users WHERE name_key = ? AND deactivated_at IS NULL`, NameKey(name))
}

// Users lists the active users by name.
func (s *Store) Users(ctx context.Context) ([]User, error) {
	return query[User](ctx, s.read, selectUser+`WHERE deactivated_at IS NULL ORDER BY name_key`)
}

// UserByName returns the user of that name, active or not, or ErrNotFound.
func (s *Store) UserByName(ctx context.Context, name string) (User, error) {
	return queryOne[User](ctx, s.read, selectUser+`WHERE name_key = ?`, NameKey(name))
}

const selectPerson = `
	SELECT u.id, u.name, u.role, u.deactivated_at IS NOT NULL AS deactivated, u.created_at, u.last_seen,
		(SELECT count(*) FROM app_sessions AS s WHERE s.user_id = u.id AND s.kind = 'browser') AS sessions,
		(SELECT count(*) FROM app_sessions AS s WHERE s.user_id = u.id AND s.kind = 'token') AS tokens
	FROM app_users AS u `

// People lists all users by name.
func (s *Store) People(ctx context.Context) ([]Person, error) {
	return query[Person](ctx, s.read, selectPerson+`ORDER BY u.name_key`)
}

// Person returns a user, or ErrNotFound.
func (s *Store) Person(ctx context.Context, id int64) (Person, error) {
	return queryOne[Person](ctx, s.read, selectPerson+`WHERE u.id = ?`, id)
}

// User returns a user, or ErrNotFound.
func (u Unit) User(ctx context.Context, id int64) (User, error) {
	return queryOne[User](ctx, u.db, selectUser+`WHERE id = ?`, id)
}

// LockUser is [Unit.User] and keeps others from changing the user until the unit ends.
func (u Unit) LockUser(ctx context.Context, id int64) (User, error) {
	return queryOne[User](ctx, u.db, `UPDATE app_users SET role = role WHERE id = ?
		RETURNING id, name, role, deactivated_at IS NOT NULL AS deactivated`, id)
}

// LockCredentials is [Unit.LockUser] with what a password is compared with.
func (u Unit) LockCredentials(ctx context.Context, id int64) (Credentials, error) {
	return queryOne[Credentials](ctx, u.db, `UPDATE app_users SET role = role WHERE id = ?
		RETURNING id, name, role, deactivated_at IS NOT NULL AS deactivated, password_hash`, id)
}

// LockAdmins lets no other unit of work change who is an administrator until this one
// ends. It comes before whatever is read to decide that.
func (u Unit) LockAdmins(ctx context.Context) error {
	_, err := exec(ctx, u.db, `UPDATE app_locks SET name = name WHERE name = 'admins'`)
	return err
}

// CountAdmins counts the administrators who are active.
func (u Unit) CountAdmins(ctx context.Context) (int, error) {
	return queryOne[int](ctx, u.db, `SELECT count(*) FROM app_users WHERE role = 'admin' AND deactivated_at IS NULL`)
}

// SetRole gives a user another role.
func (u Unit) SetRole(ctx context.Context, user int64, role Role) error {
	_, err := exec(ctx, u.db, `UPDATE app_users SET role = ? WHERE id = ?`, role, user)
	return err
}

// SetActive deactivates a user, or lets them sign in again.
func (u Unit) SetActive(ctx context.Context, user int64, active bool) error {
	at := any(u.store.clock(0))
	if active {
		at = nil
	}
	_, err := exec(ctx, u.db, `UPDATE app_users SET deactivated_at = ? WHERE id = ?`, at, user)
	return err
}

// SetPassword gives a user another password.
func (u Unit) SetPassword(ctx context.Context, user int64, hash string) error {
	_, err := exec(ctx, u.db, `UPDATE app_users SET password_hash = ? WHERE id = ?`, hash, user)
	return err
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
