package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

type call struct {
	coord.Call
	index int // in asks.byDeadline
}

// out returns the call for a caller, who may keep and change it.
func (c *call) out() coord.Call {
	out := c.Call
	out.Payload, out.Result = bytes.Clone(c.Payload), bytes.Clone(c.Result)
	return out
}

// asks are the calls of a store.
type asks struct {
	byID       map[coord.CallID]*call
	byKey      map[string]*call
	open       map[string][]*call // by target, the oldest first
	byDeadline pile[*call]
}

func newAsks() asks {
	return asks{
		byID:  make(map[coord.CallID]*call),
		byKey: make(map[string]*call),
		open:  make(map[string][]*call),
		byDeadline: pile[*call]{
			less:  func(a, b *call) bool { return a.Deadline.Before(b.Deadline) },
			place: func(c *call) *int { return &c.index },
		},
	}
}

func (a *asks) add(c *call) {
	a.byID[c.ID] = c
	if c.Key != "" {
		a.byKey[c.Key] = c
	}
	a.open[c.Target] = append(a.open[c.Target], c)
	a.byDeadline.push(c)
}

func (a *asks) remove(c *call) {
	delete(a.byID, c.ID)
	if c.Key != "" {
		delete(a.byKey, c.Key)
	}
	a.closed(c)
	a.byDeadline.remove(c)
}

// closed takes a call off those that are open, if it is there.
func (a *asks) closed(c *call) {
	rest := slices.DeleteFunc(a.open[c.Target], func(o *call) bool { return o == c })
	if len(rest) == 0 {
		delete(a.open, c.Target)
	} else {
		a.open[c.Target] = rest
	}
}

// look returns a call, which it ends first when its deadline has passed.
func (s *Store) look(now time.Time, id coord.CallID) (*call, error) {
	c := s.asks.byID[id]
	if c == nil {
		return nil, coord.ErrNotFound
	}
	if !c.Ended() && !now.Before(c.Deadline) {
		s.end(c, coord.CallExpired, c.Deadline)
	}
	return c, nil
}

// end ends an open call.
func (s *Store) end(c *call, state coord.CallState, at time.Time) {
	before, open := c.Call, slices.Clone(s.asks.open[c.Target])
	s.onRollback(func() { c.Call, s.asks.open[c.Target] = before, open })
	c.State, c.EndedAt = state, at
	s.asks.closed(c)
	s.ringCalls = true
}

// endOnce ends the call of an id, if it is open, and says why not otherwise.
func (s *Store) endOnce(now time.Time, id coord.CallID, state coord.CallState, target string) (*call, error) {
	c, err := s.look(now, id)
	switch {
	case err != nil:
		return nil, err
	case target != "" && c.Target != target:
		return nil, coord.ErrNotFound
	case c.State == coord.CallExpired:
		return nil, coord.ErrExpired
	case c.Ended():
		return nil, coord.ErrConflict
	}
	s.end(c, state, now)
	return c, nil
}

func (s *Store) openCall(now time.Time, n coord.NewCall) coord.Call {
	if c := s.asks.byKey[n.Key]; c != nil {
		c, _ = s.look(now, c.ID) // it is there
		earlier := c.out()
		earlier.Duplicate = true
		return earlier
	}
	c := &call{Call: coord.Call{
		ID: coord.NewCallID(), Key: n.Key, Target: n.Target, Kind: n.Kind, Payload: bytes.Clone(n.Payload),
		State: coord.CallOpen, CreatedAt: now, Deadline: now.Add(n.TTL),
	}}
	s.asks.add(c)
	s.onRollback(func() { s.asks.remove(c) })
	return c.out()
}

func (s *Store) cancelCall(now time.Time, id coord.CallID, reason string) error {
	c, err := s.endOnce(now, id, coord.CallCancelled, "")
	if err == nil {
		c.Error = reason
	}
	return err
}

type calls struct {
	store  *Store
	closed <-chan struct{} // when the handle is
}

func (k calls) Open(ctx context.Context, n coord.NewCall) (opened coord.Call, err error) {
	err = k.store.write(ctx, func(now time.Time) error {
		opened = k.store.openCall(now, n)
		return nil
	})
	return opened, err
}

func (k calls) Answer(ctx context.Context, a coord.Answer) error {
	return k.store.write(ctx, func(now time.Time) error {
		c, err := k.store.endOnce(now, a.ID, coord.CallAnswered, a.Target)
		if err == nil {
			c.Result, c.Error = bytes.Clone(a.Result), a.Error
		}
		return err
	})
}

func (k calls) Cancel(ctx context.Context, id coord.CallID, reason string) error {
	return k.store.write(ctx, func(now time.Time) error { return k.store.cancelCall(now, id, reason) })
}

func (k calls) Get(ctx context.Context, id coord.CallID) (coord.Call, error) {
	return k.get(ctx, func() coord.CallID { return id })
}

func (k calls) Find(ctx context.Context, key string) (coord.Call, error) {
	return k.get(ctx, func() coord.CallID {
		if c := k.store.asks.byKey[key]; c != nil {
			return c.ID
		}
		return ""
	})
}

func (k calls) get(ctx context.Context, which func() coord.CallID) (found coord.Call, err error) {
	err = k.store.write(ctx, func(now time.Time) error {
		c, err := k.store.look(now, which())
		if err == nil {
			found = c.out()
		}
		return err
	})
	return found, err
}

// callPoll is how often a call that is waited for is looked at when nothing is
// heard: its deadline passes without a sound.
const callPoll = 20 * time.Millisecond

func (k calls) Wait(ctx context.Context, id coord.CallID) (coord.Call, error) {
	ended, stop := k.store.calls.Hints()
	defer stop()
	poll := time.NewTicker(callPoll)
	defer poll.Stop()
	for {
		c, err := k.Get(ctx, id)
		if err != nil || c.Ended() {
			return c, err
		}
		select {
		case <-ended:
		case <-poll.C:
		case <-ctx.Done():
			return coord.Call{}, ctx.Err()
		case <-k.closed:
			return coord.Call{}, coord.ErrClosed
		}
	}
}

func (k calls) Pending(ctx context.Context, target string) (list []coord.Call, err error) {
	err = k.store.write(ctx, func(now time.Time) error {
		for _, c := range slices.Clone(k.store.asks.open[target]) {
			if c, _ = k.store.look(now, c.ID); !c.Ended() && len(list) < coord.MaxBatch {
				list = append(list, c.out())
			}
		}
		return nil
	})
	return list, err
}

func (k calls) Reap(ctx context.Context, age time.Duration) (n int, err error) {
	err = k.store.write(ctx, func(now time.Time) error {
		a := &k.store.asks
		for n < batch && a.byDeadline.len() > 0 && !now.Before(a.byDeadline.top().Deadline.Add(age)) {
			a.remove(a.byDeadline.top())
			n++
		}
		return nil
	})
	return n, err
}
