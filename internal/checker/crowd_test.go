//go:build unix

package checker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// A crowd is many clients in a process of their own, which is this program again, built without the race
// detector: that bears few thousand goroutines. This variable makes it one.
const crowdVariable = "CHECKER_CROWD"

// crowdOrder begins what a crowd is told: who it is.
type crowdOrder struct {
	Clients   int
	Replicas  []string       // their addresses
	Sessions  []*http.Cookie // of the clients in turn
	Topics    []string       // of which each client follows two, from the beginning
	AtOnce    int            // how many begin at a time
	Endpoints []string       // by which it knows the replicas, wherever they are
}

// crowdNews is what it is told later: that a replica has another address, or, in the end, where topics end.
type crowdNews struct {
	Replica int
	Address string
	Heads   map[string]coord.Position
}

// crowdReport is what it tells in the end. Before, when all follow, it tells an empty one.
type crowdReport struct {
	Log        map[string][]told // what clients were told, by topic
	Faults     []string
	Deliveries int64
	Reconnects int
	Connecting int            // most within a second, in the beginning
	Returning  int            // most within a second, later
	Failed     map[string]int // attempts to connect, by what came of them
	Away       spread         // from the end of a connection to the next one
	Late       spread         // from publishing to a delivery
}

// told is an event that was told.
type told struct {
	At   coord.Position
	Kind string
	Sum  uint64
}

// spread is how durations are spread.
type spread struct{ P50, P99, Most time.Duration }

func spreadOf(list []time.Duration) spread {
	if len(list) == 0 {
		return spread{}
	}
	slices.Sort(list)
	return spread{list[len(list)/2], list[len(list)*99/100], list[len(list)-1]}
}

func (s spread) String() string {
	return fmt.Sprintf("p50 %v, p99 %v, most %v", s.P50.Round(time.Millisecond), s.P99.Round(time.Millisecond), s.Most.Round(time.Millisecond))
}

