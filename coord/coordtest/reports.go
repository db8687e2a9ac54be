package coordtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func (f *fixture) report(b coord.Backend, reports ...coord.Report) {
	f.Helper()
	must(f, "Report", b.Claimer().Report(f.ctx, reports...))
}

// log lists the lines of a run behind a number.
func (f *fixture) log(id coord.RunID, after int) []coord.LogLine {
	f.Helper()
	return collect(f, "Log", f.two.Claimer().Log(f.ctx, id, after))
}

// texts lists what the lines of a run say.
func (f *fixture) texts(id coord.RunID) (texts []string) {
	f.Helper()
	for _, line := range f.log(id, 0) {
		texts = append(texts, line.Text)
	}
	return texts
}

// sameLog compares lines of logs.
func sameLog(r reporter, what string, got, want []coord.LogLine) {
	r.Helper()
	equal(r, what+": how many lines", len(got), len(want))
	for i := range min(len(got), len(want)) {
		equal(r, fmt.Sprintf("%s: At of line %d", what, want[i].Number), got[i].At, want[i].At)
		g := got[i]
		g.At = want[i].At
		equal(r, fmt.Sprintf("%s: line %d", what, want[i].Number), g, want[i])
	}
}

var reportTests = []test{
	{"progress and log lines", lifeOfALog},
	{"a report of nothing changes nothing", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		f.report(f.one, coord.Report{Claim: c, Progress: 30})
		f.report(f.two, coord.Report{Claim: c})
		equal(f, "Progress", f.run(c.Run.ID).Progress, 30)
		equal(f, "LogLines", f.run(c.Run.ID).LogLines, 0)
		f.report(f.two, coord.Report{Claim: c, Progress: 20}) // it may go back
		equal(f, "Progress", f.run(c.Run.ID).Progress, 20)
	}},
	{"a report of a lost lease is fenced", fencedReports},
	{"some of a batch of reports are fenced", func(f *fixture) {
		f.enqueue(f.one, coord.NewRun{Kind: "a"}, coord.NewRun{Kind: "b"}, coord.NewRun{Kind: "b"})
		stale := f.claimOne(f.one, "a")
		f.store.Advance(2 * lease)
		f.claimOne(f.two, "a")
		asTwo := f.run(stale.Run.ID)
		good := f.claimCount("of the others", f.one, want("b", 10), 2)
		err := f.one.Claimer().Report(f.ctx,
			coord.Report{Claim: good[0], Progress: 1, Lines: []string{"one"}},
			coord.Report{Claim: stale, Progress: 2, Lines: []string{"two"}},
			coord.Report{Claim: good[1], Lines: []string{"three", "four"}})
		fenced(f, "Report of two claims that are held and one that is not", err, stale)
		sameRun(f, "the run that was fenced", f.run(stale.Run.ID), asTwo)
		equal(f, "the log of the run that was fenced", len(f.log(stale.Run.ID, 0)), 0)
		equal(f, "the log of the first run", f.texts(good[0].Run.ID), []string{"one"})
		equal(f, "Progress of the first run", f.run(good[0].Run.ID).Progress, 1)
		equal(f, "the log of the last run", f.texts(good[1].Run.ID), []string{"three", "four"})
		equal(f, "Progress of the last run", f.run(good[1].Run.ID).Progress, 0)
	}},
	{"lines are data, and are cut", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		long := "x" + strings.Repeat("é", coord.MaxLogLine)
		lines := append(slices.Clone(awkward), "", "two\nlines\ttabbed", "a\x00b", "a\xffb", long)
		f.report(f.one, coord.Report{Claim: c, Lines: lines})
		want := slices.Clone(lines)
		want[len(want)-3], want[len(want)-2] = "a\ufffdb", "a\ufffdb"
		got := f.texts(c.Run.ID)
		equal(f, "how many lines are kept", len(got), len(want))
		for i := range len(got) - 1 {
			equal(f, fmt.Sprintf("line %d", i+1), got[i], want[i])
		}
		cut := got[len(got)-1]
		if len(cut) > coord.MaxLogLine || len(cut) < coord.MaxLogLine-4 || !strings.HasPrefix(long, cut) {
			f.Errorf("a line of %d bytes is stored as %d bytes: %s", len(long), len(cut), show(cut))
		}
	}},
	{"a log ends at its bound", longLog},
	{"reports at once keep all lines", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		const callers, times = 8, 10
		f.together(callers, func(caller int, b coord.Backend) {
			for i := range times {
				line := fmt.Sprintf("%d %d", caller, i)
				err := b.Claimer().Report(f.ctx, coord.Report{Claim: c, Lines: []string{line + " a", line + " b"}})
				if err != nil {
					f.Errorf("Report: %v", err)
				}
			}
		})
		equal(f, "LogLines", f.run(c.Run.ID).LogLines, 2*callers*times)
		next := map[int]int{}
		lines := f.log(c.Run.ID, 0)
		equal(f, "how many lines are kept", len(lines), 2*callers*times)
		for i, line := range lines {
			equal(f, "the number of a line", line.Number, i+1)
			var caller, n int
			var part string
			if _, err := fmt.Sscanf(line.Text, "%d %d %s", &caller, &n, &part); err != nil {
				f.Fatalf("line %d is %q", line.Number, line.Text)
			}
			if step := 2*n + int(part[0]-'a'); step != next[caller] {
				f.Fatalf("line %d is %q, and comes as line %d of its caller", line.Number, line.Text, next[caller])
			}
			next[caller]++
		}
	}},
	{"a log is pruned with its run", func(f *fixture) {
		runs := f.enqueue(f.one, coord.NewRun{Kind: "k"}, coord.NewRun{Kind: "k"})
		claims := f.claimCount("of two", f.one, want("k", 10), 2)
		for _, c := range claims {
			f.report(f.one, coord.Report{Claim: c, Lines: []string{"kept"}})
		}
		f.succeed(claims[slices.IndexFunc(claims, func(c coord.Claim) bool { return c.Run.ID == runs[0].ID })])
		equal(f, "the log of a run that has ended", f.texts(runs[0].ID), []string{"kept"})
		f.store.Advance(2 * time.Hour)
		n, err := f.two.Claimer().Prune(f.ctx, coord.RunRetention{Age: time.Hour})
		must(f, "Prune", err)
		equal(f, "how many runs were pruned", n, 1)
		equal(f, "how many lines of the pruned run are left", len(f.log(runs[0].ID, 0)), 0)
		equal(f, "the log of the run that has not ended", f.texts(runs[1].ID), []string{"kept"})
		equal(f, "how many lines a run that never was has", len(f.log(1<<40, 0)), 0)
	}},
	{"a report in a transaction", func(f *fixture) {
		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		c := f.claimOne(f.one, "k")
		before := f.run(c.Run.ID)
		report := func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Report(ctx, coord.Report{Claim: c, Progress: 40, Lines: []string{"1"}}); err != nil {
				return err
			}
			return tx.Report(ctx, coord.Report{Claim: c, Progress: 50, Lines: []string{"2", "3"}})
		}
		f.rollsBack(report)
		sameRun(f, "after a rollback", f.run(c.Run.ID), before)
		equal(f, "how many lines are left of a rollback", len(f.log(c.Run.ID, 0)), 0)
		f.inTx(f.one, report)
		f.inTx(f.two, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Report(ctx, coord.Report{Claim: c, Progress: 100, Lines: []string{"done"}}); err != nil {
				return err
			}
			return tx.Finish(ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
		})
		equal(f, "Progress", f.state(c.Run.ID, coord.Succeeded).Progress, 100)
		equal(f, "the log", f.texts(c.Run.ID), []string{"1", "2", "3", "done"})

		f.enqueueOne(f.one, coord.NewRun{Kind: "k"})
		stale := f.claimOne(f.one, "k")
		f.store.Advance(2 * lease)
		f.claimOne(f.two, "k")
		err := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Publish(ctx, event("t", "undone")); err != nil {
				return err
			}
			return tx.Report(ctx, coord.Report{Claim: stale, Lines: []string{"stale"}})
		})
		fenced(f, "InTx with the Report of a lost lease", err, stale)
		equal(f, "the head of the topic after it", f.head("t"), coord.Start)
		equal(f, "how many lines are left of it", len(f.log(stale.Run.ID, 0)), 0)
	}},
}

