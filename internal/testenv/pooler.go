package testenv

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	poolerFile = "pgbouncer.ini"
	poolerPid  = "pgbouncer.pid"

	// poolerConns is the number of server connections per database. It is smaller than what
	// two replicas ask for, so that clients share them all the time.
	poolerConns = 10
)

// Pooler is a PgBouncer in transaction mode in front of a Cluster. Its methods may be called
// concurrently.
type Pooler struct {
	host   string
	folder *folder
	server *server
}

// NewPooler starts a PgBouncer in front of the server of this test process; it is stopped
// when tb ends. Like that server it belongs to a user other than root, and on Linux dies with
// this process. Without a PgBouncer it fails tb with one sentence that says what to install. It
// also fails tb when the PgBouncer ends by itself.
func NewPooler(tb testing.TB) *Pooler {
	tb.Helper()
	cluster := Shared(tb)
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	p, err := startPooler(ctx, cluster)
	if err != nil {
		tb.Fatalf("testenv: no PgBouncer for this test: %v", err)
	}
	tb.Cleanup(func() {
		if p.server.Ended() {
			tb.Errorf("testenv: PgBouncer ended by itself: %s; the end of its log:\n%s",
				p.server.Cmd.ProcessState, tail(p.folder.log(), logLines))
		}
		p.server.stop()
		p.folder.remove()
	})
	return p
}

// Through returns the URL that leads to a database of the cluster through the pooler.
func (p *Pooler) Through(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		return database // which is refused where it is used
	}
	u.Host = p.host
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

// Log returns what the pooler has logged.
func (p *Pooler) Log() string {
	text, err := os.ReadFile(p.folder.log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func startPooler(ctx context.Context, c *Cluster) (*Pooler, error) {
	program, err := FindPgBouncer()
	if err != nil {
		return nil, err
	}
	var p Pooler
	p.host, p.folder, p.server, err = startOnPort(ctx, "process up", func(f *folder, port int) (string, []string, error) {
		file := filepath.Join(f.path, poolerFile)
		return program, []string{file}, os.WriteFile(file, []byte(poolerSettings(c, f, port)), 0o644)
	})
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// startOnPort starts a server on a free port of this machine. prepare says what to run there;
// the log says ready when the server can be used. It has nothing to save: it needs no kinder
// ending than a kill.
func startOnPort(ctx context.Context, ready string, prepare func(f *folder, port int) (program string, args []string, err error)) (
	host string, f *folder, s *server, err error,
) {
	own, err := serverAccount()
	if err != nil {
		return "", nil, nil, err
	}
	parents := folderParents(Options{})
	sweep(parents)
	if f, err = newFolder(parents, own); err != nil {
		return "", nil, nil, err
	}
	for try := range startTries {
		var port int
		if port, err = freePort(ctx); err != nil {
			break
		}
		var program string
		var args []string
		if program, args, err = prepare(f, port); err != nil {
			break
		}
		s, err = startServer(ctx, f, own, program, args, func() bool { return logHas(f.log(), ready) })
		if err == nil {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), f, s, nil
		}
		// Another process may have taken the port in between: then a new one helps.
		if try == startTries-1 || ctx.Err() != nil || !logHas(f.log(), "Address already in use") {
			break
		}
	}
	f.remove()
	return "", nil, nil, err
}

// poolerSettings are the contents of the pooler's file. Whoever connects is let in, as the
// cluster's own user.
func poolerSettings(c *Cluster, f *folder, port int) string {
	server := []string{
		"host=" + c.base.Hostname(),
		"port=" + orDefault(c.base.Port(), "5432"),
		"user=" + orDefault(c.base.User.Username(), superuser),
	}
	if password, ok := c.base.User.Password(); ok {
		server = append(server, "password='"+strings.ReplaceAll(password, "'", "''")+"'")
	}
	return `[databases]
* = ` + strings.Join(server, " ") + `
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ` + strconv.Itoa(port) + `
unix_socket_dir =
pidfile = ` + filepath.Join(f.path, poolerPid) + `
auth_type = any
pool_mode = transaction
default_pool_size = ` + strconv.Itoa(poolerConns) + `
max_client_conn = 1000
log_connections = 0
log_disconnections = 0
server_tls_sslmode = ` + orDefault(c.base.Query().Get("sslmode"), "prefer") + `
`
}

func orDefault(v, d string) string {
	if v == "" {
		return d
	}
	return v
}

func logHas(path, text string) bool {
	log, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(log), text)
}

// FindPgBouncer returns the path of the pgbouncer program. It looks at
// TANDEM_TEST_PGBOUNCER, PATH and the usual folders. The error says what to install, and
// wraps ErrMissing unless TANDEM_TEST_PGBOUNCER is wrong.
func FindPgBouncer() (path string, err error) {
	return findProgram("PgBouncer", EnvPgBouncer, []string{"pgbouncer"}, []string{
		"/usr/sbin/pgbouncer",
		"/usr/bin/pgbouncer",
		"/usr/local/sbin/pgbouncer",
		"/usr/local/bin/pgbouncer",
		"/opt/homebrew/bin/pgbouncer",
	}, advicePgBouncer)
}
