package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

func (r *rig) user(t *testing.T, name string, role store.Role) (user store.User) {
	t.Helper()
	err := r.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		user, err = u.AddUser(ctx, store.NewUser{Name: name, Role: role, PasswordHash: "x"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// heard are the kinds of the events of a topic.
func (r *rig) heard(t *testing.T, topic string) (kinds []string) {
	t.Helper()
	list, err := r.backend.Broadcaster().Read(t.Context(), topic, coord.Start, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// everything is what somebody can do with a task and its run.
func (r *rig) everything(t *testing.T, by store.User, task tasks.Task, run coord.RunID) map[string]error {
	ctx, s := t.Context(), r.tasks
	return map[string]error{
		"get":    second(s.Get(ctx, by, task.Name)),
		"update": second(s.Update(ctx, by, task.Name, task.Definition)),
		"pause":  second(s.Pause(ctx, by, task.Name, false)),
		"run":    second(s.RunNow(ctx, by, task.Name, "again", false)),
		"runs":   third(s.Runs(ctx, by, tasks.RunsFilter{Task: task.Name})),
		"a run":  second(s.Run(ctx, by, run)),
		"a log":  third(s.Log(ctx, by, run, 0)),
		"cancel": second(s.Cancel(ctx, by, run)),
		"delete": s.Delete(ctx, by, task.Name),
	}
}

func TestTasksOfPrivateRooms(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	outsider, guest := r.user(t, "Max", store.Member), r.user(t, "Gil", store.Guest)
	room := r.makeRoom(t, store.Private, "Secret")
	if _, err := r.rooms.SetMember(ctx, r.member, room.ID, guest.ID, ""); err != nil {
		t.Fatal(err)
	}
	d := tasks.Definition{Name: "hidden", RoomID: room.ID, Text: "done", Overlap: coord.OverlapAllow}
	for _, by := range []store.User{outsider, r.admin} {
		_, err := r.tasks.Create(ctx, by, d)
		wantField(t, err, "room_id")
	}
	for _, in := range []int64{room.ID, r.room.ID} {
		d := d
		d.RoomID = in
		if _, err := r.tasks.Create(ctx, guest, d); !errors.Is(err, rooms.ErrForbidden) {
			t.Errorf("by a guest: got %v", err)
		}
	}
	task, err := r.tasks.Create(ctx, r.member, d)
	if err != nil || task.Room != "Secret" || task.RoomID != room.ID || task.Topic != rooms.Topic(room.ID) {
		t.Fatalf("got %+v, %v", task, err)
	}
	open := r.create(t, r.message("open"))
	if open.Topic != tasks.RunsTopic("open") {
		t.Errorf("got the topic %q", open.Topic)
	}
	run, err := r.tasks.RunNow(ctx, r.member, task.Name, "key", false)
	if err != nil {
		t.Fatal(err)
	}

	for _, by := range []store.User{outsider, guest} {
		for what, err := range r.everything(t, by, task, run.ID) {
			if !errors.Is(err, coord.ErrNotFound) {
				t.Errorf("%s by %s: got %v, want not found", what, by.Name, err)
			}
		}
	}
	for _, test := range []struct {
		by    store.User
		names string
	}{{r.member, "[hidden open]"}, {r.admin, "[hidden open]"}, {outsider, "[open]"}, {guest, "[]"}} {
		list, err := r.tasks.List(ctx, test.by)
		var names []string
		for _, task := range list {
			names = append(names, task.Name)
		}
		if got := fmt.Sprint(names); got != test.names || err != nil {
			t.Errorf("%s sees %s, %v; want %s", test.by.Name, got, err, test.names)
		}
	}

	// An administrator can stop it, and learns no more than that it is there.
	seen, err := r.tasks.Get(ctx, r.admin, task.Name)
	if err != nil || seen.RoomID != 0 || seen.Room != "" || seen.Text != "" || seen.Topic != "" || seen.Schedule != task.Schedule {
		t.Errorf("an administrator sees %+v, %v", seen, err)
	}
	all := r.everything(t, r.admin, seen, run.ID)
	wantField(t, all["update"], "text")
	delete(all, "update")
	for what, err := range all {
		if err != nil {
			t.Errorf("%s by an administrator: got %v", what, err)
		}
	}

	// What becomes of it is heard in the room, and nowhere else.
	kinds := r.heard(t, rooms.Topic(room.ID))
	for _, kind := range []string{tasks.KindChanged, tasks.KindRunChanged} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("in the room was heard %v, not %s", kinds, kind)
		}
	}
	if got := r.heard(t, tasks.RunsTopic(task.Name)); len(got) != 0 {
		t.Errorf("everybody heard %v", got)
	}
	if got := r.heard(t, tasks.Topic); len(got) != 1 {
		t.Errorf("everybody heard %v, want of the other task alone", got)
	}
}

func TestTaskMovesToAPrivateRoom(t *testing.T) {
	r := newRig(t)
	room := r.makeRoom(t, store.Private, "Secret")
	d := r.message("report")
	task, err := r.tasks.Create(t.Context(), r.member, d)
	if err != nil {
		t.Fatal(err)
	}
	for i, in := range []int64{room.ID, r.room.ID} { // both hear of it
		task.RoomID = in
		if task, err = r.tasks.Update(t.Context(), r.member, task.Name, task.Definition); err != nil {
			t.Fatal(err)
		}
		if got := len(r.heard(t, tasks.Topic)); got != i+2 {
			t.Errorf("everybody heard %d times, want %d", got, i+2)
		}
		if got := r.heard(t, rooms.Topic(room.ID)); len(got) != i+1 {
			t.Errorf("in the room was heard %v", got)
		}
	}
}

func TestRunsOfOthersArePassedOver(t *testing.T) {
	r := newRig(t)
	outsider := r.user(t, "Max", store.Member)
	room := r.makeRoom(t, store.Private, "Secret")
	for name, in := range map[string]int64{"hidden": room.ID, "open": r.room.ID} {
		d := tasks.Definition{Name: name, RoomID: in, Text: "done", Overlap: coord.OverlapAllow}
		if _, err := r.tasks.Create(t.Context(), r.member, d); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		name := "hidden"
		if i%7 == 0 {
			name = "open"
		}
		if _, err := r.tasks.RunNow(t.Context(), r.member, name, "", false); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		by        store.User
		open, all int
	}{{outsider, 3, 3}, {r.member, 3, 20}, {r.admin, 3, 20}} {
		got, all := 0, 0
		f := tasks.RunsFilter{Limit: 2}
		for more := true; more; {
			page, further, err := r.tasks.Runs(t.Context(), test.by, f)
			if err != nil || len(page) == 0 || further && len(page) != 2 {
				t.Fatal(page, further, err)
			}
			for _, run := range page {
				all++
				if run.Task == "open" {
					got++
				}
			}
			more, f.Before = further, page[len(page)-1].ID
		}
		if got != test.open || all != test.all {
			t.Errorf("%s sees %d runs, %d of them open; want %d and %d", test.by.Name, all, got, test.all, test.open)
		}
	}
}
