package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/store"
)

// listJobs runs tandem jobs --json.
func listJobs(tb testing.TB, database string) (list []jobs.Status) {
	tb.Helper()
	code, stdout, stderr := execute(tb, "", "jobs", "--json", "--database-url", database)
	if code != 0 {
		tb.Fatalf("code %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		var s jobs.Status
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			tb.Fatalf("%v: %s", err, line)
		}
		list = append(list, s)
	}
	return list
}

// migrate runs tandem migrate.
func migrate(tb testing.TB, database string) {
	tb.Helper()
	if code, _, stderr := inProcess(tb, "migrate", "--database-url", database); code != 0 {
		tb.Fatalf("migrate: code %d: %s", code, stderr)
	}
}

// TestJobsAreDocumented holds the table of docs/jobs.md to the registry, in both directions.
func TestJobsAreDocumented(t *testing.T) {
	t.Parallel()
	f, err := os.Open(filepath.Join("docs", "jobs.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var has, want []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if row := lines.Text(); strings.HasPrefix(row, "| `") && strings.Count(row, "|") == 6 {
			has = append(has, row)
		}
	}
	database := newDatabase(t)
	migrate(t, database)
	for _, s := range listJobs(t, database) {
		row := jobRow(s)
		want = append(want, "| `"+s.Name+"` | "+strings.Join([]string{string(s.Class), row[2], s.About, s.Why}, " | ")+" |")
	}
	for i := range max(len(has), len(want)) {
		if i >= len(has) || i >= len(want) || has[i] != want[i] {
			t.Fatalf("the table should be\n%s", strings.Join(want, "\n"))
		}
	}
}

// TestJobsCommand shows what a server did, also when there is none.
func TestJobsCommand(t *testing.T) {
	t.Parallel()
	if driverName == "memory" { // which tells other processes nothing
		return
	}
	database := newDatabase(t)
	migrate(t, database)
	known := func(s jobs.Status) bool { return s.OkAt.IsZero() == false }
	if list := listJobs(t, database); len(list) == 0 || slices.ContainsFunc(list, known) {
		t.Fatalf("at first: got %+v", list)
	}
	r := serve(t, "first", database, "--job-off", "audit.reap")
	var done jobs.Status
	eventually(t, func() string {
		list := listJobs(t, database)
		if i := slices.IndexFunc(list, known); i >= 0 {
			done = list[i]
			return ""
		}
		return "a job that was done"
	})
	r.signal(os.Interrupt)
	if code := r.wait(); code != 0 {
		t.Errorf("the server ended with code %d", code)
	}
	code, stdout, stderr := execute(t, "", "jobs", "--job-off", "audit.reap", "--database-url", database)
	if code != 0 {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		switch name, rest, _ := strings.Cut(line, " "); name {
		case done.Name:
			if !strings.Contains(rest, " on first ") || done.Node != "first" || done.Turn == 0 || done.NextAt.IsZero() {
				t.Errorf("got %s and %+v", line, done)
			}
		case "audit.reap":
			if !strings.Contains(rest, "disabled") || !strings.Contains(rest, "never") {
				t.Errorf("got %s", line)
			}
		}
	}
	code, stdout, stderr = execute(t, "", "jobs", "--job-off", "no.such", "--database-url", database)
	checkRefusal(t, code, stdout, stderr, "TANDEM_JOBS_OFF", `"no.such"`)
}

func TestJobRow(t *testing.T) {
	at := func(s int) store.Time { return store.Time{Time: time.Date(2026, 3, 4, 5, 6, s, 0, time.UTC)} }
	rec := store.JobRecord{Turn: 3, Node: "n", StartedAt: at(1), NextAt: at(9)}
	failed := rec
	failed.EndedAt, failed.ErrorAt, failed.Error = at(2), at(2), errors.Join(errors.New("one"), errors.New("two")).Error()
	for want, s := range map[string]jobs.Status{
		"x|leader-only|1h|never|-|-|-":                 {Class: jobs.ClassLeaderOnly, Every: 3600},
		"x|replica-safe|always|by every replica|-|-|-": {Class: jobs.ClassReplicaSafe, Loop: true},
		"x|replica-safe|1m30s|2026-03-04T05:06:01Z on n|not ended|2026-03-04T05:06:09Z|-": {
			Class: jobs.ClassReplicaSafe, Every: 90, JobRecord: rec,
		},
		"x|replica-safe|10m|2026-03-04T05:06:01Z on n|1s|2026-03-04T05:06:09Z|2026-03-04T05:06:02Z: one two": {
			Class: jobs.ClassReplicaSafe, Every: 600, JobRecord: failed,
		},
	} {
		s.Name = "x"
		if got := strings.Join(jobRow(s), "|"); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
