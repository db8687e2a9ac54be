package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
)

const lease = 15 * time.Second

// trusted is how long a term is good for that is not extended.
const trusted = lease - lease/10

// spy stands between a campaign and a store, and notes and refuses calls.
type spy struct {
	coord.Elector
	deaf bool // nobody hears of changes

	mu     sync.Mutex
	calls  map[string]int
	before func(ctx context.Context, call string) error // may refuse a call
	after  func(ctx context.Context, call string) error // may lose an answer
}

func (s *spy) hook(before, after func(ctx context.Context, call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *spy) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

func (s *spy) meet(ctx context.Context, name string, call func() error) error {
	s.mu.Lock()
	s.calls[name]++
	before, after := s.before, s.after
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, name); err != nil {
			return err
		}
	}
	err := call()
	if after != nil {
		if err := after(ctx, name); err != nil {
			return err
		}
	}
	return err
}

func (s *spy) Stand(ctx context.Context, c coord.Candidacy) (l coord.Leadership, err error) {
	err = s.meet(ctx, "stand", func() (err error) {
		l, err = s.Elector.Stand(ctx, c)
		return err
	})
	return l, err
}

func (s *spy) Extend(ctx context.Context, t coord.Term, lease time.Duration) (l coord.Leadership, err error) {
	err = s.meet(ctx, "extend", func() (err error) {
		l, err = s.Elector.Extend(ctx, t, lease)
		return err
	})
	return l, err
}

func (s *spy) Resign(ctx context.Context, t coord.Term) error {
	return s.meet(ctx, "resign", func() error { return s.Elector.Resign(ctx, t) })
}

func (s *spy) Changes() (<-chan struct{}, func()) {
	if s.deaf {
		return nil, func() {}
	}
	return s.Elector.Changes()
}

// env is a store in memory, whose clock can step, in a synctest bubble.
type env struct {
	*testing.T
	coord.Backend
	*spy
	log  logBook
	step atomic.Int64
}

