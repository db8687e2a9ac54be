package coord

import (
	"container/heap"
	"sync"
)

// debts are what keys are known to owe: a bounded number, in microseconds on a clock
// of its own. Each is worth nothing from some moment on. When there is no room, the one
// whose moment comes first goes: so a flood of new keys drives out what is paid, and
// then those who owe least, before anybody who owes more.
type debts struct {
	most int

	mu     sync.Mutex
	byKey  map[string]*debt
	byTime debtHeap
}

type debt struct {
	key   string
	tat   int64 // see GCRA
	until int64 // worth nothing from here on
	place int   // in the heap
}

// get returns the TAT of a key, 0 where nothing is known. The debts are locked.
func (d *debts) get(key string, now int64) int64 {
	if e := d.byKey[key]; e != nil && e.until > now {
		return e.tat
	}
	return 0
}

// put notes what a key owes. The debts are locked.
func (d *debts) put(key string, tat, until int64) {
	if e := d.byKey[key]; e != nil {
		e.tat, e.until = tat, until
		heap.Fix(&d.byTime, e.place)
		return
	}
	if len(d.byTime) >= d.most {
		delete(d.byKey, heap.Pop(&d.byTime).(*debt).key)
	}
	if d.byKey == nil {
		d.byKey = make(map[string]*debt)
	}
	e := &debt{key: key, tat: tat, until: until}
	d.byKey[key] = e
	heap.Push(&d.byTime, e)
}

// forget takes a key out. The debts are locked.
func (d *debts) forget(key string) {
	if e := d.byKey[key]; e != nil {
		heap.Remove(&d.byTime, e.place)
		delete(d.byKey, key)
	}
}

// debtHeap has the debt on top that is worth nothing first.
type debtHeap []*debt

func (h debtHeap) Len() int           { return len(h) }
func (h debtHeap) Less(i, j int) bool { return h[i].until < h[j].until }

func (h debtHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push adds a debt at the end.
func (h *debtHeap) Push(e any) {
	d := e.(*debt) //nolint:forcetypeassert // there are no others
	d.place = len(*h)
	*h = append(*h, d)
}

// Pop takes the last away.
func (h *debtHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
