package hub

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// deadlineWriter keeps until when it may be written.
type deadlineWriter struct {
	http.ResponseWriter
	until time.Time
}

func (w *deadlineWriter) SetWriteDeadline(until time.Time) error {
	w.until = until
	return nil
}

// TestEndOfAStreamThatIsWritten ends streams as a write begins, which waits no longer for the client then.
func TestEndOfAStreamThatIsWritten(t *testing.T) {
	h := &Hub{o: Options{SlowAfter: time.Minute}}
	for range 2000 {
		w := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
		e := &eventStream{control: http.NewResponseController(w), ended: make(chan struct{})}
		e.hub = h
		var both sync.WaitGroup
		both.Go(func() { e.limit() })
		both.Go(func() { e.shut(closeRestart, "restart", nil) })
		both.Wait()
		if left := time.Until(w.until); left > 2*lingerTime {
			t.Fatalf("a write may take %v", left)
		}
	}
}
