package outbound

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

const good = "https://example.com/report"

func TestCheck(t *testing.T) {
	many := make(map[string]string)
	for i := range maxHeaders {
		many[fmt.Sprintf("X-%d", i)] = "x"
	}
	tooMany := map[string]string{"One-More": "x"}
	for name := range many {
		tooMany[name] = "x"
	}
	type header = map[string]string
	for _, test := range []struct {
		request Request
		field   string // empty: the request is good
	}{
		{Request{URL: good}, ""},
		{Request{URL: "http://user:secret@example.com:8080/?q=1#part", Method: "DELETE", TimeoutSeconds: 600}, ""},
		{Request{URL: "HTTP://EXAMPLE.com"}, ""},
		{Request{URL: "http://[::1]:80/"}, ""}, // refused where the connection is made
		{Request{URL: "http://bücher.example/straße"}, ""},
		{Request{URL: good, Method: "POST", Body: strings.Repeat("x", maxBody)}, ""},
		{Request{URL: good, Header: header{"Authorization": "Bearer x", "idempotency-key": "1", "X": "Zoë\tB"}}, ""},
		{Request{URL: good, Header: many}, ""},
		{Request{URL: good, ExpectStatus: []int{200, 404, 599}}, ""},

		{Request{URL: good, Method: "get"}, "method"},
		{Request{URL: good, Method: "CONNECT"}, "method"},
		{Request{URL: good, Method: "TRACE"}, "method"},
		{Request{URL: good, Method: "OPTIONS"}, "method"},
		{Request{URL: good, Method: "GET /\r\nX:"}, "method"},

		{Request{URL: ""}, "url"},
		{Request{URL: "example.com/report"}, "url"},
		{Request{URL: "//example.com/"}, "url"},
		{Request{URL: "ftp://example.com/"}, "url"},
		{Request{URL: "file:///etc/passwd"}, "url"},
		{Request{URL: "unix:///run/x.sock"}, "url"},
		{Request{URL: "http:example.com"}, "url"},
		{Request{URL: "http://"}, "url"},
		{Request{URL: "http:///report"}, "url"},
		{Request{URL: "http://:80/"}, "url"},
		{Request{URL: "http://user:secret@/"}, "url"},
		{Request{URL: "http://example.com:0/"}, "url"},
		{Request{URL: "http://example.com:65536/"}, "url"},
		{Request{URL: "http://example.com:http/"}, "url"},
		{Request{URL: "http://user:sec/ret@example.com/"}, "url"},
		{Request{URL: "http://exa mple.com/"}, "url"},
		{Request{URL: "http://example.com/\r\nX: y"}, "url"},
		{Request{URL: "http://example.com/" + strings.Repeat("x", maxURL)}, "url"},

		{Request{URL: good, Header: header{"": "x"}}, "headers"},
		{Request{URL: good, Header: header{"X Y": "x"}}, "headers"},
		{Request{URL: good, Header: header{"X:": "x"}}, "headers"},
		{Request{URL: good, Header: header{"Zoë": "x"}}, "headers"},
		{Request{URL: good, Header: header{"X\r\nY": "x"}}, "headers"},
		{Request{URL: good, Header: header{"X": "x\r\nY: y"}}, "headers"},
		{Request{URL: good, Header: header{"X": "x\ny"}}, "headers"},
		{Request{URL: good, Header: header{"X": "\x00"}}, "headers"},
		{Request{URL: good, Header: header{"X": "\x7f"}}, "headers"},
		{Request{URL: good, Header: header{"X": "\xff"}}, "headers"},
		{Request{URL: good, Header: header{"X-Name": "a", "x-name": "b"}}, "headers"},
		{Request{URL: good, Header: header{"Host": "localhost"}}, "headers"},
		{Request{URL: good, Header: header{"host": "localhost"}}, "headers"},
		{Request{URL: good, Header: header{"Content-Length": "1"}}, "headers"},
		{Request{URL: good, Header: header{"transfer-encoding": "chunked"}}, "headers"},
		{Request{URL: good, Header: header{"CONNECTION": "upgrade"}}, "headers"},
		{Request{URL: good, Header: header{"Keep-Alive": "1"}}, "headers"},
		{Request{URL: good, Header: header{"TE": "trailers"}}, "headers"},
		{Request{URL: good, Header: header{"Trailer": "X"}}, "headers"},
		{Request{URL: good, Header: header{"Upgrade": "websocket"}}, "headers"},
		{Request{URL: good, Header: header{"Expect": "100-continue"}}, "headers"},
		{Request{URL: good, Header: header{"HTTP2-Settings": "x"}}, "headers"},
		{Request{URL: good, Header: header{"Proxy-Authorization": "x"}}, "headers"},
		{Request{URL: good, Header: header{"proxy-connection": "x"}}, "headers"},
		{Request{URL: good, Header: header{"X": strings.Repeat("x", maxHeaderBytes)}}, "headers"},
		{Request{URL: good, Header: tooMany}, "headers"},

		{Request{URL: good, Body: "x"}, "body"},
		{Request{URL: good, Method: "HEAD", Body: "x"}, "body"},
		{Request{URL: good, Method: "POST", Body: strings.Repeat("x", maxBody+1)}, "body"},
		{Request{URL: good, Method: "POST", Body: "\xff"}, "body"},

		{Request{URL: good, ExpectStatus: []int{200, 101}}, "expect_status"},
		{Request{URL: good, ExpectStatus: []int{600}}, "expect_status"},
		{Request{URL: good, ExpectStatus: make([]int, maxExpect+1)}, "expect_status"},

		{Request{URL: good, TimeoutSeconds: -1}, "timeout_s"},
		{Request{URL: good, TimeoutSeconds: maxTimeout + 1}, "timeout_s"},
	} {
		err := test.request.Check()
		e, ok := errors.AsType[*coord.InvalidError](err)
		switch {
		case test.field == "" && err != nil:
			t.Errorf("%.200v: got %v", test.request, err)
		case test.field != "" && (!ok || e.Field != test.field):
			t.Errorf("%.200v: got %v, want invalid %s", test.request, err, test.field)
		case err != nil && (strings.Contains(err.Error(), "sec") && test.field == "url"):
			t.Errorf("tells of the password: %v", err)
		}
		if _, err := New(Options{}).Do(t.Context(), test.request); test.field != "" &&
			(!errors.Is(err, ErrRefused) || !errors.Is(err, coord.ErrInvalid)) {
			t.Errorf("%.200v: Do got %v", test.request, err)
		}
	}
}

