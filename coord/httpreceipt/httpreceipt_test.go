package httpreceipt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/httpreceipt"
	"github.com/tandemhq/tandem/coord/memory"
)

func open(t testing.TB) coord.Backend {
	t.Helper()
	b := memory.Open(memory.Options{})
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

// counted answers with how often it was asked.
func counted(status int, header ...string) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		if status != http.StatusNoContent {
			_, _ = fmt.Fprint(w, n.Add(1))
		}
	}
}

func TestWhatIsAnOutcome(t *testing.T) {
	for _, test := range []struct {
		status int
		header []string
		want   string // of two that are the same
	}{
		{200, nil, "200  1, 200 again  1"},
		{201, []string{"Location", "/7"}, "201 /7 1, 201 again /7 1"},
		{204, nil, "204  , 204 again  "},
		{303, []string{"Location", "/7"}, "303 /7 1, 303 again /7 1"},
		{404, nil, "404  1, 404 again  1"},
		{409, nil, "409  1, 409 again  1"},
		{500, nil, "500  1, 500 again  1"},
		{409, []string{"Retry-After", "5"}, "409  1, 409  2"},
		{202, []string{"Retry-After", "5"}, "202  1, 202  2"},
		{408, nil, "408  1, 408  2"},
		{429, nil, "429  1, 429  2"},
		{502, nil, "502  1, 502  2"},
		{503, nil, "503  1, 503  2"},
		{504, nil, "504  1, 504  2"},
	} {
		answer := counted(test.status, test.header...)
		h := once(t, open(t).Receipts(), httpreceipt.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusEarlyHints) // which is none
			answer(w, r)
		})
		got := shown(post(t.Context(), h, "k", "")) + ", " + shown(post(t.Context(), h, "k", ""))
		if got != test.want {
			t.Errorf("%d %v: got %q, want %q", test.status, test.header, got, test.want)
		}
	}
}

func TestWhatMustBeTheSame(t *testing.T) {
	h := once(t, open(t).Receipts(), httpreceipt.Options{}, counted(200))
	ask := func(method, target, body string, header ...string) string {
		r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
		r.Header.Set("Caller", "ada")
		r.Header.Set(httpreceipt.Header, "k")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return shown(w)
	}
	if got := ask("POST", "/a?b", "x"); got != "200  1" {
		t.Fatal(got)
	}
	for _, other := range []string{
		ask("PATCH", "/a?b", "x"), ask("POST", "/a", "x"), ask("POST", "/a?c", "x"), ask("POST", "/b?b", "x"), ask("POST", "/a?b", "y"),
		ask("POST", "/a?b", "", "Content-Type", "x"), ask("POST", "/a?b", "x", "Content-Type", "x"),
	} {
		if !strings.HasPrefix(other, "422  {") {
			t.Errorf("got %q", other)
		}
	}
	// The same key of somebody else, other methods, nobody in particular, and no key.
	for i, got := range []string{
		ask("POST", "/a?b", "x", "Caller", "bob"), ask("PUT", "/a?b", "x"), ask("POST", "/a?b", "x", "Caller", ""),
		ask("POST", "/a?b", "x", "Caller", ""),
	} {
		if want := fmt.Sprint("200  ", i+2); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// Two that would be one if they were only put together.
	if got := ask("POST", "/a?b", "x", "Caller", "ad", httpreceipt.Header, "ak"); got != "200  6" {
		t.Errorf("got %q", got)
	}
	if got := ask("POST", "/a?b", "x", "Accept", "x"); got != "200 again  1" {
		t.Errorf("got %q", got)
	}
}

func TestKeys(t *testing.T) {
	long := strings.Repeat("x", 255)
	for text, want := range map[string]string{
		`abc`: "abc", `"abc"`: "abc", `8e03978e-40d5-43e8-bc93-6894a57f9324`: "8e03978e-40d5-43e8-bc93-6894a57f9324",
		`"a b;c,d"`: "a b;c,d", `"\"\\"`: `"\`, long: long, `"` + long + `"`: long, `order:7/9=?`: "order:7/9=?",
		``: "", `""`: "", `"`: "", `"abc`: "", `abc"`: "", `"a"b"`: "", `"a\b"`: "", `"a\"`: "", `"a";b=1`: "", `a, b`: "", `a;b`: "", "a b": "",
		"ä": "", `"ä"`: "", "a\x7f": "", "\"a\tb\"": "", long + "x": "", `"` + long + `x"`: "",
	} {
		r := &http.Request{Header: http.Header{httpreceipt.Header: {text}}}
		key, err := httpreceipt.ParseKey(r)
		if key != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", text, key, err, want)
		}
	}
	r := &http.Request{Header: http.Header{httpreceipt.Header: {"a", "a"}}}
	if key, err := httpreceipt.ParseKey(r); err == nil {
		t.Errorf("two keys are %q", key)
	}
	h := once(t, open(t).Receipts(), httpreceipt.Options{}, counted(200))
	got := post(t.Context(), h, "a b", "")
	if got.Code != http.StatusBadRequest || got.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %q, %v", shown(got), got.Header())
	}
}

