package doctor_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/app/doctor"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func migrate(url string) error {
	db, err := pg.OpenDB(url, 2)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
	return err
}

// periods are those of jobs.
var periods = map[string]time.Duration{"waits": time.Minute, "late": 10 * time.Minute, "early": time.Hour}

// deployment is a database and the ways there.
type deployment struct {
	work, listen string
	now          func() time.Time
	conns        int
}

// results are those of all checks by name.
func (d deployment) results(t *testing.T) map[string]doctor.Result {
	t.Helper()
	work, direct := open(t, d.work), open(t, d.listen)
	shared := pg.Diagnosis{DB: work, ListenURL: d.listen}
	p := doctor.Postgres{
		Work: work.DB, Direct: direct.DB, Hear: shared.Hear, Members: shared.Members, Now: d.now, Conns: d.conns, Beside: 1,
	}
	all := doctor.Run(t.Context(), append(p.Checks(), doctor.Replicas(shared.Members, "v1"), doctor.Leaders(shared.Leaders),
		doctor.Jobs(store.New(store.Options{Write: work}).Jobs, shared.Members, periods), doctor.Keys(work.DB, []string{"kek_a"}))...)
	found := map[string]doctor.Result{}
	for _, r := range all {
		found[r.Check] = r
	}
	return found
}

func open(t *testing.T, url string) *bun.DB {
	t.Helper()
	db, err := pg.OpenDB(url, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t *testing.T, db *bun.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// want compares with the results, all others of which are to be good.
func want(t *testing.T, results map[string]doctor.Result, wants map[string]string) {
	t.Helper()
	for name, r := range results {
		level, mentions, _ := strings.Cut(wants[name], " ")
		if level == "" {
			level = "ok"
			// The servers of tests don't wait for the disk.
			if name == "durability" {
				level = "problem"
			}
		}
		is := string(r.Level)
		if r.Unsafe {
			is = "unsafe"
		}
		if is != level || !strings.Contains(r.Found, mentions) {
			t.Errorf("%s: %s: %s; want %s %s", name, is, r.Found, level, mentions)
		}
	}
	for name := range wants {
		if _, ok := results[name]; !ok {
			t.Errorf("there is no check %s", name)
		}
	}
}

func TestGoodDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	d := deployment{work: url, listen: url}
	want(t, d.results(t), map[string]string{"database": "ok PostgreSQL", "replicas": "ok none", "leaders": "ok nobody"})
}

func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "", nil)
	d := deployment{work: url, listen: url}
	want(t, d.results(t), map[string]string{"schema": "warning no schema", "replicas": "ok none", "leaders": "ok nobody"})
	var tables int
	err := open(t, url).NewRaw(`SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`).Scan(t.Context(), &tables)
	if err != nil || tables != 0 {
		t.Errorf("the doctor has made %d things in the database, %v", tables, err)
	}
}

func TestPoolers(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	through := testenv.NewPooler(t).Through(url)
	d := deployment{work: through, listen: url, conns: 1000}
	want(t, d.results(t), map[string]string{
		"pooler": "ok past it", "timeouts": "warning no statement_timeout", "connections": "ok not counting those of the pooler",
	})
	d.listen = through
	want(t, d.results(t), map[string]string{
		"pooler": "warning nothing is heard", "listen": "warning nothing within", "timeouts": "warning", "connections": "ok",
	})
}

func TestWaysThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	other := deployment{work: url, listen: testenv.NewDatabase(t, "doctor", migrate)}
	want(t, other.results(t), map[string]string{"direct": "unsafe another one", "listen": "warning nothing within"})

	const nobody = "postgres://postgres@127.0.0.1:1/nobody?sslmode=disable"
	noListener := deployment{work: url, listen: nobody}
	want(t, noListener.results(t), map[string]string{
		"direct": "unsafe TANDEM_LISTEN_URL", "listen": "warning refused", "pooler": "unsafe refused", "privileges": "unsafe refused", "timeouts": "unknown refused",
	})
	for name, r := range (deployment{work: nobody, listen: url}).results(t) {
		vital := name == "database" || name == "direct" || name == "pooler" || name == "connections" || name == "schema" || name == "indexes" || name == "privileges" || name == "keys"
		if r.Level != doctor.Unknown || r.Unsafe != vital {
			t.Errorf("%s without a server: %+v", name, r)
		}
	}
}

