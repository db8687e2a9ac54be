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
	connectTimeout   = 5 * time.Second
	statementTimeout = "15000" // milliseconds
	lockTimeout      = "10000"
	idleInTxTimeout  = "30000"
)

// setTimeouts gives them to one transaction.
const setTimeouts = `SET LOCAL statement_timeout = ` + statementTimeout + `; SET LOCAL lock_timeout = ` + lockTimeout +
	`; SET LOCAL idle_in_transaction_session_timeout = ` + idleInTxTimeout

// OpenDB returns a pool of at most maxConns connections with the timeouts that
// the driver wants. It does not connect yet.
func OpenDB(url string, maxConns int) (*bun.DB, error) { return openDB(url, maxConns, nil) }

// openDB is OpenDB with timeouts of its own.
func openDB(url string, maxConns int, timeouts map[string]string) (*bun.DB, error) {
	c, err := newConnector(url, timeouts)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return bun.NewDB(db, pgdialect.New()), nil
}

// connector asks for the server-side timeouts as it connects. A pooler that
// refuses such settings is asked without them from then on; then each transaction
// sets them for itself.
type connector struct {
	bounded, plain *pq.Connector
	pooled         atomic.Bool
}

func newConnector(url string, timeouts map[string]string) (*connector, error) {
	settings := map[string]string{
		"statement_timeout":                   statementTimeout,
		"lock_timeout":                        lockTimeout,
		"idle_in_transaction_session_timeout": idleInTxTimeout,
	}
	maps.Copy(settings, timeouts)
	bounded, err := connectorTo(url, settings)
	if err != nil {
		return nil, err
	}
	plain, err := connectorTo(url, nil)
	if err != nil {
		return nil, err
	}
	return &connector{bounded: bounded, plain: plain}, nil
}

// connectorTo adds what the connection string does not say itself, and takes out what
// it is not to say.
func connectorTo(url string, settings map[string]string) (*pq.Connector, error) {
	cfg, err := pq.NewConfig(url)
	if err != nil {
		return nil, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.ApplicationName == "" {
		cfg.FallbackApplicationName = "tandem"
	}
	// Without it a backslash in a text could end the text.
	runtime := map[string]string{"standard_conforming_strings": "on"}
	maps.Copy(runtime, settings)
	maps.Copy(runtime, cfg.Runtime)
	if delete(runtime, isolation); settings != nil {
		runtime[isolation] = "read committed"
	}
	cfg.Runtime = runtime
	c, err := pq.NewConnectorConfig(cfg)
	if err != nil {
		return nil, err
	}
	c.Dialer(dialer())
	return c, nil
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if !c.pooled.Load() {
		conn, err := connect(ctx, c.bounded, false)
		if e, ok := errors.AsType[*pq.Error](err); !ok || e.Code != protocolViolation {
			return conn, err
		}
		c.pooled.Store(true)
	}
	return connect(ctx, c.plain, true)
}

// dialed is the key under which a context carries the place for the socket.
type dialed struct{}

func connect(ctx context.Context, c *pq.Connector, pooled bool) (driver.Conn, error) {
	var socket net.Conn
	conn, err := c.Connect(context.WithValue(ctx, dialed{}, &socket))
	if err != nil {
		return nil, err
	}
	if able, ok := conn.(pqConn); ok && pooled {
		conn = &committed{pqConn: able}
	}
	return guard(conn, socket, pooled)
}

func (c *connector) Driver() driver.Driver { return c.plain.Driver() }

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
	if place, ok := ctx.Value(dialed{}).(*net.Conn); ok && err == nil {
		*place = conn
	}
	return conn, err
}

func (d *netDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}
