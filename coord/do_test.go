package coord_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
)

// spyReceipts counts extensions and can lose or delay them, and the answers of Begin.
type spyReceipts struct {
	coord.Receipts
	begun    func() error // runs after a Begin, whose error it may be
	mu       sync.Mutex
	extended int
	extend   func(ctx context.Context) error // runs before an extension, whose error it may be
}

func (s *spyReceipts) Begin(ctx context.Context, r coord.ReceiptFor) (coord.Receipt, error) {
	got, err := s.Receipts.Begin(ctx, r)
	if err == nil && s.begun != nil {
		if err = s.begun(); err != nil {
			got = coord.Receipt{}
		}
	}
	return got, err
}

func (s *spyReceipts) Extend(ctx context.Context, held coord.Receipt, lease time.Duration) (coord.Receipt, error) {
	s.mu.Lock()
	s.extended++
	before := s.extend
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return coord.Receipt{}, err
		}
	}
	return s.Receipts.Extend(ctx, held, lease)
}

// open returns two handles on a store whose clock is that of the bubble.
func open(t *testing.T) (one *spyReceipts, two coord.Receipts) {
	t.Helper()
	store := memory.NewStore(memory.Options{})
	a, b := store.Open(), store.Open()
	t.Cleanup(func() { _ = errors.Join(a.Close(context.Background()), b.Close(context.Background())) })
	return &spyReceipts{Receipts: a.Receipts()}, b.Receipts()
}

var asked = coord.ReceiptFor{Key: "k", Lease: 30 * time.Second}

func TestDoExtendsTheLeaseWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := open(t)
		began := time.Now()
		o, _, err := coord.Do(t.Context(), one, asked, func(ctx context.Context, _ coord.Receipt) ([]byte, error) {
			time.Sleep(5 * time.Minute)
			if got, err := two.Begin(ctx, asked); err != nil || got.State != coord.ReceiptHeld {
				t.Errorf("after 5 minutes: %+v, %v", got, err)
			}
			return []byte("x"), ctx.Err()
		})
		if err != nil || string(o.Body) != "x" || o.Error != "" {
			t.Errorf("Do: %+v, %v", o, err)
		}
		if took := time.Since(began); took != 5*time.Minute {
			t.Errorf("Do took %v", took)
		}
		if one.extended < 25 || one.extended > 31 {
			t.Errorf("the lease of 30 s was extended %d times in 5 minutes", one.extended)
		}
	})
}

// TestDoEndsTheContextBeforeTheLease has extensions fail or hang from some time on.
func TestDoEndsTheContextBeforeTheLease(t *testing.T) {
	for name, away := range map[string]func(ctx context.Context) error{
		"unavailable": func(context.Context) error { return coord.ErrUnavailable },
		"hanging": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two := open(t)
				failing := time.Now().Add(time.Minute)
				one.extend = func(ctx context.Context) error {
					if time.Now().Before(failing) {
						return nil
					}
					return away(ctx)
				}
				_, _, err := coord.Do(t.Context(), one, asked, func(ctx context.Context, _ coord.Receipt) ([]byte, error) {
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, coord.ErrFenced) {
						t.Errorf("the context ended for %v; want ErrFenced", cause)
					}
					if got, err := two.Begin(t.Context(), asked); err != nil || got.State != coord.ReceiptHeld {
						t.Errorf("the lease ended before the context: %+v, %v", got, err)
					}
					return nil, ctx.Err()
				})
				if !errors.Is(err, context.Canceled) || !errors.Is(err, coord.ErrFenced) {
					t.Errorf("Do: %v; want ErrFenced", err)
				}
				if took := time.Since(failing); took < 0 || took > 30*time.Second {
					t.Errorf("the context ended %v after extensions had begun to fail", took)
				}
				if got, err := two.Begin(t.Context(), asked); err != nil || got.State != coord.ReceiptMine {
					t.Errorf("the key is not free: %+v, %v", got, err)
				}
			})
		})
	}
}

// TestDoOutlastsAnOutage has one that the lease outlasts.
func TestDoOutlastsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, _ := open(t)
		began := time.Now()
		one.extend = func(context.Context) error {
			if since := time.Since(began); since < 9*time.Second || since > 24*time.Second {
				return nil
			}
			return coord.ErrUnavailable
		}
		_, _, err := coord.Do(t.Context(), one, asked, func(ctx context.Context, _ coord.Receipt) ([]byte, error) {
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		})
		if err != nil {
			t.Errorf("Do: %v", err)
		}
	})
}

// hangingRelease gets no answer to a Release.
type hangingRelease struct{ coord.Receipts }

func (hangingRelease) Release(ctx context.Context, _ coord.Receipt) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestDoTellsOfAnOutageSoon has fn find the store away, which is then not there to be given the
// key back either.
func TestDoTellsOfAnOutageSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, _ := open(t)
		began := time.Now()
		_, _, err := coord.Do(t.Context(), hangingRelease{one}, coord.ReceiptFor{Key: "k", Lease: time.Hour},
			func(context.Context, coord.Receipt) ([]byte, error) { return nil, coord.ErrUnavailable })
		if took := time.Since(began); !errors.Is(err, coord.ErrUnavailable) || took > 5*time.Second {
			t.Errorf("Do: %v after %v", err, took)
		}
	})
}

