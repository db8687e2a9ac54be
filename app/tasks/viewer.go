package tasks

import (
	"context"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// viewer knows what a user may know of.
type viewer struct {
	user  store.User
	rooms map[int64]store.MyRoom // those of the tasks in question that the user may read
}

// viewer returns what is to be known for judging tasks and runs of that work.
func (s *Service) viewer(ctx context.Context, by store.User, of ...work) (viewer, error) {
	ids := make([]int64, 0, len(of))
	asked := make(map[int64]bool)
	for _, w := range of {
		if w.RoomID != 0 && !asked[w.RoomID] {
			asked[w.RoomID] = true
			ids = append(ids, w.RoomID)
		}
	}
	readable, err := s.rooms.Readable(ctx, by, ids...)
	return viewer{user: by, rooms: readable}, err
}

// sees reports whether the user may know of a task, or a run of it. Guests know of none;
// of one that reports into a private room know those who may read the room, and
// administrators, so that somebody can stop it.
func (v viewer) sees(w work) bool {
	switch {
	case v.user.Role == store.Guest:
		return false
	case !w.Private || v.user.Role == store.Admin:
		return true
	}
	_, ok := v.rooms[w.RoomID]
	return ok
}

// maySee returns coord.ErrNotFound for a task or run that the user may not know of.
func (s *Service) maySee(ctx context.Context, by store.User, payload []byte) error {
	w := workOf(payload)
	v, err := s.viewer(ctx, by, w)
	if err == nil && !v.sees(w) {
		err = coord.ErrNotFound
	}
	return err
}

// works reads the payloads of tasks or runs.
func works[T any](list []T, payload func(T) []byte) []work {
	all := make([]work, len(list))
	for i, item := range list {
		all[i] = workOf(payload(item))
	}
	return all
}
