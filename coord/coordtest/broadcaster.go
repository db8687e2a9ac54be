package coordtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func event(topic, payload string) coord.NewEvent {
	return coord.NewEvent{Topic: topic, Kind: "test", Payload: []byte(payload)}
}

// numbered are events 1 to n of a topic, with their numbers as payloads.
func numbered(topic string, n int) (events []coord.NewEvent) {
	for i := range n {
		events = append(events, event(topic, fmt.Sprint(i+1)))
	}
	return events
}

func at(topic string, p coord.Position) map[string]coord.Position {
	return map[string]coord.Position{topic: p}
}

func (f *fixture) publish(b coord.Backend, events ...coord.NewEvent) []coord.Position {
	f.Helper()
	positions, err := b.Broadcaster().Publish(f.ctx, events...)
	must(f, "Publish", err)
	if len(positions) != len(events) {
		f.Fatalf("Publish of %d events returned %d positions", len(events), len(positions))
	}
	return positions
}

// subscribe opens a stream, which is closed at the end of the test.
func (f *fixture) subscribe(b coord.Backend, from map[string]coord.Position) coord.Stream {
	f.Helper()
	stream, err := b.Broadcaster().Subscribe(f.ctx, from)
	must(f, "Subscribe", err)
	f.Cleanup(stream.Close)
	return stream
}

// next reads exactly n events.
func (f *fixture) next(s coord.Stream, n int) (events []coord.Event) {
	f.Helper()
	for len(events) < n {
		more, err := s.Next(f.ctx)
		if err != nil {
			f.Fatalf("Next, when %d of %d events had come: %v", len(events), n, err)
		}
		if len(more) == 0 {
			f.Fatal("Next returned neither events nor an error")
		}
		events = append(events, more...)
	}
	if len(events) > n {
		f.Fatalf("Next returned %d events; want %d, the next of which would be %q of topic %q", len(events), n,
			events[n].Payload, events[n].Topic)
	}
	return events
}

// nextNumbered reads numbered events from one number to another.
func (f *fixture) nextNumbered(s coord.Stream, topic string, from, to int) []coord.Event {
	f.Helper()
	events := f.next(s, to-from+1)
	f.areNumbered(events, topic, from)
	return events
}

func (f *fixture) areNumbered(events []coord.Event, topic string, from int) {
	f.Helper()
	for i, e := range events {
		if e.Topic != topic || e.Position.Seq != int64(from+i) || string(e.Payload) != fmt.Sprint(from+i) {
			f.Fatalf("event %d of the reading is %q at %v of topic %q; want %d of topic %q, then each that follows",
				i+1, show(string(e.Payload)), e.Position, e.Topic, from+i, topic)
		}
	}
}

func (f *fixture) head(topic string) coord.Position {
	f.Helper()
	heads, err := f.two.Broadcaster().Heads(f.ctx, topic)
	must(f, "Heads", err)
	return heads[topic]
}

func (f *fixture) read(topic string, from coord.Position, limit int) []coord.Event {
	f.Helper()
	events, err := f.two.Broadcaster().Read(f.ctx, topic, from, limit)
	must(f, "Read", err)
	return events
}

