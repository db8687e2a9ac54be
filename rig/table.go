package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandemhq/tandem/rig/load"
)

// Result is what came of a scenario.
type Result struct {
	Name    string        `json:"scenario"`
	Promise string        `json:"promised"`
	Broken  bool          `json:"broken,omitempty"`
	Outcome load.Outcome  `json:"outcome"`
	Error   string        `json:"error,omitempty"` // it could not be carried through
	Took    time.Duration `json:"took_ns"`
}

// Good reports whether it came out as it should: the promise held, or the deliberate break was noticed.
func (r Result) Good() bool {
	if r.Broken {
		return r.Error == "" && r.Outcome.Broken()
	}
	return r.Error == "" && r.Outcome.Holds()
}

// Verdict is that in words.
func (r Result) Verdict() string {
	switch {
	case r.Error != "":
		return "could not be run: " + r.Error
	case r.Broken && r.Good():
		return "the break was noticed"
	case r.Broken:
		return "THE BREAK WAS NOT NOTICED"
	case r.Good():
		return "holds"
	case r.Outcome.Acknowledged == 0:
		return "SHOWS NOTHING: nothing was acknowledged"
	default:
		return "BROKEN"
	}
}

// report prints the table, and returns the exit code.
func report(out io.Writer, results []Result, wanted int, o options) int {
	code := 0
	for _, r := range results {
		if !r.Good() {
			code = 1
		}
	}
	if o.json {
		encoder := json.NewEncoder(out)
		for _, r := range results {
			_ = encoder.Encode(struct {
				Result
				Seed    uint64 `json:"seed"`
				Verdict string `json:"verdict"`
				Good    bool   `json:"good"`
			}{r, o.seed, r.Verdict(), r.Good()})
		}
	} else {
		printTable(out, results)
	}
	if len(results) < wanted {
		if !o.json {
			_, _ = fmt.Fprintf(out, "interrupted: %d of %d scenarios were not run\n", wanted-len(results), wanted)
		}
		code = 1
	}
	return code
}

func printTable(out io.Writer, results []Result) {
	_, _ = fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "scenario\tpromised\tacknowledged\tonce\ttwice\tlost\tlongest gap\tverdict")
	for _, r := range results {
		verdict, _, _ := strings.Cut(r.Verdict(), "\n")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%v\t%s\n", r.Name, r.Promise, r.Outcome.Acknowledged, r.Outcome.Once,
			r.Outcome.Twice, r.Outcome.Lost, r.Outcome.Gap.Round(10*time.Millisecond), verdict)
	}
	_ = table.Flush()
}

func printList(out io.Writer, all []Scenario) {
	for _, s := range all {
		short := ""
		if s.Short {
			short = " (short)"
		}
		_, _ = fmt.Fprintf(out, "%s%s\n    promised: %s\n    broken:   %s\n", s.Name, short, s.Promise, s.Break)
		if len(s.Programs) > 0 {
			_, _ = fmt.Fprintf(out, "    needs:    %s\n", strings.Join(s.Programs, ", "))
		}
	}
}
