package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
)

func TestFromEveryPosition(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 700)
		first := e.connect(100)
		first.mustFrom("room:1", coord.Head)
		var clients []*client
		for seq := int64(0); seq <= 700; seq += 13 {
			from := coord.Start
			if seq > 0 {
				from = e.at("room:1", seq)
			}
			c := e.connect(200 + seq)
			if at := c.mustFrom("room:1", from); at != from {
				t.Errorf("starts at %v, want %v", at, from)
			}
			clients = append(clients, c)
			e.publish("room:1", 1)
		}
		e.upToDate("room:1", append(clients, first)...)
		e.publish("room:1", 5)
		e.upToDate("room:1", append(clients, first)...)
	})
}

func TestHeadAsksTheStoreOnce(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 3)
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		heads, adds := e.count("heads"), e.count("add")
		for i := range 20 {
			other := e.connect(101 + int64(i)) // of the same person
			if at := other.mustFrom("room:1", coord.Head); at != e.head("room:1") {
				t.Errorf("starts at %v", at)
			}
			other.mustFrom("room:1", coord.Start) // is subscribed already
		}
		if e.count("heads") != heads || e.count("add") != adds || e.count("read") != 0 {
			t.Errorf("the store was asked: %v", e.calls)
		}
	})
}

func TestJoinsAreShared(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(func(op, _ string) error {
			if op == "heads" {
				time.Sleep(time.Second)
			}
			return nil
		})
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				c := e.connect(100 * (1 + int64(i)))
				c.mustFrom("room:1", coord.Head)
				c.mustFrom(fmt.Sprintf("room:%d", 2+i%5), coord.Head)
			})
		}
		all.Wait()
		if n := e.count("heads"); n > 8 {
			t.Errorf("the store was asked %d times for the heads of 56 topics", n)
		}
	})
}

func TestJoinDuringAnOutage(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		for _, op := range []string{"heads", "add"} {
			e.hook(func(o, _ string) error {
				if o == op {
					return errOutage
				}
				return nil
			})
			if _, err := c.from("room:1", coord.Head); !isUnavailable(err) {
				t.Errorf("%s: got %v", op, err)
			}
		}
		e.hook(nil)
		c.mustFrom("room:1", coord.Head)
		e.publish("room:1", 3)
		e.upToDate("room:1", c)
	})
}

func TestManyResumeOneHistory(t *testing.T) {
	const missed, clients = 10_000, 100
	bubble(t, func(e *env) {
		e.publish("room:1", 300)
		var list []*client
		places := make([]coord.Position, clients)
		for i := range places { // they did not lose the connection at quite the same moment
			places[i] = e.at("room:1", 280+int64(i%20))
		}
		e.publish("room:1", missed)
		for i := range clients {
			c := e.connect(100 * int64(1+i))
			c.mustFrom("room:1", places[i])
			list = append(list, c)
		}
		e.upToDate("room:1", list...)
		if n := e.count("read"); n > missed/chunkEvents+40 {
			t.Errorf("the store was read %d times", n)
		}
		for _, c := range list {
			if n := c.seen("room:1"); n < missed {
				t.Fatalf("a client got %d events", n)
			}
		}
	})
}

func TestLastEventsNeedNoStore(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		e.publish("room:1", 100)
		e.upToDate("room:1", c)
		back := e.connect(200)
		back.mustFrom("room:1", e.at("room:1", 40))
		e.upToDate("room:1", back)
		if n := e.count("read"); n != 0 {
			t.Errorf("the store was read %d times", n)
		}
	})
}

func TestResetOfWhoComesTooLate(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 600)
		old, forged := e.at("room:1", 10), coord.Position{Seq: 590, Tag: 1}
		beyond := coord.Position{Seq: 601, Tag: 1}
		e.trim("room:1", 300)
		for from, reason := range map[coord.Position]string{
			old: coord.ResetTrimmed, coord.Start: coord.ResetTrimmed,
			forged: coord.ResetDiverged, beyond: coord.ResetDiverged,
		} {
			c := e.connect(100)
			c.mustFrom("room:1", from)
			e.publish("room:1", 1)
			e.upToDate("room:1", c)
			if got := c.kinds(); got != "[ack reset]" {
				t.Errorf("from %v: got %s", from, got)
			} else if got := string(c.frames[1].json); !contains(got, `"reason":"`+reason+`"`) {
				t.Errorf("from %v: got %s, want %s", from, got, reason)
			}
			if n := c.seen("room:1"); n > 1 { // and never a piece of what was missed
				t.Errorf("from %v: got %d events", from, n)
			}
		}
	})
}