func (f *fixture) trim(r coord.EventRetention) (n int) {
	f.Helper()
	for {
		deleted, err := f.one.Broadcaster().Trim(f.ctx, r)
		must(f, "Trim", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

// isReset checks that an error is a reset of the topic.
func isReset(r reporter, what string, err error, topic, reason string, head coord.Position) {
	r.Helper()
	is(r, what, err, coord.ErrReset)
	e, ok := errors.AsType[*coord.ResetError](err)
	if !ok {
		r.Fatalf("%s: the error is %v; want a *coord.ResetError", what, err)
	}
	equal(r, what+": the reset", *e, coord.ResetError{Topic: topic, Reason: reason, Head: head})
}

// resets checks that a position is answered by a reset, by Read and by a stream
// that then goes on behind the head, on both handles.
func (f *fixture) resets(what, topic string, from coord.Position, reason string) {
	f.Helper()
	head := f.head(topic)
	for _, b := range f.handles() {
		_, err := b.Broadcaster().Read(f.ctx, topic, from, 10)
		isReset(f, "Read from "+what, err, topic, reason, head)
		stream := f.subscribe(b, at(topic, from))
		_, err = stream.Next(f.ctx)
		isReset(f, "Next of a stream from "+what, err, topic, reason, head)
		equal(f, "the position of the stream after a reset", stream.Positions()[topic], head)
		head = f.publish(f.one, event(topic, "after the reset"))[0]
		if e := f.next(stream, 1)[0]; e.Position != head || string(e.Payload) != "after the reset" {
			f.Errorf("after a reset the stream went on with %q at %v; want the event that was published then, at %v",
				e.Payload, e.Position, head)
		}
		stream.Close()
	}
}

var broadcasterTests = []test{
	{"events arrive as they were published", func(f *fixture) {
		now := f.store.Now()
		streams := []coord.Stream{
			f.subscribe(f.one, at("t", coord.Head)), f.subscribe(f.two, at("t", coord.Head)), f.subscribe(f.two,
				at("t", coord.Start)),
		}
		positions := f.publish(f.one, coord.NewEvent{Topic: "t", Kind: "a.kind", Payload: []byte("one")}, event("t", "two"))
		equal(f, "the numbers of the first two events", []int64{positions[0].Seq, positions[1].Seq}, []int64{1, 2})
		for _, stream := range streams {
			events := f.next(stream, 2)
			e := events[0]
			equal(f, "Topic", e.Topic, "t")
			equal(f, "Kind", e.Kind, "a.kind")
			equal(f, "Payload", string(e.Payload), "one")
			equal(f, "Position", e.Position, positions[0])
			equal(f, "At", e.At, now)
			equal(f, "Position of the second", events[1].Position, positions[1])
			equal(f, "Positions of the stream", stream.Positions(), at("t", positions[1]))
		}
	}},
	{"a topic that has no events", func(f *fixture) {
		equal(f, "its head", f.head("none"), coord.Start)
		equal(f, "how many events Read finds", len(f.read("none", coord.Start, 10)), 0)
		stream := f.subscribe(f.one, at("none", coord.Start))
		f.publish(f.two, event("none", "1"))
		f.nextNumbered(stream, "none", 1, 1)
	}},
	{"one publish for several topics", func(f *fixture) {
		p := f.publish(f.one, event("b", "1"), event("a", "1"), event("b", "2"), event("a", "2"), event("c", "1"))
		equal(f, "the numbers, in the order given", []int64{p[0].Seq, p[1].Seq, p[2].Seq, p[3].Seq, p[4].Seq},
			[]int64{1, 1, 2, 2, 1})
		for topic, n := range map[string]int{"a": 2, "b": 2, "c": 1} {
			events := f.read(topic, coord.Start, 10)
			equal(f, "how many events "+topic+" has", len(events), n)
			f.areNumbered(events, topic, 1)
		}
		heads, err := f.two.Broadcaster().Heads(f.ctx, "a", "b", "none")
		must(f, "Heads", err)
		equal(f, "the heads", heads, map[string]coord.Position{"a": p[3], "b": p[2], "none": coord.Start})
	}},
	{"numbers are dense under publishers at once", dense},
	{"a stream of several topics", func(f *fixture) {
		f.publish(f.one, numbered("a", 5)...)
		f.publish(f.one, numbered("b", 5)...)
		third := f.read("b", coord.Start, 3)[2].Position
		stream := f.subscribe(f.two, map[string]coord.Position{"a": coord.Start, "b": third, "c": coord.Head})
		f.publish(f.one, event("c", "1"), event("a", "6"), event("ignored", "1"))
		got := map[string][]coord.Event{}
		for _, e := range f.next(stream, 6+2+1) {
			got[e.Topic] = append(got[e.Topic], e)
		}
		equal(f, "how many topics had events", len(got), 3)
		f.areNumbered(got["a"], "a", 1)
		f.areNumbered(got["b"], "b", 4)
		f.areNumbered(got["c"], "c", 1)
	}},
	{"payloads of every size and script", func(f *fixture) {
		stream := f.subscribe(f.two, at("t", coord.Head))
		payloads := [][]byte{
			nil,
			{},
			[]byte("x"), bytes.Repeat([]byte("a"), 7_999), bytes.Repeat([]byte("b"),
				8_000), bytes.Repeat([]byte("c"), 1_000_000),
			bytes.Repeat([]byte{0xFE}, coord.MaxPayload), []byte("😀👩‍👩‍👧‍👦 שלום مرحبا \u202e\u0000"),
			{
				0, 0xFF, 0xFE,
				'\'',
			},
			[]byte("short again"),
		}
		for i, payload := range payloads {
			sent := bytes.Clone(payload)
			f.publish(f.handles()[i%2], coord.NewEvent{Topic: "t", Kind: "k", Payload: sent})
			clear(sent) // the caller may use its slice again
		}
		for i, e := range f.next(stream, len(payloads)) {
			if !bytes.Equal(e.Payload, payloads[i]) {
				f.Errorf("payload %d of %d bytes came as %d bytes: %s", i, len(payloads[i]), len(e.Payload), show(string(e.Payload)))
			}
		}
		for i, e := range f.read("t", coord.Start, 100) {
			if !bytes.Equal(e.Payload, payloads[i]) {
				f.Errorf("payload %d of %d bytes was read as %d bytes: %s", i, len(payloads[i]), len(e.Payload),
					show(string(e.Payload)))
			}
		}
	}},
	{"odd topic names are kept apart", func(f *fixture) {
		topics := []string{"room:1", "Room:1", "room:1 ", "room_1", "ü", "u\u0308", "'", "%", strings.Repeat("x", 200)}
		for i, topic := range topics {
			for range i + 1 {
				f.publish(f.one, event(topic, "x"))
			}
		}
		for i, topic := range topics {
			equal(f, fmt.Sprintf("the number of the last event of %q", topic), f.head(topic).Seq, int64(i+1))
		}
	}},
	{"resume from every position, on any handle", func(f *fixture) {
		const n = 20
		positions := append([]coord.Position{coord.Start}, f.publish(f.one, numbered("t", n)...)...)
		for i, p := range positions {
			events := f.read("t", p, 100)
			equal(f, fmt.Sprintf("how many events Read finds behind %v", p), len(events), n-i)
			f.areNumbered(events, "t", i+1)
		}
		streams := map[int]coord.Stream{}
		for i, p := range positions {
			streams[i] = f.subscribe(f.handles()[i%2], at("t", p))
			equal(f, "Positions of a new stream", streams[i].Positions(), at("t", p))
		}
		f.publish(f.two, event("t", fmt.Sprint(n+1)))
		for i, stream := range streams {
			f.nextNumbered(stream, "t", i+1, n+1)
		}
	}},
	{"Read is bounded", func(f *fixture) {
		positions := f.publish(f.one, numbered("t", 10)...)
		f.areNumbered(f.read("t", coord.Start, 4), "t", 1)
		equal(f, "how many events Read with limit 4 finds from the start", len(f.read("t", coord.Start, 4)), 4)
		equal(f, "how many events Read with limit 4 finds", len(f.read("t", positions[2], 4)), 4)
		equal(f, "how many events Read with limit 1 finds", len(f.read("t", positions[8], 1)), 1)
		equal(f, "how many events Read finds behind the last", len(f.read("t", positions[9], 1)), 0)
		equal(f, "how many events Read finds behind Head", len(f.read("t", coord.Head, 10)), 0)
	}},
	{"a position with another tag is a reset", func(f *fixture) {
		positions := f.publish(f.one, numbered("t", 5)...)
		for _, i := range []int{4, 3, 0} { // the last one is verified by the topic itself
			wrong := positions[i]
			wrong.Tag++
			f.resets(fmt.Sprintf("a position at %d of 5 with another tag", wrong.Seq), "t", wrong, coord.ResetDiverged)
		}
	}},
	{"a position beyond the head is a reset", func(f *fixture) {
		f.publish(f.one, numbered("t", 3)...)
		f.resets("a position beyond the head", "t", coord.Position{Seq: 1000, Tag: 1}, coord.ResetDiverged)
		f.resets("a position in a topic without events", "none", coord.Position{Seq: 1, Tag: 1}, coord.ResetDiverged)
	}},
	{"a reset of one topic leaves the others alone", func(f *fixture) {
		f.publish(f.one, numbered("good", 3)...)
		f.publish(f.one, numbered("bad", 3)...)
		stream := f.subscribe(f.two, map[string]coord.Position{"good": coord.Start, "bad": {Seq: 2, Tag: 1}})
		resets, events := 0, []coord.Event(nil)
		for resets < 1 || len(events) < 3 {
			more, err := stream.Next(f.ctx)
			if errors.Is(err, coord.ErrReset) {
				resets++
			} else {
				must(f, "Next", err)
			}
			events = append(events, more...)
		}
		equal(f, "how many resets came", resets, 1)
		f.areNumbered(events, "good", 1)
		f.publish(f.one, event("bad", "4"), event("good", "4"))
		f.next(stream, 2)
	}},
	{"trimmed history is a reset", trimmed},
	{"a quiet topic that is trimmed away can be resumed", quietTopic},
	{"a key publishes once, for as long as that is kept", keys},
	{"keys in a transaction", keysInTx},
	{"a key that many publish at once, and many keys", keysAtOnce},
	{"Lag tells what a stream has not returned", func(f *fixture) {
		stream := f.subscribe(f.two, at("t", coord.Start))
		equal(f, "the lag of a stream of an empty topic", stream.Lag(), 0)
		f.publish(f.one, numbered("t", 700)...)
		behind := f.subscribe(f.two, at("t", coord.Start))
		equal(f, "the lag of a stream from the start", behind.Lag(), 700)
		f.nextNumbered(behind, "t", 1, 700)
		equal(f, "the lag of a stream that has all", behind.Lag(), 0)
		f.nextNumbered(stream, "t", 1, 700)
		equal(f, "the lag of a stream that has all", stream.Lag(), 0)
	}},
	{"Trim by age, by number and by prefix", trims},
	{"a slow reader loses nothing", func(f *fixture) {
		slow, quick := f.subscribe(f.two, at("t", coord.Head)), f.subscribe(f.two, at("t", coord.Head))
		const n, each = 4000, 500
		filler := strings.Repeat("x", 1000) // four times what a stream holds in memory
		for i := 0; i < n; i += each {
			var events []coord.NewEvent
			for k := range each {
				events = append(events, event("t", fmt.Sprint(i+k+1, " ", filler)))
			}
			f.publish(f.one, events...)
			f.next(quick, each)
		}
		for i, e := range f.next(slow, n) {
			number, _, _ := strings.Cut(string(e.Payload), " ")
			if e.Position.Seq != int64(i+1) || number != fmt.Sprint(i+1) {
				f.Fatalf("event %d of a slow reader has number %d and payload %s", i+1, e.Position.Seq, show(string(e.Payload)))
			}
		}
		f.publish(f.one, event("t", "live"))
		equal(f, "the next live event of the slow reader", string(f.next(slow, 1)[0].Payload), "live")
	}},
	{"ten thousand missed events all come", func(f *fixture) {
		events := numbered("t", 10_000)
		first := f.publish(f.one, events[0])[0]
		for rest := events[1:]; len(rest) > 0; rest = rest[min(1000, len(rest)):] {
			f.publish(f.one, rest[:min(1000, len(rest))]...)
		}
		stream := f.subscribe(f.two, at("t", first))
		f.nextNumbered(stream, "t", 2, 10_000)
		f.publish(f.one, event("t", "10001"))
		f.nextNumbered(stream, "t", 10_001, 10_001)
	}},
	{"nothing is missed between catching up and live", func(f *fixture) {
		const n = 600
		all := numbered("t", n)
		f.publish(f.one, all[:100]...)
		streams := []coord.Stream{f.subscribe(f.one, at("t", coord.Start)), f.subscribe(f.two, at("t", coord.Start))}
		var publisher sync.WaitGroup
		publisher.Go(func() {
			for i := 100; i < n; i += 5 {
				if _, err := f.one.Broadcaster().Publish(f.ctx, all[i:i+5]...); err != nil {
					f.Errorf("Publish: %v", err)
					return
				}
			}
		})
		for _, stream := range streams {
			f.nextNumbered(stream, "t", 1, n)
		}
		publisher.Wait()
	}},
	{"subscribing while others publish misses nothing", func(f *fixture) {
		const n = 300
		all := numbered("t", n)
		var publisher sync.WaitGroup
		publisher.Go(func() {
			for i := range n {
				if _, err := f.one.Broadcaster().Publish(f.ctx, all[i]); err != nil {
					f.Errorf("Publish: %v", err)
					return
				}
			}
		})
		for i := range 20 {
			stream := f.subscribe(f.handles()[i%2], at("t", coord.Head))
			from := int(stream.Positions()["t"].Seq)
			f.nextNumbered(stream, "t", from+1, n)
			stream.Close()
		}
		publisher.Wait()
	}},
	{"Add and Remove", addRemove},
	{"Close of a stream", func(f *fixture) {
		stream := f.subscribe(f.one, at("t", coord.Head))
		waiting := make(chan error, 1)
		go func() {
			_, err := stream.Next(f.ctx)
			waiting <- err
		}()
		stream.Close()
		is(f, "Next that waited while the stream was closed", <-waiting, coord.ErrClosed)
		for range 2 {
			_, err := stream.Next(f.ctx)
			is(f, "Next after Close", err, coord.ErrClosed)
		}
		is(f, "Add after Close", stream.Add(f.ctx, at("u", coord.Head)), coord.ErrClosed)
		stream.Remove("t")
		stream.Close()
		f.publish(f.one, event("t", "x")) // a closed stream is in nobody's way
	}},
	{"Next ends with its context, and loses nothing", func(f *fixture) {
		stream := f.subscribe(f.one, at("t", coord.Head))
		for i := range 3 {
			ctx, cancel := context.WithCancel(f.ctx)
			waiting := make(chan error, 1)
			go func() {
				_, err := stream.Next(ctx)
				waiting <- err
			}()
			cancel()
			is(f, "Next whose context was cancelled", <-waiting, context.Canceled)
			f.publish(f.two, event("t", fmt.Sprint(i+1)))
			f.nextNumbered(stream, "t", i+1, i+1)
		}
	}},
	{"a stream outlives the context of Subscribe", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.ctx)
		stream, err := f.one.Broadcaster().Subscribe(ctx, at("t", coord.Head))
		must(f, "Subscribe", err)
		defer stream.Close()
		cancel()
		f.publish(f.two, event("t", "1"))
		f.nextNumbered(stream, "t", 1, 1)
	}},
	{"many streams", func(f *fixture) {
		var streams []coord.Stream
		for i := range 200 {
			streams = append(streams, f.subscribe(f.handles()[i%2],
				map[string]coord.Position{"t": coord.Head, fmt.Sprint("own", i): coord.Head}))
		}
		f.publish(f.one, numbered("t", 3)...)
		for i, stream := range streams {
			f.nextNumbered(stream, "t", 1, 3)
			if i%2 == 0 {
				stream.Close()
			}
		}
		f.publish(f.two, event("t", "4"))
		for i, stream := range streams {
			if i%2 == 1 {
				f.nextNumbered(stream, "t", 4, 4)
			}
		}
	}},
}

func dense(f *fixture) {
	topics := []string{"a", "b", "c"}
	stream := f.subscribe(f.two, map[string]coord.Position{"a": coord.Start, "b": coord.Start, "c": coord.Start})
	const publishers, times = 8, 20
	var mu sync.Mutex
	published := map[string]map[coord.Position]string{"a": {}, "b": {}, "c": {}}
	f.together(publishers, func(i int, b coord.Backend) {
		for k := range times {
			// Each publish is for two topics, in an order that differs.
			var events []coord.NewEvent
			for _, topic := range []string{topics[(i+k)%3], topics[(i+2*k+1)%3], topics[(i+k)%3]} {
				events = append(events, event(topic, fmt.Sprint(i, ".", k, ".", len(events))))
			}
			positions, err := b.Broadcaster().Publish(f.ctx, events...)
			if err != nil {
				f.Errorf("Publish: %v", err)
				return
			}
			mu.Lock()
			for n, p := range positions {
				published[events[n].Topic][p] = string(events[n].Payload)
			}
			mu.Unlock()
		}
	})
	if f.Failed() {
		return
	}
	received := map[string]map[coord.Position]string{"a": {}, "b": {}, "c": {}}
	last := map[string]int64{}
	for _, e := range f.next(stream, publishers*times*3) {
		if e.Position.Seq != last[e.Topic]+1 {
			f.Fatalf("topic %q: event %d came after %d", e.Topic, e.Position.Seq, last[e.Topic])
		}
		last[e.Topic]++
		received[e.Topic][e.Position] = string(e.Payload)
	}
	for _, topic := range topics {
		if !maps.Equal(published[topic], received[topic]) {
			f.Errorf("topic %q: %d events were published and %d received, and they are not the same", topic,
				len(published[topic]), len(received[topic]))
		}
		// The events of one publish stay in their order.
		for p, payload := range received[topic] {
			first, isThird := strings.CutSuffix(payload, ".2")
			if !isThird {
				continue
			}
			for q, other := range received[topic] {
				if other == first+".0" && q.Seq > p.Seq {
					f.Errorf("topic %q: the first event of a publish has number %d and the third %d", topic, q.Seq, p.Seq)
				}
			}
		}
	}
}

func trimmed(f *fixture) {
	positions := f.publish(f.one, numbered("t", 10)...)
	equal(f, "how many events Keep 3 deleted", f.trim(coord.EventRetention{Keep: 3}), 7)
	f.areNumbered(f.read("t", positions[7], 10), "t", 9)
	stream := f.subscribe(f.two, at("t", positions[7]))
	f.nextNumbered(stream, "t", 9, 10)
	// All that follows event 7 is there, and tells that the history is the same.
	f.areNumbered(f.read("t", positions[6], 10), "t", 8)
	stream = f.subscribe(f.two, at("t", positions[6]))
	f.nextNumbered(stream, "t", 8, 10)
	wrong := positions[6]
	wrong.Tag++
	f.resets("a position that was trimmed, with another tag", "t", wrong, coord.ResetDiverged)
	f.resets("a position that was trimmed", "t", positions[2], coord.ResetTrimmed)
	f.resets("the start of a topic that was trimmed", "t", coord.Start, coord.ResetTrimmed)

	f.publish(f.one, numbered("late", 5)...)
	stream = f.subscribe(f.two, at("late", coord.Start))
	f.trim(coord.EventRetention{Keep: 1, Prefix: "late"})
	events, err := stream.Next(f.ctx) // what it had not read is gone, or was at hand already
	if err == nil {
		f.areNumbered(events, "late", 1)
	} else {
		isReset(f, "Next of a stream that was behind when its topic was trimmed", err, "late", coord.ResetTrimmed, f.head("late"))
	}
}

func quietTopic(f *fixture) {
	positions := f.publish(f.one, numbered("t", 5)...)
	f.store.Advance(2 * time.Hour)
	equal(f, "how many events Age 1h deleted", f.trim(coord.EventRetention{Age: time.Hour}), 5)
	equal(f, "the head of a topic without events", f.head("t"), positions[4])
	equal(f, "how many events Read finds behind the head", len(f.read("t", positions[4], 10)), 0)
	stream := f.subscribe(f.two, at("t", positions[4]))
	wrong := positions[4]
	wrong.Tag++
	_, err := f.two.Broadcaster().Read(f.ctx, "t", wrong, 10)
	isReset(f, "Read from the head with another tag", err, "t", coord.ResetDiverged, positions[4])
	_, err = f.two.Broadcaster().Read(f.ctx, "t", positions[3], 10)
	isReset(f, "Read from before the head", err, "t", coord.ResetTrimmed, positions[4])
	_, err = f.two.Broadcaster().Read(f.ctx, "t", coord.Start, 10)
	isReset(f, "Read from the start", err, "t", coord.ResetTrimmed, positions[4])
	equal(f, "the number of the next event", f.publish(f.one, event("t", "6"))[0].Seq, int64(6))
	// The event itself is gone, and still it can be told that the history is the same.
	f.nextNumbered(stream, "t", 6, 6)
	f.areNumbered(f.read("t", positions[4], 10), "t", 6)
	for _, b := range f.handles() {
		f.nextNumbered(f.subscribe(b, at("t", positions[4])), "t", 6, 6)
	}
	f.resets("what was the head, with another tag", "t", wrong, coord.ResetDiverged)
	f.store.Advance(2 * time.Hour)
	f.trim(coord.EventRetention{Age: time.Hour})
	f.resets("a position whose next was trimmed", "t", positions[4], coord.ResetTrimmed)
}

// once is an event with a key.
func once(topic, key, payload string) coord.NewEvent {
	e := event(topic, payload)
	e.Key = key
	return e
}

// payloadsOf are those of the events that a topic has.
func (f *fixture) payloadsOf(topic string) (list []string) {
	f.Helper()
	for i, e := range f.read(topic, coord.Start, 1000) {
		equal(f, "the number of an event of "+topic, e.Position.Seq, int64(i+1))
		list = append(list, string(e.Payload))
	}
	return list
}

func keys(f *fixture) {
	stream := f.subscribe(f.two, map[string]coord.Position{"t": coord.Head, "u": coord.Head})
	first := f.publish(f.one, once("t", "a", "1"))[0]
	for _, b := range f.handles() {
		equal(f, "the position of an event whose key is known", f.publish(b, once("t", "a", "again"))[0], first)
	}
	equal(f, "the head", f.head("t"), first)

	// In one call, beside others and with twins of its own.
	p := f.publish(f.two, event("t", "2"), once("t", "b", "3"), once("u", "a", "1"), once("t", "a", "again"),
		once("t", "b", "again"), event("t", "4"), once("u", "a", "again"), once("t", "B", "5"), once("t", "ü '\\", "6"), event("u", "2"))
	equal(f, "the numbers", []int64{p[0].Seq, p[1].Seq, p[2].Seq, p[5].Seq, p[7].Seq, p[8].Seq, p[9].Seq}, []int64{2, 3, 1, 4, 5, 6, 2})
	equal(f, "the position of an earlier call's", p[3], first)
	equal(f, "the position of a twin", p[4], p[1])
	equal(f, "the position of a twin on another topic", p[6], p[2])
	equal(f, "the position of an odd key", f.publish(f.one, once("t", "ü '\\", "again"))[0], p[8])
	equal(f, "the payloads of t", f.payloadsOf("t"), []string{"1", "2", "3", "4", "5", "6"})
	equal(f, "the payloads of u", f.payloadsOf("u"), []string{"1", "2"})
	equal(f, "the head of t", f.head("t"), p[8])
	f.next(stream, 8)

	// What follows a key, and what comes from behind it, is verified as all is.
	f.areNumbered(f.read("t", first, 10), "t", 2)
	f.publish(f.one, event("t", "7"))
	f.areNumbered(f.read("t", p[8], 10), "t", 7)

	// A key is free when its event is gone, and only then.
	f.trim(coord.EventRetention{Keep: 5, Prefix: "t"})
	again := f.publish(f.one, once("t", "a", "8"), once("t", "b", "again"), once("t", "B", "again"))
	equal(f, "the number of a key whose event was trimmed", again[0].Seq, int64(8))
	equal(f, "the position of a key that is kept", again[1], p[1])
	f.next(stream, 2)
	f.trim(coord.EventRetention{Keep: 1})
	equal(f, "the position of the last", f.publish(f.two, once("t", "a", "again"))[0], again[0])
	equal(f, "the number of a key whose event was trimmed", f.publish(f.two, once("t", "b", "9"))[0].Seq, int64(9))
}

func keysInTx(f *fixture) {
	publish := func(own error, events ...coord.NewEvent) {
		f.Helper()
		err := f.two.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			for _, e := range events {
				if err := tx.Publish(ctx, e); err != nil {
					return err
				}
			}
			return own
		})
		if !errors.Is(err, own) {
			f.Fatalf("InTx: %v, want %v", err, own)
		}
	}
	publish(errOwn, once("t", "a", "rolled back"))
	publish(nil, once("t", "a", "1"), once("t", "a", "twin"), event("t", "2"), once("u", "a", "1"))
	publish(nil, once("t", "a", "again"))
	publish(nil, once("t", "a", "again"), once("t", "b", "3"), event("t", "4"))
	publish(errOwn, once("t", "c", "rolled back"))
	f.publish(f.one, once("t", "b", "again"), once("t", "c", "5"))
	equal(f, "the payloads of t", f.payloadsOf("t"), []string{"1", "2", "3", "4", "5"})
	equal(f, "the payloads of u", f.payloadsOf("u"), []string{"1"})
}

