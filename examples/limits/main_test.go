package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// start runs the program until the end of the test and returns its URL.
func start(t *testing.T, database string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, database, listener, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the program has ended with %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-For", "192.0.2.1") // no proxy is trusted
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

// TestLimits asks all processes on a database at once, and wants no more from them together than one of
// them may give.
func TestLimits(t *testing.T) {
	for name, driver := range map[string]struct {
		database  func(*testing.T) string
		processes int
	}{
		"memory": {func(*testing.T) string { return "memory:" }, 1},
		"sqlite": {func(t *testing.T) string { return filepath.Join(t.TempDir(), "limits.db") }, 2},
		"pg":     {func(t *testing.T) string { return testenv.NewDatabase(t, "empty", nil) }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			database := driver.database(t)
			urls := make([]string, driver.processes)
			for i := range urls {
				urls[i] = start(t, database)
			}
			began := time.Now()
			first, body := get(t, urls[0])
			if first.StatusCode != http.StatusOK || body != "Hello.\n" || first.Header.Get("RateLimit-Policy") != `"address";q=5;w=30` ||
				!strings.HasPrefix(first.Header.Get("RateLimit"), `"address";r=4;t=`) {
				t.Errorf("got %s %q with %v", first.Status, body, first.Header)
			}
			served := atomic.Int64{}
			served.Store(1)
			var all sync.WaitGroup
			for i := range 60 {
				all.Go(func() {
					answer, body := get(t, urls[i%len(urls)])
					wait, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
					switch {
					case answer.StatusCode == http.StatusOK:
						served.Add(1)
					case answer.StatusCode != http.StatusTooManyRequests || wait < 1 || wait > 6 ||
						!strings.Contains(body, `"violated-policies":["address"]`):
						t.Errorf("got %s %s with %v", answer.Status, body, answer.Header)
					}
				})
			}
			all.Wait()
			most := 5 + int64(time.Since(began)/(6*time.Second))
			if n := served.Load(); n < 5 || n > most {
				t.Errorf("%d were served, want 5 and no more than %d", n, most)
			}
		})
	}
}

func TestLimitsWithoutDatabase(t *testing.T) {
	for _, database := range []string{
		filepath.Join(t.TempDir(), "no", "folder.db"), "postgres://127.0.0.1:1/limits?sslmode=disable",
	} {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), database, listener, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s was opened", database)
		}
		if listener.Close() == nil {
			t.Error("the program listens still")
		}
	}
}
