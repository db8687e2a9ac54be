package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// RoomKind says who may know of a room.
type RoomKind string

// The kinds of rooms.
const (
	Public  RoomKind = "public"  // everybody, of guests its members
	Private RoomKind = "private" // its members
	Direct  RoomKind = "direct"  // the two people who are its members for good
)

// RoomRole is what a member of a room may do there.
type RoomRole string

// The roles in a room.
const (
	RoomOwner  RoomRole = "owner"
	RoomMember RoomRole = "member"
)

// Room is a place where messages are.
type Room struct {
	ID          int64    `json:"id"`
	Kind        RoomKind `json:"kind"`
	Name        string   `json:"name"` // unique among public ones; a direct one has none of its own
	Description string   `json:"description"`
	CreatedAt   Time     `json:"created_at"`
}

// MyRoom is a room as one person sees it. The name of a direct one is that of the other
// person.
type MyRoom struct {
	Room
	UserID   int64    `json:"user_id,omitzero"` // of a direct one: the other person
	Member   RoomRole `json:"member"`           // empty: no member
	LastRead int64    `json:"last_read"`        // the message up to which it is read; 0: none
	Unread   int      `json:"unread"`           // messages of others behind that, at most MaxUnread; 0 for who is no member
}

// RoomPerson is a member of a room.
type RoomPerson struct {
	UserID   int64    `json:"user_id"`
	Name     string   `json:"name"`
	Role     RoomRole `json:"role"`
	JoinedAt Time     `json:"joined_at"`
}

// MaxUnread is how far what is unread is counted.
const MaxUnread = 100

// maxBehind is how many messages are looked at for that.
const maxBehind = 1000

// The arguments of the statements below are a person's id, whether it is no guest, and
// what the condition at their end needs.
const (
	myRoom = `
		SELECT r.id, r.kind, COALESCE(o.name, r.name) AS name, r.description, r.created_at,
			COALESCE(o.id, 0) AS user_id, COALESCE(m.role, '') AS member`
	fromRooms = `
		FROM app_rooms AS r
		LEFT JOIN app_members AS m ON m.room_id = r.id AND m.user_id = ?0
		LEFT JOIN app_members AS p ON r.kind = 'direct' AND p.room_id = r.id AND p.user_id <> ?0
		LEFT JOIN app_users AS o ON o.id = p.user_id `
	mayRead = `(m.user_id IS NOT NULL OR r.kind = 'public' AND ?1) `
)

// withUnread is myRoom with what is read and what is not.
var withUnread = fmt.Sprintf(`%s, COALESCE(d.message_id, 0) AS last_read,
	CASE WHEN m.user_id IS NULL THEN 0 ELSE (
		SELECT count(*) FROM (
			SELECT 1 FROM (
				SELECT user_id, deleted_at FROM app_messages
				WHERE room_id = r.id AND id > COALESCE(d.message_id, 0) ORDER BY id LIMIT %d
			) AS behind WHERE (user_id IS NULL OR user_id <> ?0) AND deleted_at IS NULL LIMIT %d
		) AS unread
	) END AS unread
	%s LEFT JOIN app_reads AS d ON d.user_id = ?0 AND d.room_id = r.id `, myRoom, maxBehind, MaxUnread, fromRooms)

var myRooms = withUnread + `WHERE r.id IN (
	SELECT room_id FROM app_members WHERE user_id = ?0 UNION SELECT id FROM app_rooms WHERE kind = 'public' AND ?1)`

// MyRooms lists the rooms that a person may read, by name.
func (s *Store) MyRooms(ctx context.Context, user User) ([]MyRoom, error) {
	list, err := query[MyRoom](ctx, s.read, myRooms, user.ID, user.Role != Guest)
	slices.SortFunc(list, func(a, b MyRoom) int {
		return strings.Compare(NameKey(a.Name)+"\x00"+fmt.Sprint(a.ID), NameKey(b.Name)+"\x00"+fmt.Sprint(b.ID))
	})
	return list, err
}

// MyRoom returns a room that a person may read, or ErrNotFound.
func (s *Store) MyRoom(ctx context.Context, user User, room int64) (MyRoom, error) {
	return queryOne[MyRoom](ctx, s.read, withUnread+`WHERE r.id = ?2 AND `+mayRead, user.ID, user.Role != Guest, room)
}

// MyRoom is [Store.MyRoom] without what is read and what is not.
func (u Unit) MyRoom(ctx context.Context, user User, room int64) (MyRoom, error) {
	return queryOne[MyRoom](ctx, u.db, myRoom+fromRooms+`WHERE r.id = ?2 AND `+mayRead, user.ID, user.Role != Guest, room)
}

