package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lib/pq"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

type pgSubject struct {
	cluster *testenv.Cluster
	admin   *sql.DB
	stores  int
}

func openPG(ctx context.Context) (_ subject, err error) {
	// The default durability: fsync and synchronous commit.
	s := &pgSubject{}
	s.cluster, err = testenv.StartCluster(ctx, testenv.Options{Durable: true, Settings: map[string]string{
		"shared_buffers": "512MB", "max_connections": "600", // sixteen replicas
	}})
	if err != nil {
		return nil, err
	}
	if s.admin, err = sql.Open("postgres", s.cluster.URL("postgres")); err == nil {
		err = s.prepare(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// prepare makes the database of which each store is a copy.
func (s *pgSubject) prepare(ctx context.Context) error {
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE empty`); err != nil {
		return err
	}
	db, err := sql.Open("postgres", s.cluster.URL("empty"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db, migrations.PostgreSQL, migrations.Coord); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `
		CREATE TABLE floor_runs (LIKE coord_runs INCLUDING ALL);
		CREATE TABLE floor_limits (LIKE coord_limits INCLUDING ALL) WITH (fillfactor = 50);
		CREATE TABLE floor_tickets (LIKE coord_tickets INCLUDING ALL);
		CREATE TABLE floor_receipts (LIKE coord_receipts INCLUDING ALL);
		CREATE TABLE floor_events (LIKE coord_events INCLUDING ALL)`)
	return err
}

func (s *pgSubject) close() {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	s.cluster.Stop()
}

func (s *pgSubject) store(ctx context.Context) (_ store, err error) {
	s.stores++
	name := fmt.Sprintf("bench%d", s.stores)
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+name+` TEMPLATE empty`); err != nil {
		return nil, err
	}
	st := &pgStore{subject: s, name: name, url: s.cluster.URL(name)}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	for db, url := range map[**sql.DB]string{&st.db: st.url, &st.soon: st.url + "&synchronous_commit=off"} {
		if *db, err = sql.Open("postgres", url); err != nil {
			return nil, err
		}
		(*db).SetMaxOpenConns(floorConns)
		(*db).SetMaxIdleConns(floorConns)
	}
	st.b, err = st.connect(ctx, true)
	return st, err
}

const (
	floorConns = 32 // as many as there are callers
	riverConns = 20 // as many as ours has for its work
)

type pgStore struct {
	subject   *pgSubject
	name, url string
	b         coord.Backend
	db        *sql.DB // of the floors
	soon      *sql.DB // of those that don't wait for the disk
}

func (s *pgStore) backend() coord.Backend { return s.b }

func (s *pgStore) floor(ctx context.Context, w coordtest.Workload) (floor, error) {
	args := func(args ...any) []any { return args }
	floors := sqlFloors{write: s.db, read: s.db, soon: s.soon, statements: pgStatements, args: args}
	return floors.floor(ctx, w)
}

func (s *pgStore) close() {
	ctx := context.Background()
	if s.b != nil {
		_ = s.b.Close(ctx)
	}
	for _, db := range []*sql.DB{s.db, s.soon} {
		if db != nil {
			_ = db.Close()
		}
	}
	// Else the server would go on to clean up in it.
	_, _ = s.subject.admin.ExecContext(ctx, `DROP DATABASE `+s.name+` WITH (FORCE)`)
}

// patient has a limiter ask its store and wait for it, so that what is measured is that.
var patient = coord.LimiterOptions{Deadline: time.Minute, DenyFor: -1}

func (s *pgStore) connect(ctx context.Context, hints bool) (coord.Backend, error) {
	o := pg.Options{URL: s.url, Options: coord.Options{Limiter: patient}}
	if !hints {
		o.ListenURL = "postgres://127.0.0.1:1/nobody?sslmode=disable"
	}
	return pg.Open(ctx, o)
}

func (s *pgStore) rest(ctx context.Context, tables ...string) error {
	for _, text := range []string{`VACUUM (ANALYZE) ` + strings.Join(tables, ", "), `CHECKPOINT`} {
		if _, err := s.db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

func (s *pgStore) succeeded(ctx context.Context) (int, error) {
	return number(s.db.QueryContext(ctx, `SELECT count(*) FROM coord_runs WHERE state = 'succeeded'`))
}

func (s *pgStore) multiply(ctx context.Context, n int) error {
	columns, err := collect[string](s.db.QueryContext(ctx, `SELECT column_name FROM information_schema.columns
		WHERE table_name = 'coord_runs' AND is_identity = 'NO' AND is_generated = 'NEVER'`))
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, multiplied(columns, `at - i * interval '1 microsecond'`,
		`generate_series(1, $1) AS n (i)`), n)
	return err
}

func (s *pgStore) jobs(ctx context.Context) (backlog, error) {
	_, err := s.db.ExecContext(ctx, `
		CREATE TABLE jobs (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, state smallint NOT NULL DEFAULT 0,
			run_at timestamptz NOT NULL, lease_until timestamptz, attempt smallint NOT NULL DEFAULT 0, worker text,
			payload jsonb NOT NULL);
		CREATE INDEX jobs_due ON jobs (queue, run_at, id) WHERE state = 0;
		CREATE INDEX jobs_leases ON jobs (lease_until) WHERE state = 1`)
	return &pgJobs{s, bun.NewDB(s.db, pgdialect.New())}, err
}

// pgJobs is the floor of claiming and finishing, through bun and lib/pq.
type pgJobs struct {
	store *pgStore
	db    *bun.DB
}

func (j *pgJobs) add(ctx context.Context, n int) error {
	_, err := j.db.NewRaw(`INSERT INTO jobs (queue, run_at, payload)
		SELECT ?, clock_timestamp(), '{"at": 1}' FROM generate_series(1, ?)`, kind, n).Exec(ctx)
	return err
}

func (j *pgJobs) rest(ctx context.Context) error { return j.store.rest(ctx, "jobs") }

func (j *pgJobs) cycle(ctx context.Context, limit int) (int, error) {
	var claimed []struct {
		ID      int64
		Payload []byte
	}
	err := j.db.NewRaw(`UPDATE jobs
		SET state = 1, lease_until = now() + interval '1 minute', attempt = attempt + 1, worker = 'bench'
		WHERE id = ANY (ARRAY(
			SELECT id FROM jobs WHERE queue = ? AND state = 0 AND run_at <= now()
			ORDER BY run_at, id LIMIT ? FOR UPDATE SKIP LOCKED))
		RETURNING id, payload`, kind, limit).Scan(ctx, &claimed)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	ids := make([]int64, len(claimed))
	for i, c := range claimed {
		ids[i] = c.ID
	}
	_, err = j.db.NewRaw(`UPDATE jobs SET state = 2, lease_until = NULL WHERE id = ANY (?) AND state = 1`,
		pq.Array(ids)).Exec(ctx)
	return len(ids), err
}

func (s *pgStore) river(ctx context.Context) (peer, error) {
	return newRiver(ctx, func(ctx context.Context) (riverPool[pgx.Tx], error) {
		c, err := pgxpool.ParseConfig(s.url)
		if err != nil {
			return riverPool[pgx.Tx]{}, err
		}
		c.MaxConns = riverConns
		pool, err := pgxpool.NewWithConfig(ctx, c)
		if err != nil {
			return riverPool[pgx.Tx]{}, err
		}
		return riverPool[pgx.Tx]{riverpgxv5.New(pool), riverDB{
			rest:  func(ctx context.Context) error { return s.rest(ctx, "river_job") },
			count: func(ctx context.Context, query string) (int, error) { return number(s.db.QueryContext(ctx, query)) },
			close: pool.Close,
		}}, nil
	})
}

const pgNow = `(date_part('epoch', clock_timestamp()) * 1000000)::bigint`

var pgStatements = statements{
	clear: `DELETE FROM floor_runs`,
	queue: `INSERT INTO floor_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff,
			timeout, priority, at_most_once, created_at)
		SELECT 'a', 'benchmark', 'queued', false, now(), now(), 3, 1, 1, 0, 2, false, now() FROM generate_series(1, $1)`,
	claim: `WITH due AS MATERIALIZED (
			SELECT id FROM floor_runs WHERE priority = 2 AND gate IS NULL AND state <= 'running' AND at <= now() AND kind = 'a'
			ORDER BY at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE floor_runs r SET state = 'running', at = now() + interval '1 hour', token = token + 1, attempt = attempt + 1,
			worker = 'bench', started_at = now() FROM due WHERE r.id = due.id RETURNING r.id`,
	release: func(ids []int64) (string, []any) {
		return `UPDATE floor_runs SET state = 'queued', at = now(), attempt = attempt - 1 WHERE id = ANY ($1) AND state = 'running'`,
			[]any{pq.Array(ids)}
	},
	decide: `INSERT INTO floor_limits AS l (key, tat) VALUES ($1, ` + pgNow + ` + $2)
		ON CONFLICT (key) DO UPDATE SET tat = greatest(l.tat, ` + pgNow + `) + $2
		WHERE greatest(l.tat, ` + pgNow + `) + $2 <= ` + pgNow + ` + $3 RETURNING tat`,
	look: `SELECT tat FROM floor_limits WHERE key = $1`,
	issue: `INSERT INTO floor_tickets (hash, purpose, user_id, session_id, origin, scope, ttl, expires_at)
		VALUES ($1, 'ws', 'user', $2, '', '', 30000000, now() + interval '30 seconds')`,
	redeem: `DELETE FROM floor_tickets WHERE hash = $1 RETURNING session_id`,
	hold: `INSERT INTO floor_receipts (key, fingerprint, holder, token, keep, until)
		VALUES ($1, $1, 'bench', 1, 86400000000, now() + interval '30 seconds')`,
	done: `UPDATE floor_receipts SET done = true, body = $2, until = now() + keep * interval '1 microsecond'
		WHERE key = $1 AND token = 1`,
	outcome: `SELECT body FROM floor_receipts WHERE key = $1`,
	publish: `INSERT INTO floor_events (topic, seq, tag, prev, kind, payload, at) VALUES ($1, $2, 7, 7, 'bench', $3, clock_timestamp())`,
	follow:  `SELECT seq, payload FROM floor_events WHERE topic = $1 AND seq > $2 ORDER BY seq`,
}
