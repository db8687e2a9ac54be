package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/rig/fault"
	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// databaseScenarios are about a database that refuses, stops or has no room.
func databaseScenarios() []Scenario {
	return []Scenario{
		{
			Name:    "terminate",
			Promise: "the end of any kind of connection to PostgreSQL loses and repeats nothing",
			Break:   "a message whose connection was lost before the commit is acknowledged.",
			Checker: "the ledger: what was acknowledged is not stored",
			Run:     runTerminate,
		},
		{
			Name:    "restart-postgres",
			Promise: "an immediate stop and kill -9 of PostgreSQL lose nothing; writes are back 5 s after it is",
			Break:   "PostgreSQL does not wait for the disk: synchronous_commit is off.",
			Checker: "the ledgers: what was acknowledged is lost",
			Run:     runRestart,
		},
		{
			Name:    "pool-exhausted",
			Promise: "with all connections busy or taken, readiness, leases and heartbeats go on, and requests are refused with 503 in time",
			Break:   "leases and heartbeats use the connections of the work.",
			Checker: "a run that takes long: its lease ends",
			Run:     runExhausted,
		},
		{
			Name:    "disk-full-postgres",
			Promise: "PostgreSQL without room on its disk loses nothing that was acknowledged; writes are back when there is room",
			Break:   "a message that could not be stored is acknowledged.",
			Checker: "the ledger: what was acknowledged is not stored",
			Run:     runFullPostgres,
		},
		{
			Name:    "disk-full-sqlite",
			Promise: "SQLite without room on its disk refuses with 503 and loses nothing; writes are back when there is room",
			Break:   "a message that could not be stored is acknowledged.",
			Checker: "the ledger: what was acknowledged is not stored",
			Run:     runFullSQLite,
		},
		{
			Name: "clocks", Programs: []string{"libfaketime"},
			Promise: "replicas whose clocks are an hour ahead and behind, and change, run nothing early or twice",
			Break:   "occurrences become due by the clock of a replica.",
			Checker: "the runs: occurrences are missing",
			Run:     runClocks,
		},
	}
}

// acknowledgeAnyway makes a success of a message that the database did not store, or did not say so.
var acknowledgeAnyway = stand.Change{
	File: "app/rooms/messages.go",
	Old:  "return m, created, noRoom(err)",
	New: `if errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUnknownOutcome) {
		err = nil
	}
	return m, created, noRoom(err)`,
}

// busy is a load with many writes at a time.
var busy = load.Options{Posters: 10, Pause: 50 * time.Millisecond}

// endClean ends the load. What was refused must have been refused for the right reason: nobody answered, the service is
// not available, or somebody has asked too often since then.
func endClean(ctx context.Context, s *stand.Stand, l *load.Load) (o load.Outcome, err error) {
	if o, err = l.End(ctx); err != nil {
		return o, err
	}
	for _, replica := range s.Replicas {
		for line := range strings.Lines(replica.Output()) {
			if strings.Contains(line, "a request failed") {
				o.Note("%s wrote: %.300s", replica.Name, line)
				break
			}
		}
	}
	causes := l.Causes()
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		if !slices.Contains([]string{"no answer", "status 429", "status 502", "status 503", "status 504"}, cause) {
			o.Fault("%d requests were refused with %s", causes[cause], cause)
		}
	}
	return o, nil
}

// again waits until so much more is acknowledged, which must not take long after a fault is over.
func again(ctx context.Context, l *load.Load, o *load.Outcome, more int) error {
	const most = 45 * time.Second
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := l.Await(waiting, more); err != nil {
		if ctx.Err() != nil {
			return err
		}
		o.Fault("%v after the fault was over %v", most, err)
	}
	return nil
}

