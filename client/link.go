package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/coord"
)

// errMoved: the server has sent the client away, and the client has gone.
var errMoved = errors.New("client: the server is about to stop")

// link is one connection.
type link struct {
	client     *Client
	endpoint   string
	ws         *websocket.Conn
	id, node   string
	frameBytes int           // that a message may have; 0: the server did not say
	topics     int           // that the connection may follow; 0: the server did not say
	ahead      time.Duration // of the server's clock before ours
	ended      chan struct{}
	release    func() bool // from the client's context

	writing sync.Mutex
	events  eventParser

	// Guarded by the client's lock.
	lastID   int
	answers  map[string]func(frame)
	calls    map[string]context.CancelCauseFunc // of tools
	moved    *time.Timer                        // ends the connection when the server has asked for that
	unlocked []func()                           // when the lock is free again
}

// connect opens a connection and reads its welcome.
func (c *Client) connect(lifetime context.Context, endpoint string) (*link, error) {
	ctx, cancel := context.WithTimeout(lifetime, connectTimeout)
	defer cancel()
	ticket, err := c.ticket(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	d, release := c.dialer, func() bool { return true }
	d.Subprotocols = []string{protocol, ticketProtocol + ticket}
	d.NetDialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := c.dialer.NetDialContext(ctx, network, address)
		if err == nil { // the handshake and reading know no context
			release = context.AfterFunc(lifetime, func() { _ = conn.Close() })
		}
		return conn, err
	}
	//nolint:bodyclose // of a handshake nothing is left to be closed
	ws, response, err := d.DialContext(ctx, "ws"+strings.TrimPrefix(endpoint, "http")+"/ws", nil)
	if response != nil && err != nil {
		err = fmt.Errorf("client: the handshake: %w", statusError(response, nil))
	}
	if err != nil {
		release()
		return nil, err
	}
	l := &link{
		client: c, endpoint: endpoint, ws: ws, release: release, ended: make(chan struct{}),
		answers: make(map[string]func(frame)), calls: make(map[string]context.CancelCauseFunc),
	}
	ws.SetReadLimit(maxMessage)
	deadline, _ := ctx.Deadline()
	_ = ws.SetReadDeadline(deadline)
	_, message, err := ws.ReadMessage()
	if err == nil {
		err = l.welcome(message)
	}
	if err != nil {
		l.end()
		return nil, meaning(err)
	}
	return l, nil
}

func (l *link) welcome(message []byte) error {
	list, err := parseFrames(message)
	switch {
	case err != nil:
		return fmt.Errorf("client: the welcome: %w", err)
	case len(list) == 0 || list[0].Type != "welcome":
		return errors.New("client: the first frame is not a welcome")
	}
	w := list[0]
	l.id, l.node, l.frameBytes, l.topics = w.Connection, w.Node, w.Limits.FrameBytes, w.Limits.Topics
	if !w.ServerTime.IsZero() {
		l.ahead = time.Until(w.ServerTime)
	}
	l.handle(list[1:]) // what came in the same message
	return nil
}

// serve makes the connection the client's, resumes, and takes in what the server sends until it ends.
func (c *Client) serve(l *link) error {
	l.hear()
	l.ws.SetPingHandler(func(data string) error {
		l.hear()
		// An error shows when the next message is read.
		_ = l.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(writeTimeout))
		return nil
	})
	c.mu.Lock()
	c.link = l
	close(c.linked)
	state := c.state
	c.mu.Unlock()
	l.tell(state)
	l.resume()

	err := l.read()
	l.end()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.link, c.linked = nil, make(chan struct{})
	for _, t := range c.topics {
		if t.stage != left { // until Next has returned what waits
			t.stage = idle
		}
	}
	for _, cancel := range l.calls {
		cancel(errLost)
	}
	clear(l.answers)
	close(l.ended)
	if l.moved != nil && (!l.moved.Stop() || websocket.IsCloseError(err, closeRestart)) {
		return errMoved
	}
	return meaning(err)
}

// tell tells the connection of a state that was set before, if one was, or of the one that is by the time that the
// server takes it.
func (l *link) tell(state State) {
	if state == "" {
		return
	}
	// Fails with the connection.
	_ = l.post(request{Type: "presence", State: state}, func(answer frame) {
		if answer.Type == "error" && answer.refusal().again() {
			l.later(time.Second+upTo(4*time.Second), func() {
				l.client.mu.Lock()
				state := l.client.state
				l.client.mu.Unlock()
				l.tell(state)
			})
		}
	})
}

// end closes the connection.
func (l *link) end() {
	_ = l.ws.Close()
	l.release()
}

func (l *link) read() error {
	for {
		kind, message, err := l.ws.ReadMessage()
		if err != nil {
			return err
		}
		l.hear()
		if kind != websocket.TextMessage {
			return errors.New("client: a message that is not text")
		}
		if err := l.receive(message); err != nil {
			return fmt.Errorf("client: a message that can't be read: %w", err)
		}
	}
}

