package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

const (
	maxName     = 100              // bytes
	maxSeconds  = 10 * 365 * 86400 // of any time span
	onDemand    = "only when somebody runs it"
	unknownRoom = "there is no such room"
)

// Report says when the result of a task of kind [KindHTTP] is posted into its room.
type Report string

// When to report. A failure is reported when no attempt is left.
const (
	ReportAlways   Report = "always"
	ReportFailures Report = "failures" // the default
	ReportNever    Report = "never"
)

// Definition is what people say of a task. Zero fields have the defaults of
// [coord.Task] unless others are named.
type Definition struct {
	Name        string            `json:"name"`
	Kind        string            `json:"kind"`             // default KindMessage
	RoomID      int64             `json:"room_id"`          // where it posts; 0: nowhere, or none that the user may know of
	Text        string            `json:"text"`             // of a message
	HTTP        *outbound.Request `json:"http,omitempty"`   // only of KindHTTP
	Report      Report            `json:"report,omitempty"` // only of KindHTTP
	Schedule    string            `json:"schedule"`         // as package schedule reads it; empty: only on demand
	Zone        string            `json:"zone"`             // IANA time zone; empty: UTC
	Overlap     coord.Overlap     `json:"overlap"`
	Misfire     coord.Misfire     `json:"misfire"`
	MisfireCap  int               `json:"misfire_cap"`
	Retry       Retry             `json:"retry"`
	TimeoutS    int               `json:"timeout_s"` // of one attempt, in seconds
	Priority    int               `json:"priority"`
	Concurrency Concurrency       `json:"concurrency"`
	AtMostOnce  bool              `json:"at_most_once"`
	Paused      *bool             `json:"paused"`
	Version     int64             `json:"version"`
}

// Retry is a [coord.Retry] in whole seconds.
type Retry struct {
	MaxAttempts int `json:"max_attempts"`
	BackoffS    int `json:"backoff_s"`
	MaxBackoffS int `json:"max_backoff_s"`
}

// Concurrency is a [coord.Concurrency].
type Concurrency struct {
	Key   string `json:"key"`
	Limit int    `json:"limit"`
}

// Task is a task as people see it.
type Task struct {
	Definition
	Room        string    `json:"room"`        // the room's name, as the user sees it; empty when there is none
	Topic       string    `json:"topic"`       // where its runs are published; empty: nowhere that the user may read
	Description string    `json:"description"` // the schedule in words
	NextAt      time.Time `json:"next_at,omitzero"`
	Webhook     bool      `json:"webhook"` // there is a secret for it
}

// work is the payload of a task and of its runs: what to do, and whose it is.
type work struct {
	Task    string            `json:"task"`
	RoomID  int64             `json:"room_id"`
	Private bool              `json:"private,omitempty"` // only who may read the room may know of it
	Text    string            `json:"text,omitempty"`
	HTTP    *outbound.Request `json:"http,omitempty"`
	Report  Report            `json:"report,omitempty"`
}

// topic is where changes of the task are published.
func (w work) topic() string {
	if w.Private {
		return rooms.Topic(w.RoomID)
	}
	return Topic
}

// runsTopic is where its runs are published.
func (w work) runsTopic() string {
	if w.Private {
		return rooms.Topic(w.RoomID)
	}
	return RunsTopic(w.Task)
}

// workOf reads a payload that this package wrote; what can't be read is empty.
func workOf(payload []byte) (w work) {
	_ = json.Unmarshal(payload, &w)
	return w
}

// needsRoom reports whether the task has something to post.
func (d Definition) needsRoom() bool { return d.Kind != KindHTTP || d.Report != ReportNever }

// task checks the definition, but not its room, and returns what is stored of it, without
// the payload.
func (d *Definition) task() (coord.Task, error) {
	d.Schedule, d.Zone = strings.TrimSpace(d.Schedule), strings.TrimSpace(d.Zone)
	if d.Kind == "" {
		d.Kind = KindMessage
	}
	if err := checkName(d.Name); err != nil {
		return coord.Task{}, err
	}
	if err := d.checkWork(); err != nil {
		return coord.Task{}, err
	}
	if d.Schedule != "" {
		if _, err := parse(d.Schedule, d.Zone); err != nil {
			return coord.Task{}, err
		}
	}
	if d.Concurrency.Key == "" && d.Concurrency.Limit != 0 {
		return coord.Task{}, invalid("concurrency.key", "must say what is limited")
	}
	t := coord.Task{
		Name: d.Name, Kind: d.Kind, Schedule: d.Schedule, Zone: d.Zone,
		Overlap: d.Overlap, Misfire: d.Misfire, MisfireCap: d.MisfireCap,
		Retry: coord.Retry{MaxAttempts: d.Retry.MaxAttempts}, Priority: d.Priority,
		Concurrency: coord.Concurrency(d.Concurrency), AtMostOnce: d.AtMostOnce, Version: d.Version,
	}
	for _, span := range []struct {
		field   string
		seconds int
		into    *time.Duration
	}{
		{"retry.backoff_s", d.Retry.BackoffS, &t.Retry.Backoff},
		{"retry.max_backoff_s", d.Retry.MaxBackoffS, &t.Retry.MaxBackoff},
		{"timeout_s", d.TimeoutS, &t.Timeout},
	} {
		if span.seconds < 0 || span.seconds > maxSeconds {
			return coord.Task{}, invalid(span.field, fmt.Sprintf("must be between 0 and %d seconds", maxSeconds))
		}
		*span.into = time.Duration(span.seconds) * time.Second
	}
	return t, nil
}

