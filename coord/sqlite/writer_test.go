package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// locked opens a backend on a file whose lock another one has, until it is given
// back.
func locked(t *testing.T) (b coord.Backend, begins *begins, own *sqlite.DB, unlock func()) {
	t.Helper()
	path, other := newFile(t)
	b, begins, own = impatient(t, path)
	lock, err := other.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, begins, own, func() {
		t.Helper()
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// kinds returns those of the stored runs, in order.
func kinds(t *testing.T, b coord.Backend) (kinds []string) {
	t.Helper()
	for r, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{Limit: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, r.Kind)
	}
	slices.Sort(kinds)
	return kinds
}

// waitFor waits until the writer has tried for the lock some more times.
func (b *begins) waitFor(tries int64) {
	for tried := b.failed.Load(); b.failed.Load() < tried+tries; {
		runtime.Gosched()
	}
}

// TestChangesShareATransaction: many that wait for the lock take it once.
func TestChangesShareATransaction(t *testing.T) {
	b, begins, _, unlock := locked(t)
	const callers = 30
	var want []string
	var calls sync.WaitGroup
	began := begins.succeeded.Load()
	for i := range callers {
		kind := fmt.Sprintf("%02d", i)
		want = append(want, kind)
		calls.Go(func() {
			runs, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: kind})
			if err != nil || len(runs) != 1 || runs[0].Kind != kind {
				t.Errorf("Enqueue of %s: %v (%v)", kind, runs, err)
			}
		})
	}
	for begins.waiting() < callers {
		runtime.Gosched()
	}
	unlock()
	calls.Wait()
	if n := begins.succeeded.Load() - began; n != 1 {
		t.Errorf("%d callers took the lock %d times", callers, n)
	}
	if got := kinds(t, b); !slices.Equal(got, want) {
		t.Errorf("the runs %v are stored; want %v", got, want)
	}
}

// TestAChangeThatFails fails no other that it shared a transaction with, and one
// that is refused does not even roll it back.
func TestAChangeThatFails(t *testing.T) {
	b, begins, own, unlock := locked(t)
	c := b.Claimer()
	var pages int
	if err := own.Write.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Write.ExecContext(t.Context(), `PRAGMA max_page_count = ?`, pages+10); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for i, kind := range []string{"a", "big", "b", "refused", "c"} {
		calls.Go(func() {
			switch kind {
			case "big":
				_, err := c.Enqueue(t.Context(), coord.NewRun{Kind: kind, Payload: make([]byte, coord.MaxPayload)})
				if !errors.Is(err, coord.ErrUnavailable) {
					t.Errorf("Enqueue on a full disk: %v; want ErrUnavailable", err)
				}
			case "refused":
				if err := c.Cancel(t.Context(), 4711); !errors.Is(err, coord.ErrNotFound) {
					t.Errorf("Cancel of no run: %v; want ErrNotFound", err)
				}
			default:
				if _, err := c.Enqueue(t.Context(), coord.NewRun{Kind: kind}); err != nil {
					t.Errorf("Enqueue of %s: %v", kind, err)
				}
			}
		})
		for begins.waiting() <= i {
			runtime.Gosched()
		}
	}
	unlock()
	calls.Wait()
	if got, want := kinds(t, b), []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("the runs %v are stored; want %v", got, want)
	}
}

// TestWhoLeavesIsNotServed: what still waited for the lock when its caller left
// does not happen later.
func TestWhoLeavesIsNotServed(t *testing.T) {
	b, begins, _, unlock := locked(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := b.Claimer().Enqueue(ctx, coord.NewRun{Kind: "left"})
		result <- err
	}()
	begins.waitFor(3)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Enqueue: %v; want that it was cancelled", err)
	}
	unlock()
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "stayed"}); err != nil {
		t.Fatal(err)
	}
	if got := kinds(t, b); !slices.Equal(got, []string{"stayed"}) {
		t.Errorf("the runs %v are stored", got)
	}
}

// TestCloseAnswersWhoWaits for a lock that another process keeps.
func TestCloseAnswersWhoWaits(t *testing.T) {
	path, db := newFile(t)
	b, waiting, err := sqlite.OpenWatched(t.Context(), sqlite.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := db.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback()
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}); !errors.Is(err, coord.ErrClosed) {
				t.Errorf("Enqueue: %v; want ErrClosed", err)
			}
		})
	}
	for waiting() < 3 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	calls.Wait()
}

// TestManyThatWaitForAPlace are not read by a claim that finds none free.
func TestManyThatWaitForAPlace(t *testing.T) {
	_, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	var runs []coord.NewRun
	for i := range 3000 {
		// Of one key more than a batch, and of others one each; two limits of a key are
		// kept apart.
		key := coord.Concurrency{Key: fmt.Sprint(i % 1000), Limit: 1 + i%2}
		if i < 1000 {
			key = coord.Concurrency{Key: "one", Limit: 2}
		}
		runs = append(runs, coord.NewRun{Kind: "k", Concurrency: key})
	}
	if _, err := b.Claimer().Enqueue(t.Context(), runs...); err != nil {
		t.Fatal(err)
	}
	o := coord.ClaimOptions{Worker: "w", Kinds: []string{"k"}, Limit: 1000, Lease: time.Hour}
	running := make(map[string]int)
	taken := 0
	for {
		claims, err := b.Claimer().Claim(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			running[c.Run.Concurrency.Key]++
			if n := running[c.Run.Concurrency.Key]; n > c.Run.Concurrency.Limit {
				t.Fatalf("%d of key %q are running, which has %d places", n, c.Run.Concurrency.Key, c.Run.Concurrency.Limit)
			}
		}
		taken += len(claims)
	}
	// 2 of "one"; 1 of each even key, 2 of each odd one.
	if want := 2 + 500 + 1000; taken != want {
		t.Errorf("%d runs were taken; want %d", taken, want)
	}
}
