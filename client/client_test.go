package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

func TestOptions(t *testing.T) {
	good := client.Options{Endpoints: []string{"https://chat.example.com"}, Name: "ada", Password: "secret"}
	for field, spoil := range map[string]func(*client.Options){
		"Endpoints":  func(o *client.Options) { o.Endpoints = nil },
		"Session":    func(o *client.Options) { o.Name, o.Password = "", "" },
		"MaxBackoff": func(o *client.Options) { o.MinBackoff, o.MaxBackoff = time.Hour, time.Second },
		"Silence":    func(o *client.Options) { o.QueueBytes = -1 },
	} {
		o := good
		spoil(&o)
		_, err := client.Dial(t.Context(), o)
		if invalid, ok := errors.AsType[*coord.InvalidError](err); !ok || invalid.Field != field {
			t.Errorf("got %v, want that %s is invalid", err, field)
		}
	}
	both := good
	both.Token = "tdm_x"
	if _, err := client.Dial(t.Context(), both); !errors.Is(err, coord.ErrInvalid) {
		t.Errorf("two ways at once: got %v", err)
	}
	for _, endpoint := range []string{"", "chat.example.com", "ws://chat.example.com", "https://ada@chat.example.com", "https://x/?a=b"} {
		o := good
		o.Endpoints = []string{endpoint}
		if _, err := client.Dial(t.Context(), o); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("%q: got %v", endpoint, err)
		}
	}
}

func TestResumesOnAnotherEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, b := n.serve(t, "a"), n.serve(t, "b")
		c, k := n.connect(t, n.options("a", "b"))
		reader := follow(t, c)
		subscribe(t, c, k, "room:1", "head")
		k.send(events("room:1", 1, 3)...)
		reader.until("room:1", 3)
		if got := c.Positions()["room:1"].String(); got != at(3) {
			t.Errorf("the position is %s, want %s", got, at(3))
		}
		k.send(event("room:1", 4)) // comes, but is not returned before the loss
		synctest.Wait()
		if got := c.Positions()["room:1"].String(); got != at(3) {
			t.Errorf("the position is %s, want %s", got, at(3))
		}

		_ = k.ws.UnderlyingConn().Close()
		k = b.socket(t)
		k.subscribed("room:1", at(4))
		k.send(append(events("room:1", 2, 6), event("room:1", 6), event("elsewhere", 1))...) // some for the second time
		reader.until("room:1", 6)
		if at, ok := c.Connection(); !ok || at.Endpoint != "http://b" || at.Node != "b" || at.ID != "t0" {
			t.Errorf("connected to %v, %v", at, ok)
		}

		// What fails is tried last.
		a.Close()
		_ = k.ws.UnderlyingConn().Close()
		k = b.socket(t)
		k.subscribed("room:1", at(6))
		if a.sessions != 1 || b.sessions != 0 {
			t.Errorf("signed in %d and %d times, want once", a.sessions, b.sessions)
		}
		c.Unsubscribe("room:1")
		k.expect("unsubscribe")
		k.send(event("room:1", 7))
		subscribe(t, c, k, "room:1", at(5))
		reader.seen["room:1"] = 5
		k.send(events("room:1", 6, 8)...)
		reader.until("room:1", 8)
		c.Close()
		end(t, c, coord.ErrClosed)
		if err := k.gone(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			t.Errorf("closed with %v", err)
		}
		if err := c.Subscribe(t.Context(), map[string]coord.Position{"room:2": coord.Head}); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestBackoff wants pauses that are drawn from a range which doubles up to its bound.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, b := n.serve(t, "a"), n.serve(t, "b")
		for _, s := range []*server{a, b} {
			s.refuse = http.StatusServiceUnavailable
			s.header = http.Header{"Retry-After": {"1"}} // another endpoint may do before
		}
		o := n.options("a", "b")
		o.MinBackoff, o.MaxBackoff = time.Second, time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Hour)
		defer cancel()
		_, err := client.Dial(ctx, o)
		refused, ok := errors.AsType[*client.StatusError](err)
		if !errors.Is(err, context.DeadlineExceeded) || !ok || refused.Status != http.StatusServiceUnavailable || refused.Detail != "not now" {
			t.Errorf("got %v", err)
		}
		all := slices.Concat(a.attempts, b.attempts)
		slices.SortFunc(all, time.Time.Compare)
		if d := len(a.attempts) - len(b.attempts); d < 0 || d > 1 || len(all) < 500 {
			t.Fatalf("%d and %d attempts", len(a.attempts), len(b.attempts))
		}
		var late, sum time.Duration
		for i, at := range all[1:] {
			limit := min(o.MaxBackoff, o.MinBackoff<<min(i/2, 10))
			wait := at.Sub(all[i])
			if wait > limit {
				t.Errorf("pause %d was %v, want at most %v", i, wait, limit)
			}
			if i >= 20 {
				late, sum = max(late, wait), sum+wait
			}
		}
		mean := sum / time.Duration(len(all)-21)
		if late < 55*time.Second || mean < 25*time.Second || mean > 35*time.Second {
			t.Errorf("the longest pause was %v, the mean %v: they should be drawn evenly from 0 to a minute", late, mean)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		a.refuse, a.header = http.StatusTooManyRequests, http.Header{"Retry-After": {"40"}}
		began := time.Now()
		go func() {
			time.Sleep(30 * time.Second)
			a.set(func() { a.refuse = 0 })
		}()
		n.connect(t, n.options("a"))
		if took := time.Since(began); took < 40*time.Second || took > 41*time.Second {
			t.Errorf("connected after %v, want 40 s and a pause", took)
		}
	})
}

func TestSilentServerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, b := n.serve(t, "a"), n.serve(t, "b")
		_, k := n.connect(t, n.options("a", "b"))
		for range 10 { // pings are words
			time.Sleep(50 * time.Second)
			_ = k.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
			synctest.Wait()
		}
		if len(b.sockets) > 0 || len(a.attempts) != 1 {
			t.Fatal("the client has left a server that pings")
		}
		began := time.Now()
		b.set(func() { b.mute = true })
		b.socket(t)
		if took := time.Since(began); took < time.Minute || took > 61*time.Second {
			t.Errorf("left after %v, want a minute", took)
		}
		a.socket(t) // no welcome from the other
		if took := time.Since(began); took < 75*time.Second || took > 78*time.Second {
			t.Errorf("left after %v, want 15 s more", took)
		}
	})
}

// TestBlackHole wants an endpoint that accepts connections and says nothing to be given up.
func TestBlackHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		hole := &server{host: "hole", incoming: make(chan net.Conn, 10), closed: make(chan struct{})}
		n.servers["hole"] = hole
		b := n.serve(t, "b")
		began := time.Now()
		c, err := client.Dial(t.Context(), n.options("hole", "b"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b.socket(t)
		if took := time.Since(began); took < 15*time.Second || took > 17*time.Second {
			t.Errorf("connected after %v", took)
		}
	})
}

// TestDialEndsWithItsContext also while a server says nothing, at whatever stage.
func TestDialEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "mute").mute = true
		n.servers["hole"] = &server{host: "hole", incoming: make(chan net.Conn, 10), closed: make(chan struct{})}
		for _, host := range []string{"mute", "hole"} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := client.Dial(ctx, n.options(host))
			cancel()
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Errorf("%s: %v after %v", host, err, took)
			}
		}
	})
}

func TestCloseCodes(t *testing.T) {
	for code, want := range map[int]struct {
		end      error
		endpoint string
		within   time.Duration
	}{
		1000: {nil, "b", 500 * time.Millisecond},
		1008: {nil, "b", 500 * time.Millisecond},
		1011: {nil, "b", 500 * time.Millisecond},
		1012: {nil, "b", 2500 * time.Millisecond},
		4001: {client.ErrSignedOut, "", 0},
		4008: {nil, "a", 500 * time.Millisecond},
		4009: {client.ErrReplaced, "", 0},
		4999: {nil, "b", 500 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				n.serve(t, "a")
				n.serve(t, "b")
				c, k := n.connect(t, n.options("a", "b"))
				_ = k.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, "why"), time.Now().Add(time.Second))
				if want.end != nil {
					end(t, c, want.end)
					if _, err := c.Send(t.Context(), client.NewMessage{}); !errors.Is(err, want.end) {
						t.Errorf("sending: %v", err)
					}
					return
				}
				began := time.Now()
				n.servers[want.endpoint].socket(t)
				if took := time.Since(began); took > want.within {
					t.Errorf("came back after %v", took)
				}
			})
		})
	}
}

func TestReconnectFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a, b := n.serve(t, "a"), n.serve(t, "b")
		c, k := n.connect(t, n.options("a", "b"))
		began := time.Now()
		k.send(body{"type": "reconnect", "after_ms": 1000, "jitter_ms": 3000}, body{"type": "reconnect", "after_ms": 0, "jitter_ms": 0})
		k = b.socket(t)
		if took := time.Since(began); took < time.Second || took > 4*time.Second {
			t.Errorf("went after %v", took)
		}
		// Whoever is closed before has no time to lose.
		began = time.Now()
		k.send(body{"type": "reconnect", "after_ms": 60000, "jitter_ms": 3000})
		_ = k.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1012, ""), time.Now().Add(time.Second))
		a.socket(t)
		if took := time.Since(began); took > time.Millisecond {
			t.Errorf("went after %v", took)
		}
		c.Close()
		synctest.Wait()
	})
}

func TestSignedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		wrong := n.options("a")
		wrong.Password = "other"
		if _, err := client.Dial(t.Context(), wrong); !errors.Is(err, client.ErrSignedOut) || !strings.Contains(err.Error(), "password is wrong") {
			t.Errorf("a wrong password: %v", err)
		}
		shared := n.options("a")
		cookie, err := client.SignIn(t.Context(), shared.HTTPClient, "http://a/", "ada", "secret")
		if err != nil {
			t.Fatal(err)
		}
		shared.Name, shared.Password = "", ""
		shared.Session = func(context.Context) (*http.Cookie, error) { return cookie, nil }
		c, k := n.connect(t, shared)
		n.connect(t, shared)
		if a.sessions != 1 {
			t.Errorf("%d sessions", a.sessions)
		}
		cookie = &http.Cookie{Name: cookie.Name, Value: "ended"}
		_ = k.ws.UnderlyingConn().Close()
		end(t, c, client.ErrSignedOut)
		if err := c.Do(t.Context(), "POST", "/api/v1/ws-tickets", nil, nil); !errors.Is(err, client.ErrSignedOut) {
			t.Errorf("a request: %v", err)
		}
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, _ := n.connect(t, n.options("a"))
		var answer struct{ Ticket string }
		if err := c.Do(t.Context(), "POST", "/api/v1/ws-tickets", body{"unused": 1}, &answer); err != nil || answer.Ticket != "t1" {
			t.Errorf("got %v, %v", answer, err)
		}
		a.set(func() { a.refuse, a.header = 422, http.Header{"Retry-After": {"7"}} })
		err := c.Do(t.Context(), "POST", "/api/v1/ws-tickets", nil, nil)
		if e, ok := errors.AsType[*client.StatusError](err); !ok || e.Status != 422 || e.Detail != "not now" || e.RetryAfter != 7*time.Second {
			t.Errorf("got %v", err)
		}
	})
}

// TestSendIsRetriedUntilAnswered wants one message with one client id, whatever happens to the answers.
func TestSendIsRetriedUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		var sending sync.WaitGroup
		sending.Go(func() {
			m, err := c.Send(t.Context(), client.NewMessage{Room: 7, Text: "hello"})
			if err != nil || m.ID != 8 || m.Text != "hello" || m.Room != 7 {
				t.Errorf("got %v, %v", m, err)
			}
		})
		first := k.expect("send")
		if len(first["client_id"].(string)) != 36 || first["room"] != 7.0 || first["text"] != "hello" {
			t.Errorf("got %v", first)
		}
		began := time.Now()
		if again := k.expect("send"); again["id"] != first["id"] || again["client_id"] != first["client_id"] {
			t.Errorf("got %v after %v, want the same frame again", again, first)
		}
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("sent again after %v", took)
		}
		_ = k.ws.UnderlyingConn().Close() // with the answer
		k = a.socket(t)
		for _, code := range []string{"unavailable", "limited"} {
			f := k.expect("send")
			if f["client_id"] != first["client_id"] {
				t.Errorf("got %v, want the same client id", f)
			}
			k.send(body{"type": "error", "id": f["id"], "code": code, "message": "not now"})
		}
		f := k.expect("send")
		k.send(stored(f))
		sending.Wait()
	})
}

func TestRefusedFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		answer := func(kind string) func() {
			return func() {
				f := k.expect(kind)
				k.send(body{"type": "error", "id": f["id"], "code": "not_found", "message": "there is no such room"})
			}
		}
		for kind, call := range map[string]func() error{
			"send": func() error {
				_, err := c.Send(t.Context(), client.NewMessage{Room: 9, Text: "x"})
				return err
			},
			"subscribe": func() error {
				return c.Subscribe(t.Context(), map[string]coord.Position{"room:1": coord.Start, "room:9": coord.Start})
			},
			"typing": func() error { return c.Typing(t.Context(), 9) },
			"read":   func() error { return c.MarkRead(t.Context(), 9, 1) },
		} {
			err := while(answer(kind), call)
			if e, ok := errors.AsType[*client.FrameError](err); !ok || e.Code != "not_found" || e.Message != "there is no such room" {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if got := c.Positions(); len(got) != 0 {
			t.Errorf("follows %v", got)
		}
		err := while(func() {
			f := k.expect("read")
			k.send(body{"type": "ack", "id": f["id"]})
			if f["room"] != 9.0 || f["message_id"] != 7.0 {
				t.Errorf("got %v", f)
			}
		}, func() error { return c.MarkRead(t.Context(), 9, 7) })
		if err != nil {
			t.Error(err)
		}

		// What the server would close the connection for is not sent.
		_, err = c.Send(t.Context(), client.NewMessage{Room: 1, Text: strings.Repeat("\x01", 16<<10)})
		if e, ok := errors.AsType[*client.FrameError](err); !ok || e.Code != "invalid" {
			t.Errorf("too large a frame: %v", err)
		}
		many := map[string]coord.Position{}
		for i := range 6 {
			many[fmt.Sprint("room:", i)] = coord.Head
		}
		err = c.Subscribe(t.Context(), many)
		if e, ok := errors.AsType[*client.FrameError](err); !ok || e.Code != "limited" {
			t.Errorf("too many topics: %v", err)
		}
	})
}

func TestContextsEndRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Subscribe(ctx, map[string]coord.Position{"room:1": coord.Start}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		f := k.expect("subscribe")
		k.expect("unsubscribe") // in case it got through
		k.send(append(events("room:1", 1, 2), body{"type": "ack", "id": f["id"], "positions": body{"room:1": "0"}})...)
		if _, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		a.set(func() { a.refuse = 503 })
		_ = k.ws.UnderlyingConn().Close()
		synctest.Wait()
		if _, err := c.Send(ctx, client.NewMessage{Room: 1, Text: "x"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, ok := c.Connection(); ok {
			t.Error("there is a connection")
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client.Dial(done, n.options("a")); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		subscribe(t, c, k, "room:1", "0")
		k.send(event("room:1", 1), body{"type": "reset", "topic": "room:1", "reason": "diverged", "position": at(5)}, event("room:1", 6))
		reader := follow(t, c)
		reader.until("room:1", 1)
		_, err := c.Next(t.Context())
		if reset, ok := errors.AsType[*coord.ResetError](err); !ok || reset.Topic != "room:1" ||
			reset.Reason != coord.ResetDiverged || reset.Head.String() != at(5) {
			t.Fatalf("got %v", err)
		}
		if got := c.Positions()["room:1"].String(); got != at(5) {
			t.Errorf("the position is %s", got)
		}
		reader.seen["room:1"] = 5
		reader.until("room:1", 6)
		_ = k.ws.UnderlyingConn().Close()
		k = a.socket(t)
		k.subscribed("room:1", at(6))
	})
}

// TestRefusedResumption wants the other topics to go on.
func TestRefusedResumption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		for _, topic := range []string{"room:1", "room:2", "room:3"} {
			subscribe(t, c, k, topic, "0")
		}
		_ = k.ws.UnderlyingConn().Close()
		k = a.socket(t)
		refuse := func(f body, code string) {
			k.send(body{"type": "error", "id": f["id"], "code": code, "message": "no"})
		}
		f := k.expect("subscribe")
		if len(f["topics"].(body)) != 3 {
			t.Errorf("got %v", f)
		}
		refuse(f, "unavailable")
		if f = k.expect("subscribe"); len(f["topics"].(body)) != 3 {
			t.Errorf("got %v", f)
		}
		refuse(f, "not_found")
		for range 3 {
			f = k.expect("subscribe")
			if asked := f["topics"].(body); len(asked) != 1 {
				t.Errorf("got %v", f)
			} else if asked["room:2"] != nil {
				refuse(f, "not_found")
			} else {
				k.send(body{"type": "ack", "id": f["id"], "positions": asked})
			}
		}
		_, err := c.Next(t.Context())
		if refused, ok := errors.AsType[*client.RefusedError](err); !ok || refused.Topic != "room:2" {
			t.Fatalf("got %v", err)
		}
		if e, ok := errors.AsType[*client.FrameError](err); !ok || e.Code != "not_found" {
			t.Fatalf("got %v", err)
		}
		k.send(event("room:1", 1), event("room:2", 1), event("room:3", 1))
		reader := follow(t, c)
		reader.until("room:1", 1)
		reader.until("room:3", 1)
		if reader.seen["room:2"] > 0 || len(c.Positions()) != 2 {
			t.Errorf("got %v of %v", reader.seen, c.Positions())
		}
	})
}

