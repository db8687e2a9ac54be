package coordtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func (f *fixture) put(t coord.Task) coord.Task {
	f.Helper()
	stored, err := f.one.Claimer().PutTask(f.ctx, t)
	must(f, "PutTask", err)
	return stored
}

func (f *fixture) task(name string) coord.Task {
	f.Helper()
	t, err := f.two.Claimer().Task(f.ctx, name)
	must(f, "Task", err)
	return t
}

// minutely is a task that is due every minute.
func minutely(o coord.Overlap, m coord.Misfire) coord.Task {
	return coord.Task{Name: "n", Kind: "k", Schedule: "@every 1m", Overlap: o, Misfire: m}
}

// succeed ends claims well.
func (f *fixture) succeed(claims ...coord.Claim) {
	f.Helper()
	for _, c := range claims {
		f.finish(f.one, coord.Result{Claim: c, Outcome: coord.Succeed})
	}
}

// occurrences claims what is due and returns the minutes, counted from start,
// of the occurrences.
func (f *fixture) occurrences(start time.Time) (minutes []int, claims []coord.Claim) {
	f.Helper()
	claims = f.claim(f.two, want("k", 100))
	for _, c := range claims {
		after := c.Run.ScheduledFor.Sub(start)
		if after%time.Minute != 0 {
			f.Errorf("an occurrence is %v after the start; want whole minutes", after)
		}
		minutes = append(minutes, int(after/time.Minute))
	}
	slices.Sort(minutes)
	return minutes, claims
}