// Readable returns those of the rooms that a person may read, each once, without what is
// read and what is not.
func (s *Store) Readable(ctx context.Context, user User, rooms ...int64) ([]MyRoom, error) {
	if len(rooms) == 0 {
		return nil, nil
	}
	return query[MyRoom](ctx, s.read, myRoom+fromRooms+`WHERE r.id IN (?2) AND `+mayRead,
		user.ID, user.Role != Guest, bun.List(rooms))
}

// AddRoom makes a public or private room. ErrConflict when the name of a public one is
// taken.
func (u Unit) AddRoom(ctx context.Context, kind RoomKind, name, description string, by int64) (Room, error) {
	key := NameKey(name)
	if kind == Private {
		key = " " + rand.Text() // which is no name's, those have no space in front
	}
	room, err := u.addRoom(ctx, kind, key, name, description, by)
	return room, missingIs(err, coord.ErrConflict)
}

// AddDirectRoom makes the direct room of two people, with both as members. It reports
// false when there is one, which it returns.
func (u Unit) AddDirectRoom(ctx context.Context, by, with int64) (room int64, made bool, err error) {
	key := fmt.Sprintf(" %d %d", min(by, with), max(by, with))
	r, err := u.addRoom(ctx, Direct, key, "", "", by)
	if errors.Is(err, coord.ErrNotFound) {
		room, err = queryOne[int64](ctx, u.db, `SELECT id FROM app_rooms WHERE key = ?`, key)
		return room, false, err
	}
	for _, user := range []int64{by, with} {
		if err == nil {
			_, err = u.AddMember(ctx, r.ID, user, RoomMember)
		}
	}
	return r.ID, err == nil, err
}

func (u Unit) addRoom(ctx context.Context, kind RoomKind, key, name, description string, by int64) (Room, error) {
	return queryOne[Room](ctx, u.db, `
		INSERT INTO app_rooms (kind, key, name, description, created_by, created_at) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (key) DO NOTHING RETURNING id, kind, name, description, created_at`,
		kind, key, name, description, by, u.store.clock(0))
}

// LockRoom keeps others from changing a room and its members until the unit ends. It may
// be read and posted in. ErrNotFound when there is no such room.
func (u Unit) LockRoom(ctx context.Context, room int64) error {
	_, err := queryOne[int64](ctx, u.db, `UPDATE app_rooms SET kind = kind WHERE id = ? RETURNING id`, room)
	return err
}

// DescribeRoom changes what a room is about.
func (u Unit) DescribeRoom(ctx context.Context, room int64, description string) error {
	_, err := exec(ctx, u.db, `UPDATE app_rooms SET description = ? WHERE id = ?`, description, room)
	return err
}

const selectMember = `
	SELECT m.user_id, u.name, m.role, m.joined_at FROM app_members AS m JOIN app_users AS u ON u.id = m.user_id
	WHERE m.room_id = ? `

// Members lists the members of a room by name.
func (s *Store) Members(ctx context.Context, room int64) ([]RoomPerson, error) {
	return query[RoomPerson](ctx, s.read, selectMember+`ORDER BY u.name_key`, room)
}

// Member returns a member of a room, or ErrNotFound.
func (u Unit) Member(ctx context.Context, room, user int64) (RoomPerson, error) {
	return queryOne[RoomPerson](ctx, u.db, selectMember+`AND m.user_id = ?`, room, user)
}

// AddMember makes a person a member of a room, for whom everything there is read so far.
// It reports false, and changes nothing, for who is one.
func (u Unit) AddMember(ctx context.Context, room, user int64, role RoomRole) (added bool, err error) {
	n, err := exec(ctx, u.db, `INSERT INTO app_members (room_id, user_id, role, joined_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (room_id, user_id) DO NOTHING`, room, user, role, u.store.clock(0))
	if err != nil || n == 0 {
		return false, err
	}
	_, err = u.MarkRead(ctx, room, user, maxID)
	return true, err
}

// SetMemberRole gives a member of a room another role.
func (u Unit) SetMemberRole(ctx context.Context, room, user int64, role RoomRole) error {
	_, err := exec(ctx, u.db, `UPDATE app_members SET role = ? WHERE room_id = ? AND user_id = ?`, role, room, user)
	return err
}

// RemoveMember takes a person out of a room.
func (u Unit) RemoveMember(ctx context.Context, room, user int64) error {
	_, err := exec(ctx, u.db, `DELETE FROM app_members WHERE room_id = ? AND user_id = ?`, room, user)
	return err
}

// CountMembers counts the members of a room, and those of them who own it.
func (u Unit) CountMembers(ctx context.Context, room int64) (members, owners int, err error) {
	n, err := queryOne[struct{ Members, Owners int }](ctx, u.db, `
		SELECT count(*) AS members, count(CASE WHEN role = 'owner' THEN 1 END) AS owners
		FROM app_members WHERE room_id = ?`, room)
	return n.Members, n.Owners, err
}
