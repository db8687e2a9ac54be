//go:build unix

package stress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

const (
	replicas = 4
	waiting  = 30 // at most, so that a run whose lease has ended is soon claimed again
	tasks    = 6  // each has an occurrence every second; every other one forbids overlap
	every    = time.Second

	// patience is how long the replicas may take, undisturbed, for what is left.
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) {
	if text := os.Getenv(replicaEnv); text != "" {
		os.Exit(asReplica(text))
	}
	os.Exit(testenv.Main(m))
}

func TestStress(t *testing.T) {
	x := settings(t)
	t.Logf("for %v with TANDEM_STRESS_SEED=%d", x.length, x.seed)
	t.Run("pg", func(t *testing.T) {
		t.Parallel()
		stress(t, "pg", testenv.NewDatabase(t, "stress", preparePG), x)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "stress.db")
		if err := prepareSQLite(path); err != nil {
			t.Fatal(err)
		}
		x := x
		if !x.full {
			x.runs /= 2 // the race detector makes it slow
		}
		stress(t, "sqlite", path, x)
	})
}

// extent is how much is done.
type extent struct {
	length time.Duration // of the disturbance
	runs   int           // that are queued
	full   bool
	seed   uint64
}

// settings are those of the environment, see the documentation of the package.
func settings(t *testing.T) extent {
	t.Helper()
	x := extent{length: 10 * time.Second, runs: 1000, seed: rand.Uint64()}
	var err error
	if text := os.Getenv("TANDEM_STRESS"); text != "" {
		x.runs, x.full = 5000, true
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

// stress disturbs replicas on a database for a time, waits until all runs have ended, and
// checks what happened.
func stress(t *testing.T, driver, url string, x extent) {
	b, err := open(t.Context(), driver, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	h := history{queued: x.runs, every: every, forbids: make(map[coord.TaskID]bool)}
	names := putTasks(t, b, h.forbids)

	r := &rig{t: t, config: replica{Driver: driver, URL: url, Seed: x.seed}}
	disturbing, calm := context.WithTimeout(t.Context(), x.length)
	done, finish := context.WithCancel(t.Context())
	var slots sync.WaitGroup
	defer slots.Wait()
	defer finish()
	defer calm()
	for i := range replicas {
		slots.Go(func() { r.slot(disturbing, done, rand.New(rand.NewPCG(x.seed, uint64(i)))) })
	}
	enqueue(t, b, x.runs, x.length*9/10)
	<-disturbing.Done()
	for _, name := range names {
		if err := b.Claimer().PauseTask(t.Context(), name, true); err != nil {
			t.Error(err)
		}
	}
	waitForEnds(t, b)
	finish()
	slots.Wait()

	if h.journal, err = readJournal(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.runs = allRuns(t, b)
	n, faults := check(h)
	t.Logf("%s: %d queued runs, %d occurrences, %d kills, %d stops, %d rescues (the slowest %v after the end of the lease), %d executions, "+
		"%d duplicates by receipts, %d overlaps, %d fenced writes refused, %d lost at-most-once runs",
		driver, h.queued, n.Occurrences, r.kills.Load(), r.stops.Load(), n.Rescues, n.Slowest, n.Executions,
		n.Duplicates, n.Overlaps, n.Refused, n.Lost)
	const most = 20
	for i, fault := range faults {
		if i == most {
			t.Errorf("and %d more", len(faults)-most)
			break
		}
		t.Error(fault)
	}
	if r.kills.Load() == 0 || r.stops.Load() == 0 || n.Rescues == 0 {
		t.Error("nothing was disturbed: the test proves nothing")
	}
}

// putTasks creates the tasks and notes which of them forbid overlap.
func putTasks(t *testing.T, b coord.Backend, forbids map[coord.TaskID]bool) (names []string) {
	t.Helper()
	for i := range tasks {
		task := coord.Task{
			Name: fmt.Sprintf("task-%d", i), Kind: kind, Schedule: "@every 1s", Misfire: coord.MisfireAll, MisfireCap: 1000,
			Overlap: []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow}[i%2], Retry: patient,
		}
		stored, err := b.Claimer().PutTask(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		forbids[stored.ID] = task.Overlap == coord.OverlapForbid
		names = append(names, task.Name)
	}
	return names
}

// patient is the policy of runs that must succeed in the end.
var patient = coord.Retry{MaxAttempts: 100, Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}

// enqueue queues runs evenly over a time, or later where they are not worked off as fast. A
// few are at-most-once.
func enqueue(t *testing.T, b coord.Backend, runs int, over time.Duration) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(over + patience)
	defer late.Stop()
	began := time.Now()
	for queued := 0; queued < runs; {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("%d of %d runs could be queued, the others are not worked off", queued, runs)
		}
		due := min(runs, int(float64(runs)*float64(time.Since(began))/float64(over))) - queued
		batch := make([]coord.NewRun, max(0, min(due, waiting-count(t, b, coord.Queued))))
		for i := range batch {
			batch[i] = coord.NewRun{Kind: kind, Retry: patient}
			if (queued+i)%30 == 0 {
				batch[i].AtMostOnce, batch[i].Retry = true, coord.Retry{}
			}
		}
		if _, err := b.Claimer().Enqueue(t.Context(), batch...); err != nil {
			t.Fatalf("Enqueue: %v", err)
		}
		queued += len(batch)
	}
}

// count returns how many runs are in a state, up to 1,000.
func count(t *testing.T, b coord.Backend, state coord.State) (n int) {
	t.Helper()
	for _, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{State: state, Limit: 1000}) {
		if err != nil {
			t.Fatalf("Runs: %v", err)
		}
		n++
	}
	return n
}

// waitForEnds waits until every run has ended.
func waitForEnds(t *testing.T, b coord.Backend) {
	t.Helper()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left := unended(t, b)
		if left == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-patient.C:
			t.Errorf("%d runs have not ended, %v after the last disturbance", left, patience)
			return
		}
	}
}

