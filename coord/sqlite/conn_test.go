package sqlite_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/migrations"
)

func TestOpenDBTakesAnyFileName(t *testing.T) {
	names := []string{"a b.db", "100%.db", "a%20b", "#1.db", "a+b&c=d;e", "ü😀.db", "file:a.db", "'\"", "-", ":memory:x"}
	if runtime.GOOS != "windows" {
		names = append(names, "what?.db", "a?mode=ro&_pragma=query_only(1)", `back\slash`, "file::memory:", "a:b*c|d<e>f")
	}
	dir := filepath.Join(t.TempDir(), "50% of #1?")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, name := range names {
		for _, path := range []string{name, filepath.Join(dir, name)} {
			db, err := sqlite.OpenDB(path)
			if err != nil {
				t.Errorf("OpenDB(%q): %v", path, err)
				continue
			}
			if _, err := db.Write.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS t (x)`); err != nil {
				t.Errorf("%q: %v", path, err)
			}
			if err := db.Close(); err != nil {
				t.Errorf("%q: %v", path, err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("OpenDB(%q) made another file: %v", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(names) {
		t.Errorf("there are %d files (%v); want one for each of %d names", len(entries), err, len(names))
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":                                "not a file",
		":memory:":                        "memory driver",
		filepath.Join(dir, "no", "a.db"):  "no such file",
		filepath.Join(text, "a.db"):       "can't be opened",
		dir:                               "can't be opened",
		text:                              "not a database",
		filepath.Join(dir, "nul\x00byte"): "can't be opened",
	} {
		b, err := sqlite.Open(t.Context(), sqlite.Options{Path: path})
		if err == nil {
			t.Errorf("Open(%q) succeeded", path)
			_ = b.Close(t.Context())
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%q): %v; want it to name the path and say %q", path, err, want)
		}
	}
}

func TestSettings(t *testing.T) {
	_, db := newFile(t)
	for name, pool := range map[string]*bun.DB{"Write": db.Write, "Read": db.Read} {
		for pragma, want := range map[string]string{
			"journal_mode": "wal", "synchronous": "2", "busy_timeout": "50", "foreign_keys": "1", "temp_store": "2",
			"journal_size_limit": "16777216",
			"query_only":         map[string]string{"Write": "0", "Read": "1"}[name],
		} {
			var got string
			if err := pool.QueryRowContext(t.Context(), `PRAGMA `+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s is %q (%v); want %q", name, pragma, got, err, want)
			}
		}
	}
}

// TestManyOpenANewFileAtOnce is about the moment in which the file is made.
func TestManyOpenANewFileAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tandem.db")
	var openers sync.WaitGroup
	for range 10 {
		openers.Go(func() {
			db, err := sqlite.OpenDB(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
				t.Error(err)
			}
		})
	}
	openers.Wait()
}

// begins counts the transactions that began and that could not begin.
type begins struct {
	succeeded, failed atomic.Int64
	waiting           func() int // for the lock
}

func (*begins) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (b *begins) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	switch {
	case e.Query != "BEGIN":
	case e.Err != nil:
		b.failed.Add(1)
	default:
		b.succeeded.Add(1)
	}
}

// impatient opens a backend whose SQLite does not wait for locks at all.
func impatient(t *testing.T, path string) (coord.Backend, *begins, *sqlite.DB) {
	t.Helper()
	db, err := sqlite.OpenDB(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Write.ExecContext(t.Context(), `PRAGMA busy_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	var hook begins
	db.Write = db.Write.WithQueryHook(&hook)
	b, waiting, err := sqlite.OpenWatched(t.Context(), sqlite.Options{DB: db, Options: coord.Options{Limiter: coordtest.LimiterOptions}})
	if err != nil {
		t.Fatal(err)
	}
	hook.waiting = waiting
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b, &hook, db
}

func TestALockIsWaitedFor(t *testing.T) {
	path, db := newFile(t)
	b, begins, _ := impatient(t, path)
	lock, err := db.Write.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ctx context.Context) error{
		"Enqueue": func(ctx context.Context) error {
			_, err := b.Claimer().Enqueue(ctx, coord.NewRun{Kind: "k"})
			return err
		},
		"Publish": func(ctx context.Context) error {
			_, err := b.Broadcaster().Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})
			return err
		},
		"Allow": func(ctx context.Context) error {
			_, err := b.Limiter().Allow(ctx, coord.Limit{Key: "k", Rate: 100, Per: time.Second})
			return err
		},
		"Issue": func(ctx context.Context) error {
			_, err := b.Tickets().Issue(ctx, coord.TicketFor{Purpose: "p", User: "u", Session: "s"})
			return err
		},
		"InTx": func(ctx context.Context) error {
			return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error { return nil })
		},
		"Ping": b.Ping,
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, coord.ErrUnavailable) || strings.Contains(err.Error(), "locked") {
			t.Errorf("%s while another process has the lock: %v; want ErrUnavailable that does not tell of locks", name, err)
		}
	}
	// Reading does not wait.
	if claims, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{
		Worker: "w", Kinds: []string{"k"}, Limit: 1, Lease: time.Minute,
	}); err != nil || len(claims) > 0 {
		t.Errorf("Claim with nothing due took %v (%v)", claims, err)
	}
	if _, err := b.Limiter().Peek(t.Context(), coord.Limit{Key: "k", Rate: 1, Per: time.Second}); err != nil {
		t.Error(err)
	}
	for name, call := range calls {
		tried := begins.failed.Load()
		result := make(chan error, 1)
		go func() { result <- call(t.Context()) }()
		for begins.failed.Load() < tried+3 {
			runtime.Gosched()
		}
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil {
			t.Errorf("%s when the lock is free again: %v", name, err)
		}
		if lock, err = db.Write.BeginTx(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	_ = lock.Rollback()
}

// full keeps the file from growing by more than some pages.
func full(t *testing.T, db *sqlite.DB) {
	t.Helper()
	var pages int
	if err := db.Write.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Write.ExecContext(t.Context(), `PRAGMA max_page_count = ?`, pages+10); err != nil {
		t.Fatal(err)
	}
}

func TestAFullDiskIsUnavailable(t *testing.T) {
	_, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	full(t, db)
	big := make([]byte, coord.MaxPayload)
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k", Payload: big}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Enqueue on a full disk: %v; want ErrUnavailable", err)
	}
	if _, err := b.Broadcaster().Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k", Payload: big}); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("Publish on a full disk: %v; want ErrUnavailable", err)
	}
	// SQLite rolls such a transaction back by itself. A function that does not
	// mind must not have the rest of it committed.
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "before"}); err != nil {
			t.Error(err)
		}
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "big", Payload: big}); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Enqueue on a full disk: %v; want ErrUnavailable", err)
		}
		_, _ = tx.Enqueue(ctx, coord.NewRun{Kind: "after"})
		_ = tx.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})
		return nil
	})
	if !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("InTx: %v; want ErrUnavailable", err)
	}
	for r, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{}) {
		t.Errorf("a run of kind %s is left (%v)", r.Kind, err)
	}
	if heads, err := b.Broadcaster().Heads(t.Context(), "t"); err != nil || heads["t"] != coord.Start {
		t.Errorf("the topic's head is %v (%v); want none", heads["t"], err)
	}
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "small"}); err != nil {
		t.Errorf("Enqueue of what fits: %v", err)
	}
}

