//go:build pg

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

// newServer returns a database server that a test may disturb.
func newServer(tb testing.TB) *testenv.Cluster {
	tb.Helper()
	c, err := testenv.StartCluster(tb.Context(), testenv.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}

// freeze stops all processes of a server, whose sockets stay open, until they are let go on.
func freeze(tb testing.TB, c *testenv.Cluster) (thaw func()) {
	tb.Helper()
	pids := []int{c.Pid()} // first: it would start others
	rows, err := (&cluster{tb: tb, url: c.URL("postgres")}).open().QueryContext(tb.Context(), `SELECT pid FROM pg_stat_activity`)
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			tb.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if err := rows.Err(); err != nil {
		tb.Fatal(err)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // some have ended
	}
	thaw = sync.OnceFunc(func() {
		for _, pid := range slices.Backward(pids) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	tb.Cleanup(thaw)
	return thaw
}

// readiness is the answer of /healthz/ready: the status, and the checks that are not OK.
func (p *person) readiness(base string) (status int, wrong []string) {
	p.tb.Helper()
	a, err := p.ask("GET", base+"/healthz/ready", nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	var got struct {
		Checks []struct {
			Name, Error, Since string
			OK                 bool
		}
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		p.tb.Fatalf("%v in %s", err, a.body)
	}
	for _, c := range got.Checks {
		if c.Since == "" {
			p.tb.Errorf("the check %s does not say since when", c.Name)
		}
		if !c.OK {
			wrong = append(wrong, c.Name)
			if c.Error == "" {
				p.tb.Errorf("the check %s does not say why", c.Name)
			}
		}
	}
	return a.status, wrong
}

// becomes waits until a replica is ready, or is not for what one check says.
func (p *person) becomes(base, unready string) {
	p.tb.Helper()
	want := http.StatusOK
	if unready != "" {
		want = http.StatusServiceUnavailable
	}
	eventually(p.tb, func() string {
		status, wrong := p.readiness(base)
		if status != want || unready != "" && !slices.Contains(wrong, unready) {
			return fmt.Sprintf("the status is %d, and %v are wrong", status, wrong)
		}
		return ""
	})
}

// The database is frozen, read-only, and there again, and the replica says so. It lives all the
// while.
func TestReadinessFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := serve(t, "one", server.NewDatabase(t, "", nil))
	p := newPerson(t)
	p.becomes(r.url, "")

	thaw := freeze(t, server)
	p.becomes(r.url, "database")
	p.want(http.StatusOK, "GET", r.url+"/healthz/live", nil, nil)
	if a := p.want(http.StatusOK, "GET", r.url+"/metrics", nil, nil); !strings.Contains(string(a.body), "\ntandem_database_up 0\n") {
		t.Error("the metrics say that the database is up")
	}
	thaw()
	p.becomes(r.url, "")

	set := func(readOnly string) {
		t.Helper()
		db := (&cluster{tb: t, url: server.URL("postgres")}).open()
		db.SetMaxOpenConns(1)
		for _, statement := range []string{
			`SET default_transaction_read_only = off`, `ALTER SYSTEM SET default_transaction_read_only = ` + readOnly, `SELECT pg_reload_conf()`,
		} {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("on")
	p.becomes(r.url, "database")
	set("off")
	p.becomes(r.url, "")
	a := p.want(http.StatusOK, "GET", r.url+"/metrics", nil, nil)
	for _, want := range []string{
		"\ntandem_database_up 1\n", "\ntandem_database_success_age_seconds ", "\ntandem_listening ",
		`tandem_pool_connections{pool="work",state="in_use"}`, `tandem_pool_connections_max{pool="probe"} 1`, `tandem_pool_waits_total{pool="coordination"}`,
	} {
		if !strings.Contains(string(a.body), want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
}

// All connections for the work are in use. Who asks for something is told when to come again, the
// replica stays ready, and works again when that is over.
func TestPoolIsExhausted(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	r := serve(t, "one", database, "--database-conns", "2")
	admin := setUp(t, r)
	room := admin.makeRoom(r.url, "general")
	db := (&cluster{tb: t, url: database}).open()
	lock := hold(t, db, `LOCK TABLE app_messages`)
	var refused atomic.Int32
	var asking sync.WaitGroup
	for i := range 12 {
		asking.Go(func() {
			text := fmt.Sprint("text ", i)
			a, err := admin.ask("POST", messagesURL(r.url, room), newMessage{text, text})
			switch {
			case err != nil:
				t.Error(err)
			case a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "":
				t.Errorf("status %d, Retry-After %q: %s", a.status, a.header.Get("Retry-After"), a.body)
			default:
				refused.Add(1)
			}
		})
	}
	watcher := newPerson(t)
	for refused.Load() < 12 && !t.Failed() {
		if status, wrong := watcher.readiness(r.url); status != http.StatusOK {
			t.Errorf("a busy replica is not ready: %d, %v", status, wrong)
		}
	}
	asking.Wait()
	rollBack(t, lock)
	admin.say(r.url, room, "after")
}

// A replica ends in time although its database is frozen. It can't leave the directory, so that not
// everything ends: that is a failure, and the last line names what had not.
func TestStopsBesideAFrozenDatabase(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := serve(t, "one", server.NewDatabase(t, "", nil), "--drain-grace", "500ms", "--shutdown-timeout", "5s")
	admin := setUp(t, r)
	room := admin.makeRoom(r.url, "general")
	f := admin.follow(r.url, room, "0")
	freeze(t, server)
	told := time.Now()
	r.signal(syscall.SIGTERM)
	if l := f.awaitClose(); l.code != 1012 {
		t.Errorf("the socket was closed with code %d", l.code)
	}
	if code := r.wait(); code != 1 {
		t.Errorf("it ended with code %d, want 1", code)
	}
	const machine = 5 * time.Second // which is busy with other tests
	if took := time.Since(told); took > 5*time.Second+machine {
		t.Errorf("it ended after %v", took)
	}
	text := r.stderr.String()
	last := regexp.MustCompile(`^tandem: not everything ended within 4\.55s: ([a-z, ]+)(; the connections to the database were not closed within 450ms)?$`).
		FindStringSubmatch(lastLine(text))
	if last == nil {
		t.Fatalf("its last line is %s", lastLine(text))
	}
	left := strings.Split(last[1], ", ")
	for _, part := range []string{"sockets", "requests", "runs", "background"} {
		if ended := strings.Contains(text, `msg="a part has stopped" part=`+part+" "); ended == slices.Contains(left, part) {
			t.Errorf("of %s it says that it has ended (%t), and of %v that they have not", part, ended, left)
		}
	}
	if !slices.Contains(left, "background") || slices.Contains(left, "requests") {
		t.Errorf("%v had not ended", left)
	}
	if strings.Contains(text, "tandem has stopped") {
		t.Error("it says that it has stopped as told")
	}
}

// The database is not there when a replica starts. It says so and waits, as long as it is told to.
func TestWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	database := server.NewDatabase(t, "", nil)
	if err := server.Recover(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute(t, "", "serve", "--addr", "127.0.0.1:0", "--database-url", database, "--start-wait", "0s")
	if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "the database was not there") {
		t.Errorf("without waiting it ended with code %d: %s", code, stderr)
	}
	r := launch(t, "one", database, "--start-wait", "10m")
	r.find(&r.stderr, regexp.MustCompile(`msg="(the database is not there; waiting for it)"`))
	if err := server.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.listening()
	newPerson(t).becomes(r.url, "")
	if n := strings.Count(r.stderr.String(), "the database is not there"); n != 1 {
		t.Errorf("the log says %d times that it waits", n)
	}
}

// The server stands still while a replica waits for others that migrate, and while it migrates. It ends
// in time and says why.
func TestFreezesDuringTheMigrations(t *testing.T) {
	t.Parallel()
	for name, inTheWay := range map[string]string{
		"while others migrate":  `SELECT pg_advisory_xact_lock(7205759403792793)`, // as package migrations has it
		"during its migrations": `CREATE TABLE coord_runs ()`,
	} {
		for _, command := range [][]string{{"serve", "--addr", "127.0.0.1:0"}, {"migrate"}} {
			t.Run(name+" "+command[0], func(t *testing.T) {
				t.Parallel()
				server := newServer(t)
				database := server.NewDatabase(t, "", nil)
				db := (&cluster{tb: t, url: database}).open()
				held, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := held.ExecContext(t.Context(), inTheWay); err != nil {
					t.Fatal(err)
				}
				p := start(t, "one", nil, append(command, "--database-url", database, "--start-wait", "6s")...)
				eventually(t, func() string {
					if n := count(t, db, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`); n == 0 {
						return "nobody waits"
					}
					return ""
				})
				freeze(t, server)
				if code := p.wait(); code != 1 {
					t.Errorf("it ended with code %d", code)
				}
				if last := lastLine(p.stderr.String()); !strings.Contains(last, "it has said nothing for 6s") {
					t.Errorf("its last line is %s", last)
				}
			})
		}
	}
}

// Six replicas start at once on an empty database. Each migration is applied once, and of the six
// links for the set-up one makes the administrator.
func TestSixStartAtOnce(t *testing.T) {
	t.Parallel()
	c := &cluster{tb: t, url: newDatabase(t)}
	for range 6 {
		c.replicas = append(c.replicas, c.launch())
	}
	applied := map[string]int{}
	p := newPerson(t)
	for _, r := range c.replicas {
		p.becomes(r.listening().url, "")
		for _, match := range regexp.MustCompile(`msg="migration applied" set=(\S+ name=\S+)`).FindAllStringSubmatch(r.stderr.String(), -1) {
			applied[match[1]]++
		}
	}
	if n := count(t, c.open(), `SELECT (SELECT count(*) FROM coord_migrations WHERE version_id > 0) + (SELECT count(*) FROM app_migrations WHERE version_id > 0)`); n != len(applied) {
		t.Errorf("%d migrations were applied, %d are told of", n, len(applied))
	}
	for name, n := range applied {
		if n != 1 {
			t.Errorf("the migration %s was applied %d times", name, n)
		}
	}
	var tokens []string // all, before one of them is used: then there are no others
	for _, r := range c.replicas {
		tokens = append(tokens, tokenOf(r.setupLink()))
	}
	var made atomic.Int32
	var racing sync.WaitGroup
	for i, r := range c.replicas {
		racing.Go(func() {
			a, err := newPerson(t).ask("POST", r.url+"/api/v1/setup", credentials{tokens[i], fmt.Sprintf("admin %d", i), password})
			switch {
			case err != nil:
				t.Error(err)
			case a.status == http.StatusCreated:
				made.Add(1)
			case a.status != http.StatusForbidden:
				t.Errorf("set-up: status %d: %s", a.status, a.body)
			}
		})
	}
	racing.Wait()
	if made.Load() != 1 {
		t.Errorf("six links made %d administrators", made.Load())
	}
}

// The first of two servers in the URL takes no connections. Replicas start, migrate and listen all
// the same, and the command migrate works.
func TestSeveralServersInTheURL(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "127.0.0.1:1," + u.Host
	if code, stdout, stderr := execute(t, "", "migrate", "--database-url", u.String()); code != 0 || !strings.Contains(stdout, "applied ") {
		t.Fatalf("migrate ended with code %d: %s%s", code, stdout, stderr)
	}
	r := serve(t, "one", u.String())
	r.find(&r.stderr, regexp.MustCompile(`msg="(listening for other replicas)"`))
	p := newPerson(t)
	p.becomes(r.url, "")
	code, _, stderr := execute(t, "", "serve", "--database-url", u.String()+"&target_session_attrs=standby")
	checkRefusal(t, code, "", stderr, "TANDEM_DATABASE_URL", "target_session_attrs")

	// The second one has no such database. Nobody waits for the first one, which is the same.
	u.Path = "/nowhere"
	for _, command := range [][]string{{"serve", "--addr", "127.0.0.1:0", "--start-wait", "10m"}, {"migrate"}} {
		code, stdout, stderr := execute(t, "", append(command, "--database-url", u.String())...)
		checkRefusal(t, code, stdout, stderr, "TANDEM_DATABASE_URL", `database "nowhere" does not exist`)
	}
}

// buildNext builds the program as a later version is, with more migrations of the application.
func buildNext(tb testing.TB, name string, texts ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	root, err := filepath.Abs(".")
	if err != nil {
		tb.Fatal(err)
	}
	replace := map[string]string{}
	for i, text := range texts {
		number := newestMigration(tb) + i + 1
		file := filepath.Join(dir, fmt.Sprintf("%04d_next.sql", number))
		if err := os.WriteFile(file, []byte("-- +goose Up\n"+text+"\n-- +goose Down\nSELECT 1;\n"), 0o600); err != nil {
			tb.Fatal(err)
		}
		replace[filepath.Join(root, "migrations", "pg", "app", filepath.Base(file))] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		tb.Fatal(err)
	}
	program := filepath.Join(dir, name)
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-buildvcs=false", "-tags=pg", "-overlay", file, "-o", program, ".")
	if output, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", name, err, output)
	}
	return program
}

// newestMigration is the number of the application's last migration.
func newestMigration(tb testing.TB) (newest int) {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join("migrations", "pg", "app", "*.sql"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		number, _, _ := strings.Cut(filepath.Base(file), "_")
		n, err := strconv.Atoi(number)
		if err != nil {
			tb.Fatal(err)
		}
		newest = max(newest, n)
	}
	return newest
}

// launchOther starts a server of another build.
func (c *cluster) launchOther(program string) *replica {
	c.tb.Helper()
	c.started++
	node := "node-" + strconv.Itoa(c.started)
	return &replica{process: start(c.tb, node, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args[0] = program, program
	}, "serve", "--addr", "127.0.0.1:0", "--database-url", c.url, "--database-conns", "5", "--node", node)}
}

// A later version of the program, which expands the schema, runs beside the present one while
// people talk; the present one is started again on the newer schema. Then a version comes that
// contracts it: the present one says that it is not ready and why, and does not start any more.
func TestVersionsSideBySide(t *testing.T) {
	t.Parallel()
	const expand = `ALTER TABLE app_rooms ADD COLUMN next_colour text; CREATE TABLE app_next (id bigint PRIMARY KEY, text text NOT NULL);
		INSERT INTO app_next VALUES (1, current_setting('statement_timeout'));`
	next := buildNext(t, "next", expand)
	contracted := buildNext(t, "contracted", expand, fmt.Sprintf(`CREATE TABLE app_floor (version bigint NOT NULL);
		INSERT INTO app_floor VALUES (%d); DROP TABLE app_next;`, newestMigration(t)+1))

	c := &cluster{tb: t, url: newDatabase(t)}
	c.replicas = []*replica{c.launch().listening()}
	admin := setUp(t, c.replicas[0])
	room := admin.makeRoom(c.replicas[0].url, "general")
	chat := c.chat(admin, room)
	chat.more(10)
	c.replicas = append(c.replicas, c.launchOther(next).listening())
	if n := count(t, c.open(), `SELECT count(*) FROM information_schema.columns WHERE column_name = 'next_colour'`); n != 1 {
		t.Fatal("the later version has not expanded the schema")
	}
	if n := count(t, c.open(), `SELECT count(*) FROM app_next WHERE text = '0'`); n != 1 {
		t.Error("a migration may not take as long as it does")
	}
	chat.through(c.urls())
	chat.more(20)

	// Back to the present version, beside the later one.
	old := c.remove("node-1")
	c.replicas = append(c.replicas, c.launch().listening())
	chat.through(c.urls())
	old.signal(syscall.SIGTERM)
	if code := old.wait(); code != 0 {
		t.Errorf("%s ended with code %d", old.name, code)
	}
	for _, r := range c.replicas {
		admin.becomes(r.url, "")
	}
	followers := c.followers(room)
	chat.more(20)
	c.agree(followers, chat.stop())

	latest := c.launchOther(contracted).listening()
	admin.becomes(latest.url, "")
	admin.becomes(c.replicas[0].url, "") // the version that expanded it knows enough
	admin.becomes(c.replicas[1].url, "schema")
	admin.want(http.StatusOK, "GET", c.replicas[1].url+"/healthz/live", nil, nil)
	code, _, stderr := execute(t, "", "serve", "--addr", "127.0.0.1:0", "--database-url", c.url)
	if last := lastLine(stderr); code != 1 || !strings.Contains(last, "was made for a later version") {
		t.Errorf("the present version ended with code %d: %s", code, last)
	}
}
