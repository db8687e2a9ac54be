package hub

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/coord"
)

// stripe is after how many clients that were given events others may run.
const stripe = 32

// index is who follows what. One stream brings the events of all topics that
// anybody on this replica follows; each is encoded once and goes to those in its
// topic.
//
// Locks are taken in the order topic, subscriber, outbox or history. That of the
// index is held with the history's alone.
type index struct {
	events   coord.Broadcaster
	history  *history
	timeout  time.Duration // of one look at the store
	metrics  *metrics.Metrics
	log      *slog.Logger
	personal func(home []*subscriber, e coord.Event) // acts on an event of a person's own topic
	missed   func(home []*subscriber)                // some of those are gone
	failed   func()                                  // there will be no more events
	running  sync.WaitGroup

	mu      sync.Mutex
	topics  map[string]*topic
	stream  coord.Stream // nil before there is a topic
	pending []*topic     // to be followed
	asking  bool         // the store is asked about topics, and will be about those pending
	done    chan struct{}
	closed  bool
}

// topic is one that is followed by somebody here.
type topic struct {
	name  string
	shelf shelf

	ready chan struct{} // closed when the stream has it, or could not get it
	// Guarded by the index:
	refs     int
	followed bool
	err      error // why it is not followed; set before ready is closed

	mu       sync.Mutex
	placed   bool           // there is a position
	position coord.Position // of the last event that was handed out
	live     []*member      // they have all events up to position
	apart    []*member      // the others
	ahead    int            // how many of those wait for position to come to where they are
	home     []*subscriber  // connections of the person whose own topic it is
}

// member is a client in a topic. The topic's lock guards it.
type member struct {
	who   *subscriber
	topic *topic
	state memberState
	place int // among those of its state
	// at is the last event that the client was given, of one who is apart. Only who
	// brings the client up to date moves it.
	at coord.Position
	// doubt: the client may have lost the right to read the topic since that was
	// asked. It is given nothing before that is asked again.
	doubt   bool
	owed    *frame         // a reset that the client is to be given before anything else
	ahead   bool           // waits for the topic to come to at
	started bool           // the subscription was answered
	known   coord.Position // a position ahead of the topic that the store has confirmed
}

type memberState int

const (
	joining memberState = iota
	apart               // behind, or ahead
	live
	gone
)

func newIndex(events coord.Broadcaster, hs *history, m *metrics.Metrics, log *slog.Logger, timeout time.Duration) *index {
	return &index{
		events: events, history: hs, metrics: m, log: log, timeout: timeout,
		topics: make(map[string]*topic), done: make(chan struct{}),
	}
}

// join returns topics whose positions are fixed: what is published from now on is
// handed out. The store is asked only about those that nobody here follows yet, once
// for all who ask at a time. The caller releases each topic in the end.
func (x *index) join(ctx context.Context, names ...string) ([]*topic, error) {
	list := make([]*topic, len(names))
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil, coord.ErrClosed
	}
	for i, name := range names {
		t := x.topics[name]
		if t == nil {
			t = &topic{name: name, ready: make(chan struct{})}
			x.topics[name] = t
			x.pending = append(x.pending, t)
		}
		t.refs++
		list[i] = t
	}
	if len(x.pending) > 0 && !x.asking {
		x.asking = true
		x.running.Go(func() { x.followPending(context.WithoutCancel(ctx)) })
	}
	x.mu.Unlock()
	var err error
	for _, t := range list {
		select {
		case <-t.ready:
			err = t.err
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			x.release(list...)
			return nil, err
		}
	}
	return list, nil
}

func (x *index) followPending(ctx context.Context) {
	for {
		x.mu.Lock()
		n := min(len(x.pending), coord.MaxBatch)
		list := x.pending[:n:n]
		x.pending = x.pending[n:]
		if n == 0 {
			x.pending, x.asking = nil, false
			x.mu.Unlock()
			return
		}
		x.mu.Unlock()
		err := x.follow(ctx, list)
		x.mu.Lock()
		for _, t := range list {
			t.err, t.followed = err, err == nil
			if err != nil {
				delete(x.topics, t.name)
				x.history.close(&t.shelf)
			} else {
				x.removeUnused(t)
			}
			close(t.ready)
		}
		x.metrics.Topics.Set(float64(len(x.topics)))
		x.mu.Unlock()
	}
}

