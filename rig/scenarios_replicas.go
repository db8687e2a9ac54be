package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// replicaScenarios are about what becomes of replicas.
func replicaScenarios() []Scenario {
	return []Scenario{
		{
			Name: "kill", Short: true,
			Promise: "kill -9 of any replica loses and repeats nothing",
			Break:   "a client that comes back is not given what it has missed.",
			Checker: "followers: messages that they were not told of",
			Run:     runKill,
		},
		{
			Name: "freeze", Short: true,
			Promise: "a replica that stands still past its leases, as leader too, changes nothing when it goes on",
			Break:   "what a worker reports of its run is written without a look at its token.",
			Checker: "the log of a run that another replica has taken over",
			Run:     runFreeze,
		},
		{
			Name: "rolling-small", Short: true,
			Promise: "three replicas restarted one by one: no request fails, 200 sockets miss and repeat nothing",
			Break:   "HAProxy asks nobody whether they are ready, and tries nobody else.",
			Checker: "requests that failed",
			Run:     runRollingSmall,
		},
		{
			Name:    "rolling",
			Promise: "three replicas restarted one by one: no request fails, 2,000 sockets miss and repeat nothing",
			Break:   "a client that comes back is not given what it has missed.",
			Checker: "the crowd: messages that it was not told of",
			Run:     runRolling,
		},
		{
			Name:    "six-at-once",
			Promise: "of six replicas that start at once on an empty database one migrates, all get ready, one set-up succeeds",
			Break:   "who sets up is not asked whether somebody has.",
			Checker: "set-ups that succeeded",
			Run:     runSix,
		},
		{
			Name:    "mixed-versions",
			Promise: "this version and the one before, side by side, forward and back: no request fails, nothing is missed or repeated",
			Break:   "a migration renames a column that messages are read from.",
			Checker: "requests that failed",
			Run:     runMixed,
		},
	}
}

// loaded starts a stand and its load. stop ends both.
func (r *Rig) loaded(ctx context.Context, s stand.Options, o load.Options, breaks ...stand.Change) (
	_ *stand.Stand, _ *load.Load, stop func(), err error,
) {
	st, err := r.Stand(ctx, s, breaks...)
	if err != nil {
		return nil, nil, nil, err
	}
	if o.DB, err = st.DB(); err != nil {
		st.Stop()
		return nil, nil, nil, err
	}
	o.Front, o.Replicas = st.Front, st.URLs()
	l, err := load.Start(ctx, o)
	if err != nil {
		st.Stop()
		return nil, nil, nil, err
	}
	r.Say("the load is on")
	return st, l, func() { l.Stop(); st.Stop() }, nil
}

// inOrder does things until one fails.
func inOrder(things ...func() error) error {
	for _, thing := range things {
		if err := thing(); err != nil {
			return err
		}
	}
	return nil
}

// forgetful lets a client that comes back go on from the present, and not from where it was.
var forgetful = stand.Change{
	File: "app/hub/subscriber.go", Old: "added[i] = &member{who: s, topic: t, at: from[t.name]}",
	New: "added[i] = &member{who: s, topic: t, at: from[t.name]}\n\t\tif added[i].at != coord.Start {\n\t\t\tadded[i].at = coord.Head\n\t\t}",
}

// runKill kills replicas in turns, and lets them come back.
func runKill(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	s, l, stop, err := r.loaded(ctx, stand.Options{}, load.Options{Catching: 20 * time.Second}, forgetful)
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 50); err != nil {
		return o, err
	}
	first := r.Random.IntN(len(s.Replicas))
	for round := range 4 {
		victim := s.Replicas[(first+round)%len(s.Replicas)] // to which everybody has gone by now
		victim.Kill()
		r.Say("%s is killed", victim.Name)
		if err := inOrder(
			func() error { return l.Await(ctx, 30) },
			func() error { return r.Wait(ctx, time.Duration(r.Random.IntN(1500))*time.Millisecond) },
			victim.Start,
			func() error { return victim.AwaitReady(ctx) },
			func() error { r.Say("%s is ready again", victim.Name); return s.AwaitFront(ctx, len(s.Replicas)) },
			func() error { return l.Await(ctx, 30) },
		); err != nil {
			return o, err
		}
	}
	return l.End(ctx)
}

const (
	heldTask   = "held"
	leadership = "jobs" // what replicas lead under
)

