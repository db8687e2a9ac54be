//go:build unix

package checker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// extent is how much is done.
type extent struct {
	length time.Duration // of the storm
	seed   uint64
}

// settings are those of the environment, see the documentation of the package.
func settings(t *testing.T) extent {
	t.Helper()
	x := extent{length: 10 * time.Second, seed: rand.Uint64()}
	var err error
	if text := os.Getenv("TANDEM_STRESS"); text != "" {
		if x.length, err = time.ParseDuration(text); err != nil || x.length < time.Second {
			t.Fatalf("TANDEM_STRESS is %q; want a duration of at least 1s, as in 60s", text)
		}
	}
	if text := os.Getenv("TANDEM_STRESS_SEED"); text != "" {
		if x.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TANDEM_STRESS_SEED is %q; want a number", text)
		}
	}
	return x
}

// How many rooms of each kind a follower follows.
const (
	busyFollowed  = 4
	quietFollowed = 6
)

// storm is a database with replicas, those who follow and those who publish.
type storm struct {
	*testing.T
	extent
	driver    string
	backend   coord.Backend
	replicas  []*replica
	everyone  []*person
	busy      []room // in which much is published
	quiet     []room // in which little is
	followers []*follower
	ledger    *ledger
	counts    counts
	done      context.Context //nolint:containedctx // ends with the test's goroutines

	kills, listeners, backends, cuts, freezes atomic.Int64
}

func TestStormPG(t *testing.T) {
	t.Parallel()
	database := testenv.NewDatabase(t, "", nil)
	at, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	s := &storm{T: t, extent: settings(t), driver: "pg"}
	for i := range 3 {
		s.replicas = append(s.replicas, newReplicaPG(t, fmt.Sprintf("replica-%d", i), database, at.Host))
	}
	s.run(database, 200)
}

func TestStormSQLite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "checker.db")
	s := &storm{T: t, extent: settings(t), driver: "sqlite"}
	if s.length > 10*time.Second {
		s.length /= 2
	} else {
		s.length = s.length * 6 / 10
	}
	s.replicas = append(s.replicas, newReplica(t, "sqlite", "replica", "--database-url", "sqlite:"+path))
	s.run(path, 100)
}

func (x extent) random(of uint64) *rand.Rand { return rand.New(rand.NewPCG(x.seed, of)) }

// run has a storm, and checks what came of it.
func (s *storm) run(database string, clients int) {
	began := time.Now()
	s.Logf("for %v with TANDEM_STRESS_SEED=%d", s.length, s.seed)
	s.ledger = newLedger()
	s.prepare(database)

	storm, calm := context.WithCancel(s.Context())
	done, finish := context.WithCancel(s.Context())
	s.done = done
	var all, stormy sync.WaitGroup
	defer func() {
		calm()
		finish()
		stormy.Wait()
		all.Wait()
	}()
	s.follow(storm, &all, clients)
	s.Logf("%d clients follow after %v", clients, time.Since(began).Round(time.Millisecond))
	s.publish(storm, &stormy)
	s.disturb(storm, &stormy)
	wait(storm, s.length)
	calm()
	stormy.Wait()

	slowest := time.Duration(s.counts.slowest.Load())
	s.Logf("the storm is over after %v", time.Since(began).Round(time.Millisecond))
	if caughtUp(s.T, "after the storm", s.followers, heads(s.T, s.backend)) {
		s.Logf("all have caught up after %v", time.Since(began).Round(time.Millisecond))
		s.rounds()
	}
	finish()
	all.Wait()

	h := history{acknowledged: s.ledger.ids}
	h.log, h.stored = readLog(s.T, s.backend)
	events := 0
	for _, list := range h.log {
		events += len(list)
	}
	for _, f := range s.followers {
		h.views = append(h.views, f.views...)
	}
	report(s.T, check(h))
	acknowledged, rolledBack := s.ledger.counts()
	start := time.Duration(0)
	for _, r := range s.replicas {
		start = max(start, r.slowest)
	}
	s.Logf("%s: %d events in %d topics, %d acknowledged, %d rolled back; %d clients, %d views, %d deliveries, the slowest %v after publishing; "+
		"%d dials, %d reconnects, %d of them to another replica, %d resumes, %d resets; "+
		"%d kills, the slowest start took %v, %d listeners and %d times others terminated at the database, %d cuts, %d freezes; %v",
		s.driver, events, len(h.log), acknowledged, rolledBack, clients, len(h.views), s.counts.deliveries.Load(), slowest.Round(time.Millisecond),
		s.counts.dials.Load(), s.counts.reconnects.Load(), s.counts.moves.Load(), s.counts.resumes.Load(), s.counts.resets.Load(),
		s.kills.Load(), start.Round(time.Millisecond), s.listeners.Load(), s.backends.Load(), s.cuts.Load(), s.freezes.Load(), time.Since(began).Round(time.Millisecond))
	if s.kills.Load() == 0 || s.counts.reconnects.Load() == 0 || acknowledged == 0 {
		s.Error("nothing was disturbed: the test proves nothing")
	}
}

