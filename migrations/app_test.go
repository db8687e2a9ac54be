package migrations

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// upTo holds the migrations of a set up to a version.
func upTo(t *testing.T, d Dialect, set Set, version string) fstest.MapFS {
	t.Helper()
	some := make(fstest.MapFS)
	dir := path.Join(string(d), string(set))
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if number, _, _ := strings.Cut(e.Name(), "_"); number <= version {
			text, err := fs.ReadFile(files, path.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			some[path.Join(dir, e.Name())] = &fstest.MapFile{Data: text}
		}
	}
	return some
}

// Who made a room and who posted in it are its members, and have read it.
func TestRoomsGetMembers(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		if _, err := up(t.Context(), db, d, upTo(t, d, App, "0001"), App); err != nil {
			t.Fatal(err)
		}
		now := "0"
		if d == PostgreSQL {
			now = "now()"
		}
		for _, text := range []string{
			`INSERT INTO app_users (name, name_key, role, password_hash, created_at)
				VALUES ('Ada', 'ada', 'admin', 'x', $now), ('Bob', 'bob', 'member', 'x', $now), ('Carl', 'carl', 'member', 'x', $now)`,
			`INSERT INTO app_rooms (name, name_key, created_by, created_at)
				VALUES ('General', 'general', 1, $now), ('Empty', 'empty', 2, $now), ('Nobody''s', 'nobody''s', NULL, $now)`,
			`INSERT INTO app_messages (room_id, user_id, task_name, client_id, text, created_at)
				VALUES (1, 2, NULL, 'a', 'x', $now), (1, 1, NULL, 'b', 'x', $now), (1, 2, NULL, 'c', 'x', $now), (1, NULL, 'task', 'd', 'x', $now),
					(3, 1, NULL, 'e', 'x', $now)`,
		} {
			if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(text, "$now", now)); err != nil {
				t.Fatal(err)
			}
		}
		mustUp(t, db, d, App)
		for query, want := range map[string][]string{
			`SELECT room_id || ' ' || user_id || ' ' || role FROM app_members ORDER BY room_id, user_id`: {
				"1 1 owner", "1 2 member", "2 2 owner", "3 1 member",
			},
			`SELECT room_id || ' ' || user_id || ' ' || message_id FROM app_reads ORDER BY room_id, user_id`: {"1 1 4", "1 2 4", "3 1 5"},
			`SELECT kind || ' ' || key FROM app_rooms ORDER BY id`:                                           {"public general", "public empty", "public nobody's"},
			`SELECT role FROM app_users ORDER BY id`:                                                         {"admin", "member", "member"},
		} {
			if got := texts(t, db, query); !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", query, got, want)
			}
		}

		// Backwards, what not everybody may see is gone.
		for _, text := range []string{
			`INSERT INTO app_rooms (name, key, kind, created_at) VALUES ('Secret', ' x', 'private', $now)`,
			`INSERT INTO app_messages (room_id, user_id, client_id, text, created_at) VALUES (4, 1, 'f', 'x', $now)`,
			`UPDATE app_users SET role = 'guest' WHERE id = 3`,
		} {
			if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(text, "$now", now)); err != nil {
				t.Fatal(err)
			}
		}
		p, err := provider(db, d, files, App)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.DownTo(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if n := number(t, db, `SELECT count(*) FROM app_messages`); n != 5 {
			t.Errorf("%d messages are left, want 5", n)
		}
		got := texts(t, db, `SELECT name FROM app_rooms ORDER BY id`)
		roles := texts(t, db, `SELECT role FROM app_users ORDER BY id`)
		if !slices.Equal(got, []string{"General", "Empty", "Nobody's"}) || !slices.Equal(roles, []string{"admin", "member", "member"}) {
			t.Errorf("there are the rooms %q and the roles %q", got, roles)
		}
	})
}

// Backwards, a token does not become a session that may do everything, nor who is deactivated
// somebody who can sign in.
func TestAccountsGoBack(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		mustUp(t, db, d, App)
		now := "0"
		if d == PostgreSQL {
			now = "now()"
		}
		for _, text := range []string{
			`INSERT INTO app_users (name, name_key, role, password_hash, created_at, deactivated_at)
				VALUES ('Ada', 'ada', 'admin', 'x', $now, NULL), ('Bob', 'bob', 'admin', 'x', $now, $now)`,
			`INSERT INTO app_sessions (secret_hash, user_id, kind, name, scopes, created_at, seen_at)
				VALUES ('a', 1, 'browser', '', '', $now, $now), ('b', 1, 'token', 't', 'read', $now, $now)`,
		} {
			if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(text, "$now", now)); err != nil {
				t.Fatal(err)
			}
		}
		p, err := provider(db, d, files, App)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.DownTo(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if n := number(t, db, `SELECT count(*) FROM app_sessions`); n != 1 {
			t.Errorf("%d sessions are left, want that of the browser", n)
		}
		if hashes := texts(t, db, `SELECT password_hash FROM app_users ORDER BY id`); !slices.Equal(hashes, []string{"x", ""}) {
			t.Errorf("the passwords are %q", hashes)
		}
	})
}