func lifeOfALog(f *fixture) {
	r := f.enqueueOne(f.one, keyed("k", "", 0))
	equal(f, "how many lines a run has that was not claimed", len(f.log(r.ID, 0)), 0)
	var expected []coord.LogLine
	say := func(c coord.Claim, progress int, lines ...string) {
		f.Helper()
		f.report(f.two, coord.Report{Claim: c, Progress: progress, Lines: lines})
		for _, text := range lines {
			expected = append(expected, coord.LogLine{
				Number: len(expected) + 1, Attempt: c.Run.Attempt, At: f.store.Now(), Text: text,
			})
		}
		sameLog(f, "after a report", f.log(r.ID, 0), expected)
		equal(f, "LogLines after a report", f.run(r.ID).LogLines, len(expected))
	}
	first := f.claimOne(f.one, "k")
	say(first, 10, "a", "b")
	f.store.Advance(time.Second)
	say(first, 0, "c")
	equal(f, "Progress", f.run(r.ID).Progress, 10)
	say(first, 55)
	equal(f, "Progress", f.run(r.ID).Progress, 55)
	held, err := f.one.Claimer().Extend(f.ctx, lease, first)
	must(f, "Extend", err)
	sameRun(f, "as extended", held[0].Run, f.run(r.ID))
	sameLog(f, "behind line 1", f.log(r.ID, 1), expected[1:])
	sameLog(f, "behind the last line", f.log(r.ID, 3), nil)
	sameLog(f, "behind lines that are not yet there", f.log(r.ID, 7), nil)
	for line, err := range f.one.Claimer().Log(f.ctx, r.ID, 0) { // a listing may be left
		must(f, "Log", err)
		equal(f, "the first line", line.Text, "a")
		break
	}

	f.finish(f.one, coord.Result{Claim: held[0], Outcome: coord.Fail, Error: "no"})
	equal(f, "Progress of the attempt that failed", f.state(r.ID, coord.Queued).Progress, 55)
	f.store.Advance(time.Second)
	second := f.claimOne(f.one, "k")
	equal(f, "Progress as claimed again", second.Run.Progress, 0)
	equal(f, "LogLines as claimed again", second.Run.LogLines, 3)
	equal(f, "Progress of the second attempt", f.run(r.ID).Progress, 0)
	say(second, 20, "d")
	f.store.Advance(2 * lease)
	third := f.claimOne(f.two, "k")
	equal(f, "Progress of the third attempt, whose second was lost", f.run(r.ID).Progress, 0)
	say(third, 0, "e")
	f.finish(f.one, coord.Result{Claim: third, Outcome: coord.Release})
	again := f.claimOne(f.one, "k")
	say(again, 100, "f")
	f.succeed(again)
	ended := f.state(r.ID, coord.Succeeded)
	equal(f, "Progress of a run that has ended", ended.Progress, 100)
	equal(f, "LogLines of a run that has ended", ended.LogLines, 6)
	late := coord.Report{Claim: again, Lines: []string{"g"}}
	fenced(f, "Report of a run that has ended", f.one.Claimer().Report(f.ctx, late), again)
	sameLog(f, "in the end", f.log(r.ID, 0), expected)
}

