// Package hub holds the clients that are connected to this replica, by WebSockets
// and by event streams, and lets them have what is published in their topics.
//
// The replica has one stream of events. Each event is encoded once and handed to
// those who follow its topic; who does not follow it costs nothing. A client that comes
// back gets what it missed from a history that those who missed the same share. A
// client that is slow costs a bounded amount of memory, keeps nobody waiting, and is
// closed when it takes nothing for a while.
//
// A topic is read by whom it is for, and a removal is an event of the topic itself, in
// order with the others: nothing behind it reaches who was removed.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
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

const (
	drainGap   = 20 * time.Millisecond  // the longest time between two connections that are closed on drain
	drainLeast = 2 * time.Millisecond   // the least, when there is time
	watchEvery = 250 * time.Millisecond // at most, how often the hub looks at its connections
	askers     = 16                     // how many rights to read are looked up again at a time
)

// The close codes.
const (
	CloseUnauthorised = 4001 // the session has ended
	CloseSlow         = 4008 // the client took nothing for too long; it may resume
	CloseReplaced     = 4009 // another connection has taken this one's place
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
	// ErrFull means that this replica has as many connections as it may.
	ErrFull = errors.New("this replica has as many connections as it may")
	// ErrTooMany means that a person has as many connections to this replica as they may.
	ErrTooMany = errors.New("you have as many connections as one person may")
)

// HandshakeError is a request that is not a good WebSocket handshake.
type HandshakeError struct {
	Status int // of HTTP
	Reason string
}

func (e *HandshakeError) Error() string { return e.Reason }

// Sessions knows who is signed in; see [auth.Service].
type Sessions interface {
	Session(ctx context.Context, id int64) (store.Session, error)
}

// Rooms is what people do in rooms; see [rooms.Service].
type Rooms interface {
	MayRead(ctx context.Context, by store.User, rooms ...int64) error
	Post(ctx context.Context, by store.User, room int64, clientID, text string) (store.Message, bool, error)
	Typing(ctx context.Context, by store.User, room int64) error
	MarkRead(ctx context.Context, by store.User, room, message int64) error
}

// Presence knows who is connected; see [presence.Service].
type Presence interface {
	Connected(ctx context.Context, user int64, connection string) (release func(context.Context), err error)
	SetState(ctx context.Context, user int64, connection, state string) error
}

// Tools takes the answers of tool calls; see [tools.Service].
type Tools interface {
	Answer(
		ctx context.Context, user int64, connection string, call coord.CallID, result json.RawMessage, errorText string,
	) error
	ConnectionGone(ctx context.Context, user int64, connection string) error
}

// Services are what a hub needs of the rest of the application.
type Services struct {
	Sessions Sessions
	Rooms    Rooms
	Presence Presence // nil: nobody asks who is connected
	Tools    Tools    // nil: there are no tools
}

// Options configure a [Hub]. Zero fields have the defaults named.
type Options struct {
	Node           string                   // of this replica, for people to read
	CheckOrigin    func(*http.Request) bool // nil: only requests without Origin
	FrameBytes     int64                    // of a message from a client; default 64 KiB
	Topics         int                      // per connection; default 100
	Connections    int                      // of this replica; default 20000
	PerPerson      int                      // and of one person to it; default 20
	QueueBytes     int                      // that wait for a client, about; default 1 MiB
	HistoryBytes   int                      // that are kept for those who come back; default 32 MiB
	SlowAfter      time.Duration            // for a client to take one message; default 10 s
	PingEvery      time.Duration            // default 25 s; silence of twice that and 10 s more ends a socket
	Recheck        time.Duration            // how often a session is looked up again; default 5 min
	DrainWindow    time.Duration            // over which connections are closed on drain, longer for more than 2,500; default 5 s
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
	def(o.PerPerson == 0, &o.PerPerson, 20)
	def(o.QueueBytes == 0, &o.QueueBytes, 1<<20)
	def(o.HistoryBytes == 0, &o.HistoryBytes, 32<<20)
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
	o        Options
	services Services
	tickets  coord.Tickets
	index    *index
	history  *history
	messages messages
	typing   typing
	metrics  *metrics.Metrics
	log      *slog.Logger
	melody   *melody.Melody
	clock    atomic.Int64  // a recent time, in nanoseconds
	asking   chan struct{} // one slot for each right to read that is looked up again
	stopped  chan struct{}
	watching sync.WaitGroup

	mu       sync.Mutex
	list     []*subscriber
	sessions map[int64]map[*subscriber]struct{}
	people   map[int64]int // how many connections each has
	draining bool
	serving  sync.WaitGroup // one per connection
}

