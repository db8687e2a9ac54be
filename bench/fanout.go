package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A fan-out server runs in a process of its own: this program again, with this
// variable naming the server.
const serveVariable = "BENCH_SERVE"

// inFlight is how many letters are on their way to the sockets while the rate is
// measured, and paced how many deliveries a second are made while the latency is.
const (
	inFlight = 16
	paced    = 20_000
)

// fanoutRows are the rows of one room with many sockets, each beside another server
// that does the same. They have no store.
func fanoutRows() (all []measurement) {
	for _, sockets := range []int{1000, 5000} {
		for _, beside := range []string{"floor", "melody", "centrifuge"} {
			all = append(all, measurement{
				fmt.Sprintf("fanout-%s/%d", beside, sockets),
				func(ctx context.Context, _ subject, length time.Duration, prepares func(string)) (row, error) {
					return fanout(ctx, length, prepares, room{sockets: sockets}, beside, room{sockets: sockets}, deliveries)
				},
			}, measurement{
				fmt.Sprintf("fanout-latency-%s/%d", beside, sockets),
				func(ctx context.Context, _ subject, length time.Duration, prepares func(string)) (row, error) {
					r, err := fanout(ctx, length, prepares, room{sockets: sockets}, beside, room{sockets: sockets}, pacedDeliveries)
					r.Ratio = r.BesideP50 / r.P50
					return r, err
				},
			})
		}
	}
	return append(all, measurement{
		"fanout-idle-others/1000",
		func(ctx context.Context, _ subject, length time.Duration, prepares func(string)) (row, error) {
			return fanout(ctx, length, prepares, room{sockets: 1000, others: 5000}, "alone", room{sockets: 1000}, deliveries)
		},
	}, measurement{"resume/1000", measureResume})
}

// room is how many sockets are in the room, and how many in none.
type room struct{ sockets, others int }

func fanout(
	ctx context.Context, length time.Duration, prepares func(string), ours room, beside string, theirs room,
	measure func(*audience) side,
) (row, error) {
	if length < 100*time.Millisecond { // only to see that all works
		ours.sockets, ours.others, theirs.sockets = 20, min(ours.others, 20), 20
	}
	prepares(fmt.Sprintf("opening %d sockets", ours.sockets+ours.others+theirs.sockets))
	a, err := openAudience(ctx, "ours", ours)
	if err != nil {
		return row{}, err
	}
	defer a.close()
	other := beside
	if other == "alone" {
		other = "ours"
	}
	b, err := openAudience(ctx, other, theirs)
	if err != nil {
		return row{}, fmt.Errorf("%s: %w", beside, err)
	}
	defer b.close()
	r, err := compare(ctx, length, measure(a), beside, measure(b))
	r.Note = a.note() + "; " + beside + " " + b.note()
	return r, err
}

// usage is what a fan-out server says of its process.
type usage struct {
	RSS  int64 `json:"rss_kb"`
	Peak int64 `json:"peak_kb"`
	CPU  int64 `json:"cpu_us"`
}

// audience is a fan-out server with the sockets of its room.
type audience struct {
	room
	command *exec.Cmd
	alive   io.WriteCloser
	addr    string
	base    string // of its control, as http://…
	client  *http.Client

	sockets   []*listener
	listening sync.WaitGroup
	count     atomic.Int64
	failed    atomic.Pointer[error]
	closing   atomic.Bool
	timing    atomic.Bool
	times     [][]time.Duration // of each socket

	empty, idle usage // without sockets, and before the first letter
	cpu         int64
	delivered   int64
}

// dialler opens a socket in the room, or in none, of a server at addr.
type dialler func(ctx context.Context, a *audience, inRoom bool) (*listener, error)

