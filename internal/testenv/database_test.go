package testenv

import (
	"bytes"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
)

const (
	envChild = "TESTENV_CHILD"
	asked    = 10
)

// TestChild is what a copy of this test binary does when a test starts one. Run by itself it
// has no task.
func TestChild(t *testing.T) {
	switch os.Getenv(envChild) {
	case "database":
		fmt.Println("database", NewDatabase(t, "ten processes", fill))
	case "cluster":
		c := Shared(t)
		fmt.Println("pid", c.Pid(), "folder", c.folder.path)
		time.Sleep(time.Hour)
	}
}

func childCommand(t *testing.T, task string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(append(os.Environ(), envChild+"="+task), env...)
	return cmd
}

// fill takes long enough for others to come in between.
func fill(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec(`CREATE TABLE filled (at timestamptz); INSERT INTO filled SELECT clock_timestamp() FROM pg_sleep(0.3)`)
	return err
}

func TestDatabasesAreSeparateAndDropped(t *testing.T) {
	c := Shared(t)
	var calls atomic.Int32
	prepare := func(url string) error { calls.Add(1); return fill(url) }
	template := "Ten at Once " + rand.Text() // of this run of the test
	seen := map[string]string{}
	var mu sync.Mutex
	t.Run("tests", func(t *testing.T) {
		for range asked {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				url := NewDatabase(t, template, prepare)
				name := query(t, url, `SELECT current_database()`)
				filled := query(t, url, `SELECT at::text FROM filled`)
				query(t, url, `WITH gone AS (DELETE FROM filled RETURNING at) SELECT count(*)::text FROM gone`)
				mu.Lock()
				defer mu.Unlock()
				seen[name] = filled
			})
		}
	})
	if len(seen) != asked || calls.Load() != 1 {
		t.Errorf("%d distinct databases from %d fillings, want %d from 1", len(seen), calls.Load(), asked)
	}
	for name := range seen {
		if exists(t, c, name) {
			t.Errorf("%s was not dropped", name)
		}
	}
}

func exists(t *testing.T, c *Cluster, name string) bool {
	t.Helper()
	return query(t, c.URL("postgres"), `SELECT count(*)::text FROM pg_database WHERE datname = `+pq.QuoteLiteral(name)) != "0"
}

