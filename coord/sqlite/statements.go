package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// statements are those of the busy paths. They are prepared once, since SQLite
// takes as long to plan one as to carry it out. Lists are passed as JSON, so that
// the text is the same whatever their length.
type statements struct {
	// Are look, receipt and tat on connections that read; the others write.
	peek, seen, owed *sql.Stmt

	insert, byKey, look                   *sql.Stmt
	due, bind, lanes, lane, rescue, taken *sql.Stmt
	start, end                            *sql.Stmt
	held, settle, requeue, extend         *sql.Stmt
	report, logLine                       *sql.Stmt
	heads, bump, eventByKey, insertEvent  *sql.Stmt
	receipt, takeReceipt, extendReceipt   *sql.Stmt
	completeReceipt                       *sql.Stmt
	makeRoom, issue, redeem               *sql.Stmt
	tat, setTAT                           *sql.Stmt
}

type statement struct {
	stmt **sql.Stmt
	text string
}

func (s *statements) writes() []statement {
	return []statement{
		{&s.insert, insertSQL},
		{&s.byKey, byKeySQL},
		{&s.look, lookSQL},
		{&s.due, dueSQL},
		{&s.rescue, rescueSQL},
		{&s.lanes, lanesSQL},
		{&s.lane, laneSQL},
		{&s.taken, takenSQL},
		{&s.bind, bindSQL},
		{&s.start, startSQL},
		{&s.end, endSQL},
		{&s.held, heldSQL},
		{&s.settle, settleSQL},
		{&s.requeue, requeueSQL},
		{&s.extend, extendSQL},
		{&s.report, reportSQL},
		{&s.logLine, logLineSQL},
		{&s.heads, headsSQL},
		{&s.bump, bumpSQL},
		{&s.eventByKey, eventByKeySQL},
		{&s.insertEvent, insertEventSQL},
		{&s.receipt, receiptSQL},
		{&s.takeReceipt, takeReceiptSQL},
		{&s.extendReceipt, extendReceiptSQL},
		{&s.completeReceipt, completeReceiptSQL},
		{&s.makeRoom, makeRoomSQL},
		{&s.issue, issueSQL},
		{&s.redeem, redeemSQL},
		{&s.tat, tatSQL},
		{&s.setTAT, setTATSQL},
	}
}

func (s *statements) reads() []statement {
	return []statement{{&s.peek, lookSQL}, {&s.seen, receiptSQL}, {&s.owed, tatSQL}}
}

func prepare(ctx context.Context, db *sql.DB, list []statement) (err error) {
	for _, s := range list {
		if *s.stmt, err = db.PrepareContext(ctx, s.text); err != nil { //nolint:sqlclosecheck // close does
			return fmt.Errorf("%w: %s", err, s.text)
		}
	}
	return nil
}

func (s *statements) close() (err error) {
	for _, s := range append(s.writes(), s.reads()...) {
		if *s.stmt != nil {
			err = errors.Join(err, (*s.stmt).Close())
		}
	}
	return err
}

// The runs that can be claimed at ?1 are found by an index that is searched once
// per priority, and each search ends at the limit, whatever lies in the future.
const (
	inFlight   = `finished_at IS NULL`
	free       = inFlight + ` AND gate IS NULL`
	gated      = `gate IS NOT NULL AND ` + inFlight
	dueForKind = `at <= ?1 AND kind IN (SELECT value FROM json_each(?2))`
	freeDue    = `priority IN (1, 2, 3, 4) AND ` + free + ` AND ` + dueForKind
)

