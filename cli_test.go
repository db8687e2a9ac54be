package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// execute runs the program to its end.
func execute(tb testing.TB, stdin string, args ...string) (code int, stdout, stderr string) {
	tb.Helper()
	p := start(tb, "command", func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader(stdin) }, args...)
	code = p.wait()
	return code, p.stdout.String(), p.stderr.String()
}

// inProcess runs the program without a process of its own.
func inProcess(tb testing.TB, args ...string) (code int, stdout, stderr string) {
	tb.Helper()
	var out, problems bytes.Buffer
	code = run(tb.Context(), args, &out, &problems)
	return code, out.String(), problems.String()
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := inProcess(t, "version")
	if code != 0 || stderr != "" {
		t.Errorf("code %d: %s", code, stderr)
	}
	for _, want := range []string{"tandem ", "driver  " + driverName, "commit  ", "go      " + runtime.Version()} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	var v map[string]string
	if code, stdout, _ := inProcess(t, "version", "--json"); code != 0 || json.Unmarshal([]byte(stdout), &v) != nil {
		t.Fatalf("code %d, not JSON: %s", code, stdout)
	}
	for _, name := range []string{"version", "driver", "commit", "go"} {
		if v[name] == "" {
			t.Errorf("no %q in %v", name, v)
		}
	}
}

// settings are the fields of Config with their tags.
func settings() (fields []reflect.StructField) {
	for field := range reflect.TypeFor[Config]().Fields() {
		fields = append(fields, field)
	}
	return fields
}

func TestHelpNamesEverySetting(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"user", "add", "--help"}} {
		code, stdout, stderr := inProcess(t, args...)
		if code != 0 || stderr != "" {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
		for _, f := range settings() {
			if !strings.Contains(stdout, "--"+f.Tag.Get("name")+"=") || !strings.Contains(stdout, "$"+f.Tag.Get("env")) {
				t.Errorf("%v does not name %s and its variable", args, f.Name)
			}
		}
	}
	_, stdout, _ := inProcess(t, "--help")
	for _, command := range []string{"serve", "migrate up", "migrate status", "user add", "jobs", "version"} {
		if !strings.Contains(stdout, "\n  "+command+" ") {
			t.Errorf("--help does not name the command %s", command)
		}
	}
}

