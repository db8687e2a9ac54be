// Package row is what the SQL drivers share: their rows and the types of package
// coord, turned into each other, and the statements that both dialects read alike.
package row

import (
	"fmt"
	"time"

	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// Time is stored as timestamptz on PostgreSQL and as integer microseconds
// since 1970 on SQLite; the zero time is NULL on both.
type Time struct{ time.Time }

// Scan reads either form.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		t.Time = time.Time{}
	case time.Time:
		t.Time = v.UTC()
	case int64:
		t.Time = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("row: a time can't be read from %T", src)
	}
	return nil
}

// AppendQuery writes the form of the dialect.
func (t Time) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	switch {
	case t.IsZero():
		return append(b, "NULL"...), nil
	case gen.Dialect().Name() == dialect.PG:
		b = append(b, '\'')
		b = append(b, Timestamp(t.Time)...)
		return append(b, "'::timestamptz"...), nil
	default:
		return fmt.Append(b, t.UnixMicro()), nil
	}
}

// Timestamp returns the form of PostgreSQL.
func Timestamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999+00") }

// Micros returns a duration as it is stored.
func Micros(d time.Duration) int64 { return d.Microseconds() }

// Duration is the reverse of [Micros].
func Duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

// TaskColumns are the columns of a [Task], in no particular order.
const TaskColumns = `id, name, kind, payload, schedule, zone, overlap, misfire, misfire_cap, max_attempts, backoff,
	max_backoff, timeout, priority, concurrency_key, concurrency_limit, at_most_once, paused, version, next_at, created_at, updated_at`

// Task is a row of coord_tasks.
type Task struct {
	ID          int64  `bun:"id"`
	Name        string `bun:"name"`
	Kind        string `bun:"kind"`
	Payload     []byte `bun:"payload"`
	Schedule    string `bun:"schedule"`
	Zone        string `bun:"zone"`
	Overlap     string `bun:"overlap"`
	Misfire     string `bun:"misfire"`
	MisfireCap  int    `bun:"misfire_cap"`
	MaxAttempts int    `bun:"max_attempts"`
	Backoff     int64  `bun:"backoff"`
	MaxBackoff  int64  `bun:"max_backoff"`
	Timeout     int64  `bun:"timeout"`
	Priority    int    `bun:"priority"`
	Key         string `bun:"concurrency_key"`
	Limit       int    `bun:"concurrency_limit"`
	AtMostOnce  bool   `bun:"at_most_once"`
	Paused      bool   `bun:"paused"`
	Version     int64  `bun:"version"`
	NextAt      Time   `bun:"next_at"`
	CreatedAt   Time   `bun:"created_at"`
	UpdatedAt   Time   `bun:"updated_at"`
}

// Coord returns the task.
func (r Task) Coord() coord.Task {
	return coord.Task{
		ID: coord.TaskID(r.ID), Name: r.Name, Kind: r.Kind, Payload: r.Payload,
		Schedule: r.Schedule, Zone: r.Zone,
		Overlap: coord.Overlap(r.Overlap), Misfire: coord.Misfire(r.Misfire), MisfireCap: r.MisfireCap,
		Retry:   retry(r.MaxAttempts, r.Backoff, r.MaxBackoff),
		Timeout: Duration(r.Timeout), Priority: r.Priority,
		Concurrency: coord.Concurrency{Key: r.Key, Limit: r.Limit}, AtMostOnce: r.AtMostOnce, Paused: r.Paused,
		Version: r.Version, NextAt: r.NextAt.Time, CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time,
	}
}

func retry(attempts int, backoff, maxBackoff int64) coord.Retry {
	return coord.Retry{MaxAttempts: attempts, Backoff: Duration(backoff), MaxBackoff: Duration(maxBackoff)}
}

// RunColumns are the columns of a [Run], of a table that is called r.
const RunColumns = `r.id, COALESCE(r.task_id, 0) AS task_id, r.kind, r.payload, COALESCE(r.unique_key, '') AS unique_key,
	r.state, r.scheduled_for, r.at, r.due_at, r.attempt, r.rescues, r.token, r.max_attempts, r.backoff, r.max_backoff,
	r.timeout, r.priority, COALESCE(r.gate, '') AS gate, r.concurrency_limit, r.at_most_once, r.cancel_requested,
	r.progress, r.log_lines, r.worker, r.error, r.created_at, r.started_at, r.finished_at`

// Run is a row of coord_runs.
type Run struct {
	ID              int64  `bun:"id"`
	TaskID          int64  `bun:"task_id"`
	Kind            string `bun:"kind"`
	Payload         []byte `bun:"payload"`
	UniqueKey       string `bun:"unique_key"`
	State           string `bun:"state"`
	ScheduledFor    Time   `bun:"scheduled_for"`
	At              Time   `bun:"at"`
	DueAt           Time   `bun:"due_at"`
	Attempt         int    `bun:"attempt"`
	Rescues         int    `bun:"rescues"`
	Token           int64  `bun:"token"`
	MaxAttempts     int    `bun:"max_attempts"`
	Backoff         int64  `bun:"backoff"`
	MaxBackoff      int64  `bun:"max_backoff"`
	Timeout         int64  `bun:"timeout"`
	Priority        int    `bun:"priority"`
	Gate            string `bun:"gate"`
	Limit           int    `bun:"concurrency_limit"`
	AtMostOnce      bool   `bun:"at_most_once"`
	CancelRequested bool   `bun:"cancel_requested"`
	Progress        int    `bun:"progress"`
	LogLines        int    `bun:"log_lines"`
	Worker          string `bun:"worker"`
	Error           string `bun:"error"`
	CreatedAt       Time   `bun:"created_at"`
	StartedAt       Time   `bun:"started_at"`
	FinishedAt      Time   `bun:"finished_at"`
}