func (l *link) receive(message []byte) error {
	if events, ok := l.events.parse(message); ok {
		l.take(func() {
			for _, e := range events {
				l.event(e)
			}
		})
		return nil
	}
	list, err := parseFrames(message)
	if err == nil {
		l.handle(list)
	}
	return err
}

// take takes in what the server sends, and does what comes of that when the lock is free again.
func (l *link) take(in func()) {
	l.client.mu.Lock()
	in()
	unlocked := l.unlocked
	l.unlocked = nil
	l.client.mu.Unlock()
	for _, do := range unlocked {
		do()
	}
}

// hear notes that the server lives.
func (l *link) hear() { _ = l.ws.SetReadDeadline(time.Now().Add(l.client.o.Silence)) }

// meaning is the error that the end of a connection is.
func meaning(err error) error {
	switch {
	case websocket.IsCloseError(err, closeSignedOut):
		return fmt.Errorf("%w: %w", ErrSignedOut, err)
	case websocket.IsCloseError(err, closeReplaced):
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	return err
}

func (l *link) handle(list []frame) {
	l.take(func() {
		for i := range list {
			l.frame(&list[i])
		}
	})
}

// frame takes in a frame of the server. The client is locked.
func (l *link) frame(f *frame) {
	switch f.Type {
	case "event":
		l.event(coord.Event{Topic: f.Topic, Position: f.Position, Kind: f.Kind, Payload: f.Payload, At: f.At})
	case "reset":
		l.reset(f)
	case "ack", "error", "pong":
		if f.Topic != "" {
			l.client.refused(f.Topic, f.refusal())
		}
		if answer := l.answers[f.ID]; answer != nil {
			delete(l.answers, f.ID)
			answer(*f)
		}
	case "tool.call":
		l.startTool(*f)
	case "tool.cancel":
		if cancel := l.calls[f.Call]; cancel != nil {
			cancel(fmt.Errorf("client: the call was cancelled: %s", f.Reason))
		}
	case "reconnect":
		after := time.Duration(f.AfterMS) * time.Millisecond
		if l.moved == nil {
			l.moved = time.AfterFunc(after+upTo(time.Duration(f.JitterMS)*time.Millisecond), l.move)
		}
	}
}

// move ends the connection because the server is about to.
func (l *link) move() {
	l.sayGoodbye()
	_ = l.ws.Close()
}

func (l *link) sayGoodbye() {
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = l.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second))
}

// post sends a frame whose answer is handed to a function, under the client's lock, unless the
// connection ends before. Errors: errLost, a [*FrameError] of a frame that is too large.
func (l *link) post(r request, answer func(frame)) error {
	r.ID = l.expect(answer)
	return l.write(r)
}

// expect returns the id of a frame whose answer is to be handed to a function.
func (l *link) expect(answer func(frame)) string {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.lastID++
	id := strconv.Itoa(l.lastID)
	l.answers[id] = answer
	return id
}

func (l *link) write(r request) error {
	message, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("client: a frame: %w", err)
	}
	if l.frameBytes > 0 && len(message) > l.frameBytes {
		return &FrameError{codeInvalid, fmt.Sprintf("the frame has %d bytes, and may have %d", len(message), l.frameBytes)}
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	_ = l.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := l.ws.WriteMessage(websocket.TextMessage, message); err != nil {
		_ = l.ws.Close() // so that the reader notices
		return errLost
	}
	return nil
}

// ask sends a frame and returns the ack. Errors: errLost, a [*FrameError], that of ctx; taken was not called then.
func (l *link) ask(ctx context.Context, r request, taken func(*link, frame)) (frame, error) {
	var answer frame
	answered := make(chan struct{})
	r.ID = l.expect(func(f frame) {
		if f.Type == "ack" && taken != nil {
			taken(l, f)
		}
		answer = f
		close(answered)
	})
	err := l.repeat(ctx, r, answered)
	l.forget(r.ID)
	select {
	case <-answered: // perhaps together with what ended the wait, or since
	default:
		return frame{}, err
	}
	if answer.Type == "error" {
		return answer, answer.refusal()
	}
	return answer, nil
}

// repeat sends a frame until it is answered. Errors: errLost, a [*FrameError], that of ctx.
func (l *link) repeat(ctx context.Context, r request, answered <-chan struct{}) error {
	again := time.NewTicker(answerTimeout)
	defer again.Stop()
	for {
		if err := l.write(r); err != nil {
			return err
		}
		select {
		case <-answered:
			return nil
		case <-again.C: // the same frame again has the same answer
		case <-l.ended:
			return errLost
		case <-ctx.Done():
			return fmt.Errorf("client: %s was not answered: %w", r.Type, ctx.Err())
		}
	}
}

func (l *link) forget(id string) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	delete(l.answers, id)
}
