package coord

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"
)

// Claimer decides who runs what is due.
//
// A [Task] is a definition that makes runs by its schedule; a [Run] is one
// execution. A replica claims due runs under a lease and must finish them
// before it ends, or extend it. Every claim carries a token that only grows,
// and every write that the claim allows checks the token inside the writing
// statement: a replica that lost its lease changes nothing.
//
// A run is executed at least once, unless it is AtMostOnce: a worker that
// vanishes has its run claimed again by the next Claim, on any replica.
type Claimer interface {
	// PutTask creates the task when t.Version is 0, and otherwise replaces the
	// task of that name if its version is still t.Version. It returns the task as
	// stored. Errors: ErrConflict when the name is taken or the version is
	// another one, ErrNotFound when there is no such task, ErrInvalid.
	//
	// A changed schedule or zone counts from now, and a single time must not have
	// passed; an unchanged one keeps its next occurrence.
	PutTask(ctx context.Context, t Task) (Task, error)
	// Task returns the task of that name, or ErrNotFound.
	Task(ctx context.Context, name string) (Task, error)
	// Tasks lists all tasks by name.
	Tasks(ctx context.Context) iter.Seq2[Task, error]
	// DeleteTask removes the task and cancels its runs, as Cancel does. Its history
	// stays until pruned. ErrNotFound if there is none.
	DeleteTask(ctx context.Context, name string) error
	// PauseTask stops or resumes the occurrences of a task, whatever its version,
	// which grows; its runs in flight are untouched. On resume the misfire policy decides what
	// becomes of the occurrences that were missed. ErrNotFound if there is none.
	PauseTask(ctx context.Context, name string, paused bool) error
	// Trigger queues a run of the task now, whether the task is paused or not. A key
	// makes it idempotent: the same key again returns the same run, with Duplicate
	// set. ErrConflict when the task forbids overlap and has a run that has not
	// ended; ErrNotFound.
	Trigger(ctx context.Context, name string, o TriggerOptions) (Run, error)

	// Enqueue queues runs that belong to no task, all or none, and returns them
	// in the order given. A run whose UniqueKey is known already is not queued
	// again: the earlier run is returned, with Duplicate set.
	Enqueue(ctx context.Context, runs ...NewRun) ([]Run, error)

	// Claim takes up to o.Limit due runs of the kinds it can handle, by priority
	// and due time, and leases them. Due occurrences of tasks of those kinds become
	// runs on the way. A run whose lease ran out is taken again with a higher
	// attempt and token, by the same statement; one that may not run again ends as
	// failed instead, or as cancelled if that was asked, and may count against the
	// limit. Nothing due is an empty result.
	//
	// A run that has a [Concurrency], or whose kind is in o.Limits, is taken only
	// while fewer than that many are running, on all replicas together. A run whose
	// worker vanished keeps its place until it is taken again or ended; where nobody
	// handles its kind any more, Cancel ends it.
	//
	// The Deadline of each claim counts on this process's clock from before the
	// request, so it ends before the lease does.
	Claim(ctx context.Context, o ClaimOptions) ([]Claim, error)
	// Extend renews the leases and returns the claims that are still held, with a
	// new Deadline and an up-to-date Run.CancelRequested. When some are not, the
	// error is a [*FencedError] that names them; the others were renewed. With any
	// other error too, the claims returned were renewed.
	Extend(ctx context.Context, lease time.Duration, claims ...Claim) ([]Claim, error)
	// Finish ends, snoozes or releases claimed runs. When some of the claims are
	// no longer held, the error is a [*FencedError] that names them, their runs
	// are untouched, and the others were finished. Repeated after an
	// ErrUnknownOutcome, it is also the answer for what the first call finished.
	Finish(ctx context.Context, results ...Result) error
	// Report sets the progress of claimed runs and adds lines to their logs. When
	// some of the claims are no longer held, the error is a [*FencedError] that names
	// them, nothing is reported of them, and the others were served. Lines that come
	// after MaxLogLines of a run are counted and not kept.
	Report(ctx context.Context, reports ...Report) error
	// Cancel ends a queued run at once and asks a running one to stop, wherever
	// it runs; its worker hears of it by Cancels, and by the next Extend at the
	// latest. A running run whose lease ran out has lost its worker and is ended at
	// once; a worker that is merely late is fenced. Cancelling a run that has ended is
	// ErrConflict; ErrNotFound if there is none.
	Cancel(ctx context.Context, id RunID) error

	// Run returns one run, or ErrNotFound.
	Run(ctx context.Context, id RunID) (Run, error)
	// Runs lists runs, the newest first.
	Runs(ctx context.Context, f RunFilter) iter.Seq2[Run, error]
	// Log lists the log lines of a run behind the one numbered after, in order. A run
	// that is not there, or not any more, has none.
	Log(ctx context.Context, id RunID, after int) iter.Seq2[LogLine, error]
	// NextDue returns how long it is until a further run or occurrence of these
	// kinds, or of any when none is named, falls due or a lease ends; some is false
	// when none will. What is due already does not count. Where much of other kinds
	// comes before, a driver may look no further and answer with the time of that.
	NextDue(ctx context.Context, kinds ...string) (wait time.Duration, some bool, err error)
	// Prune deletes a bounded number of ended runs that the retention no longer
	// covers and returns how many. Call it until it returns 0. With a run its log
	// goes, and its unique key is forgotten.
	Prune(ctx context.Context, r RunRetention) (int, error)

	// Hints returns a channel that receives when runs may have become due sooner
	// than the next poll, and a function that gives the channel up. A hint is
	// only that: it may come late, for nothing, or not at all.
	Hints() (hints <-chan struct{}, stop func())
	// Cancels is as Hints, for running runs that may have been asked to stop.
	Cancels() (cancels <-chan struct{}, stop func())
}

