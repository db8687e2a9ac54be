package httpreceipt_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/httpreceipt"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// stuck has a process of this test serve a database and never end a request.
const stuck = "TANDEM_TEST_STUCK"

func TestMain(m *testing.M) {
	if at := os.Getenv(stuck); at != "" {
		serveStuck(at)
	}
	os.Exit(testenv.Main(m))
}

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// rig is a store that two replicas share.
type rig struct {
	at       string // for another process; empty: none can have it
	one, two coord.Backend
	advance  func(by time.Duration) // moves the clock for keys that are held
}

func onEach(t *testing.T, test func(t *testing.T, r rig)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		var ahead atomic.Int64
		s := memory.NewStore(memory.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		test(t, rig{"", closed(t, s.Open()), closed(t, s.Open()), func(by time.Duration) { ahead.Add(int64(by)) }})
	})
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		var ahead atomic.Int64
		open := func() coord.Backend {
			db, err := sqlite.OpenDB(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
				t.Fatal(err)
			}
			now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			return closed(t, b)
		}
		test(t, rig{"sqlite " + path, open(), open(), func(by time.Duration) { ahead.Add(int64(by)) }})
	})
	t.Run("pg", func(t *testing.T) {
		url := testenv.NewDatabase(t, "tandem", func(url string) error {
			db, err := pg.OpenDB(url, 2)
			if err != nil {
				return err
			}
			defer db.Close()
			_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
			return err
		})
		var pool *bun.DB
		open := func() coord.Backend {
			db, err := pg.OpenDB(url, 8)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			pool = db
			b, err := pg.Open(t.Context(), pg.Options{URL: url, DB: db})
			if err != nil {
				t.Fatal(err)
			}
			return closed(t, b)
		}
		test(t, rig{"pg " + url, open(), open(), func(by time.Duration) { // the clock is the server's
			_, err := pool.ExecContext(t.Context(), `UPDATE coord_receipts SET until = until - ? * interval '1 microsecond'`, by.Microseconds())
			if err != nil {
				t.Fatal(err)
			}
		}})
	})
}

func closed(t *testing.T, b coord.Backend) coord.Backend {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return b
}

// once wraps a handler for callers that the header Caller names.
func once(t testing.TB, receipts coord.Receipts, o httpreceipt.Options, h http.HandlerFunc) http.Handler {
	t.Helper()
	if o.Caller == nil {
		o.Caller = func(r *http.Request) string { return r.Header.Get("Caller") }
	}
	wrap, err := httpreceipt.New(receipts, o)
	if err != nil {
		t.Fatal(err)
	}
	return wrap(h)
}

// post sends a request with a key.
func post(ctx context.Context, h http.Handler, key, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Caller", "ada")
	r.Header.Set(httpreceipt.Header, key)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// shown is an answer: its status, what is kept of its header, whether it is given again, and its body.
func shown(w *httptest.ResponseRecorder) string {
	again := ""
	if w.Header().Get(httpreceipt.ReplayedHeader) == "true" {
		again = " again"
	}
	return fmt.Sprintf("%d%s %s %s", w.Code, again, w.Header().Get("Location"), strings.TrimSpace(w.Body.String()))
}

// TestReplicas sends one request to two replicas many times at once, and then again.
func TestReplicas(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		var served atomic.Int64
		handler := func(w http.ResponseWriter, r *http.Request) {
			n := served.Add(1)
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Location", fmt.Sprint("/payments/", n))
			w.Header().Set("Set-Cookie", "secret")
			status := http.StatusCreated
			if string(body) == "too much" {
				status = http.StatusForbidden
			}
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, "%s\r\n\r\n%d", body, n)
		}
		replicas := []http.Handler{
			once(t, r.one.Receipts(), httpreceipt.Options{Wait: patience}, handler),
			once(t, r.two.Receipts(), httpreceipt.Options{Wait: patience}, handler),
		}
		for n, sent := range []string{"10 to bob", "too much"} {
			key := fmt.Sprintf(`"key %d"`, n)
			answers := make([]*httptest.ResponseRecorder, 20)
			var all sync.WaitGroup
			for i := range answers {
				all.Go(func() { answers[i] = post(t.Context(), replicas[i%2], key, sent) })
			}
			all.Wait()
			late := []*httptest.ResponseRecorder{post(t.Context(), replicas[0], key, sent), post(t.Context(), replicas[1], key, sent)}
			want := fmt.Sprintf("%d /payments/%d %s\r\n\r\n%d", []int{201, 403}[n], n+1, sent, n+1)
			first := 0
			for _, a := range append(late, answers...) {
				cookie := a.Header().Get("Set-Cookie")
				switch got := shown(a); {
				case got == want && cookie == "secret":
					first++
				case got != want[:3]+" again"+want[3:] || cookie != "":
					t.Errorf("got %q and the cookie %q, want %q", got, cookie, want)
				}
			}
			if first != 1 {
				t.Errorf("%d answers were the first", first)
			}
			if got := post(t.Context(), replicas[1], key, "99 to eve"); got.Code != http.StatusUnprocessableEntity {
				t.Errorf("another body: got %q", shown(got))
			}
		}
		if n := served.Load(); n != 2 {
			t.Errorf("it was served %d times", n)
		}
	})
}