var taskTests = []test{
	{"PutTask creates and completes a task", createTask},
	{"PutTask replaces only the version it names", replaceTask},
	{"keys of triggers belong to their task", func(f *fixture) {
		f.enqueue(f.one, coord.NewRun{Kind: "k", UniqueKey: "x"}, coord.NewRun{Kind: "k", UniqueKey: "task/1/x"})
		for _, name := range []string{"one", "two"} {
			f.put(coord.Task{Name: name, Kind: "k"})
			first, err := f.one.Claimer().Trigger(f.ctx, name, coord.TriggerOptions{Key: "x"})
			must(f, "Trigger", err)
			equal(f, "UniqueKey", first.UniqueKey, "x")
			equal(f, "Duplicate of the first run", first.Duplicate, false)
			again, err := f.two.Claimer().Trigger(f.ctx, name, coord.TriggerOptions{Key: "x"})
			must(f, "Trigger, again", err)
			equal(f, "Duplicate of the second", again.Duplicate, true)
			equal(f, "ID of the second", again.ID, first.ID)
		}
	}},
	{"one of many edits at once wins", func(f *fixture) {
		t := f.put(coord.Task{Name: "n", Kind: "k"})
		var mu sync.Mutex
		won := 0
		f.together(8, func(i int, b coord.Backend) {
			edit := t
			edit.Kind = fmt.Sprint("k", i)
			_, err := b.Claimer().PutTask(f.ctx, edit)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, coord.ErrConflict):
				f.Errorf("PutTask: %v; want ErrConflict", err)
			}
		})
		equal(f, "how many edits of one version were accepted", won, 1)
	}},
	{"one of many creations at once wins", func(f *fixture) {
		var mu sync.Mutex
		won := 0
		f.together(8, func(_ int, b coord.Backend) {
			_, err := b.Claimer().PutTask(f.ctx, coord.Task{Name: "n", Kind: "k"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, coord.ErrConflict):
				f.Errorf("PutTask: %v; want ErrConflict", err)
			}
		})
		equal(f, "how many creations of one name were accepted", won, 1)
	}},
	{"an unchanged schedule keeps its next occurrence", func(f *fixture) {
		t := f.put(minutely("", ""))
		first := t.NextAt
		equal(f, "NextAt", first, f.store.Now().Add(time.Minute))
		f.store.Advance(40 * time.Second)
		t.Kind, t.Priority = "other", 1
		t = f.put(t)
		equal(f, "NextAt after an edit of the kind", t.NextAt, first)
		t.Schedule = "@every 2m"
		t = f.put(t)
		equal(f, "NextAt after an edit of the schedule", t.NextAt, f.store.Now().Add(2*time.Minute))
		t.Schedule, t.Zone = "30 2 * * *", "Asia/Kolkata"
		t = f.put(t)
		zone, err := time.LoadLocation("Asia/Kolkata")
		must(f, "LoadLocation", err)
		next, now := t.NextAt.In(zone), f.store.Now()
		if next.Hour() != 2 || next.Minute() != 30 || next.Second() != 0 || !next.After(now) || next.After(now.Add(24*time.Hour)) {
			f.Errorf("NextAt of 30 2 * * * in Asia/Kolkata is %v at %v", next, now)
		}
		t.Zone = "UTC"
		t = f.put(t)
		if next := t.NextAt.UTC(); next.Hour() != 2 || next.Minute() != 30 {
			f.Errorf("NextAt after an edit of the zone is %v; want 02:30 UTC", next)
		}
		t.Schedule = ""
		equal(f, "NextAt without a schedule", f.put(t).NextAt, time.Time{})
	}},
	{"Tasks lists by name", func(f *fixture) {
		names := []string{"b", "a", "ü", "a b", "B", "a-very-long-" + strings.Repeat("x", 180)}
		for _, name := range names {
			f.put(coord.Task{Name: name, Kind: "k"})
		}
		var got []string
		for _, t := range collect(f, "Tasks", f.two.Claimer().Tasks(f.ctx)) {
			got = append(got, t.Name)
		}
		slices.SortFunc(names, cmp.Compare)
		equal(f, "the names, in the order of their bytes", got, names)
	}},
	{"an occurrence makes one run", func(f *fixture) {
		t := f.put(coord.Task{
			Name: "n", Kind: "k", Schedule: "@every 1m", Payload: []byte("p"), Priority: 3, Timeout: time.Minute,
			Retry: coord.Retry{MaxAttempts: 2, Backoff: time.Second, MaxBackoff: time.Minute},
		})
		f.claimNone(f.one, "k", "the first occurrence is in a minute")
		f.store.Advance(time.Minute - time.Microsecond)
		f.claimNone(f.one, "k", "the first occurrence is in a microsecond")
		f.store.Advance(20*time.Second + time.Microsecond)
		c := f.claimOne(f.two, "k")
		equal(f, "TaskID", c.Run.TaskID, t.ID)
		equal(f, "ScheduledFor", c.Run.ScheduledFor, t.NextAt)
		equal(f, "ScheduledFor's location", c.Run.ScheduledFor.Location(), time.UTC)
		equal(f, "Payload", string(c.Run.Payload), "p")
		equal(f, "Priority", c.Run.Priority, 3)
		equal(f, "Timeout", c.Run.Timeout, time.Minute)
		equal(f, "Retry", c.Run.Retry, t.Retry)
		equal(f, "NextAt, which counts from the occurrence", f.task("n").NextAt, t.NextAt.Add(time.Minute))
		f.claimNone(f.one, "k", "its only occurrence is claimed")
		f.succeed(c)
		f.claimNone(f.one, "k", "the next occurrence is not due")
		f.store.Advance(40 * time.Second)
		equal(f, "ScheduledFor of the second run", f.claimOne(f.one, "k").Run.ScheduledFor, t.NextAt.Add(time.Minute))
	}},
	{"ten claimers make one run per occurrence", func(f *fixture) {
		for i := range 7 {
			f.put(coord.Task{
				Name: fmt.Sprint("n", i), Kind: "k", Schedule: "@every 1m",
				Overlap: []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow}[i%2],
			})
		}
		for round := range 3 {
			f.store.Advance(time.Minute)
			for id, times := range f.claimAll(10, "k", 3) {
				if times != 1 {
					f.Errorf("run %d was claimed %d times; want once", id, times)
				}
			}
			occurrences := map[coord.TaskID]map[time.Time]int{}
			for _, r := range f.runs(coord.RunFilter{Limit: 1000}) {
				if occurrences[r.TaskID] == nil {
					occurrences[r.TaskID] = map[time.Time]int{}
				}
				occurrences[r.TaskID][r.ScheduledFor]++
			}
			equal(f, "how many tasks have runs", len(occurrences), 7)
			for task, runs := range occurrences {
				for at, n := range runs {
					if n != 1 {
						f.Errorf("task %d has %d runs for %v; want one", task, n, at)
					}
				}
			}
			// Nothing is finished, only rescued: those that forbid overlap wait.
			if round == 2 {
				equal(f, "how many runs there are", len(f.runs(coord.RunFilter{Limit: 1000})), 4+3*3)
			}
		}
	}},
	{"forbid waits for the run in the way", forbidWaits},
	{"allow lets runs overlap", func(f *fixture) {
		start := f.put(minutely(coord.OverlapAllow, coord.MisfireLatest)).CreatedAt
		for minute := range 3 {
			f.store.Advance(time.Minute)
			got, _ := f.occurrencesHeld(start)
			equal(f, "the occurrences that run, by minutes", got, []int{minute + 1})
		}
	}},
	{"a task that begins to forbid waits for all its runs", func(f *fixture) {
		start := f.put(minutely(coord.OverlapAllow, coord.MisfireLatest)).CreatedAt
		var claims []coord.Claim
		for range 2 {
			f.store.Advance(time.Minute)
			_, c := f.occurrencesHeld(start)
			claims = append(claims, c...)
		}
		t := f.task("n")
		t.Overlap = coord.OverlapForbid
		f.put(t)
		f.store.Advance(time.Minute)
		for _, c := range claims {
			_, err := f.two.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{})
			is(f, "Trigger while earlier runs are in flight", err, coord.ErrConflict)
			got, _ := f.occurrencesHeld(start)
			equal(f, "the occurrences that start while earlier runs are in flight", len(got), 0)
			f.succeed(c)
		}
		got, _ := f.occurrencesHeld(start)
		equal(f, "the occurrences that start after them, by minutes", got, []int{3})
	}},
	{"misfire latest runs the latest", func(f *fixture) {
		for _, overlap := range []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow} {
			t := minutely(overlap, coord.MisfireLatest)
			f.misfires(t, 5*time.Minute+10*time.Second, [][]int{{5}, {}}, 6)
		}
	}},
	{"misfire skip drops what is late", func(f *fixture) {
		for _, overlap := range []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow} {
			t := minutely(overlap, coord.MisfireSkip)
			t.Schedule = "@every 2m"
			f.misfires(t, 4*time.Minute+coord.MisfireGrace, [][]int{{4}, {}}, 6)
			f.misfires(t, 4*time.Minute+coord.MisfireGrace+time.Microsecond, [][]int{{}, {}}, 6)
			f.misfires(t, time.Hour+90*time.Second, [][]int{{}, {}}, 62)
		}
	}},
	{"misfire all runs the latest of them, in order", func(f *fixture) {
		t := minutely(coord.OverlapForbid, coord.MisfireAll)
		t.MisfireCap = 3
		f.misfires(t, 2*time.Minute, [][]int{{1}, {2}, {}}, 3)
		f.misfires(t, 7*time.Minute+30*time.Second, [][]int{{5}, {6}, {7}, {}}, 8)
		t.Overlap = coord.OverlapAllow
		f.misfires(t, 2*time.Minute, [][]int{{1, 2}, {}}, 3)
		f.misfires(t, 7*time.Minute+30*time.Second, [][]int{{5, 6, 7}, {}}, 8)
		t.MisfireCap = 0 // the default
		f.misfires(t, 30*time.Minute, [][]int{{21, 22, 23, 24, 25, 26, 27, 28, 29, 30}, {}}, 31)
	}},
	{"a paused task does not fire", func(f *fixture) {
		c := f.two.Claimer()
		start := f.put(minutely("", "")).CreatedAt
		is(f, "PauseTask of an unknown task", c.PauseTask(f.ctx, "none", true), coord.ErrNotFound)
		must(f, "PauseTask", c.PauseTask(f.ctx, "n", true))
		must(f, "PauseTask, again", c.PauseTask(f.ctx, "n", true))
		equal(f, "Paused", f.task("n").Paused, true)
		f.store.Advance(3*time.Minute + time.Second)
		f.claimNone(f.one, "k", "the task is paused")
		must(f, "PauseTask, to resume", c.PauseTask(f.ctx, "n", false))
		equal(f, "Paused", f.task("n").Paused, false)
		got, claims := f.occurrences(start)
		equal(f, "the occurrences that run on resume, by minutes", got, []int{3})
		f.succeed(claims...)

		t := f.task("n")
		t.Paused = true
		f.put(t)
		f.store.Advance(time.Hour)
		f.claimNone(f.one, "k", "the task was put as paused")
	}},
	{"a pause is not undone by an edit that does not know of it", func(f *fixture) {
		before := f.put(minutely("", ""))
		must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, "n", true))
		_, err := f.one.Claimer().PutTask(f.ctx, before)
		is(f, "PutTask of the version before the pause", err, coord.ErrConflict)
		equal(f, "Paused", f.task("n").Paused, true)
	}},
	{"many tasks that are due at once all fire", func(f *fixture) {
		for i := range 250 {
			t := coord.Task{Name: fmt.Sprintf("n%03d", i), Kind: "k", Schedule: "@every 24h"}
			if i < 120 {
				t.Misfire = coord.MisfireSkip
			}
			f.put(t)
		}
		f.store.Advance(25 * time.Hour)
		f.claimCount("when 130 of 250 tasks make a run", f.one, want("k", 1000), 130)
	}},
	{"an edit does not touch runs in flight, nor they it", func(f *fixture) {
		f.put(minutely("", ""))
		f.store.Advance(time.Minute)
		c := f.claimOne(f.one, "k")
		t := f.task("n")
		t.Kind, t.Payload, t.Schedule = "edited", []byte("edited"), "@every 1h"
		edited := f.put(t)
		must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, "n", true))
		equal(f, "Kind of the run in flight", f.state(c.Run.ID, coord.Running).Kind, "k")
		f.succeed(c)
		after := f.task("n")
		equal(f, "Kind after the run has ended", after.Kind, "edited")
		equal(f, "Schedule after the run has ended", after.Schedule, "@every 1h")
		equal(f, "NextAt after the run has ended", after.NextAt, edited.NextAt)
		equal(f, "Paused after the run has ended", after.Paused, true)
	}},
	{"an occurrence never comes back", func(f *fixture) {
		t := f.put(coord.Task{
			Name: "n", Kind: "k", Schedule: "* * * * *", Overlap: coord.OverlapAllow,
			Misfire: coord.MisfireAll,
		})
		f.store.Advance(3 * time.Minute)
		f.succeed(f.claim(f.one, want("k", 100))...)
		for _, schedule := range []string{"@every 1m", "* * * * *", "*/2 * * * *", "* * * * *"} {
			t = f.task("n")
			t.Schedule = schedule
			f.put(t)
			f.succeed(f.claim(f.two, want("k", 100))...)
		}
		seen := map[time.Time]bool{}
		for _, r := range f.runs(coord.RunFilter{TaskID: t.ID}) {
			if seen[r.ScheduledFor] {
				f.Errorf("the occurrence %v has two runs", r.ScheduledFor)
			}
			seen[r.ScheduledFor] = true
		}
		equal(f, "how many occurrences ran", len(seen), 3)
	}},
	{"Trigger", triggers},
	{"a triggered run and an occurrence are both kept", func(f *fixture) {
		start := f.put(minutely("", "")).CreatedAt
		f.store.Advance(50 * time.Second)
		triggered, err := f.two.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{Key: "hook-1"})
		must(f, "Trigger", err)
		f.store.Advance(20 * time.Second)
		c := f.claimOne(f.one, "k")
		equal(f, "the run that is first", c.Run.ID, triggered.ID)
		f.succeed(c)
		got, claims := f.occurrences(start)
		equal(f, "the occurrence that waited, by minutes", got, []int{1})
		f.succeed(claims...)
	}},
	{"triggers at once queue one run", func(f *fixture) {
		f.put(coord.Task{Name: "n", Kind: "k"})
		var mu sync.Mutex
		queued, conflicts, ids := 0, 0, map[coord.RunID]bool{}
		f.together(16, func(i int, b coord.Backend) {
			key := ""
			if i >= 8 {
				key = "same"
			}
			r, err := b.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{Key: key})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, coord.ErrConflict):
				conflicts++
			case err != nil:
				f.Errorf("Trigger: %v", err)
			default:
				ids[r.ID] = true
				if !r.Duplicate {
					queued++
				}
			}
		})
		equal(f, "how many runs were queued", queued, 1)
		equal(f, "how many runs the callers were told", len(ids), 1)
		equal(f, "how many runs are stored", len(f.runs(coord.RunFilter{})), 1)
		if conflicts < 7 {
			f.Errorf("%d of 16 triggers were told of a conflict; want at least the other 7 without the key", conflicts)
		}
	}},
	{"a trigger may bring its own payload", func(f *fixture) {
		f.put(coord.Task{Name: "n", Kind: "k", Payload: []byte("the task's"), Overlap: coord.OverlapAllow})
		for key, payload := range map[string][]byte{
			"": nil, "none": nil, "empty": {}, "own": []byte("the trigger's"), "bytes": everyByte(),
		} {
			expect := payload
			if payload == nil {
				expect = []byte("the task's")
			}
			r, err := f.one.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{Key: key, Payload: bytes.Clone(payload)})
			must(f, "Trigger", err)
			equal(f, key+": Payload of the run", string(r.Payload), string(expect))
			if key != "" {
				again, err := f.two.Claimer().Trigger(f.ctx, "n", coord.TriggerOptions{Key: key, Payload: []byte("another")})
				must(f, "Trigger, again", err)
				equal(f, key+": ID of the run of a known key", again.ID, r.ID)
				equal(f, key+": Payload of the run of a known key", string(again.Payload), string(expect))
			}
			c := f.claimOne(f.two, "k")
			equal(f, key+": Payload as claimed", string(c.Run.Payload), string(expect))
			f.succeed(c)
		}
		equal(f, "Payload of the task", string(f.task("n").Payload), "the task's")
	}},
	{"a single time fires once", onceFires},
	{"a single time that has passed is refused", func(f *fixture) {
		past := func(t coord.Task) coord.Task {
			t.Schedule, t.Zone = "@at "+f.store.Now().Add(-time.Second).Format(time.DateTime), "UTC"
			return t
		}
		refused := func(what string, err error) {
			f.Helper()
			is(f, what, err, coord.ErrInvalid)
			if e, ok := errors.AsType[*coord.InvalidError](err); !ok || e.Field != "Task.Schedule" {
				f.Errorf("%s: the error is %v; want one that names Task.Schedule", what, err)
			}
		}
		c := f.two.Claimer()
		refused("PutTask that creates it", second(c.PutTask(f.ctx, past(coord.Task{Name: "new", Kind: "k"}))))
		_, err := c.Task(f.ctx, "new")
		is(f, "Task that was refused", err, coord.ErrNotFound)
		t := f.put(minutely("", ""))
		refused("PutTask that changes a schedule", second(c.PutTask(f.ctx, past(t))))
		_, err = c.PutTask(f.ctx, past(coord.Task{Name: t.Name, Kind: "k"}))
		is(f, "PutTask of a name that is taken", err, coord.ErrConflict)
		stale := past(t)
		stale.Version = t.Version + 1
		is(f, "PutTask of another version", second(c.PutTask(f.ctx, stale)), coord.ErrConflict)
		sameTask(f, "after all that", f.task(t.Name), t)
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.PutTask(ctx, past(t))
			refused("Tx.PutTask", err)
			_, err = tx.Enqueue(ctx, coord.NewRun{Kind: "new"})
			return err
		})
		f.claimOne(f.two, "new")
	}},
	{"a single time that is missed", func(f *fixture) {
		for _, misfire := range []coord.Misfire{coord.MisfireLatest, coord.MisfireAll, coord.MisfireSkip} {
			for _, late := range []time.Duration{0, coord.MisfireGrace, coord.MisfireGrace + time.Microsecond, 24 * time.Hour} {
				t, at := f.putOnce(misfire)
				must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, t.Name, true))
				f.store.Advance(at.Add(late).Sub(f.store.Now()))
				f.claimNone(f.one, "k", "its task is paused")
				must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, t.Name, false))
				runs := 1
				if misfire == coord.MisfireSkip && late > coord.MisfireGrace {
					runs = 0
				}
				what := fmt.Sprintf("misfire %s, %v late", misfire, late)
				f.succeed(f.claimCount(what, f.one, want("k", 10), runs)...)
				equal(f, what+": NextAt", f.task(t.Name).NextAt, time.Time{})
				f.claimNone(f.two, "k", "a single time does not come back")
				must(f, "DeleteTask", f.one.Claimer().DeleteTask(f.ctx, t.Name))
			}
		}
	}},
	{"a single time waits for the run in the way", func(f *fixture) {
		t, at := f.putOnce(coord.MisfireLatest)
		f.trigger(t.Name)
		c := f.claimOne(f.one, "k")
		f.store.Advance(at.Sub(f.store.Now()))
		held, err := f.one.Claimer().Extend(f.ctx, 24*time.Hour, c)
		must(f, "Extend", err)
		f.store.Advance(time.Hour)
		f.claimNone(f.two, "k", "a run that was triggered is in the way")
		equal(f, "NextAt", f.task(t.Name).NextAt, at)
		f.succeed(held...)
		equal(f, "ScheduledFor", f.claimOne(f.two, "k").Run.ScheduledFor, at)
	}},
	{"schedulers of one name that lose their leases make one run per occurrence", func(f *fixture) {
		start := f.put(minutely(coord.OverlapAllow, coord.MisfireAll)).CreatedAt
		deaf := []coord.Backend{
			Faulty(f.one, Random(1, Rates{Fail: 1}, "claimer.extend")),
			Faulty(f.two, Random(2, Rates{Fail: 1}, "claimer.extend")),
		}
		const minutes = 8
		for range minutes {
			f.store.Advance(time.Minute) // by which each lease has ended
			f.together(6, func(i int, _ coord.Backend) {
				c := deaf[i%2].Claimer()
				o := want("k", 3)
				o.Worker = "the same"
				claims, err := c.Claim(f.ctx, o)
				if err != nil {
					f.Errorf("Claim: %v", err)
				}
				if _, err := c.Extend(f.ctx, lease, claims...); len(claims) > 0 && !errors.Is(err, coord.ErrUnavailable) {
					f.Errorf("Extend: %v; want the injected fault", err)
				}
			})
		}
		var got []int
		for _, r := range f.runs(coord.RunFilter{Limit: 1000}) {
			got = append(got, int(r.ScheduledFor.Sub(start)/time.Minute))
		}
		slices.Sort(got)
		equal(f, "the occurrences that have runs, by minutes", got, []int{1, 2, 3, 4, 5, 6, 7, 8})
	}},
	{"DeleteTask", deletes},
	{"a lost run makes way", func(f *fixture) {
		t := minutely("", "")
		t.AtMostOnce = true
		start := f.put(t).CreatedAt
		f.store.Advance(time.Minute)
		c := f.claimOne(f.one, "k")
		f.store.Advance(time.Minute)
		first, _ := f.occurrences(start)  // may only find out that the run is lost
		second, _ := f.occurrences(start) // then its place is free
		f.lost(c.Run.ID)
		equal(f, "the occurrences that run when the lost run has ended, by minutes", append(first, second...), []int{2})
	}},
	{"runs of a kind without a handler wait for one", func(f *fixture) {
		t := f.put(minutely("", ""))
		f.store.Advance(time.Minute)
		f.claimNone(f.one, "other", "the task is of another kind")
		equal(f, "ScheduledFor", f.claimOne(f.two, "k").Run.ScheduledFor, t.NextAt)
	}},
}

