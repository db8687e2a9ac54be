// Package stand starts what a scenario is about: a database, replicas of the program as real processes at addresses
// that stay, and HAProxy in front of them.
package stand

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "github.com/lib/pq" // the driver

	"github.com/tandemhq/tandem/internal/testenv"
)

// databaseName is that of the program's database on a cluster of a stand.
const databaseName = "tandem"

// Options of Start.
type Options struct {
	// Program is the path of the program, see [Builds].
	Program string
	// Replicas is how many there are. Default: 2.
	Replicas int
	// Later leaves the replicas to be started by the caller.
	Later bool
	// Database is the URL of an empty database, as a replica sees it. Default: one on a cluster of the
	// stand's own, whose settings are the server's defaults: what is acknowledged is on the disk.
	Database string
	// Postgres are the options of that cluster.
	Postgres testenv.Options
	// Settings are those of all replicas, by their names in the environment, besides those in [Settings].
	Settings map[string]string
	// SettingsOf adds to the settings of the n-th replica, counted from 0.
	SettingsOf func(n int) map[string]string
	// Wrap returns the command that runs the n-th replica's in other circumstances, as in a network of its own.
	Wrap func(n int, command []string) []string
	// Proxy changes the configuration of HAProxy, which is that of deploy/compose.
	Proxy func(config string) string
	// Root is the folder of the repository, whose deploy/compose is used: that of [Builds].
	Root string
}

// Settings are those that every replica has: what is quick enough for scenarios, and right behind HAProxy.
var Settings = map[string]string{
	"TANDEM_LEASE":              "3s",
	"TANDEM_POLL":               "200ms",
	"TANDEM_DRAIN_GRACE":        "1s",
	"TANDEM_SHUTDOWN_TIMEOUT":   "10s",
	"TANDEM_TRUSTED_PROXIES":    "127.0.0.1",
	"TANDEM_HTTP_TASKS_ALLOW":   "127.0.0.1",
	"TANDEM_PERSON_CONNECTIONS": "100",
	"TANDEM_DATABASE_CONNS":     "10",
}

// Stand is a deployment. Its fields do not change but for the processes of its replicas.
type Stand struct {
	Cluster  *testenv.Cluster // nil: the database is not the stand's own
	Database string           // its URL
	Replicas []*Replica
	Front    string // the URL of HAProxy

	proxy   *Process
	folder  string
	db      *sql.DB
	stopped sync.Once
}

// Start starts a stand, and returns when all replicas are ready and HAProxy knows. ctx bounds the start only. The
// caller stops it.
func Start(ctx context.Context, o Options) (_ *Stand, err error) {
	s := &Stand{Database: o.Database}
	defer func() {
		if err != nil {
			// Not wrapped: where nothing stands nothing can be seen, so that it is no ErrUnready.
			err = errors.New("start a stand: " + err.Error() + s.transcripts())
			s.Stop()
		}
	}()
	if s.folder, err = newFolder(); err != nil {
		return nil, err
	}
	if s.Database == "" {
		if err := s.startCluster(ctx, o.Postgres); err != nil {
			return nil, err
		}
	}
	front, err := FreePort(ctx)
	if err != nil {
		return nil, err
	}
	s.Front = "http://127.0.0.1:" + strconv.Itoa(front)
	if o.Replicas == 0 {
		o.Replicas = 2
	}
	for n := range o.Replicas {
		r, err := s.newReplica(ctx, o, n)
		if err != nil {
			return nil, err
		}
		s.Replicas = append(s.Replicas, r)
	}
	if err := s.startProxy(o, front); err != nil {
		return nil, err
	}
	if o.Later {
		return s, nil
	}
	return s, s.StartAll(ctx)
}