func bubble(t *testing.T, test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{T: t}
		e.Backend = memory.Open(memory.Options{Now: func() time.Time { return time.Now().Add(time.Duration(e.step.Load())) }})
		e.spy = &spy{Elector: e.Elector(), calls: make(map[string]int)}
		test(e)
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// Elector is that of the backend, not of the spy.
func (e *env) Elector() coord.Elector { return e.Backend.Elector() }

func (e *env) options(who string) Options {
	return Options{Name: "office", Candidate: who, Lease: lease, Logger: slog.New(slog.NewTextHandler(&e.log, nil))}
}

// leads campaigns and must lead within a time.
func (e *env) leads(ctx context.Context, who string, within time.Duration) *Term {
	e.Helper()
	began := time.Now()
	t, err := Campaign(ctx, e.spy, e.options(who))
	if err != nil {
		e.Fatalf("the campaign of %s: %v", who, err)
	}
	if took := time.Since(began); took > within {
		e.Errorf("%s leads after %v, want at most %v", who, took, within)
	}
	return t
}

// write is what a leader does in the store.
func (e *env) write(t coord.Term) error {
	return e.InTx(e.Context(), func(ctx context.Context, tx coord.Tx) error {
		if err := tx.Fence(ctx, t); err != nil {
			return err
		}
		return tx.Publish(ctx, coord.NewEvent{Topic: t.Name, Kind: "k"})
	})
}

func (e *env) lasts(why string, t *Term) {
	e.Helper()
	if err := t.Context().Err(); err != nil {
		e.Errorf("%s the term is over: %v", why, context.Cause(t.Context()))
	}
	if err := e.write(t.Term); err != nil {
		e.Errorf("%s: writing: %v", why, err)
	}
}

// isOver checks that a term is over in this process, and for the store.
func (e *env) isOver(why string, t *Term, cause error) {
	e.Helper()
	if got := context.Cause(t.Context()); !errors.Is(got, cause) {
		e.Errorf("%s the term's cause is %v, want %v", why, got, cause)
	}
	if err := e.write(t.Term); !errors.Is(err, coord.ErrFenced) {
		e.Errorf("%s: writing: %v, want ErrFenced", why, err)
	}
}

func (e *env) resign(t *Term) {
	e.Helper()
	if err := t.Resign(e.Context()); err != nil {
		e.Errorf("Resign: %v", err)
	}
}

// endsAfter waits for a term to end, and checks when that is.
func (e *env) endsAfter(began time.Time, want time.Duration, t *Term) {
	e.Helper()
	<-t.Context().Done()
	if took := time.Since(began); took != want {
		e.Errorf("the term ended after %v, want %v", took, want)
	}
}

// logBook is a log that may be read while it is written.
type logBook struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *logBook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

func untilDone(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func only(call string, do func(ctx context.Context, call string) error) func(context.Context, string) error {
	return func(ctx context.Context, c string) error {
		if c == call {
			return do(ctx, c)
		}
		return nil
	}
}

var errAway = fmt.Errorf("test: %w", coord.ErrUnavailable)

func away(context.Context, string) error { return errAway }

func TestTermLastsUntilItIsResigned(t *testing.T) {
	bubble(t, func(e *env) {
		term := e.leads(e.Context(), "ada", 0)
		waiting, cancel := context.WithTimeout(e.Context(), time.Hour)
		defer cancel()
		if other, err := Campaign(waiting, e.spy, e.options("bob")); !errors.Is(err, context.DeadlineExceeded) {
			e.Errorf("another campaign beside the leader: %v, %v", other, err)
		}
		e.lasts("after an hour", term)
		// One at once, and then between four and eight in a lease.
		if n, leases := e.count("stand")-2, int(time.Hour/lease); n < 4*leases || n > 8*leases+1 {
			e.Errorf("who leads was asked %d times in an hour", n)
		}
		if n := e.count("extend"); n < 700 || n > 720 {
			e.Errorf("the lease was extended %d times in an hour, want every third of it", n)
		}
		e.resign(term)
		e.isOver("after Resign", term, context.Canceled)
		e.resign(term) // which does no harm
	})
}

// The shortest lease is extended soon enough when each answer takes as long as it may.
func TestShortestLeaseHolds(t *testing.T) {
	bubble(t, func(e *env) {
		o := e.options("ada")
		o.Lease = time.Second
		e.hook(only("extend", func(context.Context, string) error {
			time.Sleep(o.Lease/3 - time.Millisecond)
			return nil
		}), nil)
		term, err := Campaign(e.Context(), e.spy, o)
		if err != nil {
			e.Fatal(err)
		}
		time.Sleep(time.Hour)
		e.lasts("after an hour", term)
		e.resign(term)
	})
}

func TestExtensionThatHangs(t *testing.T) {
	for name, hang := range map[string]func(context.Context, string) error{
		"until it is cancelled": untilDone,
		"for longer than that":  func(context.Context, string) error { time.Sleep(2 * lease); return errAway },
		"not, but fails":        away,
		"not, but has no effect": func(context.Context, string) error {
			return fmt.Errorf("test: %w", coord.ErrUnknownOutcome)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				slow := func(context.Context, string) error { time.Sleep(2 * time.Second); return nil }
				began := time.Now()
				e.hook(only("extend", hang), slow)
				first := e.leads(e.Context(), "ada", 2*time.Second)
				e.endsAfter(began, trusted, first)

				e.hook(nil, slow)
				time.Sleep(lease)
				began = time.Now()
				term := e.leads(e.Context(), "ada", 2*time.Second)
				time.Sleep(4*lease/3 - time.Millisecond - time.Since(began)) // three extensions
				e.hook(only("extend", hang), nil)
				e.endsAfter(began.Add(lease), trusted, term)
				if e.write(term.Term) != nil {
					e.Error("for the store the term must last for another moment")
				}
				e.hook(nil, nil)
				time.Sleep(lease - trusted)
				e.isOver("when the lease has ended", term, coord.ErrFenced)
				e.resign(term)
				time.Sleep(2 * lease) // until what hangs has ended
			})
		})
	}
}

// One extension may fail without harm.
func TestExtensionIsTriedAgain(t *testing.T) {
	bubble(t, func(e *env) {
		var n atomic.Int64
		e.hook(only("extend", func(ctx context.Context, call string) error {
			if n.Add(1)%2 == 1 {
				return untilDone(ctx, call)
			}
			return nil
		}), nil)
		term := e.leads(e.Context(), "ada", 0)
		time.Sleep(time.Hour)
		e.lasts("after an hour in which every other extension hung", term)
		e.resign(term)
	})
}

