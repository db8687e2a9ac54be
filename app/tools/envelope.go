package tools

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// The kinds of events, on the topic of the person ([auth.UserTopic]). They are for
// one connection, which gets a frame of that type, and are never forwarded as events.
const (
	KindCall   = "tool.call"
	KindCancel = "tool.cancel"
)

// Envelope is what crosses replicas: a frame, and the one connection that it is
// for.
type Envelope struct {
	Kind       string // KindCall or KindCancel
	Connection string

	Call     coord.CallID
	Tool     string          // of a call
	Args     json.RawMessage // of a call: an object
	Deadline time.Time       // of a call: until when it can be answered
	Reason   string          // of a cancel
}

// payload is an envelope as it is stored.
type payload struct {
	Connection string `json:"connection"`
	frame
}

// frame is what the connection gets.
type frame struct {
	Type     string          `json:"type"`
	Call     coord.CallID    `json:"call"`
	Tool     string          `json:"tool,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	Deadline time.Time       `json:"deadline,omitzero"`
	Reason   string          `json:"reason,omitempty"`
}

func (e Envelope) frame() frame {
	return frame{Type: e.Kind, Call: e.Call, Tool: e.Tool, Args: e.Args, Deadline: e.Deadline, Reason: e.Reason}
}

// Frame is the frame that the connection is to be sent, in JSON: a tool.call or a
// tool.cancel, without the connection.
func (e Envelope) Frame() ([]byte, error) { return json.Marshal(e.frame()) }

// ParseEvent reads an event of a person's topic. It is false for one that is not of
// this package.
func ParseEvent(e coord.Event) (Envelope, bool) {
	if e.Kind != KindCall && e.Kind != KindCancel {
		return Envelope{}, false
	}
	var p payload
	if json.Unmarshal(e.Payload, &p) != nil || p.Type != e.Kind || p.Connection == "" || p.Call == "" {
		return Envelope{}, false
	}
	return Envelope{
		Kind: p.Type, Connection: p.Connection,
		Call: p.Call, Tool: p.Tool, Args: p.Args, Deadline: p.Deadline, Reason: p.Reason,
	}, true
}

func publish(ctx context.Context, u store.Unit, user int64, e Envelope) error {
	b, err := json.Marshal(payload{e.Connection, e.frame()})
	if err != nil {
		return err
	}
	return u.Coord.Publish(ctx, coord.NewEvent{Topic: auth.UserTopic(user), Kind: e.Kind, Payload: b})
}
