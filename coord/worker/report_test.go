package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// lines are the log lines of a run.
func (e *env) lines(id coord.RunID) (texts []string) {
	e.Helper()
	for line, err := range e.Claimer().Log(e.Context(), id, 0) {
		if err != nil {
			e.Fatal(err)
		}
		texts = append(texts, line.Text)
	}
	return texts
}

func TestReports(t *testing.T) {
	bubble(t, func(e *env) {
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			for i := range 4 {
				if err := r.Progress(ctx, 25*(i+1)); err != nil {
					return err
				}
				if err := r.Log(ctx, "part %d of %s", i+1, "four"); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return nil
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(1500 * time.Millisecond)
		if r := e.run(id); r.Progress != 50 || r.LogLines != 2 {
			e.Errorf("half-way the progress is %d and the lines are %d", r.Progress, r.LogLines)
		}
		time.Sleep(5 * time.Second)
		if r := e.expect("the run", id, coord.Succeeded, 1); r.Progress != 100 {
			e.Errorf("in the end the progress is %d", r.Progress)
		}
		if got := e.lines(id); len(got) != 4 || got[3] != "part 4 of four" {
			e.Errorf("the log is %q", got)
		}
		w.drain()
	})
}

// TestReportsGoTogether has many handlers report at once, some of them several
// lines, to a store that takes its time.
func TestReportsGoTogether(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(func(_ context.Context, call string) error {
			if call == "report" {
				time.Sleep(time.Second)
			}
			return nil
		}, nil)
		o := e.options(func(ctx context.Context, r *Run) error {
			var all sync.WaitGroup
			for i := range 3 {
				all.Go(func() {
					if err := errors.Join(r.Log(ctx, "line %d", i), r.Progress(ctx, 10)); err != nil {
						e.Error(err)
					}
				})
			}
			all.Wait()
			return nil
		})
		o.Concurrency = 50
		w := e.start(o)
		queued := e.enqueue(runsOf(50, coord.NewRun{Kind: kind})...)
		time.Sleep(20 * time.Second)
		for _, r := range queued {
			got := e.lines(r.ID)
			slices.Sort(got)
			if want := []string{"line 0", "line 1", "line 2"}; !slices.Equal(got, want) {
				e.Errorf("the log of run %d is %q", r.ID, got)
			}
			if r := e.run(r.ID); r.Progress != 10 {
				e.Errorf("the progress of run %d is %d", r.ID, r.Progress)
			}
		}
		if n := e.count("report of"); n > 5 {
			e.Errorf("300 reports took %d calls: %v", n, e.calls("report"))
		}
		w.idle()
		w.drain()
	})
}

// TestFencedReport has two runs report together, of which one was taken away.
func TestFencedReport(t *testing.T) {
	bubble(t, func(e *env) {
		start := make(chan struct{})
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			time.Sleep(time.Second)
			err := r.Log(ctx, "first")
			stolen := string(r.Run.Payload) == "stolen"
			if stolen != errors.Is(err, coord.ErrFenced) {
				e.Errorf("stolen: %v, the error of Log is %v", stolen, err)
			}
			if fenced, ok := errors.AsType[*coord.FencedError](err); ok && (len(fenced.Claims) != 1 || fenced.Claims[0].Run.ID != r.Run.ID) {
				e.Errorf("the error names %v", fenced)
			}
			if err != nil {
				if !errors.Is(context.Cause(ctx), coord.ErrFenced) {
					e.Errorf("the cause is %v", context.Cause(ctx))
				}
				if err := r.Progress(ctx, 10); !errors.Is(err, coord.ErrFenced) {
					e.Errorf("after the loss Progress returns %v", err)
				}
				return err
			}
			<-start
			return nil
		}))
		first := e.enqueue(coord.NewRun{Kind: kind}, coord.NewRun{Kind: kind, Payload: []byte("stolen")}, coord.NewRun{Kind: kind})
		synctest.Wait()
		claim := coord.Claim{Run: e.run(first[1].ID), Token: 1}
		if err := e.Claimer().Finish(e.Context(), coord.Result{Claim: claim, Outcome: coord.GiveUp}); err != nil {
			e.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		close(start)
		synctest.Wait()
		e.expect("one beside", first[0].ID, coord.Succeeded, 1)
		e.expect("one beside", first[2].ID, coord.Succeeded, 1)
		if n := len(e.lines(first[1].ID)) + 2 - len(e.lines(first[0].ID)) - len(e.lines(first[2].ID)); n != 0 {
			e.Errorf("the logs are %q, %q, %q", e.lines(first[0].ID), e.lines(first[1].ID), e.lines(first[2].ID))
		}
		if n := e.count("finish"); n != 2 {
			e.Errorf("the calls were %v", e.calls(""))
		}
		w.idle()
		w.drain()
	})
}

