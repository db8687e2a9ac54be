package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// TestEndsGoTogether: those that come while one is written are written together,
// and one that comes alone does not wait.
func TestEndsGoTogether(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(func(_ context.Context, call string) error {
			if call == "finish" {
				time.Sleep(time.Second)
			}
			return nil
		}, nil)
		o := e.options(func(_ context.Context, r *Run) error {
			time.Sleep(time.Duration(len(r.Run.Payload)) * 100 * time.Millisecond)
			return nil
		})
		o.Concurrency = 50
		var runs []coord.NewRun
		for i := range 30 {
			runs = append(runs, coord.NewRun{Kind: kind, Payload: make([]byte, i/4)})
		}
		w := e.start(o)
		ids := e.enqueue(runs...)
		time.Sleep(10 * time.Second)
		// Four end at once, the others in the second in which the first are written.
		if got := e.calls("ends of"); len(got) != 2 {
			e.Errorf("the calls were %v, want two", got)
		}
		for _, r := range ids {
			e.expect("a run", r.ID, coord.Succeeded, 1)
		}
		before := time.Now()
		alone := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(2 * time.Second)
		if r := e.expect("one that came alone", alone, coord.Succeeded, 1); r.FinishedAt.Sub(before) != time.Second {
			e.Errorf("it ended after %v", r.FinishedAt.Sub(before))
		}
		w.idle()
		w.drain()
	})
}

// TestEndsDoNotFailEachOther: one is refused by the store, one was taken away.
func TestEndsDoNotFailEachOther(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(_ context.Context, r *Run) error {
			time.Sleep(time.Second)
			if string(r.Run.Payload) == "bad" {
				return Snooze(-time.Hour)
			}
			return nil
		})
		o.Concurrency = 10
		runs := runsOf(10, coord.NewRun{Kind: kind})
		runs[3].Payload = []byte("bad")
		queued := e.enqueue(runs...)
		w := e.start(o)
		stolen := coord.Claim{Run: e.run(queued[7].ID), Token: 1}
		if err := e.Claimer().Finish(e.Context(), coord.Result{Claim: stolen, Outcome: coord.GiveUp, Error: "stolen"}); err != nil {
			e.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for i, r := range queued {
			switch i {
			case 3:
				e.expect("the bad one", r.ID, coord.Running, 1)
			case 7:
				e.expect("the stolen one", r.ID, coord.Failed, 1)
			default:
				e.expect("a run beside", r.ID, coord.Succeeded, 1)
			}
		}
		if bad, gone := e.log.lines("could not be finished"), e.log.lines("no longer held"); bad != 1 || gone != 1 {
			e.Errorf("%d lines tell of the bad one and %d of the stolen one", bad, gone)
		}
		w.idle()
		w.stop()
		time.Sleep(time.Minute)
		w.drain()
	})
}

// TestStolenRunsAreNamed: the others of the same call were finished.
func TestStolenRunsAreNamed(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(context.Context, *Run) error { time.Sleep(time.Second); return nil })
		o.Concurrency = 10
		queued := e.enqueue(runsOf(10, coord.NewRun{Kind: kind})...)
		w := e.start(o)
		var stolen []coord.Result
		for _, r := range queued[2:5] {
			stolen = append(stolen, coord.Result{Claim: coord.Claim{Run: e.run(r.ID), Token: 1}, Outcome: coord.GiveUp})
		}
		if err := e.Claimer().Finish(e.Context(), stolen...); err != nil {
			e.Fatal(err)
		}
		// All have ended when the first call is answered, however they were gathered until then.
		e.hook(func(_ context.Context, call string) error {
			if call == "finish" {
				time.Sleep(time.Millisecond)
			}
			return nil
		}, nil)
		time.Sleep(2 * time.Second)
		for i, r := range queued {
			state := coord.Succeeded
			if i >= 2 && i < 5 {
				state = coord.Failed
			}
			e.expect("a run", r.ID, state, 1)
		}
		if got := e.calls("ends of"); len(got) > 2 {
			e.Errorf("the calls were %v", got)
		}
		if n := e.log.lines("no longer held"); n < 1 || n > 2 {
			e.Errorf("%d lines tell of them", n)
		}
		w.idle()
		w.drain()
	})
}

