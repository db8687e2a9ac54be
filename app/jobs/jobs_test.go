package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
)

func nothing(context.Context) (int, error) { return 0, nil }

// good is a job without a fault.
func good(name string, work jobs.Work) jobs.Job {
	return jobs.Job{Name: name, About: "About.", Why: "Why.", Every: time.Minute, Work: work}
}

func TestNewRefuses(t *testing.T) {
	safe, loop := jobs.ReplicaSafe(nothing), jobs.Loop{}
	with := func(change func(*jobs.Job)) []jobs.Job {
		j := good("a.b", safe)
		change(&j)
		return []jobs.Job{j}
	}
	for want, c := range map[string]struct {
		off  []string
		jobs []jobs.Job
	}{
		"has no class":                     {nil, with(func(j *jobs.Job) { j.Work = nil })},
		"does nothing":                     {nil, with(func(j *jobs.Job) { j.Work = jobs.ReplicaSafe(nil) })},
		`"a.b" does nothing`:               {nil, with(func(j *jobs.Job) { j.Work = jobs.LeaderOnly(nil) })},
		"must have a name":                 {nil, with(func(j *jobs.Job) { j.Name = "A b" })},
		"must say what":                    {nil, with(func(j *jobs.Job) { j.About = "" })},
		"why its class is right":           {nil, with(func(j *jobs.Job) { j.Why = "" })},
		"a time between its turns":         {nil, with(func(j *jobs.Job) { j.Every = 0 })},
		"between its turns, unless":        {nil, with(func(j *jobs.Job) { j.Work = loop })},
		`there are two jobs "a.b"`:         {nil, []jobs.Job{good("a.b", safe), good("c", safe), good("a.b", safe)}},
		`"b.a", which is no job`:           {[]string{"a.b", "b.a"}, []jobs.Job{good("a.b", safe)}},
		`"a.b", which can't be turned off`: {[]string{"a.b"}, with(func(j *jobs.Job) { j.Work, j.Every = loop, 0 })},
		"":                                 {[]string{"a.b"}, []jobs.Job{good("a.b", safe), good("c", jobs.Disabled{})}},
	} {
		_, err := jobs.New(nil, nil, jobs.Options{Off: c.off}, c.jobs...)
		if got := fmt.Sprint(err); !strings.Contains(got, want) || (err == nil) != (want == "") || err != nil && !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("want %q: got %v", want, err)
		}
	}
}

// turn is what was done of a job.
type turn struct {
	job, node string
	at        time.Time
}

// book has the turns in their order.
type book struct {
	mu    sync.Mutex
	turns []turn
}

func (b *book) add(job, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turns = append(b.turns, turn{job, node, time.Now()})
}

func (b *book) of(job string) (turns []turn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.turns {
		if t.job == job {
			turns = append(turns, t)
		}
	}
	return turns
}

// write writes a line that says who did something.
func write(ctx context.Context, u store.Unit, node string) error {
	return u.AddAudit(ctx, store.AuditLine{Actor: node, Action: "wrote", Details: []byte("{}")})
}

