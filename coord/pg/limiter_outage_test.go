package pg_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/internal/testenv"
)

// freeze stops the server's processes, whose sockets stay open, until the returned
// function lets them go on.
func freeze(t *testing.T, server *testenv.Cluster, url string) (thaw func()) {
	t.Helper()
	pids := []int{server.Pid()} // first: it would start others
	var others []int
	if err := admin(t, url).NewRaw(`SELECT pid FROM pg_stat_activity`).Scan(t.Context(), &others); err != nil {
		t.Fatal(err)
	}
	pids = append(pids, others...)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // some have ended
	}
	thaw = sync.OnceFunc(func() {
		for _, pid := range slices.Backward(pids) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(thaw)
	return thaw
}

// The server stands still. Decisions are made in time all the same, by a limit that holds,
// and by the server soon after it goes on.
func TestLimiterWithFrozenServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := testenv.StartCluster(ctx, testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	url := server.NewDatabase(t, "coord_live", migrate)
	log := newLines()
	b := openWith(t, pg.Options{URL: url, Options: log.options()})
	const deadline, cooldown, slack = 250 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second
	const callers, each, burst = 20, 50, 5
	limit := func(key string) coord.Limit { return coord.Limit{Key: key, Rate: burst, Per: time.Hour} }
	ask := func(key string) (coord.Decision, time.Duration) {
		began := time.Now()
		d, err := b.Limiter().Allow(ctx, limit(key))
		if err != nil {
			t.Errorf("Allow: %v", err)
		}
		return d, time.Since(began)
	}
	// On a busy machine a first statement may take longer than the limiter waits.
	for d, _ := ask("before"); d.Degraded; d, _ = ask("before") {
		time.Sleep(cooldown / 10)
	}

	for outage := range 2 {
		thaw := freeze(t, server, url)
		var mu sync.Mutex
		var took []time.Duration
		granted, waited, late := 0, 0, 0
		var asking sync.WaitGroup
		began := time.Now()
		for range callers {
			asking.Go(func() {
				for range each {
					d, latency := ask("during")
					slept := time.Now()
					time.Sleep(40 * time.Millisecond)
					delay := time.Since(slept) - 40*time.Millisecond
					mu.Lock()
					took = append(took, latency)
					if d.Allowed {
						granted++
					}
					if latency > deadline/2 {
						waited++
					}
					if delay > deadline/2 {
						late++
					}
					if !d.Degraded {
						t.Errorf("a frozen server decided: %+v", d)
					}
					mu.Unlock()
				}
			})
		}
		asking.Wait()
		lasted := time.Since(began)
		thaw()
		began = time.Now()
		d, _ := ask("after")
		for ; d.Degraded; d, _ = ask("after") {
			time.Sleep(time.Millisecond)
		}
		recovery := time.Since(began)
		slices.Sort(took)
		t.Logf("outage %d of %v: %d requests, p50 %v, p99 %v, longest %v; %d waited, %d sleeps were late; %d granted; recovered in %v",
			outage+1, lasted, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], waited, late, granted, recovery)
		if longest := took[len(took)-1]; longest > deadline+slack {
			t.Errorf("a decision took %v", longest)
		}
		// All who are there when it begins, and then one per cooldown; and whom a busy machine keeps
		// waiting, as often as it keeps those who only sleep.
		if most := callers + int(lasted/cooldown) + 1 + late; waited > most {
			t.Errorf("%d of %d waited for the server, want at most %d", waited, len(took), most)
		}
		// The limit is one of the backend: what the first outage granted counts in the second.
		if want := burst * (1 - outage); granted != want {
			t.Errorf("%d were granted, want %d", granted, want)
		}
		if recovery > cooldown+deadline+slack {
			t.Errorf("the server was used again only after %v", recovery)
		}
	}
	for _, line := range []string{"the store of the limiter is away", "the store of the limiter is back"} {
		if all, _ := log.with(line); len(all) < 2 {
			t.Errorf("%q is in the log %d times", line, len(all))
		}
	}
}

// The packets of all connections are dropped, and new connections work: they are used soon,
// whatever the number of those that lead nowhere.
func TestLimiterFindsAnotherConnection(t *testing.T) {
	database := testenv.NewDatabase(t, "coord_live", migrate)
	p, through := startProxy(t, database, false)
	b := openWith(t, pg.Options{URL: through, ListenURL: nobody})
	limit := coord.Limit{Key: "k", Rate: 100_000, Per: time.Second}
	degraded := func() bool {
		d, err := b.Limiter().Allow(t.Context(), limit)
		if err != nil {
			t.Errorf("Allow: %v", err)
		}
		return d.Degraded
	}
	var callers sync.WaitGroup
	for range 64 { // so that there are several connections
		callers.Go(func() { degraded() })
	}
	callers.Wait()
	eventually(t, "the limiter uses the store", func(context.Context) (bool, error) { return !degraded(), nil })

	p.dropPackets()
	began := time.Now()
	if !degraded() {
		t.Error("a decision came through dropped packets")
	}
	eventually(t, "the limiter uses the store again", func(context.Context) (bool, error) { return !degraded(), nil })
	took := time.Since(began)
	t.Logf("the store was used again after %v", took)
	if took > 5*time.Second {
		t.Errorf("the store was used again only after %v", took)
	}
}
