//go:build linux

// Package patroni runs a PostgreSQL that fails over: nodes of Patroni, the etcd through which
// they agree and the HAProxy that leads to the primary, all on the loopback address.
//
// The settings are those of patroni.yaml.tmpl and haproxy.cfg.tmpl: one synchronous standby,
// without which nothing is acknowledged. Patroni speaks to etcd by its second interface: before 3.0.3
// one that stood still takes the leader's key from its successor by the third.
package patroni

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

// Programs are the Debian packages that a cluster needs, besides PostgreSQL and HAProxy.
var Programs = []string{"patroni", "etcd-server", "python3-etcd", "python3-psycopg2"}

const (
	superuser  = "postgres"
	nodeCount  = 3
	startLimit = 2 * time.Minute
	between    = 50 * time.Millisecond // looks at something that is waited for
)

var (
	//go:embed patroni.yaml.tmpl
	nodeText string
	//go:embed haproxy.cfg.tmpl
	proxyText string

	nodeSettings  = template.Must(template.New("patroni.yaml").Parse(nodeText))
	proxySettings = template.Must(template.New("haproxy.cfg").Parse(proxyText))
)

// Options of Start. The zero value is the profile as it is described.
type Options struct {
	// Asynchronous turns the synchronous mode off: a commit is acknowledged before another
	// node has it.
	Asynchronous bool
	// Lazy makes HAProxy look seldom, and leave connections alone that lead to a node which is
	// no longer the primary: some lead to a standby for a while.
	Lazy bool
}

// Cluster is three nodes and what they need. Faults are for one caller at a time.
type Cluster struct {
	Nodes []*Node // the first is the primary at the start

	options    Options
	folder     string
	bindir     string
	own        *account
	port       int // HAProxy's
	etcdClient int // ports of etcd
	etcdPeer   int
	etcd       *process
	proxy      *process
	stop       sync.Once
}

// Start starts a cluster and returns once it has a primary and standbys, the synchronous one
// among them unless that is turned off, and HAProxy leads to the primary. ctx bounds the start
// only. The caller must call Stop.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	c := &Cluster{options: o}
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("start a Patroni cluster: %w%s", err, c.logs())
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.bindir, err = findPostgres(); err != nil {
		return err
	}
	if c.own, err = serverAccount(); err != nil {
		return err
	}
	if c.folder, err = newFolder(c.own); err != nil {
		return err
	}
	ports, err := freePorts(ctx, 3+2*nodeCount)
	if err != nil {
		return err
	}
	c.port, c.etcdClient, c.etcdPeer = ports[0], ports[1], ports[2]
	for i := range nodeCount {
		n := &Node{cluster: c, Name: fmt.Sprintf("node%d", i+1), Port: ports[3+2*i], API: ports[4+2*i]}
		n.Dir = filepath.Join(c.folder, n.Name)
		c.Nodes = append(c.Nodes, n)
		if err := c.own.mkdir(n.Dir); err != nil {
			return err
		}
		if err := c.write(n.config(), nodeSettings, map[string]any{
			"Name": n.Name, "Port": n.Port, "API": n.API, "Dir": n.Dir,
			"Etcd": c.etcdClient, "BinDir": c.bindir, "Synchronous": !c.options.Asynchronous,
		}); err != nil {
			return err
		}
	}
	if err := c.startProxy(); err != nil {
		return err
	}
	if err := c.StartEtcd(ctx); err != nil {
		return err
	}
	// The first node alone, so that it becomes the primary.
	if err := c.Nodes[0].Start(); err != nil {
		return err
	}
	if err := c.await(ctx, "the first node is the primary", func() bool {
		primary, err := c.Primary(ctx)
		return err == nil && primary == c.Nodes[0]
	}); err != nil {
		return err
	}
	for _, n := range c.Nodes[1:] {
		if err := n.Start(); err != nil {
			return err
		}
	}
	if err := c.Settle(ctx); err != nil {
		return err
	}
	return c.await(ctx, "HAProxy leads to the primary", func() bool {
		_, err := c.psql(ctx, c.URL(superuser), "SELECT 1")
		return err == nil
	})
}

func (c *Cluster) startProxy() (err error) {
	path := filepath.Join(c.folder, "haproxy.cfg")
	if err = c.write(path, proxySettings, map[string]any{
		"Port": c.port, "Nodes": c.Nodes, "Lazy": c.options.Lazy,
	}); err != nil {
		return err
	}
	program, err := testenv.FindHAProxy()
	if err != nil {
		return err
	}
	c.proxy, err = c.launch("haproxy", program, "-db", "-f", path)
	return err
}

// StartEtcd starts etcd, at first or again with all that it knew, and returns when it answers.
func (c *Cluster) StartEtcd(ctx context.Context) (err error) {
	client := "http://127.0.0.1:" + strconv.Itoa(c.etcdClient)
	peer := "http://127.0.0.1:" + strconv.Itoa(c.etcdPeer)
	program, err := find("etcd", "etcd-server")
	if err != nil {
		return err
	}
	if c.etcd, err = c.launch("etcd", program, "--name=tandem", "--data-dir="+filepath.Join(c.folder, "etcd-data"),
		"--log-level=warn", "--enable-v2", "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=tandem="+peer); err != nil {
		return err
	}
	return c.await(ctx, "etcd answers", func() bool { return get(ctx, client+"/health", nil) == nil })
}

