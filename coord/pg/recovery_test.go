package pg_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/worker"
	"github.com/tandemhq/tandem/internal/testenv"
)

// recoveryPoll is the poll interval of backend and worker.
const recoveryPoll = 200 * time.Millisecond

// The database is in recovery for a while. Meanwhile runs fall due, and a handler ends
// whose run can't be finished. Every call says that the store is unavailable, nobody asks
// more often than its backoff says, each change of state is logged once, and with the
// first look after the recovery work goes on.
func TestRecovery(t *testing.T) {
	length := recoveryLength(t)
	for name, hot := range map[string]bool{
		"no connections": false, // 57P03
		"no writes":      true,  // 25006
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recovery(t, hot, length)
		})
	}
}

// recoveryLength is how long the database is in recovery: as long as the stress test
// disturbs its replicas, when that is to be thorough.
func recoveryLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TANDEM_STRESS")
	if text == "" {
		return 3 * time.Second
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < time.Second {
		t.Fatalf("TANDEM_STRESS is %q; want a duration of at least 1s, as in 60s", text)
	}
	return length
}

func recovery(t *testing.T, hot bool, length time.Duration) {
	c := ownCluster(t)
	url := c.NewDatabase(t, "coord_live", migrate)
	log, quietLog := newLines(), newLines()
	b := openWith(t, pg.Options{URL: url, MaxConns: 4, Poll: recoveryPoll, Options: log.options()})
	quiet := openWith(t, pg.Options{URL: url, MaxConns: 4, Poll: time.Hour, Options: quietLog.options()})
	calls := &claimCalls{Claimer: b.Claimer()}
	hold, started := make(chan struct{}), make(chan string, 10)
	work(t, calls, worker.Options{
		Name: "w", Concurrency: 4, Lease: 10*time.Second + 3*length, Poll: recoveryPoll, Logger: slog.New(log),
		Handlers: map[string]worker.Handler{
			"occurrence": func(context.Context, *worker.Run) error { return nil },
			"due": func(context.Context, *worker.Run) error {
				started <- "due"
				return nil
			},
			"held": func(context.Context, *worker.Run) error {
				started <- "held"
				<-hold
				return nil
			},
		},
	})
	task, err := b.Claimer().PutTask(t.Context(), coord.Task{
		Name: "t", Kind: "occurrence", Schedule: "@every 1s", Overlap: coord.OverlapAllow, Misfire: coord.MisfireAll, MisfireCap: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	held := enqueue(t, b, coord.NewRun{Kind: "held"})[0]
	want(t, "started before the recovery", []string{<-started}, "held")
	due := enqueue(t, b, coord.NewRun{Kind: "due", Delay: length / 2})[0]
	const listening = "listening for other replicas"
	log.wait(t, listening, 1)
	quietLog.wait(t, listening, 1)

	if err := c.Recover(t.Context(), hot); err != nil {
		t.Fatal(err)
	}
	log.wait(t, `trying on" call=claim`, 1)
	allUnavailable(t, openCalls(quiet))
	close(hold)
	connections, statements := asked(t, c)
	<-time.After(length)
	connectionsThen, statementsThen := asked(t, c)
	connections, statements = connectionsThen-connections, statementsThen-statements
	t.Logf("%v of recovery saw %d connections, %d statements", length, connections, statements)
	// The claims and the reader's looks come half a poll interval after each other, or later.
	if most := 50 + int(4*length/recoveryPoll); connections > most || statements > most {
		t.Errorf("%v of recovery saw %d connections and %d statements, want %d at most", length, connections, statements, most)
	}
	if connections+statements < int(length/time.Second) {
		t.Errorf("nobody has tried to do anything for %v", length)
	}

	if err := c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	promoted := time.Now()
	want(t, "started after the recovery", []string{receiveOne(t, started)}, "due")
	t.Logf("work started %v after the server took writes, with a poll interval of %v", time.Since(promoted), recoveryPoll)
	failed, firstAfter := calls.outcomes(promoted)
	if firstAfter != nil {
		t.Errorf("the first claim after the recovery: %v", firstAfter)
	}
	if len(failed) == 0 {
		t.Error("no claim has failed")
	}
	for _, err := range failed {
		if !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("a claim: %v, want ErrUnavailable", err)
		}
	}

	// Nothing was lost.
	ended := func(id coord.RunID) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			run, err := b.Claimer().Run(ctx, id)
			return run.State == coord.Succeeded && run.Attempt == 1, err
		}
	}
	eventually(t, "the run whose handler ended in the recovery has succeeded", ended(held.ID))
	eventually(t, "the run that fell due in the recovery has succeeded", ended(due.ID))
	now := due.CreatedAt.Add(time.Since(promoted) + length)
	eventually(t, "the occurrences have been caught up with", func(ctx context.Context) (bool, error) {
		stored, err := b.Claimer().Task(ctx, task.Name)
		return stored.NextAt.After(now), err
	})
	if err := b.Claimer().PauseTask(t.Context(), task.Name, true); err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	for run, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{TaskID: task.ID, Limit: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, run.ScheduledFor)
	}
	for i := 1; i < len(times); i++ {
		if d := times[i-1].Sub(times[i]); d != time.Second {
			t.Errorf("between the occurrences %v and %v are %v", times[i], times[i-1], d)
		}
	}
	if len(times) < int(length/time.Second) {
		t.Errorf("there are %d occurrences", len(times))
	}

	// Replicas hear each other again.
	log.wait(t, listening, 2)
	quietLog.wait(t, listening, 2)
	hints, stop := quiet.Claimer().Hints()
	defer stop()
	enqueue(t, b, coord.NewRun{Kind: "nobody's"})
	select {
	case <-hints:
	case <-time.After(patience):
		t.Error("no hint came after the recovery")
	}
	log.once(t, listening, "coordination store is", "event reader lost", "call=claim", "call=next_due", "call=extend")
	eventually(t, "the limiter uses the store again", func(ctx context.Context) (bool, error) {
		d, err := quiet.Limiter().Allow(ctx, coord.Limit{Key: "x", Rate: 1, Per: time.Second})
		return !d.Degraded, err
	})
	quietLog.once(t, listening, "coordination store is", "event reader lost", "the store of the limiter")
}