// occurrencesHeld is occurrences with leases that outlast the test.
func (f *fixture) occurrencesHeld(start time.Time) (minutes []int, claims []coord.Claim) {
	f.Helper()
	o := want("k", 100)
	o.Lease = 24 * time.Hour
	claims = f.claim(f.two, o)
	for _, c := range claims {
		minutes = append(minutes, int(c.Run.ScheduledFor.Sub(start)/time.Minute))
	}
	return minutes, claims
}

// misfires lets a task be late by so much, and checks which occurrences each of
// several claims finds, by minutes, when what was found has ended, and the next
// occurrence in the end.
func (f *fixture) misfires(t coord.Task, late time.Duration, want [][]int, next int) {
	f.Helper()
	start := f.put(t).CreatedAt
	f.store.Advance(late)
	for i, minutes := range want {
		got, claims := f.occurrences(start)
		if !slices.Equal(got, minutes) {
			f.Errorf("overlap %s, misfire %s, %v after the start of %s: claim %d found the occurrences of minutes %v; want %v",
				t.Overlap, t.Misfire, late, t.Schedule, i+1, got, minutes)
		}
		f.succeed(claims...)
	}
	equal(f, fmt.Sprintf("overlap %s, misfire %s, %v after the start of %s: NextAt", t.Overlap, t.Misfire, late, t.Schedule),
		f.task(t.Name).NextAt, start.Add(time.Duration(next)*time.Minute))
	must(f, "DeleteTask", f.one.Claimer().DeleteTask(f.ctx, t.Name))
}

