package coord

import (
	"context"
	"time"
)

// Observer hears of every operation of a [Backend] when it ends. It must be
// quick and safe for concurrent use.
type Observer interface {
	Observe(ctx context.Context, o Observation)
}

// Observation is one operation that ended, or "listener.restart": the connection on
// which a driver hears of other replicas' news was lost, or given up since nothing came
// on it, Took after the last that did. Until there is another such news is polled.
type Observation struct {
	Op    string        // such as "claimer.claim"; a small fixed set
	Items int           // how many runs, events, decisions … it was about; of a claim, what was claimed
	Err   error         // as the caller got it; nil: it succeeded
	Took  time.Duration // by the monotonic clock
}

// ListenerObserver is an [Observer] that is also told whether other replicas' news is heard of
// at once. It is told when a driver knows that, and when it changes.
type ListenerObserver interface {
	Observer
	// Listening reports that the replica hears of news at once, or why it polls for it.
	Listening(ctx context.Context, problem error)
}