func TestAheadOfThisReplica(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		// The stream is late: a client comes with what another replica showed it.
		catchUp := e.delay("room:1")
		e.publish("room:1", 5)
		other := e.connect(200)
		other.mustFrom("room:1", e.head("room:1"))
		synctest.Wait()
		if other.isLive("room:1") || other.seen("room:1") != 0 {
			t.Error("a client ahead of its replica is live")
		}
		catchUp()
		e.upToDate("room:1", c, other)
		e.publish("room:1", 2)
		e.upToDate("room:1", c, other)
		if c.seen("room:1") != 7 || other.seen("room:1") != 2 {
			t.Errorf("they got %d and %d events, want 7 and 2", c.seen("room:1"), other.seen("room:1"))
		}
	})
}

// A stream may repeat what it has brought.
func TestRepeatedEvents(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		e.publish("room:1", 5)
		e.upToDate("room:1", c)
		e.delay("room:1")()
		e.upToDate("room:1", c)
		if got := c.kinds(); got != "[ack]" || c.seen("room:1") != 5 {
			t.Errorf("got %s and %d events", got, c.seen("room:1"))
		}
	})
}

func TestRewrittenHistory(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 50)
		e.publish("room:2", 50)
		c, other := e.connect(100), e.connect(200)
		behind := e.connect(300)
		for _, topic := range []string{"room:1", "room:2"} {
			c.mustFrom(topic, coord.Head)
			other.mustFrom(topic, coord.Start)
			behind.mustFrom(topic, coord.Start)
		}
		e.upToDate("room:1", c, other, behind)
		e.rewrite("room:1", 20, 25)
		e.publish("room:1", 3)
		e.publish("room:2", 3)
		for _, topic := range []string{"room:1", "room:2"} {
			e.upToDate(topic, c, other, behind)
		}
		for i, client := range []*client{c, other} {
			if got := client.kinds(); got != "[ack ack reset]" {
				t.Errorf("client %d: got %s", i, got)
			}
		}
		// Positions from before are told apart.
		late := e.connect(400)
		late.mustFrom("room:1", e.at("room:1", 30))
		e.upToDate("room:1", late)
		if got := late.kinds(); got != "[ack]" {
			t.Errorf("from a place that both histories have: got %s", got)
		}
	})
}

// A place in another history is told by its tag, also when its number is that of the
// head.
func TestRewrittenWhileAway(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 10)
		old := e.head("room:1")
		e.rewrite("room:1", 3, 3)
		for range 2 { // as the first one here, and as another
			c := e.connect(100)
			c.mustFrom("room:1", old)
			e.publish("room:1", 1)
			e.upToDate("room:1", c)
			if got := c.kinds(); got != "[ack reset]" {
				t.Errorf("got %s", got)
			}
			e.rewrite("room:1", 1, 1)
			synctest.Wait()
			old = coord.Position{Seq: e.head("room:1").Seq, Tag: old.Tag}
		}
	})
}

func TestHoleIsAReset(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		e.publish("room:1", 3)
		e.upToDate("room:1", c)
		e.delay("room:1")
		e.publish("room:1", 1)
		e.feed.mu.Lock()
		for s := range e.streams {
			s.topics["room:1"] = true
		}
		e.feed.mu.Unlock()
		e.publish("room:1", 2)
		e.upToDate("room:1", c)
		if got := c.kinds(); got != "[ack reset]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestOutageOfTheStream(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		for range 5 {
			e.fail(errOutage)
			e.publish("room:1", 2)
		}
		time.Sleep(time.Minute)
		e.upToDate("room:1", c)
		if c.closedWith() != 0 {
			t.Errorf("closed with %d", c.closedWith())
		}
	})
}

