package hub

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/store"
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

	for _, e := range example.FindAllStringSubmatch(client, -1) {
		requests, err := parseRequests([]byte(e[1]))
		if err != nil || !slices.Contains([]string{"subscribe", "unsubscribe", "send", "ping"}, requests[0].Type) {
			t.Errorf("%s: %v", e[1], err)
		}
	}

	m := &store.Message{}
	sent := map[string][][]byte{
		"welcome":   {encode(welcomeFrame{Type: "welcome"})},
		"event":     {encodeEvent(coord.Event{Topic: "room:1", Position: coord.Position{Seq: 1}, Kind: "k", At: time.Now()})},
		"reset":     {encode(resetFrame{Type: "reset"})},
		"ack":       {encode(ackFrame{Positions: map[string]coord.Position{"x": {}}}), encode(ackFrame{Message: m})},
		"error":     {encode(errorFrame{})},
		"pong":      {encode(pongFrame{})},
		"reconnect": {encode(reconnectFrame{})},
	}
	seen := map[string]int{}
	for _, e := range example.FindAllStringSubmatch(server, -1) {
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