// TestEndedSubscription wants what came before the end to be returned, and the others to go on.
func TestEndedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		for _, topic := range []string{"room:1", "room:2"} {
			subscribe(t, c, k, topic, "0")
		}
		ended := body{"type": "error", "id": "", "topic": "room:1", "code": "forbidden", "message": "you may not read this any more"}
		k.send(event("room:1", 1), ended, ended, event("room:1", 2), event("room:2", 1))
		reader := follow(t, c)
		reader.until("room:1", 1)
		_, err := c.Next(t.Context())
		refused, ok := errors.AsType[*client.RefusedError](err)
		if reason, isFrame := errors.AsType[*client.FrameError](err); !ok || refused.Topic != "room:1" || !isFrame || reason.Code != "forbidden" {
			t.Fatalf("got %v", err)
		}
		reader.until("room:2", 1)
		_ = k.ws.UnderlyingConn().Close()
		a.socket(t).subscribed("room:2", at(1))
	})
}

// TestSlowReader wants what waits for Next to be bounded, nothing lost, and the connection usable.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "a")
		o := n.options("a")
		o.QueueBytes = 2000
		c, k := n.connect(t, o)
		reader := follow(t, c)
		subscribe(t, c, k, "room:1", "0")
		sent := 0
		for range 5 {
			k.send(events("room:1", sent+1, sent+100)...)
			k.expect("unsubscribe") // too much waits
			synctest.Wait()
			err := while(func() { k.send(stored(k.expect("send"))) }, func() error {
				_, err := c.Send(t.Context(), client.NewMessage{Room: 1, Text: "x"})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			list, err := c.Next(t.Context())
			if err != nil || len(list) < 5 || len(list) > 15 {
				t.Fatalf("%d events waited: %v", len(list), err)
			}
			for _, e := range list {
				if reader.seen["room:1"]++; e.Position.String() != at(reader.seen["room:1"]) {
					t.Fatalf("got %v, want %s", e.Position, at(reader.seen["room:1"]))
				}
			}
			sent = reader.seen["room:1"]
			k.subscribed("room:1", at(sent))
		}
		k.send(events("room:1", sent+1, sent+3)...)
		reader.until("room:1", sent+3)
	})
}

func TestStateIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		c, k := n.connect(t, n.options("a"))
		err := while(func() {
			k.send(body{"type": "ack", "id": k.expect("presence")["id"]})
		}, func() error { return c.SetState(t.Context(), client.Away) })
		if err != nil {
			t.Fatal(err)
		}
		_ = k.ws.UnderlyingConn().Close()
		k = a.socket(t)
		for range 3 { // also when the server can't do it now
			f := k.expect("presence")
			if f["state"] != "away" {
				t.Errorf("got %v", f)
			}
			k.send(body{"type": "error", "id": f["id"], "code": "unavailable", "message": "no"})
		}
	})
}

func TestTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		a.ahead = time.Hour // its clock is wrong, or ours
		o := n.options("a")
		var mu sync.Mutex
		ended := map[string]error{}
		started := make(chan client.ToolCall, 100)
		o.Tool = func(ctx context.Context, call client.ToolCall) (any, error) {
			switch call.Tool {
			case "add":
				return body{"args": string(call.Args)}, nil
			case "fail":
				return nil, errors.New("no such file")
			case "talk":
				return strings.Repeat("x", 70_000), nil
			}
			started <- call
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ended[call.ID] = context.Cause(ctx)
			return nil, ctx.Err()
		}
		c, k := n.connect(t, o)
		call := func(id, tool string, within time.Duration) body {
			return body{"type": "tool.call", "call": id, "tool": tool, "args": body{"a": 1}, "deadline": time.Now().Add(time.Hour + within)}
		}
		answer := func(k *socket) body {
			f := k.expect("tool.result")
			k.send(body{"type": "ack", "id": f["id"]})
			return f
		}
		k.send(call("c1", "add", time.Minute))
		if f := answer(k); f["call"] != "c1" || f["result"].(body)["args"] != `{"a":1}` || f["error"] != nil {
			t.Errorf("got %v", f)
		}
		k.send(call("c2", "fail", time.Minute))
		if f := answer(k); f["call"] != "c2" || f["error"] != "no such file" || f["result"] != nil {
			t.Errorf("got %v", f)
		}
		k.send(call("c3", "talk", time.Minute))
		if f := answer(k); f["call"] != "c3" || f["error"] == nil || f["result"] != nil {
			t.Errorf("got %v", f)
		}

		// Cancelled; past its deadline; its connection gone. A call that comes twice is one.
		began := time.Now()
		k.send(call("c4", "wait", time.Minute), call("c4", "wait", time.Minute), call("c5", "wait", time.Second), call("c6", "wait", time.Minute))
		k.send(body{"type": "tool.cancel", "call": "c4", "reason": "not needed"}, body{"type": "tool.cancel", "call": "c9"})
		for range 3 {
			if call := <-started; call.ID == "c5" && call.Deadline.Sub(began).Round(time.Millisecond) != time.Second {
				t.Errorf("the deadline is %v from now, want a second", call.Deadline.Sub(began))
			}
		}
		time.Sleep(2 * time.Second)
		_ = k.ws.UnderlyingConn().Close()
		k = a.socket(t)
		synctest.Wait()
		mu.Lock()
		if len(ended) != 3 || ended["c4"] == nil || !strings.Contains(ended["c4"].Error(), "not needed") ||
			!errors.Is(ended["c5"], context.DeadlineExceeded) || ended["c6"] == nil {
			t.Errorf("the calls have ended with %v", ended)
		}
		mu.Unlock()

		// Too many at a time are refused.
		for i := range 65 {
			k.send(call(fmt.Sprint("m", i), "wait", time.Minute))
		}
		if f := answer(k); f["call"] != "m64" || f["error"] == nil {
			t.Errorf("got %v", f)
		}
		c.Close() // waits for them
		if len(ended) != 67 {
			t.Errorf("%d calls have ended", len(ended))
		}
	})
}

func TestWithoutTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.serve(t, "a")
		_, k := n.connect(t, n.options("a"))
		k.send(body{"type": "tool.call", "call": "c1", "tool": "add", "args": body{}, "deadline": time.Now().Add(time.Minute)})
		if f := k.expect("tool.result"); f["error"] == nil {
			t.Errorf("got %v", f)
		}
	})
}

// TestNonsenseFromTheServer wants another connection rather than guesses.
func TestNonsenseFromTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		a := n.serve(t, "a")
		_, k := n.connect(t, n.options("a"))
		for _, nonsense := range []string{"{", `{"type":"event","position":"x"}`, "7"} {
			_ = k.ws.WriteMessage(websocket.TextMessage, []byte(nonsense))
			_ = k.gone()
			k = a.socket(t)
		}
		_ = k.ws.WriteMessage(websocket.BinaryMessage, []byte("{}"))
		_ = k.gone()
		k = a.socket(t)
		k.send(body{"type": "ack", "id": "unknown"}, event("unknown", 1)) // are no nonsense
		_ = k.ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"from the future","kind":7.5e3,"more":[]}`))
		_ = k.ws.WriteMessage(websocket.TextMessage, []byte(" [] "))
		synctest.Wait()
		if len(k.frames) > 0 || len(a.sockets) > 0 {
			t.Error("the client has left")
		}
	})
}
