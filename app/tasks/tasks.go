// Package tasks are scheduled pieces of work: they post into rooms or call other
// services, and everybody can watch their runs, except guests, and those of a task
// that reports into a room that one may not read: there is no such task then.
package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

const (
	// Topic is the topic on which changes of tasks are published, except of those that
	// report into a private or direct room: what is published of them is on the topic of
	// the room. It is not for guests.
	Topic = "tasks"
	// KindChanged is the kind of those events; the payload names the task. It says
	// that something is new, not what.
	KindChanged = "task.changed"

	// KindMessage is the kind of a task that posts a message into a room.
	KindMessage = "message"
	// KindHTTP is the kind of a task that makes an HTTP request.
	KindHTTP = "http"
)

const previewLen = 5

// ErrAdminOnly means that only an administrator may do this.
var ErrAdminOnly = errors.New("only administrators may make or change tasks that make HTTP requests, and webhooks")

// Service is safe for concurrent use.
type Service struct {
	store    *store.Store
	claimer  coord.Claimer
	limiter  coord.Limiter
	receipts coord.Receipts
	live     *live
	rooms    *rooms.Service
	calls    *outbound.Client
	log      *slog.Logger
}

// New returns the service. The client makes the requests of tasks.
func New(st *store.Store, backend coord.Backend, r *rooms.Service, calls *outbound.Client, log *slog.Logger) *Service {
	return &Service{
		store: st, claimer: backend.Claimer(), limiter: backend.Limiter(), receipts: backend.Receipts(),
		live:  &live{Claimer: backend.Claimer(), backend: backend, log: log},
		rooms: r, calls: calls, log: log,
	}
}

// Claimer is what a worker is to claim the runs of tasks by: what becomes of a run
// through it is published. The reports of one run are to be made one after another.
func (s *Service) Claimer() coord.Claimer { return s.live }

// Create makes a task. Errors: coord.ErrInvalid with the field, coord.ErrConflict
// when the name is taken, ErrAdminOnly.
func (s *Service) Create(ctx context.Context, by store.User, d Definition) (Task, error) {
	d.Name = strings.TrimSpace(d.Name)
	d.Version = 0
	t, err := s.put(ctx, by, d, d.Paused != nil && *d.Paused, nil)
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{
			Err: coord.ErrConflict, Field: "name", Reason: fmt.Sprintf("there is a task named %q already", d.Name),
		}
	}
	return t, err
}

// Update replaces what is said of a task, if its version is still d.Version. A task
// whose Paused is not given stays as it is in that. Errors: coord.ErrInvalid with the
// field, coord.ErrConflict when it was changed meanwhile, coord.ErrNotFound,
// ErrAdminOnly.
func (s *Service) Update(ctx context.Context, by store.User, name string, d Definition) (Task, error) {
	current, err := s.task(ctx, by, name)
	switch {
	case err != nil:
		return Task{}, err
	case d.Name != "" && d.Name != name:
		return Task{}, invalid("name", "can't be changed")
	case d.Version < 1:
		return Task{}, invalid("version", "must be that of the task as you know it")
	case current.Kind == KindHTTP && by.Role != store.Admin:
		return Task{}, ErrAdminOnly
	}
	d.Name = name
	paused := current.Paused
	if d.Paused != nil {
		paused = *d.Paused
	}
	var t Task
	if d.Version == current.Version { // else there is no use in asking what is wrong with it
		t, err = s.put(ctx, by, d, paused, &current)
	} else {
		err = coord.ErrConflict
	}
	if errors.Is(err, coord.ErrConflict) {
		err = &store.ReasonError{Err: coord.ErrConflict, Field: "version", Reason: "changed by somebody else meanwhile"}
	}
	return t, noTask(err)
}

