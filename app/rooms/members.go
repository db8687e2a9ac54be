package rooms

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Users lists all users by name, for picking people. ErrForbidden for guests.
func (s *Service) Users(ctx context.Context, by store.User) ([]store.User, error) {
	if by.Role == store.Guest {
		return nil, forbidden("guests see only who is in their rooms")
	}
	return s.store.Users(ctx)
}

// Members lists the members of a room by name, or returns coord.ErrNotFound.
func (s *Service) Members(ctx context.Context, by store.User, room int64) ([]store.RoomPerson, error) {
	if err := s.MayRead(ctx, by, room); err != nil {
		return nil, err
	}
	return s.store.Members(ctx, room)
}

// SetMember makes a person a member of a room, or gives a member another role. An empty
// role is [store.RoomMember] for who is new, and the one they have for others.
//
// Everybody who may read a public room may join it. Members, unless they are guests, and
// administrators add others; who owns the room makes owners, and members of owners.
//
// Errors: coord.ErrInvalid with the field, coord.ErrNotFound when there is no such room
// or person, coord.ErrConflict when a private room would have no owner, ErrForbidden.
func (s *Service) SetMember(
	ctx context.Context, by store.User, room, user int64, role store.RoomRole,
) (member store.RoomPerson, err error) {
	switch role {
	case "", store.RoomOwner, store.RoomMember:
	default:
		return member, invalid("role", fmt.Sprintf("must be %s or %s", store.RoomOwner, store.RoomMember))
	}
	err = s.change(ctx, by, room, func(ctx context.Context, u store.Unit, mine store.MyRoom) (err error) {
		if mine.Kind == store.Direct {
			return forbidden("a direct room keeps its two people")
		}
		person, err := u.User(ctx, user)
		switch {
		case errors.Is(err, coord.ErrNotFound) && by.Role == store.Guest: // who learns of no users
			return mayNotAdd()
		case errors.Is(err, coord.ErrNotFound):
			return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such user"}
		case err != nil:
			return err
		}
		member, err = u.Member(ctx, room, user)
		switch {
		case errors.Is(err, coord.ErrNotFound) && person.Deactivated:
			return conflict("they are deactivated")
		case errors.Is(err, coord.ErrNotFound):
			member, err = addMember(ctx, u, by, mine, person, role)
		case err == nil && role != "" && role != member.Role:
			member, err = changeMember(ctx, u, by, mine, person, role)
		}
		return err
	})
	return member, err
}

func addMember(
	ctx context.Context, u store.Unit, by store.User, room store.MyRoom, person store.User, role store.RoomRole,
) (member store.RoomPerson, err error) {
	joins := person.ID == by.ID
	adds := by.Role == store.Admin || room.Member != "" && by.Role != store.Guest
	if role == "" {
		role = store.RoomMember
	}
	switch {
	case !joins && !adds:
		return member, mayNotAdd()
	case role == store.RoomOwner:
		err = checkOwner(by, room, person)
	}
	if err != nil {
		return member, err
	}
	return join(ctx, u, person, room.ID, role)
}

func mayNotAdd() error {
	return forbidden("only members who are no guests, and administrators, may add people")
}

func changeMember(
	ctx context.Context, u store.Unit, by store.User, room store.MyRoom, person store.User, role store.RoomRole,
) (member store.RoomPerson, err error) {
	if role == store.RoomOwner {
		err = checkOwner(by, room, person)
	} else {
		err = checkNoOwner(ctx, u, by, room)
	}
	if err != nil {
		return member, err
	}
	if err := u.SetMemberRole(ctx, room.ID, person.ID, role); err != nil {
		return member, err
	}
	if member, err = u.Member(ctx, room.ID, person.ID); err != nil {
		return member, err
	}
	return member, publish(ctx, u, Topic(room.ID), KindMemberChanged, member)
}

// checkOwner says why a user may not make a person an owner of a room.
func checkOwner(by store.User, room store.MyRoom, person store.User) error {
	switch {
	case !owns(by, room):
		return forbidden("only owners and administrators may say who owns a room")
	case person.Role == store.Guest:
		return invalid("role", "a guest can't own a room")
	}
	return nil
}

// checkNoOwner says why a user may not take an owner of a room that role.
func checkNoOwner(ctx context.Context, u store.Unit, by store.User, room store.MyRoom) error {
	if !owns(by, room) {
		return forbidden("only owners and administrators may say who owns a room")
	}
	_, owners, err := u.CountMembers(ctx, room.ID)
	if err == nil && owners == 1 && room.Kind == store.Private {
		err = conflict("a private room needs an owner: make somebody else one first")
	}
	return err
}

// RemoveMember takes a person out of a room: oneself, or anybody for who owns the room.
// Errors: coord.ErrNotFound when there is no such room or member, coord.ErrConflict for the
// last owner of a private room that has other members, ErrForbidden.
func (s *Service) RemoveMember(ctx context.Context, by store.User, room, user int64) error {
	return s.change(ctx, by, room, func(ctx context.Context, u store.Unit, mine store.MyRoom) error {
		switch {
		case mine.Kind == store.Direct:
			return forbidden("a direct room keeps its two people")
		case user != by.ID && !owns(by, mine):
			return forbidden("only owners and administrators may remove people")
		}
		member, err := u.Member(ctx, room, user)
		if errors.Is(err, coord.ErrNotFound) {
			return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such member"}
		}
		if err != nil {
			return err
		}
		if mine.Kind == store.Private && member.Role == store.RoomOwner {
			members, owners, err := u.CountMembers(ctx, room)
			if err != nil {
				return err
			}
			if owners == 1 && members > 1 {
				return conflict("the last owner can't leave a private room that has other members: make one of them an owner first")
			}
		}
		return removeMember(ctx, u, by, mine.Room, member)
	})
}

func removeMember(ctx context.Context, u store.Unit, by store.User, room store.Room, member store.RoomPerson) error {
	person, err := u.User(ctx, member.UserID)
	if err != nil {
		return err
	}
	if err := u.RemoveMember(ctx, room.ID, member.UserID); err != nil {
		return err
	}
	removed := Removed{
		UserID: member.UserID, Name: member.Name, ByID: by.ID,
		MayRead: room.Kind == store.Public && person.Role != store.Guest,
	}
	return errors.Join(
		publish(ctx, u, Topic(room.ID), KindMemberRemoved, removed),
		publish(ctx, u, auth.UserTopic(member.UserID), KindLeft, store.MyRoom{Room: room}))
}