func createTask(f *fixture) {
	now := f.store.Now()
	t := f.put(coord.Task{Name: "nightly ✓", Kind: "k", Payload: []byte{0, 1}, Schedule: "@every 90s"})
	if t.ID <= 0 || t.Version <= 0 {
		f.Errorf("the task was stored with id %d and version %d; want positive ones", t.ID, t.Version)
	}
	want := coord.Task{
		ID: t.ID, Name: "nightly ✓", Kind: "k", Payload: []byte{0, 1}, Schedule: "@every 90s", Zone: "UTC",
		Overlap: coord.OverlapForbid, Misfire: coord.MisfireLatest, MisfireCap: 10, Priority: 2, Version: t.Version,
		Retry:  coord.Retry{MaxAttempts: 3, Backoff: time.Second, MaxBackoff: time.Hour},
		NextAt: now.Add(90 * time.Second), CreatedAt: now, UpdatedAt: now,
	}
	sameTask(f, "as PutTask returned it", t, want)
	sameTask(f, "as stored", f.task("nightly ✓"), want)

	all := coord.Task{
		Name: "all", Kind: "k", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Overlap: coord.OverlapAllow,
		Misfire: coord.MisfireAll, MisfireCap: 1000, Retry: coord.Retry{
			MaxAttempts: 100, Backoff: time.Minute,
			MaxBackoff: 2 * time.Minute,
		},
		Timeout: 3 * time.Second, Priority: 4, Concurrency: coord.Concurrency{Key: "key ✓", Limit: 10000},
		AtMostOnce: true, Paused: true,
	}
	stored := f.put(all)
	want = all
	want.ID, want.Version, want.NextAt, want.CreatedAt, want.UpdatedAt = stored.ID, stored.Version, stored.NextAt, now, now
	sameTask(f, "with every field set", f.task("all"), want)

	_, err := f.two.Claimer().Task(f.ctx, "none")
	is(f, "Task of an unknown name", err, coord.ErrNotFound)
	equal(f, "NextAt of a task without a schedule", f.put(coord.Task{Name: "manual", Kind: "k"}).NextAt, time.Time{})
	f.store.Advance(24 * time.Hour)
	equal(f, "how many runs a task without a schedule has", len(f.runs(coord.RunFilter{TaskID: f.task("manual").ID})), 0)
}

