package migrations

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/tandemhq/tandem/internal/testenv"
)

// childEnv makes a process of the test binary migrate a database instead.
const childEnv = "TANDEM_TEST_MIGRATE"

func TestMain(m *testing.M) {
	if task := os.Getenv(childEnv); task != "" {
		os.Exit(child(task))
	}
	os.Exit(testenv.Main(m))
}

// childTask is what such a process does, and childResult what it prints.
type childTask struct {
	Dialect    Dialect
	URL        string
	Repeatable bool // migrate repeatable instead of the real sets
}

// child waits until its standard input is closed, so that all start together.
func child(text string) int {
	var task childTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	db, err := openDB(task.Dialect, task.URL)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	from, sets := fs.FS(files), []Set{Coord, App}
	if task.Repeatable {
		from, sets = repeatable, []Set{Coord}
	}
	done, err := up(context.Background(), db, task.Dialect, from, sets...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
		return 2
	}
	return 0
}

func openDB(d Dialect, url string) (*sql.DB, error) {
	if d == PostgreSQL {
		return sql.Open("postgres", url)
	}
	return sql.Open("sqlite", url)
}

// fresh returns an empty database and its URL.
func fresh(t *testing.T, d Dialect) (*sql.DB, string) {
	t.Helper()
	var url string
	if d == PostgreSQL {
		url = testenv.NewDatabase(t, "", nil)
	} else {
		url = "file:" + filepath.Join(t.TempDir(), "test.db") +
			"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=foreign_keys(1)"
	}
	db, err := openDB(d, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db, url
}

// both runs a test on each dialect.
func both(t *testing.T, test func(t *testing.T, d Dialect)) {
	for _, d := range []Dialect{PostgreSQL, SQLite} {
		t.Run(string(d), func(t *testing.T) { test(t, d) })
	}
}

var sets = []Set{Coord, App}

// tables lists the tables of a database that are not the engine's own.
func tables(t *testing.T, db *sql.DB, d Dialect) []string {
	t.Helper()
	query := `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`
	if d == PostgreSQL {
		query = `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name`
	}
	return texts(t, db, query)
}

func texts(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// sources counts the migrations of a set in the embedded files.
func sources(t *testing.T, d Dialect, set Set) int {
	t.Helper()
	found, err := fs.Glob(files, string(d)+"/"+string(set)+"/*.sql")
	if err != nil || len(found) == 0 {
		t.Fatalf("%s/%s has no migrations (%v)", d, set, err)
	}
	return len(found)
}

func mustUp(t *testing.T, db *sql.DB, d Dialect, sets ...Set) []Migration {
	t.Helper()
	done, err := Up(t.Context(), db, d, sets...)
	if err != nil {
		t.Fatalf("Up: %v", err)
	}
	return done
}

func mustStatus(t *testing.T, db *sql.DB, d Dialect, sets ...Set) (applied, pending int) {
	t.Helper()
	all, err := Status(t.Context(), db, d, sets...)
	if err != nil {
		t.Fatalf("Status: %v", err)
	}
	for _, m := range all {
		if m.Name == "" || m.Version == 0 {
			t.Errorf("Status lists %+v, without a name or version", m)
		}
		if m.Applied.IsZero() {
			pending++
		} else {
			applied++
		}
	}
	return applied, pending
}

func TestUpTwice(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		all := sources(t, d, Coord) + sources(t, d, App)
		if applied, pending := mustStatus(t, db, d, sets...); applied != 0 || pending != all {
			t.Errorf("before: %d applied and %d pending, want 0 and %d", applied, pending, all)
		}
		if made := tables(t, db, d); len(made) > 0 {
			t.Errorf("Status made the tables %v", made)
		}
		done := mustUp(t, db, d, sets...)
		if len(done) != all {
			t.Errorf("Up applied %v, want %d migrations", done, all)
		}
		for _, m := range done {
			if m.Applied.IsZero() || m.Name == "" || m.Set != Coord && m.Set != App {
				t.Errorf("Up returned %+v", m)
			}
		}
		if again := mustUp(t, db, d, sets...); len(again) != 0 {
			t.Errorf("Up, again, applied %v", again)
		}
		if applied, pending := mustStatus(t, db, d, sets...); applied != all || pending != 0 {
			t.Errorf("after: %d applied and %d pending, want %d and 0", applied, pending, all)
		}
	})
}

func TestSetsAreIndependent(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		for _, order := range [][]Set{{Coord, App}, {App, Coord}} {
			db, _ := fresh(t, d)
			for i, set := range order {
				for _, m := range mustUp(t, db, d, set) {
					if m.Set != set {
						t.Errorf("Up of %s applied %+v", set, m)
					}
				}
				if applied, pending := mustStatus(t, db, d, set); applied != sources(t, d, set) || pending != 0 {
					t.Errorf("%s: %d applied, %d pending", set, applied, pending)
				}
				if i > 0 {
					continue
				}
				for _, table := range tables(t, db, d) {
					if !strings.HasPrefix(table, string(set)+"_") {
						t.Errorf("the set %s made the table %s", set, table)
					}
				}
				if applied, _ := mustStatus(t, db, d, order[1]); applied != 0 {
					t.Errorf("%s alone has applied %d of %s", set, applied, order[1])
				}
			}
		}
	})
}

