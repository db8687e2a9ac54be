package load

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/app/webhook"
)

const (
	tickTask  = "tick"
	tickEvery = time.Second
	hookPause = 3 * time.Second // with its repetition 40 requests a minute; 60 are allowed
)

// Receiver takes requests of tasks and counts them by their key.
type Receiver struct {
	URL    string
	server *http.Server
	done   chan struct{}

	mu       sync.Mutex
	requests map[string]int
	first    func() // is called when a key is new
	// Answer, when it is set before the first request, answers instead of 204. It gets the number of the request of its key.
	Answer func(w http.ResponseWriter, r *http.Request, key string, n int)
}

// NewReceiver listens on an address of this machine.
func NewReceiver(ctx context.Context, host string) (*Receiver, error) {
	l, err := listen(ctx, host)
	if err != nil {
		return nil, err
	}
	r := &Receiver{URL: "http://" + l.Addr().String(), done: make(chan struct{}), requests: make(map[string]int)}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l)
	}()
	return r, nil
}

// ServeHTTP implements [http.Handler].
func (r *Receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	key := q.Header.Get("Idempotency-Key")
	r.mu.Lock()
	r.requests[key]++
	n := r.requests[key]
	r.mu.Unlock()
	if n == 1 && r.first != nil {
		r.first()
	}
	if r.Answer != nil {
		r.Answer(w, q, key, n)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Requests are how many came, by their key; those of one run have the same.
func (r *Receiver) Requests() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.requests)
}

// Close ends it and what is under way.
func (r *Receiver) Close() {
	_ = r.server.Close()
	<-r.done
}

// ticks is a task that makes a request every second.
type ticks struct{ receiver *Receiver }

func (t *ticks) close() { t.receiver.Close() }

func (l *Load) startTicks(ctx context.Context) (*ticks, error) {
	receiver, err := NewReceiver(ctx, l.o.Receiver)
	if err != nil {
		return nil, err
	}
	receiver.first = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.acks = append(l.acks, time.Now())
	}
	if l.o.TickTakes > 0 {
		receiver.Answer = func(w http.ResponseWriter, q *http.Request, _ string, _ int) {
			timer := time.NewTimer(l.o.TickTakes)
			defer timer.Stop()
			select {
			case <-timer.C:
				w.WriteHeader(http.StatusNoContent)
			case <-q.Context().Done():
			}
		}
	}
	t := &ticks{receiver}
	err = l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks", map[string]any{
		"name": tickTask, "kind": "http", "report": "never", "schedule": "@every " + tickEvery.String(),
		"http":    map[string]any{"method": "POST", "url": receiver.URL + "/tick", "timeout_s": 5 + int(l.o.TickTakes.Seconds())},
		"overlap": "allow", "misfire": "all", "misfire_cap": 1000,
		"retry": map[string]int{"max_attempts": 25, "backoff_s": 1, "max_backoff_s": 1},
	}, nil)
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// run is one of a task, as it is stored.
type run struct {
	id        int64
	scheduled time.Time
	state     string
	attempt   int
	key       string // by which a receiver knows it
}

