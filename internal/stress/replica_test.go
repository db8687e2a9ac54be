//go:build unix

package stress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

const (
	kind  = "stress"
	lease = 2 * time.Second
)

// replicaEnv makes the test binary a replica; its value is a JSON of replica.
const replicaEnv = "TANDEM_STRESS_REPLICA"

// ready is what a replica prints when it begins to work.
const ready = "ready"

// replica is what a replica must know.
type replica struct {
	Driver, URL, Name string
	Seed              uint64
	Clocks            bool      // notes how clock, zone and times look to it
	Due               time.Time // it makes runs and a task of its own, see ownWork; zero: none

	backend coord.Backend
}

// asReplica works until it is asked to end, and returns the exit code.
func asReplica(text string) int {
	var r replica
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (r *replica) run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if r.backend, err = open(ctx, r.Driver, r.URL); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.backend.Close(context.Background())) }()
	w, err := worker.New(r.backend.Claimer(), worker.Options{
		Name:     r.Name,
		Handlers: map[string]worker.Handler{kind: func(ctx context.Context, run *worker.Run) error { return r.handle(ctx, run.Claim) }},
		// Few, so that what is in the hands of handlers can be written well within a lease, also
		// by a slow machine on the one writer of SQLite.
		Concurrency: 6,
		Lease:       lease,
		Poll:        100 * time.Millisecond,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	if !r.Due.IsZero() {
		if err := r.ownWork(ctx); err != nil {
			return err
		}
	}
	fmt.Println(ready)
	return w.Run(ctx)
}

// conduct is how one execution behaves.
type conduct struct {
	takes   time.Duration
	deaf    bool // goes on when its context has ended
	inTx    bool // finishes its run itself, in a transaction
	outcome coord.Outcome
}

// conductOf depends on nothing but the seed and the claim.
func conductOf(seed uint64, c coord.Claim) conduct {
	rng := rand.New(rand.NewPCG(seed, uint64(c.Run.ID)<<32|uint64(c.Token)))
	d := conduct{
		takes:   5*time.Millisecond + time.Duration(rng.Int64N(int64(195*time.Millisecond))),
		deaf:    rng.IntN(2) == 0,
		inTx:    rng.IntN(2) == 0,
		outcome: coord.Succeed,
	}
	switch n := rng.IntN(20); {
	case n == 0:
		d.outcome = coord.Fail
	case n == 1 && !c.Run.AtMostOnce:
		d.outcome = coord.Snooze
	}
	return d
}

// result is the end of the run.
func (d conduct) result(c coord.Claim) coord.Result {
	r := coord.Result{Claim: c, Outcome: d.outcome}
	switch d.outcome {
	case coord.Fail:
		r.Error = errOnPurpose.Error()
	case coord.Snooze:
		r.Delay = pause
	}
	return r
}

// pause is how long a run is snoozed.
const pause = 30 * time.Millisecond

var errOnPurpose = errors.New("failed on purpose")

// handle executes a run and notes what it does.
func (r *replica) handle(ctx context.Context, c coord.Claim) error {
	how := conductOf(r.Seed, c)
	if err := r.begin(ctx, c); err != nil {
		if ctx.Err() == nil {
			r.must(err)
		}
		return err
	}
	over := time.NewTimer(how.takes)
	defer over.Stop()
	if string(c.Run.Payload) == holds && c.Token == 1 {
		<-ctx.Done()
		return r.gaveUp(ctx, c, ctx.Err())
	}
	alive := ctx
	if how.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-over.C:
	case <-ctx.Done():
		return r.gaveUp(ctx, c, ctx.Err())
	}
	if how.inTx {
		return r.finished(ctx, c, r.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := noteIn(ctx, tx, c, wrote); err != nil {
				return err
			}
			return tx.Finish(ctx, how.result(c))
		}))
	}
	if err := note(ctx, r.backend, c, ended); err != nil {
		return r.gaveUp(ctx, c, err)
	}
	if alive.Err() != nil {
		// A worker would write no more. The store must not depend on that.
		ctx = context.WithoutCancel(ctx)
		return r.finished(ctx, c, r.backend.Claimer().Finish(ctx, how.result(c)))
	}
	switch how.outcome {
	case coord.Fail:
		return errOnPurpose
	case coord.Snooze:
		return worker.Snooze(pause)
	}
	return nil
}

// holds is the payload of a run whose first holder does not end.
const holds = "holds"

// begin notes that an execution has begun, and with it how the times look.
func (r *replica) begin(ctx context.Context, c coord.Claim) error {
	return r.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if err := noteIn(ctx, tx, c, begun); err != nil || !r.Clocks {
			return err
		}
		return r.noteClock(ctx, tx, c)
	})
}

// finished is what a handler returns that has finished its run itself.
func (r *replica) finished(ctx context.Context, c coord.Claim, err error) error {
	switch {
	case err == nil:
		return worker.ErrFinished
	case errors.Is(err, coord.ErrFenced):
		r.must(note(context.WithoutCancel(ctx), r.backend, c, refused))
		return err
	}
	return r.gaveUp(ctx, c, err)
}

// gaveUp notes that a context has ended. Nothing else may go wrong, for the database is
// always there.
func (r *replica) gaveUp(ctx context.Context, c coord.Claim, err error) error {
	if ctx.Err() == nil {
		r.must(err)
	}
	r.must(note(context.WithoutCancel(ctx), r.backend, c, stopped))
	return err
}

// must ends the process on what may not go wrong: the test sees a replica that ended by itself.
func (r *replica) must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "unexpected:", err)
		os.Exit(3)
	}
}