// TestWrongSettings wants one sentence that names the setting and says what to set.
func TestWrongSettings(t *testing.T) {
	const secret = "hunter2"
	type wrong struct {
		args  []string
		names []string
	}
	cases := []wrong{
		{[]string{"--log", "loud"}, []string{"TANDEM_LOG", "debug, info, warn or error"}},
		{[]string{"--poll", "0s"}, []string{"TANDEM_POLL", "above 0"}},
		{[]string{"--lease", "10ms"}, []string{"TANDEM_LEASE", "at least 1s"}},
		{[]string{"--lease", "soon"}, []string{"--lease", "duration"}},
		{[]string{"--workers", "0"}, []string{"TANDEM_WORKERS", "from 1 to 1000"}},
		{[]string{"--workers", "many"}, []string{"--workers", "int"}},
		{[]string{"--database-conns", "1001"}, []string{"TANDEM_DATABASE_CONNS", "from 1 to 1000"}},
		{[]string{"--shutdown-timeout=-1s"}, []string{"TANDEM_SHUTDOWN_TIMEOUT", "above 0"}},
		{[]string{"--session-idle", "1m"}, []string{"TANDEM_SESSION_IDLE", "between 5m"}},
		{[]string{"--session-idle", "0s"}, []string{"TANDEM_SESSION_IDLE", "above 0"}},
		{[]string{"--session-idle", "48h", "--session-length", "24h"}, []string{"TANDEM_SESSION_LENGTH", "between 48h"}},
		{[]string{"--audit-keep", "1h"}, []string{"TANDEM_AUDIT_KEEP", "between 24h"}},
		{[]string{"--person-connections", "0"}, []string{"TANDEM_PERSON_CONNECTIONS", "from 1 to 1000"}},
		{[]string{"--drain-grace", "1h"}, []string{"TANDEM_DRAIN_GRACE", "shorter"}},
		{[]string{"--addr", "8080"}, []string{"TANDEM_ADDR", "host:port"}},
		{[]string{"--addr", "0.0.0.0:0"}, []string{"TANDEM_PUBLIC_URL", "must be set"}},
		{[]string{"--public-url", "chat.example.com"}, []string{"TANDEM_PUBLIC_URL", "https://chat.example.com"}},
		{[]string{"--public-url", "http://chat.example.com"}, []string{"TANDEM_PUBLIC_URL", "must be https"}},
		{[]string{"--public-url", "https://chat.example.com/chat"}, []string{"TANDEM_PUBLIC_URL", "without a path"}},
		{[]string{"--origin", "https://a.example.com,b"}, []string{"TANDEM_ORIGINS", "https://chat.example.com"}},
		{[]string{"--endpoint", "wss://a.example.com"}, []string{"TANDEM_ENDPOINTS", "https://chat.example.com"}},
		{[]string{"--trusted-proxy", "10.0.0.0/33"}, []string{"TANDEM_TRUSTED_PROXIES", "10.0.0.0/8"}},
		{[]string{"--http-tasks-allow", "10.0.0.0/8,intranet"}, []string{"TANDEM_HTTP_TASKS_ALLOW", "10.0.0.0/8"}},
		{[]string{"--database-url", "mysql://root:" + secret + "@db/tandem"}, []string{"TANDEM_DATABASE_URL", driverURLForm}},
		{[]string{"--database-url", ""}, []string{"TANDEM_DATABASE_URL", driverURLForm}},
	}
	urls := map[string]string{
		"sqlite": "sqlite:tandem.db", "pg": "postgres://tandem:" + secret + "@db/tandem", "memory": "memory:",
	}
	advice := map[string]string{"sqlite": "the default build", "pg": "-tags pg", "memory": "-tags memory"}
	for name, url := range urls {
		if name != driverName { // each build says which one can do it
			cases = append(cases, wrong{[]string{"--database-url", url}, []string{"TANDEM_DATABASE_URL", advice[name], driverURLForm}})
		}
	}
	switch driverName {
	case "sqlite":
		cases = append(cases,
			wrong{[]string{"--database-url", "sqlite:"}, []string{"TANDEM_DATABASE_URL", driverURLForm}},
			wrong{
				[]string{"--database-url", "sqlite:" + filepath.Join(t.TempDir(), "no", "folder.db")},
				[]string{"TANDEM_DATABASE_URL", "no such file", driverURLForm},
			})
	case "pg":
		good := "postgres://tandem:" + secret + "@127.0.0.1:1/tandem"
		cases = append(cases,
			wrong{[]string{"--database-url", "postgres://tandem:" + secret + "%zz@db/tandem"}, []string{"TANDEM_DATABASE_URL", driverURLForm}},
			wrong{[]string{"--database-url", "postgres://tandem:" + secret + "/@db/tandem"}, []string{"TANDEM_DATABASE_URL", driverURLForm}},
			wrong{[]string{"--database-url", good + "?sslmode=maybe"}, []string{"TANDEM_DATABASE_URL", "sslmode", driverURLForm}},
			wrong{[]string{"--database-url", good, "--listen-url", "host=db password=a " + secret}, []string{"TANDEM_LISTEN_URL", driverURLForm}})
	}
	for _, c := range cases {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, stdout, stderr := inProcess(t, append([]string{"serve", "--addr", "127.0.0.1:0"}, c.args...)...)
			checkRefusal(t, code, stdout, stderr, c.names...)
			if strings.Contains(stderr, secret) {
				t.Errorf("the password is shown: %s", stderr)
			}
		})
	}

	t.Run("in the environment", func(t *testing.T) {
		t.Setenv("TANDEM_LEASE", "soon")
		code, stdout, stderr := inProcess(t, "serve")
		checkRefusal(t, code, stdout, stderr, "TANDEM_LEASE", "duration")
	})
}

func TestWrongArguments(t *testing.T) {
	for _, c := range []struct{ args, names []string }{
		{nil, []string{"serve", "--help"}},
		{[]string{"bogus"}, []string{"bogus", "--help"}},
		{[]string{"serve", "--bogus"}, []string{"--bogus", "--help"}},
		{[]string{"serve", "bogus"}, []string{"bogus", "--help"}},
		{[]string{"serve", "--lease"}, []string{"--lease", "--help"}},
		{[]string{"user", "add"}, []string{"name", "--help"}},
		{[]string{"user"}, []string{"add", "--help"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, stdout, stderr := inProcess(t, c.args...)
			checkRefusal(t, code, stdout, stderr, c.names...)
		})
	}
}

