package store

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// How long a session of a browser lasts by default.
const (
	SessionIdle     = 14 * 24 * time.Hour // after it was last used
	SessionAbsolute = 90 * 24 * time.Hour // after it was made

	sessionTouch = time.Minute // a use is written down once in this time
)

// Lifetime is how long a session of a browser lasts. The zero value has the defaults.
type Lifetime struct {
	Idle     time.Duration // after it was last used; default [SessionIdle]
	Absolute time.Duration // after it was made; default [SessionAbsolute]
}

func (l Lifetime) complete() Lifetime {
	if l.Idle == 0 {
		l.Idle = SessionIdle
	}
	if l.Absolute == 0 {
		l.Absolute = SessionAbsolute
	}
	return l
}

// SessionKind says what shows the secret of a session.
type SessionKind string

// The kinds of sessions.
const (
	Browser SessionKind = "browser" // a cookie
	Token   SessionKind = "token"   // the Authorization header of a program
)

// Session is a user who is signed in, or a program that acts for one.
type Session struct {
	ID     int64
	Kind   SessionKind
	Scopes string // of a token, with a space between them
	User   User
}

// NewSession is a session to be made.
type NewSession struct {
	Hash      []byte // of its secret
	User      User
	Address   string // where it is made
	UserAgent string

	// Of a token:
	Name    string        // makes it a token
	Scopes  string        // with a space between them
	Expires time.Duration // 0: never
}

// SessionInfo is what is shown of a session. A token has the fields behind UserAgent.
type SessionInfo struct {
	ID        int64
	CreatedAt Time
	SeenAt    Time
	Address   string
	UserAgent string
	Name      string
	Scopes    string
	ExpiresAt Time
}

// AddSession signs a user in.
func (s *Store) AddSession(ctx context.Context, n NewSession) (made Session, err error) {
	err = s.InTx(ctx, func(ctx context.Context, u Unit) error {
		made, err = u.AddSession(ctx, n)
		return err
	})
	return made, err
}

// AddSession is [Store.AddSession].
func (u Unit) AddSession(ctx context.Context, n NewSession) (Session, error) {
	kind, expires := Browser, any(nil)
	if n.Name != "" {
		kind = Token
	}
	if n.Expires != 0 {
		expires = u.store.clock(n.Expires)
	}
	// Seen as it is made, which tells that it was not used yet.
	id, err := queryOne[int64](ctx, u.db, `
		INSERT INTO app_sessions (kind, secret_hash, user_id, name, scopes, address, user_agent, expires_at, created_at, seen_at)
		SELECT ?, ?, ?, ?, ?, ?, ?, ?, t.now, t.now FROM (SELECT ? AS now) AS t RETURNING id`,
		kind, n.Hash, n.User.ID, n.Name, n.Scopes, n.Address, n.UserAgent, expires, u.store.clock(0))
	return Session{ID: id, Kind: kind, Scopes: n.Scopes, User: n.User}, err
}

type sessionRow struct {
	SessionID int64
	Kind      SessionKind
	Scopes    string
	Stale     bool // its use is to be written down
	User
}

// alive is a session that has not ended. Its arguments are those of [Store.alive].
const alive = `(s.expires_at IS NULL OR s.expires_at > ?0)
	AND (s.kind = 'token' OR s.seen_at > ?1 AND s.created_at > ?2) `

func (s *Store) alive(l Lifetime) []any {
	l = l.complete()
	return []any{s.clock(0), s.clock(-l.Idle), s.clock(-l.Absolute)}
}

const selectSession = `
	SELECT s.id AS session_id, s.kind, s.scopes,
		s.seen_at <= ?3 OR s.seen_at = s.created_at AND s.kind = 'token' AS stale, u.id, u.name, u.role
	FROM app_sessions AS s JOIN app_users AS u ON u.id = s.user_id
	WHERE u.deactivated_at IS NULL AND ` + alive

// Session returns the session of that kind and secret's hash and counts as a use of it.
// ErrNotFound when it is unknown, revoked or too old.
func (s *Store) Session(ctx context.Context, kind SessionKind, hash []byte, l Lifetime) (Session, error) {
	return s.session(ctx, l, `AND s.secret_hash = ?4 AND s.kind = ?5`, hash, kind)
}

