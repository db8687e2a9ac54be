package hub

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
)

// keys returns the sorted names of the fields of a JSON object.
func keys(t *testing.T, object []byte) []string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(object, &m); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestParseErrorsNameNoTypes(t *testing.T) {
	for message, want := range map[string]string{
		`[]`:                             "an array without a frame",
		`5`:                              "a frame must be a JSON object",
		`["x"]`:                          "a frame must be a JSON object",
		`{"type":5}`:                     "type: is of the wrong type",
		`{"type":"send","room":"1"}`:     "room: is of the wrong type",
		`[{"type":"ping"},{"sender":1}]`: `unknown field "sender"`,
		`{"type":"ping"}{}`:              "more than one JSON value in a message",
		`{`:                              "unexpected EOF",
	} {
		if _, err := parseRequests([]byte(message)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", message, err, want)
		}
	}
}

// The examples of the document have the fields that are really sent and read.
func TestProtocolDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sockets, found := strings.Cut(string(text), "## WebSocket")
	client, server, found2 := strings.Cut(sockets, "### From the server")
	if !found || !found2 {
		t.Fatal("the document has other sections")
	}
	example := regexp.MustCompile("(?s)```json\n(.*?)\n```")

	types := []string{"subscribe", "unsubscribe", "send", "typing", "read", "presence", "tool.result", "ping"}
	asked := map[string]int{}
	for _, e := range example.FindAllStringSubmatch(client, -1) {
		requests, err := parseRequests([]byte(e[1]))
		if err != nil || !slices.Contains(types, requests[0].Type) {
			t.Errorf("%s: %v", e[1], err)
			continue
		}
		asked[requests[0].Type]++
	}
	for _, kind := range types {
		if asked[kind] == 0 {
			t.Errorf("the document has no example of %s", kind)
		}
	}

	at := map[string]coord.Position{"x": {}}
	call := tools.Envelope{Kind: tools.KindCall, Call: "c", Tool: "t", Args: []byte(`{}`), Deadline: time.Now()}
	cancel := tools.Envelope{Kind: tools.KindCancel, Call: "c", Reason: "r"}
	tool := func(e tools.Envelope) []byte {
		b, err := e.Frame()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	sent := map[string][][]byte{
		"welcome":     {welcomeFrame{Limits: &limits{}}.frame().json, welcomeFrame{Positions: at}.frame().json},
		"event":       {eventFrame(coord.Event{Topic: "room:1", Position: coord.Position{Seq: 1}, Kind: "k"}).json},
		"reset":       {resetFrame{}.frame().json},
		"ack":         {ackFrame{Positions: at}.frame().json, ackFrame{Message: &store.Message{}}.frame().json},
		"error":       {errorFrame{}.frame().json, errorFrame{Topic: "x"}.frame().json},
		"pong":        {pongFrame{}.frame().json},
		"reconnect":   {reconnectFrame{}.frame().json},
		"tool.call":   {tool(call)},
		"tool.cancel": {tool(cancel)},
	}
	seen := map[string]int{}
	shown := example.FindAllStringSubmatch(server, -1)
	shown = append(shown, regexp.MustCompile("(?m)^data: ()(.*)$").FindAllStringSubmatch(server, 1)...)
	for _, e := range shown {
		e[1] = e[len(e)-1]
		var frame struct{ Type string }
		if err := json.Unmarshal([]byte(e[1]), &frame); err != nil {
			t.Fatalf("%v: %s", err, e[1])
		}
		seen[frame.Type]++
		if !slices.ContainsFunc(sent[frame.Type], func(b []byte) bool {
			return slices.Equal(keys(t, b), keys(t, []byte(e[1])))
		}) {
			t.Errorf("%s has other fields than the frame that is sent", e[1])
		}
	}
	for kind, variants := range sent {
		if seen[kind] != len(variants) {
			t.Errorf("the document has %d examples of %s, want %d", seen[kind], kind, len(variants))
		}
	}
}

