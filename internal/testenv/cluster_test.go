package testenv

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func query(t *testing.T, url, statement string) string {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var value string
	if err := db.QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func start(t *testing.T, opts Options) *Cluster {
	t.Helper()
	began := time.Now()
	c, err := StartCluster(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(began).Round(time.Millisecond))
	t.Cleanup(c.Stop)
	return c
}

func TestClusterSettings(t *testing.T) {
	for _, test := range []struct {
		name string
		opts Options
		want map[string]string
	}{
		{"functional", Options{}, map[string]string{
			"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
			"max_connections": "300", "TimeZone": "UTC", "server_encoding": "UTF8",
			"listen_addresses": "127.0.0.1",
		}},
		{"durable", Options{Durable: true, Settings: map[string]string{"max_connections": "20", "work_mem": "7MB"}}, map[string]string{
			"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
			"max_connections": "20", "work_mem": "7MB",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, test.opts)
			for name, want := range test.want {
				if got := query(t, c.URL("postgres"), "SELECT current_setting('"+name+"')"); got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
		})
	}
}

func TestStopLeavesNothing(t *testing.T) {
	c := start(t, Options{Dir: openDir(t)})
	if query(t, c.URL("postgres"), "SELECT 1") != "1" {
		t.Fatal("the server does not answer")
	}
	// A connection that stays open must not hold the end up.
	db, err := sql.Open("postgres", c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.Stop()
	c.Stop()
	t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
	if commandHas(c.Pid(), c.folder.path) {
		t.Error("the server still runs")
	}
	if _, err := os.Stat(c.folder.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestGoroutineName(t *testing.T) {
	start(t, Options{})
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if !strings.Contains(string(stacks), GoroutineName+"(") {
		t.Errorf("no goroutine runs in %s", GoroutineName)
	}
}

func TestStartFailureIsExplained(t *testing.T) {
	dir := openDir(t)
	_, err := StartCluster(t.Context(), Options{Dir: dir, Settings: map[string]string{"shared_buffers": "nonsense"}})
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("got %v, want the server's own complaint", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := StartCluster(ctx, Options{Dir: dir}); err == nil {
		t.Error("started with a context that had ended")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStartWithoutPrograms(t *testing.T) {
	t.Setenv(EnvPostgresBin, t.TempDir())
	if _, err := StartCluster(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), EnvPostgresBin) {
		t.Fatalf("got %v, want an error that names %s", err, EnvPostgresBin)
	}
}

func TestTakenPortIsRecognised(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	bindir, err := FindPostgres()
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFolder([]string{openDir(t)}, own)
	if err != nil {
		t.Fatal(err)
	}
	defer f.remove()
	if err := initialize(t.Context(), bindir, f, own); err != nil {
		t.Fatal(err)
	}
	_, err = startServer(t.Context(), f, own, filepath.Join(bindir, "postgres"),
		arguments(Options{}, f, l.Addr().(*net.TCPAddr).Port), clusterReady(f))
	if err == nil || !portTaken(f.log()) {
		t.Fatalf("got %v, want a refusal because of the port", err)
	}
}

// openDir is a temporary folder that the server's user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "testenv") //nolint:usetesting // that one is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSweepTakesOnlyWhatHasNoOwner(t *testing.T) {
	parent := t.TempDir()
	living, err := makeFolder(parent, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer living.remove()
	if !strings.HasPrefix(filepath.Base(living.path), folderPrefix+strconv.Itoa(os.Getpid())+"-") {
		t.Errorf("the folder's name %s does not tell whose it is", living.path)
	}
	dead, err := makeFolder(parent, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.lock.Close()
	young := filepath.Join(parent, folderPrefix+"1-young")
	old := filepath.Join(parent, folderPrefix+"1-old")
	for _, dir := range []string{young, old} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * sweepAge)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}

	sweep([]string{parent})

	for path, want := range map[string]bool{living.path: true, dead.path: false, young: true, old: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: there: %v, want %v", path, err == nil, want)
		}
	}
}
