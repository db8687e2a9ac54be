package rooms_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// access says what comes of it when somebody does something in a room. No column: nobody
// of that kind can be in such a room.
var access = map[store.RoomKind]string{
	store.Public: `
		                 outside:                 inside:
		                 member  guest   admin    member  guest   admin   owner
		list             ok      no      ok       ok      ok      ok      ok
		get              ok      404     ok       ok      ok      ok      ok
		read history     ok      404     ok       ok      ok      ok      ok
		see members      ok      404     ok       ok      ok      ok      ok
		may subscribe    ok      404     ok       ok      ok      ok      ok
		post             ok      404     ok       ok      ok      ok      ok
		type             ok      404     ok       ok      ok      ok      ok
		mark as read     ok      404     ok       ok      ok      ok      ok
		edit own         ok      404     ok       ok      ok      ok      ok
		delete own       ok      404     ok       ok      ok      ok      ok
		edit other's     403     404     403      403     403     403     403
		delete other's   403     404     ok       403     403     ok      ok
		describe         403     404     ok       403     403     ok      ok
		join             ok      404     ok       ok      ok      ok      ok
		add              403     404     ok       ok      403     ok      ok
		add an owner     403     404     ok       403     403     ok      ok
		make an owner    403     404     ok       403     403     ok      ok
		unmake an owner  403     404     ok       403     403     ok      ok
		remove           403     404     ok       403     403     ok      ok
		leave            404     404     404      ok      ok      ok      ok`,
	store.Private: `
		                 outside:                 inside:
		                 member  guest   admin    member  guest   admin   owner
		list             no      no      no       ok      ok      ok      ok
		get              404     404     404      ok      ok      ok      ok
		read history     404     404     404      ok      ok      ok      ok
		see members      404     404     404      ok      ok      ok      ok
		may subscribe    404     404     404      ok      ok      ok      ok
		post             404     404     404      ok      ok      ok      ok
		type             404     404     404      ok      ok      ok      ok
		mark as read     404     404     404      ok      ok      ok      ok
		edit own         404     404     404      ok      ok      ok      ok
		delete own       404     404     404      ok      ok      ok      ok
		edit other's     404     404     404      403     403     403     403
		delete other's   404     404     404      403     403     ok      ok
		describe         404     404     404      403     403     ok      ok
		join             404     404     404      ok      ok      ok      ok
		add              404     404     404      ok      403     ok      ok
		add an owner     404     404     404      403     403     ok      ok
		make an owner    404     404     404      403     403     ok      ok
		unmake an owner  404     404     404      403     403     409     409
		remove           404     404     404      403     403     ok      ok
		leave            404     404     404      ok      ok      ok      409`,
	store.Direct: `
		                 outside:                 inside:
		                 member  guest   admin    member  guest   admin
		list             no      no      no       ok      ok      ok
		get              404     404     404      ok      ok      ok
		read history     404     404     404      ok      ok      ok
		see members      404     404     404      ok      ok      ok
		may subscribe    404     404     404      ok      ok      ok
		post             404     404     404      ok      ok      ok
		type             404     404     404      ok      ok      ok
		mark as read     404     404     404      ok      ok      ok
		edit own         404     404     404      ok      ok      ok
		delete own       404     404     404      ok      ok      ok
		edit other's     404     404     404      403     403     403
		delete other's   404     404     404      403     403     403
		describe         404     404     404      403     403     403
		join             404     404     404      403     403     403
		add              404     404     404      403     403     403
		add an owner     404     404     404      403     403     403
		make an owner    404     404     404      403     403     403
		unmake an owner  404     404     404      403     403     403
		remove           404     404     404      403     403     403
		leave            404     404     404      403     403     403`,
}

// scene is a room with somebody who does something there.
type scene struct {
	*rig
	kind          store.RoomKind
	room          int64
	owner, actor  store.User // of a direct room the other person, and the actor
	member, other store.User // one who is in the room, unless it is direct, and one who is not
	own, owners   int64      // messages; the owner's, and the actor's, or one in a room that they may not read
}

