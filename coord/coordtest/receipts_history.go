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

// receiptAction is what a caller does to one key.
type receiptAction struct {
	verb   string // begin, complete, extend, release or advance
	holder int
	token  int64 // of what a hold allows
	text   string
	began  time.Duration // what the clock showed at least when it began
}

type receiptReply struct {
	outcome
	state coord.ReceiptState // of a begin
	token int64
	text  string
}

// receiptKeep is how long an outcome is kept: three ticks and a bit.
const receiptKeep = 3*tick + time.Second

// receiptModelState is one key as the model sees it. Its clock is its own, moved by the
// same advances.
type receiptModelState struct {
	state  coord.ReceiptState // held, done, or none: it is free
	holder int
	token  int64 // the last that is known
	secret bool  // the hold has a token that nobody has seen yet
	text   string
	until  time.Duration
	now    time.Duration
}

// step returns the states that a key can be in after an action that was answered so. The
// action has read the clock at some time since it began.
func (s receiptModelState) step(a receiptAction, r receiptReply) (states []any) {
	if a.verb == "advance" {
		s.now += tick
		return []any{s}
	}
	if r.outcome == noAnswer {
		states = append(states, s)
	}
	for now := a.began; now <= s.now; now += tick {
		next, want := s.do(a, now)
		switch {
		case r.outcome == noAnswer:
		case want.state == coord.ReceiptMine && next.secret && r.state == coord.ReceiptMine:
			if r.token <= s.token {
				continue
			}
			next.token, next.secret = r.token, false
		case r != want:
			continue
		}
		states = append(states, next)
	}
	return states
}

// do returns what an action makes of a key at that time, and what it answers.
func (s receiptModelState) do(a receiptAction, now time.Duration) (next receiptModelState, want receiptReply) {
	next = s
	if a.verb == "begin" {
		want = receiptReply{outcome: done, state: s.state}
		switch {
		case s.state == "" || s.until <= now:
			next.state, next.holder, next.secret = coord.ReceiptHeld, a.holder, true
			want.state = coord.ReceiptMine
		case s.state == coord.ReceiptDone:
			want.token, want.text = s.token, s.text
			return next, want
		case s.holder != a.holder:
			return next, want
		default:
			want.state, want.token = coord.ReceiptMine, s.token
		}
		next.until = now + lease
		return next, want
	}
	if s.state != coord.ReceiptHeld || s.secret || s.token != a.token {
		return next, receiptReply{outcome: notThere}
	}
	switch a.verb {
	case "extend":
		next.until = now + lease
	case "release":
		next.state = ""
	case "complete":
		next.state, next.text, next.until = coord.ReceiptDone, a.text, now+receiptKeep
	}
	return next, receiptReply{outcome: done}
}

var receiptModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{receiptModelState{}} },
	Step: func(state, input, output any) []any {
		return state.(receiptModelState).step(input.(receiptAction), output.(receiptReply))
	},
	DescribeOperation: func(input, output any) string {
		a, r := input.(receiptAction), output.(receiptReply)
		if a.verb == "advance" {
			return fmt.Sprintf("the clock advances by %v", tick)
		}
		return fmt.Sprintf("%s by %d with token %d %s → %v, %s, token %d %s", a.verb, a.holder, a.token, a.text, r.outcome, r.state, r.token, r.text)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// receiptHistory lets callers hold a few keys, extend, release and complete them by any
// hold that one of them got, while the clock moves.
func receiptHistory(f *fixture) {
	const keys, callers, times = 6, 6, 48
	all := make([]int, keys)
	for i := range all {
		all[i] = i
	}
	handles, r := f.faultyHandles(71), newRecorder()
	var mu sync.Mutex
	clock := time.Duration(0)
	holds := make(map[int][]coord.Receipt) // that were got of each key
	f.together(callers, func(caller int, _ coord.Backend) {
		random := rand.New(rand.NewPCG(81, uint64(caller)))
		b := handles[caller%2]
		for k := range times {
			i := random.IntN(keys)
			a := receiptAction{holder: caller, text: fmt.Sprintf("%d.%d", caller, k)}
			var held coord.Receipt
			mu.Lock()
			a.began = clock
			if got := holds[i]; len(got) > 0 {
				held = got[len(got)-1-random.IntN(min(len(got), 2))]
			}
			mu.Unlock()
			a.token = held.Token
			end := func(verb string, call func() error) {
				a.verb = verb
				r.record(caller, a, []int{i}, func() (any, bool) {
					out, answered := f.answered(verb, call())
					return receiptReply{outcome: out}, answered
				})
			}
			o := coord.ReceiptOutcome{Body: []byte(a.text)}
			switch p := random.IntN(40); {
			case p < 3:
				r.record(caller, receiptAction{verb: "advance"}, all, func() (any, bool) {
					mu.Lock() // one at a time
					defer mu.Unlock()
					f.store.Advance(tick)
					clock += tick
					return receiptReply{outcome: done}, true
				})
			case held.Token == 0 || p < 22:
				a.verb, a.token, a.text = "begin", 0, ""
				r.record(caller, a, []int{i}, func() (any, bool) {
					asked := order(fmt.Sprint(i), fmt.Sprint(caller))
					asked.Keep = receiptKeep
					got, err := b.Receipts().Begin(f.ctx, asked)
					out, answered := f.answered("Begin", err)
					if got.State == coord.ReceiptMine {
						mu.Lock()
						defer mu.Unlock()
						holds[i] = append(holds[i], got)
					}
					return receiptReply{out, got.State, got.Token, string(got.Outcome.Body)}, answered
				})
			case p < 27:
				end("extend", func() error {
					_, err := b.Receipts().Extend(f.ctx, held, lease)
					return err
				})
			case p < 32:
				end("release", func() error { return b.Receipts().Release(f.ctx, held) })
			case p < 37:
				end("complete", func() error { return b.Receipts().Complete(f.ctx, held, o) })
			default:
				end("complete", func() error {
					return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.CompleteReceipt(ctx, held, o) })
				})
			}
		}
	})
	r.check(f, receiptModel)
}

// doHistory has many ask for the same, through faults, with functions that succeed, fail
// and can't say: whoever hears an outcome hears the one that is stored, and what was
// done together with it was done once.
func doHistory(f *fixture) {
	const keys, callers = 6, 12
	rates := Rates{Fail: 0.1, Cut: 0.15, Delay: 0.3, MaxDelay: time.Millisecond}
	handles := []coord.Backend{Faulty(f.one, Random(91, rates)), Faulty(f.two, Random(92, rates))}
	var mu sync.Mutex
	heard := make(map[int]map[string]bool)
	f.together(callers, func(caller int, _ coord.Backend) {
		b := handles[caller%2]
		for k := range keys {
			k = (k + caller) % keys
			topic, mine := fmt.Sprint(k), fmt.Sprint(caller)
			for tries := 0; ; tries++ {
				asked := order(topic, "")
				asked.Lease = time.Second // so that a hold whose answers are all lost is soon free
				o, _, err := coord.Do(f.ctx, b.Receipts(), asked, func(ctx context.Context, held coord.Receipt) ([]byte, error) {
					if (tries+caller)%3 == 0 {
						return nil, fmt.Errorf("later: %w", coord.ErrTransient)
					}
					return nil, b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
						if err := tx.Publish(ctx, event(topic, mine)); err != nil {
							return err
						}
						return tx.CompleteReceipt(ctx, held, coord.ReceiptOutcome{Body: []byte(mine), Error: "by " + mine})
					})
				})
				if err == nil {
					mu.Lock()
					if heard[k] == nil {
						heard[k] = make(map[string]bool)
					}
					heard[k][string(o.Body)+o.Error] = true
					mu.Unlock()
					break
				}
				if !errors.Is(err, coord.ErrUnavailable) && !errors.Is(err, coord.ErrTransient) && !errors.Is(err, coord.ErrFenced) {
					f.Errorf("Do: %v", err)
					return
				}
				if f.ctx.Err() != nil {
					f.Errorf("Do does not come to an end: %v", err)
					return
				}
				f.store.Advance(2 * time.Second) // whose answer was lost may hold the key
			}
		}
	})
	for k := range keys {
		equal(f, fmt.Sprintf("how many outcomes of key %d were heard of", k), len(heard[k]), 1)
		events := f.read(fmt.Sprint(k), coord.Start, 10)
		equal(f, fmt.Sprintf("how many effects there are under key %d", k), len(events), 1)
		if text := string(events[0].Payload); !heard[k][text+"by "+text] {
			f.Errorf("the effect under key %d is %s's; heard was %v", k, text, heard[k])
		}
	}
}
