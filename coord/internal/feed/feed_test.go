package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandemhq/tandem/coord"
)

// env is a hub over a history, within a synctest bubble.
type env struct {
	*testing.T
	hub *Hub
	*history
}

func bubble(t *testing.T, test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHistory()
		test(&env{t, New(h), h})
	})
}

func (e *env) subscribe(from map[string]coord.Position) coord.Stream {
	e.Helper()
	s, err := e.hub.Subscribe(e.Context(), from)
	if err != nil {
		e.Fatalf("Subscribe: %v", err)
	}
	return s
}

// deliver publishes and hands on.
func (e *env) deliver(topic string, n int) { e.hub.Deliver(e.publish(topic, n, 10)) }

// drain returns what Next has until it would wait, or its error.
func (e *env) drain(s coord.Stream) (events []coord.Event, err error) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			var more []coord.Event
			if more, err = s.Next(ctx); err != nil {
				return
			}
			events = append(events, more...)
		}
	}()
	synctest.Wait()
	cancel()
	<-done
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return events, err
}

func seqs(events []coord.Event, topic string) (list []int64) {
	for _, e := range events {
		if e.Topic == topic {
			list = append(list, e.Position.Seq)
		}
	}
	return list
}

func count(from, to int64) (list []int64) {
	for i := from; i <= to; i++ {
		list = append(list, i)
	}
	return list
}

// expect drains a stream and compares the numbers of a topic's events.
func (e *env) expect(what string, s coord.Stream, topic string, want []int64) {
	e.Helper()
	events, err := e.drain(s)
	if err != nil {
		e.Fatalf("%s: Next: %v", what, err)
	}
	if got := seqs(events, topic); !slices.Equal(got, want) {
		e.Errorf("%s: the stream returned %v, want %v", what, got, want)
	}
}

func from(topic string, p coord.Position) map[string]coord.Position {
	return map[string]coord.Position{topic: p}
}

func TestStartHeadAndPosition(t *testing.T) {
	bubble(t, func(e *env) {
		old := e.publish("t", 3, 10)
		start, head := e.subscribe(from("t", coord.Start)), e.subscribe(from("t", coord.Head))
		middle := e.subscribe(from("t", old[1].Position))
		none := e.subscribe(from("other", coord.Head))
		if got := head.Positions()["t"]; got != old[2].Position {
			e.Errorf("Positions of a stream from Head is %v, want %v", got, old[2].Position)
		}
		if got := none.Positions()["other"]; got != coord.Start {
			e.Errorf("Positions in a topic without events is %v, want Start", got)
		}
		e.deliver("t", 2)
		e.expect("from Start", start, "t", count(1, 5))
		e.expect("from Head", head, "t", count(4, 5))
		e.expect("from a position", middle, "t", count(3, 5))
		e.expect("of another topic", none, "t", nil)
		for _, s := range []coord.Stream{start, head, middle} {
			if got, want := s.Positions()["t"], e.head("t"); got != want {
				e.Errorf("Positions is %v, want %v", got, want)
			}
		}
	})
}

func TestDeliveryAroundAdd(t *testing.T) {
	for _, start := range []coord.Position{coord.Start, coord.Head} {
		for _, published := range []string{"before", "during", "during and lost", "after"} {
			t.Run(fmt.Sprintf("%v %s", start, published), func(t *testing.T) {
				bubble(t, func(e *env) {
					e.deliver("t", 2)
					if published == "before" {
						e.deliver("t", 1)
					}
					// Between the look at the store and its answer.
					e.after = func(op, _ string) error {
						e.after = nil
						switch {
						case op == "heads" && published == "during":
							e.deliver("t", 1)
						case op == "heads" && published == "during and lost":
							e.publish("t", 1, 10)
							if err := e.hub.Resync(e.Context()); err != nil {
								e.Error(err)
							}
						}
						return nil
					}
					s := e.subscribe(from("t", start))
					e.after = nil
					if published == "after" {
						e.deliver("t", 1)
					}
					want := count(1, 3)
					if start == coord.Head {
						want = count(3, 3)
						if published == "before" {
							want = nil
						}
					}
					e.expect("the stream", s, "t", want)
				})
			})
		}
	}
}

