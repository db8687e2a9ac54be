package leader_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/leader"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// candidate has a process of this test campaign in a store.
const candidate = "TANDEM_TEST_CANDIDATE"

func TestMain(m *testing.M) {
	if at := os.Getenv(candidate); at != "" {
		fmt.Fprintln(os.Stderr, campaign(at))
		os.Exit(1)
	}
	os.Exit(testenv.MainWithoutLeaks(m))
}

// open opens the store "driver place", and makes it when that is asked for.
func open(ctx context.Context, at string, create bool) (b coord.Backend, err error) {
	driver, place, _ := strings.Cut(at, " ")
	if driver == "sqlite" {
		if create {
			db, err := sqlite.OpenDB(place)
			if err != nil {
				return nil, err
			}
			defer db.Close()
			if _, err := migrations.Up(ctx, db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
				return nil, err
			}
		}
		return sqlite.Open(ctx, sqlite.Options{Path: place})
	}
	return pg.Open(ctx, pg.Options{URL: place, MaxConns: 4})
}

const office = "office"

// campaign leads until the process is killed, and is a bad leader: it goes on writing when its
// term is over, until the store refuses.
func campaign(at string) error {
	ctx := context.Background()
	b, err := open(ctx, at, false)
	if err != nil {
		return err
	}
	o := leader.Options{Name: office, Candidate: fmt.Sprint(os.Getpid()), Lease: time.Second}
	return leader.Run(ctx, b.Elector(), o, func(_ context.Context, term *leader.Term) error {
		for late := 0; late < 20; {
			if term.Context().Err() != nil {
				late++
			}
			err := b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Fence(ctx, term.Term); err != nil {
					return err
				}
				return tx.Publish(ctx, coord.NewEvent{Topic: office, Kind: "k", Payload: fmt.Append(nil, term.Epoch)})
			})
			if errors.Is(err, coord.ErrFenced) {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
}

// Processes lead, stand still for longer than their lease at whatever they are about, and go
// on. What was written is in the order of the terms.
func TestFrozenProcesses(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		frozenProcesses(t, "sqlite "+filepath.Join(t.TempDir(), "test.db"))
	})
	t.Run("pg", func(t *testing.T) {
		t.Parallel()
		frozenProcesses(t, "pg "+testenv.NewDatabase(t, "tandem_coord", func(url string) error {
			db, err := pg.OpenDB(url, 2)
			if err != nil {
				return err
			}
			defer db.Close()
			_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
			return err
		}))
	})
}

func frozenProcesses(t *testing.T, at string) {
	// How often a process is stopped in its transaction, and so not taken over from, is chance.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b, err := open(ctx, at, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	processes := make(map[string]*os.Process)
	for range 3 {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), candidate+"="+at)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		processes[fmt.Sprint(cmd.Process.Pid)] = cmd.Process
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}()
	}
	// leads returns who leads in a later epoch, or the zero value when nobody does in time.
	leads := func(after int64, within time.Duration) (found coord.Leadership) {
		poll(within, func() bool {
			list, err := b.Elector().Leaders(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 1 && list[0].Epoch > after {
				found = list[0]
			}
			return found.Epoch > 0
		})
		return found
	}
	// written returns the epoch of the last event, when all are in order.
	epoch, from := int64(0), coord.Start
	written := func() int64 {
		events, err := b.Broadcaster().Read(ctx, office, from, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			var of int64
			if _, err := fmt.Sscan(string(e.Payload), &of); err != nil || of < epoch {
				t.Fatalf("event %d is of epoch %q, behind one of %d", e.Position.Seq, e.Payload, epoch)
			}
			epoch, from = of, e.Position
		}
		return epoch
	}
	for takenOver := 0; takenOver < 3; {
		now := leads(0, patience)
		process := processes[now.Candidate]
		if process == nil {
			t.Fatalf("%+v leads; want one of the processes to", now)
		}
		if !poll(patience, func() bool { return written() >= now.Epoch }) {
			t.Fatalf("%+v writes nothing", now)
		}
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		// One that stands still in its transaction keeps the others waiting.
		next := leads(now.Epoch, 2*time.Second)
		if next.Epoch > 0 {
			takenOver++
			poll(time.Second, func() bool { return written() >= next.Epoch })
		}
		if err := process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	// The last of them have gone on when there is another term.
	last := leads(0, patience)
	if err := b.Elector().Resign(ctx, last.Term); err != nil && !errors.Is(err, coord.ErrFenced) {
		t.Fatal(err)
	}
	if !poll(patience, func() bool { return written() > last.Epoch }) {
		t.Error("nobody leads in the end")
	}
}

// patience is how long a test waits for what happens soon.
const patience = 20 * time.Second

// poll returns whether something has become true in time.
func poll(within time.Duration, reached func() bool) bool {
	for end := time.Now().Add(within); !reached(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
