package rooms_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

func wantHeard(r *rig, topic string, kinds ...string) {
	r.t.Helper()
	if got := r.heard(topic); !slices.Equal(got, kinds) {
		r.t.Errorf("%s: heard %v, want %v", topic, got, kinds)
	}
}

func TestNewRoomsAreTold(t *testing.T) { onEach(t, testNewRoomsAreTold) }

func testNewRoomsAreTold(r *rig) {
	ada := r.user(store.Member)
	public := r.room(ada, store.Public)
	wantHeard(r, rooms.ListTopic, rooms.KindRoom)
	if got := last[store.Room](r, rooms.ListTopic, rooms.KindRoom); got != public.Room {
		r.t.Errorf("heard of %+v, want %+v", got, public.Room)
	}
	if got := last[store.MyRoom](r, of(ada), rooms.KindJoined); got != public || got != r.mine(ada, public.ID) {
		r.t.Errorf("heard of %+v, want %+v", got, public)
	}
	private := r.room(ada, store.Private)
	if got := last[store.MyRoom](r, of(ada), rooms.KindJoined); got != private || got != r.mine(ada, private.ID) {
		r.t.Errorf("heard of %+v, want %+v", got, private)
	}
	wantHeard(r, rooms.ListTopic, rooms.KindRoom)
	wantHeard(r, rooms.Topic(public.ID))
	wantHeard(r, rooms.Topic(private.ID))
}

func TestWrongRooms(t *testing.T) {
	r := memoryRig(t)
	ada := r.user(store.Member)
	for _, test := range []struct {
		field string
		room  rooms.NewRoom
	}{
		{"kind", rooms.NewRoom{Kind: "secret", Name: "x"}},
		{"name", rooms.NewRoom{}},
		{"name", rooms.NewRoom{Kind: store.Private, Name: strings.Repeat("x", 81)}},
		{"name", rooms.NewRoom{Kind: store.Direct, Name: "x", UserID: ada.ID + 1}},
		{"description", rooms.NewRoom{Name: "x", Description: "a\u202eb"}},
		{"description", rooms.NewRoom{Name: "x", Description: strings.Repeat("x", 501)}},
		{"description", rooms.NewRoom{Kind: store.Direct, Description: "x", UserID: ada.ID + 1}},
		{"user_id", rooms.NewRoom{Name: "x", UserID: ada.ID}},
		{"user_id", rooms.NewRoom{Kind: store.Direct, UserID: ada.ID}},
		{"user_id", rooms.NewRoom{Kind: store.Direct}},
		{"user_id", rooms.NewRoom{Kind: store.Direct, UserID: 999}},
	} {
		_, _, err := r.rooms.Create(t.Context(), ada, test.room)
		if e, ok := errors.AsType[*coord.InvalidError](err); !ok || e.Field != test.field {
			t.Errorf("%+v: got %v, want invalid %s", test.room, err, test.field)
		}
	}
	guest := r.user(store.Guest)
	for _, n := range []rooms.NewRoom{{Name: "x"}, {Kind: store.Private, Name: "x"}, {Kind: store.Direct, UserID: ada.ID}} {
		if _, _, err := r.rooms.Create(t.Context(), guest, n); !errors.Is(err, rooms.ErrForbidden) {
			t.Errorf("%+v by a guest: got %v", n, err)
		}
	}
	if _, err := r.rooms.Users(t.Context(), guest); !errors.Is(err, rooms.ErrForbidden) {
		t.Errorf("the users for a guest: got %v", err)
	}
	if list, err := r.rooms.Users(t.Context(), ada); err != nil || !slices.Equal(list, []store.User{ada, guest}) {
		t.Errorf("the users: got %v, %v", list, err)
	}
	room := r.room(ada, store.Public)
	if _, err := r.rooms.SetMember(t.Context(), ada, room.ID, guest.ID, "boss"); !errors.Is(err, coord.ErrInvalid) {
		t.Errorf("another role: got %v", err)
	}
	if _, err := r.rooms.SetMember(t.Context(), ada, room.ID, guest.ID, store.RoomOwner); !errors.Is(err, coord.ErrInvalid) {
		t.Errorf("a guest as an owner: got %v", err)
	}
	if _, err := r.rooms.SetMember(t.Context(), ada, room.ID, 999, ""); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("nobody: got %v", err)
	}
}

func TestDirectRooms(t *testing.T) { onEach(t, testDirectRooms) }

