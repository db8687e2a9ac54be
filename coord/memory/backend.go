// Package memory keeps a coord.Backend in the memory of the process: for tests,
// for CI, and as the reference that the other drivers are compared with.
//
// Nothing survives the process, and nothing is shared with another one. Several
// backends may share a [Store]; they behave as replicas of one program do.
//
// Everything but the limiter is behind one lock, which a transaction holds
// until its function returns. Runs, tickets, calls, receipts and topics stay until
// they are pruned, reaped and trimmed; of a topic at most Options.Retain events are kept.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/feed"
	"github.com/tandemhq/tandem/coord/internal/hint"
)

// DefaultRetain is how many events of a topic are kept by default.
const DefaultRetain = 16384

// batch bounds what one call of Prune, Trim and Reap deletes.
const batch = 1000

// Options of a store. The zero value is ready to use.
type Options struct {
	// Now is the clock that decides; default time.Now. It is read to the
	// microsecond, while the state that it decides about is locked.
	Now func() time.Time
	// Retain is how many events of a topic are kept; default DefaultRetain.
	Retain int
	coord.Options
}

// Store is what backends share.
type Store struct {
	clock    func() time.Time
	retain   int
	observed coord.Options
	limits   limits

	hints          hint.Hub
	cancels        hint.Hub
	calls          hint.Hub // calls may have ended
	changes        hint.Hub // the directory may have changed
	receiptChanges hint.Hub
	leaderChanges  hint.Hub
	keyChanges     hint.Hub
	hubsMu         sync.Mutex
	hubs           map[*feed.Hub]struct{} // one per open handle

	lock lock
	// Below: guarded by lock.
	ring         bool     // runs may have become due by what is under way
	ringCancels  bool     // running runs were asked to stop by what is under way
	ringCalls    bool     // calls were ended by what is under way
	ringChanges  bool     // the directory was changed by what is under way
	ringReceipts bool     // receipts were completed or released by what is under way
	ringLeaders  bool     // somebody resigned by what is under way
	ringKeys     bool     // keys were changed by what is under way
	inTx         bool     // a transaction is under way
	undo         []func() // what a rollback does, last first
	work         work
	passes       passes
	asks         asks
	holds        holds
	leaders      map[string]coord.StoredLeadership
	rings        map[string]ring
	book         book
	topics       map[string]*topic
}

// NewStore returns an empty store.
func NewStore(o Options) *Store {
	s := &Store{
		clock:    o.Now,
		retain:   o.Retain,
		observed: o.Options,
		hubs:     make(map[*feed.Hub]struct{}),
		lock:     make(lock, 1),
		work:     newWork(),
		passes:   newPasses(),
		asks:     newAsks(),
		holds:    newHolds(),
		leaders:  make(map[string]coord.StoredLeadership),
		rings:    make(map[string]ring),
		book:     newBook(),
		topics:   make(map[string]*topic),
	}
	s.limits.init(s.clock)
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.retain <= 0 {
		s.retain = DefaultRetain
	}
	return s
}

// Open returns a backend of a store of its own.
func Open(o Options) coord.Backend { return NewStore(o).Open() }

// Open returns a further backend of the store. Closing it closes neither the
// store nor its other backends.
func (s *Store) Open() coord.Backend { return coord.Wrap(s.open(), s.observed) }

func (s *Store) open() *handle {
	h := &handle{store: s, hub: feed.New(source{s}), closed: make(chan struct{})}
	s.hubsMu.Lock()
	defer s.hubsMu.Unlock()
	s.hubs[h.hub] = struct{}{}
	return h
}

// now reads the clock as SQL stores keep time: in UTC, to the microsecond.
func (s *Store) now() time.Time { return s.clock().Truncate(time.Microsecond).UTC() }

// read runs fn on the locked store.
func (s *Store) read(ctx context.Context, fn func()) error {
	if err := s.lock.acquire(ctx); err != nil {
		return err
	}
	defer s.lock.release()
	fn()
	return nil
}

// write runs fn on the locked store. fn fails before it changes anything, or
// not at all.
func (s *Store) write(ctx context.Context, fn func(now time.Time) error) error {
	if err := s.lock.acquire(ctx); err != nil {
		return err
	}
	defer s.lock.release()
	defer s.notify()
	return fn(s.now())
}

func (s *Store) notify() {
	if s.ring {
		s.hints.Notify()
	}
	if s.ringCancels {
		s.cancels.Notify()
	}
	if s.ringCalls {
		s.calls.Notify()
	}
	if s.ringChanges {
		s.changes.Notify()
	}
	if s.ringReceipts {
		s.receiptChanges.Notify()
	}
	if s.ringLeaders {
		s.leaderChanges.Notify()
	}
	if s.ringKeys {
		s.keyChanges.Notify()
	}
	s.ring, s.ringCancels, s.ringCalls, s.ringChanges, s.ringReceipts, s.ringLeaders = false, false, false, false, false, false
	s.ringKeys = false
}

// onRollback notes how to take a change back.
func (s *Store) onRollback(undo func()) {
	if s.inTx {
		s.undo = append(s.undo, undo)
	}
}

// lock is a mutex whose wait ends with a context.
type lock chan struct{}

func (l lock) acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lock) release() { <-l }

// handle is one backend of a store. It has no goroutine.
type handle struct {
	store *Store
	hub   *feed.Hub

	closing sync.Once
	closed  chan struct{}
}

func (h *handle) Claimer() coord.Claimer         { return claimer{h.store} }
func (h *handle) Tickets() coord.Tickets         { return tickets{h.store} }
func (h *handle) Limiter() coord.Limiter         { return limiter{h.store} }
func (h *handle) Broadcaster() coord.Broadcaster { return broadcaster{source{h.store}, h.hub} }
func (h *handle) Directory() coord.Directory     { return directory{h.store} }
func (h *handle) Calls() coord.Calls             { return calls{h.store, h.closed} }
func (h *handle) Receipts() coord.Receipts       { return receipts{h.store} }
func (h *handle) Elector() coord.Elector         { return elector{h.store} }
func (h *handle) Keyring() coord.Keyring         { return keyring{h.store} }

// Ping always succeeds: the store is where the process is.
func (h *handle) Ping(ctx context.Context) error { return ctx.Err() }

func (h *handle) Close(context.Context) error {
	h.store.hubsMu.Lock()
	delete(h.store.hubs, h.hub)
	h.store.hubsMu.Unlock()
	h.hub.Close()
	h.closing.Do(func() { close(h.closed) })
	return nil
}
