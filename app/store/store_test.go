package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
)

func addUser(t *testing.T, st *store.Store, n store.NewUser) (user store.User, err error) {
	t.Helper()
	err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		user, err = u.AddUser(ctx, n)
		return err
	})
	return user, err
}

func mustAddUser(t *testing.T, st *store.Store, name string) store.User {
	t.Helper()
	user, err := addUser(t, st, store.NewUser{Name: name, Role: store.Member, PasswordHash: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func addRoom(t *testing.T, st *store.Store, name string, by int64) (room store.Room, err error) {
	t.Helper()
	err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		room, err = u.AddRoom(ctx, store.Public, name, "", by)
		return err
	})
	return room, err
}

func TestNamesAreComparedWithoutCase(t *testing.T) { onEach(t, testNames) }

func testNames(t *testing.T, db database) {
	st := db.store
	mustAddUser(t, st, "Ada")
	if _, err := addUser(t, st, store.NewUser{Name: " aDA ", Role: store.Member, PasswordHash: "x"}); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	c, err := st.Credentials(t.Context(), "ADA")
	if err != nil || c.Name != "Ada" || c.PasswordHash != "x" {
		t.Errorf("got %+v, %v", c, err)
	}
	mustAddUser(t, st, "Zoë  Σας")
	if c, err := st.Credentials(t.Context(), "zoË ΣΑΣ"); err != nil || c.Name != "Zoë  Σας" {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := st.Credentials(t.Context(), "Bob"); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
}

func TestOneFounder(t *testing.T) { onEach(t, testOneFounder) }

func testOneFounder(t *testing.T, db database) {
	st := db.store
	if has, err := st.HasUsers(t.Context()); has || err != nil {
		t.Fatalf("got %v, %v", has, err)
	}
	if _, err := addUser(t, st, store.NewUser{Name: "a", Role: store.Admin, PasswordHash: "x", Founder: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := addUser(t, st, store.NewUser{Name: "b", Role: store.Admin, PasswordHash: "x", Founder: true}); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	mustAddUser(t, st, "c")
	mustAddUser(t, st, "d")
}

func TestSetupTokens(t *testing.T) { onEach(t, testSetupTokens) }

func testSetupTokens(t *testing.T, db database) {
	st := db.store
	use := func(hash string) error {
		return st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			return u.UseSetupToken(ctx, []byte(hash))
		})
	}
	for hash, ttl := range map[string]time.Duration{"good": time.Hour, "old": -time.Second} {
		if err := st.AddSetupToken(t.Context(), []byte(hash), ttl); err != nil {
			t.Fatal(err)
		}
	}
	for hash, want := range map[string]bool{"good": true, "old": false, "other": false} {
		if good, err := st.SetupTokenGood(t.Context(), []byte(hash)); good != want || err != nil {
			t.Errorf("%s: got %v, %v", hash, good, err)
		}
	}
	if err := use("old"); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("an expired token: got %v", err)
	}
	if err := use("good"); err != nil {
		t.Error(err)
	}
	if err := use("good"); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("a used token: got %v", err)
	}
}

func TestSessions(t *testing.T) { onEach(t, testSessions) }