// Two people have one room, whoever makes it, however often and at once.
func testDirectRooms(r *rig) {
	people := []store.User{r.user(store.Member), r.user(store.Member)}
	var made atomic.Int32
	var ids sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			by, with := people[i%2], people[(i+1)%2]
			room, isNew, err := r.rooms.Create(r.t.Context(), by, rooms.NewRoom{Kind: store.Direct, UserID: with.ID})
			if err != nil || room.Name != with.Name || room.UserID != with.ID || room.Member != store.RoomMember {
				r.t.Errorf("got %+v, %v", room, err)
			}
			if isNew {
				made.Add(1)
			}
			ids.Store(room.ID, true)
		})
	}
	all.Wait()
	var found []int64
	ids.Range(func(id, _ any) bool {
		found = append(found, id.(int64))
		return true
	})
	if made.Load() != 1 || len(found) != 1 {
		r.t.Fatalf("%d were made, with the ids %v", made.Load(), found)
	}
	for i, person := range people {
		wantHeard(r, of(person), rooms.KindJoined)
		if got := last[store.MyRoom](r, of(person), rooms.KindJoined); got.Name != people[1-i].Name || got.ID != found[0] {
			r.t.Errorf("%s heard of %+v", person.Name, got)
		}
	}
	wantHeard(r, rooms.ListTopic)
	members, err := r.rooms.Members(r.t.Context(), people[0], found[0])
	if err != nil || len(members) != 2 || members[0].UserID != people[0].ID || members[1].UserID != people[1].ID {
		r.t.Errorf("got %+v, %v", members, err)
	}
	r.post(people[0], found[0])
	room, isNew, err := r.rooms.Create(r.t.Context(), people[1], rooms.NewRoom{Kind: store.Direct, UserID: people[0].ID})
	if err != nil || isNew || room.Unread != 1 {
		r.t.Errorf("with what is unread: got %+v, %v", room, err)
	}
}

func TestMembersAreTold(t *testing.T) { onEach(t, testMembersAreTold) }

func testMembersAreTold(r *rig) {
	ada, bob, guest := r.user(store.Member), r.user(store.Member), r.user(store.Guest)
	for _, kind := range []store.RoomKind{store.Public, store.Private} {
		room := r.room(ada, kind)
		topic := rooms.Topic(room.ID)
		for range 2 { // of which the second changes nothing
			r.add(ada, room.ID, bob, "")
		}
		got := last[store.RoomPerson](r, topic, rooms.KindMemberAdded)
		if got.UserID != bob.ID || got.Name != bob.Name || got.Role != store.RoomMember || got.JoinedAt.IsZero() {
			r.t.Errorf("heard of %+v", got)
		}
		joined := last[store.MyRoom](r, of(bob), rooms.KindJoined)
		if joined != r.mine(bob, room.ID) || joined.Name != room.Name || joined.Member != store.RoomMember {
			r.t.Errorf("%s heard of %+v", bob.Name, joined)
		}
		for range 2 {
			r.add(ada, room.ID, bob, store.RoomOwner)
		}
		if got := last[store.RoomPerson](r, topic, rooms.KindMemberChanged); got.UserID != bob.ID || got.Role != store.RoomOwner {
			r.t.Errorf("heard of %+v", got)
		}
		r.add(ada, room.ID, bob, "") // which leaves the role as it is
		r.add(ada, room.ID, guest, "")
		wantHeard(r, topic, rooms.KindMemberAdded, rooms.KindMemberChanged, rooms.KindMemberAdded)

		for _, person := range []store.User{bob, guest} {
			if err := r.rooms.RemoveMember(r.t.Context(), ada, room.ID, person.ID); err != nil {
				r.t.Fatal(err)
			}
			want := rooms.Removed{UserID: person.ID, Name: person.Name, ByID: ada.ID, MayRead: kind == store.Public && person == bob}
			if got := last[rooms.Removed](r, topic, rooms.KindMemberRemoved); got != want {
				r.t.Errorf("heard of %+v, want %+v", got, want)
			}
			events := r.events(topic)
			user, lost := rooms.RemovedUser(events[len(events)-1])
			if lost == want.MayRead || lost && user != person.ID {
				r.t.Errorf("%s room: %s lost it: %v of %d", kind, person.Name, lost, user)
			}
			left := last[store.MyRoom](r, of(person), rooms.KindLeft)
			if left.Room != room.Room || left.Member != "" {
				r.t.Errorf("%s heard of %+v", person.Name, left)
			}
			err := r.rooms.MayRead(r.t.Context(), person, room.ID)
			if (err == nil) != want.MayRead || err != nil && !errors.Is(err, coord.ErrNotFound) {
				r.t.Errorf("%s in the %s room: %v", person.Name, kind, err)
			}
		}
		members, err := r.rooms.Members(r.t.Context(), ada, room.ID)
		if err != nil || len(members) != 1 || members[0].UserID != ada.ID || members[0].Role != store.RoomOwner {
			r.t.Errorf("got %+v, %v", members, err)
		}
	}
	for _, e := range []coord.Event{
		{Kind: rooms.KindMemberAdded, Payload: []byte(`{"user_id":1}`)},
		{Kind: rooms.KindMemberRemoved, Payload: []byte(`{"user_id":1,"may_read":true}`)},
		{Kind: rooms.KindMemberRemoved, Payload: []byte(`nothing`)},
	} {
		if user, ok := rooms.RemovedUser(e); ok {
			r.t.Errorf("by %s %s user %d lost the room", e.Kind, e.Payload, user)
		}
	}
}