// TestWhileReading delivers, loses and resyncs between a look at the history and
// its answer.
func TestWhileReading(t *testing.T) {
	for name, meanwhile := range map[string]func(e *env){
		"delivered":          func(e *env) { e.deliver("t", 2) },
		"delivered twice":    func(e *env) { two := e.publish("t", 2, 10); e.hub.Deliver(two); e.hub.Deliver(two) },
		"delivered partly":   func(e *env) { e.hub.Deliver(e.publish("t", 2, 10)[1:]) },
		"delivered reversed": func(e *env) { two := e.publish("t", 2, 10); e.hub.Deliver(two[1:]); e.hub.Deliver(two[:1]) },
		"lost, then resync": func(e *env) {
			e.publish("t", 2, 10)
			if err := e.hub.Resync(e.Context()); err != nil {
				e.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.publish("t", 3, 10)
				e.after = func(op, _ string) error {
					if op == "read" {
						e.after = nil
						meanwhile(e)
					}
					return nil
				}
				s := e.subscribe(from("t", coord.Start))
				e.expect("the stream", s, "t", count(1, 5))
				e.deliver("t", 1)
				e.expect("the stream, later", s, "t", count(6, 6))
			})
		})
	}
}

func TestDuplicatesAndHoles(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.subscribe(from("t", coord.Head))
		first := e.publish("t", 3, 10)
		e.hub.Deliver(first[:2])
		e.hub.Deliver(first)
		e.hub.Deliver(first[1:2])
		e.expect("duplicates", s, "t", count(1, 3))
		if e.reads != 0 {
			e.Errorf("duplicates caused %d reads of the store", e.reads)
		}
		second := e.publish("t", 4, 10)
		e.hub.Deliver(second[:1])
		e.hub.Deliver(second[2:]) // 5 is missing
		e.hub.Deliver(second[1:2])
		e.expect("a hole", s, "t", count(4, 7))
		e.deliver("t", 1)
		reads := e.reads
		e.expect("after the hole", s, "t", count(8, 8))
		if e.reads != reads {
			e.Error("a stream that has caught up still reads the store")
		}
	})
}

func TestResync(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.subscribe(from("t", coord.Head))
		e.publish("t", 3, 10) // nobody tells
		e.expect("before Resync", s, "t", nil)
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.expect("after Resync", s, "t", count(1, 3))
		reads := e.reads
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.expect("after Resync without need", s, "t", nil)
		if e.reads != reads {
			e.Error("Resync made a stream read that was where the store is")
		}
		// The heads are older than what is delivered while they travel.
		e.after = func(op, _ string) error {
			if op == "heads" {
				e.after = nil
				e.deliver("t", 2)
			}
			return nil
		}
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.expect("with heads out of date", s, "t", count(4, 5))
		e.deliver("t", 1)
		e.expect("with heads out of date, later", s, "t", count(6, 6))
		// A topic that came after the heads were asked for.
		e.publish("new", 2, 10)
		var late coord.Stream
		e.after = func(op, _ string) error {
			if op == "heads" {
				e.after = nil
				late = e.subscribe(from("new", coord.Head))
			}
			return nil
		}
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.deliver("new", 1)
		e.expect("a topic that came during Resync", late, "new", count(3, 3))
	})
}

func TestResyncWithoutStreamsAsksNothing(t *testing.T) {
	bubble(t, func(e *env) {
		e.before = func(string, string) error { return errors.New("asked") }
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Error(err)
		}
		if e.hub.Listening() {
			e.Error("a hub without streams is listening")
		}
	})
}

