package tasks_test

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

// drivers open a rig whose tasks may call loopback addresses.
var drivers = map[string]func(*testing.T) *rig{
	"memory": func(t *testing.T) *rig { t.Helper(); return newRig(t, loopback) },
	"sqlite": func(t *testing.T) *rig { t.Helper(); return rigOn(t, apptest.SQLite(t, time.Now)) },
	"pg":     func(t *testing.T) *rig { t.Helper(); return rigOn(t, apptest.PostgreSQL(t)) },
}

func rigOn(t *testing.T, d *apptest.Database) *rig {
	t.Helper()
	r := &rig{}
	backend, o := d.Open(t, coord.Options{})
	r.fill(t, backend, o, loopback)
	return r
}

// On each driver what is heard of runs is what is stored.
func TestDrivers(t *testing.T) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) { testDriver(t, open(t)) })
	}
}

func testDriver(t *testing.T, r *rig) {
	s := serve(t, func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/bad":
			http.Error(w, "no", http.StatusTeapot)
		case "/slow":
			<-q.Context().Done()
		}
	})
	for _, path := range []string{"good", "bad", "slow"} {
		d := r.request(path, s.URL+"/"+path)
		d.Report, d.Retry.MaxAttempts = tasks.ReportAlways, 2
		r.create(t, d)
	}
	r.create(t, r.message("post"))
	if _, _, err := r.deliver(t, "post", r.hook(t, "post"), "id", `{"text":"from outside"}`); err != nil {
		t.Fatal(err)
	}
	r.work(t)
	for _, name := range []string{"good", "bad", "slow"} {
		r.runNow(t, name)
	}
	for name, want := range map[string]string{
		"post": "[queued running succeeded]",
		"good": "[queued running succeeded]",
		"bad":  "[queued running queued running failed]",
		"slow": "[queued running cancelled]",
	} {
		w := r.watch(t, name)
		if name == "slow" {
			running := w.until(coord.Running)
			for running.LogLines == 0 { // until it asks
				running = w.next()
			}
			if _, err := r.tasks.Cancel(t.Context(), r.admin, running.ID); err != nil {
				t.Fatal(err)
			}
			w = r.watch(t, name)
		}
		var states []coord.State
		var last tasks.Run
		for !last.State.Ended() {
			last = w.next()
			if len(states) == 0 || states[len(states)-1] != last.State {
				states = append(states, last.State)
			}
			if last.State == coord.Queued && last.Attempt == 1 {
				r.advance(2 * time.Second) // where the clock can be
			}
		}
		if got := fmt.Sprint(states); got != want {
			t.Errorf("%s: heard %s, want %s", name, got, want)
		}
		stored, err := r.tasks.Run(t.Context(), r.admin, last.ID)
		if err != nil || stored.FinishedAt.Sub(last.FinishedAt).Abs() > 10*time.Second {
			t.Errorf("%s: ended at %v, heard %v, %v", name, stored.FinishedAt, last.FinishedAt, err)
		}
		last.FinishedAt = stored.FinishedAt
		if fmt.Sprintf("%+v", stored) != fmt.Sprintf("%+v", last) {
			t.Errorf("%s: heard %+v at last, stored is %+v", name, last, stored)
		}
		lines := r.log(t, last.ID)
		if len(lines) != len(w.lines) || len(lines) != last.LogLines {
			t.Errorf("%s: %d lines are stored, %d were heard of %d", name, len(lines), len(w.lines), last.LogLines)
		}
		for i, line := range w.lines[:min(len(w.lines), len(lines))] {
			stored := lines[i]
			if line.Number != stored.Number || line.Text != stored.Text || line.Attempt != stored.Attempt ||
				line.At.Sub(stored.At).Abs() > 10*time.Second {
				t.Errorf("%s: heard %+v, stored is %+v", name, line, stored)
			}
		}
	}
	if got := r.texts(t); len(got) != 3 { // nothing of what was cancelled
		t.Errorf("posted %q", got)
	}
}
