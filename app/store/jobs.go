package store

import (
	"context"
	"strings"
	"time"
)

// JobRecord is what is known of a background job.
type JobRecord struct {
	Name      string `json:"name"`
	Turn      int64  `json:"turns,omitzero"`      // how many there have been
	Node      string `json:"node,omitzero"`       // whose the last one is
	StartedAt Time   `json:"started_at,omitzero"` // of that turn
	EndedAt   Time   `json:"ended_at,omitzero"`   // of it; zero while it lasts, and when its replica vanished
	Done      int64  `json:"done,omitzero"`       // what the last one that ended has done, in pieces
	OkAt      Time   `json:"ok_at,omitzero"`      // when one succeeded last; zero: never
	Failures  int64  `json:"failures,omitzero"`   // turns that failed since
	Error     string `json:"error,omitzero"`      // of the last one that failed
	ErrorAt   Time   `json:"error_at,omitzero"`   // of it
	NextAt    Time   `json:"next_at,omitzero"`    // when somebody may take the next turn

	AsOf Time `json:"-"` // when the store was asked, by its clock
}

// Jobs lists what is known of background jobs, by name.
func (s *Store) Jobs(ctx context.Context) ([]JobRecord, error) {
	return query[JobRecord](ctx, s.read, `
		SELECT name, turn, node, started_at, ended_at, done, ok_at, failures, error, error_at, next_at, ? AS as_of
		FROM app_jobs ORDER BY name`, s.clock(0))
}

// JobTurn is one run of a background job.
type JobTurn struct {
	Job    string
	Number int64
}

// TakeJob takes a turn of a job for a replica when one is due, and otherwise says how long
// from now it is. Of all who ask at once one gets it. Nobody else does for as long as it is
// held, unless it is ended before. A next turn that is further away than in every, the time
// between two, is due: the clock stepped back, or every was longer.
func (u Unit) TakeJob(ctx context.Context, job, node string, every, hold time.Duration) (
	turn JobTurn, taken bool, wait time.Duration, err error,
) {
	clock := u.store.clock
	numbers, err := query[int64](ctx, u.db, `
		INSERT INTO app_jobs (name, turn, node, started_at, next_at) VALUES (?0, 1, ?1, ?2, ?3)
		ON CONFLICT (name) DO UPDATE SET turn = app_jobs.turn + 1, node = excluded.node,
			started_at = excluded.started_at, ended_at = NULL, next_at = excluded.next_at
		WHERE app_jobs.next_at <= ?2 OR app_jobs.next_at > ?4
		RETURNING turn`, job, node, clock(0), clock(hold), clock(max(every, hold)))
	if err != nil {
		return JobTurn{}, false, 0, err
	}
	if len(numbers) > 0 {
		return JobTurn{job, numbers[0]}, true, 0, nil
	}
	row, err := queryOne[struct{ NextAt, Now Time }](ctx, u.db,
		`SELECT next_at, ? AS now FROM app_jobs WHERE name = ?`, clock(0), job)
	return JobTurn{}, false, max(row.NextAt.Sub(row.Now.Time), 0), err
}

// JobEnd is how a turn of a job ended: well, by an error, or for its replica stops.
type JobEnd struct {
	Done  int           // pieces of work
	Ok    bool          // it ended well
	Error string        // why it failed, if it did; of it the first 500 bytes are kept
	Next  time.Duration // from now, when the next turn is due
}

const maxJobError = 500

func jobError(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	if len(text) > maxJobError {
		text = strings.ToValidUTF8(text[:maxJobError], "")
	}
	return text
}

// JobOverdue writes down that a turn goes on although its time is over, as a failure with a
// text. It does nothing when another one has begun since.
func (u Unit) JobOverdue(ctx context.Context, turn JobTurn, text string) error {
	_, err := exec(ctx, u.db, `
		UPDATE app_jobs SET failures = failures + 1, error = ?2, error_at = ?3 WHERE name = ?0 AND turn = ?1`,
		turn.Job, turn.Number, jobError(text), u.store.clock(0))
	return err
}

// EndJob writes down that a turn has ended. It does nothing when another one has begun since.
// A turn that was overdue and has failed counts as one failure.
func (u Unit) EndJob(ctx context.Context, turn JobTurn, e JobEnd) error {
	text := jobError(e.Error)
	_, err := exec(ctx, u.db, `
		UPDATE app_jobs SET ended_at = t.now, done = ?3, next_at = ?4, ok_at = CASE WHEN ?5 THEN t.now ELSE ok_at END,
			failures = CASE WHEN ?5 THEN 0 WHEN ?6 AND (error_at IS NULL OR error_at <= started_at) THEN failures + 1 ELSE failures END,
			error = CASE WHEN ?6 THEN ?7 ELSE error END, error_at = CASE WHEN ?6 THEN t.now ELSE error_at END
		FROM (SELECT ?2 AS now) AS t WHERE name = ?0 AND turn = ?1`,
		turn.Job, turn.Number, u.store.clock(0), e.Done, u.store.clock(e.Next), e.Ok, text != "", text)
	return err
}

// ForgetOldSecrets deletes secrets of webhooks that sign no more, a bounded number, and
// returns how many.
func (s *Store) ForgetOldSecrets(ctx context.Context) (int, error) {
	return s.exec(ctx, `UPDATE app_webhooks SET old_secret = NULL, old_until = NULL
		WHERE old_until <= ?0 AND task_id IN (SELECT task_id FROM app_webhooks WHERE old_until <= ?0 LIMIT 1000)`, s.clock(0))
}