func TestClocks(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	for _, c := range []struct {
		shift time.Duration
		want  string
	}{
		{time.Minute, "warning behind"}, {-time.Minute, "warning ahead"}, {2 * time.Hour, "problem certificates"},
	} {
		d := deployment{work: url, listen: url, now: func() time.Time { return time.Now().Add(c.shift) }}
		want(t, d.results(t), map[string]string{"clock": c.want})
	}
}

func TestSchemaIsDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statements []string
		wants      map[string]string
	}{
		"a migration is missing": {
			[]string{`DELETE FROM coord_migrations WHERE version_id = (SELECT max(version_id) FROM coord_migrations)`},
			map[string]string{"schema": "warning lacks coord/"},
		},
		"a migration in between is missing": {
			[]string{`DELETE FROM coord_migrations WHERE version_id = 3`},
			map[string]string{"schema": "unsafe coord/0003_calls.sql"},
		},
		"a newer version has taken something away": {
			[]string{`CREATE TABLE app_floor (version bigint)`, `INSERT INTO app_floor VALUES (9000)`},
			map[string]string{"schema": "unsafe and 9000 is needed"},
		},
		"keys are sealed and not": {
			[]string{
				`INSERT INTO coord_rings VALUES ('r', 2, now())`,
				`INSERT INTO coord_keys VALUES ('r', 1, 'retired', NULL, '', now(), now()), ('r', 2, 'active', 'x', '', now(), now()), ('r', 3, 'next', 'x', 'kek_a', now(), now())`,
			},
			map[string]string{"keys": "warning not sealed, and a copy of the database is one of them: r 2"},
		},
		"a key is sealed by another": {
			[]string{
				`INSERT INTO coord_rings VALUES ('r', 1, now())`,
				`INSERT INTO coord_keys VALUES ('r', 1, 'active', 'x', 'kek_b', now(), now())`,
			},
			map[string]string{"keys": "unsafe r 1 by kek_b"},
		},
		"a job fails": {
			[]string{`INSERT INTO app_jobs (name, turn, node, started_at, next_at, failures, error, error_at) VALUES ('a', 3, 'n', now(), now(), 2, 'no way', now())`},
			map[string]string{"jobs": "warning a has failed 2 times"},
		},
		"a newer version was here": {
			[]string{`INSERT INTO app_migrations (version_id, is_applied) VALUES (9000, true)`, `DROP INDEX coord_runs_exclusive`},
			map[string]string{"schema": "warning app/9000", "indexes": "warning coord_runs_exclusive"},
		},
		"an index is missing": {
			[]string{`DROP INDEX coord_runs_claim`}, map[string]string{"indexes": "problem coord_runs_claim is missing"},
		},
		"a unique index is missing": {
			[]string{`DROP INDEX coord_runs_exclusive`}, map[string]string{"indexes": "unsafe unique index coord_runs_exclusive is missing"},
		},
		"a primary key is missing": {
			[]string{`ALTER TABLE coord_leaders DROP CONSTRAINT coord_leaders_pkey`},
			map[string]string{"indexes": "unsafe coord_leaders has no primary key"},
		},
		"a function is missing": {
			[]string{`DROP FUNCTION coord_fence`}, map[string]string{"indexes": "unsafe function coord_fence is missing"},
		},
		"a table is missing": {
			[]string{`DROP TABLE app_audit`}, map[string]string{"indexes": "unsafe table app_audit is missing"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.NewDatabase(t, "doctor", migrate)
			exec(t, open(t, url), c.statements...)
			want(t, deployment{work: url, listen: url}.results(t), c.wants)
		})
	}
}

