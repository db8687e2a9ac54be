package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// doctorSays runs tandem doctor for machines. It returns the exit code, the results by check, and
// the verdict.
func doctorSays(tb testing.TB, args ...string) (code int, checks map[string]doctorResult, verdict string) {
	tb.Helper()
	code, stdout, stderr := inProcess(tb, append([]string{"doctor", "--json", "--database-conns", "1"}, args...)...)
	if stderr != "" {
		tb.Errorf("the doctor complains: %s", stderr)
	}
	checks = map[string]doctorResult{}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for i, line := range lines {
		var r doctorResult
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			tb.Fatalf("%v in %s", err, line)
		}
		if last := i == len(lines)-1; last != (r.Verdict != "") {
			tb.Errorf("line %d of %d is %s", i+1, len(lines), line)
		}
		if r.Verdict != "" && r.Safe != (code == 0) {
			tb.Errorf("safe is %t and the exit code %d", r.Safe, code)
		}
		checks[r.Check], verdict = r, r.Verdict
	}
	return code, checks, verdict
}

type doctorResult struct {
	Check, Level, Found, Advice string
	Unsafe                      bool

	Safe    bool
	Verdict string
}

// TestDoctor looks at a deployment before there is one, and at one that runs.
func TestDoctor(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	wants := map[string]string{"pg": "A second replica is safe", "sqlite": "A second replica is NOT safe: driver", "memory": "A second replica is NOT safe: driver"}
	want := func(when string, code int, verdict string) {
		t.Helper()
		if unsafe := strings.Contains(wants[driverName], "NOT"); (code == 1) != unsafe || code > 1 || !strings.HasPrefix(verdict, wants[driverName]) {
			t.Errorf("%s: exit code %d: %s", when, code, verdict)
		}
	}
	code, checks, verdict := doctorSays(t, "--database-url", database)
	want("before", code, verdict)
	if driverName == "memory" {
		return // where nobody else sees what runs
	}
	if driverName == "sqlite" {
		if _, err := os.Stat(strings.TrimPrefix(database, "sqlite:")); err == nil || checks["database"].Level != "warning" {
			t.Errorf("a file that was not there: %v, %+v", err, checks["database"])
		}
	}

	serve(t, "the-one", database)
	eventually(t, func() string {
		if code, checks, verdict = doctorSays(t, "--database-url", database); !strings.Contains(checks["replicas"].Found, "the-one") {
			return "the replica is not seen: " + checks["replicas"].Found
		}
		return ""
	})
	want("while it runs", code, verdict)
	for _, name := range []string{"settings", "database", "schema", "indexes", "replicas", "leaders"} {
		if checks[name].Level != "ok" {
			t.Errorf("%s: %+v", name, checks[name])
		}
	}

	code, stdout, stderr := inProcess(t, "doctor", "--database-conns", "1", "--database-url", database, "--lease", "1s", "--poll", "1s")
	want("for people", code, lastLine(stdout))
	if !strings.Contains(stdout, "warning  settings") || !strings.Contains(stdout, "to do: set TANDEM_LEASE") || stderr != "" {
		t.Errorf("for people:\n%s%s", stdout, stderr)
	}
	code, stdout, stderr = inProcess(t, "doctor", "--database-url", database, "--drain-grace", "1h")
	checkRefusal(t, code, stdout, stderr, "TANDEM_DRAIN_GRACE")
}

// TestDoctorWithoutADatabase can't say anything, and so says that it is not safe.
func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	nowhere := map[string]string{
		"pg": "postgres://tandem:hunter2@127.0.0.1:1/tandem?sslmode=disable", "sqlite": "sqlite:" + filepath.Join(t.TempDir(), "no.db"), "memory": "memory:",
	}[driverName]
	code, checks, verdict := doctorSays(t, "--database-url", nowhere)
	if code != 1 || !strings.Contains(verdict, "NOT safe") {
		t.Errorf("exit code %d: %s", code, verdict)
	}
	if driverName == "pg" && (checks["database"].Level != "unknown" || !checks["database"].Unsafe || strings.Contains(verdict, "hunter2")) {
		t.Errorf("a database that is away: %+v, %s", checks["database"], verdict)
	}
}

// TestDoctorTable holds the table of checks in docs/operations.md to what the doctor looks at.
func TestDoctorTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Doctor\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, checks, _ := doctorSays(t, "--database-url", newDatabase(t))
	for name := range checks {
		if name != "" && !strings.Contains(section, "\n| `"+name+"` |") {
			t.Errorf("the section Doctor has no line for %s", name)
		}
	}
	if driverName != "pg" {
		return // the others have fewer
	}
	for line := range strings.Lines(section) {
		if _, rest, ok := strings.Cut(line, "| `"); ok && strings.HasPrefix(line, "|") {
			if name, _, _ := strings.Cut(rest, "`"); checks[name].Check == "" {
				t.Errorf("the section Doctor has a line for %s, which is no check", name)
			}
		}
	}
}
