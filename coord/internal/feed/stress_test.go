package feed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// chaos plays publishers, a driver that loses, repeats and delays what it finds,
// failovers, trims and an unreliable store against many streams, in fake time.
type chaos struct {
	*testing.T
	*history
	hub *Hub

	mu  sync.Mutex // guards rng
	rng *rand.Rand

	driver lock // what is found is handed on in one order, as by one connection
	found  []Event
	lossy  bool // something was not handed on: a resync is due
	calm   atomic.Bool
}

// lock is a mutex that may be held while fake time passes.
type lock chan struct{}

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

func (c *chaos) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// pause sleeps for up to a few milliseconds.
func (c *chaos) pause(most int) { time.Sleep(time.Duration(c.n(most*1000)) * time.Microsecond) }

func TestChaos(t *testing.T) {
	const seeds = 60
	first := rand.Uint64()
	for i := range seeds {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) { run(t, seed) })
		if t.Failed() {
			t.Fatalf("the seed was %d", seed)
		}
	}
}

var chaosTopics = []string{"a", "b", "c", "d", "long"}

func run(t *testing.T, seed uint64) {
	h := newHistory()
	c := &chaos{T: t, history: h, hub: New(h), rng: rand.New(rand.NewPCG(seed, 1)), driver: make(lock, 1)}
	h.publish("long", 700, 10)
	flaky := func(op, _ string) error {
		c.pause(4)
		if !c.calm.Load() && c.n(20) == 0 {
			return coord.ErrUnavailable
		}
		return nil
	}
	h.before, h.after = flaky, flaky

	var world, readers sync.WaitGroup
	for range 3 {
		world.Go(c.publisher)
	}
	world.Go(c.deliverer)
	world.Go(c.troublemaker)
	ctx, stop := context.WithCancel(t.Context())
	watchers := make([]*watcher, 8)
	for i := range watchers {
		watchers[i] = &watcher{chaos: c, at: make(map[string]coord.Position), slow: i%3 == 0}
		readers.Go(func() { watchers[i].watch(ctx) })
	}
	world.Wait()

	// From now on nothing is lost, and one resync brings everyone up to date.
	synctest.Wait()
	c.calm.Store(true)
	for c.hub.Resync(ctx) != nil {
		continue
	}
	time.Sleep(10 * time.Minute)
	stop()
	readers.Wait()
	for i, w := range watchers {
		for topic, at := range w.stream.Positions() {
			if head := c.head(topic); at != head {
				t.Errorf("stream %d ends in %s at %v, the head is %v", i, topic, at, head)
			}
			if w.at[topic] != at {
				t.Errorf("stream %d says %v in %s and has returned up to %v", i, at, topic, w.at[topic])
			}
		}
	}
	c.hub.Close()
	for _, w := range watchers {
		if _, err := w.stream.Next(t.Context()); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("Next after Close: %v", err)
		}
	}
	if c.hub.Listening() {
		t.Error("a closed hub is listening")
	}
}

// publisher commits; the driver finds it later.
func (c *chaos) publisher() {
	for range 150 {
		topic := chaosTopics[c.n(len(chaosTopics))]
		c.driver.Lock()
		c.found = append(c.found, c.publish(topic, 1+c.n(3), []int{10, 3000, QueueBytes / 4}[c.n(3)])...)
		c.driver.Unlock()
		c.pause(6)
	}
}

// deliverer hands on what it finds, sometimes partly, twice or not at all. After
// a loss it resyncs.
func (c *chaos) deliverer() {
	for range 300 {
		c.pause(5)
		c.driver.Lock()
		found := c.found
		c.found = nil
		switch c.n(10) {
		case 0:
			c.lossy = c.lossy || len(found) > 0
			found = nil
		case 1:
			c.hub.Deliver(found)
		case 2:
			if len(found) > 1 {
				c.lossy = true
				found = found[c.n(len(found)):]
			}
		}
		c.hub.Deliver(found)
		lossy := c.lossy
		c.driver.Unlock()
		if lossy && c.n(3) == 0 && c.hub.Resync(c.Context()) == nil {
			c.driver.Lock()
			c.lossy = false
			c.driver.Unlock()
		}
	}
}

// troublemaker trims, and fails over to a store that has lost the latest events.
// As a driver would on its new connection, it resyncs before it delivers again.
func (c *chaos) troublemaker() {
	for range 12 {
		c.pause(60)
		topic := chaosTopics[c.n(len(chaosTopics))]
		if c.n(2) == 0 {
			c.trim(topic, c.n(10))
			continue
		}
		func() {
			c.driver.Lock()
			defer c.driver.Unlock()
			c.found = nil // with the old connection
			c.lose(topic, 1+c.n(8))
			for i := 0; c.hub.Resync(c.Context()) != nil; i++ {
				if i > 100 {
					panic("the store is away for good")
				}
			}
		}()
	}
}

// watcher is a subscriber that judges each event it gets.
type watcher struct {
	*chaos
	stream coord.Stream
	at     map[string]coord.Position // the last event, by topic
	slow   bool
}

func (w *watcher) watch(ctx context.Context) {
	w.pause(100)
	for w.stream == nil {
		s, err := w.hub.Subscribe(ctx, nil)
		if err != nil {
			w.Errorf("Subscribe of nothing: %v", err)
			return
		}
		w.stream = s
	}
	for range 3 {
		w.add(ctx, chaosTopics[w.n(len(chaosTopics))])
	}
	for ctx.Err() == nil {
		events, err := w.stream.Next(ctx)
		w.judge(events, err)
		if w.slow {
			w.pause(40)
		}
		switch topic := chaosTopics[w.n(len(chaosTopics))]; w.n(30) {
		case 0:
			w.stream.Remove(topic)
			delete(w.at, topic)
		case 1:
			w.add(ctx, topic)
		}
	}
}

// add subscribes from the start, a known position or the head.
func (w *watcher) add(ctx context.Context, topic string) {
	_, there := w.at[topic]
	from := []coord.Position{coord.Start, w.head(topic), coord.Head}[w.n(3)]
	err := w.stream.Add(ctx, map[string]coord.Position{topic: from})
	switch {
	case there && !errors.Is(err, coord.ErrConflict):
		w.Errorf("Add of a topic that is there: %v", err)
	case there || errors.Is(err, coord.ErrUnavailable) || ctx.Err() != nil:
	case err != nil:
		w.Errorf("Add: %v", err)
	default:
		w.at[topic] = w.stream.Positions()[topic]
		if from != coord.Head && w.at[topic] != from {
			w.Errorf("Add from %v starts at %v", from, w.at[topic])
		}
	}
}

func (w *watcher) judge(events []coord.Event, err error) {
	for _, e := range events {
		at, there := w.at[e.Topic]
		if !there {
			w.Errorf("an event of %s, which was removed", e.Topic)
			continue
		}
		if !w.follows(e.Topic, at, e.Position) {
			w.Errorf("%s: %v came after %v, which it never followed", e.Topic, e.Position, at)
		}
		w.at[e.Topic] = e.Position
	}
	reset, isReset := errors.AsType[*coord.ResetError](err)
	switch {
	case err == nil && len(events) == 0:
		w.Error("Next returned nothing")
	case isReset:
		if _, there := w.at[reset.Topic]; !there {
			w.Errorf("a reset of %s, which was removed", reset.Topic)
		}
		w.at[reset.Topic] = reset.Head
	case err != nil && !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, context.Canceled):
		w.Error(fmt.Errorf("next: %w", err))
	case err != nil:
		w.pause(5) // an application would, too
	}
}