func testSessions(t *testing.T, db database) {
	st := db.store
	user := mustAddUser(t, st, "Ada")
	made, err := st.AddSession(t.Context(), store.NewSession{Hash: []byte("hash"), User: user, Address: "192.0.2.1", UserAgent: "Firefox"})
	if err != nil {
		t.Fatal(err)
	}
	var life store.Lifetime
	get := func(kind store.SessionKind) (store.Session, error) {
		return st.Session(t.Context(), kind, []byte("hash"), life)
	}
	got, err := get(store.Browser)
	if err != nil || got != made || got.User != user || got.Kind != store.Browser {
		t.Errorf("got %+v, %v; want %+v", got, err, made)
	}
	if byID, err := st.SessionByID(t.Context(), made.ID, life); err != nil || byID != made {
		t.Errorf("got %+v, %v; want %+v", byID, err, made)
	}
	if _, err := get(store.Token); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("as a token: got %v, want not found", err)
	}
	if _, err := st.Session(t.Context(), store.Browser, []byte("other"), life); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
	list, err := st.Sessions(t.Context(), user.ID, store.Browser, life)
	if err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].Address != "192.0.2.1" || list[0].UserAgent != "Firefox" ||
		list[0].SeenAt != list[0].CreatedAt || time.Since(list[0].SeenAt.Time).Abs() > time.Minute {
		t.Errorf("got %+v, %v", list, err)
	}
	deactivate := func(active bool) error {
		return st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error { return u.SetActive(ctx, user.ID, active) })
	}
	if err := deactivate(false); err != nil {
		t.Fatal(err)
	}
	if _, err := get(store.Browser); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("of who is deactivated: got %v, want not found", err)
	}
	if _, err := st.Credentials(t.Context(), "Ada"); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("the credentials of who is deactivated: got %v, want not found", err)
	}
	if err := deactivate(true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			ended, err := u.EndSessions(ctx, store.Ending{User: user.ID, ID: made.ID})
			if len(ended) != want || want == 1 && ended[0] != (store.Ended{ID: made.ID, UserID: user.ID, Kind: store.Browser}) {
				t.Errorf("got %v, want %v", ended, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := get(store.Browser); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("after its end: got %v, want not found", err)
	}
}

func TestTokensOfTheStore(t *testing.T) { onEach(t, testTokens) }

func testTokens(t *testing.T, db database) {
	st := db.store
	user, other := mustAddUser(t, st, "Ada"), mustAddUser(t, st, "Bob")
	add := func(hash, name string, of store.User, expires time.Duration) store.Session {
		t.Helper()
		made, err := st.AddSession(t.Context(), store.NewSession{
			Hash: []byte(hash), User: of, Name: name, Scopes: "chat read", Expires: expires,
		})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	forever, _, _ := add("a", "ever", user, 0), add("b", "over", user, -time.Second), add("c", "theirs", other, time.Hour)
	if _, err := st.AddSession(t.Context(), store.NewSession{Hash: []byte("d"), User: user}); err != nil {
		t.Fatal(err)
	}
	// Neither is idle for too long: nothing but its own end ends a token.
	life := store.Lifetime{Idle: time.Nanosecond, Absolute: time.Nanosecond}
	list := func() []store.SessionInfo {
		t.Helper()
		list, err := st.Sessions(t.Context(), user.ID, store.Token, life)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := list(); len(got) != 1 || got[0].Name != "ever" || got[0].Scopes != "chat read" || !got[0].ExpiresAt.IsZero() ||
		got[0].SeenAt != got[0].CreatedAt {
		t.Errorf("got %+v", got)
	}
	used := time.Time{}
	for range 2 { // of which one is written down
		got, err := st.Session(t.Context(), store.Token, []byte("a"), life)
		if err != nil || got != forever {
			t.Errorf("got %+v, %v; want %+v", got, err, forever)
		}
		seen := list()[0].SeenAt
		if !seen.After(list()[0].CreatedAt.Time) || !used.IsZero() && seen.Time != used {
			t.Errorf("used at %v, made at %v, and before at %v", seen, list()[0].CreatedAt, used)
		}
		used = seen.Time
	}
	for _, hash := range []string{"b", "d"} {
		if _, err := st.Session(t.Context(), store.Token, []byte(hash), life); !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("%s: got %v, want not found", hash, err)
		}
	}
	if n, err := reap(t, st, life); n != 2 || err != nil { // that which is over, and the browser's
		t.Errorf("reaped %d, %v; want 2", n, err)
	}
	err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
		ended, err := u.EndSessions(ctx, store.Ending{User: user.ID, ID: forever.ID, Kind: store.Browser})
		if len(ended) != 0 || err != nil {
			t.Errorf("a token ended as if it were a browser's session: %v, %v", ended, err)
		}
		ended, err = u.EndSessions(ctx, store.Ending{User: user.ID})
		if len(ended) != 1 || ended[0].Name != "ever" {
			t.Errorf("got %v", ended)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := st.Session(t.Context(), store.Token, []byte("c"), life); err != nil {
		t.Errorf("that of somebody else: got %v", err)
	}
}

func reap(t *testing.T, st *store.Store, life store.Lifetime) (n int, err error) {
	t.Helper()
	err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		n, err = u.Reap(ctx, life)
		return err
	})
	return n, err
}

func TestSessionsExpire(t *testing.T) {
	var ahead time.Duration // of the machine's clock
	st := opened(t, apptest.Memory(t, func() time.Time { return time.Now().Add(ahead) })).store
	user := mustAddUser(t, st, "Ada")
	hash, life := []byte("used"), store.Lifetime{}
	for _, h := range []string{"used", "idle"} {
		if _, err := st.AddSession(t.Context(), store.NewSession{Hash: []byte(h), User: user}); err != nil {
			t.Fatal(err)
		}
	}
	step := store.SessionIdle - time.Hour
	for age := step; age < store.SessionAbsolute; age += step {
		ahead += step
		if _, err := st.Session(t.Context(), store.Browser, hash, life); err != nil {
			t.Fatalf("used all the time, after %v: %v", age, err)
		}
	}
	if _, err := st.Session(t.Context(), store.Browser, []byte("idle"), life); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("idle: got %v, want not found", err)
	}
	ahead += step
	if _, err := st.Session(t.Context(), store.Browser, hash, life); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("beyond the absolute limit: got %v, want not found", err)
	}
	if n, err := reap(t, st, life); n != 2 || err != nil {
		t.Errorf("reaped %d, %v; want 2", n, err)
	}
	if n, err := reap(t, st, life); n != 0 || err != nil {
		t.Errorf("reaped %d, %v; want 0", n, err)
	}
}

