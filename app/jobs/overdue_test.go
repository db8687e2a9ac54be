package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
)

// lines is a log that is written to by many.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// stuck is work that takes no notice of its context as long as it is to hang.
type stuck struct {
	book    *book
	node    string
	hang    atomic.Bool
	working atomic.Int32
	goOn    chan struct{}
}

func newStuck(b *book, node string, hang bool) *stuck {
	s := &stuck{book: b, node: node, goOn: make(chan struct{})}
	s.hang.Store(hang)
	return s
}

func (s *stuck) work(t *testing.T, job string) {
	if s.working.Add(1) > 1 {
		t.Errorf("%s has two turns of %s at a time", s.node, job)
	}
	defer s.working.Add(-1)
	s.book.add(job, s.node)
	if s.hang.Load() {
		<-s.goOn
	}
}

// replica is one that does jobs until it is stopped.
type replica struct {
	registry *jobs.Registry
	store    *store.Store
	elector  coord.Elector
	stop     func()
}

// start starts a replica that is stopped at the end of the test, too.
func start(t *testing.T, db *apptest.Database, o jobs.Options, list ...jobs.Job) *replica {
	t.Helper()
	return startWith(t, db, func(*jobs.Registry) {}, o, list...)
}

func startWith(t *testing.T, db *apptest.Database, change func(*jobs.Registry), o jobs.Options, list ...jobs.Job) *replica {
	t.Helper()
	backend, st := db.Store(t)
	r, err := jobs.New(backend.Elector(), st, o, list...)
	if err != nil {
		t.Fatal(err)
	}
	change(r)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: Run returned %v", o.Node, err)
		}
	})
	t.Cleanup(stop)
	return &replica{r, st, backend.Elector(), stop}
}

func status(t *testing.T, r *jobs.Registry, job string) jobs.Status {
	t.Helper()
	list, err := r.List(t.Context())
	i := slices.IndexFunc(list, func(s jobs.Status) bool { return s.Name == job })
	if err != nil || i < 0 {
		t.Fatalf("got %+v, %v", list, err)
	}
	return list[i]
}

func leads(t *testing.T, e coord.Elector) string {
	t.Helper()
	list, err := e.Leaders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return ""
	}
	return list[0].Candidate
}

// A leader whose turn does not end says so and lets another lead, which does all of its jobs.
func TestAnotherLeadsWhenATurnDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		seen := &observer{ended: make(map[string]int)}
		log := &lines{}
		late := make(chan error, 1)
		run := func(node string, hang bool) (*replica, *stuck) {
			s := newStuck(&book, node, hang)
			return start(t, db, jobs.Options{Node: node, Observer: seen, Logger: slog.New(slog.NewTextHandler(log, nil))},
				good("stuck", jobs.LeaderOnly(func(ctx context.Context, fenced jobs.Fenced) (int, error) {
					hung := s.hang.Load()
					s.work(t, "stuck")
					err := fenced(context.WithoutCancel(ctx), func(ctx context.Context, u store.Unit) error { return write(ctx, u, node) })
					if hung {
						late <- err
					}
					return 0, err
				})),
				good("other", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { book.add("other", node); return 0, nil })),
			), s
		}
		one, hangs := run("one", true)
		time.Sleep(10 * time.Second) // it leads
		two, _ := run("two", false)
		for len(book.of("stuck")) == 0 {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Until(book.of("stuck")[0].at.Add(68 * time.Second))) // another has the turn a little later
		s := status(t, two.registry, "stuck")
		if s.Node != "one" || !s.EndedAt.IsZero() || s.Failures != 1 || !strings.HasPrefix(s.Error, "the turn goes on 1m5s after it began") {
			t.Errorf("got %+v", s)
		}
		if n := seen.of("stuck: overdue true"); n != 1 || log.count("a job is overdue") != 1 {
			t.Errorf("observed was %v", seen.ended)
		}
		if got := leads(t, two.elector); got != "two" {
			t.Errorf("%q leads", got)
		}

		began := time.Now()
		const most = time.Hour
		time.Sleep(most)
		for _, job := range []string{"stuck", "other"} {
			turns := book.of(job)
			i := slices.IndexFunc(turns, func(x turn) bool { return x.at.After(began) })
			if n := len(turns[i:]); n < 50 || slices.ContainsFunc(turns[i:], func(x turn) bool { return x.node != "two" }) {
				t.Errorf("%s: after the first leader stood down, %v", job, turns[i:])
			}
			for at := began; i < len(turns); i++ {
				if gap := turns[i].at.Sub(at); gap > 2*time.Minute {
					t.Errorf("%s was not done for %v", job, gap)
				}
				at = turns[i].at
			}
		}
		if s := status(t, two.registry, "stuck"); s.Failures != 0 || s.Error == "" || s.OkAt.IsZero() {
			t.Errorf("got %+v", s)
		}

		// The late write has no effect, and its replica is as good as before.
		hangs.hang.Store(false)
		close(hangs.goOn)
		if err := <-late; !errors.Is(err, coord.ErrFenced) {
			t.Errorf("the late write: got %v, want that it is fenced", err)
		}
		if w := writers(t, one.store); len(w) == 0 || slices.Contains(w, "one") {
			t.Errorf("written was by %v", slices.Compact(w))
		}
		two.stop()
		time.Sleep(2 * time.Minute)
		if turns := book.of("stuck"); turns[len(turns)-1].node != "one" {
			t.Error("the replica does not do the job any more")
		}
		if n := seen.of("stuck: overdue false"); n != 1 || log.count("has returned") != 1 {
			t.Errorf("observed was %v", seen.ended)
		}
	})
}

