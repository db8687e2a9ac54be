// Package jobs is the registry of the background work of a replica: what there is of it,
// how often it is done, and why that is right when there are several replicas.
//
// A job's work is of one of four types, which are its class: [LeaderOnly], [ReplicaSafe],
// [Disabled] or, listed only, [Loop]. Replicas take turns, which the store keeps: of all
// that run, one does a job when it is due, and what came of it is there for all to see.
package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Job is a piece of background work.
type Job struct {
	Name  string        // such as "audit.reap"; unique
	About string        // what it does, in one sentence
	Why   string        // why its class is right, in one sentence
	Every time.Duration // from the beginning of one turn to that of the next; none of a Loop
	Work  Work
}

// Work is what a job does: a [LeaderOnly], [ReplicaSafe], [Disabled] or [Loop].
type Work interface{ class() Class }

// LeaderOnly is work whose effects must be those of one replica at a time. It runs on the
// leader, whose term may be over at any moment without its knowing, and so writes only
// through fenced. It is ReplicaSafe otherwise.
type LeaderOnly func(ctx context.Context, fenced Fenced) (done int, err error)

// Fenced runs fn in one transaction that commits only while the leader's term lasts;
// [coord.ErrFenced] when it is over. The rules are those of [store.Store.InTx].
type Fenced func(ctx context.Context, fn func(ctx context.Context, u store.Unit) error) error

// ReplicaSafe is work that does no harm when several replicas do it at once. It does a
// bounded piece and returns how much there was; it is called again until there is no more,
// or its turn is long enough.
type ReplicaSafe func(ctx context.Context) (done int, err error)

// Disabled is work that is not done.
type Disabled struct{}

// Loop is replica-safe work that a part of each replica does all the time, or whenever it
// must. It is listed only.
type Loop struct{}

// Class is what is known of a job: whether several replicas may do it at once.
type Class string

// The classes.
const (
	ClassLeaderOnly  Class = "leader-only"
	ClassReplicaSafe Class = "replica-safe"
	ClassDisabled    Class = "disabled"
)

func (LeaderOnly) class() Class  { return ClassLeaderOnly }
func (ReplicaSafe) class() Class { return ClassReplicaSafe }
func (Disabled) class() Class    { return ClassDisabled }
func (Loop) class() Class        { return ClassReplicaSafe }

// Observer is told of turns.
type Observer interface {
	// JobEnded is called at the end of each turn that this replica had. err is nil, why it
	// failed, or what ended it before it was done: the end of the replica or of its term.
	JobEnded(job string, done int, took time.Duration, err error)
	// JobOverdue is called with true when such a turn goes on although it was told to end.
	JobOverdue(job string, overdue bool)
}

// Options configure a [Registry].
type Options struct {
	Node     string       // this replica, for people to read; 1–200 bytes
	Off      []string     // names of jobs that are not done
	Observer Observer     // default: nobody
	Logger   *slog.Logger // default: discards
}

// Registry has the jobs of a replica. It is safe for concurrent use.
type Registry struct {
	elector coord.Elector
	store   *store.Store
	o       Options
	jobs    []Job

	longest, late time.Duration // the constants; tests have less
}

var name = regexp.MustCompile(`^[a-z]+(\.[a-z]+)*$`)

// New returns a registry, or what is wrong with a job: a *coord.InvalidError.
func New(elector coord.Elector, st *store.Store, o Options, jobs ...Job) (*Registry, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Registry{elector: elector, store: st, o: o, longest: longest, late: late}
	for _, j := range jobs {
		if reason := j.wrong(); reason != "" {
			return nil, invalid("Job", "%q %s", j.Name, reason)
		}
		if slices.ContainsFunc(r.jobs, func(other Job) bool { return other.Name == j.Name }) {
			return nil, invalid("Job", "there are two jobs %q", j.Name)
		}
		if slices.Contains(o.Off, j.Name) {
			if _, loop := j.Work.(Loop); loop {
				return nil, invalid("JobsOff", "names %q, which can't be turned off: not all works without it", j.Name)
			}
			j.Work = Disabled{}
		}
		r.jobs = append(r.jobs, j)
	}
	for _, off := range o.Off {
		if !slices.ContainsFunc(r.jobs, func(j Job) bool { return j.Name == off }) {
			return nil, invalid("JobsOff", "names %q, which is no job; tandem jobs lists them", off)
		}
	}
	slices.SortFunc(r.jobs, func(a, b Job) int { return strings.Compare(a.Name, b.Name) })
	return r, nil
}

// wrong says what is wrong with the job.
func (j Job) wrong() string {
	loop := false
	switch w := j.Work.(type) {
	case nil:
		return "has no class"
	case Loop:
		loop = true
	case LeaderOnly:
		if w == nil {
			return "does nothing"
		}
	case ReplicaSafe:
		if w == nil {
			return "does nothing"
		}
	}
	switch {
	case !name.MatchString(j.Name):
		return "must have a name such as audit.reap"
	case j.About == "" || j.Why == "":
		return "must say what it does, and why its class is right"
	case (j.Every <= 0) != loop:
		return "must have a time between its turns, unless it is a loop"
	}
	return ""
}

func invalid(field, format string, args ...any) error {
	return &coord.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// Status is a job and what is known of it.
type Status struct {
	Name  string  `json:"name"`
	Class Class   `json:"class"`
	Loop  bool    `json:"loop,omitzero"`    // it goes on in every replica, and nothing more is known of it
	Every float64 `json:"every_s,omitzero"` // in seconds
	About string  `json:"about"`
	Why   string  `json:"why"`

	store.JobRecord // the zero value: it has had no turn
}

// List lists the jobs by name, with what replicas have written down of them.
func (r *Registry) List(ctx context.Context) ([]Status, error) {
	records, err := r.store.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	known := make(map[string]store.JobRecord)
	for _, rec := range records {
		known[rec.Name] = rec
	}
	list := make([]Status, len(r.jobs))
	for i, j := range r.jobs {
		_, loop := j.Work.(Loop)
		list[i] = Status{j.Name, j.Work.class(), loop, j.Every.Seconds(), j.About, j.Why, known[j.Name]}
	}
	return list, nil
}