type (
	// TaskID identifies a task for as long as the store lives.
	TaskID int64
	// RunID identifies a run for as long as the store lives. Later runs have
	// higher ids.
	RunID int64
)

// Overlap says whether runs of one task may be in flight together.
type Overlap string

// The overlap policies.
const (
	// OverlapForbid, the default, keeps at most one run of the task queued or
	// running. An occurrence that falls due meanwhile waits, and is then subject
	// to the misfire policy.
	OverlapForbid Overlap = "forbid"
	// OverlapAllow lets runs of the task overlap.
	OverlapAllow Overlap = "allow"
)

// Misfire says what becomes of occurrences whose time passed while no replica
// ran, the task was paused, or an earlier run was in the way.
type Misfire string

// The misfire policies.
const (
	MisfireSkip   Misfire = "skip"   // drop those older than MisfireGrace
	MisfireLatest Misfire = "latest" // run the latest one, the default
	MisfireAll    Misfire = "all"    // run the latest MisfireCap of them, in order
)

// MisfireGrace is how late an occurrence may be before [MisfireSkip] drops it.
const MisfireGrace = time.Minute

// Retry says how often a run is tried. The n-th failure is followed by a pause
// of Backoff·2ⁿ⁻¹, at most MaxBackoff, shortened by up to a fifth at random.
type Retry struct {
	MaxAttempts int           // 1–100; default 1 for at-most-once runs, else 3
	Backoff     time.Duration // default 1 s
	MaxBackoff  time.Duration // default 1 h
}

// Pause returns how long to wait after the given attempt, counted from 1.
func (r Retry) Pause(attempt int) time.Duration {
	d := r.MaxBackoff
	if shift := attempt - 1; shift >= 0 && shift < 62 && r.Backoff <= r.MaxBackoff>>shift {
		d = r.Backoff << shift
	}
	if spread := int64(d / 5); spread > 0 {
		d -= time.Duration(rand.Int64N(spread))
	}
	return d
}

// Concurrency bounds how many runs of one key are running at a time, whatever
// their kind and on all replicas together. Where runs of one key have different
// limits, each obeys its own. The zero Concurrency bounds nothing.
type Concurrency struct {
	Key   string // at most 200 bytes; empty: none
	Limit int    // 1–10,000; default 1 when there is a key
}

// Task is a definition of work.
type Task struct {
	ID          TaskID        // set by the store
	Name        string        // unique; 1–200 bytes
	Kind        string        // chooses the handler; 1–100 bytes
	Payload     []byte        // handed to every run; at most MaxPayload
	Schedule    string        // see package schedule; empty: only by Trigger
	Zone        string        // IANA time zone of Schedule; empty: UTC
	Overlap     Overlap       // default OverlapForbid
	Misfire     Misfire       // default MisfireLatest
	MisfireCap  int           // for MisfireAll; 1–1000, default 10
	Retry       Retry         //
	Timeout     time.Duration // of one attempt; 0: none
	Priority    int           // 1 is claimed first, 4 last; default 2
	Concurrency Concurrency   // of its runs
	AtMostOnce  bool          // never run again after its worker vanished
	Paused      bool          //
	Version     int64         // grows with each PutTask and PauseTask
	NextAt      time.Time     // next occurrence, set by the store; zero: none
	CreatedAt   time.Time     // set by the store
	UpdatedAt   time.Time     // set by the store
}

// TriggerOptions say how a task is triggered.
type TriggerOptions struct {
	Key     string // makes it idempotent; at most 200 bytes; empty: each call is a run
	Payload []byte // instead of the task's; nil: the task's
}

// NewRun is a run to be queued.
type NewRun struct {
	Kind        string        // chooses the handler; 1–100 bytes
	Payload     []byte        // at most MaxPayload
	UniqueKey   string        // at most 200 bytes; empty: none
	Delay       time.Duration // due this long from now
	DueAt       time.Time     // due then, unless Delay is set; zero: at once
	Retry       Retry         //
	Timeout     time.Duration // of one attempt; 0: none
	Priority    int           // 1 is claimed first, 4 last; default 2
	Concurrency Concurrency   //
	AtMostOnce  bool          // never run again after its worker vanished
}

