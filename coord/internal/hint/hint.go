// Package hint wakes whoever waits for runs to become due.
package hint

import "sync"

// Hub passes hints on to its listeners. Its zero value is ready to use and safe
// for concurrent use.
type Hub struct {
	mu        sync.Mutex
	listeners map[chan struct{}]bool
}

// Hints returns a channel of one slot, and a function that gives it up.
func (h *Hub) Hints() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners == nil {
		h.listeners = make(map[chan struct{}]bool)
	}
	h.listeners[c] = true
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, c)
	}
}

// Notify wakes every listener that is not awake already.
func (h *Hub) Notify() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
