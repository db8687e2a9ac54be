package load

import "maps"

// Causes says how many requests failed so far, by what became of them: "no answer", or "status" and the number.
func (l *Load) Causes() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.causes)
}
