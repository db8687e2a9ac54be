package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

const (
	defaultRuns = 50
	maxRuns     = 200
	maxLines    = 1000
)

// Run is one execution of a task, as people see it.
type Run struct {
	ID              coord.RunID `json:"id"`
	Task            string      `json:"task"` // empty when it is gone
	Kind            string      `json:"kind"`
	State           coord.State `json:"state"`
	ScheduledFor    time.Time   `json:"scheduled_for,omitzero"`
	DueAt           time.Time   `json:"due_at,omitzero"`
	CreatedAt       time.Time   `json:"created_at,omitzero"`
	StartedAt       time.Time   `json:"started_at,omitzero"`
	FinishedAt      time.Time   `json:"finished_at,omitzero"`
	Attempt         int         `json:"attempt"`
	MaxAttempts     int         `json:"max_attempts"`
	Rescues         int         `json:"rescues"`
	Progress        int         `json:"progress"`
	LogLines        int         `json:"log_lines"`
	Worker          string      `json:"worker"`
	Error           string      `json:"error"`
	CancelRequested bool        `json:"cancel_requested"`
	Trigger         string      `json:"trigger"` // schedule, webhook, api or manual
}

// Line is a line of a run's log.
type Line struct {
	Number  int       `json:"number"`
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Text    string    `json:"text"`
}

// The beginnings of the keys of runs, which say what triggered them.
const (
	hookKey = "hook:"
	apiKey  = "api:"
	handKey = "hand:"
)

func viewRun(r coord.Run, task string) Run {
	v := Run{
		ID: r.ID, Task: task, Kind: r.Kind, State: r.State, ScheduledFor: r.ScheduledFor, DueAt: r.DueAt, CreatedAt: r.CreatedAt,
		StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Attempt: r.Attempt, MaxAttempts: r.Retry.MaxAttempts,
		Rescues: r.Rescues, Progress: r.Progress, LogLines: r.LogLines, Worker: r.Worker, Error: r.Error,
		CancelRequested: r.CancelRequested, Trigger: "manual",
	}
	switch {
	case !r.ScheduledFor.IsZero():
		v.Trigger = "schedule"
	case strings.HasPrefix(r.UniqueKey, hookKey):
		v.Trigger = "webhook"
	case strings.HasPrefix(r.UniqueKey, apiKey):
		v.Trigger = "api"
	}
	return v
}

// RunsFilter narrows a listing of runs.
type RunsFilter struct {
	Task   string      // empty: of all
	Kind   string      // empty: all
	State  coord.State // empty: all
	Before coord.RunID // only earlier ones; 0: from the newest
	Limit  int         // 1–200; default 50
}

// Runs lists runs that the user may know of, the newest first. more says that there may be
// earlier ones. Errors: coord.ErrInvalid with the field, coord.ErrNotFound when there is
// no such task.
func (s *Service) Runs(ctx context.Context, by store.User, f RunsFilter) (list []Run, more bool, err error) {
	if f.Limit == 0 {
		f.Limit = defaultRuns
	}
	switch f.State {
	case "", coord.Queued, coord.Running, coord.Succeeded, coord.Failed, coord.Cancelled:
	default:
		return nil, false, invalid("state", "must be queued, running, succeeded, failed or cancelled")
	}
	switch {
	case f.Limit < 1 || f.Limit > maxRuns:
		return nil, false, invalid("limit", fmt.Sprintf("must be between 1 and %d", maxRuns))
	case f.Kind != "" && f.Kind != KindMessage && f.Kind != KindHTTP:
		return nil, false, invalid("kind", fmt.Sprintf("must be %s or %s", KindMessage, KindHTTP))
	}
	wanted := coord.RunFilter{Kind: f.Kind, State: f.State, Before: f.Before}
	if f.Task != "" {
		t, err := s.task(ctx, by, f.Task)
		if err != nil {
			return nil, false, err
		}
		wanted.TaskID = t.ID
	}
	found, err := s.runs(ctx, by, wanted, f.Limit+1)
	if err != nil {
		return nil, false, err
	}
	if more = len(found) > f.Limit; more {
		found = found[:f.Limit]
	}
	known := make(map[string]coord.TaskID)
	for _, r := range found {
		name := f.Task
		if name == "" {
			if name, err = s.nameOf(ctx, r, known); err != nil {
				return nil, false, err
			}
		}
		list = append(list, viewRun(r, name))
	}
	return list, more, nil
}

// runs are up to that many runs that the user may know of.
func (s *Service) runs(ctx context.Context, by store.User, f coord.RunFilter, most int) (list []coord.Run, err error) {
	f.Limit = most
	for {
		var found []coord.Run
		for r, err := range s.claimer.Runs(ctx, f) {
			if err != nil {
				return nil, err
			}
			found = append(found, r)
		}
		v, err := s.viewer(ctx, by, works(found, func(r coord.Run) []byte { return r.Payload })...)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			if len(list) < most && v.sees(workOf(r.Payload)) {
				list = append(list, r)
			}
		}
		if len(found) < f.Limit || len(list) == most {
			return list, nil
		}
		f.Before = found[len(found)-1].ID
	}
}

