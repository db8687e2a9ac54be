package row

import (
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/coord"
)

// Bytes keeps a nil payload from becoming NULL.
func Bytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Values is a VALUES list in the making, and its arguments.
type Values struct {
	sql  strings.Builder
	Args []any
}

// Add appends a row; format has a placeholder per argument.
func (v *Values) Add(format string, args ...any) {
	if v.sql.Len() > 0 {
		v.sql.WriteString(", ")
	}
	v.sql.WriteString(format)
	v.Args = append(v.Args, args...)
}

// String returns the list.
func (v *Values) String() string { return v.sql.String() }

// OnlyTask returns the task of a statement that touches one at most; none is the
// error when it touched none.
func OnlyTask(rows []Task, err, none error) (coord.Task, error) {
	switch {
	case err != nil:
		return coord.Task{}, err
	case len(rows) == 0:
		return coord.Task{}, none
	}
	return rows[0].Coord(), nil
}

// Refund is how many attempts a settlement gives back.
func Refund(s coord.Settlement) int {
	if s.Refund {
		return 1
	}
	return 0
}

// LimitKeyBytes is the length of a [LimitKey].
const LimitKeyBytes = 16

// LimitKey is what is stored of a limit's key.
func LimitKey(key string) []byte {
	h := sha256.Sum256([]byte(key))
	return h[:LimitKeyBytes]
}

// NewEvent is an event to be published, with its tag.
type NewEvent struct {
	coord.NewEvent
	Tag coord.Tag
}

// Tagged gives events their tags. It copies the payloads, since a caller may
// leave before they are sent.
func Tagged(events []coord.NewEvent) []NewEvent {
	list := make([]NewEvent, len(events))
	for i, e := range events {
		e.Payload = slices.Clone(e.Payload)
		list[i] = NewEvent{e, coord.NewTag()}
	}
	return list
}

// Publishes that wait beyond either are refused.
const (
	WaitingPublishes = 10_000
	WaitingBytes     = 128 << 20 // by Size
)

// PayloadBytes is how much the payloads come to.
func PayloadBytes(events []NewEvent) (n int) {
	for _, e := range events {
		n += len(e.Payload)
	}
	return n
}

// Size is about how many bytes the events take, also those without a payload.
func Size(events []NewEvent) (n int) {
	const each = 64 // what is as long in all of them
	for _, e := range events {
		n += len(e.Topic) + len(e.Kind) + len(e.Payload) + len(e.Key) + each
	}
	return n
}

// Distinct returns the places of the events that may have to be published and, for
// each other one, the place of that with the same topic and key.
func Distinct(events []NewEvent) (first []int, twins map[int]int) {
	type id struct{ topic, key string }
	seen := make(map[id]int)
	for i, e := range events {
		if e.Key != "" {
			of := id{e.Topic, e.Key}
			if earlier, ok := seen[of]; ok {
				if twins == nil {
					twins = make(map[int]int)
				}
				twins[i] = earlier
				continue
			}
			seen[of] = i
		}
		first = append(first, i)
	}
	return first, twins
}

// Share gives each of several calls the positions of its events.
func Share(calls [][]NewEvent, positions []coord.Position) [][]coord.Position {
	shares := make([][]coord.Position, len(calls))
	for i, events := range calls {
		shares[i], positions = positions[:len(events):len(events)], positions[len(events):]
	}
	return shares
}

// Heads returns the position of each topic, [coord.Start] for those without a
// row.
func Heads(topics []string, rows []Head) map[string]coord.Position {
	heads := make(map[string]coord.Position, len(topics))
	for _, topic := range topics {
		heads[topic] = coord.Start
	}
	for _, r := range rows {
		heads[r.Topic] = r.Position()
	}
	return heads
}

// Prefixed returns the range of texts, as bytes are ordered, that begin with a prefix.
func Prefixed(prefix string) (least, beyond string) {
	n := len(prefix)
	if n == 0 {
		return "", "\xff" // which no text has
	}
	return prefix, prefix[:n-1] + string([]byte{prefix[n-1] + 1}) // its last byte is not the highest
}
