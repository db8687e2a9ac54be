package keys_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/coord/pg"
	"github.com/tandemhq/tandem/coord/sqlite"
	"github.com/tandemhq/tandem/internal/testenv"
	"github.com/tandemhq/tandem/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// rig opens replicas on one database.
type rig struct {
	rows store.Options
	open func() (coord.Backend, error)
}

func onEach(t *testing.T, test func(*testing.T, rig)) {
	t.Run("memory", func(t *testing.T) {
		rows, err := sql.Open("sqlite", "file::memory:?_pragma=foreign_keys(1)")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		rows.SetMaxOpenConns(1) // another connection would have a database of its own
		up(t, rows, migrations.SQLite, migrations.App)
		s := memory.NewStore(memory.Options{})
		test(t, rig{store.Options{Write: bun.NewDB(rows, sqlitedialect.New())}, func() (coord.Backend, error) { return s.Open(), nil }})
	})
	t.Run("sqlite", func(t *testing.T) {
		db, err := sqlite.OpenDB(filepath.Join(t.TempDir(), "test.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		up(t, db.Write.DB, migrations.SQLite, migrations.Coord, migrations.App)
		test(t, rig{store.Options{Write: db.Write, Read: db.Read}, func() (coord.Backend, error) {
			return sqlite.Open(t.Context(), sqlite.Options{DB: db})
		}})
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
		db, err := pg.OpenDB(url, 8)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		test(t, rig{store.Options{Write: db}, func() (coord.Backend, error) { return pg.Open(t.Context(), pg.Options{URL: url, DB: db}) }})
	})
}

func up(t *testing.T, db *sql.DB, d migrations.Dialect, sets ...migrations.Set) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), db, d, sets...); err != nil {
		t.Fatal(err)
	}
}

// replica is what one replica has.
type replica struct {
	t     *testing.T
	keys  *keys.Keys
	store *store.Store
}

