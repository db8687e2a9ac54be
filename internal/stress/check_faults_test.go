package stress

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// TestCheck shows the checker histories that are good and histories that are not.
func TestCheck(t *testing.T) {
	const claimed, rescued, succeeded = "queued>running", "running>running", "running>succeeded"
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	run := func(id coord.RunID, state coord.State) coord.Run { return coord.Run{ID: id, State: state} }
	once := func(state coord.State) coord.Run { return coord.Run{ID: 1, State: state, AtMostOnce: true} }
	occurrence := func(id coord.RunID, second int) coord.Run {
		return coord.Run{ID: id, TaskID: 7, State: coord.Succeeded, ScheduledFor: start.Add(time.Duration(second) * time.Second)}
	}
	at := func(run, token int64, what string) entry { return entry{Run: run, Token: token, What: what} }
	after := func(late int64, e entry) entry { e.LateMs = late; return e }
	whole := func(run int64) []entry {
		return []entry{at(run, 1, claimed), at(run, 1, begun), at(run, 1, ended), at(run, 1, succeeded)}
	}
	for _, test := range []struct {
		name    string
		runs    []coord.Run
		journal []entry
		want    []string // a part of each fault
	}{
		{"a run that is returned", []coord.Run{run(1, coord.Succeeded)}, whole(1), nil},
		{"a run that is rescued, while its first holder goes on", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), after(5, at(1, 2, rescued)), at(1, 2, begun), at(1, 1, ended), at(1, 1, refused),
			at(1, 2, wrote), at(1, 2, succeeded),
		}, nil},
		{"a retry", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), at(1, 1, wrote), at(1, 1, "running>queued"),
			at(1, 2, claimed), at(1, 2, begun), at(1, 2, ended), at(1, 2, succeeded),
		}, nil},
		{"a lost run", []coord.Run{once(coord.Failed)}, []entry{at(1, 1, claimed), at(1, 1, begun), at(1, 2, "running>failed")}, nil},
		{"occurrences", []coord.Run{occurrence(1, 0), occurrence(2, 1)}, slices.Concat(whole(1), whole(2)), nil},

		{"a run that is left", []coord.Run{run(1, coord.Running)}, []entry{at(1, 1, claimed), at(1, 1, begun)}, []string{"is running"}},
		{
			"a run that was never executed",
			[]coord.Run{run(1, coord.Succeeded)},
			[]entry{at(1, 1, claimed), at(1, 1, succeeded)},
			[]string{"had not ended it", "after 0 executions"},
		},
		{
			"a run that failed",
			[]coord.Run{run(1, coord.Failed)},
			[]entry{at(1, 1, claimed), at(1, 1, begun), at(1, 1, ended), at(1, 1, "running>failed")},
			[]string{"failed after 1 executions"},
		},
		{"a run that is gone", nil, whole(1), []string{"not among the runs", "not among the runs", "not among the runs", "not among the runs", "0 runs were queued"}},
		{"a lease that is taken away early", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), after(-1, at(1, 2, rescued)), at(1, 2, begun), at(1, 2, ended), at(1, 2, succeeded),
		}, []string{"had 1ms left"}},
		{"a token that does not grow", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), at(1, 1, ended), at(1, 1, "running>queued"), at(1, 1, claimed), at(1, 1, succeeded),
		}, []string{"with token 1 after 1"}},
		{
			"a receipt twice",
			[]coord.Run{run(1, coord.Succeeded)},
			[]entry{at(1, 1, claimed), at(1, 1, begun), at(1, 1, begun), at(1, 1, ended), at(1, 1, succeeded)},
			[]string{`after "begun"`},
		},
		{
			"an execution nobody claimed",
			[]coord.Run{run(1, coord.Succeeded)},
			slices.Concat(whole(1), []entry{at(1, 2, begun)}),
			[]string{"the newest token is 1"},
		},
		{"a stale write that gets through", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), at(1, 2, rescued), at(1, 2, begun), at(1, 1, wrote), at(1, 2, ended), at(1, 2, succeeded),
		}, []string{"a write of run 1 with token 1 got through"}},
		{"a run that ends under its holder's hands", []coord.Run{run(1, coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), at(1, 2, rescued), at(1, 2, begun), at(1, 1, ended), at(1, 2, succeeded),
		}, []string{"while the holder of token 2 had not ended it"}},
		{
			"a holder that was stopped while it noted its end",
			[]coord.Run{run(1, coord.Succeeded)},
			slices.Concat(whole(1)[:3], []entry{at(1, 1, stopped), at(1, 1, succeeded)}),
			[]string{`had not ended it: "stopped"`},
		},
		{
			"a holder that is refused",
			[]coord.Run{run(1, coord.Succeeded)},
			slices.Concat(whole(1)[:3], []entry{at(1, 1, refused), at(1, 1, succeeded)}),
			[]string{"was refused"},
		},
		{
			"an end after the end",
			[]coord.Run{run(1, coord.Succeeded)},
			slices.Concat(whole(1), []entry{at(1, 1, succeeded)}),
			[]string{"from running to succeeded when it was succeeded"},
		},
		{"an at-most-once run that is rescued", []coord.Run{once(coord.Succeeded)}, []entry{
			at(1, 1, claimed), at(1, 1, begun), at(1, 2, rescued), at(1, 2, begun), at(1, 2, ended), at(1, 2, succeeded),
		}, []string{"was claimed again", "was executed 2 times"}},
		{
			"a run that is given up",
			[]coord.Run{run(1, coord.Failed)},
			[]entry{at(1, 1, claimed), at(1, 1, begun), at(1, 2, "running>failed")},
			[]string{"was given up", "failed after 1"},
		},
		{"an occurrence that is missing", []coord.Run{occurrence(1, 0), occurrence(2, 2)}, slices.Concat(whole(1), whole(2)), []string{"2s later"}},
		{"an occurrence twice", []coord.Run{occurrence(1, 0), occurrence(2, 0)}, slices.Concat(whole(1), whole(2)), []string{"0s later"}},
		{
			"runs of a task that overlap",
			[]coord.Run{occurrence(1, 0), occurrence(2, 1)},
			slices.Concat(whole(1)[:3], whole(2), whole(1)[3:]),
			[]string{"runs beside another"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := history{journal: test.journal, runs: test.runs, every: time.Second}
			if slices.ContainsFunc(test.runs, func(r coord.Run) bool { return r.TaskID != 0 }) {
				h.forbids = map[coord.TaskID]bool{7: true}
			} else {
				h.queued = 1
			}
			_, faults := check(h)
			if !slices.EqualFunc(faults, test.want, strings.Contains) {
				t.Errorf("the faults are %q; want %q", faults, test.want)
			}
		})
	}
}
