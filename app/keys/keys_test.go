package keys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/keys"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/keyring"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

// replica is what one replica has.
type replica struct {
	t       *testing.T
	backend coord.Backend
	keys    *keys.Keys
	rows    store.Options
	store   *store.Store
}

func newReplica(t *testing.T, d *apptest.Database, keks ...keyring.KEK) *replica {
	t.Helper()
	return replicaWith(t, d, func(b coord.Backend) coord.Backend { return b }, keks...)
}

// deaf hears of no change of keys, for as long as a test lasts.
type deaf struct{ coord.Backend }

type deafKeyring struct{ coord.Keyring }

func (d deaf) Keyring() coord.Keyring { return deafKeyring{d.Backend.Keyring()} }

func (deafKeyring) Changes() (<-chan struct{}, func()) { return nil, func() {} }

func replicaWith(t *testing.T, d *apptest.Database, of func(coord.Backend) coord.Backend, keks ...keyring.KEK) *replica {
	t.Helper()
	b, o := d.Open(t, coord.Options{})
	b = of(b)
	k, err := keys.Open(t.Context(), b, keys.Options{KEKs: keks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	o.Backend, o.Secrets = b, k
	return &replica{t, b, k, o, store.New(o)}
}

// fenced runs fn as who leads the jobs.
func (r *replica) fenced(ctx context.Context, fn func(context.Context, store.Unit) error) error {
	l, err := r.backend.Elector().Stand(ctx, coord.Candidacy{Name: "jobs", Candidate: "x", Holder: "x"})
	if err != nil {
		return err
	}
	return r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		return errors.Join(fn(ctx, u), u.Coord.Fence(ctx, l.Term))
	})
}

// replace lets another key seal at once.
func (r *replica) replace() {
	r.t.Helper()
	_, err := r.keys.Secrets.Rotate(r.t.Context(), func(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
		return r.fenced(ctx, func(ctx context.Context, u store.Unit) error { return fn(ctx, u.Coord) })
	}, keyring.Rotation{AtOnce: true, InUse: 1})
	if err != nil && !errors.Is(err, coord.ErrConflict) { // others may come first, again and again
		r.t.Errorf("Rotate: %v", err)
	}
}

// due does what is due, and wants so many changes.
func (r *replica) due(want int) {
	r.t.Helper()
	if done, err := r.keys.RotateDue(r.t.Context(), r.store, r.fenced); err != nil || done != want {
		r.t.Errorf("RotateDue: %d, %v; want %d", done, err, want)
	}
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
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		before := newReplica(t, d)
		before.set(1, 1)
		if plain, all := before.plain(); plain != 1 || all != 1 {
			t.Errorf("without a key-encryption key %d of %d secrets are stored as they are", plain, all)
		}
		kek := newKEK(t)
		after := newReplica(t, d, kek)
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
		both[0] = newReplica(t, d, kek) // the other one can't know what comes

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
		load := func(ctx context.Context, ring string) (coord.Ring, error) {
			return after.backend.Keyring().Load(ctx, coord.Ring{Name: ring})
		}
		list, unsealed, err := keys.List(t.Context(), load, after.store)
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
		wantLines := map[string]int{ // the revocation has put another key in place
			"keys.rotated secrets": 2, "keys.rotated tokens": 1, "keys.revoked secrets": 1, "keys.unsealed secrets": 1,
		}
		for line, n := range wantLines {
			if told["(command line) "+line] != n {
				t.Errorf("the audit log has %v, want %d of %s", told, n, line)
			}
		}
	})
}

// The job seals anew what is not sealed with the active key, and does nothing when nothing is due; what
// is stored as it is it leaves, so that unsealing lasts.
func TestRotateDue(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		one := newReplica(t, d, newKEK(t))
		one.set(1, 1)
		one.due(0)
		if err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Tokens, 1) }); err != nil {
			t.Fatal(err)
		}
		one.due(0)
		err := one.keys.Change(t.Context(), one.store, "test", func(keys.Changes) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if n := one.rotate(); n != 0 {
			t.Errorf("%d secrets were sealed again", n)
		}
		one.due(0)
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
		one.due(0)
		if plain, _ := one.plain(); plain != 1 {
			t.Error("the job has sealed what was unsealed")
		}
	})
}

// A secret that is sealed by a replica which has not heard that the key was revoked is not lost.
func TestSealedByWhoHasNotHeard(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		kek := newKEK(t)
		one, cut := newReplica(t, d, kek), replicaWith(t, d, func(b coord.Backend) coord.Backend { return deaf{b} }, kek)
		one.set(1, 1)
		for n := int64(1); n < 4; n++ {
			if err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, n) }); err != nil {
				t.Fatalf("Revoke: %v", err)
			}
			if active := cut.keys.Secrets.Active(); active != n {
				t.Fatalf("a replica that hears of nothing knows that key %d is active", active)
			}
			cut.set(1, int(n)+1)
			for _, who := range []*replica{one, cut} {
				who.has("after it was sealed", 1, int(n)+1, int(n))
			}
		}
	})
}

