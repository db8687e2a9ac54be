package tools

import (
	"encoding/json"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// View is a call as people and programs see it.
type View struct {
	ID        coord.CallID    `json:"id"`
	UserID    int64           `json:"user_id"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	State     coord.CallState `json:"state"`
	Result    json.RawMessage `json:"result,omitempty"` // of an answer that is no failure
	Error     string          `json:"error,omitempty"`  // a failure, or why it was cancelled
	CreatedAt time.Time       `json:"created_at"`
	Deadline  time.Time       `json:"deadline"`
	EndedAt   time.Time       `json:"ended_at,omitzero"`
}

// ViewOf shows a call that this package has made.
func ViewOf(c coord.Call) View {
	user, _, _ := parseTarget(c.Target)
	v := View{
		ID: c.ID, UserID: user, Tool: c.Kind, Args: c.Payload, State: c.State, Error: c.Error,
		CreatedAt: c.CreatedAt, Deadline: c.Deadline, EndedAt: c.EndedAt,
	}
	if c.State == coord.CallAnswered && c.Error == "" && len(c.Result) > 0 {
		v.Result = c.Result
	}
	return v
}
