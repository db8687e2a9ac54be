package outbound

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var home = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// server is one on the loopback address that counts who connects and keeps what is asked.
type server struct {
	*httptest.Server
	conns atomic.Int32
	mu    sync.Mutex
	asked []asked
}

type asked struct {
	method, path, body string
	header             http.Header
}

func serve(t *testing.T, withTLS bool, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.asked = append(s.asked, asked{r.Method, r.URL.RequestURI(), string(body), r.Header.Clone()})
		s.mu.Unlock()
		answer(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	if withTLS {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func (s *server) port() string {
	return s.Listener.Addr().(*net.TCPAddr).AddrPort().String()[len("127.0.0.1:"):]
}

func (s *server) requests() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }

// names is a resolver that asks nobody; lookup gives the addresses of a host, none if it does
// not exist.
func names(lookup func(host string) []string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, conn := net.Pipe()
		go func() {
			defer func() { _ = conn.Close() }()
			for {
				var size [2]byte
				if _, err := io.ReadFull(conn, size[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(conn, query); err != nil {
					return
				}
				reply := answerQuery(query, lookup)
				if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

// answerQuery is a name server for one question: RFC 1035, section 4.
func answerQuery(query []byte, lookup func(host string) []string) []byte {
	var labels []string
	end := 12
	for query[end] != 0 {
		n := int(query[end])
		labels = append(labels, string(query[end+1:end+1+n]))
		end += 1 + n
	}
	kind := binary.BigEndian.Uint16(query[end+1:])
	end += 5
	known := lookup(strings.Join(labels, "."))
	const typeA, typeAAAA, noName = 1, 28, 3
	code, count, records := byte(noName), uint16(0), []byte(nil)
	for _, address := range known {
		code = 0
		addr := netip.MustParseAddr(address)
		if addr.Is4() != (kind == typeA) || addr.Is6() != (kind == typeAAAA) {
			continue
		}
		count++
		records = append(records, 0xc0, 12, byte(kind>>8), byte(kind), 0, 1, 0, 0, 0, 0)
		records = binary.BigEndian.AppendUint16(records, uint16(len(addr.AsSlice())))
		records = append(records, addr.AsSlice()...)
	}
	reply := append(slices.Clone(query[:2]), 0x81, 0x80|code, 0, 1)
	reply = binary.BigEndian.AppendUint16(reply, count)
	reply = append(reply, 0, 0, 0, 0)
	return append(append(reply, query[12:end]...), records...)
}

// is says what is wrong with an error that must be final, or must not, and have these words.
func is(t *testing.T, err error, final bool, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want one with %q", words)
		return
	}
	if errors.Is(err, ErrRefused) != final {
		t.Errorf("%v: final is %v", err, !final)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestAnswer(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})
	got, err := New(Options{Allow: home}).Do(t.Context(), Request{
		Method: "POST", URL: s.URL + "/report?day=1#part", Body: `{"a":1}`,
		Header: map[string]string{"content-type": "application/json", "Idempotency-Key": "run-7"},
	})
	if err != nil || got.Status != 201 || string(got.Body) != "made" || got.Truncated || got.Took <= 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	list := s.requests()
	if len(list) != 1 || list[0].method != "POST" || list[0].path != "/report?day=1" || list[0].body != `{"a":1}` {
		t.Fatalf("the server was asked %+v", list)
	}
	header := list[0].header
	want := http.Header{
		"User-Agent": {"tandem"}, "Content-Type": {"application/json"}, "Idempotency-Key": {"run-7"},
		"Content-Length": {"7"}, "Connection": {"close"},
	}
	if !maps.EqualFunc(header, want, slices.Equal) {
		t.Errorf("the server got the headers %v, want %v", header, want)
	}
}

func TestStatus(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			_, _ = io.WriteString(w, "details")
		}
	})
	c := New(Options{Allow: home})
	for _, test := range []struct {
		status int
		expect []int
		words  string // empty: it is fine
	}{
		{200, nil, ""},
		{204, nil, ""},
		{299, nil, ""},
		{404, []int{200, 404}, ""},
		{503, []int{503}, ""},
		{300, nil, "expected the status 200 to 299, the answer was 300 Multiple Choices"},
		{302, nil, "the answer was 302 Found"}, // without a Location
		{404, nil, "expected the status 200 to 299, the answer was 404 Not Found"},
		{500, nil, "the answer was 500 Internal Server Error"},
		{599, nil, "the answer was 599"},
		{200, []int{201, 202}, "expected the status 201 or 202, the answer was 200 OK"},
	} {
		got, err := c.Do(t.Context(), Request{URL: fmt.Sprintf("%s/%d", s.URL, test.status), ExpectStatus: test.expect})
		if test.words == "" {
			if err != nil {
				t.Errorf("%d: got %v", test.status, err)
			}
		} else {
			is(t, err, false, "GET "+s.URL+": ", test.words)
		}
		if got.Status != test.status || (test.status != 204) != (string(got.Body) == "details") {
			t.Errorf("%d: got %+v", test.status, got)
		}
	}
}

// Names that lead here, and every way to write this address, are refused before a connection
// is made.
func TestLoopbackIsRefused(t *testing.T) {
	s := serve(t, false, ok)
	for host := range strings.FieldsSeq("127.0.0.1 localhost LOCALHOST 0.0.0.0 [::ffff:127.0.0.1] [::1] [::]") {
		_, err := New(Options{}).Do(t.Context(), Request{URL: "http://" + host + ":" + s.port()})
		is(t, err, true, "the address ", " is not allowed for tasks: it is ")
	}
	if n := s.conns.Load(); n != 0 {
		t.Errorf("the server saw %d connections", n)
	}
}

func TestRefusalInWords(t *testing.T) {
	c := New(Options{Resolver: names(func(string) []string { return []string{"10.0.0.7"} })})
	_, err := c.Do(t.Context(), Request{URL: "https://ada:secret@db.test/x?token=secret"})
	const want = "GET https://db.test: the address 10.0.0.7 is not allowed for tasks: it is private"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A name is looked up once per connection, and what comes out is both checked and called.
func TestRebinding(t *testing.T) {
	s := serve(t, false, ok)
	var answers [][]string
	c := New(Options{Allow: home, Resolver: names(func(host string) []string {
		if !strings.HasPrefix(host, "hook.test") {
			return nil
		}
		return answers[0]
	})})
	request := Request{URL: "http://hook.test:" + s.port()}
	for _, test := range []struct {
		addresses []string
		refused   string
	}{
		{[]string{"127.0.0.1"}, ""},
		{[]string{"10.0.0.7"}, "10.0.0.7"},
		{[]string{"169.254.169.254", "10.0.0.7"}, "1"}, // one or the other
		{[]string{"fd00:ec2::254"}, "fd00:ec2::254"},
		{[]string{"::ffff:169.254.169.254"}, "169.254.169.254"},
		{[]string{"64:ff9b::169.254.169.254"}, "64:ff9b::a9fe:a9fe"},
		{[]string{"10.0.0.7", "127.0.0.1"}, ""}, // by the second one
		{[]string{"127.0.0.1"}, ""},
	} {
		answers = [][]string{test.addresses}
		before := s.conns.Load()
		_, err := c.Do(t.Context(), request)
		if test.refused == "" {
			if err != nil || s.conns.Load() != before+1 {
				t.Errorf("%v: got %v, %d connections", test.addresses, err, s.conns.Load()-before)
			}
			continue
		}
		is(t, err, true, "the address "+test.refused, " is not allowed")
		if s.conns.Load() != before {
			t.Errorf("%v: a connection was made", test.addresses)
		}
	}
}

func TestRedirectsAreCheckedAgain(t *testing.T) {
	secret := serve(t, false, ok)
	var location string
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusFound)
	})
	c := New(Options{Allow: home, Resolver: names(func(host string) []string {
		if strings.HasPrefix(host, "metadata.test") {
			return []string{"169.254.169.254"}
		}
		return nil
	})})
	for to, words := range map[string]string{
		"http://169.254.169.254/latest":             "redirected to http://169.254.169.254: the address 169.254.169.254 is",
		"//10.0.0.7/":                               "the address 10.0.0.7 is not allowed",
		"http://metadata.test/x":                    "redirected to http://metadata.test: the address 169.254.169.254 is",
		"http://[::1]:" + secret.port():             "the address ::1 is not allowed",
		"http://127.0.0.2:" + secret.port() + "/":   "the address 127.0.0.2 is not allowed",
		"http://ada:secret@10.0.0.7/x?token=secret": "redirected to http://10.0.0.7: the address",
		"ftp://127.0.0.1/x":                         "302 Found to a URL that must begin with http",
		"file:///etc/passwd":                        "302 Found to a URL that must",
		"javascript:secret":                         "302 Found to a URL that must",
		"http://":                                   "302 Found to a URL that must name a host",
		"http://ada:sec/ret@127.0.0.1/":             "302 Found to what is not a URL",
	} {
		location = to
		_, err := c.Do(t.Context(), Request{URL: s.URL})
		is(t, err, true, "GET "+s.URL, words)
		if err != nil && strings.Contains(err.Error(), "sec") {
			t.Errorf("tells too much: %v", err)
		}
	}
	if n := secret.conns.Load(); n != 0 {
		t.Errorf("the other server saw %d connections", n)
	}
}

var private = map[string]string{
	"Authorization": "Bearer secret", "Cookie": "a=secret", "X-Token": "secret", "Idempotency-Key": "run-1",
	"Content-Type": "text/plain", "User-Agent": "secret",
}

func carried(h http.Header) (n int) {
	for name, value := range private {
		if h.Get(name) == value {
			n++
		}
	}
	return n
}

func TestHeadersStayWhereTheyBelong(t *testing.T) {
	redirect := func(to func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/end" {
				ok(w, r)
				return
			}
			http.Redirect(w, r, to(), http.StatusTemporaryRedirect)
		}
	}
	var one, two *server
	one = serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		redirect(func() string {
			if r.URL.Path == "/here" {
				return "/end?secret"
			}
			return two.URL + "/back"
		})(w, r)
	})
	two = serve(t, false, redirect(func() string { return one.URL + "/end" }))
	secure := serve(t, true, redirect(func() string { return one.URL + "/end" }))
	c := New(Options{Allow: home})
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	c.transport.TLSClientConfig = &tls.Config{RootCAs: roots}

	for _, test := range []struct {
		name, url string
		first     *server
		last      []string // what the end got
		want      int
	}{
		{"the same place", one.URL + "/here", one, nil, len(private) - 1}, // but no Content-Type
		{"there and back", one.URL + "/away?secret", one, nil, 0},
		{"from https to http", secure.URL + "/away?secret", secure, nil, 0},
		{"userinfo", strings.Replace(two.URL, "//", "//ada:secret@", 1) + "/away", two, nil, 0},
	} {
		for _, s := range []*server{one, two, secure} {
			s.mu.Lock()
			s.asked = nil
			s.mu.Unlock()
		}
		if _, err := c.Do(t.Context(), Request{URL: test.url, Header: private}); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if n := carried(test.first.requests()[0].header); n != len(private) {
			t.Errorf("%s: the first request had %d headers of %d", test.name, n, len(private))
		}
		list := one.requests()
		end := list[len(list)-1]
		if n := carried(end.header); n != test.want {
			t.Errorf("%s: %d headers came, want %d: %v", test.name, n, test.want, end.header)
		}
		for _, between := range two.requests() {
			if test.first != two && carried(between.header) != 0 {
				t.Errorf("%s: on the way: %v", test.name, between.header)
			}
		}
		if end.path != "/end" && end.path != "/end?secret" || end.header.Get("Referer") != "" {
			t.Errorf("%s: the end was asked %+v", test.name, end)
		}
	}
}

