package await

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// desk is a store of calls that counts the looks at it.
type desk struct {
	mu    sync.Mutex
	calls map[coord.CallID]coord.CallState
	err   error
	hold  chan struct{} // not nil: a look that has read waits for it
	looks [][]coord.CallID
}

func (d *desk) look(ctx context.Context, ids []coord.CallID) (ended []coord.Call, missing []coord.CallID, err error) {
	d.mu.Lock()
	slices.Sort(ids)
	d.looks = append(d.looks, ids)
	for _, id := range ids {
		switch state, there := d.calls[id]; {
		case !there:
			missing = append(missing, id)
		case state != coord.CallOpen:
			ended = append(ended, coord.Call{ID: id, State: state})
		}
	}
	err, hold := d.err, d.hold
	d.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return ended, missing, err
}

func (d *desk) set(id coord.CallID, state coord.CallState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[id] = state
}

// seen returns the looks since it was last asked.
func (d *desk) seen() [][]coord.CallID {
	d.mu.Lock()
	defer d.mu.Unlock()
	looks := d.looks
	d.looks = nil
	return looks
}

const poll = time.Second

// run tests with a hub that runs, in a bubble.
func run(t *testing.T, test func(t *testing.T, d *desk, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{calls: make(map[coord.CallID]coord.CallState)}
		h := New(poll, d.look)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { h.Run(ctx) })
		test(t, d, h)
		h.Close()
		stop()
		running.Wait()
		synctest.Wait()
		if len(h.waiting) > 0 {
			t.Errorf("in the end %d calls are waited for", len(h.waiting))
		}
	})
}

type result struct {
	call coord.Call
	err  error
}

func wait(ctx context.Context, h *Hub, id coord.CallID) <-chan result {
	out := make(chan result, 1)
	go func() {
		c, err := h.Wait(ctx, id)
		out <- result{c, err}
	}()
	synctest.Wait()
	return out
}

func still(t *testing.T, out <-chan result) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-out:
		t.Fatalf("Wait returned %+v", r)
	default:
	}
}

func TestAllWhoWaitShareALook(t *testing.T) {
	run(t, func(t *testing.T, d *desk, h *Hub) {
		d.set("a", coord.CallOpen)
		d.set("b", coord.CallOpen)
		a1, a2, b := wait(t.Context(), h, "a"), wait(t.Context(), h, "a"), wait(t.Context(), h, "b")
		d.seen()
		d.set("a", coord.CallAnswered)
		h.Wake()
		for _, out := range []<-chan result{a1, a2} {
			if r := <-out; r.err != nil || r.call.State != coord.CallAnswered {
				t.Errorf("Wait returned %+v", r)
			}
		}
		still(t, b)
		if looks := d.seen(); len(looks) != 1 || !slices.Equal(looks[0], []coord.CallID{"a", "b"}) {
			t.Errorf("the looks were %v", looks)
		}
		d.set("b", coord.CallExpired) // and nobody rings
		if r := <-b; r.call.State != coord.CallExpired {
			t.Errorf("Wait returned %+v", r)
		}
		if looks := d.seen(); len(looks) != 1 {
			t.Errorf("the looks until the next poll were %v", looks)
		}
		time.Sleep(time.Minute)
		h.Wake()
		synctest.Wait()
		if looks := d.seen(); len(looks) > 0 {
			t.Errorf("while nobody waited the looks were %v", looks)
		}
	})
}

func TestPollsWhileSomebodyWaits(t *testing.T) {
	run(t, func(t *testing.T, d *desk, h *Hub) {
		time.Sleep(10 * poll)
		d.set("a", coord.CallOpen)
		ctx, cancel := context.WithCancel(t.Context())
		a := wait(ctx, h, "a")
		d.seen()
		time.Sleep(10 * poll)
		if n := len(d.seen()); n < 10 || n > 20 {
			t.Errorf("%d looks in 10 poll intervals", n)
		}
		still(t, a)
		cancel()
		if r := <-a; !errors.Is(r.err, context.Canceled) {
			t.Errorf("Wait returned %+v", r)
		}
	})
}

// A look that began before a call was opened does not know of it.
func TestWhoComesDuringALookIsAnsweredByTheNext(t *testing.T) {
	run(t, func(t *testing.T, d *desk, h *Hub) {
		d.set("a", coord.CallOpen)
		d.hold = make(chan struct{})
		a := wait(t.Context(), h, "a")
		d.set("a", coord.CallAnswered)
		again := wait(t.Context(), h, "a")
		d.set("b", coord.CallAnswered)
		b := wait(t.Context(), h, "b")
		still(t, b)
		close(d.hold)
		for _, out := range []<-chan result{a, again, b} {
			if r := <-out; r.err != nil || r.call.State != coord.CallAnswered {
				t.Errorf("Wait returned %+v", r)
			}
		}
	})
}

func TestErrorsOfALook(t *testing.T) {
	run(t, func(t *testing.T, d *desk, h *Hub) {
		if r := <-wait(t.Context(), h, "missing"); !errors.Is(r.err, coord.ErrNotFound) {
			t.Errorf("Wait for what is not there returned %+v", r)
		}
		d.set("a", coord.CallOpen)
		a := wait(t.Context(), h, "a")
		d.mu.Lock()
		d.err = coord.ErrUnavailable
		d.mu.Unlock()
		if r := <-a; !errors.Is(r.err, coord.ErrUnavailable) {
			t.Errorf("Wait during an outage returned %+v", r)
		}
		d.mu.Lock()
		d.err, d.hold = nil, make(chan struct{})
		d.mu.Unlock()
		began := time.Now()
		r := <-wait(t.Context(), h, "a")
		if !errors.Is(r.err, coord.ErrUnavailable) || errors.Is(r.err, context.DeadlineExceeded) || time.Since(began) > lookTimeout+poll {
			t.Errorf("Wait for a silent store returned %+v after %v", r, time.Since(began))
		}
		a = wait(t.Context(), h, "a")
		h.Close()
		if r := <-a; !errors.Is(r.err, coord.ErrClosed) {
			t.Errorf("Wait when the hub was closed returned %+v", r)
		}
	})
}
