package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/riverqueue/river/riverdriver/riversqlite"

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
	for _, file := range []struct {
		name string
		db   **sqlite.DB
	}{{"ours.db", &s.ours}, {"floor.db", &s.raw}} {
		if *file.db, err = sqlite.OpenDB(filepath.Join(s.dir, file.name)); err != nil {
			return nil, err
		}
		if _, err := migrations.Up(ctx, (*file.db).Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			return nil, err
		}
	}
	s.b, err = s.connect(ctx, true)
	return s, err
}

type sqliteStore struct {
	dir  string
	b    coord.Backend
	ours *sqlite.DB // on the backend's file
	raw  *sqlite.DB // of the floors, on a file of its own
}

func (s *sqliteStore) backend() coord.Backend { return s.b }

func (s *sqliteStore) floor(ctx context.Context, w coordtest.Workload) (floor, error) {
	write := s.raw.Write.DB
	floors := sqlFloors{write: write, read: s.raw.Read.DB, soon: write, statements: sqliteStatements(), args: withNow}
	return floors.floor(ctx, w)
}

func (s *sqliteStore) close() {
	if s.b != nil {
		_ = s.b.Close(context.Background())
	}
	for _, db := range []*sqlite.DB{s.ours, s.raw} {
		if db != nil {
			_ = db.Close()
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *sqliteStore) connect(ctx context.Context, hints bool) (coord.Backend, error) {
	o := sqlite.Options{Path: filepath.Join(s.dir, "ours.db"), Options: coord.Options{Limiter: patient}}
	if !hints {
		o.Poll = time.Hour // of the file, for what others have written
	}
	return sqlite.Open(ctx, o)
}

// rest has nothing to do: no program does it either.
func (s *sqliteStore) rest(context.Context, ...string) error { return nil }

func (s *sqliteStore) succeeded(ctx context.Context) (int, error) {
	return number(s.ours.Read.QueryContext(ctx, `SELECT count(*) FROM coord_runs WHERE state = 'succeeded'`))
}

func (s *sqliteStore) multiply(ctx context.Context, n int) error {
	columns, err := collect[string](s.ours.Read.QueryContext(ctx,
		`SELECT name FROM pragma_table_info('coord_runs') WHERE NOT pk`))
	if err != nil {
		return err
	}
	_, err = s.ours.Write.DB.ExecContext(ctx, numbers+multiplied(columns, `at - i`, `n`), n)
	return err
}

// numbers is a table n of the numbers i from 1 to the first argument.
const numbers = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) `

func (s *sqliteStore) jobs(ctx context.Context) (backlog, error) {
	_, err := s.raw.Write.ExecContext(ctx, `
		CREATE TABLE jobs (
			id INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, run_at INTEGER NOT NULL,
			lease_until INTEGER, attempt INTEGER NOT NULL DEFAULT 0, worker TEXT, payload TEXT NOT NULL);
		CREATE INDEX jobs_due ON jobs (queue, run_at, id) WHERE state = 0;
		CREATE INDEX jobs_leases ON jobs (lease_until) WHERE state = 1`)
	if err != nil {
		return nil, err
	}
	db := s.raw.Write.DB
	j := &sqliteJobs{db: db}
	j.claim, err = db.PrepareContext(ctx, `UPDATE jobs
		SET state = 1, lease_until = ?1 + 60000000, attempt = attempt + 1, worker = 'bench'
		WHERE id IN (SELECT id FROM jobs WHERE queue = '`+kind+`' AND state = 0 AND run_at <= ?1
			ORDER BY run_at, id LIMIT ?2)
		RETURNING id, payload`)
	if err != nil {
		return nil, err
	}
	j.finish, err = db.PrepareContext(ctx, `UPDATE jobs SET state = 2, lease_until = NULL
		WHERE id IN (SELECT value FROM json_each(?1)) AND state = 1`)
	return j, err
}

// sqliteJobs is the floor of claiming and finishing, by prepared statements.
type sqliteJobs struct {
	db            *sql.DB
	claim, finish *sql.Stmt
}

func (j *sqliteJobs) add(ctx context.Context, n int) error {
	_, err := j.db.ExecContext(ctx, numbers+`INSERT INTO jobs (queue, run_at, payload)
		SELECT '`+kind+`', ?2, '{"at":1}' FROM n WHERE i <= ?1`, n, nowMicros())
	return err
}

func (j *sqliteJobs) rest(context.Context) error { return nil }

func (j *sqliteJobs) cycle(ctx context.Context, limit int) (int, error) {
	ids, err := collectPairs(j.claim.QueryContext(ctx, nowMicros(), limit))
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, err
	}
	_, err = j.finish.ExecContext(ctx, string(list))
	return len(ids), err
}

func (s *sqliteStore) river(ctx context.Context) (peer, error) {
	settings := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(wal)", "synchronous(full)"},
	}
	file := url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(s.dir, "river.db")), RawQuery: settings.Encode()}
	return newRiver(ctx, func(context.Context) (riverPool[*sql.Tx], error) {
		db, err := sql.Open("sqlite", file.String())
		if err != nil {
			return riverPool[*sql.Tx]{}, err
		}
		db.SetMaxOpenConns(1) // as its documentation wants
		return riverPool[*sql.Tx]{riversqlite.New(db), riverDB{
			rest:  func(context.Context) error { return nil },
			count: func(ctx context.Context, query string) (int, error) { return number(db.QueryContext(ctx, query)) },
			close: func() { _ = db.Close() },
		}}, nil
	})
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
			WHERE id IN (SELECT id FROM coord_runs WHERE priority = 2 AND finished_at IS NULL AND gate IS NULL AND at <= ?2 AND kind = 'a'
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
		hold:    `INSERT INTO coord_receipts (key, fingerprint, holder, keep, until) VALUES (?1, ?1, 'bench', 86400000000, ?2 + 30000000)`,
		done:    `UPDATE coord_receipts SET done = 1, body = ?2, until = ?3 + keep WHERE key = ?1 AND holder = 'bench'`,
		outcome: `SELECT body FROM coord_receipts WHERE key = ?1`,
		publish: `INSERT INTO coord_events (topic, seq, tag, prev, kind, payload, at) VALUES (?1, ?2, 7, 7, 'bench', ?3, ?4)`,
		follow:  `SELECT seq, payload FROM coord_events WHERE topic = ?1 AND seq > ?2 ORDER BY seq`,
	}
}
