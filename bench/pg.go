package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lib/pq"

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

func openPG(ctx context.Context) (subject, error) {
	// The default durability: fsync and synchronous commit.
	cluster, err := testenv.StartCluster(ctx, testenv.Options{Durable: true, Settings: map[string]string{"shared_buffers": "512MB"}})
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("postgres", cluster.URL("postgres"))
	if err != nil {
		cluster.Stop()
		return nil, err
	}
	return &pgSubject{cluster: cluster, admin: admin}, nil
}

func (s *pgSubject) close() {
	_ = s.admin.Close()
	s.cluster.Stop()
}

func (s *pgSubject) store(ctx context.Context) (_ store, err error) {
	s.stores++
	name := fmt.Sprintf("bench%d", s.stores)
	if _, err := s.admin.ExecContext(ctx, `CREATE DATABASE `+name); err != nil {
		return nil, err
	}
	url := s.cluster.URL(name)
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)
	st := &pgStore{floors: &sqlFloors{
		write: db, read: db, statements: pgStatements, args: func(args ...any) []any { return args },
	}}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	if _, err := migrations.Up(ctx, db, migrations.PostgreSQL, migrations.Coord); err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `
		CREATE TABLE floor_runs (LIKE coord_runs INCLUDING ALL);
		CREATE TABLE floor_limits (LIKE coord_limits INCLUDING ALL) WITH (fillfactor = 50);
		CREATE TABLE floor_tickets (LIKE coord_tickets INCLUDING ALL);
		CREATE TABLE floor_events (LIKE coord_events INCLUDING ALL)`)
	if err != nil {
		return nil, err
	}
	st.b, err = pg.Open(ctx, pg.Options{URL: url})
	return st, err
}

type pgStore struct {
	b      coord.Backend
	floors *sqlFloors
}

func (s *pgStore) backend() coord.Backend { return s.b }

func (s *pgStore) floor(ctx context.Context, w coordtest.Workload) (floor, error) {
	return s.floors.floor(ctx, w)
}

func (s *pgStore) close() {
	if s.b != nil {
		_ = s.b.Close(context.Background())
	}
	_ = s.floors.write.Close()
}

const pgNow = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

var pgStatements = statements{
	clear: `DELETE FROM floor_runs`,
	queue: `INSERT INTO floor_runs (kind, payload, state, exclusive, at, due_at, max_attempts, backoff, max_backoff,
			timeout, priority, at_most_once, created_at)
		SELECT 'a', 'benchmark', 'queued', false, now(), now(), 3, 1, 1, 0, 2, false, now() FROM generate_series(1, $1)`,
	claim: `WITH due AS MATERIALIZED (
			SELECT id FROM floor_runs WHERE priority = 2 AND state IN ('queued', 'running') AND at <= now() AND kind = 'a'
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
	redeem:  `DELETE FROM floor_tickets WHERE hash = $1 RETURNING session_id`,
	publish: `INSERT INTO floor_events (topic, seq, tag, kind, payload, at) VALUES ($1, $2, 7, 'bench', $3, clock_timestamp())`,
	follow:  `SELECT seq, payload FROM floor_events WHERE topic = $1 AND seq > $2 ORDER BY seq`,
}
