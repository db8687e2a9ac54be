// Package feed brings published events to the streams of one process. All
// drivers share it: a driver finds new events and reads history, the hub does
// the rest.
package feed

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/tandemhq/tandem/coord"
)

// Source is what the hub needs of a driver. Both methods read the store.
type Source interface {
	// Heads is coord.Broadcaster.Heads.
	Heads(ctx context.Context, topics ...string) (map[string]coord.Position, error)
	// Read is coord.Broadcaster.Read.
	Read(ctx context.Context, topic string, from coord.Position, limit int) ([]coord.Event, error)
}

// Event is a published event that knows which one came before it.
type Event struct {
	coord.Event
	Prev coord.Tag // of the event before it in its topic; 0 if it is the first
}

// QueueBytes is how much one stream holds in memory. What does not fit is read
// from the store when its turn comes.
const QueueBytes = 1 << 20

// How many events of history are read at a time: few at first, and then as many
// as QueueBytes held of those before, so that large events need no large memory.
const (
	firstRead = 32
	largeRead = 256
)

// Hub is the index from topics to streams. It is safe for concurrent use.
type Hub struct {
	src Source

	mu      sync.Mutex
	streams map[*stream]struct{}
	topics  map[string]map[*stream]*cursor
	closed  bool
}

// New returns a hub without streams.
func New(src Source) *Hub {
	return &Hub{src: src, streams: make(map[*stream]struct{}), topics: make(map[string]map[*stream]*cursor)}
}

// Deliver hands on events that were found in the store, in order per topic. An
// event that comes twice, or that a stream has read itself, is dropped; behind
// a hole, or when the one before is not the one that the stream has, the stream
// reads the store.
func (h *Hub) Deliver(events []Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		for s, c := range h.topics[e.Topic] {
			s.offer(c, e)
		}
	}
}

// Listening reports whether there are streams with topics.
func (h *Hub) Listening() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) > 0
}

// Resync makes every stream compare itself with the store. A driver calls it
// when it can't know what it has missed, as after a lost connection.
func (h *Hub) Resync(ctx context.Context) error {
	h.mu.Lock()
	topics := slices.Collect(maps.Keys(h.topics))
	h.mu.Unlock()
	if len(topics) == 0 {
		return nil
	}
	heads, err := h.src.Heads(ctx, topics...)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for topic, streams := range h.topics {
		for s, c := range streams {
			s.compare(c, heads[topic])
		}
	}
	return nil
}

// Subscribe opens a stream.
func (h *Hub) Subscribe(ctx context.Context, from map[string]coord.Position) (coord.Stream, error) {
	s := &stream{hub: h, wake: make(chan struct{}, 1), topics: make(map[string]*cursor)}
	if err := s.Add(ctx, from); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends all streams.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	streams := slices.Collect(maps.Keys(h.streams))
	h.mu.Unlock()
	for _, s := range streams {
		s.Close()
	}
}

func (h *Hub) join(s *stream, c *cursor) {
	if h.topics[c.topic] == nil {
		h.topics[c.topic] = make(map[*stream]*cursor)
	}
	h.topics[c.topic][s] = c
}

func (h *Hub) leave(s *stream, topic string) {
	delete(h.topics[topic], s)
	if len(h.topics[topic]) == 0 {
		delete(h.topics, topic)
	}
}

// cursor is where a stream is in one topic.
type cursor struct {
	topic string
	read  coord.Position // the last event that Next returned
	tail  coord.Position // the last event that is queued, or read
	// behind: the store has, or may have, events behind tail that are not queued.
	// Until they are read, what is delivered is only noted in known: the highest
	// number heard of since the store was last asked, unheard after a Resync.
	behind   bool
	known    int64
	head     int64 // the highest number ever heard of
	limit    int   // of the next read
	starting bool  // Add has not settled where it begins
}

// unheard is above every number: the store may have more than anybody said.
const unheard = math.MaxInt64

// stream implements coord.Stream. Locks are taken in the order hub, stream.
type stream struct {
	hub  *Hub
	wake chan struct{} // one slot: something to do for Next

	mu       sync.Mutex
	topics   map[string]*cursor
	queue    []coord.Event
	bytes    int
	readNext bool // it is the store's turn, so that a busy queue keeps no topic waiting
	closed   bool
}

func size(e coord.Event) int { return len(e.Payload) + len(e.Topic) + len(e.Kind) + 64 }

// offer queues an event. The hub is locked.
func (s *stream) offer(c *cursor, e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.known, c.head = max(c.known, e.Position.Seq), max(c.head, e.Position.Seq)
	if c.behind || e.Position.Seq <= c.tail.Seq {
		return
	}
	follows := e.Position.Seq == c.tail.Seq+1 && e.Prev == c.tail.Tag
	if !follows || s.bytes > 0 && s.bytes+size(e.Event) > QueueBytes {
		c.behind = true
	} else {
		c.tail = e.Position
		s.queue = append(s.queue, e.Event)
		s.bytes += size(e.Event)
	}
	s.notify()
}

// compare marks a topic whose head in the store is not where the stream is.
func (s *stream) compare(c *cursor, head coord.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.head = max(c.head, head.Seq)
	switch {
	case c.behind: // the store may be answering at this moment, with something older
		c.known = unheard
	case head != c.tail:
		c.behind = true
		s.notify()
	}
}

