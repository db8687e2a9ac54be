package coordtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tandemhq/tandem/coord"
)

// electorAction is what a caller does under one name.
type electorAction struct {
	verb   string // stand, extend, resign, write, look or advance
	holder int
	epoch  int64         // of what a term allows
	began  time.Duration // what the clock showed at least when it began
}

type electorReply struct {
	outcome
	mine   bool
	epoch  int64 // of who leads
	writes int64 // of a look
}

// electorModelState is one name as the model sees it. Its clock is its own, moved by the
// same advances.
type electorModelState struct {
	holder int
	epoch  int64 // the last that is known
	secret bool  // the term has an epoch that nobody has seen yet
	leads  bool  // the last term was not resigned
	until  time.Duration
	writes int64
	now    time.Duration
}

// step returns the states that a name can be in after an action that was answered so. The
// action has read the clock at some time since it began.
func (s electorModelState) step(a electorAction, r electorReply) (states []any) {
	if a.verb == "advance" {
		s.now += tick
		return []any{s}
	}
	if r.outcome == noAnswer {
		states = append(states, s)
	}
	for now := a.began; now <= s.now; now += tick {
		for _, p := range s.do(a, now) {
			switch {
			case r.outcome == noAnswer:
			case r.outcome != p.outcome || r.mine != p.mine || r.writes != p.writes:
				continue
			case p.next.secret && a.verb == "stand": // now it is seen
				if r.epoch <= s.epoch {
					continue
				}
				p.next.epoch, p.next.secret = r.epoch, false
			case r.epoch != p.epoch:
				continue
			}
			states = append(states, p.next)
		}
	}
	return states
}

// electorPossible is one thing that a call can do, and its answer.
type electorPossible struct {
	electorReply
	next electorModelState
}

// do returns all that an action can do at that time.
func (s electorModelState) do(a electorAction, now time.Duration) []electorPossible {
	next := s
	switch a.verb {
	case "look":
		return []electorPossible{{electorReply{outcome: done, writes: s.writes}, s}}
	case "stand":
		// It may say that of a leader whose term is over, too: somebody has the row locked.
		follow := electorPossible{electorReply{outcome: done, epoch: s.epoch}, s}
		if s.leads && s.until > now && s.holder != a.holder {
			return []electorPossible{follow}
		}
		next.holder, next.secret, next.leads, next.until = a.holder, true, true, now+lease
		return []electorPossible{follow, {electorReply{outcome: done, mine: true}, next}}
	}
	if !s.leads || s.until <= now || s.secret || s.epoch != a.epoch {
		return []electorPossible{{electorReply{outcome: notThere}, s}}
	}
	switch a.verb {
	case "extend":
		next.until = now + lease
	case "resign":
		next.leads = false
	case "write":
		next.writes++
	}
	return []electorPossible{{electorReply{outcome: done}, next}}
}

var electorHistoryModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{electorModelState{}} },
	Step: func(state, input, output any) []any {
		return state.(electorModelState).step(input.(electorAction), output.(electorReply))
	},
	DescribeOperation: func(input, output any) string {
		a, r := input.(electorAction), output.(electorReply)
		if a.verb == "advance" {
			return fmt.Sprintf("the clock advances by %v", tick)
		}
		return fmt.Sprintf("%s by %d in epoch %d → %v, mine %t, epoch %d, writes %d", a.verb, a.holder, a.epoch, r.outcome, r.mine, r.epoch, r.writes)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// leaderHistory lets callers stand for a few offices, extend, resign and write by any term
// that one of them had, while the clock moves, also within the transactions in which they
// write: so does a leader that stands still at the worst time. What was written is in the
// order of the terms.
func leaderHistory(f *fixture) {
	const offices, callers, times = 5, 6, 48
	all := make([]int, offices)
	for i := range all {
		all[i] = i
	}
	handles, r := f.faultyHandles(101), newRecorder()
	var mu sync.Mutex
	clock := time.Duration(0)
	terms := make(map[int][]coord.Term)
	advance := func(caller int) {
		r.record(caller, electorAction{verb: "advance"}, all, func() (any, bool) {
			mu.Lock() // one at a time
			defer mu.Unlock()
			f.store.Advance(tick)
			clock += tick
			return electorReply{outcome: done}, true
		})
	}
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(111, uint64(caller)))
		b := handles[caller%2]
		for range times {
			i := random.IntN(offices)
			name := fmt.Sprint(i)
			a := electorAction{holder: caller}
			var t coord.Term
			mu.Lock()
			a.began = clock
			if got := terms[i]; len(got) > 0 {
				t = got[len(got)-1-random.IntN(min(len(got), 2))]
			}
			mu.Unlock()
			a.epoch = t.Epoch
			byTerm := func(verb string, call func() error) {
				a.verb = verb
				r.record(caller, a, []int{i}, func() (any, bool) {
					out, answered := f.answered(verb, call())
					return electorReply{outcome: out}, answered
				})
			}
			switch p := random.IntN(40); {
			case p < 2:
				advance(caller)
			case p < 7:
				a.verb = "look"
				r.record(caller, a, []int{i}, func() (any, bool) {
					heads, err := b.Broadcaster().Heads(f.ctx, name)
					out, answered := f.answered("Heads", err)
					return electorReply{outcome: out, writes: heads[name].Seq}, answered
				})
			case t.Epoch == 0 || p < 20:
				a.verb, a.epoch = "stand", 0
				r.record(caller, a, []int{i}, func() (any, bool) {
					l, err := b.Elector().Stand(f.ctx, candidacy(name, fmt.Sprint(caller)))
					out, answered := f.answered("Stand", err)
					if l.Mine {
						mu.Lock()
						defer mu.Unlock()
						terms[i] = append(terms[i], l.Term)
					}
					return electorReply{outcome: out, mine: l.Mine, epoch: l.Epoch}, answered
				})
			case p < 24:
				byTerm("extend", func() error { return second(b.Elector().Extend(f.ctx, t, lease)) })
			case p < 26:
				byTerm("resign", func() error { return b.Elector().Resign(f.ctx, t) })
			default:
				byTerm("write", func() error {
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
						if err := tx.Fence(ctx, t); err != nil {
							return err
						}
						if p < 29 {
							advance(callers + caller)
						}
						return tx.Publish(ctx, event(name, fmt.Sprint(t.Epoch)))
					})
				})
			}
		}
	})
	r.check(f, electorHistoryModel)
	for i := range offices {
		last := int64(0)
		for _, e := range f.read(fmt.Sprint(i), coord.Start, callers*times) {
			var epoch int64
			if _, err := fmt.Sscan(string(e.Payload), &epoch); err != nil || epoch < last {
				f.Errorf("under the name %d a write of epoch %q comes behind one of epoch %d", i, e.Payload, last)
			}
			last = epoch
		}
	}
}