// runFreeze stops the replica that leads while it is at work on a run, until another has taken over both.
func runFreeze(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	s, l, stop, err := r.loaded(ctx, stand.Options{}, load.Options{}, stand.Change{
		File: "coord/pg/runs.go",
		Old:  "ON r.id = c.id AND r.token = c.token\n\t\t\tWHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r\n\t\t), reported AS (",
		New:  "ON r.id = c.id\n\t\t\tWHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r\n\t\t), reported AS (",
	})
	if err != nil {
		return o, err
	}
	defer stop()
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	terms, err := watchTerms(ctx, db)
	if err != nil {
		return o, err
	}
	defer terms.stop()
	leader := s.Replicas[0]
	if err := stand.Await(ctx, "a leader", func() string {
		for _, candidate := range s.Replicas {
			if candidate.Name == terms.leader() {
				leader = candidate
				return ""
			}
		}
		return "nobody leads"
	}); err != nil {
		return o, err
	}
	held, err := newHeld(ctx, l, s, db)
	if err != nil {
		return o, err
	}
	defer held.receiver.Close()
	run, err := held.on(ctx, leader.Name)
	if err != nil {
		return o, err
	}
	if err := leader.Freeze(); err != nil {
		return o, err
	}
	defer leader.Thaw() //nolint:errcheck // it may have ended
	r.Say("%s, which leads and is at work on run %d, stands still", leader.Name, run.id)
	other := s.Replicas[0]
	if leader == other {
		other = s.Replicas[1]
	}
	if err := inOrder(
		func() error { return held.again(ctx, run) },
		func() error {
			return stand.Await(ctx, "another leader", func() string {
				if terms.leader() != other.Name {
					return terms.leader() + " leads"
				}
				return ""
			})
		},
		func() error { r.Say("%s leads, and is at work on the run", other.Name); return l.Await(ctx, 30) },
		func() error { held.answer(run, 1); return leader.Thaw() },
		func() error { r.Say("%s goes on", leader.Name); return r.Wait(ctx, 2*time.Second) },
		func() error { held.answer(run, 2); return l.Await(ctx, 60) },
	); err != nil {
		return o, err
	}
	if err := held.check(ctx, &o, run); err != nil {
		return o, err
	}
	terms.stop()
	terms.check(&o, leader.Name, other.Name)
	if !leader.Running() {
		o.Fault("%s has ended", leader.Name)
	}
	end, err := l.End(ctx)
	o.Add(end)
	return o, err
}

// held are runs whose requests are answered when the scenario says so.
type held struct {
	receiver *load.Receiver
	load     *load.Load
	stand    *stand.Stand
	db       *sql.DB

	mu      sync.Mutex
	waiting map[string]map[int]chan struct{} // by key and number of the request
}

// heldRun is one of them.
type heldRun struct {
	id  int64
	key string
}

func newHeld(ctx context.Context, l *load.Load, s *stand.Stand, db *sql.DB) (*held, error) {
	h := &held{load: l, stand: s, db: db, waiting: make(map[string]map[int]chan struct{})}
	var err error
	if h.receiver, err = load.NewReceiver(ctx, "127.0.0.1"); err != nil {
		return nil, err
	}
	h.receiver.Answer = func(w http.ResponseWriter, q *http.Request, key string, n int) {
		select {
		case <-h.gate(key, n):
			_, _ = fmt.Fprintf(w, "answer %d", n)
		case <-q.Context().Done():
		}
	}
	return h, l.Do(ctx, http.MethodPost, "/api/v1/tasks", map[string]any{
		"name": heldTask, "kind": "http", "report": "never", "overlap": "allow",
		"http":  map[string]any{"method": "POST", "url": h.receiver.URL, "timeout_s": 300},
		"retry": map[string]int{"max_attempts": 5},
	}, nil)
}

func (h *held) gate(key string, n int) chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[key] == nil {
		h.waiting[key] = make(map[int]chan struct{})
	}
	if h.waiting[key][n] == nil {
		h.waiting[key][n] = make(chan struct{})
	}
	return h.waiting[key][n]
}

// answer lets the n-th request of a run be answered.
func (h *held) answer(run heldRun, n int) { close(h.gate(run.key, n)) }

