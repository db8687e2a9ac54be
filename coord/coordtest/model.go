package coordtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// The models: each is a plain, sequential account of what an interface promises.
// rapid draws operations, the model says what each must answer, and after each
// step what is stored must be what the model holds. All checks of a model run on
// one store, with names of their own.
var modelTests = []test{
	{"claimer", func(f *fixture) { f.checkModel(func(m model) actions { return newClaimerModel(m).actions() }) }},
	{"tickets", func(f *fixture) { f.checkModel(func(m model) actions { return newTicketsModel(m).actions() }) }},
	{"limiter", func(f *fixture) { f.checkModel(func(m model) actions { return newLimiterModel(m).actions() }) }},
	{"broadcaster", func(f *fixture) { f.checkModel(func(m model) actions { return newBroadcasterModel(m).actions() }) }},
}

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

func (f *fixture) checkModel(start func(m model) actions) {
	var checks atomic.Int64
	f.check(func(t *rapid.T) {
		// Every check begins at a full hour, so that it can be repeated and shortened.
		now := f.store.Now()
		f.store.Advance(now.Truncate(time.Hour).Add(time.Hour).Sub(now))
		own := *f
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		own.ctx = ctx
		t.Repeat(start(model{&own, fmt.Sprintf("%d.", checks.Add(1))}))
	})
}

// backend draws the handle through which an operation goes.
func (m model) backend(t *rapid.T) coord.Backend {
	return m.handles()[rapid.IntRange(0, 1).Draw(t, "handle")]
}

// pick draws one of the items; there must be some.
func pick[T any](t *rapid.T, label string, items ...T) T {
	return rapid.SampledFrom(items).Draw(t, label)
}