// run returns a run that the user may know of.
func (s *Service) run(ctx context.Context, by store.User, id coord.RunID) (coord.Run, error) {
	r, err := s.claimer.Run(ctx, id)
	if err == nil {
		err = s.maySee(ctx, by, r.Payload)
	}
	return r, noRun(err)
}

// nameOf returns the name of a run's task, or "" when that is gone, also when another
// one has its name by now. It keeps what it found out.
func (s *Service) nameOf(ctx context.Context, r coord.Run, known map[string]coord.TaskID) (string, error) {
	name := workOf(r.Payload).Task
	if name == "" {
		return "", nil
	}
	id, ok := known[name]
	if !ok {
		t, err := s.claimer.Task(ctx, name)
		if err != nil && !errors.Is(err, coord.ErrNotFound) {
			return "", err
		}
		id = t.ID
		known[name] = id
	}
	if id != r.TaskID {
		return "", nil
	}
	return name, nil
}

// Run returns a run, or coord.ErrNotFound.
func (s *Service) Run(ctx context.Context, by store.User, id coord.RunID) (Run, error) {
	r, err := s.run(ctx, by, id)
	if err != nil {
		return Run{}, err
	}
	name, err := s.nameOf(ctx, r, make(map[string]coord.TaskID))
	return viewRun(r, name), err
}

// Log lists up to 1000 lines of a run's log behind the one numbered after. more says
// that further ones are there already. coord.ErrNotFound when there is no such run.
func (s *Service) Log(
	ctx context.Context, by store.User, id coord.RunID, after int,
) (lines []Line, more bool, err error) {
	if _, err := s.run(ctx, by, id); err != nil {
		return nil, false, err
	}
	for line, err := range s.claimer.Log(ctx, id, after) {
		if err != nil {
			return nil, false, err
		}
		if len(lines) == maxLines {
			return lines, true, nil
		}
		lines = append(lines, Line(line))
	}
	return lines, false, nil
}

// Cancel ends a queued run and asks a running one to stop, wherever it runs. It
// returns the run as it is then. Errors: coord.ErrConflict when it has ended,
// coord.ErrNotFound.
func (s *Service) Cancel(ctx context.Context, by store.User, id coord.RunID) (Run, error) {
	before, err := s.run(ctx, by, id)
	if err != nil {
		return Run{}, err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := u.Coord.Cancel(ctx, id); err != nil || before.State != coord.Running {
			return err
		}
		before.CancelRequested = true
		return publish(ctx, u.Coord, runChanged(before))
	})
	switch {
	case errors.Is(err, coord.ErrConflict):
		return Run{}, &store.ReasonError{Err: coord.ErrConflict, Reason: "the run has ended"}
	case err != nil:
		return Run{}, noRun(err)
	}
	after, err := s.Run(ctx, by, id)
	if err == nil && after.State.Ended() { // which nothing follows, so it can be told whenever
		s.live.tell(ctx, id)
	}
	return after, err
}

// RetryError says that something can't be done now, and may be possible later.
type RetryError struct {
	Err    error // what it is: coord.ErrConflict or ErrLimited
	Reason string
	After  time.Duration // when to try again
}

func (e *RetryError) Error() string { return e.Reason }

// Unwrap returns what it is.
func (e *RetryError) Unwrap() error { return e.Err }

// ErrLimited means that something was asked for too often.
var ErrLimited = errors.New("too many")

// busyFor is when to try again while a run is in the way. How long it takes nobody
// knows.
const busyFor = 5 * time.Second

// RunNow queues a run of a task. A key that is not empty makes that idempotent: the
// same one again returns the same run. Such a key is a program's, unless it says byHand
// that a person did it. Errors: a *RetryError around coord.ErrConflict
// while a run has not ended and the task forbids overlap, coord.ErrInvalid with the
// header's name as field, coord.ErrNotFound.
func (s *Service) RunNow(ctx context.Context, by store.User, name, key string, byHand bool) (Run, error) {
	t, err := s.task(ctx, by, name)
	if err != nil {
		return Run{}, err
	}
	o := coord.TriggerOptions{}
	switch {
	case key == "":
	case byHand:
		o.Key = handKey + key
	default:
		o.Key = apiKey + key
	}
	r, err := s.trigger(ctx, name, t.ID, o)
	if e, ok := errors.AsType[*coord.InvalidError](err); ok && e.Field == "TriggerOptions.Key" {
		err = invalid(idempotencyKey, "is too long, or has characters that no key can have")
	}
	return viewRun(r, name), err
}

// trigger queues a run of the task of that name and id.
func (s *Service) trigger(ctx context.Context, name string, id coord.TaskID, o coord.TriggerOptions) (r coord.Run, err error) {
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		r, err = u.Coord.Trigger(ctx, name, o)
		switch {
		case err != nil || r.Duplicate:
			return err
		case r.TaskID != id: // deleted, and made anew
			return coord.ErrNotFound
		}
		return publish(ctx, u.Coord, append(runChanged(r), changed(workOf(r.Payload))))
	})
	if errors.Is(err, coord.ErrConflict) {
		return r, &RetryError{Err: coord.ErrConflict, Reason: "the task has a run that has not ended", After: busyFor}
	}
	return r, noTask(err)
}

func noRun(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such run"}
	}
	return err
}
