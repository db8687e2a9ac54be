package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tandemhq/tandem/migrations"
)

// Postgres is what it takes to look at a PostgreSQL server. Statements have no arguments,
// since a pooler may stand before it.
type Postgres struct {
	Work   *sql.DB // as the work goes: TANDEM_DATABASE_URL, with three connections or more
	Direct *sql.DB // as LISTEN and migrations go: TANDEM_LISTEN_URL, or the same, with as many
	// Hear sends a notification by the way of the work and returns how long it took to arrive
	// where replicas listen.
	Hear    func(ctx context.Context) (time.Duration, error)
	Members Members
	Now     func() time.Time // the clock of this process; default time.Now
	// Conns is how many connections a replica takes to the server by the way of the work, and
	// Beside how many past a pooler, each at most.
	Conns, Beside int
}

// Checks returns the checks of the server.
func (p Postgres) Checks() []Check {
	if p.Now == nil {
		p.Now = time.Now
	}
	list := []Check{
		{Name: "database", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			s, err := lookAtServer(ctx, p.Work, p.Now)
			return judgeServer(s), err
		}},
		{Name: "direct", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			work, err := identify(ctx, p.Work)
			if err != nil {
				return Finding{}, fmt.Errorf("TANDEM_DATABASE_URL: %w", err)
			}
			direct, err := identify(ctx, p.Direct)
			if err != nil {
				return Finding{}, fmt.Errorf("TANDEM_LISTEN_URL: %w", err)
			}
			return judgeDirect(work, direct), nil
		}},
		{Name: "listen", Look: func(ctx context.Context) (Finding, error) {
			took, err := p.Hear(ctx)
			return judgeHeard(took, err), nil
		}},
		{Name: "pooler", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			work, err := pooled(ctx, p.Work)
			if err != nil {
				return Finding{}, err
			}
			direct, err := pooled(ctx, p.Direct)
			return judgePooler(work, direct), err
		}},
		{Name: "clock", Look: func(ctx context.Context) (Finding, error) {
			skew, within, err := measureSkew(ctx, p.Work, p.Now)
			return judgeSkew(skew, within), err
		}},
		{Name: "timeouts", Look: func(ctx context.Context) (Finding, error) {
			work, err := readSettings(ctx, p.Work)
			if err != nil {
				return Finding{}, err
			}
			direct, err := readSettings(ctx, p.Direct)
			return judgeTimeouts(work, direct), err
		}},
		{Name: "durability", Look: func(ctx context.Context) (Finding, error) {
			s, err := readSettings(ctx, p.Work)
			return judgeDurability(s), err
		}},
		{Name: "connections", Vital: true, Look: p.lookAtConnections},
		Schema(p.Work, migrations.PostgreSQL),
		indexes(p.Work, migrations.PostgreSQL, func(ctx context.Context) (objects, error) { return readObjects(ctx, p.Work) }),
		{Name: "privileges", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			r, err := lookAtPrivileges(ctx, p.Work, p.Direct)
			return judgePrivileges(r), err
		}},
		{Name: "notifications", Look: func(ctx context.Context) (Finding, error) {
			var used float64
			err := p.Work.QueryRowContext(ctx, `SELECT pg_notification_queue_usage()`).Scan(&used)
			return judgeNotifications(used), err
		}},
		{Name: "transactions", Look: func(ctx context.Context) (Finding, error) {
			t, err := lookAtTransactions(ctx, p.Work)
			return judgeTransactions(t), err
		}},
		{Name: "vacuum", Look: func(ctx context.Context) (Finding, error) {
			v, err := lookAtVacuum(ctx, p.Work)
			return judgeVacuum(v), err
		}},
	}
	for i := range list {
		if list[i].Name != "database" {
			list[i].Needs = "database"
		}
	}
	return list
}

// server is what it says of itself.
type server struct {
	number             int // 150004
	version, encoding  string
	recovery, readOnly bool
	answered           time.Duration
}