func TestOwnersLeaveAtOnce(t *testing.T) { onEach(t, testOwnersLeaveAtOnce) }

// A private room that has members has an owner, whatever happens at once.
func testOwnersLeaveAtOnce(r *rig) {
	for range 5 {
		owners := []store.User{r.user(store.Member), r.user(store.Member), r.user(store.Member)}
		room := r.room(owners[0], store.Private)
		r.add(owners[0], room.ID, r.user(store.Member), "")
		for _, o := range owners[1:] {
			r.add(owners[0], room.ID, o, store.RoomOwner)
		}
		var left atomic.Int32
		var all sync.WaitGroup
		for _, o := range owners {
			all.Go(func() {
				err := r.rooms.RemoveMember(r.t.Context(), o, room.ID, o.ID)
				switch {
				case err == nil:
					left.Add(1)
				case !errors.Is(err, coord.ErrConflict):
					r.t.Error(err)
				}
			})
		}
		all.Wait()
		if left.Load() != 2 {
			r.t.Errorf("%d of 3 owners left", left.Load())
		}
	}
}

func TestReading(t *testing.T) { onEach(t, testReading) }

func testReading(r *rig) {
	ctx := r.t.Context()
	ada, bob := r.user(store.Member), r.user(store.Member)
	room := r.room(ada, store.Public)
	other := r.room(ada, store.Public)
	r.post(ada, room.ID)
	if got := r.mine(bob, room.ID); got.Unread != 0 || got.LastRead != 0 || got.Member != "" {
		r.t.Errorf("who is no member has %+v", got)
	}
	r.add(bob, room.ID, bob, "") // by whom it is all read
	want := func(unread int, lastRead int64) {
		r.t.Helper()
		if got := r.mine(bob, room.ID); got.Unread != unread || got.LastRead != lastRead {
			r.t.Errorf("%d are unread behind %d, want %d behind %d", got.Unread, got.LastRead, unread, lastRead)
		}
		if got, err := r.rooms.Get(ctx, bob, room.ID); err != nil || got != r.mine(bob, room.ID) {
			r.t.Errorf("got %+v, %v", got, err)
		}
	}
	joined := r.mine(bob, room.ID).LastRead
	want(0, joined)
	var ids []int64
	for range 3 {
		ids = append(ids, r.post(ada, room.ID).ID)
	}
	r.post(ada, other.ID)
	own := r.post(bob, room.ID).ID
	want(3, joined)
	err := r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		return r.rooms.PostTask(ctx, u, room.ID, "report", "run:1", "done")
	})
	if err != nil {
		r.t.Fatal(err)
	}
	want(4, joined)
	if err := r.rooms.Delete(ctx, ada, room.ID, ids[2]); err != nil {
		r.t.Fatal(err)
	}
	want(3, joined)

	read := func(id int64) {
		r.t.Helper()
		if err := r.rooms.MarkRead(ctx, bob, room.ID, id); err != nil {
			r.t.Fatal(err)
		}
	}
	before := len(r.events(of(bob)))
	read(ids[1])
	want(1, ids[1])
	if got := last[rooms.Marker](r, of(bob), rooms.KindRead); got != (rooms.Marker{RoomID: room.ID, MessageID: ids[1]}) {
		r.t.Errorf("heard %+v", got)
	}
	read(ids[0]) // which is behind that
	read(ids[1])
	want(1, ids[1])
	if after := len(r.events(of(bob))); after != before+1 {
		r.t.Errorf("%d events, want one", after-before)
	}
	read(1 << 60) // no further than there are messages
	want(0, own+1)
	if got := last[rooms.Marker](r, of(bob), rooms.KindRead); got.MessageID != own+1 {
		r.t.Errorf("heard %+v", got)
	}
	if err := r.rooms.MarkRead(ctx, bob, room.ID, 0); !errors.Is(err, coord.ErrInvalid) {
		r.t.Errorf("got %v, want invalid", err)
	}
	empty := r.room(ada, store.Public)
	if err := r.rooms.MarkRead(ctx, bob, empty.ID, 5); err != nil || r.mine(bob, empty.ID).LastRead != 0 {
		r.t.Errorf("got %v and %+v", err, r.mine(bob, empty.ID))
	}
	wantHeard(r, of(ada), rooms.KindJoined, rooms.KindJoined, rooms.KindJoined) // nothing of what bob has read
}

