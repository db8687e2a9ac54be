//go:build unix

package checker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// counts are what the followers did and saw.
type counts struct {
	deliveries, dials, reconnects, moves, resumes, resets atomic.Int64
	slowest                                               atomic.Int64 // from publishing to delivery, ns
}

// follower follows rooms, as one client or as one after another, and notes what it is told.
type follower struct {
	t        *testing.T
	name     string
	person   *person
	urls     []string
	rng      *rand.Rand
	counts   *counts
	commands chan func(ctx context.Context) // for the goroutine that calls Next

	client *client.Client

	mu         sync.Mutex
	away       bool // on purpose: nothing can be expected
	connection client.Connection
	views      []*view
	current    map[string]*view
	since      map[string]time.Time // of the current views
}

func newFollower(t *testing.T, name string, p *person, replicas []*replica, rng *rand.Rand, n *counts) *follower {
	f := &follower{
		t: t, name: name, person: p, rng: rng, counts: n, commands: make(chan func(context.Context)),
		current: make(map[string]*view), since: make(map[string]time.Time),
	}
	for _, r := range replicas {
		f.urls = append(f.urls, r.url())
	}
	return f
}

// fault reports what must not happen, unless the test is over.
func (f *follower) fault(ctx context.Context, format string, args ...any) {
	if ctx.Err() == nil {
		f.t.Errorf("%s: %s", f.name, fmt.Sprintf(format, args...))
	}
}

// dial connects a client to some replica, and others when that fails.
func (f *follower) dial(ctx context.Context) bool {
	f.rng.Shuffle(len(f.urls), func(i, j int) { f.urls[i], f.urls[j] = f.urls[j], f.urls[i] })
	cookie := f.person.cookies[f.rng.IntN(len(f.person.cookies))]
	c, err := client.Dial(ctx, client.Options{
		Endpoints: f.urls, HTTPClient: f.person.http,
		Session:    func(context.Context) (*http.Cookie, error) { return cookie, nil },
		MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second,
	})
	if err != nil {
		f.fault(ctx, "Dial: %v", err)
		return false
	}
	f.client = c
	f.mu.Lock()
	f.connection = client.Connection{}
	f.mu.Unlock()
	f.counts.dials.Add(1)
	return true
}

// subscribe follows topics, each from a position. Where that is the position of an earlier view, the view
// goes on.
func (f *follower) subscribe(ctx context.Context, from map[string]coord.Position) bool {
	began := time.Now()
	if err := f.client.Subscribe(ctx, from); err != nil {
		f.fault(ctx, "Subscribe: %v", err)
		return false
	}
	positions := f.client.Positions()
	f.mu.Lock()
	defer f.mu.Unlock()
	for topic, p := range from {
		if p == coord.Head {
			p = positions[topic]
		} else if p.Seq > 0 {
			f.counts.resumes.Add(1)
		}
		v := f.current[topic]
		if v == nil || v.ended || v.at() != p {
			v = &view{client: f.name, topic: topic, from: p}
			f.current[topic] = v
			f.views = append(f.views, v)
		}
		f.since[topic] = began
	}
	return true
}

// unsubscribe gives a topic up, and returns where it was.
func (f *follower) unsubscribe(topic string) coord.Position {
	f.client.Unsubscribe(topic)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current[topic].at()
}

// end notes that a topic was given up, and what it told.
func (f *follower) end(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current[topic].ended = true
}

// follows reports whether the follower follows a topic.
func (f *follower) follows(topic string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.current[topic]
	return v != nil && !v.ended
}

// some is a topic that is followed.
func (f *follower) some() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	topics := slices.Sorted(maps.Keys(f.current))
	return topics[f.rng.IntN(len(topics))]
}

