package presence

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

const (
	// renewGap is the least time between two renewals.
	renewGap = time.Second
	// retryPause is how long an announcement waits that could not be made.
	retryPause = time.Second
	// checkLeases is how often, in leases, all that was announced is compared with
	// the directory.
	checkLeases = 10
	// registering is how many connections are registered at a time, when all are.
	registering = 64
	// mostAnnounced is how many people are looked at together.
	mostAnnounced = 200
)

// Run keeps the lease, announces changes, and sweeps up what vanished replicas have
// left, until ctx is done. Then it announces what there is to announce, and leaves.
func (s *Service) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.heartbeats(ctx) })
	loops.Go(func() { s.announcements(ctx) })
	loops.Go(func() { s.rounds(ctx) })
	loops.Wait()
	return s.leave(context.WithoutCancel(ctx))
}

// leave ends what this replica has in the directory.
func (s *Service) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.mu.Lock()
	s.ended = true
	m := s.member
	users := make(map[int64]bool, len(s.held))
	for _, c := range s.held {
		users[c.user] = true
	}
	s.mu.Unlock()
	if m != nil {
		if err := m.Leave(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	for user := range users {
		s.touch(user, change{due: now, seen: true})
	}
	for s.announce(ctx, now.Add(s.o.Linger+callTimeout)) { // nobody is waited for
	}
	return ctx.Err()
}

// heartbeats renews the lease, a third of it apart, and soon when the directory has
// changed: it may be that a connection was replaced.
func (s *Service) heartbeats(ctx context.Context) {
	changes, stop := s.directory.Changes()
	defer stop()
	for ctx.Err() == nil {
		next, gap := time.After(s.o.Lease/3), time.After(renewGap) // a beat that hangs is none of the pause
		s.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-gap:
		}
		select {
		case <-ctx.Done():
		case <-next:
		case <-changes:
		case <-s.again:
		}
	}
}

// beat renews the lease once, or joins anew, and makes the entries be those of the
// connections that there are.
func (s *Service) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Lease/3)
	defer cancel()
	m, err := s.joined(ctx)
	if err != nil {
		return // an outage is told of once, elsewhere
	}
	lost, err := m.Renew(ctx)
	if errors.Is(err, coord.ErrFenced) {
		s.fenced(ctx, m)
		m, err = s.joined(ctx)
	}
	if err != nil {
		return
	}
	for _, r := range lost {
		s.hear(m, r)
	}
	s.restore(ctx, m)
	s.tidy(ctx, m)
}

// hear notes that a registration was taken over.
func (s *Service) hear(m coord.Member, r coord.Registration) {
	s.mu.Lock()
	c := s.held[r.Key]
	if c != nil {
		c.lost = max(c.lost, r.Epoch)
	}
	replaced := c != nil && c.member == m && c.entry == r
	s.mu.Unlock()
	if replaced {
		s.lose(c)
	}
}

