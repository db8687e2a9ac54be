package coord

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// What only reads is asked for once more when the answer was lost. Anything else is not, nor is
// what failed otherwise.
func TestLostAnswersAreAskedForAgain(t *testing.T) {
	driver := &fake{}
	b := Wrap(driver, Options{})
	calls := map[string]func() error{
		"Task": func() error { _, err := b.Claimer().Task(t.Context(), "t"); return err },
		"Read": func() error { _, err := b.Broadcaster().Read(t.Context(), "t", Position{}, 1); return err },
		"Extend": func() error {
			_, err := b.Claimer().Extend(t.Context(), time.Minute, Claim{Run: Run{ID: 1}})
			return err
		},
		"Redeem": func() error {
			_, err := b.Tickets().Redeem(t.Context(), NewTicketSecret(), TicketUse{Purpose: "p"})
			return err
		},
		"Enqueue": func() error {
			_, err := b.Claimer().Enqueue(t.Context(), NewRun{Kind: "k"})
			return err
		},
		"Publish": func() error {
			_, err := b.Broadcaster().Publish(t.Context(), NewEvent{Topic: "t", Kind: "k"})
			return err
		},
	}
	again := map[string]bool{"Task": true, "Read": true}
	for name, call := range calls {
		for _, failure := range []error{ErrUnknownOutcome, ErrUnavailable, ErrNotFound} {
			driver.calls()
			driver.fail(fmt.Errorf("%w: x", failure))
			if err := call(); !errors.Is(err, failure) {
				t.Errorf("%s: %v, want %v", name, err, failure)
			}
			want := 1
			if again[name] && failure == ErrUnknownOutcome { //nolint:errorlint // as it stands in the list
				want = 2
			}
			if made := driver.calls(); len(made) != want {
				t.Errorf("%s that fails with %v: the driver was called %q", name, failure, made)
			}
		}
	}
}