// checkRefusal wants exit code 2 and one line that names those things.
func checkRefusal(tb testing.TB, code int, stdout, stderr string, names ...string) {
	tb.Helper()
	if code != 2 {
		tb.Errorf("exit code %d, want 2", code)
	}
	if stdout != "" {
		tb.Errorf("standard output: %s", stdout)
	}
	if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "tandem: ") || !strings.HasSuffix(stderr, "\n") {
		tb.Errorf("not one line that begins with the program's name: %s", stderr)
	}
	for _, name := range names {
		if !strings.Contains(stderr, name) {
			tb.Errorf("no %q in: %s", name, stderr)
		}
	}
}

// TestServeByEnvironment starts the program as the first command of the README does: only with
// what is in the environment, which with SQLite may be nothing.
func TestServeByEnvironment(t *testing.T) {
	t.Parallel()
	p := start(t, "command", func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "TANDEM_ADDR=127.0.0.1:0", "TANDEM_NODE=beaten-by-the-flag", "TANDEM_LOG=debug,json")
		if driverName == "pg" {
			cmd.Env = append(cmd.Env, "TANDEM_DATABASE_URL="+newDatabase(t))
		}
	}, "serve", "--node", "flagged")
	link := p.find(&p.stdout, setupLink)
	p.find(&p.stderr, regexp.MustCompile(`"msg":"(tandem is listening)".*\n`))
	log := p.stderr.String()
	first, _, _ := strings.Cut(log, "\n")
	if !json.Valid([]byte(first)) {
		t.Errorf("the log is not JSON: %s", first)
	}
	if !strings.Contains(log, `"node":"flagged"`) || strings.Contains(log, "beaten-by-the-flag") {
		t.Errorf("the flag does not win: %s", log)
	}
	url, _, _ := strings.Cut(link, "/#")
	newPerson(t).want(http.StatusOK, "GET", url+"/", nil, nil)
	if _, err := os.Stat(filepath.Join(p.Cmd.Dir, "tandem.db")); (err == nil) != (driverName == "sqlite") {
		t.Errorf("tandem.db in the working directory: %v", err)
	}

	// Another program on the same address says so.
	code, _, stderr := execute(t, "", "serve", "--addr", strings.TrimPrefix(url, "http://"), "--database-url", newDatabase(t))
	if last := lastLine(stderr); code != 1 || !strings.HasPrefix(last, "tandem: listen on ") || !strings.Contains(last, "in use") {
		t.Errorf("on an address in use: code %d: %s", code, stderr)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	migrate := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := inProcess(t, append(append([]string{"migrate"}, args...), "--database-url", database)...)
		if code != 0 || stderr != "" {
			t.Fatalf("migrate %v: code %d: %s", args, code, stderr)
		}
		return stdout
	}
	status := func() (applied, all int) {
		t.Helper()
		lines := bufio.NewScanner(strings.NewReader(migrate("status", "--json")))
		for lines.Scan() {
			var row struct {
				Set, Name string
				Version   int
				AppliedAt *string `json:"applied_at"`
			}
			if err := json.Unmarshal(lines.Bytes(), &row); err != nil || row.Set == "" || row.Name == "" || row.Version == 0 {
				t.Errorf("a line of status --json: %v: %s", err, lines.Text())
			}
			all++
			if row.AppliedAt != nil {
				applied++
			}
		}
		return applied, all
	}
	if applied, all := status(); applied != 0 || all == 0 {
		t.Errorf("%d of %d migrations are applied to an empty database", applied, all)
	}
	if first := migrate(); !strings.HasPrefix(first, "applied ") {
		t.Errorf("migrate says: %s", first)
	}
	text := migrate("status")
	if !strings.HasPrefix(text, "SET ") || !strings.Contains(text, "0001_app.sql") {
		t.Errorf("migrate status says:\n%s", text)
	}
	if driverName == "memory" {
		return // where nothing lasts
	}
	if applied, all := status(); applied != all {
		t.Errorf("%d of %d migrations are applied", applied, all)
	}
	if again := migrate("up"); !strings.Contains(again, "up to date") {
		t.Errorf("a second migrate says: %s", again)
	}
}

