package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/olahol/melody"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

const (
	inboxFrames = 256       // messages of a client that wait to be handled
	inboxBytes  = 512 << 10 // and their size
	maxID       = 100       // bytes of a frame's id
)

// stateRate is how often a connection may become online or away, of which everybody hears.
var stateRate = coord.Limit{Rate: 1, Per: time.Second, Burst: 10, Cost: 1}

// conn is one WebSocket.
type conn struct {
	subscriber
	refused *HandshakeError // by the upgrader
	started chan struct{}   // closed when the handshake is done

	// Of the goroutine that answers, one at a time:
	frameRate bucket
	sendRate  bucket
	stateRate bucket
	answers   answers

	mu         sync.Mutex
	socket     *melody.Session // nil before the handshake is done
	net        *lingerConn
	message    []byte // the close frame, kept for a socket whose handshake is not done
	inbox      [][]byte
	inboxBytes int
	answering  bool
}

func (h *Hub) newConn(session, user int64) *conn {
	c := &conn{
		started:   make(chan struct{}),
		frameRate: bucket{gcra: h.o.FrameRate.GCRA()},
		sendRate:  bucket{gcra: h.o.SendRate.GCRA()},
		stateRate: bucket{gcra: stateRate.GCRA()},
	}
	c.init(h, c, session, store.User{ID: user})
	return c
}

// bucket is a limit of one socket, for one goroutine at a time.
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

// start is called when the handshake is done, before anything is read or written.
func (c *conn) start(s *melody.Session) {
	// What is left of the request is kept as long as the socket lives.
	s.Request = (&http.Request{}).WithContext(s.Request.Context())
	c.mu.Lock()
	c.socket = s
	message := c.message
	c.mu.Unlock()
	close(c.started)
	if message != nil {
		_ = s.CloseWithMsg(message)
		return
	}
	c.out.open(welcomeFrame{
		Connection: c.id, Node: c.hub.o.Node, ServerTime: time.Now().UTC(),
		Limits: &limits{FrameBytes: c.hub.o.FrameBytes, Topics: c.hub.o.Topics},
	}.frame())
}

func (c *conn) context() context.Context { return c.socket.Request.Context() }

func (c *conn) write(frames []*frame) {
	_ = c.socket.Write(c.hub.messages.of(frames)) // fails when the socket has ended
}

func (c *conn) shut(code int, reason string, last *frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.message = melody.FormatCloseMessage(code, reason)
	if c.socket == nil {
		return
	}
	// Both fail when the socket has ended.
	if last != nil {
		_ = c.socket.Write(last.json)
	}
	_ = c.socket.CloseWithMsg(c.message)
}

func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		c.net.abort()
	}
}

// receive is called by the goroutine that reads the socket, which must not wait.
func (c *conn) receive(message []byte) {
	c.mu.Lock()
	c.inbox = append(c.inbox, message)
	c.inboxBytes += len(message)
	tooMany := len(c.inbox) > inboxFrames || c.inboxBytes > inboxBytes
	if !c.answering && !tooMany {
		c.answering = true
		c.workers.Go(c.answerAll)
	}
	c.mu.Unlock()
	if tooMany {
		c.close(closePolicy, "too many frames")
	}
}

// next returns the message to be handled, or nil when there is none: then the
// goroutine that answers has ended.
func (c *conn) next() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.inbox) == 0 {
		c.inbox, c.answering = nil, false
		return nil
	}
	message := c.inbox[0]
	c.inbox = c.inbox[1:]
	c.inboxBytes -= len(message)
	return message
}

// answerAll handles the client's frames one after another until none waits.
func (c *conn) answerAll() {
	defer c.guard()
	ctx := c.context()
	for message := c.next(); message != nil; message = c.next() {
		requests, err := parseRequests(message)
		if err != nil {
			if c.mayAsk() { // counts as one
				c.out.put(errorFrame{Code: codeInvalid, Message: err.Error()}.frame())
			}
			continue
		}
		for _, r := range requests {
			if !c.mayAsk() { // also in the middle of an array
				break
			}
			c.answer(ctx, r)
		}
	}
}

