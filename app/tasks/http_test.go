package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// service is what tasks call. It keeps what was asked.
type service struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*http.Request
}

func serve(t *testing.T, answer http.HandlerFunc) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func texts(lines []tasks.Line) []string {
	var list []string
	for _, line := range lines {
		list = append(list, line.Text)
	}
	return list
}

func TestRequest(t *testing.T) {
	r := newRig(t, loopback)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "all\r\nis well\n") })
	d := r.request("call", s.URL+"/path?token=secret")
	d.Report = tasks.ReportAlways
	d.HTTP.Method, d.HTTP.Body, d.HTTP.Header = "POST", "hello", map[string]string{"X-Key": "secret"}
	r.create(t, d)
	w := r.watch(t, "call")
	r.work(t)
	r.runNow(t, "call")
	run := w.until(coord.Succeeded)
	if run.Progress != 100 || run.Kind != tasks.KindHTTP || run.Attempt != 1 {
		t.Errorf("got %+v", run)
	}
	lines := texts(r.log(t, run.ID))
	if len(lines) != 4 || lines[0] != "POST "+s.URL || !strings.HasPrefix(lines[1], "200 OK after ") ||
		!strings.HasSuffix(lines[1], ", 13 bytes") || lines[2] != "all" || lines[3] != "is well" {
		t.Errorf("the log is %q", lines)
	}
	asked := s.requests()
	if len(asked) != 1 || asked[0].Header.Get("X-Key") != "secret" || asked[0].Header.Get("Idempotency-Key") == "" {
		t.Fatalf("asked %v", asked)
	}
	if got := r.texts(t); len(got) != 1 || !strings.HasPrefix(got[0], "POST "+s.URL+": 200 OK after ") {
		t.Errorf("posted %q", got)
	}
	if told := fmt.Sprint(lines, r.texts(t)); strings.Contains(told, "secret") {
		t.Errorf("told a secret: %s", told)
	}
}

// Attempts of one run have one key, another run has another, and a key that the task
// gives counts.
func TestAttemptsHaveOneKey(t *testing.T) {
	r := newRig(t, loopback)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "out of order", http.StatusBadGateway) })
	d := r.request("call", s.URL)
	d.Retry = tasks.Retry{MaxAttempts: 2, BackoffS: 50} // so that the second attempt waits for the clock to be put forward
	r.create(t, d)
	w := r.watch(t, "call")
	r.work(t)
	for range 2 {
		r.runNow(t, "call")
		w.until(coord.Queued) // by runNow
		again := w.until(coord.Queued)
		if again.Attempt != 1 || !strings.Contains(again.Error, "502 Bad Gateway") {
			t.Errorf("after the first attempt: got %+v", again)
		}
		if got := len(r.texts(t)); got != len(s.requests())/2 {
			t.Errorf("%d were posted after %d requests: a failure is told when no attempt is left", got, len(s.requests()))
		}
		r.advance(time.Minute)
		run := w.until(coord.Failed)
		lines := r.log(t, run.ID)
		if got := texts(lines); len(got) != 8 || got[2] != "out of order" || got[3] != run.Error || got[4] != got[0] ||
			lines[3].Attempt != 1 || lines[4].Attempt != 2 {
			t.Errorf("the log is %q", got)
		}
	}
	if got := r.texts(t); len(got) != 2 || !strings.HasPrefix(got[0], "failed: GET "+s.URL+": expected the status 200 to 299") {
		t.Errorf("posted %q", got)
	}
	var keys []string
	for _, q := range s.requests() {
		keys = append(keys, q.Header.Get("Idempotency-Key"))
	}
	if len(keys) != 4 || keys[0] == "" || keys[0] != keys[1] || keys[2] != keys[3] || keys[0] == keys[2] {
		t.Errorf("the keys are %q", keys)
	}

	own := r.request("own", s.URL)
	own.HTTP.Header, own.Retry = map[string]string{"idempotency-key": "mine"}, tasks.Retry{MaxAttempts: 1}
	r.create(t, own)
	w = r.watch(t, "own")
	r.runNow(t, "own")
	w.until(coord.Failed)
	if q := s.requests()[4]; q.Header.Get("Idempotency-Key") != "mine" {
		t.Errorf("the key is %q", q.Header["Idempotency-Key"])
	}
}

