package testenv

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
	"go.uber.org/goleak"
)

const (
	databasePrefix = "tandem_test_"
	templatePrefix = "tandem_template_"

	adminTimeout = 60 * time.Second
	busyTimeout  = 30 * time.Second
	busyPause    = 20 * time.Millisecond

	// leftoverAge is the age at which databases on a server that outlives the tests are
	// taken for those of a killed process.
	leftoverAge = 12 * time.Hour

	codeObjectInUse = "55006"
	codeTooMany     = "53300"
	codeStarting    = "57P03"
)

var shared struct {
	mu      sync.Mutex
	inMain  bool
	cluster *Cluster
	err     error
}

// Main runs a package's tests, stops the shared server, and returns the exit code. Every
// package that uses Shared or NewDatabase has it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
func Main(m interface{ Run() int }) int {
	shared.mu.Lock()
	shared.inMain = true
	shared.mu.Unlock()
	defer func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		if shared.cluster != nil {
			shared.cluster.Stop()
		}
		shared.cluster, shared.err, shared.inMain = nil, nil, false
	}()
	return m.Run()
}

// MainWithoutLeaks is Main, and fails when the tests leave a goroutine behind.
func MainWithoutLeaks(m interface{ Run() int }) int { return Main(leakless{m}) }

type leakless struct{ m interface{ Run() int } }

func (l leakless) Run() int {
	code := l.m.Run()
	if err := goleak.Find(goleak.IgnoreAnyFunction(GoroutineName)); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Shared returns the server of this test process: the one that TANDEM_TEST_PG_URL names, or
// else a throw-away cluster, started on the first call. Without a server it fails tb with
// one sentence that says what to install.
//
// A goroutine waits for a server that was started here until Main ends. Tests that look for
// leaked goroutines ignore it by the name GoroutineName.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		tb.Fatal("testenv: this package needs func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }")
	}
	if shared.cluster == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), initTimeout+readyTimeout)
		defer cancel()
		if address := os.Getenv(EnvPostgresURL); address != "" {
			shared.cluster, shared.err = connectCluster(ctx, address)
		} else {
			shared.cluster, shared.err = StartCluster(ctx, Options{})
		}
	}
	if shared.err != nil {
		tb.Fatalf("testenv: no PostgreSQL for this test: %v", shared.err)
	}
	return shared.cluster
}

// GoroutineName is the function in which the goroutine that waits for a server runs.
const GoroutineName = "github.com/tandemhq/tandem/internal/child.(*Process).run"

// NewDatabase returns the URL of a fresh database on the shared server. See
// [Cluster.NewDatabase].
func NewDatabase(tb testing.TB, template string, prepare func(url string) error) (url string) {
	tb.Helper()
	return Shared(tb).NewDatabase(tb, template, prepare)
}

// NewDatabase returns the URL of a fresh database that is dropped, connections or not, when
// tb ends. It is a copy of the named template, which prepare is called to fill once per
// server and test binary, whatever the number of processes; a rebuilt binary gets a new
// template. One name stands for one content within a binary. prepare closes its connections
// before it returns. A nil prepare makes an empty database.
func (c *Cluster) NewDatabase(tb testing.TB, template string, prepare func(url string) error) (url string) {
	tb.Helper()
	name := databasePrefix + strconv.FormatInt(time.Now().Unix(), 10) + "_" +
		strconv.Itoa(os.Getpid()) + "_" + randomHex()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := c.create(ctx, name, template, prepare); err != nil {
		tb.Fatalf("testenv: create a database from template %q: %v", template, err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		err := c.admin(ctx, func(conn *sql.Conn) error { return dropDatabase(ctx, conn, name) })
		if err != nil {
			tb.Logf("testenv: drop database %s: %v", name, err)
		}
	})
	return c.URL(name)
}

func (c *Cluster) create(ctx context.Context, name, template string, prepare func(string) error) error {
	source := "template0"
	if prepare != nil {
		var err error
		if source, err = c.template(template, prepare); err != nil {
			return err
		}
	}
	return c.admin(ctx, func(conn *sql.Conn) error { return copyDatabase(ctx, conn, name, source) })
}

// template returns the database name of a template, filled.
func (c *Cluster) template(name string, prepare func(string) error) (string, error) {
	c.mu.Lock()
	once, ok := c.templates[name]
	if !ok {
		once = sync.OnceValues(func() (string, error) { return c.makeTemplate(name, prepare) })
		c.templates[name] = once
	}
	c.mu.Unlock()
	return once()
}

