// Package client is a Go client of the application's API: it follows topics, sends messages and
// answers tool calls over one WebSocket that it keeps open.
//
// It knows the protocol's rules, docs/protocol.md, so that its user need not. When the connection is
// lost, or the server is silent, it connects anew with a fresh ticket, to the next of its endpoints,
// after a pause that grows and is drawn at random; it resumes each topic behind the last event that it
// has, drops what it has seen, and sends again what was not answered. So every event of a topic is
// returned once and in order, and a message that is sent is stored once, whatever happens to the
// connection and to the replicas. Where the history behind a position is gone, [Client.Next] returns a
// [*coord.ResetError]: never a silent hole.
//
// A client costs one goroutine, and a connection with its buffers of 4 KiB: thousands fit in a process.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/coord"
)

var (
	// ErrSignedOut means that the session has ended, or that the name or the password is wrong. The
	// client has stopped; dial again to sign in.
	ErrSignedOut = errors.New("client: not signed in")
	// ErrReplaced means that another connection has taken this one's place. The client has stopped.
	ErrReplaced = errors.New("client: replaced by another connection")
)

// errLost: the connection has ended.
var errLost = errors.New("client: the connection was lost")

const (
	connectTimeout = 15 * time.Second // for a ticket, the handshake and the welcome together
	writeTimeout   = 10 * time.Second // for one message to be taken by the system
	answerTimeout  = 15 * time.Second // after which a frame is sent once more
	steady         = 5 * time.Second  // a connection that lasted less was a failed attempt
	restartJitter  = 2 * time.Second  // over which clients of a replica that stopped come back
	maxMessage     = 16 << 20         // bytes of one message of the server
	maxRetryAfter  = 5 * time.Minute
)

// Options say where to connect and as whom. Endpoints and one of Token, Session, or Name and Password,
// are needed; the other fields have the defaults named.
type Options struct {
	// Endpoints are the beginnings of URLs, such as "https://chat.example.com", of one server: any of
	// them will do. They are tried in this order; one that fails, or whose connection ends, is tried
	// last from then on.
	Endpoints []string

	// Token is one that its owner has made for the program, with the scope "read" at least. It is what
	// programs should use.
	Token string
	// Name and Password sign in, once.
	Name, Password string
	// Session returns the cookie of a session, instead of Name and Password: that of [SignIn], or one
	// that the program has otherwise. It is asked at each connection and request.
	Session func(context.Context) (*http.Cookie, error)

	// HTTPClient sends the requests. When its transport is an [*http.Transport], WebSockets use its
	// DialContext, TLSClientConfig and Proxy. Default: [http.DefaultClient].
	HTTPClient *http.Client
	// Logger gets one line when the client is connected, and one when that has ended. Default: none.
	Logger *slog.Logger

	// Tool answers tool calls, each in a goroutine of its own. Nil: they are refused.
	Tool Tool

	// MinBackoff and MaxBackoff bound the pauses between attempts to connect: before the n-th attempt
	// in a row the pause is drawn evenly from 0 to MinBackoff·2ⁿ, at most MaxBackoff. With several
	// endpoints n counts how often each was tried. Default: 500 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Silence is after how long without a word from the server, which pings every 25 s, the connection
	// is given up. Default: 60 s.
	Silence time.Duration
	// QueueBytes is how much may wait for Next. Topics whose events come beyond that are left for a
	// while, and resumed when Next has returned what waits. Default: 1 MiB.
	QueueBytes int
}

