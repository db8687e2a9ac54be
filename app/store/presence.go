package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Presence is what was last announced of a user.
type Presence struct {
	UserID   int64  `bun:"id"`
	State    string `bun:"presence"` // online, away or offline
	LastSeen Time   `bun:"last_seen"`
}

// Presence returns that of those of the users who exist.
func (s *Store) Presence(ctx context.Context, users ...int64) ([]Presence, error) {
	if len(users) == 0 {
		return nil, nil
	}
	return query[Presence](ctx, s.read, `SELECT id, presence, last_seen FROM app_users WHERE id IN (?)`, bun.List(users))
}

// Present lists the users of whom was not announced last that they are offline.
func (s *Store) Present(ctx context.Context) ([]int64, error) {
	return query[int64](ctx, s.read, `SELECT id FROM app_users WHERE presence <> 'offline' ORDER BY id`)
}

// SetPresence changes what was last announced of a user, and to the present when they
// were last seen, if they were seen now. It returns what is stored; ErrNotFound when
// that is the state already, or there is no such user.
func (u Unit) SetPresence(ctx context.Context, user int64, state string, seen bool) (Presence, error) {
	return queryOne[Presence](ctx, u.db, `
		UPDATE app_users SET presence = ?, last_seen = CASE WHEN ? OR last_seen IS NULL THEN ? ELSE last_seen END
		WHERE id = ? AND presence <> ? RETURNING id, presence, last_seen`, state, seen, u.store.clock(0), user, state)
}

// Acquainted returns those of the users who are in a room with somebody.
func (s *Store) Acquainted(ctx context.Context, with int64, users ...int64) ([]int64, error) {
	if len(users) == 0 {
		return nil, nil
	}
	return query[int64](ctx, s.read, `SELECT DISTINCT other.user_id FROM app_members AS own
		JOIN app_members AS other ON other.room_id = own.room_id
		WHERE own.user_id = ? AND other.user_id IN (?) ORDER BY other.user_id`, with, bun.List(users))
}