// makeTemplate fills a template unless another process has. The advisory lock is held on the
// maintenance database, and the final name is given last, so that a template is whole or absent.
func (c *Cluster) makeTemplate(name string, prepare func(string) error) (string, error) {
	final := templateName(name, c.salt)
	unfinished := final + "_new"
	// No deadline: prepare is the caller's, and the test binary has a time limit.
	ctx := context.Background()
	err := c.admin(ctx, func(conn *sql.Conn) error {
		if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, lockKey(final)); err != nil {
			return err
		}
		var exists bool
		err := conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, final).Scan(&exists)
		if err != nil || exists {
			return err
		}
		if err := dropDatabase(ctx, conn, unfinished); err != nil {
			return err
		}
		if err := copyDatabase(ctx, conn, unfinished, "template0"); err != nil {
			return err
		}
		if err := prepare(c.URL(unfinished)); err != nil {
			return errors.Join(fmt.Errorf("prepare: %w", err), dropDatabase(ctx, conn, unfinished))
		}
		for _, statement := range []string{
			`ALTER DATABASE ` + pq.QuoteIdentifier(unfinished) + ` ALLOW_CONNECTIONS false`,
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ` + pq.QuoteLiteral(unfinished),
			`COMMENT ON DATABASE ` + pq.QuoteIdentifier(unfinished) + ` IS ` +
				pq.QuoteLiteral(strconv.FormatInt(time.Now().Unix(), 10)),
			`ALTER DATABASE ` + pq.QuoteIdentifier(unfinished) + ` RENAME TO ` + pq.QuoteIdentifier(final),
		} {
			if err := execPatiently(ctx, conn, statement); err != nil {
				return err
			}
		}
		return nil
	})
	return final, err
}

// admin calls f with a connection to the maintenance database.
func (c *Cluster) admin(ctx context.Context, f func(conn *sql.Conn) error) (err error) {
	address := c.URL(maintenance)
	if c.own() == nil {
		address = c.base.String()
	}
	db, err := sql.Open("postgres", address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var conn *sql.Conn
	err = patiently(ctx, func() error {
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return f(conn)
}

func copyDatabase(ctx context.Context, conn *sql.Conn, name, source string) error {
	var version int
	if err := conn.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return err
	}
	statement := `CREATE DATABASE ` + pq.QuoteIdentifier(name) + ` TEMPLATE ` + pq.QuoteIdentifier(source)
	if version >= 150000 { // older servers know only this strategy
		statement += ` STRATEGY file_copy`
	}
	return execPatiently(ctx, conn, statement)
}

func dropDatabase(ctx context.Context, conn *sql.Conn, name string) error {
	return execPatiently(ctx, conn, `DROP DATABASE IF EXISTS `+pq.QuoteIdentifier(name)+` WITH (FORCE)`)
}

func execPatiently(ctx context.Context, conn *sql.Conn, statement string) error {
	return patiently(ctx, func() error {
		_, err := conn.ExecContext(ctx, statement)
		return err
	})
}

// patiently repeats f while the server says that something is in use for the moment: a
// closed connection lives on in the server a little longer than in the client.
func patiently(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(busyTimeout)
	for {
		err := f()
		refused, ok := errors.AsType[*pq.Error](err)
		if !ok || time.Now().After(deadline) {
			return err
		}
		switch refused.Code {
		case codeObjectInUse, codeTooMany, codeStarting:
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause):
		}
	}
}

// connectCluster wraps a server that someone else runs.
func connectCluster(ctx context.Context, address string) (*Cluster, error) {
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || (base.Scheme != "postgres" && base.Scheme != "postgresql") {
		return nil, fmt.Errorf("%s must have the form postgres://user:password@host:port/database", EnvPostgresURL)
	}
	if base.Path == "" || base.Path == "/" {
		base.Path = "/" + maintenance
	}
	salt, err := binaryHash()
	if err != nil {
		return nil, err
	}
	c := &Cluster{base: *base, salt: salt, templates: map[string]func() (string, error){}}
	err = c.admin(ctx, func(conn *sql.Conn) error {
		var able bool
		err := conn.QueryRowContext(ctx,
			`SELECT rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user`).Scan(&able)
		if err != nil {
			return err
		}
		if !able {
			return errors.New("the role may not create databases")
		}
		return dropLeftovers(ctx, conn, time.Now())
	})
	if err != nil {
		return nil, fmt.Errorf("%s is set to %s: %w", EnvPostgresURL, base.Redacted(), err)
	}
	return c, nil
}

// dropLeftovers removes databases of processes that ended too early to remove their own.
func dropLeftovers(ctx context.Context, conn *sql.Conn, now time.Time) error {
	rows, err := conn.QueryContext(ctx,
		`SELECT datname, coalesce(shobj_description(oid, 'pg_database'), '') FROM pg_database
		WHERE starts_with(datname, $1) OR starts_with(datname, $2)`, databasePrefix, templatePrefix)
	if err != nil {
		return err
	}
	defer rows.Close()
	var old []string
	for rows.Next() {
		var name, comment string
		if err := rows.Scan(&name, &comment); err != nil {
			return err
		}
		made := comment
		if rest, ok := strings.CutPrefix(name, databasePrefix); ok {
			made, _, _ = strings.Cut(rest, "_")
		}
		seconds, err := strconv.ParseInt(made, 10, 64)
		if err == nil && now.Sub(time.Unix(seconds, 0)) > leftoverAge {
			old = append(old, name)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, name := range old {
		if err := dropDatabase(ctx, conn, name); err != nil {
			return err
		}
	}
	return nil
}

// binaryHash identifies the running program. Two programs that differ in a migration, or in
// what prepare does, differ here.
var binaryHash = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
})

// templateName fits into the 63 bytes that PostgreSQL keeps of a name.
func templateName(name, salt string) string {
	sum := sha256.Sum256([]byte(salt + "\x00" + name))
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return templatePrefix + readable[:min(len(readable), 16)] + "_" + hex.EncodeToString(sum[:8])
}

func lockKey(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func randomHex() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
