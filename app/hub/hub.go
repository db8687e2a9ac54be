// Package hub holds the WebSockets of this replica.
//
// Each socket has a stream of its own, on which it gets the events of its
// topics, from the position that the client gave. What the socket can't take
// yet stays in the store: a client that is slow costs a bounded amount of
// memory, keeps nobody waiting, and is closed when it takes nothing for a while.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

const (
	// Protocol is the subprotocol that the server speaks.
	Protocol = "tandem.v1"
	// TicketProtocol begins the subprotocol that carries a ticket.
	TicketProtocol = "ticket."
	// TicketPurpose is what tickets for the hub are issued for.
	TicketPurpose = "ws"
)

// drainGap is the longest time between two sockets that are closed on drain.
const drainGap = 20 * time.Millisecond

// The close codes.
const (
	CloseUnauthorised = 4001 // the session has ended
	CloseSlow         = 4008 // the client took nothing for too long; it may resume
	closePolicy       = melody.ClosePolicyViolation
	closeRestart      = melody.CloseServiceRestart
	closeUnsupported  = melody.CloseUnsupportedData
	closeInternal     = melody.CloseInternalServerErr
)

var (
	// ErrTicket means that the ticket is missing, unknown, used, expired or for
	// something else.
	ErrTicket = errors.New("the ticket is not valid")
	// ErrDraining means that this replica is stopping.
	ErrDraining = errors.New("this replica is stopping")
	// ErrFull means that this replica has as many sockets as it may.
	ErrFull = errors.New("this replica has as many connections as it may")
)

// HandshakeError is a request that is not a good WebSocket handshake.
type HandshakeError struct {
	Status int // of HTTP
	Reason string
}

func (e *HandshakeError) Error() string { return e.Reason }

// Options configure a [Hub]. Zero fields have the defaults named.
type Options struct {
	Node           string                   // of this replica, for people to read
	CheckOrigin    func(*http.Request) bool // nil: only requests without Origin
	FrameBytes     int64                    // of a message from a client; default 64 KiB
	Topics         int                      // per socket; default 100
	Connections    int                      // of this replica; default 20000
	QueueBytes     int                      // that wait for a socket; default 256 KiB
	SlowAfter      time.Duration            // for a client to take one message; default 10 s
	PingEvery      time.Duration            // default 25 s; silence of twice that and 10 s more ends a socket
	Recheck        time.Duration            // how often a session is looked up again; default 5 min
	DrainWindow    time.Duration            // over which sockets are closed on drain; default 5 s
	FrameRate      coord.Limit              // per socket, beyond it is closed; default 50/s, burst 200
	SendRate       coord.Limit              // of messages per socket; default 10/s, burst 30
	RequestTimeout time.Duration            // for one frame of a client; default 10 s
}

func (o *Options) complete() {
	def(o.CheckOrigin == nil, &o.CheckOrigin,
		func(r *http.Request) bool { return r.Header.Get("Origin") == "" })
	def(o.FrameBytes == 0, &o.FrameBytes, 64<<10)
	def(o.Topics == 0, &o.Topics, 100)
	def(o.Connections == 0, &o.Connections, 20_000)
	def(o.QueueBytes == 0, &o.QueueBytes, 256<<10)
	def(o.SlowAfter == 0, &o.SlowAfter, 10*time.Second)
	def(o.PingEvery == 0, &o.PingEvery, 25*time.Second)
	def(o.Recheck == 0, &o.Recheck, 5*time.Minute)
	def(o.DrainWindow == 0, &o.DrainWindow, 5*time.Second)
	def(o.FrameRate.Rate == 0, &o.FrameRate, coord.Limit{Rate: 50, Per: time.Second, Burst: 200, Cost: 1})
	def(o.SendRate.Rate == 0, &o.SendRate, coord.Limit{Rate: 10, Per: time.Second, Burst: 30, Cost: 1})
	def(o.RequestTimeout == 0, &o.RequestTimeout, 10*time.Second)
}

func def[T any](unset bool, v *T, d T) {
	if unset {
		*v = d
	}
}

// Hub is safe for concurrent use.
type Hub struct {
	o       Options
	tickets coord.Tickets
	events  coord.Broadcaster
	auth    *auth.Service
	rooms   *rooms.Service
	metrics *metrics.Metrics
	log     *slog.Logger
	melody  *melody.Melody

	mu       sync.Mutex
	conns    map[*conn]struct{}
	sessions map[int64]map[*conn]struct{} // the index by session
	draining bool
	serving  sync.WaitGroup // one per socket
}

