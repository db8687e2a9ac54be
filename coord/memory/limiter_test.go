package memory

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func TestDecisionDoesNotAllocate(t *testing.T) {
	l := Open(Options{}).Limiter()
	for name, limit := range map[string]coord.Limit{
		"granted": {Key: "granted", Rate: 1_000_000, Per: time.Second, Burst: 1_000_000, Cost: 1},
		"denied":  {Key: "denied", Rate: 1, Per: time.Hour, Burst: 1, Cost: 1},
	} {
		if n := testing.AllocsPerRun(100, func() { _, _ = l.Allow(t.Context(), limit) }); n > 0 {
			t.Errorf("a decision that is %s allocates %v times", name, n)
		}
	}
}

// TestSprayedKeysAreForgotten sprays keys whose debt is soon paid: without a
// call of Reap the store keeps few of them, and all that owe.
func TestSprayedKeysAreForgotten(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := NewStore(Options{Now: func() time.Time { return now }})
	l := s.open().Limiter()
	allow := func(key string, per time.Duration) bool {
		d, err := l.Allow(t.Context(), coord.Limit{Key: key, Rate: 1, Per: per, Burst: 1, Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	const honest = 1000
	for i := range honest {
		allow(fmt.Sprint("honest", i), 24*time.Hour)
	}
	for i := range 200_000 {
		allow(fmt.Sprint("spray", i), 10*time.Millisecond)
		now = now.Add(time.Microsecond) // 10,000 of them owe at a time
	}
	kept := 0
	for i := range s.limits.shards {
		kept += len(s.limits.shards[i].tats)
	}
	if most := limitShards*reapFrom + 2*(10_000+honest); kept > most {
		t.Errorf("%d buckets are kept; want at most %d", kept, most)
	}
	for i := range honest {
		if allow(fmt.Sprint("honest", i), 24*time.Hour) {
			t.Fatalf("the debt of key %d was forgotten", i)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	l := Open(Options{}).Limiter()
	for name, limit := range map[string]coord.Limit{
		"granted": {Key: "key", Rate: 1_000_000, Per: time.Second, Burst: 1_000_000},
		"denied":  {Key: "denied", Rate: 1, Per: time.Hour},
	} {
		b.Run(name, func(b *testing.B) {
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Allow(ctx, limit); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAllowManyKeys has 32 goroutines on 10,000 keys.
func BenchmarkAllowManyKeys(b *testing.B) {
	l := Open(Options{}).Limiter()
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprint("key/", i)
	}
	ctx := b.Context()
	var callers atomic.Int64
	b.SetParallelism(max(1, 32/runtime.GOMAXPROCS(0)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(callers.Add(1)) * 311; pb.Next(); i += 7 {
			if _, err := l.Allow(ctx, coord.Limit{Key: keys[i%len(keys)], Rate: 1_000_000, Per: time.Second}); err != nil {
				b.Error(err)
			}
		}
	})
}