// SessionByID is [Store.Session] for a session whose secret was shown before.
func (s *Store) SessionByID(ctx context.Context, id int64, l Lifetime) (Session, error) {
	return s.session(ctx, l, `AND s.id = ?4`, id)
}

func (s *Store) session(ctx context.Context, l Lifetime, condition string, args ...any) (Session, error) {
	args = append(append(s.alive(l), s.clock(-sessionTouch)), args...)
	row, err := queryOne[sessionRow](ctx, s.read, selectSession+condition, args...)
	if err != nil {
		return Session{}, err
	}
	if row.Stale {
		_, err = s.exec(ctx, `UPDATE app_sessions SET seen_at = ? WHERE id = ?`, s.clock(0), row.SessionID)
	}
	return Session{ID: row.SessionID, Kind: row.Kind, Scopes: row.Scopes, User: row.User}, err
}

// SessionAlive reports whether a session has not ended.
func (u Unit) SessionAlive(ctx context.Context, id int64, l Lifetime) (bool, error) {
	rows, err := query[int64](ctx, u.db, `SELECT s.id FROM app_sessions AS s WHERE `+alive+`AND s.id = ?3`, append(u.store.alive(l), id)...)
	return len(rows) > 0, err
}

// Sessions lists the sessions of that kind that a user has, the last used first.
func (s *Store) Sessions(ctx context.Context, user int64, kind SessionKind, l Lifetime) ([]SessionInfo, error) {
	return query[SessionInfo](ctx, s.read, `
		SELECT s.id, s.created_at, s.seen_at, s.address, s.user_agent, s.name, s.scopes, s.expires_at
		FROM app_sessions AS s WHERE `+alive+`AND s.user_id = ?3 AND s.kind = ?4 ORDER BY s.seen_at DESC, s.id DESC`,
		append(s.alive(l), user, kind)...)
}

// CountTokens counts the tokens of a user, those that have expired included.
func (u Unit) CountTokens(ctx context.Context, user int64) (int, error) {
	return queryOne[int](ctx, u.db, `SELECT count(*) FROM app_sessions WHERE user_id = ? AND kind = 'token'`, user)
}

// Ending are sessions of a user that end together.
type Ending struct {
	User   int64
	Kind   SessionKind // empty: of every kind
	ID     int64       // that one; 0: all …
	Except int64       // … but this one, and
	Keep   int         // but so many that were used last; 0: none
}

// Ended is a session that has ended.
type Ended struct {
	ID     int64
	UserID int64
	Kind   SessionKind
	Name   string // of a token
}

// EndSessions deletes sessions and returns them.
func (u Unit) EndSessions(ctx context.Context, e Ending) ([]Ended, error) {
	kinds := []SessionKind{e.Kind}
	if e.Kind == "" {
		kinds = []SessionKind{Browser, Token}
	}
	return query[Ended](ctx, u.db, `
		DELETE FROM app_sessions WHERE user_id = ?0 AND kind IN (?1) AND (?2 = 0 OR id = ?2) AND id <> ?3
			AND id NOT IN (SELECT id FROM app_sessions WHERE user_id = ?0 AND kind IN (?1) ORDER BY seen_at DESC, id DESC LIMIT ?4)
		RETURNING id, user_id, kind, name`, e.User, bun.List(kinds), e.ID, e.Except, e.Keep)
}

// Reap deletes a bounded number of sessions, links and set-up tokens that are too old
// and returns how many. Call it until it returns 0.
func (u Unit) Reap(ctx context.Context, l Lifetime) (int, error) {
	l, clock := l.complete(), u.store.clock
	deleted := 0
	for _, d := range []struct {
		text string
		args []any
	}{
		{
			`DELETE FROM app_sessions WHERE id IN (SELECT id FROM app_sessions WHERE kind = 'browser' AND (seen_at <= ? OR created_at <= ?) LIMIT 1000)`,
			[]any{clock(-l.Idle), clock(-l.Absolute)},
		},
		{`DELETE FROM app_sessions WHERE id IN (SELECT id FROM app_sessions WHERE expires_at <= ? LIMIT 1000)`, []any{clock(0)}},
		{`DELETE FROM app_links WHERE id IN (SELECT id FROM app_links WHERE expires_at <= ? LIMIT 1000)`, []any{clock(0)}},
		{`DELETE FROM app_setup_tokens WHERE expires_at <= ?`, []any{clock(0)}},
	} {
		n, err := exec(ctx, u.db, d.text, d.args...)
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
