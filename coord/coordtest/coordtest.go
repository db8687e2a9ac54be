// Package coordtest proves that a driver of package coord keeps its promises.
//
// A driver's tests call [Run] with a [Harness] that makes stores. The suite
// tries every sentence of the interfaces, each on a store of its own and, where
// the driver allows, through two handles that stand for two replicas; compares
// random sequences of operations with plain models; checks concurrent histories
// for linearizability; and retries through injected faults. [Bench] measures a
// driver with the [Workloads] that it shares with other measuring programs.
//
// # Time
//
// The clock of a store stands still until the suite advances it, so every
// expectation is exact and no test sleeps. A driver whose clock is that of a
// database makes it settable in its test databases. Only what is asynchronous,
// the delivery of events and hints, is waited for.
//
// # Models
//
// The random tests use pgregory.net/rapid. A failure is printed as a short
// sequence of operations together with the flags that repeat it. Harness.Checks
// and Harness.Steps bound them; -rapid.checks and -rapid.steps override that.
package coordtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Harness tells the suite how to get at a driver.
type Harness struct {
	// New makes an empty store and arranges its removal with t.Cleanup.
	New func(t *testing.T) Store
	// Capabilities are what not every driver can do. The suite logs what it does
	// not try for lack of one.
	Capabilities Capabilities
	// Checks is how many random sequences of operations are tried on the claimer's
	// model, default 1000; a tenth of that is tried on each of the others. Steps is how
	// many operations a sequence has on average, default 25.
	Checks, Steps int
}

// Capabilities are what not every driver can do.
type Capabilities struct {
	// SeveralHandles: Store.Open may be called again while a handle is open.
	SeveralHandles bool
	// Rows: the Tx joins the caller's rows; the Store is a RowStore.
	Rows bool
	// ClockBack: Store.Advance takes negative durations.
	ClockBack bool
	// Hints: a run that is queued, or a running one that is asked to stop, through
	// one handle sends a hint to that and to every other handle. The contract leaves
	// hints free not to come.
	Hints bool
}

// Store is an empty store of the driver under test, with a clock of its own.
type Store interface {
	// Open opens a handle on the store, as Open of the driver does, with
	// [LimiterOptions]. The suite closes it.
	Open(t *testing.T) coord.Backend
	// Now returns what the store's clock says, in whole microseconds.
	Now() time.Time
	// Advance moves the store's clock, for all its handles, before it returns.
	Advance(d time.Duration)
}

// RowStore is a Store of a driver whose transactions join the caller's rows.
type RowStore interface {
	Store
	// InsertRow writes a row through what Tx.Unwrap returned.
	InsertRow(ctx context.Context, tx any, key string) error
	// HasRow reports whether the row is there, outside any transaction.
	HasRow(ctx context.Context, key string) (bool, error)
}

// patience is how long a test may take, and how long it waits for what is
// asynchronous. Only a failing test gets that far.
const patience = 60 * time.Second

type test struct {
	name string
	run  func(f *fixture)
}

// Run runs the suite. It takes some seconds on a fast driver and one or two
// minutes on one that writes to disk.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("coordtest: Harness.New is not set")
	}
	if h.Checks == 0 {
		h.Checks = 1000
	}
	if h.Steps == 0 {
		h.Steps = 25
	}
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"backend", backendTests},
		{"validation", validationTests},
		{"claimer", claimerTests},
		{"tasks", taskTests},
		{"concurrency", concurrencyTests},
		{"reports", reportTests},
		{"waiting", waitingTests},
		{"tickets", ticketTests},
		{"limiter", limiterTests},
		{"broadcaster", broadcasterTests},
		{"directory", directoryTests},
		{"calls", callTests},
		{"receipts", receiptTests},
		{"elector", electorTests},
		{"keyring", keyringTests},
		{"tx", txTests},
		{"text", textTests},
		{"faults", faultTests},
		{"history", historyTests},
		{"model", modelTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) { test.run(newFixture(t, h)) })
			}
		})
	}
}

// fixture is what one test works with: a store of its own and two handles on it.
type fixture struct {
	*testing.T
	ctx      context.Context //nolint:containedctx // that of the test
	harness  Harness
	store    Store
	one, two coord.Backend // the same handle where a store can have only one
}

func newFixture(t *testing.T, h Harness) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	f := &fixture{T: t, ctx: ctx, harness: h, store: h.New(t)}
	f.one = f.open()
	f.two = f.one
	if h.Capabilities.SeveralHandles {
		f.two = f.open()
	}
	return f
}

// open opens a further handle, which is closed at the end of the test.
func (f *fixture) open() coord.Backend {
	f.Helper()
	b := f.store.Open(f.T)
	if b == nil {
		f.Fatal("Store.Open returned nil")
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			f.Errorf("Close: %v", err)
		}
	})
	return b
}

// handles returns both handles, to spread concurrent callers over.
func (f *fixture) handles() []coord.Backend { return []coord.Backend{f.one, f.two} }

// lacks logs what is not tried for lack of a capability.
func (f *fixture) lacks(have bool, what string) bool {
	f.Helper()
	if !have {
		f.Logf("not tried: the harness declares no capability %s", what)
	}
	return !have
}

// together calls fn n times at once, the handles taking turns.
func (f *fixture) together(n int, fn func(i int, b coord.Backend)) {
	var callers sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		callers.Go(func() {
			<-start
			fn(i, f.handles()[i%2])
		})
	}
	close(start)
	callers.Wait()
}

// reporter is what checks report to: a test, or a step of a model.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func must(r reporter, what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: unexpected error: %v", what, err)
	}
}

// is checks that an error is the one that the contract names, and that it went
// through coord.Wrap.
func is(r reporter, what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Fatalf("%s: the error is %v; want one that errors.Is %q", what, err, want)
	}
	wrapped(r, what, err)
}

func wrapped(r reporter, what string, err error) {
	r.Helper()
	if e, ok := errors.AsType[*coord.Error](err); !ok || e.Op == "" {
		r.Fatalf("%s: the error is a %T (%v); want a *coord.Error with its Op, as coord.Wrap makes it", what, err, err)
	}
}

// equal compares values; times are equal when they are the same instant.
func equal[T any](r reporter, what string, got, want T) {
	r.Helper()
	if g, ok := any(got).(time.Time); ok {
		if w := any(want).(time.Time); !g.Equal(w) {
			r.Errorf("%s is %v; want %v (%v apart)", what, g, w, g.Sub(w))
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		r.Errorf("%s is %v; want %v", what, show(got), show(want))
	}
}

// show prints a value so that strings can't be mistaken and long ones end.
func show(v any) string {
	s := fmt.Sprintf("%+v", v)
	if text, ok := v.(string); ok {
		s = strconv.Quote(text)
	}
	if len(s) > 300 {
		s = s[:300] + fmt.Sprintf("… (%d bytes)", len(s))
	}
	return s
}

// collect reads a listing to its end.
func collect[T any](r reporter, what string, list func(yield func(T, error) bool)) (items []T) {
	r.Helper()
	for item, err := range list {
		must(r, what, err)
		items = append(items, item)
	}
	return items
}