func sameTask(r reporter, what string, got, want coord.Task) {
	r.Helper()
	for _, t := range []struct {
		field     string
		got, want time.Time
	}{
		{"NextAt", got.NextAt, want.NextAt},
		{"CreatedAt", got.CreatedAt, want.CreatedAt},
		{"UpdatedAt", got.UpdatedAt, want.UpdatedAt},
	} {
		equal(r, what+": task "+want.Name+": "+t.field, t.got, t.want)
	}
	equal(r, what+": task "+want.Name+": Payload", string(got.Payload), string(want.Payload))
	got.NextAt, got.CreatedAt, got.UpdatedAt, got.Payload = want.NextAt, want.CreatedAt, want.UpdatedAt, want.Payload
	equal(r, what+": task "+want.Name, got, want)
}

func replaceTask(f *fixture) {
	c := f.two.Claimer()
	first := f.put(coord.Task{Name: "n", Kind: "k"})
	_, err := c.PutTask(f.ctx, coord.Task{Name: "n", Kind: "k"})
	is(f, "PutTask that creates a name that is taken", err, coord.ErrConflict)
	_, err = c.PutTask(f.ctx, coord.Task{Name: "none", Kind: "k", Version: 1})
	is(f, "PutTask that replaces an unknown task", err, coord.ErrNotFound)

	f.store.Advance(time.Second)
	edit := first
	edit.Kind = "edited"
	second, err := c.PutTask(f.ctx, edit)
	must(f, "PutTask", err)
	if second.Version <= first.Version {
		f.Errorf("the version after an edit is %d; want one above %d", second.Version, first.Version)
	}
	edit.Version, edit.UpdatedAt = second.Version, f.store.Now()
	sameTask(f, "after an edit", f.task("n"), edit)

	edit.Payload = nil
	edit = f.put(edit)
	equal(f, "the length of a payload that was taken away", len(edit.Payload), 0)

	stale := first
	stale.Kind = "stale"
	_, err = c.PutTask(f.ctx, stale)
	is(f, "PutTask of a version that was edited since", err, coord.ErrConflict)
	sameTask(f, "after a conflict", f.task("n"), edit)
}

