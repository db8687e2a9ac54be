package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelTopic is all that was ever published on a topic.
type modelTopic struct {
	name     string
	all      []coord.Position
	payloads []string
	keys     []string
	trimmed  int64 // events up to this number are deleted
}

// earlier returns the number of the event that is kept of those with a key; 0: none.
func (p *modelTopic) earlier(key string) int64 {
	for i := len(p.keys); key != "" && int64(i) > p.trimmed; i-- {
		if p.keys[i-1] == key {
			return int64(i)
		}
	}
	return 0
}

func (p *modelTopic) add(at coord.Position, e coord.NewEvent) {
	p.all, p.payloads, p.keys = append(p.all, at), append(p.payloads, string(e.Payload)), append(p.keys, e.Key)
}

func (p *modelTopic) head() coord.Position {
	if len(p.all) == 0 {
		return coord.Start
	}
	return p.all[len(p.all)-1]
}

// has reports whether a position is one that the topic has been at.
func (p *modelTopic) has(at coord.Position) bool {
	return at == coord.Start || at.Seq > 0 && at.Seq <= int64(len(p.all)) && p.all[at.Seq-1] == at
}

// resume says what must become of a reader behind a position: reasons are those of
// a reset, of which there may be two; none: it goes on.
func (p *modelTopic) resume(from coord.Position) (reasons []string) {
	if !p.has(from) {
		reasons = append(reasons, coord.ResetDiverged)
	}
	if from != p.head() && from.Seq < p.trimmed {
		reasons = append(reasons, coord.ResetTrimmed)
	}
	return reasons
}

// modelStream is an open stream and where it is in each topic.
type modelStream struct {
	coord.Stream
	at     map[string]coord.Position
	doomed map[string]bool // topics whose position was wrong from the start: a reset comes first
}

func (s *modelStream) start(topic *modelTopic, from coord.Position) {
	s.at[topic.name] = settled(topic, from)
	s.doomed[topic.name] = len(topic.resume(s.at[topic.name])) > 0
}

type broadcasterModel struct {
	model
	topics  []*modelTopic
	streams []*modelStream
	count   int
}

func newBroadcasterModel(m model) *broadcasterModel {
	b := &broadcasterModel{model: m}
	for _, name := range []string{"a", "b", "c"} {
		b.topics = append(b.topics, &modelTopic{name: m.name(name)})
	}
	return b
}

func (m *broadcasterModel) actions() actions {
	return actions{
		"publish": m.publishSome, "publish in a transaction": m.publishTx, "subscribe": m.subscribeOne, "add": m.add,
		"remove": m.remove, "drain": m.drainOne, "read": m.readOne, "trim": m.trimOne, "close": m.closeOne, "": m.compare,
	}
}

// draw draws events for a publish.
func (m *broadcasterModel) draw(t *rapid.T) (events []coord.NewEvent, topics []*modelTopic) {
	for range rapid.IntRange(1, 4).Draw(t, "how many") {
		topic := pick(t, "topic", m.topics...)
		m.count++
		e := event(topic.name, fmt.Sprint(m.count))
		e.Key = pick(t, "key", "", "", "", "k", "l")
		events = append(events, e)
		topics = append(topics, topic)
	}
	return events, topics
}

func (m *broadcasterModel) publishSome(t *rapid.T) {
	events, topics := m.draw(t)
	positions, err := m.backend(t).Broadcaster().Publish(m.ctx, events...)
	must(t, "Publish", err)
	equal(t, "how many positions Publish returned", len(positions), len(events))
	for i, topic := range topics {
		if n := topic.earlier(events[i].Key); n > 0 {
			equal(t, "the position of an event of "+topic.name+" whose key is kept", positions[i], topic.all[n-1])
			continue
		}
		equal(t, "the number of an event of "+topic.name, positions[i].Seq, topic.head().Seq+1)
		topic.add(positions[i], events[i])
	}
}

