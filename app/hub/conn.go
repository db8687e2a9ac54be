package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/olahol/melody"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

const (
	inboxFrames = 256       // messages of a client that wait to be handled
	inboxBytes  = 512 << 10 // and their size
	maxID       = 100       // bytes of a frame's id
)

// conn is one socket.
type conn struct {
	hub     *Hub
	id      string
	session int64
	own     string // the topic of its user
	user    store.User
	stream  coord.Stream
	out     *outbox
	workers sync.WaitGroup
	refused *HandshakeError // by the upgrader

	inbox      chan []byte
	inboxBytes atomic.Int64
	frameRate  bucket
	sendRate   bucket

	order  sync.Mutex // an answer to subscribe is put out before the events that it lets in
	topics map[string]coord.Position

	mu      sync.Mutex
	socket  *melody.Session
	net     *lingerConn
	closing bool
	message []byte // the close frame, kept for a socket that has not started
}

func (h *Hub) newConn(session, user int64) *conn {
	c := &conn{
		hub: h, id: uuid.NewString(), session: session, own: auth.UserTopic(user),
		inbox:     make(chan []byte, inboxFrames),
		topics:    make(map[string]coord.Position),
		frameRate: bucket{gcra: h.o.FrameRate.GCRA()},
		sendRate:  bucket{gcra: h.o.SendRate.GCRA()},
	}
	c.out = newOutbox(h.o.QueueBytes, h.o.SlowAfter,
		func(message []byte) { _ = c.socket.Write(message) }, // fails when the socket has ended
		func() { c.close(CloseSlow, "slow") })
	return c
}

// bucket is a limit of one socket, for one goroutine.
type bucket struct {
	gcra coord.GCRA
	tat  int64
}

func (b *bucket) allow() bool {
	d, tat := b.gcra.Decide(b.tat, time.Now().UnixMicro())
	b.tat = tat
	return d.Allowed
}

func (c *conn) setNet(n *lingerConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.net = n
}

func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		c.net.abort()
	}
}

// start is called when the upgrade is done, before anything is read or written.
func (c *conn) start(s *melody.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket = s
	if c.closing {
		_ = s.CloseWithMsg(c.message)
		return
	}
	c.out.open(encode(welcomeFrame{
		Type: "welcome", Connection: c.id, Node: c.hub.o.Node, ServerTime: time.Now().UTC(),
		Limits: limits{FrameBytes: c.hub.o.FrameBytes, Topics: c.hub.o.Topics},
	}))
	ctx := s.Request.Context() // ends with the socket
	c.workers.Go(func() { c.guard(ctx, c.deliverAll) })
	c.workers.Go(func() { c.guard(ctx, c.answerAll) })
}

// guard lets a panic end this socket and not the others.
func (c *conn) guard(ctx context.Context, work func(context.Context)) {
	defer func() {
		if reason := recover(); reason != nil {
			c.hub.log.ErrorContext(ctx, "a socket panicked", "user_id", c.user.ID, "reason", reason,
				"stack", string(debug.Stack()))
			c.close(closeInternal, "internal error")
		}
	}()
	work(ctx)
}

// close sends a close frame behind the message that is being written, drops what
// waits, and handles nothing more. The first code counts.
func (c *conn) close(code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return
	}
	c.closing = true
	c.message = melody.FormatCloseMessage(code, reason)
	unsent := c.out.close()
	c.hub.metrics.Closes.WithLabelValues(strconv.Itoa(code)).Inc()
	if c.socket != nil { // both fail when the socket has ended
		if unsent != nil {
			_ = c.socket.Write(unsent)
		}
		_ = c.socket.CloseWithMsg(c.message)
	}
}

func (c *conn) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// deliverAll hands the stream's events to the socket until it ends.
func (c *conn) deliverAll(ctx context.Context) {
	wait := time.Duration(0)
	for {
		events, err := c.stream.Next(ctx)
		if reset, ok := errors.AsType[*coord.ResetError](err); ok {
			wait = 0
			if !c.reset(reset.Topic, reset.Reason, reset.Head) {
				return
			}
			continue
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, coord.ErrUnavailable):
			// Nothing is lost by it; go on when the store is back.
			wait = min(2*wait+100*time.Millisecond, 5*time.Second)
			pause(ctx, wait/2+rand.N(wait))
			continue
		case err != nil: // the backend is closed
			c.close(closeRestart, "restart")
			return
		}
		wait = 0
		if !c.deliver(ctx, events) {
			return
		}
	}
}

