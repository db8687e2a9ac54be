// Package tasks are scheduled pieces of work that report into rooms.
package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
	"github.com/tandemhq/tandem/coord/worker"
)

const (
	// Topic is the topic on which changes of tasks are published.
	Topic = "tasks"
	// KindChanged is the kind of those events; the payload names the task. It says
	// that something is new, not what.
	KindChanged = "task.changed"
	// KindMessage is the kind of a task that posts a message into a room.
	KindMessage = "message"
)

const (
	maxName     = 100 // bytes
	previewLen  = 5
	historyLen  = 50
	onDemand    = "only when somebody runs it"
	unknownRoom = "there is no such room"
)

// Service is safe for concurrent use.
type Service struct {
	store   *store.Store
	claimer coord.Claimer
	events  coord.Broadcaster
	rooms   *rooms.Service
	log     *slog.Logger
}

// New returns the service.
func New(st *store.Store, backend coord.Backend, r *rooms.Service, log *slog.Logger) *Service {
	return &Service{store: st, claimer: backend.Claimer(), events: backend.Broadcaster(), rooms: r, log: log}
}

// Message is what a task of kind [KindMessage] is asked to do.
type Message struct {
	Task   string `json:"task"`
	RoomID int64  `json:"room_id"`
	Text   string `json:"text"`
}

// NewTask is a task to be made.
type NewTask struct {
	Name     string `json:"name"`
	RoomID   int64  `json:"room_id"`
	Text     string `json:"text"`
	Schedule string `json:"schedule"` // as package schedule reads it; empty: only by hand
	Zone     string `json:"zone"`     // IANA time zone; empty: UTC
}

// Task is a task as people see it.
type Task struct {
	Name        string    `json:"name"`
	RoomID      int64     `json:"room_id"`
	Room        string    `json:"room"` // its name; empty when it is gone
	Text        string    `json:"text"`
	Schedule    string    `json:"schedule"`
	Zone        string    `json:"zone"`
	Description string    `json:"description"` // the schedule in words
	Paused      bool      `json:"paused"`
	NextAt      time.Time `json:"next_at,omitzero"`
	Version     int64     `json:"version"`
}

// Run is one execution of a task.
type Run struct {
	ID           coord.RunID `json:"id"`
	State        coord.State `json:"state"`
	ScheduledFor time.Time   `json:"scheduled_for,omitzero"`
	StartedAt    time.Time   `json:"started_at,omitzero"`
	FinishedAt   time.Time   `json:"finished_at,omitzero"`
	Attempt      int         `json:"attempt"`
	Worker       string      `json:"worker"`
	Error        string      `json:"error"`
}

// Create makes a task. Errors: coord.ErrInvalid with the field,
// coord.ErrConflict when the name is taken.
func (s *Service) Create(ctx context.Context, n NewTask) (Task, error) {
	n.Name = strings.TrimSpace(n.Name)
	n.Schedule, n.Zone = strings.TrimSpace(n.Schedule), strings.TrimSpace(n.Zone)
	if err := s.check(ctx, n); err != nil {
		return Task{}, err
	}
	payload, err := json.Marshal(Message{Task: n.Name, RoomID: n.RoomID, Text: n.Text})
	if err != nil {
		return Task{}, err
	}
	var stored coord.Task
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		stored, err = u.Coord.PutTask(ctx, coord.Task{
			Name: n.Name, Kind: KindMessage, Payload: payload, Schedule: n.Schedule, Zone: n.Zone,
		})
		if err != nil {
			return err
		}
		return u.Coord.Publish(ctx, changed(n.Name))
	})
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a task named %q already", n.Name),
		}
	}
	if err != nil {
		return Task{}, formError(err)
	}
	return s.view(ctx, stored)
}

func (s *Service) check(ctx context.Context, n NewTask) error {
	switch {
	case n.Name == "":
		return invalid("name", "must not be empty")
	case n.Name == "." || n.Name == "..": // no path could name it
		return invalid("name", "may not be . or ..")
	case len(n.Name) > maxName:
		return invalid("name", fmt.Sprintf("may have at most %d bytes", maxName))
	case strings.ContainsRune(n.Name, '/'):
		return invalid("name", "may not contain a slash")
	}
	if err := rooms.CheckText(n.Text); err != nil {
		return err
	}
	if n.Schedule != "" {
		if _, err := parse(n.Schedule, n.Zone); err != nil {
			return err
		}
	}
	err := s.rooms.MustExist(ctx, n.RoomID)
	if errors.Is(err, coord.ErrNotFound) {
		err = invalid("room_id", unknownRoom)
	}
	return err
}

// parse is [schedule.Parse] with an error that names the field of a form.
func parse(spec, zone string) (schedule.Schedule, error) {
	parsed, err := schedule.Parse(spec, zone)
	if e, ok := errors.AsType[*schedule.Error](err); ok {
		if e.Field == schedule.FieldZone {
			return parsed, invalid("zone", e.Error())
		}
		return parsed, invalid("schedule", e.Error())
	}
	return parsed, err
}

// Preview says in words when a schedule is due and lists its next times, in the
// schedule's zone. Errors: coord.ErrInvalid with the field.
func (s *Service) Preview(spec, zone string) (description string, next []time.Time, err error) {
	parsed, err := parse(spec, zone)
	if err != nil {
		return "", nil, err
	}
	loc, err := time.LoadLocation(parsed.Zone())
	if err != nil {
		return "", nil, invalid("zone", err.Error())
	}
	next = schedule.Preview(parsed, time.Now(), previewLen)
	for i := range next {
		next[i] = next[i].In(loc)
	}
	return parsed.Describe(), next, nil
}

