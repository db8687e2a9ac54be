package memory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
)

// topic is a topic's recent history. It stays when that is trimmed away, so
// that the sequence goes on.
type topic struct {
	head   coord.Position
	events []event                   // without a hole up to head
	keys   map[string]coord.Position // of those that have one
}

// event is a published event and the key by which it was.
type event struct {
	feed.Event
	key string
}

// drop forgets the oldest n events.
func (t *topic) drop(n int) {
	for _, e := range t.events[:n] {
		delete(t.keys, e.key)
	}
	clear(t.events[:n])
	t.events = t.events[n:]
}

// publish appends the events, whose payloads belong to the store already, and
// hands them to the streams. The store is locked, so that happens in order.
func (s *Store) publish(now time.Time, events []coord.NewEvent) []coord.Position {
	positions, published := make([]coord.Position, len(events)), make([]feed.Event, 0, len(events))
	for i, n := range events {
		t := s.topics[n.Topic]
		if t == nil {
			t = &topic{}
			s.topics[n.Topic] = t
		}
		if earlier, ok := t.keys[n.Key]; ok {
			positions[i] = earlier
			continue
		}
		prev := t.head.Tag
		t.head = coord.Position{Seq: t.head.Seq + 1, Tag: coord.NewTag()}
		positions[i] = t.head
		e := feed.Event{Event: coord.Event{Topic: n.Topic, Position: t.head, Kind: n.Kind, Payload: n.Payload, At: now}, Prev: prev}
		published = append(published, e)
		t.events = append(t.events, event{e, n.Key})
		if n.Key != "" {
			if t.keys == nil {
				t.keys = make(map[string]coord.Position)
			}
			t.keys[n.Key] = t.head
		}
		t.drop(max(0, len(t.events)-s.retain))
	}
	if len(published) == 0 {
		return positions
	}
	s.hubsMu.Lock()
	defer s.hubsMu.Unlock()
	for hub := range s.hubs {
		hub.Deliver(published)
	}
	return positions
}

// source reads history; it is what the hub of each handle needs.
type source struct{ store *Store }

func (r source) Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error) {
	heads := make(map[string]coord.Position, len(topics))
	err := r.store.read(ctx, func() {
		for _, name := range topics {
			heads[name] = coord.Start
			if t := r.store.topics[name]; t != nil {
				heads[name] = t.head
			}
		}
	})
	return heads, err
}

func (r source) Read(ctx context.Context, name string, from coord.Position, limit int) ([]coord.Event, error) {
	if from == coord.Head {
		return nil, ctx.Err()
	}
	var head coord.Position
	var prev coord.Tag
	var found []coord.Event
	err := r.store.read(ctx, func() {
		t := r.store.topics[name]
		if t == nil {
			return
		}
		head = t.head
		before := head.Seq - int64(len(t.events)) // the number of the event before the first
		behind := t.events[min(max(from.Seq-before, 0), int64(len(t.events))):]
		for _, e := range behind[:min(limit, len(behind))] {
			found = append(found, e.Event.Event)
		}
		if len(found) > 0 {
			prev = behind[0].Prev
		}
	})
	if err != nil {
		return nil, err
	}
	if err := feed.Verify(name, from, head, found, prev); err != nil {
		return nil, err
	}
	return found, nil
}

type broadcaster struct {
	source
	hub *feed.Hub
}

func (b broadcaster) Publish(ctx context.Context, events ...coord.NewEvent) (positions []coord.Position, err error) {
	events = slices.Clone(events)
	for i := range events {
		events[i].Payload = slices.Clone(events[i].Payload)
	}
	err = b.store.write(ctx, func(now time.Time) error {
		positions = b.store.publish(now, events)
		return nil
	})
	return positions, err
}

func (b broadcaster) Subscribe(ctx context.Context, from map[string]coord.Position) (coord.Stream, error) {
	return b.hub.Subscribe(ctx, from)
}

func (b broadcaster) Trim(ctx context.Context, r coord.EventRetention) (n int, err error) {
	err = b.store.write(ctx, func(now time.Time) error {
		for name, t := range b.store.topics {
			if !strings.HasPrefix(name, r.Prefix) {
				continue
			}
			old := 0
			if r.Age > 0 {
				old = len(t.events)
				if i := slices.IndexFunc(t.events, func(e event) bool { return now.Sub(e.At) < r.Age }); i >= 0 {
					old = i
				}
			}
			if r.Keep > 0 {
				old = max(old, len(t.events)-r.Keep)
			}
			old = min(old, batch-n)
			t.drop(old)
			if n += old; n == batch {
				break
			}
		}
		return nil
	})
	return n, err
}
