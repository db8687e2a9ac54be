package rooms

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Page is a part of a room's history.
type Page struct {
	Messages []store.Message // the oldest first
	More     bool            // there are older ones
	// Position is where a subscription takes over: it was fixed before the
	// messages were read, so none is missed, and some may come again.
	Position coord.Position
}

// Messages returns the last messages of a room, before the message of that id
// when it is not 0. limit is 1–200, 0 means 50. ErrNotFound when there is no such room.
func (s *Service) Messages(ctx context.Context, by store.User, room, before int64, limit int) (Page, error) {
	if limit == 0 {
		limit = defaultPage
	}
	if limit < 1 || limit > maxPage {
		return Page{}, invalid("limit", fmt.Sprintf("must be between 1 and %d", maxPage))
	}
	if err := s.MayRead(ctx, by, room); err != nil {
		return Page{}, err
	}
	topic := Topic(room)
	heads, err := s.events.Heads(ctx, topic)
	if err != nil {
		return Page{}, err
	}
	list, more, err := s.store.Messages(ctx, room, before, limit)
	return Page{Messages: list, More: more, Position: heads[topic]}, err
}

// Post says something in a room. The same client id of the same user again
// returns the earlier message and false, and nobody hears of it twice. Errors:
// coord.ErrInvalid with the field, coord.ErrNotFound when there is no such room,
// coord.ErrConflict when the client id was used in another room.
func (s *Service) Post(ctx context.Context, by store.User, room int64, clientID, text string) (
	m store.Message, created bool, err error,
) {
	if err := errors.Join(checkClientID(clientID), CheckText(text)); err != nil {
		return m, false, err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		m, created, err = u.AddMessage(ctx, room, by, clientID, text)
		if err != nil || !created {
			return err
		}
		return publish(ctx, u, Topic(room), KindMessage, m)
	})
	if err == nil && m.RoomID != room {
		err = &store.ReasonError{Err: coord.ErrConflict, Field: "client_id", Reason: "was used in another room"}
	}
	return m, created, noRoom(err)
}

// PostTask lets a task say something in a room, as a part of u.
func (s *Service) PostTask(ctx context.Context, u store.Unit, room int64, task, clientID, text string) error {
	m, err := u.AddTaskMessage(ctx, room, task, clientID, text)
	if err != nil {
		return err
	}
	return publish(ctx, u, Topic(room), KindMessage, m)
}

// Edit replaces the text of a user's own message. Errors: coord.ErrInvalid with the
// field, coord.ErrNotFound when there is no such room or message, coord.ErrConflict when
// the message was deleted, ErrForbidden.
func (s *Service) Edit(ctx context.Context, by store.User, room, message int64, text string) (m store.Message, err error) {
	if err := CheckText(text); err != nil {
		return m, err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		_, old, err := find(ctx, u, by, room, message)
		if err != nil {
			return err
		}
		if old.UserID != by.ID {
			return forbidden("only who wrote a message may edit it")
		}
		m, err = u.EditMessage(ctx, room, message, text)
		switch {
		case errors.Is(err, coord.ErrNotFound):
			return conflict("the message was deleted")
		case err != nil:
			return err
		}
		return publish(ctx, u, Topic(room), KindMessageEdited, m)
	})
	return m, err
}

// Delete takes a message its text: a user's own one, or any in a room that the user owns.
// Doing it again changes nothing. What was published of the message before stays in the
// history of the room's topic as long as that is kept. Errors: coord.ErrNotFound when
// there is no such room or message, ErrForbidden.
func (s *Service) Delete(ctx context.Context, by store.User, room, message int64) error {
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		mine, m, err := find(ctx, u, by, room, message)
		if err != nil {
			return err
		}
		if m.UserID != by.ID && !owns(by, mine) {
			return forbidden("only who wrote a message, owners and administrators may delete it")
		}
		m, err = u.DeleteMessage(ctx, room, message)
		switch {
		case errors.Is(err, coord.ErrNotFound): // before
			return nil
		case err != nil:
			return err
		}
		return publish(ctx, u, Topic(room), KindMessageDeleted, m)
	})
}

// find returns a message and its room, which the user may read.
func find(ctx context.Context, u store.Unit, by store.User, room, message int64) (store.MyRoom, store.Message, error) {
	mine, err := u.MyRoom(ctx, by, room)
	if err != nil {
		return mine, store.Message{}, noRoom(err)
	}
	m, err := u.Message(ctx, room, message)
	if errors.Is(err, coord.ErrNotFound) {
		err = &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such message"}
	}
	return mine, m, err
}

// Typing tells who reads a room that the user is writing something there. How often is
// for the caller to limit. ErrNotFound when there is no such room.
func (s *Service) Typing(ctx context.Context, by store.User, room int64) error {
	if err := s.MayRead(ctx, by, room); err != nil {
		return err
	}
	e, err := event(Topic(room), KindTyping, Writer{UserID: by.ID, Name: by.Name})
	if err == nil {
		_, err = s.events.Publish(ctx, e)
	}
	return err
}

// MarkRead notes that the user has read a room up to that message, or the last one
// before it, and tells all devices of theirs. It never goes back. Errors: coord.ErrInvalid
// with the field, coord.ErrNotFound when there is no such room.
func (s *Service) MarkRead(ctx context.Context, by store.User, room, message int64) error {
	if message < 1 {
		return invalid("message_id", "must be a positive number")
	}
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if _, err := u.MyRoom(ctx, by, room); err != nil {
			return noRoom(err)
		}
		last, err := u.MarkRead(ctx, room, by.ID, message)
		if err != nil || last == 0 {
			return err
		}
		return publish(ctx, u, auth.UserTopic(by.ID), KindRead, Marker{RoomID: room, MessageID: last})
	})
}

// CheckText says what is wrong with the text of a message.
func CheckText(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return invalid("text", "must not be empty")
	case len(text) > maxText:
		return invalid("text", fmt.Sprintf("may have at most %d bytes", maxText))
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return invalid("text", "must be text in UTF-8 without NUL")
	}
	return nil
}

func checkClientID(id string) error {
	switch {
	case id == "":
		return invalid("client_id", "must not be empty; send a fresh UUID with each new message")
	case len(id) > maxClientID || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return invalid("client_id", fmt.Sprintf("may have at most %d bytes and no control characters", maxClientID))
	}
	return nil
}
