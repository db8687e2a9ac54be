package worker

import (
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Workers that start at once look at times of their own, within what they are told.
func TestFirstLooksAreSpread(t *testing.T) {
	bubble(t, func(e *env) {
		times := make(chan time.Time, 1)
		o := e.options(starts(times))
		o.Poll, o.Spread = time.Hour, 10*time.Second
		looks := map[time.Duration]bool{}
		for range 8 {
			e.enqueue(coord.NewRun{Kind: kind})
			began := time.Now()
			w := e.start(o)
			took := (<-times).Sub(began)
			if looks[took] = true; took > o.Spread {
				e.Errorf("the first look came after %v", took)
			}
			w.drain()
		}
		if len(looks) < 4 {
			e.Errorf("the first looks of eight workers came after %v", looks)
		}
	})
}