func (c *conn) deliver(ctx context.Context, events []coord.Event) bool {
	c.order.Lock()
	defer c.order.Unlock()
	for _, e := range events {
		if e.Topic == c.own {
			if c.revokedBy(e) {
				c.close(CloseUnauthorised, "signed out")
				return false
			}
			continue
		}
		last, subscribed := c.topics[e.Topic]
		if !subscribed || e.Position.Seq <= last.Seq {
			continue // of a subscription that has ended since
		}
		c.topics[e.Topic] = e.Position
		if e.Position.Seq != last.Seq+1 {
			// Never a silent hole, whatever made it.
			c.hub.log.WarnContext(ctx, "events are missing", "topic", e.Topic, "from", last, "to", e.Position)
			if !c.putReset(e.Topic, coord.ResetDiverged, e.Position) {
				return false
			}
			continue
		}
		if !c.out.put(encodeEvent(e)) {
			return false
		}
		c.hub.metrics.Events.Inc()
	}
	return true
}

// revokedBy reports whether an event of the user's own topic ends this session.
func (c *conn) revokedBy(e coord.Event) bool {
	var r auth.Revoked
	return e.Kind == auth.KindRevoked && json.Unmarshal(e.Payload, &r) == nil && r.Session == c.session
}

func (c *conn) reset(topic, reason string, head coord.Position) bool {
	c.order.Lock()
	defer c.order.Unlock()
	if topic == c.own {
		// What was missed may have been the end of the session; a new socket asks.
		c.close(closeRestart, "restart")
		return false
	}
	if _, subscribed := c.topics[topic]; !subscribed {
		return true
	}
	c.topics[topic] = head
	return c.putReset(topic, reason, head)
}

func (c *conn) putReset(topic, reason string, head coord.Position) bool {
	c.hub.metrics.Resets.Inc()
	return c.out.put(encode(resetFrame{Type: "reset", Topic: topic, Reason: reason, Position: head}))
}

// receive is called by the goroutine that reads the socket, which must not wait.
func (c *conn) receive(message []byte) {
	if c.inboxBytes.Add(int64(len(message))) <= inboxBytes {
		select {
		case c.inbox <- message:
			return
		default:
		}
	}
	c.close(closePolicy, "too many frames")
}

// answerAll handles the client's frames one after another until the socket ends.
func (c *conn) answerAll(ctx context.Context) {
	recheck := time.NewTicker(c.hub.o.Recheck)
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-recheck.C:
			if _, err := c.hub.auth.Session(ctx, c.session); errors.Is(err, auth.ErrSignedOut) {
				c.close(CloseUnauthorised, "signed out")
			}
		case message := <-c.inbox:
			c.inboxBytes.Add(-int64(len(message)))
			requests, err := parseRequests(message)
			if err != nil {
				if !c.frameRate.allow() { // counts as one
					c.close(closePolicy, "too many frames")
					continue
				}
				c.out.put(encode(errorFrame{Type: "error", Code: codeInvalid, Message: err.Error()}))
				continue
			}
			for _, r := range requests {
				if c.isClosing() { // also in the middle of an array
					break
				}
				if !c.frameRate.allow() {
					c.close(closePolicy, "too many frames")
					break
				}
				c.answer(ctx, r)
			}
		}
	}
}

// refusal is an error with the code that the client is told.
type refusal struct{ code, message string }

func (r refusal) Error() string { return r.message }

func (c *conn) answer(socketCtx context.Context, r request) {
	ctx, cancel := context.WithTimeout(socketCtx, c.hub.o.RequestTimeout)
	defer cancel()
	kind, err := r.Type, error(nil)
	switch {
	case len(r.ID) > maxID:
		kind, r.ID, err = "invalid", "", refusal{codeInvalid, fmt.Sprintf("id: may have at most %d bytes", maxID)}
	case r.Type == "ping":
		c.out.put(encode(pongFrame{Type: "pong", ID: r.ID}))
	case r.ID == "":
		kind, err = "invalid", refusal{codeInvalid, "id: must not be empty"}
	case r.Type == "subscribe":
		err = c.subscribe(ctx, r)
	case r.Type == "unsubscribe":
		err = c.unsubscribe(r)
	case r.Type == "send":
		err = c.send(ctx, r)
	default:
		kind, err = "invalid", refusal{codeInvalid, "type: is not known"}
	}
	c.hub.metrics.Frames.WithLabelValues(kind).Inc()
	if err != nil && socketCtx.Err() == nil {
		c.out.put(encode(c.errorFrame(ctx, r.ID, err)))
	}
}