// StopEtcd ends etcd at once, as kill -9 does.
func (c *Cluster) StopEtcd() { c.etcd.kill() }

// URL leads to a database on the primary, through HAProxy.
func (c *Cluster) URL(database string) string {
	return address("127.0.0.1:"+strconv.Itoa(c.port), database, url.Values{})
}

// HostsURL names all nodes and leads past HAProxy: who connects looks for the one that suits.
// sessionAttrs says which that is, as target_session_attrs does; empty means any.
func (c *Cluster) HostsURL(database, sessionAttrs string) string {
	var hosts []string
	for _, n := range c.Nodes {
		hosts = append(hosts, "127.0.0.1:"+strconv.Itoa(n.Port))
	}
	query := url.Values{"connect_timeout": {"2"}}
	if sessionAttrs != "" {
		query.Set("target_session_attrs", sessionAttrs)
	}
	return address(strings.Join(hosts, ","), database, query)
}

func address(host, database string, query url.Values) string {
	query.Set("sslmode", "disable")
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: host, Path: "/" + database, RawQuery: query.Encode()}
	return u.String()
}

// CreateDatabase makes an empty database.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) error {
	_, err := c.psql(ctx, c.URL(superuser), "CREATE DATABASE "+name)
	return err
}

// Primary returns the node that is the primary by its own account and holds the leader's key.
func (c *Cluster) Primary(ctx context.Context) (*Node, error) {
	for _, n := range c.Nodes {
		if get(ctx, n.rest("/primary"), nil) == nil {
			return n, nil
		}
	}
	return nil, errors.New("there is no primary")
}

// Synchronous returns the standby that has what is acknowledged.
func (c *Cluster) Synchronous(ctx context.Context) (*Node, error) {
	for _, n := range c.Nodes {
		if get(ctx, n.rest("/synchronous"), nil) == nil {
			return n, nil
		}
	}
	return nil, errors.New("there is no synchronous standby")
}

// Settle waits until the cluster is whole: a primary, two standbys that stream from it on its
// timeline, the synchronous one among them unless that is turned off.
func (c *Cluster) Settle(ctx context.Context) error {
	return c.await(ctx, "the cluster is whole", func() bool {
		primary, err := c.Primary(ctx)
		if err != nil {
			return false
		}
		var state struct {
			Members []struct {
				Name, Role, State string
				Timeline          int
			}
		}
		if get(ctx, primary.rest("/cluster"), &state) != nil || len(state.Members) != nodeCount {
			return false
		}
		for _, m := range state.Members {
			if m.State != "running" && m.State != "streaming" || m.Timeline != state.Members[0].Timeline {
				return false
			}
		}
		streaming, err := c.psql(ctx, primary.URL(superuser), "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
		if err != nil || streaming != strconv.Itoa(nodeCount-1) {
			return false
		}
		if c.options.Asynchronous {
			return true
		}
		_, err = c.Synchronous(ctx)
		return err == nil
	})
}

// Switchover makes another node the primary, in order, and returns when it is.
func (c *Cluster) Switchover(ctx context.Context) error {
	primary, err := c.Primary(ctx)
	if err != nil {
		return err
	}
	if err := post(ctx, primary.rest("/switchover"), map[string]string{"leader": primary.Name}); err != nil {
		return fmt.Errorf("switchover: %w", err)
	}
	return c.AwaitOther(ctx, primary)
}

// AwaitOther waits until a node other than n is the primary.
func (c *Cluster) AwaitOther(ctx context.Context, n *Node) error {
	return c.await(ctx, "another node than "+n.Name+" is the primary", func() bool {
		for _, other := range c.Nodes {
			if other != n && get(ctx, other.rest("/primary"), nil) == nil {
				return true
			}
		}
		return false
	})
}

// Stop ends all processes at once and removes what they wrote. Further calls do nothing.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		for _, n := range c.Nodes {
			n.Kill()
		}
		c.etcd.kill()
		c.proxy.kill()
		if c.folder != "" {
			removeFolder(c.folder)
		}
	})
}

// await looks until something holds, or a process has ended by itself.
func (c *Cluster) await(ctx context.Context, what string, holds func() bool) error {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for !holds() {
		if name := c.fallen(); name != "" {
			return fmt.Errorf("it did not come to this: %s: %s has ended by itself", what, name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("it did not come to this: %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}

// fallen names a process that has ended without having been killed.
func (c *Cluster) fallen() string {
	all := map[string]*process{"etcd": c.etcd, "haproxy": c.proxy}
	for _, n := range c.Nodes {
		all[n.Name] = n.patroni
	}
	for name, p := range all {
		if p.fallen() {
			return name
		}
	}
	return ""
}

func (c *Cluster) write(path string, settings *template.Template, values any) error {
	var text strings.Builder
	if err := settings.Execute(&text, values); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text.String()), 0o644) //nolint:gosec // read by another user
}

// logs are the ends of what the processes wrote, for an error message.
func (c *Cluster) logs() string {
	paths, _ := filepath.Glob(filepath.Join(c.folder, "*.log"))
	var text strings.Builder
	for _, path := range paths {
		fmt.Fprintf(&text, "\n%s:\n%s", filepath.Base(path), tail(path))
	}
	return text.String()
}