const (
	// lookSQL says what there is to do at ?1 for kinds ?2: free runs, gated runs and
	// tasks.
	lookSQL = `SELECT EXISTS (SELECT 1 FROM coord_runs WHERE ` + freeDue + `),
		EXISTS (SELECT 1 FROM coord_runs INDEXED BY coord_runs_gated_due WHERE ` + gated + ` AND ` + dueForKind + `),
		EXISTS (SELECT 1 FROM coord_tasks t WHERE next_at <= ?1 AND NOT paused AND kind IN (SELECT value FROM json_each(?2))
			AND ` + notInTheWay + `)`

	insertSQL = `INSERT INTO coord_runs (task_id, kind, payload, unique_key, state, exclusive, scheduled_for, at, due_at,
			max_attempts, backoff, max_backoff, timeout, priority, gate, concurrency_limit, at_most_once, created_at)
		VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`

	byKeySQL = `SELECT id FROM coord_runs WHERE COALESCE(task_id, 0) = ? AND unique_key IS NOT NULL AND unique_key = ?`

	// freeColumns are what a claim does not know of a free run, and gatedColumns what
	// it does not know of a gated one, in the order of claimed. Each column that is
	// read counts: they take as much time as finding the run.
	freeColumns = `id, task_id, kind, payload, unique_key, state, scheduled_for, at, due_at, attempt, rescues, token,
		max_attempts, backoff, max_backoff, timeout, priority, at_most_once, cancel_requested, log_lines, error, created_at`
	gatedColumns = freeColumns + `, gate, concurrency_limit`

	dueSQL = `SELECT ` + freeColumns + ` FROM coord_runs WHERE ` + freeDue + ` ORDER BY priority, at, id LIMIT ?3`

	// lanesSQL finds what gated runs wait for: each gate with each limit once, however
	// many runs have it. The plus takes the type off the limit, without which SQLite
	// would compare it by reading all of its runs.
	lanesSQL = `WITH RECURSIVE first (id) AS (
			SELECT (SELECT id FROM coord_runs WHERE ` + gated + ` ORDER BY gate, concurrency_limit LIMIT 1)
			UNION ALL
			SELECT (SELECT id FROM coord_runs WHERE ` + gated + ` AND (gate, concurrency_limit) > (r.gate, +r.concurrency_limit)
				ORDER BY gate, concurrency_limit LIMIT 1)
			FROM first CROSS JOIN coord_runs r ON r.id = first.id
		)
		SELECT r.gate, r.concurrency_limit FROM first CROSS JOIN coord_runs r ON r.id = first.id`

	laneSQL = `SELECT ` + gatedColumns + ` FROM coord_runs INDEXED BY coord_runs_gated
		WHERE gate = ?3 AND concurrency_limit = ?4 AND priority IN (1, 2, 3, 4) AND ` + gated + ` AND ` + dueForKind + `
		AND state = 'queued' ORDER BY priority, at, id LIMIT ?5`

	rescueSQL = `SELECT ` + gatedColumns + ` FROM coord_runs INDEXED BY coord_runs_gated_running
		WHERE priority IN (1, 2, 3, 4) AND gate IS NOT NULL AND state = 'running' AND ` + dueForKind + `
		ORDER BY priority, at, id LIMIT ?3`

	takenSQL = `SELECT gate, kind FROM coord_runs INDEXED BY coord_runs_gated_running WHERE gate IS NOT NULL AND state = 'running'`

	startSQL = `UPDATE coord_runs SET state = 'running', at = ?2, token = token + 1, attempt = attempt + 1,
			rescues = rescues + (state = 'running'), progress = 0, worker = ?3, started_at = ?4
		WHERE id IN (SELECT value FROM json_each(?1))`

	endSQL = `UPDATE coord_runs SET state = ?2, at = ?3, finished_at = ?3, token = token + 1, rescues = rescues + 1,
			error = COALESCE(?4, error)
		WHERE id IN (SELECT value FROM json_each(?1))`

	// A fence: SQLite reads all columns of a row twice for a statement that returns
	// some, so those that need not don't.
	fenceCond = `id IN (SELECT value FROM json_each(?1)) AND token = ?2 AND state = 'running'`

	heldSQL = `SELECT id FROM coord_runs WHERE ` + fenceCond

	settleSQL = `UPDATE coord_runs SET state = ?3, at = ?4, finished_at = ?4, error = COALESCE(?5, error)
		WHERE ` + fenceCond

	requeueSQL = `UPDATE coord_runs SET state = iif(cancel_requested, 'cancelled', 'queued'),
			at = iif(cancel_requested, ?4, ?3), finished_at = iif(cancel_requested, ?4, NULL),
			due_at = iif(cancel_requested, due_at, ?3), attempt = attempt - ?5, error = COALESCE(?6, error)
		WHERE ` + fenceCond

	extendSQL = `UPDATE coord_runs SET at = ?3 WHERE ` + fenceCond + ` RETURNING id, cancel_requested, progress, log_lines`

	reportSQL = `UPDATE coord_runs SET progress = iif(?3 = 0, progress, ?3), log_lines = log_lines + ?4
		WHERE id = ?1 AND token = ?2 AND state = 'running' RETURNING attempt, log_lines`

	headsSQL = `SELECT topic, seq, tag FROM coord_topics WHERE topic IN (SELECT value FROM json_each(?1))`

	bumpSQL = `INSERT INTO coord_topics (topic, seq, tag)
		SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1) WHERE true
		ON CONFLICT (topic) DO UPDATE SET seq = excluded.seq, tag = excluded.tag`

	eventByKeySQL = `SELECT seq, tag FROM coord_events WHERE topic = ? AND key IS NOT NULL AND key = ?`

	insertEventSQL = `INSERT INTO coord_events (topic, seq, tag, prev, at, kind, key, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

	receiptSQL = `SELECT fingerprint, holder, token, done, until, error, body FROM coord_receipts WHERE key = ?`

	// takeReceiptSQL lets somebody hold a key, under a token of which there was none before.
	takeReceiptSQL = `INSERT OR REPLACE INTO coord_receipts (key, fingerprint, holder, keep, until) VALUES (?, ?, ?, ?, ?)`

	extendReceiptSQL = `UPDATE coord_receipts SET until = ?, keep = COALESCE(?, keep) WHERE key = ? AND token = ? AND NOT done`

	completeReceiptSQL = `UPDATE coord_receipts SET done = 1, holder = '', error = ?, body = ?, until = ? + keep
		WHERE key = ? AND token = ? AND NOT done`

	tatSQL = `SELECT tat FROM coord_limits WHERE key = ?`

	setTATSQL = `INSERT INTO coord_limits (key, tat) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET tat = excluded.tat`

	// makeRoomSQL takes tickets of session ?1 away: those that have expired, which must not
	// take the place of what is good, and the oldest beyond ?3 others.
	makeRoomSQL = `DELETE FROM coord_tickets WHERE session_id = ?1 AND (expires_at <= ?2 OR id IN (
		SELECT id FROM coord_tickets WHERE session_id = ?1 AND expires_at > ?2 ORDER BY id DESC LIMIT -1 OFFSET ?3))`

	issueSQL = `INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

	redeemSQL = `DELETE FROM coord_tickets WHERE hash = ? RETURNING purpose, user_id, session_id, origin, scope, ttl, expires_at <= ?`

	logLineSQL = `INSERT INTO coord_run_log (run_id, number, attempt, at, line) VALUES (?, ?, ?, ?, ?)`
)