func TestWhatFollowsARedirect(t *testing.T) {
	other := serve(t, false, ok)
	var status int
	var location string
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/end" {
			ok(w, r)
			return
		}
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	})
	c := New(Options{Allow: home})
	for _, test := range []struct {
		method   string
		status   int
		location string
		then     string // the method that follows; empty: none
	}{
		{"GET", 301, "/end", "GET"},
		{"GET", 302, "/end", "GET"},
		{"GET", 303, "/end", "GET"},
		{"GET", 307, other.URL, "GET"},
		{"GET", 308, other.URL, "GET"},
		{"HEAD", 301, "/end", "HEAD"},
		{"HEAD", 303, other.URL, "HEAD"},
		{"HEAD", 307, "/end", "HEAD"},
		{"POST", 303, "/end", "GET"},
		{"POST", 303, other.URL, "GET"},
		{"DELETE", 303, "/end", "GET"},
		{"POST", 307, "/end", "POST"},
		{"PUT", 308, "/end", "PUT"},
		{"DELETE", 307, "/end", "DELETE"},

		{"GET", 300, "/end", ""},
		{"GET", 304, "/end", ""},
		{"GET", 305, other.URL, ""},
		{"POST", 301, "/end", ""},
		{"POST", 302, "/end", ""},
		{"PUT", 302, "/end", ""},
		{"DELETE", 301, "/end", ""},
		{"POST", 307, other.URL, ""},
		{"PATCH", 308, other.URL, ""},
		{"DELETE", 307, other.URL, ""},
	} {
		for _, s := range []*server{s, other} {
			s.mu.Lock()
			s.asked = nil
			s.mu.Unlock()
		}
		status, location = test.status, test.location
		request := Request{Method: test.method, URL: s.URL}
		if !safe(test.method) {
			request.Body = "secret"
		}
		got, err := c.Do(t.Context(), request)
		list := append(s.requests(), other.requests()...)
		if test.then == "" {
			is(t, err, false, fmt.Sprintf("the answer was %d", test.status))
			if len(list) != 1 || got.Status != test.status {
				t.Errorf("%s, %d to %s: got %+v, asked %+v", test.method, test.status, test.location, got, list)
			}
			if !safe(test.method) {
				to := s.URL
				if location == other.URL {
					to = other.URL
				}
				is(t, err, false, " to "+to+", where a "+test.method+" is not sent by itself")
			}
			continue
		}
		if err != nil || len(list) != 2 {
			t.Errorf("%s, %d to %s: got %v, asked %+v", test.method, test.status, test.location, err, list)
			continue
		}
		body := ""
		if !safe(test.then) {
			body = "secret"
		}
		if list[1].method != test.then || list[1].body != body {
			t.Errorf("%s, %d to %s: followed by %+v", test.method, test.status, test.location, list[1])
		}
	}
}