// With one replica the other jobs go on, and the one that hangs has no second turn meanwhile.
func TestOneReplicaGoesOnBesideATurnThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		s := newStuck(&book, "one", true)
		one := start(t, db, jobs.Options{Node: "one"},
			good("stuck", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { s.work(t, "stuck"); return 0, nil })),
			good("other", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { book.add("other", "one"); return 0, nil })),
		)
		time.Sleep(2 * time.Hour)
		if n := len(book.of("stuck")); n != 1 {
			t.Errorf("the job that hangs had %d turns", n)
		}
		turns := book.of("other")
		if len(turns) < 100 {
			t.Errorf("the other had %d turns in two hours", len(turns))
		}
		for i, turn := range turns[1:] {
			if gap := turn.at.Sub(turns[i].at); gap > 3*time.Minute {
				t.Errorf("the other was not done for %v", gap)
			}
		}
		if s := status(t, one.registry, "stuck"); s.Failures != 1 || !s.EndedAt.IsZero() {
			t.Errorf("got %+v", s)
		}
		// When it stops, it resigns although the turn is still under way.
		s.hang.Store(false)
		go func() { time.Sleep(time.Minute); close(s.goOn) }()
		stopped := make(chan struct{})
		go func() { one.stop(); close(stopped) }()
		time.Sleep(10 * time.Second)
		if got := leads(t, one.elector); got != "" {
			t.Errorf("%q leads, which stops", got)
		}
		<-stopped
		if s := status(t, one.registry, "stuck"); s.Turn != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

// When the turn has returned the job is done again, and the one replica leads on.
func TestAJobIsDoneAgainWhenItsTurnHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		s := newStuck(&book, "one", true)
		one := start(t, db, jobs.Options{Node: "one"},
			good("stuck", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { s.work(t, "stuck"); return 0, nil })))
		time.Sleep(30 * time.Minute)
		if list, err := one.elector.Leaders(t.Context()); err != nil || len(list) == 1 && list[0].Epoch < 3 {
			t.Errorf("got %v, %v; want that it made way", list, err)
		}
		s.hang.Store(false)
		close(s.goOn)
		time.Sleep(time.Minute)
		list, err := one.elector.Leaders(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("got %v, %v", list, err)
		}
		time.Sleep(time.Hour)
		if n := len(book.of("stuck")); n < 50 {
			t.Errorf("there were %d turns in an hour", n)
		}
		if again, err := one.elector.Leaders(t.Context()); err != nil || len(again) != 1 || again[0].Epoch != list[0].Epoch {
			t.Errorf("led %+v, and then %+v, %v", list, again, err)
		}
		if s := status(t, one.registry, "stuck"); s.Failures != 0 || s.EndedAt.IsZero() {
			t.Errorf("got %+v", s)
		}
	})
}

// Who leads with a turn that hangs makes way for others time and again.
func TestALeaderWithATurnThatDoesNotEndMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		run := func(node string, hang bool) *stuck {
			s := newStuck(&book, node, hang)
			start(t, db, jobs.Options{Node: node},
				good("stuck", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { s.work(t, "stuck"); return 0, nil })))
			return s
		}
		one := run("one", true)
		time.Sleep(5 * time.Minute) // it leads again, and can't do the job
		run("two", false)
		began := time.Now()
		const most = 12 * time.Minute
		for len(book.of("stuck")) == 1 && time.Since(began) < most {
			time.Sleep(time.Second)
		}
		if turns := book.of("stuck"); len(turns) == 1 || turns[1].node != "two" {
			t.Errorf("within %v there were %v", most, turns)
		}
		close(one.goOn)
	})
}

