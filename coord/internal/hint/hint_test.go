package hint

import (
	"sync"
	"testing"
)

func got(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestHints(t *testing.T) {
	var h Hub
	h.Notify()
	a, stopA := h.Hints()
	b, stopB := h.Hints()
	defer stopB()
	if got(a) || got(b) {
		t.Error("a listener heard what was before it")
	}
	for range 3 {
		h.Notify() // nobody takes them: they become one
	}
	if !got(a) || got(a) || !got(b) || got(b) {
		t.Error("each listener must get one hint")
	}
	stopA()
	stopA()
	h.Notify()
	if got(a) || !got(b) {
		t.Error("after stop one listener must get a hint, and the other none")
	}
	if len(h.listeners) != 1 {
		t.Errorf("the hub has %d listeners, want 1", len(h.listeners))
	}
}

func TestConcurrently(t *testing.T) {
	var h Hub
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				c, stop := h.Hints()
				h.Notify()
				if !got(c) {
					t.Error("a hint was lost")
				}
				stop()
			}
		})
	}
	all.Wait()
	if len(h.listeners) != 0 {
		t.Errorf("the hub has %d listeners, want none", len(h.listeners))
	}
}
