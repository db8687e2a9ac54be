package coordtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tandemhq/tandem/coord"
)

var historyTests = []test{
	{"redeeming tickets is linearizable", ticketHistory},
	{"claiming and finishing is linearizable", claimHistory},
}

// undecided bounds the search for a linearization; the histories are kept so
// small that it takes milliseconds.
const undecided = 30 * time.Second

// recorder notes what concurrent callers did, per subject, when each call began
// and when it returned.
type recorder struct {
	start time.Time
	mu    sync.Mutex
	ops   map[int][]porcupine.Operation // by subject
}

func newRecorder() *recorder {
	return &recorder{start: time.Now(), ops: make(map[int][]porcupine.Operation)}
}

// record makes a call and notes it for its subjects. A call without an answer
// stays open: it may have taken effect at any time since it began, or never,
// which is the same as at the end of the history.
func (r *recorder) record(client int, input any, subjects []int, call func() (output any, answered bool)) {
	began := time.Since(r.start).Nanoseconds()
	output, answered := call()
	returned := time.Since(r.start).Nanoseconds()
	if !answered {
		returned = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, subject := range subjects {
		r.ops[subject] = append(r.ops[subject], porcupine.Operation{
			ClientId: client, Input: input, Call: began, Output: output, Return: returned,
		})
	}
}

// check fails the test when the history of a subject is not what some sequence
// of the same calls, one at a time, would have given.
func (r *recorder) check(f *fixture, model porcupine.Model) {
	f.Helper()
	for subject, ops := range r.ops {
		result, info := porcupine.CheckOperationsVerbose(model, ops, undecided)
		if result == porcupine.Ok {
			continue
		}
		slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		var lines strings.Builder
		for _, op := range ops {
			until := "never returned"
			if op.Return != math.MaxInt64 {
				until = time.Duration(op.Return).String()
			}
			fmt.Fprintf(&lines, "  caller %d, %v to %s: %s\n", op.ClientId, time.Duration(op.Call), until,
				model.DescribeOperation(op.Input, op.Output))
		}
		drawing := filepath.Join(f.ArtifactDir(), fmt.Sprintf("history-%d.html", subject))
		if err := porcupine.VisualizePath(model, info, drawing); err != nil {
			f.Errorf("drawing the history: %v", err)
		}
		f.Errorf("no order of these calls, one at a time, gives these answers (%s; drawn in %s with go test -artifacts):\n%s",
			result, drawing, lines.String())
	}
}

// faultyHandles are both handles behind faults, so that histories have calls
// without an answer.
func (f *fixture) faultyHandles(seed uint64) []coord.Backend {
	rates := Rates{Fail: 0.03, Cut: 0.05, Delay: 0.5, MaxDelay: 500 * time.Microsecond}
	return []coord.Backend{Faulty(f.one, Random(seed, rates)), Faulty(f.two, Random(seed+1, rates))}
}

type redemption struct {
	ticket int
	fits   bool
}

// answers of a call; the zero answer is none.
type outcome int

const (
	noAnswer outcome = iota
	done
	refused  // it was the wrong use
	notThere // not found, or fenced
)

func (o outcome) String() string {
	return [...]string{"no answer", "done", "refused", "not there or not held"}[o]
}

// ticketModel: the state is whether the ticket is burnt.
var ticketModel = porcupine.Model{
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		burnt, fits := state.(bool), input.(redemption).fits
		switch output.(outcome) {
		case done:
			return !burnt && fits, true
		case refused:
			return !burnt && !fits, true
		case notThere:
			return burnt, true
		}
		return true, true
	},
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("redeem for the right use: %v → %v", input.(redemption).fits, output)
	},
}

func ticketHistory(f *fixture) {
	const tickets, callers = 12, 8
	var secrets []string
	for i := range tickets {
		secrets = append(secrets, f.issue(f.one, pass(fmt.Sprint("s", i))).Secret)
	}
	handles, r := f.faultyHandles(11), newRecorder()
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(21, uint64(caller)))
		for _, i := range random.Perm(tickets) {
			in := redemption{i, random.IntN(5) > 0}
			use := using(pass(""))
			if !in.fits {
				use.Origin = "https://evil.example"
			}
			r.record(caller, in, []int{i}, func() (any, bool) {
				_, err := handles[caller%2].Tickets().Redeem(f.ctx, secrets[i], use)
				switch {
				case err == nil:
					return done, true
				case errors.Is(err, coord.ErrConflict):
					return refused, true
				case errors.Is(err, coord.ErrNotFound):
					return notThere, true
				case !errors.Is(err, coord.ErrUnavailable):
					f.Errorf("Redeem: %v", err)
				}
				return noAnswer, false
			})
		}
	})
	r.check(f, ticketModel)
}

// action is what a caller does to one run.
type action struct {
	verb  string // claim, extend, succeed, release or advance
	token int64  // for all but claim and advance
	by    time.Duration
}

type reply struct {
	outcome
	token int64 // of a claim that got the run
}