func (r rig) replica(t *testing.T, keks ...keyring.KEK) *replica {
	t.Helper()
	b, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	k, err := keys.Open(t.Context(), b, keys.Options{KEKs: keks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	o := r.rows
	o.Backend, o.Secrets = b, k
	return &replica{t, k, store.New(o)}
}

func newKEK(t *testing.T) keyring.KEK {
	t.Helper()
	k, err := keyring.ParseKEK(keyring.NewKEK())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func secret(task int64, n int) []byte {
	return fmt.Appendf(nil, "the secret %02d of the webhook %d", n, task)
}

// set gives a task another secret, beside the one it has.
func (r *replica) set(task int64, n int) {
	r.t.Helper()
	err := r.store.InTx(r.t.Context(), func(ctx context.Context, u store.Unit) error {
		_, err := u.SetWebhook(ctx, task, secret(task, n), time.Hour)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// has are the secrets of a task, the present one first.
func (r *replica) has(why string, task int64, want ...int) {
	r.t.Helper()
	got, _, err := r.store.Webhook(r.t.Context(), task)
	if err != nil || len(got) != len(want) {
		r.t.Errorf("%s: task %d has the secrets %q, %v; want %v", why, task, got, err, want)
		return
	}
	for i, n := range want {
		if !bytes.Equal(got[i], secret(task, n)) {
			r.t.Errorf("%s: task %d has the secrets %q; want %v", why, task, got, want)
		}
	}
}

// plain counts the secrets that are stored as they are, which is all that a version of the program
// can read that knows of no seals.
func (r *replica) plain() (plain, all int) {
	r.t.Helper()
	stored, err := r.store.WebhookSecrets(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range stored {
		if bytes.Contains(s.Secret, []byte("secret")) {
			plain++
		}
	}
	return plain, len(stored)
}

func (r *replica) change(fn func(ctx context.Context, c keys.Changes) error) error {
	r.t.Helper()
	return r.keys.Change(r.t.Context(), r.store, "test", func(c keys.Changes) error { return fn(r.t.Context(), c) })
}

func (r *replica) rotate() int {
	r.t.Helper()
	sealed := 0
	err := r.change(func(ctx context.Context, c keys.Changes) (err error) {
		sealed, err = c.Rotate(ctx)
		return err
	})
	if err != nil {
		r.t.Fatalf("Rotate: %v", err)
	}
	return sealed
}

// Secrets of webhooks go on signing on all replicas while a key-encryption key is given to one after
// the other, the keys are replaced, and everything is unsealed for the version before.
func TestSecretsOfWebhooks(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		before := r.replica(t)
		before.set(1, 1)
		if plain, all := before.plain(); plain != 1 || all != 1 {
			t.Errorf("without a key-encryption key %d of %d secrets are stored as they are", plain, all)
		}
		kek := newKEK(t)
		after := r.replica(t, kek)
		both := []*replica{before, after}
		everywhere := func(why string, task int64, want ...int) {
			t.Helper()
			for _, one := range both {
				one.has(why, task, want...)
			}
		}
		everywhere("from before", 1, 1)
		after.set(1, 2)
		after.set(2, 1)
		everywhere("sealed, and one from before", 1, 2, 1)
		everywhere("sealed", 2, 1)
		if plain, all := after.plain(); plain != 1 || all != 3 {
			t.Errorf("%d of %d secrets are stored as they are, want the one from before", plain, all)
		}
		before.set(2, 2) // by a replica that has no key-encryption key yet
		everywhere("not sealed, and one that is", 2, 2, 1)

		if n := after.rotate(); n != 2 {
			t.Errorf("%d secrets were sealed, want 2", n)
		}
		if plain, all := after.plain(); plain != 0 || all != 4 {
			t.Errorf("%d of %d secrets are stored as they are, after all were sealed", plain, all)
		}
		everywhere("all sealed", 1, 2, 1)
		everywhere("all sealed", 2, 2, 1)
		both[0] = r.replica(t, kek) // the other one can't know what comes

		// What belongs to one task is nothing for another.
		stored, err := after.store.WebhookSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := after.keys.Open(t.Context(), "7", stored[0].Secret); !errors.Is(err, keyring.ErrForged) {
			t.Errorf("opened for another task: %v", err)
		}

		// The key that seals is revoked: nothing that it has sealed is lost.
		if err := after.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, 1) }); err != nil {
			t.Fatalf("Revoke: %v", err)
		}
		everywhere("sealed anew", 1, 2, 1)
		everywhere("sealed anew", 2, 2, 1)
		list, unsealed, err := after.keys.List(t.Context(), after.store)
		if err != nil || unsealed != 0 {
			t.Errorf("List: %d not sealed, %v", unsealed, err)
		}
		want := map[string]keys.Key{
			"secrets 1": {State: coord.KeyRetired},
			"secrets 2": {State: coord.KeyActive, Secrets: 4, SealedBy: kek.ID()},
			"tokens 1":  {State: coord.KeyActive, SealedBy: kek.ID()}, "tokens 2": {State: coord.KeyNext, SealedBy: kek.ID()},
		}
		for _, k := range list {
			name := fmt.Sprint(k.Ring, " ", k.Version)
			if w := want[name]; k.State != w.State || k.Secrets != w.Secrets || k.SealedBy != w.SealedBy || k.Since.IsZero() {
				t.Errorf("%s is %+v, want %+v", name, k, w)
			}
			delete(want, name)
		}
		if len(want) > 0 {
			t.Errorf("not listed: %v", want)
		}

		err = after.change(func(ctx context.Context, c keys.Changes) error {
			n, err := c.Unseal(ctx)
			if n != 4 {
				t.Errorf("%d secrets were unsealed, want 4", n)
			}
			return err
		})
		if err != nil {
			t.Fatalf("Unseal: %v", err)
		}
		if plain, all := after.plain(); plain != 4 || all != 4 {
			t.Errorf("%d of %d secrets are stored as they are, after all were unsealed", plain, all)
		}
		everywhere("unsealed", 1, 2, 1)
		everywhere("unsealed", 2, 2, 1)
		lines, _, err := audit.New(after.store).List(t.Context(), audit.Filter{Action: "keys"})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]int{}
		for _, l := range lines {
			told[l.Actor+" "+l.Action+" "+l.Target]++
		}
		for _, line := range []string{"keys.rotated secrets", "keys.rotated tokens", "keys.revoked secrets", "keys.unsealed secrets"} {
			if told["(command line) "+line] != 1 {
				t.Errorf("the audit log has %v, want one of %s", told, line)
			}
		}
	})
}

// The job seals anew what is not sealed with the active key, and does nothing when nothing is due; what
// is stored as it is it leaves, so that unsealing lasts.
func TestRotateDue(t *testing.T) {
	onEach(t, func(t *testing.T, r rig) {
		one := r.replica(t, newKEK(t))
		one.set(1, 1)
		due := func(want int) {
			t.Helper()
			done, err := one.keys.RotateDue(t.Context(), one.store, func(ctx context.Context, fn func(context.Context, store.Unit) error) error {
				b, err := r.open()
				if err != nil {
					return err
				}
				defer func() { _ = b.Close(context.Background()) }()
				l, err := b.Elector().Stand(ctx, coord.Candidacy{Name: "jobs", Candidate: "x", Holder: "x"})
				if err != nil {
					return err
				}
				return one.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
					return errors.Join(fn(ctx, u), u.Coord.Fence(ctx, l.Term))
				})
			})
			if err != nil || done != want {
				t.Errorf("RotateDue: %d, %v; want %d", done, err, want)
			}
		}
		due(0)
		if err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Tokens, 1) }); err != nil {
			t.Fatal(err)
		}
		due(0)
		err := one.keys.Change(t.Context(), one.store, "test", func(keys.Changes) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if n := one.rotate(); n != 0 {
			t.Errorf("%d secrets were sealed again", n)
		}
		due(0)
		one.has("after all that", 1, 1)
		if _, err := one.store.WebhookSecrets(t.Context()); err != nil {
			t.Fatal(err)
		}
		for ring, version := range map[string]int64{"nothing": 1, keys.Tokens: 9, keys.Secrets: 9} {
			err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, ring, version) })
			if !errors.Is(err, coord.ErrConflict) && !errors.Is(err, keys.ErrNoRing) {
				t.Errorf("Revoke of %s %d: %v", ring, version, err)
			}
		}
		err = one.change(func(ctx context.Context, c keys.Changes) error {
			_, err := c.Unseal(ctx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		due(0)
		if plain, _ := one.plain(); plain != 1 {
			t.Error("the job has sealed what was unsealed")
		}
	})
}
