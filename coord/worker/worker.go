// Package worker runs the handlers of due runs on top of a [coord.Claimer].
//
// A slot is taken before a run is claimed and given back when its handler has
// ended, so a worker never holds more than it can run, and as many again whose ends
// are being written. Leases are extended,
// ends written and reports made for many runs together. Each handler's context
// is cancelled by this process's own monotonic clock before its lease can end
// at the store, even when every heartbeat hangs.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/batch"
)

// Options configure a [Worker].
type Options struct {
	Name        string             // of this replica, for people to read; must be set
	Handlers    map[string]Handler // by kind, at least one; runs of other kinds are left alone
	Concurrency int                // handlers at a time; default 10
	Limits      map[string]int     // by kind: runs at a time on all replicas together, 1–10,000; none: unbounded
	Lease       time.Duration      // default 30 s; extended every third of it, or soon after that failed
	Poll        time.Duration      // longest time between two looks; default 500 ms, jittered
	Spread      time.Duration      // the first look comes within it, so that many that start at once don't look at once; default 0
	Grace       time.Duration      // for running handlers on drain; default 10 s
	Logger      *slog.Logger       // default: discards
}

// Worker claims runs and hands them to handlers.
type Worker struct {
	claimer coord.Claimer
	o       Options
	kinds   []string
	reports *batch.Batcher[coord.Report, error]
	freed   chan struct{} // one slot: there is room for runs that may have waited for it
	again   chan struct{} // one slot: leases are to be extended once more, now
	heard   atomic.Int64  // how often runs may have been cancelled

	handlers sync.WaitGroup // one for each slot that a run has
	writing  sync.WaitGroup // one for each end that is not written yet

	mu        sync.Mutex
	taken     int  // slots: of handlers at work and of a claim under way
	more      bool // the last look filled every slot it had, so the store may have more
	running   map[coord.RunID]*Run
	ends      []*Run // whose ends are to be written
	unwritten int    // those, and those that are being written; about as many as there are slots at most
	flushing  bool   // the ends are being written
	fence     *time.Timer
	fenceAt   time.Time // when it fires; zero: it does not
}

// New returns a worker; [Worker.Run] starts it.
func New(c coord.Claimer, o Options) (*Worker, error) {
	if o.Name == "" || len(o.Handlers) == 0 {
		return nil, errors.New("worker: Options.Name and Options.Handlers must be set")
	}
	o.Concurrency = orDefault(o.Concurrency, 10)
	o.Lease = orDefault(o.Lease, 30*time.Second)
	o.Poll = orDefault(o.Poll, 500*time.Millisecond)
	o.Grace = orDefault(o.Grace, 10*time.Second)
	o.Logger = orDefault(o.Logger, slog.New(slog.DiscardHandler))
	if o.Concurrency < 1 || o.Lease < time.Second || o.Poll < time.Millisecond || o.Grace < 0 || o.Spread < 0 {
		return nil, errors.New("worker: Options.Concurrency must be at least 1, Lease 1s, Poll 1ms, Grace and Spread 0")
	}
	for kind, limit := range o.Limits {
		if o.Handlers[kind] == nil || limit < 1 {
			return nil, fmt.Errorf("worker: Options.Limits[%q] must be at least 1, of a kind that has a handler", kind)
		}
	}
	w := &Worker{
		claimer: c, o: o,
		kinds:   slices.Sorted(maps.Keys(o.Handlers)),
		freed:   make(chan struct{}, 1),
		again:   make(chan struct{}, 1),
		more:    true, // the first look need not ask what is due next
		running: make(map[coord.RunID]*Run),
	}
	w.reports = batch.New(coord.MaxBatch, 1, w.report)
	return w, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Running returns how many handlers are at work.
func (w *Worker) Running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

// interval is the time between two heartbeats, and the longest that a call to the
// store may take.
func (w *Worker) interval() time.Duration { return w.o.Lease / 3 }

// Run works until ctx is done and then drains: nothing more is claimed,
// running handlers get Options.Grace, and what is unfinished then is released,
// claimable elsewhere at once with its attempt unspent; a run that is AtMostOnce
// ends as failed instead. A handler that ignores its context is left behind; it
// can have no effect any more. Run may be called once. It returns nil: an outage is
// logged and waited for.
func (w *Worker) Run(ctx context.Context) error {
	hints, stopHints := w.claimer.Hints()
	defer stopHints()
	cancels, stopCancels := w.claimer.Cancels()
	defer stopCancels()

	// Handlers and heartbeats outlive ctx by the grace. So does a claim that is under
	// way: were it cut off, runs could be leased to nobody.
	base := context.WithoutCancel(ctx)
	work, cancelWork := context.WithCancel(base)
	claiming, heartbeat, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(claiming)
		w.claimLoop(ctx, work, hints)
	}()
	go func() {
		defer close(heartbeat)
		w.heartbeats(work, cancels)
	}()
	<-ctx.Done()
	go func() {
		<-claiming
		w.handlers.Wait()
		close(done)
	}()
	grace := time.NewTimer(w.o.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	cancelWork()
	<-claiming
	<-heartbeat
	w.cutOff(base, done)
	return nil
}

// releaseTime bounds what a drain still waits for after the grace.
const releaseTime = 5 * time.Second

// cutOff ends what outlived the grace: handlers are told, and the runs of those
// that do not end are given back.
func (w *Worker) cutOff(base context.Context, done <-chan struct{}) {
	w.mu.Lock()
	for _, r := range w.running {
		r.cancel(ErrDraining)
	}
	w.mu.Unlock()
	settle := time.NewTimer(min(w.o.Grace/10, time.Second))
	defer settle.Stop()
	select {
	case <-done:
	case <-settle.C:
	}
	w.mu.Lock()
	rest := slices.Collect(maps.Values(w.running))
	clear(w.running) // a result of a handler of these counts no more
	w.disarm()
	w.mu.Unlock()
	if len(rest) > 0 {
		for _, r := range rest {
			r.end = r.unfinished()
		}
		w.release(base, rest)
		w.o.Logger.Warn("handlers ignored the end of their grace; their runs were released", "runs", len(rest))
	}
	written := make(chan struct{})
	go func() {
		w.writing.Wait()
		close(written)
	}()
	patience := time.NewTimer(releaseTime)
	defer patience.Stop()
	select {
	case <-written:
	case <-patience.C:
	}
}

// outage logs when a call to the store begins to fail and when it works again, once
// each.
type outage struct {
	log     *slog.Logger
	call    string
	failing bool
}

func (o *outage) note(err error) {
	if (err != nil) == o.failing {
		return
	}
	o.failing = err != nil
	if o.failing {
		o.log.Warn("a call fails; trying on", "call", o.call, "error", err)
	} else {
		o.log.Info("the call works again", "call", o.call)
	}
}
