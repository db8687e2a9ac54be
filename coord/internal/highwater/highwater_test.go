package highwater

import (
	"sync"
	"testing"
)

func TestMark(t *testing.T) {
	var m Mark
	m.Raise(-1)
	if m.Get() != 0 {
		t.Errorf("raised to less: %d", m.Get())
	}
	var callers sync.WaitGroup
	for i := range int64(100) {
		callers.Go(func() {
			for n := range int64(100) {
				m.Raise(100*n + i)
				if at := m.Get(); at < 100*n+i {
					t.Errorf("raised to %d: %d", 100*n+i, at)
				}
			}
		})
	}
	callers.Wait()
	if m.Get() != 9999 {
		t.Errorf("in the end: %d", m.Get())
	}
}