// ownCluster is a server that the test may put into recovery.
func ownCluster(t *testing.T) *testenv.Cluster {
	t.Helper()
	c, err := testenv.StartCluster(t.Context(), testenv.Options{
		Settings: map[string]string{"log_connections": "on", "log_statement": "all"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// work runs a worker until the test ends.
func work(t *testing.T, c coord.Claimer, o worker.Options) {
	t.Helper()
	w, err := worker.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var working sync.WaitGroup
	working.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() {
		stop()
		working.Wait()
	})
}

// openCalls are calls that write.
func openCalls(b coord.Backend) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Ping": b.Ping,
		"Claim": func(ctx context.Context) error {
			_, err := b.Claimer().Claim(ctx, coord.ClaimOptions{Worker: "x", Kinds: []string{"x"}, Limit: 1, Lease: time.Minute})
			return err
		},
		"Claim with limits": func(ctx context.Context) error {
			_, err := b.Claimer().Claim(ctx, coord.ClaimOptions{
				Worker: "x", Kinds: []string{"x"}, Limit: 1, Lease: time.Minute, Limits: map[string]int{"x": 1},
			})
			return err
		},
		"Enqueue": func(ctx context.Context) error {
			_, err := b.Claimer().Enqueue(ctx, coord.NewRun{Kind: "x"})
			return err
		},
		"PutTask": func(ctx context.Context) error {
			_, err := b.Claimer().PutTask(ctx, coord.Task{Name: "x", Kind: "x"})
			return err
		},
		"Trigger": func(ctx context.Context) error {
			_, err := b.Claimer().Trigger(ctx, "t", coord.TriggerOptions{})
			return err
		},
		"Cancel": func(ctx context.Context) error { return b.Claimer().Cancel(ctx, 1) },
		"Prune": func(ctx context.Context) error {
			_, err := b.Claimer().Prune(ctx, coord.RunRetention{Age: time.Hour})
			return err
		},
		"Publish": func(ctx context.Context) error {
			_, err := b.Broadcaster().Publish(ctx, coord.NewEvent{Topic: "x", Kind: "x"})
			return err
		},
		"Issue": func(ctx context.Context) error {
			_, err := b.Tickets().Issue(ctx, coord.TicketFor{Purpose: "x", User: "x", Session: "x"})
			return err
		},
		"Redeem": func(ctx context.Context) error {
			_, err := b.Tickets().Redeem(ctx, coord.NewTicketSecret(), coord.TicketUse{Purpose: "x"})
			return err
		},
		"Begin": func(ctx context.Context) error {
			_, err := b.Receipts().Begin(ctx, coord.ReceiptFor{Key: "x"})
			return err
		},
		"Allow": func(ctx context.Context) error {
			d, err := b.Limiter().Allow(ctx, coord.Limit{Key: "x", Rate: 1, Per: time.Second})
			if err == nil && d.Degraded { // it decides all the same
				err = coord.ErrUnavailable
			}
			return err
		},
		"InTx": func(ctx context.Context) error {
			return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "x"})
				return err
			})
		},
	}
}

