package store_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/internal/apptest"
)

// What is unread is found by an index in the room alone, however many messages there are,
// and rooms are looked up, not searched.
func TestUnreadIsFoundByAnIndex(t *testing.T) {
	for name, test := range map[string]struct {
		open    func(*testing.T) *apptest.Database
		explain string
		numbers string // a table of numbers n
		analyze string
		index   string
		wrong   string
	}{
		"sqlite": {
			func(t *testing.T) *apptest.Database { t.Helper(); return apptest.SQLite(t, time.Now) }, `EXPLAIN QUERY PLAN `,
			`WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 50000) `,
			`ANALYZE`, `app_messages_room`, `SCAN (r|m|d|p|o|app_messages)\b`,
		},
		"pg": {
			apptest.PostgreSQL, `EXPLAIN `, `WITH numbers AS (SELECT generate_series(1, 50000) AS n) `,
			`ANALYZE app_rooms, app_members, app_messages, app_reads, app_users`, `app_messages_pkey`, `Seq Scan on app_messages`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, wrong := opened(t, test.open(t)), regexp.MustCompile(test.wrong)
			user, other := mustAddUser(t, db.store, "Ada"), mustAddUser(t, db.store, "Bob")
			fill := func(text string, args ...any) {
				t.Helper()
				err := db.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error { return u.Execute(ctx, text, args...) })
				if err != nil {
					t.Fatal(err)
				}
			}
			now := store.Time{Time: time.Now()}
			fill(test.numbers+`INSERT INTO app_rooms (kind, key, name, created_at)
				SELECT CASE WHEN n % 1000 = 0 THEN 'public' ELSE 'private' END, 'r' || n, 'r', ? FROM numbers WHERE n <= 5000`, now)
			fill(test.numbers+`INSERT INTO app_members (room_id, user_id, role, joined_at)
				SELECT n, ?, 'member', ? FROM numbers WHERE n <= 20`, user.ID, now)
			fill(test.numbers+`INSERT INTO app_messages (room_id, user_id, client_id, text, created_at)
				SELECT n % 40 + 1, ?, 'c' || n, 'text', ? FROM numbers`, other.ID, now)
			fill(test.analyze)
			plans, err := db.store.Plans(t.Context(), test.explain, user, 7)
			if err != nil {
				t.Fatal(err)
			}
			for name, plan := range plans {
				if found := wrong.FindString(plan); found != "" || !strings.Contains(plan, test.index) {
					t.Errorf("%q is in the plan of %s:\n%s", found, name, plan)
				}
			}
			list, err := db.store.MyRooms(t.Context(), user)
			if err != nil || len(list) != 25 || list[0].Unread != store.MaxUnread {
				t.Errorf("got %d rooms, %v", len(list), err)
			}
		})
	}
}
