package fault

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/lib/pq"
)

// Kind is what a replica has a connection to PostgreSQL for.
type Kind string

// The kinds of connections.
const (
	Listen       Kind = "listen"       // hears of other replicas
	Reader       Kind = "reader"       // reads events
	Limiter      Kind = "limiter"      // counts requests
	Probe        Kind = "probe"        // asks whether the server can be used
	Coordination Kind = "coordination" // leases, leaders, heartbeats and the doorbell
	Work         Kind = "work"         // everything else
)

// Kinds are all kinds. The statements of a kind are told by a pattern, the first that fits.
var Kinds = []Kind{Listen, Reader, Limiter, Probe, Coordination, Work}

var patterns = map[Kind]string{
	Listen:       `^\s*LISTEN`,
	Reader:       `coord_news|pg_current_snapshot`,
	Limiter:      `coord_allow|coord_limits`,
	Probe:        `pg_is_in_recovery`,
	Coordination: `pg_notify|coord_(members|stand|leaders|calls|next_due|sweep|leave)|WITH (held|lease) AS`,
	Work:         ``,
}

// rigName is by what this package's own sessions are told from those of replicas.
const rigName = "tandem-rig"

// Sessions breaks the sessions of a PostgreSQL. Terminate may be called concurrently with the others.
type Sessions struct {
	db   *sql.DB
	held []*sql.Conn
}

// OpenSessions takes the URL of the database that the replicas use, direct to the server.
func OpenSessions(database string) (*Sessions, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", rigName)
	u.RawQuery = query.Encode()
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		return nil, err
	}
	return &Sessions{db: db}, nil
}

// kindOf is the kind of a session, in SQL.
func kindOf() string {
	var b strings.Builder
	b.WriteString("CASE")
	for _, k := range Kinds {
		fmt.Fprintf(&b, " WHEN query ~ %s THEN %s", pq.QuoteLiteral(patterns[k]), pq.QuoteLiteral(string(k)))
	}
	b.WriteString(" END")
	return b.String()
}

// Terminate ends the sessions that replicas have of a kind, by what they asked last, and returns
// how many those were.
func (s *Sessions) Terminate(ctx context.Context, kind Kind) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND application_name = 'tandem'
			AND `+kindOf()+` = $1`, string(kind)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("terminate sessions of kind %s: %w", kind, err)
	}
	return n, nil
}

// Occupy opens sessions until the server has none left, up to so many, and keeps them until
// Release. It returns how many it got.
func (s *Sessions) Occupy(ctx context.Context, most int) (n int, err error) {
	for n < most {
		conn, err := s.db.Conn(ctx)
		if refused, ok := errors.AsType[*pq.Error](err); ok && refused.Code == "53300" {
			break
		}
		if err != nil {
			return n, fmt.Errorf("occupy sessions: %w", err)
		}
		s.held = append(s.held, conn)
		n++
	}
	if n > 0 { // one is for Terminate
		last := len(s.held) - 1
		_ = s.held[last].Close()
		s.held = s.held[:last]
	}
	return n, nil
}

// Block locks tables against whatever reads or writes them until Release, as the work of an
// administrator does that takes long.
func (s *Sessions) Block(ctx context.Context, tables ...string) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("block tables: %w", err)
	}
	s.held = append(s.held, conn)
	_, err = conn.ExecContext(ctx, `BEGIN; LOCK TABLE `+strings.Join(tables, ", ")+` IN ACCESS EXCLUSIVE MODE`)
	if err != nil {
		return fmt.Errorf("block tables: %w", err)
	}
	return nil
}

// Release ends what Occupy and Block hold.
func (s *Sessions) Release() {
	for _, conn := range s.held {
		// Not given back to the pool: a transaction may be open on it.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
	}
	s.held = nil
}

// Close releases everything.
func (s *Sessions) Close() error {
	s.Release()
	return s.db.Close()
}
