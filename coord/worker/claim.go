package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tandemhq/tandem/coord"
)

const (
	// parts is into how many claims the slots are parted, as far as each is of
	// goodBatch runs: while one is claimed, the ends of another are written.
	parts     = 2
	goodBatch = 50
	// askTime bounds the question what is due next, which only makes things quick.
	askTime = time.Second
	// firstBackoff is the pause after the first claim that failed; each further one
	// doubles it, up to the poll interval.
	firstBackoff = 50 * time.Millisecond
)

// claimLoop claims whenever there is a free slot and a reason to look: a hint, a
// slot freed while the store may have more, or the end of a rest. A rest lasts
// until the poll interval is over or something falls due.
//
// What is due next is asked before the look that precedes the rest, so that
// nothing can fall due between the two.
func (w *Worker) claimLoop(ctx, work context.Context, hints <-chan struct{}) {
	claiming := outage{log: w.o.Logger, call: "claim"}
	asking := outage{log: w.o.Logger, call: "next_due"}
	rest := time.NewTimer(rand.N(w.o.Spread + 1))
	defer rest.Stop()
	backoff, away := firstBackoff, false
	for {
		wake, freed := hints, w.freed
		if away {
			wake, freed = nil, nil // a reason to look is no reason to hammer
		}
		rested := false
		select {
		case <-ctx.Done():
		case <-wake:
		case <-freed:
		case <-rest.C:
			rested = true
		}
		if ctx.Err() != nil {
			return
		}
		next, known := w.poll(), rested && !claiming.failing && w.idle()
		if known {
			var err error
			next, err = w.nextDue(work, next)
			asking.note(err)
		}
		due := time.Now().Add(next)
		if ctx.Err() != nil {
			return
		}
		limit := w.take()
		if limit == 0 {
			if rested { // the slot that is freed next looks, but not while claims fail
				rest.Reset(w.poll())
			}
			continue
		}
		got, err := w.claim(ctx, work, limit)
		if ctx.Err() != nil {
			return
		}
		claiming.note(err)
		// Else the store is there: it may say so of a task that can't fire here, whenever it has no run.
		away = errors.Is(err, coord.ErrUnavailable)
		switch {
		case err != nil:
			pause := min(backoff, w.o.Poll)
			rest.Reset(pause/2 + rand.N(pause/2+1))
			backoff = min(2*backoff, w.o.Poll)
			continue
		case got == limit:
			rest.Reset(0)
		case known:
			rest.Reset(max(time.Until(due), w.calm()))
		default:
			rest.Reset(w.calm())
		}
		backoff = firstBackoff
	}
}

// poll is the time until the next look when nothing happens.
func (w *Worker) poll() time.Duration { return w.o.Poll/2 + rand.N(w.o.Poll/2) }

// calm is how long after a look that a hint or a free slot brought the worker asks
// what is due next, and the least time until it looks for that.
func (w *Worker) calm() time.Duration { return min(5*time.Millisecond, w.o.Poll/2) }

// nextDue returns how long it is until something falls due, or most.
func (w *Worker) nextDue(work context.Context, most time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(work, min(askTime, w.interval()))
	defer cancel()
	wait, some, err := w.claimer.NextDue(ctx, w.kinds...)
	if err != nil || !some {
		return most, err
	}
	return min(wait, most), nil
}

// idle reports whether the last look found less than there was room for.
func (w *Worker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.more
}

// take takes free slots for a claim: not all of many, and none while more are about
// to be freed, so that under load claims and the writing of ends go on side by side
// in batches of a good size.
func (w *Worker) take() (slots int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	part := max(w.o.Concurrency/parts, goodBatch)
	slots = min(w.o.Concurrency-w.taken, part, coord.MaxBatch)
	if slots == 0 || w.more && slots < min(part, w.unwritten) || w.unwritten >= w.o.Concurrency {
		w.more = true // for all that is known: who frees slots, or has written ends, looks
		return 0
	}
	w.taken += slots
	return slots
}

// free gives slots back. look says that the store may have a run for them which it
// had not before. The worker is locked.
func (w *Worker) free(slots int, look bool) {
	w.taken -= slots
	if look || w.more {
		poke(w.freed)
	}
}

// poke makes a channel of one slot ready.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// claim fills slots that were taken, and returns how many it filled.
func (w *Worker) claim(ctx, work context.Context, slots int) (got int, err error) {
	heard := w.heard.Load()
	call, cancel := context.WithTimeout(work, w.interval())
	claims, err := w.claimer.Claim(call, coord.ClaimOptions{
		Worker: w.o.Name, Kinds: w.kinds, Limit: slots, Lease: w.o.Lease, Limits: w.o.Limits,
	})
	cancel()
	runs := make([]*Run, len(claims))
	base := context.WithoutCancel(ctx)
	for i, c := range claims {
		handling, cancel := context.WithCancelCause(base)
		runs[i] = &Run{Claim: c, worker: w, ctx: handling, cancel: cancel, deadline: c.Deadline}
	}
	if ctx.Err() != nil { // the drain has begun meanwhile
		for _, r := range runs {
			r.end = ending{outcome: coord.Release}
		}
		w.release(base, runs)
		runs = nil
	}
	w.start(runs, slots)
	if w.heard.Load() != heard {
		poke(w.again) // one of these may be meant
	}
	return len(runs), err
}

// start runs the handlers of runs for which slots were taken, and frees the rest
// of these.
func (w *Worker) start(runs []*Run, slots int) {
	w.handlers.Add(len(runs))
	w.mu.Lock()
	w.more = len(runs) == slots
	w.free(slots-len(runs), false)
	for _, r := range runs {
		w.running[r.Run.ID] = r
		w.arm(r.deadline)
	}
	w.mu.Unlock()
	for _, r := range runs {
		go w.execute(r)
	}
}
