package pg

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync/atomic"
	"time"
)

// channel is the one channel on which replicas ring each other.
const channel = "coord"

// spacing is the least time between two rings of a replica. The first rings at
// once; only a busy stream is coalesced.
const spacing = 2 * time.Millisecond

// ringPause is the time until a ring that failed is tried again.
const ringPause = time.Second

// doorbell tells the other replicas that there is something to look for. A
// notification carries no data and belongs to no data transaction, which would
// make all commits of the server wait for each other. One that is lost costs a
// poll interval, which for some news is long: one that failed is rung again.
type doorbell struct {
	b       *backend
	id      string        // of this backend, which need not be told its own news
	news    atomic.Uint32 // what to ring about
	pressed chan struct{} // one slot
}

func newDoorbell(b *backend) *doorbell {
	return &doorbell{b: b, id: rand.Text(), pressed: make(chan struct{}, 1)}
}

func (d *doorbell) ring(n news) {
	if n != 0 {
		d.news.Or(uint32(n))
		d.press()
	}
}

// press rings even if there is no news: who hears it knows that it hears.
func (d *doorbell) press() {
	select {
	case d.pressed <- struct{}{}:
	default:
	}
}

func (d *doorbell) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.pressed:
		}
		n, pause := d.news.Swap(0), spacing
		what := d.id + " " + strconv.FormatUint(uint64(n), 10)
		ringing, cancel := context.WithTimeout(ctx, lookTimeout)
		// Nobody waits for the disk: what there is to find is stored.
		_, err := d.b.coordination.NewRaw(`SET LOCAL synchronous_commit = off; SELECT pg_notify(?, ?)`, channel, what).Exec(ringing)
		cancel()
		if err != nil && ctx.Err() == nil {
			d.b.log().DebugContext(ctx, "doorbell failed; it is rung again", "error", err)
			d.ring(news(n))
			pause = ringPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
