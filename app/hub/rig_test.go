package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a Broadcaster in memory whose history can be trimmed and rewritten, and
// that can fail. before is called at the beginning of each call, without a lock.
type feed struct {
	before func(op, topic string) error

	mu      sync.Mutex
	topics  map[string]*feedTopic
	streams map[*feedStream]struct{}
	calls   map[string]int
}

type feedTopic struct {
	events []coord.Event
	head   coord.Position
}

func newFeed() *feed {
	return &feed{
		topics: make(map[string]*feedTopic), streams: make(map[*feedStream]struct{}), calls: make(map[string]int),
	}
}

func (f *feed) call(op, topic string) error {
	f.mu.Lock()
	f.calls[op]++
	before := f.before
	f.mu.Unlock()
	if before != nil {
		return before(op, topic)
	}
	return nil
}

func (f *feed) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *feed) hook(before func(op, topic string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *feed) topic(name string) *feedTopic {
	if f.topics[name] == nil {
		f.topics[name] = &feedTopic{}
	}
	return f.topics[name]
}

func (f *feed) Publish(_ context.Context, events ...coord.NewEvent) ([]coord.Position, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	positions := make([]coord.Position, len(events))
	for i, e := range events {
		t := f.topic(e.Topic)
		t.head = coord.Position{Seq: t.head.Seq + 1, Tag: coord.NewTag()}
		positions[i] = t.head
		event := coord.Event{Topic: e.Topic, Position: t.head, Kind: e.Kind, Payload: e.Payload, At: time.Now()}
		t.events = append(t.events, event)
		for s := range f.streams {
			if s.topics[e.Topic] {
				s.offer(item{events: []coord.Event{event}})
			}
		}
	}
	return positions, nil
}

// trim drops the oldest events.
func (f *feed) trim(topic string, keep int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topic(topic)
	t.events = slices.Clone(t.events[max(0, len(t.events)-keep):])
}

// rewrite undoes the last events, but for one, publishes others in their place, and
// tells the streams as a driver would.
func (f *feed) rewrite(topic string, undo, others int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topic(topic)
	if undo = min(undo, len(t.events)-1); undo <= 0 {
		return
	}
	t.events = slices.Clone(t.events[:len(t.events)-undo])
	t.head = t.events[len(t.events)-1].Position
	for range others {
		t.head = coord.Position{Seq: t.head.Seq + 1, Tag: coord.NewTag()}
		t.events = append(t.events, coord.Event{Topic: topic, Position: t.head, Kind: "other", Payload: []byte(`{}`)})
	}
	for s := range f.streams {
		if s.topics[topic] {
			s.offer(item{err: &coord.ResetError{Topic: topic, Reason: coord.ResetDiverged, Head: t.head}})
		}
	}
}

func (f *feed) Heads(_ context.Context, topics ...string) (map[string]coord.Position, error) {
	if err := f.call("heads", topics[0]); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	heads := make(map[string]coord.Position)
	for _, name := range topics {
		heads[name] = f.topic(name).head
	}
	return heads, nil
}

func (f *feed) Read(_ context.Context, topic string, from coord.Position, limit int) ([]coord.Event, error) {
	if err := f.call("read", topic); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := f.behind(topic, from)
	return slices.Clone(found[:min(limit, len(found))]), err
}

// behind returns the events behind a position. The feed is locked.
func (f *feed) behind(topic string, from coord.Position) ([]coord.Event, error) {
	t := f.topic(topic)
	reset := func(reason string) error { return &coord.ResetError{Topic: topic, Reason: reason, Head: t.head} }
	if from == t.head {
		return nil, nil
	}
	i := slices.IndexFunc(t.events, func(e coord.Event) bool { return e.Position == from })
	switch {
	case from == coord.Start && len(t.events) > 0 && t.events[0].Position.Seq == 1:
	case i < 0 && from.Seq < t.head.Seq && (len(t.events) == 0 || from.Seq < t.events[0].Position.Seq):
		return nil, reset(coord.ResetTrimmed)
	case i < 0:
		return nil, reset(coord.ResetDiverged)
	}
	return t.events[i+1:], nil
}

func (f *feed) Trim(context.Context, coord.EventRetention) (int, error) { return 0, nil }

func (f *feed) Subscribe(ctx context.Context, from map[string]coord.Position) (coord.Stream, error) {
	s := &feedStream{feed: f, wake: make(chan struct{}, 1), topics: make(map[string]bool)}
	return s, s.Add(ctx, from)
}

type item struct {
	events []coord.Event
	err    error
}

type feedStream struct {
	feed   *feed
	wake   chan struct{}
	topics map[string]bool
	queue  []item
	closed bool
}

func (s *feedStream) offer(i item) {
	if n := len(s.queue); n > 0 && i.err == nil && s.queue[n-1].err == nil {
		s.queue[n-1].events = append(s.queue[n-1].events, i.events...)
	} else {
		s.queue = append(s.queue, i)
	}
	s.notify()
}

func (s *feedStream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// delay keeps the events of a topic from the streams, until the function that it
// returns brings all of them.
func (f *feed) delay(topic string) (catchUp func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.topics[topic] = false
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for s := range f.streams {
			s.topics[topic] = true
			s.offer(item{events: slices.Clone(f.topic(topic).events)})
		}
	}
}

// fail lets Next return an error.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.offer(item{err: err})
	}
}