func TestPastLeaderWinsAgain(t *testing.T) {
	bubble(t, func(e *env) {
		first := e.leads(e.Context(), "ada", 0)
		e.hook(only("extend", away), nil)
		<-first.Context().Done()
		e.hook(nil, nil)
		second := e.leads(e.Context(), "ada", lease-trusted+lease/4)
		if second.Epoch <= first.Epoch {
			e.Errorf("the epoch %d came after %d", second.Epoch, first.Epoch)
		}
		time.Sleep(10 * lease)
		e.isOver("while its candidate leads again", first, coord.ErrFenced)
		e.resign(first)
		e.lasts("after the one before was resigned", second)
		e.resign(second)
	})
}

func TestElectionAfterResigning(t *testing.T) {
	bubble(t, func(e *env) {
		last := e.leads(e.Context(), "ada", 0)
		for range 20 {
			e.resign(last)
			next := e.leads(e.Context(), "ada", 0) // at once
			e.isOver("after Resign", last, context.Canceled)
			last = next
		}
		time.Sleep(10 * lease)
		e.lasts("after ten leases", last)

		for _, deaf := range []bool{false, true} {
			e.deaf = deaf
			within := gap
			if deaf {
				within = lease / 4
			}
			led := make(chan *Term)
			go func() { led <- e.leads(e.Context(), "bob", time.Hour) }()
			time.Sleep(lease + time.Millisecond)
			resigned := time.Now()
			e.resign(last)
			next := <-led
			if took := time.Since(resigned); took > within {
				e.Errorf("deaf %v: another leads %v after the resignation, want within %v", deaf, took, within)
			}
			if next.Epoch <= last.Epoch {
				e.Errorf("the epoch %d came after %d", next.Epoch, last.Epoch)
			}
			last = next
		}
		e.resign(last)
	})
}

func TestLeaderThatVanishes(t *testing.T) {
	bubble(t, func(e *env) {
		dying, die := context.WithCancel(e.Context())
		term := e.leads(dying, "ada", 0)
		die()
		synctest.Wait()
		if context.Cause(term.Context()) != context.Canceled { //nolint:errorlint // the very error
			e.Errorf("the term of a campaign whose context has ended: %v", context.Cause(term.Context()))
		}
		next := e.leads(e.Context(), "bob", lease+lease/4)
		e.isOver("when another leads", term, context.Canceled)
		e.resign(next)
	})
}

// What ends while a campaign stands may have won.
func TestCancelledCampaign(t *testing.T) {
	for name, hang := range map[string]struct {
		before, after func(context.Context, string) error
	}{
		"before the call": {before: only("stand", untilDone)},
		"after the call": {after: only("stand", func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return ctx.Err()
		})},
		"for long": {after: only("stand", untilDone)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.hook(hang.before, hang.after)
				ctx, cancel := context.WithCancel(e.Context())
				time.AfterFunc(time.Millisecond, cancel)
				began := time.Now()
				term, err := Campaign(ctx, e.spy, e.options("ada"))
				if term != nil || !errors.Is(err, context.Canceled) || time.Since(began) > lease/3 {
					e.Errorf("after %v the campaign returned %v, %v", time.Since(began), term, err)
				}
				leaders, err := e.Leaders(e.Context())
				if lost := name == "for long"; err != nil || lost != (len(leaders) == 1) {
					e.Errorf("who leads then: %v, %v", leaders, err)
				}
				e.hook(nil, nil)
				waiting, cancelWaiting := context.WithCancel(e.Context())
				cancelWaiting()
				stood := e.count("stand")
				if _, err := Campaign(waiting, e.spy, e.options("ada")); !errors.Is(err, context.Canceled) || e.count("stand") != stood {
					e.Errorf("a campaign whose context has ended: %v, and it stood", err)
				}
			})
		})
	}
}

