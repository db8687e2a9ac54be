package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// CrowdVariable makes a process of the rig a crowd: see RunCrowd.
const CrowdVariable = "TANDEM_RIG_CROWD"

// Order is what a crowd is told to do.
type Order struct {
	URL      string
	Sessions []Session // of the clients in turn
	Topics   []string  // of which each client follows PerClient, from the beginning
	Clients  int
	// PerClient is how many topics each client follows. Default: all.
	PerClient int
	// AtOnce is how many begin at a time. Default: 20.
	AtOnce int
}

// Crowd is many clients that follow topics through one URL, over as many connections as that takes.
type Crowd interface {
	// Await waits until everybody is where the topics end, and returns what they have seen. Who is not there in
	// time is in that.
	Await(ctx context.Context, heads map[string]coord.Position) (Seen, error)
	// Calm says that nothing is published any more, so that a silence means nothing.
	Calm()
	// Close ends the clients.
	Close()
}

// crowd is a Crowd in this process.
type crowd struct {
	order    Order
	http     *http.Client
	visitors []*visitor
	cancel   context.CancelFunc
	running  sync.WaitGroup

	delivered  atomic.Int64
	reconnects atomic.Int64

	mu   sync.Mutex
	seen Seen
	last time.Time // of the last delivery
	calm bool      // silence means nothing any more
}

// visitor is a client of a crowd.
type visitor struct {
	*crowd
	name   string
	client *client.Client
	began  atomic.Bool

	mu sync.Mutex
	at map[string]coord.Position
}

// NewCrowd connects clients, and returns when all follow. The caller closes it.
func NewCrowd(ctx context.Context, o Order) (Crowd, error) { return newCrowd(ctx, o) }

func newCrowd(ctx context.Context, o Order) (*crowd, error) {
	if o.AtOnce == 0 {
		o.AtOnce = 20
	}
	if o.PerClient == 0 {
		o.PerClient = len(o.Topics)
	}
	c := &crowd{
		order: o, seen: newSeen(),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.AtOnce, IdleConnTimeout: 10 * time.Second}, Timeout: 10 * time.Second},
	}
	for _, topic := range o.Topics {
		c.seen.Log[topic], c.seen.Holes[topic], c.seen.Again[topic] = nil, make(map[int64]bool), make(map[int64]bool)
	}
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	var starting sync.WaitGroup
	begun := make(chan struct{}, o.AtOnce)
	failures := make(chan error, o.Clients)
	for i := range o.Clients {
		v := &visitor{crowd: c, name: fmt.Sprintf("client %d", i), at: make(map[string]coord.Position)}
		c.visitors = append(c.visitors, v)
		begun <- struct{}{}
		starting.Go(func() {
			defer func() { <-begun }()
			if err := v.begin(ctx, i); err != nil {
				failures <- fmt.Errorf("%s: %w", v.name, err)
				return
			}
			c.running.Go(func() { v.follow(following) })
		})
	}
	starting.Wait()
	close(failures)
	if err := <-failures; err != nil {
		c.Close()
		return nil, fmt.Errorf("let a crowd follow: %w", err)
	}
	return c, nil
}

// begin connects the i-th client and lets it follow its topics.
func (v *visitor) begin(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cookie := v.order.Sessions[i%len(v.order.Sessions)].Cookie()
	c, err := client.Dial(ctx, client.Options{
		Endpoints: []string{v.order.URL}, HTTPClient: v.http, Logger: slog.New(v),
		Session:    func(context.Context) (*http.Cookie, error) { return cookie, nil },
		MinBackoff: 100 * time.Millisecond, MaxBackoff: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	v.client = c
	for j := range v.order.PerClient {
		v.at[v.order.Topics[(i+j)%len(v.order.Topics)]] = coord.Start
	}
	return c.Subscribe(ctx, v.at)
}

func (v *visitor) follow(ctx context.Context) {
	defer v.client.Close()
	for {
		events, err := v.client.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				v.fault("%s: %v", v.name, err) // a reset too: nothing is gone
			}
			return
		}
		v.take(events)
	}
}

func (c *crowd) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faultLocked(format, args...)
}

func (c *crowd) faultLocked(format string, args ...any) {
	const most = 20
	if len(c.seen.Faults) < most {
		c.seen.Faults = append(c.seen.Faults, fmt.Sprintf(format, args...))
	}
}

// take holds events to what the client has, and to what others were told.
func (v *visitor) take(events []coord.Event) {
	now := time.Now()
	v.delivered.Add(int64(len(events)))
	v.mu.Lock()
	defer v.mu.Unlock()
	v.crowd.mu.Lock()
	defer v.crowd.mu.Unlock()
	if !v.calm {
		if !v.last.IsZero() {
			v.seen.Gap = max(v.seen.Gap, int64(now.Sub(v.last)))
		}
		v.last = now
	}
	for _, e := range events {
		at, follows := v.at[e.Topic]
		switch {
		case !follows:
			v.faultLocked("%s was told of %s, which it does not follow", v.name, e.Topic)
			continue
		case e.Position.Seq <= at.Seq:
			v.seen.Again[e.Topic][e.Position.Seq] = true
		default:
			for missed := at.Seq + 1; missed < e.Position.Seq; missed++ {
				v.seen.Holes[e.Topic][missed] = true
			}
			v.at[e.Topic] = e.Position
		}
		v.note(e)
	}
}

