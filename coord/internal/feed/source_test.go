package feed

import (
	"context"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// history is a Source in memory. Its hooks run without a lock, before and after it
// is looked at.
type history struct {
	mu     sync.Mutex
	topics map[string]*topic
	reads  int
	most   int // bytes that one read returned

	before, after func(op, topic string) error
}

type topic struct {
	events []Event
	head   coord.Position
	// next holds every pair of events that ever followed each other, so that what a
	// stream returned can be judged although history was rewritten.
	next map[coord.Position][]coord.Position
}

func newHistory() *history { return &history{topics: make(map[string]*topic)} }

func (h *history) topic(name string) *topic {
	t := h.topics[name]
	if t == nil {
		t = &topic{next: make(map[coord.Position][]coord.Position)}
		h.topics[name] = t
	}
	return t
}

// publish appends n events and returns them. It delivers nothing.
func (h *history) publish(name string, n, size int) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(name)
	for range n {
		p := coord.Position{Seq: t.head.Seq + 1, Tag: coord.NewTag()}
		t.next[t.head] = append(t.next[t.head], p)
		e := coord.Event{Topic: name, Position: p, Kind: "k", Payload: make([]byte, size)}
		t.events = append(t.events, Event{Event: e, Prev: t.head.Tag})
		t.head = p
	}
	return slices.Clone(t.events[len(t.events)-n:])
}

// trim drops all but the last events.
func (h *history) trim(name string, keep int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(name)
	t.events = slices.Clone(t.events[max(0, len(t.events)-keep):])
}

// lose undoes the last n events, as a failover does that lost them.
func (h *history) lose(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(name)
	n = min(n, len(t.events)-1)
	if n <= 0 {
		return
	}
	t.events = slices.Clone(t.events[:len(t.events)-n])
	t.head = t.events[len(t.events)-1].Position
}

func (h *history) head(name string) coord.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.topic(name).head
}

// follows reports whether an event ever came right behind a position.
func (h *history) follows(name string, p, next coord.Position) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.topic(name).next[p], next)
}

func (h *history) hook(which func(op, topic string) error, op, topic string) error {
	if which == nil {
		return nil
	}
	return which(op, topic)
}

func (h *history) Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error) {
	if err := h.hook(h.before, "heads", topics[0]); err != nil {
		return nil, err
	}
	h.mu.Lock()
	heads := make(map[string]coord.Position)
	for _, name := range topics {
		if t := h.topics[name]; t != nil {
			heads[name] = t.head
		}
	}
	h.mu.Unlock()
	if err := h.hook(h.after, "heads", topics[0]); err != nil {
		return nil, err
	}
	return heads, ctx.Err()
}

func (h *history) Read(ctx context.Context, name string, from coord.Position, limit int) ([]coord.Event, error) {
	if err := h.hook(h.before, "read", name); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.reads++
	t := h.topic(name)
	begin := slices.IndexFunc(t.events, func(e Event) bool { return e.Position.Seq > from.Seq })
	var found []coord.Event
	var prev coord.Tag
	if begin >= 0 {
		prev = t.events[begin].Prev
		for _, e := range t.events[begin:min(len(t.events), begin+limit)] {
			found = append(found, e.Event)
		}
	}
	head := t.head
	h.mu.Unlock()
	if err := h.hook(h.after, "read", name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := Verify(name, from, head, found, prev); err != nil {
		return nil, err
	}
	total := 0
	for _, e := range found {
		total += size(e)
	}
	h.mu.Lock()
	h.most = max(h.most, total)
	h.mu.Unlock()
	return found, nil
}
