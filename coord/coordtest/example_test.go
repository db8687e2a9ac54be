package coordtest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
)

// driverStore is a store of the driver, with a clock that only the suite moves.
// The memory driver stands for yours here; one on a database replaces the
// function that its statements take the time from, in the test's database.
type driverStore struct {
	now   atomic.Int64 // µs
	store *memory.Store
}

func newDriverStore(*testing.T) coordtest.Store {
	s := &driverStore{}
	s.now.Store(time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	s.store = memory.NewStore(memory.Options{Now: s.Now})
	return s
}

func (s *driverStore) Open(*testing.T) coord.Backend { return s.store.Open() }

func (s *driverStore) Now() time.Time { return time.UnixMicro(s.now.Load()).UTC() }

func (s *driverStore) Advance(d time.Duration) { s.now.Add(d.Microseconds()) }

// testConformance is TestConformance in the tests of a driver.
func testConformance(t *testing.T) {
	coordtest.Run(t, coordtest.Harness{
		New: newDriverStore,
		// Declare what the driver can do; what it can't do is logged.
		Capabilities: coordtest.Capabilities{SeveralHandles: true, ClockBack: true, Hints: true},
	})
}

// benchmarkDriver is BenchmarkDriver in the tests of a driver.
func benchmarkDriver(b *testing.B) {
	coordtest.Bench(b, coordtest.BenchHarness{
		Open: func(*testing.B) coord.Backend { return memory.Open(memory.Options{}) },
	})
}

// The author of a driver adds two functions to its tests and makes them pass.
func Example() {
	var (
		TestConformance = testConformance
		BenchmarkDriver = benchmarkDriver
	)
	_, _ = TestConformance, BenchmarkDriver
}
