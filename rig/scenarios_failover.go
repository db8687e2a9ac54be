//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/patroni"
	"github.com/tandemhq/tandem/rig/stand"
)

// failoverScenarios are about a database that fails over.
func failoverScenarios() []Scenario {
	return []Scenario{
		{
			Name: "failover-kill", Programs: patroni.Programs,
			Promise: "kill -9 of the primary loses nothing; gap at most Patroni's and 2 s",
			Break:   "the synchronous mode is off.",
			Checker: "the ledgers: what was acknowledged is lost",
			Run:     runFailoverKill,
		},
		{
			Name: "failover-switchover", Programs: patroni.Programs,
			Promise: "a switchover loses nothing; gap at most Patroni's and 2 s",
			Break:   "a server that refuses to write is not left.",
			Checker: "requests, readiness and the ends of runs once the cluster is whole",
			Run:     runFailoverSwitchover,
		},
		{
			Name: "failover-freeze", Programs: patroni.Programs,
			Promise: "a frozen Patroni or primary loses nothing; gap at most Patroni's and 2 s",
			Break:   "the synchronous mode is off, and for a while there are two primaries.",
			Checker: "the ledgers: what was acknowledged is lost",
			Run:     runFailoverFreeze,
		},
		{
			Name: "failover-etcd", Programs: patroni.Programs,
			Promise: "without etcd writes are refused, none is lost; gap at most Patroni's and 2 s",
			Break:   "that the store is away is answered like a fault of the program.",
			Checker: "who asks each replica meanwhile: 500 and not 503",
			Run:     runFailoverEtcd,
		},
	}
}

const (
	failoverGrace = 2 * time.Second  // by which the program may be slower than Patroni
	failoverLimit = 45 * time.Second // for the program to be well again at all
	// No replica dies, so only what is at work at the moment of a failover may be done again.
	failoverRepeats = 10
)

// failover is what a scenario of this family is made of.
type failover struct {
	cluster patroni.Options
	// address is where replicas find a database. Default: HAProxy.
	address func(c *patroni.Cluster, database string) string
	breaks  []stand.Change
	happen  func(ctx context.Context, c *patroni.Cluster, s *stand.Stand, o *load.Outcome) error
}

// run runs three replicas on a cluster to which something happens.
func (f failover) run(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	c, err := patroni.Start(ctx, f.cluster)
	if err != nil {
		return o, err
	}
	defer c.Stop()
	r.Say("PostgreSQL runs on %d nodes", len(c.Nodes))
	if f.address == nil {
		f.address = (*patroni.Cluster).URL
	}
	const program, aside = "tandem", "aside"
	for _, database := range []string{program, aside} {
		if err := c.CreateDatabase(ctx, database); err != nil {
			return o, err
		}
	}
	s, l, stop, err := r.loaded(ctx, stand.Options{
		Replicas: 3, Database: c.URL(program),
		Settings: map[string]string{"TANDEM_DATABASE_URL": f.address(c, program)},
	}, load.Options{Catching: 30 * time.Second}, f.breaks...)
	if err != nil {
		return o, err
	}
	defer stop()
	if err := l.Await(ctx, 50); err != nil {
		return o, err
	}
	probe, err := c.Probe(ctx, f.address(c, aside))
	if err != nil {
		return o, err
	}
	var meanwhile load.Outcome
	if err := f.happen(ctx, c, s, &meanwhile); err != nil {
		return o, err
	}
	if err := c.Settle(ctx); err != nil {
		return o, err
	}
	r.Say("the cluster is whole again")
	again, cancel := context.WithTimeout(ctx, failoverLimit)
	defer cancel()
	late := l.Await(again, 50)
	if late == nil {
		late = calm(again, l)
	}
	if late == nil {
		late = s.AwaitFront(again, len(s.Replicas))
	}
	probed, err := probe.Stop(ctx)
	if err != nil {
		return o, err
	}
	if late != nil && ctx.Err() == nil {
		o.Fault("after %v the program is not well again: %v", failoverLimit, late)
	} else if o, err = l.End(ctx); err != nil {
		return o, err
	}
	o.Add(meanwhile)
	o.Note("Patroni by itself: %d writes of the probe acknowledged, %d refused, %d lost, the longest gap %v",
		probed.Acknowledged, probed.Refused, probed.Lost, probed.Gap.Round(time.Millisecond))
	o.Bound(probed.Gap+failoverGrace, "Patroni's own time and 2 s")
	if o.Repeated > failoverRepeats {
		o.Fault("%d effects were repeated, more than %d: the ends of runs were not stored", o.Repeated, failoverRepeats)
	}
	causes := l.Causes()
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		if !slices.Contains([]string{"no answer", "status 502", "status 503", "status 504"}, cause) {
			o.Fault("%d requests were refused with %s", causes[cause], cause)
		}
	}
	return o, nil
}

// calm waits until no request fails any more.
func calm(ctx context.Context, l *load.Load) error {
	const quiet = 3 * time.Second
	failed := func() (n int) {
		for _, times := range l.Causes() {
			n += times
		}
		return n
	}
	for {
		before := failed()
		if err := stand.Pause(ctx, quiet); err != nil {
			return fmt.Errorf("requests go on failing, %v: %w", l.Causes(), err)
		}
		if failed() == before {
			return nil
		}
	}
}

