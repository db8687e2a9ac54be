package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spy stands between a worker and a store, and notes, delays and fails calls.
type spy struct {
	coord.Claimer

	mu     sync.Mutex
	claims []claimCall
	others []string        // all others, Finish with how many and their outcomes
	hints  <-chan struct{} // instead of the store's, when mute
	mute   bool
	before func(ctx context.Context, call string) error // may refuse a call
	after  func(ctx context.Context, call string) error // may lose an answer
}

type claimCall struct {
	at    time.Time
	limit int
	got   int
}

func (s *spy) hooks() (before, after func(context.Context, string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pass := func(context.Context, string) error { return nil }
	before, after = s.before, s.after
	if before == nil {
		before = pass
	}
	if after == nil {
		after = pass
	}
	return before, after
}

// hook sets what happens before, and after, each call from now on.
func (s *spy) hook(before, after func(ctx context.Context, call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *spy) note(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others = append(s.others, call)
}

// calls returns the noted ones that began with the text.
func (s *spy) calls(text string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.others), func(call string) bool { return !strings.HasPrefix(call, text) })
}

// count returns how many of the calls began with the text.
func (s *spy) count(text string) int { return len(s.calls(text)) }

func (s *spy) looks() []claimCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.claims)
}

func (s *spy) Hints() (<-chan struct{}, func()) {
	if s.mute {
		return s.hints, func() {}
	}
	return s.Claimer.Hints()
}

func (s *spy) Claim(ctx context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	before, after := s.hooks()
	began := time.Now()
	if err := before(ctx, "claim"); err != nil {
		s.looked(claimCall{began, o.Limit, 0})
		return nil, err
	}
	claims, err := s.Claimer.Claim(ctx, o)
	s.looked(claimCall{began, o.Limit, len(claims)})
	if err := after(ctx, "claim"); err != nil {
		return nil, err
	}
	return claims, err
}

func (s *spy) looked(c claimCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims = append(s.claims, c)
}

func (s *spy) NextDue(ctx context.Context, kinds ...string) (time.Duration, bool, error) {
	before, after := s.hooks()
	s.note("next")
	if err := before(ctx, "next"); err != nil {
		return 0, false, err
	}
	wait, some, err := s.Claimer.NextDue(ctx, kinds...)
	if err := after(ctx, "next"); err != nil {
		return 0, false, err
	}
	return wait, some, err
}

func (s *spy) Report(ctx context.Context, reports ...coord.Report) error {
	if len(reports) == 0 {
		return s.Claimer.Report(ctx)
	}
	before, _ := s.hooks()
	s.note(fmt.Sprint("report of ", len(reports)))
	if err := before(ctx, "report"); err != nil {
		return err
	}
	return s.Claimer.Report(ctx, reports...)
}

func (s *spy) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	before, after := s.hooks()
	s.note("extend")
	if err := before(ctx, "extend"); err != nil {
		return nil, err
	}
	held, err := s.Claimer.Extend(ctx, lease, claims...)
	if err := after(ctx, "extend"); err != nil {
		return nil, err
	}
	return held, err
}

var outcomes = map[coord.Outcome]string{
	coord.Succeed: "succeed", coord.Fail: "fail", coord.GiveUp: "give up",
	coord.Snooze: "snooze", coord.Release: "release", coord.CancelRun: "cancel",
}

func (s *spy) Finish(ctx context.Context, results ...coord.Result) error {
	before, after := s.hooks()
	s.note(fmt.Sprint("ends of ", len(results)))
	for _, r := range results {
		s.note("finish: " + outcomes[r.Outcome])
	}
	if err := before(ctx, "finish"); err != nil {
		return err
	}
	err := s.Claimer.Finish(ctx, results...)
	if err := after(ctx, "finish"); err != nil {
		return err
	}
	return err
}

// env is a store in memory and workers on it, in a synctest bubble.
type env struct {
	*testing.T
	store *memory.Store
	coord.Backend
	*spy
	log *logBook
}

func bubble(t *testing.T, test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		b := store.Open()
		test(&env{t, store, b, &spy{Claimer: b.Claimer()}, &logBook{}})
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// Claimer is that of the backend, not of the spy.
func (e *env) Claimer() coord.Claimer { return e.Backend.Claimer() }

const kind = "k"

// options are those of a worker with one handler.
func (e *env) options(h Handler) Options {
	return Options{
		Name: "one", Handlers: map[string]Handler{kind: h}, Concurrency: 4,
		Lease: 30 * time.Second, Poll: time.Second, Grace: 10 * time.Second, Logger: slog.New(e.log),
	}
}

// running is a worker at work.
type running struct {
	*Worker
	e     *env
	stop  context.CancelFunc
	ended chan struct{}
	took  time.Duration // from stop to the end of Run
}

func (e *env) start(o Options) *running { return e.startOn(e.spy, o) }

func (e *env) startOn(c coord.Claimer, o Options) *running {
	e.Helper()
	w, err := New(c, o)
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.Context())
	r := &running{Worker: w, e: e, stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		if err := w.Run(ctx); err != nil {
			e.Errorf("Run: %v", err)
		}
	}()
	synctest.Wait()
	return r
}

// drain stops the worker, waits for it, and checks that it left nothing held.
func (r *running) drain() {
	r.e.Helper()
	began := time.Now()
	r.stop()
	<-r.ended
	r.took = time.Since(began)
	if n := r.Running(); n != 0 {
		r.e.Errorf("after Run %d handlers are at work", n)
	}
}

// idle checks that all slots are back.
func (r *running) idle() {
	r.e.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken != 0 || len(r.running) != 0 || len(r.ends) != 0 || r.unwritten != 0 || r.flushing {
		r.e.Errorf("%d slots are taken, %d handlers at work, %d ends unwritten, %d to come, flushing %v; want none",
			r.taken, len(r.running), r.unwritten, len(r.ends), r.flushing)
	}
}

// unwrittenEnds is how many runs have ended whose end the store does not have yet.
func (r *running) unwrittenEnds() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unwritten
}

func (e *env) enqueue(runs ...coord.NewRun) []coord.Run {
	e.Helper()
	queued, err := e.Claimer().Enqueue(e.Context(), runs...)
	if err != nil {
		e.Fatal(err)
	}
	return queued
}

// run returns what became of a run.
func (e *env) run(id coord.RunID) coord.Run {
	e.Helper()
	r, err := e.Claimer().Run(e.Context(), id)
	if err != nil {
		e.Fatal(err)
	}
	return r
}

func (e *env) expect(what string, id coord.RunID, state coord.State, attempt int) coord.Run {
	e.Helper()
	r := e.run(id)
	if r.State != state || r.Attempt != attempt {
		e.Errorf("%s: the run is %s in attempt %d, want %s in %d", what, r.State, r.Attempt, state, attempt)
	}
	return r
}

// logBook keeps the lines of a log.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logBook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logBook) WithGroup(string) slog.Handler            { return l }
func (l *logBook) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slog.NewTextHandler(&l.text, nil).Handle(ctx, r)
}

// lines counts those that hold a text.
func (l *logBook) lines(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
