// Package rooms is what people do in rooms: a message is stored and published
// in one unit of work, so that nobody sees one without the other, and so is who
// is in a room.
//
// What a person may not read does not exist for them: [coord.ErrNotFound]. Public
// rooms are read, and posted in, by everybody but guests; their members are those who
// follow them. A room belongs to its owners, and a room that one may read also to
// administrators; a direct one to nobody.
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

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// ListTopic is the topic on which public rooms appear that are made. It is not for
// guests.
const ListTopic = "rooms"

// The kinds of events on a room's topic.
const (
	KindMessage        = "message.created" // the payload is the message
	KindMessageEdited  = "message.edited"  // the payload is the message
	KindMessageDeleted = "message.deleted" // the payload is the message
	KindMemberAdded    = "room.member_added"
	KindMemberChanged  = "room.member_changed" // the payload is the member, as of KindMemberAdded
	KindMemberRemoved  = "room.member_removed" // the payload is a Removed
	KindRoomChanged    = "room.changed"        // the payload is the room; of a public one also on ListTopic
	KindTyping         = "typing"              // the payload is a Writer; nobody needs it later
)

// KindRoom is the kind of an event on [ListTopic]; the payload is the room.
const KindRoom = "room.created"

// The kinds of events on the topic of a person, for all devices.
const (
	KindJoined = "room.joined" // the payload is the room as that person sees it
	KindLeft   = "room.left"   // the payload is the room as that person saw it
	KindRead   = "read"        // the payload is a Marker
)

// Removed says who is no member of a room any more.
type Removed struct {
	UserID  int64  `json:"user_id"`
	Name    string `json:"name"`
	ByID    int64  `json:"by_id"`    // who did it, maybe themself
	MayRead bool   `json:"may_read"` // the room still, since it is public
}

// Writer is somebody who is writing something.
type Writer struct {
	UserID int64  `json:"user_id"`
	Name   string `json:"name"`
}

// Marker says up to which message somebody has read a room.
type Marker struct {
	RoomID    int64 `json:"room_id"`
	MessageID int64 `json:"message_id"`
}

// ErrForbidden means that somebody may know of something, but not do that with it.
var ErrForbidden = errors.New("not allowed")

const (
	maxName        = 80        // characters
	maxDescription = 500       // characters
	maxText        = 16 * 1024 // bytes
	maxClientID    = 100       // bytes
	defaultPage    = 50
	maxPage        = 200
)

// Topic is the topic of a room.
func Topic(id int64) string { return "room:" + strconv.FormatInt(id, 10) }

// ParseTopic returns the room of a topic that [Topic] made.
func ParseTopic(topic string) (int64, bool) {
	number, ok := strings.CutPrefix(topic, "room:")
	id, err := strconv.ParseInt(number, 10, 64)
	return id, ok && err == nil && id > 0 && Topic(id) == topic
}

// RemovedUser returns the person who by an event of a room's topic has lost the right
// to read that room.
func RemovedUser(e coord.Event) (user int64, ok bool) {
	var removed Removed
	ok = e.Kind == KindMemberRemoved && json.Unmarshal(e.Payload, &removed) == nil && !removed.MayRead
	return removed.UserID, ok
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

// List lists the rooms that the user may read, by name.
func (s *Service) List(ctx context.Context, by store.User) ([]store.MyRoom, error) {
	return s.store.MyRooms(ctx, by)
}

// Get returns a room, or coord.ErrNotFound.
func (s *Service) Get(ctx context.Context, by store.User, room int64) (store.MyRoom, error) {
	r, err := s.store.MyRoom(ctx, by, room)
	return r, noRoom(err)
}

// Readable returns those of the rooms that the user may read, by their ids, without what
// is read and what is not.
func (s *Service) Readable(ctx context.Context, by store.User, rooms ...int64) (map[int64]store.MyRoom, error) {
	found, err := s.store.Readable(ctx, by, rooms...)
	if err != nil {
		return nil, err
	}
	readable := make(map[int64]store.MyRoom, len(found))
	for _, r := range found {
		readable[r.ID] = r
	}
	return readable, nil
}

// MayRead returns coord.ErrNotFound unless the user may read each of the rooms.
func (s *Service) MayRead(ctx context.Context, by store.User, rooms ...int64) error {
	readable, err := s.Readable(ctx, by, rooms...)
	if err != nil {
		return err
	}
	for _, id := range rooms {
		if _, ok := readable[id]; !ok {
			return noRoom(coord.ErrNotFound)
		}
	}
	return nil
}

// NewRoom is a room to be made.
type NewRoom struct {
	Kind        store.RoomKind // default store.Public
	Name        string         // not of a direct room
	Description string         // not of a direct room
	UserID      int64          // of a direct room: the other person
}

// Create makes a room, of which the user is the owner, or returns the direct room of
// two people and false when they have it already. Errors: coord.ErrInvalid with the
// field, coord.ErrConflict when the name is taken, ErrForbidden for guests.
func (s *Service) Create(ctx context.Context, by store.User, n NewRoom) (room store.MyRoom, made bool, err error) {
	if err := n.check(by); err != nil {
		return room, false, err
	}
	create := createRoom
	if n.Kind == store.Direct {
		create = createDirect
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		room, made, err = create(ctx, u, by, n)
		return err
	})
	if err == nil && !made { // with what is unread
		room, err = s.Get(ctx, by, room.ID)
	}
	return room, made, err
}

