package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/rooms"
)

// measureResume lets clients come back at once who have all missed the same events, beside
// the same hub that delivers live.
func measureResume(ctx context.Context, _ subject, length time.Duration, prepares func(string)) (row, error) {
	clients, missed := 1000, 10_000
	if length < 100*time.Millisecond { // only to see that all works
		clients, missed = 20, 300
	}
	a, err := openAudience(ctx, "ours", room{})
	if err != nil {
		return row{}, err
	}
	defer a.close()
	prepares(fmt.Sprintf("publishing %d events", missed))
	for range missed {
		if _, err := a.call(ctx, "/publish"); err != nil {
			return row{}, err
		}
	}
	live, err := openAudience(ctx, "ours", room{sockets: clients})
	if err != nil {
		return row{}, err
	}
	defer live.close()
	before, err := a.usage(ctx)
	if err != nil {
		return row{}, err
	}
	var longest time.Duration
	r, err := compare(ctx, length, func(ctx context.Context, _ time.Duration) (sample, error) {
		s, took, err := resume(ctx, a, clients, missed)
		longest = max(longest, took)
		return s, err
	}, "live", deliveries(live))
	if err != nil {
		return row{}, err
	}
	after, err := a.usage(ctx)
	r.Note = fmt.Sprintf("%d clients had all of %d events after %v; the peak of memory was %d MB, %d MB before they came",
		clients, missed, longest.Round(time.Millisecond), after.Peak>>10, before.RSS>>10)
	return r, err
}

// resume opens sockets, lets all subscribe from the beginning at the same moment, and waits
// until each has had everything.
func resume(ctx context.Context, a *audience, clients, missed int) (s sample, took time.Duration, err error) {
	var sockets []*listener
	defer func() {
		for _, l := range sockets {
			_ = l.conn.Close()
		}
	}()
	for range clients {
		l, err := dialHub(ctx, a, false)
		if err != nil {
			return s, 0, err
		}
		sockets = append(sockets, l)
	}
	subscribe := fmt.Appendf(nil, `{"type":"subscribe","id":"1","topics":{%q:"0"}}`, rooms.Topic(fanoutRoom))
	began := time.Now()
	var reading sync.WaitGroup
	errs := make([]error, clients)
	times := make([]time.Duration, clients)
	for i, l := range sockets {
		reading.Go(func() {
			if errs[i] = l.say(frameText, subscribe); errs[i] != nil {
				return
			}
			have := 0
			errs[i] = l.listen(func(letters int, _ time.Time) {
				if have += letters; have >= missed {
					times[i] = time.Since(began)
					_ = l.conn.Close() // ends listen
				}
			}, func([]byte) []byte { return nil })
			if have == missed {
				errs[i] = nil
			} else {
				errs[i] = errors.Join(errs[i], fmt.Errorf("a client had %d of %d events", have, missed))
			}
		})
	}
	reading.Wait()
	took = time.Since(began)
	return sampled(clients*missed, took, times), took, errors.Join(errs...)
}