func TestUserAdd(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	add := func(stdin string, args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return execute(t, stdin, append(append([]string{"user", "add"}, args...), "--database-url", database)...)
	}
	code, stdout, stderr := add("", "ada", "--admin")
	made := regexp.MustCompile(`(?m)^password: (\S{16,})$`).FindStringSubmatch(stdout)
	if code != 0 || !strings.HasPrefix(stdout, `created admin "ada"`) || made == nil {
		t.Fatalf("code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = add("a chosen password\n", "bob", "--password-stdin")
	if code != 0 || stdout != "created member \"bob\"\n" || strings.Contains(stderr, "a chosen password") {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = add("", "gil", "--guest")
	if code != 0 || !strings.HasPrefix(stdout, `created guest "gil"`) {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = add("", "hal", "--guest", "--admin")
	checkRefusal(t, code, stdout, stderr, "--admin", "--guest")
	for _, refused := range []string{"short\n", "\n", ""} {
		code, stdout, stderr = add(refused, "carl", "--password-stdin")
		if code != 1 || stdout != "" || !strings.Contains(lastLine(stderr), "password") {
			t.Errorf("the password %q: code %d: %s%s", refused, code, stdout, stderr)
		}
	}
	if driverName == "memory" {
		return // where nothing lasts
	}
	code, stdout, stderr = add("", "ADA") // names differ by more than case
	if code != 1 || stdout != "" || !strings.Contains(lastLine(stderr), `"ADA" already`) {
		t.Errorf("a name that is taken: code %d: %s%s", code, stdout, stderr)
	}

	r := serve(t, "one", database)
	for name, password := range map[string]string{"ada": made[1], "bob": "a chosen password"} {
		newPerson(t).want(http.StatusOK, "POST", r.url+"/api/v1/session", credentials{Name: name, Password: password}, nil)
	}
	var needed struct{ Needed bool }
	newPerson(t).want(http.StatusOK, "GET", r.url+"/api/v1/setup", nil, &needed)
	if needed.Needed || strings.Contains(r.stdout.String(), "#setup=") {
		t.Error("set-up is offered though there is an administrator")
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestSettingsTable holds the table of docs/settings.md to the fields of Config.
func TestSettingsTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.Contains(cells[1], "TANDEM_") {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells[1:5])
		}
	}
	// Defaults that depend on the build or the machine are described.
	described := map[string]string{"DatabaseURL": "of the build", "Node": "host name and process id"}
	fields := settings()
	if len(rows) != len(fields) {
		t.Errorf("the table has %d rows, Config %d fields", len(rows), len(fields))
	}
	for i, f := range fields[:min(len(fields), len(rows))] {
		byDefault := described[f.Name]
		if value := f.Tag.Get("default"); byDefault == "" && value != "" {
			byDefault = "`" + value + "`"
		}
		want := []string{"`" + f.Tag.Get("env") + "`", "`--" + f.Tag.Get("name") + "`", byDefault}
		if !slices.Equal(rows[i][:3], want) {
			t.Errorf("row %d is %q, want %q of %s", i+1, rows[i][:3], want, f.Name)
		}
		if rows[i][3] == "" {
			t.Errorf("%s has no meaning", f.Name)
		}
	}
	if form := "`" + driverDefaultURL + "`"; !strings.Contains(string(text), form) {
		t.Errorf("the default %s of this build is not in the table", form)
	}
}

// readmeCommands says for each command in the README which test runs it, or its like: with other
// ports, a database of its own, and the built program instead of go run.
var readmeCommands = map[string]string{
	"go run . serve": "TestServeByEnvironment",
	`export TANDEM_DATABASE_URL="postgres://localhost/tandem?sslmode=disable"`: "TestServeByEnvironment",
	"go run -tags pg . serve --addr 127.0.0.1:8081":                            "TestClusterMessages",
	"go run -tags pg . serve --addr 127.0.0.1:8082":                            "TestClusterMessages",
	"go run -tags pg . serve --addr 127.0.0.1:8083":                            "TestClusterMessages",
	"go run . user add ada --admin":                                            "TestUserAdd",
	"go run ./examples/jobs":                                                   "TestJobs",
	"go run ./examples/feed":                                                   "TestFeed",
	"go run ./examples/limits":                                                 "TestLimits",
	"make test":                                                                "TestMain", // in which this very test runs
	"make rig":                                                                 "TestRig",
}

func TestReadmeCommandsAreTested(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob(filepath.Join("examples", "*", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, name := range slices.Concat(files, examples) {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(source)
	}
	found := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			command := strings.TrimSpace(line)
			if command == "" || strings.HasPrefix(command, "#") {
				continue
			}
			found[command] = true
			if test := readmeCommands[command]; test == "" {
				t.Errorf("the README's command %q is run by no test: write one, and name it in readmeCommands", command)
			} else if !strings.Contains(tests.String(), fmt.Sprintf("func %s(", test)) {
				t.Errorf("%s, which is to test %q, does not exist", test, command)
			}
		}
	}
	for command := range readmeCommands {
		if !found[command] {
			t.Errorf("the README does not have the command %q any more", command)
		}
	}
}
