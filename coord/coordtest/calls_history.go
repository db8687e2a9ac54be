package coordtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tandemhq/tandem/coord"
)

// callAction is what a caller does to one call.
type callAction struct {
	verb  string // answer, forge, cancel, get, wait or advance
	text  string // of an end: whose it is
	by    time.Duration
	began time.Duration // what the clock showed at least when it began
}

// callSight is what is to be seen of a call.
type callSight struct {
	state coord.CallState
	text  string // of the end that counts
}

type callReply struct {
	outcome
	expired bool // the call was refused as too late
	seen    callSight
}

// callModelState is one call as the model sees it. Its clock is its own, moved by
// the same advances.
type callModelState struct {
	callSight
	now time.Duration
}

// callTTL is three ticks and a bit.
const callTTL = 3*tick + time.Second

// step returns the states that a call can be in after an action that was answered
// so. The action has read the clock at some time since it began.
func (s callModelState) step(a callAction, r callReply) (states []any) {
	if a.verb == "advance" {
		s.now += a.by
		return []any{s}
	}
	if r.outcome == noAnswer {
		states = append(states, s)
	}
	for now := a.began; now <= s.now; now += tick {
		next, want := s, callReply{outcome: done}
		if s.state == coord.CallOpen && now >= callTTL {
			next.callSight = callSight{state: coord.CallExpired}
		}
		switch {
		case a.verb == "forge":
			// It may have ended the call as expired, and tells nobody of it.
			want.outcome = notThere
		case a.verb == "get" || a.verb == "wait":
			if a.verb == "wait" && next.state == coord.CallOpen {
				continue
			}
			want.seen = next.callSight
		case next.state == coord.CallExpired:
			want = callReply{outcome: refused, expired: true}
		case next.state != coord.CallOpen:
			want = callReply{outcome: refused}
		case a.verb == "answer":
			next.callSight = callSight{coord.CallAnswered, a.text}
		case a.verb == "cancel":
			next.callSight = callSight{coord.CallCancelled, a.text}
		}
		if r.outcome == noAnswer || r == want {
			states = append(states, next)
		}
	}
	return states
}

var callModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{callModelState{callSight: callSight{state: coord.CallOpen}}} },
	Step: func(state, input, output any) []any {
		return state.(callModelState).step(input.(callAction), output.(callReply))
	},
	DescribeOperation: func(input, output any) string {
		a, r := input.(callAction), output.(callReply)
		if a.verb == "advance" {
			return fmt.Sprintf("the clock advances by %v", a.by)
		}
		return fmt.Sprintf("%s %s → %v, too late: %v, %+v", a.verb, a.text, r.outcome, r.expired, r.seen)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// callHistory lets callers answer, forge answers to, cancel and look at a few calls
// while the clock moves and others wait: whatever each of them hears, one end
// counts, for all of them and for good.
func callHistory(f *fixture) {
	const calls, callers, times = 8, 6, 40
	all := make([]int, calls)
	opened := make([]coord.Call, calls)
	for i := range all {
		all[i] = i
		q := question(fmt.Sprint("ada", i))
		q.TTL = callTTL
		opened[i] = f.openCall(f.one, q)
	}
	handles, r := f.faultyHandles(51), newRecorder()
	var mu sync.Mutex
	clock := time.Duration(0)
	advance := func(caller int) {
		mu.Lock() // one at a time
		defer mu.Unlock()
		r.record(caller, callAction{verb: "advance", by: tick}, all, func() (any, bool) {
			f.store.Advance(tick)
			clock += tick
			return callReply{outcome: done}, true
		})
	}
	look := func(caller int, a callAction, i int, get func(ctx context.Context, id coord.CallID) (coord.Call, error)) {
		r.record(caller, a, []int{i}, func() (any, bool) {
			c, err := get(f.ctx, opened[i].ID)
			reply, answered := f.callReply(a.verb, err)
			if answered {
				reply.seen = callSight{c.State, string(c.Result) + c.Error}
			}
			return reply, answered
		})
	}
	var waiters sync.WaitGroup
	for i := range calls {
		for k, b := range f.handles() {
			waiters.Go(func() { look(callers+k, callAction{verb: "wait"}, i, b.Calls().Wait) })
		}
	}
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(61, uint64(caller)))
		b := handles[caller%2]
		for k := range times {
			i := random.IntN(calls)
			mu.Lock()
			a := callAction{text: fmt.Sprintf("%d.%d", caller, k), began: clock}
			mu.Unlock()
			end := func(verb string, call func() error) {
				a.verb = verb
				r.record(caller, a, []int{i}, func() (any, bool) { return f.callReply(verb, call()) })
			}
			answer := coord.Answer{ID: opened[i].ID, Target: opened[i].Target, Result: []byte(a.text)}
			switch p := random.IntN(40); {
			case p < 1:
				advance(caller)
			case p < 24:
				a.verb, a.text = "get", ""
				look(caller, a, i, b.Calls().Get)
			case p < 30:
				answer.Target += "x"
				end("forge", func() error { return b.Calls().Answer(f.ctx, answer) })
			case p < 36:
				end("answer", func() error { return b.Calls().Answer(f.ctx, answer) })
			case p < 38:
				end("cancel", func() error { return b.Calls().Cancel(f.ctx, answer.ID, a.text) })
			default:
				end("cancel", func() error {
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.CancelCall(ctx, answer.ID, a.text) })
				})
			}
		}
	})
	for range 4 { // what nobody has ended expires
		advance(callers)
	}
	waiters.Wait()
	r.check(f, callModel)
}

// callReply tells what an error says of an action's effect.
func (f *fixture) callReply(what string, err error) (callReply, bool) {
	switch {
	case errors.Is(err, coord.ErrExpired):
		return callReply{outcome: refused, expired: true}, true
	case errors.Is(err, coord.ErrNotFound):
		return callReply{outcome: notThere}, true
	}
	out, answered := f.answered(what, err)
	return callReply{outcome: out}, answered
}