// mayAsk counts a frame. It waits until the client takes its answers.
func (c *conn) mayAsk() bool {
	switch {
	case !c.out.waitForRoom():
		return false
	case !c.frameRate.allow():
		c.close(closePolicy, "too many frames")
		return false
	}
	return true
}

// frameRights say what each frame takes, beside what rooms decide.
var frameRights = map[string]auth.Right{
	"subscribe": auth.Read, "unsubscribe": auth.Read, "send": auth.Chat, "typing": auth.Chat, "read": auth.Chat,
	"presence": auth.Chat, "tool.result": auth.Chat,
}

// answer handles one frame, and does not handle it twice.
func (c *conn) answer(socketCtx context.Context, r request) {
	if r.Type == "ping" && len(r.ID) <= maxID {
		c.hub.metrics.Frames.WithLabelValues(r.Type).Inc()
		c.out.put(pongFrame{ID: r.ID}.frame())
		return
	}
	if known := c.answers.of(r.ID); known != nil {
		c.out.put(known)
		return
	}
	ctx, cancel := context.WithTimeout(socketCtx, c.hub.o.RequestTimeout)
	defer cancel()
	kind, err := r.Type, error(nil)
	right, known := frameRights[r.Type]
	ack := ackFrame{ID: r.ID}
	answered := func(f *frame) *frame {
		c.answers.keep(r.ID, f)
		return f
	}
	switch {
	case len(r.ID) > maxID:
		kind, r.ID = "invalid", ""
		err = refusal{codeInvalid, fmt.Sprintf("id: may have at most %d bytes", maxID)}
	case r.ID == "":
		kind, err = "invalid", refusal{codeInvalid, "id: must not be empty"}
	case !known:
		kind, err = "invalid", refusal{codeInvalid, "type: is not known"}
	case c.may(right) != nil:
		err = refusal{codeForbidden, c.may(right).Error()}
	case r.Type == "subscribe":
		var from map[string]coord.Position
		if from, err = c.parseSubscribe(r.Topics); err == nil {
			err = c.subscribe(ctx, from, func(positions map[string]coord.Position) *frame {
				return answered(ackFrame{ID: r.ID, Positions: positions}.frame())
			})
		}
		if err == nil {
			c.hub.metrics.Frames.WithLabelValues(kind).Inc()
			return
		}
	case r.Type == "unsubscribe":
		err = c.answerUnsubscribe(r.Topics)
	case r.Type == "send":
		ack.Message, err = c.send(ctx, r)
	case r.Type == "typing":
		if c.hub.typing.allow(c.user.ID, r.Room) { // otherwise everybody knows
			err = c.hub.services.Rooms.Typing(ctx, c.user, r.Room)
		}
	case r.Type == "read":
		err = c.hub.services.Rooms.MarkRead(ctx, c.user, r.Room, r.MessageID)
	case r.Type == "presence":
		err = c.setState(ctx, r.State)
	case r.Type == "tool.result":
		err = c.toolResult(ctx, r)
	}
	c.hub.metrics.Frames.WithLabelValues(kind).Inc()
	switch {
	case socketCtx.Err() != nil:
	case err == nil:
		c.out.put(answered(ack.frame()))
	default:
		f := c.errorFrame(ctx, r.ID, err)
		if f.Code == codeLimited || f.Code == codeUnavailable { // to be tried again
			c.out.put(f.frame())
			return
		}
		c.out.put(answered(f.frame()))
	}
}

