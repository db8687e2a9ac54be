package migrations

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"
	"time"
)

// What is read from the files is what migrating a database makes of them.
func TestInspect(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		known, err := Known(d, sets...)
		if err != nil {
			t.Fatal(err)
		}
		applied := func() []Migration {
			t.Helper()
			list, err := Applied(t.Context(), db, d, sets...)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		if list := applied(); len(list) != 0 || len(tables(t, db, d)) != 0 {
			t.Errorf("an empty database has the migrations %v and the tables %q", list, tables(t, db, d))
		}
		if _, err := Up(t.Context(), db, d, Coord); err != nil {
			t.Fatal(err)
		}
		if list := applied(); len(list) == 0 || slices.ContainsFunc(list, func(m Migration) bool { return m.Set != Coord }) {
			t.Errorf("with the set coord: %v", list)
		}
		done, err := Up(t.Context(), db, d, sets...)
		if err != nil || len(done) == 0 {
			t.Fatal(done, err)
		}
		list := applied()
		for i, m := range list {
			if m.Applied.IsZero() {
				t.Errorf("%v was applied at no time", m)
			}
			list[i].Applied = time.Time{}
		}
		if !slices.Equal(list, known) {
			t.Errorf("applied are %v, want %v", list, known)
		}
		schema, err := Expect(d, known)
		if err != nil {
			t.Fatal(err)
		}
		there := slices.DeleteFunc(tables(t, db, d), func(name string) bool {
			return name == tableName(Coord) || name == tableName(App)
		})
		if !slices.Equal(schema.Tables, there) {
			t.Errorf("the tables are %q, want %q", schema.Tables, there)
		}
		functions := []string(nil)
		if d == PostgreSQL {
			functions = texts(t, db, `SELECT DISTINCT proname COLLATE "C" FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1`)
		}
		if !slices.Equal(schema.Functions, functions) {
			t.Errorf("the functions are %q, want %q", schema.Functions, functions)
		}
		read := func() []string {
			query := `SELECT name || ' ' || tbl_name || ' ' || CASE WHEN sql LIKE 'CREATE UNIQUE%' THEN 'true' ELSE 'false' END
				FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND name NOT LIKE '%_once' ORDER BY name`
			if d == PostgreSQL {
				query = `SELECT i.relname || ' ' || t.relname || ' ' || x.indisunique FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
					JOIN pg_class t ON t.oid = x.indrelid WHERE t.relnamespace = 'public'::regnamespace AND i.relname NOT LIKE '%_once'
					AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.indexrelid) ORDER BY i.relname COLLATE "C"`
			}
			return texts(t, db, query)
		}
		var indexes []string
		for _, i := range schema.Indexes {
			indexes = append(indexes, fmt.Sprintf("%s %s %t", i.Name, i.Table, i.Unique))
		}
		if !slices.Equal(indexes, read()) {
			t.Errorf("the indexes are %q, want %q", indexes, read())
		}
		// One that somebody has dropped is made again by its statement.
		for _, i := range schema.Indexes {
			for _, statement := range []string{"DROP INDEX " + i.Name, i.SQL} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Errorf("%s: %v", statement, err)
				}
			}
		}
		if again := read(); !slices.Equal(indexes, again) {
			t.Errorf("made again the indexes are %q, want %q", again, indexes)
		}
		// A newer program was here.
		if _, err := db.ExecContext(t.Context(), `INSERT INTO app_migrations (version_id, is_applied) VALUES (9999, true)`); err != nil {
			t.Fatal(err)
		}
		list = applied()
		if last := list[len(list)-1]; last.Version != 9999 || last.Name != "" || last.Set != App {
			t.Errorf("an unknown migration is %+v", last)
		}
		if later, err := Expect(d, list); err != nil || len(later.Indexes) != len(schema.Indexes) {
			t.Errorf("with an unknown migration %d indexes are expected, want %d: %v", len(later.Indexes), len(schema.Indexes), err)
		}
	})
}

func TestExpectFollowsChanges(t *testing.T) {
	from := fstest.MapFS{
		"pg/app/0001_one.sql": {Data: []byte("-- +goose Up\nCREATE TABLE a (\n    n int\n);\nCREATE TABLE b (n int);\n" +
			"CREATE UNIQUE INDEX a_n ON a (n)\n    WHERE n > 0;\nCREATE INDEX b_n ON b (n);\n" +
			"CREATE FUNCTION f() RETURNS int;\nCREATE FUNCTION g(n int)\n    RETURNS int;\n-- +goose Down\nDROP TABLE a, b;\n")},
		"pg/app/0002_two.sql": {Data: []byte("-- +goose Up\nDROP TABLE b;\nDROP INDEX a_n;\nCREATE UNLOGGED TABLE c (n int);\nCREATE INDEX c_n ON c (n);\n" +
			"DROP FUNCTION g(int);\nCREATE OR REPLACE FUNCTION f() RETURNS int;\n")},
	}
	all, err := known(from, PostgreSQL, []Set{App})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	first, err := expect(from, PostgreSQL, all[:1])
	if err != nil || !slices.Equal(first.Tables, []string{"a", "b"}) || !slices.Equal(first.Functions, []string{"f", "g"}) || !slices.Equal(first.Indexes, []Index{
		{Name: "a_n", Table: "a", Unique: true, SQL: "CREATE UNIQUE INDEX a_n ON a (n) WHERE n > 0"},
		{Name: "b_n", Table: "b", SQL: "CREATE INDEX b_n ON b (n)"},
	}) {
		t.Errorf("after the first: %+v, %v", first, err)
	}
	both, err := expect(from, PostgreSQL, all)
	if err != nil || !slices.Equal(both.Tables, []string{"a", "c"}) || len(both.Indexes) != 1 || both.Indexes[0].Name != "c_n" ||
		!slices.Equal(both.Functions, []string{"f"}) {
		t.Errorf("after both: %+v, %v", both, err)
	}
}