func TestRemove(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.subscribe(map[string]coord.Position{"t": coord.Head, "u": coord.Head})
		e.deliver("t", 1)
		e.deliver("u", 1)
		s.Remove("t", "unknown")
		events, err := e.drain(s)
		if err != nil || len(seqs(events, "t")) > 0 || len(seqs(events, "u")) != 1 {
			e.Errorf("after Remove the stream returned %v, %v", events, err)
		}
		if _, ok := s.Positions()["t"]; ok {
			e.Error("Positions has a topic that was removed")
		}
		e.deliver("t", 1)
		if err := s.Add(e.Context(), from("t", coord.Start)); err != nil {
			e.Fatal(err)
		}
		e.expect("added again from Start", s, "t", count(1, 2))
		if err := s.Add(e.Context(), map[string]coord.Position{"v": coord.Head, "u": coord.Head}); !errors.Is(err, coord.ErrConflict) {
			e.Errorf("Add of a topic that is there: %v, want ErrConflict", err)
		}
		if _, ok := s.Positions()["v"]; ok {
			e.Error("an Add that failed added a topic")
		}
		s.Remove("t", "u")
		if e.hub.Listening() {
			e.Error("a hub whose streams have no topics is listening")
		}
	})
}

func TestRemoveWhileReading(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("added again=%v", again), func(t *testing.T) {
			bubble(t, func(e *env) {
				e.publish("t", 3, 10)
				s := e.subscribe(from("t", coord.Start))
				e.after = func(op, _ string) error {
					if op == "read" {
						e.after = nil
						s.Remove("t")
						if again {
							if err := s.Add(e.Context(), from("t", e.head("t"))); err != nil {
								e.Error(err)
							}
						}
					}
					return nil
				}
				e.expect("the stream", s, "t", nil)
				e.deliver("t", 1)
				var want []int64
				if again {
					want = count(4, 4)
				}
				e.expect("the stream, later", s, "t", want)
			})
		})
	}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	bubble(t, func(e *env) {
		away := errors.New("away")
		s := e.subscribe(from("u", coord.Head))
		e.before = func(string, string) error { return away }
		if err := s.Add(e.Context(), from("t", coord.Start)); !errors.Is(err, away) {
			e.Errorf("Add: %v", err)
		}
		if _, err := e.hub.Subscribe(e.Context(), from("t", coord.Start)); !errors.Is(err, away) {
			e.Errorf("Subscribe: %v", err)
		}
		if err := e.hub.Resync(e.Context()); !errors.Is(err, away) {
			e.Errorf("Resync: %v", err)
		}
		e.before = nil
		e.hub.mu.Lock()
		if len(e.hub.streams) != 1 || len(e.hub.topics) != 1 {
			e.Errorf("the hub has %d streams and %d topics, want one of each", len(e.hub.streams), len(e.hub.topics))
		}
		e.hub.mu.Unlock()
		e.publish("t", 1, 10)
		if err := s.Add(e.Context(), from("t", coord.Start)); err != nil {
			e.Fatal(err)
		}
		e.expect("the stream", s, "t", count(1, 1))

		// A failed Add takes back what it added, not what was added meanwhile.
		e.before = func(string, string) error {
			e.before = nil
			s.Remove("w")
			if err := s.Add(e.Context(), from("w", coord.Head)); err != nil {
				e.Error(err)
			}
			return away
		}
		if err := s.Add(e.Context(), from("w", coord.Start)); !errors.Is(err, away) {
			e.Errorf("Add: %v", err)
		}
		e.deliver("w", 1)
		e.expect("what was added meanwhile", s, "w", count(1, 1))
	})
}

func TestReadErrorsLoseNothing(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("t", 3, 10)
		s := e.subscribe(from("t", coord.Start))
		for range 3 {
			e.before = func(string, string) error { return coord.ErrUnavailable }
			if events, err := s.Next(e.Context()); !errors.Is(err, coord.ErrUnavailable) || len(events) > 0 {
				e.Fatalf("Next: %v, %v", events, err)
			}
			e.deliver("t", 1)
		}
		// An answer that was lost on its way.
		e.before, e.after = nil, func(string, string) error { e.after = nil; return coord.ErrUnavailable }
		if _, err := s.Next(e.Context()); !errors.Is(err, coord.ErrUnavailable) {
			e.Fatalf("Next: %v", err)
		}
		e.expect("the stream", s, "t", count(1, 6))
		ctx, cancel := context.WithCancel(e.Context())
		cancel()
		e.deliver("t", 1)
		if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
			e.Errorf("Next with a cancelled context: %v", err)
		}
		e.expect("the stream, later", s, "t", count(7, 7))
	})
}

