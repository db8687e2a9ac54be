package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// The subprotocols of the handshake.
const (
	protocol       = "tandem.v1"
	ticketProtocol = "ticket."
)

// The close codes that mean something to a client; after any other it connects anew and resumes.
const (
	closeRestart   = 1012
	closeSignedOut = 4001
	closeSlow      = 4008
	closeReplaced  = 4009
)

// The codes of error frames after which the same frame may be sent again.
const (
	codeLimited     = "limited"
	codeUnavailable = "unavailable"
	codeInvalid     = "invalid"
)

// request is a frame to the server.
type request struct {
	Type     string          `json:"type"`
	ID       string          `json:"id"`
	Topics   any             `json:"topics,omitempty"` // subscribe: {topic: position}; unsubscribe: [topic]
	Room     int64           `json:"room,omitempty"`
	ClientID string          `json:"client_id,omitempty"`
	Text     string          `json:"text,omitempty"`
	Message  int64           `json:"message_id,omitempty"`
	State    State           `json:"state,omitempty"`
	Call     string          `json:"call,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// frame is any frame of the server.
type frame struct {
	Type string `json:"type"`
	ID   string `json:"id"`

	// welcome
	Connection string    `json:"connection"`
	Node       string    `json:"node"`
	ServerTime time.Time `json:"server_time"`
	Limits     struct {
		FrameBytes int `json:"frame_bytes"`
		Topics     int `json:"topics"`
	} `json:"limits"`

	// event, reset
	Topic    string          `json:"topic"` // also of an error: the subscription has ended
	Position coord.Position  `json:"position"`
	Kind     string          `json:"kind"`
	Payload  json.RawMessage `json:"payload"`
	At       time.Time       `json:"at"`
	Reason   string          `json:"reason"` // also of tool.cancel

	// ack, error
	Positions map[string]coord.Position `json:"positions"`
	Code      string                    `json:"code"`
	Message   json.RawMessage           `json:"message"` // ack: an object; error: a text

	// tool.call, tool.cancel
	Call     string          `json:"call"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	Deadline time.Time       `json:"deadline"`

	// reconnect
	AfterMS  int64 `json:"after_ms"`
	JitterMS int64 `json:"jitter_ms"`
}

// parseFrames reads a message of one frame or an array of frames.
func parseFrames(message []byte) ([]frame, error) {
	var list []frame
	if bytes.HasPrefix(bytes.TrimLeft(message, " \t\r\n"), []byte("[")) {
		err := json.Unmarshal(message, &list)
		return list, err
	}
	list = make([]frame, 1)
	return list, json.Unmarshal(message, &list[0])
}

// FrameError is the server's refusal of a frame.
type FrameError struct {
	Code    string // "conflict", "forbidden", "invalid", "limited", "not_found" or "unavailable"
	Message string // for people
}

func (e *FrameError) Error() string { return fmt.Sprintf("client: %s: %s", e.Code, e.Message) }

// refusal is the error that an error frame is.
func (f frame) refusal() *FrameError {
	e := &FrameError{Code: f.Code}
	if json.Unmarshal(f.Message, &e.Message) != nil {
		e.Message = string(f.Message)
	}
	return e
}

// again reports whether the frame may be accepted later.
func (e *FrameError) again() bool { return e.Code == codeLimited || e.Code == codeUnavailable }
