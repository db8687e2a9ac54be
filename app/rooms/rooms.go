// Package rooms is what people do in rooms: a message is stored and published
// in one unit of work, so that nobody sees one without the other.
package rooms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// ListTopic is the topic on which rooms that are made appear.
const ListTopic = "rooms"

// The kinds of events.
const (
	KindMessage = "message.created" // on the room's topic; the payload is the message
	KindRoom    = "room.created"    // on ListTopic; the payload is the room
)

const (
	maxName     = 80        // characters
	maxText     = 16 * 1024 // bytes
	maxClientID = 100       // bytes
	defaultPage = 50
	maxPage     = 200
)

// Topic is the topic of a room.
func Topic(id int64) string { return "room:" + strconv.FormatInt(id, 10) }

// ParseTopic returns the room of a topic that [Topic] made.
func ParseTopic(topic string) (int64, bool) {
	number, ok := strings.CutPrefix(topic, "room:")
	id, err := strconv.ParseInt(number, 10, 64)
	return id, ok && err == nil && id > 0 && Topic(id) == topic
}

// Service is safe for concurrent use.
type Service struct {
	store  *store.Store
	events coord.Broadcaster
}

// New returns the service.
func New(st *store.Store, backend coord.Backend) *Service {
	return &Service{store: st, events: backend.Broadcaster()}
}

// List lists all rooms by name.
func (s *Service) List(ctx context.Context) ([]store.Room, error) { return s.store.Rooms(ctx) }

// Create makes a room. Errors: coord.ErrInvalid with the field,
// coord.ErrConflict when the name is taken.
func (s *Service) Create(ctx context.Context, by store.User, name string) (store.Room, error) {
	name = strings.TrimSpace(name)
	if err := checkName(name); err != nil {
		return store.Room{}, err
	}
	var room store.Room
	err := s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		if room, err = u.AddRoom(ctx, name, by.ID); err != nil {
			return err
		}
		return publish(ctx, u, ListTopic, KindRoom, room)
	})
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a room named %q already", name),
		}
	}
	return room, err
}

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
func (s *Service) Messages(ctx context.Context, room, before int64, limit int) (Page, error) {
	if limit == 0 {
		limit = defaultPage
	}
	if limit < 1 || limit > maxPage {
		return Page{}, invalid("limit", fmt.Sprintf("must be between 1 and %d", maxPage))
	}
	if err := s.MustExist(ctx, room); err != nil {
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

// MustExist returns coord.ErrNotFound unless each of the rooms exists.
func (s *Service) MustExist(ctx context.Context, rooms ...int64) error {
	found, err := s.store.RoomIDs(ctx, rooms)
	if err == nil && len(found) < len(rooms) {
		err = noRoom()
	}
	return err
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
	switch {
	case errors.Is(err, coord.ErrNotFound):
		err = noRoom()
	case err == nil && m.RoomID != room:
		err = &store.ReasonError{Err: coord.ErrConflict, Field: "client_id", Reason: "was used in another room"}
	}
	return m, created, err
}

// PostTask lets a task say something in a room, as a part of u.
func (s *Service) PostTask(ctx context.Context, u store.Unit, room int64, task, clientID, text string) error {
	m, err := u.AddTaskMessage(ctx, room, task, clientID, text)
	if err != nil {
		return err
	}
	return publish(ctx, u, Topic(room), KindMessage, m)
}

func publish(ctx context.Context, u store.Unit, topic, kind string, payload any) error {
	b, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	return u.Coord.Publish(ctx, coord.NewEvent{Topic: topic, Kind: kind, Payload: b})
}

func noRoom() error {
	return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such room"}
}

func checkName(name string) error {
	switch {
	case !strings.ContainsFunc(name, visible):
		return invalid("name", "must not be empty")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, control):
		return invalid("name", "may not contain control characters")
	case utf8.RuneCountInString(name) > maxName:
		return invalid("name", fmt.Sprintf("may have at most %d characters", maxName))
	}
	return nil
}

func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

// control finds also what turns the direction of the text around a name.
func control(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

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

func invalid(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