func checkName(name string) error {
	switch {
	case !strings.ContainsFunc(name, visible):
		return invalid("name", "must not be empty")
	case name == "." || name == "..": // no path could name it
		return invalid("name", "may not be . or ..")
	case len(name) > maxName:
		return invalid("name", fmt.Sprintf("may have at most %d bytes", maxName))
	case strings.ContainsRune(name, '/'):
		return invalid("name", "may not contain a slash")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, control):
		return invalid("name", "may not contain control characters")
	}
	return nil
}

func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

// control finds also what turns the direction of the text around a name.
func control(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// checkWork checks what is particular to the kind, and drops what is of the other.
func (d *Definition) checkWork() error {
	switch d.Kind {
	case KindMessage:
		d.HTTP, d.Report = nil, ""
		return rooms.CheckText(d.Text)
	case KindHTTP:
	default:
		return invalid("kind", fmt.Sprintf("must be %s or %s", KindMessage, KindHTTP))
	}
	d.Text = ""
	switch d.Report {
	case "":
		d.Report = ReportFailures
	case ReportAlways, ReportFailures, ReportNever:
	default:
		return invalid("report", fmt.Sprintf("must be %s, %s or %s", ReportAlways, ReportFailures, ReportNever))
	}
	if d.HTTP == nil {
		return invalid("http", "must say what to request")
	}
	request := *d.HTTP
	if request.Method == "" {
		request.Method = "GET"
	}
	d.HTTP = &request
	err := request.Check()
	if e, ok := errors.AsType[*coord.InvalidError](err); ok {
		return invalid("http."+e.Field, e.Reason)
	}
	return err
}

// formFields are the fields of a definition behind those of a coord.Task.
var formFields = map[string]string{
	"Task.Name": "name", "Task.Payload": "http.body", "Task.Schedule": "schedule", "Task.Zone": "zone", "Task.Overlap": "overlap",
	"Task.Misfire": "misfire", "Task.MisfireCap": "misfire_cap", "Task.Timeout": "timeout_s",
	"Task.Priority": "priority", "Task.Version": "version",
	"Task.Retry.MaxAttempts": "retry.max_attempts", "Task.Retry.Backoff": "retry.backoff_s",
	"Task.Retry.MaxBackoff": "retry.max_backoff_s",
	"Task.Concurrency.Key":  "concurrency.key", "Task.Concurrency.Limit": "concurrency.limit",
}

// formError gives what package coord finds wrong with a task the field of the
// form that it came from.
func formError(err error) error {
	if e, ok := errors.AsType[*coord.InvalidError](err); ok {
		if field, ok := formFields[e.Field]; ok {
			return invalid(field, e.Reason)
		}
	}
	return err
}

func (s *Service) view(ctx context.Context, by store.User, t coord.Task) (Task, error) {
	list, err := s.views(ctx, by, t)
	switch {
	case err != nil:
		return Task{}, err
	case len(list) == 0: // since it was found
		return Task{}, noTask(coord.ErrNotFound)
	}
	return list[0], nil
}

// views are those of the tasks that the user may know of, as they may see them.
func (s *Service) views(ctx context.Context, by store.User, found ...coord.Task) ([]Task, error) {
	v, err := s.viewer(ctx, by, works(found, func(t coord.Task) []byte { return t.Payload })...)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(found))
	for i, t := range found {
		ids[i] = int64(t.ID)
	}
	hooked, err := s.store.Webhooks(ctx, ids...)
	if err != nil {
		return nil, err
	}
	webhooks := make(map[int64]bool, len(hooked))
	for _, id := range hooked {
		webhooks[id] = true
	}
	list := make([]Task, 0, len(found))
	for _, t := range found {
		w := workOf(t.Payload)
		if !v.sees(w) {
			continue
		}
		d := define(t)
		if d.HTTP != nil && by.Role != store.Admin {
			// Headers, the body and the rest of the URL may hold secrets.
			d.HTTP = &outbound.Request{Method: d.HTTP.Method, URL: origin(d.HTTP.URL)}
		}
		room, topic := v.rooms[d.RoomID], w.runsTopic()
		if w.Private && room.ID == 0 { // an administrator learns nothing of the room
			d.RoomID, d.Text, topic = 0, "", ""
		}
		list = append(list, Task{
			Definition: d, Room: room.Name, Topic: topic, Description: describe(t), NextAt: t.NextAt,
			Webhook: webhooks[int64(t.ID)],
		})
	}
	return list, nil
}

// define is the inverse of [Definition.task].
func define(t coord.Task) Definition {
	w := workOf(t.Payload)
	return Definition{
		Name: t.Name, Kind: t.Kind, RoomID: w.RoomID, Text: w.Text, HTTP: w.HTTP, Report: w.Report,
		Schedule: t.Schedule, Zone: t.Zone, Overlap: t.Overlap, Misfire: t.Misfire, MisfireCap: t.MisfireCap,
		Retry: Retry{
			MaxAttempts: t.Retry.MaxAttempts, BackoffS: int(t.Retry.Backoff / time.Second), MaxBackoffS: int(t.Retry.MaxBackoff / time.Second),
		},
		TimeoutS: int(t.Timeout / time.Second), Priority: t.Priority, Concurrency: Concurrency(t.Concurrency),
		AtMostOnce: t.AtMostOnce, Paused: &t.Paused, Version: t.Version,
	}
}

func describe(t coord.Task) string {
	if t.Schedule == "" {
		return onDemand
	}
	if parsed, err := schedule.Parse(t.Schedule, t.Zone); err == nil {
		return parsed.Describe()
	}
	return t.Schedule
}

// origin is what everybody may know of a URL.
func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}
