package coordtest

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// The models: each is a plain, sequential account of what an interface promises.
// rapid draws operations, the model says what each must answer, and after each
// step what is stored must be what the model holds.
var modelTests = []test{
	{"claimer", func(f *fixture) {
		f.checkModel(1, func(m model, t *rapid.T) actions { return newClaimerModel(m, t).actions() })
	}},
	{"tickets", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newTicketsModel(m).actions() })
	}},
	{"limiter", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newLimiterModel(m).actions() })
	}},
	{"broadcaster", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newBroadcasterModel(m).actions() })
	}},
	{"directory", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newDirectoryModel(m).actions() })
	}},
	{"receipts", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newReceiptsModel(m).actions() })
	}},
	{"elector", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newElectorModel(m).actions() })
	}},
	{"keyring", func(f *fixture) {
		f.checkModel(small, func(m model, _ *rapid.T) actions { return newKeyringModel(m).actions() })
	}},
}

// small is how many checks of the claimer's model there are for one of another.
const small = 10

// checksPerStore is how many checks share a store, with names of their own. What
// they leave there stays little, so that the last is as fast as the first.
const checksPerStore = 25

// actions are the operations of a model by name; that of the empty name compares
// the store with the model.
type actions = map[string]func(t *rapid.T)

// model is what all models have.
type model struct {
	*fixture
	prefix string // of all names, so that checks don't meet
}

// name returns a name of this check's own.
func (m model) name(s string) string { return m.prefix + s }

// still is a store whose clock is read once: nobody but the model moves it.
type still struct {
	Store
	now time.Time
}

func (s *still) Now() time.Time { return s.now }

func (s *still) Advance(d time.Duration) {
	s.Store.Advance(d)
	s.now = s.now.Add(d)
}

// checkModel runs one in so many of the checks on a model, on several stores at a
// time.
func (f *fixture) checkModel(in int, start func(m model, t *rapid.T) actions) {
	checks := f.bound("rapid.checks", (f.harness.Checks+in-1)/in, func(n int) int { return min(n, checksPerStore) })
	f.bound("rapid.steps", f.harness.Steps, func(n int) int { return n })
	for i := range (checks + checksPerStore - 1) / checksPerStore {
		f.Run(fmt.Sprint("store", i), func(t *testing.T) {
			t.Parallel()
			if f.Failed() { // one shortened sequence is enough to look at
				return
			}
			newFixture(t, f.harness).checkOnOneStore(start)
		})
	}
}

func (f *fixture) checkOnOneStore(start func(m model, t *rapid.T) actions) {
	f.store = &still{f.store, f.store.Now()}
	checks := 0
	rapid.Check(f.T, func(t *rapid.T) {
		// Every check begins at a full hour, so that it can be repeated and shortened,
		// and when all that earlier ones have left is due.
		now := f.store.Now()
		f.store.Advance(now.Truncate(time.Hour).Add(2 * time.Hour).Sub(now))
		own := *f
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		own.ctx = ctx
		checks++
		t.Repeat(start(model{&own, fmt.Sprintf("%d.", checks)}, t))
	})
}

// setByHand are the flags of rapid that the person who ran the test has set.
var setByHand = sync.OnceValue(func() map[string]bool {
	set := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	return set
})

// bound returns how many checks or steps there are to be, by the harness or by
// hand, and tells rapid a part of them until the test has ended. There is no other
// way to tell it than its flags.
func (f *fixture) bound(name string, n int, part func(n int) int) int {
	f.Helper()
	before := flag.Lookup(name).Value.String()
	if setByHand()[name] {
		var err error
		if n, err = strconv.Atoi(before); err != nil {
			f.Fatal(err)
		}
	}
	if err := flag.Set(name, strconv.Itoa(part(n))); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = flag.Set(name, before) })
	return n
}

// backend draws the handle through which an operation goes.
func (m model) backend(t *rapid.T) coord.Backend {
	return m.handles()[rapid.IntRange(0, 1).Draw(t, "handle")]
}

// pick draws one of the items; there must be some.
func pick[T any](t *rapid.T, label string, items ...T) T {
	return rapid.SampledFrom(items).Draw(t, label)
}
