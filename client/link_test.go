package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandemhq/tandem/coord"
)

// BenchmarkEvents is what one event costs a client, of those that come 16 in a message.
func BenchmarkEvents(b *testing.B) {
	const inMessage = 16
	c := &Client{news: make(chan struct{}, 1), topics: map[string]*topic{"room:1": {stage: live}}}
	c.o.QueueBytes = 1 << 20
	l := &link{client: c}
	payload := fmt.Sprintf(`{"id":8,"room_id":1,"user_id":1,"author":"Ada","text":%q}`, strings.Repeat("x", 140))
	var messages [][]byte
	n := 0
	for range 64 {
		message := []byte{}
		for i := range inMessage {
			n++
			message = append(message, "[,"[min(i, 1)])
			message = fmt.Appendf(message,
				`{"type":"event","topic":"room:1","position":"%d.00c0ffee","kind":"message.created","payload":%s,"at":"2026-01-02T15:04:05.123456Z"}`,
				n, payload)
		}
		messages = append(messages, append(message, ']'))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(messages) == 0 {
			c.topics["room:1"].last = coord.Start
		}
		if err := l.receive(messages[i%len(messages)]); err != nil {
			b.Fatal(err)
		}
		if events, err := c.Next(b.Context()); err != nil || len(events) != inMessage {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/inMessage, "ns/event")
}

// TestEventParser wants what package json reads, or that it be asked.
func TestEventParser(t *testing.T) {
	event := `{"type":"event","topic":"room:1","position":"43.00c0ffee","kind":"message.created","payload":%s,"at":"2026-01-02T15:04:05.123456Z"}`
	with := func(payload string) string { return fmt.Sprintf(event, payload) }
	for message, quick := range map[string]bool{
		with(`{"id":8}`): true,
		with(`{}`):       true,
		with(`[]`):       true,
		with(`{"a":"\\\"}{[\\","b":[{"c":"]"},"\u007d"]}`):       true,
		"[" + with(`{"id":8}`) + "]":                             true,
		"[" + with(`{"id":8}`) + "," + with(`{"id":"ü🙂"}`) + "]": true,
		" " + with(`{"id":8}`):                                   false,
		"[" + with(`{"id":8}`) + `,{"type":"pong","id":"1"}]`:    false,
		with(`null`):   false,
		with(`"text"`): false,
		with(`-1.5`):   false,
		strings.Replace(with(`{}`), "room:1", `room\u003a1`, 1):         false,
		strings.Replace(with(`{}`), "43.00c0ffee", "head", 1):           false,
		strings.Replace(with(`{}`), `"at"`, `"more":1,"at"`, 1):         false,
		strings.Replace(with(`{}`), `"kind"`, ` "kind"`, 1):             false,
		strings.Replace(with(`{}`), "43.00c0ffee", "43.00C0FFEE", 1):    true,
		strings.Replace(with(`{}`), "05.123456Z", "05.123456+02:00", 1): true,
	} {
		frames, err := parseFrames([]byte(message))
		if err != nil {
			t.Fatalf("%v: %s", err, message)
		}
		var parser eventParser
		list, ok := parser.parse([]byte(message))
		if ok != quick || ok && len(list) != len(frames) {
			t.Errorf("%s: %v, %d events, want %v, %d", message, ok, len(list), quick, len(frames))
			continue
		}
		for i, e := range list {
			f := frames[i]
			want := coord.Event{Topic: f.Topic, Position: f.Position, Kind: f.Kind, Payload: f.Payload, At: f.At}
			if !reflect.DeepEqual(e, want) {
				t.Errorf("%s:\ngot  %v\nwant %v", message, e, want)
			}
		}
	}
}

// TestEventParserKnowsTheServer wants it to read events as the protocol's document shows them.
func TestEventParserKnowsTheServer(t *testing.T) {
	document, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile(`(?m)^{"type":"event",.*$`).FindAll(document, -1)
	if len(examples) == 0 {
		t.Fatal("the document has no event")
	}
	for _, example := range examples {
		var parser eventParser
		if list, ok := parser.parse(example); !ok || len(list) != 1 {
			t.Errorf("%s is read slowly", example)
		}
	}
}

// FuzzEventParser wants that it accepts nothing that package json reads otherwise.
func FuzzEventParser(f *testing.F) {
	f.Add([]byte(`[{"type":"event","topic":"a","position":"1.00000000","kind":"k","payload":{"a":["\\"]},"at":"2026-01-02T15:04:05Z"}]`))
	f.Fuzz(func(t *testing.T, message []byte) {
		var parser eventParser
		list, ok := parser.parse(message)
		if !ok || !json.Valid(message) || !utf8.Valid(message) {
			return
		}
		frames, err := parseFrames(message)
		if err != nil || len(frames) != len(list) {
			t.Fatalf("%d events, json reads %d: %v", len(list), len(frames), err)
		}
		for i, e := range list {
			if got, want := e.Topic+e.Kind+e.Position.String(), frames[i].Topic+frames[i].Kind+frames[i].Position.String(); got != want ||
				!bytes.Equal(e.Payload, frames[i].Payload) || !e.At.Equal(frames[i].At) {
				t.Errorf("got %v, want %v", e, frames[i])
			}
		}
	})
}
