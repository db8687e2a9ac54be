package coord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var sentinels = []error{
	ErrNotFound, ErrFenced, ErrConflict, ErrExpired, ErrUnavailable, ErrUnknownOutcome, ErrBackpressure,
	ErrClosed, ErrInvalid, ErrReset, context.Canceled, errors.New("a fault of the store"),
}

// chain lists the *Errors in an error.
func chain(err error) (list []*Error) {
	for {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return list
		}
		list, err = append(list, e), e.Err
	}
}

func TestErrorsNameTheOperation(t *testing.T) {
	for _, wraps := range []int{1, 2} {
		for _, op := range operations {
			for _, cause := range sentinels {
				if decides(op.method) && (errors.Is(cause, ErrUnavailable) || errors.Is(cause, ErrBackpressure)) {
					continue
				}
				f := &fake{err: fmt.Errorf("driver: %w", cause)}
				var b Backend = f
				for range wraps {
					b = Wrap(b, Options{})
				}
				err := op.within(t.Context(), t, f, b)
				list := chain(err)
				if len(list) != 1 {
					t.Errorf("%s: %v has %d *Errors, want one", op.method, err, len(list))
					continue
				}
				if e := list[0]; e.Op != op.op || e.Key != op.key {
					t.Errorf("%s: the error names %q and %q, want %q and %q", op.method, e.Op, e.Key, op.op, op.key)
				}
				if !errors.Is(err, cause) {
					t.Errorf("%s: %v is not %v", op.method, err, cause)
				}
				if errors.Is(err, ErrUnavailable) != errors.Is(cause, ErrUnavailable) {
					t.Errorf("%s: %v must be ErrUnavailable only when its cause is", op.method, err)
				}
				made := []string{op.method}
				if repeatable[op.op] && errors.Is(cause, ErrUnknownOutcome) {
					made = append(made, op.method)
				}
				if calls := f.calls(); !slices.Equal(calls, made) {
					t.Errorf("%s: the driver was called for %v", op.method, calls)
				}
			}
		}
	}
}

func TestSuccessIsNoError(t *testing.T) {
	for _, op := range operations {
		f := &fake{}
		if err := op.within(t.Context(), t, f, Wrap(f, Options{})); err != nil {
			t.Errorf("%s: %v", op.method, err)
		}
		if calls := f.calls(); len(calls) != 1 || calls[0] != op.method {
			t.Errorf("%s: the driver was called for %v", op.method, calls)
		}
	}
}

// decides reports whether a method answers without the store when that is away.
func decides(method string) bool {
	return method == "Limiter.Allow" || method == "Limiter.AllowAll" || method == "Limiter.Peek"
}

// waits reports whether a method waits by nature.
func waits(method string) bool { return method == "Stream.Next" || method == "Calls.Wait" }

func TestDeadlineIsUnavailable(t *testing.T) {
	for _, op := range operations {
		if decides(op.method) {
			continue
		}
		f := &fake{err: fmt.Errorf("driver: %w", context.DeadlineExceeded)}
		err := op.within(t.Context(), t, f, Wrap(f, Options{}))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v is no DeadlineExceeded", op.method, err)
		}
		// A wait that ends is no outage.
		if want := !waits(op.method); errors.Is(err, ErrUnavailable) != want {
			t.Errorf("%s: %v is ErrUnavailable: %v, want %v", op.method, err, !want, want)
		}
		if len(chain(err)) != 1 {
			t.Errorf("%s: %v has not one *Error", op.method, err)
		}
	}
}