func forbidWaits(f *fixture) {
	start := f.put(minutely(coord.OverlapForbid, coord.MisfireLatest)).CreatedAt
	f.store.Advance(time.Minute)
	got, claims := f.occurrencesHeld(start)
	equal(f, "the first occurrence, by minutes", got, []int{1})
	f.store.Advance(2*time.Minute + 30*time.Second)
	f.claimNone(f.one, "k", "the first run of a task that forbids overlap is running")
	f.finish(f.one, coord.Result{Claim: claims[0], Outcome: coord.Snooze, Delay: 10 * time.Minute})
	f.claimNone(f.one, "k", "the first run of a task that forbids overlap is queued")
	f.store.Advance(10 * time.Minute)
	got, claims = f.occurrencesHeld(start)
	equal(f, "what runs after the snooze, by minutes", got, []int{1})
	f.succeed(claims...)
	got, claims = f.occurrencesHeld(start)
	equal(f, "the occurrences that waited and run now, by minutes", got, []int{13})
	f.succeed(claims...)
	equal(f, "NextAt", f.task("n").NextAt, start.Add(14*time.Minute))
}

// putOnce stores a task with a single time, in a zone of its own, within the
// next two minutes, and returns that time.
func (f *fixture) putOnce(misfire coord.Misfire) (coord.Task, time.Time) {
	f.Helper()
	zone, err := time.LoadLocation("Asia/Kathmandu")
	must(f, "LoadLocation", err)
	at := f.store.Now().Truncate(time.Minute).Add(2 * time.Minute)
	t := f.put(coord.Task{
		Name: "once", Kind: "k", Misfire: misfire, Schedule: "@at " + at.In(zone).Format("2006-01-02 15:04"), Zone: zone.String(),
	})
	equal(f, "NextAt of "+t.Schedule+" in "+t.Zone, t.NextAt, at)
	return t, at
}

