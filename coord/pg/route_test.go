package pg_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// several is the URL of the database on several servers.
func several(t *testing.T, databases ...string) string {
	t.Helper()
	first, err := url.Parse(databases[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, database := range databases[1:] {
		other, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		first.Host += "," + other.Host
	}
	return first.String()
}

// newHole returns the address of a server that takes connections and says nothing, and how many
// it has taken.
func newHole(t *testing.T) (address string, taken func() int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return "postgres://" + l.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(conns)
	}
}

// The first of two servers is dead and does not say so. That is found out once, and not by each
// connection.
func TestFirstServerIsDead(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	hole, taken := newHole(t)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(hole)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host.Host + "," + u.Host
	log := newLines()
	b := openWith(t, pg.Options{URL: u.String(), MaxConns: 4, Poll: time.Hour, Options: log.options()})
	log.wait(t, "listening for other replicas", 1)
	before := taken()
	if before == 0 {
		t.Error("the first server was not asked")
	}
	s := subscribe(t, b, "a")
	publish(t, b, "a", "k")
	want(t, "from the second server", receive(t, s, 1), "k")
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if err := b.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if now := taken(); now != before {
		t.Errorf("the dead server was asked %d times, and %d times more when that was known", before, now-before)
	}
}

// A call ends with its context while a connection is made to a server that says nothing.
func TestConnectingEndsWithItsContext(t *testing.T) {
	hole, taken := newHole(t)
	db := admin(t, hole+"/none?sslmode=disable&connect_timeout=600")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() {
		_, err := db.ExecContext(ctx, `SELECT 1`)
		ended <- err
	}()
	eventually(t, "the server was connected to", func(context.Context) (bool, error) { return taken() > 0, nil })
	cancel()
	if err := receiveOne(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a call: %v, want that it was cancelled", err)
	}
}

// The standby takes over while the primary that was still answers. Nothing is asked of that any
// more once it has refused to write: no read gets an old answer, and the replicas hear each other
// on the new primary.
func TestStandbyTakesOver(t *testing.T) {
	first := ownCluster(t)
	if err := migrate(first.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	operator := admin(t, first.URL("postgres")+"&application_name=operator")
	second, err := first.Copy(t.Context(), testenv.Options{}, first.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Stop)
	both := several(t, second.URL("postgres"), first.URL("postgres")) // the standby first, which is not to be used

	// It has idle connections in all pools, and makes calls that only read.
	log := newLines()
	b := openWith(t, pg.Options{URL: both, MaxConns: 2, Poll: 50 * time.Millisecond, Options: log.options()})
	log.wait(t, "listening for other replicas", 1)
	s := subscribe(t, b, "a")
	publish(t, b, "a", "before")
	want(t, "from the primary", receive(t, s, 1), "before")

	standby := admin(t, second.URL("postgres")+"&target_session_attrs=any")
	eventually(t, "the standby has the event", func(ctx context.Context) (bool, error) {
		var n int
		err := standby.QueryRowContext(ctx, `SELECT count(*) FROM coord_events`).Scan(&n)
		return n == 1, err
	})
	settle(t, operator, "default_transaction_read_only", "on")
	if err := second.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Ping finds the new primary", func(ctx context.Context) (bool, error) { return b.Ping(ctx) == nil, nil })
	after := openWith(t, pg.Options{URL: second.URL("postgres"), ListenURL: nobody, Poll: time.Hour})
	task, err := after.Claimer().PutTask(t.Context(), coord.Task{Name: "t", Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := b.Claimer().Task(t.Context(), task.Name); err != nil || found.ID != task.ID {
		t.Errorf("what was written to the new primary is read as %+v, %v", found, err)
	}
	publish(t, after, "a", "after")
	want(t, "from the new primary", receive(t, s, 1), "after")
	log.wait(t, `msg="listening for other replicas"`, 2)
	eventually(t, "no connection to the old primary is left", func(ctx context.Context) (bool, error) {
		var n int
		err := operator.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tandem'`).Scan(&n)
		return n == 0, err
	})
}
