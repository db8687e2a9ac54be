package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// perEvent is what an event costs beside its payload.
const perEvent = 200

// topic is one that the client follows.
type topic struct {
	last     coord.Position // of the last event that came, or where the subscription starts
	returned coord.Position // of the last event that Next has returned
	stage    stage
}

// stage is how far the subscription of a topic is, on this connection.
type stage int

const (
	idle    stage = iota // not asked for
	asked                // asked for, but not confirmed: events are of an earlier one
	live                 // its events count
	leaving              // to be given up for a while, for too much waits for Next
	left                 // given up
)

// batch is what Next returns at a time: events or an error.
type batch struct {
	events []coord.Event
	err    error
}

// RefusedError says that a subscription could not be resumed, or was ended by the server: it may not
// be read any more, or is gone.
type RefusedError struct {
	Topic string
	Err   error // a [*FrameError]
}

func (e *RefusedError) Error() string { return fmt.Sprintf("client: topic %q: %v", e.Topic, e.Err) }

// Unwrap returns the server's refusal.
func (e *RefusedError) Unwrap() error { return e.Err }

// Subscribe follows topics, each from behind a position: [coord.Start] for all history that is kept,
// [coord.Head] for what follows. Topics that are followed already keep their place. It waits for the
// server's answer; when it returns an error, nothing was subscribed. Errors: a [*FrameError], that of
// ctx, why the client has stopped.
func (c *Client) Subscribe(ctx context.Context, from map[string]coord.Position) error {
	select { // one at a time, so that one that gives up takes nothing away from another
	case c.subscribing <- struct{}{}:
		defer func() { <-c.subscribing }()
	case <-ctx.Done():
		return fmt.Errorf("client: subscribe: %w", ctx.Err())
	}
	from = maps.Clone(from)
	c.mu.Lock()
	maps.DeleteFunc(from, func(name string, _ coord.Position) bool { return c.topics[name] != nil })
	following, l := len(c.topics), c.link
	c.mu.Unlock()
	switch {
	case len(from) == 0:
		return nil
	case l != nil && l.topics > 0 && following+len(from) > l.topics:
		return &FrameError{codeLimited, fmt.Sprintf("a connection may follow %d topics", l.topics)}
	}
	_, err := c.request(ctx, request{Type: "subscribe", Topics: from}, func(l *link, ack frame) {
		for name, position := range from {
			if c.topics[name] == nil {
				c.topics[name] = &topic{last: position, returned: position, stage: live}
				c.topics[name].start(ack.Positions[name])
			}
		}
	})
	if err != nil && ctx.Err() != nil {
		c.unsubscribe(slices.Collect(maps.Keys(from))) // it may have got through
	}
	return err
}

// start notes where the server lets a subscription start, which matters when it is the present.
func (t *topic) start(at coord.Position) {
	if t.last == coord.Head {
		t.last, t.returned = at, at
	}
}

// Unsubscribe ends the subscription to topics. No event of theirs is returned by a Next that starts
// afterwards.
func (c *Client) Unsubscribe(topics ...string) {
	c.mu.Lock()
	known := slices.DeleteFunc(slices.Clone(topics), func(name string) bool { return c.topics[name] == nil })
	for _, name := range known {
		c.forget(name)
	}
	var resume *link
	if c.comeBack() { // what was dropped may have been all that waited
		resume = c.link
	}
	c.mu.Unlock()
	c.unsubscribe(known)
	if resume != nil {
		resume.resume()
	}
}

// forget drops a topic and what waits of it. The client is locked.
func (c *Client) forget(name string) {
	delete(c.topics, name)
	for i := range c.waiting {
		c.waiting[i].events = slices.DeleteFunc(c.waiting[i].events, func(e coord.Event) bool {
			if e.Topic == name {
				c.bytes -= perEvent + len(e.Payload)
			}
			return e.Topic == name
		})
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(b batch) bool { return len(b.events) == 0 && b.err == nil })
}

// unsubscribe tells the server, if there is a connection.
func (c *Client) unsubscribe(topics []string) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil && len(topics) > 0 {
		_ = l.post(request{Type: "unsubscribe", Topics: topics}, func(frame) {}) // fails with the connection
	}
}

// Positions returns, for each topic, the position of the last event that Next has returned, or where
// the subscription started: a later Subscribe, also of another process, goes on from there.
func (c *Client) Positions() map[string]coord.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	positions := make(map[string]coord.Position, len(c.topics))
	for name, t := range c.topics {
		positions[name] = t.returned
	}
	return positions
}

