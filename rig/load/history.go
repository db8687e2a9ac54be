package load

import (
	"maps"
	"slices"

	"github.com/tandemhq/tandem/coord"
)

// Said is a message that somebody tried to post.
type Said struct {
	Topic        string
	Acknowledged bool
}

// Told is an event as followers were told of it.
type Told struct {
	At   coord.Position
	Kind string
	Sum  uint64 // of its payload
	ID   string // of the message; empty: it is another event
}

// Seen is what all followers together were told.
type Seen struct {
	Log    map[string][]Told         // by topic, from the first event on, without a hole
	Holes  map[string]map[int64]bool // events that were kept from somebody, by topic and number
	Again  map[string]map[int64]bool // events that somebody was told again
	Least  map[string]int64          // up to where everybody came in the end
	Faults []string                  // whatever else was wrong

	Followers  int
	Deliveries int64
	Reconnects int
	Gap        int64 // the longest time without a delivery, ns
}

// newSeen returns one of nothing.
func newSeen() Seen {
	return Seen{
		Log: make(map[string][]Told), Holes: make(map[string]map[int64]bool), Again: make(map[string]map[int64]bool),
		Least: make(map[string]int64),
	}
}

// History is what was said, what is stored and what followers were told.
type History struct {
	Said   map[string]Said // by id
	Stored map[string]int  // how many rows have the id
	Seen   []Seen          // of each crowd
}

// Check counts what was acknowledged:
//
//   - it is lost when it is not stored, or when somebody who follows was not told of it;
//   - it is there twice when it is stored twice, or when somebody was told of it twice.
//
// What is open may be missing, but never be there twice, and what is stored everybody hears of. Crowds hear the same in the same order.
func (h History) Check() (o Outcome) {
	for _, s := range h.Seen {
		for _, f := range s.Faults {
			o.Fault("%s", f)
		}
	}
	told := make([]map[string]int, len(h.Seen))
	for i, s := range h.Seen {
		told[i] = s.times(&o)
	}
	for _, id := range slices.Sorted(maps.Keys(h.Said)) {
		said, least, most := h.Said[id], h.Stored[id], h.Stored[id]
		for i, s := range h.Seen {
			if _, followed := s.Log[said.Topic]; followed {
				least, most = min(least, told[i][id]), max(most, told[i][id])
			}
		}
		switch {
		case most > 1:
			least = most
		case most == 1 && least == 0 && !said.Acknowledged:
			o.Fault("stored or told to some, and not to others: %s", id)
		}
		switch {
		case said.Acknowledged:
			o.Count(id, least)
		case most > 1:
			o.Twofold(id, most)
		}
	}
	if len(h.Seen) > 1 {
		h.compare(&o)
	}
	return o
}

// times says how often the most unfortunate follower was told of each message.
func (s Seen) times(o *Outcome) map[string]int {
	n := make(map[string]int)
	for topic, log := range s.Log {
		for i, e := range log {
			if e.At.Seq != int64(i+1) {
				o.Fault("%s: %v is the %d. event", topic, e.At, i+1)
			}
			switch {
			case e.ID == "":
			case s.Again[topic][e.At.Seq]:
				n[e.ID] += 2
			case !s.Holes[topic][e.At.Seq] && e.At.Seq <= s.Least[topic]:
				n[e.ID]++
			}
		}
	}
	return n
}

// compare holds crowds to the first one.
func (h History) compare(o *Outcome) {
	for _, s := range h.Seen[1:] {
		for topic, log := range s.Log {
			first, ok := h.Seen[0].Log[topic]
			if !ok {
				continue
			}
			for i := range min(len(first), len(log)) {
				if log[i] != first[i] {
					o.Fault("%s: some were told %v, others %v", topic, log[i], first[i])
					break
				}
			}
		}
	}
}