// on triggers runs until a replica of that name is at work on one. The others are answered.
func (h *held) on(ctx context.Context, name string) (run heldRun, err error) {
	err = stand.Await(ctx, "a run on "+name, func() string {
		var made struct{ Run struct{ ID int64 } }
		if err := h.load.Do(ctx, http.MethodPost, "/api/v1/tasks/"+heldTask+"/run", nil, &made); err != nil {
			return err.Error()
		}
		run.id = made.Run.ID
		var worker string
		for worker == "" {
			err := h.db.QueryRowContext(ctx, `SELECT worker, id || '-' || (extract(epoch FROM created_at) * 1000000)::bigint
				FROM coord_runs WHERE id = $1`, run.id).Scan(&worker, &run.key)
			if err != nil {
				return err.Error()
			}
			if stand.Pause(ctx, 5*time.Millisecond) != nil {
				break
			}
		}
		if worker == name && h.receiver.Requests()[run.key] == 1 {
			return ""
		}
		h.answer(run, 1)
		return "it went to " + worker
	})
	return run, err
}

// again waits until another replica has taken the run over.
func (h *held) again(ctx context.Context, run heldRun) error {
	return stand.Await(ctx, "another replica on the run", func() string {
		if n := h.receiver.Requests()[run.key]; n < 2 {
			return fmt.Sprintf("%d requests", n)
		}
		return ""
	})
}

// check holds what is stored of a run to what its second attempt was told, and nothing else after that began.
func (h *held) check(ctx context.Context, o *load.Outcome, run heldRun) error {
	var state string
	var attempt int
	if err := stand.Await(ctx, "the end of the run", func() string {
		if err := h.db.QueryRowContext(ctx, `SELECT state::text, attempt FROM coord_runs WHERE id = $1`, run.id).Scan(&state, &attempt); err != nil {
			return err.Error()
		}
		if state == "running" || state == "queued" {
			return state
		}
		return ""
	}); err != nil {
		return err
	}
	rows, err := h.db.QueryContext(ctx, `SELECT attempt, line FROM coord_run_log WHERE run_id = $1 ORDER BY number`, run.id)
	if err != nil {
		return err
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var n int
		var line string
		if err := rows.Scan(&n, &line); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%d: %s", n, line))
	}
	// The first attempt says what it asks; so does the second, and what it was told.
	switch {
	case state != "succeeded" || attempt != 2:
		o.Fault("the run is %s after %d attempts", state, attempt)
	case len(lines) != 4 || !strings.HasPrefix(lines[0], "1: ") || lines[3] != "2: answer 2":
		o.Fault("a worker that has lost its run has written to its log: %q", lines)
	default:
		o.Count("the run that was taken over", 1)
	}
	return rows.Err()
}

// terms are those of the leaders, as they are seen.
type terms struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	seen []term
	err  error
}

type term struct {
	epoch        int64
	leader       string
	since, until time.Time
}

// watchTerms looks who leads, all the time.
func watchTerms(ctx context.Context, db *sql.DB) (*terms, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &terms{cancel: cancel}
	if err := db.PingContext(ctx); err != nil {
		cancel()
		return nil, err
	}
	t.running.Go(func() {
		for stand.Pause(ctx, 50*time.Millisecond) == nil {
			var now term
			var since, until sql.NullTime
			err := db.QueryRowContext(ctx, `SELECT epoch, candidate, since, until FROM coord_leaders WHERE name = $1`, leadership).
				Scan(&now.epoch, &now.leader, &since, &until)
			if errors.Is(err, sql.ErrNoRows) || ctx.Err() != nil {
				continue
			}
			t.mu.Lock()
			t.err = errors.Join(t.err, err)
			now.since, now.until = since.Time, until.Time
			if last := len(t.seen) - 1; last >= 0 && t.seen[last].epoch == now.epoch && t.seen[last].leader == now.leader {
				t.seen[last] = now
			} else if err == nil {
				t.seen = append(t.seen, now)
			}
			t.mu.Unlock()
		}
	})
	return t, nil
}

func (t *terms) stop() {
	t.cancel()
	t.running.Wait()
}

// leader is who leads, as far as is known.
func (t *terms) leader() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.seen) == 0 {
		return ""
	}
	return t.seen[len(t.seen)-1].leader
}

// check holds the terms to what is promised: their numbers grow, none begins before the one before it has ended, and the
// second leader has one.
func (t *terms) check(o *load.Outcome, first, second string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		o.Fault("look who leads: %v", t.err)
	}
	for i, now := range t.seen {
		what := fmt.Sprintf("term %d of %s", now.epoch, now.leader)
		if i > 0 && (now.epoch <= t.seen[i-1].epoch || now.since.Before(t.seen[i-1].until)) {
			o.Fault("%s began at %v, before that of %s had ended at %v", what, now.since, t.seen[i-1].leader, t.seen[i-1].until)
		}
		o.Count(what, 1)
	}
	if !slices.ContainsFunc(t.seen, func(x term) bool { return x.leader == second }) {
		o.Fault("%s never led after %s", second, first)
	}
}

