package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestJobs(t *testing.T) {
	for name, database := range map[string]func(*testing.T) string{
		"memory": func(*testing.T) string { return "memory:" },
		"sqlite": sqliteFile,
		"pg":     pgURL,
	} {
		t.Run(name, func(t *testing.T) {
			database := database(t)
			var out bytes.Buffer
			if err := run(t.Context(), database, logTo(&out)); err != nil {
				t.Fatal(err)
			}
			wantOnce(t, shipped(t, &out), 3)
			if name != "memory" {
				wantOnce(t, rows(t, database), 3)
			}
		})
	}
}

// TestJobsOfTwo wants each order shipped once, whichever process has it.
func TestJobsOfTwo(t *testing.T) {
	for name, database := range map[string]func(*testing.T) string{"sqlite": sqliteFile, "pg": pgURL} {
		t.Run(name, func(t *testing.T) {
			database := database(t)
			makeTables(t, database)
			var out bytes.Buffer
			log := logTo(&out)
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := run(t.Context(), database, log); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			wantOnce(t, shipped(t, &out), 6)
			wantOnce(t, rows(t, database), 6)
		})
	}
}

// TestJobsInterrupted wants the next process to ship what an interrupted one has left.
func TestJobsInterrupted(t *testing.T) {
	for name, database := range map[string]func(*testing.T) string{"sqlite": sqliteFile, "pg": pgURL} {
		t.Run(name, func(t *testing.T) {
			database := database(t)
			ctx, interrupt := context.WithCancel(t.Context())
			var out bytes.Buffer
			first := io.MultiWriter(&out, writer(func() { interrupt() })) // as soon as the orders are placed
			if err := run(ctx, database, logTo(first)); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if err := run(t.Context(), database, logTo(&out)); err != nil {
				t.Fatal(err)
			}
			wantOnce(t, shipped(t, &out), 6)
			wantOnce(t, rows(t, database), 6)
		})
	}
}

func TestJobsWithoutDatabase(t *testing.T) {
	for _, database := range []string{
		filepath.Join(t.TempDir(), "no", "folder.db"), "postgres://127.0.0.1:1/jobs?sslmode=disable",
	} {
		if err := run(t.Context(), database, logTo(io.Discard)); err == nil {
			t.Errorf("%s was opened", database)
		}
	}
}

func sqliteFile(t *testing.T) string { return filepath.Join(t.TempDir(), "jobs.db") }

func pgURL(t *testing.T) string { return testenv.NewDatabase(t, "empty", nil) }

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(w, nil)) }

// writer calls a function at each write.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// makeTables keeps two processes from racing for CREATE TABLE.
func makeTables(t *testing.T, database string) {
	t.Helper()
	b, err := open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shipped counts by order what the output says.
func shipped(t *testing.T, out io.Reader) map[string]int {
	t.Helper()
	times := map[string]int{}
	for lines := json.NewDecoder(out); ; {
		var line struct{ Level, Msg, Order string }
		if err := lines.Decode(&line); err == io.EOF {
			return times
		} else if err != nil {
			t.Fatal(err)
		}
		if line.Level != "INFO" {
			t.Errorf("the output has %+v", line)
		}
		if line.Msg == "shipped" {
			times[line.Order]++
		}
	}
}

// rows counts by order what the table says, and wants one run for each.
func rows(t *testing.T, database string) map[string]int {
	t.Helper()
	b, err := open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	var orders []struct {
		ID      string
		Shipped int
	}
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT id, shipped FROM orders`).Scan(ctx, &orders)
	})
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, o := range orders {
		times[o.ID] = o.Shipped
	}
	runs := map[string]int{}
	for run, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		var o order
		if err := json.Unmarshal(run.Payload, &o); err != nil || run.State != coord.Succeeded {
			t.Errorf("run %d of %s is %s: %v", run.ID, run.Payload, run.State, err)
		}
		runs[o.ID]++
	}
	if !maps.Equal(runs, times) {
		t.Errorf("the runs are of %v, the rows %v", runs, times)
	}
	return times
}

func wantOnce(t *testing.T, times map[string]int, orders int) {
	t.Helper()
	if len(times) != orders {
		t.Errorf("%d orders, want %d: %v", len(times), orders, times)
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("order %s was shipped %d times", id, n)
		}
	}
}
