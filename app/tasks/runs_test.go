package tasks_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

func TestRunsByPage(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b"} {
		d := r.message(name)
		d.Overlap = coord.OverlapAllow
		r.create(t, d)
	}
	var ids []coord.RunID
	for i := range 5 {
		ids = append(ids, r.runNow(t, string("ab"[i%2])).ID)
	}
	var seen []coord.RunID
	f := tasks.RunsFilter{Limit: 2}
	for {
		page, more, err := r.tasks.Runs(t.Context(), r.admin, f)
		if err != nil || len(page) == 0 {
			t.Fatal(page, err)
		}
		for _, run := range page {
			seen = append(seen, run.ID)
		}
		if !more {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	if len(seen) != 5 || seen[0] != ids[4] || seen[4] != ids[0] {
		t.Errorf("got %v, want %v backwards", seen, ids)
	}
	if list := r.runs(t, tasks.RunsFilter{Task: "a"}); len(list) != 3 || list[0].Task != "a" {
		t.Errorf("of a: got %+v", list)
	}
	if _, err := r.tasks.Cancel(t.Context(), r.admin, ids[0]); err != nil {
		t.Fatal(err)
	}
	if list := r.runs(t, tasks.RunsFilter{State: coord.Cancelled}); len(list) != 1 || list[0].ID != ids[0] {
		t.Errorf("cancelled: got %+v", list)
	}
	if list := r.runs(t, tasks.RunsFilter{Kind: tasks.KindHTTP}); len(list) != 0 {
		t.Errorf("requests: got %+v", list)
	}
	for field, f := range map[string]tasks.RunsFilter{"limit": {Limit: 201}, "state": {State: "x"}, "kind": {Kind: "x"}} {
		_, _, err := r.tasks.Runs(t.Context(), r.admin, f)
		wantField(t, err, field)
	}

	// The runs of a task that is gone have no task, even if another has its name.
	if err := r.tasks.Delete(t.Context(), r.admin, "a"); err != nil {
		t.Fatal(err)
	}
	r.create(t, r.message("a"))
	if list := r.runs(t, tasks.RunsFilter{Task: "a"}); len(list) != 0 {
		t.Errorf("of the new a: got %+v", list)
	}
	for _, run := range r.runs(t, tasks.RunsFilter{}) {
		if want := map[bool]string{true: "b", false: ""}[run.ID == ids[1] || run.ID == ids[3]]; run.Task != want {
			t.Errorf("run %d is of %q, want %q", run.ID, run.Task, want)
		}
	}
	if run, err := r.tasks.Run(t.Context(), r.admin, ids[2]); err != nil || run.Task != "" || run.State != coord.Cancelled {
		t.Errorf("got %+v, %v", run, err)
	}
	for _, err := range []error{
		second(r.tasks.Run(t.Context(), r.admin, 999)), second(r.tasks.Cancel(t.Context(), r.admin, 999)),
		third(r.tasks.Log(t.Context(), r.admin, 999, 0)), third(r.tasks.Runs(t.Context(), r.admin, tasks.RunsFilter{Task: "none"})),
	} {
		if !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("got %v, want not found", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func third[T any](_ T, _ bool, err error) error { return err }

func TestTriggerIsIdempotent(t *testing.T) {
	r := newRig(t)
	r.create(t, r.message("report"))
	w := r.watch(t, "report")
	first, err := r.tasks.RunNow(t.Context(), r.admin, "report", "key", false)
	if err != nil || first.Trigger != "api" {
		t.Fatalf("got %+v, %v", first, err)
	}
	again, err := r.tasks.RunNow(t.Context(), r.admin, "report", "key", false)
	if err != nil || again.ID != first.ID {
		t.Errorf("the same key: got %+v, %v", again, err)
	}
	_, err = r.tasks.RunNow(t.Context(), r.admin, "report", "other", false)
	if busy, ok := errors.AsType[*tasks.RetryError](err); !ok || !errors.Is(err, coord.ErrConflict) || busy.After <= 0 {
		t.Errorf("with a run in flight: got %v", err)
	}
	r.work(t)
	if run := w.next(); run.ID != first.ID || run.State != coord.Queued {
		t.Errorf("heard %+v", run)
	}
	if run := w.until(coord.Succeeded); run.ID != first.ID || run.Trigger != "api" {
		t.Errorf("heard %+v", run)
	}
	if again, err := r.tasks.RunNow(t.Context(), r.admin, "report", "key", false); err != nil || again.ID != first.ID || again.State != coord.Succeeded {
		t.Errorf("the same key after the end: got %+v, %v", again, err)
	}
	for _, key := range []string{strings.Repeat("x", 200), "a\x01"} {
		_, err := r.tasks.RunNow(t.Context(), r.admin, "report", key, false)
		wantField(t, err, "Idempotency-Key")
	}
	if _, err := r.tasks.RunNow(t.Context(), r.admin, "none", "key", false); !errors.Is(err, coord.ErrNotFound) {
		t.Errorf("no such task: got %v", err)
	}
}

func TestScheduledRunsAreTold(t *testing.T) {
	r := newRig(t)
	d := r.message("report")
	d.Schedule = "@every 1h"
	task := r.create(t, d)
	changes, err := r.backend.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{tasks.Topic: coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	w := r.watch(t, "report")
	r.advance(time.Hour)
	r.work(t)
	run := w.next()
	if run.State != coord.Running || run.Trigger != "schedule" || !run.ScheduledFor.Equal(task.NextAt) {
		t.Errorf("heard %+v", run)
	}
	run = w.next()
	if run.State != coord.Succeeded || run.FinishedAt.Sub(r.now()).Abs() > time.Minute || run.FinishedAt.Before(run.StartedAt) {
		t.Errorf("heard %+v", run)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := changes.Next(ctx)
	if err != nil || string(events[0].Payload) != `{"name":"report"}` {
		t.Errorf("heard %v, %v: the next time is another one now", events, err)
	}
}

// What is heard of a log is what is stored, also when runs report together, in several
// calls, in several attempts, and more than is kept.
func TestReportsAreTold(t *testing.T) {
	r := newRig(t)
	claimer := r.tasks.Claimer()
	logs := map[string]*watcher{}
	for _, name := range []string{"a", "b"} {
		r.create(t, r.message(name))
		r.runNow(t, name)
		logs[name] = r.watch(t, name)
	}
	claim := func() []coord.Claim {
		claims, err := claimer.Claim(t.Context(), coord.ClaimOptions{
			Worker: "w", Kinds: []string{tasks.KindMessage}, Limit: 10, Lease: time.Minute,
		})
		if err != nil || len(claims) != 2 {
			t.Fatal(claims, err)
		}
		slices.SortFunc(claims, func(a, b coord.Claim) int { return cmp.Compare(a.Run.ID, b.Run.ID) })
		return claims
	}
	report := func(reports ...coord.Report) {
		t.Helper()
		if err := claimer.Report(t.Context(), reports...); err != nil {
			t.Fatal(err)
		}
	}
	claims := claim()
	report(coord.Report{Claim: claims[1], Lines: []string{"one", "two"}, Progress: 5}, coord.Report{Claim: claims[0], Lines: []string{"one"}})
	report(coord.Report{Claim: claims[1], Lines: []string{"bad \xff and \x00", strings.Repeat("é", coord.MaxLogLine)}})
	report(coord.Report{Claim: claims[0], Progress: 50})
	failed := func(c coord.Claim) coord.Result {
		return coord.Result{Claim: c, Outcome: coord.Fail, Error: "broken"}
	}
	if err := claimer.Finish(t.Context(), failed(claims[0]), failed(claims[1])); err != nil {
		t.Fatal(err)
	}
	r.advance(time.Minute)
	claims = claim()
	long := make([]string, coord.MaxBatch)
	for i := range long {
		long[i] = fmt.Sprint(i, strings.Repeat("x", 100))
	}
	for range coord.MaxLogLines/len(long) + 1 {
		report(coord.Report{Claim: claims[0], Lines: long})
	}
	ends := []coord.Result{{Claim: claims[0], Outcome: coord.Succeed}, {Claim: claims[1], Outcome: coord.GiveUp, Error: "useless"}}
	if err := claimer.Finish(t.Context(), ends...); err != nil {
		t.Fatal(err)
	}

	want := map[string][]tasks.Run{
		"a": {
			{State: coord.Queued},
			{State: coord.Running, Attempt: 1},
			{State: coord.Running, Attempt: 1, Progress: 50, LogLines: 1},
			{State: coord.Queued, Attempt: 1, Progress: 50, LogLines: 1, Error: "broken"},
			{State: coord.Running, Attempt: 2, LogLines: 1, Error: "broken"},
			{State: coord.Succeeded, Attempt: 2, LogLines: coord.MaxLogLines + len(long) + 1, Error: "broken"},
		},
		"b": {
			{State: coord.Queued},
			{State: coord.Running, Attempt: 1},
			{State: coord.Running, Attempt: 1, Progress: 5, LogLines: 2},
			{State: coord.Queued, Attempt: 1, Progress: 5, LogLines: 4, Error: "broken"},
			{State: coord.Running, Attempt: 2, LogLines: 4, Error: "broken"},
			{State: coord.Failed, Attempt: 2, LogLines: 4, Error: "useless"},
		},
	}
	for name, changes := range want {
		w := logs[name]
		var last tasks.Run
		for _, change := range changes {
			got := w.next()
			if got.State != change.State || got.Attempt != change.Attempt || got.Progress != change.Progress ||
				got.LogLines != change.LogLines || got.Error != change.Error {
				t.Errorf("of %s: heard %+v, want %+v", name, got, change)
			}
			if got.State == coord.Queued && got.Attempt == 1 && !got.DueAt.After(got.StartedAt) {
				t.Errorf("of %s: it is tried again at %v", name, got.DueAt)
			}
			last = got
		}
		stored, err := r.tasks.Run(t.Context(), r.admin, last.ID)
		if err != nil || stored.FinishedAt.Sub(last.FinishedAt).Abs() > time.Second {
			t.Errorf("of %s: ended at %v, heard %v, %v", name, stored.FinishedAt, last.FinishedAt, err)
		}
		last.FinishedAt = stored.FinishedAt
		if stored != last {
			t.Errorf("of %s: heard %+v at last, stored is %+v", name, last, stored)
		}
		number := 0
		for {
			lines, more, err := r.tasks.Log(t.Context(), r.admin, last.ID, number)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				if number >= len(w.lines) {
					t.Fatalf("of %s: %d lines were heard, line %d is stored", name, len(w.lines), line.Number)
				}
				heard := w.lines[number]
				number++
				if line.Number != number || heard.Number != number || line.Text != heard.Text || line.Attempt != heard.Attempt ||
					line.At.Sub(heard.At).Abs() > time.Second {
					t.Fatalf("of %s: heard %+v, stored is %+v", name, heard, line)
				}
			}
			if !more {
				break
			}
		}
		if number != len(w.lines) || number != min(last.LogLines, coord.MaxLogLines) {
			t.Errorf("of %s: %d lines are stored, %d were heard", name, number, len(w.lines))
		}
	}
}

// One call may be about runs that are held and about others: these change nothing, and
// those are served and told.
func TestSomeClaimsAreStale(t *testing.T) {
	r := newRig(t)
	d := r.message("report")
	d.Overlap = coord.OverlapAllow
	r.create(t, d)
	r.runNow(t, "report")
	stale := r.claim(t, "a").Claim
	r.advance(2 * time.Second)
	fresh := []coord.Claim{r.claim(t, "b").Claim}
	r.runNow(t, "report")
	fresh = append(fresh, r.claim(t, "c").Claim)
	claimer := r.tasks.Claimer()
	wantStale := func(err error) {
		t.Helper()
		if fenced, ok := errors.AsType[*coord.FencedError](err); !ok || len(fenced.Claims) != 1 || fenced.Claims[0].Token != stale.Token {
			t.Errorf("got %v, want a fence for the stale claim", err)
		}
	}
	stale.Run.ID += 1000 // of a run that is gone, since a call may name one only once
	wantStale(claimer.Report(t.Context(), coord.Report{Claim: stale, Progress: 9}, coord.Report{Claim: fresh[1], Progress: 7}))
	wantStale(claimer.Finish(t.Context(), coord.Result{Claim: fresh[0], Outcome: coord.Succeed},
		coord.Result{Claim: stale, Outcome: coord.Succeed}, coord.Result{Claim: fresh[1], Outcome: coord.Release}))
	var heard []string
	w := r.watch(t, "report")
	for range 8 {
		run := w.next()
		heard = append(heard, fmt.Sprintf("%d %s %d", run.ID, run.State, run.Progress))
	}
	want := "[1 queued 0 1 running 0 1 running 0 2 queued 0 2 running 0 2 running 7 1 succeeded 0 2 queued 7]"
	if got := fmt.Sprint(heard); got != want {
		t.Errorf("heard %s, want %s", got, want)
	}
	if err := errors.Join(claimer.Report(t.Context()), claimer.Finish(t.Context())); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

// A run that was asked to stop at the last moment is not tried again, and that is told.
func TestCancelMeetsAFailure(t *testing.T) {
	r := newRig(t)
	r.create(t, r.message("report"))
	queued := r.runNow(t, "report")
	run := r.claim(t, "a")
	got, err := r.tasks.Cancel(t.Context(), r.admin, queued.ID)
	if err != nil || got.State != coord.Running || !got.CancelRequested {
		t.Fatalf("got %+v, %v", got, err)
	}
	err = r.tasks.Claimer().Finish(t.Context(), coord.Result{Claim: run.Claim, Outcome: coord.Fail, Error: "broken"})
	if err != nil {
		t.Fatal(err)
	}
	w := r.watch(t, "report")
	w.until(coord.Running)
	if heard := w.next(); !heard.CancelRequested || heard.State != coord.Running {
		t.Errorf("heard %+v", heard)
	}
	if heard := w.next(); heard.State != coord.Cancelled || heard.FinishedAt.IsZero() {
		t.Errorf("heard %+v", heard)
	}
	if _, err := r.tasks.Cancel(t.Context(), r.admin, queued.ID); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("once it has ended: got %v", err)
	}
	// One that is queued ends at once.
	queued = r.runNow(t, "report")
	if got, err := r.tasks.Cancel(t.Context(), r.admin, queued.ID); err != nil || got.State != coord.Cancelled {
		t.Errorf("got %+v, %v", got, err)
	}
	w.until(coord.Queued)
	if heard := w.next(); heard.ID != queued.ID || heard.State != coord.Cancelled {
		t.Errorf("heard %+v", heard)
	}
	if err := r.tasks.Handlers()[tasks.KindMessage](t.Context(), run); !errors.Is(err, coord.ErrFenced) || errors.Is(err, worker.ErrFinished) {
		t.Errorf("got %v", err)
	}
}
