package stand

import (
	"context"
	"sync"
	"time"
)

// Watch asks replicas all the time whether they are ready.
type Watch struct {
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	since   map[*Replica]time.Time // when one that is not ready was first found so
	longest map[*Replica]time.Duration
}

// watchPause is between two questions.
const watchPause = 200 * time.Millisecond

// WatchReady begins to ask the replicas, until Stop or the end of ctx.
func (s *Stand) WatchReady(ctx context.Context) *Watch {
	ctx, end := context.WithCancel(ctx)
	w := &Watch{end: end, since: make(map[*Replica]time.Time), longest: make(map[*Replica]time.Duration)}
	for _, r := range s.Replicas {
		w.running.Go(func() {
			for Pause(ctx, watchPause) == nil {
				began := time.Now()
				if ready := r.Ready(ctx); ctx.Err() == nil {
					w.note(r, ready, began)
				}
			}
		})
	}
	return w
}

func (w *Watch) note(r *Replica, ready bool, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if since, away := w.since[r]; away {
		w.longest[r] = max(w.longest[r], at.Sub(since))
	} else if !ready {
		w.since[r] = at
		w.longest[r] = max(w.longest[r], 1)
	}
	if ready {
		delete(w.since, r)
	}
}

// Away is the longest time for which a replica was not ready so far, 0 when it always was.
func (w *Watch) Away(r *Replica) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.longest[r]
}

// Stop ends the questions.
func (w *Watch) Stop() {
	w.end()
	w.running.Wait()
}
