package auth

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
)

var quick = Hashing{Memory: 64, Iterations: 1, Parallel: 2}

func TestPasswords(t *testing.T) {
	h := newHasher(quick)
	hash, err := h.hash(t.Context(), "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		password, hash string
		want           bool
	}{
		{"correct horse", hash, true},
		{"correct horsE", hash, false},
		{"", hash, false},
		{"", "", false}, // the dummy is made of the empty password
		{"correct horse", "", false},
	} {
		if got, err := h.compare(t.Context(), test.password, test.hash); got != test.want || err != nil {
			t.Errorf("%q: got %v, %v", test.password, got, err)
		}
	}
}

func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHasher(quick)
		for range quick.Parallel {
			if _, err := h.turn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.compare(t.Context(), "x", ""); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.hash(ctx, "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want cancelled", err)
		}
	})
}

// Beyond the queue nobody waits, and whoever gives up gives their place back.
func TestHashingHasABoundedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHasher(quick)
		ctx, giveUp := context.WithCancel(t.Context())
		var done []func()
		for range quick.Parallel {
			end, err := h.turn(ctx)
			if err != nil {
				t.Fatal(err)
			}
			done = append(done, end)
		}
		var waiting sync.WaitGroup
		for range hashQueue * quick.Parallel {
			waiting.Go(func() {
				if _, err := h.turn(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("who waits: got %v", err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if _, err := h.turn(t.Context()); !errors.Is(err, coord.ErrUnavailable) || time.Since(began) > 0 {
			t.Errorf("one more: got %v after %v, want unavailable at once", err, time.Since(began))
		}
		giveUp()
		waiting.Wait()
		for _, end := range done {
			end()
		}
		for range quick.Parallel {
			if _, err := h.turn(t.Context()); err != nil {
				t.Errorf("afterwards: got %v", err)
			}
		}
		if len(h.places) != quick.Parallel {
			t.Errorf("%d places are taken, want %d", len(h.places), quick.Parallel)
		}
	})
}
