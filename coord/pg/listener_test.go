package pg_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// nobody is where there is no server to listen to.
const nobody = "postgres://127.0.0.1:1/nobody?sslmode=disable"

// observed are the observations of one operation.
type observed struct {
	op string

	mu   sync.Mutex
	seen []coord.Observation
}

func (o *observed) Observe(_ context.Context, seen coord.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if seen.Op == o.op {
		o.seen = append(o.seen, seen)
	}
}

func (o *observed) all() []coord.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.seen)
}

// listeners returns the server's processes that listen in the database.
func listeners(t *testing.T, db *bun.DB) (pids []int) {
	t.Helper()
	err := db.NewRaw(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`).Scan(t.Context(), &pids)
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// The connection to listen on is open and nothing arrives any more, which nobody says.
// The replica finds out, listens on another one, and looks for what it has missed; and it
// closes in time whatever state that connection is in.
func TestListenerIsHalfOpen(t *testing.T) {
	for name, way := range map[string]func(t *testing.T, database string) (listenURL string, tear func()){
		"the server's process stands still": func(t *testing.T, database string) (string, func()) {
			db := admin(t, database)
			return database, func() {
				for _, pid := range listeners(t, db) {
					if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
				}
			}
		},
		"packets are dropped": func(t *testing.T, database string) (string, func()) {
			p, through := startProxy(t, database, false)
			return through, p.dropPackets
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testenv.NewDatabase(t, "coord_live", migrate)
			listenURL, tear := way(t, database)
			log, restarts := newLines(), &observed{op: "listener.restart"}
			options := log.options()
			options.Observer = restarts
			one := openWith(t, pg.Options{URL: database, ListenURL: nobody, Poll: time.Hour})
			b, err := pg.Open(t.Context(), pg.Options{URL: database, ListenURL: listenURL, Poll: time.Hour, Options: options})
			if err != nil {
				t.Fatal(err)
			}
			const listening = `msg="listening for other replicas"`
			log.wait(t, listening, 1)
			s := subscribe(t, b, "a")
			publish(t, one, "a", "before")
			want(t, "on a good connection", receive(t, s, 1), "before")

			tear()
			publish(t, one, "a", "unheard")
			want(t, "on another connection", receive(t, s, 1), "unheard")
			log.wait(t, listening, 2)
			publish(t, one, "a", "heard")
			want(t, "on another connection", receive(t, s, 1), "heard")
			seen := restarts.all()
			if len(seen) != 1 || !errors.Is(seen[0].Err, coord.ErrUnavailable) || seen[0].Took <= 0 {
				t.Errorf("the restarts are %+v, want one", seen)
			}
			if all, _ := log.with(""); len(all) != 3 || !strings.Contains(all[1], "not listening") {
				t.Errorf("the log is:\n%s", strings.Join(all, ""))
			}

			tear()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := b.Close(ctx); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// A pooler in transaction mode takes a LISTEN and forgets about it. The replica finds
// out, says so, and polls.
func TestPoolerForgetsWhoListens(t *testing.T) {
	s := newPooledStore(t, testenv.NewPooler(t), false)
	log := newLines()
	b := openWith(t, pg.Options{URL: s.pooler.Through(s.url), MaxConns: 4, Poll: 100 * time.Millisecond, Options: log.options()})
	other := openWith(t, pg.Options{URL: s.url, MaxConns: 4, Poll: time.Hour, ListenURL: nobody})
	log.wait(t, "polling", 1)
	if all, _ := log.with(""); len(all) != 1 || !strings.Contains(all[0], "pooler") {
		t.Errorf("the log is:\n%s", strings.Join(all, ""))
	}
	stream := subscribe(t, b, "a")
	publish(t, other, "a", "polled")
	want(t, "found by polling", receive(t, stream, 1), "polled")
}

// The server goes away and comes back. Whoever listened, and whoever resumes, gets
// all events, and nobody has to do anything for that.
func TestServerIsAway(t *testing.T) {
	c := ownCluster(t)
	database := c.URL("postgres")
	if err := migrate(database); err != nil {
		t.Fatal(err)
	}
	log := newLines()
	b := openWith(t, pg.Options{URL: database, MaxConns: 4, Poll: 100 * time.Millisecond, Options: log.options()})
	other := openWith(t, pg.Options{URL: database, MaxConns: 4, Poll: 100 * time.Millisecond})
	s := subscribe(t, b, "a")
	left := publish(t, other, "a", "1")
	want(t, "before", receive(t, s, 1), "1")
	publish(t, other, "a", "2")
	if err := c.Recover(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := b.Ping(t.Context()); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Ping while the server is away: %v, want ErrUnavailable", err)
	}
	for range 3 {
		if _, err := other.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "a", Kind: "lost"}); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Publish while the server is away: %v, want ErrUnavailable", err)
		}
	}
	if err := c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, other, "a", "3")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var kinds []string
	for len(kinds) < 2 {
		events, err := s.Next(ctx)
		if err != nil && (!errors.Is(err, coord.ErrUnavailable) || ctx.Err() != nil) {
			t.Fatalf("after %q: %v", kinds, err)
		}
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
	}
	want(t, "who listened", kinds, "2", "3")
	resumed, err := b.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{"a": left})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Close()
	want(t, "who resumes", receive(t, resumed, 2), "2", "3")
	log.wait(t, `msg="listening for other replicas"`, 1)
	for text, most := range map[string]int{"coordination store is": 2, "event reader lost": 1, "listening": 3} {
		if all, _ := log.with(text); len(all) > most {
			t.Errorf("%d lines say %q:\n%s", len(all), text, strings.Join(all, ""))
		}
	}
}

// The connection on which the doorbell rings gets no answer. What was rung about others hear as soon as
// there is another one, although they don't poll.
func TestDoorbellWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	database := testenv.NewDatabase(t, "coord_live", migrate)
	db := admin(t, database)
	one := openWith(t, pg.Options{URL: database + "&application_name=ringer", Poll: time.Hour})
	two := openWith(t, pg.Options{URL: database, Poll: time.Hour})
	s := subscribe(t, two, "a")
	publish(t, one, "a", "before")
	want(t, "on a good connection", receive(t, s, 1), "before")

	var pids []int
	err := db.NewRaw(`SELECT pid FROM pg_stat_activity WHERE datname = current_database()
		AND application_name = 'ringer' AND query LIKE '%pg_notify%'`).Scan(t.Context(), &pids)
	if err != nil || len(pids) == 0 {
		t.Fatalf("the doorbell's connections are %v, %v", pids, err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	publish(t, one, "a", "after")
	want(t, "on another connection", receive(t, s, 1), "after")
}