func (r *rig) scene(kind store.RoomKind, where, who string) *scene {
	r.t.Helper()
	s := &scene{rig: r, kind: kind, owner: r.user(store.Member), member: r.user(store.Member), other: r.user(store.Member)}
	role := store.Role(who)
	if who == "owner" {
		role = store.Member
	}
	s.actor = r.user(role)
	inside := where == "inside:"
	n := rooms.NewRoom{Kind: kind, Name: fmt.Sprint("room ", r.made.Add(1))}
	switch {
	case kind == store.Direct && inside:
		n = rooms.NewRoom{Kind: kind, UserID: s.actor.ID}
		s.member = s.actor
	case kind == store.Direct:
		n = rooms.NewRoom{Kind: kind, UserID: s.member.ID}
	case who == "owner":
		s.owner = s.actor
	}
	made, _, err := r.rooms.Create(r.t.Context(), s.owner, n)
	if err != nil {
		r.t.Fatal(err)
	}
	s.room = made.ID
	if kind != store.Direct {
		r.add(s.owner, s.room, s.member, "")
		if inside && s.owner != s.actor {
			r.add(s.owner, s.room, s.actor, "")
		}
	}
	s.owners = r.post(s.member, s.room).ID
	if kind == store.Direct {
		s.owners = r.post(s.owner, s.room).ID
	}
	if kind == store.Public && who != "guest" || inside {
		s.own = r.post(s.actor, s.room).ID
	} else {
		s.own = s.owners
	}
	return s
}

var actions = map[string]func(ctx context.Context, s *scene) error{
	"list": func(_ context.Context, s *scene) error {
		if s.mine(s.actor, s.room).ID == 0 {
			return errors.New("no")
		}
		return nil
	},
	"get": func(ctx context.Context, s *scene) error { return second(s.rooms.Get(ctx, s.actor, s.room)) },
	"read history": func(ctx context.Context, s *scene) error {
		return second(s.rooms.Messages(ctx, s.actor, s.room, 0, 0))
	},
	"see members":   func(ctx context.Context, s *scene) error { return second(s.rooms.Members(ctx, s.actor, s.room)) },
	"may subscribe": func(ctx context.Context, s *scene) error { return s.rooms.MayRead(ctx, s.actor, s.room) },
	"post": func(ctx context.Context, s *scene) error {
		_, _, err := s.rooms.Post(ctx, s.actor, s.room, "c", "text")
		return err
	},
	"type":         func(ctx context.Context, s *scene) error { return s.rooms.Typing(ctx, s.actor, s.room) },
	"mark as read": func(ctx context.Context, s *scene) error { return s.rooms.MarkRead(ctx, s.actor, s.room, s.own) },
	"edit own": func(ctx context.Context, s *scene) error {
		return second(s.rooms.Edit(ctx, s.actor, s.room, s.own, "better"))
	},
	"delete own": func(ctx context.Context, s *scene) error { return s.rooms.Delete(ctx, s.actor, s.room, s.own) },
	"edit other's": func(ctx context.Context, s *scene) error {
		return second(s.rooms.Edit(ctx, s.actor, s.room, s.owners, "worse"))
	},
	"delete other's": func(ctx context.Context, s *scene) error {
		return s.rooms.Delete(ctx, s.actor, s.room, s.owners)
	},
	"describe": func(ctx context.Context, s *scene) error {
		return second(s.rooms.Describe(ctx, s.actor, s.room, "what it is about"))
	},
	"join": func(ctx context.Context, s *scene) error {
		return second(s.rooms.SetMember(ctx, s.actor, s.room, s.actor.ID, ""))
	},
	"add": func(ctx context.Context, s *scene) error {
		return second(s.rooms.SetMember(ctx, s.actor, s.room, s.other.ID, ""))
	},
	"add an owner": func(ctx context.Context, s *scene) error {
		return second(s.rooms.SetMember(ctx, s.actor, s.room, s.other.ID, store.RoomOwner))
	},
	"make an owner": func(ctx context.Context, s *scene) error {
		return second(s.rooms.SetMember(ctx, s.actor, s.room, s.member.ID, store.RoomOwner))
	},
	"unmake an owner": func(ctx context.Context, s *scene) error {
		return second(s.rooms.SetMember(ctx, s.actor, s.room, s.owner.ID, store.RoomMember))
	},
	"remove": func(ctx context.Context, s *scene) error {
		return s.rooms.RemoveMember(ctx, s.actor, s.room, s.member.ID)
	},
	"leave": func(ctx context.Context, s *scene) error {
		return s.rooms.RemoveMember(ctx, s.actor, s.room, s.actor.ID)
	},
}

