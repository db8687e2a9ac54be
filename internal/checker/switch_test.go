//go:build unix

package checker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// plan says how many events a room gets, and when.
type plan struct {
	name    string
	private bool
	common  int // before the copy is made: both histories have them
	lost    int // then: only the history that ends has them
	other   int // in the copy, before a replica looks at it
	after   int // there, when they do
}

// plans are those of the rooms.
var plans = []plan{
	{name: "untouched", common: 5},
	{name: "untouched from the beginning"},
	{name: "begun in the copy", other: 2, after: 1},
	{name: "begun after", after: 2},
	{name: "same", common: 5, after: 3},
	{name: "same and private", common: 5, other: 2, after: 3, private: true},
	{name: "lost", common: 5, lost: 3},
	{name: "lost and private", common: 5, lost: 3, private: true},
	{name: "lost from the beginning", lost: 3},
	{name: "fewer others", common: 5, lost: 3, other: 1, after: 1},
	{name: "as many others", common: 5, lost: 3, other: 3},
	{name: "more others", common: 5, lost: 3, other: 6, after: 2},
	{name: "others after", common: 5, lost: 3, after: 4},
	{name: "others from the beginning", lost: 3, after: 4},
}

// rewrite is a database whose history is rewritten under those who follow it.
type rewrite struct {
	*testing.T
	replicas  []*replica
	everyone  []*person
	rooms     []room // of the plans
	followers []*follower
	late      room // made when the copy was, which does not have it
	counts    counts
	published int

	// open opens the database that counts at the moment.
	open func() coord.Backend
	// copy makes a copy, and returns when it has all that there is.
	copy func()
	// lossless: the copy is kept up to date, so that nothing is lost.
	lossless bool
	// replace ends the database, and puts the copy in its place, which is now what open opens. All but the
	// first replica are killed. Then meanwhile is called, and then the replicas see it.
	replace func(meanwhile func())
}

