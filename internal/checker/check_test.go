//go:build unix

package checker

import (
	"fmt"
	"slices"

	"github.com/tandemhq/tandem/coord"
)

// event is one that the log has, or that a client was given.
type event struct {
	at   coord.Position
	kind string
	sum  uint64 // of the payload
}

// step is what a subscription told its client: an event or, with a reason, a reset to at.
type step struct {
	event
	reset string
}

// view is what a subscription to a topic told its client, over as many connections, and clients
// that resumed where the last one was, as there were.
type view struct {
	client, topic string
	from          coord.Position
	steps         []step
	ended         bool // given up before the end
	refused       bool // and that by the server
}

// at is the position behind all that was told.
func (v *view) at() coord.Position {
	if n := len(v.steps); n > 0 {
		return v.steps[n-1].at
	}
	return v.from
}

// history is all that happened.
type history struct {
	log   map[string][]event // by topic
	views []*view

	// What was published has an id of its own.
	stored       map[string]int  // how many events have it
	acknowledged map[string]bool // it was published; false: it was rolled back

	// Where the log is not the one that the views began with:
	before map[string][]event
	gone   map[string]bool // the topics of rooms that are no more
}

// check says how the history breaks what is promised:
//
//   - the events of a topic are numbered 1, 2, 3 … without a hole;
//   - what was acknowledged is stored once, and what was rolled back is not;
//   - a view begins at an event of the log, and has every event behind it, once, in order and as
//     it was published; one that was not given up has them to the end;
//   - a topic is reset, once, if the client was told of an event that the log does not have, and
//     otherwise never;
//   - a subscription is refused where the room is gone, perhaps behind a reset, and nowhere else.
func check(h history) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for topic, events := range h.log {
		for i, e := range events {
			if e.at.Seq != int64(i+1) {
				fault("%s: the event %v is the %d. of the log", topic, e.at, i+1)
				break
			}
		}
	}
	for id, committed := range h.acknowledged {
		switch n := h.stored[id]; {
		case committed && n != 1:
			fault("what was acknowledged is stored %d times: %s", n, id)
		case !committed && n != 0:
			fault("what was rolled back is stored: %s", id)
		}
	}
	for _, v := range h.views {
		if text := h.checkView(v); text != "" {
			fault("%s, %s from %v: %s", v.client, v.topic, v.from, text)
		}
	}
	slices.Sort(faults)
	return faults
}

func (h history) checkView(v *view) string {
	resets, expected := 0, 0
	for _, s := range v.steps {
		switch {
		case s.reset != "":
			resets++
		case resets == 0 && h.before != nil && !has(h.log[v.topic], s.at):
			expected = 1
		}
	}
	switch gone := h.gone[v.topic]; {
	case v.refused != gone:
		return fmt.Sprintf("refused: %v, and the room is gone: %v", v.refused, gone)
	case gone && resets <= 1:
	case resets != expected:
		return fmt.Sprintf("%d resets, want %d", resets, expected)
	}
	log := h.log[v.topic]
	if resets > 0 || v.refused {
		log = h.before[v.topic]
	}
	at := v.from
	if !has(log, at) {
		return "it begins where the log has nothing"
	}
	for _, s := range v.steps {
		if s.reset != "" {
			log, at = h.log[v.topic], s.at
			if !has(log, at) {
				return fmt.Sprintf("it was reset to %v, which the log has not", at)
			}
			continue
		}
		switch next := at.Seq + 1; {
		case s.at.Seq < next:
			return fmt.Sprintf("%v came behind %v: again, or late", s.at, at)
		case s.at.Seq > next:
			return fmt.Sprintf("a gap: %v came behind %v", s.at, at)
		case next > int64(len(log)):
			return fmt.Sprintf("%v is not in the log, which ends before", s.at)
		case s.event != log[next-1]:
			return fmt.Sprintf("%v came as %+v, and is %+v", s.at, s.event, log[next-1])
		}
		at = s.at
	}
	if !v.ended && at.Seq != int64(len(log)) {
		return fmt.Sprintf("it ends at %v, and the log at %d", at, len(log))
	}
	return ""
}

// has reports whether a position is one of the log.
func has(log []event, p coord.Position) bool {
	return p == coord.Start || p.Seq > 0 && p.Seq <= int64(len(log)) && log[p.Seq-1].at == p
}
