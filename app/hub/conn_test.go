package hub

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/olahol/melody"

	"github.com/tandemhq/tandem/app/metrics"
)

func TestPanicEndsOneSocket(t *testing.T) {
	var logged bytes.Buffer
	h := &Hub{metrics: metrics.New("test", "memory"), log: slog.New(slog.NewTextHandler(&logged, nil))}
	h.o.complete()
	c := h.newConn(1, 1)
	c.guard(t.Context(), func(context.Context) { panic("a fault") })
	if want := melody.FormatCloseMessage(closeInternal, "internal error"); !c.isClosing() || !bytes.Equal(c.message, want) {
		t.Errorf("the socket is closing: %v, with %q", c.isClosing(), c.message)
	}
	if !strings.Contains(logged.String(), "a fault") {
		t.Errorf("it was not logged: %s", &logged)
	}
}
