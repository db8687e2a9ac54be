package store

import (
	"context"
	"errors"
	"slices"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// Room is a place where messages are.
type Room struct {
	ID        int64  `json:"id"`
	Name      string `json:"name"`
	CreatedAt Time   `json:"created_at"`
}

// Message is what a user, or a task, said in a room.
type Message struct {
	ID        int64  `json:"id"`
	RoomID    int64  `json:"room_id"`
	UserID    int64  `json:"user_id"` // 0: a task
	Author    string `json:"author"`  // the name of the user or the task
	Text      string `json:"text"`
	ClientID  string `json:"client_id"` // unique per user, chosen by the sender
	CreatedAt Time   `json:"created_at"`
}

// Rooms lists all rooms by name.
func (s *Store) Rooms(ctx context.Context) ([]Room, error) {
	return query[Room](ctx, s.read, `SELECT id, name, created_at FROM app_rooms ORDER BY name_key`)
}

// RoomIDs returns those of the ids that belong to a room.
func (s *Store) RoomIDs(ctx context.Context, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return query[int64](ctx, s.read, `SELECT id FROM app_rooms WHERE id IN (?)`, bun.List(ids))
}

// AddRoom makes a room. ErrConflict when the name is taken.
func (u Unit) AddRoom(ctx context.Context, name string, by int64) (Room, error) {
	room, err := queryOne[Room](ctx, u.db, `
		INSERT INTO app_rooms (name, name_key, created_by, created_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (name_key) DO NOTHING RETURNING id, name, created_at`,
		name, NameKey(name), by, u.store.clock(0))
	return room, missingIs(err, coord.ErrConflict)
}

const selectMessage = `
	SELECT m.id, m.room_id, COALESCE(m.user_id, 0) AS user_id, COALESCE(u.name, m.task_name) AS author,
		m.text, m.client_id, m.created_at
	FROM app_messages AS m LEFT JOIN app_users AS u ON u.id = m.user_id WHERE `

// Messages returns the last messages of a room, the oldest first, before the
// message of that id when it is not 0. more says that there are older ones.
func (s *Store) Messages(ctx context.Context, room, before int64, limit int) (list []Message, more bool, err error) {
	bound := bun.SafeQuery("")
	if before > 0 {
		bound = bun.SafeQuery("AND m.id < ?", before)
	}
	list, err = query[Message](ctx, s.read, selectMessage+`m.room_id = ? ? ORDER BY m.id DESC LIMIT ?`,
		room, bound, limit+1)
	if err != nil {
		return nil, false, err
	}
	if more = len(list) > limit; more {
		list = list[:limit]
	}
	slices.Reverse(list)
	return list, more, nil
}

const insertMessage = `
	INSERT INTO app_messages (room_id, user_id, task_name, client_id, text, created_at)
	SELECT id, ?, ?, ?, ?, ? FROM app_rooms WHERE id = ?
	ON CONFLICT (user_id, client_id) DO NOTHING RETURNING id, created_at`

// AddMessage stores what a user says in a room. A client id that the user used
// before returns the earlier message and false. ErrNotFound when there is no
// such room.
func (u Unit) AddMessage(ctx context.Context, room int64, by User, clientID, text string) (Message, bool, error) {
	m := Message{RoomID: room, UserID: by.ID, Author: by.Name, ClientID: clientID, Text: text}
	err := u.addMessage(ctx, &m, by.ID, nil)
	if !errors.Is(err, coord.ErrNotFound) {
		return m, err == nil, err
	}
	m, err = queryOne[Message](ctx, u.db, selectMessage+`m.user_id = ? AND m.client_id = ?`, by.ID, clientID)
	return m, false, err
}

// AddTaskMessage stores what a task says in a room. ErrNotFound when there is
// no such room.
func (u Unit) AddTaskMessage(ctx context.Context, room int64, task, clientID, text string) (Message, error) {
	m := Message{RoomID: room, Author: task, ClientID: clientID, Text: text}
	return m, u.addMessage(ctx, &m, nil, task)
}

func (u Unit) addMessage(ctx context.Context, m *Message, user, task any) error {
	stored, err := queryOne[struct {
		ID        int64
		CreatedAt Time
	}](ctx, u.db, insertMessage, user, task, m.ClientID, m.Text, u.store.clock(0), m.RoomID)
	m.ID, m.CreatedAt = stored.ID, stored.CreatedAt
	return err
}