// allUnavailable makes calls of which it is known that nothing comes of them.
func allUnavailable(t *testing.T, calls map[string]func(context.Context) error) {
	t.Helper()
	for name, call := range calls {
		if err := call(t.Context()); !errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUnknownOutcome) {
			t.Errorf("%s: %v, want ErrUnavailable and a known outcome", name, err)
		}
	}
}

// asked tells how many connections and statements a server has seen since it was started.
func asked(t *testing.T, c *testenv.Cluster) (connections, statements int) {
	t.Helper()
	text, err := c.Log()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(text, "connection received: "), strings.Count(text, "  statement: ") + strings.Count(text, "  execute <")
}

// receiveOne waits for something.
func receiveOne[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		so, err := is(ctx)
		if so && err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not so: %s; %v", what, err)
		}
	}
}

// claimCalls notes what became of the claims of a worker.
type claimCalls struct {
	coord.Claimer
	mu    sync.Mutex
	calls []claimCall
}

type claimCall struct {
	began time.Time
	err   error
}

func (c *claimCalls) Claim(ctx context.Context, o coord.ClaimOptions) ([]coord.Claim, error) {
	call := claimCall{began: time.Now()}
	claims, err := c.Claimer.Claim(ctx, o)
	call.err = err
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	return claims, err
}

// outcomes returns what failed, and what became of the first call that began after a moment.
func (c *claimCalls) outcomes(after time.Time) (failed []error, first error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if call.err != nil {
			failed = append(failed, call.err)
		}
	}
	if i := slices.IndexFunc(c.calls, func(call claimCall) bool { return call.began.After(after) }); i >= 0 {
		first = c.calls[i].err
	}
	return failed, first
}

// lines keeps the lines of a log.
type lines struct {
	mu    sync.Mutex
	text  []string
	added chan struct{} // closed and replaced with each line
}

func newLines() *lines { return &lines{added: make(chan struct{})} }

func (l *lines) options() coord.Options { return coord.Options{Logger: slog.New(l)} }

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *lines) WithGroup(string) slog.Handler                    { return l }
func (l *lines) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var line bytes.Buffer
	err := slog.NewTextHandler(&line, nil).Handle(ctx, r)
	l.text = append(l.text, line.String())
	close(l.added)
	l.added = make(chan struct{})
	return err
}

// with returns the lines that hold a text, and a channel that is closed when there are more.
func (l *lines) with(text string) (found []string, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.text), func(line string) bool { return !strings.Contains(line, text) }), l.added
}

// wait waits until so many lines hold a text.
func (l *lines) wait(t *testing.T, text string, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		found, more := l.with(text)
		if len(found) >= n {
			return
		}
		select {
		case <-more:
		case <-deadline:
			all, _ := l.with("")
			t.Fatalf("%d lines say %q, want %d, of:\n%s", len(found), text, n, strings.Join(all, ""))
		}
	}
}

