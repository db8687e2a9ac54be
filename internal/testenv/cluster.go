package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	superuser   = "postgres"
	maintenance = "postgres" // the database that is always there

	initTimeout  = 60 * time.Second
	readyTimeout = 60 * time.Second
	fastTimeout  = 10 * time.Second
	quitTimeout  = 6 * time.Second // the server itself waits five seconds before it kills
	logLines     = 20
	startTries   = 5

	// socketPathMax leaves room for the socket's name in the shortest sun_path in use.
	socketPathMax = 80
)

// Options of StartCluster. The zero value is right for functional tests.
type Options struct {
	// Durable keeps the server's own defaults for fsync, full_page_writes and
	// synchronous_commit and puts the data on a disk: for benchmarks and failure tests.
	// Without it all three are off and the data lies in memory when there is room.
	Durable bool
	// Settings are server settings that go before those this package chooses.
	Settings map[string]string
	// BinDir holds the server programs. Empty means FindPostgres.
	BinDir string
	// Dir is the folder below which the data is put. Empty means a usual temporary folder.
	Dir string
}

// Cluster is a PostgreSQL server for tests. Its methods may be called concurrently.
type Cluster struct {
	base    url.URL
	salt    string // sets this binary's templates apart on a server that outlives it
	account *account
	folder  *folder
	start   func(ctx context.Context, ready func() bool, settings ...string) (*server, error)
	stop    sync.Once

	mu        sync.Mutex
	server    *server // nil for one that somebody else runs
	templates map[string]func() (string, error)
}

// StartCluster starts a throw-away server on a free loopback port and returns once it takes
// connections. ctx bounds the start only. The data belongs to a user other than root, the
// server is a child of this process and on Linux dies with it, however it ends; a folder
// that a killed process left behind is removed by the next StartCluster.
func StartCluster(ctx context.Context, opts Options) (*Cluster, error) {
	return startCluster(ctx, opts, initialize)
}

// startCluster starts a server on what fill puts into the data folder.
func startCluster(
	ctx context.Context, opts Options, fill func(ctx context.Context, bindir string, f *folder, own *account) error,
	settings ...string,
) (*Cluster, error) {
	own, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bindir := opts.BinDir
	if bindir == "" {
		if bindir, err = FindPostgres(); err != nil {
			return nil, err
		}
	}
	parents := folderParents(opts)
	sweep(parents)
	f, err := newFolder(parents, own)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		account:   own,
		folder:    f,
		templates: map[string]func() (string, error){},
	}
	if err := fill(ctx, bindir, f, own); err != nil {
		f.remove()
		return nil, err
	}
	for try := range startTries {
		var port int
		if port, err = freePort(ctx); err != nil {
			break
		}
		c.base = url.URL{
			Scheme:   "postgres",
			User:     url.User(superuser),
			Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
			RawQuery: "sslmode=disable",
		}
		c.start = func(ctx context.Context, ready func() bool, settings ...string) (*server, error) {
			args := arguments(opts, f, port)
			for _, setting := range settings {
				args = append(args, "-c", setting)
			}
			return startServer(ctx, f, own, filepath.Join(bindir, "postgres"), args,
				ready, ending{signalFast, fastTimeout}, ending{signalImmediate, quitTimeout})
		}
		if c.server, err = c.start(ctx, clusterReady(f), settings...); err == nil {
			return c, nil
		}
		// Another process may have taken the port in between: then a new one helps.
		if try == startTries-1 || ctx.Err() != nil || !portTaken(f.log()) {
			break
		}
	}
	f.remove()
	return nil, err
}

// URL returns the address of a database on the server, with sslmode=disable for a server
// that this package has started.
func (c *Cluster) URL(db string) string {
	u := c.base
	u.Path = "/" + db
	return u.String()
}

// Pid is the process number of the server, 0 when this process has not started it.
func (c *Cluster) Pid() int {
	if s := c.own(); s != nil {
		return s.Cmd.Process.Pid
	}
	return 0
}

func (c *Cluster) own() *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Stop ends the server, cutting its connections, and removes its data. A server that this
// process has not started is left alone. Further calls do nothing.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		s := c.own()
		if s == nil {
			return
		}
		s.stop()
		c.folder.remove()
	})
}

// folderParents lists where data may go, best first.
func folderParents(opts Options) []string {
	if opts.Dir != "" {
		return []string{opts.Dir}
	}
	if opts.Durable {
		return []string{"/var/tmp", os.TempDir(), "/tmp"}
	}
	return append(memoryFolders(), os.TempDir(), "/tmp")
}

func initialize(ctx context.Context, bindir string, f *folder, own *account) error {
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	var errs []error
	for _, locale := range []string{"C.UTF-8", "C"} { // some systems have no C.UTF-8
		cmd := exec.CommandContext(ctx, filepath.Join(bindir, "initdb"),
			"-D", f.data(), "-U", superuser, "-A", "trust", "-E", "UTF8", "--locale="+locale,
			"--no-sync", "--no-instructions", "--wal-segsize=1")
		cmd.Dir = f.path
		cmd.Env = serverEnv()
		cmd.SysProcAttr = own.attributes()
		output, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("initdb --locale=%s: %w\n%s", locale, err, output))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// arguments are the server's command line. Of a setting given twice the last one counts.
func arguments(opts Options, f *folder, port int) []string {
	settings := map[string]string{
		"max_connections": "300",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"cluster_name":    "tandem test",
		"log_checkpoints": "off", // every new database makes some
	}
	if !opts.Durable {
		maps.Copy(settings, map[string]string{
			"fsync":              "off",
			"full_page_writes":   "off",
			"synchronous_commit": "off",
		})
	}
	maps.Copy(settings, opts.Settings)
	settings["listen_addresses"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(port)
	settings["unix_socket_directories"] = ""
	if len(f.path) <= socketPathMax {
		settings["unix_socket_directories"] = f.path
	}
	args := []string{"-D", f.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// serverEnv keeps the caller's PG* and locale variables away from the server.
func serverEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// portTaken recognises the one reason to start again with another port.
func portTaken(log string) bool {
	return strings.Contains(tail(log, logLines), "could not create any TCP/IP sockets")
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// clusterReady says whether a server that was started in a folder takes connections.
func clusterReady(f *folder) func() bool {
	return func() bool {
		s, err := readStatus(f.data())
		return err == nil && s.state == statusReady
	}
}
