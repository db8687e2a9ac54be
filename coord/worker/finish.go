package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// settle takes a run back from its handler, which returned err, and has its end
// written. The run is not the handler's any more when the worker has released it, or
// holds it in a later attempt.
func (w *Worker) settle(r *Run, err error) {
	cause := context.Cause(r.ctx)
	r.cancel(nil)
	end := r.result(err, cause)
	w.mu.Lock()
	mine := w.running[r.Run.ID] == r
	if mine {
		delete(w.running, r.Run.ID)
	}
	if !mine || end.outcome == none {
		w.free(1, w.wakes(r, end.outcome))
		w.handlers.Done()
	} else {
		r.end = end
		w.writing.Add(1)
		w.unwritten++
		w.taken-- // for the next claim, which waits for the end to be written if there are many
		w.ends = append(w.ends, r)
		if !w.flushing {
			w.flushing = true
			go w.flush()
		}
	}
	w.mu.Unlock()
	if !mine || err == nil {
		return
	}
	log := w.o.Logger.With("run", r.Run.ID, "kind", r.Run.Kind, "attempt", r.Run.Attempt)
	switch {
	case end.outcome == none && !errors.Is(err, ErrFinished):
		log.Warn("lease lost; the run is left to its next holder")
	case end.outcome == coord.Fail || end.outcome == coord.GiveUp:
		log.Warn("run failed", "error", err)
	}
}

// wakes reports whether a run may be due, now or soon, because this one ended so.
func (w *Worker) wakes(r *Run, outcome coord.Outcome) bool {
	switch outcome {
	case coord.Fail, coord.Snooze, coord.Release: // itself
		return true
	default: // one that waited for its place
		return r.Run.Concurrency.Key != "" || w.o.Limits[r.Run.Kind] > 0
	}
}

// flush writes ends until there are none.
func (w *Worker) flush() {
	for {
		runs := w.gather()
		if len(runs) == 0 {
			return
		}
		w.write(runs)
		look := slices.ContainsFunc(runs, func(r *Run) bool { return w.wakes(r, r.end.outcome) })
		w.mu.Lock()
		w.unwritten -= len(runs)
		w.free(0, look)
		w.mu.Unlock()
		w.writing.Add(-len(runs))
		w.handlers.Add(-len(runs))
	}
}

// gatherTime bounds how long ends are gathered, on a machine that is busy.
const gatherTime = time.Millisecond

// gather returns the ends for the next call, or none and flushing is over. There
// is no timer, so that an end that comes alone does not wait: it only lets others
// run, and goes on for as long as that brings more.
func (w *Worker) gather() (runs []*Run) {
	began := time.Now()
	for had := 0; ; {
		runtime.Gosched()
		w.mu.Lock()
		n := len(w.ends)
		if n == had || n >= coord.MaxBatch || time.Since(began) > gatherTime {
			break
		}
		had = n
		w.mu.Unlock()
	}
	defer w.mu.Unlock()
	n := min(len(w.ends), coord.MaxBatch)
	runs = w.ends[:n:n]
	w.ends = slices.Clone(w.ends[n:]) // mostly none
	w.flushing = n > 0
	return runs
}

// finish asks the store once to end the runs.
func (w *Worker) finish(base context.Context, runs []*Run, within time.Duration) error {
	ctx, cancel := context.WithTimeout(base, within)
	defer cancel()
	results := make([]coord.Result, len(runs))
	for i, r := range runs {
		results[i] = coord.Result{Claim: r.Claim, Outcome: r.end.outcome, Delay: r.end.delay, Error: r.end.error}
	}
	return w.claimer.Finish(ctx, results...)
}

// longestWait between two tries to write ends: their slots are taken until then, and what
// is due must be noticed within the poll interval.
func (w *Worker) longestWait() time.Duration { return min(w.o.Poll, 2*time.Second) }

// write writes the ends of runs, trying on while their leases last.
func (w *Worker) write(runs []*Run) {
	unsure := false // an earlier call may have been carried out
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, w.longestWait()) {
		err := w.finish(context.WithoutCancel(runs[0].ctx), runs, w.interval())
		switch {
		case err == nil:
			return
		case errors.Is(err, coord.ErrFenced):
			if unsure {
				w.o.Logger.Info("runs were finished before, by a call whose answer was lost, or are held no longer", "error", err)
			} else {
				w.o.Logger.Warn("runs were no longer held when they finished", "error", err)
			}
			return
		case !errors.Is(err, coord.ErrUnavailable) && len(runs) == 1:
			w.o.Logger.Error("a run could not be finished; it will run again", "run", runs[0].Run.ID, "error", err)
			return
		case !errors.Is(err, coord.ErrUnavailable): // one must not fail the others
			for _, r := range runs {
				w.write([]*Run{r})
			}
			return
		}
		unsure = unsure || errors.Is(err, coord.ErrUnknownOutcome)
		time.Sleep(wait/2 + rand.N(wait/2))
		var late []*Run
		if runs, late = leased(runs); len(late) > 0 {
			w.o.Logger.Error("runs could not be finished before their lease ended; they will run again",
				"error", err, "runs", len(late), "first", late[0].Run.ID)
		}
		if len(runs) == 0 {
			return
		}
	}
}

// leased parts the runs whose lease lasts from those that are late.
func leased(runs []*Run) (lasting, late []*Run) {
	now := time.Now()
	for _, r := range runs {
		if r.deadline.After(now) {
			lasting = append(lasting, r)
		} else {
			late = append(late, r)
		}
	}
	return lasting, late
}

// release ends runs that nobody works on any more.
func (w *Worker) release(base context.Context, runs []*Run) {
	for part := range slices.Chunk(runs, coord.MaxBatch) {
		err := w.finish(base, part, releaseTime)
		if err != nil && !errors.Is(err, coord.ErrFenced) {
			w.o.Logger.Error("runs could not be released; they wait for their lease to end", "error", err, "runs", len(part))
		}
	}
}
