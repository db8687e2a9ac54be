package hub

import (
	"container/list"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/coord"
)

const (
	chunkEvents = 256     // numbers that share a chunk, at whose end a read ends
	firstRead   = 32      // events that are read of a topic before it is known how large they are
	readBytes   = 1 << 20 // about what one look brings
)

// history is what was published in the topics that this replica follows, as far as
// it is at hand: what was handed out lately and what was read for those who came
// back. Many who missed the same read the store about once.
type history struct {
	events  coord.Broadcaster
	timeout time.Duration // of one look at the store
	most    int           // bytes
	metrics *metrics.Metrics
	reads   singleflight.Group

	mu    sync.Mutex
	bytes int
	order list.List // of *run, the one used last in front
}

// shelf is a topic's part of the history. The history's lock guards it.
type shelf struct {
	runs     map[int64][]*run // by chunk
	version  int64            // grows when what was known is another history's
	closed   bool             // nobody follows the topic any more
	readSize int              // events that one look should bring
}

// run is a piece of a topic's history without a hole, inside one chunk. Its frames
// are only ever appended to, so that who has some of them may go on without the lock.
type run struct {
	shelf  *shelf
	before coord.Position // of the event before the first
	frames []*frame       // at least one
	bytes  int
	place  *list.Element
}

func (r *run) first() int64 { return r.before.Seq + 1 }
func (r *run) last() int64  { return r.before.Seq + int64(len(r.frames)) }

// at returns the position of an event of the run, or of the one before it.
func (r *run) at(seq int64) coord.Position {
	if seq == r.before.Seq {
		return r.before
	}
	return r.frames[seq-r.first()].position
}

// behind returns what follows a number that is in the run, or just before it.
func (r *run) behind(seq int64) []*frame { return r.frames[seq-r.before.Seq:] }

// meets reports whether another run overlaps this one, or begins where it ends, and
// whether it is one of the same history.
func (r *run) meets(other *run) (meets, agrees bool) {
	last := min(r.last(), other.last())
	if last < max(r.before.Seq, other.before.Seq) {
		return false, false
	}
	return true, r.at(last) == other.at(last)
}

// chunkOf is the number of the chunk that an event is in.
func chunkOf(seq int64) int64 { return (seq - 1) / chunkEvents }

// add notes events of a topic that follow one another, the first one behind a
// position.
func (h *history) add(s *shelf, before coord.Position, frames []*frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.put(s, before, frames)
}

func (h *history) put(s *shelf, before coord.Position, frames []*frame) {
	for len(frames) > 0 && !s.closed {
		end := (chunkOf(before.Seq+1) + 1) * chunkEvents
		n := min(int64(len(frames)), end-before.Seq)
		h.fill(&run{shelf: s, before: before, frames: frames[:n:n]})
		before, frames = frames[n-1].position, frames[n:]
	}
	for h.bytes > h.most && h.order.Len() > 0 {
		h.remove(h.order.Back().Value.(*run))
	}
	h.metrics.HistoryBytes.Set(float64(h.bytes))
}

// fill adds a run to those of its chunk and joins it with those that it meets. What
// contradicts it is of a history that is gone.
func (h *history) fill(added *run) {
	s, number := added.shelf, chunkOf(added.first())
	whole := added
	for _, r := range s.runs[number] { // the one that is gone on with
		if meets, agrees := r.meets(added); meets && agrees && r.before.Seq <= added.before.Seq {
			whole = r
			if added.last() > r.last() {
				h.append(r, added.behind(r.last()))
			}
			break
		}
	}
	for _, r := range slices.Clone(s.runs[number]) {
		if meets, agrees := r.meets(whole); r != whole && meets {
			h.remove(r)
			if agrees && r.last() > whole.last() {
				h.append(whole, r.behind(whole.last()))
			}
		}
	}
	if whole == added {
		whole.place = h.order.PushFront(whole)
		h.count(whole, costOf(whole.frames)-whole.bytes)
		if s.runs == nil {
			s.runs = make(map[int64][]*run)
		}
		s.runs[number] = append(s.runs[number], whole)
	}
	h.order.MoveToFront(whole.place)
	h.shorten(whole)
}