func (e *env) reset(s coord.Stream, topic, reason string, head coord.Position) {
	e.Helper()
	events, err := e.drain(s)
	reset, ok := errors.AsType[*coord.ResetError](err)
	if !ok || reset.Topic != topic || reset.Reason != reason || reset.Head != head {
		e.Fatalf("Next: %v, %v; want a reset of %s, %s at %v", events, err, topic, reason, head)
	}
	if len(seqs(events, topic)) > 0 {
		e.Errorf("events of %s came before its reset: %v", topic, seqs(events, topic))
	}
	if got := s.Positions()[topic]; got != head {
		e.Errorf("after the reset Positions is %v, want %v", got, head)
	}
}

func TestResets(t *testing.T) {
	bubble(t, func(e *env) {
		old := e.publish("t", 5, 10)
		e.trim("t", 2)
		s := e.subscribe(map[string]coord.Position{"t": old[0].Position, "u": coord.Head})
		e.reset(s, "t", coord.ResetTrimmed, old[4].Position)
		e.deliver("t", 1)
		e.expect("after the reset", s, "t", count(6, 6))

		fromStart := e.subscribe(from("t", coord.Start))
		e.reset(fromStart, "t", coord.ResetTrimmed, e.head("t"))

		// All of it is trimmed, and the last position is still good: at once, and when
		// something has come behind it.
		e.trim("t", 0)
		last := e.head("t")
		quiet := e.subscribe(from("t", last))
		e.deliver("t", 1)
		e.expect("from the head of a topic that is trimmed away", quiet, "t", count(7, 7))
		e.expect("from what was that head", e.subscribe(from("t", last)), "t", count(7, 7))
		last.Tag++
		e.reset(e.subscribe(from("t", last)), "t", coord.ResetDiverged, e.head("t"))
		e.expect("the other stream", s, "t", count(7, 7))

		wrong := e.head("t")
		wrong.Tag++
		e.reset(e.subscribe(from("t", wrong)), "t", coord.ResetDiverged, e.head("t"))
		wrong.Seq += 10
		e.reset(e.subscribe(from("t", wrong)), "t", coord.ResetDiverged, e.head("t"))

		e.deliver("u", 1)
		e.expect("the topic beside", s, "u", count(1, 1))
	})
}

// TestFailover rewrites history under streams that are in front of, at and behind
// the place.
func TestFailover(t *testing.T) {
	bubble(t, func(e *env) {
		e.deliver("t", 10)
		ahead, slow := e.subscribe(from("t", coord.Start)), e.subscribe(from("t", coord.Start))
		e.expect("before", ahead, "t", count(1, 10))
		early := e.subscribe(from("t", coord.Start))
		early.Remove("t")
		if err := early.Add(e.Context(), from("t", coord.Start)); err != nil {
			e.Fatal(err)
		}
		// The slow one is behind, and hears of 11–20, of which 13–20 get lost.
		e.hub.Deliver(e.publish("t", 10, 10))
		e.expect("before, again", ahead, "t", count(11, 20))
		e.lose("t", 8)
		e.publish("t", 2, 10)
		if err := e.hub.Resync(e.Context()); err != nil {
			e.Fatal(err)
		}
		e.reset(ahead, "t", coord.ResetDiverged, e.head("t"))
		reads := e.reads
		e.expect("one that is behind", slow, "t", count(1, 14))
		if e.reads-reads > 3 {
			e.Errorf("one that is behind read the store %d times", e.reads-reads)
		}
		e.deliver("t", 1)
		for _, s := range []coord.Stream{ahead, slow} {
			e.expect("afterwards", s, "t", count(15, 15))
		}
		e.expect("one that starts", early, "t", count(1, 15))
	})
}

