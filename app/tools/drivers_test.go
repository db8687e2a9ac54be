package tools_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

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

// newRig opens two replicas on a database.
func newRig(t *testing.T, d *apptest.Database, advance func(by time.Duration)) *rig {
	t.Helper()
	r := &rig{people: newPeople(), observer: &observer{}, advance: advance}
	for _, rp := range []*replica{&r.one, &r.two} {
		backend, o := d.Open(t, coord.Options{Observer: r.observer})
		*rp = replica{backend, o, tools.New(store.New(o), backend, r.people)}
	}
	return r
}

// ahead opens a database of which the clock can be put forward.
func ahead(t *testing.T, open func(*testing.T, func() time.Time) *apptest.Database) *rig {
	t.Helper()
	var by atomic.Int64
	d := open(t, func() time.Time { return time.Now().Add(time.Duration(by.Load())) })
	return newRig(t, d, func(more time.Duration) { by.Add(int64(more)) })
}

func memoryRig(t *testing.T) *rig {
	t.Helper()
	return ahead(t, apptest.Memory)
}

func pgRig(t *testing.T) *rig {
	t.Helper()
	var r *rig
	r = newRig(t, apptest.PostgreSQL(t), func(by time.Duration) { // the clock is the server's
		_, err := r.one.rows.Write.ExecContext(t.Context(), `UPDATE coord_calls SET deadline = deadline - ? * interval '1 microsecond'
			WHERE state = 'open'`, by.Microseconds())
		if err != nil {
			t.Fatal(err)
		}
	})
	return r
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memoryRig(t)) })
	t.Run("sqlite", func(t *testing.T) { test(t, ahead(t, apptest.SQLite)) })
	t.Run("pg", func(t *testing.T) { test(t, pgRig(t)) })
}