func TestUnreadIsBounded(t *testing.T) {
	r := memoryRig(t)
	ada, bob := r.user(store.Member), r.user(store.Member)
	room := r.room(ada, store.Private)
	r.add(ada, room.ID, bob, "")
	for range store.MaxUnread + 20 {
		r.post(ada, room.ID)
	}
	if got := r.mine(bob, room.ID).Unread; got != store.MaxUnread {
		t.Errorf("%d are unread, want %d", got, store.MaxUnread)
	}
	if got := r.mine(ada, room.ID).Unread; got != 0 {
		t.Errorf("%d of one's own are unread", got)
	}
}

func TestReadingOnManyDevices(t *testing.T) { onEach(t, testReadingOnManyDevices) }

func testReadingOnManyDevices(r *rig) {
	ada, bob := r.user(store.Member), r.user(store.Member)
	room := r.room(ada, store.Public)
	var ids []int64
	for range 16 {
		ids = append(ids, r.post(ada, room.ID).ID)
	}
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			if err := r.rooms.MarkRead(r.t.Context(), bob, room.ID, ids[(i*7)%16]); err != nil {
				r.t.Error(err)
			}
		})
	}
	all.Wait()
	if got := r.mine(bob, room.ID).LastRead; got != ids[15] {
		r.t.Errorf("read up to %d, want %d", got, ids[15])
	}
	before := int64(0)
	for _, e := range r.events(of(bob)) {
		var at rooms.Marker
		if err := json.Unmarshal(e.Payload, &at); err != nil || at.MessageID <= before {
			r.t.Errorf("heard %s after %d, %v", e.Payload, before, err)
		}
		before = at.MessageID
	}
	if got := last[rooms.Marker](r, of(bob), rooms.KindRead); got.MessageID != ids[15] {
		r.t.Errorf("heard %+v at last", got)
	}
}

func TestEditing(t *testing.T) { onEach(t, testEditing) }

