//go:build !memory

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runClientID is the client id of what a run says.
func runClientID(id int64) string { return "run:" + strconv.FormatInt(id, 10) }

// checkRuns checks that the runs of a task are of different occurrences, all succeeded, and that
// each has said one thing, and nothing else was said by the task.
func checkRuns(tb testing.TB, runs []taskRun, heard []message) {
	tb.Helper()
	said := map[string]int{}
	for _, m := range heard {
		if m.UserID == 0 {
			said[m.ClientID]++
		}
	}
	occurrences := map[time.Time]bool{}
	for _, r := range runs {
		if r.State != "succeeded" {
			tb.Errorf("run %d of %v is %s: %s", r.ID, r.ScheduledFor, r.State, r.Error)
		}
		if occurrences[r.ScheduledFor] {
			tb.Errorf("the occurrence %v has two runs", r.ScheduledFor)
		}
		occurrences[r.ScheduledFor] = true
		if n := said[runClientID(r.ID)]; n != 1 {
			tb.Errorf("run %d of %v has said %d things", r.ID, r.ScheduledFor, n)
		}
	}
	if len(said) != len(runs) {
		tb.Errorf("%d runs have said %d things", len(runs), len(said))
	}
}

// TestRestart stops the program, and kills it, and starts it on the same database.
func TestRestart(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	r := serve(t, "first", database, "--poll", "100ms", "--lease", "1s")
	admin := setUp(t, r)
	room := admin.makeRoom(r.url, "general")
	f := admin.follow(r.url, room, "0")
	admin.schedule(r.url, room, "tick")
	f.awaitText("tick reports")

	for i, end := range []struct {
		name string
		how  func()
	}{
		{"second", func() {
			r.signal(syscall.SIGTERM)
			if code := r.wait(); code != 0 {
				t.Errorf("%s ended with code %d", r.name, code)
			}
		}},
		{"third", func() { r.Kill() }},
	} {
		admin.say(r.url, room, fmt.Sprintf("before end %d", i))
		f.awaitText(fmt.Sprintf("before end %d", i))
		end.how()
		f.awaitClose()
		r = serve(t, end.name, database, "--poll", "100ms", "--lease", "1s")
		// Who was signed in still is, and resumes where they were.
		f.connect(r.url)
		admin.say(r.url, room, fmt.Sprintf("after end %d", i))
		f.awaitText(fmt.Sprintf("after end %d", i))
		reports := len(f.messages())
		eventually(t, func() string {
			if !slices.ContainsFunc(f.messages()[reports:], func(m message) bool { return m.UserID == 0 }) {
				return "the task does not report any more"
			}
			return ""
		})
	}
	runs := admin.settled(r.url, "tick")
	stored, _ := admin.history(r.url, room)
	checkRuns(t, runs, stored)
	eventually(t, func() string {
		if got := len(f.messages()); got < len(stored) {
			return fmt.Sprintf("the follower has %d of %d messages", got, len(stored))
		}
		return ""
	})
	if !slices.Equal(f.messages(), stored) {
		t.Error("the follower has not heard what is stored")
	}
	if len(stored) != len(runs)+4 {
		t.Errorf("%d messages are stored of %d runs and 4 sayings", len(stored), len(runs))
	}
	if strings.Contains(r.stdout.String(), "#setup=") {
		t.Error("a link for the set-up was printed though that is done")
	}
}

// TestSecondProcess runs two processes on one database, one file with SQLite.
func TestSecondProcess(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	flags := []string{"--poll", "100ms", "--lease", "1s"}
	one, two := launch(t, "one", database, flags...), launch(t, "two", database, flags...)
	one.listening()
	two.listening()
	admin := setUp(t, two)
	room := admin.makeRoom(one.url, "general")
	followers := []*follower{admin.follow(one.url, room, "0"), admin.follow(two.url, room, "0")}

	// In both directions, many at a time.
	var saying sync.WaitGroup
	for i := range 40 {
		saying.Go(func() {
			text := fmt.Sprintf("message %d", i)
			url := []string{one.url, two.url}[i%2]
			a, err := admin.ask("POST", messagesURL(url, room), newMessage{text, text})
			if err != nil || a.status != http.StatusCreated {
				t.Errorf("post %q: status %d: %s %v", text, a.status, a.body, err)
			}
		})
	}
	saying.Wait()

	// A ticket of one opens a socket on the other, once.
	ticket, err := admin.ticket(one.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, status, err := dial(t, two.url, ticket)
	if err != nil {
		t.Fatalf("a ticket of the other process: status %d: %v", status, err)
	}
	_ = conn.Close()
	for _, r := range []*replica{one, two} {
		if _, status, _ := dial(t, r.url, ticket); status != http.StatusUnauthorized {
			t.Errorf("a used ticket on %s: status %d, want 401", r.name, status)
		}
	}

	// One is killed; the other goes on with the task, and whoever was there resumes.
	admin.schedule(one.url, room, "tick")
	followers[0].awaitText("tick reports")
	one.Kill()
	followers[0].awaitClose()
	followers[0].connect(two.url)
	reports := func() (n int) {
		for _, m := range followers[0].messages() {
			if m.UserID == 0 {
				n++
			}
		}
		return n
	}
	before := reports()
	eventually(t, func() string {
		if reports() < before+2 {
			return "the task does not report any more"
		}
		return ""
	})
	runs := admin.settled(two.url, "tick")
	said := 40 + len(runs)
	for _, f := range followers {
		eventually(t, func() string {
			if got := len(f.messages()); got < said {
				return fmt.Sprintf("a follower has %d of %d messages", got, said)
			}
			return ""
		})
	}
	stored, _ := admin.history(two.url, room)
	checkRuns(t, runs, stored)
	if len(stored) != said {
		t.Errorf("%d messages are stored, want %d", len(stored), said)
	}
	if !slices.Equal(followers[0].messages(), followers[1].messages()) {
		t.Error("two followers have heard different things")
	}
	if log := two.stderr.String(); strings.Contains(log, "database is locked") {
		t.Error("the log says that the database is locked")
	}
}