func TestMessages(t *testing.T) { onEach(t, testMessages) }

func testMessages(t *testing.T, db database) {
	st := db.store
	user := mustAddUser(t, st, "Ada")
	room, err := addRoom(t, st, "General", user.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := addRoom(t, st, "GENERAL", user.ID); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if time.Since(room.CreatedAt.Time).Abs() > time.Minute {
		t.Errorf("made at %v", room.CreatedAt)
	}
	text := "it's “quoted”, back\\slash ? and 👋 שלום"
	post := func(clientID string, room int64) (m store.Message, created bool, err error) {
		err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
			m, created, err = u.AddMessage(ctx, room, user, clientID, text)
			return err
		})
		return m, created, err
	}
	first, created, err := post("c0", room.ID)
	if err != nil || !created || first.Author != "Ada" || first.Text != text {
		t.Fatalf("got %+v, %v, %v", first, created, err)
	}
	again, created, err := post("c0", room.ID)
	if err != nil || created || again != first {
		t.Errorf("again: got %+v, %v, %v; want %+v", again, created, err, first)
	}
	if _, _, err := post("c1", room.ID+1000); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("no room: got %v, want not found", err)
	}
	for i := 1; i < 5; i++ {
		if _, _, err := post(fmt.Sprint("c", i), room.ID); err != nil {
			t.Fatal(err)
		}
	}
	err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
		_, err := u.AddTaskMessage(ctx, room.ID, "report", "run:1", "done")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	newest, more, err := st.Messages(t.Context(), room.ID, 0, 3)
	if err != nil || !more || len(newest) != 3 || newest[2].Author != "report" || newest[2].UserID != 0 {
		t.Fatalf("got %+v, %v, %v", newest, more, err)
	}
	older, more, err := st.Messages(t.Context(), room.ID, newest[0].ID, 3)
	if err != nil || more || len(older) != 3 || older[0] != first {
		t.Errorf("got %+v, %v, %v; want %+v first", older, more, err, first)
	}
}

func TestWebhooks(t *testing.T) { onEach(t, testWebhooks) }

