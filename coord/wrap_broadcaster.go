package coord

import (
	"context"
	"errors"
	"fmt"
)

type broadcasterSeam struct {
	*seam
	driver Broadcaster
}

func checkEvents(events []NewEvent) error {
	if err := between("events", len(events), 0, MaxBatch); err != nil {
		return err
	}
	bytes := 0
	for i := range events {
		if err := events[i].check(fmt.Sprintf("events[%d]", i)); err != nil {
			return err
		}
		bytes += len(events[i].Payload)
	}
	return payloads("events", bytes)
}

func eventsKey(events []NewEvent) string {
	if len(events) == 1 {
		return events[0].Topic
	}
	return ""
}

func (s broadcasterSeam) Publish(ctx context.Context, events ...NewEvent) (ps []Position, err error) {
	err = s.do(ctx, "broadcaster.publish", eventsKey(events), len(events), checkEvents(events), func() (err error) {
		if len(events) > 0 {
			ps, err = s.driver.Publish(ctx, events...)
		}
		return err
	})
	return ps, err
}

func (s broadcasterSeam) Subscribe(ctx context.Context, from map[string]Position) (stream Stream, err error) {
	err = s.do(ctx, "broadcaster.subscribe", "", len(from), checkPositions(from), func() error {
		st, err := s.driver.Subscribe(ctx, from)
		if err != nil {
			return err
		}
		stream = streamSeam{s.seam, st}
		return nil
	})
	return stream, err
}

func (s broadcasterSeam) Read(ctx context.Context, topic string, from Position, limit int) (es []Event, err error) {
	bad := invalid(
		checkPositions(map[string]Position{topic: from}),
		between("limit", limit, 1, MaxBatch),
	)
	err = s.do(ctx, "broadcaster.read", topic, 1, bad, func() (err error) {
		es, err = s.driver.Read(ctx, topic, from, limit)
		return err
	})
	return es, err
}

func (s broadcasterSeam) Heads(ctx context.Context, topics ...string) (heads map[string]Position, err error) {
	var bad error
	for _, topic := range topics {
		bad = invalid(bad, text("topics", topic, 1, maxName))
	}
	err = s.do(ctx, "broadcaster.heads", "", len(topics), bad, func() (err error) {
		heads, err = s.driver.Heads(ctx, topics...)
		return err
	})
	return heads, err
}

func (s broadcasterSeam) Trim(ctx context.Context, r EventRetention) (n int, err error) {
	bad := invalid(
		text("EventRetention.Prefix", r.Prefix, 0, maxName),
		span("EventRetention.Age", r.Age, 0, maxSpan),
		between("EventRetention.Keep", r.Keep, 0, 1<<30),
	)
	err = s.do(ctx, "broadcaster.trim", r.Prefix, 1, bad, func() (err error) {
		n, err = s.driver.Trim(ctx, r)
		return err
	})
	return n, err
}

type streamSeam struct {
	*seam
	driver Stream
}

// Next is not timed: it waits by nature, and a deadline that ran out meanwhile is
// the caller's.
func (s streamSeam) Next(ctx context.Context) (events []Event, err error) {
	const op = "stream.next"
	if s.inside(ctx) {
		return nil, wrapError(op, "", errInside)
	}
	events, err = s.driver.Next(ctx)
	if err == nil {
		return events, nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Op == op {
		return events, err
	}
	return events, &Error{Op: op, Err: err}
}

func (s streamSeam) Add(ctx context.Context, from map[string]Position) error {
	return s.do(ctx, "stream.add", "", len(from), checkPositions(from), func() error { return s.driver.Add(ctx, from) })
}

func (s streamSeam) Remove(topics ...string)        { s.driver.Remove(topics...) }
func (s streamSeam) Positions() map[string]Position { return s.driver.Positions() }
func (s streamSeam) Lag() int64                     { return s.driver.Lag() }
func (s streamSeam) Close()                         { s.driver.Close() }
