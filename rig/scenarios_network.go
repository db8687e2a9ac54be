package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/rig/fault"
	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// networkScenarios are about what is between replicas and their database.
func networkScenarios() []Scenario {
	return []Scenario{
		{
			Name:    "black-hole",
			Promise: "links to PostgreSQL that swallow, cut off or reset, for work or LISTEN, lose and repeat nothing",
			Break:   "a message that is sent again is not known by its id.",
			Checker: "the ledger: a message is stored twice",
			Run:     runBlackHole,
		},
		{
			Name: "half-open", Programs: []string{"iproute2"},
			Promise: "a machine that is cut off, or dies silently while it holds locks, loses nothing; others go on within 25 s",
			Break:   "a transaction may stand still for ever.",
			Checker: "the runs: occurrences are missing, or late",
			Run:     runHalfOpen,
		},
		{
			Name: "pgbouncer", Programs: []string{"pgbouncer"},
			Promise: "everything holds behind PgBouncer in transaction mode, with LISTEN past it and with polling alone",
			Break:   "replicas look for events once an hour, and when they are told to.",
			Checker: "followers: they never catch up",
			Run:     runPgBouncer,
		},
	}
}

// database starts a PostgreSQL whose address is known before that of the replicas is made, and an empty database on it.
func database(ctx context.Context) (c *testenv.Cluster, address string, err error) {
	if c, err = testenv.StartCluster(ctx, testenv.Options{Durable: true}); err != nil {
		return nil, "", err
	}
	db, err := sql.Open("postgres", c.URL("postgres"))
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE DATABASE tandem")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		c.Stop()
		return nil, "", err
	}
	return c, c.URL("tandem"), nil
}

// host is the host and port of a database.
func host(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	return u.Host, nil
}

// runBlackHole breaks the links of the replicas in turns, in all ways.
func runBlackHole(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	cluster, address, err := database(ctx)
	if err != nil {
		return o, err
	}
	defer cluster.Stop()
	server, err := host(address)
	if err != nil {
		return o, err
	}
	const replicas = 2
	var work, listen [replicas]*fault.Link
	settings := make([]map[string]string, replicas)
	for i := range replicas {
		settings[i] = make(map[string]string)
		for name, link := range map[string]**fault.Link{"TANDEM_DATABASE_URL": &work[i], "TANDEM_LISTEN_URL": &listen[i]} {
			if *link, err = fault.NewLink("127.0.0.1:0", server); err != nil {
				return o, err
			}
			defer (*link).Close()
			if settings[i][name], err = through(address, (*link).Addr()); err != nil {
				return o, err
			}
		}
	}
	s, l, stop, err := r.loaded(ctx, stand.Options{
		Replicas: replicas, Database: address, SettingsOf: func(n int) map[string]string { return settings[n] },
	}, busy, stand.Change{
		File: "app/store/messages.go", Old: "user, task, m.ClientID, m.Text, u.store.clock(0)",
		New: "user, task, m.ClientID+rand.Text(), m.Text, u.store.clock(0)",
	}, stand.Change{File: "app/store/messages.go", Old: "import (\n", New: "import (\n\t\"crypto/rand\"\n"})
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 100); err != nil {
		return o, err
	}
	first := r.Random.IntN(replicas)
	for i, f := range []struct {
		what   string
		work   bool
		long   time.Duration
		breaks func(*fault.Link) error
	}{
		{"swallows everything", true, 8 * time.Second, func(l *fault.Link) error { return l.Swallow() }},
		{"swallows answers", true, 5 * time.Second, func(l *fault.Link) error { return l.Swallow(fault.FromServer) }},
		{"swallows what LISTEN hears", false, 10 * time.Second, func(l *fault.Link) error { return l.Swallow(fault.FromServer) }},
		{"swallows all of LISTEN", false, 10 * time.Second, func(l *fault.Link) error { return l.Swallow() }},
		{"cuts answers off", true, 5 * time.Second, func(l *fault.Link) error { return l.CutAnswers(3000) }},
		{"swallows questions", true, 5 * time.Second, func(l *fault.Link) error { return l.Swallow(fault.ToServer) }},
		{"resets", true, 5 * time.Second, (*fault.Link).Reset},
		{"is slow", true, 5 * time.Second, func(l *fault.Link) error { return l.Delay(300 * time.Millisecond) }},
		{"swallows answers", true, 3 * time.Second, func(l *fault.Link) error { return l.Swallow(fault.FromServer) }},
	} {
		n := (first + i) % replicas
		replica, link := s.Replicas[n], listen[n]
		if f.work {
			link = work[n]
		}
		ready := s.WatchReady(ctx)
		defer ready.Stop()
		if err := f.breaks(link); err != nil {
			return o, err
		}
		r.Say("the link of %s %s", replica.Name, f.what)
		if err := r.Wait(ctx, f.long); err != nil {
			return o, err
		}
		link.Mend()
		ready.Stop()
		switch away := ready.Away(replica); {
		case !f.work && away > 0:
			o.Fault("%s was not ready for %v because its link %s", replica.Name, away, f.what)
		case away > 0:
			r.Say("%s was not ready for %v", replica.Name, away.Round(time.Millisecond))
		}
		if away := ready.Away(s.Replicas[1-n]); away > 0 {
			o.Fault("%s was not ready for %v because the link of the other %s", s.Replicas[1-n].Name, away, f.what)
		}
		if err := replica.AwaitReady(ctx); err != nil {
			return o, err
		}
		if err := again(ctx, l, &o, 50); err != nil {
			return o, err
		}
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	final.Bound(10*time.Second, "a link of one of two replicas was broken")
	return final, err
}