// TestUnnoticedFailover has the next event be the first that tells of another history.
func TestUnnoticedFailover(t *testing.T) {
	bubble(t, func(e *env) {
		e.deliver("t", 3)
		s := e.subscribe(from("t", coord.Head))
		e.deliver("t", 2)
		e.expect("before", s, "t", count(4, 5))
		e.lose("t", 1)
		e.publish("t", 1, 10) // another 5
		e.deliver("t", 1)
		e.reset(s, "t", coord.ResetDiverged, e.head("t"))
		e.deliver("t", 1)
		e.expect("afterwards", s, "t", count(7, 7))
	})
}

func TestLag(t *testing.T) {
	bubble(t, func(e *env) {
		lag := func(what string, s coord.Stream, want int64) {
			t.Helper()
			if got := s.Lag(); got != want {
				t.Errorf("%s: the lag is %d, want %d", what, got, want)
			}
		}
		e.publish("t", 600, 10)
		s := e.subscribe(from("t", coord.Start))
		head := e.subscribe(map[string]coord.Position{"t": coord.Head, "u": coord.Head})
		lag("from Start", s, 600)
		lag("from Head", head, 0)
		if _, err := s.Next(e.Context()); err != nil {
			t.Fatal(err)
		}
		lag("after a piece of history", s, 600-s.Positions()["t"].Seq)
		e.deliver("t", 2)
		e.deliver("u", 1)
		lag("with events in the queue", head, 3)
		e.publish("t", 5, 10)
		if err := e.hub.Resync(e.Context()); err != nil {
			t.Fatal(err)
		}
		lag("with events that only the store has", head, 8)
		e.expect("it catches up", head, "t", count(601, 607))
		lag("that has all", head, 0)
		e.expect("it catches up", s, "t", count(s.Positions()["t"].Seq+1, 607))
		lag("that has all", s, 0)
		e.lose("t", 3)
		if err := e.hub.Resync(e.Context()); err != nil {
			t.Fatal(err)
		}
		e.reset(s, "t", coord.ResetDiverged, e.head("t"))
		lag("after a reset", s, 0)
		s.Remove("t")
		e.deliver("t", 1)
		lag("without topics", s, 0)
	})
}

func TestOverflowIsReadFromTheStore(t *testing.T) {
	bubble(t, func(e *env) {
		s, other := e.subscribe(map[string]coord.Position{"t": coord.Head, "u": coord.Head}), e.subscribe(from("u", coord.Head))
		inner := s.(*stream)
		most := 0
		for i := range 700 {
			e.hub.Deliver(e.publish("t", 1, []int{10, 5000, QueueBytes / 3}[i%3]))
			if i%50 == 0 {
				e.deliver("u", 1)
			}
			most = max(most, inner.bytes)
		}
		if most > QueueBytes {
			e.Errorf("the stream held %d bytes, at most %d are allowed", most, QueueBytes)
		}
		if len(inner.queue) == 700 {
			e.Fatal("nothing overflowed")
		}
		events, err := e.drain(s)
		if err != nil {
			e.Fatal(err)
		}
		if got := seqs(events, "t"); !slices.Equal(got, count(1, 700)) {
			e.Errorf("the stream returned %v", got)
		}
		if got := seqs(events, "u"); !slices.Equal(got, count(1, 14)) {
			e.Errorf("of the other topic the stream returned %v", got)
		}
		e.expect("the stream beside", other, "u", count(1, 14))
		e.deliver("t", 1)
		reads := e.reads
		e.expect("afterwards", s, "t", count(701, 701))
		if e.reads != reads {
			e.Error("a stream that has caught up still reads the store")
		}

		// A single event above the bound passes.
		e.hub.Deliver(e.publish("t", 1, 2*QueueBytes))
		e.expect("a single large event", s, "t", count(702, 702))
	})
}