// follow adds topics to the stream.
func (x *index) follow(ctx context.Context, list []*topic) error {
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	names := make([]string, len(list))
	for i, t := range list {
		names[i] = t.name
	}
	heads, err := x.events.Heads(ctx, names...)
	if err != nil {
		return err
	}
	for _, t := range list {
		t.mu.Lock()
		t.placed, t.position = true, heads[t.name]
		t.mu.Unlock()
	}
	x.mu.Lock()
	stream := x.stream
	x.mu.Unlock()
	if stream != nil {
		return stream.Add(ctx, heads)
	}
	if stream, err = x.events.Subscribe(ctx, heads); err != nil {
		return err
	}
	x.mu.Lock()
	x.stream = stream
	x.metrics.FollowLag(stream.Lag)
	closed := x.closed
	x.mu.Unlock()
	if closed {
		stream.Close()
		return coord.ErrClosed
	}
	x.running.Go(func() { x.run(context.WithoutCancel(ctx), stream) })
	return nil
}

// release takes back what join gave.
func (x *index) release(topics ...*topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, t := range topics {
		t.refs--
		x.removeUnused(t)
	}
	x.metrics.Topics.Set(float64(len(x.topics)))
}

func (x *index) removeUnused(t *topic) {
	if t.refs > 0 || !t.followed || x.topics[t.name] != t {
		return
	}
	delete(x.topics, t.name)
	x.stream.Remove(t.name)
	x.history.close(&t.shelf)
}

// close ends the index, when nobody is in it any more.
func (x *index) close() {
	x.mu.Lock()
	stream := x.stream
	if !x.closed {
		x.closed = true
		close(x.done)
	}
	x.mu.Unlock()
	if stream != nil {
		stream.Close()
	}
	x.running.Wait()
}

func (x *index) isClosed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.closed
}

// run hands out what the stream brings until that ends.
func (x *index) run(ctx context.Context, stream coord.Stream) {
	wait := time.Duration(0)
	for {
		events, err := stream.Next(ctx)
		reset, isReset := errors.AsType[*coord.ResetError](err)
		switch {
		case isReset:
			wait = 0
			if t := x.topic(reset.Topic); t != nil {
				t.mu.Lock()
				if t.placed {
					x.reset(t, reset.Reason, reset.Head)
				}
				t.mu.Unlock()
			}
		case errors.Is(err, coord.ErrClosed):
			if !x.isClosed() {
				x.log.WarnContext(ctx, "no more events will come", "error", err)
				x.failed()
			}
			return
		case err != nil:
			// Nothing is lost by it, and whatever it is may pass: go on when the store is back.
			if !errors.Is(err, coord.ErrUnavailable) {
				x.log.WarnContext(ctx, "events could not be read", "error", err)
			}
			wait = min(2*wait+100*time.Millisecond, 5*time.Second)
			pauseUntil(x.done, wait/2+rand.N(wait))
		default:
			wait = 0
			x.deliver(ctx, events)
		}
	}
}

func (x *index) topic(name string) *topic {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.topics[name]
}

// deliver hands out events, those of each topic together.
func (x *index) deliver(ctx context.Context, events []coord.Event) {
	byTopic := func(a, b coord.Event) int { return cmp.Compare(a.Topic, b.Topic) }
	if !slices.IsSortedFunc(events, byTopic) {
		events = slices.Clone(events)
		slices.SortStableFunc(events, byTopic)
	}
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Topic == events[0].Topic {
			n++
		}
		if t := x.topic(events[0].Topic); t != nil {
			x.handOut(ctx, t, events[:n])
		}
		events = events[n:]
	}
}

func (x *index) handOut(ctx context.Context, t *topic, events []coord.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.placed { // it was followed before, and what is in hand is of then
		return
	}
	before, fresh := t.position, make([]*frame, 0, len(events))
	pass := func() {
		x.pass(t, before, fresh)
		before, fresh = t.position, nil
	}
	for _, e := range events {
		switch {
		case e.Position.Seq <= t.position.Seq:
			continue // from before this replica began to follow the topic
		case e.Position.Seq != t.position.Seq+1:
			// Never a silent hole, whatever made it.
			pass()
			x.log.WarnContext(ctx, "events are missing", "topic", t.name, "from", t.position, "to", e.Position)
			x.reset(t, coord.ResetDiverged, e.Position)
			before = t.position
			continue
		}
		f := eventFrame(e)
		fresh = append(fresh, f)
		t.position = e.Position
		if f.hidden {
			x.personal(t.home, e)
		}
		if user, ok := rooms.RemovedUser(e); ok { // for whom this is the last one
			pass()
			t.doubt(user)
		}
	}
	pass()
}