// TestDown undoes every migration one by one, and does it again.
func TestDown(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		mustUp(t, db, d, sets...)
		before := columns(t, db, d)
		for _, set := range []Set{App, Coord} {
			p, err := provider(db, d, files, set)
			if err != nil {
				t.Fatal(err)
			}
			for range sources(t, d, set) {
				if _, err := p.Down(t.Context()); err != nil {
					t.Fatalf("Down of %s: %v", set, err)
				}
			}
		}
		if left := tables(t, db, d); !slices.Equal(left, []string{"app_migrations", "coord_migrations"}) {
			t.Errorf("after Down there are the tables %v", left)
		}
		if d == PostgreSQL {
			if left := texts(t, db, `SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace`); len(left) > 0 {
				t.Errorf("after Down there are the functions %v", left)
			}
		}
		mustUp(t, db, d, sets...)
		if after := columns(t, db, d); !maps.EqualFunc(before, after, slices.Equal) {
			t.Errorf("up, down and up again gives\n%v, want\n%v", after, before)
		}
	})
}

// broken has a migration that fails after it has made something.
func broken(d Dialect, fixed bool) fstest.MapFS {
	second := "CREATE TABLE second_half (a integer);\nINSERT INTO first (a) VALUES (1);\n"
	if !fixed {
		second += "INSERT INTO nowhere VALUES (1);\n"
	}
	return fstest.MapFS{
		string(d) + "/coord/0001_first.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE first (a integer);\n")},
		string(d) + "/coord/0002_second.sql": {Data: []byte("-- +goose Up\n" + second)},
		string(d) + "/coord/0003_third.sql":  {Data: []byte("-- +goose Up\nCREATE TABLE third (a integer);\n")},
	}
}

func TestFailedMigrationLeavesNoTrace(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		for range 2 {
			done, err := up(t.Context(), db, d, broken(d, false), Coord)
			if err == nil || !strings.Contains(err.Error(), "nowhere") {
				t.Fatalf("up with a broken migration: %v", err)
			}
			if len(done) > 1 {
				t.Errorf("up with a broken migration applied %v", done)
			}
			if got, want := tables(t, db, d), []string{"coord_migrations", "first"}; !slices.Equal(got, want) {
				t.Errorf("after the failure there are the tables %v, want %v", got, want)
			}
			if n := number(t, db, `SELECT count(*) FROM first`); n != 0 {
				t.Errorf("the failed migration left %d rows", n)
			}
			if n := number(t, db, `SELECT max(version_id) FROM coord_migrations`); n != 1 {
				t.Errorf("version %d is recorded, want 1", n)
			}
		}
		done, err := up(t.Context(), db, d, broken(d, true), Coord)
		if err != nil || len(done) != 2 {
			t.Fatalf("up after the fix applied %v: %v", done, err)
		}
		if n := number(t, db, `SELECT count(*) FROM first`); n != 1 {
			t.Errorf("the fixed migration left %d rows, want 1", n)
		}
	})
}

func TestWhatWasAppliedBeforeAFailureIsReturned(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		done, err := up(t.Context(), db, d, broken(d, false), Coord)
		if err == nil || len(done) != 1 || done[0].Name != "0001_first.sql" {
			t.Errorf("up returned %v and %v, want the first migration and an error", done, err)
		}
	})
}

func TestPostgreSQLNeedsTwoConnections(t *testing.T) {
	db, _ := fresh(t, PostgreSQL)
	db.SetMaxOpenConns(1)
	if _, err := Up(t.Context(), db, PostgreSQL, Coord); err == nil || !strings.Contains(err.Error(), "two connections") {
		t.Errorf("Up with one connection: %v; want a sentence about two connections", err)
	}
	db.SetMaxOpenConns(2)
	mustUp(t, db, PostgreSQL, Coord)
}

// TestSQLiteNeedsOneConnection has a database that lives in its only connection.
func TestSQLiteNeedsOneConnection(t *testing.T) {
	db, err := openDB(SQLite, ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	mustUp(t, db, SQLite, sets...)
	if again := mustUp(t, db, SQLite, sets...); len(again) != 0 {
		t.Errorf("Up, again, applied %v", again)
	}
	if _, pending := mustStatus(t, db, SQLite, sets...); pending != 0 {
		t.Errorf("%d migrations are pending", pending)
	}
}

func TestUpGivesUpWithItsContext(t *testing.T) {
	db, _ := fresh(t, PostgreSQL)
	unlock, err := lock(t.Context(), db, PostgreSQL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := Up(ctx, db, PostgreSQL, Coord)
		done <- err
	}()
	waitFor(t, db, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	cancel()
	if err := <-done; err == nil {
		t.Error("Up went on while another process held the lock and its own context was cancelled")
	}
	unlock()
	mustUp(t, db, PostgreSQL, Coord)
}

// waitFor waits until a query counts something.
func waitFor(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); number(t, db, query) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("still nothing: %s", query)
		}
	}
}

