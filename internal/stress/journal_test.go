package stress

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

// What handlers note. A receipt, which no two executions can have, is the note that one
// has begun.
const (
	begun   = "begun"
	ended   = "ended"   // is about to return, so the run is to be finished
	wrote   = "wrote"   // part of the transaction that finishes the run
	refused = "refused" // finishing the run was fenced
	stopped = "stopped" // heeded its context
)

// entry is a line of the journal. Their order is the database's.
type entry struct {
	Seq   int64  `bun:"seq"`
	AtMs  int64  `bun:"at_ms"` // by the database's clock
	Run   int64  `bun:"run"`
	Token int64  `bun:"token"`
	What  string `bun:"what"` // a note of a handler, or a change of state such as "queued>running"
	// LateMs is, in a change of state, how long ago the run's time was: its lease's end if
	// it was running.
	LateMs int64 `bun:"late_ms"`
}

// The journal and the trigger that notes each change of a run's state or token.
const (
	journalPG = `
		CREATE FUNCTION stress_ms(timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
			AS 'SELECT floor(extract(epoch FROM $1) * 1000)::bigint';
		CREATE TABLE stress_journal (
			seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			at_ms bigint NOT NULL DEFAULT stress_ms(clock_timestamp()),
			run bigint NOT NULL,
			token bigint NOT NULL,
			what text NOT NULL,
			late_ms bigint NOT NULL DEFAULT 0);
		CREATE UNIQUE INDEX stress_receipts ON stress_journal (run, token) WHERE what = 'begun';
		CREATE FUNCTION stress_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO stress_journal (run, token, what, late_ms) VALUES (NEW.id, NEW.token,
				OLD.state::text || '>' || NEW.state::text, stress_ms(clock_timestamp()) - stress_ms(OLD.at));
			RETURN NULL;
		END $$;
		CREATE TRIGGER stress_note AFTER UPDATE ON coord_runs FOR EACH ROW
			WHEN (OLD.state <> NEW.state OR OLD.token <> NEW.token) EXECUTE FUNCTION stress_note()`
	journalSQLite = `
		CREATE TABLE stress_journal (
			seq INTEGER PRIMARY KEY AUTOINCREMENT,
			at_ms INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
			run INTEGER NOT NULL,
			token INTEGER NOT NULL,
			what TEXT NOT NULL,
			late_ms INTEGER NOT NULL DEFAULT 0);
		CREATE UNIQUE INDEX stress_receipts ON stress_journal (run, token) WHERE what = 'begun';
		CREATE TRIGGER stress_note AFTER UPDATE ON coord_runs
			WHEN OLD.state <> NEW.state OR OLD.token <> NEW.token
		BEGIN
			INSERT INTO stress_journal (run, token, what, late_ms) VALUES (NEW.id, NEW.token,
				OLD.state || '>' || NEW.state, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - OLD.at / 1000);
		END`
)

func preparePG(url string) error {
	ctx := context.Background()
	db, err := pg.OpenDB(url, 4)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db.DB, migrations.PostgreSQL, migrations.Coord); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, journalPG)
	return err
}

func prepareSQLite(path string) error {
	ctx := context.Background()
	db, err := sqlite.OpenDB(path)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := migrations.Up(ctx, db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
		return err
	}
	_, err = db.Write.ExecContext(ctx, journalSQLite)
	return err
}

// open opens the backend of a driver. A replica has few connections, for many share a server.
func open(ctx context.Context, driver, url string) (coord.Backend, error) {
	if driver == "sqlite" {
		return sqlite.Open(ctx, sqlite.Options{Path: url})
	}
	return pg.Open(ctx, pg.Options{URL: url, MaxConns: 12})
}

// note writes into the journal by itself; noteIn does so as part of a transaction.
func note(ctx context.Context, b coord.Backend, c coord.Claim, what string) error {
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error { return noteIn(ctx, tx, c, what) })
}

func noteIn(ctx context.Context, tx coord.Tx, c coord.Claim, what string) error {
	_, err := tx.Unwrap().(bun.Tx).NewRaw(`INSERT INTO stress_journal (run, token, what) VALUES (?, ?, ?)`,
		c.Run.ID, c.Token, what).Exec(ctx)
	return err
}

// readJournal returns all entries in their order.
func readJournal(ctx context.Context, b coord.Backend) (entries []entry, err error) {
	err = b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT seq, at_ms, run, token, what, late_ms FROM stress_journal ORDER BY seq`).
			Scan(ctx, &entries)
	})
	return entries, err
}
