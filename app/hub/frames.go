package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// The codes of error frames.
const (
	codeForbidden   = "forbidden"
	codeInvalid     = "invalid"
	codeNotFound    = "not_found"
	codeLimited     = "limited"
	codeUnavailable = "unavailable"
)

// request is a frame that a client sends. It has no field that says who sends
// it or who gets it: those are known from the connection.
type request struct {
	Type     string          `json:"type"`
	ID       string          `json:"id"`
	Topics   json.RawMessage `json:"topics"` // subscribe: {topic: position}; unsubscribe: [topic]
	Room     int64           `json:"room"`
	ClientID string          `json:"client_id"`
	Text     string          `json:"text"`
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

type limits struct {
	FrameBytes int64 `json:"frame_bytes"`
	Topics     int   `json:"topics"`
}

type welcomeFrame struct {
	Type       string    `json:"type"`
	Connection string    `json:"connection"`
	Node       string    `json:"node"`
	ServerTime time.Time `json:"server_time"`
	Limits     limits    `json:"limits"`
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
func encode(frame any) []byte {
	b, err := json.Marshal(frame)
	if err != nil {
		panic(err)
	}
	return b
}

// encodeEvent puts the payload, which is JSON, into the frame as it is: it is
// done for each socket.
func encodeEvent(e coord.Event) []byte {
	b := make([]byte, 0, len(e.Payload)+len(e.Topic)+len(e.Kind)+160)
	b = append(b, `{"type":"event","topic":`...)
	b = append(b, encode(e.Topic)...)
	b = append(b, `,"position":"`...)
	b = append(b, e.Position.String()...)
	b = append(b, `","kind":`...)
	b = append(b, encode(e.Kind)...)
	b = append(b, `,"payload":`...)
	if len(e.Payload) == 0 {
		b = append(b, "null"...)
	}
	b = append(b, e.Payload...)
	b = append(b, `,"at":"`...)
	b = e.At.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, `"}`...)
}