func TestReportsThatCannotBe(t *testing.T) {
	bubble(t, func(e *env) {
		away := make(chan struct{})
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			if err := r.Progress(ctx, 101); !errors.Is(err, coord.ErrInvalid) {
				e.Errorf("a progress of 101: %v", err)
			}
			if err := r.Log(ctx, "%s", strings.Repeat("long", 2000)); err != nil {
				e.Errorf("a long line: %v", err)
			}
			err := e.InTx(ctx, func(ctx context.Context, _ coord.Tx) error { return r.Log(ctx, "inside") })
			if !errors.Is(err, coord.ErrInvalid) {
				e.Errorf("inside a transaction: %v", err)
			}
			close(away)
			time.Sleep(time.Second)
			if err := r.Log(ctx, "away"); !errors.Is(err, coord.ErrUnavailable) {
				e.Errorf("during an outage: %v", err)
			}
			return nil
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		<-away
		e.hook(func(_ context.Context, call string) error {
			if call == "report" {
				return errAway
			}
			return nil
		}, nil)
		time.Sleep(10 * time.Second)
		e.expect("the run", id, coord.Succeeded, 1)
		if got := e.lines(id); len(got) != 1 || len(got[0]) != coord.MaxLogLine {
			e.Errorf("%d lines are kept", len(got))
		}
		w.drain()
	})
}

// TestReportInsideATransaction must not join those that wait for the store, which
// waits for the transaction.
func TestReportInsideATransaction(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(func(_ context.Context, call string) error {
			if call == "report" {
				time.Sleep(time.Second)
			}
			return nil
		}, nil)
		w := e.start(e.options(func(ctx context.Context, r *Run) error {
			var others sync.WaitGroup
			for range 2 {
				others.Go(func() {
					if err := r.Log(ctx, "outside"); err != nil {
						e.Error(err)
					}
				})
			}
			synctest.Wait()
			err := e.InTx(ctx, func(ctx context.Context, _ coord.Tx) error { return r.Log(ctx, "inside") })
			if !errors.Is(err, coord.ErrInvalid) {
				e.Errorf("the error is %v", err)
			}
			others.Wait()
			return nil
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(5 * time.Second)
		e.expect("the run", id, coord.Succeeded, 1)
		if got := e.lines(id); !slices.Equal(got, []string{"outside", "outside"}) {
			e.Errorf("the log is %q", got)
		}
		w.drain()
	})
}

func TestRunOfATest(t *testing.T) {
	r := &Run{Claim: coord.Claim{Run: coord.Run{ID: 1}}}
	if err := errors.Join(r.Log(t.Context(), "nowhere"), r.Progress(t.Context(), 50)); err != nil {
		t.Error(err)
	}
}

type parcel struct {
	To     string
	Weight float64
}

func TestKind(t *testing.T) {
	const send Kind[parcel] = "send"
	bubble(t, func(e *env) {
		got := make(chan string, 1)
		o := e.options(nil)
		o.Handlers = map[string]Handler{string(send): send.Handler(func(_ context.Context, r *Run, p parcel) error {
			got <- fmt.Sprint(r.Run.Kind, " ", p)
			return nil
		})}
		w := e.start(o)
		run, err := send.Run(parcel{"Zoë", 1.5})
		if err != nil {
			e.Fatal(err)
		}
		good := e.enqueue(run)[0].ID
		if text := <-got; text != "send {Zoë 1.5}" {
			e.Errorf("the handler got %s", text)
		}
		bad := e.enqueue(coord.NewRun{Kind: string(send), Payload: []byte(`{"Weight":"heavy"}`)}, coord.NewRun{Kind: string(send)})
		time.Sleep(time.Minute)
		e.expect("a run with its payload", good, coord.Succeeded, 1)
		for _, b := range bad {
			if r := e.expect("one with another", b.ID, coord.Failed, 1); !strings.Contains(r.Error, "payload can't be read") {
				e.Errorf("its error is %q", r.Error)
			}
		}
		w.drain()
	})
	if _, err := Kind[func()]("f").Run(func() {}); err == nil || !strings.Contains(err.Error(), `"f"`) {
		t.Errorf("a function as the payload: %v", err)
	}
}
