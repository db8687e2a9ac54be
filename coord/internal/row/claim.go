package row

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// Queued is what is new in a row that was inserted of a coord.NewRun.
type Queued struct {
	ID        Number `bun:"id"`
	UniqueKey Text   `bun:"unique_key"`
	Clock     Time   `bun:"clock"`
}

func (q Queued) run(n coord.NewRun, now time.Time) coord.Run {
	due := now
	switch {
	case n.Delay > 0:
		due = now.Add(n.Delay.Truncate(time.Microsecond))
	case !n.DueAt.IsZero():
		due = n.DueAt.Truncate(time.Microsecond).UTC()
	}
	return coord.Run{
		ID: coord.RunID(q.ID), Kind: n.Kind, Payload: slices.Clone(Bytes(n.Payload)), UniqueKey: n.UniqueKey, State: coord.Queued,
		DueAt: due, Retry: n.Retry, Timeout: n.Timeout, Priority: n.Priority, Concurrency: n.Concurrency,
		AtMostOnce: n.AtMostOnce, CreatedAt: now,
	}
}

// Enqueued returns the runs of an Enqueue at now in its order: inserted are those
// that were new, in that order, and earlier are those that had the keys.
func Enqueued(runs []coord.NewRun, now time.Time, inserted []Queued, earlier map[string]coord.Run) ([]coord.Run, error) {
	fresh := make(map[string]bool)
	for _, q := range inserted {
		if q.UniqueKey != "" {
			fresh[string(q.UniqueKey)] = true
		}
	}
	all := make([]coord.Run, 0, len(runs))
	for _, n := range runs {
		if n.UniqueKey == "" || fresh[n.UniqueKey] {
			delete(fresh, n.UniqueKey) // the same key once more in this call is a duplicate
			all = append(all, inserted[0].run(n, now))
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

// Claimed is what a claim reads of a run; what it wrote itself is known. Any column
// may be NULL.
type Claimed struct {
	ID, Attempt, Token               Number
	Kind                             Text
	Payload                          []byte
	DueAt, CreatedAt                 Time
	MaxAttempts, Backoff, MaxBackoff Number
	Priority                         Number
	Rest                             []byte // JSON of a rest
}

// rest is what few runs have.
type rest struct {
	TaskID          int64     `json:"task_id"`
	UniqueKey       string    `json:"unique_key"`
	ScheduledFor    time.Time `json:"scheduled_for"`
	Gate            string    `json:"gate"`
	Limit           int       `json:"concurrency_limit"`
	Rescues         int       `json:"rescues"`
	Timeout         int64     `json:"timeout"`
	LogLines        int       `json:"log_lines"`
	AtMostOnce      bool      `json:"at_most_once"`
	CancelRequested bool      `json:"cancel_requested"`
	Error           string    `json:"error"`
}

// Claim returns the claim that was made at now.
func (c *Claimed) Claim(o coord.ClaimOptions, now time.Time) (coord.Claim, error) {
	claim := coord.Claim{Token: int64(c.Token), Run: coord.Run{
		ID: coord.RunID(c.ID), Kind: string(c.Kind), Payload: c.Payload, State: coord.Running, DueAt: c.DueAt.Time,
		Attempt: int(c.Attempt), Retry: retry(int(c.MaxAttempts), int64(c.Backoff), int64(c.MaxBackoff)),
		Priority: int(c.Priority), Worker: o.Worker, LeaseUntil: now.Add(o.Lease).Truncate(time.Microsecond),
		CreatedAt: c.CreatedAt.Time, StartedAt: now,
	}}
	if c.Rest == nil {
		return claim, nil
	}
	var more rest
	if err := json.Unmarshal(c.Rest, &more); err != nil {
		return claim, fmt.Errorf("row: the rest of run %d can't be read: %w", c.ID, err)
	}
	r := &claim.Run
	r.TaskID, r.UniqueKey, r.Timeout = coord.TaskID(more.TaskID), more.UniqueKey, duration(more.Timeout)
	if !more.ScheduledFor.IsZero() {
		r.ScheduledFor = more.ScheduledFor.UTC()
	}
	r.Concurrency, r.Rescues, r.LogLines = gate.Concurrency(more.Gate, more.Limit), more.Rescues, more.LogLines
	r.AtMostOnce, r.CancelRequested, r.Error = more.AtMostOnce, more.CancelRequested, more.Error
	return claim, nil
}

// Number is an integer, 0 for NULL. Scanning it needs no reflection.
type Number int64

// Scan reads an integer.
func (n *Number) Scan(src any) error {
	switch v := src.(type) {
	case int64:
		*n = Number(v)
	case nil:
		*n = 0
	default:
		return fmt.Errorf("row: a number can't be read from %T", src)
	}
	return nil
}

// Text is a text, empty for NULL.
type Text string

// Scan reads a text.
func (t *Text) Scan(src any) error {
	switch v := src.(type) {
	case string:
		*t = Text(v)
	case []byte:
		*t = Text(v)
	case nil:
		*t = ""
	default:
		return fmt.Errorf("row: a text can't be read from %T", src)
	}
	return nil
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

// Fenced returns the error that names the claims of these runs, or nil when there
// are none.
func Fenced(claims []coord.Claim, runs []int64) error {
	if len(runs) == 0 {
		return nil
	}
	return fenced(slices.DeleteFunc(slices.Clone(claims), func(c coord.Claim) bool {
		return !slices.Contains(runs, int64(c.Run.ID))
	}))
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

// Claims returns the claims of rows that are running, in the order in which they
// were due.
func Claims(rows []Run) []coord.Claim {
	claims := make([]coord.Claim, 0, len(rows))
	for _, r := range rows {
		if r.State == string(coord.Running) {
			claims = append(claims, coord.Claim{Run: r.Coord(), Token: r.Token})
		}
	}
	SortClaims(claims)
	return claims
}