func TestForbiddenAddressIsFinal(t *testing.T) {
	r := newRig(t)
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	r.create(t, r.request("call", s.URL))
	w := r.watch(t, "call")
	r.work(t)
	r.runNow(t, "call")
	run := w.until(coord.Failed)
	if run.Attempt != 1 || run.MaxAttempts != 3 || !strings.Contains(run.Error, "127.0.0.1 is not allowed for tasks: it is loopback") {
		t.Errorf("got %+v", run)
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("asked %v", got)
	}
	if got := r.texts(t); len(got) != 1 || !strings.Contains(got[0], "is not allowed for tasks") {
		t.Errorf("posted %q", got)
	}
}

func TestWhatIsReported(t *testing.T) {
	r := newRig(t, loopback)
	s := serve(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/bad" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	r.work(t)
	posted := 0
	for _, test := range []struct {
		report tasks.Report
		path   string
		posts  int
	}{
		{tasks.ReportNever, "/bad", 0},
		{tasks.ReportNever, "/", 0},
		{tasks.ReportFailures, "/bad", 1},
		{tasks.ReportFailures, "/", 0},
		{tasks.ReportAlways, "/bad", 1},
		{tasks.ReportAlways, "/", 1},
	} {
		name := string(test.report) + strings.ReplaceAll(test.path, "/", "-")
		d := r.request(name, s.URL+test.path)
		d.Report, d.Retry.MaxAttempts = test.report, 1
		if test.report == tasks.ReportNever {
			d.RoomID = 0 // none is needed
		}
		r.create(t, d)
		w := r.watch(t, name)
		r.runNow(t, name)
		state := coord.Succeeded
		if test.path == "/bad" {
			state = coord.Failed
		}
		w.until(state)
		if posted += test.posts; len(r.texts(t)) != posted {
			t.Errorf("%s: posted %q", name, r.texts(t))
		}
	}
}

// hanging answers nothing until the asker gives up.
func hanging(t *testing.T) (s *service, asked chan struct{}) {
	t.Helper()
	asked = make(chan struct{}, 10)
	return serve(t, func(_ http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		<-q.Context().Done()
	}), asked
}

func TestRequestIsCancelled(t *testing.T) {
	r := newRig(t, loopback)
	s, asked := hanging(t)
	r.create(t, r.request("call", s.URL))
	w := r.watch(t, "call")
	r.work(t)
	queued := r.runNow(t, "call")
	<-asked
	run, err := r.tasks.Cancel(t.Context(), r.admin, queued.ID)
	if err != nil || !run.CancelRequested || run.State != coord.Running && run.State != coord.Cancelled { // by now
		t.Errorf("got %+v, %v", run, err)
	}
	if run := w.until(coord.Cancelled); run.ID != queued.ID || run.Error != "" {
		t.Errorf("heard %+v", run)
	}
	if run, err := r.tasks.Run(t.Context(), r.admin, queued.ID); err != nil || run.Error != "" {
		t.Errorf("got %+v, %v", run, err)
	}
	if got := texts(r.log(t, queued.ID)); len(got) != 2 || got[1] != "GET "+s.URL+": the run was cancelled" {
		t.Errorf("the log is %q", got)
	}
	if got := r.texts(t); len(got) != 0 {
		t.Errorf("posted %q", got)
	}
}

// What was done is told even when the store is away for a moment.
func TestReportOutlastsAnOutage(t *testing.T) {
	r := newRig(t, loopback)
	s := serve(t, func(http.ResponseWriter, *http.Request) { r.outages.Store(2) })
	d := r.request("call", s.URL)
	d.Report = tasks.ReportAlways
	r.create(t, d)
	w := r.watch(t, "call")
	r.work(t)
	r.runNow(t, "call")
	w.until(coord.Succeeded)
	if got := r.texts(t); len(got) != 1 {
		t.Errorf("posted %q", got)
	}
	if got := len(s.requests()); got != 1 {
		t.Errorf("%d requests were made", got)
	}
}

// What may not begin twice has failed when its replica stops, and that is told.
func TestCutOffIsReported(t *testing.T) {
	r := newRig(t, loopback)
	s, asked := hanging(t)
	failure := "GET " + s.URL + ": cut off, as this replica stops"
	told := []string{}
	for _, once := range []bool{true, false} {
		name := fmt.Sprint("once is ", once)
		d := r.request(name, s.URL)
		d.AtMostOnce, d.Retry.MaxAttempts = once, 2
		r.create(t, d)
		r.runNow(t, name)
		run := r.claim(t, "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-asked
			cancel(worker.ErrDraining)
		}()
		err := r.tasks.Handlers()[tasks.KindHTTP](ctx, run)
		if once {
			told = append(told, "failed: "+failure)
		}
		if got := r.texts(t); errors.Is(err, worker.ErrFinished) != once || !slices.Equal(got, told) {
			t.Errorf("%s: got %v, and %q is posted", name, err, got)
		}
		stored := must(r.tasks.Run(t.Context(), r.admin, run.Run.ID))
		if stored.State.Ended() != once || once && stored.Error != failure {
			t.Errorf("%s: got %+v", name, stored)
		}
	}
}

// A handler knows its own run, so nothing is asked of the store only to tell of it.
func TestTellingCostsNoLookUp(t *testing.T) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) { testTelling(t, open(t)) })
	}
}

