package rooms_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

type rig struct {
	t       *testing.T
	backend coord.Backend
	store   *store.Store
	rooms   *rooms.Service
	made    atomic.Int64 // users and rooms
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(r *rig)) {
	t.Helper()
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) { test(newRig(t, d)) })
}

func memoryRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, apptest.Memory(t, time.Now))
}

func newRig(t *testing.T, d *apptest.Database) *rig {
	t.Helper()
	backend, st := d.Store(t)
	return &rig{t: t, backend: backend, store: st, rooms: rooms.New(st, backend)}
}

// user makes a user with a name of their own.
func (r *rig) user(role store.Role) (user store.User) {
	r.t.Helper()
	err := r.store.InTx(r.t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		user, err = u.AddUser(ctx, store.NewUser{Name: fmt.Sprint("user ", r.made.Add(1)), Role: role, PasswordHash: "x"})
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return user
}

// room makes a room, a direct one with a new person.
func (r *rig) room(by store.User, kind store.RoomKind) store.MyRoom {
	r.t.Helper()
	n := rooms.NewRoom{Kind: kind, Name: fmt.Sprint("room ", r.made.Add(1))}
	if kind == store.Direct {
		n = rooms.NewRoom{Kind: kind, UserID: r.user(store.Member).ID}
	}
	room, _, err := r.rooms.Create(r.t.Context(), by, n)
	if err != nil {
		r.t.Fatal(err)
	}
	return room
}

func (r *rig) add(by store.User, room int64, user store.User, role store.RoomRole) {
	r.t.Helper()
	if _, err := r.rooms.SetMember(r.t.Context(), by, room, user.ID, role); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) post(by store.User, room int64) store.Message {
	r.t.Helper()
	m, _, err := r.rooms.Post(r.t.Context(), by, room, fmt.Sprint("client ", r.made.Add(1)), "text")
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// mine is a room as somebody finds it in their list; the zero one when it is not there.
func (r *rig) mine(by store.User, room int64) store.MyRoom {
	r.t.Helper()
	list, err := r.rooms.List(r.t.Context(), by)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, found := range list {
		if found.ID == room {
			return found
		}
	}
	return store.MyRoom{}
}

func (r *rig) events(topic string) []coord.Event {
	r.t.Helper()
	list, err := r.backend.Broadcaster().Read(r.t.Context(), topic, coord.Start, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// heard are the kinds of the events of a topic.
func (r *rig) heard(topic string) (kinds []string) {
	r.t.Helper()
	for _, e := range r.events(topic) {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// last is the payload of the last event of a topic, which is of that kind.
func last[T any](r *rig, topic, kind string) (payload T) {
	r.t.Helper()
	list := r.events(topic)
	if len(list) == 0 || list[len(list)-1].Kind != kind {
		r.t.Fatalf("%s: heard %v, want %s at last", topic, r.heard(topic), kind)
	}
	if err := json.Unmarshal(list[len(list)-1].Payload, &payload); err != nil {
		r.t.Fatal(err)
	}
	return payload
}

func of(user store.User) string { return auth.UserTopic(user.ID) }