func keysAtOnce(f *fixture) {
	const publishers, rounds = 8, 12
	topics := []string{"a", "b", "c"}
	var mu sync.Mutex
	positions := map[string]map[coord.Position]bool{}
	f.together(publishers, func(i int, b coord.Backend) {
		for k := range rounds {
			// All publish the same keys, each in an order of its own, beside events without.
			var events []coord.NewEvent
			for n := range topics {
				topic := topics[(i+n)%3]
				events = append(events, once(topic, fmt.Sprint(k), fmt.Sprint("key ", k)), event(topic, fmt.Sprint("own ", i, " ", k)))
			}
			if i%4 == 3 {
				err := b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Publish(ctx, events...) })
				if err != nil {
					f.Errorf("InTx: %v", err)
				}
				continue
			}
			published, err := b.Broadcaster().Publish(f.ctx, events...)
			if err != nil {
				f.Errorf("Publish: %v", err)
				return
			}
			mu.Lock()
			for n, e := range events {
				if e.Key != "" {
					of := e.Topic + e.Key
					if positions[of] == nil {
						positions[of] = map[coord.Position]bool{}
					}
					positions[of][published[n]] = true
				}
			}
			mu.Unlock()
		}
	})
	if f.Failed() {
		return
	}
	for of, all := range positions {
		equal(f, "how many positions the key of "+of+" has", len(all), 1)
	}
	for _, topic := range topics {
		times := map[string]int{}
		for _, payload := range f.payloadsOf(topic) {
			times[payload]++
		}
		equal(f, "how many different events "+topic+" has", len(times), rounds+publishers*rounds)
		for payload, n := range times {
			equal(f, "how often "+topic+" has "+payload, n, 1)
		}
	}
}