// Next waits for events and returns those at hand, in order per topic and each once.
//
// Errors: a [*coord.ResetError] when history behind a topic's position is gone, after which the topic
// goes on; a [*RefusedError] when a topic may not be followed any more; both leave the others as they
// are. That of ctx. Why the client has stopped for good: [ErrSignedOut], [ErrReplaced], [coord.ErrClosed].
//
// A loss of the connection is no error. Who calls Next too rarely costs a bounded amount of memory:
// what does not fit is read again when its turn comes.
func (c *Client) Next(ctx context.Context) ([]coord.Event, error) {
	for {
		b, resume, ok := c.take()
		if resume != nil {
			resume.resume()
		}
		if ok {
			return b.events, b.err
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns what waits first and, when that was the last, the connection on which to resume topics
// that were left.
func (c *Client) take() (b batch, resume *link, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return batch{err: c.end}, nil, c.end != nil
	}
	b, c.waiting = c.waiting[0], c.waiting[1:]
	for _, e := range b.events {
		c.bytes -= perEvent + len(e.Payload)
		if t := c.topics[e.Topic]; t != nil {
			t.returned = e.Position
		}
	}
	if reset, ok := errors.AsType[*coord.ResetError](b.err); ok && c.topics[reset.Topic] != nil {
		c.topics[reset.Topic].returned = reset.Head
	}
	if c.comeBack() {
		resume = c.link
	}
	return b, resume, true
}

// comeBack makes topics that were left idle when nothing waits any more, and reports whether there are
// any. The client is locked.
func (c *Client) comeBack() (some bool) {
	if len(c.waiting) > 0 {
		return false
	}
	c.waiting = nil
	for _, t := range c.topics {
		if t.stage == left {
			t.stage, some = idle, true
		}
	}
	return some
}

// ring wakes Next. The client is locked.
func (c *Client) ring() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// event takes in an event. The client is locked.
func (l *link) event(e coord.Event) {
	c := l.client
	t := c.topics[e.Topic]
	if t == nil || t.stage != live || e.Position.Seq <= t.last.Seq {
		return
	}
	if c.bytes >= c.o.QueueBytes {
		t.stage = leaving
		l.unlocked = append(l.unlocked, func() { l.leave(e.Topic) })
		return
	}
	t.last = e.Position
	if n := len(c.waiting); n > 0 && c.waiting[n-1].err == nil {
		c.waiting[n-1].events = append(c.waiting[n-1].events, e)
	} else {
		c.waiting = append(c.waiting, batch{events: []coord.Event{e}})
	}
	c.bytes += perEvent + len(e.Payload)
	c.ring()
}

// reset takes in that history is gone. The client is locked.
func (l *link) reset(f *frame) {
	c := l.client
	if t := c.topics[f.Topic]; t != nil && (t.stage == asked || t.stage == live) {
		t.last = f.Position
		c.put(&coord.ResetError{Topic: f.Topic, Reason: f.Reason, Head: f.Position})
	}
}

// put lets Next return an error. The client is locked.
func (c *Client) put(err error) {
	c.waiting = append(c.waiting, batch{err: err})
	c.ring()
}

// leave lets the server keep the events of a topic until Next has returned what waits.
func (l *link) leave(name string) {
	c := l.client
	if l.post(request{Type: "unsubscribe", Topics: []string{name}}, func(frame) {}) != nil {
		return // the connection has ended, and the next one resumes
	}
	c.mu.Lock()
	if t := c.topics[name]; t != nil && t.stage == leaving {
		t.stage = left
	}
	resume := c.comeBack()
	c.mu.Unlock()
	if resume {
		l.resume()
	}
}

// resume subscribes to the topics that are idle, from where they are.
func (l *link) resume() {
	c := l.client
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.topics))
	c.mu.Unlock()
	l.resubscribe(names)
}

func (l *link) resubscribe(names []string) {
	c := l.client
	from := make(map[string]coord.Position, len(names))
	c.mu.Lock()
	if c.link != l { // by now the next one resumes
		names = nil
	}
	for _, name := range names {
		if t := c.topics[name]; t != nil && t.stage == idle {
			t.stage = asked
			from[name] = t.last
		}
	}
	c.mu.Unlock()
	if len(from) == 0 {
		return
	}
	// Fails with the connection; the next one begins anew.
	_ = l.post(request{Type: "subscribe", Topics: from}, func(answer frame) { l.resumed(from, answer) })
}

// resumed takes in the answer to a subscription of topics that were followed before. The client is
// locked.
func (l *link) resumed(from map[string]coord.Position, answer frame) {
	c := l.client
	for name := range from {
		t := c.topics[name]
		switch {
		case t == nil || t.stage != asked: // unsubscribed since
			delete(from, name)
		case answer.Type == "ack":
			t.stage = live
			t.start(answer.Positions[name])
		default:
			t.stage = idle
		}
	}
	if answer.Type == "ack" || len(from) == 0 {
		return
	}
	names := slices.Collect(maps.Keys(from))
	switch err := answer.refusal(); {
	case err.again():
		l.later(time.Second+upTo(4*time.Second), func() { l.resubscribe(names) })
	case len(names) > 1: // one of them is refused: which?
		for _, name := range names {
			l.unlocked = append(l.unlocked, func() { l.resubscribe([]string{name}) })
		}
	default:
		c.refused(names[0], err)
	}
}

// refused drops a topic. What waits of it is still returned. The client is locked.
func (c *Client) refused(name string, err *FrameError) {
	if c.topics[name] != nil {
		delete(c.topics, name)
		c.put(&RefusedError{name, err})
	}
}

// later calls a function, unless the connection has ended until then.
func (l *link) later(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		select {
		case <-l.ended:
		default:
			f()
		}
	})
}