// Coord returns the run.
func (r Run) Coord() coord.Run {
	run := coord.Run{
		ID: coord.RunID(r.ID), TaskID: coord.TaskID(r.TaskID), Kind: r.Kind, Payload: r.Payload,
		UniqueKey: r.UniqueKey, State: coord.State(r.State), ScheduledFor: r.ScheduledFor.Time, DueAt: r.DueAt.Time,
		Attempt: r.Attempt, Rescues: r.Rescues, Retry: retry(r.MaxAttempts, r.Backoff, r.MaxBackoff),
		Timeout: Duration(r.Timeout), Priority: r.Priority, Concurrency: gate.Concurrency(r.Gate, r.Limit),
		AtMostOnce: r.AtMostOnce, CancelRequested: r.CancelRequested, Progress: r.Progress, LogLines: r.LogLines, Worker: r.Worker, Error: r.Error,
		CreatedAt: r.CreatedAt.Time, StartedAt: r.StartedAt.Time, FinishedAt: r.FinishedAt.Time,
	}
	if run.State == coord.Running {
		run.LeaseUntil = r.At.Time
	}
	return run
}

// Runs returns the runs, in order.
func Runs(rows []Run) []coord.Run {
	runs := make([]coord.Run, len(rows))
	for i, r := range rows {
		runs[i] = r.Coord()
	}
	return runs
}

// LogLine is a row of coord_run_log.
type LogLine struct {
	Number  int    `bun:"number"`
	Attempt int    `bun:"attempt"`
	At      Time   `bun:"at"`
	Line    string `bun:"line"`
}

// Coord returns the line.
func (r LogLine) Coord() coord.LogLine {
	return coord.LogLine{Number: r.Number, Attempt: r.Attempt, At: r.At.Time, Text: r.Line}
}

// Event is a row of coord_events.
type Event struct {
	Topic   string `bun:"topic"`
	Seq     int64  `bun:"seq"`
	Tag     int64  `bun:"tag"`
	Kind    string `bun:"kind"`
	Payload []byte `bun:"payload"`
	At      Time   `bun:"at"`
}

// Coord returns the event.
func (r Event) Coord() coord.Event {
	return coord.Event{
		Topic: r.Topic, Position: coord.Position{Seq: r.Seq, Tag: coord.Tag(r.Tag)},
		Kind: r.Kind, Payload: r.Payload, At: r.At.Time,
	}
}

// Found is an event behind a position, if there is one, and the head of its topic.
type Found struct {
	Event
	Prev    int64 `bun:"prev"`
	Head    int64 `bun:"head"`
	HeadTag int64 `bun:"head_tag"`
	Found   bool  `bun:"found"`
}

// Behind returns the events that were found behind a position, if that can be resumed.
func Behind(topic string, from coord.Position, rows []Found) ([]coord.Event, error) {
	var head coord.Position
	var prev coord.Tag
	events := make([]coord.Event, 0, len(rows))
	for i, r := range rows {
		head = coord.Position{Seq: r.Head, Tag: coord.Tag(r.HeadTag)}
		if r.Found {
			events = append(events, r.Coord())
		}
		if i == 0 {
			prev = coord.Tag(r.Prev)
		}
	}
	if err := feed.Verify(topic, from, head, events, prev); err != nil {
		return nil, err
	}
	return events, nil
}

// Head is a row of coord_topics.
type Head struct {
	Topic string `bun:"topic"`
	Seq   int64  `bun:"seq"`
	Tag   int64  `bun:"tag"`
}

// Position returns the topic's last position.
func (r Head) Position() coord.Position { return coord.Position{Seq: r.Seq, Tag: coord.Tag(r.Tag)} }

// Ticket is a row of coord_tickets, and whether it was too late.
type Ticket struct {
	Hash    []byte `bun:"hash"`
	Purpose string `bun:"purpose"`
	User    string `bun:"user_id"`
	Session string `bun:"session_id"`
	Origin  string `bun:"origin"`
	Scope   string `bun:"scope"`
	TTL     int64  `bun:"ttl"`
	Newer   int    `bun:"newer"` // tickets of the same session that are newer
	Expired bool   `bun:"expired"`
}

// Redeem decides, once the ticket is burnt, whether it was good for the use.
func (r Ticket) Redeem(use coord.TicketUse) (coord.TicketFor, error) {
	t := coord.TicketFor{
		Purpose: r.Purpose, User: r.User, Session: r.Session, Origin: r.Origin, Scope: r.Scope, TTL: Duration(r.TTL),
	}
	switch {
	case r.Newer >= coord.MaxTickets:
		return coord.TicketFor{}, coord.ErrNotFound
	case r.Expired:
		return coord.TicketFor{}, coord.ErrExpired
	case !use.Fits(t):
		return coord.TicketFor{}, coord.ErrConflict
	}
	return t, nil
}

// Moment is a row of one time.
type Moment struct {
	At Time `bun:"at"`
}