func TestTypedErrorsSurvive(t *testing.T) {
	f := &fake{err: &FencedError{Claims: []Claim{okClaim}}}
	b := Wrap(f, Options{})
	held, err := b.Claimer().Extend(t.Context(), time.Minute, okClaim, Claim{Run: Run{ID: 8}})
	fenced, ok := errors.AsType[*FencedError](err)
	if !ok || len(fenced.Claims) != 1 || fenced.Claims[0].Run.ID != 7 || len(held) != 2 {
		t.Errorf("Extend: %v, %v", held, err)
	}
	f.fail(nil)
	s, err := b.Broadcaster().Subscribe(t.Context(), okFrom)
	if err != nil {
		t.Fatal(err)
	}
	f.fail(&ResetError{Topic: "t", Reason: ResetTrimmed, Head: Position{3, 4}})
	_, err = s.Next(t.Context())
	if reset, ok := errors.AsType[*ResetError](err); !ok || reset.Head.Seq != 3 {
		t.Errorf("Next: %v", err)
	}
}

func TestErrorTexts(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&Error{Op: "claimer.task", Key: "a\"b", Err: ErrNotFound}, `coord: claimer.task "a\"b": not found`},
		{&Error{Op: "claimer.claim", Err: ErrUnavailable}, "coord: claimer.claim: store unavailable"},
		{&InvalidError{Field: "Task.Name", Reason: "must not be empty"}, "invalid Task.Name: must not be empty"},
		{&FencedError{Claims: []Claim{{Run: Run{ID: 1}}, {Run: Run{ID: 22}}}}, ErrFenced.Error() + ": run 1, 22"},
		{&ResetError{Topic: "t", Reason: ResetTrimmed}, ErrReset.Error() + `: topic "t": trimmed`},
		{ErrUnknownOutcome, "outcome unknown: store unavailable"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	if !errors.Is(ErrUnknownOutcome, ErrUnavailable) || errors.Is(ErrUnavailable, ErrUnknownOutcome) {
		t.Error("an unknown outcome must be an ErrUnavailable, and not the other way round")
	}
}

func TestClosed(t *testing.T) {
	for _, op := range operations {
		switch op.method {
		case "Backend.Close", "Stream.Next": // the first may be called again, the other is the driver's
			continue
		}
		f := &fake{}
		b := Wrap(f, Options{})
		s, err := b.Broadcaster().Subscribe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m := joined(t, b)
		err = b.InTx(t.Context(), func(ctx context.Context, tx Tx) error {
			if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
				return err
			}
			f.calls()
			return op.do(t.Context(), objects{b, s, m, tx})
		})
		if list := chain(err); !errors.Is(err, ErrClosed) || len(list) != 1 || list[0].Op != op.op {
			t.Errorf("%s after Close: %v", op.method, err)
		}
		if calls := f.calls(); len(calls) > 0 {
			t.Errorf("%s after Close reached the driver: %v", op.method, calls)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Errorf("Close, again: %v", err)
		}
	}
}

