package rooms_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(leakless{m})) }

// leakless are tests that leave no goroutine behind.
type leakless struct{ *testing.M }

func (l leakless) Run() int {
	code := l.M.Run()
	if err := goleak.Find(goleak.IgnoreAnyFunction(testenv.GoroutineName)); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

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
	for name, open := range map[string]func(*testing.T) *rig{"memory": memoryRig, "sqlite": sqliteRig, "pg": pgRig} {
		t.Run(name, func(t *testing.T) { test(open(t)) })
	}
}

func memoryRig(t *testing.T) *rig {
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
	return newRig(t, memory.Open(memory.Options{}), store.Options{Write: bun.NewDB(rows, sqlitedialect.New())})
}

func sqliteRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.OpenDB(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord, migrations.App); err != nil {
		t.Fatal(err)
	}
	backend, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, backend, store.Options{Write: db.Write, Read: db.Read})
}

func pgRig(t *testing.T) *rig {
	t.Helper()
	url := testenv.NewDatabase(t, "tandem", func(url string) error {
		db, err := pg.OpenDB(url, 2)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	db, err := pg.OpenDB(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	backend, err := pg.Open(t.Context(), pg.Options{URL: url, DB: db})
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, backend, store.Options{Write: db})
}

func newRig(t *testing.T, backend coord.Backend, o store.Options) *rig {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := backend.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	o.Backend = backend
	r := &rig{t: t, backend: backend, store: store.New(o)}
	r.rooms = rooms.New(r.store, backend)
	return r
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