func (s *feedStream) Add(_ context.Context, from map[string]coord.Position) error {
	for topic := range from {
		if err := s.feed.call("add", topic); err != nil {
			return err
		}
	}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.streams[s] = struct{}{}
	for topic, p := range from {
		if s.topics[topic] {
			return coord.ErrConflict
		}
		s.topics[topic] = true
		found, err := s.feed.behind(topic, p)
		if err != nil || len(found) > 0 {
			s.offer(item{slices.Clone(found), err})
		}
	}
	return nil
}

func (s *feedStream) Remove(topics ...string) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	for _, topic := range topics {
		delete(s.topics, topic)
		s.queue = slices.DeleteFunc(s.queue, func(i item) bool {
			reset, ok := errors.AsType[*coord.ResetError](i.err)
			return ok && reset.Topic == topic
		})
		for i := range s.queue {
			s.queue[i].events = slices.DeleteFunc(s.queue[i].events, func(e coord.Event) bool { return e.Topic == topic })
		}
	}
}

func (s *feedStream) Next(ctx context.Context) ([]coord.Event, error) {
	for {
		s.feed.mu.Lock()
		switch {
		case s.closed:
			s.feed.mu.Unlock()
			return nil, coord.ErrClosed
		case len(s.queue) > 0:
			i := s.queue[0]
			s.queue = s.queue[1:]
			s.feed.mu.Unlock()
			return i.events, i.err
		}
		s.feed.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *feedStream) Positions() map[string]coord.Position { return nil }
func (s *feedStream) Lag() int64                           { return 0 }

func (s *feedStream) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.closed = true
	delete(s.feed.streams, s)
	s.notify()
}

// backend is one whose events are those of a feed.
type backend struct {
	coord.Backend
	feed *feed
}

func (b backend) Broadcaster() coord.Broadcaster { return b.feed }

// people answers for the services: everybody may read every room that they were not
// removed from.
type people struct {
	mu      sync.Mutex
	removed map[[2]int64]bool // user and room
	ended   map[int64]bool    // sessions
	role    store.Role
	asked   int
	before  func() // MayRead looks
	err     error
}

func (p *people) MayRead(_ context.Context, by store.User, rooms ...int64) error {
	p.mu.Lock()
	before := p.before
	p.asked++
	defer p.mu.Unlock()
	answer := p.err
	for _, room := range rooms {
		if p.removed[[2]int64{by.ID, room}] {
			answer = &store.ReasonError{Err: coord.ErrNotFound, Reason: "there is no such room"}
		}
	}
	if before != nil { // between the answer and what is done with it
		p.mu.Unlock()
		before()
		p.mu.Lock()
	}
	return answer
}

func (p *people) Post(context.Context, store.User, int64, string, string) (store.Message, bool, error) {
	return store.Message{}, true, nil
}
func (p *people) Typing(context.Context, store.User, int64) error          { return nil }
func (p *people) MarkRead(context.Context, store.User, int64, int64) error { return nil }

func (p *people) Session(_ context.Context, id int64) (store.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended[id] {
		return store.Session{}, auth.ErrSignedOut
	}
	return store.Session{ID: id, User: store.User{ID: id / 100, Name: "Ada", Role: p.role}}, nil
}

func (p *people) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// env is a hub on a feed.
type env struct {
	*testing.T
	*feed
	*people
	hub *Hub
}