// bindSQL gives those among the first due runs whose kind is limited the gate of
// their kind.
var bindSQL = `UPDATE coord_runs SET gate = '` + gate.OfKind("") + `' || kind WHERE id IN (
	SELECT id FROM (SELECT id, kind FROM coord_runs WHERE ` + freeDue + ` ORDER BY priority, at, id LIMIT 1000)
	WHERE kind IN (SELECT value FROM json_each(?3)))`

// ids returns a JSON list.
func ids(list []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, id := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(id, 10))
	}
	b.WriteByte(']')
	return b.String()
}

// names returns a JSON list.
func names(list []string) (string, error) {
	text, err := json.Marshal(list)
	return string(text), err
}

// null is how zero is stored in columns that may be NULL.
func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// micros is how a time is stored.
func micros(t row.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// value scans a column, NULL being zero. It is faster than what database/sql does
// with a pointer to a number.
type value[T int | int64 | bool | string] struct{ to *T }

func into[T int | int64 | bool | string](to *T) value[T] { return value[T]{to} }

// Scan takes what the driver returns for columns of numbers or text.
func (v value[T]) Scan(src any) error {
	switch to := any(v.to).(type) {
	case *int:
		n, _ := src.(int64)
		*to = int(n)
	case *int64:
		*to, _ = src.(int64)
	case *bool:
		n, _ := src.(int64)
		*to = n != 0
	case *string:
		*to, _ = src.(string)
	}
	return nil
}

// claimed is where gatedColumns go.
func claimed(r *row.Run) []any {
	return []any{
		into(&r.ID), into(&r.TaskID), &r.Kind, &r.Payload, into(&r.UniqueKey), &r.State, &r.ScheduledFor, &r.At, &r.DueAt,
		into(&r.Attempt), into(&r.Rescues), into(&r.Token), into(&r.MaxAttempts), into(&r.Backoff), into(&r.MaxBackoff),
		into(&r.Timeout), into(&r.Priority), into(&r.AtMostOnce), into(&r.CancelRequested), into(&r.LogLines), &r.Error, &r.CreatedAt,
		&r.Gate, into(&r.Limit),
	}
}