// restore registers the connections whose entries ended with an earlier lease, but
// for those that were replaced since.
func (s *Service) restore(ctx context.Context, m coord.Member) {
	s.mu.Lock()
	var lapsed []*connection
	for _, c := range s.held {
		if c.member != nil && c.member != m {
			lapsed = append(lapsed, c)
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(lapsed, coord.MaxBatch) {
		keys := make([]string, len(some))
		for i, c := range some {
			keys[i] = c.key
		}
		found, err := s.directory.Lookup(ctx, keys...)
		if err != nil {
			return // the next heartbeat tries again
		}
		var calls sync.WaitGroup
		places := make(chan struct{}, registering)
		for _, c := range some {
			places <- struct{}{}
			calls.Go(func() {
				defer func() { <-places }()
				s.restoreOne(ctx, m, c, found[c.key])
			})
		}
		calls.Wait()
	}
}

func (s *Service) restoreOne(ctx context.Context, m coord.Member, c *connection, found coord.Entry) {
	c.turn.Lock()
	defer c.turn.Unlock()
	s.mu.Lock()
	settled := c.over || c.member == m
	// An entry of this member's own is there when the answer to its registration was lost.
	replaced := found.Epoch > c.entry.Epoch && found.Member != m.ID()
	s.mu.Unlock()
	switch {
	case settled:
	case replaced:
		s.lose(c)
	default:
		_ = s.register(ctx, c) // the next heartbeat tries again
	}
}

// tidy removes the entries of this replica that belong to none of its connections:
// those that could not be removed, and those of which the answer was lost.
func (s *Service) tidy(ctx context.Context, m coord.Member) {
	s.mu.Lock()
	keys := make([]string, 0, len(s.doubts))
	for key := range s.doubts {
		if len(keys) < coord.MaxBatch {
			keys = append(keys, key)
		}
	}
	s.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	found, err := s.directory.Lookup(ctx, keys...)
	if err != nil {
		return
	}
	var left []coord.Registration
	s.mu.Lock()
	for _, key := range keys {
		// One that is held has taken over what was left.
		if e, ok := found[key]; ok && e.Member == m.ID() && s.held[key] == nil {
			left = append(left, e.Registration)
			continue
		}
		delete(s.doubts, key)
	}
	s.mu.Unlock()
	if err := m.Deregister(ctx, left...); err != nil {
		return
	}
	now := time.Now()
	for _, r := range left {
		s.mu.Lock()
		delete(s.doubts, r.Key)
		s.mu.Unlock()
		if user, id, ok := parseKey(r.Key); ok {
			s.touch(user, change{due: now, seen: true})
			s.onGone(ctx, user, id) // who ended the connection may have been unable to do more, too
		}
	}
}

// rounds sweeps, about twice in a lease, and now and then compares all.
func (s *Service) rounds(ctx context.Context) {
	select { // replicas that start at once don't take turns with each other
	case <-ctx.Done():
	case <-time.After(rand.N(s.o.Lease / 30)):
	}
	for n, unsure := 0, true; ctx.Err() == nil; n++ {
		if unsure || n%(2*checkLeases) == 0 {
			unsure = !s.check(ctx)
		}
		unsure = !s.sweep(ctx) || unsure
		select {
		case <-ctx.Done():
		case <-time.After(s.o.Lease/4 + rand.N(s.o.Lease/2)):
		}
	}
}

// sweep removes what vanished replicas have left. It reports false when there may be more to announce of it than
// could be found out.
func (s *Service) sweep(ctx context.Context) (sure bool) {
	for ctx.Err() == nil {
		swept, err := s.directory.Sweep(ctx)
		for _, e := range swept {
			user, id, ok := parseKey(e.Key)
			if !ok {
				continue
			}
			now := time.Now()
			s.touch(user, change{due: now, seen: true, sure: now})
			s.onGone(ctx, user, id)
		}
		if errors.Is(err, coord.ErrUnknownOutcome) {
			return s.check(ctx)
		}
		if err != nil || len(swept) == 0 {
			break
		}
	}
	return true
}

// check has everybody looked at of whom not was announced last that they are offline, and reports whether it could.
func (s *Service) check(ctx context.Context) bool {
	users, err := s.store.Present(ctx)
	if err != nil {
		return false
	}
	now := time.Now()
	for _, user := range users {
		s.touch(user, change{due: now})
	}
	return true
}

// touch has a person looked at, when that is due.
func (s *Service) touch(user int64, c change) {
	s.mu.Lock()
	if before, ok := s.pending[user]; ok {
		c.seen = c.seen || before.seen
		if before.sure.After(c.sure) {
			c.sure = before.sure
		}
		if before.due.Before(c.due) {
			c.due = before.due
		}
	}
	s.pending[user] = c
	s.mu.Unlock()
	wake(s.news)
}

// announcements announces what is due.
func (s *Service) announcements(ctx context.Context) {
	for {
		for s.announce(ctx, time.Now()) {
		}
		var due <-chan time.Time
		if next, some := s.nextDue(); some {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.news:
		case <-due:
		}
	}
}

func (s *Service) nextDue() (next time.Time, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.pending {
		if !some || c.due.Before(next) {
			next, some = c.due, true
		}
	}
	return next, some
}

// announce looks at people who are due by now, and reports whether it was worth it and
// there may be more.
func (s *Service) announce(ctx context.Context, now time.Time) bool {
	if ctx.Err() != nil { // what there is stays for the end
		return false
	}
	taken := make(map[int64]change)
	var users []int64
	s.mu.Lock()
	for user, c := range s.pending {
		if len(users) < mostAnnounced && !c.due.After(now) {
			taken[user], users = c, append(users, user)
			delete(s.pending, user)
		}
	}
	s.mu.Unlock()
	if len(users) == 0 {
		return false
	}
	slices.Sort(users) // rows are locked in order
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	differ, err := s.publish(ctx, now, users, taken)
	if err != nil {
		for user, c := range taken {
			s.touch(user, change{time.Now().Add(retryPause), c.seen, c.sure})
		}
		if !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, coord.ErrClosed) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "presence was not announced", "error", err)
		}
		return false
	}
	for _, user := range differ {
		s.touch(user, change{due: time.Now(), seen: taken[user].seen})
	}
	return true
}

// publish announces of whom the directory says something else than was announced
// last, and returns of whom it has changed meanwhile: somebody else may have announced
// what was older.
func (s *Service) publish(
	ctx context.Context, now time.Time, users []int64, of map[int64]change,
) (differ []int64, err error) {
	states, err := s.look(ctx, users)
	if err != nil {
		return nil, err
	}
	announced, err := s.store.Presence(ctx, users...)
	if err != nil {
		return nil, err
	}
	var changed []int64
	for _, p := range announced {
		switch c := of[p.UserID]; {
		case p.State == states[p.UserID]:
		case states[p.UserID] == Offline && s.wait(now, &c):
			s.touch(p.UserID, c)
		default:
			changed = append(changed, p.UserID)
		}
	}
	if len(changed) == 0 {
		return nil, nil
	}
	slices.Sort(changed)
	err = s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		var events []coord.NewEvent
		for _, user := range changed {
			p, err := u.SetPresence(ctx, user, states[user], of[user].seen)
			if errors.Is(err, coord.ErrNotFound) { // somebody was faster
				continue
			}
			if err != nil {
				return err
			}
			payload, err := json.Marshal(State{UserID: user, State: p.State, LastSeen: p.LastSeen})
			if err != nil {
				return err
			}
			events = append(events, coord.NewEvent{Topic: Topic, Kind: Kind, Payload: payload})
		}
		return u.Coord.Publish(ctx, events...)
	})
	if err != nil {
		return nil, err
	}
	again, err := s.look(ctx, changed)
	if err != nil {
		return nil, err
	}
	for _, user := range changed {
		if again[user] != states[user] {
			differ = append(differ, user)
		}
	}
	return differ, nil
}

// wait reports whether somebody who is offline may come back, and until when that is
// waited for.
func (s *Service) wait(now time.Time, c *change) bool {
	if c.sure.IsZero() {
		c.sure = time.Now().Add(s.o.Linger)
	}
	c.due = c.sure
	return c.sure.After(now)
}
