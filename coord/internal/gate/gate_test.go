package gate

import (
	"slices"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

func TestGates(t *testing.T) {
	for _, c := range []coord.Concurrency{{}, {Key: "k", Limit: 3}, {Key: "key:", Limit: 1}, {Key: "kind:k", Limit: 1}} {
		if got := Concurrency(Of(c), c.Limit); got != c {
			t.Errorf("the gate of %+v is that of %+v", c, got)
		}
	}
	if got := Concurrency(OfKind("key:k"), 0); got != (coord.Concurrency{}) {
		t.Errorf("the gate of a kind is that of %+v", got)
	}
}

func TestPick(t *testing.T) {
	x, y := Of(coord.Concurrency{Key: "x"}), Of(coord.Concurrency{Key: "y"})
	for name, test := range map[string]struct {
		candidates []Candidate
		most       int
		limits     map[string]int
		taken      Places
		want       []int64
	}{
		"no gate": {
			candidates: []Candidate{{ID: 1, Kind: "a"}, {ID: 2, Kind: "a"}, {ID: 3, Kind: "a"}}, most: 2, want: []int64{1, 2},
		},
		"a key": {
			candidates: []Candidate{{ID: 1, Gate: x, Limit: 2}, {ID: 2, Gate: x, Limit: 2}, {ID: 3, Gate: y, Limit: 1}, {ID: 4, Gate: x, Limit: 2}},
			most:       9, want: []int64{1, 2, 3},
		},
		"a key with different limits": {
			candidates: []Candidate{{ID: 1, Gate: x, Limit: 1}, {ID: 2, Gate: x, Limit: 3}, {ID: 3, Gate: x, Limit: 3}},
			most:       9, taken: Places{ByGate: map[string]int{x: 1}}, want: []int64{2, 3},
		},
		"more places taken than there are": {
			candidates: []Candidate{{ID: 1, Gate: x, Limit: 1}}, most: 9, taken: Places{ByGate: map[string]int{x: 5}},
		},
		"a vanished worker's run has its place": {
			candidates: []Candidate{{ID: 1, Gate: x, Limit: 1}, {ID: 2, Gate: x, Limit: 1, Running: true}},
			most:       9, taken: Places{ByGate: map[string]int{x: 1}}, want: []int64{2},
		},
		"a kind, of runs with a key too": {
			candidates: []Candidate{
				{ID: 1, Kind: "a", Gate: OfKind("a")},
				{ID: 2, Kind: "a", Gate: x, Limit: 9},
				{ID: 3, Kind: "a", Gate: OfKind("a")},
				{ID: 4, Kind: "b", Gate: OfKind("b")},
			},
			most: 9, limits: map[string]int{"a": 3}, taken: Places{ByKind: map[string]int{"a": 1}}, want: []int64{1, 2, 4},
		},
		"a place of a full kind is not taken of the key": {
			candidates: []Candidate{{ID: 1, Kind: "a", Gate: x, Limit: 1}, {ID: 2, Kind: "b", Gate: x, Limit: 1}},
			most:       9, limits: map[string]int{"a": 1}, taken: Places{ByKind: map[string]int{"a": 1}}, want: []int64{2},
		},
	} {
		if test.taken.ByGate == nil {
			test.taken.ByGate = map[string]int{}
		}
		if test.taken.ByKind == nil {
			test.taken.ByKind = map[string]int{}
		}
		if got := Pick(test.candidates, test.most, test.limits, test.taken); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v were picked, want %v", name, got, test.want)
		}
	}
}