// report fails the test with the faults.
func report(t *testing.T, faults []string) {
	t.Helper()
	const most = 20
	for i, fault := range faults {
		if i == most {
			t.Errorf("and %d more", len(faults)-most)
			break
		}
		t.Error(fault)
	}
}

// prepare starts the replicas and makes people and rooms.
func (s *storm) prepare(database string) {
	s.replicas[0].start() // it migrates
	var starting sync.WaitGroup
	for _, r := range s.replicas[1:] {
		starting.Go(r.start)
	}
	starting.Wait()
	if s.Failed() {
		s.FailNow()
	}
	s.backend = openBackend(s.T, s.driver, database)
	s.everyone = people(s.T, s.replicas[0], 4, 7)
	admin, rng := s.everyone[0], s.random(1)
	some := func(name string) room {
		r := s.replicas[rng.IntN(len(s.replicas))]
		if rng.IntN(2) == 0 {
			return makeRoom(s.T, r, admin, name)
		}
		i := 1 + rng.IntN(3)
		return makeRoom(s.T, r, admin, name, s.everyone[i], s.everyone[1+i%3])
	}
	for i := range 16 {
		s.busy = append(s.busy, some(fmt.Sprintf("busy %d", i)))
	}
	for i := range 24 {
		s.quiet = append(s.quiet, some(fmt.Sprintf("quiet %d", i)))
	}
}

// follow lets clients follow, each some rooms.
func (s *storm) follow(storm context.Context, all *sync.WaitGroup, clients int) {
	var starting sync.WaitGroup
	begun := make(chan struct{}, 20) // of which so many start at a time
	for i := range clients {
		f := newFollower(s.T, fmt.Sprintf("client %d", i), s.everyone[i%len(s.everyone)], s.replicas, s.random(uint64(1000+i)), &s.counts)
		s.followers = append(s.followers, f)
		starting.Go(func() {
			begun <- struct{}{}
			defer func() { <-begun }()
			if !f.dial(s.done) {
				return
			}
			from := make(map[string]coord.Position)
			for _, r := range slices.Concat(s.pick(f, s.busy, busyFollowed), s.pick(f, s.quiet, quietFollowed)) {
				from[r.topic()] = []coord.Position{coord.Start, coord.Head}[f.rng.IntN(2)]
			}
			if f.subscribe(s.done, from) {
				all.Go(func() { f.run(storm, s.done, func(ctx context.Context) bool { return s.act(ctx, f) }) })
			}
		})
	}
	starting.Wait()
	if s.Failed() {
		s.FailNow()
	}
}

// pick picks rooms that a follower may read.
func (s *storm) pick(f *follower, rooms []room, n int) (list []room) {
	for _, i := range f.rng.Perm(len(rooms)) {
		if len(list) < n && rooms[i].mayRead(f.person, s.everyone) {
			list = append(list, rooms[i])
		}
	}
	return list
}

// act is what a client does now and then.
func (s *storm) act(ctx context.Context, f *follower) bool {
	switch f.rng.IntN(3) {
	case 0: // closes, and comes back elsewhere
		positions := f.leave()
		wait(ctx, time.Duration(f.rng.Int64N(int64(time.Second))))
		return f.dial(ctx) && f.subscribe(ctx, positions)
	case 1: // gives a topic up, and comes back to it
		topic := f.some()
		at := f.unsubscribe(topic)
		from := []coord.Position{coord.Start, coord.Head, at}[f.rng.IntN(3)]
		if from != at {
			f.end(topic)
		}
		return f.subscribe(ctx, map[string]coord.Position{topic: from})
	default: // follows another room
		topic := s.pick(f, s.busy, 1)[0].topic()
		if f.follows(topic) {
			return true
		}
		return f.subscribe(ctx, map[string]coord.Position{topic: coord.Head})
	}
}

