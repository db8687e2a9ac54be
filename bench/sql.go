package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
)

// statements are the plainest ones of a dialect. Their tables are copies of
// ours, with the same columns and indexes.
type statements struct {
	claim   string // $1: how many; returns ids
	release func(ids []int64) (string, []any)
	decide  string // $1: key, $2: cost, $3: window; returns the new TAT
	look    string // $1: key; returns the TAT
	issue   string // $1: hash, $2: session
	redeem  string // $1: hash; returns the session
	hold    string // $1: key
	done    string // $1: key, $2: body
	outcome string // $1: key; returns the body
	publish string // $1: topic, $2: number, $3: payload
	follow  string // $1: topic, $2: behind; returns number and payload
	queue   string // $1: how many runs to queue
	clear   string // deletes all runs
}

// sqlFloors measure by database/sql with prepared statements.
type sqlFloors struct {
	write, read *sql.DB
	soon        *sql.DB // writes without waiting for the disk, where ours does not
	statements
	args func(args ...any) []any // adds the clock for SQLite, which has none
}

func (s *sqlFloors) floor(ctx context.Context, w coordtest.Workload) (floor, error) {
	prepare := func(db *sql.DB, text string) *sql.Stmt {
		stmt, err := db.PrepareContext(ctx, text)
		if err != nil {
			panic(fmt.Sprintf("floor of %s: %v: %s", w.Name, err, text))
		}
		return stmt
	}
	random := make([]*rand.Rand, w.Callers)
	for i := range random {
		random[i] = rand.New(rand.NewPCG(3, uint64(i)))
	}
	var number atomic.Int64
	payload := make([]byte, 200)
	switch w.Name {
	case "claim", "claim-single":
		backlog, limit := 10_000, 100
		if w.Name == "claim-single" {
			backlog, limit = 1_000, 1
		}
		claim := prepare(s.write, s.claim)
		return floor{
			setup: func(ctx context.Context) error {
				if _, err := s.write.ExecContext(ctx, s.clear); err != nil {
					return err
				}
				_, err := s.write.ExecContext(ctx, s.queue, backlog)
				return err
			},
			op: func(ctx context.Context, _ int) (int, error) {
				ids, err := collect[int64](claim.QueryContext(ctx, s.args(limit)...))
				if err != nil || len(ids) == 0 {
					return 0, err
				}
				text, args := s.release(ids)
				_, err = s.write.ExecContext(ctx, text, args...)
				return len(ids), err
			},
		}, nil
	case "decision-uniform":
		decide := prepare(s.soon, s.decide)
		keys := make([][]byte, 10_000)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "uniform/%08d", i)
		}
		return floor{op: func(ctx context.Context, caller int) (int, error) {
			_, err := collect[int64](decide.QueryContext(ctx, s.args(keys[random[caller].IntN(len(keys))], 1, 1_000_000)...))
			return 1, err
		}}, nil
	case "decision-hot-denied":
		look, decide := prepare(s.read, s.look), prepare(s.soon, s.decide)
		key := []byte("hot")
		return floor{
			setup: func(ctx context.Context) error {
				_, err := collect[int64](decide.QueryContext(ctx, s.args(key, 1, 1_000_000)...))
				return err
			},
			op: func(ctx context.Context, _ int) (int, error) {
				_, err := collect[int64](look.QueryContext(ctx, key))
				return 1, err
			},
		}, nil
	case "ticket":
		issue, redeem := prepare(s.soon, s.issue), prepare(s.write, s.redeem)
		return floor{op: func(ctx context.Context, caller int) (int, error) {
			hash := coord.HashTicket(coord.NewTicketSecret())
			if _, err := issue.ExecContext(ctx, s.args(hash[:], fmt.Sprint(caller))...); err != nil {
				return 0, err
			}
			_, err := collect[string](redeem.QueryContext(ctx, hash[:]))
			return 1, err
		}}, nil
	case "receipt":
		hold, done := prepare(s.write, s.hold), prepare(s.write, s.done)
		return floor{op: func(ctx context.Context, _ int) (int, error) {
			key := sha256.Sum256(fmt.Appendf(nil, "%s/%d", w.Name, number.Add(1)))
			if _, err := hold.ExecContext(ctx, s.args(key[:])...); err != nil {
				return 0, err
			}
			_, err := done.ExecContext(ctx, s.args(key[:], payload)...)
			return 1, err
		}}, nil
	case "receipt-again":
		hold, done, outcome := prepare(s.write, s.hold), prepare(s.write, s.done), prepare(s.read, s.outcome)
		keys := make([][sha256.Size]byte, 1_000)
		return floor{
			setup: func(ctx context.Context) error {
				for i := range keys {
					keys[i] = sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", w.Name, w.Callers, i))
					if _, err := hold.ExecContext(ctx, s.args(keys[i][:])...); err != nil {
						return err
					}
					if _, err := done.ExecContext(ctx, s.args(keys[i][:], payload)...); err != nil {
						return err
					}
				}
				return nil
			},
			op: func(ctx context.Context, caller int) (int, error) {
				_, err := collect[[]byte](outcome.QueryContext(ctx, keys[random[caller].IntN(len(keys))][:]))
				return 1, err
			},
		}, nil
	case "publish-many", "publish-hot":
		publish := prepare(s.write, s.publish)
		return floor{op: func(ctx context.Context, caller int) (int, error) {
			_, err := publish.ExecContext(ctx, s.args(w.Name, number.Add(1), payload)...)
			return 1, err
		}}, nil
	case "deliver":
		publish, read := prepare(s.write, s.publish), prepare(s.read, s.follow)
		behind := make([]int64, w.Callers)
		topic := fmt.Sprintf("deliver/%d", w.Callers)
		return floor{op: func(ctx context.Context, caller int) (int, error) {
			if _, err := publish.ExecContext(ctx, s.args(topic, number.Add(1), payload)...); err != nil {
				return 0, err
			}
			seqs, err := collectPairs(read.QueryContext(ctx, topic, behind[caller]))
			if err != nil || len(seqs) == 0 {
				return 0, err
			}
			behind[caller] = seqs[len(seqs)-1]
			return len(seqs), nil
		}}, nil
	}
	return floor{}, fmt.Errorf("no floor for the workload %q", w.Name)
}

// collect reads one column to its end.
func collect[T any](rows *sql.Rows, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// collectPairs reads numbers and payloads to their end, and returns the numbers.
func collectPairs(rows *sql.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []int64
	for rows.Next() {
		var number int64
		var payload []byte
		if err := rows.Scan(&number, &payload); err != nil {
			return nil, err
		}
		all = append(all, number)
	}
	return all, rows.Err()
}

// number reads the only row of one number.
func number(rows *sql.Rows, err error) (int, error) {
	ns, err := collect[int](rows, err)
	if err == nil && len(ns) != 1 {
		err = fmt.Errorf("one number was asked for, and %d came", len(ns))
	}
	if err != nil {
		return 0, err
	}
	return ns[0], nil
}

// multiplied is the statement that inserts a copy of each run per row of the table
// numbers, each with a time of its own.
func multiplied(columns []string, at, numbers string) string {
	values := slices.Clone(columns)
	values[slices.Index(values, "at")] = at
	return `INSERT INTO coord_runs (` + strings.Join(columns, ", ") + `)
		SELECT ` + strings.Join(values, ", ") + ` FROM coord_runs CROSS JOIN ` + numbers
}

func nowMicros() int64 { return time.Now().UnixMicro() }