func trims(f *fixture) {
	f.publish(f.one, numbered("old:1", 5)...)
	f.publish(f.one, numbered("old_2", 5)...)
	f.publish(f.one, numbered("oldest", 5)...)
	f.store.Advance(time.Hour)
	f.publish(f.one, event("old:1", "6"))
	equal(f, "how many events a Trim without a retention deleted", f.trim(coord.EventRetention{}), 0)
	equal(f, "how many events Age 2h deleted", f.trim(coord.EventRetention{Age: 2 * time.Hour}), 0)
	equal(f, "how many events Age 30m of old: deleted", f.trim(coord.EventRetention{Prefix: "old:", Age: 30 * time.Minute}), 5)
	equal(f, "how many events Age 30m of old_ deleted, in which _ is no wildcard",
		f.trim(coord.EventRetention{Prefix: "old_", Age: 30 * time.Minute}), 5)
	equal(f, "how many events of another prefix are left", len(f.read("oldest", coord.Start, 10)), 5)
	equal(f, "how many events Keep 4 deleted", f.trim(coord.EventRetention{Keep: 4}), 1)
	equal(f, "how many events Age 30m with a high Keep deleted",
		f.trim(coord.EventRetention{Age: 30 * time.Minute, Keep: 100}), 4)
	equal(f, "the number of the last event of old:1", f.head("old:1").Seq, int64(6))

	var last []coord.Position
	for range 3 {
		last = f.publish(f.one, numbered("many", 1000)...)
	}
	equal(f, "how many events Keep 10 deleted of 3,000", f.trim(coord.EventRetention{Keep: 10, Prefix: "many"}), 2990)
	equal(f, "how many events are left behind the tenth last", len(f.read("many", last[990], 100)), 9)
}