func (f *follower) setAway(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

// leave closes the client and returns where it was.
func (f *follower) leave() map[string]coord.Position {
	f.client.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	positions := make(map[string]coord.Position)
	for topic, v := range f.current {
		if !v.ended {
			positions[topic] = v.at()
		}
	}
	return positions
}

// run follows until done. While it storms, now and then it does something else.
func (f *follower) run(storm, done context.Context, act func(ctx context.Context) bool) {
	defer func() { f.client.Close() }()
	next := f.pause()
	for done.Err() == nil {
		f.noteConnection()
		select {
		case command := <-f.commands:
			command(done)
			continue
		default:
		}
		if storm.Err() == nil && time.Now().After(next) {
			if !act(done) {
				return
			}
			next = f.pause()
		}
		ctx, cancel := context.WithTimeout(done, 200*time.Millisecond)
		events, err := f.client.Next(ctx)
		cancel()
		reset, isReset := errors.AsType[*coord.ResetError](err)
		refused, isRefused := errors.AsType[*client.RefusedError](err)
		switch {
		case err == nil:
			f.take(done, events)
		case isReset:
			f.reset(done, reset)
		case isRefused:
			f.refused(done, refused)
		case !errors.Is(err, context.DeadlineExceeded):
			f.fault(done, "Next: %v", err)
			return
		}
	}
}

// pause returns when to do something else.
func (f *follower) pause() time.Time {
	return time.Now().Add(time.Duration(f.rng.Int64N(int64(8 * time.Second))))
}

// do lets the goroutine of run do something, and waits for that.
func (f *follower) do(ctx context.Context, command func(ctx context.Context)) {
	over := make(chan struct{})
	select {
	case f.commands <- func(ctx context.Context) { command(ctx); close(over) }:
	case <-ctx.Done():
		return
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// noteConnection notices that the client has another connection.
func (f *follower) noteConnection() {
	now, ok := f.client.Connection()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok || now.ID == f.connection.ID {
		return
	}
	if f.connection.ID != "" {
		f.counts.reconnects.Add(1)
		f.counts.resumes.Add(int64(len(f.current)))
		if now.Endpoint != f.connection.Endpoint {
			f.counts.moves.Add(1)
		}
	}
	f.connection = now
}

func (f *follower) take(ctx context.Context, events []coord.Event) {
	now := time.Now()
	f.counts.deliveries.Add(int64(len(events)))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		v := f.current[e.Topic]
		if v == nil || v.ended {
			f.fault(ctx, "an event of %s, which was not asked for", e.Topic)
			continue
		}
		v.steps = append(v.steps, step{event: event{e.Position, e.Kind, sum(e.Payload)}})
		if e.At.After(f.since[e.Topic]) {
			f.slow(now.Sub(e.At))
		}
	}
}

// slow notes how long an event took.
func (f *follower) slow(d time.Duration) {
	for {
		slowest := f.counts.slowest.Load()
		if int64(d) <= slowest || f.counts.slowest.CompareAndSwap(slowest, int64(d)) {
			return
		}
	}
}

func (f *follower) reset(ctx context.Context, r *coord.ResetError) {
	f.counts.resets.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.current[r.Topic]
	if v == nil || v.ended {
		f.fault(ctx, "a reset of %s, which was not asked for", r.Topic)
		return
	}
	v.steps = append(v.steps, step{event: event{at: r.Head}, reset: r.Reason})
}

func (f *follower) refused(ctx context.Context, r *client.RefusedError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.current[r.Topic]; v != nil && !v.ended {
		v.refused, v.ended = true, true
		return
	}
	f.fault(ctx, "a refusal of %s, which was not asked for", r.Topic)
}

// behind says where the follower is not at the end of a topic.
func (f *follower) behind(heads map[string]coord.Position) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return ""
	}
	for topic, v := range f.current {
		if at := v.at(); !v.ended && at != heads[topic] {
			return fmt.Sprintf("%s on %s is at %v of %s, whose last event is %v", f.name, f.connection.Node, at, topic, heads[topic])
		}
	}
	return ""
}

// caughtUp waits until all followers are where the log ends, which nobody adds to.
func caughtUp(t *testing.T, what string, followers []*follower, heads map[string]coord.Position) bool {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var behind []string
		for _, f := range followers {
			if text := f.behind(heads); text != "" {
				behind = append(behind, text)
			}
		}
		if len(behind) == 0 {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			const most = 10
			for _, text := range behind[:min(most, len(behind))] {
				t.Errorf("%s: after %v %s", what, patience, text)
			}
			t.Errorf("%s: %d of %d clients have not caught up", what, len(behind), len(followers))
			return false
		}
	}
}