// runHalfOpen runs a replica in a network of its own, pulls its cable, and also ends it while the cable is out: then nobody is
// told that its connections to the database have ended.
func runHalfOpen(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	network, err := fault.NewNetwork(ctx)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	cluster, address, err := database(ctx)
	if err != nil {
		return o, err
	}
	defer cluster.Stop()
	server, err := host(address)
	if err != nil {
		return o, err
	}
	links, settings := make([]*fault.Link, 2), []map[string]string{{}, {"TANDEM_ADDR": net.JoinHostPort(network.Inside(), "8080")}}
	for i, at := range []string{"127.0.0.1", network.Outside()} {
		if links[i], err = fault.NewLink(net.JoinHostPort(at, "0"), server); err != nil {
			return o, err
		}
		defer links[i].Close()
		if settings[i]["TANDEM_DATABASE_URL"], err = through(address, links[i].Addr()); err != nil {
			return o, err
		}
	}
	options := busy
	options.Receiver = network.Outside()
	s, l, stop, err := r.loaded(ctx, stand.Options{
		Database: address,
		Settings: map[string]string{
			"TANDEM_HTTP_TASKS_ALLOW": network.Outside(), "TANDEM_TRUSTED_PROXIES": "127.0.0.1," + network.Outside(),
		},
		SettingsOf: func(n int) map[string]string { return settings[n] },
		Wrap: func(n int, command []string) []string {
			if n == 0 {
				return command
			}
			return network.Command(command[0], command[1:]...)
		},
		Proxy: stand.CutWhenDown,
	}, options, stand.Change{
		File: "coord/pg/tx.go", Old: "idle_in_transaction_session_timeout = 3000", New: "idle_in_transaction_session_timeout = 0",
	}, stand.Change{File: "coord/pg/conn.go", Old: `idleInTxTimeout  = "10000"`, New: `idleInTxTimeout  = "0"`})
	if err != nil {
		return o, err
	}
	defer stop()
	far := s.Replicas[1]
	db, err := s.DB()
	if err != nil {
		return o, err
	}
	plug := func() error {
		if err := network.Plug(ctx); err != nil {
			return err
		}
		r.Say("the cable is in")
		if !far.Running() {
			if err := far.Start(); err != nil {
				return err
			}
		}
		if err := far.AwaitReady(ctx); err != nil {
			return err
		}
		if err := s.AwaitFront(ctx, len(s.Replicas)); err != nil {
			return err
		}
		return again(ctx, l, &o, 100)
	}
	for _, long := range []time.Duration{3 * time.Second, 12 * time.Second} {
		if err := l.Await(ctx, 100); err != nil {
			return o, err
		}
		if err := network.Unplug(ctx); err != nil {
			return o, err
		}
		r.Say("the cable of %s is out", far.Name)
		if err := r.Wait(ctx, long); err != nil {
			return o, err
		}
		if err := plug(); err != nil {
			return o, err
		}
	}
	// Transactions take longer now, so that it can be met in the midst of one, and those of the other still more, so that
	// it is the one that lets the task run that is due every second.
	for i, delay := range []time.Duration{300 * time.Millisecond, 100 * time.Millisecond} {
		if err := links[i].Delay(delay); err != nil {
			return o, err
		}
	}
	for held, tries := false, 0; !held; tries++ {
		if tries == 40 {
			return o, errors.New("the replica was never cut off while it held a lock that others need")
		}
		if err := r.Wait(ctx, time.Duration(500+r.Random.IntN(1000))*time.Millisecond); err != nil {
			return o, err
		}
		if err := network.Unplug(ctx); err != nil {
			return o, err
		}
		if held, err = holds(ctx, r, db); err != nil {
			return o, err
		}
		if !held {
			if err := network.Plug(ctx); err != nil {
				return o, err
			}
		}
	}
	r.Say("the cable of %s is out while it holds the task that is due every second", far.Name)
	links[0].Mend()
	far.Kill()
	r.Say("%s is killed, and nobody is told", far.Name)
	if err := r.Wait(ctx, 50*time.Second); err != nil {
		return o, err
	}
	if err := plug(); err != nil {
		return o, err
	}
	links[1].Mend()
	if err := far.AwaitReady(ctx); err != nil {
		return o, err
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	if err != nil {
		return final, err
	}
	const most = 25 * time.Second // the server waits for 10 s until it ends a transaction that stands still
	var late float64
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(extract(epoch FROM started_at - scheduled_for)), 0) FROM coord_runs`).Scan(&late)
	if err != nil {
		return final, err
	}
	final.Bound(most, "a machine was cut off")
	final.Note("an occurrence was late by up to %.1f s", late)
	if late > most.Seconds() {
		final.Fault("an occurrence was late by %.1f s, more than %v", late, most)
	}
	return final, nil
}

// holds reports whether a session holds the task that is due every second, and does nothing.
func holds(ctx context.Context, r *Rig, db *sql.DB) (held bool, err error) {
	if err := r.Wait(ctx, 1500*time.Millisecond); err != nil {
		return false, err
	}
	err = db.QueryRowContext(ctx, `SELECT NOT EXISTS (SELECT FROM coord_tasks WHERE name = 'tick' FOR UPDATE SKIP LOCKED)
		AND EXISTS (SELECT FROM pg_stat_activity
			WHERE state = 'idle in transaction' AND state_change < clock_timestamp() - interval '1 s' AND query ~ 'coord_(tasks|runs)')`).Scan(&held)
	return held, err
}

// runPgBouncer runs replicas behind PgBouncer, at first with LISTEN past it, and then without LISTEN.
func runPgBouncer(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	cluster, address, err := database(ctx)
	if err != nil {
		return o, err
	}
	defer cluster.Stop()
	pooler, err := testenv.StartPooler(ctx, cluster)
	if err != nil {
		return o, err
	}
	defer pooler.Stop()
	settings := map[string]string{"TANDEM_DATABASE_URL": pooler.Through(address), "TANDEM_LISTEN_URL": address}
	if r.Broken {
		settings["TANDEM_POLL"] = "1h"
	}
	s, l, stop, err := r.loaded(ctx, stand.Options{Database: address, Settings: settings}, load.Options{Catching: 30 * time.Second}, stand.Change{
		File: "coord/pg/tx.go", Old: "	b.wake(n)\n	b.bell.ring(n)\n", New: "	b.bell.ring(n)\n",
	}, stand.Change{File: "coord/pg/listener.go", Old: "s.b.wake(anything) // what rang until now was not heard", New: ""})
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 150); err != nil {
		return o, err
	}
	for _, replica := range s.Replicas {
		if err := replica.Terminate(ctx); err != nil {
			return o, err
		}
		replica.Set("TANDEM_LISTEN_URL", "")
		if err := s.StartAll(ctx); err != nil {
			return o, err
		}
		r.Say("%s does not listen any more", replica.Name)
	}
	if err := again(ctx, l, &o, 150); err != nil {
		return o, err
	}
	victim := s.Replicas[r.Random.IntN(len(s.Replicas))]
	victim.Kill()
	r.Say("%s is killed", victim.Name)
	if err := r.Wait(ctx, 2*time.Second); err != nil {
		return o, err
	}
	if err := s.StartAll(ctx); err != nil {
		return o, err
	}
	if err := again(ctx, l, &o, 150); err != nil {
		return o, err
	}
	final, err := endClean(ctx, s, l)
	final.Add(o)
	if pooler.Ended() {
		return final, fmt.Errorf("PgBouncer has ended by itself: %s", pooler.Log())
	}
	return final, err
}