// bubble runs a test in fake time.
func bubble(t *testing.T, test func(e *env)) { bubbleWith(t, Options{}, test) }

func bubbleWith(t *testing.T, o Options, test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, o)
		test(e)
		e.close()
	})
}

func newEnv(t *testing.T, o Options) *env {
	t.Helper()
	e := &env{
		T: t, feed: newFeed(),
		people: &people{removed: make(map[[2]int64]bool), ended: make(map[int64]bool), role: store.Member},
	}
	e.hub = e.replica(o)
	return e
}

// replica is a further hub on the same feed.
func (e *env) replica(o Options) *Hub {
	def(o.PerPerson == 0, &o.PerPerson, 1<<20) // few people have many connections here
	b := backend{memory.NewStore(memory.Options{}).Open(), e.feed}
	return New(b, Services{Sessions: e.people, Rooms: e.people}, metrics.New("test", "memory"), o, slog.New(slog.DiscardHandler))
}

func (e *env) close() {
	e.Helper()
	e.drain(e.hub)
}

func (e *env) drain(h *Hub) {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), time.Minute)
	defer cancel()
	if err := h.Drain(ctx); err != nil {
		e.Error(err)
	}
}

// publish publishes n events in a topic.
func (e *env) publish(topic string, n int) {
	for range n {
		e.event(topic, "k", map[string]int{})
	}
}

func (e *env) event(topic, kind string, payload any) {
	b, err := json.Marshal(payload)
	if err != nil {
		e.Fatal(err)
	}
	_, _ = e.Publish(e.Context(), coord.NewEvent{Topic: topic, Kind: kind, Payload: b})
}

// remove takes a user out of a room, as one transaction.
func (e *env) remove(user, room int64) {
	e.set(func() {
		e.removed[[2]int64{user, room}] = true
		e.event(rooms.Topic(room), rooms.KindMemberRemoved, rooms.Removed{UserID: user})
	})
}

// readd lets a user into a room again.
func (e *env) readd(user, room int64) { e.set(func() { delete(e.removed, [2]int64{user, room}) }) }

func (e *env) head(topic string) coord.Position {
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	return e.topic(topic).head
}

func (e *env) at(topic string, seq int64) coord.Position {
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	for _, event := range e.topic(topic).events {
		if event.Position.Seq == seq {
			return event.Position
		}
	}
	e.Fatalf("%s has no event %d", topic, seq)
	return coord.Position{}
}

// client is a connected client that checks what it gets: the events of each topic in
// order, without a gap.
type client struct {
	*env
	*subscriber
	own     *topic
	life    func() context.Context
	end     context.CancelFunc
	batches chan []*frame
	pump    sync.WaitGroup

	got      sync.Mutex
	stall    chan struct{} // not nil: nothing is taken before it is closed
	last     map[string]coord.Position
	events   map[string]int
	frames   []*frame // others than events
	sizes    []int    // frames by message
	code     int
	closedAt time.Time
	judge    func(topic string, last, at coord.Position) error
	gone     sync.Once
}

// connect connects a session; sessions 100 to 199 are of user 1, and so on.
func (e *env) connect(session int64) *client {
	e.Helper()
	return e.connectTo(e.hub, session)
}

func (e *env) connectTo(h *Hub, session int64) *client {
	e.Helper()
	c, err := e.open(h, session)
	if err != nil {
		e.Fatal(err)
	}
	return c
}

func (e *env) open(h *Hub, session int64) (*client, error) {
	c := &client{
		env: e, subscriber: &subscriber{}, batches: make(chan []*frame, 1),
		last: make(map[string]coord.Position), events: make(map[string]int),
	}
	ctx, end := context.WithCancel(context.WithoutCancel(e.Context()))
	c.life, c.end = func() context.Context { return ctx }, end
	c.init(h, c, session, store.User{ID: session / 100})
	if err := h.enter(c.subscriber); err != nil {
		return nil, err
	}
	own, err := c.settle(e.Context())
	if err != nil {
		h.leave(c.subscriber)
		return nil, err
	}
	c.own = own
	c.pump.Go(c.take)
	c.out.open()
	return c, nil
}

func (c *client) context() context.Context { return c.life() }
func (c *client) write(frames []*frame)    { c.batches <- slices.Clone(frames) }
func (c *client) abort()                   {}

func (c *client) shut(code int, _ string, _ *frame) {
	c.got.Lock()
	defer c.got.Unlock()
	c.code, c.closedAt = code, time.Now()
	go c.disconnect()
}

