package hub

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

// FuzzRequests wants that frames are read as they are written, and that what is none is refused with a
// text that is short and names nothing of this program.
func FuzzRequests(f *testing.F) {
	for _, message := range []string{
		`{"type":"subscribe","id":"1","topics":{"room:1":"42.9f3a1c07","presence":"head"}}`,
		`[{"type":"send","id":"2","room":1,"client_id":"c","text":"hello"},{"type":"ping","id":"3"}]`,
		`{"type":"tool.result","id":"4","call":"x","result":{"a":[1,null]}}`, `{"type":"unsubscribe","id":"5","topics":["room:1"]}`,
		`[]`, `[[]]`, `null`, `[null]`, `{"room":1e9}`, `{"room":"1"}`, `{"type":1}`, `{}{}`, ` {"id":"x"} `, `{"nonsense":1}`, "", "\x00",
		`{"Type":"ping","ID":"6"}`, `{"id":"a","id":"b"}`, strings.Repeat("[", 100),
	} {
		f.Add([]byte(message))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		list, err := parseRequests(message)
		if err != nil {
			if text := err.Error(); text == "" || len(text) > 200+2*len(message) || strings.Contains(text, "Go ") || strings.Contains(text, "hub.") {
				t.Errorf("%q: %v", message, err)
			}
			return
		}
		if len(list) == 0 || len(list) > len(message) {
			t.Fatalf("%q has %d frames", message, len(list))
		}
		written := encode(list)
		again, err := parseRequests(written)
		if err != nil {
			t.Fatalf("%q is written %s, and then: %v", message, written, err)
		}
		if twice := encode(again); string(twice) != string(written) {
			t.Errorf("%q is written %s, and then %s", message, written, twice)
		}
	})
}

// FuzzSubscribe wants positions that a stream takes, and no more topics than may be.
func FuzzSubscribe(f *testing.F) {
	for _, topics := range []string{
		`{"room:1":"42.9f3a1c07","presence":"head","tasks":"0"}`, `{"a":"","b":"","c":"","d":""}`, `{}`, `null`, `[]`, `{"a":1}`,
		`{"a":"1.00000000","a":"2.00000000"}`, `{"a":"-1.00000000"}`, "",
	} {
		f.Add([]byte(topics))
	}
	c := &conn{}
	c.hub = &Hub{o: Options{Topics: 3}}
	f.Fuzz(func(t *testing.T, topics []byte) {
		from, err := c.parseSubscribe(topics)
		if r, ok := errors.AsType[refusal](err); err != nil && (!ok || r.code == "" || !strings.HasPrefix(r.message, "topics: ")) {
			t.Fatalf("%q: %#v", topics, err)
		}
		if len(from) > 3 {
			t.Errorf("%q: %d topics", topics, len(from))
		}
		wantPositions(t, from)
	})
}

// FuzzEventID wants the same of the positions of an event stream, which has them in the order of its topics.
func FuzzEventID(f *testing.F) {
	f.Add("room:1\npresence", "42.9f3a1c07,0")
	f.Add("room:1", "")
	f.Add("room:1\nroom:1", "1.00000000,2.00000000")
	f.Add("a\nb\nc\nd", "0,0,0,0")
	f.Add("a", ",")
	f.Add("\x00", "head")
	f.Fuzz(func(t *testing.T, topics, id string) {
		names := strings.Split(topics, "\n")
		from, err := parseEventID(names, id, 3)
		if bad, ok := errors.AsType[*coord.InvalidError](err); err != nil {
			if !ok || bad.Field != "topic" && bad.Field != "Last-Event-ID" || bad.Reason == "" {
				t.Fatalf("%q of %q: %#v", id, names, err)
			}
			return
		}
		if len(from) != len(names) || len(from) > 3 {
			t.Fatalf("%q of %q: %v", id, names, from)
		}
		wantPositions(t, from)
		places := make([]string, len(names))
		for i, name := range names {
			places[i] = from[name].String()
		}
		again, err := parseEventID(names, strings.Join(places, ","), 3)
		if err != nil || !reflect.DeepEqual(again, from) {
			t.Errorf("%q of %q: %v, and again %v, %v", id, names, from, again, err)
		}
	})
}

func wantPositions(t *testing.T, from map[string]coord.Position) {
	t.Helper()
	for topic, p := range from {
		if back, err := coord.ParsePosition(p.String()); err != nil || back != p || p.Seq < 0 && p != coord.Head {
			t.Errorf("%q is at %#v, which is read as %v, %v", topic, p, back, err)
		}
	}
}

// FuzzTicketOf wants the ticket that a handshake carries, whatever else is there, and nothing that was not.
func FuzzTicketOf(f *testing.F) {
	f.Add("tandem.v1, ticket.AAAAAAAAAAAAAAAAAAAAAA", "")
	f.Add("", "ticket=abc&ticket=def")
	f.Add("ticket.", "ticket=x")
	f.Add(" , ,ticket.a b\t,", "%zz&ticket=%00;")
	f.Fuzz(func(t *testing.T, protocols, query string) {
		of := func(protocols string) string {
			return TicketOf(&http.Request{
				Header: http.Header{"Sec-Websocket-Protocol": {protocols}}, URL: &url.URL{RawQuery: query},
			})
		}
		got := of(protocols)
		if values, _ := url.ParseQuery(query); got != values.Get("ticket") && !strings.Contains(protocols, TicketProtocol+got) {
			t.Errorf("%q and %q: got %q", protocols, query, got)
		}
		const secret = "0123456789abcdefghijkl"
		if got := of(TicketProtocol + secret + "," + protocols); got != secret {
			t.Errorf("before %q: got %q", protocols, got)
		}
		if got := of(protocols + ", " + TicketProtocol + secret); got != secret && !strings.Contains(protocols, TicketProtocol) {
			t.Errorf("behind %q: got %q", protocols, got)
		}
	})
}
