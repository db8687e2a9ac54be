package hub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/coord"
)

// chaos plays publishers, removals, trims, failovers and an unreliable store against
// clients that stall, leave, come back and change replicas, in fake time.
type chaos struct {
	*env
	hubs []*Hub

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	follows map[string]map[coord.Position][]coord.Position // what ever came behind what
	commits map[coord.Position]int                         // when an event was committed
	removed map[[2]int64]int                               // user and room: since when
	calm    bool
}

func (c *chaos) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) pause(most int) { time.Sleep(time.Duration(c.n(most*1000)) * time.Microsecond) }

var chaosRooms = []int64{1, 2, 3}

func TestChaos(t *testing.T) {
	const seeds = 10
	first := rand.Uint64()
	for i := range seeds {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) { runChaos(t, seed) })
	}
}

func runChaos(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("the seed was %d", seed)
		}
	}()
	o := Options{QueueBytes: 20 << 10, HistoryBytes: 200 << 10, SlowAfter: 5 * time.Second}
	c := &chaos{
		env: newEnv(t, o), rng: rand.New(rand.NewPCG(seed, 1)),
		follows: make(map[string]map[coord.Position][]coord.Position), removed: make(map[[2]int64]int),
		commits: make(map[coord.Position]int),
	}
	c.hubs = []*Hub{c.hub, c.replica(o)}
	for range 600 {
		c.say(1, "k", 10)
	}
	c.hook(func(string, string) error {
		c.pause(4)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.calm && c.rng.IntN(15) == 0 {
			return errOutage
		}
		return nil
	})
	var world, watching sync.WaitGroup
	for range 3 {
		world.Go(c.publisher)
	}
	world.Go(c.troublemaker)
	stop := make(chan struct{})
	watchers := make([]*watcher, 10)
	for i := range watchers {
		watchers[i] = &watcher{chaos: c, user: int64(1 + i%4), at: make(map[string]coord.Position)}
		watching.Go(func() { watchers[i].watch(stop) })
	}
	world.Wait()
	close(stop)
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	watching.Wait()
	for key := range c.env.removed {
		c.readd(key[0], key[1])
	}
	c.mu.Lock()
	clear(c.removed)
	c.mu.Unlock()
	// From now on nothing is in the way, and everybody comes to the end.
	for _, w := range watchers {
		w.connect()
		for _, room := range chaosRooms {
			w.mustFollow(rooms.Topic(room))
		}
	}
	for _, room := range chaosRooms {
		c.say(room, "k", 10)
	}
	time.Sleep(time.Minute)
	for i, w := range watchers {
		for _, room := range chaosRooms {
			topic := rooms.Topic(room)
			if at, head := w.client.position(topic), c.head(topic); at != head {
				t.Errorf("watcher %d ends in %s at %v, the head is %v", i, topic, at, head)
			}
		}
		w.client.disconnect()
	}
	for _, h := range c.hubs {
		c.drain(h)
		if h.history.bytes != 0 || h.history.order.Len() != 0 || len(h.index.topics) != 0 {
			t.Errorf("%d bytes of %d topics are kept", h.history.bytes, len(h.index.topics))
		}
	}
}

// say publishes an event. Its place is noted before anybody can have it.
func (c *chaos) say(room int64, kind string, size int) {
	c.commit(room, kind, map[string]string{"text": string(make([]byte, size))})
}

func (c *chaos) commit(room int64, kind string, payload any) (when int) {
	topic := rooms.Topic(room)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.head(topic)
	c.event(topic, kind, payload)
	after := c.head(topic)
	c.note(topic, before, after)
	return c.commits[after]
}

func (c *chaos) note(topic string, before, after coord.Position) {
	if c.follows[topic] == nil {
		c.follows[topic] = make(map[coord.Position][]coord.Position)
	}
	c.follows[topic][before] = append(c.follows[topic][before], after)
	c.commits[after] = len(c.commits)
}