func (s *stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) Add(ctx context.Context, from map[string]coord.Position) error {
	cursors := make(map[string]*cursor, len(from))
	topics := make([]string, 0, len(from))
	for topic, p := range from {
		cursors[topic] = &cursor{topic: topic, read: p, tail: p, behind: true, limit: firstRead, starting: true}
		topics = append(topics, topic)
	}
	// First listen, then look: what is published in between is noted in known.
	if err := s.enter(cursors); err != nil || len(topics) == 0 {
		return err
	}
	heads, err := s.hub.src.Heads(ctx, topics...)
	if err != nil {
		s.drop(cursors)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, c := range cursors {
		head := heads[topic]
		c.head = max(c.head, head.Seq)
		if c.tail == coord.Head {
			c.read, c.tail = head, head
		}
		// A topic that is where the store is needs no reading; for any other the
		// reading also verifies the position.
		c.behind = c.tail != head || c.known > c.tail.Seq
		c.starting = false
	}
	s.notify()
	return nil
}

// enter makes the hub deliver to the cursors.
func (s *stream) enter(cursors map[string]*cursor) error {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.hub.closed {
		return coord.ErrClosed
	}
	for topic := range cursors {
		if s.topics[topic] != nil {
			return coord.ErrConflict
		}
	}
	s.hub.streams[s] = struct{}{}
	for topic, c := range cursors {
		s.topics[topic] = c
		s.hub.join(s, c)
	}
	return nil
}

// drop takes back cursors that could not start.
func (s *stream) drop(cursors map[string]*cursor) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, c := range cursors {
		if s.topics[topic] == c { // not removed and added again meanwhile
			delete(s.topics, topic)
			s.hub.leave(s, topic)
		}
	}
}

func (s *stream) Remove(topics ...string) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, topic := range topics {
		if s.topics[topic] == nil {
			continue
		}
		delete(s.topics, topic)
		s.hub.leave(s, topic)
	}
	kept := s.queue[:0]
	s.bytes = 0
	for _, e := range s.queue {
		if s.topics[e.Topic] != nil {
			kept = append(kept, e)
			s.bytes += size(e)
		}
	}
	clear(s.queue[len(kept):])
	s.queue = kept
}

func (s *stream) Positions() map[string]coord.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	positions := make(map[string]coord.Position, len(s.topics))
	for topic, c := range s.topics {
		positions[topic] = c.read
	}
	return positions
}

func (s *stream) Lag() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.topics {
		n += max(0, c.head-max(0, c.read.Seq)) // Head is below the first
	}
	return n
}

func (s *stream) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	delete(s.hub.streams, s)
	for topic := range s.topics {
		s.hub.leave(s, topic)
	}
	s.queue, s.bytes = nil, 0
	s.notify()
}

func (s *stream) Next(ctx context.Context) ([]coord.Event, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		events, behind, err := s.queued()
		if len(events) > 0 || err != nil {
			return events, err
		}
		if behind != nil {
			if events, err = s.catchUp(ctx, behind); len(events) > 0 || err != nil {
				return events, err
			}
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// queued takes what is queued, or else names a topic whose history is to be
// read. When there is both they take turns.
func (s *stream) queued() ([]coord.Event, *cursor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.notify() // for every later Next too
		return nil, nil, coord.ErrClosed
	}
	if len(s.queue) == 0 || s.readNext {
		s.readNext = false
		if c := s.behind(); c != nil {
			return nil, c, nil
		}
	}
	events := s.queue
	s.queue, s.bytes, s.readNext = nil, 0, len(events) > 0
	for _, e := range events {
		s.topics[e.Topic].read = e.Position
	}
	return events, nil, nil
}

// behind returns a topic whose history is to be read before anything else of it.
func (s *stream) behind() *cursor {
	for _, c := range s.topics {
		if c.behind && !c.starting && c.read == c.tail {
			return c
		}
	}
	return nil
}

// catchUp reads a piece of history. The topic is no longer behind when the
// store has nothing more and nothing was heard of meanwhile that is missing.
func (s *stream) catchUp(ctx context.Context, c *cursor) ([]coord.Event, error) {
	s.mu.Lock()
	from, limit := c.tail, c.limit
	c.known = 0
	s.mu.Unlock()
	events, err := s.hub.src.Read(ctx, c.topic, from, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[c.topic] != c { // removed meanwhile
		return nil, nil
	}
	reset, isReset := errors.AsType[*coord.ResetError](err)
	switch {
	case isReset:
		c.tail, c.head = reset.Head, reset.Head.Seq
		if c.known != unheard {
			c.head = max(c.head, c.known)
		}
	case err != nil:
		return nil, err
	case len(events) > 0:
		c.tail = events[len(events)-1].Position
		c.limit = fitting(events)
	}
	c.read = c.tail
	c.behind = len(events) == limit || c.known > c.tail.Seq
	return events, err
}

// fitting returns how many events such as these fit into QueueBytes.
func fitting(events []coord.Event) int {
	total := 0
	for _, e := range events {
		total += size(e)
	}
	return min(max(QueueBytes*len(events)/total, 1), largeRead)
}

// Verify decides whether a position may be resumed. found are the retained
// events of the topic behind the position, in order, and prev is the tag of the
// event before the first of them; head is the topic's last position. A hole among
// them, as a trim by time leaves behind a clock that stepped back, is a reset too.
func Verify(topic string, from, head coord.Position, found []coord.Event, prev coord.Tag) error {
	reset := func(reason string) error { return &coord.ResetError{Topic: topic, Reason: reason, Head: head} }
	switch {
	case from == head:
		return nil
	case from.Seq >= head.Seq:
		return reset(coord.ResetDiverged)
	case len(found) == 0:
		return reset(coord.ResetTrimmed)
	}
	for i, e := range found {
		if e.Position.Seq != from.Seq+1+int64(i) {
			return reset(coord.ResetTrimmed)
		}
	}
	if prev != from.Tag {
		return reset(coord.ResetDiverged)
	}
	return nil
}