// harmless actions make no difference to the others.
var harmless = map[string]bool{
	"list": true, "get": true, "read history": true, "see members": true, "may subscribe": true, "post": true,
	"type": true, "mark as read": true, "edit own": true, "describe": true,
}

func second[T any](_ T, err error) error { return err }

// outcome is an error as the matrix names it.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, coord.ErrNotFound):
		return "404"
	case errors.Is(err, coord.ErrConflict):
		return "409"
	case errors.Is(err, rooms.ErrForbidden):
		return "403"
	}
	return err.Error()
}

func TestAccess(t *testing.T) { onEach(t, testAccess) }

func testAccess(r *rig) {
	const names = len("\t\t") + 17 // the width of the first column
	for kind, table := range access {
		lines := strings.Split(strings.TrimSpace(table), "\n")
		if got, want := len(lines)-2, len(actions); got != want {
			r.t.Errorf("%s: the table has %d actions of %d", kind, got, want)
		}
		for i, who := range strings.Fields(lines[1]) {
			where := "outside:"
			if i >= 3 {
				where = "inside:"
			}
			s := r.scene(kind, where, who)
			for _, line := range lines[2:] {
				name, want := strings.TrimSpace(line[:names]), strings.Fields(line[names:])[i]
				before := len(r.events(rooms.Topic(s.room)))
				err := actions[name](r.t.Context(), s)
				if got := outcome(err); got != want {
					r.t.Errorf("%s in a %s room by %s%s: got %s, want %s", name, kind, where, who, got, want)
				}
				if after := len(r.events(rooms.Topic(s.room))); err != nil && after != before {
					r.t.Errorf("%s in a %s room by %s%s: failed, and was published", name, kind, where, who)
				}
				if err == nil && !harmless[name] {
					s = r.scene(kind, where, who)
				}
			}
		}
	}
}

// A guest does not learn either who else has an account.
func TestGuestsLearnOfNoUsers(t *testing.T) {
	onEach(t, func(r *rig) {
		for _, kind := range []store.RoomKind{store.Public, store.Private} {
			s := r.scene(kind, "inside:", "guest")
			for _, role := range []store.RoomRole{"", store.RoomOwner} {
				there := second(s.rooms.SetMember(r.t.Context(), s.actor, s.room, s.other.ID, role))
				absent := second(s.rooms.SetMember(r.t.Context(), s.actor, s.room, 1<<40, role))
				if outcome(there) != "403" || fmt.Sprint(there) != fmt.Sprint(absent) {
					r.t.Errorf("somebody in a %s room: %v; nobody: %v", kind, there, absent)
				}
			}
		}
	})
}

// What one may not know of is not told by another error either.
func TestPrivateRoomsAreUnknown(t *testing.T) { onEach(t, testPrivateRoomsAreUnknown) }

func testPrivateRoomsAreUnknown(r *rig) {
	ctx := r.t.Context()
	for _, kind := range []store.RoomKind{store.Private, store.Direct} {
		for _, who := range []string{"member", "guest", "admin"} {
			s := r.scene(kind, "outside:", who)
			absent := *s
			absent.room = 1 << 40
			for name, act := range actions {
				if got, want := fmt.Sprint(act(ctx, s)), fmt.Sprint(act(ctx, &absent)); got != want {
					r.t.Errorf("%s by a %s: in a %s room %q, in none %q", name, who, kind, got, want)
				}
			}
		}
	}
	// Names neither: two may have the same one.
	by := r.user(store.Member)
	for _, kind := range []store.RoomKind{store.Private, store.Public, store.Private} {
		room, made, err := r.rooms.Create(ctx, by, rooms.NewRoom{Kind: kind, Name: "Secret"})
		if err != nil || !made || room.Name != "Secret" || room.Kind != kind || room.Member != store.RoomOwner {
			r.t.Errorf("got %+v, %v, %v", room, made, err)
		}
	}
	if _, _, err := r.rooms.Create(ctx, by, rooms.NewRoom{Name: "secret"}); !errors.Is(err, coord.ErrConflict) {
		r.t.Errorf("another public one: got %v, want a conflict", err)
	}
	if got := r.heard(rooms.ListTopic); len(got) != 1 {
		r.t.Errorf("everybody heard %v, want of the public room alone", got)
	}
}