func (c *conn) errorFrame(ctx context.Context, id string, err error) errorFrame {
	f := errorFrame{Type: "error", ID: id, Message: err.Error()}
	if r, ok := errors.AsType[refusal](err); ok {
		f.Code = r.code
		return f
	}
	invalid, isInvalid := errors.AsType[*coord.InvalidError](err)
	if reason, ok := errors.AsType[*store.ReasonError](err); ok && reason.Field != "" {
		f.Message = reason.Field + ": " + reason.Reason
	}
	switch {
	case isInvalid:
		f.Code, f.Message = codeInvalid, invalid.Field+": "+invalid.Reason
	case errors.Is(err, coord.ErrInvalid), errors.Is(err, coord.ErrConflict):
		f.Code = codeInvalid
	case errors.Is(err, coord.ErrNotFound):
		f.Code = codeNotFound
	case errors.Is(err, coord.ErrUnavailable), errors.Is(err, coord.ErrBackpressure),
		errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Message = codeUnavailable, "the server can't do this at the moment, try again"
	default:
		c.hub.log.ErrorContext(ctx, "a frame failed", "user_id", c.user.ID, "error", err)
		f.Code, f.Message = codeUnavailable, "something went wrong, try again"
	}
	return f
}

// subscribe adds topics. Those that are subscribed already keep their place.
func (c *conn) subscribe(ctx context.Context, r request) error {
	var asked map[string]string
	if err := json.Unmarshal(r.Topics, &asked); err != nil {
		return refusal{codeInvalid, `topics: must be an object such as {"room:1":"head"}`}
	}
	tooMany := refusal{codeLimited, fmt.Sprintf("topics: a connection may have %d", c.hub.o.Topics)}
	if len(asked) > c.hub.o.Topics { // before the store is asked about them
		return tooMany
	}
	from := make(map[string]coord.Position, len(asked))
	for topic, at := range asked {
		position, err := coord.ParsePosition(at)
		if invalid, ok := errors.AsType[*coord.InvalidError](err); ok {
			return refusal{codeInvalid, "topics: " + invalid.Reason}
		}
		from[topic] = position
	}
	if err := c.mayRead(ctx, from); err != nil {
		return err
	}

	c.order.Lock()
	defer c.order.Unlock()
	answer := make(map[string]coord.Position, len(from))
	var heads []string
	for topic, position := range from {
		if now, subscribed := c.topics[topic]; subscribed {
			answer[topic] = now
			delete(from, topic)
		} else if position == coord.Head {
			heads = append(heads, topic)
		}
	}
	if len(c.topics)+len(from) > c.hub.o.Topics {
		return tooMany
	}
	// The client is told a position that it can resume from even if it loses the
	// connection before the first event.
	if len(heads) > 0 {
		now, err := c.hub.events.Heads(ctx, heads...)
		if err != nil {
			return err
		}
		for _, topic := range heads {
			from[topic] = now[topic]
		}
	}
	if len(from) > 0 {
		if err := c.stream.Add(ctx, from); err != nil {
			return err
		}
	}
	for topic, position := range from {
		c.topics[topic], answer[topic] = position, position
	}
	c.out.put(encode(ackFrame{Type: "ack", ID: r.ID, Positions: answer}))
	return nil
}

// mayRead checks that this user may subscribe to all of the topics.
func (c *conn) mayRead(ctx context.Context, topics map[string]coord.Position) error {
	var ids []int64
	for topic := range topics {
		if topic == rooms.ListTopic || topic == tasks.Topic || tasks.IsRunsTopic(topic) {
			continue
		}
		id, ok := rooms.ParseTopic(topic)
		if !ok {
			return refusal{codeForbidden, fmt.Sprintf("topics: %q is not for clients", topic)}
		}
		ids = append(ids, id)
	}
	return c.hub.rooms.MustExist(ctx, ids...)
}

func (c *conn) unsubscribe(r request) error {
	var names []string
	if err := json.Unmarshal(r.Topics, &names); err != nil {
		return refusal{codeInvalid, `topics: must be an array such as ["room:1"]`}
	}
	c.order.Lock()
	defer c.order.Unlock()
	for _, topic := range names {
		if _, subscribed := c.topics[topic]; subscribed {
			delete(c.topics, topic)
			c.stream.Remove(topic)
		}
	}
	c.out.put(encode(ackFrame{Type: "ack", ID: r.ID}))
	return nil
}

func (c *conn) send(ctx context.Context, r request) error {
	if !c.sendRate.allow() {
		return refusal{codeLimited, "too many messages, try again in a moment"}
	}
	m, _, err := c.hub.rooms.Post(ctx, c.user, r.Room, r.ClientID, r.Text)
	if err != nil {
		return err
	}
	c.out.put(encode(ackFrame{Type: "ack", ID: r.ID, Message: &m}))
	return nil
}