// nobodyElse changes the configuration of HAProxy so that it does not see a replica go, and tries nobody else.
func nobodyElse(config string) string {
	config = strings.Replace(config, "option redispatch", "no option redispatch", 1)
	return strings.Replace(stand.NoHealthChecks(config), "retries 3", "retries 0", 1)
}

// runRollingSmall restarts three replicas under a crowd that is small.
func runRollingSmall(ctx context.Context, r *Rig) (load.Outcome, error) {
	options, crowd := stand.Options{Replicas: 3}, 200
	if r.Broken {
		options.Proxy = nobodyElse
		crowd = 20 // which shows nothing here, and would keep on trying
	}
	return r.rolling(ctx, options, load.Options{Rooms: 2, Crowd: crowd}, nil)
}

// runRolling restarts three replicas under a crowd that is not.
func runRolling(ctx context.Context, r *Rig) (load.Outcome, error) {
	o := load.Options{Rooms: 4, Crowd: 2000}
	if r.Broken {
		o.Crowd, o.Catching = 400, 20*time.Second // who has missed something waits for it in vain
	}
	return r.rolling(ctx, stand.Options{Replicas: 3}, o, []stand.Change{forgetful})
}

// rolling restarts replicas one after the other, under a load of which no request may fail.
func (r *Rig) rolling(ctx context.Context, options stand.Options, people load.Options, breaks []stand.Change) (o load.Outcome, err error) {
	people.Strict, people.Pause, people.Timeout = true, 200*time.Millisecond, 20*time.Second
	s, l, stop, err := r.loaded(ctx, options, people, breaks...)
	if err != nil {
		return o, err
	}
	defer stop()
	r.Say("%d sockets follow", people.Crowd)
	if err := l.Await(ctx, 40); err != nil {
		return o, err
	}
	for _, replica := range s.Replicas {
		if err := r.restart(ctx, s, replica); err != nil {
			return o, err
		}
		if err := l.Await(ctx, 30); err != nil {
			return o, err
		}
		if faults := l.Faults(); r.Broken && faults.Broken() {
			return faults, nil
		}
	}
	return l.End(ctx)
}

// restart lets a replica end and start again, as a rolling update does.
func (r *Rig) restart(ctx context.Context, s *stand.Stand, replica *stand.Replica) error {
	began := time.Now()
	if err := replica.Terminate(ctx); err != nil {
		return err
	}
	r.Say("%s has ended after %v", replica.Name, time.Since(began).Round(10*time.Millisecond))
	began = time.Now()
	if err := inOrder(replica.Start, func() error { return replica.AwaitReady(ctx) }); err != nil {
		return err
	}
	r.Say("%s is ready again after %v", replica.Name, time.Since(began).Round(10*time.Millisecond))
	return s.AwaitFront(ctx, len(s.Replicas))
}

var setupToken = regexp.MustCompile(`/#setup=(\S+)`)

// runSix starts six replicas on an empty database, and lets six people set it up.
func runSix(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	const many = 6
	s, err := r.Stand(ctx, stand.Options{
		Replicas: many, Later: true, Settings: map[string]string{"TANDEM_DATABASE_CONNS": "5"},
	}, stand.Change{
		File: "app/store/users.go", Old: "\t\tfounder = 1\n", New: "\t\tfounder = nil\n",
	}, stand.Change{
		File: "app/auth/auth.go", Old: "return errors.Join(err, coord.ErrConflict)", New: "_ = err",
	}, stand.Change{
		File: "app/auth/auth.go", Old: "tokenHash); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := u.DropSetupTokens(ctx); err != nil {",
		New: "tokenHash); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := error(nil); err != nil {",
	})
	if err != nil {
		return o, err
	}
	defer s.Stop()
	for _, replica := range s.Replicas {
		if err := replica.Start(); err != nil {
			return o, err
		}
	}
	began := time.Now()
	migrated := 0
	for _, replica := range s.Replicas {
		if err := replica.AwaitReady(ctx); err != nil {
			o.Fault("%v", err)
			return o, nil
		}
		o.Count(replica.Name+" is ready", 1)
		if strings.Contains(replica.Output(), "migration applied") {
			migrated++
		}
	}
	r.Say("all are ready after %v", time.Since(began).Round(10*time.Millisecond))
	o.Count("a replica that migrates", migrated)
	if err := s.AwaitFront(ctx, many); err != nil {
		return o, err
	}
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	if err := countMigrations(ctx, db, &o); err != nil {
		return o, err
	}
	if err := r.setUp(ctx, s, &o); err != nil {
		return o, err
	}
	l, err := load.Start(ctx, load.Options{Front: s.Front, Replicas: s.URLs(), DB: db, Strict: true, Timeout: 20 * time.Second})
	if err != nil {
		return o, err
	}
	defer l.Stop()
	if err := l.Await(ctx, 150); err != nil {
		return o, err
	}
	end, err := l.End(ctx)
	o.Add(end)
	return o, err
}

