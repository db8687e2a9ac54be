package load

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
)

// Options of Start. The zero values of the numbers have defaults; -1 stands for none.
type Options struct {
	// Front is the URL through which everybody comes: that of HAProxy.
	Front string
	// Replicas are the URLs of the replicas, for those that try one ticket on two of them.
	Replicas []string
	// DB is the database, to make people and to look at in the end.
	DB *sql.DB
	// Name sets what a further load makes apart from that of the one before.
	Name string
	// SQLite says that DB is one of SQLite.
	SQLite bool

	Rooms     int // default 2
	Posters   int // who post by HTTP; default 2
	Senders   int // who post over a socket; default 1
	Followers int // default 6
	Hooks     int // webhooks that are sent, each once in 3 s and then again; default 2
	Racers    int // who try one ticket twice; default 1

	NoTicks bool // no task runs every second
	// Receiver is the address of this machine at which replicas find it. Default: 127.0.0.1.
	Receiver string

	// Pause is that between two requests of one who posts. Default: 100 ms.
	Pause time.Duration
	// Timeout is how long anybody waits for the answer to a request. Default: 3 s.
	Timeout time.Duration
	// Strict makes a fault of each request that fails, and of each effect that is there twice, though it is the same one.
	Strict bool
	// Crowd is made besides, in a process of its own, which follows the rooms.
	Crowd int
	// CrowdRooms is how many of the rooms each of those follows. Default: 1.
	CrowdRooms int
	// TickTakes is how long the request of the task that runs every second takes.
	TickTakes time.Duration
	// Catching is how long may be waited in the end until everybody has heard everything. Default: 60 s.
	Catching time.Duration
}

// withDefaults fills in what was left out.
func (o Options) withDefaults() Options {
	for _, number := range []struct {
		of       *int
		standard int
	}{
		{&o.Rooms, 2},
		{&o.Posters, 2},
		{&o.Senders, 1},
		{&o.Followers, 6},
		{&o.Hooks, 2},
		{&o.Racers, 1},
		{&o.Crowd, 0},
		{&o.CrowdRooms, 1},
	} {
		switch *number.of {
		case 0:
			*number.of = number.standard
		case -1:
			*number.of = 0
		}
	}
	if o.Receiver == "" {
		o.Receiver = "127.0.0.1"
	}
	for _, span := range []struct {
		of       *time.Duration
		standard time.Duration
	}{{&o.Pause, 100 * time.Millisecond}, {&o.Timeout, 3 * time.Second}, {&o.Catching, time.Minute}} {
		if *span.of == 0 {
			*span.of = span.standard
		}
	}
	return o
}

// Load is what goes on. Its methods may be called concurrently, but for End.
type Load struct {
	o      Options
	caller *Caller
	admin  Session
	people []Session
	rooms  []string // topics
	crowds []Crowd
	ticks  *ticks
	hooks  []*hook
	storm  context.Context //nolint:containedctx // ends with what the load does
	calm   context.CancelFunc
	acting sync.WaitGroup
	begun  time.Time
	failed atomic.Int64 // requests
	asked  atomic.Int64

	mu      sync.Mutex
	said    map[string]Said
	acks    []time.Time
	faults  Outcome // of what is noticed at once
	tickets Outcome
	causes  map[string]int // of requests that failed
}

// Start makes people and rooms and lets everybody begin. ctx bounds the start, and what goes on after it too. The caller
// calls End, or Stop.
func Start(ctx context.Context, o Options) (_ *Load, err error) {
	o = o.withDefaults()
	l := &Load{
		o: o, caller: NewCaller(o.Timeout), said: make(map[string]Said), causes: make(map[string]int),
	}
	l.storm, l.calm = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			l.Stop()
			err = fmt.Errorf("start the load: %w", err)
		}
	}()
	admins, err := NewPeople(ctx, o.DB, o.Name+"admin", 1, 5, true)
	if err != nil {
		return nil, err
	}
	l.admin = admins[0]
	if l.people, err = NewPeople(ctx, o.DB, o.Name+"person", 4+o.Posters+o.Senders+o.Racers, 5, false); err != nil {
		return nil, err
	}
	for i := range o.Rooms {
		room, err := l.makeRoom(ctx, fmt.Sprintf("%sroom %d", o.Name, i+1))
		if err != nil {
			return nil, err
		}
		l.rooms = append(l.rooms, roomTopic(room))
	}
	if err := l.startHooks(ctx); err != nil {
		return nil, err
	}
	if !o.NoTicks {
		if l.ticks, err = l.startTicks(ctx); err != nil {
			return nil, err
		}
	}
	if err := l.startCrowds(ctx); err != nil {
		return nil, err
	}
	if err := l.startActing(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func roomTopic(room int64) string { return "room:" + strconv.FormatInt(room, 10) }

// roomOf is the room that a topic is of.
func roomOf(topic string) int64 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(topic, "room:"), 10, 64)
	return n
}

