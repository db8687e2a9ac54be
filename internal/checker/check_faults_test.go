//go:build unix

package checker

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

// logOf has n events whose tags tell what history they are of.
func logOf(n int, tag coord.Tag) (list []event) {
	for i := range n {
		list = append(list, event{at: coord.Position{Seq: int64(i + 1), Tag: tag}, kind: "k", sum: uint64(i)})
	}
	return list
}

func stepsOf(events []event) (list []step) {
	for _, e := range events {
		list = append(list, step{event: e})
	}
	return list
}

// alone leaves one view, and the log as it always was.
func (h *history) alone(i int) *view {
	h.before, h.views = nil, h.views[i:i+1]
	return h.views[0]
}

// TestCheck breaks one promise after another.
func TestCheck(t *testing.T) {
	old := logOf(9, 1)
	rewritten := append(slices.Clone(old[:5]), logOf(7, 2)[5:]...)
	reset := step{event: event{at: rewritten[5].at}, reset: coord.ResetDiverged}
	good := func() history {
		return history{
			log:          map[string][]event{"same": old, "rewritten": rewritten},
			before:       map[string][]event{"same": old, "rewritten": old},
			stored:       map[string]int{"a": 1},
			acknowledged: map[string]bool{"a": true, "b": false},
			views: []*view{
				{client: "one", topic: "same", from: old[2].at, steps: stepsOf(old[3:])},
				{client: "two", topic: "same", steps: stepsOf(old[:4]), ended: true},
				{client: "two", topic: "rewritten", steps: slices.Concat(stepsOf(old[:8]), []step{reset}, stepsOf(rewritten[6:]))},
				{client: "three", topic: "rewritten", steps: stepsOf(rewritten)},
			},
		}
	}
	if faults := check(good()); len(faults) > 0 {
		t.Fatalf("faults in a good history: %q", faults)
	}
	for want, spoil := range map[string]func(h *history){
		"a gap: 6":              func(h *history) { v := h.views[0]; v.steps = slices.Delete(v.steps, 1, 2) },
		"again, or late":        func(h *history) { v := h.views[0]; v.steps = slices.Insert(v.steps, 2, v.steps[1]) },
		"a gap: 5":              func(h *history) { v := h.views[0]; v.steps[0], v.steps[1] = v.steps[1], v.steps[0] },
		"and the log at 9":      func(h *history) { v := h.views[0]; v.steps = v.steps[:5] },
		"which ends before":     func(h *history) { v := h.alone(0); v.steps = append(v.steps, stepsOf(logOf(10, 1)[9:])...) },
		"came as":               func(h *history) { h.views[0].steps[1].sum++ },
		"kind:other":            func(h *history) { h.views[0].steps[1].kind = "other" },
		"Tag:7":                 func(h *history) { h.alone(0).steps[1].at.Tag = 7 },
		"has nothing":           func(h *history) { h.views[0].from.Tag = 7 },
		"1 resets, want 0":      func(h *history) { v := h.views[0]; v.steps = append(v.steps, step{v.steps[5].event, "trimmed"}) },
		"0 resets, want 1":      func(h *history) { v := h.views[2]; v.steps = slices.Delete(v.steps, 8, 9) },
		"2 resets, want 1":      func(h *history) { v := h.views[2]; v.steps = append(v.steps, reset) },
		"rewritten from 0: 1 r": func(h *history) { v := h.views[3]; v.steps = slices.Insert(v.steps, 5, reset) },
		"refused: true":         func(h *history) { h.views[0].refused = true },
		"refused: false":        func(h *history) { h.gone = map[string]bool{"rewritten": true}; h.views = h.views[:3] },
		"it was reset to":       func(h *history) { h.views[2].steps[8].at.Tag = 7 },
		"is stored 0 times: a":  func(h *history) { clear(h.stored) },
		"is stored 2 times: a":  func(h *history) { h.stored["a"] = 2 },
		"is stored: b":          func(h *history) { h.stored["b"] = 1 },
		"of the log":            func(h *history) { h.log["same"] = slices.Delete(slices.Clone(old), 7, 8); h.views = h.views[2:] },
	} {
		h := good()
		h.log, h.stored = maps.Clone(h.log), maps.Clone(h.stored)
		spoil(&h)
		if faults := check(h); len(faults) != 1 || !strings.Contains(faults[0], want) {
			t.Errorf("faults %q, want one with %q", faults, want)
		}
	}
}
