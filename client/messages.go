package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// NewMessage is a message to be sent.
type NewMessage struct {
	Room int64
	Text string
	// ClientID makes sending it again harmless, also by another process: a message with the same one is
	// stored once. Default: a new one.
	ClientID string
}

// Message is what somebody, or a task, said.
type Message struct {
	ID        int64     `json:"id"`
	Room      int64     `json:"room_id"`
	User      int64     `json:"user_id"` // 0: a task
	Author    string    `json:"author"`
	Text      string    `json:"text"`
	ClientID  string    `json:"client_id"`
	CreatedAt time.Time `json:"created_at"`
	EditedAt  time.Time `json:"edited_at,omitzero"`
	Deleted   bool      `json:"deleted,omitempty"` // its text is gone
}

// Send sends a message and returns it as it is stored, once. It tries until the server has answered,
// over as many connections as that takes. When it returns because ctx ended, the message may have been
// stored or not: send it again with the same ClientID to find out. Errors: a [*FrameError], that of
// ctx, why the client has stopped.
func (c *Client) Send(ctx context.Context, m NewMessage) (Message, error) {
	if m.ClientID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Message{}, fmt.Errorf("client: an id for a message: %w", err)
		}
		m.ClientID = id.String()
	}
	ack, err := c.request(ctx, request{Type: "send", Room: m.Room, ClientID: m.ClientID, Text: m.Text}, nil)
	if err != nil {
		return Message{}, err
	}
	var stored Message
	if err := json.Unmarshal(ack.Message, &stored); err != nil {
		return Message{}, fmt.Errorf("client: the answer to a message: %w", err)
	}
	return stored, nil
}

// Typing tells the others in a room that the person is writing. Errors: as of Send.
func (c *Client) Typing(ctx context.Context, room int64) error {
	_, err := c.request(ctx, request{Type: "typing", Room: room}, nil)
	return err
}

// MarkRead notes that the person has read a room up to a message. Errors: as of Send.
func (c *Client) MarkRead(ctx context.Context, room, message int64) error {
	_, err := c.request(ctx, request{Type: "read", Room: room, Message: message}, nil)
	return err
}

// State is that of a person at a connection.
type State string

// The states.
const (
	Online State = "online"
	Away   State = "away"
)

// SetState says whether somebody is there; each connection is told anew. Errors: as of Send.
func (c *Client) SetState(ctx context.Context, s State) error {
	c.mu.Lock()
	c.state = s
	c.mu.Unlock()
	_, err := c.request(ctx, request{Type: "presence", State: s}, nil)
	return err
}