// TestDoThatLostItsLease has another call take the key while fn runs on.
func TestDoThatLostItsLease(t *testing.T) {
	for _, otherIsDone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			one, two := open(t)
			one.extend = func(context.Context) error { return coord.ErrUnavailable }
			o, replayed, err := coord.Do(t.Context(), one, asked, func(context.Context, coord.Receipt) ([]byte, error) {
				time.Sleep(time.Minute) // deaf to its context
				taken, err := two.Begin(t.Context(), asked)
				if err == nil && otherIsDone {
					err = two.Complete(t.Context(), taken, coord.ReceiptOutcome{Body: []byte("theirs")})
				}
				if err != nil {
					t.Error(err)
				}
				return []byte("ours"), nil
			})
			if otherIsDone {
				if err != nil || !replayed || string(o.Body) != "theirs" {
					t.Errorf("Do when another one's outcome is stored: %+v, %v, %v", o, replayed, err)
				}
			} else if !errors.Is(err, coord.ErrFenced) {
				t.Errorf("Do when another one holds the key: %v", err)
			}
		})
	}
}

// TestDoThatIsLateKeepsItsOutcome has nobody take the key of a lease that has ended.
func TestDoThatIsLateKeepsItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := open(t)
		one.extend = func(context.Context) error { return coord.ErrUnavailable }
		for _, reaped := range []bool{false, true} {
			r := asked
			if reaped {
				r.Key = "reaped"
			}
			o, replayed, err := coord.Do(t.Context(), one, r, func(context.Context, coord.Receipt) ([]byte, error) {
				time.Sleep(time.Minute)
				if reaped {
					if _, err := two.Reap(t.Context()); err != nil {
						t.Error(err)
					}
				}
				return []byte("x"), nil
			})
			if err != nil || replayed || string(o.Body) != "x" {
				t.Errorf("Do: %+v, %v, %v", o, replayed, err)
			}
			if got, err := two.Begin(t.Context(), r); err != nil || string(got.Outcome.Body) != "x" {
				t.Errorf("what is stored: %+v, %v", got, err)
			}
		}
	})
}

func TestDoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := open(t)
		held, err := two.Begin(t.Context(), asked)
		if err != nil {
			t.Fatal(err)
		}
		do := func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, _, err := coord.Do(ctx, one, asked, func(context.Context, coord.Receipt) ([]byte, error) { return nil, nil })
			return time.Since(began), err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if took, err := do(ctx); took != 3*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do with a deadline in 3 s returned %v after %v", err, took)
		}
		time.AfterFunc(time.Second, func() {
			if err := two.Complete(context.Background(), held, coord.ReceiptOutcome{}); err != nil {
				t.Error(err)
			}
		})
		if took, err := do(t.Context()); took < time.Second || took > time.Second*17/16 || err != nil {
			t.Errorf("Do of a key that is completed in 1 s returned %v after %v", err, took)
		}
	})
}

// TestDoLooksLessOftenTheLongerItWaits has a key held while others are completed all the time.
func TestDoLooksLessOftenTheLongerItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := open(t)
		if _, err := two.Begin(t.Context(), coord.ReceiptFor{Key: asked.Key, Lease: time.Hour}); err != nil {
			t.Fatal(err)
		}
		looks := 0
		one.begun = func() error {
			looks++
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var completing sync.WaitGroup
		completing.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
				held, err := two.Begin(t.Context(), coord.ReceiptFor{Key: "other"})
				if err == nil {
					err = two.Release(t.Context(), held)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		_, _, _ = coord.Do(ctx, one, asked, nil)
		completing.Wait()
		if looks < 20 || looks > 120 { // 16 in the beginning, and 16 times the logarithm of 10 s / 80 ms
			t.Errorf("a key was looked at %d times in 10 s", looks)
		}
	})
}

// TestDoThatIsLeftHoldsNothing has a caller leave before it hears that it holds the key: those who
// come then do not wait for the end of its lease.
func TestDoThatIsLeftHoldsNothing(t *testing.T) {
	for name, lost := range map[string]error{"at once": context.Canceled, "after a lost answer": coord.ErrUnknownOutcome} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two := open(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				one.begun = func() error {
					one.begun = nil
					if lost == coord.ErrUnknownOutcome { //nolint:errorlint // it is the very same
						time.AfterFunc(time.Millisecond, cancel)
					} else {
						cancel()
					}
					return lost
				}
				_, _, err := coord.Do(ctx, one, asked, func(context.Context, coord.Receipt) ([]byte, error) {
					t.Error("it was called")
					return nil, nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Do: %v", err)
				}
				if got, err := two.Begin(t.Context(), asked); err != nil || got.State != coord.ReceiptMine {
					t.Errorf("the key is not free: %+v, %v", got, err)
				}
			})
		})
	}
}

// TestDoSettlesWhenItsCallerLeaves: what was done is stored although nobody waits for it.
func TestDoSettlesWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		if _, _, err := coord.Do(ctx, one, asked, func(context.Context, coord.Receipt) ([]byte, error) {
			cancel()
			return []byte("x"), nil
		}); err != nil {
			t.Errorf("Do: %v", err)
		}
		if got, err := two.Begin(t.Context(), asked); err != nil || string(got.Outcome.Body) != "x" {
			t.Errorf("what is stored: %+v, %v", got, err)
		}
	})
}