// runTerminate ends the connections of each kind again and again.
func runTerminate(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	s, l, stop, err := r.loaded(ctx, stand.Options{}, busy, acknowledgeAnyway)
	if err != nil {
		return o, err
	}
	defer stop()
	sessions, err := fault.OpenSessions(s.Database)
	if err != nil {
		return o, err
	}
	defer sessions.Close()
	if err := l.Await(ctx, 100); err != nil {
		return o, err
	}
	ended := make(map[fault.Kind]int)
	for round := range 10 {
		kinds := slices.Clone(fault.Kinds)
		for range 20 { // few of them are in the midst of something
			kinds = append(kinds, fault.Work)
		}
		r.Random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			n, err := sessions.Terminate(ctx, kind)
			if err != nil {
				return o, err
			}
			ended[kind] += n
			if err := r.Wait(ctx, time.Duration(r.Random.IntN(100))*time.Millisecond); err != nil {
				return o, err
			}
		}
		if round%3 == 2 {
			r.Say("connections ended so far: %v", ended)
			if err := again(ctx, l, &o, 50); err != nil {
				return o, err
			}
		}
	}
	for _, kind := range fault.Kinds {
		if ended[kind] == 0 {
			return o, fmt.Errorf("no connection of kind %s was found", kind)
		}
	}
	if err := again(ctx, l, &o, 100); err != nil {
		return o, err
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	final.Note("connections ended: %v", ended)
	final.Bound(5*time.Second, "the end of connections")
	return final, err
}

// runRestart stops PostgreSQL without a chance to save anything, in both ways.
func runRestart(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	var settings map[string]string
	if r.Broken {
		settings = map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
	}
	s, l, stop, err := r.loaded(ctx, stand.Options{Postgres: testenv.Options{Settings: settings}}, load.Options{})
	if err != nil {
		return o, err
	}
	defer stop()
	var longest time.Duration
	for round := range 4 {
		if err := l.Await(ctx, 50); err != nil {
			return o, err
		}
		kind := (round+r.Random.IntN(2))%2 == 0
		began := time.Now()
		if err := s.Cluster.Crash(kind); err != nil {
			return o, err
		}
		if kind {
			r.Say("PostgreSQL is stopped immediately")
		} else {
			r.Say("PostgreSQL is killed")
		}
		if err := r.Wait(ctx, time.Duration(r.Random.IntN(3000))*time.Millisecond); err != nil {
			return o, err
		}
		if err := s.Cluster.Restart(ctx); err != nil {
			return o, err
		}
		longest = max(longest, time.Since(began))
		r.Say("PostgreSQL takes connections again")
		if err := again(ctx, l, &o, 50); err != nil {
			return o, err
		}
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	final.Note("PostgreSQL was away for at most %v", longest.Round(time.Millisecond))
	final.Bound(longest+5*time.Second, "5 s after PostgreSQL was back")
	return final, err
}

// heartbeats looks at the leases that replicas have in the database.
type heartbeats struct {
	end     context.CancelFunc
	running sync.WaitGroup
	least   time.Duration // that the lease of a replica had left
	err     error
}

func (r *Rig) watchHeartbeats(ctx context.Context, db *sql.DB, replicas int) *heartbeats {
	ctx, end := context.WithCancel(ctx)
	h := &heartbeats{end: end, least: time.Hour}
	h.running.Go(func() {
		for r.Wait(ctx, 200*time.Millisecond) == nil && h.err == nil {
			var members int
			var seconds float64
			err := db.QueryRowContext(ctx, `SELECT count(*), coalesce(extract(epoch FROM min(lease_until) - clock_timestamp()), 0)
				FROM coord_members`).Scan(&members, &seconds)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				h.err = err
			case members < replicas:
				h.least = 0
			default:
				h.least = min(h.least, time.Duration(seconds*float64(time.Second)))
			}
		}
	})
	return h
}

// stop ends the look and tells what was found.
func (h *heartbeats) stop(o *load.Outcome) error {
	h.end()
	h.running.Wait()
	if h.least <= 0 {
		o.Fault("the lease of a replica has ended")
	}
	o.Note("the lease of each replica had at least %v left", h.least.Round(100*time.Millisecond))
	return h.err
}