// once checks that of what began and ended there is a line for each, one more for the
// first beginning of all, and that there is no other line.
func (l *lines) once(t *testing.T, first string, texts ...string) {
	t.Helper()
	all, _ := l.with("") // at one moment: more may come
	count := func(text string) (n int) {
		for _, line := range all {
			if strings.Contains(line, text) {
				n++
			}
		}
		return n
	}
	known := count("not " + strings.Fields(first)[0])
	for _, text := range append(texts, first) {
		most := 2
		if text == first {
			most = 3
		}
		n := count(text)
		if known += n; n > most {
			t.Errorf("%d lines say %q", n, text)
		}
	}
	if known != len(all) {
		t.Errorf("of %d lines %d were expected", len(all), known)
	}
	if t.Failed() {
		t.Logf("the log:\n%s", strings.Join(all, ""))
	}
}

// A server stops to take writes while connections to it stay open. When one of them meets that,
// all are left, also those that only read; and no other connection is made to such a server.
func TestConnectionsToAReadOnlyServerAreLeft(t *testing.T) {
	c := ownCluster(t)
	operator := admin(t, c.URL("postgres"))
	exec(t, operator, `CREATE TABLE rows ()`)
	setting := func(readOnly string) {
		t.Helper()
		settle(t, operator, "default_transaction_read_only", readOnly)
	}
	for name, write := range map[string]func(db *bun.DB) error{
		"Exec": func(db *bun.DB) error {
			_, err := db.ExecContext(t.Context(), `DELETE FROM rows`)
			return err
		},
		"Query": func(db *bun.DB) error { return db.NewRaw(`DELETE FROM rows RETURNING 1`).Scan(t.Context(), new([]int)) },
	} {
		db := admin(t, c.URL("postgres"))
		var open [4]bun.Conn
		for i := range open {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			open[i] = conn
		}
		for _, conn := range open {
			_ = conn.Close()
		}
		setting("on")
		read := func() error { return db.NewRaw(`SELECT 1`).Scan(t.Context(), new([]int)) }
		if err := read(); err != nil {
			t.Errorf("%s: a read on a connection that is open: %v", name, err)
		}
		if err := write(db); err == nil {
			t.Fatalf("%s: a server that is read-only has written", name)
		}
		for range open {
			if err := read(); !errors.Is(err, coord.ErrUnavailable) {
				t.Errorf("%s: a read when the server had refused to write: %v, want ErrUnavailable", name, err)
			}
		}
		setting("off")
		if err := read(); err != nil {
			t.Errorf("%s: a read when the server writes again: %v", name, err)
		}
	}
}

// settle changes a setting of the whole server, and returns when sessions that are open have it.
// What changes it must be a session of its own, whose transactions may write.
func settle(t *testing.T, operator *bun.DB, name, value string) {
	t.Helper()
	conn, err := operator.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec(t, conn, `SET default_transaction_read_only = off`)
	exec(t, conn, `ALTER SYSTEM SET `+name+` = `+value)
	exec(t, conn, `SELECT pg_reload_conf()`)
	exec(t, conn, `RESET default_transaction_read_only`)
	eventually(t, name+" is "+value, func(ctx context.Context) (bool, error) {
		var now string
		err := conn.QueryRowContext(ctx, `SHOW `+name).Scan(&now)
		return now == value, err
	})
}

// The server has become a standby when a replica, which is open, begins to listen. The
// replica says so, and listens as soon as it can.
func TestListensToAStandbyLater(t *testing.T) {
	c := ownCluster(t)
	url := c.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, url, false)
	p.entrance.Lock()
	log := newLines()
	openWith(t, pg.Options{URL: url, ListenURL: through, Poll: recoveryPoll, Options: log.options()})
	if err := c.Recover(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	p.entrance.Unlock()
	log.wait(t, "hot standby", 1)
	if err := c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	log.wait(t, `msg="listening for other replicas"`, 1)
	if all, _ := log.with("listening"); len(all) != 2 {
		t.Errorf("the log is:\n%s", strings.Join(all, ""))
	}
}
