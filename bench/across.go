package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// line is a way from publishers on one replica to a reader on another.
type line interface {
	// publish returns when the event is as safe as this line makes it.
	publish(ctx context.Context, payload []byte) error
	close()
}

// lineFor opens a line. Its reader calls got for each event in the order of arrival.
type lineFor func(ctx context.Context, s shared, got func(payload []byte)) (line, error)

// unread bounds how many events may be on their way, so that the rate is that of the
// reader too.
const unread = 256

// acrossRows are the rows of publishing on one replica and reading on another.
func acrossRows() (all []measurement) {
	add := func(name string, count func(l line, read *reading) side, byLatency bool) {
		all = append(all, measurement{name, func(ctx context.Context, sub subject, length time.Duration, _ func(string)) (row, error) {
			st, err := sub.store(ctx)
			if err != nil {
				return row{}, err
			}
			defer st.close()
			var lines [2]line
			var readings [2]*reading
			for i, open := range []lineFor{openOurLine, openCentrifugeLine} {
				readings[i] = newReading()
				if lines[i], err = open(ctx, st.(shared), readings[i].got); err != nil {
					return row{}, err
				}
				defer lines[i].close()
			}
			r, err := compare(ctx, length, count(lines[0], readings[0]), "centrifuge", count(lines[1], readings[1]))
			if byLatency {
				r.Ratio = r.BesideP50 / r.P50
			}
			return r, err
		}})
	}
	for _, publishers := range []int{1, 8, 32, 128} {
		add(fmt.Sprintf("across/%d", publishers), func(l line, r *reading) side { return acrossRate(l, r, publishers) }, false)
	}
	for _, rate := range []int{10, 100, 200, 1000} {
		add(fmt.Sprintf("across-at-%d", rate), func(l line, r *reading) side { return acrossLatency(l, r, rate) }, true)
	}
	return all
}

// reading is what arrives on the other replica.
type reading struct {
	slots chan struct{}
	count atomic.Int64

	mu    sync.Mutex
	times []time.Duration
	last  map[int]int64 // of each publisher
	wrong error
}

func newReading() *reading {
	return &reading{slots: make(chan struct{}, unread), last: make(map[int]int64)}
}

// letter is what is published: 200 bytes.
type letter struct {
	Sent      int64  `json:"t"` // nanoseconds since 1970
	Publisher int    `json:"p"`
	Number    int64  `json:"n"` // of this publisher's
	Fill      string `json:"f"`
}

const letterBytes = 200

func (l letter) encode() []byte {
	b, _ := json.Marshal(l)
	l.Fill = strings.Repeat("x", max(0, letterBytes-len(b)))
	b, _ = json.Marshal(l)
	return b
}

// got checks that no event of a publisher is missing, comes twice or too early.
func (r *reading) got(payload []byte) {
	var l letter
	err := json.Unmarshal(payload, &l)
	took := time.Duration(time.Now().UnixNano() - l.Sent)
	r.mu.Lock()
	if next := r.last[l.Publisher] + 1; err == nil && l.Number != next {
		err = fmt.Errorf("event %d of publisher %d arrived where %d was due", l.Number, l.Publisher, next)
	}
	if r.wrong == nil {
		r.wrong = err
	}
	r.last[l.Publisher] = l.Number
	r.times = append(r.times, took)
	r.mu.Unlock()
	r.count.Add(1)
	<-r.slots
}

// begin forgets the times of the turn before.
func (r *reading) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = nil
}

// end waits until all that was published is read.
func (r *reading) end(ctx context.Context, published int64) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for r.count.Load() < published {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d events have arrived: %w", r.count.Load(), published, ctx.Err())
		case <-time.After(100 * time.Microsecond):
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.times), r.wrong
}

// acrossRate publishes as fast as publishers can, and counts what was read.
func acrossRate(l line, r *reading, publishers int) side {
	numbers := make([]int64, publishers)
	var published int64
	return func(ctx context.Context, d time.Duration) (sample, error) {
		r.begin()
		before := published
		began := time.Now()
		var publishing sync.WaitGroup
		errs := make([]error, publishers)
		for i := range publishers {
			publishing.Go(func() {
				for time.Since(began) < d && errs[i] == nil {
					r.slots <- struct{}{}
					numbers[i]++
					errs[i] = l.publish(ctx, letter{Sent: time.Now().UnixNano(), Publisher: i, Number: numbers[i]}.encode())
				}
			})
		}
		publishing.Wait()
		if err := errors.Join(errs...); err != nil {
			return sample{}, err
		}
		published = 0
		for _, n := range numbers {
			published += n
		}
		times, err := r.end(ctx, published)
		return sampled(int(published-before), time.Since(began), times), err
	}
}

// acrossLatency publishes at a steady rate and measures from before the call to the
// arrival.
func acrossLatency(l line, r *reading, rate int) side {
	var number int64
	return func(ctx context.Context, d time.Duration) (sample, error) {
		r.begin()
		began := time.Now()
		gap := time.Second / time.Duration(rate)
		count := max(2, int(d/gap))
		tick := time.NewTicker(gap)
		defer tick.Stop()
		for range count {
			<-tick.C
			number++
			r.slots <- struct{}{}
			if err := l.publish(ctx, letter{Sent: time.Now().UnixNano(), Number: number}.encode()); err != nil {
				return sample{}, err
			}
		}
		times, err := r.end(ctx, number)
		return sampled(count, time.Since(began), times), err
	}
}

const acrossTopic = "room:1"

// ourLine is one backend that publishes and another that streams, as two processes have.
type ourLine struct {
	from, to coord.Backend
	ended    sync.WaitGroup
	cancel   context.CancelFunc
}

func openOurLine(ctx context.Context, s shared, got func([]byte)) (line, error) {
	to, err := s.connect(ctx, true)
	if err != nil {
		return nil, err
	}
	stream, err := to.Broadcaster().Subscribe(ctx, map[string]coord.Position{acrossTopic: coord.Head})
	if err != nil {
		return nil, errors.Join(err, to.Close(ctx))
	}
	l := &ourLine{from: s.backend(), to: to}
	ctx, l.cancel = context.WithCancel(ctx)
	l.ended.Go(func() {
		defer stream.Close()
		for {
			events, err := stream.Next(ctx)
			if err != nil {
				return // what is missing then is noticed by its number
			}
			for _, e := range events {
				got(e.Payload)
			}
		}
	})
	return l, nil
}

func (l *ourLine) publish(ctx context.Context, payload []byte) error {
	_, err := l.from.Broadcaster().Publish(ctx, coord.NewEvent{Topic: acrossTopic, Kind: "message", Payload: payload})
	return err
}

func (l *ourLine) close() {
	l.cancel()
	l.ended.Wait()
	_ = l.to.Close(context.Background())
}