func TestOutageWhileBehind(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 400)
		c := e.connect(100)
		e.hook(func(op, _ string) error {
			if op == "read" {
				return errOutage
			}
			return nil
		})
		c.mustFrom("room:1", coord.Start)
		time.Sleep(time.Minute)
		e.publish("room:1", 10)
		if c.seen("room:1") != 0 {
			t.Error("events came from nowhere")
		}
		e.hook(nil)
		time.Sleep(time.Minute)
		e.upToDate("room:1", c)
	})
}

func TestClosedBackendEndsEverybody(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		e.fail(coord.ErrClosed)
		synctest.Wait()
		if c.closedWith() != closeRestart {
			t.Errorf("closed with %d", c.closedWith())
		}
	})
}

// TestGoesOnAfterWhateverError has a store that refuses to be read for a while, which is no outage by its error.
func TestGoesOnAfterWhateverError(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		for range 5 {
			e.fail(errors.New("the server refuses the connection"))
		}
		time.Sleep(time.Minute)
		later := e.connect(200)
		later.mustFrom("room:1", coord.Head)
		e.publish("room:1", 3)
		time.Sleep(time.Minute)
		e.upToDate("room:1", c, later)
	})
}

func TestUnusedTopicsAreLeft(t *testing.T) {
	bubble(t, func(e *env) {
		c, other := e.connect(100), e.connect(101)
		c.mustFrom("room:1", coord.Head)
		other.mustFrom("room:1", coord.Head)
		c.unsubscribe("room:1", "room:2")
		e.publish("room:1", 2)
		e.upToDate("room:1", other)
		if c.seen("room:1") != 0 {
			t.Error("an event came behind the end of its subscription")
		}
		other.disconnect()
		synctest.Wait()
		e.hub.index.mu.Lock()
		left := len(e.hub.index.topics)
		e.hub.index.mu.Unlock()
		if left != 1 { // that of the person
			t.Errorf("%d topics are followed", left)
		}
		if e.hub.history.order.Len() != 0 || e.hub.history.bytes != 0 {
			t.Error("their history is kept")
		}
		c.mustFrom("room:1", coord.Start)
		e.upToDate("room:1", c)
	})
}

func TestRemovedLive(t *testing.T) {
	bubble(t, func(e *env) {
		other := e.replica(Options{})
		defer e.drain(other)
		removed, stays := e.connectTo(other, 100), e.connectTo(other, 200)
		elsewhere := e.connect(101)
		for _, c := range []*client{removed, stays, elsewhere} {
			c.mustFrom("room:1", coord.Head)
			c.mustFrom("room:2", coord.Head)
		}
		e.publish("room:1", 3)
		e.remove(1, 1)
		e.publish("room:1", 3)
		e.publish("room:2", 3)
		e.upToDate("room:1", stays)
		e.upToDate("room:2", removed, stays, elsewhere)
		for _, c := range []*client{removed, elsewhere} {
			if n := c.seen("room:1"); n != 4 { // the removal is the last one
				t.Errorf("who was removed got %d events, want 4", n)
			}
			if got := c.kinds(); got != "[ack ack error]" {
				t.Errorf("got %s", got)
			}
			if _, err := c.from("room:1", coord.Head); !isNotFound(err) {
				t.Errorf("subscribed again: %v", err)
			}
		}
		e.readd(1, 1)
		removed.mustFrom("room:1", coord.Start)
		e.upToDate("room:1", removed)
	})
}

// A removal that is committed while a subscription begins: after the question, and
// before the client has its first event.
func TestRemovedWhileSubscribing(t *testing.T) {
	for _, from := range []string{"head", "start"} {
		for _, again := range []bool{false, true} {
			bubble(t, func(e *env) {
				e.publish("room:1", 300)
				stays := e.connect(200)
				stays.mustFrom("room:1", coord.Head)
				c := e.connect(100)
				e.set(func() {
					e.people.before = func() {
						e.set(func() { e.people.before = nil })
						e.remove(1, 1)
						if again {
							e.readd(1, 1)
						}
						e.publish("room:1", 10)
						synctest.Wait() // handed out
					}
				})
				position := coord.Head
				if from == "start" {
					position = coord.Start
				}
				c.mustFrom("room:1", position)
				e.publish("room:1", 1)
				synctest.Wait()
				switch {
				case again:
					e.upToDate("room:1", c)
				case c.position("room:1").Seq > 301 && c.seen("room:1") > 0:
					t.Errorf("from %s: an event came behind the removal: %v", from, c.position("room:1"))
				case c.isLive("room:1"):
					t.Errorf("from %s: it is live", from)
				}
			})
		}
	}
}

