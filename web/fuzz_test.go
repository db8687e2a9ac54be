package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/julienschmidt/httprouter"

	"github.com/tandemhq/tandem/coord"
)

// FuzzBody wants that a body is read as it is written, and that what can't be read is a problem of the
// client's, with the field's name and with none of this program's.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"name":"tick","room_id":1,"text":"hello","schedule":"@every 1h","zone":"UTC","retry":{"max_attempts":3},"paused":false}`,
		`{"kind":"http","http":{"url":"https://example.com","headers":{"A":"b"},"expect_status":[200]},"next_at":"2026-01-02T15:04:05Z"}`,
		`{"":0}`, `{"room_id":"1"}`, `{"retry":{"backoff_s":1.5}}`, `{"http":[]}`, `{"next_at":"x"}`, `{"nonsense":1}`, `{"na\"me":1}`, `[]`, `"x"`,
		`null`, `{}{}`, `{`, "", "\xff", `{"version":9223372036854775808}`, strings.Repeat(`{"http":`, 100),
	} {
		f.Add("application/json", []byte(body))
	}
	f.Add("application/json; charset=utf-8", []byte(`{}`))
	f.Add("text/plain", []byte(`{}`))
	f.Add("application/json;;=", []byte(`{}`))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		read := func(contentType string, body []byte) (any, error) {
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
			r.Header["Content-Type"] = []string{contentType}
			r.Body = http.MaxBytesReader(httptest.NewRecorder(), r.Body, 4096)
			return readTask(r)
		}
		d, err := read(contentType, body)
		if err != nil {
			p := problemOf(err)
			bad, named := errors.AsType[*coord.InvalidError](err)
			if p.Status < 400 || p.Status > 499 || p.Detail == "" ||
				named && (p.Status != 422 || bad.Field == "" && !bytes.Contains(body, []byte(`""`))) {
				t.Fatalf("%q %q: %+v", contentType, body, p)
			}
			text := strings.ReplaceAll(p.Detail, string(body), "")
			for _, ours := range []string{"Go ", "tasks.", "web.", "struct", "json:"} {
				if strings.Contains(text, ours) {
					t.Errorf("%q: %+v", body, p)
				}
			}
			return
		}
		written, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		again, err := read("application/json", written)
		if len(written) > 4096 {
			return
		}
		if twice, _ := json.Marshal(again); err != nil || !bytes.Equal(twice, written) {
			t.Errorf("%q is written %s, and then %s, %v", body, written, twice, err)
		}
	})
}

// FuzzQuery wants numbers of the query and of the path to be those that are there, or the error of a client.
func FuzzQuery(f *testing.F) {
	for _, text := range []string{"1", "0", "-1", "+1", "9223372036854775807", "9223372036854775808", "1_0", "0x1", "", " 1", "1&before=2", "%31", "%zz;"} {
		f.Add("before="+text, text)
	}
	f.Fuzz(func(t *testing.T, query, segment string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		n, err := number(r, "before")
		given := r.URL.Query().Get("before")
		bad, invalid := errors.AsType[*coord.InvalidError](err)
		switch {
		case err != nil && (!invalid || bad.Field != "before" || problemOf(err).Status != 422):
			t.Errorf("%q: %v", query, err)
		case err == nil && n < 1 && given != "":
			t.Errorf("%q is %d", query, n)
		case err == nil && given != "" && strings.TrimLeft(given, "+0") != strconv.FormatInt(n, 10):
			t.Errorf("%q is %d", query, n)
		}

		params := httprouter.Params{{Key: "id", Value: segment}}
		r = r.WithContext(context.WithValue(t.Context(), httprouter.ParamsKey, params))
		id, err := pathID(r, "id")
		if run, runErr := runID(r); int64(run) != id || (err == nil) != (runErr == nil) {
			t.Errorf("%q is %d, and as a run %d", segment, id, run)
		}
		if err != nil && problemOf(err).Status != http.StatusNotFound {
			t.Errorf("%q: %v", segment, err)
		}
	})
}

// FuzzBearer wants a token only from one header that says that it is one, and no other way in for a request
// that shows one.
func FuzzBearer(f *testing.F) {
	f.Add("Bearer tdm_abc", "Bearer tdm_def")
	f.Add("bearer  x ", "")
	f.Add("Bearer", "Basic Bearer")
	f.Add("Basic YTpi", "BEARER\tx")
	f.Fuzz(func(t *testing.T, one, other string) {
		of := func(values ...string) (string, bool) {
			return bearer(&http.Request{Header: http.Header{"Authorization": values}})
		}
		token, given := of(one)
		scheme, rest, _ := strings.Cut(one, " ")
		if given != strings.EqualFold(scheme, "bearer") || token != strings.TrimSpace(token) || !strings.Contains(rest, token) || !given && token != "" {
			t.Errorf("%q: got %q, %v", one, token, given)
		}
		_, otherGiven := of(other)
		if both, bothGiven := of(one, other); both != "" || bothGiven != (given || otherGiven) {
			t.Errorf("%q and %q: got %q, %v", one, other, both, bothGiven)
		}
	})
}