func (c *client) closedWith() int {
	c.got.Lock()
	defer c.got.Unlock()
	return c.code
}

func (c *client) disconnect() {
	c.gone.Do(func() {
		c.out.close()
		c.end()
		c.pump.Wait()
		c.leaveAll()
		c.unsettle(c.own)
		c.subscriber.hub.leave(c.subscriber)
	})
}

func (c *client) take() {
	for {
		select {
		case frames := <-c.batches:
			c.got.Lock()
			stall := c.stall
			c.got.Unlock()
			if stall != nil {
				select {
				case <-stall:
				case <-c.life().Done():
					return
				}
			}
			c.look(frames)
			c.out.sent()
		case <-c.life().Done():
			return
		}
	}
}

func (c *client) look(frames []*frame) {
	c.got.Lock()
	defer c.got.Unlock()
	c.sizes = append(c.sizes, len(frames))
	for _, f := range frames {
		switch f.kind {
		case kindEvent:
			last, ok := c.last[f.topic]
			if ok && f.position.Seq != last.Seq+1 && f.dense && !c.guest() || f.position.Seq <= last.Seq {
				c.Errorf("%s: %v came behind %v", f.topic, f.position, last)
			}
			if c.judge != nil {
				if err := c.judge(f.topic, last, f.position); err != nil {
					c.Error(err)
				}
			}
			c.last[f.topic] = f.position
			c.events[f.topic]++
			continue
		case "reset":
			c.last[f.topic] = f.position
		case "ack":
			var ack ackFrame
			if err := json.Unmarshal(f.json, &ack); err != nil {
				c.Error(err)
			}
			maps.Copy(c.last, ack.Positions)
		}
		c.frames = append(c.frames, f)
	}
}

// hold lets the client take nothing until the function that it returns is called.
func (c *client) hold() (release func()) {
	c.got.Lock()
	defer c.got.Unlock()
	stall := make(chan struct{})
	c.stall = stall
	return func() {
		c.got.Lock()
		defer c.got.Unlock()
		c.stall = nil
		close(stall)
	}
}

// follow subscribes and returns where the topic starts.
func (c *client) from(topic string, from coord.Position) (at coord.Position, err error) {
	err = c.subscribe(c.life(), map[string]coord.Position{topic: from}, func(positions map[string]coord.Position) *frame {
		at = positions[topic]
		return ackFrame{ID: "1", Positions: positions}.frame()
	})
	return at, err
}

func (c *client) mustFrom(topic string, from coord.Position) coord.Position {
	c.Helper()
	at, err := c.from(topic, from)
	if err != nil {
		c.Fatal(err)
	}
	return at
}

func (c *client) position(topic string) coord.Position {
	c.got.Lock()
	defer c.got.Unlock()
	return c.last[topic]
}

func (c *client) seen(topic string) int {
	c.got.Lock()
	defer c.got.Unlock()
	return c.events[topic]
}

// waiting is how many bytes wait for the client.
func (c *client) waiting() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.bytes
}

// kinds are the types of the frames that came beside events.
func (c *client) kinds() string {
	c.got.Lock()
	defer c.got.Unlock()
	var kinds []string
	for _, f := range c.frames {
		kinds = append(kinds, f.kind)
	}
	return fmt.Sprint(kinds)
}

func (c *client) isLive(topic string) bool {
	c.mu.Lock()
	m := c.topics[topic]
	c.mu.Unlock()
	if m == nil {
		return false
	}
	m.topic.mu.Lock()
	defer m.topic.mu.Unlock()
	return m.state == live
}

// upToDate checks that clients have all events of a topic.
func (e *env) upToDate(topic string, clients ...*client) {
	e.Helper()
	synctest.Wait()
	for i, c := range clients {
		if at, head := c.position(topic), e.head(topic); at != head {
			e.Errorf("client %d is at %v of %s, the head is %v", i, at, topic, head)
		}
		if !c.isLive(topic) {
			e.Errorf("client %d is not live in %s", i, topic)
		}
	}
}

var errOutage = fmt.Errorf("an outage: %w", coord.ErrUnavailable)

func isNotFound(err error) bool { return errors.Is(err, coord.ErrNotFound) }

func isUnavailable(err error) bool { return errors.Is(err, coord.ErrUnavailable) }

func contains(s, part string) bool { return strings.Contains(s, part) }
