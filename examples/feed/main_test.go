package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/gorilla/websocket"
	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/browsertest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const patience = 30 * time.Second

// drivers are how to make a database, and how many processes may share it.
var drivers = map[string]struct {
	database  func(*testing.T) string
	processes int
}{
	"memory": {func(*testing.T) string { return "memory:" }, 1},
	"sqlite": {func(t *testing.T) string { return filepath.Join(t.TempDir(), "feed.db") }, 2},
	"pg":     {func(t *testing.T) string { return testenv.NewDatabase(t, "empty", nil) }, 2},
}

// start runs the program until the end of the test and returns its address.
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
	addr := listener.Addr().String()
	get(t, addr) // so that two do not race for CREATE TABLE
	return addr
}

func get(t *testing.T, addr string) string {
	t.Helper()
	return ask(t, http.MethodGet, "http://"+addr+"/", "", http.StatusOK)
}

func ask(t *testing.T, method, url, text string, want int) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != want {
		t.Fatalf("%s %s: got %s %s, %v; want %d", method, url, answer.Status, got, err, want)
	}
	return string(got)
}

func note(t *testing.T, addr, text string) {
	t.Helper()
	ask(t, http.MethodPost, "http://"+addr+"/notes", text, http.StatusOK)
}

// reader is a page.
type reader struct {
	t        *testing.T
	ws       *websocket.Conn
	position string
	notes    []string
}

// connect opens a stream from where the reader is.
func (r *reader) connect(addr string) {
	r.t.Helper()
	ws, _, err := websocket.DefaultDialer.DialContext(r.t.Context(), "ws://"+addr+"/feed?from="+r.position, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = ws.Close() })
	r.ws = ws
}

func (r *reader) next() frame {
	r.t.Helper()
	_ = r.ws.SetReadDeadline(time.Now().Add(patience))
	var f frame
	if err := r.ws.ReadJSON(&f); err != nil {
		r.t.Fatalf("after %v: %v", r.notes, err)
	}
	r.position = f.Position.String()
	return f
}

// until reads until it has so many notes.
func (r *reader) until(n int) {
	r.t.Helper()
	for len(r.notes) < n {
		var text string
		if err := json.Unmarshal(r.next().Note, &text); err != nil {
			r.t.Fatal(err)
		}
		r.notes = append(r.notes, text)
	}
}

// TestFeed wants a page whose connection breaks to get every note once and in order, whichever process
// serves it, and every note to have its row.
func TestFeed(t *testing.T) {
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			database := driver.database(t)
			first := start(t, database)
			second := first
			if driver.processes > 1 {
				second = start(t, database)
			}
			if page := get(t, first); !strings.Contains(page, "<h1>Notes</h1>") {
				t.Errorf("the page is %s", page)
			}
			var want []string
			write := func(n int) {
				for range n {
					want = append(want, strconv.Itoa(len(want)))
					note(t, []string{first, second}[len(want)%2], want[len(want)-1])
				}
			}
			write(3)
			r := &reader{t: t, position: "0"}
			r.connect(first)
			r.until(2)
			_ = r.ws.Close() // with one on its way
			write(5)
			r.connect(second)
			write(2)
			r.until(len(want))
			write(1)
			r.until(len(want))
			if !slices.Equal(r.notes, want) {
				t.Errorf("got %v, want %v", r.notes, want)
			}
			if name == "memory" {
				return
			}

			// The same note again is no row, and so no event.
			ask(t, http.MethodPost, "http://"+first+"/notes", "0", http.StatusUnprocessableEntity)
			write(1)
			r.until(len(want))
			if got := rows(t, database); !slices.Equal(r.notes, want) || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("got %v and the rows %v, want %v", r.notes, got, want)
			}
		})
	}
}

func rows(t *testing.T, database string) (notes []string) {
	t.Helper()
	b, err := open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		return tx.Unwrap().(bun.Tx).NewRaw(`SELECT note FROM notes`).Scan(ctx, &notes)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(notes)
	return notes
}

func TestFeedTellsOfLostHistory(t *testing.T) {
	addr := start(t, "memory:")
	note(t, addr, "one")
	r := &reader{t: t, position: "7.00000bad"}
	r.connect(addr)
	if f := r.next(); f.Reset != coord.ResetDiverged || f.Position.Seq != 1 {
		t.Errorf("got %+v", f)
	}
	note(t, addr, "two")
	r.until(1)
	if !slices.Equal(r.notes, []string{"two"}) {
		t.Errorf("got %v", r.notes)
	}
	ask(t, http.MethodGet, "http://"+addr+"/feed?from=elsewhere", "", http.StatusUnprocessableEntity)
	ask(t, http.MethodPost, "http://"+addr+"/notes", strings.Repeat("x", 17<<10), http.StatusUnprocessableEntity)
}

func TestFeedWithoutDatabase(t *testing.T) {
	for _, database := range []string{
		filepath.Join(t.TempDir(), "no", "folder.db"), "postgres://127.0.0.1:1/feed?sslmode=disable",
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

// TestPage looks at the feed in a browser.
func TestPage(t *testing.T) {
	addr := start(t, "memory:")
	ctx, cancel := context.WithTimeout(browsertest.Start(t), patience)
	defer cancel()
	note(t, addr, "from elsewhere")
	field := chromedp.CSS("input")
	shown := `[...document.querySelectorAll("#notes > li")].map((l) => l.textContent).join() === "typed here,from elsewhere"`
	err := chromedp.Do(ctx, chromedp.Navigate("http://"+addr), chromedp.SendKeys(field, "typed here\r"))
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Poll[bool](shown, chromedp.WithPollingTimeout(patience)))
	}
	if err != nil {
		t.Error(err)
	}
}