// unended counts the runs that have not ended, at one moment: a run may come back from
// running to queued.
func unended(t *testing.T, b coord.Backend) (n int) {
	t.Helper()
	err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT count(*) FROM coord_runs WHERE state IN (?)`,
			bun.List([]coord.State{coord.Queued, coord.Running})).Scan(ctx, &n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// allRuns reads every run.
func allRuns(t *testing.T, b coord.Backend) (runs []coord.Run) {
	t.Helper()
	for before := coord.RunID(0); ; {
		page := 0
		for run, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{Before: before, Limit: 1000}) {
			if err != nil {
				t.Fatalf("Runs: %v", err)
			}
			runs = append(runs, run)
			before = run.ID
			page++
		}
		if page == 0 {
			slices.Reverse(runs)
			return runs
		}
	}
}

// rig starts replicas and disturbs them.
type rig struct {
	t                    *testing.T
	config               replica
	starts, kills, stops atomic.Int64
}

// slot keeps one replica running until done, and disturbs it until disturbing ends.
func (r *rig) slot(disturbing, done context.Context, rng *rand.Rand) {
	p := r.start(clock{})
	for p.atWork(disturbing) && wait(disturbing, 100*time.Millisecond, time.Second, rng) {
		switch {
		case p.ended():
			r.t.Errorf("a replica ended by itself: %v", p)
			return
		case rng.IntN(2) == 0:
			r.kills.Add(1)
			p.kill()
			p = r.start(clock{})
		default:
			r.stops.Add(1)
			p.signal(syscall.SIGSTOP)
			// Of its leases two thirds or more are left: when it comes back, they have just ended,
			// or not quite, and its runs are at work elsewhere.
			wait(done, lease*3/4, lease/2, rng)
			p.signal(syscall.SIGCONT)
		}
	}
	<-done.Done()
	p.end()
}

// wait waits for a time, and up to spread more, and reports whether ctx goes on.
func wait(ctx context.Context, least, spread time.Duration, rng *rand.Rand) bool {
	timer := time.NewTimer(least + time.Duration(rng.Int64N(int64(spread))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// process is one run of a replica.
type process struct {
	t      *testing.T
	name   string
	clock  clock
	cmd    *exec.Cmd
	stdout io.ReadCloser
	stderr bytes.Buffer  // to be read when it has ended
	began  chan struct{} // closed when it works, or never will
	exited chan struct{}
}

// start starts a replica under a name of its own; it returns nil when that fails.
func (r *rig) start(clock clock) *process {
	config := r.config
	config.Name = fmt.Sprintf("replica-%d", r.starts.Add(1))
	text, err := json.Marshal(config)
	if err != nil {
		r.t.Error(err)
		return nil
	}
	// It ends by what the test does to it, not with a context.
	cmd := exec.Command(os.Args[0])
	p := &process{t: r.t, name: config.Name, clock: clock, cmd: cmd, began: make(chan struct{}), exited: make(chan struct{})}
	if p.stdout, err = cmd.StdoutPipe(); err != nil {
		r.t.Error(err)
		return nil
	}
	cmd.Env = append(os.Environ(), replicaEnv+"="+string(text))
	cmd.Env = append(cmd.Env, clock.env()...)
	cmd.Stderr = &p.stderr
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		r.t.Error(err)
		return nil
	}
	return p
}

// run starts the process and waits for it on one thread: the kernel ends the process when the
// thread that started it ends.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := startShifted(p.cmd, p.clock.ahead)
	started <- err
	if err == nil {
		_, _ = io.ReadFull(p.stdout, make([]byte, len(ready)))
		close(p.began)
		_ = p.cmd.Wait()
		close(p.exited)
	}
}

// atWork waits until the process works, and reports whether ctx goes on.
func (p *process) atWork(ctx context.Context) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.began:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// end asks the process to end and waits for that.
func (p *process) end() {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Errorf("a replica has not ended %v after it was asked to", patience)
		p.kill()
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("a replica ended with code %d: %v", code, p)
	}
}

func (p *process) kill() {
	p.signal(os.Kill)
	<-p.exited
}

func (p *process) signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %v: %v", s, err)
	}
}

// String tells of a process that has ended.
func (p *process) String() string {
	if p == nil {
		return "it was not started"
	}
	return fmt.Sprintf("%v\n%s", p.cmd.ProcessState, &p.stderr)
}
