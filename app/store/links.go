package store

import (
	"context"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// LinkKind is what a link does for who opens it.
type LinkKind string

// The kinds of links.
const (
	Invitation LinkKind = "invitation" // makes an account
	Reset      LinkKind = "reset"      // gives an account another password
)

// Link does something once for who knows its secret.
type Link struct {
	ID        int64    `json:"id"`
	Kind      LinkKind `json:"-"`
	Role      Role     `json:"role"`             // of an invitation
	RoomID    int64    `json:"room_id,omitzero"` // of an invitation, into which it leads
	Room      string   `json:"room,omitzero"`    // its name
	UserID    int64    `json:"-"`                // of a reset
	User      string   `json:"-"`                // their name
	ByID      int64    `json:"by_id,omitzero"`   // who made it; 0: at the command line
	By        string   `json:"by,omitzero"`
	CreatedAt Time     `json:"created_at"`
	ExpiresAt Time     `json:"expires_at"`
}

// NewLink is a link to be made. A reset replaces an earlier one of the same user.
type NewLink struct {
	Kind   LinkKind
	Hash   []byte // of its secret
	Role   Role
	RoomID int64
	UserID int64
	ByID   int64
	TTL    time.Duration
}

const selectLink = `
	SELECT l.id, l.kind, COALESCE(l.role, '') AS role, COALESCE(l.room_id, 0) AS room_id, COALESCE(r.name, '') AS room,
		COALESCE(l.user_id, 0) AS user_id, COALESCE(u.name, '') AS "user", COALESCE(l.created_by, 0) AS by_id,
		COALESCE(b.name, '') AS by, l.created_at, l.expires_at
	FROM app_links AS l
	LEFT JOIN app_rooms AS r ON r.id = l.room_id
	LEFT JOIN app_users AS u ON u.id = l.user_id
	LEFT JOIN app_users AS b ON b.id = l.created_by
	WHERE l.expires_at > ? AND `

// AddLink makes a link.
func (u Unit) AddLink(ctx context.Context, n NewLink) (Link, error) {
	if n.Kind == Reset {
		if _, err := exec(ctx, u.db, `DELETE FROM app_links WHERE kind = 'reset' AND user_id = ?`, n.UserID); err != nil {
			return Link{}, err
		}
	}
	id, err := queryOne[int64](ctx, u.db, `
		INSERT INTO app_links (kind, secret_hash, role, room_id, user_id, created_by, created_at, expires_at)
		VALUES (?, ?, NULLIF(?, ''), NULLIF(?, 0), NULLIF(?, 0), NULLIF(?, 0), ?, ?) RETURNING id`,
		n.Kind, n.Hash, n.Role, n.RoomID, n.UserID, n.ByID, u.store.clock(0), u.store.clock(n.TTL))
	if err != nil {
		return Link{}, err
	}
	return queryOne[Link](ctx, u.db, selectLink+`l.id = ?`, u.store.clock(0), id)
}

// Link returns the link of that secret's hash, or ErrNotFound when it is unknown, used or
// expired.
func (s *Store) Link(ctx context.Context, hash []byte) (Link, error) {
	return queryOne[Link](ctx, s.read, selectLink+`l.secret_hash = ?`, s.clock(0), hash)
}

// Invitations lists the invitations that are good, the newest first.
func (s *Store) Invitations(ctx context.Context) ([]Link, error) {
	return query[Link](ctx, s.read, selectLink+`l.kind = 'invitation' ORDER BY l.id DESC`, s.clock(0))
}

// UseLink burns a link, of whom one succeeds. ErrNotFound when it is unknown, used or
// expired.
func (u Unit) UseLink(ctx context.Context, id int64) error {
	n, err := exec(ctx, u.db, `DELETE FROM app_links WHERE id = ? AND expires_at > ?`, id, u.store.clock(0))
	if err == nil && n == 0 {
		err = coord.ErrNotFound
	}
	return err
}

// Withdraw deletes an invitation, or returns ErrNotFound.
func (u Unit) Withdraw(ctx context.Context, id int64) (Role, error) {
	return queryOne[Role](ctx, u.db, `DELETE FROM app_links WHERE id = ? AND kind = 'invitation' RETURNING role`, id)
}

// DropLinks voids the links that a user has made, and those that are for them.
func (u Unit) DropLinks(ctx context.Context, user int64) error {
	_, err := exec(ctx, u.db, `DELETE FROM app_links WHERE created_by = ?0 OR user_id = ?0`, user)
	return err
}

// DropResets voids the link for another password that a user may have been given.
func (u Unit) DropResets(ctx context.Context, user int64) error {
	_, err := exec(ctx, u.db, `DELETE FROM app_links WHERE kind = 'reset' AND user_id = ?`, user)
	return err
}