func TestEventFrame(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 123456000, time.FixedZone("", 3600))
	for _, e := range []coord.Event{
		{Topic: "room:1", Kind: "message.created", Payload: []byte(`{"text":"Hello"}`)},
		{Topic: "runs:Täglich \"x\"\\", Kind: "k\n", Payload: []byte("{\n  \"text\": \"a\\nb\",\r\n  \"emoji\": \"🎉\"\n}")},
		{Topic: "user:1", Kind: "read", Payload: nil},
	} {
		e.Position, e.At = coord.Position{Seq: 43, Tag: 7}, at
		f := eventFrame(e)
		var got struct {
			Type, Topic, Kind string
			Position          coord.Position
			Payload           json.RawMessage
			At                time.Time
		}
		if err := json.Unmarshal(f.json, &got); err != nil {
			t.Fatalf("%v: %s", err, f.json)
		}
		if got.Type != "event" || got.Topic != e.Topic || got.Kind != e.Kind || got.Position != e.Position || !got.At.Equal(at) {
			t.Errorf("%+v became %s", e, f.json)
		}
		var want, payload any
		_ = json.Unmarshal(e.Payload, &want)
		_ = json.Unmarshal(got.Payload, &payload)
		if !reflect.DeepEqual(payload, want) || strings.ContainsAny(string(f.json), "\r\n") {
			t.Errorf("%s became %s", e.Payload, f.json)
		}
	}
}

func TestMessagesAreSharedRightly(t *testing.T) {
	var m messages
	event := func(topic string, seq int64) *frame {
		return eventFrame(coord.Event{Topic: topic, Position: coord.Position{Seq: seq}, Kind: "read", Payload: []byte(`{}`)})
	}
	a, b, other := []*frame{event("room:1", 1), event("room:1", 2), event("room:1", 3)}, event("room:2", 2), text(`{}`)
	first := m.of(a)
	if again := m.of(a); &again[0] != &first[0] {
		t.Error("a message is made twice")
	}
	for _, frames := range [][]*frame{a, a[:2], a[1:], a[:1], {a[0], b, a[1]}, {a[0], other, a[1], a[2]}, {b}, {other, other}} {
		var list []json.RawMessage
		message := m.of(frames)
		if len(frames) == 1 {
			message = slices.Concat([]byte("["), message, []byte("]"))
		}
		if err := json.Unmarshal(message, &list); err != nil || len(list) != len(frames) {
			t.Fatalf("%v: %s", err, message)
		}
		for i := range list {
			if string(list[i]) != string(frames[i].json) {
				t.Errorf("got %s, want %s", list[i], frames[i].json)
			}
		}
	}
	// What is left out of a person's topic makes room for something else.
	mine := []*frame{event("user:1", 1), event("user:1", 3)}
	m.of([]*frame{mine[0], event("user:1", 2), mine[1]})
	if got := string(m.of([]*frame{mine[0], other, mine[1]})); !strings.Contains(got, ",{},") {
		t.Errorf("got %s", got)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	var a answers
	for i := range 2 * keptAnswers {
		a.keep(fmt.Sprint(i), text("x"))
	}
	if len(a.frames) != keptAnswers || len(a.ids) != keptAnswers || a.of("0") != nil || a.of(fmt.Sprint(keptAnswers)) == nil {
		t.Errorf("%d answers are kept", len(a.frames))
	}
	for i := range 100 {
		a.keep(fmt.Sprint("large", i), text(strings.Repeat("x", 4<<10)))
		if a.bytes > keptAnswerBytes || len(a.frames) != len(a.ids) {
			t.Fatalf("%d bytes are kept", a.bytes)
		}
	}
	a.keep("huge", text(strings.Repeat("x", 2*keptAnswerBytes)))
	if a.of("huge") == nil || len(a.frames) != 1 {
		t.Error("the last answer is always kept, and alone if need be")
	}
}