// publish lets some publish as long as it storms.
func (s *storm) publish(storm context.Context, stormy *sync.WaitGroup) {
	rooms := slices.Clone(s.quiet)
	for range 3 {
		rooms = append(rooms, s.busy...)
	}
	begin := func(name string, i int, pause time.Duration, what func(p *publisher, ctx context.Context) error) {
		p := &publisher{
			t: s.T, name: fmt.Sprintf("%s-%d", name, i), backend: s.backend, ledger: s.ledger,
			person: s.everyone[0], replicas: s.replicas, rng: s.random(uint64(len(name))<<32 + uint64(i)),
		}
		stormy.Go(func() {
			p.repeat(storm, s.done, pause, func(ctx context.Context) error { return what(p, ctx) })
		})
	}
	lasting := 30 * time.Millisecond
	if s.driver == "sqlite" {
		lasting = 0 // there is one writer
	}
	for i := range 2 {
		begin("publish", i, 20*time.Millisecond, func(p *publisher, ctx context.Context) error { return p.publish(ctx, rooms) })
		begin("transact", i, 20*time.Millisecond, func(p *publisher, ctx context.Context) error { return p.transact(ctx, rooms, lasting) })
		begin("post", i, 20*time.Millisecond, func(p *publisher, ctx context.Context) error { return p.post(ctx, rooms) })

		sender := newFollower(s.T, fmt.Sprintf("sender %d", i), s.everyone[0], s.replicas, s.random(uint64(500+i)), &s.counts)
		if !sender.dial(s.done) {
			s.FailNow()
		}
		s.Cleanup(func() { sender.client.Close() })
		begin("send", i, 100*time.Millisecond, func(p *publisher, ctx context.Context) error { return p.send(ctx, sender.client, rooms) })
	}
}

// disturb does to each replica what can happen to one, one thing after another.
func (s *storm) disturb(storm context.Context, stormy *sync.WaitGroup) {
	for i, r := range s.replicas {
		rng := s.random(uint64(100 + i))
		things := []func(){
			func() {
				s.kills.Add(1)
				r.kill()
				wait(storm, time.Duration(rng.Int64N(int64(time.Second))))
				r.start()
			},
			func() { s.cut(r.front, rng) },
			func() {
				s.freeze(storm, r.front, time.Duration(rng.Int64N(int64(2*time.Second))))
				if rng.IntN(2) == 0 {
					r.front.cut()
				}
			},
		}
		if r.work != nil {
			things = append(things, things...)
			things = append(things,
				func() { s.terminate(r, "listen", 1) },
				func() { s.terminate(r, "work", 1) },
				func() { s.terminate(r, "work", 2) },
				func() { s.cut(r.work, nil) },
				func() { s.freeze(storm, r.listen, s.length/2*time.Duration(rng.IntN(2)+1)/2) },
			)
		}
		stormy.Go(func() {
			order := rng.Perm(len(things))
			for n := 0; wait(storm, 100*time.Millisecond+time.Duration(rng.Int64N(int64(500*time.Millisecond)))); n++ {
				things[order[n%len(order)]]()
			}
		})
	}
}

func (s *storm) cut(p *proxy, rng *rand.Rand) {
	s.cuts.Add(1)
	p.cutSome(rng)
}

func (s *storm) freeze(storm context.Context, p *proxy, d time.Duration) {
	s.freezes.Add(1)
	p.freeze()
	wait(storm, d)
	p.thaw()
}

// terminate ends backends of a replica for a purpose, all or one in so many.
func (s *storm) terminate(r *replica, purpose string, oneIn int) {
	var ended []bool
	err := query(s.done, s.backend, &ended, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ? AND pid % ? = 0`,
		r.name+"-"+purpose, oneIn)
	switch {
	case err != nil:
		s.Errorf("terminate backends of %s: %v", r.name, err)
	case len(ended) == 0:
	case purpose == "listen":
		s.listeners.Add(1)
	default:
		s.backends.Add(1)
	}
}
