package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// checkScenarios are what is looked at by hand when a second replica is put into operation.
func checkScenarios() []Scenario {
	return []Scenario{
		{
			Name: "one-run-per-tick", Short: true,
			Promise: "each occurrence has one run on one replica, and one effect, though it takes longer than a lease",
			Break:   "leases of runs are not extended.",
			Checker: "runs that never succeed, however often they have had their effect",
			Run:     runTicks,
		},
		{
			Name:    "stream-across",
			Promise: "what is posted on one replica is streamed by the other, once and in order, to sockets and event streams",
			Break:   "a replica does not hand out what it reads of the stream of events.",
			Checker: "followers: messages that they were not told of",
			Run:     runStreamAcross,
		},
		{
			Name: "ticket-across", Short: true,
			Promise: "a ticket of one replica opens one socket, on whichever of both",
			Break:   "a ticket that is redeemed is not burnt.",
			Checker: "racers: tickets that opened several sockets",
			Run:     runTicketAcross,
		},
		{
			Name: "limit-across", Short: true,
			Promise: "a limit is one, whichever replica is asked: the rest gets 429",
			Break:   "each replica counts for itself.",
			Checker: "tries that were let through beyond the limit",
			Run:     runLimitAcross,
		},
		{
			Name:    "survivor",
			Promise: "with one replica killed for good, the other carries on with everything",
			Break:   "the lease of a run lasts for an hour.",
			Checker: "runs of the replica that was killed: they do not end",
			Run:     runSurvivor,
		},
		{
			Name:    "spread",
			Promise: "sockets and runs are spread over both replicas",
			Break:   "HAProxy fills one replica first.",
			Checker: "sockets by replica",
			Run:     runSpread,
		},
		{
			Name:    "memory-at-rest",
			Promise: "after 300 sockets have come and gone a replica has no goroutine more than before, and takes less than 150 MiB",
			Break:   "a socket that has gone leaves a goroutine behind.",
			Checker: "goroutines at rest",
			Run:     runMemory,
		},
		{
			Name: "readiness", Short: true,
			Promise: "not ready while the database is away or while stopping, alive all the time, and ready again by itself",
			Break:   "a replica that is stopping does not say so.",
			Checker: "readiness after SIGTERM",
			Run:     runReadiness,
		},
	}
}

// runTicks lets a task run every second, whose request takes longer than the lease of a run.
func runTicks(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	// The lease is not so short that a busy machine does not extend it in time.
	s, l, stop, err := r.loaded(ctx, stand.Options{Settings: map[string]string{"TANDEM_LEASE": "4s"}}, load.Options{
		Strict: true, Posters: -1, Senders: -1, Followers: -1, Hooks: -1, Racers: -1, TickTakes: 6 * time.Second,
	}, stand.Change{
		File: "coord/worker/lease.go", Old: "held, err := w.claimer.Extend(ctx, w.o.Lease, claims...)",
		New: "_, _, held, err := ctx, claims, []coord.Claim(nil), error(nil)",
	})
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 8); err != nil {
		return o, err
	}
	o, err = l.End(ctx)
	if err != nil {
		return o, err
	}
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	workers, err := counts(ctx, db, `SELECT worker, count(*) FROM coord_runs GROUP BY worker`)
	o.Note("runs by replica: %v", workers)
	return o, err
}

// counts reads rows of a name and a number.
func counts(ctx context.Context, db *sql.DB, query string) (map[string]int, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	n := make(map[string]int)
	for rows.Next() {
		var name string
		var count int
		if err := rows.Scan(&name, &count); err != nil {
			return nil, err
		}
		n[name] = count
	}
	return n, rows.Err()
}

// people are what a check by hand takes: a stand of two replicas, and somebody who is an administrator.
type people struct {
	*stand.Stand
	*load.Caller

	admin []load.Session
	db    *sql.DB
}