// busiest is how many of some times are within a second, at most.
func busiest(times []time.Time) (most int) {
	slices.SortFunc(times, time.Time.Compare)
	for first, last := 0, 0; last < len(times); last++ {
		for times[last].Sub(times[first]) > time.Second {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// crowd is what the process holds.
type crowd struct {
	order     crowdOrder
	http      *http.Client
	addresses []atomic.Pointer[string] // of the replicas
	visitors  []*visitor
	pages     map[string]*page // by topic

	mu        sync.Mutex
	faults    []string
	firsts    []time.Time // when clients were first connected
	returns   []time.Time // when clients were connected again
	away      []time.Duration
	failed    map[string]int
	delivered atomic.Int64
}

// page is what clients were told of a topic.
type page struct {
	mu   sync.Mutex
	told []told
}

// visitor is a client of a crowd.
type visitor struct {
	*crowd
	name   string
	client *client.Client
	began  time.Time // to follow
	lost   time.Time // when the last connection ended; guarded by the crowd's lock

	mu   sync.Mutex
	at   map[string]coord.Position
	late []time.Duration
}

// runCrowd is what the process does.
func runCrowd(ctx context.Context, in io.Reader, out io.Writer) error {
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	c := &crowd{pages: make(map[string]*page), failed: make(map[string]int)}
	if err := orders.Decode(&c.order); err != nil {
		return err
	}
	c.addresses = make([]atomic.Pointer[string], len(c.order.Replicas))
	for i := range c.addresses {
		c.addresses[i].Store(&c.order.Replicas[i])
	}
	transport := &http.Transport{DialContext: c.dial, MaxIdleConnsPerHost: c.order.AtOnce}
	c.http = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	for _, topic := range c.order.Topics {
		c.pages[topic] = new(page)
	}
	ctx, cancel := context.WithCancel(ctx)
	var following, starting sync.WaitGroup
	defer following.Wait()
	defer cancel()
	begun := make(chan struct{}, c.order.AtOnce)
	for i := range c.order.Clients {
		v := &visitor{crowd: c, name: fmt.Sprintf("client %d", i), at: make(map[string]coord.Position)}
		c.visitors = append(c.visitors, v)
		begun <- struct{}{}
		starting.Go(func() {
			defer func() { <-begun }()
			if v.begin(ctx, i) {
				following.Go(func() { v.follow(ctx) })
			}
		})
	}
	starting.Wait()
	if err := reports.Encode(crowdReport{Faults: c.faults}); err != nil {
		return err
	}
	for {
		var news crowdNews
		if err := orders.Decode(&news); err != nil {
			return err
		}
		if news.Heads != nil {
			c.await(news.Heads)
			return reports.Encode(c.report())
		}
		c.addresses[news.Replica].Store(&news.Address)
	}
}

// dial connects to where a replica is by now.
func (c *crowd) dial(ctx context.Context, network, address string) (net.Conn, error) {
	i := slices.Index(c.order.Endpoints, "http://"+address)
	if i < 0 {
		return nil, fmt.Errorf("there is no replica at %s", address)
	}
	return new(net.Dialer).DialContext(ctx, network, *c.addresses[i].Load())
}

func (c *crowd) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const most = 20
	if len(c.faults) < most {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

// await waits until all clients are where the topics end.
func (c *crowd) await(heads map[string]coord.Position) {
	deadline := time.Now().Add(patience)
	for _, v := range c.visitors {
		for _, topic := range v.topics() {
			at := v.where(topic)
			for ; at != heads[topic] && time.Now().Before(deadline); at = v.where(topic) {
				time.Sleep(5 * time.Millisecond)
			}
			if at != heads[topic] {
				c.fault("%s is at %v of %s, whose last event is %v", v.name, at, topic, heads[topic])
			}
		}
	}
}

func (c *crowd) report() crowdReport {
	r := crowdReport{Log: make(map[string][]told), Deliveries: c.delivered.Load()}
	for topic, p := range c.pages {
		p.mu.Lock()
		r.Log[topic] = p.told
		p.mu.Unlock()
	}
	var late []time.Duration
	for _, v := range c.visitors {
		v.mu.Lock()
		late = append(late, v.late...)
		v.mu.Unlock()
	}
	r.Late = spreadOf(late)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Faults, r.Failed = c.faults, c.failed
	r.Reconnects, r.Connecting, r.Returning, r.Away = len(c.returns), busiest(c.firsts), busiest(c.returns), spreadOf(c.away)
	return r
}

// begin connects the i-th client and lets it follow its topics.
func (v *visitor) begin(ctx context.Context, i int) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	endpoints := slices.Clone(v.order.Endpoints)
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	rng.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	cookie := v.order.Sessions[i%len(v.order.Sessions)]
	c, err := client.Dial(ctx, client.Options{
		Endpoints: endpoints, HTTPClient: v.http, Logger: slog.New(v),
		Session: func(context.Context) (*http.Cookie, error) { return cookie, nil },
	})
	if err != nil {
		v.fault("%s: Dial: %v", v.name, err)
		return false
	}
	v.client = c
	for j := range 2 {
		v.at[v.order.Topics[(i+j)%len(v.order.Topics)]] = coord.Start
	}
	v.began = time.Now()
	if err := c.Subscribe(ctx, v.at); err != nil {
		v.fault("%s: Subscribe: %v", v.name, err)
		c.Close()
		return false
	}
	return true
}

func (v *visitor) topics() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []string
	for topic := range v.at {
		list = append(list, topic)
	}
	return list
}

func (v *visitor) where(topic string) coord.Position {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.at[topic]
}

func (v *visitor) follow(ctx context.Context) {
	defer v.client.Close()
	for {
		events, err := v.client.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				v.fault("%s: Next: %v", v.name, err) // a reset too: nothing is gone
			}
			return
		}
		v.take(events)
	}
}

