package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// errStale means that the store does not know yet what this replica has heard, or
// the other way round. It passes.
var errStale = errors.New("the history at hand and that of the store differ")

// errLeft means that the client has gone meanwhile.
var errLeft = errors.New("the connection has ended")

// transport is what carries frames to a client. Its methods do not wait.
type transport interface {
	// write sends a message; when that is done it calls outbox.sent.
	write(frames []*frame)
	// shut sends the last frame, if any, and ends the connection.
	shut(code int, reason string, last *frame)
	// abort ends the connection at once.
	abort()
	// context ends with the connection.
	context() context.Context
}

// subscriber is a client that is connected, in whatever way.
type subscriber struct {
	hub       *Hub
	transport transport
	id        string // of the connection
	session   int64
	kind      store.SessionKind
	scopes    string // of a token
	user      store.User
	out       outbox
	workers   sync.WaitGroup
	called    atomic.Bool // it was sent a tool call
	recheck   time.Time   // when the session is looked up again; the hub's lock guards it
	order     int         // in the hub's list

	ending  sync.Mutex
	closing bool

	mu       sync.Mutex
	topics   map[string]*member
	behind   []*member // to be brought up to date
	catching bool      // somebody does that
	left     bool
}

func (s *subscriber) init(h *Hub, t transport, session int64, user store.User) {
	s.hub, s.transport, s.id, s.session, s.user = h, t, uuid.NewString(), session, user
	s.out = outbox{limit: h.o.QueueBytes, clock: &h.clock, write: t.write, busy: true}
	s.topics = make(map[string]*member)
}

// own is the topic of the subscriber's person.
func (s *subscriber) own() string { return auth.UserTopic(s.user.ID) }

// may returns an error for what the subscriber's person, or program, may not do.
func (s *subscriber) may(r auth.Right) error {
	return auth.May(store.Session{ID: s.session, Kind: s.kind, Scopes: s.scopes, User: s.user}, r)
}

// guest reports whether the subscriber's person is one.
func (s *subscriber) guest() bool { return s.user.Role == store.Guest }

// guard lets a panic end this connection and not the others.
func (s *subscriber) guard() {
	if reason := recover(); reason != nil {
		s.hub.log.Error("a socket panicked", "user_id", s.user.ID, "reason", reason, "stack", string(debug.Stack()))
		s.close(closeInternal, "internal error")
	}
}

// close drops what waits and ends the connection. The first code counts.
func (s *subscriber) close(code int, reason string) {
	s.ending.Lock()
	defer s.ending.Unlock()
	if s.closing {
		return
	}
	s.closing = true
	last := s.out.close()
	s.hub.metrics.Closes.WithLabelValues(strconv.Itoa(code)).Inc()
	s.transport.shut(code, reason, last)
}

// settle makes the subscriber hear what concerns its person, and checks after that
// that the session has not ended, so that an end can't fall in between. The topic is
// to be given back by unsettle.
func (s *subscriber) settle(ctx context.Context) (*topic, error) {
	topics, err := s.hub.index.join(ctx, s.own())
	if err != nil {
		return nil, err
	}
	t := topics[0]
	t.mu.Lock()
	t.home = append(t.home, s)
	t.mu.Unlock()
	signedIn, err := s.hub.services.Sessions.Session(ctx, s.session)
	if err == nil && signedIn.User.ID != s.user.ID {
		err = ErrTicket
	}
	if err != nil {
		s.unsettle(t)
		return nil, err
	}
	s.user, s.kind, s.scopes = signedIn.User, signedIn.Kind, signedIn.Scopes
	s.hub.mu.Lock()
	s.hub.schedule(s, time.Now())
	s.hub.mu.Unlock()
	return t, nil
}

func (s *subscriber) unsettle(t *topic) {
	t.mu.Lock()
	t.home = slices.DeleteFunc(t.home, func(other *subscriber) bool { return other == s })
	t.mu.Unlock()
	s.hub.index.release(t)
}