func TestRemovedWhileBehind(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 600)
		c := e.connect(100)
		release := c.hold()
		e.hook(func(op, _ string) error {
			if op == "read" {
				time.Sleep(time.Second)
			}
			return nil
		})
		c.mustFrom("room:1", coord.Start)
		time.Sleep(1500 * time.Millisecond)
		e.remove(1, 1)
		e.publish("room:1", 10)
		release()
		time.Sleep(time.Minute)
		if at := c.position("room:1").Seq; at > 601 || c.isLive("room:1") {
			t.Errorf("it is at %d, live: %v", at, c.isLive("room:1"))
		}
		if got := c.kinds(); got != "[ack error]" {
			t.Errorf("got %s", got)
		}
	})
}

// The store may be ahead of the stream, and show what is behind a removal that this
// replica has not heard of.
func TestRemovedBeforeTheStreamKnows(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 400)
		stays := e.connect(200)
		stays.mustFrom("room:1", coord.Head)
		c := e.connect(100)
		e.hook(func(op, _ string) error {
			if op == "read" {
				time.Sleep(time.Second)
			}
			return nil
		})
		c.mustFrom("room:1", coord.Start)
		catchUp := e.delay("room:1")
		e.remove(1, 1)
		e.publish("room:1", 50)
		time.Sleep(time.Minute)
		if at := c.position("room:1").Seq; at > 401 {
			t.Errorf("it is at %d", at)
		}
		catchUp()
		time.Sleep(time.Minute)
		e.upToDate("room:1", stays)
		if at := c.position("room:1").Seq; at > 401 || c.kinds() != "[ack error]" {
			t.Errorf("it is at %d and got %s", at, c.kinds())
		}
	})
}

func TestRemovalHiddenByAReset(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 10)
		c, stays, late := e.connect(100), e.connect(200), e.connect(101)
		for _, client := range []*client{c, stays, late} {
			client.mustFrom("room:1", coord.Head)
		}
		e.set(func() { e.removed[[2]int64{1, 1}] = true })
		e.rewrite("room:1", 2, 5) // and the removal among what is gone
		e.publish("room:1", 5)
		e.upToDate("room:1", stays)
		if c.seen("room:1") != 0 || c.isLive("room:1") {
			t.Errorf("who was removed got %d events", c.seen("room:1"))
		}
		if got := stays.kinds(); got != "[ack reset]" {
			t.Errorf("who stays got %s", got)
		}
	})
}

func TestRemovalHiddenByAResetWhileBehind(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 600)
		c := e.connect(100)
		e.hook(func(op, _ string) error {
			if op == "read" {
				time.Sleep(time.Second)
			}
			return nil
		})
		c.mustFrom("room:1", coord.Start)
		time.Sleep(1500 * time.Millisecond)
		e.set(func() { e.removed[[2]int64{1, 1}] = true })
		e.rewrite("room:1", 599, 700)
		e.publish("room:1", 5)
		time.Sleep(time.Minute)
		if got := c.kinds(); got != "[ack error]" || c.isLive("room:1") {
			t.Errorf("who was removed got %s, and is live: %v", got, c.isLive("room:1"))
		}
	})
}

func TestAskingAgainDuringAnOutage(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 10)
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		e.set(func() { e.err = errOutage })
		e.rewrite("room:1", 1, 2)
		e.publish("room:1", 3)
		time.Sleep(time.Minute)
		if c.seen("room:1") != 0 {
			t.Error("events came without the right to read them")
		}
		e.set(func() { e.err = nil })
		time.Sleep(time.Minute)
		e.upToDate("room:1", c)
	})
}