// runExhausted lets requests wait for a table that somebody has locked until no connection is left for others, and then
// takes all connections that the server has.
func runExhausted(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	const conns, maxConns = 3, 60
	s, l, stop, err := r.loaded(ctx, stand.Options{
		Postgres: testenv.Options{Settings: map[string]string{"max_connections": fmt.Sprint(maxConns)}},
		Settings: map[string]string{"TANDEM_DATABASE_CONNS": fmt.Sprint(conns)},
	}, load.Options{}, stand.Change{
		File: "coord/pg/backend.go",
		Old:  "if b.coordination, err = openDB(b.route, coordinationConns, nil); err != nil {",
		New:  "if b.coordination, err = b.db, error(nil); err != nil {",
	})
	if err != nil {
		return o, err
	}
	defer stop()
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	sessions, err := fault.OpenSessions(s.Database)
	if err != nil {
		return o, err
	}
	defer sessions.Close()
	if err := l.Await(ctx, 50); err != nil {
		return o, err
	}
	slow, err := l.StartSlow(ctx, 45*time.Second) // until everything is over: an end that can't be written is lost with its lease
	if err != nil {
		return o, err
	}
	defer slow.Close()
	ready := s.WatchReady(ctx)
	defer ready.Stop()
	beats := r.watchHeartbeats(ctx, db, len(s.Replicas))
	defer beats.end()

	if err := sessions.Block(ctx, "app_messages"); err != nil {
		return o, err
	}
	r.Say("the table of messages is locked")
	if err := refusals(ctx, r, s, db, &o, 4*conns); err != nil {
		return o, err
	}
	sessions.Release()
	r.Say("it is free again")
	if err := again(ctx, l, &o, 50); err != nil {
		return o, err
	}
	for range 2 { // what replicas lose is taken as well
		if _, err := sessions.Terminate(ctx, fault.Work); err != nil {
			return o, err
		}
		if _, err := sessions.Occupy(ctx, maxConns); err != nil {
			return o, err
		}
	}
	r.Say("all connections of the server are taken, and those of the work are ended")
	if err := r.Wait(ctx, 8*time.Second); err != nil {
		return o, err
	}
	sessions.Release()
	r.Say("they are free again")
	if err := again(ctx, l, &o, 50); err != nil {
		return o, err
	}
	ready.Stop()
	for _, replica := range s.Replicas {
		if away := ready.Away(replica); away > 0 {
			o.Fault("%s was not ready for %v", replica.Name, away.Round(time.Millisecond))
		}
	}
	if err := beats.stop(&o); err != nil {
		return o, err
	}
	ended, err := slow.End(ctx)
	if err != nil {
		return o, err
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	final.Add(ended)
	final.Bound(30*time.Second, "a table was locked until all were refused, and then no connection was free for 8 s")
	return final, err
}

// refusals asks each replica for more at a time than it has connections, and wants all to be refused in time.
func refusals(ctx context.Context, r *Rig, s *stand.Stand, db *sql.DB, o *load.Outcome, n int) error {
	// Two statements one after the other, who it is and what there is to read, that each wait for 10 s at most.
	const most = 25 * time.Second
	people, err := load.NewPeople(ctx, db, "waiter", n, 1, false)
	if err != nil {
		return err
	}
	var room int64
	if err := db.QueryRowContext(ctx, `SELECT min(id) FROM app_rooms`).Scan(&room); err != nil {
		return err
	}
	caller := load.NewCaller(2 * most)
	defer caller.Close()
	var asking sync.WaitGroup
	var mu sync.Mutex
	var slowest time.Duration
	for i, person := range people {
		replica := s.Replicas[i%len(s.Replicas)]
		asking.Go(func() {
			began := time.Now()
			a, err := caller.Ask(ctx, person, http.MethodGet, fmt.Sprintf("%s/api/v1/rooms/%d/messages", replica.URL(), room), nil, nil, nil)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, took)
			switch {
			case err != nil:
				o.Fault("a request to %s had no answer after %v: %v", replica.Name, took, err)
			case a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "":
				o.Fault("a request to %s was answered with %v, not with 503 and when to try again", replica.Name, a)
			case took > most:
				o.Fault("a request to %s was refused after %v only", replica.Name, took)
			}
		})
	}
	asking.Wait()
	r.Say("%d requests were refused within %v", n, slowest.Round(time.Millisecond))
	return ctx.Err()
}