func onceFires(f *fixture) {
	t, at := f.putOnce("")
	f.store.Advance(at.Add(-time.Microsecond).Sub(f.store.Now()))
	f.claimNone(f.one, "k", "its time is in a microsecond")
	f.store.Advance(time.Microsecond)
	c := f.claimOne(f.two, "k")
	equal(f, "ScheduledFor", c.Run.ScheduledFor, at)
	equal(f, "NextAt when it has fired", f.task(t.Name).NextAt, time.Time{})
	f.claimNone(f.one, "k", "it has fired")
	f.succeed(c)
	f.store.Advance(366 * 24 * time.Hour)
	f.claimNone(f.one, "k", "it fired a year ago")

	edit := f.task(t.Name)
	edit.Payload = []byte("edited")
	edit = f.put(edit)
	equal(f, "NextAt after an edit that leaves the schedule", edit.NextAt, time.Time{})
	must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, t.Name, true))
	must(f, "PauseTask", f.two.Claimer().PauseTask(f.ctx, t.Name, false))
	f.claimNone(f.one, "k", "it was only paused and resumed")
	f.trigger(t.Name)
	f.succeed(f.claimOne(f.one, "k"))

	edit = f.task(t.Name)
	next := f.store.Now().Truncate(time.Second).Add(90 * time.Second)
	edit.Schedule, edit.Zone = "@at "+next.Format("2006-01-02 15:04:05"), "UTC"
	equal(f, "NextAt after an edit of the schedule", f.put(edit).NextAt, next)
	f.store.Advance(90 * time.Second)
	equal(f, "ScheduledFor", f.claimOne(f.two, "k").Run.ScheduledFor, next)
	equal(f, "how many runs the task has", len(f.runs(coord.RunFilter{TaskID: t.ID})), 3)
}

