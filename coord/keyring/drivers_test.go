package keyring

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

// onEach runs a test with that many replicas on a store of each driver.
func onEach(t *testing.T, n int, test func(t *testing.T, replicas []coord.Backend)) {
	replicas := func(t *testing.T, open func() (coord.Backend, error)) (all []coord.Backend) {
		t.Helper()
		for range n {
			b, err := open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := b.Close(context.Background()); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			all = append(all, b)
		}
		return all
	}
	t.Run("memory", func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		test(t, replicas(t, func() (coord.Backend, error) { return store.Open(), nil }))
	})
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		db, err := sqlite.OpenDB(path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := migrations.Up(t.Context(), db.Write.DB, migrations.SQLite, migrations.Coord); err != nil {
			t.Fatal(err)
		}
		test(t, replicas(t, func() (coord.Backend, error) { return sqlite.Open(t.Context(), sqlite.Options{Path: path}) }))
	})
	t.Run("pg", func(t *testing.T) {
		url := testenv.NewDatabase(t, "coord", func(url string) error {
			db, err := pg.OpenDB(url, 2)
			if err != nil {
				return err
			}
			defer db.Close()
			_, err = migrations.Up(context.Background(), db.DB, migrations.PostgreSQL, migrations.Coord)
			return err
		})
		test(t, replicas(t, func() (coord.Backend, error) { return pg.Open(t.Context(), pg.Options{URL: url, MaxConns: 4}) }))
	})
}

// together calls fn for each at once.
func together[T any](all []T, fn func(i int, of T)) {
	var callers sync.WaitGroup
	for i, of := range all {
		callers.Go(func() { fn(i, of) })
	}
	callers.Wait()
}

// Six replicas that start at once have one key.
func TestTheFirstKey(t *testing.T) {
	onEach(t, 6, func(t *testing.T, replicas []coord.Backend) {
		rings := make([]*Ring, len(replicas))
		together(replicas, func(i int, b coord.Backend) {
			var err error
			if rings[i], err = Open(t.Context(), b, Options{Name: "tokens"}); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		})
		if t.Failed() {
			return
		}
		for _, r := range rings {
			defer r.Close()
			if states(r) != "1 active" {
				t.Errorf("the keys are %s", states(r))
			}
			verifies(t, "signed by any", sign(t, r, "link", "x"), "x", nil, rings...)
		}
	})
}

// Three replicas sign and verify while keys are replaced again and again, some of them with no notice:
// what any has signed is good on all, and none ever refuses.
func TestRotationUnderLoad(t *testing.T) {
	onEach(t, 3, func(t *testing.T, replicas []coord.Backend) {
		o := Options{
			Name: "tokens", KEKs: []KEK{kek(t)}, Poll: 20 * time.Millisecond, Overlap: 40 * time.Millisecond, Every: 50 * time.Millisecond,
			Keep: time.Hour, Stale: time.Minute, gap: 5 * time.Millisecond,
		}
		rings := make([]*Ring, len(replicas))
		for i, b := range replicas {
			rings[i] = openRing(t, b, o)
		}
		const rotations = 12
		stop := make(chan struct{})
		var load sync.WaitGroup
		tokens := make(chan string, 8)
		for i, r := range rings {
			load.Go(func() { // signs
				for n := 0; ; n++ {
					token, err := r.Sign("link", fmt.Append(nil, i, n))
					if err != nil {
						t.Errorf("Sign: %v", err)
					}
					for range rings { // whoever takes it: all do, more or less
						select {
						case tokens <- token:
						case <-stop:
							return
						}
					}
				}
			})
			load.Go(func() { // verifies
				for {
					select {
					case token := <-tokens:
						if _, err := r.Verify(t.Context(), "link", token); err != nil {
							t.Errorf("replica %d, which knows %s: %v", i, states(r), err)
						}
					case <-stop:
						return
					}
				}
			})
		}
		first := sign(t, rings[0], "link", "first")
		for n := 0; rings[0].Active() <= rotations && !t.Failed(); n++ {
			// All of them try to, as if each led for a moment.
			together(rings, func(_ int, r *Ring) {
				_, err := r.Rotate(t.Context(), leading(t, r.backend), Rotation{Early: n%2 == 0})
				if err != nil && !errors.Is(err, coord.ErrConflict) && !errors.Is(err, coord.ErrFenced) {
					t.Errorf("Rotate: %v", err)
				}
			})
		}
		close(stop)
		load.Wait()
		verifies(t, "signed before all that", first, "first", nil, rings...)
		t.Logf("%s", states(rings[0]))
	})
}