// An index that could not be built stays, and is none.
func TestIndexIsNotValid(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	b, err := pg.Open(t.Context(), pg.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}, coord.NewRun{Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	db := open(t, url)
	d := deployment{work: url, listen: url}
	fail := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err == nil {
			t.Fatalf("%s did not fail", statement)
		}
	}
	fail(`CREATE UNIQUE INDEX CONCURRENTLY mine ON coord_runs ((1))`)
	want(t, d.results(t), map[string]string{"indexes": "warning mine on coord_runs"})
	exec(t, db, `DROP INDEX mine`, `DROP INDEX coord_runs_exclusive`)
	fail(`CREATE UNIQUE INDEX CONCURRENTLY coord_runs_exclusive ON coord_runs ((1))`)
	want(t, d.results(t), map[string]string{"indexes": "unsafe coord_runs_exclusive is not valid"})
}

func TestReplicasOfTwoVersions(t *testing.T) {
	t.Parallel()
	url := testenv.NewDatabase(t, "doctor", migrate)
	b, err := pg.Open(t.Context(), pg.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	d := deployment{work: url, listen: url, conns: 2}
	join := func(name, version string) {
		t.Helper()
		if _, err := b.Directory().Join(t.Context(), coord.NewMember{Name: name, Data: []byte(version)}); err != nil {
			t.Fatal(err)
		}
	}
	join("one", "v1")
	join("two", "v1")
	if _, err := b.Elector().Stand(t.Context(), coord.Candidacy{Name: "jobs", Candidate: "one"}); err != nil {
		t.Fatal(err)
	}
	want(t, d.results(t), map[string]string{"replicas": "ok two v1 since", "leaders": "ok one leads jobs in term 1", "connections": "ok 2 replicas"})
	join("three", "v2")
	want(t, d.results(t), map[string]string{"replicas": "warning 2 versions", "leaders": "ok", "connections": "ok 3 replicas"})
	// The replicas are there for an hour, and of three jobs two are due for longer than they should.
	exec(t, open(t, url), `UPDATE coord_members SET since = now() - interval '1 hour'`, `
		INSERT INTO app_jobs (name, turn, node, started_at, ended_at, next_at)
		SELECT name, 1, 'one', now() - interval '1 hour', ended, now() - interval '50 minutes'
		FROM (VALUES ('early', now()), ('late', now()), ('waits', NULL)) AS jobs (name, ended)`)
	want(t, d.results(t), map[string]string{"replicas": "warning", "jobs": "warning late, which is done every 10m0s, is due since"})
	if r := d.results(t)["jobs"]; !strings.Contains(r.Advice, "restart one") || strings.Contains(r.Found, "early") {
		t.Errorf("got %+v", r)
	}
}

// TestServer looks at a server of its own, whose settings and sessions are others' too.
func TestServer(t *testing.T) {
	t.Parallel()
	c, err := testenv.StartCluster(t.Context(), testenv.Options{Durable: true, Settings: map[string]string{
		"max_connections": "60", "max_prepared_transactions": "2",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	url := c.URL("postgres")
	if err := migrate(url); err != nil {
		t.Fatal(err)
	}
	db := open(t, url)
	d := deployment{work: url, listen: url, conns: 20}
	look := func(wants map[string]string, statements ...string) {
		t.Helper()
		exec(t, db, statements...)
		if _, ok := wants["durability"]; !ok {
			wants["durability"] = "ok"
		}
		want(t, d.results(t), wants)
	}
	const short = "warning too few for one more"
	look(map[string]string{"connections": short})
	d.conns = 30
	look(map[string]string{"connections": "unsafe 2 replicas take up to 31 each, others have 0, and there are 57"})
	d.conns = 8
	look(map[string]string{"connections": short}, `ALTER ROLE postgres CONNECTION LIMIT 26`)
	look(map[string]string{"connections": "unsafe there are 17"}, `ALTER DATABASE postgres CONNECTION LIMIT 17`)
	exec(t, db, `ALTER ROLE postgres CONNECTION LIMIT -1`, `ALTER DATABASE postgres CONNECTION LIMIT -1`)

	look(map[string]string{"durability": "problem synchronous_commit", "timeouts": "warning idle_session_timeout is 1m0s"},
		`ALTER ROLE postgres SET synchronous_commit = off`, `ALTER ROLE postgres SET idle_session_timeout = '1min'`)
	exec(t, db, `ALTER ROLE postgres RESET ALL`)

	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	exec(t, db, `BEGIN; CREATE TABLE mine (); PREPARE TRANSACTION 'forgotten'`)
	oldest, who, prepared, gid, err := doctor.OldestTransactions(t.Context(), db.DB)
	if err != nil || oldest <= 0 || !strings.HasSuffix(who, ", idle in transaction") || prepared <= 0 || prepared > oldest || gid != "forgotten" {
		t.Errorf("the oldest transaction is %v old, of %s, the oldest prepared one %s of %v, %v", oldest, who, gid, prepared, err)
	}
	exec(t, db, `ROLLBACK PREPARED 'forgotten'`)
	_ = tx.Rollback()
	oldest, _, prepared, _, err = doctor.OldestTransactions(t.Context(), db.DB)
	if err != nil || oldest != 0 || prepared != 0 {
		t.Errorf("without any the oldest transaction is %v old, the oldest prepared one %v, %v", oldest, prepared, err)
	}

	exec(t, db, `ALTER TABLE app_locks SET (autovacuum_enabled = off)`,
		`INSERT INTO app_locks SELECT 'lock ' || n FROM generate_series(1, 10000) AS n; DELETE FROM app_locks; SELECT pg_stat_force_next_flush()`)
	look(map[string]string{"vacuum": "warning app_locks has 10001 dead rows and was never vacuumed"})
	exec(t, db, `ALTER SYSTEM SET autovacuum = off`, `SELECT pg_reload_conf()`)
	for deadline := time.Now().Add(10 * time.Second); ; {
		var off bool
		if err := open(t, url).NewRaw(`SELECT NOT current_setting('autovacuum')::bool`).Scan(t.Context(), &off); err != nil {
			t.Fatal(err)
		}
		if off || time.Now().After(deadline) {
			break
		}
	}
	look(map[string]string{"vacuum": "problem autovacuum is off"})

	// Whoever connects from now on can't write; a pool may refuse to connect at all.
	exec(t, db, `ALTER ROLE postgres SET default_transaction_read_only = on`)
	if r := d.results(t)["database"]; !r.Unsafe {
		t.Errorf("a database that can't be written to: %+v", r)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	db, err := sqlite.OpenDB(t.TempDir() + "/tandem.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	look := func(wants map[string]string) {
		t.Helper()
		shared := sqlite.Diagnosis{DB: db}
		found := map[string]doctor.Result{}
		for _, r := range doctor.Run(t.Context(), append(doctor.SQLite{DB: db.Read.DB, Journal: shared.Journal, Writable: shared.Writable}.Checks(),
			doctor.Replicas(shared.Members, "v1"), doctor.Leaders(shared.Leaders),
			doctor.Jobs(store.New(store.Options{Write: db.Write, Read: db.Read}).Jobs, shared.Members, periods), doctor.Keys(db.Read.DB, nil))...) {
			found[r.Check] = r
		}
		want(t, found, wants)
	}
	look(map[string]string{"schema": "warning no schema"})
	if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord, migrations.App); err != nil {
		t.Fatal(err)
	}
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	for i := range 2 {
		if _, err := b.Directory().Join(t.Context(), coord.NewMember{Name: fmt.Sprint("n", i), Data: []byte("v1")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Elector().Stand(t.Context(), coord.Candidacy{Name: "jobs", Candidate: "n0"}); err != nil {
		t.Fatal(err)
	}
	look(map[string]string{"schema": "ok", "replicas": "ok n1 v1", "leaders": "ok n0 leads jobs"})
	if _, err := db.Write.ExecContext(t.Context(), `DROP INDEX coord_runs_exclusive`); err != nil {
		t.Fatal(err)
	}
	look(map[string]string{"indexes": "unsafe coord_runs_exclusive is missing"})
	past := time.Now().Add(-time.Hour).UnixMicro()
	if _, err := db.Write.ExecContext(t.Context(), `
		UPDATE coord_members SET since = ?0;
		INSERT INTO app_jobs (name, turn, node, started_at, next_at) VALUES ('waits', 1, 'n1', ?0, ?0)`, past); err != nil {
		t.Fatal(err)
	}
	look(map[string]string{"indexes": "unsafe", "jobs": "warning its last turn, on n1 since"})
}
