package pg

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// queuedRow is what is new in a row that was inserted of a coord.NewRun.
type queuedRow struct {
	ID        number   `bun:"id"`
	UniqueKey text     `bun:"unique_key"`
	Clock     row.Time `bun:"clock"`
}

func (q queuedRow) run(n coord.NewRun, now time.Time) coord.Run {
	due := now
	switch {
	case n.Delay > 0:
		due = now.Add(n.Delay.Truncate(time.Microsecond))
	case !n.DueAt.IsZero():
		due = n.DueAt.Truncate(time.Microsecond).UTC()
	}
	return coord.Run{
		ID: coord.RunID(q.ID), Kind: n.Kind, Payload: slices.Clone(row.Bytes(n.Payload)), UniqueKey: n.UniqueKey, State: coord.Queued,
		DueAt: due, Retry: n.Retry, Timeout: n.Timeout, Priority: n.Priority, Concurrency: n.Concurrency,
		AtMostOnce: n.AtMostOnce, CreatedAt: now,
	}
}

// uniqueKeys returns the keys of those runs that have one.
func uniqueKeys(runs []coord.NewRun) (keys []string) {
	for _, r := range runs {
		if r.UniqueKey != "" {
			keys = append(keys, r.UniqueKey)
		}
	}
	return keys
}

// enqueued returns the runs of an Enqueue at now in its order: inserted are those
// that were new, in that order, and earlier are those that had the keys.
func enqueued(runs []coord.NewRun, now time.Time, inserted []queuedRow, earlier map[string]coord.Run) ([]coord.Run, error) {
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
			return nil, fmt.Errorf("%w: the run with key %q has just gone; try again", coord.ErrConflict, n.UniqueKey)
		}
		run.Duplicate = true
		all = append(all, run)
	}
	return all, nil
}

// claimedRow is what a claim reads of a run; what it wrote itself is known. Any column
// may be NULL.
type claimedRow struct {
	ID, Attempt, Token               number
	Kind                             text
	Payload                          []byte
	DueAt, CreatedAt                 row.Time
	MaxAttempts, Backoff, MaxBackoff number
	Priority                         number
	Rest                             []byte // JSON of a restOfRun
}

// restOfRun is what few runs have.
type restOfRun struct {
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

// claim returns the claim that was made at now.
func (c *claimedRow) claim(o coord.ClaimOptions, now time.Time) (coord.Claim, error) {
	claim := coord.Claim{Token: int64(c.Token), Run: coord.Run{
		ID: coord.RunID(c.ID), Kind: string(c.Kind), Payload: c.Payload, State: coord.Running, DueAt: c.DueAt.Time,
		Attempt:  int(c.Attempt),
		Retry:    coord.Retry{MaxAttempts: int(c.MaxAttempts), Backoff: row.Duration(int64(c.Backoff)), MaxBackoff: row.Duration(int64(c.MaxBackoff))},
		Priority: int(c.Priority), Worker: o.Worker, LeaseUntil: now.Add(o.Lease).Truncate(time.Microsecond),
		CreatedAt: c.CreatedAt.Time, StartedAt: now,
	}}
	if c.Rest == nil {
		return claim, nil
	}
	var more restOfRun
	if err := json.Unmarshal(c.Rest, &more); err != nil {
		return claim, fmt.Errorf("the rest of run %d can't be read: %w", c.ID, err)
	}
	r := &claim.Run
	r.TaskID, r.UniqueKey, r.Timeout = coord.TaskID(more.TaskID), more.UniqueKey, row.Duration(more.Timeout)
	if !more.ScheduledFor.IsZero() {
		r.ScheduledFor = more.ScheduledFor.UTC()
	}
	r.Concurrency, r.Rescues, r.LogLines = gate.Concurrency(more.Gate, more.Limit), more.Rescues, more.LogLines
	r.AtMostOnce, r.CancelRequested, r.Error = more.AtMostOnce, more.CancelRequested, more.Error
	return claim, nil
}

// claimsOf returns the claims of rows that are running, in the order in which they
// were due.
func claimsOf(rows []row.Run) []coord.Claim {
	claims := make([]coord.Claim, 0, len(rows))
	for _, r := range rows {
		if r.State == string(coord.Running) {
			claims = append(claims, coord.Claim{Run: r.Coord(), Token: r.Token})
		}
	}
	row.SortClaims(claims)
	return claims
}

// number is an integer, 0 for NULL. Scanning it needs no reflection.
type number int64

// Scan reads an integer.
func (n *number) Scan(src any) error {
	switch v := src.(type) {
	case int64:
		*n = number(v)
	case nil:
		*n = 0
	default:
		return fmt.Errorf("a number can't be read from %T", src)
	}
	return nil
}

// text is a text, empty for NULL.
type text string

// Scan reads a text.
func (t *text) Scan(src any) error {
	switch v := src.(type) {
	case string:
		*t = text(v)
	case []byte:
		*t = text(v)
	case nil:
		*t = ""
	default:
		return fmt.Errorf("a text can't be read from %T", src)
	}
	return nil
}

// tokensOf returns the ids and tokens of claims, in the order of the ids.
func tokensOf(claims []coord.Claim) (ids, tokens []int64) {
	sorted := slices.SortedFunc(slices.Values(claims), func(a, b coord.Claim) int {
		return cmp.Or(cmp.Compare(a.Run.ID, b.Run.ID), cmp.Compare(a.Token, b.Token))
	})
	for _, c := range sorted {
		ids, tokens = append(ids, int64(c.Run.ID)), append(tokens, c.Token)
	}
	return ids, tokens
}

// leaseRow is what an extension reads of a run.
type leaseRow struct {
	ID              int64    `bun:"id"`
	Token           int64    `bun:"token"`
	At              row.Time `bun:"at"`
	CancelRequested bool     `bun:"cancel_requested"`
	Progress        int      `bun:"progress"`
	LogLines        int      `bun:"log_lines"`
}

// leaseColumns are the columns of a leaseRow, of a table that is called r.
const leaseColumns = `r.id, r.token, r.at, r.cancel_requested, r.progress, r.log_lines`

// extended returns those claims whose leases were renewed, and an error that
// names the others.
func extended(claims []coord.Claim, leases []leaseRow) (held []coord.Claim, err error) {
	byID := make(map[coord.RunID]leaseRow, len(leases))
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
	if len(lost) > 0 {
		err = &coord.FencedError{Claims: lost}
	}
	return held, err
}

// fenced returns the error that names the claims of these runs, or nil when there
// are none.
func fenced(claims []coord.Claim, runs []int64) error {
	if len(runs) == 0 {
		return nil
	}
	return &coord.FencedError{Claims: slices.DeleteFunc(slices.Clone(claims), func(c coord.Claim) bool {
		return !slices.Contains(runs, int64(c.Run.ID))
	})}
}
