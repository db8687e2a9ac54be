// Package presence knows who is connected, on whichever replica, and tells when
// that changes.
//
// Each connection is an entry of the directory of package coord, under the lease of
// its replica: when that vanishes, so does who was connected to it. The directory is
// what counts. What was last announced of a person is kept in their row and changes
// in one transaction with the event that announces it, so that whatever dies
// half-way, somebody finds the difference and tells of it.
package presence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Topic is the topic on which changes are announced. It is not for guests.
const Topic = "presence"

// Kind is the kind of an event on [Topic]; the payload is a [State].
const Kind = "presence"

// The states of a person, of which a connection has the first two. A person is
// online when one of their connections is, away when all are, and offline without
// any.
const (
	Online  = "online"
	Away    = "away"
	Offline = "offline"
)

// State is what is known of a person.
type State struct {
	UserID int64  `json:"user_id"`
	State  string `json:"state"`
	// LastSeen is when that last changed, as far as anybody knows. Zero: they were
	// never there.
	LastSeen store.Time `json:"last_seen,omitzero"`
}

// Options tune a service. The zero value has good defaults.
type Options struct {
	Node    string        // this replica, for people to read; default "tandem"
	Version string        // of the program, likewise
	Lease   time.Duration // how long connections outlive their replica; default 30 s
	// Linger is how long it is kept back that somebody's last connection has ended,
	// since most come back at once. Default 5 s; below 0: not at all.
	Linger time.Duration
}

// Service is safe for concurrent use.
type Service struct {
	o         Options
	store     *store.Store
	directory coord.Directory
	metrics   *metrics.Metrics
	log       *slog.Logger

	onReplaced func(user int64, connection string)
	onGone     func(ctx context.Context, user int64, connection string)

	joining chan struct{} // one slot: who makes this replica a member
	again   chan struct{} // one slot: there is something for a heartbeat to do
	news    chan struct{} // one slot: there is something to announce

	mu      sync.Mutex
	ended   bool
	member  coord.Member           // nil: it has not joined, or its lease has ended
	held    map[string]*connection // by key
	doubts  map[string]bool        // keys of which it is unknown whether an entry was left
	pending map[int64]change       // people of whom something may have to be announced
}

// change is that of a person.
type change struct {
	due  time.Time
	seen bool // just now
	// From when on it is told that they are offline, since they have not come back; zero:
	// Linger from when that is found.
	sure time.Time
}

// connection is one that this replica has.
type connection struct {
	user    int64
	id, key string

	turn sync.Mutex // one change of its entry at a time

	// Guarded by the service's mu.
	state  string
	member coord.Member // under which it is registered; nil: not yet
	entry  coord.Registration
	lost   int64 // the highest epoch of its key of which it was told that it is lost
	over   bool  // released, or replaced
}