func testEditing(r *rig) {
	ctx := r.t.Context()
	ada := r.user(store.Member)
	room := r.room(ada, store.Public)
	topic := rooms.Topic(room.ID)
	posted := r.post(ada, room.ID)
	history := func() store.Message {
		r.t.Helper()
		page, err := r.rooms.Messages(ctx, ada, room.ID, 0, 0)
		if err != nil || len(page.Messages) != 1 {
			r.t.Fatalf("got %+v, %v", page, err)
		}
		return page.Messages[0]
	}
	edited, err := r.rooms.Edit(ctx, ada, room.ID, posted.ID, "better")
	if err != nil || edited.Text != "better" || edited.EditedAt.IsZero() || edited.Deleted ||
		edited.CreatedAt != posted.CreatedAt || edited.Author != ada.Name {
		r.t.Errorf("got %+v, %v", edited, err)
	}
	if got := last[store.Message](r, topic, rooms.KindMessageEdited); got != edited || history() != edited {
		r.t.Errorf("heard %+v, stored is %+v, want %+v", got, history(), edited)
	}
	again, made, err := r.rooms.Post(ctx, ada, room.ID, posted.ClientID, posted.Text)
	if err != nil || made || again != edited {
		r.t.Errorf("sent again: got %+v, %v, %v", again, made, err)
	}
	for range 2 {
		if err := r.rooms.Delete(ctx, ada, room.ID, posted.ID); err != nil {
			r.t.Fatal(err)
		}
	}
	gone := last[store.Message](r, topic, rooms.KindMessageDeleted)
	if gone.Text != "" || !gone.Deleted || gone.ID != posted.ID || history() != gone {
		r.t.Errorf("heard %+v, stored is %+v", gone, history())
	}
	if _, err := r.rooms.Edit(ctx, ada, room.ID, posted.ID, "back"); !errors.Is(err, coord.ErrConflict) {
		r.t.Errorf("got %v, want a conflict", err)
	}
	if _, err := r.rooms.Edit(ctx, ada, room.ID, posted.ID, " "); !errors.Is(err, coord.ErrInvalid) {
		r.t.Errorf("got %v, want invalid", err)
	}
	other := r.room(ada, store.Public)
	for _, id := range []int64{posted.ID + 1000, r.post(ada, other.ID).ID} { // of another room
		if _, err := r.rooms.Edit(ctx, ada, room.ID, id, "x"); !errors.Is(err, coord.ErrNotFound) {
			r.t.Errorf("got %v, want not found", err)
		}
		if err := r.rooms.Delete(ctx, ada, room.ID, id); !errors.Is(err, coord.ErrNotFound) {
			r.t.Errorf("got %v, want not found", err)
		}
	}
	wantHeard(r, topic, rooms.KindMessage, rooms.KindMessageEdited, rooms.KindMessageDeleted)

	// A task's message belongs to nobody: owners delete it.
	err = r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		return r.rooms.PostTask(ctx, u, room.ID, "report", "run:1", "done")
	})
	if err != nil {
		r.t.Fatal(err)
	}
	report := last[store.Message](r, topic, rooms.KindMessage)
	if err := r.rooms.Delete(ctx, r.user(store.Member), room.ID, report.ID); !errors.Is(err, rooms.ErrForbidden) {
		r.t.Errorf("got %v, want forbidden", err)
	}
	if err := r.rooms.Delete(ctx, ada, room.ID, report.ID); err != nil {
		r.t.Error(err)
	}
}

func TestDescribing(t *testing.T) { onEach(t, testDescribing) }

func testDescribing(r *rig) {
	ada := r.user(store.Member)
	for _, kind := range []store.RoomKind{store.Public, store.Private} {
		room := r.room(ada, kind)
		listed := len(r.events(rooms.ListTopic))
		for range 2 { // of which the second changes nothing
			got, err := r.rooms.Describe(r.t.Context(), ada, room.ID, "  What it is about ")
			room.Description = "What it is about"
			if err != nil || got != room || r.mine(ada, room.ID) != room {
				r.t.Errorf("got %+v, %v; want %+v", got, err, room)
			}
		}
		wantHeard(r, rooms.Topic(room.ID), rooms.KindRoomChanged)
		if got := last[store.Room](r, rooms.Topic(room.ID), rooms.KindRoomChanged); got != room.Room {
			r.t.Errorf("heard of %+v, want %+v", got, room.Room)
		}
		if got := len(r.events(rooms.ListTopic)) - listed; (got == 1) != (kind == store.Public) || got > 1 {
			r.t.Errorf("everybody heard of the %s room %d times", kind, got)
		}
	}
}

func TestTyping(t *testing.T) {
	r := memoryRig(t)
	ada := r.user(store.Member)
	room := r.room(ada, store.Private)
	if err := r.rooms.Typing(t.Context(), ada, room.ID); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"user_id": float64(ada.ID), "name": ada.Name}
	if got := last[map[string]any](r, rooms.Topic(room.ID), rooms.KindTyping); !reflect.DeepEqual(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
}

func TestMayReadAll(t *testing.T) {
	r := memoryRig(t)
	ada := r.user(store.Member)
	a, b := r.room(ada, store.Public).ID, r.room(ada, store.Private).ID
	for _, test := range []struct {
		rooms []int64
		want  string
	}{
		{nil, "ok"}, {[]int64{a, b}, "ok"}, {[]int64{a, a, b}, "ok"}, {[]int64{a, 999}, "404"}, {[]int64{a, a, 999}, "404"},
	} {
		if got := outcome(r.rooms.MayRead(t.Context(), ada, test.rooms...)); got != test.want {
			t.Errorf("%v: got %s, want %s", test.rooms, got, test.want)
		}
	}
}
