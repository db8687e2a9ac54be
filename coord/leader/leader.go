// Package leader campaigns for leadership on top of a [coord.Elector]: for what one replica
// at a time is to do.
//
//	err := leader.Run(ctx, backend.Elector(), leader.Options{Name: "digest", Candidate: hostname},
//		func(ctx context.Context, term *leader.Term) error { … })
//
// A [Term] ends by this process's own monotonic clock before its lease can end at the
// store, even when every extension hangs. That is soon enough for a process that runs, and
// not for one that stands still: what it is about to write when it goes on belongs to a
// past term. So a write goes into one transaction with [coord.Tx.Fence] of the term, or
// must be one that does no harm when two make it.
//
// Nothing that a person waits for should wait for a leader, and a replica is as ready
// without leading.
package leader

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Options configure [Campaign] and [Run].
type Options struct {
	Name      string        // under which one leads; 1–200 bytes
	Candidate string        // this replica, for people to read; 1–200 bytes
	Lease     time.Duration // 1 s–10 min, default 15 s; extended every third of it
	Logger    *slog.Logger  // default: discards
}

const (
	// gap is the least time between two looks: what is heard may be of other names.
	gap = 50 * time.Millisecond
	// longestCall bounds a call to the store, as a third of the lease does.
	longestCall = 5 * time.Second
	// firstPause is between a term that was short and the next campaign; each further one
	// doubles it, up to a lease.
	firstPause = 100 * time.Millisecond
)

func (o *Options) complete() {
	if o.Lease == 0 {
		o.Lease = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("name", o.Name)
}

// call is how long a call to the store may take.
func (o *Options) call() time.Duration { return min(o.Lease/3, longestCall) }

// Campaign waits until it leads, and returns the term. An outage is logged and waited
// for. Who leads is asked about four to eight times in a lease, and at once when somebody
// has resigned.
//
// The term ends with ctx, too. When ctx ends first, Campaign returns its error within a
// third of the lease, and within 5 s, and has resigned if it came to lead meanwhile. Other
// errors: [coord.ErrInvalid], [coord.ErrClosed].
func Campaign(ctx context.Context, elector coord.Elector, o Options) (*Term, error) {
	o.complete()
	return campaign(ctx, elector, o)
}

func campaign(ctx context.Context, elector coord.Elector, o Options) (*Term, error) {
	changes, stop := elector.Changes()
	defer stop()
	// The holder is new: a past term's own must not end before its lease has.
	c := coord.Candidacy{Name: o.Name, Candidate: o.Candidate, Holder: newHolder(), Lease: o.Lease}
	failing := false
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := time.Now()
		// What is under way outlives ctx: were it cut off, nobody might lead for a lease.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.call())
		l, err := elector.Stand(asking, c)
		cancel()
		switch {
		case err == nil && l.Mine:
			t := begin(ctx, elector, o, l.Term, began)
			if err := ctx.Err(); err != nil {
				_ = t.Resign(ctx) // otherwise the end of the lease does
				return nil, err
			}
			o.Logger.InfoContext(ctx, "leading", "epoch", l.Epoch)
			return t, nil
		case errors.Is(err, coord.ErrInvalid), errors.Is(err, coord.ErrClosed):
			return nil, err
		case err != nil && !failing && ctx.Err() == nil:
			o.Logger.WarnContext(ctx, "standing for leadership fails; trying on", "error", err)
		case err == nil && failing:
			o.Logger.InfoContext(ctx, "standing for leadership works again")
		}
		failing = err != nil
		heard := changes
		if failing {
			heard = nil // what is heard is no reason to hammer
		}
		rest(ctx, began, heard, o.Lease/8+rand.N(o.Lease/8))
	}
}

// rest returns when it is time for another look.
func rest(ctx context.Context, looked time.Time, heard <-chan struct{}, pause time.Duration) {
	poll := time.NewTimer(pause)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return
	case <-poll.C:
		return
	case <-heard:
	}
	soon := time.NewTimer(time.Until(looked.Add(gap)))
	defer soon.Stop()
	select {
	case <-ctx.Done():
	case <-soon.C:
	}
}

// Run leads whenever it can: it campaigns, calls lead with the term and its context, and
// resigns when lead has returned, or panicked. Then it campaigns again, after a pause that
// grows from 100 ms up to a lease while terms are shorter than one. It returns nil when ctx
// has ended and lead has returned, and otherwise what Campaign does. An error of lead is
// logged.
func Run(ctx context.Context, elector coord.Elector, o Options, lead func(ctx context.Context, t *Term) error) error {
	o.complete()
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, o.Lease) {
		t, err := campaign(ctx, elector, o)
		if err != nil && ctx.Err() == nil {
			return err
		}
		began := time.Now()
		if err == nil {
			t.lead(ctx, lead)
		}
		if time.Since(began) >= o.Lease {
			pause = firstPause
		}
		rest(ctx, began, nil, pause/2+rand.N(pause/2))
	}
	return nil
}

// lead leads for one term.
func (t *Term) lead(ctx context.Context, lead func(ctx context.Context, t *Term) error) {
	defer func() { // also when lead panics
		if err := t.Resign(ctx); err != nil {
			t.o.Logger.WarnContext(ctx, "resigning failed; the lease will end", "epoch", t.Epoch, "error", err)
		}
	}()
	err := lead(t.Context(), t)
	lost := errors.Is(context.Cause(t.Context()), coord.ErrFenced)
	switch {
	case lost:
		t.o.Logger.WarnContext(ctx, "lost the lead", "epoch", t.Epoch)
	case err != nil && ctx.Err() == nil:
		t.o.Logger.WarnContext(ctx, "leading failed", "epoch", t.Epoch, "error", err)
	}
}