func TestRedirectsEnd(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	})
	for limit, want := range map[int]int{0: 6, 2: 3, -1: 1} {
		before := len(s.requests())
		_, err := New(Options{Allow: home, MaxRedirects: limit}).Do(t.Context(), Request{URL: s.URL + "/round"})
		is(t, err, false, fmt.Sprintf("gave up after %d redirects", want-1))
		if n := len(s.requests()) - before; n != want {
			t.Errorf("at most %d redirects: %d requests, want %d", limit, n, want)
		}
	}
	got, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: s.URL, ExpectStatus: []int{302}})
	if err != nil || got.Status != 302 {
		t.Errorf("an expected redirect: got %+v, %v", got, err)
	}
}

func TestBodyIsBounded(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/exact" {
			_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			return
		}
		for { // until the client goes
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	c := New(Options{Allow: home, MaxBody: 1000})
	for path, truncated := range map[string]bool{"/exact": false, "/endless": true} {
		got, err := c.Do(t.Context(), Request{URL: s.URL + path})
		if err != nil || len(got.Body) != 1000 || got.Truncated != truncated {
			t.Errorf("%s: got %d bytes, truncated %v, %v", path, len(got.Body), got.Truncated, err)
		}
	}
	if got, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: s.URL}); err != nil || len(got.Body) != 1<<20 {
		t.Errorf("by default: got %d bytes, %v", len(got.Body), err)
	}
}