// Keys are replaced and revoked one after the other while others give webhooks new secrets and take
// old ones away: each that was given still signs.
func TestRevokingWhileSecretsMove(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		kek := newKEK(t)
		one, other := newReplica(t, d, kek), newReplica(t, d, kek)
		writers := []*replica{newReplica(t, d, kek), replicaWith(t, d, func(b coord.Backend) coord.Backend { return deaf{b} }, kek)}
		last := make([]int, len(writers))
		stop := make(chan struct{})
		var busy sync.WaitGroup
		for i, w := range writers {
			busy.Go(func() {
				for n := 1; ; n++ {
					select {
					case <-stop:
						return
					default:
						w.set(int64(i)+1, n)
						last[i] = n
					}
				}
			})
		}
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					other.replace()
				}
			}
		})
		for range 6 {
			ring := one.keys.Secrets
			if err := ring.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			version := ring.Active()
			err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, version) })
			if err != nil && !errors.Is(err, coord.ErrConflict) {
				t.Errorf("Revoke: %v", err)
			}
		}
		close(stop)
		busy.Wait()
		if t.Failed() {
			return
		}
		for _, who := range append(writers, one) {
			for i, n := range last {
				if n < 2 {
					t.Fatalf("writer %d has written %d secrets", i, n)
				}
				who.has("after all that", int64(i)+1, n, n-1)
			}
		}
		if _, all := one.plain(); all != 4 {
			t.Errorf("%d secrets are stored, want 4", all)
		}
	})
}

// The job may be led by a replica that was not given the key-encryption key yet: what is sealed stays so.
func TestTheJobKeepsSealedWhatIsSealed(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		before := newReplica(t, d)
		after := newReplica(t, d, newKEK(t))
		after.set(1, 1)
		after.replace()
		before.due(1)
		if plain, all := after.plain(); plain != 0 || all != 1 {
			t.Errorf("%d of %d secrets are stored as they are", plain, all)
		}
		stored, err := after.store.WebhookSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sealed, _ := bytes.CutPrefix(stored[0].Secret, []byte("\x00sealed\x00"))
		if got := keyring.SealedWith(sealed); got != 2 {
			t.Errorf("it is sealed with key %d, want 2", got)
		}
		after.has("sealed anew", 1, 1)

		// One that can't open what is sealed says so, and does what is due to the other ring.
		after.rotate()
		after.set(2, 1)
		if _, err := before.keys.RotateDue(t.Context(), before.store, before.fenced); err != nil {
			t.Errorf("RotateDue, with nothing to seal anew: %v", err)
		}
		after.replace()
		_, err = before.keys.RotateDue(t.Context(), before.store, before.fenced)
		if e, ok := errors.AsType[*keyring.KEKError](err); !ok || e.Ring != keys.Secrets {
			t.Errorf("RotateDue by who lacks the key-encryption key: %v", err)
		}
		for _, who := range []int64{1, 2} {
			after.has("after that", who, 1)
		}
	})
}

// hooked calls before the loads of the ring of secrets, when it is set, by their number.
type hooked struct {
	coord.Backend
	before *func(load int)
	loads  *int
}

type hookedKeyring struct {
	coord.Keyring
	hooked
}

func (h hooked) Keyring() coord.Keyring { return hookedKeyring{h.Backend.Keyring(), h} }

func (hookedKeyring) Changes() (<-chan struct{}, func()) { return nil, func() {} }

func (h hookedKeyring) Load(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	if before := *h.before; before != nil && known.Name == keys.Secrets {
		*h.loads++
		before(*h.loads)
	}
	return h.Keyring.Load(ctx, known)
}

// A key that was for nothing yet becomes active, and seals, at each moment of its revocation.
func TestRevokingAKeyThatBecomesActive(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		kek := newKEK(t)
		hook, loads := (func(int))(nil), 0
		one := replicaWith(t, d, func(b coord.Backend) coord.Backend { return hooked{b, &hook, &loads} }, kek)
		other := newReplica(t, d, kek)
		for at, n := 1, 1; ; at++ {
			one.rotate()
			if err := one.keys.Secrets.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			all := one.keys.Secrets.Stored().Keys
			next := all[len(all)-1]
			if next.State != coord.KeyNext {
				t.Fatalf("key %d is %s, want next", next.Version, next.State)
			}
			reached := false
			loads, hook = 0, func(load int) {
				if load == at {
					reached = true
					other.replace()
					n++
					other.set(1, n)
				}
			}
			err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, next.Version) })
			hook = nil
			if err != nil {
				t.Errorf("Revoke: %v", err)
			}
			if !reached {
				if at < 4 {
					t.Errorf("the ring was loaded %d times", at-1)
				}
				return
			}
			want := []int{n, n - 1}
			if n == 2 {
				want = want[:1]
			}
			other.has(fmt.Sprint("sealed before load ", at), 1, want...)
		}
	})
}