func (o *Options) complete() error {
	invalid := func(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
	if len(o.Endpoints) == 0 {
		return invalid("Endpoints", "there must be one, such as https://chat.example.com")
	}
	o.Endpoints = slices.Clone(o.Endpoints)
	for i, endpoint := range o.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
			u.Scheme != "http" && u.Scheme != "https" {
			return invalid("Endpoints", "must be of the form https://chat.example.com")
		}
		o.Endpoints[i] = strings.TrimRight(endpoint, "/")
	}
	ways := 0
	for _, given := range []bool{o.Token != "", o.Session != nil, o.Name != "" || o.Password != ""} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return invalid("Session", "either it, or Token, or Name and Password must be set")
	}
	def(&o.HTTPClient, http.DefaultClient)
	def(&o.Logger, slog.New(slog.DiscardHandler))
	def(&o.MinBackoff, 500*time.Millisecond)
	def(&o.MaxBackoff, max(30*time.Second, o.MinBackoff))
	def(&o.Silence, time.Minute)
	def(&o.QueueBytes, 1<<20)
	if o.MinBackoff < 0 || o.MaxBackoff < o.MinBackoff {
		return invalid("MaxBackoff", "must not be below MinBackoff, nor that below 0")
	}
	if o.Silence < 0 || o.QueueBytes < 0 {
		return invalid("Silence", "it and QueueBytes must not be below 0")
	}
	return nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Client is a connection to a server that is made anew whenever it ends. It is safe for concurrent
// use, but Next is for one goroutine at a time.
type Client struct {
	o      Options
	http   *http.Client
	dialer websocket.Dialer
	cancel context.CancelFunc
	ended  chan struct{}  // closed when the client has stopped for good
	tools  sync.WaitGroup // calls that are being handled

	subscribing chan struct{} // of one slot, held by Subscribe
	news        chan struct{} // of one slot: something waits for Next

	mu        sync.Mutex
	endpoints []string // the next one to try is the first
	cookie    *http.Cookie
	link      *link         // nil: there is no connection
	linked    chan struct{} // closed while there is one
	trouble   error         // of the last attempt
	end       error         // why the client has stopped
	topics    map[string]*topic
	waiting   []batch // for Next
	bytes     int     // of what waits
	state     State   // to be told to each connection; "": none
}

// buffers are shared by all clients of the process.
var buffers sync.Pool

// Dial connects and returns a client that stays connected until it is closed. It tries until ctx ends:
// ctx bounds only the call. Errors: a [*coord.InvalidError] that names the option, [ErrSignedOut], the
// error of the last attempt with that of ctx.
func Dial(ctx context.Context, o Options) (*Client, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Client{
		o: o, http: o.HTTPClient, dialer: dialer(o.HTTPClient), ended: make(chan struct{}),
		subscribing: make(chan struct{}, 1), news: make(chan struct{}, 1),
		endpoints: o.Endpoints, linked: make(chan struct{}), topics: make(map[string]*topic),
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	go c.run(running)
	if _, err := c.connection(ctx); err != nil {
		if ctx.Err() != nil {
			c.mu.Lock()
			err = errors.Join(err, c.trouble)
			c.mu.Unlock()
		}
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialer opens sockets as an HTTP client opens its connections.
func dialer(hc *http.Client) websocket.Dialer {
	d := websocket.Dialer{
		ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10, WriteBufferPool: &buffers,
		NetDialContext: (&net.Dialer{}).DialContext, Proxy: http.ProxyFromEnvironment,
	}
	transport, ok := hc.Transport.(*http.Transport)
	if hc.Transport == nil {
		transport, ok = http.DefaultTransport.(*http.Transport)
	}
	if !ok {
		return d
	}
	transport = transport.Clone() // also what it is about to add to its TLS settings
	d.Proxy = transport.Proxy
	if transport.DialContext != nil {
		d.NetDialContext = transport.DialContext
	}
	if d.TLSClientConfig = transport.TLSClientConfig; d.TLSClientConfig == nil {
		d.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	d.TLSClientConfig.NextProtos = []string{"http/1.1"} // a WebSocket begins with nothing else
	return d
}

// Close ends the connection and the client, and waits for its goroutines, those of Tool included, so
// Tool must not call it. The session goes on. It may be called again.
func (c *Client) Close() {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.sayGoodbye()
	}
	c.cancel()
	<-c.ended
	c.tools.Wait()
}

// Connection is where a client is connected.
type Connection struct {
	Endpoint string
	ID       string // as the server calls it
	Node     string // the replica
}

// Connection returns where the client is connected, and false while it is not.
func (c *Client) Connection() (Connection, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return Connection{}, false
	}
	return Connection{c.link.endpoint, c.link.id, c.link.node}, true
}

func (c *Client) endpoint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		return c.link.endpoint
	}
	return c.endpoints[0]
}

