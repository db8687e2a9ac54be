package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the rows

	"github.com/tandemhq/tandem/app/maintenance"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/worker"
	"github.com/tandemhq/tandem/migrations"
)

type rig struct {
	backend coord.Backend
	store   *store.Store
	rooms   *rooms.Service
	tasks   *tasks.Service
	room    store.Room
	ahead   time.Duration // of the machine's clock
}

func newRig(t *testing.T) *rig {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	if _, err := migrations.Up(t.Context(), rows, migrations.SQLite, migrations.App); err != nil {
		t.Fatal(err)
	}
	r := &rig{}
	now := func() time.Time { return time.Now().Add(r.ahead) }
	r.backend = memory.Open(memory.Options{Now: now})
	t.Cleanup(func() { _ = r.backend.Close(context.Background()) })
	r.store = store.New(store.Options{Write: bun.NewDB(rows, sqlitedialect.New()), Backend: r.backend, Now: now})
	r.rooms = rooms.New(r.store, r.backend)
	r.tasks = tasks.New(r.store, r.backend, r.rooms, slog.New(slog.DiscardHandler))
	var user store.User
	err = r.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		user, err = u.AddUser(ctx, store.NewUser{Name: "Ada", Role: store.Member, PasswordHash: "x"})
		return err
	})
	if err == nil {
		r.room, err = r.rooms.Create(t.Context(), user, "Reports")
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) claim(t *testing.T, who string) coord.Claim {
	t.Helper()
	claims, err := r.backend.Claimer().Claim(t.Context(), coord.ClaimOptions{
		Worker: who, Kinds: []string{tasks.KindMessage}, Limit: 10, Lease: time.Second,
	})
	if err != nil || len(claims) != 1 {
		t.Fatalf("%s claimed %v, %v", who, claims, err)
	}
	return claims[0]
}

func (r *rig) messages(t *testing.T) int {
	t.Helper()
	page, err := r.rooms.Messages(t.Context(), r.room.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if page.Position.Seq != int64(len(page.Messages)) {
		t.Errorf("%d messages and %d events", len(page.Messages), page.Position.Seq)
	}
	return len(page.Messages)
}

// A worker that lost its lease posts nothing, whatever the moment.
func TestStaleWorkerPostsNothing(t *testing.T) {
	r := newRig(t)
	if _, err := r.tasks.Create(t.Context(), tasks.NewTask{Name: "report", RoomID: r.room.ID, Text: "done"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tasks.RunNow(t.Context(), "report"); err != nil {
		t.Fatal(err)
	}
	run := r.tasks.Handlers()[tasks.KindMessage]
	stale := r.claim(t, "a")
	r.ahead += 2 * time.Second
	fresh := r.claim(t, "b")
	if err := run(t.Context(), stale); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("the stale worker: got %v, want fenced", err)
	}
	if n := r.messages(t); n != 0 {
		t.Errorf("the stale worker posted %d messages", n)
	}
	if err := run(t.Context(), fresh); !errors.Is(err, worker.ErrFinished) {
		t.Errorf("got %v, want finished", err)
	}
	for _, c := range []coord.Claim{stale, fresh} {
		if err := run(t.Context(), c); !errors.Is(err, coord.ErrFenced) {
			t.Errorf("after the end: got %v, want fenced", err)
		}
	}
	if n := r.messages(t); n != 1 {
		t.Errorf("there are %d messages, want 1", n)
	}
	runs, err := r.tasks.Runs(t.Context(), "report")
	if err != nil || len(runs) != 1 || runs[0].State != coord.Succeeded || runs[0].Attempt != 2 {
		t.Errorf("got %+v, %v", runs, err)
	}
}

func TestTaskOfARoomThatIsGone(t *testing.T) {
	r := newRig(t)
	_, err := r.backend.Claimer().Enqueue(t.Context(), coord.NewRun{
		Kind: tasks.KindMessage, Payload: []byte(`{"task":"x","room_id":999,"text":"x"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = r.tasks.Handlers()[tasks.KindMessage](t.Context(), r.claim(t, "a"))
	if err == nil || errors.Is(err, worker.ErrFinished) || errors.Is(err, coord.ErrNotFound) {
		t.Errorf("got %v, want a final failure", err)
	}
}

func TestMaintenanceDeletesWhatIsOld(t *testing.T) {
	r := newRig(t)
	if _, err := r.tasks.Create(t.Context(), tasks.NewTask{Name: "report", RoomID: r.room.ID, Text: "done"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tasks.RunNow(t.Context(), "report"); err != nil {
		t.Fatal(err)
	}
	if err := r.tasks.Handlers()[tasks.KindMessage](t.Context(), r.claim(t, "a")); !errors.Is(err, worker.ErrFinished) {
		t.Fatal(err)
	}
	if _, err := r.backend.Limiter().Allow(t.Context(), coord.Limit{Key: "k", Rate: 1, Per: time.Minute}); err != nil {
		t.Fatal(err)
	}
	m := maintenance.New(r.backend, r.store, maintenance.Options{}, slog.New(slog.DiscardHandler))
	m.Once(t.Context())
	if runs, err := r.tasks.Runs(t.Context(), "report"); err != nil || len(runs) != 1 {
		t.Errorf("young runs: got %v, %v", runs, err)
	}
	r.ahead += 31 * 24 * time.Hour
	m.Once(t.Context())
	if runs, err := r.tasks.Runs(t.Context(), "report"); err != nil || len(runs) != 0 {
		t.Errorf("old runs: got %v, %v", runs, err)
	}
	topic := rooms.Topic(r.room.ID)
	if _, err := r.backend.Broadcaster().Read(t.Context(), topic, coord.Start, 10); !errors.Is(err, coord.ErrReset) {
		t.Errorf("old events: got %v, want a reset", err)
	}
	page, err := r.rooms.Messages(t.Context(), r.room.ID, 0, 0)
	if err != nil || len(page.Messages) != 1 || page.Position.Seq != 1 {
		t.Errorf("messages stay: got %+v, %v", page, err)
	}
}