// Resigning works when everything is over, and ends when the store hangs.
func TestResignWithACancelledContext(t *testing.T) {
	bubble(t, func(e *env) {
		ctx, cancel := context.WithCancel(e.Context())
		term := e.leads(ctx, "ada", 0)
		cancel()
		if err := term.Resign(ctx); err != nil {
			e.Error(err)
		}
		next := e.leads(e.Context(), "bob", 0)
		e.hook(untilDone, nil)
		began := time.Now()
		if err := next.Resign(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != lease/3 {
			e.Errorf("Resign while the store hangs: %v after %v", err, time.Since(began))
		}
		time.Sleep(lease)
		e.isOver("when the lease has ended", next, context.Canceled)
	})
}

// A campaign whose answer is lost leads long before the lease ends that nobody knows of.
func TestLostAnswers(t *testing.T) {
	bubble(t, func(e *env) {
		var n atomic.Int64
		e.hook(nil, only("stand", func(context.Context, string) error {
			if n.Add(1) <= 2 {
				return fmt.Errorf("test: %w", coord.ErrUnknownOutcome)
			}
			return nil
		}))
		term := e.leads(e.Context(), "ada", lease/2)
		if term.Epoch != 3 {
			e.Errorf("the epoch is %d; want the third", term.Epoch)
		}
		e.lasts("after two lost answers", term)
		e.resign(term)
	})
}

func TestOutage(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(away, nil)
		time.AfterFunc(10*lease, func() { e.hook(nil, nil) })
		term := e.leads(e.Context(), "ada", 10*lease+lease/4)
		if e.log.count("fails; trying on") != 1 || e.log.count("works again") > 1 || e.log.count("level=WARN") != 1 {
			e.Errorf("the log:\n%s", e.log.all.String())
		}
		e.resign(term)
		for field, o := range map[string]Options{
			"Candidacy.Name":      {Candidate: "ada"},
			"Candidacy.Candidate": {Name: "office"},
			"Candidacy.Lease":     {Name: "office", Candidate: "ada", Lease: -1},
		} {
			_, err := Campaign(e.Context(), e.spy, o)
			if bad, ok := errors.AsType[*coord.InvalidError](err); !ok || bad.Field != field {
				e.Errorf("a campaign whose %s is wrong: %v", field, err)
			}
			if err := Run(e.Context(), e.spy, o, nil); !errors.Is(err, coord.ErrInvalid) {
				e.Errorf("Run with a %s that is wrong: %v", field, err)
			}
		}
	})
}

// The store's clock steps: the process's own does not.
func TestClockSteps(t *testing.T) {
	bubble(t, func(e *env) {
		dying, die := context.WithCancel(e.Context())
		term := e.leads(dying, "ada", 0)
		e.step.Store(int64(-time.Hour))
		time.Sleep(10 * lease)
		e.lasts("ten leases after a step back", term)
		e.step.Store(int64(-2 * time.Hour))
		die()
		next := e.leads(e.Context(), "bob", lease+lease/2) // a look, and then a lease
		e.isOver("when another leads", term, context.Canceled)
		e.step.Store(0)
		began := time.Now()
		<-next.Context().Done()
		if took := time.Since(began); took > lease/3 {
			e.Errorf("a leader whose lease is over by the store's clock finds out after %v", took)
		}
		e.isOver("after a step forward", next, coord.ErrFenced)
	})
}

// A process stands still between looking at its term and writing. Nothing but the fence
// keeps it from writing then.
func TestFrozenHolder(t *testing.T) {
	bubble(t, func(e *env) {
		e.hook(only("extend", untilDone), nil)
		term := e.leads(e.Context(), "ada", 0)
		if term.Context().Err() == nil {
			time.Sleep(lease)
			if err := e.write(term.Term); !errors.Is(err, coord.ErrFenced) {
				e.Errorf("writing after standing still for a lease: %v", err)
			}
		}
	})
}

// Replicas lead in turns, are cut off, hang and resign. By their own clocks two never lead
// at a time, and what they write is in the order of the terms.
func TestTermsDoNotOverlap(t *testing.T) {
	for seed := range uint64(20) {
		bubble(t, func(e *env) {
			var leading, terms atomic.Int64
			ctx, stop := context.WithTimeout(e.Context(), time.Hour)
			defer stop()
			var replicas sync.WaitGroup
			for i := range 5 {
				b := coordtest.Faulty(memoryOnly{e.Backend}, coordtest.Random(seed*10+uint64(i), coordtest.Rates{
					Fail: 0.2, Cut: 0.2, Delay: 0.5, MaxDelay: 2 * lease / 3,
				}, "elector.stand", "elector.extend", "elector.resign"))
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				replicas.Go(func() {
					err := Run(ctx, b.Elector(), e.options(fmt.Sprint(i)), func(ctx context.Context, term *Term) error {
						if n := leading.Add(1); n != 1 {
							e.Errorf("%d lead at a time", n)
						}
						terms.Add(1)
						end := time.NewTimer(time.Duration(random.Int64N(int64(4 * lease))))
						defer end.Stop()
						select {
						case <-ctx.Done():
						case <-end.C:
						}
						leading.Add(-1) // the very moment at which it hears, or wants to
						if random.IntN(3) == 0 {
							return errors.New("on purpose")
						}
						return nil
					})
					if err != nil {
						e.Errorf("Run: %v", err)
					}
				})
			}
			replicas.Wait()
			if terms.Load() < 20 {
				e.Errorf("there were only %d terms in an hour", terms.Load())
			}
		})
	}
}