func (m *broadcasterModel) publishTx(t *rapid.T) {
	events, topics := m.draw(t)
	commit := rapid.Bool().Draw(t, "commit")
	err := m.backend(t).InTx(m.ctx, func(ctx context.Context, tx coord.Tx) error {
		for _, e := range events {
			if err := tx.Publish(ctx, e); err != nil {
				return err
			}
		}
		if commit {
			return nil
		}
		return errOwn
	})
	if !commit {
		if !errors.Is(err, errOwn) {
			t.Fatalf("InTx: %v; want the error of its function", err)
		}
		return
	}
	must(t, "InTx", err)
	for i, topic := range topics {
		if topic.earlier(events[i].Key) > 0 {
			continue
		}
		next := topic.head()
		found, err := m.two.Broadcaster().Read(m.ctx, topic.name, next, 1000)
		must(t, "Read of what a transaction published", err)
		if len(found) == 0 || string(found[0].Payload) != string(events[i].Payload) || found[0].Position.Seq != next.Seq+1 {
			t.Fatalf("behind %v of %s Read finds %s; want the event %q of the transaction", next, topic.name, show(found),
				events[i].Payload)
		}
		topic.add(found[0].Position, events[i])
	}
}

// position draws a position of a topic, sometimes a false one.
func (m *broadcasterModel) position(t *rapid.T, topic *modelTopic) coord.Position {
	switch pick(t, "position", "start", "head", "present", "past", "past", "past", "false") {
	case "start":
		return coord.Start
	case "head":
		return coord.Head
	case "past":
		if n := len(topic.all); n > 0 {
			return topic.all[rapid.IntRange(0, n-1).Draw(t, "which")]
		}
	case "false":
		p := coord.Position{Seq: int64(rapid.IntRange(1, len(topic.all)+2).Draw(t, "number")), Tag: 7}
		if p.Seq <= int64(len(topic.all)) {
			p.Tag = topic.all[p.Seq-1].Tag + 1
		}
		return p
	}
	return topic.head()
}

func settled(topic *modelTopic, p coord.Position) coord.Position {
	if p == coord.Head {
		return topic.head()
	}
	return p
}

func (m *broadcasterModel) subscribeOne(t *rapid.T) {
	if len(m.streams) == 4 {
		m.closeOne(t)
	}
	s := &modelStream{at: make(map[string]coord.Position), doomed: make(map[string]bool)}
	from := make(map[string]coord.Position)
	for _, topic := range m.topics {
		if rapid.Bool().Draw(t, "with "+topic.name) {
			from[topic.name] = m.position(t, topic)
			s.start(topic, from[topic.name])
		}
	}
	stream, err := m.backend(t).Broadcaster().Subscribe(m.ctx, from)
	must(t, "Subscribe", err)
	t.Cleanup(stream.Close)
	s.Stream = stream
	m.streams = append(m.streams, s)
	equal(t, "Positions of a new stream", stream.Positions(), s.at)
}

func (m *broadcasterModel) stream(t *rapid.T) *modelStream {
	if len(m.streams) == 0 {
		m.subscribeOne(t)
	}
	return m.streams[rapid.IntRange(0, len(m.streams)-1).Draw(t, "stream")]
}

func (m *broadcasterModel) add(t *rapid.T) {
	s, topic := m.stream(t), pick(t, "topic", m.topics...)
	p := m.position(t, topic)
	err := s.Add(m.ctx, at(topic.name, p))
	if _, subscribed := s.at[topic.name]; subscribed {
		is(t, "Add of a topic that is subscribed", err, coord.ErrConflict)
		return
	}
	must(t, "Add", err)
	s.start(topic, p)
}

func (m *broadcasterModel) remove(t *rapid.T) {
	s, topic := m.stream(t), pick(t, "topic", m.topics...)
	s.Remove(topic.name)
	delete(s.at, topic.name)
	delete(s.doomed, topic.name)
}

func (m *broadcasterModel) closeOne(t *rapid.T) {
	if len(m.streams) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.streams)-1).Draw(t, "stream")
	m.streams[i].Close()
	m.streams = append(m.streams[:i:i], m.streams[i+1:]...)
}

func (m *broadcasterModel) topic(name string) *modelTopic {
	for _, topic := range m.topics {
		if topic.name == name {
			return topic
		}
	}
	return nil
}

func (m *broadcasterModel) behind(s *modelStream) bool {
	for name, p := range s.at {
		if p != m.topic(name).head() {
			return true
		}
	}
	return false
}

// drainOne reads a stream until it has all, and checks each event and reset.
func (m *broadcasterModel) drainOne(t *rapid.T) {
	s := m.stream(t)
	for m.behind(s) {
		events, err := s.Next(m.ctx)
		reset, isReset := errors.AsType[*coord.ResetError](err)
		switch {
		case isReset:
			m.reset(t, s, reset)
		case err != nil:
			t.Fatalf("Next of a stream at %v: %v", s.at, err)
		}
		for _, e := range events {
			m.receive(t, s, e)
		}
	}
	equal(t, "Positions of a stream that has all", s.Positions(), s.at)
}