func (l *Load) makeRoom(ctx context.Context, name string) (int64, error) {
	var made struct{ Room struct{ ID int64 } }
	err := l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/rooms", map[string]string{"kind": "public", "name": name}, &made)
	return made.Room.ID, err
}

func (l *Load) startCrowds(ctx context.Context) error {
	topics := slices.Clone(l.rooms)
	for _, h := range l.hooks {
		topics = append(topics, h.topic)
	}
	if l.o.Followers > 0 {
		c, err := NewCrowd(ctx, Order{URL: l.o.Front, Sessions: l.people, Topics: topics, Clients: l.o.Followers, AtOnce: 5})
		if err != nil {
			return err
		}
		l.crowds = append(l.crowds, c)
	}
	if l.o.Crowd > 0 {
		visitors, err := NewPeople(ctx, l.o.DB, l.o.Name+"visitor", (l.o.Crowd+19)/20, 5, false)
		if err != nil {
			return err
		}
		c, err := NewRemoteCrowd(ctx, Order{
			URL: l.o.Front, Sessions: visitors, Topics: l.rooms, Clients: l.o.Crowd, PerClient: min(l.o.CrowdRooms, len(l.rooms)),
		})
		if err != nil {
			return err
		}
		l.crowds = append(l.crowds, c)
	}
	return nil
}

func (l *Load) startActing(ctx context.Context) error {
	next := 0
	session := func() Session {
		next++
		return l.people[(next-1)*5%len(l.people)]
	}
	var senders []*client.Client
	for range l.o.Senders {
		cookie := session().Cookie()
		c, err := client.Dial(ctx, client.Options{
			Endpoints: []string{l.o.Front}, HTTPClient: l.caller.http, MinBackoff: 100 * time.Millisecond, MaxBackoff: 2 * time.Second,
			Session: func(context.Context) (*http.Cookie, error) { return cookie, nil },
		})
		if err != nil {
			return fmt.Errorf("connect a sender: %w", err)
		}
		senders = append(senders, c)
	}
	l.begun = time.Now()
	for i := range l.o.Posters {
		s := session()
		l.repeat(l.o.Pause, func(n int) { l.post(s, fmt.Sprintf("%spost-%d-%d", l.o.Name, i, n), l.rooms[n%len(l.rooms)]) })
	}
	for i, c := range senders {
		l.acting.Go(func() {
			<-l.storm.Done()
			c.Close()
		})
		l.repeat(l.o.Pause, func(n int) { l.send(c, fmt.Sprintf("%ssend-%d-%d", l.o.Name, i, n), l.rooms[n%len(l.rooms)]) })
	}
	for _, h := range l.hooks {
		l.repeat(hookPause, func(n int) { l.ring(h, n) })
	}
	if len(l.o.Replicas) > 1 {
		for range l.o.Racers {
			s := session()
			l.repeat(5*l.o.Pause, func(n int) { l.race(s, n) })
		}
	}
	return nil
}

// repeat does something again and again until the storm ends.
func (l *Load) repeat(pause time.Duration, what func(n int)) {
	l.acting.Go(func() {
		for n := 0; l.wait(pause); n++ {
			what(n)
		}
	})
}

// wait waits, and reports whether the storm goes on.
func (l *Load) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.storm.Done():
		return false
	}
}