// memoryOnly is not closed with what is around it.
type memoryOnly struct{ coord.Backend }

func (memoryOnly) Close(context.Context) error { return nil }

func TestRun(t *testing.T) {
	bubble(t, func(e *env) {
		ctx, stop := context.WithCancel(e.Context())
		var begun []time.Time
		var last coord.Term
		ran := make(chan error)
		began := time.Now()
		go func() {
			ran <- Run(ctx, e.spy, e.options("ada"), func(ctx context.Context, term *Term) error {
				begun = append(begun, time.Now())
				if term.Epoch <= last.Epoch {
					e.Errorf("the epoch %d came after %d", term.Epoch, last.Epoch)
				}
				e.lasts("when it begins", term)
				last = term.Term
				switch len(begun) {
				case 9: // as a leader does that is told to end
					<-ctx.Done()
					time.Sleep(time.Second)
					return ctx.Err()
				case 8:
					time.Sleep(2 * lease)
				}
				if len(begun)%2 == 0 {
					return errors.New("on purpose")
				}
				return nil
			})
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(begun) != 9 {
			e.Fatalf("it led %d times, want 9", len(begun))
		}
		pause := firstPause
		for i, at := range begun[1:8] {
			if took := at.Sub(begun[i]); took < pause/2 || took > pause {
				e.Errorf("between terms %d and %d were %v, want at most %v", i+1, i+2, took, pause)
			}
			pause = min(2*pause, lease)
		}
		if took := begun[8].Sub(begun[7]) - 2*lease; took < firstPause/2 || took > firstPause {
			e.Errorf("after a long term the pause was %v", took)
		}
		if first := begun[0].Sub(began); first != 0 {
			e.Errorf("the first campaign took %v", first)
		}
		stopped := time.Now()
		stop()
		if err := <-ran; err != nil || time.Since(stopped) != time.Second {
			e.Errorf("Run returned %v, %v after it was to stop", err, time.Since(stopped))
		}
		if err := e.write(last); !errors.Is(err, coord.ErrFenced) {
			e.Errorf("writing after Run has returned: %v", err)
		}
		if e.log.count("leading failed") != 4 || e.log.count("on purpose") != 4 {
			e.Errorf("the log:\n%s", e.log.all.String())
		}
		if e.log.count("msg=leading name=office epoch=") != 9 {
			e.Errorf("the log:\n%s", e.log.all.String())
		}

		func() {
			defer func() {
				if p := recover(); p != "on purpose" {
					e.Errorf("the panic came out as %v", p)
				}
			}()
			_ = Run(e.Context(), e.spy, e.options("ada"), func(context.Context, *Term) error { panic("on purpose") })
		}()
		e.resign(e.leads(e.Context(), "bob", 0))
	})
}

func TestRunLosesTheLead(t *testing.T) {
	bubble(t, func(e *env) {
		ctx, stop := context.WithCancel(e.Context())
		terms := 0
		err := Run(ctx, e.spy, e.options("ada"), func(ctx context.Context, term *Term) error {
			if terms++; terms == 2 {
				stop()
				return nil
			}
			e.hook(only("extend", away), nil)
			<-ctx.Done()
			if cause := context.Cause(term.Context()); !errors.Is(cause, coord.ErrFenced) {
				e.Errorf("the cause is %v, want ErrFenced", cause)
			}
			e.hook(nil, nil)
			return ctx.Err()
		})
		if err != nil || terms != 2 || e.log.count("lost the lead") != 1 || e.log.count("leading failed") != 0 {
			e.Errorf("Run: %v after %d terms; the log:\n%s", err, terms, e.log.all.String())
		}
	})
}