func TestInsideTx(t *testing.T) {
	for _, op := range operations {
		if op.method[:2] == "Tx" {
			continue
		}
		f, other := &fake{}, &fake{}
		b, b2 := Wrap(f, Options{}), Wrap(other, Options{})
		s, err := b.Broadcaster().Subscribe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s2, err := b2.Broadcaster().Subscribe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m, m2 := joined(t, b), joined(t, b2)
		err = b.InTx(t.Context(), func(ctx context.Context, tx Tx) error {
			f.calls()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			err := op.do(ctx, objects{b, s, m, tx})
			invalid, ok := errors.AsType[*InvalidError](err)
			if !ok || !errors.Is(err, ErrInvalid) || invalid.Field != "ctx" || len(chain(err)) != 1 || chain(err)[0].Op != op.op {
				t.Errorf("%s inside InTx: %v", op.method, err)
			}
			if calls := f.calls(); len(calls) > 0 {
				t.Errorf("%s inside InTx reached the driver: %v", op.method, calls)
			}
			// With the context from outside, and on another backend, it may be called.
			if err := op.do(ctx, objects{b2, s2, m2, nil}); err != nil {
				t.Errorf("%s of another backend inside InTx: %v", op.method, err)
			}
			if op.method != "Backend.Close" {
				if err := op.do(t.Context(), objects{b, s, m, tx}); err != nil {
					t.Errorf("%s inside InTx with the outer context: %v", op.method, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("InTx: %v", err)
		}
	}
}

func TestInTx(t *testing.T) {
	own := fmt.Errorf("own: %w", context.DeadlineExceeded)
	watch := &watcher{}
	f := &fake{}
	logs := &logBook{}
	b := Wrap(f, Options{Observer: watch, Logger: slog.New(logs)})
	err := b.InTx(t.Context(), func(_ context.Context, tx Tx) error {
		if tx.Unwrap() != any(f) {
			t.Errorf("Unwrap is %v", tx.Unwrap())
		}
		return own
	})
	if err != own { //nolint:errorlint // it must be the very same
		t.Errorf("InTx: %v, want the function's own error", err)
	}
	if seen := watch.take(); len(seen) != 1 || seen[0].Op != "backend.tx" || seen[0].Err != own { //nolint:errorlint // the very same
		t.Errorf("the observer saw %+v", seen)
	}
	if lines := logs.take(); len(lines) > 0 {
		t.Errorf("an error of the function was logged as %q", lines)
	}
	f.fail(ErrConflict)
	err = b.InTx(t.Context(), func(context.Context, Tx) error { t.Error("called"); return nil })
	if !errors.Is(err, ErrConflict) || len(chain(err)) != 1 {
		t.Errorf("InTx that can't begin: %v", err)
	}
}

// watcher keeps what an observer hears.
type watcher struct {
	mu   sync.Mutex
	seen []Observation
}

func (w *watcher) Observe(_ context.Context, o Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, o)
}

func (w *watcher) take() []Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

func TestObserver(t *testing.T) {
	for _, op := range operations {
		for _, cause := range []error{nil, ErrNotFound} {
			synctest.Test(t, func(t *testing.T) {
				f, watch := &fake{err: cause}, &watcher{}
				b := Wrap(f, Options{Observer: watch})
				f.hook = func() { time.Sleep(time.Second) }
				var err error
				seen := func() []Observation {
					err = op.within(t.Context(), t, f, b)
					return slices.DeleteFunc(watch.take(), func(o Observation) bool {
						return o.Op != op.op || op.method == "Broadcaster.Subscribe" && o.Items == 0
					})
				}()
				if waits(op.method) || op.method == "Backend.Close" {
					if len(seen) > 0 {
						t.Errorf("%s was observed: %+v", op.method, seen)
					}
					return
				}
				items := op.items
				if op.method == "Claimer.Claim" { // asks for that many; the fake has one
					items = 1
				}
				if len(seen) != 1 || seen[0].Err != err || seen[0].Items != items || seen[0].Took != time.Second { //nolint:errorlint // the very same
					t.Errorf("%s: the observer saw %+v; the caller got %v, of %d items in a second", op.method, seen, err, items)
				}
			})
		}
	}
	// What is refused is an operation too.
	watch := &watcher{}
	b := Wrap(&fake{}, Options{Observer: watch})
	_, err := b.Claimer().Task(t.Context(), "")
	if seen := watch.take(); len(seen) != 1 || !errors.Is(seen[0].Err, ErrInvalid) || !errors.Is(err, ErrInvalid) {
		t.Errorf("of an invalid request the observer saw %+v", seen)
	}
}

// logBook keeps the lines of a log.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logBook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logBook) WithGroup(string) slog.Handler            { return l }
func (l *logBook) Handle(_ context.Context, r slog.Record) error {
	var text bytes.Buffer
	_ = slog.NewTextHandler(&text, nil).Handle(context.Background(), r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Level.String()+" "+text.String())
	return nil
}

func (l *logBook) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func (l *logBook) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	lines := l.take()
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("%s: the log says %q, want lines at %q", what, lines, want)
	}
}

func TestOneLinePerOutageAndRecovery(t *testing.T) {
	f, logs := &fake{}, &logBook{}
	b := Wrap(f, Options{Logger: slog.New(logs)})
	each := func() {
		for _, op := range operations {
			if op.method[:7] != "Limiter" && op.method != "Backend.Close" && op.method[:2] != "Tx" && op.method[:6] != "Stream" && op.method[:6] != "Member" {
				_ = op.do(t.Context(), objects{b: b})
			}
		}
	}
	each()
	logs.expect(t, "at first")
	for _, cause := range []error{ErrUnavailable, ErrUnknownOutcome, context.DeadlineExceeded} {
		f.fail(fmt.Errorf("driver: %w", cause))
		each()
		each()
		logs.expect(t, "the outage", "WARN")
		// What does not ask the store says nothing about it.
		_, _ = b.Claimer().Enqueue(t.Context())
		_, _ = b.Broadcaster().Publish(t.Context())
		_, _ = b.Claimer().Task(t.Context(), "")
		_, _ = b.Tickets().Redeem(t.Context(), "short", TicketUse{})
		logs.expect(t, "during the outage")
		f.fail(nil)
		each()
		each()
		logs.expect(t, "the recovery", "INFO")
	}
	for _, cause := range []error{ErrNotFound, ErrConflict, ErrFenced, ErrExpired, context.Canceled, errors.New("fault")} {
		f.fail(cause)
		each()
		f.fail(nil)
		each()
		logs.expect(t, cause.Error())
	}
	// The caller's own deadline is no outage.
	f.fail(context.DeadlineExceeded)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := b.Ping(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Ping: %v", err)
	}
	logs.expect(t, "a deadline of the caller's")
}

// TestLateAnswersDoNotFlap has calls that began before a change and end after it.
func TestLateAnswersDoNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, logs := &fake{}, &logBook{}
		b := Wrap(f, Options{Logger: slog.New(logs)})
		var late sync.WaitGroup
		begin := func(err error) { // an answer that takes a second
			f.mu.Lock()
			f.err, f.hook = err, func() { time.Sleep(time.Second) }
			f.mu.Unlock()
			late.Go(func() { _ = b.Ping(t.Context()) })
			synctest.Wait()
			f.mu.Lock()
			f.hook = nil
			f.mu.Unlock()
		}
		begin(nil)
		time.Sleep(time.Millisecond)
		f.fail(ErrUnavailable)
		_ = b.Ping(t.Context())
		logs.expect(t, "the outage", "WARN")
		late.Wait()
		logs.expect(t, "a good answer from before the outage")

		begin(ErrUnavailable)
		time.Sleep(time.Millisecond)
		f.fail(nil)
		_ = b.Ping(t.Context())
		logs.expect(t, "the recovery", "INFO")
		late.Wait()
		logs.expect(t, "a failure from before the recovery")

		f.fail(ErrUnavailable)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { _ = b.Ping(t.Context()) })
		}
		all.Wait()
		logs.expect(t, "many at once", "WARN")
	})
}

