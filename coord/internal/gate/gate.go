// Package gate decides which runs may start under limits of concurrency.
//
// A run that is bound by one has a gate: that of its key, or that of its kind
// when only a worker limits the kind. Runs without a gate are claimed without
// asking who else runs.
package gate

import (
	"strings"

	"github.com/tandemhq/tandem/coord"
)

const (
	keyPrefix  = "key:"
	kindPrefix = "kind:"
)

// Of returns the gate of a run with that concurrency; empty: none.
func Of(c coord.Concurrency) string {
	if c.Key == "" {
		return ""
	}
	return keyPrefix + c.Key
}

// OfKind returns the gate of a run that only a limit of its kind binds.
func OfKind(kind string) string { return kindPrefix + kind }

// Concurrency is the reverse of [Of].
func Concurrency(gate string, limit int) coord.Concurrency {
	if key, ok := strings.CutPrefix(gate, keyPrefix); ok {
		return coord.Concurrency{Key: key, Limit: limit}
	}
	return coord.Concurrency{}
}

// Candidate is a run that could be claimed if there is a place for it.
type Candidate struct {
	ID      int64
	Kind    string
	Gate    string // empty: none
	Limit   int    // of the gate's key
	Running bool   // its lease ran out: it has its place already
}

// Places are the numbers of running runs that have a gate.
type Places struct {
	ByGate, ByKind map[string]int
}

// Full reports whether a run that has no place yet has to wait for one; limits are
// those of kinds.
func (p Places) Full(c Candidate, limits map[string]int) bool {
	if strings.HasPrefix(c.Gate, keyPrefix) && p.ByGate[c.Gate] >= c.Limit {
		return true
	}
	limit, limited := limits[c.Kind]
	return limited && p.ByKind[c.Kind] >= limit
}

// Pick returns the candidates that may start now, at most most of them, in
// order. It takes their places; limits are those of kinds.
func Pick(candidates []Candidate, most int, limits map[string]int, taken Places) (ids []int64) {
	for _, c := range candidates {
		if len(ids) == most {
			break
		}
		if c.Gate == "" || c.Running {
			ids = append(ids, c.ID)
			continue
		}
		if taken.Full(c, limits) {
			continue
		}
		taken.ByGate[c.Gate]++
		taken.ByKind[c.Kind]++
		ids = append(ids, c.ID)
	}
	return ids
}
