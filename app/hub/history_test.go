package hub

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/coord"
)

func newHistory(f *feed, most int) *history {
	return &history{events: f, timeout: time.Second, most: most, metrics: metrics.New("test", "memory")}
}

// check proves that what is at hand fits together and is counted.
func (h *history) check(t *testing.T, s *shelf) {
	t.Helper()
	total, runs := 0, 0
	for number, list := range s.runs {
		slices.SortFunc(list, func(a, b *run) int { return int(a.before.Seq - b.before.Seq) })
		for i, r := range list {
			runs++
			total += r.bytes
			if r.bytes != costOf(r.frames) {
				t.Errorf("a run counts %d bytes and has %d", r.bytes, costOf(r.frames))
			}
			for j, f := range r.frames {
				if f.position.Seq != r.first()+int64(j) || chunkOf(f.position.Seq) != number {
					t.Fatalf("event %v is in the wrong place", f.position)
				}
			}
			if i > 0 && list[i-1].last() >= r.before.Seq {
				t.Errorf("runs up to %d and from %d are two", list[i-1].last(), r.first())
			}
		}
	}
	if total != h.bytes || runs != h.order.Len() {
		t.Errorf("it counts %d bytes in %d runs, there are %d in %d", h.bytes, h.order.Len(), total, runs)
	}
}

func TestHistoryFitsTogether(t *testing.T) {
	const events = 1500
	f := newFeed()
	e := &env{T: t, feed: f}
	e.publish("room:1", events)
	frames := make([]*frame, events)
	for i := range frames {
		frames[i] = eventFrame(f.topic("room:1").events[i])
	}
	before := func(seq int) coord.Position {
		if seq == 0 {
			return coord.Start
		}
		return frames[seq-1].position
	}
	for range 50 {
		h, s := newHistory(f, 200<<10), &shelf{}
		for range 60 {
			from := rand.IntN(events)
			to := min(events, from+1+rand.IntN(100))
			h.add(s, before(from), frames[from:to])
			h.check(t, s)
			if h.bytes > h.most {
				t.Fatalf("%d bytes are kept", h.bytes)
			}
			if got := h.known(s, before(from)); len(got) == 0 || got[0] != frames[from] && got[0].position != frames[from].position {
				t.Fatalf("what was added behind %d is not there", from)
			}
			place := rand.IntN(events)
			for i, got := range h.known(s, before(place)) {
				if got.position != frames[place+i].position {
					t.Fatalf("behind %d: event %d is %v", place, i, got.position)
				}
			}
			if h.known(s, coord.Position{Seq: int64(place), Tag: before(place).Tag + 1}) != nil {
				t.Fatal("a position of another history is known")
			}
		}
		h.drop(s)
		h.check(t, s)
	}
}

func TestHistoryForgetsWhatIsContradicted(t *testing.T) {
	f := newFeed()
	e := &env{T: t, feed: f}
	e.publish("room:1", 100)
	old := f.topic("room:1").events
	f.rewrite("room:1", 60, 60)
	now := f.topic("room:1").events
	frames := func(events []coord.Event) (list []*frame) {
		for _, e := range events {
			list = append(list, eventFrame(e))
		}
		return list
	}
	h, s := newHistory(f, 1<<20), &shelf{}
	h.add(s, coord.Start, frames(old))
	h.add(s, now[49].Position, frames(now[50:]))
	h.check(t, s)
	if h.known(s, old[60].Position) != nil {
		t.Error("the old history is known")
	}
	if got := h.known(s, now[60].Position); len(got) != 39 {
		t.Errorf("%d events of the new one are known", len(got))
	}
}

// What was on its way when a topic was reset is not kept.
func TestHistoryReadBeforeAReset(t *testing.T) {
	f := newFeed()
	e := &env{T: t, feed: f}
	e.publish("room:1", 3)
	var frames []*frame
	for _, event := range f.topic("room:1").events {
		frames = append(frames, eventFrame(event))
	}
	h, s := newHistory(f, 1<<20), &shelf{}
	version, _ := h.missing(s, 0)
	h.drop(s)
	h.found(s, version, coord.Start, frames)
	if h.known(s, coord.Start) != nil {
		t.Error("it is known")
	}
	version, _ = h.missing(s, 0)
	h.close(s)
	h.found(s, version, coord.Start, frames)
	h.add(s, coord.Start, frames)
	if h.known(s, coord.Start) != nil || h.bytes != 0 {
		t.Error("something is kept of a topic that nobody follows")
	}
}

func TestHistoryOfLargeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed()
		e := &env{T: t, feed: f}
		for range 200 {
			e.event("room:1", "k", map[string]string{"text": string(make([]byte, 50<<10))})
		}
		topic := &topic{name: "room:1"}
		h := newHistory(f, 8<<20)
		var sizes []int
		for at := coord.Start; at != f.topic("room:1").head; {
			frames, err := h.behind(t.Context(), topic, at)
			if err != nil {
				t.Fatal(err)
			}
			at = frames[len(frames)-1].position
			sizes = append(sizes, len(frames))
			h.check(t, &topic.shelf)
		}
		if slices.Max(sizes[1:]) > 4 || sizes[0] > firstRead {
			t.Errorf("that many events of 300 KiB were read at a time: %v", sizes)
		}
		if h.bytes > h.most {
			t.Errorf("%d bytes are kept", h.bytes)
		}
	})
}
