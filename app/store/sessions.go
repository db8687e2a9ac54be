package store

import (
	"context"
	"time"
)

// How long a session lasts.
const (
	SessionIdle     = 14 * 24 * time.Hour // after it was last used
	SessionAbsolute = 90 * 24 * time.Hour // after it was made

	sessionTouch = time.Hour // a use is written down once in this time
)

// Session is a user who is signed in.
type Session struct {
	ID   int64
	User User
}

// AddSession signs a user in under the hash of a secret.
func (s *Store) AddSession(ctx context.Context, user User, hash []byte) (made Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context, u Unit) error {
		made, err = u.AddSession(ctx, user, hash)
		return err
	})
	return made, err
}

// AddSession is [Store.AddSession].
func (u Unit) AddSession(ctx context.Context, user User, hash []byte) (Session, error) {
	id, err := queryOne[int64](ctx, u.db, `INSERT INTO app_sessions (secret_hash, user_id, created_at, seen_at)
		VALUES (?, ?, ?, ?) RETURNING id`, hash, user.ID, u.store.clock(0), u.store.clock(0))
	return Session{ID: id, User: user}, err
}

type sessionRow struct {
	SessionID int64
	Stale     bool // its use is to be written down
	User
}

const selectSession = `
	SELECT s.id AS session_id, s.seen_at < ? AS stale, u.id, u.name, u.role
	FROM app_sessions AS s JOIN app_users AS u ON u.id = s.user_id
	WHERE s.seen_at > ? AND s.created_at > ? AND `

// Session returns the session of that secret's hash and counts as a use of it.
// ErrNotFound when it is unknown, revoked or too old.
func (s *Store) Session(ctx context.Context, hash []byte) (Session, error) {
	return s.session(ctx, selectSession+`s.secret_hash = ?`, hash)
}

// SessionByID is [Store.Session] for a session whose secret was shown before.
func (s *Store) SessionByID(ctx context.Context, id int64) (Session, error) {
	return s.session(ctx, selectSession+`s.id = ?`, id)
}

func (s *Store) session(ctx context.Context, text string, key any) (Session, error) {
	row, err := queryOne[sessionRow](ctx, s.read, text,
		s.clock(-sessionTouch), s.clock(-SessionIdle), s.clock(-SessionAbsolute), key)
	if err != nil {
		return Session{}, err
	}
	if row.Stale {
		_, err = s.exec(ctx, `UPDATE app_sessions SET seen_at = ? WHERE id = ?`, s.clock(0), row.SessionID)
	}
	return Session{ID: row.SessionID, User: row.User}, err
}

// EndSession deletes a session. It reports whether there was one, and whose.
func (u Unit) EndSession(ctx context.Context, id int64) (user int64, there bool, err error) {
	type owner struct {
		UserID int64 `bun:"user_id"`
	}
	owners, err := query[owner](ctx, u.db, `DELETE FROM app_sessions WHERE id = ? RETURNING user_id`, id)
	if err != nil || len(owners) == 0 {
		return 0, false, err
	}
	return owners[0].UserID, true, nil
}

// Reap deletes a bounded number of sessions and set-up tokens that are too old
// and returns how many. Call it until it returns 0.
func (s *Store) Reap(ctx context.Context) (int, error) {
	sessions, err := s.exec(ctx, `DELETE FROM app_sessions WHERE id IN (
		SELECT id FROM app_sessions WHERE seen_at <= ? OR created_at <= ? LIMIT 1000)`,
		s.clock(-SessionIdle), s.clock(-SessionAbsolute))
	if err != nil {
		return 0, err
	}
	tokens, err := s.exec(ctx, `DELETE FROM app_setup_tokens WHERE expires_at <= ?`, s.clock(0))
	return sessions + tokens, err
}