func (s *Stand) startCluster(ctx context.Context, o testenv.Options) (err error) {
	o.Durable = true
	o.Settings = maps.Clone(o.Settings)
	if o.Settings == nil {
		o.Settings = make(map[string]string)
	}
	if o.Settings["cluster_name"] == "" {
		o.Settings["cluster_name"] = "tandem rig"
	}
	if s.Cluster, err = testenv.StartCluster(ctx, o); err != nil {
		return err
	}
	s.Database = s.Cluster.URL(databaseName)
	admin, err := sql.Open("postgres", s.Cluster.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = admin.ExecContext(ctx, "CREATE DATABASE "+databaseName)
	return errors.Join(err, admin.Close())
}

// StartAll starts the replicas that do not run, all at once, and returns when all are ready and HAProxy leads to
// each.
func (s *Stand) StartAll(ctx context.Context) error {
	for _, r := range s.Replicas {
		if r.Running() {
			continue
		}
		if err := r.Start(); err != nil {
			return err
		}
	}
	for _, r := range s.Replicas {
		if err := r.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return s.AwaitFront(ctx, len(s.Replicas))
}

// AwaitFront waits until HAProxy leads to so many replicas.
func (s *Stand) AwaitFront(ctx context.Context, replicas int) error {
	return Await(ctx, "HAProxy", func() string {
		if up := s.upstreams(ctx); up != replicas {
			return fmt.Sprintf("it leads to %d replicas, not to %d", up, replicas)
		}
		return ""
	})
}

// DB is a connection of the rig's own to the database. It ends with the stand.
func (s *Stand) DB() (*sql.DB, error) {
	if s.db == nil {
		db, err := sql.Open("postgres", s.Database)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(2)
		s.db = db
	}
	return s.db, nil
}

// URLs are those of the replicas themselves.
func (s *Stand) URLs() (list []string) {
	for _, r := range s.Replicas {
		list = append(list, r.URL())
	}
	return list
}

// Command runs the program of the first replica with its settings, as an operator does, and returns what it wrote.
func (s *Stand) Command(ctx context.Context, input string, args ...string) (string, error) {
	r := s.Replicas[0]
	p, err := Launch("tandem "+strings.Join(args, " "), r.environment(), append([]string{r.Program}, args...), input)
	if err != nil {
		return "", err
	}
	defer p.Kill()
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with code %d: %s", p.Name, code, tail(p.Output()))
	}
	return p.Output(), err
}

// Stop ends everything and removes what it leaves.
func (s *Stand) Stop() {
	s.stopped.Do(func() {
		for _, r := range s.Replicas {
			r.Kill()
		}
		if s.proxy != nil {
			s.proxy.Kill()
		}
		if s.db != nil {
			_ = s.db.Close()
		}
		if s.Cluster != nil {
			s.Cluster.Stop()
		}
		if s.folder != "" {
			_ = os.RemoveAll(s.folder)
		}
	})
}

// transcripts are what the replicas and HAProxy have written, the end of it.
func (s *Stand) transcripts() string {
	var b strings.Builder
	for _, r := range s.Replicas {
		if p := r.process(); p != nil {
			fmt.Fprintf(&b, "\n%s wrote:\n%s", r.Name, tail(p.Output()))
		}
	}
	if s.proxy != nil && s.proxy.Ended() {
		fmt.Fprintf(&b, "\nHAProxy wrote:\n%s", tail(s.proxy.Output()))
	}
	return b.String()
}

// Replica is a replica of the program. Its processes come and go; its address and its settings stay. Its methods may be
// called concurrently, but Start only while it does not run.
type Replica struct {
	Name    string
	Addr    string // host:port
	Program string // what Start starts; may be changed while it does not run
	wrap    func(command []string) []string
	env     map[string]string

	mu  sync.Mutex
	now *Process
}

func (s *Stand) newReplica(ctx context.Context, o Options, n int) (*Replica, error) {
	port, err := FreePort(ctx)
	if err != nil {
		return nil, err
	}
	r := &Replica{
		Name: fmt.Sprintf("replica-%d", n+1), Addr: "127.0.0.1:" + strconv.Itoa(port), Program: o.Program,
		env: maps.Clone(Settings),
	}
	maps.Copy(r.env, map[string]string{
		"TANDEM_ADDR": r.Addr, "TANDEM_NODE": r.Name, "TANDEM_DATABASE_URL": s.Database, "TANDEM_PUBLIC_URL": s.Front,
	})
	maps.Copy(r.env, o.Settings)
	if o.SettingsOf != nil {
		maps.Copy(r.env, o.SettingsOf(n))
	}
	r.Addr = r.env["TANDEM_ADDR"]
	if o.Wrap != nil {
		r.wrap = func(command []string) []string { return o.Wrap(n, command) }
	}
	return r, nil
}

// URL is that of the replica itself.
func (r *Replica) URL() string { return "http://" + r.Addr }

// Set changes a setting, from the next start on.
func (r *Replica) Set(name, value string) { r.env[name] = value }

func (r *Replica) environment() (env []string) {
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		env = append(env, name+"="+r.env[name])
	}
	return env
}

// Start starts a process. AwaitReady waits for it.
func (r *Replica) Start() error {
	command := []string{r.Program, "serve"}
	if r.wrap != nil {
		command = r.wrap(command)
	}
	p, err := Launch(r.Name, r.environment(), command, "")
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = p
	return nil
}

func (r *Replica) process() *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Running reports whether there is a process, frozen or not.
func (r *Replica) Running() bool {
	p := r.process()
	return p != nil && !p.Ended()
}

// Pid is the process number of the present process, or of the last one.
func (r *Replica) Pid() int { return r.process().Pid() }

// Output is what the present process has written, or the last one.
func (r *Replica) Output() string {
	p := r.process()
	if p == nil {
		return ""
	}
	return p.Output()
}

// Kill ends the process as kill -9 does, and waits for that. Without one it does nothing.
func (r *Replica) Kill() {
	if p := r.process(); p != nil {
		p.Kill()
	}
}

// Freeze stops the process where it is.
func (r *Replica) Freeze() error { return r.process().Freeze() }

// Thaw lets it go on.
func (r *Replica) Thaw() error { return r.process().Thaw() }

// Terminate asks the process to end, as an operator does, and waits until it has; it must end with code 0.
func (r *Replica) Terminate(ctx context.Context) error {
	p := r.process()
	if err := p.Signal(terminate); err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with code %d: %s", r.Name, code, tail(p.Output()))
	}
	return err
}

// Ready reports whether the replica says that it is, within a second.
func (r *Replica) Ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return status(ctx, r.URL()+"/healthz/ready") == http.StatusOK
}

// Live reports whether the process answers, within a second.
func (r *Replica) Live(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return status(ctx, r.URL()+"/healthz/live") == http.StatusOK
}

// AwaitReady waits until the replica says that it is ready.
func (r *Replica) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := Await(ctx, r.Name, func() string {
		if p := r.process(); p.Ended() {
			cancel()
			return "it has ended by itself"
		}
		if !r.Ready(ctx) {
			return "it is not ready"
		}
		return ""
	})
	if err != nil {
		return fmt.Errorf("%w\nit wrote:\n%s", err, tail(r.Output()))
	}
	return nil
}

// status asks a URL on a connection of its own, and returns 0 when nobody answers.
func status(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	request.Host = "localhost" // by which a replica may always be asked
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
