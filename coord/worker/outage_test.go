package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// TestLooksAgainAfterManyEnds has as many ends unwritten as there are slots, so that the worker looks for
// nothing until the store takes them.
func TestLooksAgainAfterManyEnds(t *testing.T) {
	for name, test := range map[string]struct {
		claims bool          // work all the time
		poll   time.Duration // far away, or not
	}{
		"nothing works":        {false, time.Second},
		"ends are not written": {true, time.Second},
		"ends are not written, and the poll is far away": {true, time.Hour}, // a hint that comes meanwhile counts
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				hints := make(chan struct{}, 1)
				e.mute, e.hints = true, hints
				o := e.options(func(_ context.Context, r *Run) error {
					time.Sleep(time.Duration(len(r.Run.Payload)) * time.Second)
					return nil
				})
				o.Concurrency, o.Poll = 2, test.poll
				e.enqueue(coord.NewRun{Kind: kind, Payload: make([]byte, 2)}, coord.NewRun{Kind: kind, Payload: make([]byte, 4)})
				w := e.start(o)
				time.Sleep(time.Second)
				e.hook(func(_ context.Context, call string) error {
					if call == "finish" || call == "claim" && !test.claims {
						return errAway
					}
					return nil
				}, nil)
				time.Sleep(2 * time.Second)
				poke(hints) // while a slot is free, and its run's end is not written
				time.Sleep(7 * time.Second)
				soon := e.enqueue(coord.NewRun{Kind: kind})[0].ID
				poke(hints) // while both are
				time.Sleep(time.Second)
				e.hook(nil, nil)
				time.Sleep(5 * time.Second)
				e.expect("a run that was queued meanwhile", soon, coord.Succeeded, 1)
				late := e.enqueue(coord.NewRun{Kind: kind, Delay: test.poll})[0].ID
				time.Sleep(2*test.poll + time.Second)
				e.expect("a run that fell due later", late, coord.Succeeded, 1)
				w.idle()
				w.drain()
			})
		})
	}
}

// TestHearsWhileATaskCanNotFire has claims fail for as long as there is no run, and polls far apart.
func TestHearsWhileATaskCanNotFire(t *testing.T) {
	bubble(t, func(e *env) {
		none := errors.New("a task whose zone is not known here")
		o := e.options(noop)
		o.Poll = time.Hour
		e.hook(nil, func(_ context.Context, call string) error {
			if claims := e.looks(); call == "claim" && claims[len(claims)-1].got == 0 {
				return none
			}
			return nil
		})
		w := e.start(o)
		time.Sleep(10 * time.Hour)
		before := len(e.looks())
		soon := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		time.Sleep(time.Second)
		e.expect("a run that a hint told of", soon, coord.Succeeded, 1)
		if n := len(e.looks()) - before; n > 8 { // the pauses begin anew
			e.Errorf("a run made %d looks", n)
		}
		w.idle()
		w.drain()
	})
}

// TestExtendsSoonAfterAnOutage has leases that an outage leaves enough time to be extended.
func TestExtendsSoonAfterAnOutage(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(ctx context.Context, r *Run) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		long := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		w := e.start(o)
		time.Sleep(9 * time.Second)
		e.hook(func(_ context.Context, call string) error { return errAway }, nil)
		time.Sleep(15 * time.Second) // of 30 s that the lease has
		e.hook(nil, nil)
		time.Sleep(time.Minute)
		e.expect("a run that was longer than the outage", long, coord.Succeeded, 1)
		w.drain()
	})
}

// TestCancelThatIsHeardInAnOutage has the one extension fail that would have told what was heard.
func TestCancelThatIsHeardInAnOutage(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options(func(ctx context.Context, r *Run) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		long := e.enqueue(coord.NewRun{Kind: kind})[0].ID
		w := e.start(o)
		time.Sleep(time.Second)
		e.hook(func(_ context.Context, call string) error {
			if call == "extend" {
				return errAway
			}
			return nil
		}, nil)
		if err := e.Claimer().Cancel(e.Context(), long); err != nil {
			e.Fatal(err)
		}
		time.Sleep(time.Second)
		e.hook(nil, nil)
		time.Sleep(2 * time.Second)
		e.expect("a run that was cancelled", long, coord.Cancelled, 1)
		w.drain()
	})
}