func TestWhoMayRead(t *testing.T) {
	bubble(t, func(e *env) {
		for _, test := range []struct {
			role  store.Role
			topic string
			may   bool
		}{
			{store.Member, "rooms", true},
			{store.Member, "tasks", true},
			{store.Member, "presence", true},
			{store.Member, "runs:standup", true},
			{store.Member, "room:1", true},
			{store.Member, "user:1", true},
			{store.Member, "user:2", false},
			{store.Member, "user:01", false},
			{store.Member, "room:01", false},
			{store.Member, "session:1", false},
			{store.Member, "", false},
			{store.Admin, "user:2", false},
			{store.Guest, "rooms", false},
			{store.Guest, "tasks", false},
			{store.Guest, "presence", false},
			{store.Guest, "runs:standup", false},
			{store.Guest, "room:1", true},
			{store.Guest, "user:1", true},
		} {
			e.set(func() { e.role = test.role })
			c := e.connect(100)
			if _, err := c.from(test.topic, coord.Head); (err == nil) != test.may {
				t.Errorf("%s, %q: got %v", test.role, test.topic, err)
			}
			c.disconnect()
		}
	})
}

func TestGuestsHearOfNoTasks(t *testing.T) {
	bubble(t, func(e *env) {
		member := e.connect(100)
		e.set(func() { e.role = store.Guest })
		guest := e.connect(200)
		for _, c := range []*client{member, guest} {
			c.mustFrom("room:1", coord.Head)
		}
		for _, kind := range []string{
			tasks.KindChanged, tasks.KindRunChanged, tasks.KindRunLog, rooms.KindMessage, tasks.KindRunLog,
		} {
			e.event("room:1", kind, map[string]int{})
		}
		late := e.connect(201) // from history the same are left out
		late.mustFrom("room:1", coord.Start)
		synctest.Wait()
		if member.seen("room:1") != 5 || guest.seen("room:1") != 1 || late.seen("room:1") != 1 {
			t.Errorf("a member got %d events, a guest %d, and %d from history",
				member.seen("room:1"), guest.seen("room:1"), late.seen("room:1"))
		}
		if !guest.isLive("room:1") || !late.isLive("room:1") {
			t.Error("a guest is not up to date")
		}
	})
}

// Calls can't be had again from the history, and yet do not wait in any number.
func TestCallsOfASlowClient(t *testing.T) {
	bubbleWith(t, Options{QueueBytes: 64 << 10}, func(e *env) {
		c := e.connect(100)
		c.hold()
		args := map[string]string{"text": strings.Repeat("x", 16<<10)}
		most := 0
		for range 100 {
			e.event("user:1", tools.KindCall, map[string]any{
				"connection": c.id, "type": tools.KindCall, "call": "c1", "tool": "confirm", "args": args,
			})
			synctest.Wait()
			most = max(most, c.waiting())
		}
		if most > 2*e.hub.o.QueueBytes || c.closedWith() != CloseSlow {
			t.Errorf("%d bytes waited, closed with %d", most, c.closedWith())
		}
	})
}

