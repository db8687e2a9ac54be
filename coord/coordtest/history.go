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
	{"holding and completing receipts is linearizable", receiptHistory},
	{"leading and writing as leader is linearizable", leaderHistory},
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
	refused  // it was the wrong use, or the run has ended
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
	verb  string // claim, extend, report, succeed, release, fail, cancel, look or advance
	token int64  // of what a claim allows
	by    time.Duration
	began time.Duration // what the clock showed at least when the call began
}

// tick is by how much the clock moves.
const tick = lease + time.Second

// sight is what is to be seen of a run.
type sight struct {
	state           coord.State
	attempt, lines  int
	cancelRequested bool
}

type reply struct {
	outcome
	token int64 // of a claim that got the run
	seen  sight // by a look, or of a claim that got the run
}

// runState is one run as the model sees it. Its clock is its own, moved by the
// same advances.
type runState struct {
	sight
	token  int64         // the last that is known
	secret bool          // a claim without an answer holds it, with a token that nobody knows
	at     time.Duration // when it may be claimed, while it has not ended
	now    time.Duration
}

// possible is one thing that a call can do to a run.
type possible struct {
	outcome
	next runState
}

// possibilities are all that a call can do which has read that time on the clock.
// The clock may have moved on since.
func (s runState) possibilities(a action, now time.Duration) []possible {
	next := s
	switch a.verb {
	case "advance":
		next.now += a.by
		return []possible{{done, next}}
	case "look":
		return []possible{{done, s}}
	case "claim":
		return s.claim(a, now)
	case "cancel":
		switch {
		case s.state.Ended():
			return []possible{{refused, s}}
		case s.state == coord.Running:
			next.cancelRequested = true
		}
		if s.state == coord.Queued || s.at <= now { // no worker has it
			next.state = coord.Cancelled
		}
		return []possible{{done, next}}
	}
	if s.state != coord.Running || s.secret || s.token != a.token {
		return []possible{{notThere, s}}
	}
	switch a.verb {
	case "extend":
		next.at = now + a.by
	case "report":
		next.lines++
	case "succeed":
		next.state = coord.Succeeded
	case "release":
		next.attempt--
		next.again(now)
	case "fail":
		next.again(now + a.by)
	}
	if s.at <= now { // a lease that ran out and was not taken may be honoured, or not
		return []possible{{done, next}, {notThere, s}}
	}
	return []possible{{done, next}}
}

// again queues a run that is given back, unless it was asked to stop.
func (s *runState) again(at time.Duration) {
	s.state, s.at = coord.Queued, at
	if s.cancelRequested {
		s.state = coord.Cancelled
	}
}

func (s runState) claim(a action, now time.Duration) []possible {
	next := s
	switch {
	case s.state.Ended() || s.at > now:
		return []possible{{notThere, s}}
	case s.cancelRequested:
		next.state = coord.Cancelled
		return []possible{{notThere, s}, {notThere, next}}
	}
	next.state, next.at, next.secret = coord.Running, now+a.by, true
	next.attempt++
	// It may pass over a run that another transaction has just locked.
	return []possible{{notThere, s}, {done, next}}
}

// step returns the states that a run can be in after a call that was answered so.
func (s runState) step(a action, r reply) (states []any) {
	for now := a.began; now <= s.now; now += tick {
		for _, p := range s.possibilities(a, now) {
			switch {
			case r.outcome == noAnswer:
			case r.outcome != p.outcome:
				continue
			case a.verb == "look" && r.seen != p.next.sight:
				continue
			case a.verb == "claim" && r.outcome == done:
				if r.seen != p.next.sight || r.token <= s.token {
					continue
				}
				p.next.token, p.next.secret = r.token, false
			}
			states = append(states, p.next)
		}
	}
	return states
}

var claimModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{runState{sight: sight{state: coord.Queued}}} },
	Step: func(state, input, output any) []any { return state.(runState).step(input.(action), output.(reply)) },
	DescribeOperation: func(input, output any) string {
		a, r := input.(action), output.(reply)
		switch a.verb {
		case "advance":
			return fmt.Sprintf("the clock advances by %v", a.by)
		case "claim":
			return fmt.Sprintf("claim for %v → %v, token %d, %+v", a.by, r.outcome, r.token, r.seen)
		case "look":
			return fmt.Sprintf("look → %v, %+v", r.outcome, r.seen)
		case "cancel":
			return fmt.Sprintf("cancel → %v", r.outcome)
		}
		return fmt.Sprintf("%s with token %d → %v", a.verb, a.token, r.outcome)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// claimHistory lets callers claim a few runs, each of a kind of its own, and
// extend, report, end and cancel them by any claim that one of them got, while the
// clock moves.
func claimHistory(f *fixture) {
	const runs, callers, calls = 5, 6, 48
	all := make([]int, runs)
	ids := make([]coord.RunID, runs)
	for i := range all {
		all[i] = i
		ids[i] = f.enqueueOne(f.one, coord.NewRun{
			Kind: fmt.Sprint("k", i), Retry: coord.Retry{MaxAttempts: 100, Backoff: time.Second, MaxBackoff: time.Second},
		}).ID
	}
	handles, r := f.faultyHandles(31), newRecorder()
	var mu sync.Mutex
	clock := time.Duration(0)
	claims := make(map[int][]coord.Claim) // that were got of each run
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(41, uint64(caller)))
		b := handles[caller%2]
		c := b.Claimer()
		draw := func(i int) (claim coord.Claim, now time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if got := claims[i]; len(got) > 0 {
				claim = got[len(got)-1-random.IntN(min(len(got), 2))]
			}
			return claim, clock
		}
		for range calls {
			i := random.IntN(runs)
			one := []int{i}
			claim, now := draw(i)
			fencedCall := func(verb string, by time.Duration, call func() error) {
				r.record(caller, action{verb, claim.Token, by, now}, one, func() (any, bool) {
					out, answered := f.answered(verb, call())
					return reply{outcome: out}, answered
				})
			}
			end := func(verb string, o coord.Outcome, by time.Duration) {
				result := coord.Result{Claim: claim, Outcome: o}
				fencedCall(verb, by, func() error {
					if random.IntN(2) == 0 {
						return c.Finish(f.ctx, result)
					}
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Finish(ctx, result) })
				})
			}
			switch p := random.IntN(80); {
			case p < 4:
				r.record(caller, action{verb: "advance", by: tick, began: now}, all, func() (any, bool) {
					mu.Lock() // one at a time
					defer mu.Unlock()
					f.store.Advance(tick)
					clock += tick
					return reply{outcome: done}, true
				})
			case p < 16:
				r.record(caller, action{verb: "look", began: now}, one, func() (any, bool) {
					run, err := c.Run(f.ctx, ids[i])
					out, answered := f.answered("Run", err)
					return reply{outcome: out, seen: seen(run)}, answered
				})
			case claim.Token == 0 || p < 36:
				r.record(caller, action{verb: "claim", by: lease, began: now}, one, func() (any, bool) {
					got, err := c.Claim(f.ctx, want(fmt.Sprint("k", i), 1))
					out, answered := f.answered("Claim", err)
					switch {
					case !answered:
						return reply{}, false
					case len(got) == 0:
						return reply{outcome: notThere}, true
					}
					mu.Lock()
					defer mu.Unlock()
					claims[i] = append(claims[i], got[0])
					return reply{out, got[0].Token, seen(got[0].Run)}, true
				})
			case p < 48:
				fencedCall("extend", lease, func() error {
					_, err := c.Extend(f.ctx, lease, claim)
					return err
				})
			case p < 60:
				report := coord.Report{Claim: claim, Lines: []string{"line"}}
				fencedCall("report", 0, func() error {
					if p%2 == 0 {
						return c.Report(f.ctx, report)
					}
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.Report(ctx, report) })
				})
			case p < 69:
				end("release", coord.Release, 0)
			case p < 78:
				end("fail", coord.Fail, time.Second)
			case p < 79:
				end("succeed", coord.Succeed, 0)
			default:
				r.record(caller, action{verb: "cancel", began: now}, one, func() (any, bool) {
					out, answered := f.answered("Cancel", c.Cancel(f.ctx, ids[i]))
					return reply{outcome: out}, answered
				})
			}
		}
	})
	r.check(f, claimModel)
}

func seen(r coord.Run) sight { return sight{r.State, r.Attempt, r.LogLines, r.CancelRequested} }

// answered tells what an error says of a call's effect.
func (f *fixture) answered(what string, err error) (outcome, bool) {
	switch {
	case err == nil:
		return done, true
	case errors.Is(err, coord.ErrFenced):
		return notThere, true
	case errors.Is(err, coord.ErrConflict):
		return refused, true
	case !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
		f.Errorf("%s: %v", what, err)
	}
	return noAnswer, false
}
