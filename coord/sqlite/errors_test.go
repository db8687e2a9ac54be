package sqlite

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tandemhq/tandem/coord"
)

// TestAnUnknownOutcomeStaysKnown also when the caller's context has ended meanwhile.
func TestAnUnknownOutcomeStaysKnown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := storeError(ctx, fmt.Errorf("%w: disk failed", coord.ErrUnknownOutcome)); !errors.Is(err, coord.ErrUnknownOutcome) {
		t.Errorf("storeError: %v; want ErrUnknownOutcome", err)
	}
}