func fencedReports(f *fixture) {
	r := f.enqueueOne(f.one, coord.NewRun{Kind: "k", Retry: coord.Retry{MaxAttempts: 9}})
	a := f.claimOne(f.one, "k")
	f.report(f.one, coord.Report{Claim: a, Progress: 5, Lines: []string{"a"}})
	f.store.Advance(lease + time.Microsecond)
	b := f.claimOne(f.two, "k")
	asB := f.run(r.ID)
	forged, unknown := b, coord.Claim{Run: coord.Run{ID: 1 << 40}, Token: 1}
	forged.Token++
	for what, c := range map[string]coord.Claim{
		"a lost lease": a, "a token that was never given": forged, "an unknown run": unknown,
	} {
		stale := []string{"stale"}
		for _, report := range []coord.Report{
			{Claim: c}, {Claim: c, Progress: 99}, {Claim: c, Lines: stale}, {Claim: c, Progress: 99, Lines: stale},
		} {
			fenced(f, "Report of "+what, f.one.Claimer().Report(f.ctx, report), c)
		}
		sameRun(f, "after the Report of "+what, f.run(r.ID), asB)
		equal(f, "how many lines "+what+" has left", len(f.log(c.Run.ID, 1)), 0)
	}
	f.report(f.one, coord.Report{Claim: b, Lines: []string{"b"}})
	equal(f, "the log", f.texts(r.ID), []string{"a", "b"})
	f.finish(f.two, coord.Result{Claim: b, Outcome: coord.Release})
	fenced(f, "Report of a run that was given back", f.two.Claimer().Report(f.ctx, coord.Report{Claim: b, Progress: 1}), b)
}