// TestCompletedInTheTransaction has a handler die after its effect is committed, and before it has answered.
func TestCompletedInTheTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		pay := func(w http.ResponseWriter, q *http.Request) {
			held, ok := httpreceipt.Held(q.Context())
			if !ok {
				t.Error("nothing is held")
			}
			header := http.Header{"Location": {"/payments/1"}}
			err := r.one.InTx(q.Context(), func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Publish(ctx, coord.NewEvent{Topic: "payments", Kind: "paid"}); err != nil {
					return err
				}
				return tx.CompleteReceipt(ctx, held, httpreceipt.Outcome(http.StatusCreated, header, []byte("paid")))
			})
			if err != nil {
				t.Error(err)
			}
			panic(http.ErrAbortHandler)
		}
		one := once(t, r.one.Receipts(), httpreceipt.Options{}, pay)
		func() {
			defer func() { _ = recover() }()
			post(t.Context(), one, "k", "10")
		}()
		two := once(t, r.two.Receipts(), httpreceipt.Options{}, pay)
		if got := shown(post(t.Context(), two, "k", "10")); got != "201 again /payments/1 paid" {
			t.Errorf("got %q", got)
		}
		events, err := r.two.Broadcaster().Read(t.Context(), "payments", coord.Position{}, 10)
		if err != nil || len(events) != 1 {
			t.Errorf("paid %+v, %v", events, err)
		}
	})
}

// TestKilledInTheHandler kills a process that is carrying a request out. Its key is free when the lease
// has ended, and not before.
func TestKilledInTheHandler(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		two := once(t, r.two.Receipts(), httpreceipt.Options{Wait: time.Second}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("served"))
		})
		if r.at == "" { // no other process can have it: a handler that panics tells as little of how far it came
			one := once(t, r.one.Receipts(), httpreceipt.Options{}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			func() {
				defer func() { _ = recover() }()
				post(t.Context(), one, "k", "x")
			}()
		} else {
			killOneAtWork(t, r.at)
		}
		if got := post(t.Context(), two, "k", "x"); got.Code != http.StatusConflict || got.Header().Get("Retry-After") != "1" {
			t.Errorf("before the lease has ended: got %q", shown(got))
		}
		r.advance(31 * time.Second)
		for _, want := range []string{"200  served", "200 again  served"} {
			if got := shown(post(t.Context(), two, "k", "x")); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// killOneAtWork starts a process, has it begin a request, and kills it.
func killOneAtWork(t *testing.T, at string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), stuck+"="+at)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the process does not serve")
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+lines.Text()+"/payments", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Caller", "ada")
	q.Header.Set(httpreceipt.Header, "k")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	broken := make(chan error)
	go func() {
		answer, err := client.Do(q)
		if err == nil {
			_ = answer.Body.Close()
		}
		broken <- err
	}()
	if !lines.Scan() || lines.Text() != "at work" {
		t.Fatalf("the process is not at work: %q", lines.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-broken; err == nil {
		t.Error("the process has answered")
	}
}

// serveStuck serves what never ends, and prints where, and that it has begun.
func serveStuck(at string) {
	driver, place, _ := strings.Cut(at, " ")
	fail := func(err error) {
		if err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	var b coord.Backend
	var err error
	switch driver {
	case "sqlite":
		var db *sqlite.DB
		db, err = sqlite.OpenDB(place)
		fail(err)
		b, err = sqlite.Open(ctx, sqlite.Options{DB: db})
	case "pg":
		var db *bun.DB
		db, err = pg.OpenDB(place, 4)
		fail(err)
		b, err = pg.Open(ctx, pg.Options{URL: place, DB: db})
	default:
		err = errors.New("no such driver")
	}
	fail(err)
	wrap, err := httpreceipt.New(b.Receipts(), httpreceipt.Options{
		Caller: func(r *http.Request) string { return r.Header.Get("Caller") },
	})
	fail(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	fmt.Println(listener.Addr())
	fail(http.Serve(listener, wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { //nolint:gosec // it is killed soon
		fmt.Println("at work")
		select {}
	}))))
}