func lookAtServer(ctx context.Context, db *sql.DB, now func() time.Time) (s server, err error) {
	if err := db.PingContext(ctx); err != nil { // connecting is not to be measured
		return s, err
	}
	began := now()
	err = db.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'),
			pg_encoding_to_char(encoding), pg_is_in_recovery(), current_setting('transaction_read_only')::bool
		FROM pg_database WHERE datname = current_database()`).
		Scan(&s.number, &s.version, &s.encoding, &s.recovery, &s.readOnly)
	s.answered = now().Sub(began)
	return s, err
}

func judgeServer(s server) Finding {
	var list []Finding
	if s.number < 150000 {
		list = append(list, unsafe("use PostgreSQL 15 or newer", "it is PostgreSQL %s", s.version))
	}
	switch {
	case s.recovery:
		list = append(list, unsafe("let TANDEM_DATABASE_URL lead to the primary, or name all servers",
			"it is a standby and can't be written to"))
	case s.readOnly:
		list = append(list, unsafe("look at default_transaction_read_only of the server, the database and the role",
			"it can't be written to"))
	}
	if s.encoding != "UTF8" {
		list = append(list, problem("move the data to a database that was created with ENCODING 'UTF8'", "its encoding is %s", s.encoding))
	}
	return together(fine("PostgreSQL %s, the primary, answers within %v", s.version, s.answered.Round(10*time.Microsecond)), list...)
}

// identity tells one database of one running server from every other, and where in it tables
// are made and found.
type identity struct {
	name    string
	schema  string // "": none
	oid     int64
	started time.Time
}

func identify(ctx context.Context, db *sql.DB) (i identity, err error) {
	err = db.QueryRowContext(ctx, `SELECT datname, COALESCE(current_schema(), ''), oid::bigint, pg_postmaster_start_time()
		FROM pg_database WHERE datname = current_database()`).Scan(&i.name, &i.schema, &i.oid, &i.started)
	return i, err
}

func judgeDirect(work, direct identity) Finding {
	if work.oid != direct.oid || !work.started.Equal(direct.started) {
		return unsafe("let both lead to the same database of the same server",
			"TANDEM_DATABASE_URL leads to the database %s, and TANDEM_LISTEN_URL, which migrates, to %s, which is another one",
			work.name, direct.name)
	}
	if work.schema != direct.schema {
		return unsafe("let both have the same search_path, and USAGE on its schema",
			"TANDEM_DATABASE_URL finds its tables in the schema %q, and TANDEM_LISTEN_URL, which migrates, makes them in %q",
			work.schema, direct.schema)
	}
	return fine("LISTEN and migrations go to the database %s, as the work does", work.name)
}

func judgeHeard(took time.Duration, err error) Finding {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("nothing within %v", Deadline)
	}
	if err != nil {
		const advice = "let TANDEM_LISTEN_URL lead to the server itself; until then other replicas' news comes by polling, within TANDEM_POLL"
		return warning(advice, "a notification did not arrive: %v", err)
	}
	return fine("a notification arrived within %v", took.Round(10*time.Microsecond))
}

// pooled reports whether a pooler in transaction mode stands before the server: then two
// connections are served by one process of the server, or one by two.
func pooled(ctx context.Context, db *sql.DB) (bool, error) {
	one, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer one.Close()
	two, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer two.Close()
	type asked interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
	pid := func(of asked) (pid int, err error) {
		err = of.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
		return pid, err
	}
	try := func() (bool, error) {
		before, err := pid(one)
		if err != nil {
			return false, err
		}
		// While a transaction of the other one keeps a process, which may be the same.
		tx, err := two.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		other, err := pid(tx)
		if err != nil {
			return false, err
		}
		after, err := pid(one)
		return before == other || before != after, err
	}
	const tries = 5
	for range tries {
		if found, err := try(); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

func judgePooler(work, direct bool) Finding {
	switch {
	case direct:
		return warning("set TANDEM_LISTEN_URL to the address of the server itself",
			"LISTEN goes through a pooler in transaction mode, behind which nothing is heard")
	case work:
		return fine("a pooler in transaction mode, and LISTEN past it")
	}
	return fine("none in transaction mode")
}

// measureSkew returns how far the server's clock is ahead of this process's, to within half
// of the shortest of some round trips.
func measureSkew(ctx context.Context, db *sql.DB, now func() time.Time) (skew, within time.Duration, err error) {
	const samples = 5
	for i := range samples {
		var there time.Time
		began := now()
		if err := db.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&there); err != nil {
			return 0, 0, err
		}
		if half := now().Sub(began) / 2; i == 0 || half < within {
			skew, within = there.Sub(began.Add(half)), half
		}
	}
	return skew, within, nil
}

const (
	skewWarning = 2 * time.Second
	skewProblem = time.Hour
)

func judgeSkew(skew, within time.Duration) Finding {
	const advice = "run a time service such as chrony on all machines"
	side := "ahead of"
	if skew < 0 {
		side = "behind"
	}
	what := fmt.Sprintf("the server's is %v %s this process's, to within %v",
		skew.Abs().Round(time.Millisecond), side, within.Round(10*time.Microsecond))
	switch size := skew.Abs() - within; {
	case size > skewProblem:
		return problem(advice, "%s: the server's decides what is due; logs mislead, and certificates may be refused", what)
	case size > skewWarning:
		return warning(advice, "%s: the server's decides what is due; logs of replicas don't agree", what)
	}
	return fine("%s", what)
}

// settings are those of the server as a connection has them.
type settings struct {
	statement, transaction, idleSession time.Duration // 0: without a bound
	fsync, pages, commit                string
}

func readSettings(ctx context.Context, db *sql.DB) (s settings, err error) {
	var statement, transaction, idleSession int64
	// pg_settings has durations in milliseconds. transaction_timeout came with version 17.
	err = db.QueryRowContext(ctx, `SELECT COALESCE(max(setting) FILTER (WHERE name = 'statement_timeout'), '0')::bigint,
			COALESCE(max(setting) FILTER (WHERE name = 'transaction_timeout'), '0')::bigint,
			COALESCE(max(setting) FILTER (WHERE name = 'idle_session_timeout'), '0')::bigint,
			max(setting) FILTER (WHERE name = 'fsync'), max(setting) FILTER (WHERE name = 'full_page_writes'),
			max(setting) FILTER (WHERE name = 'synchronous_commit')
		FROM pg_settings`).Scan(&statement, &transaction, &idleSession, &s.fsync, &s.pages, &s.commit)
	s.statement, s.transaction, s.idleSession = time.Duration(statement)*time.Millisecond,
		time.Duration(transaction)*time.Millisecond, time.Duration(idleSession)*time.Millisecond
	return s, err
}

// The bounds that connections ask for, and what a transaction may take.
const (
	statementBound   = 15 * time.Second
	transactionBound = 30 * time.Second
)

func judgeTimeouts(work, direct settings) Finding {
	var list []Finding
	switch {
	case work.statement == 0:
		list = append(list, warning("ALTER ROLE … SET statement_timeout = '15s': the pooler refuses the settings of connections",
			"single statements have no statement_timeout"))
	case work.statement < statementBound:
		list = append(list, warning("let the role or TANDEM_DATABASE_URL have a statement_timeout of 15s or more",
			"statement_timeout is %v: a busy server ends statements that were to have %v", work.statement, statementBound))
	}
	if t := work.transaction; t > 0 && t < transactionBound {
		list = append(list, warning("set transaction_timeout of the role to 0, or to 30s or more",
			"transaction_timeout is %v, and ends connections in the middle of transactions", t))
	}
	if t := direct.idleSession; t > 0 {
		list = append(list, warning("set idle_session_timeout of the role to 0",
			"idle_session_timeout is %v, and ends the connections that listen, which have nothing to say", t))
	}
	return together(fine("statement_timeout is %v, and nothing else ends connections", work.statement), list...)
}

func judgeDurability(s settings) Finding {
	var list []Finding
	if s.fsync == "off" {
		list = append(list, problem("set fsync = on", "fsync is off: a crash of the machine can destroy the database"))
	}
	if s.pages == "off" {
		list = append(list, problem("set full_page_writes = on",
			"full_page_writes is off: a crash of the machine can destroy the database"))
	}
	if s.commit == "off" {
		list = append(list, problem("set synchronous_commit = on",
			"synchronous_commit is off: a crash of the server forgets what was acknowledged"))
	}
	return together(fine("a commit is on the disk when it is acknowledged (synchronous_commit=%s)", s.commit), list...)
}

// connections are how many there are for whom.
type connections struct {
	most     int // what the server, the role or the database allows, whichever leaves the fewest
	others   int // of others, that count against it
	replicas int // that run
	each     int // that a replica takes, at most
	pooled   bool
}

func (p Postgres) lookAtConnections(ctx context.Context) (Finding, error) {
	members, err := p.Members(ctx)
	if err != nil {
		return Finding{}, err
	}
	c := connections{replicas: len(members), each: p.Conns + p.Beside}
	if c.pooled, err = pooled(ctx, p.Work); err != nil {
		return Finding{}, err
	}
	err = p.Work.QueryRowContext(ctx, `WITH others AS (
			SELECT datname, usename FROM pg_stat_activity WHERE datname IS NOT NULL
				AND backend_type IS DISTINCT FROM 'autovacuum worker' AND (datname <> current_database() OR usename <> current_user))
		SELECT most, others FROM (
			SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- COALESCE(current_setting('reserved_connections', true), '0')::int AS most, (SELECT count(*) FROM others) AS others
			UNION ALL SELECT rolconnlimit, (SELECT count(*) FROM others WHERE usename = current_user)
				FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
			UNION ALL SELECT datconnlimit, (SELECT count(*) FROM others WHERE datname = current_database())
				FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0) AS limits
		ORDER BY most - others LIMIT 1`).Scan(&c.most, &c.others)
	if c.pooled {
		c.each = p.Beside
	}
	return judgeConnections(c), err
}

func judgeConnections(c connections) Finding {
	n := max(2, c.replicas)
	need := n*c.each + c.others
	what := fmt.Sprintf("%d replicas take up to %d each, others have %d, and there are %d", n, c.each, c.others, c.most)
	if c.pooled {
		what += ", not counting those of the pooler"
	}
	const advice = "lower TANDEM_DATABASE_CONNS, or raise max_connections and the limits of the role and the database"
	switch {
	case need > c.most:
		return unsafe(advice, "%s", what)
	case need+c.each > c.most:
		return warning(advice+", or stop a replica before its successor starts", "%s: too few for one more during an update", what)
	}
	return fine("%s", what)
}

func readObjects(ctx context.Context, db *sql.DB) (o objects, err error) {
	rows, err := db.QueryContext(ctx, `SELECT t.relname, COALESCE(i.relname, ''), COALESCE(x.indisunique, false),
			COALESCE(x.indisvalid AND x.indisready, true), COALESCE(x.indisprimary, false),
			EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.indexrelid AND c.conrelid = t.oid)
		FROM pg_class t LEFT JOIN pg_index x ON x.indrelid = t.oid LEFT JOIN pg_class i ON i.oid = x.indexrelid
		WHERE t.relkind IN ('r', 'p') AND pg_table_is_visible(t.oid)
			AND (starts_with(t.relname, 'coord_') OR starts_with(t.relname, 'app_'))
		ORDER BY t.relname, x.indisprimary DESC NULLS LAST`)
	if err != nil {
		return o, err
	}
	defer rows.Close()
	last := ""
	for rows.Next() {
		var i index
		var primary bool
		if err := rows.Scan(&i.table, &i.name, &i.unique, &i.valid, &primary, &i.constraint); err != nil {
			return o, err
		}
		if i.table != last {
			o.tables = append(o.tables, i.table)
			if !primary {
				o.keyless = append(o.keyless, i.table)
			}
		}
		if last = i.table; i.name != "" {
			o.indexes = append(o.indexes, i)
		}
	}
	if err := rows.Err(); err != nil {
		return o, err
	}
	var functions string
	err = db.QueryRowContext(ctx, `SELECT COALESCE(string_agg(DISTINCT proname, ' '), '') FROM pg_proc
		WHERE pg_function_is_visible(oid) AND (starts_with(proname, 'coord_') OR starts_with(proname, 'app_'))`).Scan(&functions)
	o.functions = strings.Fields(functions)
	return o, err
}

func judgeNotifications(used float64) Finding {
	const advice = "find the session that listens and stands in a transaction (pg_stat_activity), and end it"
	what := fmt.Sprintf("the queue is filled by %.1f %%", 100*used)
	switch {
	case used > 0.5:
		return problem(advice, "%s; when it is full, commits that notify fail", what)
	case used > 0.1:
		return warning(advice, "%s", what)
	}
	return fine("%s", what)
}

// transactions are the oldest that are open.
type transactions struct {
	oldest   time.Duration // 0: none
	who      string
	prepared time.Duration // 0: none
	gid      string
	hidden   int // sessions that this role may not look at
}

func lookAtTransactions(ctx context.Context, db *sql.DB) (t transactions, err error) {
	var oldest, prepared float64
	err = db.QueryRowContext(ctx, `SELECT COALESCE(extract(epoch FROM statement_timestamp() - o.xact_start), 0)::float8,
			COALESCE(format('process %s of %s (%s), %s', o.pid, o.usename, o.application_name, o.state), ''),
			COALESCE(extract(epoch FROM statement_timestamp() - p.prepared), 0)::float8, COALESCE(p.gid, ''),
			(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type IS NULL)
		FROM (VALUES (1)) AS one
		LEFT JOIN LATERAL (SELECT * FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND backend_type = 'client backend' AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1) AS o ON true
		LEFT JOIN LATERAL (SELECT * FROM pg_prepared_xacts WHERE database = current_database()
			ORDER BY prepared LIMIT 1) AS p ON true`).Scan(&oldest, &t.who, &prepared, &t.gid, &t.hidden)
	t.oldest, t.prepared = time.Duration(oldest*float64(time.Second)), time.Duration(prepared*float64(time.Second))
	return t, err
}

const (
	longWarning = time.Minute
	longProblem = time.Hour
)

func judgeTransactions(t transactions) Finding {
	var list []Finding
	long := func(age time.Duration, what, advice string) {
		const why = "it keeps vacuum from removing what is dead"
		switch age = age.Round(time.Second); {
		case age > longProblem:
			list = append(list, problem(advice, "%s is open for %v; %s", what, age, why))
		case age > longWarning:
			list = append(list, warning(advice, "%s is open for %v; %s", what, age, why))
		}
	}
	long(t.oldest, "a transaction of "+t.who, "end it, or find out why it lasts")
	long(t.prepared, "the prepared transaction "+t.gid, "COMMIT PREPARED or ROLLBACK PREPARED it; Tandem prepares none")
	if t.hidden > 0 {
		list = append(list, warning("GRANT pg_monitor to the role of TANDEM_DATABASE_URL",
			"%d sessions of other roles can't be looked at", t.hidden))
	}
	return together(fine("the oldest is open for %v", t.oldest.Round(time.Millisecond)), list...)
}

// rowsOf counts the rows of a table.
type rowsOf struct {
	table      string
	live, dead int64
	vacuumed   bool // ever
}

// vacuum is how the tables are kept.
type vacuum struct {
	off    bool // autovacuum
	tables []rowsOf
}

func lookAtVacuum(ctx context.Context, db *sql.DB) (v vacuum, err error) {
	rows, err := db.QueryContext(ctx, `SELECT relname, n_live_tup, n_dead_tup, COALESCE(last_vacuum, last_autovacuum) IS NOT NULL,
			NOT current_setting('autovacuum')::bool OR NOT current_setting('track_counts')::bool
		FROM pg_stat_user_tables WHERE starts_with(relname, 'coord_') OR starts_with(relname, 'app_') ORDER BY relname`)
	if err != nil {
		return v, err
	}
	defer rows.Close()
	for rows.Next() {
		var t rowsOf
		if err := rows.Scan(&t.table, &t.live, &t.dead, &t.vacuumed, &v.off); err != nil {
			return v, err
		}
		v.tables = append(v.tables, t)
	}
	return v, rows.Err()
}

// manyDead is how many dead rows are worth a word.
const manyDead = 10_000

func judgeVacuum(v vacuum) Finding {
	var list []Finding
	if v.off {
		list = append(list, problem("set autovacuum = on and track_counts = on", "autovacuum is off: tables only grow"))
	}
	dead := int64(0)
	for _, t := range v.tables {
		dead += t.dead
		switch {
		case t.dead < manyDead:
		case !t.vacuumed:
			list = append(list, warning("VACUUM ANALYZE "+t.table, "%s has %d dead rows and was never vacuumed", t.table, t.dead))
		case t.dead > t.live:
			list = append(list, warning("VACUUM "+t.table+", and look for what holds it back (transactions)",
				"%s has %d dead rows and %d live ones", t.table, t.dead, t.live))
		}
	}
	return together(fine("%d dead rows in %d tables", dead, len(v.tables)), list...)
}