func (r *Rig) people(ctx context.Context, o stand.Options, breaks ...stand.Change) (_ *people, err error) {
	p := new(people)
	if p.Stand, err = r.Stand(ctx, o, breaks...); err != nil {
		return nil, err
	}
	p.Caller = load.NewCaller(20 * time.Second)
	if p.db, err = p.DB(); err == nil {
		p.admin, err = load.NewPeople(ctx, p.db, "admin", 1, 20, true)
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *people) stop() {
	p.Close()
	p.Stop()
}

// room makes a room and returns its id.
func (p *people) room(ctx context.Context, name string) (int64, error) {
	var made struct{ Room struct{ ID int64 } }
	err := p.Want(ctx, p.admin[0], http.MethodPost, p.Front+"/api/v1/rooms", map[string]string{"name": name}, &made)
	return made.Room.ID, err
}

// runStreamAcross follows on each replica, by sockets and by an event stream, what is posted on the other.
func runStreamAcross(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	p, err := r.people(ctx, stand.Options{}, stand.Change{
		File: "app/hub/topics.go", Old: "\tfor len(events) > 0 {\n\t\tn := 1\n", New: "\tevents = nil\n\tfor len(events) > 0 {\n\t\tn := 1\n",
	})
	if err != nil {
		return o, err
	}
	defer p.stop()
	history := load.History{Said: make(map[string]load.Said), Stored: make(map[string]int)}
	heads := make(map[string]coord.Position)
	var topics []string
	for range p.Replicas {
		room, err := p.room(ctx, fmt.Sprintf("room %d", len(topics)+1))
		if err != nil {
			return o, err
		}
		topics = append(topics, "room:"+strconv.FormatInt(room, 10))
	}
	var crowds []load.Crowd
	var streams []*eventStream
	for i, replica := range p.Replicas { // the topic of the other
		crowd, err := load.NewCrowd(ctx, load.Order{URL: replica.URL(), Sessions: p.admin, Topics: topics[1-i : 2-i], Clients: 4, AtOnce: 2})
		if err != nil {
			return o, err
		}
		defer crowd.Close()
		crowds = append(crowds, crowd)
		stream, err := openStream(ctx, replica.URL(), p.admin[0], topics[1-i])
		if err != nil {
			return o, err
		}
		defer stream.close()
		streams = append(streams, stream)
	}
	began, last := time.Now(), time.Now()
	for n := range 100 {
		i := n % 2
		id := fmt.Sprintf("message %d", n)
		url := fmt.Sprintf("%s/api/v1/rooms/%s/messages", p.Replicas[i].URL(), strings.TrimPrefix(topics[i], "room:"))
		if err := p.Want(ctx, p.admin[n%len(p.admin)], http.MethodPost, url, map[string]string{"client_id": id, "text": id}, nil); err != nil {
			return o, err
		}
		history.Said[id] = load.Said{Topic: topics[i], Acknowledged: true}
		o.Gap, last = max(o.Gap, time.Since(last)), time.Now()
		if err := r.Wait(ctx, 10*time.Millisecond); err != nil {
			return o, err
		}
	}
	r.Say("100 messages were posted in %v", time.Since(began).Round(time.Millisecond))
	for i, topic := range topics {
		var page struct{ Position coord.Position }
		url := fmt.Sprintf("%s/api/v1/rooms/%s/messages", p.Replicas[i].URL(), strings.TrimPrefix(topic, "room:"))
		if err := p.Want(ctx, p.admin[0], http.MethodGet, url, nil, &page); err != nil {
			return o, err
		}
		heads[topic] = page.Position
	}
	if history.Stored, err = counts(ctx, p.db, `SELECT text, count(*) FROM app_messages GROUP BY text`); err != nil {
		return o, err
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for i, crowd := range crowds {
		topic := topics[1-i]
		seen, err := crowd.Await(limited, map[string]coord.Position{topic: heads[topic]})
		if err != nil {
			return o, err
		}
		history.Seen = append(history.Seen, seen)
		streams[i].check(limited, &o, history.Said, topic)
	}
	o.Add(history.Check())
	return o, nil
}

// eventStream is one of server-sent events.
type eventStream struct {
	answer *http.Response
	lines  chan string
	cancel context.CancelFunc
}

// openStream opens one of a topic from its beginning.
func openStream(ctx context.Context, url string, s load.Session, topic string) (*eventStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/events?topic="+topic+"&last_event_id=0", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	request.AddCookie(s.Cookie())
	e := &eventStream{lines: make(chan string, 1000), cancel: cancel}
	if e.answer, err = http.DefaultClient.Do(request); err != nil { //nolint:bodyclose // close does
		cancel()
		return nil, err
	}
	if e.answer.StatusCode != http.StatusOK {
		cancel()
		return nil, fmt.Errorf("an event stream: %s", e.answer.Status)
	}
	go func() {
		defer close(e.lines)
		lines := bufio.NewScanner(e.answer.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				e.lines <- data
			}
		}
	}()
	return e, nil
}

func (e *eventStream) close() {
	e.cancel()
	_ = e.answer.Body.Close()
}

// check reads until all messages of the topic have come, each once.
func (e *eventStream) check(ctx context.Context, o *load.Outcome, said map[string]load.Said, topic string) {
	wanted, seen := 0, make(map[string]int)
	for _, s := range said {
		if s.Topic == topic {
			wanted++
		}
	}
	for len(seen) < wanted {
		select {
		case data, ok := <-e.lines:
			var frame struct {
				Kind    string
				Payload struct{ Text string }
			}
			if !ok || json.Unmarshal([]byte(data), &frame) != nil {
				o.Fault("an event stream has ended, or said what can't be read: %s", data)
				return
			}
			if frame.Kind == "message.created" {
				seen[frame.Payload.Text]++
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	for id, s := range said {
		if s.Topic == topic && seen[id] != 1 {
			o.Fault("an event stream was told %d times: %s", seen[id], id)
		}
	}
}

// runTicketAcross tries each ticket several times on both replicas at once.
func runTicketAcross(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	p, err := r.people(ctx, stand.Options{}, stand.Change{
		File: "migrations/pg/coord/0006_tickets.sql", Old: "DELETE FROM coord_tickets t WHERE t.hash = ANY (hashes)\n",
		New: "UPDATE coord_tickets t SET ttl = t.ttl WHERE t.hash = ANY (hashes)\n",
	})
	if err != nil {
		return o, err
	}
	defer p.stop()
	last := time.Now()
	for n := range 40 {
		ticket, err := p.Ticket(ctx, p.admin[n%len(p.admin)], p.Replicas[n%2].URL())
		if err != nil {
			return o, err
		}
		opened := 0
		var racing sync.WaitGroup
		var mu sync.Mutex
		for try := range 4 {
			at := p.Replicas[try%2].Addr
			racing.Go(func() {
				conn, status, err := load.Dial(ctx, at, ticket, 10*time.Second)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					opened++
					_ = conn.Close()
				case status != http.StatusUnauthorized:
					o.Fault("ticket %d was answered with status %d: %v", n, status, err)
				}
			})
		}
		racing.Wait()
		o.Count(fmt.Sprintf("ticket %d", n), opened)
		o.Gap, last = max(o.Gap, time.Since(last)), time.Now()
	}
	return o, nil
}

const (
	signInLimit = 10 // in a minute, of one account
	signInTries = 24 // on both replicas together; fewer than an address may make
)

// runLimitAcross tries passwords on both replicas at once.
func runLimitAcross(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	p, err := r.people(ctx, stand.Options{}, stand.Change{
		File: "app/auth/sessions.go", Old: `return "signin.account:" + key`, New: `return "signin.account:" + os.Getenv("TANDEM_NODE") + key`,
	}, stand.Change{
		File: "app/auth/sessions.go", Old: "import (\n", New: "import (\n\t\"os\"\n",
	})
	if err != nil {
		return o, err
	}
	defer p.stop()
	if _, err := p.Command(ctx, "correct horse battery\n", "user", "add", "grace", "--password-stdin"); err != nil {
		return o, err
	}
	began := time.Now()
	granted := make([]int, len(p.Replicas))
	var trying sync.WaitGroup
	var mu sync.Mutex
	for try := range signInTries {
		trying.Go(func() {
			for ctx.Err() == nil {
				answer, err := p.Ask(ctx, load.Session{}, http.MethodPost, p.Replicas[try%2].URL()+"/api/v1/session", nil,
					map[string]string{"name": "grace", "password": "not this one"}, nil)
				if answer.Status == http.StatusServiceUnavailable { // too many passwords are being checked
					_ = stand.Pause(ctx, 50*time.Millisecond)
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case answer.Status == http.StatusUnauthorized:
					granted[try%2]++
				case answer.Status == http.StatusTooManyRequests && answer.Header.Get("Retry-After") != "":
				default:
					o.Fault("a try was answered with %v %v", answer, err)
				}
				return
			}
		})
	}
	trying.Wait()
	o.Gap = time.Since(began)
	most := signInLimit + int(time.Since(began)/(time.Minute/signInLimit)) // with what has become free again
	for _, replica := range p.Replicas {
		outages, err := metrics(ctx, replica, "tandem_limiter_outages_total")
		if err != nil {
			return o, err
		}
		if outages[0] > 0 { // on a busy machine the database may not answer in the quarter of a second that is waited for
			o.Note("%s has limited by itself for a while, and may let through as many again", replica.Name)
			most += signInLimit
		}
	}
	all := granted[0] + granted[1]
	r.Say("%d and %d of %d tries were let through in %v", granted[0], granted[1], signInTries, o.Gap.Round(time.Millisecond))
	for n := range max(all, signInLimit) {
		switch {
		case n < min(all, most):
			o.Count(fmt.Sprintf("try %d", n), 1)
		case n < all:
			o.Twofold(fmt.Sprintf("try %d, beyond the limit of %d", n, most), 2)
		default:
			o.Count(fmt.Sprintf("try %d, within the limit", n), 0)
		}
	}
	return o, nil
}

// runSurvivor kills a replica for good.
func runSurvivor(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	options := stand.Options{}
	if r.Broken {
		options.Settings = map[string]string{"TANDEM_LEASE": "1h"}
	}
	s, l, stop, err := r.loaded(ctx, options, load.Options{TickTakes: 1500 * time.Millisecond, Catching: 20 * time.Second})
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 80); err != nil {
		return o, err
	}
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	victim := s.Replicas[r.Random.IntN(2)]
	if err := stand.Await(ctx, "runs on "+victim.Name, func() string {
		n, err := counts(ctx, db, `SELECT worker, count(*) FROM coord_runs WHERE state = 'running' GROUP BY worker`)
		if err != nil || n[victim.Name] == 0 {
			return fmt.Sprintf("%v %v", n, err)
		}
		return ""
	}); err != nil {
		return o, err
	}
	victim.Kill()
	r.Say("%s is killed for good, at work on a run", victim.Name)
	if err := l.Await(ctx, 300); err != nil {
		return o, err
	}
	o, err = l.End(ctx)
	o.Bound(5*time.Second, "one of two replicas was killed")
	return o, err
}

const (
	spreadSockets = 60
	spreadRuns    = 60
)

// runSpread opens sockets through HAProxy and triggers runs, and looks where they are.
func runSpread(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	options := stand.Options{}
	if r.Broken {
		options.Proxy = func(config string) string { return strings.Replace(config, "balance leastconn", "balance first", 1) }
	}
	p, err := r.people(ctx, options)
	if err != nil {
		return o, err
	}
	defer p.stop()
	sockets := make(map[string]int)
	last := time.Now()
	for n := range spreadSockets {
		ticket, err := p.Ticket(ctx, p.admin[n%len(p.admin)], p.Front)
		if err != nil {
			return o, err
		}
		conn, status, err := load.Dial(ctx, strings.TrimPrefix(p.Front, "http://"), ticket, 10*time.Second)
		if err != nil {
			return o, fmt.Errorf("open a socket: status %d: %w", status, err)
		}
		defer conn.Close()
		var welcome struct{ Node string }
		if err := conn.ReadJSON(&welcome); err != nil {
			return o, err
		}
		sockets[welcome.Node]++
		o.Count("a socket", 1)
		o.Gap, last = max(o.Gap, time.Since(last)), time.Now()
	}
	runs, err := p.spreadRuns(ctx, &o)
	if err != nil {
		return o, err
	}
	r.Say("sockets %v, runs %v", sockets, runs)
	for _, replica := range p.Replicas {
		if sockets[replica.Name] < spreadSockets*2/5 {
			o.Fault("%s has %d of %d sockets", replica.Name, sockets[replica.Name], spreadSockets)
		}
		if runs[replica.Name] < spreadRuns/10 {
			o.Fault("%s had %d of %d runs", replica.Name, runs[replica.Name], spreadRuns)
		}
	}
	return o, nil
}

// spreadRuns triggers runs and returns who had how many.
func (p *people) spreadRuns(ctx context.Context, o *load.Outcome) (map[string]int, error) {
	receiver, err := load.NewReceiver(ctx, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	defer receiver.Close()
	receiver.Answer = func(w http.ResponseWriter, q *http.Request, _ string, _ int) {
		if stand.Pause(q.Context(), 300*time.Millisecond) == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	}
	if err := p.Want(ctx, p.admin[0], http.MethodPost, p.Front+"/api/v1/tasks", map[string]any{
		"name": "spread", "kind": "http", "report": "never", "overlap": "allow", "http": map[string]any{"method": "POST", "url": receiver.URL},
	}, nil); err != nil {
		return nil, err
	}
	for range spreadRuns {
		if err := p.Want(ctx, p.admin[0], http.MethodPost, p.Front+"/api/v1/tasks/spread/run", nil, nil); err != nil {
			return nil, err
		}
	}
	var runs map[string]int
	if err := stand.Await(ctx, "the runs", func() string {
		n, err := counts(ctx, p.db, `SELECT worker, count(*) FROM coord_runs WHERE state = 'succeeded' GROUP BY worker`)
		all := 0
		for _, count := range n {
			all += count
		}
		if runs = n; err != nil || all < spreadRuns {
			return fmt.Sprintf("%v %v", n, err)
		}
		return ""
	}); err != nil {
		return nil, err
	}
	effects := receiver.Requests()
	for key, n := range effects {
		o.Count("the effect of run "+key, n)
	}
	if len(effects) != spreadRuns {
		o.Fault("%d runs had an effect, of %d", len(effects), spreadRuns)
	}
	return runs, nil
}

const (
	restSockets    = 300
	restBytes      = 150 << 20
	restGoroutines = 25 // by which they may differ: connections of proxies and pools come and go
)

// runMemory lets many sockets come and go, and looks what a replica has kept.
func runMemory(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	s, err := r.Stand(ctx, stand.Options{}, stand.Change{
		File: "app/hub/hub.go", Old: "func (h *Hub) leave(s *subscriber) {\n", New: "func (h *Hub) leave(s *subscriber) {\n\tgo func() { select {} }()\n",
	})
	if err != nil {
		return o, err
	}
	defer s.Stop()
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	const warm = 20
	before := make(map[*stand.Replica]float64)
	for _, crowd := range []int{warm, restSockets} {
		l, err := load.Start(ctx, load.Options{
			Front: s.Front, Replicas: s.URLs(), DB: db, Name: strconv.Itoa(crowd), Crowd: crowd, Pause: 200 * time.Millisecond, NoTicks: true,
			Hooks: -1, Racers: -1, Timeout: 20 * time.Second,
		})
		if err != nil {
			return o, err
		}
		defer l.Stop()
		if err := l.Await(ctx, 60); err != nil {
			return o, err
		}
		end, err := l.End(ctx)
		o.Add(end)
		if err != nil {
			return o, err
		}
		if crowd == warm {
			if err := r.Wait(ctx, 3*time.Second); err != nil {
				return o, err
			}
			for _, replica := range s.Replicas {
				if before[replica], _, err = atRest(ctx, replica); err != nil {
					return o, err
				}
			}
			continue
		}
		for _, replica := range s.Replicas {
			var goroutines, bytes float64
			if err := stand.Await(ctx, replica.Name+" at rest", func() string {
				if goroutines, bytes, err = atRest(ctx, replica); err != nil {
					return err.Error()
				}
				if goroutines > before[replica]+restGoroutines {
					return fmt.Sprintf("%.0f goroutines, %.0f before", goroutines, before[replica])
				}
				return ""
			}); err != nil {
				return o, err
			}
			o.Note("%s at rest: %.0f goroutines, %.0f before; %.0f MiB", replica.Name, goroutines, before[replica], bytes/(1<<20))
			if bytes > restBytes {
				o.Fault("%s takes %.0f MiB at rest", replica.Name, bytes/(1<<20))
			}
		}
	}
	return o, nil
}

// atRest reads the number of goroutines and the resident memory of a replica.
func atRest(ctx context.Context, r *stand.Replica) (goroutines, bytes float64, err error) {
	values, err := metrics(ctx, r, "go_goroutines", "process_resident_memory_bytes")
	if err != nil {
		return 0, 0, err
	}
	return values[0], values[1], nil
}

// metrics reads some of the metrics of a replica, in their order.
func metrics(ctx context.Context, r *stand.Replica, names ...string) ([]float64, error) {
	caller := load.NewCaller(5 * time.Second)
	defer caller.Close()
	answer, err := caller.Ask(ctx, load.Session{}, http.MethodGet, r.URL()+"/metrics", nil, nil, nil)
	if err != nil {
		return nil, err
	}
	values, found := make([]float64, len(names)), 0
	for line := range strings.Lines(string(answer.Body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		i := slices.Index(names, name)
		if i < 0 {
			continue
		}
		if values[i], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, err
		}
		found++
	}
	if found != len(names) {
		return nil, fmt.Errorf("the metrics of %s: %v", r.Name, answer)
	}
	return values, nil
}

// runReadiness takes the database away and gives it back, and lets a replica stop.
func runReadiness(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	p, err := r.people(ctx, stand.Options{Settings: map[string]string{"TANDEM_DRAIN_GRACE": "3s"}}, stand.Change{
		File: "app/server.go", Old: "\ts.health.Drain()\n", New: "",
	})
	if err != nil {
		return o, err
	}
	defer p.stop()
	room, err := p.room(ctx, "room")
	if err != nil {
		return o, err
	}
	post := func(url, id string) bool {
		answer, err := p.Ask(ctx, p.admin[0], http.MethodPost, fmt.Sprintf("%s/api/v1/rooms/%d/messages", url, room), nil,
			map[string]string{"client_id": id, "text": id}, nil)
		return err == nil && answer.OK()
	}
	expect := func(what string, within time.Duration, is func() bool) {
		began := time.Now()
		for !is() {
			if time.Since(began) > within || stand.Pause(ctx, 20*time.Millisecond) != nil {
				o.Fault("not within %v: %s", within, what)
				return
			}
		}
		o.Count(what, 1)
		r.Say("%s, after %v", what, time.Since(began).Round(10*time.Millisecond))
	}
	for _, replica := range p.Replicas {
		expect(replica.Name+" is ready and serves", 0, func() bool { return replica.Ready(ctx) && post(replica.URL(), "before "+replica.Name) })
	}
	if err := p.Cluster.Crash(false); err != nil {
		return o, err
	}
	away := time.Now()
	r.Say("the database is away")
	for _, replica := range p.Replicas {
		expect(replica.Name+" is not ready without its database", 5*time.Second, func() bool { return !replica.Ready(ctx) })
		expect(replica.Name+" is alive without its database", 0, func() bool { return replica.Live(ctx) })
	}
	if err := p.Cluster.Restart(ctx); err != nil {
		return o, err
	}
	r.Say("the database is back")
	for _, replica := range p.Replicas {
		expect(replica.Name+" is ready again", 10*time.Second, func() bool { return replica.Ready(ctx) })
		expect(replica.Name+" serves again", 2*time.Second, func() bool { return post(replica.URL(), "after "+replica.Name) })
	}
	o.Gap = time.Since(away)
	if err := p.AwaitFront(ctx, 2); err != nil {
		return o, err
	}
	leaving := p.Replicas[r.Random.IntN(2)]
	ended := make(chan error, 1)
	go func() { ended <- leaving.Terminate(ctx) }()
	expect(leaving.Name+", which stops, says that it is not ready", time.Second, func() bool { return !leaving.Ready(ctx) })
	expect(leaving.Name+", which stops, serves on", 0, func() bool { return post(leaving.URL(), "leaving") && leaving.Live(ctx) })
	expect("HAProxy leads to the other", 2*time.Second, func() bool { return p.AwaitFront(ctx, 1) == nil && post(p.Front, "led") })
	if err := <-ended; err != nil {
		o.Fault("%v", err)
	} else {
		o.Count(leaving.Name+" has ended well", 1)
	}
	return o, nil
}
