package pg_test

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// store is a database whose clock stands still.
type store struct {
	t   *testing.T
	url string
	db  *bun.DB
}

func migrate(url string) error {
	db, err := pg.OpenDB(url, 4)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
	return err
}

// frozen makes the database's clock one that only the test moves.
func frozen(url string) error {
	if err := migrate(url); err != nil {
		return err
	}
	db, err := pg.OpenDB(url, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(context.Background(), `
		CREATE TABLE test_clock (now timestamptz NOT NULL);
		INSERT INTO test_clock VALUES ('2026-03-01 12:00:00.123456+00');
		CREATE OR REPLACE FUNCTION coord_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now FROM test_clock';
		CREATE OR REPLACE FUNCTION coord_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM test_clock';
		CREATE TABLE test_rows (key text PRIMARY KEY)`)
	return err
}

func newStore(t *testing.T) coordtest.Store {
	t.Helper()
	url := testenv.NewDatabase(t, "coord_frozen", frozen)
	db, err := pg.OpenDB(url, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	// The worst that a database can be set up to: backslashes are escapes, and who waited
	// for a row fails.
	_, err = db.ExecContext(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database());
		EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
	if err != nil {
		t.Fatal(err)
	}
	return &store{t: t, url: url, db: db}
}

func (s *store) Open(t *testing.T) coord.Backend {
	t.Helper()
	b, err := pg.Open(t.Context(), pg.Options{
		URL: s.url, MaxConns: 8, Poll: 100 * time.Millisecond, Options: coord.Options{Limiter: coordtest.LimiterOptions},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *store) Now() (now time.Time) {
	s.t.Helper()
	if err := s.db.QueryRowContext(context.Background(), `SELECT now FROM test_clock`).Scan(&now); err != nil {
		s.t.Fatal(err)
	}
	return now.UTC()
}

func (s *store) Advance(d time.Duration) {
	s.t.Helper()
	_, err := s.db.ExecContext(context.Background(), `UPDATE test_clock SET now = now + ? * interval '1 microsecond'`,
		d.Microseconds())
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) InsertRow(ctx context.Context, tx any, key string) error {
	_, err := tx.(bun.Tx).ExecContext(ctx, `INSERT INTO test_rows VALUES (?)`, key)
	return err
}

func (s *store) HasRow(ctx context.Context, key string) (bool, error) {
	var one int
	err := s.db.QueryRowContext(ctx, `SELECT 1 FROM test_rows WHERE key = ?`, key).Scan(&one)
	if err == sql.ErrNoRows {
		return false, nil
	}
	return err == nil, err
}

// TestConformance runs the suite of all drivers against PostgreSQL.
func TestConformance(t *testing.T) {
	coordtest.Run(t, coordtest.Harness{
		New:          newStore,
		Capabilities: coordtest.Capabilities{SeveralHandles: true, Rows: true, ClockBack: true, Hints: true},
	})
}