func FuzzKey(f *testing.F) {
	for _, text := range []string{`a`, `"a"`, `"\"\\"`, `"a\`, "", `"`, `"""`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, err := httpreceipt.ParseKey(&http.Request{Header: http.Header{httpreceipt.Header: {text}}})
		if err != nil {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		again, err := httpreceipt.ParseKey(&http.Request{Header: http.Header{httpreceipt.Header: {quoted}}})
		if err != nil || again != key || key == "" || len(key) > 255 {
			t.Errorf("%q is %q, which is %q, %v", text, key, again, err)
		}
	})
}

// TestSecret: the store gets nothing of an answer that holds a secret, and of its request only what a
// guess can't be compared with.
func TestSecret(t *testing.T) {
	stored := &spy{Receipts: open(t).Receipts()}
	h := once(t, stored, httpreceipt.Options{Secret: true}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "no" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		w.Header().Set("Location", "/secret")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("secret"))
	})
	if got := shown(post(t.Context(), h, "k", "please")); got != "201 /secret secret" {
		t.Errorf("got %q", got)
	}
	got := shown(post(t.Context(), h, "k", "please"))
	if !strings.HasPrefix(got, "409 again  {") || strings.Contains(got, "/secret") {
		t.Errorf("got %q", got)
	}
	for _, want := range []string{"403  no", "403 again  no"} { // which holds none
		if got := shown(post(t.Context(), h, "other", "no")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if strings.Contains(stored.text, "secret") || strings.Contains(stored.text, "please") || strings.Contains(stored.text, "ada") {
		t.Errorf("stored %q", stored.text)
	}
}

// spy notes what the store is given.
type spy struct {
	coord.Receipts
	text string
}

func (s *spy) Begin(ctx context.Context, f coord.ReceiptFor) (coord.Receipt, error) {
	s.text += fmt.Sprintf("%s %q\n", f.Key, f.Fingerprint)
	return s.Receipts.Begin(ctx, f)
}

func (s *spy) Complete(ctx context.Context, held coord.Receipt, o coord.ReceiptOutcome) error {
	s.text += fmt.Sprintf("%q %q\n", o.Body, o.Error)
	return s.Receipts.Complete(ctx, held, o)
}

func TestSizes(t *testing.T) {
	size := coord.MaxPayload - 100
	h := once(t, open(t).Receipts(), httpreceipt.Options{MaxBody: 10}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for range size / 1000 {
			_, _ = w.Write(make([]byte, 1000))
		}
		_, _ = w.Write(make([]byte, size%1000))
	})
	if got := post(t.Context(), h, "body", "eleven byte"); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: got %d", got.Code)
	}
	for _, again := range []string{"", "true"} {
		got := post(t.Context(), h, "fits", "ten bytes.")
		if got.Code != 200 || got.Body.Len() != size || got.Header().Get(httpreceipt.ReplayedHeader) != again {
			t.Errorf("got %d with %d bytes, %v", got.Code, got.Body.Len(), got.Header())
		}
	}
	for _, size = range []int{coord.MaxPayload - 10, coord.MaxPayload + 10} { // with its header, and without
		for _, again := range []string{"", "true"} {
			got := post(t.Context(), h, fmt.Sprint(size), "")
			if got.Code != 500 || !strings.Contains(got.Body.String(), "larger") || got.Header().Get(httpreceipt.ReplayedHeader) != again {
				t.Errorf("%d bytes: got %d with %d bytes, %v", size, got.Code, got.Body.Len(), got.Header())
			}
		}
	}
	broken := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("x"), failing{}))
	broken.Header.Set("Caller", "ada")
	broken.Header.Set(httpreceipt.Header, "broken")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, broken)
	if w.Code != http.StatusBadRequest {
		t.Errorf("a body that breaks off: got %d", w.Code)
	}
}

// A handler's header is that of its answer alone.
func TestRefusalsHaveNoHeaderOfTheHandler(t *testing.T) {
	h := once(t, open(t).Receipts(), httpreceipt.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "2000000")
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Set-Cookie", "session=secret")
		_, _ = w.Write(make([]byte, 2_000_000))
	})
	for range 2 {
		got := post(t.Context(), h, "k", "")
		if got.Code != http.StatusInternalServerError {
			t.Errorf("got %d", got.Code)
		}
		for _, name := range []string{"Content-Length", "Content-Encoding", "Set-Cookie"} {
			if value := got.Header().Get(name); value != "" {
				t.Errorf("the refusal has the handler's %s: %s", name, value)
			}
		}
	}
}

// A handler may complete its receipt with what is no answer.
func TestStoredAnswersThatAreNone(t *testing.T) {
	receipts := open(t).Receipts()
	for _, stored := range []string{"", "HTTP/1.1 200 OK", "\r\n\r\n", "nonsense\r\n\r\n"} {
		h := once(t, receipts, httpreceipt.Options{}, func(_ http.ResponseWriter, r *http.Request) {
			held, _ := httpreceipt.Held(r.Context())
			if err := receipts.Complete(r.Context(), held, coord.ReceiptOutcome{Body: []byte(stored)}); err != nil {
				t.Error(err)
			}
		})
		post(t.Context(), h, "key"+strconv.Itoa(len(stored)), "")
		if got := post(t.Context(), h, "key"+strconv.Itoa(len(stored)), ""); got.Code != http.StatusInternalServerError {
			t.Errorf("%q: got %d", stored, got.Code)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestWhoWaits has one request at work while others come.
func TestWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receipts := open(t).Receipts()
		h := once(t, receipts, httpreceipt.Options{Wait: 3 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute) // twice its lease
			if r.Context().Err() != nil {
				t.Error("the request was told to stop")
			}
			_, _ = w.Write([]byte("done"))
		})
		leaving, leave := context.WithCancel(t.Context())
		began := time.Now()
		gone := make(chan string)
		go func() { gone <- shown(post(leaving, h, "k", "")) }()
		synctest.Wait()
		leave() // the first one's client

		got := post(t.Context(), h, "k", "")
		if got.Code != http.StatusConflict || got.Header().Get("Retry-After") != "1" || !strings.Contains(got.Body.String(), "still at work") {
			t.Errorf("got %q, %v", shown(got), got.Header())
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("waited for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		post(ctx, h, "k", "") // and goes
		cancel()
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("stayed for %v", took)
		}
		time.Sleep(54 * time.Second)
		if got := shown(post(t.Context(), h, "k", "")); got != "200 again  done" { // heard of it within its wait
			t.Errorf("got %q", got)
		}
		<-gone
		time.Sleep(24*time.Hour - 10*time.Second)
		if got := shown(post(t.Context(), h, "k", "")); got != "200 again  done" {
			t.Errorf("within the day: got %q", got)
		}
		time.Sleep(20 * time.Second)
		if got := shown(post(t.Context(), h, "k", "")); got != "200  done" {
			t.Errorf("after it: got %q", got)
		}
	})
}

// outage returns receipts of a store that answers no calls of these operations, or none at all, while on
// is true.
func outage(t testing.TB, on *atomic.Bool, ops ...string) coord.Receipts {
	t.Helper()
	b := coordtest.Faulty(open(t), func(op string, _ int) coordtest.Fault {
		return coordtest.Fault{Fail: on.Load() && (len(ops) == 0 || slices.Contains(ops, op))}
	})
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b.Receipts()
}

// TestLostLease has extensions fail for so long that the lease would end while a request is carried out.
// It is told to stop, and what it answers then is no outcome.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		h := once(t, outage(t, &away, "receipts.extend"), httpreceipt.Options{}, func(w http.ResponseWriter, r *http.Request) {
			away.Store(true)
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); !errors.Is(cause, coord.ErrFenced) {
				t.Errorf("it was told to stop for %v", cause)
			}
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("stopped"))
		})
		for range 2 {
			if got := shown(post(t.Context(), h, "k", "")); got != "500  stopped" {
				t.Errorf("got %q", got)
			}
		}
	})
}

// TestOutages: nothing is begun without the store, and what was done is told though it can't be stored.
func TestOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		served := 0
		h := once(t, outage(t, &away), httpreceipt.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			served++
			away.Store(true)
			w.WriteHeader(http.StatusCreated)
		})
		away.Store(true)
		got := post(t.Context(), h, "k", "")
		if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") != "1" || served != 0 {
			t.Errorf("got %q, served %d", shown(got), served)
		}
		away.Store(false)
		if got := shown(post(t.Context(), h, "k", "")); got != "201  " {
			t.Errorf("got %q", got)
		}
	})
}

// TestFaults loses each call of the store once, or its answer. Who sends a request again until it is
// answered has had it carried out once.
func TestFaults(t *testing.T) {
	for _, op := range []string{"receipts.begin", "receipts.complete"} {
		for _, fault := range []coordtest.Fault{{Fail: true}, {Cut: true}} {
			synctest.Test(t, func(t *testing.T) {
				b := coordtest.Faulty(open(t), coordtest.Nth(op, 1, fault))
				defer func() { _ = b.Close(context.Background()) }()
				served := 0
				h := once(t, b.Receipts(), httpreceipt.Options{}, func(w http.ResponseWriter, _ *http.Request) {
					served++
					w.WriteHeader(http.StatusCreated)
				})
				got := post(t.Context(), h, "k", "")
				for got.Header().Get("Retry-After") != "" {
					time.Sleep(time.Second)
					got = post(t.Context(), h, "k", "")
				}
				if again := post(t.Context(), h, "k", ""); got.Code != 201 || shown(again) != "201 again  " || served != 1 {
					t.Errorf("%s %+v: got %q, then %q, served %d", op, fault, shown(got), shown(again), served)
				}
			})
		}
	}
}

func TestOptions(t *testing.T) {
	caller := func(*http.Request) string { return "" }
	for field, o := range map[string]httpreceipt.Options{
		"Options.Caller": {}, "Options.MaxBody": {Caller: caller, MaxBody: -1}, "Options.Wait": {Caller: caller, Wait: -1},
		"Options.Lease": {Caller: caller, Lease: time.Millisecond}, "Options.Keep": {Caller: caller, Keep: time.Millisecond},
	} {
		_, err := httpreceipt.New(open(t).Receipts(), o)
		if invalid, ok := errors.AsType[*coord.InvalidError](err); !ok || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	h := once(t, open(t).Receipts(), httpreceipt.Options{
		Headers: []string{"x-more"},
		Refuse: func(w http.ResponseWriter, _ *http.Request, f httpreceipt.Refusal) {
			http.Error(w, f.Detail, f.Status)
		},
	}, counted(200, "X-More", "kept", "X-Less", "not"))
	post(t.Context(), h, "k", "")
	if got := post(t.Context(), h, "k", "").Header(); got.Get("X-More") != "kept" || got.Get("X-Less") != "" {
		t.Errorf("got %v", got)
	}
	if got := shown(post(t.Context(), h, "k", "other")); got != "422  the Idempotency-Key was used for another request" {
		t.Errorf("got %q", got)
	}
}