func openAudience(ctx context.Context, server string, r room) (a *audience, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	a = &audience{room: r, times: make([][]time.Duration, r.sockets), client: &http.Client{}}
	a.command = exec.CommandContext(ctx, self)
	a.command.Env = append(os.Environ(), serveVariable+"="+server)
	a.command.Stderr = os.Stderr
	if a.alive, err = a.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := a.command.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	a.addr = strings.TrimSpace(line)
	a.base = "http://" + a.addr
	if a.empty, err = a.usage(ctx); err != nil {
		return nil, err
	}
	dial := diallers[server]
	pong := func([]byte) []byte { return nil }
	if server == "centrifuge" {
		pong = centrifugePong
	}
	for i := range r.sockets + r.others {
		l, err := dial(ctx, a, i < r.sockets)
		if err != nil {
			return nil, err
		}
		a.sockets = append(a.sockets, l)
		a.listening.Go(func() {
			err := l.listen(func(letters int, sent time.Time) {
				if i < r.sockets && a.timing.Load() {
					a.times[i] = append(a.times[i], time.Since(sent))
				}
				a.count.Add(int64(letters))
			}, pong)
			if !a.closing.Load() {
				a.failed.CompareAndSwap(nil, new(fmt.Errorf("socket %d: %w", i, err)))
			}
		})
	}
	a.idle, err = a.usage(ctx)
	return a, err
}

func (a *audience) close() {
	a.closing.Store(true)
	for _, l := range a.sockets {
		_ = l.conn.Close()
	}
	a.listening.Wait()
	_ = a.alive.Close() // the server ends by that
	_ = a.command.Wait()
	a.client.CloseIdleConnections()
}

// call asks the control of the server.
func (a *audience) call(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s was answered with %s: %s", path, answer.Status, body)
	}
	return body, err
}

func (a *audience) usage(ctx context.Context) (u usage, err error) {
	body, err := a.call(ctx, "/usage")
	if err == nil {
		err = json.Unmarshal(body, &u)
	}
	return u, err
}

// note says what a delivery costs the server's processor, and a socket its memory.
func (a *audience) note() string {
	return fmt.Sprintf("%.2f µs of CPU a delivery, %.1f KB a socket",
		float64(a.cpu)/float64(max(1, a.delivered)), float64(a.idle.RSS-a.empty.RSS)/float64(a.room.sockets+a.others))
}

// turn lets publish send letters for d and waits for the last delivery.
func (a *audience) turn(ctx context.Context, d time.Duration, publish func(began time.Time, sent int64) error) (sample, error) {
	before, err := a.usage(ctx)
	if err != nil {
		return sample{}, err
	}
	base, sent := a.count.Load(), int64(0)
	for i := range a.times {
		a.times[i] = a.times[i][:0]
	}
	began := time.Now()
	for time.Since(began) < d {
		if err := publish(began, sent); err != nil {
			return sample{}, err
		}
		sent++
	}
	want := base + sent*int64(a.room.sockets)
	for late := time.Now().Add(10 * time.Second); a.count.Load() < want; time.Sleep(200 * time.Microsecond) {
		if failed := a.failed.Load(); failed != nil {
			return sample{}, *failed
		}
		if time.Now().After(late) {
			return sample{}, fmt.Errorf("%d of %d deliveries are missing", want-a.count.Load(), want-base)
		}
	}
	took := time.Since(began)
	if a.count.Load() > want {
		return sample{}, errors.New("more was delivered than was published")
	}
	after, err := a.usage(ctx)
	a.cpu += after.CPU - before.CPU
	a.delivered += want - base
	return sampled(int(want-base), took, slices.Concat(a.times...)), err
}

// deliveries publishes as fast as the sockets read.
func deliveries(a *audience) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		base := a.count.Load()
		return a.turn(ctx, d, func(_ time.Time, sent int64) error {
			for sent*int64(a.room.sockets)-(a.count.Load()-base) >= inFlight*int64(a.room.sockets) {
				if failed := a.failed.Load(); failed != nil {
					return *failed
				}
				time.Sleep(50 * time.Microsecond)
			}
			_, err := a.call(ctx, "/publish")
			return err
		})
	}
}

// pacedDeliveries publishes at a steady rate and times each delivery.
func pacedDeliveries(a *audience) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		a.timing.Store(true)
		defer a.timing.Store(false)
		gap := time.Second * time.Duration(a.room.sockets) / paced
		return a.turn(ctx, d, func(began time.Time, sent int64) error {
			time.Sleep(time.Until(began.Add(time.Duration(sent) * gap)))
			_, err := a.call(ctx, "/publish")
			return err
		})
	}
}

// nothing is the subject of rows that have no store.
type nothing struct{}

func openNothing(context.Context) (subject, error) { return nothing{}, nil }

func (nothing) store(context.Context) (store, error) { return nil, errors.New("there is no store") }
func (nothing) close()                               {}