// put stores a task of d.Version, 0 for a new one, in place of what it was.
func (s *Service) put(ctx context.Context, by store.User, d Definition, paused bool, was *coord.Task) (Task, error) {
	if by.Role == store.Guest {
		return Task{}, &store.ReasonError{Err: rooms.ErrForbidden, Reason: "guests can't make tasks"}
	}
	if d.Kind == KindHTTP && by.Role != store.Admin {
		return Task{}, ErrAdminOnly
	}
	t, err := d.task()
	if err != nil {
		return Task{}, err
	}
	w := work{Task: d.Name, RoomID: d.RoomID, Text: d.Text, HTTP: d.HTTP, Report: d.Report}
	if d.RoomID != 0 || d.needsRoom() {
		readable, err := s.rooms.Readable(ctx, by, d.RoomID)
		if err != nil {
			return Task{}, err
		}
		room, ok := readable[d.RoomID]
		if !ok {
			return Task{}, invalid("room_id", unknownRoom)
		}
		w.Private = room.Kind != store.Public
	}
	if t.Payload, err = json.Marshal(w); err != nil {
		return Task{}, err
	}
	t.Paused = paused
	action := audit.TaskChanged
	if was == nil {
		action = audit.TaskCreated
	}
	if t, err = s.write(ctx, by, action, t, was); err != nil {
		return Task{}, formError(err)
	}
	return s.view(ctx, by, t)
}

// write stores a task if its version is still the same, and tells of it, also those
// who knew of what it was.
func (s *Service) write(
	ctx context.Context, by store.User, action audit.Action, t coord.Task, was *coord.Task,
) (stored coord.Task, err error) {
	now := workOf(t.Payload)
	events := []coord.NewEvent{changed(now)}
	if was != nil {
		if before := workOf(was.Payload); before.topic() != now.topic() {
			events = append(events, changed(before))
		}
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
		if stored, err = u.Coord.PutTask(ctx, t); err != nil {
			return err
		}
		if err := audit.Write(ctx, u, audit.Entry{
			By: by, Action: action, Target: t.Name, Details: map[string]any{"kind": t.Kind, "version": stored.Version},
		}); err != nil {
			return err
		}
		return u.Coord.Publish(ctx, events...)
	})
	return stored, err
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

// List lists all tasks by name, as that user may see them.
func (s *Service) List(ctx context.Context, by store.User) ([]Task, error) {
	var found []coord.Task
	for t, err := range s.claimer.Tasks(ctx) {
		if err != nil {
			return nil, err
		}
		if t.Kind == KindMessage || t.Kind == KindHTTP {
			found = append(found, t)
		}
	}
	return s.views(ctx, by, found...)
}

// Get returns a task as that user may see it, or coord.ErrNotFound.
func (s *Service) Get(ctx context.Context, by store.User, name string) (Task, error) {
	t, err := s.task(ctx, by, name)
	if err != nil {
		return Task{}, err
	}
	return s.view(ctx, by, t)
}

// task returns a task that the user may know of.
func (s *Service) task(ctx context.Context, by store.User, name string) (coord.Task, error) {
	t, err := s.claimer.Task(ctx, name)
	if err == nil {
		err = s.maySee(ctx, by, t.Payload)
	}
	return t, noTask(err)
}

// Pause stops the occurrences of a task, or lets them happen again. That is a change
// like any other, with another version, so that no edit undoes it unseen.
func (s *Service) Pause(ctx context.Context, by store.User, name string, paused bool) (Task, error) {
	for {
		t, err := s.task(ctx, by, name)
		if err != nil {
			return Task{}, err
		}
		if t.Paused != paused {
			t.Paused = paused
			action := audit.TaskResumed
			if paused {
				action = audit.TaskPaused
			}
			t, err = s.write(ctx, by, action, t, nil)
		}
		switch {
		case errors.Is(err, coord.ErrConflict): // with an edit, which it is to be added to
			continue
		case err != nil:
			return Task{}, noTask(err)
		}
		return s.view(ctx, by, t)
	}
}

// Delete removes a task and its webhook, and ends its runs.
func (s *Service) Delete(ctx context.Context, by store.User, name string) error {
	t, err := s.task(ctx, by, name)
	if err != nil {
		return err
	}
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := u.Coord.DeleteTask(ctx, name); err != nil {
			return err
		}
		if _, err := u.DropWebhook(ctx, int64(t.ID)); err != nil {
			return err
		}
		if err := audit.Write(ctx, u, audit.Entry{By: by, Action: audit.TaskDeleted, Target: name}); err != nil {
			return err
		}
		return u.Coord.Publish(ctx, changed(workOf(t.Payload)))
	})
	return noTask(err)
}

func changed(w work) coord.NewEvent {
	payload, _ := json.Marshal(map[string]string{"name": w.Task}) // a string always can be
	return coord.NewEvent{Topic: w.topic(), Kind: KindChanged, Payload: payload}
}

func noTask(err error) error {
	if errors.Is(err, coord.ErrNotFound) {
		return &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such task"}
	}
	return err
}

func invalid(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
