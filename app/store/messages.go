package store

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/tandemhq/tandem/coord"
)

// Message is what a user, or a task, said in a room.
type Message struct {
	ID        int64  `json:"id"`
	RoomID    int64  `json:"room_id"`
	UserID    int64  `json:"user_id"` // 0: a task
	Author    string `json:"author"`  // the name of the user or the task
	Text      string `json:"text"`
	ClientID  string `json:"client_id"` // unique per user, chosen by the sender
	CreatedAt Time   `json:"created_at"`
	EditedAt  Time   `json:"edited_at,omitzero"`
	Deleted   bool   `json:"deleted,omitempty"` // its text is gone
}

// maxID is beyond every message.
const maxID = math.MaxInt64

const selectMessage = `
	SELECT m.id, m.room_id, COALESCE(m.user_id, 0) AS user_id, COALESCE(u.name, m.task_name) AS author,
		m.text, m.client_id, m.created_at, m.edited_at, m.deleted_at IS NOT NULL AS deleted
	FROM app_messages AS m LEFT JOIN app_users AS u ON u.id = m.user_id WHERE `

const pageOfMessages = selectMessage + `m.room_id = ? AND m.id <= ? ORDER BY m.id DESC LIMIT ?`

// Messages returns the last messages of a room, the oldest first, before the
// message of that id when it is not 0. more says that there are older ones.
func (s *Store) Messages(ctx context.Context, room, before int64, limit int) (list []Message, more bool, err error) {
	newest := int64(maxID)
	if before > 0 {
		newest = before - 1
	}
	list, err = query[Message](ctx, s.read, pageOfMessages, room, newest, limit+1)
	if err != nil {
		return nil, false, err
	}
	if more = len(list) > limit; more {
		list = list[:limit]
	}
	slices.Reverse(list)
	return list, more, nil
}

// Message returns a message of a room, or ErrNotFound.
func (u Unit) Message(ctx context.Context, room, id int64) (Message, error) {
	return queryOne[Message](ctx, u.db, selectMessage+`m.room_id = ? AND m.id = ?`, room, id)
}

// insertMessage is for a room that the user may read, unless it is a task's.
const insertMessage = `
	INSERT INTO app_messages (room_id, user_id, task_name, client_id, text, created_at)
	SELECT r.id, ?, ?, ?, ?, ? FROM app_rooms AS r WHERE r.id = ? AND (? OR r.kind = 'public' AND ?
		OR EXISTS (SELECT 1 FROM app_members AS a WHERE a.room_id = r.id AND a.user_id = ?))
	ON CONFLICT (user_id, client_id) DO NOTHING RETURNING id, created_at`

// AddMessage stores what a user says in a room. A client id that the user used
// before returns the earlier message and false. ErrNotFound when there is no
// such room, or none that the user may read.
func (u Unit) AddMessage(ctx context.Context, room int64, by User, clientID, text string) (Message, bool, error) {
	m := Message{RoomID: room, UserID: by.ID, Author: by.Name, ClientID: clientID, Text: text}
	err := u.addMessage(ctx, &m, by, nil)
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
	return m, u.addMessage(ctx, &m, User{}, task)
}

// addMessage stores the message of a user, or of a task that is not nil.
func (u Unit) addMessage(ctx context.Context, m *Message, by User, task any) error {
	var user any
	if task == nil {
		user = by.ID
	}
	stored, err := queryOne[struct {
		ID        int64
		CreatedAt Time
	}](ctx, u.db, insertMessage, user, task, m.ClientID, m.Text, u.store.clock(0), m.RoomID,
		task != nil, by.Role != Guest, by.ID)
	m.ID, m.CreatedAt = stored.ID, stored.CreatedAt
	return err
}

// EditMessage replaces the text of a message of a room, and returns it. ErrNotFound when
// it was deleted.
func (u Unit) EditMessage(ctx context.Context, room, id int64, text string) (Message, error) {
	return u.changeMessage(ctx, room, id, `text = ?, edited_at = ?`, text, u.store.clock(0))
}

// DeleteMessage takes a message of a room its text, and returns it. ErrNotFound when that
// was done before.
func (u Unit) DeleteMessage(ctx context.Context, room, id int64) (Message, error) {
	return u.changeMessage(ctx, room, id, `text = '', deleted_at = ?`, u.store.clock(0))
}

func (u Unit) changeMessage(ctx context.Context, room, id int64, set string, values ...any) (Message, error) {
	n, err := exec(ctx, u.db, `UPDATE app_messages SET `+set+` WHERE room_id = ? AND id = ? AND deleted_at IS NULL`,
		append(values, room, id)...)
	if err == nil && n == 0 {
		err = coord.ErrNotFound
	}
	if err != nil {
		return Message{}, err
	}
	return u.Message(ctx, room, id)
}

const markRead = `
	INSERT INTO app_reads (user_id, room_id, message_id)
	SELECT ?, room_id, id FROM (
		SELECT room_id, id FROM app_messages WHERE room_id = ? AND id <= ? ORDER BY id DESC LIMIT 1
	) AS last WHERE true
	ON CONFLICT (user_id, room_id) DO UPDATE SET message_id = excluded.message_id
	WHERE app_reads.message_id < excluded.message_id RETURNING message_id`

// MarkRead notes that a user has read a room up to its last message that is not beyond
// that id, and returns that message. It returns 0, and changes nothing, when there is none or
// as much was read before.
func (u Unit) MarkRead(ctx context.Context, room, user, message int64) (int64, error) {
	read, err := query[int64](ctx, u.db, markRead, user, room, message)
	if err != nil || len(read) == 0 {
		return 0, err
	}
	return read[0], nil
}
