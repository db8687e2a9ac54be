package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

const (
	person   = "ada"
	password = "correct horse battery"

	writers   = 3
	readers   = 3
	followers = 6
	interval  = 100 * time.Millisecond // of a writer: 30 messages a second are within the limits of one person
)

// load is what people do while replicas are replaced: they write, each request once, read, and follow the room over
// WebSockets. The person is there.
type load struct {
	t      *testing.T
	url    string
	http   *http.Client
	cookie *http.Cookie
	room   int64

	stop      chan struct{}
	running   sync.WaitGroup // those that ask
	following sync.WaitGroup
	requests  atomic.Int64

	mu    sync.Mutex
	acked map[string]bool     // messages, by their text
	seen  [followers][]string // texts, by who follows
	nodes [followers][]string // the replicas that a client was connected to
}

// startLoad signs the person in at a URL, behind which there are replicas, and begins.
func startLoad(t *testing.T, url string) *load {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 20}
	l := &load{
		t: t, url: url, http: &http.Client{Transport: transport, Timeout: 30 * time.Second},
		stop: make(chan struct{}), acked: map[string]bool{},
	}
	t.Cleanup(transport.CloseIdleConnections)
	t.Cleanup(l.following.Wait)
	var err error
	if l.cookie, err = client.SignIn(t.Context(), l.http, url, person, password); err != nil {
		t.Fatal(err)
	}
	var made struct{ Room struct{ ID int64 } }
	if err := l.ask(http.MethodPost, "/api/v1/rooms", map[string]string{"kind": "public", "name": "general"}, &made); err != nil {
		t.Fatal(err)
	}
	l.room = made.Room.ID
	for i := range followers {
		l.follow(i)
	}
	for i := range writers {
		l.repeat(func(n int) error {
			text := fmt.Sprintf("%d of writer %d", n, i)
			body := map[string]string{"client_id": fmt.Sprintf("%d-%d", i, n), "text": text}
			err := l.ask(http.MethodPost, fmt.Sprintf("/api/v1/rooms/%d/messages", l.room), body, nil)
			if err == nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.acked[text] = true
			}
			return err
		})
	}
	for range readers {
		l.repeat(func(int) error {
			return l.ask(http.MethodGet, fmt.Sprintf("/api/v1/rooms/%d/messages", l.room), nil, nil)
		})
	}
	return l
}

// repeat does something again and again until the load ends. Whatever fails fails the test.
func (l *load) repeat(what func(n int) error) {
	l.running.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-l.stop:
				return
			case <-time.After(interval):
			}
			l.requests.Add(1)
			if err := what(n); err != nil {
				l.t.Errorf("a request failed: %v", err)
			}
		}
	})
}

// ask sends a request, once.
func (l *load) ask(method, path string, body, answer any) error {
	// A request that is answered before its body was passed on may fail in the proxy of [cluster.service]:
	// what has none must not send one.
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(l.t.Context(), method, l.url+path, sent)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.AddCookie(&http.Cookie{Name: l.cookie.Name, Value: l.cookie.Value})
	response, err := l.http.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode > 299:
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, got)
	case answer != nil:
		return json.Unmarshal(got, answer)
	}
	return nil
}

// follow connects a client that notes what is said in the room.
func (l *load) follow(i int) {
	l.t.Helper()
	c, err := client.Dial(l.t.Context(), client.Options{
		Endpoints: []string{l.url}, HTTPClient: l.http, MinBackoff: 50 * time.Millisecond,
		Session: func(context.Context) (*http.Cookie, error) { return l.cookie, nil },
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(c.Close)
	if err := c.Subscribe(l.t.Context(), map[string]coord.Position{"room:" + strconv.FormatInt(l.room, 10): coord.Start}); err != nil {
		l.t.Fatal(err)
	}
	l.following.Go(func() {
		for {
			events, err := c.Next(l.t.Context())
			if l.t.Context().Err() != nil {
				return
			}
			if err != nil {
				l.t.Errorf("client %d: %v", i, err)
				return
			}
			l.note(i, c, events)
		}
	})
}

func (l *load) note(i int, c *client.Client, events []coord.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		var message client.Message
		if e.Kind != "message.created" {
			continue
		}
		if err := json.Unmarshal(e.Payload, &message); err != nil {
			l.t.Errorf("client %d: %v", i, err)
		}
		l.seen[i] = append(l.seen[i], message.Text)
	}
	if at, ok := c.Connection(); ok && (len(l.nodes[i]) == 0 || l.nodes[i][len(l.nodes[i])-1] != at.Node) {
		l.nodes[i] = append(l.nodes[i], at.Node)
	}
}

// end ends the load when every client has had to go to another replica, and holds what each has seen to what was
// acknowledged: each message once, all in one order.
func (l *load) end() {
	l.t.Helper()
	eventually(l.t, "every client follows on another replica than at first", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return !slices.ContainsFunc(l.nodes[:], func(nodes []string) bool { return len(nodes) < 2 })
	})
	close(l.stop)
	l.running.Wait()
	eventually(l.t, "every client has seen as many messages as were acknowledged", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := range followers {
			if len(l.seen[i]) < len(l.acked) {
				return false
			}
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	moved := 0
	for i := range followers {
		once := map[string]bool{}
		for n, text := range l.seen[i] {
			if once[text] || !l.acked[text] {
				l.t.Errorf("client %d saw %q, acknowledged: %v, seen before: %v", i, text, l.acked[text], once[text])
			}
			once[text] = true
			if n < len(l.seen[0]) && text != l.seen[0][n] {
				l.t.Fatalf("client %d saw %q in place %d, where client 0 saw %q", i, text, n, l.seen[0][n])
			}
		}
		moved += len(l.nodes[i]) - 1
	}
	l.t.Logf("%d requests, %d messages acknowledged, each seen once by %d clients, which changed the replica %d times",
		l.requests.Load(), len(l.acked), followers, moved)
}
