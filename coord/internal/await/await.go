// Package await lets all who wait for calls on a replica share one look at the
// store.
package await

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Look returns, of the calls that are asked for, those that have ended, and the
// ids of those that do not exist.
type Look func(ctx context.Context, ids []coord.CallID) (ended []coord.Call, missing []coord.CallID, err error)

// Hub is safe for concurrent use. Nothing is looked at while nobody waits.
type Hub struct {
	look   Look
	poll   time.Duration
	wake   chan struct{} // one slot
	closed chan struct{}
	close  sync.Once

	mu      sync.Mutex
	waiting map[coord.CallID][]*waiter
}

// waiter is one caller of Wait.
type waiter struct {
	id   coord.CallID
	call coord.Call
	err  error
	done chan struct{} // closed when call and err are set
}

// lookTimeout is how long a store may be silent before those who wait are told.
const lookTimeout = 10 * time.Second

// New returns a hub that looks when it is woken, and besides at least once in a
// poll interval.
func New(poll time.Duration, look Look) *Hub {
	return &Hub{
		look: look, poll: poll, wake: make(chan struct{}, 1), closed: make(chan struct{}),
		waiting: make(map[coord.CallID][]*waiter),
	}
}

// Wake makes the hub look at once, if anybody waits.
func (h *Hub) Wake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Close ends every Wait with [coord.ErrClosed]. It may be called again.
func (h *Hub) Close() { h.close.Do(func() { close(h.closed) }) }

// Wait is [coord.Calls.Wait]. The look that answers began after it was called.
func (h *Hub) Wait(ctx context.Context, id coord.CallID) (coord.Call, error) {
	w := &waiter{id: id, done: make(chan struct{})}
	h.mu.Lock()
	h.waiting[id] = append(h.waiting[id], w)
	h.mu.Unlock()
	defer h.leave(w)
	h.Wake()
	select {
	case <-w.done:
		return w.call, w.err
	case <-ctx.Done():
		return coord.Call{}, ctx.Err()
	case <-h.closed:
		return coord.Call{}, coord.ErrClosed
	}
}

func (h *Hub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest := slices.DeleteFunc(h.waiting[w.id], func(o *waiter) bool { return o == w })
	if len(rest) == 0 {
		delete(h.waiting, w.id)
	} else {
		h.waiting[w.id] = rest
	}
}

// present returns who waits now.
func (h *Hub) present() map[coord.CallID][]*waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) == 0 {
		return nil
	}
	all := make(map[coord.CallID][]*waiter, len(h.waiting))
	for id, ws := range h.waiting {
		all[id] = slices.Clone(ws)
	}
	return all
}

// Run looks until ctx is done.
func (h *Hub) Run(ctx context.Context) {
	poll := time.NewTimer(h.poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-poll.C:
		}
		if h.lookOnce(ctx) {
			poll.Reset(h.poll/2 + rand.N(h.poll/2))
		}
	}
}

// lookOnce answers those who waited when it began. It is false when nobody did;
// the next one who comes wakes the hub.
func (h *Hub) lookOnce(ctx context.Context) bool {
	all := h.present()
	if all == nil {
		return false
	}
	ids := make([]coord.CallID, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	looking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	ended, missing, err := h.look(looking, ids)
	switch {
	case ctx.Err() != nil: // Close tells them
		return true
	case looking.Err() != nil: // not a deadline of theirs
		err = fmt.Errorf("%w: no answer within %v", coord.ErrUnavailable, lookTimeout)
	}
	if err != nil {
		for id := range all {
			h.tell(all[id], coord.Call{}, err)
		}
		return true
	}
	for _, c := range ended {
		if c.Ended() {
			h.tell(all[c.ID], c, nil)
		}
	}
	for _, id := range missing {
		h.tell(all[id], coord.Call{}, coord.ErrNotFound)
	}
	return true
}

func (h *Hub) tell(ws []*waiter, c coord.Call, err error) {
	for _, w := range ws {
		h.leave(w) // before it can be told a second time
		w.call, w.err = c, err
		close(w.done)
	}
}
