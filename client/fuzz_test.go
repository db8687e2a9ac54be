package client

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// FuzzFrames wants that whatever a server sends, what follows is still read, that no topic goes back, and that
// no more waits than may.
func FuzzFrames(f *testing.F) {
	const event = `{"type":"event","topic":"room:1","position":"2.00c0ffee","kind":"k","payload":{"id":1},"at":"2026-01-02T15:04:05Z"}`
	for _, message := range []string{
		event, "[" + event + "," + event + "]", strings.Replace(event, `{"id":1}`, `"`+strings.Repeat("x", 500)+`"`, 1),
		`{"type":"reset","topic":"room:1","reason":"trimmed","position":"9.00c0ffee"}`, `{"type":"reset","topic":"room:1","position":"head"}`,
		`{"type":"error","id":"1","topic":"room:1","code":"forbidden","message":"no"}`, `{"type":"ack","id":"1","positions":{"room:1":"1.00c0ffee"}}`,
		`{"type":"error","id":"1","message":{"a":1}}`, `{"type":"pong","id":"x"}`, `{"type":"nonsense"}`, `[]`, `[null]`, `[[]]`, "", "\xff",
		`{"type":"welcome","limits":{"frame_bytes":-1,"topics":1e9}}`,
	} {
		f.Add([]byte(message))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		c := &Client{news: make(chan struct{}, 1), topics: map[string]*topic{"room:1": {stage: live}}}
		c.o.QueueBytes = 1 << 10
		l := &link{client: c, answers: map[string]func(frame){}}
		l.answers["1"] = func(f frame) { _ = f.refusal().Error() }
		frames, err := parseFrames(message)
		if err == nil {
			// What acts on the connection, of which there is none.
			frames = slices.DeleteFunc(frames, func(f frame) bool { return f.Type == "tool.call" || f.Type == "reconnect" })
			l.frames(frames)
		}
		if again, ok := l.events.parse(message); ok && err == nil {
			l.take(func() {
				for _, e := range again {
					l.event(e)
				}
				l.unlocked = nil // would ask the server to stop
			})
		}
		bytes, last := 0, coord.Start
		for _, b := range c.waiting {
			for _, e := range b.events {
				if e.Topic != "room:1" || e.Position.Seq <= last.Seq && last != coord.Start {
					t.Errorf("%q: an event at %v behind %v", message, e.Position, last)
				}
				last = e.Position
				bytes += perEvent + len(e.Payload)
			}
			if b.err != nil {
				last = coord.Start // a reset leads anywhere
			}
		}
		if bytes != c.bytes || bytes > c.o.QueueBytes+perEvent+len(message) {
			t.Errorf("%q: %d bytes wait, %d are counted", message, bytes, c.bytes)
		}
	})
}

// frames takes in frames as handle does, without a server to ask for anything.
func (l *link) frames(list []frame) {
	l.take(func() {
		for i := range list {
			l.frame(&list[i])
		}
		l.unlocked = nil
	})
}

// FuzzPosition wants the quick way to read a position to read what the other one does.
func FuzzPosition(f *testing.F) {
	for _, text := range []string{"42.9f3a1c07", "0", "head", "1.00000000", "01.00000000", "999999999999999999.ffffffff", "9999999999999999999.0000000g", "1.+0000000", "9999999999999999999.00000000"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, ok := parsePosition(text)
		if want, err := coord.ParsePosition(string(text)); ok && (err != nil || p != want) {
			t.Errorf("%q is read as %v, and should be %v, %v", text, p, want, err)
		}
	})
}

// FuzzStatusError wants an error that people can read and a wait that makes sense of any answer.
func FuzzStatusError(f *testing.F) {
	f.Add(429, "application/problem+json", "7", []byte(`{"title":"Too Many Requests","detail":"try again","field":"name"}`))
	f.Add(503, "text/html", "Fri, 31 Dec 1999 23:59:59 GMT", []byte("<p>"))
	f.Add(500, "json", "9223372036854775807", []byte(`{"title":1}`))
	f.Add(0, "", "-1", []byte(nil))
	f.Fuzz(func(t *testing.T, status int, contentType, retryAfter string, body []byte) {
		e := statusError(&http.Response{
			StatusCode: status, Header: http.Header{"Content-Type": {contentType}, "Retry-After": {retryAfter}},
		}, body)
		if e.RetryAfter < 0 || e.RetryAfter%time.Second != 0 || retryAfter == "" && e.RetryAfter != 0 {
			t.Errorf("Retry-After: %q is %v", retryAfter, e.RetryAfter)
		}
		if text := e.Error(); !strings.HasPrefix(text, "status ") || len(text) > 100+len(body)*3 {
			t.Errorf("%d %s: %q", status, bytes.TrimSpace(body), text)
		}
	})
}