// New returns a hub. It is ended by [Hub.Drain].
func New(
	backend coord.Backend, a *auth.Service, r *rooms.Service, m *metrics.Metrics, o Options, log *slog.Logger,
) *Hub {
	o.complete()
	h := &Hub{
		o: o, tickets: backend.Tickets(), events: backend.Broadcaster(), auth: a, rooms: r, metrics: m, log: log,
		melody:   melody.New(),
		conns:    make(map[*conn]struct{}),
		sessions: make(map[int64]map[*conn]struct{}),
	}
	h.melody.Upgrader = &websocket.Upgrader{
		ReadBufferSize: 1024, WriteBufferSize: 1024, WriteBufferPool: &sync.Pool{},
		HandshakeTimeout: 10 * time.Second,
		Subprotocols:     []string{Protocol}, // never echoes the ticket
		CheckOrigin:      o.CheckOrigin,
		Error: func(_ http.ResponseWriter, r *http.Request, status int, reason error) {
			c := r.Context().Value(connKey{}).(*conn)
			c.refused = &HandshakeError{Status: status, Reason: reason.Error()}
		},
	}
	h.melody.Config = &melody.Config{
		WriteWait:         o.SlowAfter + 5*time.Second, // so that a slow client can still be told
		PingPeriod:        o.PingEvery,
		PongWait:          2*o.PingEvery + 10*time.Second,
		MaxMessageSize:    o.FrameBytes,
		MessageBufferSize: 8, // one message and one close frame are all that is ever in it
	}
	h.melody.HandleConnect(func(s *melody.Session) { connOf(s).start(s) })
	h.melody.HandleMessage(func(s *melody.Session, b []byte) { connOf(s).receive(b) })
	h.melody.HandleMessageBinary(func(s *melody.Session, _ []byte) {
		connOf(s).close(closeUnsupported, "frames are text")
	})
	h.melody.HandleSentMessage(func(s *melody.Session, _ []byte) { connOf(s).out.sent() })
	h.melody.HandleError(func(s *melody.Session, err error) {
		log.DebugContext(s.Request.Context(), "socket ended", "connection", connOf(s).id, "error", err)
	})
	return h
}

type connKey struct{}

func connOf(s *melody.Session) *conn { return s.MustGet("conn").(*conn) }

// TicketOf returns the ticket that a handshake carries, or "".
func TicketOf(r *http.Request) string {
	for _, p := range websocket.Subprotocols(r) {
		if secret, ok := strings.CutPrefix(p, TicketProtocol); ok {
			return secret
		}
	}
	return r.URL.Query().Get("ticket")
}

// Serve redeems the ticket of a handshake, upgrades it and serves the socket
// until it ends. An error is returned only when there was no upgrade, and then
// nothing was written: ErrTicket, auth.ErrSignedOut, ErrDraining, ErrFull,
// coord.ErrUnavailable, a *HandshakeError.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request) error {
	if h.isDraining() {
		return ErrDraining // before the ticket is burnt
	}
	session, user, err := h.redeem(r)
	if err != nil {
		return err
	}
	c := h.newConn(session, user)
	if err := h.enter(c); err != nil {
		return err
	}
	defer h.leave(c)

	// The stream hears of a revocation from here on, and the session is checked
	// after that, so that none can fall in between.
	c.stream, err = h.events.Subscribe(r.Context(), map[string]coord.Position{c.own: coord.Head})
	if err != nil {
		return err
	}
	defer c.stream.Close()
	signedIn, err := h.auth.Session(r.Context(), session)
	switch {
	case err != nil:
		return err
	case signedIn.User.ID != user:
		return ErrTicket
	}
	c.user = signedIn.User

	ctx, end := context.WithCancel(context.WithoutCancel(r.Context()))
	defer c.workers.Wait()
	defer c.out.close()
	defer end()
	r = r.WithContext(context.WithValue(ctx, connKey{}, c))
	hijack := hijackWriter{ResponseWriter: w, took: c.setNet}
	err = h.melody.HandleRequestWithKeys(hijack, r, map[string]any{"conn": c})
	switch {
	case c.refused != nil:
		return c.refused
	case err != nil: // the client was gone during the handshake
		h.log.DebugContext(ctx, "socket was not opened", "error", err)
	}
	return nil
}