// shorten drops the oldest events of a run that takes too large a part of what may be
// kept.
func (h *history) shorten(r *run) {
	if r.bytes <= h.most/4 || len(r.frames) == 1 {
		return
	}
	n, size := 0, r.bytes
	for n < len(r.frames)-1 && size > h.most/8 {
		size -= r.frames[n].cost()
		n++
	}
	r.before = r.frames[n-1].position
	r.frames = slices.Clone(r.frames[n:])
	h.count(r, size-r.bytes)
}

func (h *history) append(r *run, frames []*frame) {
	r.frames = append(r.frames, frames...)
	if r.place != nil {
		h.count(r, costOf(frames))
	}
}

func (h *history) count(r *run, more int) {
	r.bytes += more
	h.bytes += more
}

func (h *history) remove(r *run) {
	h.count(r, -r.bytes)
	h.order.Remove(r.place)
	number := chunkOf(r.first())
	rest := slices.DeleteFunc(r.shelf.runs[number], func(other *run) bool { return other == r })
	if r.shelf.runs[number] = rest; len(rest) == 0 {
		delete(r.shelf.runs, number)
	}
}

// drop forgets what is known of a topic.
func (h *history) drop(s *shelf) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.empty(s)
}

// close forgets a topic, of which nobody would hear any more that its history is another
// one.
func (h *history) close(s *shelf) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.empty(s)
	s.closed = true
}

func (h *history) empty(s *shelf) {
	s.version++
	for _, runs := range s.runs {
		for _, r := range slices.Clone(runs) {
			h.remove(r)
		}
	}
	h.metrics.HistoryBytes.Set(float64(h.bytes))
}

// known returns events behind a position that are at hand, if it is one of the
// history that is known here.
func (h *history) known(s *shelf, from coord.Position) []*frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range s.runs[chunkOf(from.Seq+1)] {
		if from.Seq >= r.before.Seq && from.Seq < r.last() && r.at(from.Seq) == from {
			h.order.MoveToFront(r.place)
			return r.behind(from.Seq)
		}
	}
	return nil
}

// behind returns some events of a topic behind a position, none when there is none
// yet. Errors: a *coord.ResetError, coord.ErrUnavailable, that of ctx.
func (h *history) behind(ctx context.Context, t *topic, from coord.Position) ([]*frame, error) {
	if frames := h.known(&t.shelf, from); len(frames) > 0 {
		return frames, nil
	}
	version, limit := h.missing(&t.shelf, from.Seq)
	key := t.name + " " + strconv.FormatInt(version, 10) + " " + from.String()
	read := h.reads.DoChan(key, func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
		defer cancel()
		h.metrics.HistoryReads.Inc()
		events, err := h.events.Read(shared, t.name, from, limit)
		if err != nil || len(events) == 0 {
			return []*frame(nil), err
		}
		frames := make([]*frame, len(events))
		for i, e := range events {
			frames[i] = eventFrame(e)
		}
		h.found(&t.shelf, version, from, frames)
		return frames, nil
	})
	select {
	case r := <-read:
		return r.Val.([]*frame), r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// missing returns how many events to read behind a number: to the end of its chunk,
// or to what is known of it, as far as that is not too much at a time.
func (h *history) missing(s *shelf, seq int64) (version int64, limit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	number := chunkOf(seq + 1)
	most := (number+1)*chunkEvents - seq
	for _, r := range s.runs[number] {
		if r.before.Seq > seq {
			most = min(most, r.before.Seq-seq)
		}
	}
	if s.readSize == 0 {
		s.readSize = firstRead
	}
	return s.version, int(min(most, int64(s.readSize)))
}

// found notes what was read.
func (h *history) found(s *shelf, version int64, from coord.Position, frames []*frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.version != version {
		return
	}
	s.readSize = min(max(readBytes*len(frames)/costOf(frames), 1), chunkEvents)
	h.put(s, from, frames)
}
