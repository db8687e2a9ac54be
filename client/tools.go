package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	maxCalls     = 64  // that one connection handles at a time; others are refused
	maxCallFrame = 512 // bytes of an answer's frame beside the result
)

// Tool answers a call with a value that is sent as JSON, or with an error whose text is sent. Its
// context ends at the call's deadline, when the call is cancelled, and with the connection, for no
// other connection can answer. Then what it returns is dropped.
type Tool func(ctx context.Context, call ToolCall) (result any, err error)

// ToolCall is a call that the server wants answered.
type ToolCall struct {
	ID       string
	Tool     string
	Args     json.RawMessage
	Deadline time.Time // by this machine's clock; zero: none
}

// startTool handles a call. The client is locked.
func (l *link) startTool(f frame) {
	c := l.client
	if l.calls[f.Call] != nil {
		return // it is being handled
	}
	call := ToolCall{ID: f.Call, Tool: f.Tool, Args: f.Args}
	ctx, cancel := context.WithCancelCause(context.Background())
	end := context.CancelFunc(func() {})
	if !f.Deadline.IsZero() {
		call.Deadline = f.Deadline.Add(-l.ahead)
		ctx, end = context.WithDeadline(ctx, call.Deadline)
	}
	busy := len(l.calls) >= maxCalls
	l.calls[f.Call] = cancel
	c.tools.Go(func() {
		defer cancel(nil)
		defer end()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(l.calls, f.Call)
		}()
		result, err := c.answerTool(ctx, call, busy)
		if ctx.Err() != nil {
			return
		}
		if l.frameBytes > 0 && len(result) > l.frameBytes-maxCallFrame {
			err = fmt.Errorf("the result is too large: %d bytes", len(result))
		}
		r := request{Type: "tool.result", Call: call.ID, Result: result}
		if err != nil {
			r.Result, r.Error = nil, cmp.Or(err.Error(), "failed")
		}
		if err := l.insist(ctx, r); err != nil && ctx.Err() == nil {
			c.o.Logger.WarnContext(ctx, "the answer to a tool call was refused", "call", call.ID, "tool", call.Tool, "error", err)
		}
	})
}

// insist is ask, for as long as the server says that the frame may be accepted later.
func (l *link) insist(ctx context.Context, r request) error {
	for failures := 0; ; failures++ {
		_, err := l.ask(ctx, r, nil)
		if refused, ok := errors.AsType[*FrameError](err); !ok || !refused.again() || ctx.Err() != nil {
			return err
		}
		pause(ctx, l.client.between(failures))
	}
}

func (c *Client) answerTool(ctx context.Context, call ToolCall, busy bool) (json.RawMessage, error) {
	switch {
	case c.o.Tool == nil:
		return nil, errors.New("this client has no tools")
	case busy:
		return nil, errors.New("this client is busy with other calls")
	}
	value, err := c.o.Tool(ctx, call)
	if err != nil {
		return nil, err
	}
	return json.Marshal(value)
}
