package tools_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(leakless{m})) }

// leakless are tests that leave no goroutine behind.
type leakless struct{ *testing.M }

func (l leakless) Run() int {
	code := l.M.Run()
	if err := goleak.Find(goleak.IgnoreAnyFunction(testenv.GoroutineName)); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// replica is what one process has.
type replica struct {
	backend coord.Backend
	rows    store.Options
	tools   *tools.Service
}

// rig is a database with two replicas on it.
type rig struct {
	one, two replica
	people   *people
	observer *observer
	advance  func(by time.Duration) // moves the clock for calls that are open
}

// open makes the two replicas on the backends that open makes.
func (r *rig) open(t *testing.T, open func(coord.Options) (coord.Backend, store.Options)) *rig {
	t.Helper()
	r.people, r.observer = newPeople(), &observer{}
	for _, rp := range []*replica{&r.one, &r.two} {
		backend, o := open(coord.Options{Observer: r.observer})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := backend.Close(ctx); err != nil {
				t.Errorf("close the backend: %v", err)
			}
		})
		o.Backend = backend
		*rp = replica{backend, o, tools.New(store.New(o), backend, r.people)}
	}
	return r
}

func memoryRig(t *testing.T) *rig {
	t.Helper()
	rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	rows.SetMaxOpenConns(1) // another connection would have a database of its own
	if _, err := migrations.Up(t.Context(), rows, migrations.SQLite, migrations.App); err != nil {
		t.Fatal(err)
	}
	write := bun.NewDB(rows, sqlitedialect.New())
	var ahead atomic.Int64
	r := &rig{advance: func(by time.Duration) { ahead.Add(int64(by)) }}
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	observed := &forwarder{}
	s := memory.NewStore(memory.Options{Now: now, Options: coord.Options{Observer: observed}})
	return r.open(t, func(o coord.Options) (coord.Backend, store.Options) {
		observed.to = o.Observer
		return s.Open(), store.Options{Write: write, Now: now}
	})
}

// forwarder is an observer that is known before the one that it stands for.
type forwarder struct{ to coord.Observer }

func (f *forwarder) Observe(ctx context.Context, o coord.Observation) { f.to.Observe(ctx, o) }

func sqliteRig(t *testing.T) *rig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	var ahead atomic.Int64
	r := &rig{advance: func(by time.Duration) { ahead.Add(int64(by)) }}
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	return r.open(t, func(o coord.Options) (coord.Backend, store.Options) {
		db, err := sqlite.OpenDB(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			t.Fatal(err)
		}
		backend, err := sqlite.Open(t.Context(), sqlite.Options{DB: db, Now: now, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		return backend, store.Options{Write: db.Write, Read: db.Read, Now: now}
	})
}

func pgRig(t *testing.T) *rig {
	t.Helper()
	url := testenv.NewDatabase(t, "tandem", func(url string) error {
		db, err := pg.OpenDB(url, 2)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord, migrations.App)
		return err
	})
	var db *bun.DB
	r := &rig{advance: func(by time.Duration) { // the clock is the server's
		_, err := db.ExecContext(t.Context(), `UPDATE coord_calls SET deadline = deadline - ? * interval '1 microsecond'
			WHERE state = 'open'`, by.Microseconds())
		if err != nil {
			t.Fatal(err)
		}
	}}
	return r.open(t, func(o coord.Options) (coord.Backend, store.Options) {
		pool, err := pg.OpenDB(url, 8)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pool.Close() })
		db = pool
		backend, err := pg.Open(t.Context(), pg.Options{URL: url, DB: pool, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		return backend, store.Options{Write: pool}
	})
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memoryRig(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, sqliteRig(t)) })
	t.Run("pg", func(t *testing.T) { test(t, pgRig(t)) })
}
