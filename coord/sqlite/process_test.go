package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// roleEnv makes the test binary play one of several processes on a file.
const roleEnv = "TANDEM_TEST_SQLITE_ROLE"

// process returns the test binary as another process in a role.
func process(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// asProcess plays a role on the file that the first argument names.
func asProcess(role string, args []string) int {
	ctx := context.Background()
	b, err := sqlite.Open(ctx, sqlite.Options{Path: args[0]})
	if err == nil {
		switch role {
		case "work":
			err = work(ctx, b, strconv.Itoa(os.Getpid()))
		case "hang":
			err = hang(ctx, b)
		}
		err = errors.Join(err, b.Close(ctx))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work claims, extends and finishes until nothing is due, and prints the ids of
// the runs that it claimed.
func work(ctx context.Context, b coord.Backend, name string) error {
	c := b.Claimer()
	for {
		claims, err := c.Claim(ctx, coord.ClaimOptions{Worker: name, Kinds: []string{"k"}, Limit: 5, Lease: time.Hour})
		if err != nil || len(claims) == 0 {
			return err
		}
		if claims, err = c.Extend(ctx, time.Hour, claims...); err != nil {
			return err
		}
		results := make([]coord.Result, len(claims))
		for i, claim := range claims {
			fmt.Println(claim.Run.ID)
			results[i] = coord.Result{Claim: claim, Outcome: coord.Succeed}
		}
		if err := c.Finish(ctx, results...); err != nil {
			return err
		}
	}
}

// hang commits some transactions, prints what was committed, and stops for ever
// in the middle of one more.
func hang(ctx context.Context, b coord.Backend) error {
	change := func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "k"}); err != nil {
			return err
		}
		return tx.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})
	}
	for range committed {
		if err := b.InTx(ctx, change); err != nil {
			return err
		}
		fmt.Println("committed")
	}
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if err := change(ctx, tx); err != nil {
			return err
		}
		fmt.Println("inside")
		select {}
	})
}

const committed = 20 // by hang

// TestTwoProcesses has two processes share a thousand runs while this one keeps
// the lock for long transactions.
func TestTwoProcesses(t *testing.T) {
	path, _ := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	const n = 1000
	queued, err := b.Claimer().Enqueue(t.Context(), repeat(n, coord.NewRun{Kind: "k"})...)
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	claimed := make(chan string)
	for i := range 2 {
		cmd := process(t, "work", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		workers.Go(func() {
			ids := 0
			for lines := bufio.NewScanner(out); lines.Scan(); ids++ {
				claimed <- lines.Text()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", i+1, err)
			}
			t.Logf("process %d claimed %d runs", i+1, ids)
		})
	}
	go func() {
		workers.Wait()
		close(claimed)
	}()
	times := make(map[string]int)
	var slow sync.WaitGroup
	for id := range claimed {
		times[id]++
		if len(times)%200 != 1 {
			continue
		}
		slow.Wait()
		slow.Go(func() {
			err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
				_, err := tx.Enqueue(ctx, repeat(3000, coord.NewRun{Kind: "other"})...)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	slow.Wait()
	for _, r := range queued {
		if n := times[strconv.FormatInt(int64(r.ID), 10)]; n != 1 {
			t.Errorf("run %d was claimed %d times", r.ID, n)
		}
	}
	if len(times) != n {
		t.Errorf("%d runs were claimed; want %d", len(times), n)
	}
}

func repeat(n int, r coord.NewRun) []coord.NewRun {
	runs := make([]coord.NewRun, n)
	for i := range runs {
		runs[i] = r
	}
	return runs
}

// TestKilledInATransaction kills a process that holds the writer lock: what it
// committed is there, the rest is not, and the lock is free.
func TestKilledInATransaction(t *testing.T) {
	path, _ := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	stream, err := b.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{"t": coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	cmd := process(t, "hang", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := 0
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() == "committed"; {
		told++
	}
	if told != committed {
		t.Fatalf("the process told of %d commits; want %d", told, committed)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it says that it was killed
	count := func() (n int) {
		for _, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{Limit: 1000}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if n := count(); n != committed {
		t.Errorf("%d runs are there; want the %d that were committed", n, committed)
	}
	positions, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if positions[0].Seq != committed+1 {
		t.Errorf("the next event is number %d; want %d", positions[0].Seq, committed+1)
	}
	for seq := int64(0); seq <= committed; {
		events, err := stream.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if seq++; e.Position.Seq != seq {
				t.Fatalf("event %d came as number %d", e.Position.Seq, seq)
			}
		}
	}
}