// State is what a run is in: queued → running → succeeded, failed or
// cancelled; running → queued for a retry, a snooze or a release.
type State string

// The states of a run.
const (
	Queued    State = "queued"
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s == Succeeded || s == Failed || s == Cancelled }

// LostError is the Error of a run whose worker vanished and that may not run
// again.
const LostError = "lost: the worker vanished and no attempt is left"

// Run is one execution of a piece of work.
type Run struct {
	ID              RunID
	TaskID          TaskID // 0: of no task
	Kind            string
	Payload         []byte
	UniqueKey       string
	State           State
	ScheduledFor    time.Time // the occurrence, in UTC; zero: none
	DueAt           time.Time // when it may be claimed (again)
	Attempt         int       // 1 in the first execution; 0 before
	Rescues         int       // how often its lease ran out
	Retry           Retry
	Timeout         time.Duration
	Priority        int
	Concurrency     Concurrency
	AtMostOnce      bool
	CancelRequested bool
	Progress        int       // of the last attempt, in percent
	LogLines        int       // how many were reported, those not kept included
	Worker          string    // who holds or held it last
	LeaseUntil      time.Time // while running
	Error           string    // of the last attempt that failed
	CreatedAt       time.Time
	StartedAt       time.Time // of the last attempt
	FinishedAt      time.Time // when it ended
	Duplicate       bool      // set by Enqueue and Trigger: an earlier run had the key
}

// ClaimOptions say what a worker wants.
type ClaimOptions struct {
	Worker string        // who asks, for people to read; 1–200 bytes
	Kinds  []string      // the kinds that it has handlers for; at least one
	Limit  int           // 1–1000
	Lease  time.Duration // 1 s–24 h
	// Limits bound how many runs of a kind are running at a time, on all replicas
	// together; 1–10,000 each. It counts those that were claimed under a limit, so
	// every worker of a kind is to name the same one.
	Limits map[string]int
}

// Claim is a run that this process may work on until Deadline.
type Claim struct {
	Run      Run
	Token    int64     // the fencing token
	Deadline time.Time // on this process's monotonic clock; the lease lasts at least until then
}

// Outcome is what became of a claimed run.
type Outcome int

// The outcomes. The zero Outcome is not one, so that a forgotten field is an
// error.
const (
	_         Outcome = iota
	Succeed           // it is done
	Fail              // it failed; it is retried if attempts are left and the error is not final
	GiveUp            // it failed and is not tried again
	Snooze            // it is to be run again after Delay; the attempt is not spent
	Release           // it is given back, claimable at once; the attempt is not spent
	CancelRun         // it stopped because that was asked
)

// Result is the end of a claim.
type Result struct {
	Claim   Claim
	Outcome Outcome
	Delay   time.Duration // for Snooze
	Error   string        // for Fail and GiveUp; cut at MaxErrorText
}

// Report is news of a claimed run.
type Report struct {
	Claim    Claim
	Progress int      // in percent, 1–100; 0: as it is
	Lines    []string // for the log, at most 1000; each is cut at MaxLogLine
}

// LogLine is a line of a run's log.
type LogLine struct {
	Number  int // counted from 1 over all attempts
	Attempt int
	At      time.Time
	Text    string
}

// Settlement is a Result turned into what is written; for authors of drivers.
type Settlement struct {
	State  State
	Delay  time.Duration // when queued: due this long from now
	Refund bool          // the attempt is not spent
	Error  string        // empty: leave the last one
}

// Settle decides what a result does to its run; for authors of drivers.
func (r Result) Settle() Settlement {
	run := r.Claim.Run
	switch r.Outcome {
	case Succeed:
		return Settlement{State: Succeeded}
	case CancelRun:
		return Settlement{State: Cancelled, Error: r.Error}
	case Snooze:
		return Settlement{State: Queued, Delay: r.Delay, Refund: true}
	case Release:
		return Settlement{State: Queued, Refund: true}
	case Fail:
		if run.Attempt < run.Retry.MaxAttempts {
			return Settlement{State: Queued, Delay: run.Retry.Pause(run.Attempt), Error: r.Error}
		}
	}
	return Settlement{State: Failed, Error: r.Error}
}

// RunFilter narrows a listing of runs.
type RunFilter struct {
	TaskID TaskID // 0: of all tasks and none
	Kind   string // empty: all
	State  State  // empty: all
	Before RunID  // only runs with lower ids; 0: from the newest
	Limit  int    // 1–1000; default 100
}

// RunRetention says which ended runs are kept: those that ended within Age, and of
// each task, also one that was deleted, the newest Keep at most.
type RunRetention struct {
	Age  time.Duration // 0: any
	Keep int           // 0: any
}