func triggers(f *fixture) {
	c := f.two.Claimer()
	_, err := c.Trigger(f.ctx, "none", coord.TriggerOptions{})
	is(f, "Trigger of an unknown task", err, coord.ErrNotFound)

	t := f.put(coord.Task{Name: "n", Kind: "k", Payload: []byte("p"), Paused: true, Schedule: "@every 1h"})
	r, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "a"})
	must(f, "Trigger of a paused task", err)
	equal(f, "TaskID", r.TaskID, t.ID)
	equal(f, "State", r.State, coord.Queued)
	equal(f, "Payload", string(r.Payload), "p")
	equal(f, "ScheduledFor", r.ScheduledFor, time.Time{})
	equal(f, "DueAt", r.DueAt, f.store.Now())
	equal(f, "Duplicate", r.Duplicate, false)
	again, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "a"})
	must(f, "Trigger with a known key", err)
	equal(f, "Duplicate for a known key", again.Duplicate, true)
	equal(f, "the run for a known key", again.ID, r.ID)
	_, err = c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "b"})
	is(f, "Trigger while a run is queued and overlap forbidden", err, coord.ErrConflict)
	_, err = c.Trigger(f.ctx, "n", coord.TriggerOptions{})
	is(f, "Trigger without a key while a run is queued and overlap forbidden", err, coord.ErrConflict)
	claim := f.claimOne(f.one, "k")
	_, err = c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "b"})
	is(f, "Trigger while a run is running and overlap forbidden", err, coord.ErrConflict)
	f.succeed(claim)
	again, err = c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "a"})
	must(f, "Trigger with a known key whose run has ended", err)
	equal(f, "the run for a known key", again.ID, r.ID)
	next, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{Key: "b"})
	must(f, "Trigger with a key that met a conflict before", err)
	equal(f, "Duplicate", next.Duplicate, false)
	equal(f, "NextAt, which a trigger leaves alone", f.task("n").NextAt, t.NextAt)

	f.put(coord.Task{Name: "free", Kind: "k", Overlap: coord.OverlapAllow})
	ids := map[coord.RunID]bool{}
	for _, key := range []string{"", "", "a", "a"} {
		r, err := c.Trigger(f.ctx, "free", coord.TriggerOptions{Key: key})
		must(f, "Trigger of a task that allows overlap", err)
		ids[r.ID] = true
	}
	equal(f, "how many runs two triggers without a key and two with one made", len(ids), 3)
	if ids[r.ID] {
		f.Errorf("the key of one task found the run of another")
	}
	free := f.enqueueOne(f.one, coord.NewRun{Kind: "k", UniqueKey: "a"})
	equal(f, "Duplicate of a run of no task with the key of a trigger", free.Duplicate, false)
}

func deletes(f *fixture) {
	c := f.two.Claimer()
	is(f, "DeleteTask of an unknown task", c.DeleteTask(f.ctx, "none"), coord.ErrNotFound)
	t := f.put(coord.Task{Name: "n", Kind: "k", Schedule: "@every 1m", Overlap: coord.OverlapAllow})
	trigger := func() coord.Run {
		r, err := c.Trigger(f.ctx, "n", coord.TriggerOptions{})
		must(f, "Trigger", err)
		return r
	}
	ended := trigger()
	f.succeed(f.claimOne(f.one, "k"))
	running := trigger()
	claim := f.claimOne(f.one, "k")
	queued := trigger()
	other := f.enqueueOne(f.one, coord.NewRun{Kind: "other"})
	must(f, "DeleteTask", c.DeleteTask(f.ctx, "n"))
	_, err := c.Task(f.ctx, "n")
	is(f, "Task after DeleteTask", err, coord.ErrNotFound)
	is(f, "DeleteTask, again", c.DeleteTask(f.ctx, "n"), coord.ErrNotFound)
	_, err = c.Trigger(f.ctx, "n", coord.TriggerOptions{})
	is(f, "Trigger after DeleteTask", err, coord.ErrNotFound)
	f.state(ended.ID, coord.Succeeded)
	f.state(queued.ID, coord.Cancelled)
	f.state(other.ID, coord.Queued)
	equal(f, "CancelRequested of the running run", f.state(running.ID, coord.Running).CancelRequested, true)
	f.finish(f.one, coord.Result{Claim: claim, Outcome: coord.CancelRun})
	equal(f, "how many runs the history has", len(f.runs(coord.RunFilter{TaskID: t.ID})), 3)
	f.store.Advance(5 * time.Minute)
	f.claimNone(f.one, "k", "the task is deleted")

	reborn := f.put(coord.Task{Name: "n", Kind: "k"})
	if reborn.ID == t.ID {
		f.Errorf("a task of the same name has the id %d of the deleted one", t.ID)
	}
	equal(f, "how many runs the new task has", len(f.runs(coord.RunFilter{TaskID: reborn.ID})), 0)
}