// TestAFailedStatementOfTheCaller makes SQLite roll back by itself: a function
// that does not mind must not have the rest of it committed.
func TestAFailedStatementOfTheCaller(t *testing.T) {
	_, db := newFile(t)
	if _, err := db.Write.ExecContext(t.Context(), `CREATE TABLE test_rows (x)`); err != nil {
		t.Fatal(err)
	}
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	full(t, db)
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "before"}); err != nil {
			t.Error(err)
		}
		_, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `INSERT INTO test_rows VALUES (zeroblob(1000000))`)
		if err == nil {
			t.Error("the caller's own statement succeeded on a full disk")
		}
		if _, err := tx.Enqueue(ctx, coord.NewRun{Kind: "after"}); err == nil {
			t.Error("Enqueue succeeded outside of the transaction")
		}
		return nil
	})
	if err == nil {
		t.Error("InTx succeeded")
	}
	for r, err := range b.Claimer().Runs(t.Context(), coord.RunFilter{}) {
		t.Errorf("a run of kind %s is left (%v)", r.Kind, err)
	}
	err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		_, err := tx.Unwrap().(bun.Tx).ExecContext(ctx, `INSERT INTO test_rows VALUES (zeroblob(1000000))`)
		_ = tx.Publish(ctx, coord.NewEvent{Topic: "t", Kind: "k"})
		_ = err
		return nil
	})
	if err == nil {
		t.Error("InTx succeeded")
	}
	if heads, err := b.Broadcaster().Heads(t.Context(), "t"); err != nil || heads["t"] != coord.Start {
		t.Errorf("the topic's head is %v (%v); want none", heads["t"], err)
	}
	if err := b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) error {
		_, err := tx.Enqueue(ctx, coord.NewRun{Kind: "small"})
		return err
	}); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