// subscribe adds topics, each from behind a position. Those that are subscribed
// already keep their place. answer is given where each topic starts, and its frame
// goes out before the events that it lets in. One goroutine at a time calls this.
func (s *subscriber) subscribe(
	ctx context.Context, from map[string]coord.Position, answer func(map[string]coord.Position) *frame,
) error {
	s.mu.Lock()
	var there []*member
	var names []string
	for name := range from {
		if m := s.topics[name]; m != nil {
			there = append(there, m)
		} else {
			names = append(names, name)
		}
	}
	tooMany := len(s.topics)+len(names) > s.hub.o.Topics
	s.mu.Unlock()
	if tooMany {
		return s.hub.tooManyTopics()
	}
	if err := s.hub.forClients(s.user, names...); err != nil {
		return err
	}
	topics, err := s.hub.index.join(ctx, names...)
	if err != nil {
		return err
	}
	added, err := s.enter(topics, from)
	if err != nil {
		s.hub.index.release(topics...)
		return err
	}
	// Asked when the topics' positions are fixed: a removal is either in the answer
	// or among what will be handed out.
	if err := s.hub.mayRead(ctx, s.user, names...); err != nil {
		for _, m := range added {
			s.drop(m)
		}
		return err
	}
	s.begin(slices.Concat(there, added), answer)
	return nil
}

// enter makes the subscriber a member of topics, which gets nothing yet.
func (s *subscriber) enter(topics []*topic, from map[string]coord.Position) ([]*member, error) {
	added := make([]*member, len(topics))
	s.mu.Lock()
	if s.left {
		s.mu.Unlock()
		return nil, errLeft
	}
	for i, t := range topics {
		added[i] = &member{who: s, topic: t, at: from[t.name]}
		s.topics[t.name] = added[i]
	}
	s.mu.Unlock()
	for _, m := range added {
		m.topic.mu.Lock()
		m.topic.attach(m)
		m.topic.mu.Unlock()
	}
	return added, nil
}

// begin sends the answer to a subscription, and lets members that are where their
// topic is have what follows. Nothing can come between, since all topics are locked.
func (s *subscriber) begin(members []*member, answer func(map[string]coord.Position) *frame) {
	slices.SortFunc(members, func(a, b *member) int { return strings.Compare(a.topic.name, b.topic.name) })
	positions := make(map[string]coord.Position, len(members))
	for _, m := range members {
		m.topic.mu.Lock()
	}
	var behind []*member
	for _, m := range members {
		if m.at == coord.Head || m.state == live {
			m.at = m.topic.position
		}
		positions[m.topic.name] = m.at
	}
	s.out.put(answer(positions))
	for _, m := range members {
		switch {
		case m.state != apart || m.started:
		case m.doubt || m.at != m.topic.position:
			behind = append(behind, m)
		default:
			m.topic.setLive(m)
		}
		m.started = true
	}
	for _, m := range members {
		m.topic.mu.Unlock()
	}
	s.follow(behind...)
}

// unsubscribe ends subscriptions. Nothing of them is put out after it has returned.
func (s *subscriber) unsubscribe(names ...string) {
	for _, name := range names {
		s.mu.Lock()
		m := s.topics[name]
		s.mu.Unlock()
		if m != nil {
			s.drop(m)
		}
	}
}

// drop ends a membership. It reports false when that has ended already.
func (s *subscriber) drop(m *member) bool {
	s.mu.Lock()
	there := s.topics[m.topic.name] == m
	if there {
		delete(s.topics, m.topic.name)
	}
	s.mu.Unlock()
	if there {
		m.topic.mu.Lock()
		m.topic.detach(m)
		m.topic.mu.Unlock()
		s.hub.index.release(m.topic)
	}
	return there
}

// leaveAll ends all memberships, and waits for what works for the subscriber. Its outbox
// and its context have ended.
func (s *subscriber) leaveAll() {
	s.mu.Lock()
	s.left = true
	members := slices.Collect(maps.Values(s.topics))
	s.mu.Unlock()
	for _, m := range members {
		s.drop(m)
	}
	s.workers.Wait()
}

// follow brings members up to date. A topic may be locked.
func (s *subscriber) follow(members ...*member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left || len(members) == 0 {
		return
	}
	s.behind = append(s.behind, members...)
	if !s.catching {
		s.catching = true
		s.workers.Go(s.catchUp)
	}
}