// redeem burns the ticket of a handshake and returns the session and the user
// it was for.
func (h *Hub) redeem(r *http.Request) (session, user int64, err error) {
	secret := TicketOf(r)
	if secret == "" {
		return 0, 0, ErrTicket
	}
	use := coord.TicketUse{Purpose: TicketPurpose, Origin: r.Header.Get("Origin")}
	ticket, err := h.tickets.Redeem(r.Context(), secret, use)
	for _, refusal := range []error{coord.ErrNotFound, coord.ErrExpired, coord.ErrConflict, coord.ErrInvalid} {
		if errors.Is(err, refusal) {
			return 0, 0, fmt.Errorf("%w: %w", ErrTicket, refusal)
		}
	}
	if err != nil {
		return 0, 0, err
	}
	session, sessionErr := strconv.ParseInt(ticket.Session, 10, 64)
	user, userErr := strconv.ParseInt(ticket.User, 10, 64)
	if sessionErr != nil || userErr != nil {
		return 0, 0, ErrTicket
	}
	return session, user, nil
}

// Ticket issues a ticket for a socket of a session, to be opened by a request
// with that Origin header.
func (h *Hub) Ticket(ctx context.Context, s store.Session, origin string) (coord.Ticket, error) {
	return h.tickets.Issue(ctx, coord.TicketFor{
		Purpose: TicketPurpose,
		User:    strconv.FormatInt(s.User.ID, 10),
		Session: strconv.FormatInt(s.ID, 10),
		Origin:  origin,
	})
}

// CloseSession closes this replica's sockets of a session that has ended.
func (h *Hub) CloseSession(id int64) {
	h.mu.Lock()
	var list []*conn
	for c := range h.sessions[id] {
		list = append(list, c)
	}
	h.mu.Unlock()
	for _, c := range list {
		c.close(CloseUnauthorised, "signed out")
	}
}

func (h *Hub) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

func (h *Hub) enter(c *conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return ErrDraining
	case len(h.conns) >= h.o.Connections:
		return ErrFull
	}
	h.serving.Add(1)
	h.conns[c] = struct{}{}
	if h.sessions[c.session] == nil {
		h.sessions[c.session] = make(map[*conn]struct{})
	}
	h.sessions[c.session][c] = struct{}{}
	h.metrics.Connections.Set(float64(len(h.conns)))
	return nil
}

func (h *Hub) leave(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	if delete(h.sessions[c.session], c); len(h.sessions[c.session]) == 0 {
		delete(h.sessions, c.session)
	}
	h.metrics.Connections.Set(float64(len(h.conns)))
	h.serving.Done()
}

// Drain accepts no further socket, tells the clients to go elsewhere, closes
// their sockets spread over the drain window, and ends the hub. When ctx is done
// before, the rest is cut off.
func (h *Hub) Drain(ctx context.Context) error {
	h.mu.Lock()
	if h.draining {
		h.mu.Unlock()
		return nil
	}
	h.draining = true
	list := make([]*conn, 0, len(h.conns))
	for c := range h.conns { // in random order
		list = append(list, c)
	}
	h.mu.Unlock()

	// A few sockets need no window: what must be bounded is reconnects per second.
	gap := min(h.o.DrainWindow/time.Duration(max(1, len(list))), drainGap)
	window := gap * time.Duration(len(list))
	goAway := encode(reconnectFrame{Type: "reconnect", JitterMS: window.Milliseconds()})
	for _, c := range list {
		c.out.push(goAway)
	}
	for _, c := range list {
		c.close(closeRestart, "restart")
		pause(ctx, gap)
	}

	gone := make(chan struct{})
	go func() {
		h.serving.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		h.mu.Lock()
		for c := range h.conns {
			c.abort()
		}
		h.mu.Unlock()
		pauseUntil(gone, time.Second)
	}
	select {
	case <-gone:
		return h.melody.Close() // nobody is in it, so it can't hang
	default:
		return errors.New("hub: sockets did not end in time")
	}
}

// pause waits, at most until ctx is done.
func pause(ctx context.Context, d time.Duration) { pauseUntil(ctx.Done(), d) }

func pauseUntil(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