// runState is one run as the model sees it. Its clock is its own, moved by the
// same advances.
type runState struct {
	state      coord.State
	token      int64 // the last that is known
	secret     bool  // a claim without an answer holds it, with a token that nobody knows
	leaseUntil time.Duration
	now        time.Duration
}

func (s runState) held(token int64) bool {
	return s.state == coord.Running && !s.secret && s.token == token
}

func (s runState) expired() bool { return s.state == coord.Running && s.leaseUntil <= s.now }

// step is one call on a run.
func (s runState) step(a action, r reply) (bool, runState) {
	switch a.verb {
	case "advance":
		s.now += a.by
		return true, s
	case "claim":
		return s.claim(a, r)
	}
	held := s.held(a.token)
	switch r.outcome {
	case done:
		if !held {
			return false, s
		}
	case notThere:
		// A lease that ran out and was not taken may still be honoured, or not.
		return !held || s.expired(), s
	case noAnswer:
		if !held {
			return true, s
		}
	}
	switch a.verb {
	case "extend":
		s.leaseUntil = s.now + a.by
	case "succeed":
		s.state = coord.Succeeded
	case "release":
		s.state = coord.Queued
	}
	return true, s
}

func (s runState) claim(a action, r reply) (bool, runState) {
	free := s.state == coord.Queued || s.expired()
	switch {
	case r.outcome == notThere, r.outcome == noAnswer && !free:
		// A claim may pass over a run that another transaction has just locked.
		return true, s
	case !free, r.outcome == done && r.token <= s.token:
		return false, s
	}
	s.state, s.leaseUntil, s.secret = coord.Running, s.now+a.by, r.outcome == noAnswer
	if r.outcome == done {
		s.token = r.token
	}
	return true, s
}

var claimModel = porcupine.Model{
	Init: func() any { return runState{state: coord.Queued} },
	Step: func(state, input, output any) (bool, any) {
		return state.(runState).step(input.(action), output.(reply))
	},
	DescribeOperation: func(input, output any) string {
		a, r := input.(action), output.(reply)
		switch a.verb {
		case "advance":
			return fmt.Sprintf("the clock advances by %v", a.by)
		case "claim":
			return fmt.Sprintf("claim for %v → %v, token %d", a.by, r.outcome, r.token)
		}
		return fmt.Sprintf("%s with token %d → %v", a.verb, a.token, r.outcome)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// claimHistory lets callers claim, extend and end a few runs, each of a kind of
// its own, while the clock moves.
func claimHistory(f *fixture) {
	const runs, callers, calls = 5, 6, 40
	all := make([]int, runs)
	for i := range all {
		all[i] = i
		f.enqueueOne(f.one, coord.NewRun{Kind: fmt.Sprint("k", i), Retry: coord.Retry{MaxAttempts: 100}})
	}
	handles, r := f.faultyHandles(31), newRecorder()
	var clock sync.Mutex // one advance at a time
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(41, uint64(caller)))
		c := handles[caller%2].Claimer()
		held := make(map[int]coord.Claim) // the last claim that this caller had of each run
		for range calls {
			i := random.IntN(runs)
			claim, had := held[i]
			switch p := random.IntN(20); {
			case p == 0:
				r.record(caller, action{verb: "advance", by: lease + time.Second}, all, func() (any, bool) {
					clock.Lock()
					defer clock.Unlock()
					f.store.Advance(lease + time.Second)
					return reply{outcome: done}, true
				})
			case !had || p < 8:
				r.record(caller, action{verb: "claim", by: lease}, []int{i}, func() (any, bool) {
					claims, err := c.Claim(f.ctx, want(fmt.Sprint("k", i), 1))
					out, answered := f.answered("Claim", err)
					if answered && len(claims) == 0 {
						return reply{outcome: notThere}, true
					}
					if !answered {
						return reply{}, false
					}
					held[i] = claims[0]
					return reply{out, claims[0].Token}, true
				})
			case p < 13:
				r.record(caller, action{"extend", claim.Token, lease}, []int{i}, func() (any, bool) {
					_, err := c.Extend(f.ctx, lease, claim)
					out, answered := f.answered("Extend", err)
					return reply{outcome: out}, answered
				})
			default:
				verb, result := "release", coord.Result{Claim: claim, Outcome: coord.Release}
				if p == 19 {
					verb, result.Outcome = "succeed", coord.Succeed
				}
				r.record(caller, action{verb: verb, token: claim.Token}, []int{i}, func() (any, bool) {
					out, answered := f.answered("Finish", c.Finish(f.ctx, result))
					return reply{outcome: out}, answered
				})
			}
		}
	})
	r.check(f, claimModel)
}

// answered tells what an error says of a call's effect.
func (f *fixture) answered(what string, err error) (outcome, bool) {
	switch {
	case err == nil:
		return done, true
	case errors.Is(err, coord.ErrFenced):
		return notThere, true
	case !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
		f.Errorf("%s: %v", what, err)
	}
	return noAnswer, false
}