// pass gives events to those who are live, never waiting for one of them: who can't
// take more gets them from the history later. The topic is locked.
func (x *index) pass(t *topic, before coord.Position, frames []*frame) {
	if len(frames) == 0 {
		return
	}
	x.history.add(&t.shelf, before, frames)
	for rest := frames; len(rest) > 0 && len(t.live) > 0; {
		part := piece(rest, t.position.Seq, batchBytes)
		x.offer(t, before, part)
		rest = rest[len(part):]
		before = part[len(part)-1].position
	}
	if t.ahead > 0 {
		for _, m := range t.apart {
			if m.ahead && m.at.Seq <= t.position.Seq {
				t.resume(m)
			}
		}
	}
}

// offer gives events behind a position to those who are live, and lets those who can't
// take them leave. The topic is locked.
func (x *index) offer(t *topic, before coord.Position, frames []*frame) {
	forGuests, frames := visible(frames, true), visible(frames, false)
	if len(frames) == 0 {
		return
	}
	guestCost, cost := costOf(forGuests), costOf(frames)
	var full []*member
	given := 0
	for i, m := range t.live {
		shown, shownCost := frames, cost
		if m.who.guest() {
			shown, shownCost = forGuests, guestCost
		}
		switch {
		case len(shown) == 0:
		case m.who.out.offer(shown, shownCost):
			given += len(shown)
		default:
			full = append(full, m)
		}
		// Writers get their turn, and publishers: what they publish meanwhile goes out
		// with the next round.
		if i%stripe == stripe-1 {
			runtime.Gosched()
		}
	}
	x.metrics.Events.Add(float64(given))
	x.metrics.Overflows.Add(float64(len(full)))
	for _, m := range full {
		t.setApart(m, before)
	}
}

// visible returns the frames that clients are sent.
func visible(frames []*frame, guest bool) []*frame {
	unseen := func(f *frame) bool { return f.hidden || guest && f.work }
	if !slices.ContainsFunc(frames, unseen) {
		return frames
	}
	return slices.DeleteFunc(slices.Clone(frames), unseen)
}

// reset makes everyone in a topic go on behind head, since what was between is gone.
// There may have been anything in it, also the removal of somebody. The topic is
// locked.
func (x *index) reset(t *topic, reason string, head coord.Position) {
	x.history.drop(&t.shelf)
	t.position = head
	for _, m := range t.apart { // the store will tell them
		m.doubt = true
		if m.ahead {
			t.resume(m)
		}
	}
	owed := resetFrame{Topic: t.name, Reason: reason, Position: head}.frame()
	for _, m := range slices.Clone(t.live) {
		m.doubt, m.owed = true, owed
		t.setApart(m, head)
	}
	x.missed(t.home)
}

// doubt lets a user have nothing more before it is known whether they may read the
// topic: they may have been removed, and added again. The topic is locked.
func (t *topic) doubt(user int64) {
	for _, m := range t.apart {
		if m.who.user.ID == user {
			m.doubt = true
		}
	}
	for _, m := range slices.Clone(t.live) {
		if m.who.user.ID == user {
			m.doubt = true
			t.setApart(m, t.position)
		}
	}
}

// The methods below change where a member is. The topic is locked.

func (t *topic) attach(m *member) {
	if m.state != joining { // gone already
		return
	}
	m.state, m.place = apart, len(t.apart)
	t.apart = append(t.apart, m)
}

func (t *topic) setLive(m *member) {
	t.apart = cut(t.apart, m)
	m.state, m.place = live, len(t.live)
	t.live = append(t.live, m)
}

// setApart lets a member get what is behind a position from the history.
func (t *topic) setApart(m *member, at coord.Position) {
	t.live = cut(t.live, m)
	m.state, m.place, m.at = apart, len(t.apart), at
	t.apart = append(t.apart, m)
	m.who.follow(m)
}

// resume lets a member who waits for the topic go on.
func (t *topic) resume(m *member) {
	m.ahead = false
	m.known = coord.Start
	t.ahead--
	m.who.follow(m)
}

func (t *topic) detach(m *member) {
	switch m.state {
	case apart:
		t.apart = cut(t.apart, m)
	case live:
		t.live = cut(t.live, m)
	}
	if m.ahead {
		m.ahead = false
		t.ahead--
	}
	m.state = gone
}

func cut(list []*member, m *member) []*member {
	last := len(list) - 1
	list[m.place] = list[last]
	list[m.place].place = m.place
	list[last] = nil
	return list[:last]
}

// parseUserTopic returns the person whose own topic it is.
func parseUserTopic(topic string) (int64, bool) {
	number, ok := strings.CutPrefix(topic, "user:")
	id, err := strconv.ParseInt(number, 10, 64)
	return id, ok && err == nil && id > 0 && strconv.FormatInt(id, 10) == number
}