func testTelling(t *testing.T, r *rig) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	extended := 0
	r.tasks = r.on(spied{Backend: r.backend, extend: func() { extended++ }}, loopback)
	d := r.request("call", s.URL)
	d.Report = tasks.ReportAlways
	r.create(t, d)
	r.create(t, r.message("post"))
	for _, name := range []string{"call", "post"} {
		r.runNow(t, name)
		w, run := r.watch(t, name), r.claim(t, "a")
		if err := r.tasks.Handlers()[run.Run.Kind](t.Context(), run); !errors.Is(err, worker.ErrFinished) {
			t.Fatal(err)
		}
		told, stored := w.until(coord.Succeeded), must(r.tasks.Run(t.Context(), r.admin, run.Run.ID))
		if stored.FinishedAt.Sub(told.FinishedAt).Abs() > time.Second {
			t.Errorf("%s: ended at %v, heard %v", name, stored.FinishedAt, told.FinishedAt)
		}
		if told.FinishedAt = stored.FinishedAt; told != stored {
			t.Errorf("%s: heard %+v, stored is %+v", name, told, stored)
		}
		if lines := r.log(t, run.Run.ID); len(lines) != len(w.lines) || len(lines) != told.LogLines {
			t.Errorf("%s: %d lines are stored, %d were heard", name, len(lines), len(w.lines))
		}
	}
	if extended != 0 {
		t.Errorf("leases were extended %d times", extended)
	}
}

func TestRunsOwnTimeIsOver(t *testing.T) {
	r := newRig(t, loopback)
	s, _ := hanging(t)
	d := r.request("call", s.URL)
	d.TimeoutS, d.Retry.MaxAttempts = 1, 1
	r.create(t, d)
	w := r.watch(t, "call")
	r.work(t)
	r.runNow(t, "call")
	run := w.until(coord.Failed)
	if want := "GET " + s.URL + ": the run's time of 1s was over"; run.Error != want {
		t.Errorf("got %q, want %q", run.Error, want)
	}
	if got := texts(r.log(t, run.ID)); len(got) != 2 || got[1] != run.Error {
		t.Errorf("the log is %q", got)
	}
	if got := r.texts(t); len(got) != 1 || got[0] != "failed: "+run.Error {
		t.Errorf("posted %q", got)
	}
}

func TestExcerptOfAnAnswer(t *testing.T) {
	r := newRig(t, loopback)
	s := serve(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = fmt.Fprint(w, map[string]string{
			"/empty":  "",
			"/binary": "a\x00b",
			"/latin":  "caf\xe9",
			"/long":   strings.Repeat("é", 3000) + "end",
			"/odd":    "x" + strings.Repeat("é", 3000), // where the cut is in the middle of a character
			"/lines":  strings.Repeat("\n", 2000) + "end",
		}[q.URL.Path])
	})
	r.work(t)
	for path, want := range map[string][]string{
		"/empty": {}, "/binary": {}, "/latin": {},
		"/long":  {strings.Repeat("é", 1024), "…"},
		"/odd":   {"x" + strings.Repeat("é", 1023), "…"},
		"/lines": append(make([]string, 100), "…"),
	} {
		name := path[1:]
		d := r.request(name, s.URL+path)
		d.Report = tasks.ReportNever
		r.create(t, d)
		w := r.watch(t, name)
		r.runNow(t, name)
		run := w.until(coord.Succeeded)
		if got := texts(r.log(t, run.ID))[2:]; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
