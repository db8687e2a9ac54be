// Command rig is the failure rig: it breaks a deployment of real processes under load, in one way after another, and prints what
// was promised and what was seen.
//
//	go run . -list                  what there is
//	go run . -scenario kill,freeze  some of it
//	go run . -short                 the subset that is run on every change
//	go run .                        everything
//	go run . -break                 with the deliberate break of each: one that is not noticed is a failure
//
// See docs/failure-rig.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// previousRevision is the version before the keyring.
const previousRevision = "43e8966"

// shownFaults is how many faults of a scenario are told in words; -json has more.
const shownFaults = 8

// scenarioLimit is how long one scenario may take.
const scenarioLimit = 10 * time.Minute

func main() {
	// What is started is ended by what is deferred, also on a signal.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if os.Getenv(load.CrowdVariable) != "" {
		if err := load.RunCrowd(ctx, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "rig: a crowd:", err)
			code = 1
		}
	} else {
		code = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	os.Exit(code)
}

// options are those of the command line.
type options struct {
	list, short, broken, json bool
	names                     string
	seed                      uint64
	previous                  string
}

func parse(args []string, errs io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("rig", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.BoolVar(&o.list, "list", false, "list the scenarios")
	flags.StringVar(&o.names, "scenario", "", "run these, comma-separated, and not all")
	flags.BoolVar(&o.short, "short", false, "run the subset that is run on every change")
	flags.BoolVar(&o.broken, "break", false, "run with the deliberate breaks, each of which must be noticed")
	flags.Uint64Var(&o.seed, "seed", rand.Uint64N(1_000_000), "repeat the choices of another run") //nolint:gosec // to be repeated
	flags.BoolVar(&o.json, "json", false, "print an object for each scenario, and no table")
	flags.StringVar(&o.previous, "previous", previousRevision, "the revision that stands for the version before")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	return o, nil
}

// choose returns the scenarios that the command line asks for.
func choose(all []Scenario, o options) (chosen []Scenario, err error) {
	names := strings.FieldsFunc(o.names, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range names {
		if !slices.ContainsFunc(all, func(s Scenario) bool { return s.Name == name }) {
			return nil, fmt.Errorf("there is no scenario %q: see -list", name)
		}
	}
	for _, s := range all {
		if (len(names) == 0 || slices.Contains(names, s.Name)) && (s.Short || !o.short) {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// run does what the command line says, and returns the exit code: 1 when a promise was broken, or a break not noticed; 2
// when it is not clear what is wanted.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	o, err := parse(args, errs)
	var chosen []Scenario
	if err == nil {
		chosen, err = choose(scenarios(), o)
	}
	if err != nil {
		_, _ = fmt.Fprintln(errs, "rig:", err)
		return 2
	}
	if o.list {
		printList(out, chosen)
		return 0
	}
	if err := install(ctx, errs, chosen); err != nil {
		_, _ = fmt.Fprintln(errs, "rig:", err)
		return 2
	}
	builds, err := stand.NewBuilds(ctx)
	if err != nil {
		_, _ = fmt.Fprintln(errs, "rig:", err)
		return 2
	}
	defer builds.Remove()
	_, _ = fmt.Fprintf(errs, "seed %d\n", o.seed)
	var results []Result
	for _, s := range chosen {
		if ctx.Err() != nil {
			break
		}
		results = append(results, runOne(ctx, s, o, builds, errs))
	}
	return report(out, results, len(chosen), o)
}

// runOne runs a scenario.
func runOne(ctx context.Context, s Scenario, o options, builds *stand.Builds, progress io.Writer) Result {
	ctx, cancel := context.WithTimeout(ctx, scenarioLimit)
	defer cancel()
	r := &Rig{
		Seed: o.seed, Broken: o.broken, Previous: o.previous, Builds: builds, name: s.Name, began: time.Now(), out: progress,
	}
	r.Random = r.RandomOf(0)
	if r.Broken {
		r.Say("broken: %s", s.Break)
	} else {
		r.Say("promised: %s", s.Promise)
	}
	outcome, err := s.Run(ctx, r)
	if errors.Is(err, load.ErrStalled) || errors.Is(err, stand.ErrUnready) {
		outcome.Fault("%v", err) // which is what came of it
		err = nil
	}
	result := Result{Name: s.Name, Promise: s.Promise, Outcome: outcome, Broken: o.broken, Took: time.Since(r.began)}
	if err != nil {
		result.Error = err.Error()
	}
	for _, f := range outcome.Faults[:min(shownFaults, len(outcome.Faults))] {
		r.Say("fault: %s", strings.ReplaceAll(f, "\n", " "))
	}
	if more := len(outcome.Faults) + outcome.More() - shownFaults; more > 0 {
		r.Say("and %d more faults", more)
	}
	for _, n := range outcome.Notes {
		r.Say("%s", n)
	}
	r.Say("%s", result.Verdict())
	return result
}
