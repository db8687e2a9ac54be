package row

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// Queued is what is new in a row that was inserted of a coord.NewRun.
type Queued struct {
	ID        int64  `bun:"id"`
	UniqueKey string `bun:"unique_key"`
	At        Time   `bun:"at"`
	CreatedAt Time   `bun:"created_at"`
}

func (q Queued) run(n coord.NewRun) coord.Run {
	return coord.Run{
		ID: coord.RunID(q.ID), Kind: n.Kind, Payload: slices.Clone(Bytes(n.Payload)), UniqueKey: n.UniqueKey, State: coord.Queued,
		DueAt: q.At.Time, Retry: n.Retry, Timeout: n.Timeout, Priority: n.Priority, Concurrency: n.Concurrency,
		AtMostOnce: n.AtMostOnce, CreatedAt: q.CreatedAt.Time,
	}
}

// Enqueued returns the runs of an Enqueue in its order: inserted are those that
// were new, in that order, and earlier are those that had the keys.
func Enqueued(runs []coord.NewRun, inserted []Queued, earlier map[string]coord.Run) ([]coord.Run, error) {
	fresh := make(map[string]bool)
	for _, q := range inserted {
		if q.UniqueKey != "" {
			fresh[q.UniqueKey] = true
		}
	}
	all := make([]coord.Run, 0, len(runs))
	for _, n := range runs {
		if n.UniqueKey == "" || fresh[n.UniqueKey] {
			delete(fresh, n.UniqueKey) // the same key once more in this call is a duplicate
			all = append(all, inserted[0].run(n))
			inserted = inserted[1:]
			continue
		}
		run, ok := earlier[n.UniqueKey]
		if !ok {
			return nil, gone(n.UniqueKey)
		}
		run.Duplicate = true
		all = append(all, run)
	}
	return all, nil
}

// Claimed is what a claim reads of a run; what it wrote itself is known.
type Claimed struct {
	id, taskID                   int64
	kind                         string
	payload                      []byte
	uniqueKey                    string
	scheduledFor, dueAt          Time
	attempt, rescues             int64
	token                        int64
	maxAttempts                  int64
	backoff, maxBackoff, timeout int64
	priority                     int64
	gate                         string
	limit                        int64
	atMostOnce, cancelRequested  bool
	logLines                     int64
	err                          string
	createdAt                    Time
}

// ClaimedColumns are the columns of a [Claimed], of a table that is called r.
const ClaimedColumns = `r.id, COALESCE(r.task_id, 0), r.kind, r.payload, COALESCE(r.unique_key, ''), r.scheduled_for, r.due_at,
	r.attempt, r.rescues, r.token, r.max_attempts, r.backoff, r.max_backoff, r.timeout, r.priority, COALESCE(r.gate, ''), r.concurrency_limit, r.at_most_once,
	r.cancel_requested, r.log_lines, r.error, r.created_at`

// Fields are where a row of these columns is scanned to.
func (c *Claimed) Fields() []any {
	return []any{
		&c.id, &c.taskID, &c.kind, &c.payload, &c.uniqueKey, &c.scheduledFor, &c.dueAt, &c.attempt, &c.rescues,
		&c.token, &c.maxAttempts, &c.backoff, &c.maxBackoff, &c.timeout, &c.priority, &c.gate, &c.limit, &c.atMostOnce,
		&c.cancelRequested, &c.logLines, &c.err, &c.createdAt,
	}
}

// Claim returns the claim that was made at now.
func (c *Claimed) Claim(o coord.ClaimOptions, now time.Time) coord.Claim {
	return coord.Claim{Token: c.token, Run: coord.Run{
		ID: coord.RunID(c.id), TaskID: coord.TaskID(c.taskID), Kind: c.kind, Payload: c.payload, UniqueKey: c.uniqueKey,
		State: coord.Running, ScheduledFor: c.scheduledFor.Time, DueAt: c.dueAt.Time, Attempt: int(c.attempt),
		Rescues: int(c.rescues), Retry: retry(int(c.maxAttempts), c.backoff, c.maxBackoff), Timeout: duration(c.timeout),
		Priority: int(c.priority), Concurrency: gate.Concurrency(c.gate, int(c.limit)), AtMostOnce: c.atMostOnce,
		CancelRequested: c.cancelRequested, LogLines: int(c.logLines), Worker: o.Worker,
		LeaseUntil: now.Add(o.Lease).Truncate(time.Microsecond), Error: c.err, CreatedAt: c.createdAt.Time, StartedAt: now,
	}}
}

// SortClaims puts claims in the order in which they were due.
func SortClaims(claims []coord.Claim) {
	slices.SortFunc(claims, func(a, b coord.Claim) int {
		return cmp.Or(cmp.Compare(a.Run.Priority, b.Run.Priority), a.Run.DueAt.Compare(b.Run.DueAt), cmp.Compare(a.Run.ID, b.Run.ID))
	})
}

// Tokens returns the ids and tokens of claims, in the order of the ids.
func Tokens(claims []coord.Claim) (ids, tokens []int64) {
	sorted := slices.SortedFunc(slices.Values(claims), func(a, b coord.Claim) int {
		return cmp.Or(cmp.Compare(a.Run.ID, b.Run.ID), cmp.Compare(a.Token, b.Token))
	})
	for _, c := range sorted {
		ids, tokens = append(ids, int64(c.Run.ID)), append(tokens, c.Token)
	}
	return ids, tokens
}

// Lease is what an extension reads of a run.
type Lease struct {
	ID              int64 `bun:"id"`
	Token           int64 `bun:"token"`
	At              Time  `bun:"at"`
	CancelRequested bool  `bun:"cancel_requested"`
	Progress        int   `bun:"progress"`
	LogLines        int   `bun:"log_lines"`
}

// LeaseColumns are the columns of a [Lease], of a table that is called r.
const LeaseColumns = `r.id, r.token, r.at, r.cancel_requested, r.progress, r.log_lines`

// Extended returns those claims whose leases were renewed, and an error that
// names the others.
func Extended(claims []coord.Claim, leases []Lease) (held []coord.Claim, err error) {
	byID := make(map[coord.RunID]Lease, len(leases))
	for _, l := range leases {
		byID[coord.RunID(l.ID)] = l
	}
	var lost []coord.Claim
	for _, c := range claims {
		l, ok := byID[c.Run.ID]
		if !ok || l.Token != c.Token { // the same call may name an older claim of the same run
			lost = append(lost, c)
			continue
		}
		c.Run.LeaseUntil, c.Run.CancelRequested = l.At.Time, l.CancelRequested
		c.Run.Progress, c.Run.LogLines = l.Progress, l.LogLines
		held = append(held, c)
	}
	return held, fenced(lost)
}

// Fenced returns the error that names the claims that are not among those that a
// statement touched, or nil.
func Fenced(claims []coord.Claim, touched []int64) error {
	if len(touched) == len(claims) {
		return nil
	}
	held := make(map[coord.RunID]bool, len(touched))
	for _, id := range touched {
		held[coord.RunID(id)] = true
	}
	return fenced(slices.DeleteFunc(slices.Clone(claims), func(c coord.Claim) bool { return held[c.Run.ID] }))
}

func fenced(lost []coord.Claim) error {
	if len(lost) == 0 {
		return nil
	}
	return &coord.FencedError{Claims: lost}
}

// Awaited reports whether something may wait for the run to end: an occurrence of
// its task, or a run that needs its place.
func Awaited(r coord.Run) bool { return r.TaskID != 0 || r.Concurrency.Key != "" }