// New returns the service. [Service.Run] keeps what it registers alive.
func New(st *store.Store, backend coord.Backend, m *metrics.Metrics, o Options, log *slog.Logger) *Service {
	if o.Node == "" {
		o.Node = "tandem"
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.Linger == 0 {
		o.Linger = 5 * time.Second
	}
	return &Service{
		o: o, store: st, directory: backend.Directory(), metrics: m, log: log,
		onReplaced: func(int64, string) {}, onGone: func(context.Context, int64, string) {},
		joining: make(chan struct{}, 1), again: make(chan struct{}, 1), news: make(chan struct{}, 1),
		held: make(map[string]*connection), doubts: make(map[string]bool), pending: make(map[int64]change),
	}
}

// OnReplaced sets what is called, not for long, when a connection of this replica has
// lost its place to a newer one of the same id: it is to be closed. The function waits
// for nothing, least of all for the release. OnReplaced is called before Run.
func (s *Service) OnReplaced(f func(user int64, connection string)) { s.onReplaced = f }

// OnGone sets what is called when a connection has ended with its replica, or when the
// directory could not be told of its end before. One replica is told of it, at most once.
// OnGone is called before Run.
func (s *Service) OnGone(f func(ctx context.Context, user int64, connection string)) { s.onGone = f }

func prefix(user int64) string { return "user/" + strconv.FormatInt(user, 10) + "/" }

// parseKey is the reverse of prefix and the connection's id.
func parseKey(key string) (user int64, connection string, ok bool) {
	rest, ok := strings.CutPrefix(key, "user/")
	number, connection, found := strings.Cut(rest, "/")
	user, err := strconv.ParseInt(number, 10, 64)
	return user, connection, ok && found && err == nil
}

// callTimeout bounds a call that nobody waits for, or who waits has a socket open.
const callTimeout = 5 * time.Second

// Connected registers a connection, online, whose id is that of no other, until
// release is called. release returns when it is done, and does not depend on the end
// of its context; a connection that was replaced is no longer there to release.
// When it fails nothing is registered, or what is will be removed.
func (s *Service) Connected(ctx context.Context, user int64, id string) (release func(context.Context), err error) {
	c := &connection{user: user, id: id, key: prefix(user) + id, state: Online}
	c.turn.Lock()
	defer c.turn.Unlock()
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, coord.ErrClosed
	}
	before := s.held[c.key]
	s.held[c.key] = c
	s.count()
	s.mu.Unlock()
	if before != nil {
		s.lose(before)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.register(ctx, c); err != nil {
		s.drop(c)
		return nil, err
	}
	return func(ctx context.Context) { s.release(ctx, c) }, nil
}

// register makes the entry of a connection, whose turn it is, under a lease that has
// not ended.
func (s *Service) register(ctx context.Context, c *connection) error {
	for {
		m, err := s.joined(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		state := c.state
		s.mu.Unlock()
		entry, err := m.Register(ctx, c.key, []byte(state))
		if errors.Is(err, coord.ErrFenced) {
			s.fenced(ctx, m)
			continue
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		c.member, c.entry = m, entry
		lost := c.lost >= entry.Epoch
		s.mu.Unlock()
		if lost { // before this was known
			s.lose(c)
		}
		s.touch(c.user, change{due: time.Now(), seen: true})
		return nil
	}
}

// joined returns the member that this replica is, which it becomes if it is not.
func (s *Service) joined(ctx context.Context) (coord.Member, error) {
	select {
	case s.joining <- struct{}{}:
		defer func() { <-s.joining }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m := s.current(); m != nil {
		return m, nil
	}
	m, err := s.directory.Join(ctx, coord.NewMember{Name: s.o.Node, Lease: s.o.Lease, Data: []byte(s.o.Version)})
	if err != nil {
		return nil, err
	}
	s.metrics.DirectoryJoins.Inc()
	s.mu.Lock()
	s.member = m
	s.mu.Unlock()
	wake(s.again)
	return m, nil
}

func (s *Service) current() coord.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.member
}

// fenced notes that a member's lease has ended, and with it all its entries.
func (s *Service) fenced(ctx context.Context, m coord.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.member == m {
		s.member = nil
		s.log.WarnContext(ctx, "the lease in the directory has ended; joining anew", "connections", len(s.held))
	}
}

// lose ends a connection that another one has replaced.
func (s *Service) lose(c *connection) {
	if s.drop(c) {
		s.onReplaced(c.user, c.id)
		s.touch(c.user, change{due: time.Now()})
	}
}

// drop forgets a connection. What it may have left in the directory is looked for
// later.
func (s *Service) drop(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.over {
		return false
	}
	c.over = true
	if s.held[c.key] == c {
		delete(s.held, c.key)
		s.count()
	}
	s.doubts[c.key] = true
	return true
}

// count is called with mu.
func (s *Service) count() { s.metrics.DirectoryEntries.Set(float64(len(s.held))) }

func (s *Service) release(ctx context.Context, c *connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	c.turn.Lock()
	defer c.turn.Unlock()
	if !s.drop(c) {
		return
	}
	s.mu.Lock()
	m, entry := c.member, c.entry
	s.mu.Unlock()
	if err := m.Deregister(ctx, entry); err == nil {
		s.mu.Lock()
		delete(s.doubts, c.key)
		s.mu.Unlock()
	}
	back := time.Now().Add(s.o.Linger)
	s.touch(c.user, change{due: back, seen: true, sure: back})
}

// SetState makes a connection online or away. Errors: coord.ErrInvalid;
// coord.ErrNotFound when this replica has no such connection.
func (s *Service) SetState(ctx context.Context, user int64, id, state string) error {
	if state != Online && state != Away {
		return &coord.InvalidError{Field: "state", Reason: fmt.Sprintf("is %q, must be %q or %q", state, Online, Away)}
	}
	s.mu.Lock()
	c := s.held[prefix(user)+id]
	s.mu.Unlock()
	if c == nil {
		return coord.ErrNotFound
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	s.mu.Lock()
	m, entry := c.member, c.entry
	if c.over || m == nil {
		s.mu.Unlock()
		return coord.ErrNotFound
	}
	c.state = state
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := m.Update(ctx, entry, []byte(state))
	if errors.Is(err, coord.ErrFenced) { // replaced, or to be registered anew
		wake(s.again)
		return nil
	}
	if err != nil {
		return err
	}
	s.touch(user, change{due: time.Now(), seen: true})
	return nil
}

// Of returns the state of those of the users who exist. That it can't be read is an
// error, and never means that they are offline.
func (s *Service) Of(ctx context.Context, users ...int64) (map[int64]State, error) {
	states, err := s.look(ctx, users)
	if err != nil {
		return nil, err
	}
	announced, err := s.store.Presence(ctx, users...)
	if err != nil {
		return nil, err
	}
	found := make(map[int64]State, len(users))
	for _, p := range announced {
		found[p.UserID] = State{UserID: p.UserID, State: states[p.UserID], LastSeen: p.LastSeen}
	}
	return found, nil
}

// Show returns the state of those of the users whom somebody may know of, in the order
// of their ids: for guests, those with whom they are in a room.
func (s *Service) Show(ctx context.Context, by store.User, users ...int64) (list []State, err error) {
	if by.Role == store.Guest {
		if users, err = s.store.Acquainted(ctx, by.ID, users...); err != nil {
			return nil, err
		}
	}
	states, err := s.Of(ctx, users...)
	if err != nil {
		return nil, err
	}
	for _, user := range slices.Sorted(maps.Keys(states)) {
		list = append(list, states[user])
	}
	return list, nil
}

// Connections lists those of a person, on all replicas: first those that are online,
// and of these the one whose state was set last. That they can't be read is an
// error, and never means that there are none.
func (s *Service) Connections(ctx context.Context, user int64) ([]string, error) {
	entries, err := s.entries(ctx, prefix(user))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(entries, func(a, b coord.Entry) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(b.Epoch, a.Epoch))
	})
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if _, id, ok := parseKey(e.Key); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// rank orders the states of connections.
func rank(e coord.Entry) int {
	if string(e.Data) == Away {
		return 1
	}
	return 2
}

// look returns the state of each of the users by the directory.
func (s *Service) look(ctx context.Context, users []int64) (map[int64]string, error) {
	ranks, states := make(map[int64]int), make(map[int64]string)
	for some := range slices.Chunk(users, coord.MaxBatch) {
		prefixes := make([]string, len(some))
		for i, user := range some {
			prefixes[i] = prefix(user)
		}
		entries, err := s.entries(ctx, prefixes...)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if user, _, ok := parseKey(e.Key); ok {
				ranks[user] = max(ranks[user], rank(e))
			}
		}
	}
	for _, user := range users {
		states[user] = [...]string{Offline, Away, Online}[ranks[user]]
	}
	return states, nil
}

// entries returns all live entries under some prefixes, of which there is one at
// least.
func (s *Service) entries(ctx context.Context, prefixes ...string) (all []coord.Entry, err error) {
	f := coord.EntryFilter{Prefixes: prefixes, Limit: coord.MaxBatch}
	for {
		page, err := s.directory.List(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < f.Limit {
			return all, nil
		}
		f.After = page[len(page)-1].Key
	}
}

// wake fills a slot.
func wake(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}
