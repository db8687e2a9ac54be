package load

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

const topic = "room:1"

// told returns a crowd that was told of messages in this order, all of them.
func told(ids ...string) Seen {
	s := newSeen()
	s.Holes[topic], s.Again[topic] = make(map[int64]bool), make(map[int64]bool)
	for i, id := range ids {
		s.Log[topic] = append(s.Log[topic], Told{At: coord.Position{Seq: int64(i + 1)}, Kind: "message.created", ID: id})
	}
	s.Least[topic] = int64(len(ids))
	return s
}

// TestCheck holds made-up histories to what a checker must say of them.
func TestCheck(t *testing.T) {
	good := func() History {
		return History{
			Said: map[string]Said{
				"a": {topic, true}, "b": {topic, true}, "open and stored": {topic, false}, "open": {topic, false},
			},
			Stored: map[string]int{"a": 1, "b": 1, "open and stored": 1},
			Seen:   []Seen{told("a", "open and stored", "b"), told("a", "open and stored", "b")},
		}
	}
	for _, test := range []struct {
		name        string
		change      func(h *History)
		lost, twice int
		faults      bool
	}{
		{"as it should be", func(*History) {}, 0, 0, false},
		{"nobody follows", func(h *History) { h.Seen = nil }, 0, 0, false},
		{"not stored, and nobody was told", func(h *History) {
			delete(h.Stored, "b")
			h.Seen = []Seen{told("a", "open and stored")}
		}, 1, 0, true},
		{"not stored, though told", func(h *History) { delete(h.Stored, "a") }, 1, 0, true},
		{"stored, though nobody was told", func(h *History) { h.Seen = []Seen{told("a", "open and stored")} }, 1, 0, true},
		{"stored twice", func(h *History) { h.Stored["a"] = 2 }, 0, 1, true},
		{"told twice, as two events", func(h *History) { h.Seen = []Seen{told("a", "open and stored", "b", "a")} }, 0, 1, true},
		{"somebody was told twice", func(h *History) { h.Seen[1].Again[topic][1] = true }, 0, 1, true},
		{"kept from somebody", func(h *History) { h.Seen[1].Holes[topic][1] = true }, 1, 0, true},
		{"somebody did not get so far", func(h *History) { h.Seen[0].Least[topic] = 2 }, 1, 0, true},
		{"open, stored twice", func(h *History) { h.Stored["open and stored"] = 2 }, 0, 1, true},
		{"open, stored, and nobody was told", func(h *History) { h.Stored["open"] = 1 }, 0, 0, true},
		{"in another order for others", func(h *History) { h.Seen[1] = told("open and stored", "a", "b") }, 0, 0, true},
		{"a reset", func(h *History) { h.Seen[0].Faults = []string{"client 1: reset"} }, 0, 0, true},
	} {
		h := good()
		test.change(&h)
		o := h.Check()
		if o.Acknowledged != 2 || o.Lost != test.lost || o.Twice != test.twice || (len(o.Faults) > 0) != test.faults {
			t.Errorf("%s: %+v", test.name, o)
		}
	}
}

// TestCheckTicks holds made-up runs to the clock.
func TestCheckTicks(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(1000+second), 0) }
	runs := func(seconds ...int) (list []run) {
		for i, s := range seconds {
			list = append(list, run{id: int64(i + 1), scheduled: at(s), state: "succeeded", attempt: 1, key: fmt.Sprint(i + 1)})
		}
		return list
	}
	one := map[string]int{"1": 1, "2": 1, "3": 1}
	failed := runs(0, 1, 2)
	failed[1].state = "failed"
	for _, test := range []struct {
		name        string
		runs        []run
		effects     map[string]int
		strict      bool
		lost, twice int
		holds       bool
	}{
		{"one a second", runs(0, 1, 2), one, true, 0, 0, true},
		{"one is missing", runs(0, 1, 3), one, false, 1, 0, false},
		{"two for one second", runs(0, 1, 1), one, false, 0, 1, false},
		{"one failed", failed, one, false, 1, 0, false},
		{"one had no effect", runs(0, 1, 2), map[string]int{"1": 1, "3": 1}, false, 1, 0, false},
		{"an effect again, by another attempt", runs(0, 1, 2), map[string]int{"1": 1, "2": 2, "3": 1}, false, 0, 0, true},
		{"an effect again, where none may be", runs(0, 1, 2), map[string]int{"1": 1, "2": 2, "3": 1}, true, 0, 1, false},
		{"an effect of a run that is gone", runs(0, 1), one, false, 0, 0, false},
	} {
		var o Outcome
		checkTicks(&o, test.runs, maps.Clone(test.effects), test.strict)
		if o.Lost != test.lost || o.Twice != test.twice || o.Holds() != test.holds {
			t.Errorf("%s: %+v", test.name, o)
		}
	}
}

// TestCrowdNotices lets a client of a crowd be told what should not come.
func TestCrowdNotices(t *testing.T) {
	event := func(seq int64, id string) coord.Event {
		return coord.Event{Topic: topic, Position: coord.Position{Seq: seq}, Kind: "message.created", Payload: fmt.Appendf(nil, `{"text":%q}`, id)}
	}
	for _, test := range []struct {
		name         string
		events       []coord.Event
		holes, again int
		faults       bool
	}{
		{"in order", []coord.Event{event(1, "a"), event(2, "b")}, 0, 0, false},
		{"with a hole", []coord.Event{event(1, "a"), event(3, "c")}, 1, 0, false},
		{"again", []coord.Event{event(1, "a"), event(2, "b"), event(1, "a")}, 0, 1, false},
		{"another one in its place", []coord.Event{event(1, "a"), event(1, "b")}, 0, 1, true},
		{"of another topic", []coord.Event{{Topic: "room:2", Position: coord.Position{Seq: 1}}}, 0, 0, true},
	} {
		c := &crowd{seen: newSeen()}
		c.seen.Holes[topic], c.seen.Again[topic] = make(map[int64]bool), make(map[int64]bool)
		v := &visitor{crowd: c, client: new(client.Client), at: map[string]coord.Position{topic: coord.Start}}
		v.take(test.events)
		if len(c.seen.Holes[topic]) != test.holes || len(c.seen.Again[topic]) != test.again || (len(c.seen.Faults) > 0) != test.faults {
			t.Errorf("%s: %+v", test.name, c.seen)
		}
	}
}

func TestLongest(t *testing.T) {
	from := time.Unix(0, 0)
	after := func(s int) time.Time { return from.Add(time.Duration(s) * time.Second) }
	for _, test := range []struct {
		moments []time.Time
		want    time.Duration
	}{
		{nil, 10 * time.Second},
		{[]time.Time{after(7)}, 7 * time.Second},
		{[]time.Time{after(2), after(1), after(5)}, 5 * time.Second},
	} {
		if got := longest(from, test.moments, after(10)); got != test.want {
			t.Errorf("%v: %v, want %v", test.moments, got, test.want)
		}
	}
}