// New returns a hub. It is ended by [Hub.Drain].
func New(backend coord.Backend, services Services, m *metrics.Metrics, o Options, log *slog.Logger) *Hub {
	o.complete()
	events := backend.Broadcaster()
	h := &Hub{
		o: o, services: services, tickets: backend.Tickets(), metrics: m, log: log,
		melody:   melody.New(),
		history:  &history{events: events, timeout: o.RequestTimeout, most: o.HistoryBytes, metrics: m},
		asking:   make(chan struct{}, askers),
		stopped:  make(chan struct{}),
		sessions: make(map[int64]map[*subscriber]struct{}),
		people:   make(map[int64]int),
	}
	h.index = newIndex(events, h.history, m, log, o.RequestTimeout)
	h.index.personal, h.index.missed, h.index.failed = h.personal, h.missed, h.lost
	h.clock.Store(time.Now().UnixNano())
	h.watching.Go(h.watch)
	h.melody.Upgrader = &websocket.Upgrader{
		ReadBufferSize: 1024, WriteBufferSize: 4096, WriteBufferPool: &sync.Pool{},
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
		MessageBufferSize: 4, // one message and one close frame are all that is ever in it
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

func connOf(s *melody.Session) *conn { return s.Keys["conn"].(*conn) } // set before the session is known to anybody

// TicketOf returns the ticket that a handshake carries, or "".
func TicketOf(r *http.Request) string {
	for _, p := range websocket.Subprotocols(r) {
		if secret, ok := strings.CutPrefix(p, TicketProtocol); ok {
			return secret
		}
	}
	return r.URL.Query().Get("ticket")
}

// Serve redeems the ticket of a handshake and upgrades it. The socket lives on when
// it has returned, until it ends or the hub is drained. An error is returned only when
// there was no upgrade, and then nothing was written: ErrTicket, auth.ErrSignedOut,
// ErrDraining, ErrFull, ErrTooMany, coord.ErrUnavailable, a *HandshakeError.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request) error {
	if h.isDraining() {
		return ErrDraining // before the ticket is burnt
	}
	session, user, err := h.redeem(r)
	if err != nil {
		return err
	}
	c := h.newConn(session, user)
	if err := h.enter(&c.subscriber); err != nil {
		return err
	}
	own, err := c.settle(r.Context())
	if err != nil {
		h.leave(&c.subscriber)
		return err
	}
	release := func(context.Context) {}
	// A program that may only listen is nobody who is there.
	if h.services.Presence != nil && c.may(auth.Chat) == nil {
		if release, err = h.services.Presence.Connected(r.Context(), c.user.ID, c.id); err != nil {
			c.unsettle(own)
			h.leave(&c.subscriber)
			return err
		}
	}
	// In a goroutine of its own, so that what the server keeps of a request, its
	// buffers above all, is not kept as long as the socket lives.
	ended := make(chan struct{})
	go h.serveConn(c, own, release, ended, w, r)
	select {
	case <-c.started:
	case <-ended: // there was no upgrade
		if c.refused != nil {
			return c.refused
		}
	}
	return nil
}

// serveConn serves a socket until it has ended, and all that worked for it. It closes
// ended in the end.
func (h *Hub) serveConn(
	c *conn, own *topic, release func(context.Context), ended chan<- struct{}, w http.ResponseWriter, r *http.Request,
) {
	defer close(ended)
	defer h.leave(&c.subscriber)
	ctx, end := context.WithCancel(context.WithValue(context.WithoutCancel(r.Context()), connKey{}, c))
	h.upgrade(ctx, c, w, r)
	end()
	c.out.close()
	c.leaveAll()
	c.unsettle(own)
	h.gone(ctx, c, release)
}

// upgrade makes a WebSocket of a request and reads it until it ends.
func (h *Hub) upgrade(ctx context.Context, c *conn, w http.ResponseWriter, r *http.Request) {
	defer c.guard()
	hijack := hijackWriter{ResponseWriter: w, took: c.setNet}
	err := h.melody.HandleRequestWithKeys(hijack, r.WithContext(ctx), map[string]any{"conn": c})
	if err != nil && c.refused == nil { // the client was gone during the handshake
		h.log.DebugContext(ctx, "socket was not opened", "error", err)
	}
}

// gone tells others that a connection has ended.
func (h *Hub) gone(ctx context.Context, c *conn, release func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.o.RequestTimeout)
	defer cancel()
	release(ctx)
	if c.called.Load() && h.services.Tools != nil {
		if err := h.services.Tools.ConnectionGone(ctx, c.user.ID, c.id); err != nil {
			h.log.WarnContext(ctx, "the calls of a connection that is gone were not ended", "user_id", c.user.ID, "error", err)
		}
	}
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

// CloseSession closes this replica's connections of a session that has ended.
func (h *Hub) CloseSession(id int64) {
	h.mu.Lock()
	list := slices.Collect(maps.Keys(h.sessions[id]))
	h.mu.Unlock()
	for _, s := range list {
		s.close(CloseUnauthorised, "signed out")
	}
}

// CloseReplaced closes a connection, if it is one of this replica, whose place
// another one has taken.
func (h *Hub) CloseReplaced(connection string) {
	h.mu.Lock()
	i := slices.IndexFunc(h.list, func(s *subscriber) bool { return s.id == connection })
	var s *subscriber
	if i >= 0 {
		s = h.list[i]
	}
	h.mu.Unlock()
	if s != nil {
		s.close(CloseReplaced, "replaced by another connection")
	}
}

// hidden reports whether a kind of event of a person's own topic is for the hub
// alone.
func hidden(kind string) bool {
	return kind == auth.KindRevoked || kind == auth.KindChanged || kind == tools.KindCall || kind == tools.KindCancel
}

// personal acts on a hidden event of a person's own topic.
func (h *Hub) personal(home []*subscriber, e coord.Event) {
	if e.Kind == auth.KindChanged { // to come back as who they are by now
		h.missed(home)
		return
	}
	if e.Kind == auth.KindRevoked {
		var r auth.Revoked
		if json.Unmarshal(e.Payload, &r) != nil {
			return
		}
		for _, s := range home {
			if s.session == r.Session {
				s.close(CloseUnauthorised, "signed out")
			}
		}
		return
	}
	envelope, ok := tools.ParseEvent(e)
	if !ok {
		return
	}
	for _, s := range home {
		if s.id != envelope.Connection {
			continue
		}
		if text, err := envelope.Frame(); err == nil {
			s.called.Store(true)
			if !s.out.press(&frame{kind: envelope.Kind, json: text}) {
				s.close(CloseSlow, "slow")
			}
		}
	}
}

// missed is told of connections that may have missed what concerns their person: the
// end of their session, or a tool call. A new connection asks.
func (h *Hub) missed(home []*subscriber) {
	for _, s := range home {
		s.close(closeRestart, "restart")
	}
}

// lost is told that no event will come any more.
func (h *Hub) lost() {
	for _, s := range h.all() {
		s.close(closeRestart, "restart")
	}
}

// forClients checks that topics are for clients at all, and for that one.
func (h *Hub) forClients(user store.User, topics ...string) error {
	for _, topic := range topics {
		if _, ok := rooms.ParseTopic(topic); ok {
			continue
		}
		id, personal := parseUserTopic(topic)
		shared := topic == rooms.ListTopic || topic == tasks.Topic || topic == presence.Topic || tasks.IsRunsTopic(topic)
		switch {
		case personal && id == user.ID:
		case shared && user.Role != store.Guest:
		default:
			return refusal{codeForbidden, fmt.Sprintf("%q is not for you", topic)}
		}
	}
	return nil
}

// mayRead checks that a user may read those topics that are rooms. Errors:
// coord.ErrNotFound.
func (h *Hub) mayRead(ctx context.Context, user store.User, topics ...string) error {
	var ids []int64
	for _, topic := range topics {
		if id, ok := rooms.ParseTopic(topic); ok {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return h.services.Rooms.MayRead(ctx, user, ids...)
}

func (h *Hub) setPresence(ctx context.Context, s *subscriber, state string) error {
	switch {
	case state != presence.Online && state != presence.Away:
		return refusal{codeInvalid, fmt.Sprintf("state: must be %q or %q", presence.Online, presence.Away)}
	case h.services.Presence == nil:
		return nil
	}
	return h.services.Presence.SetState(ctx, s.user.ID, s.id, state)
}

func (h *Hub) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

func (h *Hub) all() []*subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

func (h *Hub) enter(s *subscriber) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return ErrDraining
	case len(h.list) >= h.o.Connections:
		return ErrFull
	case h.people[s.user.ID] >= h.o.PerPerson:
		return ErrTooMany
	}
	h.people[s.user.ID]++
	h.serving.Add(1)
	s.order = len(h.list)
	h.list = append(h.list, s)
	if h.sessions[s.session] == nil {
		h.sessions[s.session] = make(map[*subscriber]struct{})
	}
	h.sessions[s.session][s] = struct{}{}
	h.metrics.Connections.Set(float64(len(h.list)))
	return nil
}

func (h *Hub) leave(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.list) - 1
	h.list[s.order] = h.list[last]
	h.list[s.order].order = s.order
	h.list[last] = nil
	h.list = h.list[:last]
	if delete(h.sessions[s.session], s); len(h.sessions[s.session]) == 0 {
		delete(h.sessions, s.session)
	}
	if h.people[s.user.ID]--; h.people[s.user.ID] == 0 {
		delete(h.people, s.user.ID)
	}
	h.metrics.Connections.Set(float64(len(h.list)))
	h.serving.Done()
}