// fill keeps a disk full for a time.
func fill(ctx context.Context, r *Rig, d *fault.Disk, long time.Duration) error {
	for began := time.Now(); time.Since(began) < long; {
		if err := d.Fill(); err != nil {
			return err
		}
		if err := r.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// runFullPostgres takes the room of the disk on which PostgreSQL has its data and its log.
func runFullPostgres(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	disk, err := fault.NewDisk(256 << 20)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	s, l, stop, err := r.loaded(ctx, stand.Options{Postgres: testenv.Options{
		Dir: disk.Path(), Settings: map[string]string{"max_wal_size": "4MB", "min_wal_size": "2MB"},
	}}, busy, acknowledgeAnyway)
	if err != nil {
		return o, err
	}
	defer stop()
	for range 3 {
		if err := l.Await(ctx, 100); err != nil {
			return o, err
		}
		r.Say("the disk is full")
		before := l.Acknowledged()
		if err := fill(ctx, r, disk, 12*time.Second); err != nil {
			return o, err
		}
		ended := s.Cluster.Ended()
		r.Say("%d were acknowledged meanwhile; PostgreSQL has ended: %v", l.Acknowledged()-before, ended)
		if err := disk.Empty(); err != nil {
			return o, err
		}
		if ended {
			if err := s.Cluster.Restart(ctx); err != nil {
				return o, err
			}
		}
		r.Say("there is room")
		if err := again(ctx, l, &o, 100); err != nil {
			return o, err
		}
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	if causes := l.Causes(); causes["status 503"]+causes["no answer"] == 0 && !r.Broken {
		return final, errors.New("the disk was never full: nothing was refused")
	}
	return final, err
}

// runClocks changes the clocks of the replicas under load, on a PostgreSQL that has another one as well.
func runClocks(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	bindir, err := testenv.FindPostgres()
	if err != nil {
		return o, err
	}
	// Senders of webhooks have the right time, from which the database may differ by 5 minutes.
	shifted, remove, err := fault.ShiftedPostgres(bindir, time.Duration(r.Random.IntN(360)-180)*time.Second)
	if err != nil {
		return o, err
	}
	defer remove()
	s, l, stop, err := r.loaded(ctx, stand.Options{Postgres: testenv.Options{BinDir: shifted}}, load.Options{}, stand.Change{
		File: "coord/pg/tasks.go",
		Old:  "plan.Fire(t.Coord(), t.Now.Time)",
		New:  "plan.Fire(t.Coord(), time.Now())",
	})
	if err != nil {
		return o, err
	}
	defer stop()
	slow, err := l.StartSlow(ctx, 25*time.Second)
	if err != nil {
		return o, err
	}
	defer slow.Close()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		for i, replica := range s.Replicas {
			if i%2 == 1 {
				ahead = -ahead
			}
			if err := fault.ShiftClock(replica.Pid(), ahead); err != nil {
				return o, err
			}
			r.Say("the clock of %s is ahead by %v", replica.Name, ahead)
		}
		if err := again(ctx, l, &o, 200); err != nil {
			return o, err
		}
	}
	ended, err := slow.End(ctx)
	if err != nil {
		return o, err
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	final.Add(ended)
	if err != nil {
		return final, err
	}
	db, err := s.DB()
	if err != nil {
		return final, err
	}
	var early, late int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE started_at < scheduled_for),
			count(*) FILTER (WHERE started_at > scheduled_for + interval '10 s') FROM coord_runs`).Scan(&early, &late); err != nil {
		return final, err
	}
	if early+late > 0 {
		final.Fault("%d runs have started before their time, and %d more than 10 s after it", early, late)
	}
	final.Bound(5*time.Second, "the clock of a replica has changed")
	return final, nil
}

// through returns a URL that leads to its database by way of another address.
func through(database, address string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.Host = address
	return u.String(), nil
}
