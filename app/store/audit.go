package store

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/uptrace/bun"
)

// AuditLine says who did what.
type AuditLine struct {
	ID      int64           `json:"id"`
	At      Time            `json:"at"`
	ActorID int64           `json:"actor_id,omitzero"` // 0: nobody who is known
	Actor   string          `json:"actor"`             // their name then
	Action  string          `json:"action"`
	Target  string          `json:"target"` // on whom or what, by its name then
	Address string          `json:"address"`
	Details json.RawMessage `json:"details"`
}

// AddAudit writes a line, whose ID and At are those of the store.
func (u Unit) AddAudit(ctx context.Context, l AuditLine) error {
	_, err := exec(ctx, u.db, `INSERT INTO app_audit (at, actor_id, actor, action, target, address, details)
		VALUES (?, NULLIF(?, 0), ?, ?, ?, ?, ?)`,
		u.store.clock(0), l.ActorID, l.Actor, l.Action, l.Target, l.Address, string(l.Details))
	return err
}

// AuditFilter narrows a listing of the audit log.
type AuditFilter struct {
	ActorID int64     // 0: of everybody
	Actions []string  // none: every one
	Target  string    // empty: every one
	Since   time.Time // zero: from the beginning
	Until   time.Time // zero: up to now
	Before  int64     // only earlier lines; 0: from the newest
	Limit   int
}

// Audit lists lines, the newest first.
func (s *Store) Audit(ctx context.Context, f AuditFilter) ([]AuditLine, error) {
	early := func(t time.Time) bool { return t.UTC().Year() < 1 } // which PostgreSQL writes otherwise
	if early(f.Until) || strings.ContainsRune(f.Target, 0) {      // nothing is like that
		return nil, nil
	}
	text, args := []string{`id < ?`}, []any{f.Before}
	if f.Before == 0 {
		args[0] = maxID
	}
	add := func(given bool, condition string, values ...any) {
		if given {
			text, args = append(text, condition), append(args, values...)
		}
	}
	add(f.ActorID != 0, `actor_id = ?`, f.ActorID)
	add(len(f.Actions) > 0, `action IN (?)`, bun.List(f.Actions))
	add(f.Target != "", `target = ?`, f.Target)
	add(!f.Since.IsZero() && !early(f.Since), `at >= ?`, Time{f.Since})
	add(!f.Until.IsZero(), `at < ?`, Time{f.Until})
	type row struct {
		AuditLine
		ActorID *int64
		Details string
	}
	rows, err := query[row](ctx, s.read, `SELECT id, at, actor_id, actor, action, target, address, details FROM app_audit
		WHERE `+strings.Join(text, " AND ")+` ORDER BY id DESC LIMIT ?`, append(args, f.Limit)...)
	lines := make([]AuditLine, len(rows))
	for i, r := range rows {
		lines[i] = r.AuditLine
		lines[i].Details = json.RawMessage(r.Details)
		if r.ActorID != nil {
			lines[i].ActorID = *r.ActorID
		}
	}
	return lines, err
}

// ReapAudit deletes a bounded number of lines that are older than keep and returns how
// many. Call it until it returns 0.
func (u Unit) ReapAudit(ctx context.Context, keep time.Duration) (int, error) {
	return exec(ctx, u.db, `DELETE FROM app_audit WHERE id IN (SELECT id FROM app_audit WHERE at <= ? LIMIT 1000)`,
		u.store.clock(-keep))
}