// repeatable holds a migration that would succeed a second time.
var repeatable = fstest.MapFS{}

func init() {
	for _, d := range []Dialect{PostgreSQL, SQLite} {
		repeatable[string(d)+"/coord/0001_table.sql"] = &fstest.MapFile{Data: []byte(
			"-- +goose Up\nCREATE TABLE IF NOT EXISTS counted (a integer);\nINSERT INTO counted VALUES (1);\n")}
		repeatable[string(d)+"/coord/0002_more.sql"] = &fstest.MapFile{Data: []byte(
			"-- +goose Up\nINSERT INTO counted VALUES (2);\n")}
	}
}

// TestProcessesAtOnce starts ten processes on one database.
func TestProcessesAtOnce(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		t.Run("real", func(t *testing.T) {
			db, url := fresh(t, d)
			applied := startTogether(t, childTask{Dialect: d, URL: url})
			for _, set := range sets {
				if got, want := applied[set], sources(t, d, set); got != want {
					t.Errorf("the processes applied %d migrations of %s, want %d", got, set, want)
				}
				query := fmt.Sprintf(`SELECT count(*) FROM %s_migrations WHERE version_id > 0`, set)
				if got, want := number(t, db, query), sources(t, d, set); got != want {
					t.Errorf("%d migrations of %s are recorded, want %d", got, set, want)
				}
			}
			if applied, pending := mustStatus(t, db, d, sets...); pending != 0 || applied == 0 {
				t.Errorf("afterwards %d are applied and %d pending", applied, pending)
			}
		})
		t.Run("repeatable", func(t *testing.T) {
			db, url := fresh(t, d)
			if applied := startTogether(t, childTask{Dialect: d, URL: url, Repeatable: true}); applied[Coord] != 2 {
				t.Errorf("the processes applied %d migrations, want 2", applied[Coord])
			}
			if n := number(t, db, `SELECT count(*) FROM counted`); n != 2 {
				t.Errorf("the migrations inserted %d rows, want 2", n)
			}
		})
	})
}

// startTogether runs ten processes and counts what they applied of each set.
func startTogether(t *testing.T, task childTask) map[Set]int {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	start, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer start.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	applied := make(map[Set]int)
	var processes sync.WaitGroup
	for range 10 {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), childEnv+"="+string(text))
		cmd.Stdin = start
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		processes.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("a process failed: %v\n%s", err, stderr.String())
				return
			}
			var done []Migration
			if err := json.Unmarshal(stdout.Bytes(), &done); err != nil {
				t.Errorf("%v in %q", err, stdout.String())
			}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range done {
				applied[m.Set]++
			}
		})
	}
	if err := release.Close(); err != nil {
		t.Fatal(err)
	}
	processes.Wait()
	return applied
}

// columns maps each table of the sets to its columns, with NOT NULL marked.
func columns(t *testing.T, db *sql.DB, d Dialect) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	for _, table := range tables(t, db, d) {
		if strings.HasSuffix(table, "_migrations") {
			continue
		}
		query := fmt.Sprintf(`SELECT name || CASE WHEN "notnull" OR pk THEN ' not null' ELSE '' END FROM pragma_table_info('%s')`, table)
		if d == PostgreSQL {
			query = fmt.Sprintf(`SELECT column_name || CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END
				FROM information_schema.columns WHERE table_schema = 'public' AND table_name = '%s'`, table)
		}
		found[table] = slices.Sorted(slices.Values(texts(t, db, query)))
	}
	return found
}

func TestDialectsHaveTheSameColumns(t *testing.T) {
	found := make(map[Dialect]map[string][]string)
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		mustUp(t, db, d, sets...)
		found[d] = columns(t, db, d)
	})
	pg, lite := found[PostgreSQL], found[SQLite]
	// What each engine needs to put events in the order of their commits.
	drop := func(of map[string][]string, table, column string) {
		before := len(of[table])
		of[table] = slices.DeleteFunc(of[table], func(c string) bool { return c == column })
		if len(of[table]) != before-1 {
			t.Errorf("%s has no column %q: is this exception still needed?", table, column)
		}
	}
	drop(pg, "coord_events", "xid not null")
	drop(pg, "coord_topics", "before not null")
	drop(lite, "coord_events", "id not null")
	if got, want := slices.Sorted(maps.Keys(lite)), slices.Sorted(maps.Keys(pg)); !slices.Equal(got, want) {
		t.Fatalf("SQLite has the tables %v, PostgreSQL %v", got, want)
	}
	for table := range pg {
		if !slices.Equal(pg[table], lite[table]) {
			t.Errorf("%s has the columns\n%v on PostgreSQL and\n%v on SQLite", table, pg[table], lite[table])
		}
	}
}