// take holds events to what the client has, and to what others were told.
func (v *visitor) take(events []coord.Event) {
	now := time.Now()
	v.delivered.Add(int64(len(events)))
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		at, ok := v.at[e.Topic]
		if !ok || e.Position.Seq != at.Seq+1 {
			v.fault("%s: %v of %s came behind %v", v.name, e.Position, e.Topic, at)
		}
		v.at[e.Topic] = e.Position
		if e.At.After(v.began) {
			v.late = append(v.late, now.Sub(e.At))
		}
		v.pages[e.Topic].note(v, told{e.Position, e.Kind, sum(e.Payload)})
	}
}

func (p *page) note(v *visitor, e told) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := int64(len(p.told)); {
	case e.At.Seq == n+1:
		p.told = append(p.told, e)
	case e.At.Seq > n+1:
		v.fault("%s was the first to get %v, and there are %d", v.name, e.At, n)
	case p.told[e.At.Seq-1] != e:
		v.fault("%s got %+v, and others %+v", v.name, e, p.told[e.At.Seq-1])
	}
}

// Enabled is, with the next three, what makes a visitor the [slog.Handler] that hears of its client's
// connections.
func (v *visitor) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs returns the visitor.
func (v *visitor) WithAttrs([]slog.Attr) slog.Handler { return v }

// WithGroup returns the visitor.
func (v *visitor) WithGroup(string) slog.Handler { return v }

// Handle notes when a connection begins and ends.
func (v *visitor) Handle(_ context.Context, r slog.Record) error {
	v.crowd.mu.Lock()
	defer v.crowd.mu.Unlock()
	switch {
	case r.Level == slog.LevelWarn:
		v.lost = r.Time
	case r.Level == slog.LevelDebug:
		r.Attrs(func(a slog.Attr) bool {
			if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
				v.failed[outcome(err)]++
			}
			return true
		})
	case v.lost.IsZero():
		v.firsts = append(v.firsts, r.Time)
	default:
		v.returns = append(v.returns, r.Time)
		v.away = append(v.away, r.Time.Sub(v.lost))
	}
	return nil
}

// outcome is what came of an attempt to connect, in few words.
func outcome(err error) string {
	if refused, ok := errors.AsType[*client.StatusError](err); ok {
		return "status " + strconv.Itoa(refused.Status)
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return "no connection"
	}
	return err.Error()
}

// crowdProgram is this program without the race detector.
var crowdProgram = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programsDir, "crowd")
	build := exec.Command("go", "test", "-c", "-vet=off", "-o", path, "github.com/tandemhq/tandem/internal/checker")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the crowd: %w\n%s", err, output)
	}
	return path, nil
})

// crowdProcess is a crowd as the test sees it.
type crowdProcess struct {
	t       *testing.T
	in      *json.Encoder
	reports chan crowdReport
	ended   chan error
}

// startCrowd starts a crowd, and returns when all follow.
func startCrowd(t *testing.T, order crowdOrder) *crowdProcess {
	t.Helper()
	path, err := crowdProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = append(os.Environ(), crowdVariable+"=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe() // the process ends with it
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &crowdProcess{t: t, in: json.NewEncoder(in), reports: make(chan crowdReport), ended: make(chan error, 1)}
	go func() {
		reports := json.NewDecoder(out)
		var err error
		for {
			var r crowdReport
			if err = reports.Decode(&r); err != nil {
				break
			}
			select {
			case p.reports <- r:
			case <-t.Context().Done():
			}
		}
		p.ended <- errors.Join(err, cmd.Wait())
	}()
	t.Cleanup(func() { _ = in.Close() })
	p.tell(order)
	report(t, p.hear().Faults)
	if t.Failed() {
		t.FailNow()
	}
	return p
}

func (p *crowdProcess) tell(what any) {
	p.t.Helper()
	if err := p.in.Encode(what); err != nil {
		p.t.Fatalf("tell the crowd: %v", err)
	}
}

// hear returns what the crowd reports next.
func (p *crowdProcess) hear() crowdReport {
	p.t.Helper()
	select {
	case r := <-p.reports:
		return r
	case err := <-p.ended:
		p.t.Fatalf("the crowd has ended: %v", err)
	case <-time.After(2 * patience):
		p.t.Fatal("the crowd says nothing")
	}
	return crowdReport{}
}
