package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/rig/load"
)

var kebab = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// TestScenarios: every one says what it is.
func TestScenarios(t *testing.T) {
	seen := make(map[string]bool)
	short := 0
	for _, s := range scenarios() {
		if !kebab.MatchString(s.Name) || seen[s.Name] {
			t.Errorf("%q is a name that is not good, or not the only one", s.Name)
		}
		seen[s.Name] = true
		if s.Promise == "" || s.Break == "" || s.Checker == "" || s.Run == nil {
			t.Errorf("%s leaves out its promise, its break, what notices that, or how it runs", s.Name)
		}
		if strings.Contains(s.Promise+s.Break+s.Checker, "|") || !strings.HasSuffix(s.Break, ".") {
			t.Errorf("%s can't stand in a table, or its break is no sentence", s.Name)
		}
		if s.Short {
			short++
		}
	}
	if short == 0 {
		t.Error("there is no short one")
	}
}

// TestDocumented holds the table of docs/failure-rig.md to the scenarios.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/failure-rig.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ promise, breaks, checker, short string }
	documented := make(map[string]row)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 8 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `\n")
		}
		if cells[2] == "" {
			t.Errorf("%s: the table does not say what is done", cells[1])
		}
		documented[cells[1]] = row{cells[3], cells[4], cells[5], cells[6]}
	}
	for _, s := range scenarios() {
		want := row{s.Promise, s.Break, s.Checker, ""}
		if s.Short {
			want.short = "yes"
		}
		if got := documented[s.Name]; got != want {
			t.Errorf("docs/failure-rig.md says of %s\n%+v\nand it is\n%+v", s.Name, got, want)
		}
		delete(documented, s.Name)
	}
	for name := range documented {
		t.Errorf("docs/failure-rig.md has %s, which there is not", name)
	}
}

func TestChoose(t *testing.T) {
	all := []Scenario{{Name: "a", Short: true}, {Name: "b"}, {Name: "c", Short: true}}
	for _, test := range []struct {
		o    options
		want []string
	}{
		{options{}, []string{"a", "b", "c"}},
		{options{short: true}, []string{"a", "c"}},
		{options{names: "c,b"}, []string{"b", "c"}},
		{options{names: "b,c", short: true}, []string{"c"}},
	} {
		chosen, err := choose(all, test.o)
		var names []string
		for _, s := range chosen {
			names = append(names, s.Name)
		}
		if err != nil || !slices.Equal(names, test.want) {
			t.Errorf("%+v: %v, %v; want %v", test.o, names, err, test.want)
		}
	}
	if _, err := choose(all, options{names: "a,d"}); err == nil {
		t.Error("a scenario that is not there was taken")
	}
}

// TestVerdicts: what holds must hold, and with a break must not.
func TestVerdicts(t *testing.T) {
	holds := load.Outcome{Acknowledged: 2, Once: 2}
	lost, twice, wrong := holds, holds, holds
	lost.Lost, twice.Twice, wrong.Faults = 1, 1, []string{"wrong"}
	for _, test := range []struct {
		name        string
		outcome     load.Outcome
		err         string
		good, noted bool
	}{
		{"holds", holds, "", true, false},
		{"lost", lost, "", false, true},
		{"twice", twice, "", false, true},
		{"wrong", wrong, "", false, true},
		{"nothing", load.Outcome{}, "", false, false},
		{"error", lost, "it fell over", false, false},
	} {
		for _, broken := range []bool{false, true} {
			r := Result{Name: test.name, Outcome: test.outcome, Error: test.err, Broken: broken}
			want := test.good
			if broken {
				want = test.noted
			}
			if r.Good() != want {
				t.Errorf("%s, broken %v: good is %v: %s", test.name, broken, r.Good(), r.Verdict())
			}
			code := report(io.Discard, []Result{r}, 1, options{})
			if (code == 0) != want {
				t.Errorf("%s, broken %v: code %d", test.name, broken, code)
			}
		}
	}
	if report(io.Discard, []Result{{Outcome: holds}}, 2, options{json: true}) == 0 {
		t.Error("a run that was interrupted ended well")
	}
}

// TestRunOne: a wait that ends in vain is a fault; what could not be done is an error.
func TestRunOne(t *testing.T) {
	for err, want := range map[error]string{
		nil: "holds",
		fmt.Errorf("a wait: %w", load.ErrStalled): "BROKEN",
		io.ErrUnexpectedEOF:                       "could not be run: unexpected EOF",
	} {
		s := Scenario{Name: "x", Run: func(context.Context, *Rig) (load.Outcome, error) {
			return load.Outcome{Acknowledged: 1, Once: 1, Gap: time.Second}, err
		}}
		if got := runOne(t.Context(), s, options{}, nil, io.Discard).Verdict(); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