// try asks again and again until there is a success, as long as the storm lasts. An answer that is the caller's fault
// ends it, and is a fault.
func (l *Load) try(s Session, method, url string, header func() http.Header, body, into any) bool {
	for l.storm.Err() == nil {
		var h http.Header
		if header != nil {
			h = header()
		}
		// A request is not cut off by the end of the storm: its outcome is known then.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.storm), l.o.Timeout)
		answer, err := l.caller.Ask(ctx, s, method, url, h, body, into)
		cancel()
		l.asked.Add(1)
		if err == nil && answer.OK() {
			return true
		}
		cause := "no answer"
		if err == nil {
			cause = "status " + strconv.Itoa(answer.Status)
		}
		l.fail(method, url, cause, answer, err)
		retry := err != nil || answer.Status >= 500 || slices.Contains([]int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests}, answer.Status)
		if !retry {
			l.fault("%s %s was refused: %v", method, url, answer)
			return false
		}
		pause := 100 * time.Millisecond
		if err == nil && answer.Status == http.StatusTooManyRequests {
			pause = time.Second
		}
		l.wait(pause)
	}
	return false
}

// fail notes a request that failed.
func (l *Load) fail(method, url, cause string, answer Answer, err error) {
	l.failed.Add(1)
	l.mu.Lock()
	l.causes[cause]++
	l.mu.Unlock()
	if l.o.Strict {
		if err != nil {
			l.fault("%s %s failed: %v", method, url, err)
		} else {
			l.fault("%s %s failed: %v", method, url, answer)
		}
	}
}

func (l *Load) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults.Fault(format, args...)
}

func (l *Load) say(id, topic string, acknowledged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said[id] = Said{topic, acknowledged}
	if acknowledged {
		l.acks = append(l.acks, time.Now())
	}
}

func (l *Load) post(s Session, id, topic string) {
	l.say(id, topic, false)
	body := map[string]string{"client_id": id, "text": id}
	if l.try(s, http.MethodPost, fmt.Sprintf("%s/api/v1/rooms/%d/messages", l.o.Front, roomOf(topic)), nil, body, nil) {
		l.say(id, topic, true)
	}
}

func (l *Load) send(c *client.Client, id, topic string) {
	l.say(id, topic, false)
	for l.storm.Err() == nil {
		_, err := c.Send(l.storm, client.NewMessage{Room: roomOf(topic), Text: id, ClientID: id})
		refused, isRefused := errors.AsType[*client.FrameError](err)
		switch {
		case err == nil:
			l.say(id, topic, true)
			return
		case isRefused && (refused.Code == "unavailable" || refused.Code == "limited"):
			l.wait(100 * time.Millisecond)
		case l.storm.Err() == nil:
			l.fault("a message over a socket was refused: %v", err)
			return
		}
	}
}

// race tries one ticket on two replicas at the same time. It opens one connection at most, and one if both say no more
// than that it is used.
func (l *Load) race(s Session, n int) {
	var issued struct{ Ticket string }
	if !l.try(s, http.MethodPost, l.o.Front+"/api/v1/ws-tickets", nil, nil, &issued) {
		return
	}
	opened, refused := 0, 0
	var both sync.WaitGroup
	var mu sync.Mutex
	for i := range 2 {
		at := strings.TrimPrefix(l.o.Replicas[(n+i)%len(l.o.Replicas)], "http://")
		both.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(l.storm), l.o.Timeout)
			defer cancel()
			conn, status, err := Dial(ctx, at, issued.Ticket, l.o.Timeout)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				opened++
				_ = conn.Close()
			} else if status == http.StatusUnauthorized {
				refused++
			}
		})
	}
	both.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch what := fmt.Sprintf("ticket %d", n); {
	case opened > 0:
		l.tickets.Count(what, opened)
		l.acks = append(l.acks, time.Now())
	case refused == 2:
		l.tickets.Count(what, 0)
	}
}

// Acknowledged is how much was acknowledged so far.
func (l *Load) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// ErrStalled is in the chain of what Await returns when that does not come.
var ErrStalled = errors.New("nothing goes on")

// stallTime is how long Await waits.
const stallTime = 45 * time.Second

// Await waits until so much more was acknowledged, not forever.
func (l *Load) Await(ctx context.Context, more int) error {
	deadline := time.Now().Add(stallTime)
	for from := l.Acknowledged(); l.Acknowledged() < from+more; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d of %d more were acknowledged in %v", ErrStalled, l.Acknowledged()-from, more, stallTime)
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d more were acknowledged: %w", l.Acknowledged()-from, more, ctx.Err())
		case <-l.storm.Done():
			return l.storm.Err()
		}
	}
	return nil
}

// Faults are those that were noticed at once, so far: they come again in what End returns.
func (l *Load) Faults() (o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.Acknowledged, o.Once = len(l.acks), len(l.acks)
	o.Add(l.faults)
	return o
}