func (c *conn) errorFrame(ctx context.Context, id string, err error) errorFrame {
	f := errorFrame{ID: id, Message: err.Error()}
	if r, ok := errors.AsType[refusal](err); ok {
		f.Code = r.code
		return f
	}
	invalid, isInvalid := errors.AsType[*coord.InvalidError](err)
	if reason, ok := errors.AsType[*store.ReasonError](err); ok {
		f.Message = reason.Reason
		if reason.Field != "" {
			f.Message = reason.Field + ": " + reason.Reason
		}
	}
	switch {
	case isInvalid:
		f.Code, f.Message = codeInvalid, invalid.Field+": "+invalid.Reason
	case errors.Is(err, coord.ErrInvalid):
		f.Code = codeInvalid
	case errors.Is(err, coord.ErrConflict), errors.Is(err, coord.ErrExpired):
		f.Code = codeConflict
	case errors.Is(err, coord.ErrNotFound):
		f.Code = codeNotFound
	case errors.Is(err, rooms.ErrForbidden):
		f.Code = codeForbidden
	case errors.Is(err, coord.ErrUnavailable), errors.Is(err, coord.ErrBackpressure), errors.Is(err, coord.ErrClosed),
		errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Message = codeUnavailable, "the server can't do this at the moment, try again"
	default:
		c.hub.log.ErrorContext(ctx, "a frame failed", "user_id", c.user.ID, "error", err)
		f.Code, f.Message = codeUnavailable, "something went wrong, try again"
	}
	return f
}

func (c *conn) parseSubscribe(topics json.RawMessage) (map[string]coord.Position, error) {
	var asked map[string]string
	if err := json.Unmarshal(topics, &asked); err != nil {
		return nil, refusal{codeInvalid, `topics: must be an object such as {"room:1":"head"}`}
	}
	if len(asked) > c.hub.o.Topics { // before the store is asked about them
		return nil, c.hub.tooManyTopics()
	}
	from := make(map[string]coord.Position, len(asked))
	for topic, at := range asked {
		position, err := coord.ParsePosition(at)
		if invalid, ok := errors.AsType[*coord.InvalidError](err); ok {
			return nil, refusal{codeInvalid, "topics: " + invalid.Reason}
		}
		from[topic] = position
	}
	return from, nil
}

func (c *conn) answerUnsubscribe(topics json.RawMessage) error {
	var names []string
	if err := json.Unmarshal(topics, &names); err != nil {
		return refusal{codeInvalid, `topics: must be an array such as ["room:1"]`}
	}
	c.unsubscribe(names...)
	return nil
}

func (c *conn) send(ctx context.Context, r request) (*store.Message, error) {
	if !c.sendRate.allow() {
		return nil, refusal{codeLimited, "too many messages, try again in a moment"}
	}
	m, _, err := c.hub.services.Rooms.Post(ctx, c.user, r.Room, r.ClientID, r.Text)
	return &m, err
}

func (c *conn) setState(ctx context.Context, state string) error {
	if !c.stateRate.allow() {
		return refusal{codeLimited, "too many changes, try again in a moment"}
	}
	return c.hub.setPresence(ctx, &c.subscriber, state)
}

func (c *conn) toolResult(ctx context.Context, r request) error {
	switch {
	case c.hub.services.Tools == nil:
		return refusal{codeNotFound, "there is no such call"}
	case (r.Error == "") == (r.Result == nil):
		return refusal{codeInvalid, "result: there must be either it or an error"}
	}
	return c.hub.services.Tools.Answer(ctx, c.user.ID, c.id, r.Call, r.Result, r.Error)
}

const (
	keptAnswers     = 256
	keptAnswerBytes = 64 << 10
)

// answers are what the last frames of a client were answered with, by their ids.
type answers struct {
	frames map[string]*frame
	ids    []string // the oldest first
	bytes  int
}

func (a *answers) of(id string) *frame { return a.frames[id] }

func (a *answers) keep(id string, f *frame) {
	if id == "" {
		return
	}
	if a.frames == nil {
		a.frames = make(map[string]*frame)
	}
	a.frames[id] = f
	a.ids = append(a.ids, id)
	a.bytes += f.cost() + len(id)
	for len(a.ids) > keptAnswers || a.bytes > keptAnswerBytes && len(a.ids) > 1 {
		oldest := a.ids[0]
		a.bytes -= a.frames[oldest].cost() + len(oldest)
		delete(a.frames, oldest)
		a.ids = a.ids[1:]
	}
}
