// Package highwater remembers how far something has come.
package highwater

import "sync/atomic"

// Mark is a number that only grows. Its zero value is 0, and safe for concurrent
// use.
type Mark struct{ at atomic.Int64 }

// Get returns the number.
func (m *Mark) Get() int64 { return m.at.Load() }

// Raise makes it at least n.
func (m *Mark) Raise(n int64) {
	for at := m.at.Load(); n > at && !m.at.CompareAndSwap(at, n); at = m.at.Load() {
	}
}
