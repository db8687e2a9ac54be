package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// Scenario is something that happens to replicas under load, and what is promised whatever happens.
type Scenario struct {
	// Name is short, in kebab-case.
	Name string
	// Promise is what is promised, in a few words for the table.
	Promise string
	// Short says that it belongs to the subset that is run on every change.
	Short bool
	// Programs are the Debian packages that it needs, besides those of every scenario: postgresql and haproxy.
	Programs []string
	// Break is what is deliberately wrong in a run with -break, in one sentence.
	Break string
	// Checker is what notices that, in a few words.
	Checker string
	// Run does it. What it finds is in the outcome; an error says that the scenario could not be carried through.
	// With [Rig.Broken] the break must be there, and the outcome must not hold.
	Run func(ctx context.Context, r *Rig) (load.Outcome, error)
}

// scenarios are all of them, in the order in which they run.
func scenarios() (all []Scenario) {
	for _, family := range families {
		all = append(all, family()...)
	}
	return all
}

// families are the files of scenarios.
var families = []func() []Scenario{replicaScenarios, checkScenarios, databaseScenarios, networkScenarios, failoverScenarios}

// Rig is what a scenario is run with.
type Rig struct {
	// Seed decides all choices of the scenario, by way of Random.
	Seed uint64
	// Random is for one goroutine at a time; [Rig.RandomOf] makes others.
	Random *rand.Rand
	// Broken asks for the deliberate break.
	Broken bool
	// Previous is the revision whose build stands for the version before.
	Previous string
	// Builds makes the programs.
	Builds *stand.Builds

	name  string
	began time.Time
	mu    sync.Mutex
	out   io.Writer
}

// RandomOf returns a source of choices for a goroutine that has a number.
func (r *Rig) RandomOf(n uint64) *rand.Rand { return rand.New(rand.NewPCG(r.Seed, n)) } //nolint:gosec // to be repeated

// Say tells who watches what is done.
func (r *Rig) Say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, "%7.1fs  %-20s %s\n", time.Since(r.began).Seconds(), r.name, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// Stand starts replicas behind HAProxy. With [Rig.Broken] and changes they are built with these; otherwise
// and without any from the source as it is. The caller stops it.
func (r *Rig) Stand(ctx context.Context, o stand.Options, breaks ...stand.Change) (*stand.Stand, error) {
	if !r.Broken {
		breaks = nil
	}
	if o.Program == "" {
		var err error
		if o.Program, err = r.Builds.Program(ctx, "pg", breaks...); err != nil {
			return nil, err
		}
	}
	o.Root = r.Builds.Root
	s, err := stand.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Later {
		r.Say("%d replicas can start behind %s", len(s.Replicas), s.Front)
	} else {
		r.Say("%d replicas are ready behind %s", len(s.Replicas), s.Front)
	}
	return s, nil
}

// Wait waits for a time, or until ctx ends.
func (r *Rig) Wait(ctx context.Context, d time.Duration) error { return stand.Pause(ctx, d) }