// TestLargeHistoryIsReadInSmallPieces: a history of large events costs no more
// memory than one of small events, but for the first look at it.
func TestLargeHistoryIsReadInSmallPieces(t *testing.T) {
	for _, large := range []int{3000, 100_000, coord.MaxPayload} {
		bubble(t, func(e *env) {
			e.publish("t", 200, large)
			s := e.subscribe(from("t", coord.Start))
			if _, err := s.Next(e.Context()); err != nil {
				e.Fatal(err)
			}
			if e.most > firstRead*(coord.MaxPayload+100) {
				e.Errorf("the first read returned %d bytes", e.most)
			}
			e.most = 0
			e.expect("the stream", s, "t", count(firstRead+1, 200))
			if e.most > max(QueueBytes, coord.MaxPayload+100) {
				e.Errorf("a read returned %d bytes of events of %d, want at most %d", e.most, large, QueueBytes)
			}
			e.reads = 0
			e.publish("small", 1000, 10)
			if err := s.Add(e.Context(), from("small", coord.Start)); err != nil {
				e.Fatal(err)
			}
			e.expect("a history of small events", s, "small", count(1, 1000))
			if e.reads > 6 {
				e.Errorf("1000 small events took %d reads", e.reads)
			}
		})
	}
}

func TestBusyTopicKeepsNoOtherWaiting(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("history", 600, 10)
		s := e.subscribe(map[string]coord.Position{"busy": coord.Head, "history": coord.Start})
		for i := int64(0); i < 10 && s.Positions()["history"].Seq < 600; i++ {
			e.deliver("busy", 1)
			if _, err := s.Next(e.Context()); err != nil {
				e.Fatal(err)
			}
		}
		if got := s.Positions()["history"].Seq; got != 600 {
			e.Errorf("beside a busy topic another one has come to %d of 600", got)
		}
		// Nor do topics with a long history keep back what is delivered.
		e.publish("long", 256*20, 10)
		if err := s.Add(e.Context(), from("long", coord.Start)); err != nil {
			e.Fatal(err)
		}
		e.drainSome(s, 2)
		e.deliver("busy", 1)
		want := e.head("busy")
		e.drainSome(s, 2)
		if got := s.Positions()["busy"]; got != want {
			e.Errorf("beside a long history the busy topic has come to %v of %v", got, want)
		}
	})
}

func (e *env) drainSome(s coord.Stream, times int) {
	e.Helper()
	for range times {
		if _, err := s.Next(e.Context()); err != nil {
			e.Fatal(err)
		}
	}
}

func TestClose(t *testing.T) {
	for _, how := range []string{"stream", "hub"} {
		for _, topics := range []map[string]coord.Position{{}, {"t": coord.Head}} {
			t.Run(fmt.Sprintf("%s with %d topics", how, len(topics)), func(t *testing.T) {
				bubble(t, func(e *env) {
					s := e.subscribe(topics)
					waiting := make(chan error)
					go func() {
						_, err := s.Next(e.Context())
						waiting <- err
					}()
					synctest.Wait()
					for range 2 {
						if how == "hub" {
							e.hub.Close()
						} else {
							s.Close()
						}
					}
					if err := <-waiting; !errors.Is(err, coord.ErrClosed) {
						e.Errorf("Next that waited: %v", err)
					}
					for range 2 {
						if _, err := s.Next(e.Context()); !errors.Is(err, coord.ErrClosed) {
							e.Errorf("Next afterwards: %v", err)
						}
					}
					if err := s.Add(e.Context(), from("u", coord.Head)); !errors.Is(err, coord.ErrClosed) {
						e.Errorf("Add afterwards: %v", err)
					}
					s.Remove("t")
					e.deliver("t", 1)
					if e.hub.Listening() || len(e.hub.streams) > 0 {
						e.Error("the hub still knows the stream")
					}
					if how == "hub" {
						if _, err := e.hub.Subscribe(e.Context(), nil); !errors.Is(err, coord.ErrClosed) {
							e.Errorf("Subscribe afterwards: %v", err)
						}
					}
				})
			})
		}
	}
}