// TestEndsWaitForTheStore: each is tried for as long as its own lease lasts.
func TestEndsWaitForTheStore(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(_ context.Context, r *Run) error {
			time.Sleep(time.Second)
			return nil
		})
		o.Concurrency = 100
		w := e.start(o)
		e.hook(func(_ context.Context, call string) error {
			if call == "finish" {
				return errAway
			}
			return nil
		}, nil)
		early := e.enqueue(runsOf(40, coord.NewRun{Kind: kind, AtMostOnce: true})...)
		time.Sleep(20 * time.Second)
		late := e.enqueue(runsOf(40, coord.NewRun{Kind: kind, AtMostOnce: true})...)
		time.Sleep(15 * time.Second)
		e.hook(nil, nil)
		time.Sleep(3 * time.Second)
		for _, r := range early {
			if got := e.expect("one whose lease has ended", r.ID, coord.Failed, 1); got.Error != coord.LostError {
				e.Errorf("its error is %q", got.Error)
			}
		}
		for _, r := range late {
			e.expect("one whose lease lasts", r.ID, coord.Succeeded, 1)
		}
		if n := e.log.lines("before their lease ended"); n < 1 || n > 2 { // the first call may hold a part of them
			e.Errorf("%d lines tell of the forty that were late", n)
		}
		if n := e.count("ends of"); n > 60 {
			e.Errorf("the store was asked %d times", n)
		}
		w.idle()
		w.drain()
	})
}

// TestLostAnswerToManyEnds: the writes happened, their answer did not come.
func TestLostAnswerToManyEnds(t *testing.T) {
	bubble(t, func(e *env) {
		lost := false
		e.hook(nil, func(_ context.Context, call string) error {
			if call == "finish" && !lost {
				lost = true
				return fmt.Errorf("test: %w", coord.ErrUnknownOutcome)
			}
			return nil
		})
		o := e.options(noop)
		o.Concurrency = 20
		queued := e.enqueue(runsOf(20, coord.NewRun{Kind: kind})...)
		w := e.start(o)
		time.Sleep(time.Second)
		for _, r := range queued {
			e.expect("a run", r.ID, coord.Succeeded, 1)
		}
		if n := e.log.lines("level=WARN"); n != 0 {
			e.Errorf("%d warnings for what went well", n)
		}
		w.idle()
		w.drain()
	})
}

// TestFinishIn ends runs in transactions of the handler.
func TestFinishIn(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		then   error // what the transaction's function returns after FinishIn
		steal  bool
		state  coord.State
		events int
		writes int
	}{
		"done":        {nil, false, coord.Succeeded, 1, 0},
		"rolled back": {GiveUp(boom), false, coord.Failed, 0, 1},
		"fenced":      {nil, true, coord.Failed, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				w := e.start(e.options(func(ctx context.Context, r *Run) error {
					if test.steal {
						err := e.Claimer().Finish(ctx, coord.Result{Claim: r.Claim, Outcome: coord.GiveUp})
						if err != nil {
							e.Error(err)
						}
					}
					return e.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
						if err := tx.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"}); err != nil {
							return err
						}
						if err := r.FinishIn(ctx, tx); err != nil {
							return err
						}
						return test.then
					})
				}))
				id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
				time.Sleep(time.Minute)
				e.expect(name, id, test.state, 1)
				events, err := e.Broadcaster().Read(e.Context(), "t", coord.Start, 10)
				if err != nil || len(events) != test.events {
					e.Errorf("there are %d events (%v), want %d", len(events), err, test.events)
				}
				if n := e.count("ends of"); n != test.writes {
					e.Errorf("the worker wrote %d ends, want %d", n, test.writes)
				}
				w.idle()
				w.drain()
			})
		})
	}
}

// TestFinishInIsNoLoss has the leases extended between the end of a run, by its handler's transaction, and the
// end of the handler, which has not lost anything.
func TestFinishInIsNoLoss(t *testing.T) {
	bubble(t, func(e *env) {
		var w *running
		w = e.start(e.options(func(ctx context.Context, r *Run) error {
			if err := e.InTx(ctx, r.FinishIn); err != nil {
				return err
			}
			time.Sleep(w.interval() * 3 / 2)
			if ctx.Err() != nil {
				e.Errorf("the handler was cancelled: %v", context.Cause(ctx))
			}
			<-ctx.Done() // the lease is not extended
			if !errors.Is(context.Cause(ctx), coord.ErrFenced) {
				e.Errorf("the handler was cancelled at last: %v", context.Cause(ctx))
			}
			return nil
		}))
		id := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(time.Minute)
		e.expect("the run", id, coord.Succeeded, 1)
		if n := e.log.lines("lease lost"); n != 0 || e.count("extend") == 0 {
			e.Errorf("a lost lease was told of %d times, of %d extensions", n, e.count("extend"))
		}
		w.idle()
		w.drain()
	})
}