func testWebhooks(t *testing.T, db database) {
	st := db.store
	change := func(fn func(ctx context.Context, u store.Unit) error) {
		t.Helper()
		if err := st.InTx(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	want := func(task int64, secrets string, among ...int64) {
		t.Helper()
		got, now, err := st.Webhook(t.Context(), task)
		if err != nil || string(bytes.Join(got, []byte(" "))) != secrets || time.Since(now.Time).Abs() > time.Minute {
			t.Errorf("got %q at %v, %v; want %q", got, now, err, secrets)
		}
		have, err := st.Webhooks(t.Context(), 1, 2, 3)
		if slices.Sort(have); err != nil || !slices.Equal(have, among) {
			t.Errorf("got %v, %v; want %v", have, err, among)
		}
	}
	set := func(task int64, secret string, overlap time.Duration, old bool) {
		t.Helper()
		change(func(ctx context.Context, u store.Unit) error {
			until, err := u.SetWebhook(ctx, task, []byte(secret), overlap)
			if old != !until.IsZero() || old && time.Until(until.Add(-overlap)).Abs() > time.Minute {
				t.Errorf("the one before is good until %v", until)
			}
			return err
		})
	}
	want(1, "")
	set(1, "old", 0, false)
	set(2, "a\x00b'", time.Hour, false)
	want(1, "old", 1, 2)
	want(2, "a\x00b'", 1, 2)
	set(1, "new", time.Hour, true)
	want(1, "new old", 1, 2)
	set(1, "newer", time.Microsecond, true)
	want(1, "newer", 1, 2)
	set(1, "newest", time.Hour, true)
	set(1, "last", 0, false)
	want(1, "last", 1, 2)
	for _, there := range []bool{true, false} {
		change(func(ctx context.Context, u store.Unit) error {
			got, err := u.DropWebhook(ctx, 1)
			if got != there {
				t.Errorf("got %v, want %v", got, there)
			}
			return err
		})
	}
	want(1, "", 2)
	if have, err := st.Webhooks(t.Context()); err != nil || len(have) != 0 {
		t.Errorf("of no task: got %v, %v", have, err)
	}
}

func TestUnitIsWhole(t *testing.T) { onEach(t, testUnitIsWhole) }

func testUnitIsWhole(t *testing.T, db database) {
	st := db.store
	failure := errors.New("enough")
	work := func(name string, result error) error {
		return st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			if _, err := u.AddRoom(ctx, store.Public, name, "", mustHave(t, u)); err != nil {
				return err
			}
			if err := u.Coord.Publish(ctx, coord.NewEvent{Topic: "t", Kind: name}); err != nil {
				return err
			}
			return result
		})
	}
	if err := work("lost", failure); !errors.Is(err, failure) {
		t.Errorf("got %v, want the function's own error", err)
	}
	if err := work("kept", nil); err != nil {
		t.Fatal(err)
	}
	rooms, err := st.MyRooms(t.Context(), store.User{Role: store.Member})
	if err != nil || len(rooms) != 1 || rooms[0].Name != "kept" {
		t.Errorf("rooms: got %+v, %v", rooms, err)
	}
	events, err := db.backend.Broadcaster().Read(t.Context(), "t", coord.Start, 10)
	if err != nil || len(events) != 1 || events[0].Kind != "kept" {
		t.Errorf("events: got %+v, %v", events, err)
	}
}

func mustHave(t *testing.T, u store.Unit) int64 {
	t.Helper()
	user, err := u.AddUser(t.Context(), store.NewUser{Name: "Ada", Role: store.Member, PasswordHash: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return user.ID
}

func TestParallelWriters(t *testing.T) { onEach(t, testParallelWriters) }

// Of writers that meet, one makes the row and the others find it.
func testParallelWriters(t *testing.T, db database) {
	st := db.store
	user := mustAddUser(t, st, "Ada")
	room, err := addRoom(t, st, "General", user.ID)
	if err != nil {
		t.Fatal(err)
	}
	var made, founders atomic.Int32
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
				_, created, err := u.AddMessage(ctx, room.ID, user, "same", "text")
				if created {
					made.Add(1)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			_, err := addUser(t, st, store.NewUser{Name: fmt.Sprint("f", i), Role: store.Admin, PasswordHash: "x", Founder: true})
			switch {
			case err == nil:
				founders.Add(1)
			case !errors.Is(err, coord.ErrConflict):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 || founders.Load() != 1 {
		t.Errorf("%d messages and %d founders were made, want one of each", made.Load(), founders.Load())
	}
}

func TestSetupHasOneWinner(t *testing.T) { onEach(t, testSetupHasOneWinner) }

func testSetupHasOneWinner(t *testing.T, db database) {
	accounts := auth.New(db.store, db.backend, auth.Options{Hashing: auth.Hashing{Memory: 64, Iterations: 1}},
		slog.New(slog.DiscardHandler))
	tokens := make([]string, 8)
	for i := range tokens {
		var err error
		if tokens[i], err = accounts.SetupToken(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var won atomic.Int32
	var all sync.WaitGroup
	for i, token := range tokens {
		all.Go(func() {
			_, err := accounts.Setup(t.Context(), token, fmt.Sprint("user", i), "correct horse")
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, auth.ErrSetupToken):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d became administrator, want one", won.Load())
	}
	if token, err := accounts.SetupToken(t.Context()); token != "" || err != nil {
		t.Errorf("after set-up: a token %q, %v", token, err)
	}
}

func TestOutagesAreTold(t *testing.T) {
	db := opened(t, apptest.SQLite(t, time.Now))
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := db.store.MyRooms(ctx, store.User{}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("beyond the deadline: got %v, want unavailable", err)
	}
}