func longLog(f *fixture) {
	f.enqueue(f.one, coord.NewRun{Kind: "k"}, coord.NewRun{Kind: "k"})
	claims := f.claimCount("of two", f.one, want("k", 2), 2)
	numbered := func(from, n int) (lines []string) {
		for i := range n {
			lines = append(lines, fmt.Sprint(from+i))
		}
		return lines
	}
	c, other := claims[0], claims[1]
	said := 0
	for range coord.MaxLogLines/coord.MaxBatch - 1 {
		f.report(f.one, coord.Report{Claim: c, Lines: numbered(said+1, coord.MaxBatch)})
		said += coord.MaxBatch
	}
	f.report(f.one, coord.Report{Claim: c, Lines: numbered(said+1, coord.MaxBatch-2)})
	said += coord.MaxBatch - 2
	equal(f, "how many lines are kept, two below the bound", len(f.log(c.Run.ID, 0)), coord.MaxLogLines-2)
	for range 2 {
		f.report(f.one,
			coord.Report{Claim: c, Progress: 7, Lines: numbered(said+1, 5)},
			coord.Report{Claim: other, Lines: []string{"other"}})
		said += 5
		lines := f.log(c.Run.ID, 0)
		equal(f, "how many lines are kept", len(lines), coord.MaxLogLines)
		for i, line := range lines {
			if line.Number != i+1 || line.Text != fmt.Sprint(i+1) {
				f.Fatalf("line %d of the log is number %d, %q", i+1, line.Number, line.Text)
			}
		}
		equal(f, "LogLines, those not kept included", f.run(c.Run.ID).LogLines, said)
	}
	equal(f, "how many lines are behind the bound", len(f.log(c.Run.ID, coord.MaxLogLines)), 0)
	equal(f, "the log of another run", f.texts(other.Run.ID), []string{"other", "other"})
	var last int
	for line, err := range f.two.Claimer().Log(f.ctx, c.Run.ID, coord.MaxLogLines-3) {
		must(f, "Log", err)
		last = line.Number
	}
	equal(f, "the last line", last, coord.MaxLogLines)
	stale := c
	stale.Token--
	err := f.one.Claimer().Report(f.ctx, coord.Report{Claim: stale, Lines: []string{"stale"}})
	fenced(f, "Report of a stale token to a full log", err, stale)
	equal(f, "LogLines after it", f.run(c.Run.ID).LogLines, said)
}