// A replica-safe job that does not end is seen as well; the others do it.
func TestAReplicaSafeTurnThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		seen := &observer{ended: make(map[string]int)}
		run := func(node string, hang bool) (*replica, *stuck) {
			s := newStuck(&book, node, hang)
			return start(t, db, jobs.Options{Node: node, Observer: seen},
				good("stuck", jobs.ReplicaSafe(func(context.Context) (int, error) {
					hung := s.hang.Load()
					s.work(t, "stuck")
					if hung {
						return 0, errors.New("late")
					}
					return 0, nil
				}))), s
		}
		one, s := run("one", true)
		time.Sleep(5 * time.Minute)
		if s := status(t, one.registry, "stuck"); s.Failures != 1 || !s.EndedAt.IsZero() || !strings.Contains(s.Error, "goes on 1m5s") || s.Turn != 1 {
			t.Errorf("got %+v", s)
		}
		two, _ := run("two", false)
		time.Sleep(time.Hour)
		if turns := book.of("stuck"); len(turns) < 50 || turns[1].node != "two" {
			t.Errorf("there were %v", turns)
		}
		two.stop()
		s.hang.Store(false)
		close(s.goOn)
		time.Sleep(10 * time.Minute)
		if n := len(book.of("stuck")); n < 55 || seen.of("stuck: overdue false") != 1 || seen.of("stuck: late") != 1 {
			t.Errorf("%d turns, and observed was %v", n, seen.ended)
		}
	})
}

// A turn that was overdue and then fails is one failure.
func TestAnOverdueTurnThatFailsIsOneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		goOn := make(chan struct{})
		j := good("stuck", jobs.ReplicaSafe(func(context.Context) (int, error) { <-goOn; return 0, errors.New("late") }))
		j.Every = time.Hour
		one := start(t, db, jobs.Options{Node: "one"}, j)
		time.Sleep(2 * time.Minute)
		if s := status(t, one.registry, "stuck"); s.Failures != 1 || !s.EndedAt.IsZero() {
			t.Errorf("got %+v", s)
		}
		goOn <- struct{}{}
		synctest.Wait()
		if s := status(t, one.registry, "stuck"); s.Failures != 1 || s.Error != "late" || s.EndedAt.IsZero() {
			t.Errorf("got %+v", s)
		}
		close(goOn)
		time.Sleep(2 * time.Minute)
		if s := status(t, one.registry, "stuck"); s.Failures < 2 {
			t.Errorf("got %+v", s)
		}
	})
}

// On each driver a leader whose turn hangs resigns, also inside a transaction, and what it writes late is fenced.
func TestStuckLeader(t *testing.T) {
	for _, inside := range []bool{false, true} {
		t.Run(fmt.Sprint("inside a transaction ", inside), func(t *testing.T) {
			apptest.OnEachStopped(t, func(t *testing.T, db *apptest.Database) {
				if inside && strings.HasSuffix(t.Name(), "/memory") {
					return // whose transactions hold all up
				}
				goOn := make(chan struct{})
				release := sync.OnceFunc(func() { close(goOn) })
				failed, wrote := make(chan error, 1), make(chan struct{}, 1)
				start := func(node string, work jobs.LeaderOnly) *replica {
					j := good("lead", work)
					j.Every = time.Millisecond
					return startWith(t, db, (*jobs.Registry).Hurry, jobs.Options{Node: node}, j)
				}
				began := make(chan struct{})
				old := start("old", func(ctx context.Context, fenced jobs.Fenced) (int, error) {
					stands := !inside
					if !inside {
						close(began)
						<-goOn
						ctx = context.WithoutCancel(ctx)
					}
					err := fenced(ctx, func(ctx context.Context, u store.Unit) error {
						if inside {
							stands = true
							close(began)
							<-goOn
						}
						return write(context.WithoutCancel(ctx), u, "old")
					})
					if stands { // a busy machine may end a turn before that, and it has another
						failed <- err
					}
					return 0, err
				})
				<-began
				t.Cleanup(release)
				for leads(t, old.elector) != "" { // by the store's clock, which stands still, its lease would not end
					time.Sleep(10 * time.Millisecond)
				}
				advance(t, db, 2*time.Minute) // the turn is due
				fresh := start("new", func(ctx context.Context, fenced jobs.Fenced) (int, error) {
					err := fenced(ctx, func(ctx context.Context, u store.Unit) error { return write(ctx, u, "new") })
					if err != nil {
						return 0, err // a busy machine may not be done in so short a turn
					}
					select {
					case wrote <- struct{}{}:
					default:
					}
					return 0, nil
				})
				<-wrote
				release()
				err := <-failed
				if err == nil || !inside && !errors.Is(err, coord.ErrFenced) {
					t.Errorf("the old leader's write: got %v, want that it fails", err)
				}
				if got := slices.Compact(writers(t, fresh.store)); !slices.Equal(got, []string{"new"}) {
					t.Errorf("written was by %v", got)
				}
			})
		})
	}
}
