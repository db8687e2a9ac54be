package health

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadyTellsSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var problem error
		h := New(func(context.Context) error { return problem })
		began := time.Now()
		time.Sleep(time.Hour)
		if ready, checks := h.Ready(t.Context()); !ready || !checks[0].Since.Equal(began) {
			t.Errorf("got %v, %+v", ready, checks)
		}
		problem = errors.New("gone")
		lost := time.Now()
		for range 3 {
			ready, checks := h.Ready(t.Context())
			if ready || checks[0].OK || checks[0].Error != "gone" || !checks[0].Since.Equal(lost) {
				t.Errorf("got %v, %+v", ready, checks)
			}
			time.Sleep(time.Minute)
		}
		problem = nil
		if ready, checks := h.Ready(t.Context()); !ready || checks[0].Error != "" {
			t.Errorf("got %v, %+v", ready, checks)
		}
		h.Drain()
		if ready, checks := h.Ready(t.Context()); ready || !checks[0].OK || checks[1].OK {
			t.Errorf("got %v, %+v", ready, checks)
		}
	})
}

func TestReadyDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var probes atomic.Int32
		h := New(func(context.Context) error { // ignores its context, as a dead network may
			probes.Add(1)
			<-release
			return nil
		})
		began := time.Now()
		for range 5 {
			go h.Ready(t.Context())
		}
		if ready, _ := h.Ready(t.Context()); ready {
			t.Error("ready while the database hangs")
		}
		if took := time.Since(began); took > Deadline {
			t.Errorf("took %v", took)
		}
		if probes.Load() != 1 {
			t.Errorf("%d probes hang", probes.Load())
		}
		close(release)
		synctest.Wait()
		if ready, _ := h.Ready(t.Context()); !ready {
			t.Error("not ready after the database came back")
		}
	})
}
