//go:build unix

package checker

import (
	"context"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// brief is the longest pause between events of a round.
const brief = 5 * time.Millisecond

// rounds are what goes wrong once more, alone. In each round every quiet room gets one event, and whoever
// does not get it then does not get it at all: nothing follows that would tell of a hole, and no client is
// connected anew unless the round does that.
func (s *storm) rounds() {
	p := &publisher{t: s.T, name: "round", backend: s.backend, ledger: s.ledger, rng: s.random(2)}
	// What the database says now and then comes late, and what was published meanwhile has come before.
	s.late(100 * time.Millisecond)
	for range 3 + s.length/(10*time.Second) {
		s.round("subscriptions while events are published", func() { s.resubscribe(func() { s.publishOnce(p, s.quiet, 6*brief) }) })
	}
	s.late(0)
	s.round("a replica is killed", func() {
		s.kills.Add(1)
		s.replicas[0].kill()
		s.publishOnce(p, s.quiet, brief)
		s.replicas[0].start()
	})
	if s.driver == "sqlite" {
		return
	}
	s.lateCommits(p)
	each := func(do func(r *replica)) {
		for _, r := range s.replicas {
			do(r)
		}
	}
	for range 3 {
		s.round("backends are terminated", func() {
			each(func(r *replica) { s.terminate(r, "work", 1) })
			s.publishOnce(p, s.quiet, brief)
		})
	}
	s.round("connections to the database are cut", func() {
		each(func(r *replica) { s.cut(r.work, nil) })
		s.publishOnce(p, s.quiet, brief)
	})
	s.round("listeners are terminated", func() {
		each(func(r *replica) { s.terminate(r, "listen", 1) })
		s.publishOnce(p, s.quiet, brief)
	})
	each(func(r *replica) { r.listen.freeze() })
	s.freezes.Add(int64(len(s.replicas)))
	s.round("listeners are half open", func() { s.publishOnce(p, s.quiet, brief) })
	each(func(r *replica) { r.listen.thaw() })
	s.round("all is well", func() { s.publishOnce(p, s.quiet, brief) })
}

// late makes answers of the database come late now and then.
func (s *storm) late(d time.Duration) {
	for _, r := range s.replicas {
		if r.work != nil {
			r.work.late.Store(int64(d))
		}
	}
}

func (s *storm) round(what string, do func()) {
	if s.Failed() {
		return // what went wrong is told already, and to wait again tells no more
	}
	began := time.Now()
	do()
	if caughtUp(s.T, what, s.followers, heads(s.T, s.backend)) {
		s.Logf("%s: caught up after %v", what, time.Since(began).Round(time.Millisecond))
	}
}

// publishOnce publishes an event in each of some rooms, in transactions and outside of them.
func (s *storm) publishOnce(p *publisher, rooms []room, pause time.Duration) {
	for i := range rooms {
		one := coord.NewEvent{Topic: rooms[i].topic(), Kind: "checker.once", Payload: []byte(`{}`)}
		var err error
		if p.rng.IntN(2) == 0 {
			_, err = s.backend.Broadcaster().Publish(s.done, one)
		} else {
			err = s.backend.InTx(s.done, func(ctx context.Context, tx coord.Tx) error { return tx.Publish(ctx, one) })
		}
		if err != nil {
			s.Errorf("publish: %v", err)
			return
		}
		wait(s.done, time.Duration(p.rng.Int64N(int64(pause))))
	}
}

// lateCommits has transactions that are open while later ones commit and are seen.
func (s *storm) lateCommits(p *publisher) {
	if s.Failed() {
		return
	}
	const late = 3
	numbered := make(chan struct{}, late)
	commit := make(chan struct{})
	var open sync.WaitGroup
	defer open.Wait()
	for _, r := range s.quiet[:late] {
		open.Go(func() {
			err := s.backend.InTx(s.done, func(ctx context.Context, tx coord.Tx) error {
				err := takeNumber(ctx, tx)
				numbered <- struct{}{}
				if err != nil {
					return err
				}
				<-commit
				return tx.Publish(ctx, coord.NewEvent{Topic: r.topic(), Kind: "checker.late", Payload: []byte(`{}`)})
			})
			if err != nil {
				s.Errorf("a transaction that commits late: %v", err)
			}
		})
	}
	for range late {
		<-numbered
	}
	s.round("commits of transactions that are not the oldest", func() { s.publishOnce(p, s.quiet[late:], brief) })
	close(commit)
	open.Wait()
	s.round("late commits", func() {})
}

// resubscribe lets all clients give up their quiet rooms, so that no replica follows one, and come
// back to them while something is done.
func (s *storm) resubscribe(meanwhile func()) {
	given := make([]map[string]coord.Position, len(s.followers))
	s.all(func(i int, f *follower, _ context.Context) {
		given[i] = make(map[string]coord.Position)
		for _, r := range s.quiet {
			if f.follows(r.topic()) {
				given[i][r.topic()] = f.unsubscribe(r.topic())
			}
		}
	})
	var doing sync.WaitGroup
	doing.Go(meanwhile)
	s.all(func(i int, f *follower, ctx context.Context) { f.subscribe(ctx, given[i]) })
	doing.Wait()
}

// all does something with every follower at the same time.
func (s *storm) all(what func(i int, f *follower, ctx context.Context)) {
	var doing sync.WaitGroup
	for i, f := range s.followers {
		doing.Go(func() { f.do(s.done, func(ctx context.Context) { what(i, f, ctx) }) })
	}
	doing.Wait()
}
