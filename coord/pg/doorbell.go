package pg

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

// channel is the one channel on which replicas ring each other.
const channel = "coord"

// spacing is the least time between two rings of a replica. The first rings at
// once; only a busy stream is coalesced.
const spacing = 3 * time.Millisecond

// doorbell tells the other replicas that there is something to look for. A
// notification carries no data and belongs to no data transaction, which would
// make all commits of the server wait for each other. One that is lost costs a
// poll interval.
type doorbell struct {
	b       *backend
	id      string        // of this backend, which need not hear itself
	news    atomic.Uint32 // what to ring about
	pressed chan struct{} // one slot
}

func newDoorbell(b *backend) *doorbell {
	return &doorbell{b: b, id: rand.Text(), pressed: make(chan struct{}, 1)}
}

func (d *doorbell) ring(n news) {
	if n == 0 {
		return
	}
	d.news.Or(uint32(n))
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
		what := d.id + " " + strconv.FormatUint(uint64(d.news.Swap(0)), 10)
		ringing, cancel := context.WithTimeout(ctx, lookTimeout)
		_, err := d.b.coordination.NewRaw(`SELECT pg_notify(?, ?)`, channel, what).Exec(ringing)
		cancel()
		if err != nil && ctx.Err() == nil {
			d.b.log().DebugContext(ctx, "doorbell failed; other replicas will poll", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(spacing):
		}
	}
}

// listen wakes this process when another one rings, and whenever the connection
// was away and may have missed a ring.
func (b *backend) listen(ctx context.Context) {
	connected := false
	l := pq.NewDialListener(dialer(), b.o.ListenURL, 100*time.Millisecond, 5*time.Second,
		func(event pq.ListenerEventType, err error) {
			up := event == pq.ListenerEventConnected || event == pq.ListenerEventReconnected
			if up != connected && ctx.Err() == nil {
				connected = up
				if up {
					b.log().InfoContext(ctx, "listening for other replicas")
				} else {
					b.log().WarnContext(ctx, "not listening: other replicas' news arrives by polling", "error", err)
				}
			}
		})
	// Both can hang on a dead network; nothing waits for them. What the listener
	// still has to say would keep it from ending.
	defer func() {
		go func() {
			_ = l.Close()
			for range l.Notify {
			}
		}()
	}()
	go func() {
		if l.Listen(channel) == nil { // what rang until now was not heard
			b.wake(anything)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-l.Notify:
			if n == nil {
				b.wake(anything)
				continue
			}
			from, what, _ := strings.Cut(n.Extra, " ")
			if from == b.bell.id {
				continue
			}
			// A version that rings in another way is understood as well.
			heard, err := strconv.ParseUint(what, 10, 32)
			if err != nil {
				heard = uint64(anything)
			}
			b.wake(news(heard))
		}
	}
}