func TestNothingIsUnpacked(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(make([]byte, 1<<20))
	_ = z.Close()
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	})
	for _, header := range []map[string]string{nil, {"Accept-Encoding": "gzip"}} {
		got, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: s.URL, Header: header})
		if err != nil || !bytes.Equal(got.Body, packed.Bytes()) {
			t.Errorf("got %d bytes, %v, want %d", len(got.Body), err, packed.Len())
		}
	}
	if got := s.requests()[0].header.Get("Accept-Encoding"); got != "" {
		t.Errorf("asked for %s", got)
	}
}

func TestHeadersOfAnAnswerAreBounded(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		for i := range 100 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 1000))
		}
		ok(w, r)
	})
	_, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: s.URL})
	is(t, err, false, "headers exceeded")
}

// piped is a client whose connections lead to a function that answers one request; in a bubble
// of synctest time passes with them. gone waits until the client has closed them all.
func piped(answer func(conn net.Conn)) (c *Client, gone func()) {
	c = New(Options{})
	var conns sync.WaitGroup
	c.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		client, conn := net.Pipe()
		conns.Go(func() {
			defer func() { _ = conn.Close() }()
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				answer(conn)
			}
		})
		return client, nil
	}
	return c, conns.Wait
}

// drip writes for as long as somebody reads, a little each second.
func drip(conn net.Conn, begin, more string) {
	_, err := io.WriteString(conn, begin)
	for err == nil {
		time.Sleep(time.Second)
		_, err = io.WriteString(conn, more)
	}
}