// A version that no key has changes nothing, and is not that of secrets which are not sealed.
func TestRevokingNoKey(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		one := newReplica(t, d)
		one.set(1, 1)
		for _, key := range []int64{-1, 0, 2} {
			err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, key) })
			if !errors.Is(err, coord.ErrConflict) {
				t.Errorf("Revoke of key %d: %v", key, err)
			}
			if plain, all := one.plain(); plain != 1 || all != 1 {
				t.Errorf("after Revoke of key %d, %d of %d secrets are stored as they are", key, plain, all)
			}
		}
	})
}

// before calls a function once, before a stored secret is opened.
type before struct {
	store.Sealer
	call func()
}

func (b *before) Open(ctx context.Context, owner string, stored []byte) ([]byte, error) {
	if call := b.call; call != nil {
		b.call = nil
		call()
	}
	return b.Sealer.Open(ctx, owner, stored)
}

// A key may go between the moments in which a secret is read and opened.
func TestReadWhileItsKeyGoes(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		kek := newKEK(t)
		one, reader := newReplica(t, d, kek), newReplica(t, d, kek)
		one.set(1, 1)
		one.set(1, 2)
		hook := &before{Sealer: reader.keys}
		o := reader.rows
		o.Secrets = hook
		reader.store = store.New(o)
		hook.call = func() {
			if err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, 1) }); err != nil {
				t.Errorf("Revoke: %v", err)
			}
			if err := reader.keys.Secrets.Reload(t.Context()); err != nil {
				t.Errorf("Reload: %v", err)
			}
		}
		reader.has("sealed anew while it was read", 1, 2, 1)
	})
}

// Who gives a webhook another secret because the one it has can't be opened can do so with an overlap.
func TestALostSecretIsReplaced(t *testing.T) {
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		one := newReplica(t, d, newKEK(t))
		one.set(1, 1)
		one.set(2, 1)
		err := one.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			all, err := u.WebhookSecrets(ctx)
			if err != nil {
				return err
			}
			changed := bytes.Clone(all[0].Secret)
			changed[len(changed)-1] ^= 1
			_, err = u.ReplaceWebhookSecret(ctx, all[0], changed)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if secrets, _, err := one.store.Webhook(t.Context(), 1); !errors.Is(err, keyring.ErrForged) {
			t.Errorf("the secrets of a webhook with one that was changed: %q, %v", secrets, err)
		}
		one.set(1, 2)
		one.has("another one", 1, 2)

		// Nor does it keep its key.
		if err := one.change(func(ctx context.Context, c keys.Changes) error { return c.Revoke(ctx, keys.Secrets, 1) }); err != nil {
			t.Errorf("Revoke: %v", err)
		}
		one.has("after the revocation", 1, 2)
		one.has("after the revocation", 2, 1)
	})
}

// A key that has been retiring for long enough is kept while a secret is sealed with it, as one is that
// moved while all were sealed anew.
func TestAKeyInUseIsKept(t *testing.T) {
	apptest.OnEachStopped(t, func(t *testing.T, d *apptest.Database) {
		kek := newKEK(t)
		one, other := newReplica(t, d, kek), newReplica(t, d, kek)
		one.set(1, 1)
		one.replace()
		d.Advance(t, 32*24*time.Hour)
		state := func() coord.KeyState {
			t.Helper()
			if err := one.keys.Secrets.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			return one.keys.Secrets.Stored().Keys[0].State
		}
		moved := false
		_, err := one.keys.RotateDue(t.Context(), one.store, func(ctx context.Context, fn func(context.Context, store.Unit) error) error {
			if !moved { // now that they are listed
				moved = true
				other.set(1, 2)
			}
			return one.fenced(ctx, fn)
		})
		if err != nil {
			t.Fatalf("RotateDue: %v", err)
		}
		if got := state(); !moved || got != coord.KeyRetiring {
			t.Errorf("the key of a secret that moved is %s", got)
		}
		other.has("moved", 1, 2, 1)
		if _, err := one.keys.RotateDue(t.Context(), one.store, one.fenced); err != nil {
			t.Fatalf("RotateDue: %v", err)
		}
		if got := state(); got != coord.KeyRetired {
			t.Errorf("the key of which nothing is left is %s", got)
		}
		other.has("sealed anew", 1, 2, 1)
	})
}