func (c *chaos) publisher() {
	for range 150 {
		for range 1 + c.n(4) {
			c.say(chaosRooms[c.n(len(chaosRooms))], "k", []int{10, 100, 900}[c.n(3)])
		}
		c.pause(10)
	}
}

func (c *chaos) troublemaker() {
	for range 40 {
		c.pause(30)
		room, user := chaosRooms[c.n(len(chaosRooms))], int64(1+c.n(2)) // the others stay
		topic, key := rooms.Topic(room), [2]int64{user, room}
		switch c.n(6) {
		case 0:
			c.trim(topic, 20+c.n(30))
		case 1:
			c.mu.Lock()
			c.rewrite(topic, 1+c.rng.IntN(10), c.rng.IntN(12))
			events := c.topic(topic).events
			for i := 1; i < len(events); i++ {
				if !slices.Contains(c.follows[topic][events[i-1].Position], events[i].Position) {
					c.note(topic, events[i-1].Position, events[i].Position)
				}
			}
			c.mu.Unlock()
		case 2, 3: // as one transaction
			c.people.mu.Lock()
			if !c.people.removed[key] {
				c.people.removed[key] = true
				at := c.commit(room, rooms.KindMemberRemoved, rooms.Removed{UserID: user})
				c.mu.Lock()
				c.removed[key] = at
				c.mu.Unlock()
			}
			c.people.mu.Unlock()
		case 4:
			c.people.mu.Lock()
			delete(c.people.removed, key)
			c.mu.Lock()
			delete(c.removed, key)
			c.mu.Unlock()
			c.people.mu.Unlock()
		case 5:
			c.fail(errOutage)
		}
	}
}

// watcher is a person with one connection at a time.
type watcher struct {
	*chaos
	user   int64
	client *client
	at     map[string]coord.Position // where they were, when they were last connected
}

func (w *watcher) watch(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			w.leave()
			return
		default:
		}
		switch {
		case w.client == nil || w.client.closedWith() != 0:
			w.connect()
		case w.n(30) == 0:
			w.leave()
			continue
		}
		topic := rooms.Topic(chaosRooms[w.n(len(chaosRooms))])
		switch w.n(12) {
		case 0:
			w.client.unsubscribe(topic)
		case 1, 2, 3, 4:
			_ = w.follow(topic) // may be refused, or not possible
		case 5:
			release := w.client.hold()
			w.pause(300)
			release()
		default:
			w.pause(20)
		}
	}
}

func (w *watcher) connect() {
	w.leave()
	for w.client == nil {
		if client, err := w.open(w.hubs[w.n(2)], 100*w.user); err == nil {
			w.client = client
			w.client.judge = w.judge
		}
	}
}

func (w *watcher) leave() {
	if w.client == nil {
		return
	}
	w.client.disconnect()
	for _, room := range chaosRooms {
		if at := w.client.position(rooms.Topic(room)); at != coord.Start {
			w.at[rooms.Topic(room)] = at
		}
	}
	w.client = nil
}

func (w *watcher) follow(topic string) error {
	from := []coord.Position{w.at[topic], w.at[topic], coord.Head, coord.Start}[w.n(4)]
	_, err := w.client.from(topic, from)
	return err
}

func (w *watcher) mustFollow(topic string) {
	for range 100 {
		if w.follow(topic) == nil {
			return
		}
	}
	w.Errorf("%s can't be followed", topic)
}

// judge says what is wrong with an event that came behind another.
func (w *watcher) judge(topic string, last, at coord.Position) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.follows[topic][last], at) {
		return fmt.Errorf("%s: %v came behind %v, which it never followed", topic, at, last)
	}
	room, _ := rooms.ParseTopic(topic)
	if since, ok := w.removed[[2]int64{w.user, room}]; ok && w.commits[at] > since {
		return fmt.Errorf("%s: %v came to somebody who had been removed", topic, at)
	}
	return nil
}