// writers are who wrote, in their order.
func writers(t *testing.T, st *store.Store) (nodes []string) {
	t.Helper()
	lines, err := st.Audit(t.Context(), store.AuditFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range slices.Backward(lines) {
		nodes = append(nodes, l.Actor)
	}
	return nodes
}

// observer counts turns by how they ended.
type observer struct {
	mu    sync.Mutex
	ended map[string]int
}

func (o *observer) JobEnded(job string, _ int, _ time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended[fmt.Sprint(job, ": ", err)]++
}

func (o *observer) JobOverdue(job string, overdue bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended[fmt.Sprint(job, ": overdue ", overdue)]++
}

func (o *observer) of(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended[what]
}

// Three replicas share the jobs for hours: each is done once in its time, whatever becomes
// of others and of replicas.
func TestReplicasTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var book book
		seen := &observer{ended: make(map[string]int)}
		type replica struct {
			registry *jobs.Registry
			store    *store.Store
			stop     func()
		}
		start := func(node string) replica {
			backend, st := db.Store(t)
			done := func(job string) { book.add(job, node) }
			r, err := jobs.New(backend.Elector(), st, jobs.Options{Node: node, Observer: seen, Off: []string{"off"}, Logger: slog.New(slog.DiscardHandler)},
				good("safe", jobs.ReplicaSafe(func(context.Context) (int, error) { done("safe"); return 0, nil })),
				good("lead", jobs.LeaderOnly(func(ctx context.Context, fenced jobs.Fenced) (int, error) {
					done("lead")
					return 0, fenced(ctx, func(ctx context.Context, u store.Unit) error { return write(ctx, u, node) })
				})),
				good("fails", jobs.ReplicaSafe(func(context.Context) (int, error) { done("fails"); return 3, errors.New("broken") })),
				good("panics", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { done("panics"); panic("oh") })),
				good("hangs", jobs.ReplicaSafe(func(ctx context.Context) (int, error) { done("hangs"); <-ctx.Done(); return 0, ctx.Err() })),
				good("off", jobs.ReplicaSafe(func(context.Context) (int, error) { done("off"); return 0, nil })),
				jobs.Job{Name: "daily", About: "x", Why: "x", Every: 24 * time.Hour, Work: jobs.ReplicaSafe(func(ctx context.Context) (int, error) {
					done("daily")
					if len(book.of("daily")) == 1 {
						<-ctx.Done() // its first replica stops meanwhile
						return 0, ctx.Err()
					}
					if len(book.of("daily")) < 10 { // there is much to do
						time.Sleep(10 * time.Second)
						return 1, nil
					}
					return 0, nil
				})},
			)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			return replica{r, st, func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("%s: Run returned %v", node, err)
				}
			}}
		}
		replicas := map[string]replica{}
		for _, node := range []string{"one", "two", "three"} {
			replicas[node] = start(node)
		}
		stopped := map[string]time.Time{}
		stop := func(node string) {
			replicas[node].stop()
			delete(replicas, node)
			stopped[node] = time.Now()
		}
		time.Sleep(35 * time.Second) // all have begun; the daily one has a second try, in a minute
		stop(book.of("daily")[0].node)
		const hours = 4
		time.Sleep(hours * time.Hour)
		leader := book.of("lead")[len(book.of("lead"))-1].node
		stop(leader)
		began := time.Now()
		time.Sleep(hours * time.Hour)

		for _, job := range []string{"safe", "lead", "fails", "panics", "hangs"} {
			turns := book.of(job)
			if n := len(turns); n < hours*2*60*9/10 || n > hours*2*60+2 {
				t.Errorf("%s had %d turns in %d minutes", job, n, hours*2*60)
			}
			for i, turn := range turns[1:] {
				at, cut := stopped[turns[i].node]
				// What a replica left undone when it stopped is done again soon.
				cut = cut && job == "hangs" && turn.at.After(at) && turns[i].at.Before(at)
				if gap := turn.at.Sub(turns[i].at); gap < time.Minute && !cut || gap > 2*time.Minute {
					t.Errorf("%s: turn %d is %v behind the one before", job, i+2, gap)
				}
			}
		}
		for _, turn := range book.of("lead") {
			if (turn.node == leader) != turn.at.Before(began) && turn.at.After(began.Add(-hours*time.Hour)) {
				t.Errorf("%s led at %v, %s stopped at %v", turn.node, turn.at, leader, began)
			}
		}
		// The daily one: the replica that stopped, and another at once, in pieces for half a minute.
		daily := book.of("daily")
		if len(daily) != 4 || daily[1].node == daily[0].node || daily[3].node != daily[1].node {
			t.Errorf("the daily job had the turns %v", daily)
		}
		if len(book.of("off")) != 0 {
			t.Error("a job that is turned off is done")
		}

		for node, r := range replicas {
			if len(writers(t, r.store)) == 0 {
				t.Error("the leader wrote nothing")
			}
			list, err := r.registry.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range list {
				last := book.of(s.Name)
				switch {
				case s.Name == "off":
					if s.Class != jobs.ClassDisabled || s.Turn != 0 {
						t.Errorf("got %+v", s)
					}
					continue
				case s.Node != last[len(last)-1].node || s.NextAt.IsZero() || s.StartedAt.IsZero():
					t.Errorf("got %+v, and its last turn was %v", s, last[len(last)-1])
				}
				want := map[string]string{"fails": "broken", "panics": "panic: oh", "hangs": "context deadline exceeded"}[s.Name]
				if s.Error != want || (s.Failures > 100) != (want != "") || s.OkAt.IsZero() != (want != "") {
					t.Errorf("got %+v, want the error %q", s, want)
				}
				if (s.Class == jobs.ClassLeaderOnly) != (s.Name == "lead" || s.Name == "panics") {
					t.Errorf("%s is %s", s.Name, s.Class)
				}
			}
			stop(node)
		}
		if seen.ended["safe: <nil>"] < hours*100 || seen.ended["fails: broken"] < hours*100 || seen.ended["panics: panic: oh"] < hours*100 {
			t.Errorf("observed was %v", seen.ended)
		}
	})
}

