package main

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
)

type memorySubject struct{}

func openMemory(context.Context) (subject, error) { return memorySubject{}, nil }

func (memorySubject) store(context.Context) (store, error) {
	return &memoryStore{memory.Open(memory.Options{})}, nil
}

func (memorySubject) close() {}

type memoryStore struct{ b coord.Backend }

func (s *memoryStore) backend() coord.Backend { return s.b }
func (s *memoryStore) close()                 { _ = s.b.Close(context.Background()) }

// floor is the raw operation: a lock around a plain data structure.
func (s *memoryStore) floor(_ context.Context, w coordtest.Workload) (floor, error) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	one := func(fn func(caller int)) floor {
		return floor{op: func(_ context.Context, caller int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			fn(caller)
			return 1, nil
		}}
	}
	payload := make([]byte, 200)
	switch w.Name {
	case "claim", "claim-single":
		backlog, limit := 10_000, 100
		if w.Name == "claim-single" {
			backlog, limit = 1_000, 1
		}
		queue := make(dueQueue, backlog)
		for i := range queue {
			queue[i] = &dueRun{id: int64(i), payload: payload}
		}
		running := make(map[int64]*dueRun)
		return floor{op: func(context.Context, int) (int, error) {
			claimed := make([]dueRun, 0, limit)
			mu.Lock()
			for now := time.Now(); len(claimed) < limit; {
				r := heap.Pop(&queue).(*dueRun)
				r.token, r.at = r.token+1, now.Add(time.Hour)
				running[r.id] = r
				claimed = append(claimed, *r)
			}
			mu.Unlock()
			mu.Lock()
			for _, c := range claimed {
				if r := running[c.id]; r.token == c.token {
					delete(running, c.id)
					r.at = time.Now()
					heap.Push(&queue, r)
				}
			}
			mu.Unlock()
			return len(claimed), nil
		}}, nil
	case "decision-uniform", "decision-hot-denied":
		keys := make([]string, 10_000)
		for i := range keys {
			keys[i] = fmt.Sprintf("key/%d", i)
		}
		if w.Name == "decision-hot-denied" {
			keys = keys[:1]
		}
		tats := make(map[string]int64)
		return one(func(int) {
			key, now := keys[random.IntN(len(keys))], time.Now().UnixMicro()
			if tat := max(tats[key], now) + 1; tat <= now+1_000_000 {
				tats[key] = tat
			}
		}), nil
	case "ticket":
		tickets := make(map[[32]byte]string)
		return one(func(int) {
			hash := sha256.Sum256([]byte(coord.NewTicketSecret()))
			tickets[hash] = "user"
			delete(tickets, hash)
		}), nil
	case "receipt":
		outcomes := make(map[string][]byte)
		n := 0
		return one(func(int) {
			n++
			key := strconv.Itoa(n)
			outcomes[key] = nil
			outcomes[key] = payload
		}), nil
	case "receipt-again":
		outcomes := make(map[string][]byte)
		keys := make([]string, 1_000)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
			outcomes[keys[i]] = payload
		}
		return one(func(int) { _ = outcomes[keys[random.IntN(len(keys))]] }), nil
	case "publish-many", "publish-hot", "deliver":
		var log []coord.Event
		cursors := make([]int, w.Callers)
		base := 0
		return floor{op: func(_ context.Context, caller int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, coord.Event{Topic: "t", Position: coord.Position{Seq: int64(base + len(log) + 1)}, Payload: payload, At: time.Now()})
			n := 1
			if w.Name == "deliver" {
				n = base + len(log) - max(cursors[caller], base)
				cursors[caller] = base + len(log)
			}
			if len(log) == 100_000 { // a ring
				base += len(log)
				log = log[:0]
			}
			return n, nil
		}}, nil
	}
	return floor{}, fmt.Errorf("no floor for the workload %q", w.Name)
}

// dueRun is a run of the raw queue.
type dueRun struct {
	id, token int64
	at        time.Time
	payload   []byte
}

// dueQueue is a heap by due time.
type dueQueue []*dueRun

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q dueQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *dueQueue) Push(r any)        { *q = append(*q, r.(*dueRun)) }
func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	r := (*q)[last]
	*q = (*q)[:last]
	return r
}
