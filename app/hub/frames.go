package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
)

// The codes of error frames.
const (
	codeConflict    = "conflict"
	codeForbidden   = "forbidden"
	codeInvalid     = "invalid"
	codeNotFound    = "not_found"
	codeLimited     = "limited"
	codeUnavailable = "unavailable"
)

// request is a frame that a client sends. It has no field that says who sends
// it or who gets it: those are known from the connection.
type request struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Topics    json.RawMessage `json:"topics"` // subscribe: {topic: position}; unsubscribe: [topic]
	Room      int64           `json:"room"`
	ClientID  string          `json:"client_id"`
	Text      string          `json:"text"`
	MessageID int64           `json:"message_id"`
	State     string          `json:"state"`
	Call      coord.CallID    `json:"call"`
	Result    json.RawMessage `json:"result"`
	Error     string          `json:"error"`
}

// parseRequests reads a message of one frame or an array of frames.
func parseRequests(message []byte) ([]request, error) {
	if trimmed := bytes.TrimLeft(message, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		var list []request
		err := strictly(message, &list)
		if err == nil && len(list) == 0 {
			err = errors.New("an array without a frame")
		}
		return list, err
	}
	list := make([]request, 1)
	return list, strictly(message, &list[0])
}

func strictly(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names types of this program
		if wrong.Field == "" {
			return errors.New("a frame must be a JSON object")
		}
		return fmt.Errorf("%s: is of the wrong type", wrong.Field)
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value in a message")
	}
	return nil
}

// frame is what is sent to clients, in JSON. That of an event is encoded once and
// shared by all of them.
type frame struct {
	json     []byte
	kind     string         // the frame's type
	topic    string         // of an event or a reset
	position coord.Position // of an event, or where a reset leads
	// hidden: the event is for the hub alone, and takes a place in the order of its
	// topic, but is sent to nobody.
	hidden bool
	// work: an event of a task or a run, of which guests do not hear, wherever it is.
	work bool
	// dense: an event of a topic that has no hidden ones.
	dense bool
}

// cost is what a frame counts while it waits.
func (f *frame) cost() int { return len(f.json) + 64 }

func costOf(frames []*frame) int {
	total := 0
	for _, f := range frames {
		total += f.cost()
	}
	return total
}

type limits struct {
	FrameBytes int64 `json:"frame_bytes"`
	Topics     int   `json:"topics"`
}

type welcomeFrame struct {
	Type       string                    `json:"type"`
	Connection string                    `json:"connection"`
	Node       string                    `json:"node"`
	ServerTime time.Time                 `json:"server_time"`
	Limits     *limits                   `json:"limits,omitempty"`    // of a WebSocket
	Positions  map[string]coord.Position `json:"positions,omitempty"` // of an event stream
}

type resetFrame struct {
	Type     string         `json:"type"`
	Topic    string         `json:"topic"`
	Reason   string         `json:"reason"`
	Position coord.Position `json:"position"`
}

type ackFrame struct {
	Type      string                    `json:"type"`
	ID        string                    `json:"id"`
	Positions map[string]coord.Position `json:"positions,omitempty"`
	Message   *store.Message            `json:"message,omitempty"`
}

type errorFrame struct {
	Type    string `json:"type"`
	ID      string `json:"id"`
	Topic   string `json:"topic,omitempty"` // whose subscription has ended
	Code    string `json:"code"`
	Message string `json:"message"`
}

type pongFrame struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type reconnectFrame struct {
	Type     string `json:"type"`
	AfterMS  int64  `json:"after_ms"`
	JitterMS int64  `json:"jitter_ms"`
}

// encode is for the frame types above, which always can be encoded.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (f welcomeFrame) frame() *frame {
	f.Type = "welcome"
	return &frame{kind: f.Type, json: encode(f)}
}
func (f ackFrame) frame() *frame   { f.Type = "ack"; return &frame{kind: f.Type, json: encode(f)} }
func (f errorFrame) frame() *frame { f.Type = "error"; return &frame{kind: f.Type, json: encode(f)} }
func (f pongFrame) frame() *frame  { f.Type = "pong"; return &frame{kind: f.Type, json: encode(f)} }
func (f reconnectFrame) frame() *frame {
	f.Type = "reconnect"
	return &frame{kind: f.Type, json: encode(f)}
}

func (f resetFrame) frame() *frame {
	f.Type = "reset"
	return &frame{kind: f.Type, topic: f.Topic, position: f.Position, json: encode(f)}
}

const kindEvent = "event"

// eventFrame makes the frame of an event. The payload, which is JSON, goes into it as
// it is, but on one line.
func eventFrame(e coord.Event) *frame {
	f := &frame{kind: kindEvent, topic: e.Topic, position: e.Position}
	if _, personal := parseUserTopic(e.Topic); !personal {
		f.dense, f.work = true, tasks.IsWork(e.Kind)
	} else if f.hidden = hidden(e.Kind); f.hidden {
		return f
	}
	payload := e.Payload
	if bytes.ContainsAny(payload, "\r\n") {
		var line bytes.Buffer
		if json.Compact(&line, payload) == nil {
			payload = line.Bytes()
		}
	}
	b := make([]byte, 0, len(payload)+len(e.Topic)+len(e.Kind)+150)
	b = append(b, `{"type":"event","topic":`...)
	b = appendText(b, e.Topic)
	b = append(b, `,"position":"`...)
	b = append(b, e.Position.String()...)
	b = append(b, `","kind":`...)
	b = appendText(b, e.Kind)
	b = append(b, `,"payload":`...)
	if len(payload) == 0 {
		b = append(b, "null"...)
	}
	b = append(b, payload...)
	b = append(b, `,"at":"`...)
	b = e.At.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `"}`...)
	f.json = b
	return f
}

// appendText appends a JSON string. Names seldom hold anything to be escaped.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return append(b, encode(text)...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// join makes one message of frames.
func join(frames []*frame) []byte {
	size := len(frames) + 1
	for _, f := range frames {
		size += len(f.json)
	}
	message := make([]byte, 0, size)
	for i, f := range frames {
		message = append(message, "[,"[min(i, 1)])
		message = append(message, f.json...)
	}
	return append(message, ']')
}

// messages remembers messages of several events of one topic, which many sockets are
// sent.
type messages [64]atomic.Pointer[message]

type message struct {
	first, last *frame
	text        []byte
}

// of returns the message of some frames.
func (m *messages) of(frames []*frame) []byte {
	first, last := frames[0], frames[len(frames)-1]
	if len(frames) == 1 {
		return first.json
	}
	// As many frames as there are numbers from the first to the last: all of the topic.
	if !first.dense || !last.dense || first.topic != last.topic ||
		last.position.Seq-first.position.Seq != int64(len(frames)-1) {
		return join(frames)
	}
	slot := &m[first.position.Seq%int64(len(m))]
	if known := slot.Load(); known != nil && known.first == first && known.last == last {
		return known.text
	}
	made := &message{first: first, last: last, text: join(frames)}
	slot.Store(made)
	return made.text
}
