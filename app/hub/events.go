package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// retryEvents is how long the client of an event stream waits at most before it
// connects anew.
const retryEvents = 5 * time.Second

// eventStream is a client that gets server-sent events. It can say nothing.
type eventStream struct {
	subscriber
	ctx     func() context.Context // ends with the request
	writer  http.ResponseWriter
	control *http.ResponseController
	batches chan []*frame // of one slot; outbox has no more on the way

	names []string // of its topics, in the order of their positions in an id
	at    map[string]coord.Position

	ended chan struct{} // closed when the hub ends the stream

	mu   sync.Mutex
	last *frame // before the end
	over bool   // nothing is written any more
}

// ServeEvents sends the events of topics to a client until that is gone, the session
// ends, or the hub is drained. after is the id of the last event that the client has
// seen, or "" for what follows. An error is returned only before anything was written:
// a *coord.InvalidError, rooms.ErrForbidden, coord.ErrNotFound, auth.ErrSignedOut,
// ErrDraining, ErrFull, coord.ErrUnavailable.
func (h *Hub) ServeEvents(w http.ResponseWriter, r *http.Request, session store.Session, topics []string, after string) error {
	from, err := parseEventID(topics, after, h.o.Topics)
	if err != nil {
		return err
	}
	e := &eventStream{
		ctx: r.Context, writer: w, control: http.NewResponseController(w),
		batches: make(chan []*frame, 1), names: topics, ended: make(chan struct{}),
	}
	e.init(h, e, session.ID, session.User)
	if err := h.enter(&e.subscriber); err != nil {
		return err
	}
	defer h.leave(&e.subscriber)
	own, err := e.settle(r.Context())
	if err != nil {
		return err
	}
	defer e.unsettle(own)
	defer e.leaveAll()
	defer e.out.close()
	asked, cancel := context.WithTimeout(r.Context(), h.o.RequestTimeout)
	defer cancel()
	err = e.subscribe(asked, from, func(positions map[string]coord.Position) *frame {
		e.at = positions
		return welcomeFrame{
			Connection: e.id, Node: h.o.Node, ServerTime: time.Now().UTC(), Positions: positions,
		}.frame()
	})
	if err != nil {
		return eventError(err)
	}
	e.serve()
	return nil
}

func eventError(err error) error {
	if r, ok := errors.AsType[refusal](err); ok && r.code == codeForbidden {
		return &store.ReasonError{Err: rooms.ErrForbidden, Field: "topic", Reason: r.message}
	}
	return err
}

// parseEventID reads the positions of topics from the id of an event, which has them in
// the order of the topics, separated by commas.
func parseEventID(topics []string, id string, most int) (map[string]coord.Position, error) {
	invalid := func(field, reason string) error { return &coord.InvalidError{Field: field, Reason: reason} }
	switch {
	case len(topics) == 0:
		return nil, invalid("topic", "must be given, once for each topic")
	case len(topics) > most:
		return nil, invalid("topic", fmt.Sprintf("may be given %d times", most))
	}
	places := make([]string, len(topics)) // "" is the present
	if id != "" {
		places = strings.Split(id, ",")
	}
	if len(places) != len(topics) {
		return nil, invalid("Last-Event-ID", "must have as many positions as there are topics")
	}
	from := make(map[string]coord.Position, len(topics))
	for i, topic := range topics {
		position, err := coord.ParsePosition(places[i])
		if err != nil {
			return nil, invalid("Last-Event-ID", "must be the id of an event of these topics")
		}
		if _, twice := from[topic]; twice {
			return nil, invalid("topic", fmt.Sprintf("%q is there twice", topic))
		}
		from[topic] = position
	}
	return from, nil
}

func (e *eventStream) context() context.Context { return e.ctx() }

func (e *eventStream) write(frames []*frame) { e.batches <- slices.Clone(frames) }

func (e *eventStream) shut(code int, _ string, last *frame) {
	e.mu.Lock()
	e.last = last
	e.mu.Unlock()
	close(e.ended)
	if code == CloseSlow {
		e.abort()
		return
	}
	e.limit() // also a write that is under way
}

func (e *eventStream) abort() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over { // the connection may be in use for another request
		_ = e.control.SetWriteDeadline(time.Unix(1, 0)) // fails when the connection has ended
	}
	e.over = true
}

// serve writes until the stream ends.
func (e *eventStream) serve() {
	// The server's own timeouts are for requests that are answered at once.
	_ = e.control.SetReadDeadline(time.Time{}) // fails when the connection has ended
	header := e.writer.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // for proxies that would wait for more
	var buf bytes.Buffer
	// At random, so that those who lose their replica do not come back all at once.
	fmt.Fprintf(&buf, "retry: %d\n\n", (retryEvents/5 + rand.N(retryEvents*4/5)).Milliseconds())
	e.out.open()
	heartbeat := time.NewTicker(e.hub.o.PingEvery)
	defer heartbeat.Stop()
	defer e.finish()
	for {
		select {
		case frames := <-e.batches:
			for _, f := range frames {
				e.append(&buf, f)
			}
			if !e.flush(&buf) {
				return
			}
			e.out.sent()
		case <-heartbeat.C:
			buf.WriteString(":\n\n")
			if !e.flush(&buf) {
				return
			}
		case <-e.ended:
			e.mu.Lock()
			last := e.last
			e.mu.Unlock()
			select {
			case frames := <-e.batches: // with which the last one may be
				for _, f := range frames {
					e.append(&buf, f)
				}
			default:
			}
			if last != nil {
				e.append(&buf, last)
			}
			e.flush(&buf)
			return
		case <-e.ctx().Done():
			return
		}
	}
}

func (e *eventStream) flush(buf *bytes.Buffer) bool {
	if !e.limit() {
		return false
	}
	_, err := e.writer.Write(buf.Bytes())
	if err == nil {
		err = e.control.Flush()
	}
	buf.Reset()
	return err == nil
}

// finish gives the connection back.
func (e *eventStream) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// limit says until when a write must be done. It reports false when there may be none.
func (e *eventStream) limit() bool {
	wait := e.hub.o.SlowAfter + 5*time.Second
	e.mu.Lock() // the limit that shut sets is not to be put off by one from before it
	defer e.mu.Unlock()
	select {
	case <-e.ended: // which does not wait for a client that takes nothing
		wait = lingerTime
	default:
	}
	if !e.over {
		_ = e.control.SetWriteDeadline(time.Now().Add(wait)) // fails when the connection has ended
	}
	return !e.over
}

// append writes a frame as an event. That of a topic has the positions of all topics as
// its id, so that a client that comes back with it misses nothing of any.
func (e *eventStream) append(buf *bytes.Buffer, f *frame) {
	if f.topic != "" {
		e.at[f.topic] = f.position
	}
	if f.topic != "" || f.kind == "welcome" {
		buf.WriteString("id: ")
		for i, name := range e.names {
			if i > 0 {
				buf.WriteByte(',')
			}
			buf.WriteString(e.at[name].String())
		}
		buf.WriteByte('\n')
	}
	switch f.kind {
	case kindEvent: // is what a client gets by default
	case "error": // would be that of a connection
		buf.WriteString("event: ended\n")
	default:
		buf.WriteString("event: ")
		buf.WriteString(f.kind)
		buf.WriteByte('\n')
	}
	buf.WriteString("data: ")
	buf.Write(f.json)
	buf.WriteString("\n\n")
}
