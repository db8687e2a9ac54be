package memory

import (
	"slices"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// need is what a run needs to start: a place of its gate, of which there are as
// many as the limit says if the gate is that of a key. The zero need is none.
type need struct {
	gate  string
	limit int
}

// need is none for a running run: it has its place, also after its lease ran out.
func (r *run) need() need {
	if r.gate == "" || r.State == coord.Running {
		return need{}
	}
	return need{r.gate, r.Concurrency.Limit}
}

// count adds to the places that are taken, if the run has one.
func (s *Store) count(r *run, n int) {
	if r.gate != "" && r.State == coord.Running {
		add(s.work.taken.ByGate, r.gate, n)
		add(s.work.taken.ByKind, r.Kind, n)
	}
}

// add keeps no entry for nothing.
func add(counts map[string]int, key string, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// full reports whether a run has to wait for a place, under limits of kinds. If
// it has to, so has the rest of its lane.
func (s *Store) full(r *run, limits map[string]int) bool {
	if (r.need() == need{}) {
		return false
	}
	return s.work.taken.Full(gate.Candidate{Kind: r.Kind, Gate: r.gate, Limit: r.Concurrency.Limit}, limits)
}

// bind gives the ready runs of a kind that have no gate that of the kind, which a
// worker limits.
func (s *Store) bind(kind string, free *lane) {
	for _, r := range slices.Clone(free.ready.items) {
		if r.gate == "" {
			s.unfile(r)
			r.gate = gate.OfKind(kind)
			s.file(r)
		}
	}
}
