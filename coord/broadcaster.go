package coord

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Broadcaster lets everyone hear what is published, in order per topic, and
// resume on any replica.
//
// Each topic numbers its events 1, 2, 3 … without a gap. A subscriber that is
// connected sees every event of its topics in that order; one that comes back
// with the position of the last event that it saw gets all that followed, each
// once, or a [ResetError]: never a silent hole.
type Broadcaster interface {
	// Publish appends events to their topics, all or none, and returns their
	// positions in the order given. When it returns nil the events are stored
	// durably and will reach every subscriber.
	//
	// An event with a key is not published again while an earlier one of its topic
	// with that key is kept: its position is that of the earlier. So a publish whose
	// outcome is unknown can be repeated.
	//
	// Concurrent publishes of a replica share statements; those of a [Tx] do not. When
	// 10,000 calls or 128 MiB wait for that, further ones fail at once with a
	// [*BackpressureError], and nothing of them is published. On memory none waits.
	// Errors: ErrInvalid, ErrBackpressure, ErrUnavailable, ErrUnknownOutcome.
	Publish(ctx context.Context, events ...NewEvent) ([]Position, error)
	// Subscribe opens a stream of the topics, each from behind the position given
	// for it: [Start] for all history, [Head] for only what follows. The
	// cursors are fixed before Subscribe returns, so nothing that is published
	// afterwards can be missed. The stream lives until it is closed; ctx bounds
	// only the call.
	Subscribe(ctx context.Context, from map[string]Position) (Stream, error)
	// Read returns up to limit (1–1000) events of one topic from behind a
	// position. Errors: a [*ResetError] when the history behind it is gone.
	Read(ctx context.Context, topic string, from Position, limit int) ([]Event, error)
	// Heads returns the position of the last event of each topic; Start for one
	// that has none.
	Heads(ctx context.Context, topics ...string) (map[string]Position, error)
	// Trim deletes a bounded number of events that the retention no longer covers
	// and returns how many. Call it until it returns 0. A topic's sequence is
	// never reset.
	Trim(ctx context.Context, r EventRetention) (int, error)
}

// Stream is a live subscription. Next is for one goroutine at a time; the
// other methods are safe for concurrent use.
type Stream interface {
	// Next waits for events and returns those at hand, in order per topic.
	//
	// Errors: a [*ResetError] for one topic, after which the stream goes on;
	// ErrUnavailable when history can't be read now, after which Next may be called
	// again and nothing is lost; ErrClosed; the context's error.
	//
	// A reader that is slow keeps nobody waiting and costs no more than a fixed
	// amount of memory: what does not fit is read from the store when its turn
	// comes.
	Next(ctx context.Context) ([]Event, error)
	// Add subscribes to further topics, as [Broadcaster.Subscribe] does. A topic
	// that is subscribed already is an ErrConflict.
	Add(ctx context.Context, from map[string]Position) error
	// Remove ends the subscription to topics. No event of theirs is returned by a
	// Next that starts afterwards.
	Remove(topics ...string)
	// Positions returns, for each topic, the position of the last event that Next
	// has returned, or where the subscription started.
	Positions() map[string]Position
	// Lag returns how many events Next has not returned yet of those that are known to
	// be published.
	Lag() int64
	// Close ends the stream. It may be called again.
	Close()
}

// Position is a place in a topic's history that can be verified: the number of
// an event and a short piece of its random identity. Equal positions mean that
// the history up to there is the same.
type Position struct {
	Seq int64
	Tag Tag
}

// Tag is a short piece of an event's random identity.
type Tag uint32

// NewTag returns a random tag; for authors of drivers.
func NewTag() Tag {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return Tag(binary.NativeEndian.Uint32(b[:]))
}

var (
	// Start is the position before a topic's first event.
	Start = Position{}
	// Head stands for the present: only what is published from now on.
	Head = Position{Seq: -1}
)

// String returns the position as in "42.9f3a1c07"; [ParsePosition] reads it.
func (p Position) String() string {
	switch p {
	case Start:
		return "0"
	case Head:
		return "head"
	}
	return fmt.Sprintf("%d.%08x", p.Seq, uint32(p.Tag))
}

// ParsePosition reads what [Position.String] wrote; "" is [Head].
func ParsePosition(s string) (Position, error) {
	switch s {
	case "0":
		return Start, nil
	case "", "head":
		return Head, nil
	}
	bad := &InvalidError{Field: "Position", Reason: strconv.Quote(s) + ` is neither "head", "0" nor of the form "42.9f3a1c07"`}
	number, tag, ok := strings.Cut(s, ".")
	if !ok || len(tag) != 8 {
		return Position{}, bad
	}
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil || seq < 1 || number[0] == '+' {
		return Position{}, bad
	}
	t, err := strconv.ParseUint(tag, 16, 32)
	if err != nil {
		return Position{}, bad
	}
	return Position{Seq: seq, Tag: Tag(t)}, nil
}

// MarshalText is [Position.String].
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is [ParsePosition].
func (p *Position) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePosition(string(text))
	return err
}

// NewEvent is an event to be published.
type NewEvent struct {
	Topic   string // such as "room:42"; 1–200 bytes
	Kind    string // such as "message.created"; 1–100 bytes
	Payload []byte // at most MaxPayload
	Key     string // optional, at most 500 bytes: published once on its topic, see [Broadcaster.Publish]
}

// Event is a published event. Its Payload is shared: do not change it.
type Event struct {
	Topic    string
	Position Position
	Kind     string
	Payload  []byte
	At       time.Time // when it was published
}

// EventRetention says which events are kept: those that are younger than Age
// and among the last Keep of their topic. It covers the topics that begin with
// Prefix.
type EventRetention struct {
	Prefix string        // empty: all topics
	Age    time.Duration // 0: any
	Keep   int           // 0: any
}
