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
	"runtime"
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
	base   url.URL
	salt   string // sets this binary's templates apart on a server that outlives it
	folder *folder
	server *server
	stop   sync.Once

	mu        sync.Mutex
	templates map[string]func() (string, error)
}

// StartCluster starts a throw-away server on a free loopback port and returns once it takes
// connections. ctx bounds the start only. The data belongs to a user other than root, the
// server is a child of this process and on Linux dies with it, however it ends; a folder
// that a killed process left behind is removed by the next StartCluster.
func StartCluster(ctx context.Context, opts Options) (*Cluster, error) {
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
		folder:    f,
		templates: map[string]func() (string, error){},
	}
	if err := initialize(ctx, bindir, f, own); err != nil {
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
		c.server, err = startServer(ctx, bindir, f, own, arguments(opts, f, port))
		if err == nil {
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
	if c.server == nil {
		return 0
	}
	return c.server.cmd.Process.Pid
}

// Stop ends the server, cutting its connections, and removes its data. A server that this
// process has not started is left alone. Further calls do nothing.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		if c.server == nil {
			return
		}
		c.server.stop()
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

// server is one run of the postgres program.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

func startServer(ctx context.Context, bindir string, f *folder, own *account, args []string) (*server, error) {
	log, err := os.Create(f.log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The server outlives ctx, so it must not be bound to it.
	cmd := exec.Command(filepath.Join(bindir, "postgres"), args...) //nolint:noctx // see above
	cmd.Dir = f.path
	cmd.Env = serverEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = own.serverAttributes()
	s := &server{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go s.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx, f); err != nil {
		s.stop()
		return nil, fmt.Errorf("%w; the end of its log:\n%s", err, tail(f.log(), logLines))
	}
	return s, nil
}

// run starts the program and waits for it on one thread: the kernel ends the server when
// the thread that started it ends, and Go ends idle threads as it likes.
func (s *server) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = s.cmd.Wait()
	close(s.exited)
}

func (s *server) waitReady(ctx context.Context, f *folder) error {
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if st, err := readStatus(f.data()); err == nil && st.ready {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("PostgreSQL ended while it started: %s", s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL was not ready in time: %w", context.Cause(ctx))
		case <-deadline.C:
			return fmt.Errorf("PostgreSQL was not ready within %s", readyTimeout)
		case <-tick.C:
		}
	}
}

func (s *server) stop() {
	for _, way := range []struct {
		signal os.Signal
		wait   time.Duration
	}{{signalFast, fastTimeout}, {signalImmediate, quitTimeout}} {
		_ = s.cmd.Process.Signal(way.signal)
		select {
		case <-s.exited:
			return
		case <-time.After(way.wait):
		}
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
}