// TestAFileThatIsGone or was replaced by another: nothing is written to where
// nobody finds it.
func TestAFileThatIsGone(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // it keeps open files where they are
	}
	path, _ := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	unavailable := func(when string) {
		t.Helper()
		if err := b.Ping(t.Context()); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Ping when the file %s: %v; want ErrUnavailable", when, err)
		}
		if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Enqueue when the file %s: %v; want ErrUnavailable", when, err)
		}
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	unavailable("is gone")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unavailable("is another")
}

// TestClosedPools are those of a caller who closed them first, and of a call
// that Close overtakes.
func TestClosedPools(t *testing.T) {
	_, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "k"}); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Enqueue: %v; want ErrClosed", err)
	}
	if _, err := b.Broadcaster().Heads(t.Context(), "t"); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Heads: %v; want ErrClosed", err)
	}
}

func TestATxIsOverWhenItsFunctionReturns(t *testing.T) {
	_, db := newFile(t)
	b, err := sqlite.Open(t.Context(), sqlite.Options{DB: db})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	var kept coord.Tx
	if err := b.InTx(t.Context(), func(_ context.Context, tx coord.Tx) error {
		kept = tx
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Enqueue(t.Context(), coord.NewRun{Kind: "k"}); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Enqueue: %v; want ErrClosed", err)
	}
	if err := kept.Publish(t.Context(), coord.NewEvent{Topic: "t", Kind: "k"}); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("Publish: %v; want ErrClosed", err)
	}
}

// A new file holds what others on the machine need not read, and an empty one
// lacks the schema.
func TestNewFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tandem.db")
	if _, err := sqlite.Open(t.Context(), sqlite.Options{Path: path}); err == nil || !strings.Contains(err.Error(), "lacks the schema") {
		t.Errorf("Open of a new file: %v, want that the schema is missing", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the new file: %v, %v", info, err)
	}
}

// TestOpenReadOnly looks at files as they are left: in WAL mode, in another, and by a process that was
// killed, whose log has what the file lacks.
func TestOpenReadOnly(t *testing.T) {
	count := func(path string) (n int, version, mode string) {
		t.Helper()
		db, err := sqlite.OpenReadOnly(path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.Read.QueryRowContext(t.Context(), `SELECT count(*) FROM t`).Scan(&n); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := db.Read.ExecContext(t.Context(), `INSERT INTO t VALUES (2)`); err == nil {
			t.Errorf("%s was written to", path)
		}
		d := sqlite.Diagnosis{DB: db}
		if err := d.Writable(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if version, mode, err = d.Journal(t.Context()); err != nil || version == "" {
			t.Errorf("%s: version %q, %v", path, version, err)
		}
		return n, version, mode
	}
	read := func(path string) (text string, at time.Time) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data), info.ModTime()
	}

	dir := filepath.Join(t.TempDir(), "50% of #1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a b.db")
	if _, err := sqlite.OpenReadOnly(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, mode := range []string{"wal", "delete"} {
		db, err := sqlite.OpenDB(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{`DROP TABLE IF EXISTS t`, `CREATE TABLE t (x)`, `INSERT INTO t VALUES (1)`, `PRAGMA wal_checkpoint`} {
			if _, err := db.Write.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		if mode == "wal" { // what a process leaves that is killed after another row
			if _, err := db.Write.ExecContext(t.Context(), `INSERT INTO t VALUES (3)`); err != nil {
				t.Fatal(err)
			}
			left := filepath.Join(t.TempDir(), "left.db")
			for _, end := range []string{"", "-wal"} {
				text, _ := read(path + end)
				if err := os.WriteFile(left+end, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			text, at := read(left)
			if n, _, mode := count(left); n != 2 || mode != "wal" {
				t.Errorf("what was left has %d rows, in the mode %s", n, mode)
			}
			if now, then := read(left); now != text || !then.Equal(at) {
				t.Error("what was left has changed")
			}
		}
		if err := db.Read.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Write.ExecContext(t.Context(), `PRAGMA journal_mode = `+mode); err != nil {
			t.Fatal(err)
		}
		if err := db.Write.Close(); err != nil {
			t.Fatal(err)
		}
		text, at := read(path)
		if n, _, has := count(path); has != mode || n == 0 {
			t.Errorf("%d rows, in the mode %s, not %s", n, has, mode)
		}
		if now, then := read(path); now != text || !then.Equal(at) {
			t.Errorf("%s: the file has changed", mode)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%s: beside the file are %v, %v", mode, entries, err)
		}
	}
	if runtime.GOOS == "windows" || os.Getuid() == 0 { // who may write everywhere
		return
	}
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(dir, 0o700) }()
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := (sqlite.Diagnosis{DB: db}).Writable(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a folder of somebody else: %v", err)
	}
}