// A replica leads only when it has something to lead for, and then for as long as it can.
func TestWhoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := apptest.Memory(t, time.Now)
		var elector coord.Elector
		start := func(node string, off ...string) {
			backend, st := db.Store(t)
			elector = backend.Elector()
			r, err := jobs.New(elector, st, jobs.Options{Node: node, Off: off},
				good("lead", jobs.LeaderOnly(func(context.Context, jobs.Fenced) (int, error) { return 0, nil })))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("%s: Run returned %v", node, err)
				}
			})
		}
		start("without", "lead")
		time.Sleep(time.Hour)
		start("with")
		time.Sleep(time.Hour)
		list, err := elector.Leaders(t.Context())
		if err != nil || len(list) != 1 || list[0].Candidate != "with" || list[0].Epoch != 1 {
			t.Errorf("got %+v, %v; want that the replica leads that has the job, in the first term", list, err)
		}
	})
}

// What a leader writes that stood still has no effect when another leads.
func TestFrozenLeader(t *testing.T) {
	apptest.OnEachStopped(t, func(t *testing.T, db *apptest.Database) {
		began, goOn := make(chan struct{}), make(chan struct{})
		failed, wrote := make(chan error, 1), make(chan struct{}, 1)
		start := func(node string, work jobs.LeaderOnly) *store.Store {
			backend, st := db.Store(t)
			j := good("lead", work)
			j.Every = time.Millisecond
			r, err := jobs.New(backend.Elector(), st, jobs.Options{Node: node}, j)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("%s: Run returned %v", node, err)
				}
			})
			return st
		}
		writes := func(ctx context.Context, fenced jobs.Fenced, node string) error {
			return fenced(ctx, func(ctx context.Context, u store.Unit) error { return write(ctx, u, node) })
		}
		start("old", func(ctx context.Context, fenced jobs.Fenced) (int, error) {
			close(began)
			<-goOn
			err := writes(context.WithoutCancel(ctx), fenced, "old")
			failed <- err
			return 0, err
		})
		<-began
		advance(t, db, 2*time.Minute) // as if it had stood still for that long
		st := start("new", func(ctx context.Context, fenced jobs.Fenced) (int, error) {
			err := writes(ctx, fenced, "new")
			select {
			case wrote <- struct{}{}:
			default: // it has its turn again and again
			}
			return 0, err
		})
		<-wrote
		close(goOn)
		if err := <-failed; !errors.Is(err, coord.ErrFenced) {
			t.Errorf("the old leader's write: got %v, want that it is fenced", err)
		}
		if got := slices.Compact(writers(t, st)); !slices.Equal(got, []string{"new"}) {
			t.Errorf("written was by %v", got)
		}
	})
}