// watch closes clients that are slow, and looks sessions up again, each once in
// Recheck, until the hub has stopped.
func (h *Hub) watch() {
	tick := time.NewTicker(max(min(watchEvery, h.o.SlowAfter/8, h.o.Recheck/2), time.Millisecond))
	defer tick.Stop()
	var rechecks sync.WaitGroup
	defer rechecks.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	busy := make(chan struct{}, 1)
	for {
		select {
		case <-h.stopped:
			return
		case now := <-tick.C:
			h.clock.Store(now.UnixNano())
			slow, due := h.look(now, len(busy) == 0)
			for _, s := range slow {
				s.close(CloseSlow, "slow")
			}
			if len(due) > 0 {
				busy <- struct{}{}
				rechecks.Go(func() {
					h.recheck(ctx, due)
					<-busy
				})
			}
		}
	}
}

// look returns the connections whose client is slow, and those whose session is to be
// looked up again.
func (h *Hub) look(now time.Time, recheck bool) (slow, due []*subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.list {
		if s.out.slow(now.UnixNano(), h.o.SlowAfter) {
			slow = append(slow, s)
		}
		if recheck && !s.recheck.IsZero() && s.recheck.Before(now) {
			h.schedule(s, now)
			due = append(due, s)
		}
	}
	return slow, due
}

