package load

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// slowTask makes a request whose answer takes long.
const slowTask = "slow"

// Slow is a run that takes longer than many leases.
type Slow struct {
	load     *Load
	receiver *Receiver
}

// StartSlow starts a run whose request is answered after a time.
func (l *Load) StartSlow(ctx context.Context, takes time.Duration) (*Slow, error) {
	receiver, err := NewReceiver(ctx, l.o.Receiver)
	if err != nil {
		return nil, err
	}
	receiver.Answer = func(w http.ResponseWriter, r *http.Request, _ string, _ int) {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
	}
	seconds := int(takes.Seconds()) + 10
	err = l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks", map[string]any{
		"name": slowTask, "kind": "http", "report": "never", "timeout_s": seconds + 30,
		"http":  map[string]any{"method": "POST", "url": receiver.URL, "timeout_s": seconds},
		"retry": map[string]int{"max_attempts": 5, "backoff_s": 1, "max_backoff_s": 1},
	}, nil)
	if err == nil {
		err = l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks/"+slowTask+"/run", nil, nil)
	}
	if err == nil {
		err = l.eventually(ctx, func() error {
			if len(receiver.Requests()) == 0 {
				return fmt.Errorf("the task %s has made no request", slowTask)
			}
			return nil
		})
	}
	if err != nil {
		receiver.Close()
		return nil, err
	}
	return &Slow{l, receiver}, nil
}

// End waits until the run has ended. It must have succeeded, with its first request: its lease never ended.
func (s *Slow) End(ctx context.Context) (o Outcome, err error) {
	defer s.receiver.Close()
	list, err := s.load.settled(ctx, slowTask)
	if err != nil {
		return o, err
	}
	requests := 0
	for _, n := range s.receiver.Requests() {
		requests += n
	}
	if len(list) != 1 || list[0].state != "succeeded" || list[0].attempt != 1 || requests != 1 {
		o.Fault("the run that takes long is %+v and has made %d requests: its lease has ended", list, requests)
	}
	return o, nil
}

// Close ends what End would have waited for. After End it does nothing.
func (s *Slow) Close() { s.receiver.Close() }
