package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

type sqliteSubject struct{}

func openSQLite(context.Context) (subject, error) { return sqliteSubject{}, nil }

func (sqliteSubject) close() {}

func (sqliteSubject) store(ctx context.Context) (_ store, err error) {
	s := &sqliteStore{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	// Not in memory, where a sync costs nothing.
	if s.dir, err = os.MkdirTemp("/var/tmp", "tandem-bench-"); err != nil {
		if s.dir, err = os.MkdirTemp("", "tandem-bench-"); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"ours.db", "floor.db"} {
		db, err := sqlite.OpenDB(filepath.Join(s.dir, name))
		if err != nil {
			return nil, err
		}
		if _, err := migrations.Up(ctx, db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			return nil, err
		}
		if name == "ours.db" {
			_ = db.Close()
			continue
		}
		s.raw = db
	}
	s.floors = &sqlFloors{write: s.raw.Write.DB, read: s.raw.Read.DB, statements: sqliteStatements(), args: withNow}
	s.b, err = sqlite.Open(ctx, sqlite.Options{Path: filepath.Join(s.dir, "ours.db")})
	return s, err
}

type sqliteStore struct {
	dir    string
	b      coord.Backend
	raw    *sqlite.DB // of the floors, on a file of its own
	floors *sqlFloors
}

func (s *sqliteStore) backend() coord.Backend { return s.b }

func (s *sqliteStore) floor(ctx context.Context, w coordtest.Workload) (floor, error) {
	return s.floors.floor(ctx, w)
}

func (s *sqliteStore) close() {
	if s.b != nil {
		_ = s.b.Close(context.Background())
	}
	if s.raw != nil {
		_ = s.raw.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// withNow appends the clock.
func withNow(args ...any) []any { return append(args, nowMicros()) }

// The tables are ours, under their own names, in the floor's own file.
func sqliteStatements() statements {
	return statements{
		clear: `DELETE FROM coord_runs`,
		queue: `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
			INSERT INTO coord_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff,
				timeout, priority, at_most_once, created_at)
			SELECT 'a', 'benchmark', 'queued', false, 0, 0, 3, 1, 1, 0, 2, false, 0 FROM n`,
		claim: `UPDATE coord_runs SET state = 'running', at = ?2 + 3600000000, token = token + 1, attempt = attempt + 1,
				worker = 'bench', started_at = ?2
			WHERE id IN (SELECT id FROM coord_runs WHERE priority = 2 AND state IN ('queued', 'running') AND at <= ?2 AND kind = 'a'
				ORDER BY at, id LIMIT ?1) RETURNING id`,
		release: func(ids []int64) (string, []any) {
			args := make([]any, len(ids)+1)
			args[0] = nowMicros()
			for i, id := range ids {
				args[i+1] = id
			}
			return `UPDATE coord_runs SET state = 'queued', at = ?1, attempt = attempt - 1
				WHERE id IN (` + strings.TrimSuffix(strings.Repeat("?,", len(ids)), ",") + `) AND state = 'running'`, args
		},
		decide: `INSERT INTO coord_limits AS l (key, tat) VALUES (?1, ?4 + ?2)
			ON CONFLICT (key) DO UPDATE SET tat = max(l.tat, ?4) + ?2 WHERE max(l.tat, ?4) + ?2 <= ?4 + ?3 RETURNING tat`,
		look: `SELECT tat FROM coord_limits WHERE key = ?1`,
		issue: `INSERT INTO coord_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
			VALUES (?1, 'ws', 'user', ?2, '', '', 30000000, ?3 + 30000000)`,
		redeem:  `DELETE FROM coord_tickets WHERE hash = ?1 RETURNING session_id`,
		publish: `INSERT INTO coord_events (topic, seq, tag, kind, payload, at) VALUES (?1, ?2, 7, 'bench', ?3, ?4)`,
		follow:  `SELECT seq, payload FROM coord_events WHERE topic = ?1 AND seq > ?2 ORDER BY seq`,
	}
}
