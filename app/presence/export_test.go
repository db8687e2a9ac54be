package presence

import (
	"context"
	"time"
)

// The steps of Run, for tests in which they come when they are to.

// Beat is one heartbeat.
func (s *Service) Beat(ctx context.Context) { s.beat(ctx) }

// Sweep sweeps once.
func (s *Service) Sweep(ctx context.Context) { s.sweep(ctx) }

// Check looks for what was announced wrongly.
func (s *Service) Check(ctx context.Context) { s.check(ctx) }

// Announce announces all that there is to announce.
func (s *Service) Announce(ctx context.Context) {
	for s.announce(ctx, time.Now().Add(time.Minute)) {
	}
}

// Waiting is of how many people something is still to be announced.
func (s *Service) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}