func (m *broadcasterModel) reset(t *rapid.T, s *modelStream, reset *coord.ResetError) {
	topic, p := m.topic(reset.Topic), s.at[reset.Topic]
	if topic == nil {
		t.Fatalf("a reset of the topic %q, which is not subscribed", reset.Topic)
	}
	reasons := topic.resume(p)
	if !slices.Contains(reasons, reset.Reason) {
		t.Fatalf("a reset of %s (%s) for a reader at %v; the topic is at %v and trimmed up to %d, so the reasons may be %q",
			topic.name, reset.Reason, p, topic.head(), topic.trimmed, reasons)
	}
	if !topic.has(reset.Head) || reset.Head.Seq < topic.trimmed {
		t.Fatalf("a reset of %s goes on behind %v; the topic is at %v", topic.name, reset.Head, topic.head())
	}
	s.at[topic.name], s.doomed[topic.name] = reset.Head, false
}

func (m *broadcasterModel) receive(t *rapid.T, s *modelStream, e coord.Event) {
	topic := m.topic(e.Topic)
	p, subscribed := s.at[e.Topic]
	if !subscribed {
		t.Fatalf("an event of the topic %q, which is not subscribed", e.Topic)
	}
	if s.doomed[e.Topic] {
		t.Fatalf("the event %v of %s for a reader at %v, which can't be resumed; want a reset first", e.Position, e.Topic, p)
	}
	if p.Seq >= int64(len(topic.all)) {
		t.Fatalf("the event %v (%q) of %s for a reader at %v, which is the last", e.Position, e.Payload, e.Topic, p)
	}
	if next, payload := topic.all[p.Seq], topic.payloads[p.Seq]; e.Position != next || string(e.Payload) != payload {
		t.Fatalf("the event %v (%q) of %s for a reader at %v; want the next, %v (%q)",
			e.Position, e.Payload, e.Topic, p, next, payload)
	}
	s.at[e.Topic] = e.Position
}

func (m *broadcasterModel) readOne(t *rapid.T) {
	topic := pick(t, "topic", m.topics...)
	from, limit := m.position(t, topic), rapid.IntRange(1, 5).Draw(t, "limit")
	events, err := m.backend(t).Broadcaster().Read(m.ctx, topic.name, from, limit)
	from = settled(topic, from)
	reasons := topic.resume(from)
	if reset, isReset := errors.AsType[*coord.ResetError](err); isReset {
		if slices.Contains(reasons, reset.Reason) {
			equal(t, "Head of the reset", reset.Head, topic.head())
			return
		}
		t.Fatalf("Read from %v of %s: %v; the reasons may be %q", from, topic.name, err, reasons)
	}
	must(t, "Read", err)
	if len(reasons) > 0 {
		t.Fatalf("Read from %v of %s found %s; want a reset (%q)", from, topic.name, show(events), reasons)
	}
	equal(t, "how many events Read found", len(events), min(limit, len(topic.all)-int(from.Seq)))
	for i, e := range events {
		equal(t, "an event that Read found", e.Position, topic.all[from.Seq+int64(i)])
		equal(t, "its payload", string(e.Payload), topic.payloads[from.Seq+int64(i)])
	}
}

func (m *broadcasterModel) trimOne(t *rapid.T) {
	topic, keep := pick(t, "topic", m.topics...), rapid.IntRange(1, 4).Draw(t, "keep")
	for {
		n, err := m.backend(t).Broadcaster().Trim(m.ctx, coord.EventRetention{Prefix: topic.name, Keep: keep})
		must(t, "Trim", err)
		if n == 0 {
			break
		}
	}
	topic.trimmed = max(topic.trimmed, int64(len(topic.all)-keep))
}

func (m *broadcasterModel) compare(t *rapid.T) {
	names, want := []string{}, map[string]coord.Position{}
	for _, topic := range m.topics {
		names = append(names, topic.name)
		want[topic.name] = topic.head()
	}
	heads, err := m.two.Broadcaster().Heads(m.ctx, names...)
	must(t, "Heads", err)
	equal(t, "the heads", heads, want)
}