// note holds an event to the log, with the crowd's lock held.
func (v *visitor) note(e coord.Event) {
	sum := fnv.New64a()
	_, _ = sum.Write(e.Payload)
	told := Told{At: e.Position, Kind: e.Kind, Sum: sum.Sum64()}
	if e.Kind == "message.created" {
		var m client.Message
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			v.faultLocked("%s: %v", v.name, err)
		}
		told.ID = m.Text
	}
	log := v.seen.Log[e.Topic]
	for int64(len(log)) < e.Position.Seq { // places for what nobody was told of yet
		log = append(log, Told{At: coord.Position{Seq: int64(len(log) + 1)}})
	}
	v.seen.Log[e.Topic] = log
	switch known := &log[e.Position.Seq-1]; {
	case known.Kind == "":
		*known = told
	case *known != told:
		v.faultLocked("%s was told %+v, and others %+v", v.name, told, *known)
	}
}

// Calm implements Crowd.
func (c *crowd) Calm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.calm && !c.last.IsZero() {
		c.seen.Gap = max(c.seen.Gap, int64(time.Since(c.last)))
	}
	c.calm = true
}

// Await implements Crowd.
func (c *crowd) Await(ctx context.Context, heads map[string]coord.Position) (Seen, error) {
	for _, v := range c.visitors {
		for {
			topic := v.behind(heads)
			if topic == "" {
				break
			}
			timer := time.NewTimer(10 * time.Millisecond)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
			}
			c.fault("%s is at %v of %s, whose last event is %v", v.name, v.where(topic), topic, heads[topic])
			break
		}
	}
	return c.report(heads), nil
}

// behind returns a topic of which the client has not all.
func (v *visitor) behind(heads map[string]coord.Position) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	for topic, at := range v.at {
		if head, ok := heads[topic]; ok && at.Seq < head.Seq {
			return topic
		}
	}
	return ""
}

func (v *visitor) where(topic string) coord.Position {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.at[topic]
}

func (c *crowd) report(heads map[string]coord.Position) Seen {
	least := make(map[string]int64)
	for topic, head := range heads {
		least[topic] = head.Seq
	}
	for _, v := range c.visitors {
		v.mu.Lock()
		for topic, at := range v.at {
			least[topic] = min(least[topic], at.Seq)
		}
		v.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Least, c.seen.Followers = least, len(c.visitors)
	c.seen.Deliveries, c.seen.Reconnects = c.delivered.Load(), int(c.reconnects.Load())
	return c.seen
}

// Close implements Crowd.
func (c *crowd) Close() {
	c.cancel()
	c.running.Wait()
	c.http.CloseIdleConnections()
}

// Enabled is, with the next three, what makes a visitor the [slog.Handler] that hears of its client's connections.
func (v *visitor) Enabled(_ context.Context, l slog.Level) bool { return l == slog.LevelInfo }

// WithAttrs returns the visitor.
func (v *visitor) WithAttrs([]slog.Attr) slog.Handler { return v }

// WithGroup returns the visitor.
func (v *visitor) WithGroup(string) slog.Handler { return v }

// Handle counts connections after the first.
func (v *visitor) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelInfo && v.began.Swap(true) {
		v.reconnects.Add(1)
	}
	return nil
}

// news is what a crowd in another process is told later: that it is calm, or where the topics end.
type news struct {
	Calm  bool
	Heads map[string]coord.Position
	Limit time.Duration // how long to wait for those
}

// RunCrowd is what a process does that is a crowd: it reads an Order, writes when all follow, and is told the rest.
func RunCrowd(ctx context.Context, in io.Reader, out io.Writer) error {
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	var order Order
	if err := orders.Decode(&order); err != nil {
		return err
	}
	c, err := newCrowd(ctx, order)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := reports.Encode(Seen{}); err != nil {
		return err
	}
	for {
		var n news
		if err := orders.Decode(&n); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if n.Calm {
			c.Calm()
			continue
		}
		limited, cancel := context.WithTimeout(ctx, n.Limit)
		seen, err := c.Await(limited, n.Heads)
		cancel()
		if err == nil {
			err = reports.Encode(seen)
		}
		if err != nil {
			return err
		}
	}
}

// remote is a Crowd in a process of its own.
type remote struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	tell    *json.Encoder
	reports *json.Decoder
}

// NewRemoteCrowd is [NewCrowd] in a process of its own, which is this program again: it must call RunCrowd where
// CrowdVariable is set.
func NewRemoteCrowd(ctx context.Context, o Order) (Crowd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program)
	cmd.Env = append(os.Environ(), CrowdVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // the process ends with it
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &remote{cmd: cmd, in: in, tell: json.NewEncoder(in), reports: json.NewDecoder(out)}
	var following Seen
	if err = r.tell.Encode(o); err == nil {
		err = r.reports.Decode(&following)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start a crowd in another process: %w", err)
	}
	return r, nil
}

// Await implements Crowd.
func (r *remote) Await(ctx context.Context, heads map[string]coord.Position) (seen Seen, err error) {
	limit := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	if err = r.tell.Encode(news{Heads: heads, Limit: limit}); err == nil {
		err = r.reports.Decode(&seen)
	}
	return seen, err
}

// Calm implements Crowd.
func (r *remote) Calm() { _ = r.tell.Encode(news{Calm: true}) }

// Close implements Crowd.
func (r *remote) Close() {
	_ = r.in.Close()
	_ = r.cmd.Wait()
}