func TestOwnTopic(t *testing.T) {
	bubble(t, func(e *env) {
		c, other, stranger := e.connect(100), e.connect(101), e.connect(200)
		c.mustFrom("user:1", coord.Head)
		call := func(connection string) {
			e.event("user:1", tools.KindCall, map[string]any{
				"connection": connection, "type": tools.KindCall, "call": "c1", "tool": "confirm", "args": map[string]any{},
			})
		}
		e.event("user:1", "room.joined", map[string]int{"id": 7})
		call(c.id)
		call(other.id)
		call(other.id)
		call("unknown")
		call(stranger.id)
		e.event("user:1", tools.KindCancel, map[string]any{
			"connection": other.id, "type": tools.KindCancel, "call": "c1", "reason": "cancelled",
		})
		e.event("user:1", "room.left", map[string]int{"id": 7})
		synctest.Wait()
		if got := c.kinds(); got != "[ack tool.call]" || c.seen("user:1") != 2 {
			t.Errorf("the subscriber got %s and %d events", got, c.seen("user:1"))
		}
		if got := other.kinds(); got != "[tool.call tool.call tool.cancel]" || other.seen("user:1") != 0 {
			t.Errorf("the other tab got %s and %d events", got, other.seen("user:1"))
		}
		if got := stranger.kinds(); got != "[]" {
			t.Errorf("somebody else got %s", got)
		}
		if !other.called.Load() || stranger.called.Load() {
			t.Error("it is not known who was called")
		}
		for _, f := range other.frames {
			if contains(string(f.json), other.id) {
				t.Errorf("the envelope went out: %s", f.json)
			}
		}
		// From history the same are left out.
		back := e.connect(102)
		back.mustFrom("user:1", coord.Start)
		synctest.Wait()
		if got := back.kinds(); got != "[ack]" || back.seen("user:1") != 2 || !back.isLive("user:1") {
			t.Errorf("who came back got %s and %d events", got, back.seen("user:1"))
		}

		e.event("user:1", auth.KindRevoked, auth.Revoked{Session: 101})
		synctest.Wait()
		if other.closedWith() != CloseUnauthorised || c.closedWith() != 0 || stranger.closedWith() != 0 {
			t.Errorf("closed with %d, %d and %d", other.closedWith(), c.closedWith(), stranger.closedWith())
		}
		e.event("user:1", "room.joined", map[string]int{"id": 8})
		synctest.Wait()
		if c.seen("user:1") != 3 {
			t.Errorf("got %d events", c.seen("user:1"))
		}
	})
}

func TestResetOfTheOwnTopic(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("user:1", 3)
		c, stranger := e.connect(100), e.connect(200)
		e.rewrite("user:1", 1, 1)
		synctest.Wait()
		if c.closedWith() != closeRestart || stranger.closedWith() != 0 {
			t.Errorf("closed with %d and %d", c.closedWith(), stranger.closedWith())
		}
	})
}

func TestSlowClient(t *testing.T) {
	bubble(t, func(e *env) {
		payload := func(n int) map[string]string { return map[string]string{"text": string(make([]byte, n))} }
		slow, quick := e.connect(100), e.connect(200)
		slow.mustFrom("room:1", coord.Head)
		quick.mustFrom("room:1", coord.Head)
		synctest.Wait()
		slow.hold()
		for range 100 {
			e.event("room:1", "k", payload(10<<10))
		}
		e.upToDate("room:1", quick)
		if n := slow.waiting(); n > e.hub.o.QueueBytes*5/4 {
			t.Errorf("%d bytes wait for the slow client", n)
		}
		time.Sleep(2 * time.Second)
		if slow.closedWith() != CloseSlow {
			t.Errorf("closed with %d", slow.closedWith())
		}
		back := e.connect(101)
		back.mustFrom("room:1", slow.position("room:1"))
		e.upToDate("room:1", back)
	})
}

// A burst larger than what may wait closes nobody who goes on reading.
func TestBurstIsNoSlowness(t *testing.T) {
	bubble(t, func(e *env) {
		c := e.connect(100)
		c.mustFrom("room:1", coord.Head)
		c.mustFrom("room:2", coord.Head)
		synctest.Wait()
		release := c.hold()
		for range 3000 {
			e.event("room:1", "k", map[string]string{"text": string(make([]byte, 300))})
			e.event("room:2", "k", map[string]string{"text": string(make([]byte, 300))})
		}
		synctest.Wait()
		if c.isLive("room:1") || c.waiting() > e.hub.o.QueueBytes*5/4 {
			t.Errorf("live: %v, %d bytes wait", c.isLive("room:1"), c.waiting())
		}
		time.Sleep(500 * time.Millisecond)
		release()
		time.Sleep(10 * time.Second)
		e.upToDate("room:1", c)
		e.upToDate("room:2", c)
		if c.seen("room:1") != 3000 || c.seen("room:2") != 3000 || c.closedWith() != 0 {
			t.Errorf("got %d and %d events, closed with %d", c.seen("room:1"), c.seen("room:2"), c.closedWith())
		}
	})
}

