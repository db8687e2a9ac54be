package hub

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// scribe writes down what an outbox gives out. It is done with a message when told so.
type scribe struct {
	outbox
	now     atomic.Int64
	written []string
}

func newScribe(limit int) *scribe {
	s := &scribe{}
	s.now.Store(time.Now().UnixNano())
	s.outbox = outbox{limit: limit, clock: &s.now, busy: true, write: func(frames []*frame) {
		var m messages
		s.written = append(s.written, string(m.of(frames)))
	}}
	return s
}

func (s *scribe) pass(d time.Duration) { s.now.Add(int64(d)) }

func text(s string) *frame { return &frame{json: []byte(s)} }

func (s *scribe) offerText(texts ...string) bool {
	var frames []*frame
	for _, t := range texts {
		frames = append(frames, text(t))
	}
	return s.offer(frames, costOf(frames))
}

func TestOutboxIsBounded(t *testing.T) {
	o := newScribe(3 * text("1234").cost())
	o.open(text("first"))
	taken := 0
	for o.offerText("1234") {
		taken++
	}
	if taken != 3 || len(o.written) != 1 {
		t.Fatalf("%d frames went in and %v out; want 3 and the first", taken, o.written)
	}
	o.put(text("answer"), text("answer")) // are few and always fit
	o.sent()
	if len(o.written) != 2 || o.written[1] != "[1234,1234,1234,answer,answer]" {
		t.Fatalf("%v went out", o.written)
	}
	if !o.offerText("1234", "1234", "1234", "1234") {
		t.Error("where nothing waits there is room for anything")
	}
	o.close()
	if o.bytes != 0 || !o.offerText("late") || len(o.frames) != 0 {
		t.Error("it keeps frames after close")
	}
	o.sent()
	if len(o.written) != 2 {
		t.Errorf("%v went out after close", o.written[2:])
	}
}

func TestOutboxFindsSlowClients(t *testing.T) {
	const after = 10 * time.Second
	o := newScribe(1000)
	slow := func() bool { return o.slow(o.now.Load(), after) }
	o.put(text("early")) // waits until the client is there
	o.pass(time.Minute)
	if slow() {
		t.Error("slow before it is there")
	}
	o.open(text("first"))
	for range 10 { // not quick, but never slow
		o.pass(after - time.Second)
		o.put(text("x"))
		if slow() {
			t.Error("slow though it takes one message after another")
		}
		o.sent()
	}
	o.sent()
	o.pass(time.Minute)
	if slow() {
		t.Error("slow though nothing waits for it")
	}
	o.put(text("x"))
	o.pass(after + time.Millisecond)
	if !slow() {
		t.Error("not slow")
	}

	// It is sooner when as much waits as may.
	o = newScribe(1000)
	o.open(text("first"))
	for o.offerText(strings.Repeat("x", 100)) {
	}
	o.pass(fullGrace - time.Millisecond)
	if slow() {
		t.Error("slow at once")
	}
	o.pass(2 * time.Millisecond)
	if !slow() {
		t.Error("not slow although its queue is full")
	}
	o.sent()
	if slow() {
		t.Error("slow although it has taken a message")
	}
}

func TestOutboxBatches(t *testing.T) {
	o := newScribe(1 << 20)
	o.open(text("first"))
	large := strings.Repeat("x", batchBytes+1)
	for _, frame := range []string{"a", large, "b", "c"} {
		o.put(text(frame))
	}
	for range 4 {
		o.sent()
	}
	o.put(text(large)) // also when nothing waits
	want := []string{"first", "a", large, "[b,c]", large}
	if len(o.written) != len(want) {
		t.Fatalf("%d messages went out, want %d", len(o.written), len(want))
	}
	for i := range want {
		if o.written[i] != want[i] {
			t.Errorf("message %d has %d bytes, want %d", i, len(o.written[i]), len(want[i]))
		}
	}
}

func TestOutboxTellsOfRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newScribe(1000)
		o.open(text("first"))
		for o.offerText(strings.Repeat("x", 100)) {
		}
		var room atomic.Int32
		for range 2 {
			go func() {
				if o.waitForRoom() {
					room.Add(1)
				} else {
					room.Add(100)
				}
			}()
		}
		synctest.Wait()
		if room.Load() != 0 {
			t.Fatal("there is room in a full queue")
		}
		o.sent()
		synctest.Wait()
		if room.Load() != 2 {
			t.Fatalf("%d know that there is room", room.Load())
		}
		for o.offerText(strings.Repeat("x", 100)) {
		}
		go func() {
			if !o.waitForRoom() {
				room.Add(1)
			}
		}()
		synctest.Wait()
		o.close()
		synctest.Wait()
		if room.Load() != 3 {
			t.Error("who waits for room was not told of the end")
		}
	})
}

// What tells a client to go is not lost when the connection is closed while an earlier
// message is still being written.
func TestOutboxKeepsTheFarewell(t *testing.T) {
	o := newScribe(1 << 20)
	o.open(text("first"))
	o.put(text("event"))
	farewell := text("farewell")
	o.farewell(farewell)
	if unsent := o.close(); unsent != farewell {
		t.Errorf("close returned %v", unsent)
	}
	if unsent := o.close(); unsent != nil {
		t.Errorf("close returned %v again", unsent)
	}

	for _, busy := range []bool{true, false} {
		o = newScribe(1 << 20)
		o.open(text("first"))
		if !busy {
			o.sent()
		}
		o.farewell(farewell)
		o.sent() // and the farewell goes out
		if unsent := o.close(); unsent != nil {
			t.Errorf("close returned %v, which was sent", unsent)
		}
	}
}