func TestTimeIsBounded(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"silence":     func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) },
		"status line": func(conn net.Conn) { drip(conn, "HTTP/1.1 20", "0") },
		"headers":     func(conn net.Conn) { drip(conn, "HTTP/1.1 200 OK\r\n", "X: x\r\n") },
		"early hints": func(conn net.Conn) { drip(conn, "", "HTTP/1.1 103 Early Hints\r\n\r\n") },
		"body":        func(conn net.Conn) { drip(conn, "HTTP/1.1 200 OK\r\n\r\n", "x") },
		"chunks": func(conn net.Conn) {
			drip(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n")
		},
		"error body": func(conn net.Conn) { drip(conn, "HTTP/1.1 500 Oh\r\nContent-Length: 9999\r\n\r\n", "x") },
		"redirects":  func(conn net.Conn) { drip(conn, "HTTP/1.1 302 Found\r\nLocation: /", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, gone := piped(answer)
				for seconds, want := range map[int]time.Duration{0: 30 * time.Second, 2: 2 * time.Second} {
					begun := time.Now()
					got, err := c.Do(t.Context(), Request{URL: "http://hook.test/", TimeoutSeconds: seconds})
					is(t, err, false, "GET http://hook.test: ", fmt.Sprintf("there was no complete answer within %v", want))
					if took := time.Since(begun); took != want || got.Took != want {
						t.Errorf("took %v, says %v, want %v", took, got.Took, want)
					}
				}
				reason := errors.New("the lease was lost")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(3*time.Second, func() { cancel(reason) })
				got, err := c.Do(ctx, Request{URL: "http://hook.test/"})
				if is(t, err, false); !errors.Is(err, reason) || got.Took != 3*time.Second {
					t.Errorf("got %v after %v", err, got.Took)
				}
				gone()
			})
		})
	}
}

// Who switches protocols unasked has a connection that no end of a body ends.
func TestSwitchedProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, gone := piped(func(conn net.Conn) {
			drip(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "x")
		})
		got, err := c.Do(t.Context(), Request{URL: "http://hook.test/"})
		is(t, err, false, "the answer was 101 Switching Protocols")
		if got.Status != 101 || got.Took != 0 {
			t.Errorf("got %+v", got)
		}
		gone()
	})
}

func TestBrokenAnswers(t *testing.T) {
	for answer, words := range map[string]string{
		"":                               "EOF",
		"SSH-2.0-OpenSSH_9.2\r\n":        "malformed HTTP response",
		"HTTP/1.1 200 OK\r\nX Y\r\n\r\n": "malformed",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx":                     "the answer 200 OK broke off",
		"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\nx":            "the answer 502 Bad Gateway broke off",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nsecret": "the answer 200 OK broke off",
	} {
		c, gone := piped(func(conn net.Conn) { _, _ = io.WriteString(conn, answer) })
		_, err := c.Do(t.Context(), Request{URL: "http://hook.test/"})
		gone()
		is(t, err, false, "GET http://hook.test: ", words)
	}
}

func TestCertificatesAreVerified(t *testing.T) {
	s := serve(t, true, ok)
	_, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: s.URL})
	is(t, err, false, "certificate")
	if n := len(s.requests()); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestNoProxy(t *testing.T) {
	proxy := serve(t, false, ok)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	c := New(Options{Allow: home, Resolver: names(func(string) []string { return []string{"10.0.0.7"} })})
	if c.transport.Proxy != nil {
		t.Error("there is a proxy")
	}
	_, err := c.Do(t.Context(), Request{URL: "http://hook.test/"})
	is(t, err, true, "10.0.0.7")
	if n := proxy.conns.Load(); n != 0 {
		t.Errorf("the proxy saw %d connections", n)
	}
}

func TestUserAndPassword(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	u, _ := url.Parse(s.URL + "/secret?secret#secret")
	u.User = url.UserPassword("secret-user", "secret")
	_, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: u.String()})
	is(t, err, false, "403")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("tells too much: %v", err)
	}
	want := &http.Request{Header: http.Header{}}
	want.SetBasicAuth("secret-user", "secret")
	if got := s.requests()[0].header.Get("Authorization"); got != want.Header.Get("Authorization") {
		t.Errorf("got %q", got)
	}
	_, _ = New(Options{Allow: home}).Do(t.Context(), Request{
		URL: u.String(), Header: map[string]string{"authorization": "Bearer x"},
	})
	if got := s.requests()[1].header.Get("Authorization"); got != "Bearer x" {
		t.Errorf("the header: got %q", got)
	}
}

// What the network says is said again without the addresses of this machine.
func TestNetworkErrors(t *testing.T) {
	gone := serve(t, false, ok)
	gone.Close()
	_, err := New(Options{Allow: home}).Do(t.Context(), Request{URL: gone.URL})
	is(t, err, false, "GET "+gone.URL+": dial: ", "refused")

	for host, words := range map[string]string{
		"nowhere.test": "there is no host of that name",
		"slow.test":    "the host's name could not be looked up",
	} {
		resolver := names(func(string) []string { return nil })
		if host == "slow.test" {
			resolver.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("the name server at 10.96.0.10 is not there")
			}
		}
		_, err := New(Options{Resolver: resolver}).Do(t.Context(), Request{URL: "http://" + host})
		is(t, err, false, "GET http://"+host+": ", words)
		if strings.Contains(err.Error(), "10.96") {
			t.Errorf("tells too much: %v", err)
		}
	}
}