func TestRecheck(t *testing.T) {
	bubble(t, func(e *env) {
		ended, stays := e.connect(100), e.connect(200)
		e.set(func() { e.ended[100] = true })
		time.Sleep(2 * e.hub.o.Recheck)
		if ended.closedWith() != CloseUnauthorised || stays.closedWith() != 0 {
			t.Errorf("closed with %d and %d", ended.closedWith(), stays.closedWith())
		}
		e.set(func() { e.role = store.Guest })
		time.Sleep(2 * e.hub.o.Recheck)
		if stays.closedWith() != closeRestart {
			t.Errorf("another role: closed with %d", stays.closedWith())
		}
	})
}

func TestReplaced(t *testing.T) {
	bubble(t, func(e *env) {
		c, other := e.connect(100), e.connect(101)
		e.hub.CloseReplaced("unknown")
		e.hub.CloseReplaced(c.id)
		synctest.Wait()
		if c.closedWith() != CloseReplaced || other.closedWith() != 0 {
			t.Errorf("closed with %d and %d", c.closedWith(), other.closedWith())
		}
	})
}

func TestDrainInWaves(t *testing.T) {
	const clients = 500
	for _, w := range []struct{ option, window time.Duration }{
		{5 * time.Second, 5 * time.Second},
		{500 * time.Millisecond, clients * drainLeast},
	} {
		bubbleWith(t, Options{DrainWindow: w.option}, func(e *env) {
			var list []*client
			for i := range int64(clients) {
				c := e.connect(100 * (1 + i))
				c.mustFrom("room:1", coord.Head)
				list = append(list, c)
			}
			list[0].hold() // and takes nothing any more
			began := time.Now()
			e.drain(e.hub)
			if took := time.Since(began); took > w.window*11/10+time.Second {
				t.Errorf("%v: it took %v", w.option, took)
			}
			closed, gone := make(map[int]int), make(map[int]int) // by tenth of the window
			for i, c := range list {
				after := c.closedAt.Sub(began)
				closed[int(10*after/w.window)]++
				if c.closedWith() != closeRestart || i > 0 && c.kinds() != "[ack reconnect]" {
					t.Errorf("closed with %d, got %s", c.closedWith(), c.kinds())
				}
				if i == 0 {
					continue
				}
				var told reconnectFrame
				if err := json.Unmarshal(c.frames[1].json, &told); err != nil {
					t.Fatal(err)
				}
				least, most := time.Duration(told.AfterMS)*time.Millisecond, time.Duration(told.AfterMS+told.JitterMS)*time.Millisecond
				if gone[int(10*least/w.window)]++; most >= after {
					t.Errorf("told to go until %v, and closed after %v", most, after)
				}
			}
			for tenth := range 11 {
				if n := max(closed[tenth], gone[tenth]); n > clients/10+1 {
					t.Errorf("%v: %d went or were closed in the %d. tenth", w.option, n, tenth)
				}
			}
			if err := e.hub.enter(list[0].subscriber); !errors.Is(err, ErrDraining) {
				t.Errorf("one more: %v", err)
			}
		})
	}
}

func TestPanicEndsOneConnection(t *testing.T) {
	bubble(t, func(e *env) {
		e.publish("room:1", 5)
		c, other := e.connect(100), e.connect(200)
		c.workers.Go(func() {
			defer c.guard()
			panic("a fault")
		})
		other.mustFrom("room:1", coord.Start)
		e.upToDate("room:1", other)
		if c.closedWith() != closeInternal {
			t.Errorf("closed with %d", c.closedWith())
		}
	})
}

func TestTypingIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ty typing
		if !ty.allow(1, 1) || ty.allow(1, 1) || !ty.allow(1, 2) || !ty.allow(2, 1) {
			t.Error("not once for each person and room")
		}
		time.Sleep(typingEvery)
		if !ty.allow(1, 1) {
			t.Error("not again later")
		}
		for i := range int64(3 * typingKept) {
			ty.allow(3, i)
		}
		if len(ty.last) > typingKept {
			t.Errorf("%d are remembered", len(ty.last))
		}
	})
}

func TestRoomsService(t *testing.T) {
	// What the hub asks of the rooms is what they offer.
	var _ Rooms = (*rooms.Service)(nil)
	var _ Sessions = (*auth.Service)(nil)
	var _ Tools = (*tools.Service)(nil)
}