// runs lists those of a task, by their occurrence.
func (l *Load) runs(ctx context.Context, task string) (list []run, err error) {
	rows, err := l.o.DB.QueryContext(ctx, `
		SELECT r.id, coalesce(r.scheduled_for, r.created_at), r.state::text, r.attempt,
			r.id || '-' || (extract(epoch FROM r.created_at) * 1000000)::bigint
		FROM coord_runs AS r JOIN coord_tasks AS t ON r.task_id = t.id WHERE t.name = $1 ORDER BY r.scheduled_for, r.id`, task)
	if err != nil {
		return nil, fmt.Errorf("look at the runs: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r run
		if err := rows.Scan(&r.id, &r.scheduled, &r.state, &r.attempt, &r.key); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

// settled waits until all runs of a task have ended, for as long as followers may need, and returns them.
func (l *Load) settled(ctx context.Context, task string) (list []run, err error) {
	for deadline := time.Now().Add(l.o.Catching); ; {
		if list, err = l.runs(ctx, task); err != nil {
			return nil, err
		}
		open := 0
		for _, r := range list {
			if r.state == "queued" || r.state == "running" {
				open++
			}
		}
		if open == 0 || time.Now().After(deadline) {
			return list, nil
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// endTicks waits until the task is up to date, pauses it and holds its runs to the clock and to the receiver.
func (l *Load) endTicks(ctx context.Context) (o Outcome, err error) {
	var calm time.Time
	if err := l.o.DB.QueryRowContext(ctx, `SELECT now()`).Scan(&calm); err != nil {
		return o, err
	}
	for deadline := time.Now().Add(l.o.Catching); ; {
		list, err := l.runs(ctx, tickTask)
		if err != nil {
			return o, err
		}
		if len(list) > 0 && list[len(list)-1].scheduled.After(calm) {
			break
		}
		if time.Now().After(deadline) {
			o.Fault("no occurrence of the task that is due every second has a run since %v", calm)
			break
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return o, ctx.Err()
		}
	}
	if err := l.eventually(ctx, func() error {
		return l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks/"+tickTask+"/pause", nil, nil)
	}); err != nil {
		return o, err
	}
	list, err := l.settled(ctx, tickTask)
	if err != nil {
		return o, err
	}
	checkTicks(&o, list, l.ticks.receiver.Requests(), l.o.Strict)
	return o, nil
}

// checkTicks holds runs to the clock: each occurrence, one a second from the first to the last, has one, which succeeded and
// had an effect. An effect may be repeated, with the same key, unless that is not to be.
func checkTicks(o *Outcome, list []run, effects map[string]int, strict bool) {
	known := make(map[string]bool)
	for i, r := range list {
		known[r.key] = true
		what := fmt.Sprintf("run %d for %s", r.id, r.scheduled.Format(time.TimeOnly))
		if i > 0 {
			step := r.scheduled.Sub(list[i-1].scheduled)
			if step == 0 {
				o.Twofold(what, 2)
			}
			for missed := list[i-1].scheduled.Add(tickEvery); missed.Before(r.scheduled); missed = missed.Add(tickEvery) {
				o.Count("the occurrence of "+missed.Format(time.TimeOnly), 0)
			}
		}
		switch n := effects[r.key]; {
		case r.state != "succeeded":
			o.Count(fmt.Sprintf("%s, which is %s after %d attempts", what, r.state, r.attempt), 0)
		case n == 0:
			o.Count(what+", which succeeded without an effect", 0)
		case n > 1 && strict:
			o.Count("the effect of "+what, n)
		default:
			o.Count(what, 1)
			o.Repeated += n - 1
		}
	}
	for _, key := range sortedKeys(effects) {
		if !known[key] {
			o.Fault("an effect of a run that is not there: %s", key)
		}
	}
	o.Note("%d occurrences, %d effects repeated by a further attempt", len(list), o.Repeated)
}

// hook is a task with a webhook.
type hook struct {
	task   string
	topic  string // of the room into which it posts
	secret []byte
	runs   map[string]map[int64]bool // by the id of the request; of one goroutine until the storm is over
}

func (l *Load) startHooks(ctx context.Context) error {
	for i := range l.o.Hooks {
		h := &hook{task: fmt.Sprintf("hook-%d", i+1), runs: make(map[string]map[int64]bool)}
		room, err := l.makeRoom(ctx, fmt.Sprintf("hook %d", i+1))
		if err != nil {
			return err
		}
		h.topic = roomTopic(room)
		if err := l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks", map[string]any{
			"name": h.task, "room_id": room, "text": "nothing", "overlap": "allow",
			"retry": map[string]int{"max_attempts": 25, "backoff_s": 1, "max_backoff_s": 1},
		}, nil); err != nil {
			return err
		}
		var made struct{ Secret string }
		if err := l.caller.Want(ctx, l.admin, http.MethodPost, l.o.Front+"/api/v1/tasks/"+h.task+"/webhook", nil, &made); err != nil {
			return err
		}
		if h.secret, err = webhook.ParseSecret(made.Secret); err != nil {
			return err
		}
		l.hooks = append(l.hooks, h)
	}
	return nil
}

// ring sends a webhook's request until it is answered, and then once more, as if the answer had been lost.
func (l *Load) ring(h *hook, n int) {
	id := fmt.Sprintf("%s-%d", h.task, n)
	body := []byte(`{"text":` + strconv.Quote(id) + `}`)
	h.runs[id] = make(map[int64]bool)
	l.say(id, h.topic, false)
	for range 2 {
		var answer struct {
			RunID int64 `json:"run_id"`
		}
		header := func() http.Header {
			now := time.Now()
			return http.Header{
				webhook.HeaderID: {id}, webhook.HeaderTimestamp: {strconv.FormatInt(now.Unix(), 10)},
				webhook.HeaderSignature: {webhook.Sign(h.secret, now, id, body)},
			}
		}
		if !l.try(Session{}, http.MethodPost, l.o.Front+"/hooks/v1/tasks/"+h.task, header, body, &answer) {
			return
		}
		h.runs[id][answer.RunID] = true
		l.say(id, h.topic, true)
	}
}

// endHooks waits until the runs have ended, whose messages are looked at like others, and counts them.
func (l *Load) endHooks(ctx context.Context) (o Outcome, err error) {
	for _, h := range l.hooks {
		list, err := l.settled(ctx, h.task)
		if err != nil {
			return o, err
		}
		state := make(map[int64]string)
		for _, r := range list {
			state[r.id] = r.state
		}
		acknowledged := 0
		for _, id := range sortedKeys(h.runs) {
			if len(h.runs[id]) == 0 {
				continue
			}
			acknowledged++
			if len(h.runs[id]) > 1 {
				o.Fault("the webhook's request %s has made %d runs", id, len(h.runs[id]))
			}
			for run := range h.runs[id] {
				if state[run] != "succeeded" {
					o.Fault("the run %d of the webhook's request %s is %q", run, id, strings.TrimSpace(state[run]))
				}
			}
		}
		if len(list) < acknowledged || len(list) > len(h.runs) {
			o.Fault("%s has %d runs: %d requests of its webhook were acknowledged, of %d", h.task, len(list), acknowledged, len(h.runs))
		}
	}
	return o, nil
}