// List lists all tasks by name.
func (s *Service) List(ctx context.Context) ([]Task, error) {
	names, err := s.roomNames(ctx)
	if err != nil {
		return nil, err
	}
	list := []Task{}
	for t, err := range s.claimer.Tasks(ctx) {
		if err != nil {
			return nil, err
		}
		if t.Kind == KindMessage {
			list = append(list, view(t, names))
		}
	}
	return list, nil
}

// Pause stops the occurrences of a task, or lets them happen again.
func (s *Service) Pause(ctx context.Context, name string, paused bool) (Task, error) {
	if err := s.claimer.PauseTask(ctx, name, paused); err != nil {
		return Task{}, noTask(err)
	}
	s.tell(ctx, name)
	t, err := s.claimer.Task(ctx, name)
	if err != nil {
		return Task{}, noTask(err)
	}
	return s.view(ctx, t)
}

// Delete removes a task.
func (s *Service) Delete(ctx context.Context, name string) error {
	if err := s.claimer.DeleteTask(ctx, name); err != nil {
		return noTask(err)
	}
	s.tell(ctx, name)
	return nil
}

// RunNow queues a run of a task. coord.ErrConflict when one has not ended.
func (s *Service) RunNow(ctx context.Context, name string) (Run, error) {
	r, err := s.claimer.Trigger(ctx, name, "")
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{Err: coord.ErrConflict, Reason: "the task has a run that has not ended"}
	}
	if err != nil {
		return Run{}, noTask(err)
	}
	s.tell(ctx, name)
	return viewRun(r), nil
}

// Runs lists the latest runs of a task, the newest first.
func (s *Service) Runs(ctx context.Context, name string) ([]Run, error) {
	t, err := s.claimer.Task(ctx, name)
	if err != nil {
		return nil, noTask(err)
	}
	list := []Run{}
	for r, err := range s.claimer.Runs(ctx, coord.RunFilter{TaskID: t.ID, Limit: historyLen}) {
		if err != nil {
			return nil, err
		}
		list = append(list, viewRun(r))
	}
	return list, nil
}

// Handlers are the handlers of all kinds of tasks, for a worker.
func (s *Service) Handlers() map[string]worker.Handler {
	return map[string]worker.Handler{KindMessage: s.runMessage}
}

// runMessage posts the message and ends the run in one unit of work: a worker
// that lost its lease posts nothing.
func (s *Service) runMessage(ctx context.Context, c coord.Claim) error {
	var m Message
	if err := json.Unmarshal(c.Run.Payload, &m); err != nil {
		return worker.GiveUp(fmt.Errorf("the task's payload can't be read: %w", err))
	}
	err := s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		id := "run:" + strconv.FormatInt(int64(c.Run.ID), 10)
		if err := s.rooms.PostTask(ctx, u, m.RoomID, m.Task, id, m.Text); err != nil {
			if errors.Is(err, coord.ErrNotFound) {
				return worker.GiveUp(errors.New(unknownRoom))
			}
			return err
		}
		if err := u.Coord.Publish(ctx, changed(m.Task)); err != nil {
			return err
		}
		return u.Coord.Finish(ctx, coord.Result{Claim: c, Outcome: coord.Succeed})
	})
	if err != nil {
		return err
	}
	return worker.ErrFinished
}

// tell publishes that a task changed. It is a courtesy to those who look at the
// list, so that a failure does not undo what was done.
func (s *Service) tell(ctx context.Context, name string) {
	if _, err := s.events.Publish(ctx, changed(name)); err != nil {
		s.log.WarnContext(ctx, "a change of a task was not published", "task", name, "error", err)
	}
}

func changed(name string) coord.NewEvent {
	payload, _ := json.Marshal(map[string]string{"name": name}) // a string always can be
	return coord.NewEvent{Topic: Topic, Kind: KindChanged, Payload: payload}
}

func (s *Service) roomNames(ctx context.Context) (map[int64]string, error) {
	list, err := s.rooms.List(ctx)
	names := make(map[int64]string, len(list))
	for _, r := range list {
		names[r.ID] = r.Name
	}
	return names, err
}

func (s *Service) view(ctx context.Context, t coord.Task) (Task, error) {
	names, err := s.roomNames(ctx)
	return view(t, names), err
}

func view(t coord.Task, roomNames map[int64]string) Task {
	var m Message
	_ = json.Unmarshal(t.Payload, &m) // written by Create; what can't be read shows as empty
	description := onDemand
	if t.Schedule != "" {
		description = t.Schedule
		if parsed, err := schedule.Parse(t.Schedule, t.Zone); err == nil {
			description = parsed.Describe()
		}
	}
	return Task{
		Name: t.Name, RoomID: m.RoomID, Room: roomNames[m.RoomID], Text: m.Text,
		Schedule: t.Schedule, Zone: t.Zone, Description: description,
		Paused: t.Paused, NextAt: t.NextAt, Version: t.Version,
	}
}

func viewRun(r coord.Run) Run {
	return Run{
		ID: r.ID, State: r.State, ScheduledFor: r.ScheduledFor, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		Attempt: r.Attempt, Worker: r.Worker, Error: r.Error,
	}
}

func noTask(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such task"}
	}
	return err
}

// formError gives what package coord finds wrong with a task the field of the
// form that it came from.
func formError(err error) error {
	if e, ok := errors.AsType[*coord.InvalidError](err); ok {
		if field, ok := strings.CutPrefix(e.Field, "Task."); ok {
			return invalid(strings.ToLower(field), e.Reason)
		}
	}
	return err
}

func invalid(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