func TestRequestInJSON(t *testing.T) {
	const text = `{"method":"POST","url":"https://example.com/report","headers":{"X-Name":"x"},` +
		`"body":"hello","expect_status":[200,409],"timeout_s":5}`
	want := Request{
		Method: "POST", URL: good, Header: map[string]string{"X-Name": "x"},
		Body: "hello", ExpectStatus: []int{200, 409}, TimeoutSeconds: 5,
	}
	var got Request
	if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if b, err := json.Marshal(want); err != nil || string(b) != text {
		t.Errorf("got %s, %v", b, err)
	}
	if b, err := json.Marshal(Request{URL: good}); err != nil || string(b) != `{"url":"https://example.com/report"}` {
		t.Errorf("got %s, %v", b, err)
	}
}

func TestSamePlace(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     bool
	}{
		{"http://a.example/x", "http://A.example:80/y", true},
		{"https://a.example", "https://a.example:443/", true},
		{"http://a.example:8080", "http://a.example:8080", true},
		{"http://a.example", "https://a.example", true},
		{"http://a.example:80", "https://a.example:443", true},

		{"https://a.example", "http://a.example", false},
		{"https://a.example:8443", "http://a.example:8443", false},
		{"http://a.example:8080", "https://a.example:8443", false},
		{"http://a.example:8080", "https://a.example", false},
		{"https://a.example:80", "http://a.example:443", false},
		{"http://a.example", "https://a.example:8443", false},
		{"http://a.example", "http://a.example:8080", false},
		{"http://a.example", "http://www.a.example", false},
		{"http://www.a.example", "http://a.example", false},
		{"http://a.example", "http://a.example.evil.example", false},
		{"http://a.example", "http://b.example", false},
	} {
		from, _ := url.Parse(test.from)
		to, _ := url.Parse(test.to)
		if got := samePlace(from, to); got != test.want {
			t.Errorf("%s → %s: got %v", test.from, test.to, got)
		}
	}
}