// schedule says when a session is looked up again. The hub is locked.
func (h *Hub) schedule(s *subscriber, now time.Time) {
	s.recheck = now.Add(h.o.Recheck/2 + rand.N(h.o.Recheck))
}

// recheck closes connections whose session has ended, or whose user may do other
// things by now.
func (h *Hub) recheck(ctx context.Context, list []*subscriber) {
	for _, s := range list {
		ctx, cancel := context.WithTimeout(ctx, h.o.RequestTimeout)
		session, err := h.services.Sessions.Session(ctx, s.session)
		cancel()
		switch {
		case errors.Is(err, auth.ErrSignedOut):
			s.close(CloseUnauthorised, "signed out")
		case err != nil:
			return // the store is away; they have their turn again
		case session.User.Role != s.user.Role:
			s.close(closeRestart, "restart")
		}
	}
}

// Drain accepts no further connection, tells the clients to go elsewhere, closes
// their connections spread over the drain window, and ends the hub. When ctx is done
// before, the rest is cut off.
func (h *Hub) Drain(ctx context.Context) error {
	h.mu.Lock()
	if h.draining {
		h.mu.Unlock()
		return nil
	}
	h.draining = true
	list := slices.Clone(h.list)
	h.mu.Unlock()
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })

	// What must be bounded is reconnects per second: a few connections need no window, and
	// many a longer one, as long as that leaves half of the time for those who don't go.
	n := time.Duration(max(1, len(list)))
	gap := min(max(h.o.DrainWindow/n, drainLeast), drainGap)
	if deadline, ok := ctx.Deadline(); ok {
		gap = max(0, min(gap, time.Until(deadline)/(2*n)))
	}
	// Clients that may go when they like before they are closed would make a crowd in the beginning.
	for i, s := range list {
		s.out.farewell(reconnectFrame{AfterMS: (gap * time.Duration(i)).Milliseconds(), JitterMS: gap.Milliseconds()}.frame())
	}
	pause(ctx, gap*time.Duration(len(list)/10)) // for most to have gone by themselves
	for _, s := range list {
		s.close(closeRestart, "restart")
		pause(ctx, gap)
	}

	gone := make(chan struct{})
	go func() {
		h.serving.Wait()
		h.index.close()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		for _, s := range h.all() {
			s.transport.abort()
		}
		pauseUntil(gone, time.Second)
	}
	close(h.stopped)
	h.watching.Wait()
	select {
	case <-gone:
		return h.melody.Close() // nobody is in it, so it can't hang
	default:
		return errors.New("hub: connections did not end in time")
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

// How often it is told that somebody is writing in a room.
const (
	typingEvery = 3 * time.Second
	typingKept  = 10_000 // people in rooms
)

// typing remembers who was said to be writing where.
type typing struct {
	mu   sync.Mutex
	last map[typist]time.Time
}

type typist struct{ user, room int64 }

// allow reports whether it is to be told again.
func (t *typing) allow(user, room int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, who := time.Now(), typist{user, room}
	if last, ok := t.last[who]; ok && now.Sub(last) < typingEvery {
		return false
	}
	if len(t.last) >= typingKept {
		maps.DeleteFunc(t.last, func(_ typist, at time.Time) bool { return now.Sub(at) >= typingEvery })
	}
	if t.last == nil || len(t.last) >= typingKept {
		t.last = make(map[typist]time.Time)
	}
	t.last[who] = now
	return true
}