// catchUp brings members up to date, a piece of each in turn, until there is none.
func (s *subscriber) catchUp() {
	defer s.guard()
	ctx := s.transport.context()
	wait := time.Duration(0)
	for ctx.Err() == nil {
		s.mu.Lock()
		if len(s.behind) == 0 {
			s.behind, s.catching = nil, false
			s.mu.Unlock()
			return
		}
		m := s.behind[0]
		s.behind = s.behind[1:]
		s.mu.Unlock()
		again, err := s.step(ctx, m)
		if again {
			s.mu.Lock()
			s.behind = append(s.behind, m)
			s.mu.Unlock()
		}
		if err == nil {
			wait = 0
			continue
		}
		if !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, errStale) && ctx.Err() == nil {
			s.hub.log.WarnContext(ctx, "history could not be read", "topic", m.topic.name, "error", err)
		}
		wait = min(2*wait+20*time.Millisecond, 5*time.Second)
		pause(ctx, wait/2+rand.N(wait))
	}
}

// step does the next thing for a member who is apart. It reports whether there is
// more to do; an error passes.
func (s *subscriber) step(ctx context.Context, m *member) (again bool, err error) {
	t := m.topic
	t.mu.Lock()
	position := t.position
	switch {
	case m.state != apart:
		t.mu.Unlock()
		return false, nil
	case m.doubt:
		m.doubt = false
		t.mu.Unlock()
		return s.ask(ctx, m)
	case m.owed != nil:
		s.out.put(m.owed)
		m.owed = nil
		s.hub.metrics.Resets.Inc()
		t.mu.Unlock()
		return true, nil
	case m.at == position:
		t.setLive(m)
		t.mu.Unlock()
		return false, nil
	case m.at.Seq > position.Seq && m.known == m.at:
		m.ahead = true
		t.ahead++
		t.mu.Unlock()
		return false, nil
	}
	from := m.at
	t.mu.Unlock()

	if !s.out.waitForRoom() {
		return false, nil
	}
	frames, err := s.hub.history.behind(ctx, t, from)
	reset, isReset := errors.AsType[*coord.ResetError](err)
	if err != nil && !isReset {
		return true, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case m.state != apart:
		return false, nil
	case m.doubt: // also that what was read is of a history that is gone
		return true, nil
	case isReset:
		m.at = reset.Head
		m.owed = resetFrame{Topic: t.name, Reason: reset.Reason, Position: reset.Head}.frame()
		return true, nil
	case from.Seq > position.Seq:
		m.known = from
		return true, nil
	}
	frames = piece(frames, position.Seq, s.out.limit/4)
	if len(frames) == 0 {
		return true, errStale
	}
	shown := visible(frames, s.guest())
	s.out.put(shown...)
	s.hub.metrics.Events.Add(float64(len(shown)))
	m.at = frames[len(frames)-1].position
	return true, nil
}

// ask finds out whether a member may still read its topic.
func (s *subscriber) ask(ctx context.Context, m *member) (again bool, err error) {
	select { // after a reset everyone asks
	case s.hub.asking <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	err = s.hub.mayRead(ctx, s.user, m.topic.name)
	<-s.hub.asking
	_, refused := errors.AsType[refusal](err)
	switch {
	case err == nil:
		return true, nil
	case refused || errors.Is(err, coord.ErrNotFound):
		if s.drop(m) {
			s.out.put(errorFrame{
				Topic: m.topic.name, Code: codeForbidden, Message: "the subscription has ended: you may not read this any more",
			}.frame())
		}
		return false, nil
	}
	m.topic.mu.Lock()
	m.doubt = true
	m.topic.mu.Unlock()
	return true, err
}

// piece returns the frames up to a number, as many as go into some bytes, and at least
// one.
func piece(frames []*frame, last int64, most int) []*frame {
	size := 0
	for i, f := range frames {
		if size += f.cost(); f.position.Seq > last || i > 0 && size > most {
			return frames[:i]
		}
	}
	return frames
}

// refusal is an error with the code that the client is told.
type refusal struct{ code, message string }

func (r refusal) Error() string { return r.message }

func (h *Hub) tooManyTopics() error {
	return refusal{codeLimited, fmt.Sprintf("topics: a connection may have %d", h.o.Topics)}
}