func TestTenProcessesShareATemplate(t *testing.T) {
	c := Shared(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range asked {
		wg.Go(func() {
			output, err := childCommand(t, "database", EnvPostgresURL+"="+c.URL("postgres")).CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(output)) {
				if url, ok := strings.CutPrefix(line, "database "); ok {
					seen[strings.TrimSpace(url)] = true
				}
			}
			if err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
	wg.Wait()
	if len(seen) != asked {
		t.Errorf("%d distinct databases, want %d", len(seen), asked)
	}
	left := query(t, c.URL("postgres"), `SELECT count(*)::text FROM pg_database WHERE datname LIKE 'tandem\_template\_ten\_processes\_%'`)
	if left != "1" {
		t.Errorf("%s templates, want 1", left)
	}
}

func TestOpenConnectionsDoNotKeepADatabase(t *testing.T) {
	c := Shared(t)
	var name string
	t.Run("holds", func(t *testing.T) {
		url := NewDatabase(t, "", nil)
		name = query(t, url, `SELECT current_database()`)
		db, err := sql.Open("postgres", url)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if exists(t, c, name) {
		t.Errorf("%s was not dropped", name)
	}
}

func TestLateDisconnectOfPrepare(t *testing.T) {
	var db *sql.DB
	url := NewDatabase(t, "late "+rand.Text(), func(url string) (err error) {
		if db, err = sql.Open("postgres", url); err != nil {
			return err
		}
		_, err = db.Exec(`CREATE TABLE late (n int)`)
		return err // the connection stays open
	})
	defer db.Close()
	if got := query(t, url, `SELECT count(*)::text FROM late`); got != "0" {
		t.Fatalf("got %s", got)
	}
}

func TestFailedPrepareLeavesNoTemplate(t *testing.T) {
	c := Shared(t)
	wrong := errors.New("wrong statement")
	if _, err := c.template("broken", func(string) error { return wrong }); !errors.Is(err, wrong) {
		t.Fatalf("got %v, want %v", err, wrong)
	}
	if exists(t, c, templateName("broken", c.salt)) || exists(t, c, templateName("broken", c.salt)+"_new") {
		t.Error("a template is left")
	}
}

func TestRunningServer(t *testing.T) {
	own := Shared(t)
	c, err := connectCluster(t.Context(), own.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Pid() != 0 {
		t.Errorf("pid %d of a server that is not ours", c.Pid())
	}
	name := query(t, c.NewDatabase(t, "running", fill), `SELECT current_database()`)
	if !exists(t, own, name) {
		t.Errorf("%s is not on the server", name)
	}
	c.Stop()
	if query(t, own.URL("postgres"), "SELECT 1") != "1" {
		t.Error("a server that is not ours was stopped")
	}

	for _, test := range []struct{ url, want string }{
		{"host=localhost", "postgres://"},
		{"postgres://someone:secret@127.0.0.1:1/x?sslmode=disable", EnvPostgresURL},
	} {
		_, err := connectCluster(t.Context(), test.url)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", test.url, err)
		}
	}
}

func TestLeftoversOfKilledProcesses(t *testing.T) {
	c := Shared(t)
	now := time.Now()
	recent := fmt.Sprintf("%s%d_1_aa", databasePrefix, now.Unix())
	old := fmt.Sprintf("%s%d_1_bb", databasePrefix, now.Add(-2*leftoverAge).Unix())
	err := c.admin(t.Context(), func(conn *sql.Conn) error {
		for _, name := range []string{recent, old} {
			if err := copyDatabase(t.Context(), conn, name, "template0"); err != nil {
				return err
			}
		}
		return dropLeftovers(t.Context(), conn, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !exists(t, c, recent) || exists(t, c, old) {
		t.Errorf("recent there: %v, old there: %v; want true, false", exists(t, c, recent), exists(t, c, old))
	}
	if err := c.admin(t.Context(), func(conn *sql.Conn) error { return dropDatabase(t.Context(), conn, recent) }); err != nil {
		t.Fatal(err)
	}
}

// told is a testing.TB that records how a test would fail.
type told struct {
	testing.TB
	message bytes.Buffer
}

func (r *told) Helper()                   {}
func (r *told) Fatal(args ...any)         { fmt.Fprint(&r.message, args...); panic(r) }
func (r *told) Fatalf(f string, a ...any) { fmt.Fprintf(&r.message, f, a...); panic(r) }

func TestNoServerFailsTheTestWithAdvice(t *testing.T) {
	c := Shared(t)
	shared.mu.Lock()
	shared.cluster = nil
	shared.mu.Unlock()
	defer func() {
		shared.mu.Lock()
		shared.cluster, shared.err = c, nil
		shared.mu.Unlock()
	}()
	t.Setenv(EnvPostgresURL, "")
	t.Setenv(EnvPostgresBin, t.TempDir())
	for range 2 {
		r := &told{TB: t}
		func() {
			defer func() { _ = recover() }()
			NewDatabase(r, "x", nil)
		}()
		if !strings.Contains(r.message.String(), EnvPostgresBin) {
			t.Errorf("got %q, want a sentence that says what is wrong", &r.message)
		}
	}
}

func TestTemplateNames(t *testing.T) {
	long := templateName(strings.Repeat("Länge", 40), strings.Repeat("f", 64)) + "_new"
	if len(long) > 63 {
		t.Errorf("%s has %d bytes", long, len(long))
	}
	if templateName("a", "1") == templateName("a", "2") || templateName("a b", "") == templateName("a_b", "") {
		t.Error("two templates have one name")
	}
}

func BenchmarkNewDatabase(b *testing.B) {
	c := Shared(b)
	source, err := c.template("benchmark", fill)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		name := databasePrefix + "0_0_" + randomHex()
		err := c.admin(b.Context(), func(conn *sql.Conn) error {
			return errors.Join(copyDatabase(b.Context(), conn, name, source), dropDatabase(b.Context(), conn, name))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