// countMigrations counts how often each migration was applied.
func countMigrations(ctx context.Context, db *sql.DB, o *load.Outcome) error {
	for _, set := range []string{"coord", "app"} {
		rows, err := db.QueryContext(ctx, `SELECT version_id, count(*) FROM `+set+`_migrations WHERE version_id > 0 GROUP BY version_id ORDER BY version_id`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var version, times int
			if err := rows.Scan(&version, &times); err != nil {
				return err
			}
			o.Count(fmt.Sprintf("migration %d of %s", version, set), times)
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	return nil
}

// setUp uses the links that all replicas have printed, at once: one makes an administrator.
func (r *Rig) setUp(ctx context.Context, s *stand.Stand, o *load.Outcome) error {
	caller := load.NewCaller(time.Minute)
	defer caller.Close()
	statuses := make([]int, len(s.Replicas))
	var racing sync.WaitGroup
	for i, replica := range s.Replicas {
		token := setupToken.FindStringSubmatch(replica.Output())
		if token == nil {
			return fmt.Errorf("%s has printed no link for the set-up: %s", replica.Name, replica.Output())
		}
		racing.Go(func() {
			body := map[string]string{"token": token[1], "name": fmt.Sprintf("founder %d", i), "password": "correct horse battery"}
			for ctx.Err() == nil {
				answer, err := caller.Ask(ctx, load.Session{}, http.MethodPost, replica.URL()+"/api/v1/setup", nil, body, nil)
				if statuses[i] = answer.Status; err != nil || answer.Status != http.StatusServiceUnavailable {
					return
				}
				_ = stand.Pause(ctx, 100*time.Millisecond) // too many passwords are being checked
			}
		})
	}
	racing.Wait()
	succeeded := 0
	for _, status := range statuses {
		if status == http.StatusCreated {
			succeeded++
		}
	}
	r.Say("six people set up at once: %v", statuses)
	o.Count("the set-up", succeeded)
	return nil
}

// runMixed replaces replicas of the version before by this one and the other way round, under load.
func runMixed(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	before, err := r.Builds.Revision(ctx, r.Previous, "pg")
	if err != nil {
		return o, err
	}
	r.Say("the version before is that of %s", r.Previous)
	var breaks []stand.Change
	if r.Broken {
		breaks = []stand.Change{{
			File: "migrations/pg/app/0006_jobs.sql", Old: "-- +goose Up\n", New: "-- +goose Up\nALTER TABLE app_messages RENAME COLUMN text TO words;\n",
		}}
	}
	now, err := r.Builds.Program(ctx, "pg", breaks...)
	if err != nil {
		return o, err
	}
	s, l, stop, err := r.loaded(ctx, stand.Options{Program: before}, load.Options{Strict: true, Timeout: 20 * time.Second})
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 30); err != nil {
		return o, err
	}
	for i, step := range []struct {
		replica int
		program string
		what    string
	}{
		{0, now, "this version"}, {1, now, "this version"}, // forward
		{0, before, "the version before"}, {1, before, "the version before"}, // and back
		{1, now, "this version"},
	} {
		replica := s.Replicas[step.replica]
		replica.Program = step.program
		if err := r.restart(ctx, s, replica); err != nil {
			return o, err
		}
		r.Say("%s is of %s", replica.Name, step.what)
		if err := l.Await(ctx, 60); err != nil {
			return o, err
		}
		if faults := l.Faults(); r.Broken && faults.Broken() {
			r.Say("noticed in step %d", i+1)
			return faults, nil
		}
	}
	return l.End(ctx)
}
