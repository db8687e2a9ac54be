package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// TestUnsubscribeOfAllThatWaits has a topic left since the events of another one wait, which then is followed
// no more.
func TestUnsubscribeOfAllThatWaits(t *testing.T) {
	for name, lose := range map[string]bool{"on one connection": false, "on the next connection": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				a := n.serve(t, "a")
				o := n.options("a")
				o.QueueBytes = 2000
				c, k := n.connect(t, o)
				subscribe(t, c, k, "room:1", "0")
				subscribe(t, c, k, "room:2", "0")
				k.send(events("room:1", 1, 10)...)
				synctest.Wait()
				k.send(event("room:2", 1))
				k.expect("unsubscribe")
				synctest.Wait()
				if lose {
					a.set(func() { a.refuse = 503 })
					_ = k.ws.UnderlyingConn().Close()
					synctest.Wait()
					c.Unsubscribe("room:1")
					a.set(func() { a.refuse = 0 })
					k = a.socket(t)
				} else {
					c.Unsubscribe("room:1")
					k.expect("unsubscribe")
				}
				k.subscribed("room:2", "0")
				k.send(events("room:2", 1, 3)...)
				follow(t, c).until("room:2", 3)
			})
		})
	}
}

// TestAnswerAtTheLastMoment has answers come when Subscribe gives up: either the topic is followed, or Subscribe fails.
func TestAnswerAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		for range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := while(func() {
				id := k.expect("subscribe")["id"]
				time.Sleep(time.Second)
				k.send(body{"type": "ack", "id": id, "positions": body{"room:1": "0"}})
			}, func() error { return c.Subscribe(ctx, map[string]coord.Position{"room:1": coord.Start}) })
			cancel()
			synctest.Wait()
			if got := c.Positions(); (err == nil) != (len(got) == 1) {
				t.Fatalf("Subscribe returns %v, and follows %v", err, got)
			}
			c.Unsubscribe("room:1")
			k.expect("unsubscribe")
		}
	})
}

// TestToolResultIsInsistedOn has a server that can't take the answer to a tool call for a while.
func TestToolResultIsInsistedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "a")
		o := n.options("a")
		o.Tool = func(context.Context, client.ToolCall) (any, error) { return 7, nil }
		_, k := n.connect(t, o)
		k.send(body{"type": "tool.call", "call": "c1", "tool": "add", "args": body{}, "deadline": time.Now().Add(time.Hour)})
		for range 5 {
			k.send(body{"type": "error", "id": k.expect("tool.result")["id"], "code": "unavailable", "message": "no"})
		}
		f := k.expect("tool.result")
		k.send(body{"type": "ack", "id": f["id"]})
		if f["call"] != "c1" || f["result"] != 7.0 {
			t.Errorf("got %v", f)
		}
	})
}