// run keeps the client connected until it is closed, or must stop.
func (c *Client) run(ctx context.Context) {
	defer close(c.ended)
	for failures := 0; ; {
		endpoint := c.endpoint()
		l, err := c.connect(ctx, endpoint)
		if err == nil {
			began := time.Now()
			c.o.Logger.InfoContext(ctx, "connected", "endpoint", endpoint, "node", l.node, "connection", l.id)
			err = c.serve(l)
			if ctx.Err() == nil {
				c.o.Logger.WarnContext(ctx, "the connection has ended", "endpoint", endpoint, "error", err)
			}
			if time.Since(began) >= steady {
				failures = 0
			}
		} else {
			c.o.Logger.DebugContext(ctx, "an attempt to connect failed", "endpoint", endpoint, "error", err)
		}
		switch {
		case ctx.Err() != nil:
			c.stop(coord.ErrClosed)
			return
		case errors.Is(err, ErrSignedOut), errors.Is(err, ErrReplaced):
			c.stop(err)
			return
		}
		c.mu.Lock()
		c.trouble = err
		if !websocket.IsCloseError(err, closeSlow) { // which says nothing about the replica
			i := slices.Index(c.endpoints, endpoint)
			c.endpoints = append(slices.Delete(c.endpoints, i, i+1), endpoint)
		}
		c.mu.Unlock()
		pause(ctx, c.backoff(failures, err))
		failures++
	}
}

// backoff is the pause before another attempt.
func (c *Client) backoff(failures int, err error) time.Duration {
	if errors.Is(err, errMoved) {
		return 0 // it has waited already
	}
	limit := c.o.MaxBackoff
	if doublings := failures / len(c.o.Endpoints); doublings < 20 {
		limit = min(limit, c.o.MinBackoff<<doublings)
	}
	wait := upTo(limit)
	if websocket.IsCloseError(err, closeRestart) {
		wait += upTo(restartJitter)
	}
	refused, ok := errors.AsType[*StatusError](err)
	if ok && (len(c.o.Endpoints) == 1 || refused.Status == http.StatusTooManyRequests) {
		wait += min(refused.RetryAfter, maxRetryAfter)
	}
	return wait
}

// upTo is a random duration below a limit.
func upTo(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return rand.N(limit)
}

// pause waits, at most until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stop ends the client for good.
func (c *Client) stop(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = reason
	close(c.linked) // so that whoever waits for a connection looks
	c.ring()
}

// connection waits for a connection.
func (c *Client) connection(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, linked, end := c.link, c.linked, c.end
		c.mu.Unlock()
		switch {
		case end != nil:
			return nil, end
		case l != nil:
			return l, nil
		}
		select {
		case <-linked:
		case <-ctx.Done():
			return nil, fmt.Errorf("client: no connection: %w", ctx.Err())
		}
	}
}

// request sends a frame until it is answered, over as many connections as that takes, and returns the
// ack. taken, if not nil, is called with it before anything that comes behind it is looked at. Errors:
// a [*FrameError], that of ctx, why the client has stopped.
func (c *Client) request(ctx context.Context, r request, taken func(*link, frame)) (frame, error) {
	for failures := 0; ; failures++ {
		l, err := c.connection(ctx)
		if err != nil {
			return frame{}, err
		}
		f, err := l.ask(ctx, r, taken)
		refused, ok := errors.AsType[*FrameError](err)
		switch {
		case errors.Is(err, errLost):
			failures = -1
		case ok && refused.again():
			pause(ctx, c.between(failures))
		default:
			return f, err
		}
	}
}

// between is the pause before a frame that was refused is sent again.
func (c *Client) between(failures int) time.Duration {
	return upTo(min(c.o.MaxBackoff, c.o.MinBackoff<<min(failures, 20)))
}
