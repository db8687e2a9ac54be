// Package doctor looks at a deployment from the inside and says whether a second replica is
// safe. It changes nothing in what it looks at.
//
// A check measures and judges: what it measures comes from the database, the directory or
// the settings, and the judging is a function of that alone.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Level is how good or bad a finding is.
type Level string

// The levels, the worst last.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works, and may surprise
	Problem Level = "problem" // does not work, or will not for long
	Unknown Level = "unknown" // could not be looked at
)

var ranks = map[Level]int{OK: 0, Warning: 1, Problem: 2, Unknown: 3}

// Finding is what a check has found.
type Finding struct {
	Level  Level  `json:"level"`
	Found  string `json:"found"`            // what was measured
	Advice string `json:"advice,omitempty"` // what to do about it
	// Unsafe: as long as it is so, a second replica is not safe.
	Unsafe bool `json:"unsafe"`
}

func fine(format string, args ...any) Finding {
	return Finding{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warning(advice, format string, args ...any) Finding {
	return Finding{Level: Warning, Found: fmt.Sprintf(format, args...), Advice: advice}
}

func problem(advice, format string, args ...any) Finding {
	return Finding{Level: Problem, Found: fmt.Sprintf(format, args...), Advice: advice}
}

// unsafe is a problem that forbids a second replica.
func unsafe(advice, format string, args ...any) Finding {
	f := problem(advice, format, args...)
	f.Unsafe = true
	return f
}

// together makes one finding of those of a check: otherwise when there are none.
func together(otherwise Finding, list ...Finding) Finding {
	if len(list) == 0 {
		return otherwise
	}
	all := Finding{Level: OK}
	var found, advice []string
	for _, f := range list {
		if ranks[f.Level] > ranks[all.Level] {
			all.Level = f.Level
		}
		all.Unsafe = all.Unsafe || f.Unsafe
		found = append(found, f.Found)
		if f.Advice != "" {
			advice = append(advice, f.Advice)
		}
	}
	all.Found, all.Advice = strings.Join(found, "; "), strings.Join(advice, "; ")
	return all
}

// Check is one thing to look at.
type Check struct {
	Name string
	// Vital: a second replica is not safe as long as nobody can say how this is.
	Vital bool
	// Needs names a check without which this one can't be made; it has no Needs itself.
	Needs string
	// Look measures and judges. Its error says why that is impossible.
	Look func(ctx context.Context) (Finding, error)
}

// Result is what became of a check.
type Result struct {
	Check string `json:"check"`
	Finding
}

// Deadline is how long a check may take.
const Deadline = 3 * time.Second

// leaving is how long a check may take to notice that its time is over.
const leaving = time.Second

// Run makes the checks, those at the same time that don't need each other, and returns the
// results in their order. It returns soon after twice the [Deadline], whatever hangs.
func Run(ctx context.Context, checks ...Check) []Result {
	results := make([]Result, len(checks))
	untold := map[string]bool{}
	for _, first := range []bool{true, false} {
		var looking sync.WaitGroup
		for i, c := range checks {
			switch {
			case first != (c.Needs == ""):
			case untold[c.Needs]:
				results[i] = c.unknown(fmt.Sprintf("not looked at, for want of what is above: %s", c.Needs))
			default:
				looking.Go(func() { results[i] = c.run(ctx) })
			}
		}
		looking.Wait()
		for _, r := range results {
			if r.Level == Unknown {
				untold[r.Check] = true
			}
		}
	}
	return results
}

func (c Check) run(ctx context.Context) Result {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	done := make(chan Result, 1)
	go func() {
		f, err := c.Look(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			done <- c.late(err)
		case err != nil:
			done <- c.unknown(err.Error())
		default:
			done <- Result{c.Name, f}
		}
	}()
	timer := time.NewTimer(Deadline + leaving)
	defer timer.Stop()
	select {
	case r := <-done:
		return r
	case <-timer.C: // a dead network, of which it takes no notice
		return c.late(context.DeadlineExceeded)
	}
}

func (c Check) late(err error) Result {
	what := fmt.Sprintf("no answer within %v", Deadline)
	if !errors.Is(err, context.DeadlineExceeded) {
		what += ": " + err.Error()
	}
	return c.unknown(what)
}

func (c Check) unknown(why string) Result {
	f := Finding{Level: Unknown, Found: strings.ReplaceAll(why, "\n", "; "), Unsafe: c.Vital}
	if c.Needs == "" {
		f.Advice = "find out why it can't be looked at"
	}
	return Result{c.Name, f}
}

// Verdict says whether a second replica is safe, in one sentence.
func Verdict(results []Result) (safe bool, sentence string) {
	count := map[Level]int{}
	var reasons []string
	for _, r := range results {
		count[r.Level]++
		if r.Unsafe {
			reasons = append(reasons, r.Check+": "+r.Found)
		}
	}
	switch n := len(reasons); {
	case n > 1:
		return false, fmt.Sprintf("A second replica is NOT safe: %s (and %d more above).", reasons[0], n-1)
	case n == 1:
		return false, fmt.Sprintf("A second replica is NOT safe: %s.", reasons[0])
	}
	var marks []string
	for _, level := range []Level{Problem, Warning, Unknown} {
		if n := count[level]; n > 0 {
			marks = append(marks, fmt.Sprintf("%s: %d", level, n))
		}
	}
	if len(marks) > 0 {
		return true, fmt.Sprintf("A second replica is safe, and there is something to look after (%s).", strings.Join(marks, ", "))
	}
	return true, "A second replica is safe."
}

// Print writes results for people, one line for each and one more where there is something
// to do, and the verdict.
func Print(w io.Writer, results []Result) (safe bool, err error) {
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(w, "%-8s %-*s  %s\n", r.Level, width, r.Check, r.Found); err != nil {
			return false, err
		}
		if r.Advice != "" {
			if _, err := fmt.Fprintf(w, "%-8s %-*s  to do: %s\n", "", width, "", r.Advice); err != nil {
				return false, err
			}
		}
	}
	safe, sentence := Verdict(results)
	_, err = fmt.Fprintf(w, "\n%s\n", sentence)
	return safe, err
}

// PrintJSON writes one object per line: the results, and {"safe", "verdict"}.
func PrintJSON(w io.Writer, results []Result) (safe bool, err error) {
	enc := json.NewEncoder(w)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			return false, err
		}
	}
	safe, sentence := Verdict(results)
	return safe, enc.Encode(struct {
		Safe    bool   `json:"safe"`
		Verdict string `json:"verdict"`
	}{safe, sentence})
}