func (n *NewRoom) check(by store.User) error {
	n.Name, n.Description = strings.TrimSpace(n.Name), strings.TrimSpace(n.Description)
	if by.Role == store.Guest {
		return forbidden("guests can't make rooms")
	}
	switch n.Kind {
	case "":
		n.Kind = store.Public
	case store.Public, store.Private:
	case store.Direct:
		switch {
		case n.Name != "":
			return invalid("name", "a direct room has none")
		case n.Description != "":
			return invalid("description", "a direct room has none")
		case n.UserID == by.ID:
			return invalid("user_id", "must be somebody else")
		}
		return nil
	default:
		return invalid("kind", fmt.Sprintf("must be %s, %s or %s", store.Public, store.Private, store.Direct))
	}
	if n.UserID != 0 {
		return invalid("user_id", "is for direct rooms")
	}
	if err := checkName(n.Name); err != nil {
		return err
	}
	return checkDescription(n.Description)
}

func createRoom(ctx context.Context, u store.Unit, by store.User, n NewRoom) (store.MyRoom, bool, error) {
	made, err := u.AddRoom(ctx, n.Kind, n.Name, n.Description, by.ID)
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a room named %q already", n.Name),
		}
	}
	if err != nil {
		return store.MyRoom{}, false, err
	}
	if _, err := u.AddMember(ctx, made.ID, by.ID, store.RoomOwner); err != nil {
		return store.MyRoom{}, false, err
	}
	if made.Kind == store.Public {
		if err := publish(ctx, u, ListTopic, KindRoom, made); err != nil {
			return store.MyRoom{}, false, err
		}
	}
	room := store.MyRoom{Room: made, Member: store.RoomOwner}
	return room, true, publish(ctx, u, auth.UserTopic(by.ID), KindJoined, room)
}

func createDirect(ctx context.Context, u store.Unit, by store.User, n NewRoom) (store.MyRoom, bool, error) {
	with, err := u.User(ctx, n.UserID)
	if errors.Is(err, coord.ErrNotFound) || err == nil && with.Deactivated {
		err = invalid("user_id", "there is no such user")
	}
	if err != nil {
		return store.MyRoom{}, false, err
	}
	id, made, err := u.AddDirectRoom(ctx, by.ID, with.ID)
	if err != nil {
		return store.MyRoom{}, false, err
	}
	if made {
		theirs, err := u.MyRoom(ctx, with, id)
		if err != nil {
			return store.MyRoom{}, false, err
		}
		if err := publish(ctx, u, auth.UserTopic(with.ID), KindJoined, theirs); err != nil {
			return store.MyRoom{}, false, err
		}
	}
	mine, err := u.MyRoom(ctx, by, id)
	if err == nil && made {
		err = publish(ctx, u, auth.UserTopic(by.ID), KindJoined, mine)
	}
	return mine, made, err
}

// Describe changes what a room is about. Errors: coord.ErrInvalid with the field,
// coord.ErrNotFound, ErrForbidden for who does not own the room.
func (s *Service) Describe(ctx context.Context, by store.User, room int64, description string) (store.MyRoom, error) {
	description = strings.TrimSpace(description)
	if err := checkDescription(description); err != nil {
		return store.MyRoom{}, err
	}
	err := s.change(ctx, by, room, func(ctx context.Context, u store.Unit, mine store.MyRoom) error {
		switch {
		case !owns(by, mine):
			return forbidden("only owners and administrators may change a room")
		case mine.Description == description:
			return nil
		}
		mine.Description = description
		if err := u.DescribeRoom(ctx, room, description); err != nil {
			return err
		}
		if mine.Kind == store.Public {
			if err := publish(ctx, u, ListTopic, KindRoomChanged, mine.Room); err != nil {
				return err
			}
		}
		return publish(ctx, u, Topic(room), KindRoomChanged, mine.Room)
	})
	if err != nil {
		return store.MyRoom{}, err
	}
	return s.Get(ctx, by, room)
}

// change calls act, in a unit of work, with a room that the user may read and that nobody
// else changes meanwhile.
func (s *Service) change(
	ctx context.Context, by store.User, room int64, act func(context.Context, store.Unit, store.MyRoom) error,
) error {
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		err := u.LockRoom(ctx, room)
		var mine store.MyRoom
		if err == nil {
			mine, err = u.MyRoom(ctx, by, room)
		}
		if err != nil {
			return noRoom(err)
		}
		return act(ctx, u, mine)
	})
}

// owns reports whether a room belongs to a user who may read it.
func owns(by store.User, r store.MyRoom) bool {
	own := r.Member == store.RoomOwner && by.Role != store.Guest // who may have been made one since
	return r.Kind != store.Direct && (own || by.Role == store.Admin)
}

func publish(ctx context.Context, u store.Unit, topic, kind string, payload any) error {
	e, err := event(topic, kind, payload)
	if err != nil {
		return err
	}
	return u.Coord.Publish(ctx, e)
}

func event(topic, kind string, payload any) (coord.NewEvent, error) {
	b, err := json.Marshal(payload)
	return coord.NewEvent{Topic: topic, Kind: kind, Payload: b}, err
}

// noRoom says of "not found" what it is that was not found.
func noRoom(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such room"}
	}
	return err
}

func forbidden(reason string) error { return &store.ReasonError{Err: ErrForbidden, Reason: reason} }

func conflict(reason string) error {
	return &store.ReasonError{Err: coord.ErrConflict, Reason: reason}
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

func checkDescription(text string) error {
	switch {
	case !utf8.ValidString(text) || strings.ContainsFunc(text, control):
		return invalid("description", "may not contain control characters")
	case utf8.RuneCountInString(text) > maxDescription:
		return invalid("description", fmt.Sprintf("may have at most %d characters", maxDescription))
	}
	return nil
}

func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

// control finds also what turns the direction of the text around a name.
func control(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

func invalid(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
