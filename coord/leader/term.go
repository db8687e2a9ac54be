package leader

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Term is a term of this process's own, from [Campaign] or [Run]. Its lease is extended
// until it ends. It is safe for concurrent use.
type Term struct {
	coord.Term

	elector coord.Elector
	o       Options
	ctx     context.Context //nolint:containedctx // what is to end with the term is given it
	cancel  context.CancelCauseFunc
	done    chan struct{} // the last extension has returned
}

// newHolder returns a name that no other holder has.
func newHolder() string { return rand.Text() }

// begin is a term whose lease began then or later.
func begin(ctx context.Context, elector coord.Elector, o Options, of coord.Term, began time.Time) *Term {
	t := &Term{Term: of, elector: elector, o: o, done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	go t.extend(began)
	return t
}

// Context ends with the term: when it was resigned, when the context of [Campaign] has
// ended, and, with the cause [coord.ErrFenced], a tenth of the lease, at most 2 s, before
// the lease can end or when another has been found to lead. Once it has ended it stays so,
// whoever leads later.
func (t *Term) Context() context.Context { return t.ctx }

// Resign ends the term, so that another may begin at once. It tries even if ctx has ended,
// for a third of the lease, at most 5 s. A term that is over already is no error; after any
// error the lease ends by itself.
func (t *Term) Resign(ctx context.Context) error {
	t.cancel(context.Canceled)
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.o.call())
	defer cancel()
	err := t.elector.Resign(asking, t.Term)
	select {
	case <-t.done:
	case <-asking.Done():
	}
	if errors.Is(err, coord.ErrFenced) {
		return nil
	}
	return err
}

// extend extends the lease until the term ends.
func (t *Term) extend(began time.Time) {
	defer close(t.done)
	trusted := func(began time.Time) time.Duration {
		return time.Until(began.Add(t.o.Lease - min(t.o.Lease/10, 2*time.Second)))
	}
	fence := time.AfterFunc(trusted(began), func() { t.cancel(coord.ErrFenced) })
	defer fence.Stop()
	next := time.NewTimer(time.Until(began.Add(t.o.Lease / 3)))
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-t.ctx.Done():
			return
		}
		began := time.Now()
		asking, cancel := context.WithTimeout(t.ctx, t.o.call())
		_, err := t.elector.Extend(asking, t.Term, t.o.Lease)
		cancel()
		switch {
		case err == nil:
			fence.Reset(trusted(began))
			next.Reset(time.Until(began.Add(t.o.Lease / 3)))
		case errors.Is(err, coord.ErrFenced):
			t.cancel(coord.ErrFenced)
		default:
			next.Reset(t.o.Lease / 20)
		}
	}
}