func TestCloseDuringAdd(t *testing.T) {
	bubble(t, func(e *env) {
		e.before = func(string, string) error { e.before = nil; e.hub.Close(); return nil }
		s, err := e.hub.Subscribe(e.Context(), from("t", coord.Head))
		if err != nil {
			return
		}
		if _, err := s.Next(e.Context()); !errors.Is(err, coord.ErrClosed) {
			e.Errorf("Next: %v", err)
		}
		if e.hub.Listening() {
			e.Error("the hub still knows the stream")
		}
	})
}

func TestNextWakesUp(t *testing.T) {
	bubble(t, func(e *env) {
		s := e.subscribe(nil)
		got := make(chan []coord.Event, 10)
		var reader sync.WaitGroup
		ctx, cancel := context.WithCancel(e.Context())
		reader.Go(func() {
			for {
				events, err := s.Next(ctx)
				if err != nil {
					return
				}
				got <- events
			}
		})
		step := func(what string, do func()) {
			e.Helper()
			synctest.Wait()
			do()
			synctest.Wait()
			select {
			case <-got:
			default:
				e.Errorf("%s did not wake Next", what)
			}
		}
		e.publish("t", 1, 10)
		step("Add", func() {
			if err := s.Add(ctx, from("t", coord.Start)); err != nil {
				e.Error(err)
			}
		})
		step("Deliver", func() { e.deliver("t", 1) })
		step("a hole", func() { e.hub.Deliver(e.publish("t", 2, 10)[1:]) })
		step("Resync", func() {
			e.publish("t", 1, 10)
			if err := e.hub.Resync(ctx); err != nil {
				e.Error(err)
			}
		})
		cancel()
		reader.Wait()
	})
}

func TestVerify(t *testing.T) {
	at := func(seq int64) coord.Position { return coord.Position{Seq: seq, Tag: coord.Tag(seq * 7)} }
	events := func(seqs ...int64) (list []coord.Event) {
		for _, seq := range seqs {
			list = append(list, coord.Event{Topic: "t", Position: at(seq)})
		}
		return list
	}
	other := func(seq int64) coord.Position { return coord.Position{Seq: seq, Tag: 1} }
	for _, test := range []struct {
		name       string
		from, head coord.Position
		found      []coord.Event
		reset      string
	}{
		{"an empty topic from its start", coord.Start, coord.Start, nil, ""},
		{"an empty topic from a position", at(1), coord.Start, nil, coord.ResetDiverged},
		{"all", coord.Start, at(2), events(1, 2), ""},
		{"all, which is trimmed", coord.Start, at(2), events(2), coord.ResetTrimmed},
		{"all, which is trimmed away", coord.Start, at(2), nil, coord.ResetTrimmed},
		{"the head", at(2), at(2), nil, ""},
		{"another head", other(2), at(2), nil, coord.ResetDiverged},
		{"ahead", at(3), at(2), nil, coord.ResetDiverged},
		{"the middle", at(2), at(4), events(3, 4), ""},
		{"the middle, a piece", at(2), at(9), events(3), ""},
		{"another middle", other(2), at(4), events(3, 4), coord.ResetDiverged},
		{"a middle whose next is trimmed", at(2), at(4), events(4), coord.ResetTrimmed},
		{"a middle behind which all is trimmed", at(2), at(4), nil, coord.ResetTrimmed},
		{"a hole behind the position", at(2), at(5), events(4, 5), coord.ResetTrimmed},
		{"a hole further on", coord.Start, at(5), events(1, 2, 3, 5), coord.ResetTrimmed},
		{"a start that is none", coord.Position{Tag: 3}, at(2), events(1, 2), coord.ResetDiverged},
	} {
		var prev coord.Tag
		if len(test.found) > 0 {
			prev = at(test.found[0].Position.Seq - 1).Tag
		}
		err := Verify("t", test.from, test.head, test.found, prev)
		reset, isReset := errors.AsType[*coord.ResetError](err)
		switch {
		case test.reset == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.reset != "" && (!isReset || *reset != coord.ResetError{Topic: "t", Reason: test.reset, Head: test.head}):
			t.Errorf("%s: %v, want a reset that is %s", test.name, err, test.reset)
		}
	}
}