func addRemove(f *fixture) {
	stream := f.subscribe(f.two, nil)
	equal(f, "Positions of a stream without topics", len(stream.Positions()), 0)
	positions := f.publish(f.one, numbered("a", 3)...)
	must(f, "Add", stream.Add(f.ctx, map[string]coord.Position{"a": positions[0], "b": coord.Head}))
	is(f, "Add of a topic that is subscribed", stream.Add(f.ctx, at("a", coord.Head)), coord.ErrConflict)
	f.nextNumbered(stream, "a", 2, 3)
	f.publish(f.one, event("b", "1"))
	last := f.nextNumbered(stream, "b", 1, 1)[0].Position
	equal(f, "Positions", stream.Positions(), map[string]coord.Position{"a": positions[2], "b": last})

	f.publish(f.one, event("a", "4"))
	stream.Remove("a", "unknown")
	equal(f, "Positions after Remove", stream.Positions(), at("b", last))
	f.publish(f.one, event("a", "5"), event("b", "2"))
	f.nextNumbered(stream, "b", 2, 2) // and none of a, although one may have been at hand

	must(f, "Add of a topic that was removed", stream.Add(f.ctx, at("a", positions[2])))
	f.nextNumbered(stream, "a", 4, 5)

	// Next that waits hears of a topic that is added meanwhile.
	got := make(chan []coord.Event, 1)
	go func() {
		events, err := stream.Next(f.ctx)
		if err != nil {
			f.Errorf("Next: %v", err)
		}
		got <- events
	}()
	f.publish(f.one, event("c", "1"))
	must(f, "Add", stream.Add(f.ctx, at("c", coord.Start)))
	f.areNumbered(<-got, "c", 1)

	is(f, "Add with a position that is none", stream.Add(f.ctx, at("d", coord.Position{Seq: -7})), coord.ErrInvalid)
}