func (w *rewrite) run() {
	began := time.Now()
	w.replicas[0].start()
	var starting sync.WaitGroup
	for _, r := range w.replicas[1:] {
		starting.Go(r.start)
	}
	starting.Wait()
	if w.Failed() {
		w.FailNow()
	}
	w.everyone = people(w.T, w.replicas[0], 2, 3)
	for _, p := range plans {
		var members []*person
		if p.private {
			members = w.everyone[1:]
		}
		w.rooms = append(w.rooms, makeRoom(w.T, w.replicas[0], w.everyone[0], p.name, members...))
	}
	done, finish := context.WithCancel(w.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer finish()
	w.follow(done, &running)

	b := w.open()
	w.publish(b, func(p plan) int { return p.common })
	w.caughtUp("before the copy", b)
	closeBackend(w.T, b)
	w.copy()
	b = w.open()
	w.late = makeRoom(w.T, w.replicas[0], w.everyone[0], "made late")
	early, away, staying := w.some(3, 0), w.some(3, 1), w.some(3, 2)
	for _, f := range staying {
		f.do(done, func(ctx context.Context) { f.subscribe(ctx, map[string]coord.Position{w.late.topic(): coord.Start}) })
	}
	back := w.leave(done, early) // they have seen nothing of what is lost
	w.publish(b, func(p plan) int { return p.lost })
	w.publishIn(b, w.late, 2)
	w.caughtUp("before the end", b)
	lateBack := w.leave(done, away)

	var h history
	h.before, _ = readLog(w.T, b)
	closeBackend(w.T, b)
	w.replace(func() {
		b = w.open()
		w.publish(b, func(p plan) int { return p.other })
	})
	back()
	lateBack()
	w.say(done)
	w.publish(b, func(p plan) int { return p.after / 2 })
	caught := w.caughtUp("after the end", b)
	finish()
	running.Wait()

	h.log, _ = readLog(w.T, b)
	h.gone = map[string]bool{w.late.topic(): !w.lossless}
	for _, f := range w.followers {
		h.views = append(h.views, f.views...)
	}
	if caught {
		report(w.T, check(h))
	}
	if !w.lossless && w.counts.resets.Load() == 0 {
		w.Error("nothing was rewritten: the test proves nothing")
	}
	w.Logf("%d events published in %d rooms; %d clients, %d views, %d deliveries, %d dials, %d reconnects, %d resumes, %d resets; %v",
		w.published, len(w.rooms), len(w.followers), len(h.views), w.counts.deliveries.Load(), w.counts.dials.Load(),
		w.counts.reconnects.Load(), w.counts.resumes.Load(), w.counts.resets.Load(), time.Since(began).Round(time.Millisecond))
}

func closeBackend(t *testing.T, b coord.Backend) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// follow lets clients follow all rooms from different places.
func (w *rewrite) follow(done context.Context, running *sync.WaitGroup) {
	var starting sync.WaitGroup
	calm, cancel := context.WithCancel(done)
	cancel()
	for i := range 24 {
		f := newFollower(w.T, fmt.Sprintf("client %d", i), w.everyone[i%2], w.replicas, rand.New(rand.NewPCG(uint64(i), 0)), &w.counts)
		w.followers = append(w.followers, f)
		starting.Go(func() {
			if !f.dial(done) {
				return
			}
			from := make(map[string]coord.Position)
			for _, r := range w.rooms {
				from[r.topic()] = []coord.Position{coord.Start, coord.Head}[i%2]
			}
			if f.subscribe(done, from) {
				running.Go(func() { f.run(calm, done, nil) })
			}
		})
	}
	starting.Wait()
	if w.Failed() {
		w.FailNow()
	}
}

// some are the followers of which one in so many is taken.
func (w *rewrite) some(of, which int) (list []*follower) {
	for i, f := range w.followers {
		if i%of == which {
			list = append(list, f)
		}
	}
	return list
}

// leave ends the clients of followers, who keep their positions and come back when the returned function is
// called.
func (w *rewrite) leave(done context.Context, followers []*follower) (back func()) {
	var away sync.WaitGroup
	over := make(chan struct{})
	for _, f := range followers {
		left := make(chan struct{})
		away.Go(func() {
			f.do(done, func(ctx context.Context) {
				positions := f.leave()
				f.setAway(true)
				close(left)
				select {
				case <-over:
				case <-ctx.Done():
					return
				}
				if f.dial(ctx) && f.subscribe(ctx, positions) {
					f.setAway(false)
				}
			})
		})
		select {
		case <-left:
		case <-done.Done():
		}
	}
	return func() {
		close(over)
		away.Wait()
	}
}

// publish publishes in each room as many events as its plan says.
func (w *rewrite) publish(b coord.Backend, n func(p plan) int) {
	for i, p := range plans {
		w.publishIn(b, w.rooms[i], n(p))
	}
}

func (w *rewrite) publishIn(b coord.Backend, r room, n int) {
	for range n {
		w.published++
		_, err := b.Broadcaster().Publish(w.Context(), coord.NewEvent{
			Topic: r.topic(), Kind: "checker.note", Payload: fmt.Appendf(nil, `{"client_id":"%d"}`, w.published),
		})
		if err != nil {
			w.Errorf("publish: %v", err)
		}
	}
}

// say says over the API what comes after and is not published.
func (w *rewrite) say(done context.Context) {
	for i, p := range plans {
		for range p.after - p.after/2 {
			w.published++
			if err := w.everyone[0].post(done, w.replicas, w.published, w.rooms[i].id, fmt.Sprint(w.published), "hello"); err != nil {
				w.Errorf("say something in %q: %v", p.name, err)
			}
		}
	}
}

func (w *rewrite) caughtUp(what string, b coord.Backend) bool {
	w.Helper()
	return caughtUp(w.T, what, w.followers, heads(w.T, b))
}

// TestRewrittenPG has two replicas: one lives on and has another server when it connects anew; the other one is
// killed, and started when that is in place.
func TestRewrittenPG(t *testing.T) {
	for _, test := range []struct {
		name              string
		standby, lossless bool
	}{
		{name: "a backup is restored"},
		{name: "a standby without the last events is promoted", standby: true},
		{name: "a standby that has all events is promoted", standby: true, lossless: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			first, err := testenv.StartCluster(t.Context(), testenv.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(first.Stop)
			host := func(c *testenv.Cluster) string {
				u, err := url.Parse(c.URL("postgres"))
				if err != nil {
					t.Fatal(err)
				}
				return u.Host
			}
			w := &rewrite{T: t, lossless: test.lossless}
			for i := range 2 {
				w.replicas = append(w.replicas, newReplicaPG(t, fmt.Sprintf("replica-%d", i), first.URL("postgres"), host(first)))
			}
			current := first
			var second *testenv.Cluster
			stream := newProxy(t, host(first)) // to the standby
			w.open = func() coord.Backend { return openBackend(t, "pg", current.URL("postgres")) }
			w.copy = func() {
				primary := ""
				if test.standby {
					primary = stream.through(t, first.URL("postgres"))
				}
				if second, err = first.Copy(t.Context(), testenv.Options{}, primary); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(second.Stop)
				if !test.standby {
					return
				}
				replayed(t, first, second)
				if !test.lossless {
					stream.lead("")
					stream.cut()
				}
			}
			w.replace = func(meanwhile func()) {
				if test.lossless {
					replayed(t, first, second)
				}
				w.replicas[1].kill()
				first.Stop()
				if test.standby {
					if err := second.Promote(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				current = second
				meanwhile()
				for _, r := range w.replicas {
					r.work.lead(host(second))
					r.listen.lead(host(second))
				}
				w.replicas[1].start()
			}
			w.run()
		})
	}
}

// replayed waits until a standby has all that its primary has.
func replayed(t *testing.T, primary, standby *testenv.Cluster) {
	t.Helper()
	ask := func(c *testenv.Cluster, answer any, statement string, args ...any) {
		t.Helper()
		db, err := sql.Open("postgres", c.URL("postgres"))
		if err == nil {
			defer db.Close()
			err = db.QueryRowContext(t.Context(), statement, args...).Scan(answer)
		}
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	var end string
	ask(primary, &end, `SELECT pg_current_wal_insert_lsn()`)
	deadline := time.Now().Add(patience)
	for reached := false; !reached; wait(t.Context(), 20*time.Millisecond) {
		if ask(standby, &reached, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, end); time.Now().After(deadline) {
			t.Fatalf("the standby has not come to %s", end)
		}
	}
}

// TestRewrittenSQLite puts a copy of the file in its place.
func TestRewrittenSQLite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "checker.db")
	r := newReplica(t, "sqlite", "replica", "--database-url", "sqlite:"+path)
	kept := filepath.Join(t.TempDir(), "backup.db")
	w := &rewrite{T: t, replicas: []*replica{r}}
	w.open = func() coord.Backend { return openBackend(t, "sqlite", path) }
	w.copy = func() {
		r.stop()
		copyFiles(t, path, kept)
		r.start()
	}
	w.replace = func(meanwhile func()) {
		r.kill()
		copyFiles(t, kept, path)
		meanwhile()
		r.start()
	}
	w.run()
}

// copyFiles copies a database that nobody has open, over another one.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		text, err := os.ReadFile(from + suffix)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = os.Remove(to + suffix)
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		case err == nil:
			err = os.WriteFile(to+suffix, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
