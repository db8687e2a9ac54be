package row

import "github.com/tandemhq/tandem/coord"

// CallColumns are the columns of a [Call], in no particular order.
const CallColumns = `id, key, target, kind, payload, state, result, error, created_at, deadline, ended_at`

// Call is a row of coord_calls.
type Call struct {
	ID        string `bun:"id"`
	Key       string `bun:"key"`
	Target    string `bun:"target"`
	Kind      string `bun:"kind"`
	Payload   []byte `bun:"payload"`
	State     string `bun:"state"`
	Result    []byte `bun:"result"`
	Error     string `bun:"error"`
	CreatedAt Time   `bun:"created_at"`
	Deadline  Time   `bun:"deadline"`
	EndedAt   Time   `bun:"ended_at"`
}

// Coord returns the call.
func (r Call) Coord() coord.Call {
	return coord.Call{
		ID: coord.CallID(r.ID), Key: r.Key, Target: r.Target, Kind: r.Kind, Payload: r.Payload,
		State: coord.CallState(r.State), Result: r.Result, Error: r.Error,
		CreatedAt: r.CreatedAt.Time, Deadline: r.Deadline.Time, EndedAt: r.EndedAt.Time,
	}
}

// Calls returns the calls.
func Calls(rows []Call) []coord.Call {
	calls := make([]coord.Call, len(rows))
	for i, r := range rows {
		calls[i] = r.Coord()
	}
	return calls
}

// CallIDs returns the ids as texts.
func CallIDs(ids []coord.CallID) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return texts
}

// CallEnded is the error of ending a call that is not open, by the state in
// which it was found; "" when it was not.
func CallEnded(state string) error {
	switch coord.CallState(state) {
	case "":
		return coord.ErrNotFound
	case coord.CallExpired:
		return coord.ErrExpired
	}
	return coord.ErrConflict
}

// CallGlance is as much of a call as tells whether it has to be read.
type CallGlance struct {
	ID   string `bun:"id"`
	Open bool   `bun:"open"` // and not overdue
}

// SortCalls returns which of the calls that were asked for are not open, and which
// do not exist.
func SortCalls(ids []coord.CallID, glances []CallGlance) (over []string, missing []coord.CallID) {
	there := make(map[coord.CallID]bool, len(glances))
	for _, g := range glances {
		there[coord.CallID(g.ID)] = true
		if !g.Open {
			over = append(over, g.ID)
		}
	}
	for _, id := range ids {
		if !there[id] {
			missing = append(missing, id)
		}
	}
	return over, missing
}