// TestStandbyIsAway has a store that can be read while it refuses to be written to, as a standby.
func TestStandbyIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, logs := &fake{}, &logBook{}
		b := Wrap(f, Options{Logger: slog.New(logs)})
		read := func(err error) {
			time.Sleep(time.Millisecond)
			f.fail(err)
			_, _ = b.Claimer().Run(t.Context(), 1)
		}
		write := func(err error) {
			time.Sleep(time.Millisecond)
			f.fail(err)
			_ = b.Claimer().Cancel(t.Context(), 1)
		}
		write(ErrUnavailable)
		logs.expect(t, "the first refusal", "WARN")
		for range 3 {
			read(nil)
			write(ErrUnavailable)
		}
		logs.expect(t, "what the standby answers and refuses")
		write(nil)
		logs.expect(t, "the promotion", "INFO")

		read(ErrUnavailable)
		logs.expect(t, "an outage that reading meets", "WARN")
		read(nil)
		logs.expect(t, "its end", "INFO")

		read(ErrUnavailable)
		write(ErrUnavailable)
		read(nil)
		logs.expect(t, "an outage of which reading recovers first", "WARN")
		write(nil)
		logs.expect(t, "its end", "INFO")
	})
}

func TestSecretsStaySecret(t *testing.T) {
	for _, cause := range sentinels {
		f, watch := &fake{err: cause}, &watcher{}
		logs := &logBook{}
		b := Wrap(f, Options{Logger: slog.New(logs), Observer: watch})
		_, redeemErr := b.Tickets().Redeem(t.Context(), secret, TicketUse{Purpose: "ws"})
		_, shortErr := b.Tickets().Redeem(t.Context(), secret[:21], TicketUse{Purpose: "ws"})
		_, issueErr := b.Tickets().Issue(t.Context(), okTicket)
		text := fmt.Sprintf("%+v %+v %+v %+v %q", redeemErr, shortErr, issueErr, watch.take(), logs.take())
		if strings.Contains(text, secret[:10]) {
			t.Errorf("the secret is in %s", text)
		}
		if !errors.Is(shortErr, ErrNotFound) {
			t.Errorf("Redeem of what can't be a secret: %v", shortErr)
		}
	}
}

func TestDeadlinesCountFromBeforeTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.hook = func() { time.Sleep(3 * time.Second) }
		c := Wrap(f, Options{}).Claimer()
		began := time.Now()
		claims, err := c.Claim(t.Context(), ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute})
		if err != nil || len(claims) != 1 || !claims[0].Deadline.Equal(began.Add(time.Minute)) {
			t.Errorf("Claim: %+v, %v", claims, err)
		}
		began = time.Now()
		held, err := c.Extend(t.Context(), time.Hour, okClaim)
		if err != nil || len(held) != 1 || !held[0].Deadline.Equal(began.Add(time.Hour)) {
			t.Errorf("Extend: %+v, %v", held, err)
		}
		if !okClaim.Deadline.IsZero() {
			t.Error("the caller's claim was changed")
		}
	})
}

func TestListings(t *testing.T) {
	f := &fake{}
	c := Wrap(f, Options{}).Claimer()
	var names []string
	for task, err := range c.Tasks(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, task.Name)
	}
	for task, err := range c.Tasks(t.Context()) { // stops early
		names = append(names, task.Name)
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if !slices.Equal(names, []string{"a", "b", "a"}) {
		t.Errorf("the tasks are %v", names)
	}
	f.fail(ErrUnavailable)
	n := 0
	for task, err := range c.Tasks(t.Context()) {
		n++
		if !errors.Is(err, ErrUnavailable) || task.Name != "" {
			t.Errorf("Tasks: %v, %v", task, err)
		}
	}
	for _, err := range c.Runs(t.Context(), RunFilter{State: "asleep"}) {
		n++
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("Runs: %v", err)
		}
	}
	for line, err := range c.Log(t.Context(), 7, 0) {
		n++
		if !errors.Is(err, ErrUnavailable) || line.Number != 0 {
			t.Errorf("Log: %v, %v", line, err)
		}
	}
	if n != 3 {
		t.Errorf("%d errors, want one of each listing", n)
	}
}

func TestNothingToDoAsksNobody(t *testing.T) {
	f := &fake{err: ErrUnavailable}
	b := Wrap(f, Options{})
	if held, err := b.Claimer().Extend(t.Context(), time.Minute); err != nil || len(held) > 0 {
		t.Errorf("Extend: %v, %v", held, err)
	}
	if err := b.Claimer().Finish(t.Context()); err != nil {
		t.Errorf("Finish: %v", err)
	}
	if err := b.Claimer().Report(t.Context()); err != nil {
		t.Errorf("Report: %v", err)
	}
	if runs, err := b.Claimer().Enqueue(t.Context()); err != nil || len(runs) > 0 {
		t.Errorf("Enqueue: %v, %v", runs, err)
	}
	if ps, err := b.Broadcaster().Publish(t.Context()); err != nil || len(ps) > 0 {
		t.Errorf("Publish: %v, %v", ps, err)
	}
	if ds, err := b.Limiter().AllowAll(t.Context()); err != nil || len(ds) > 0 {
		t.Errorf("AllowAll: %v, %v", ds, err)
	}
	if calls := f.calls(); len(calls) > 0 {
		t.Errorf("the driver was called for %v", calls)
	}
}
