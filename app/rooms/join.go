package rooms

import (
	"context"
	"errors"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Join makes somebody who was invited to a room a member of it, in the unit of work that
// makes their account. It does nothing when the room is gone.
func Join(ctx context.Context, u store.Unit, person store.User, room int64) error {
	err := u.LockRoom(ctx, room)
	if errors.Is(err, coord.ErrNotFound) {
		return nil
	}
	if err == nil {
		_, err = join(ctx, u, person, room, store.RoomMember)
	}
	return err
}

// join makes a person a member of a room that nobody else changes meanwhile, and tells of
// it.
func join(
	ctx context.Context, u store.Unit, person store.User, room int64, role store.RoomRole,
) (member store.RoomPerson, err error) {
	if _, err := u.AddMember(ctx, room, person.ID, role); err != nil {
		return member, err
	}
	if member, err = u.Member(ctx, room, person.ID); err != nil {
		return member, err
	}
	theirs, err := u.MyRoom(ctx, person, room)
	if err != nil {
		return member, err
	}
	return member, errors.Join(
		publish(ctx, u, Topic(room), KindMemberAdded, member),
		publish(ctx, u, auth.UserTopic(person.ID), KindJoined, theirs))
}
