package hub

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// drain is a client that takes every message at once and forgets it.
type drain struct {
	subscriber
	life  func() context.Context
	taken int
}

func (d *drain) context() context.Context { return d.life() }
func (d *drain) shut(int, string, *frame) {}
func (d *drain) abort()                   {}
func (d *drain) write(frames []*frame) {
	d.hub.messages.of(frames)
	d.taken += len(frames)
}

func benchHub(b *testing.B) (*Hub, *feed) {
	b.Helper()
	f, p := newFeed(), &people{role: store.Member}
	h := New(backend{memory.NewStore(memory.Options{}).Open(), f}, Services{Sessions: p, Rooms: p},
		metrics.New("test", "memory"), Options{Connections: 1 << 20, PerPerson: 1 << 20}, slog.New(slog.DiscardHandler))
	return h, f
}

func benchClients(b *testing.B, h *Hub, n int, topic string) []*drain {
	b.Helper()
	list := make([]*drain, n)
	for i := range list {
		d := &drain{life: b.Context}
		d.init(h, d, 100, store.User{ID: 1})
		if err := h.enter(&d.subscriber); err != nil {
			b.Fatal(err)
		}
		d.out.open()
		answer := func(map[string]coord.Position) *frame { return ackFrame{ID: "1"}.frame() }
		if err := d.subscribe(b.Context(), map[string]coord.Position{topic: coord.Head}, answer); err != nil {
			b.Fatal(err)
		}
		d.out.sent()
		list[i] = d
	}
	return list
}

// BenchmarkHandOut is what the hub itself does for an event: encode it, find who is in
// its topic, and give it to their writers; several at a time go out together. Others
// are clients in another topic.
func BenchmarkHandOut(b *testing.B) {
	payload := []byte(`{"text":"` + strings.Repeat("x", 189) + `"}`)
	for _, test := range []struct{ clients, others, together int }{
		{1, 0, 1}, {1000, 0, 1}, {1000, 5000, 1}, {1000, 0, 16}, {5000, 0, 1},
	} {
		b.Run(fmt.Sprintf("clients=%d/others=%d/together=%d", test.clients, test.others, test.together), func(b *testing.B) {
			h, _ := benchHub(b)
			clients := benchClients(b, h, test.clients, "room:1")
			others := benchClients(b, h, test.others, "room:2")
			at := coord.Position{}
			for b.Loop() {
				events := make([]coord.Event, test.together)
				for i := range events {
					at = coord.Position{Seq: at.Seq + 1, Tag: coord.NewTag()}
					events[i] = coord.Event{Topic: "room:1", Position: at, Kind: "message.created", Payload: payload, At: time.Now()}
				}
				h.index.deliver(b.Context(), events)
				for _, c := range clients {
					c.out.sent()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*test.clients*test.together), "ns/delivery")
			for _, d := range append(clients, others...) {
				d.out.close()
				d.leaveAll()
				h.leave(&d.subscriber)
			}
			if err := h.Drain(context.Background()); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkResume is 1,000 clients that come back at once and have missed 10,000
// events.
func BenchmarkResume(b *testing.B) {
	const clients, missed = 1000, 10_000
	h, f := benchHub(b)
	payload := []byte(`{"text":"` + strings.Repeat("x", 189) + `"}`)
	for range missed {
		if _, err := f.Publish(b.Context(), coord.NewEvent{Topic: "room:1", Kind: "message.created", Payload: payload}); err != nil {
			b.Fatal(err)
		}
	}
	var peak uint64
	for b.Loop() {
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				d := &resumed{drain: drain{life: b.Context}, sent: make(chan struct{}, 1)}
				d.init(h, d, 100, store.User{ID: 1})
				if err := h.enter(&d.subscriber); err != nil {
					b.Error(err)
					return
				}
				d.out.open()
				answer := func(map[string]coord.Position) *frame { return ackFrame{ID: "1"}.frame() }
				if err := d.subscribe(b.Context(), map[string]coord.Position{"room:1": coord.Start}, answer); err != nil {
					b.Error(err)
				}
				for d.last < missed {
					<-d.sent
					d.out.sent()
				}
				d.out.close()
				d.leaveAll()
				h.leave(&d.subscriber)
			})
		}
		all.Wait()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse)
	}
	b.ReportMetric(float64(peak>>20), "MB-heap")
	b.ReportMetric(float64(f.count("read"))/float64(b.N), "reads/op")
	if err := h.Drain(context.Background()); err != nil {
		b.Error(err)
	}
}

// resumed is a client that takes one message after another.
type resumed struct {
	drain
	sent chan struct{}
	last int64
}

func (d *resumed) write(frames []*frame) {
	d.drain.write(frames)
	if last := frames[len(frames)-1]; last.kind == kindEvent {
		d.last = last.position.Seq
	}
	d.sent <- struct{}{}
}