func runFailoverKill(ctx context.Context, r *Rig) (load.Outcome, error) {
	return failover{
		cluster: patroni.Options{Asynchronous: r.Broken},
		happen: func(ctx context.Context, c *patroni.Cluster, _ *stand.Stand, _ *load.Outcome) error {
			primary, err := c.Primary(ctx)
			if err != nil {
				return err
			}
			// What is committed now no other node has, unless somebody waits for that.
			holding, cancel := context.WithTimeout(ctx, 2*time.Second)
			primary.HoldBack(holding)
			cancel()
			primary.Kill()
			r.Say("%s is killed, which was the primary", primary.Name)
			if err := c.AwaitOther(ctx, primary); err != nil {
				return err
			}
			r.Say("there is another primary")
			if err := r.Wait(ctx, time.Duration(r.Random.IntN(5000))*time.Millisecond); err != nil {
				return err
			}
			if err := primary.Start(); err != nil {
				return err
			}
			if err := c.Settle(ctx); err != nil {
				return err
			}
			if primary, err = c.Primary(ctx); err != nil {
				return err
			}
			primary.KillPostgres()
			r.Say("PostgreSQL is killed on %s, and Patroni is not", primary.Name)
			return nil
		},
	}.run(ctx, r)
}

func runFailoverSwitchover(ctx context.Context, r *Rig) (load.Outcome, error) {
	return failover{
		cluster: patroni.Options{Lazy: true},
		address: func(c *patroni.Cluster, database string) string {
			return c.URL(database) + "&target_session_attrs=any"
		},
		breaks: []stand.Change{{
			File: "coord/pg/route.go",
			Old:  "if e.route.era.CompareAndSwap(e, &era{e.route, make(chan struct{})}) {",
			New:  "if false && e.route.era.CompareAndSwap(e, &era{e.route, make(chan struct{})}) {",
		}},
		happen: func(ctx context.Context, c *patroni.Cluster, _ *stand.Stand, _ *load.Outcome) error {
			for range 2 {
				if err := c.Switchover(ctx); err != nil {
					return err
				}
				r.Say("another node is the primary")
				if err := c.Settle(ctx); err != nil {
					return err
				}
				if err := r.Wait(ctx, 8*time.Second); err != nil {
					return err
				}
			}
			return nil
		},
	}.run(ctx, r)
}

func runFailoverFreeze(ctx context.Context, r *Rig) (load.Outcome, error) {
	return failover{
		cluster: patroni.Options{Asynchronous: r.Broken},
		address: func(c *patroni.Cluster, database string) string { return c.HostsURL(database, "read-write") },
		happen: func(ctx context.Context, c *patroni.Cluster, _ *stand.Stand, _ *load.Outcome) error {
			// With Patroni alone there are two primaries for a while, and who is connected to the old one
			// has given up waiting by the time that it is none any more.
			for _, round := range []struct {
				all  bool
				what string
				long time.Duration
			}{{false, "Patroni", 15 * time.Second}, {true, "Patroni and PostgreSQL", 5 * time.Second}} {
				primary, err := c.Primary(ctx)
				if err != nil {
					return err
				}
				primary.Freeze(round.all)
				r.Say("on %s, which was the primary, is frozen: %s", primary.Name, round.what)
				err = c.AwaitOther(ctx, primary)
				if err == nil {
					r.Say("there is another primary")
					err = r.Wait(ctx, round.long)
				}
				primary.Thaw()
				if err != nil {
					return err
				}
				r.Say("%s goes on", primary.Name)
				if err := c.Settle(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}.run(ctx, r)
}

func runFailoverEtcd(ctx context.Context, r *Rig) (load.Outcome, error) {
	return failover{
		breaks: []stand.Change{{
			File: "web/answer.go",
			Old:  "case errors.Is(err, coord.ErrUnavailable), errors.Is(err, coord.ErrBackpressure)",
			New:  "case errors.Is(err, coord.ErrBackpressure)",
		}},
		happen: func(ctx context.Context, c *patroni.Cluster, s *stand.Stand, o *load.Outcome) error {
			c.StopEtcd()
			r.Say("etcd is gone")
			if err := r.Wait(ctx, 10*time.Second); err != nil {
				return err
			}
			askWithoutDatabase(ctx, s, o)
			if err := r.Wait(ctx, 5*time.Second); err != nil {
				return err
			}
			r.Say("etcd is back")
			return c.StartEtcd(ctx)
		},
	}.run(ctx, r)
}

// askWithoutDatabase holds what each replica says to what it may say while the database takes no writes.
func askWithoutDatabase(ctx context.Context, s *stand.Stand, o *load.Outcome) {
	caller := load.NewCaller(5 * time.Second)
	defer caller.Close()
	for _, replica := range s.Replicas {
		for path, want := range map[string]int{
			"/healthz/live": http.StatusOK, "/healthz/ready": http.StatusServiceUnavailable, "/api/v1/rooms": http.StatusServiceUnavailable,
		} {
			answer, err := caller.Ask(ctx, load.Session{Secret: "of nobody"}, http.MethodGet, replica.URL()+path, nil, nil, nil)
			if err != nil {
				o.Fault("without etcd %s does not answer %s: %v", replica.Name, path, err)
			} else if answer.Status != want {
				o.Fault("without etcd %s answers %s with %v, not with %d", replica.Name, path, answer, want)
			}
		}
	}
}