// Stop ends the load without looking at what came of it. After End it does nothing.
func (l *Load) Stop() {
	l.calm()
	l.acting.Wait()
	for _, c := range l.crowds {
		c.Close()
	}
	if l.ticks != nil {
		l.ticks.close()
	}
	l.caller.Close()
}

// End ends the load and holds what is there to what was acknowledged. The database and a replica must be there; it waits until
// everybody has caught up, but not forever. An error says that it could not be looked at.
func (l *Load) End(ctx context.Context) (o Outcome, err error) {
	defer l.Stop()
	for _, c := range l.crowds {
		c.Calm()
	}
	l.calm()
	l.acting.Wait()
	ended := time.Now()
	hooks, err := l.endHooks(ctx)
	if err != nil {
		return o, err
	}
	if l.ticks != nil {
		ticks, err := l.endTicks(ctx)
		if err != nil {
			return o, err
		}
		o.Add(ticks)
	}
	o.Add(hooks)
	h := History{Said: l.said}
	if h.Seen, err = l.catchUp(ctx); err != nil {
		return o, err
	}
	if h.Stored, err = l.stored(ctx); err != nil {
		return o, err
	}
	o.Add(h.Check())
	l.mu.Lock()
	defer l.mu.Unlock()
	o.Add(l.tickets)
	o.Add(l.faults)
	o.Gap = longest(l.begun, l.acks, ended)
	l.notes(&o, h)
	return o, nil
}

func (l *Load) notes(o *Outcome, h History) {
	o.Note("%d requests, %d of them failed %v; %d messages, %d tickets", l.asked.Load(), l.failed.Load(), l.causes, len(h.Said), l.tickets.Acknowledged)
	for _, s := range h.Seen {
		o.Note("%d followers: %d deliveries, %d reconnects, the longest silence %v",
			s.Followers, s.Deliveries, s.Reconnects, time.Duration(s.Gap).Round(time.Millisecond))
	}
}

// longest is the longest time without any of some moments.
func longest(from time.Time, moments []time.Time, to time.Time) (gap time.Duration) {
	slices.SortFunc(moments, time.Time.Compare)
	for _, at := range moments {
		gap, from = max(gap, at.Sub(from)), at
	}
	return max(gap, to.Sub(from))
}

// catchUp waits until all followers are where their topics end.
func (l *Load) catchUp(ctx context.Context) (list []Seen, err error) {
	heads := make(map[string]coord.Position)
	topics := slices.Clone(l.rooms)
	for _, h := range l.hooks {
		topics = append(topics, h.topic)
	}
	for _, topic := range topics {
		var page struct{ Position coord.Position }
		if err := l.eventually(ctx, func() error {
			return l.caller.Want(ctx, l.admin, http.MethodGet, fmt.Sprintf("%s/api/v1/rooms/%d/messages?limit=1", l.o.Front, roomOf(topic)), nil, &page)
		}); err != nil {
			return nil, err
		}
		heads[topic] = page.Position
	}
	limited, cancel := context.WithTimeout(ctx, l.o.Catching)
	defer cancel()
	for _, c := range l.crowds {
		seen, err := c.Await(limited, heads)
		if err != nil {
			return nil, err
		}
		for topic := range heads { // a crowd may follow some of the rooms only
			if _, follows := seen.Log[topic]; !follows {
				delete(seen.Least, topic)
			}
		}
		list = append(list, seen)
	}
	return list, nil
}

// eventually tries until there is no error, not forever.
func (l *Load) eventually(ctx context.Context, what func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := what()
		if err == nil {
			return nil
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return err
		}
	}
}

// stored says how many messages there are of each text.
func (l *Load) stored(ctx context.Context) (map[string]int, error) {
	n := make(map[string]int)
	rows, err := l.o.DB.QueryContext(ctx, `SELECT text, count(*) FROM app_messages GROUP BY text`)
	if err != nil {
		return nil, fmt.Errorf("look at the messages: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		var count int
		if err := rows.Scan(&text, &count); err != nil {
			return nil, err
		}
		n[text] = count
	}
	return n, rows.Err()
}

// listen listens on a free port of an address of this machine.
func listen(ctx context.Context, host string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp4", net.JoinHostPort(host, "0"))
}

// sortedKeys are the keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
