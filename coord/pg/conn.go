package pg

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
)

// The server's own bounds come first: a cancelled context costs a connection.
const (
	statementTimeout = "15000" // milliseconds
	lockTimeout      = "10000"
	idleInTxTimeout  = "10000"
)

// setTimeouts gives them to one transaction.
const setTimeouts = `SET LOCAL statement_timeout = ` + statementTimeout + `; SET LOCAL lock_timeout = ` + lockTimeout +
	`; SET LOCAL idle_in_transaction_session_timeout = ` + idleInTxTimeout

// OpenDB returns a pool of at most maxConns connections with the timeouts that
// the driver wants, to a server that takes writes. It does not connect yet. The URL may name
// several servers, postgres://a:5432,b:5432/database, one of which takes writes.
func OpenDB(url string, maxConns int) (*bun.DB, error) {
	r, err := newRoute(url)
	if err != nil {
		return nil, err
	}
	return openWork(r, maxConns)
}

// OpenMigrator returns a pool for migrations.Up, whose statements may take as long as they do.
func OpenMigrator(url string) (*bun.DB, error) {
	r, err := newRoute(url)
	if err != nil {
		return nil, err
	}
	return openDB(r, migratorConns, map[string]string{"statement_timeout": "0"})
}

func openWork(r *route, maxConns int) (*bun.DB, error) {
	db, err := openDB(r, maxConns, nil)
	if err != nil {
		return nil, err
	}
	return db.WithQueryHook(boundWaiting{db.DB}), nil
}

// openDB is OpenDB on a route, with timeouts of its own.
func openDB(r *route, maxConns int, timeouts map[string]string) (*bun.DB, error) {
	c, err := newConnector(r, timeouts)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	r.add(pool{db, maxConns})
	return bun.NewDB(db, pgdialect.New()), nil
}

// routeOf returns the route of a pool that OpenDB has made for that connection string, else a
// new one.
func routeOf(db *bun.DB, url string) (*route, error) {
	if db != nil {
		if d, ok := db.Driver().(routedDriver); ok && d.route.text == url {
			return d.route, nil
		}
	}
	return newRoute(url)
}

// routedDriver says where the connections of a pool lead.
type routedDriver struct {
	driver.Driver
	route *route
}

// connector asks for the server-side timeouts as it connects. A pooler that
// refuses such settings is asked without them from then on; then each transaction
// sets them for itself.
type connector struct {
	route          *route
	bounded, plain []*pq.Connector // by server
	pooled         atomic.Bool
}

func newConnector(r *route, timeouts map[string]string) (*connector, error) {
	settings := map[string]string{
		"statement_timeout":                   statementTimeout,
		"lock_timeout":                        lockTimeout,
		"idle_in_transaction_session_timeout": idleInTxTimeout,
		// The server too asks whether this machine is still there: what a dead one has locked is free
		// after a minute then, and not after two hours.
		"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3", "tcp_user_timeout": "60000",
	}
	maps.Copy(settings, timeouts)
	bounded, err := r.connectors(settings)
	if err != nil {
		return nil, err
	}
	plain, err := r.connectors(nil)
	if err != nil {
		return nil, err
	}
	return &connector{route: r, bounded: bounded, plain: plain}, nil
}

// Connect asks the servers in turn, first the one that was connected to last. It ends with its
// context, whatever the servers do.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	era, first := c.route.era.Load(), int(c.route.last.Load())
	var problems []error
	for i := range c.route.servers {
		server := (first + i) % len(c.route.servers)
		conn, err := c.connectTo(ctx, server, era)
		if err == nil {
			c.route.last.Store(int32(server)) //nolint:gosec // there are a few
			return conn, nil
		}
		// Whoever comes next does not wait for it as well.
		c.route.last.CompareAndSwap(int32(server), int32((server+1)%len(c.route.servers))) //nolint:gosec // there are a few
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		problems = append(problems, connectError(err))
	}
	return nil, noServer(problems)
}

func (c *connector) connectTo(ctx context.Context, server int, era *era) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.route.servers[server].ConnectTimeout)
	defer cancel()
	if !c.pooled.Load() {
		conn, err := connect(ctx, c.bounded[server], era, false)
		if e, ok := errors.AsType[*pq.Error](err); !ok || e.Code != protocolViolation {
			return conn, err
		}
		c.pooled.Store(true)
	}
	return connect(ctx, c.plain[server], era, true)
}

func connect(ctx context.Context, c *pq.Connector, era *era, pooled bool) (driver.Conn, error) {
	d := &dialed{until: ctx}
	conn, err := c.Connect(context.WithValue(ctx, dialedKey{}, d))
	if err != nil {
		d.release()
		return nil, err
	}
	if !d.release() { // lib/pq took no notice
		_ = conn.Close()
		return nil, ctx.Err()
	}
	direct := conn
	if able, ok := conn.(pqConn); ok && pooled {
		conn = &committed{pqConn: able}
	}
	conn, err = guard(conn, d.socket, era, pooled)
	if g, ok := conn.(*guarded); ok {
		pq.SetNoticeHandler(direct, g.notice)
	}
	return conn, err
}

func (c *connector) Driver() driver.Driver { return routedDriver{c.plain[0].Driver(), c.route} }

// dialed is the socket of a connection that is being made. It is closed when the context ends
// before that is done: lib/pq heeds it only while it dials.
type dialed struct {
	until  context.Context //nolint:containedctx // of the one call that makes the connection
	socket net.Conn
	stop   func() bool
}

// dialedKey is the key under which a context carries a *dialed.
type dialedKey struct{}

func (d *dialed) take(socket net.Conn) {
	d.release() // where TLS was refused there was another
	d.socket = socket
	d.stop = context.AfterFunc(d.until, func() { _ = socket.Close() })
}

// release lets the socket outlive the context, and reports whether it has.
func (d *dialed) release() bool { return d.stop == nil || d.stop() }

// deadPeer is how long a peer may be silent that has something to acknowledge.
const deadPeer = 25 * time.Second

// dialer makes a dead peer known within about half a minute.
func dialer() *netDialer {
	return &netDialer{net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			return userTimeout(c, deadPeer)
		},
	}}
}

// netDialer implements pq.Dialer and pq.DialerContext.
type netDialer struct{ net.Dialer }

func (d *netDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if place, ok := ctx.Value(dialedKey{}).(*dialed); ok && err == nil {
		place.take(conn)
	}
	return conn, err
}

func (d *netDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}
