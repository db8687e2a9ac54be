package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/coord/memory"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

const day = 24 * time.Hour

func openRing(t testing.TB, b coord.Backend, o Options) *Ring {
	t.Helper()
	if o.Name == "" {
		o.Name = "tokens"
	}
	r, err := Open(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// leading returns the transactions of a leader.
func leading(t testing.TB, b coord.Backend) Fenced {
	return func(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
		l, err := b.Elector().Stand(ctx, coord.Candidacy{Name: "keys", Candidate: t.Name(), Holder: "the one", Lease: time.Minute})
		if err != nil {
			return err
		}
		return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Fence(ctx, l.Term); err != nil {
				return err
			}
			return fn(ctx, tx)
		})
	}
}

func rotate(t testing.TB, r *Ring, o Rotation) bool {
	t.Helper()
	changed, err := r.Rotate(t.Context(), leading(t, r.backend), o)
	if err != nil {
		t.Fatalf("Rotate: %v", err)
	}
	return changed
}

func sign(t testing.TB, r *Ring, purpose, data string) string {
	t.Helper()
	token, err := r.Sign(purpose, []byte(data))
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	return token
}

// verifies is what all of the rings say to a token.
func verifies(t testing.TB, why, token, data string, want error, rings ...*Ring) {
	t.Helper()
	for i, r := range rings {
		got, err := r.Verify(t.Context(), "link", token)
		if !errors.Is(err, want) || want == nil && string(got) != data {
			t.Errorf("%s: replica %d says %q, %v; want %q, %v", why, i, got, err, data, want)
		}
	}
}

func states(r *Ring) string {
	var list []string
	for _, k := range r.Stored().Keys {
		list = append(list, fmt.Sprint(k.Version, " ", k.State))
	}
	return strings.Join(list, ", ")
}

// rarely is for rings that are kept for months: in a bubble of testing/synctest the race detector crashes when
// it has counted millions of events (https://go.dev/issue/78156).
func rarely(keks ...KEK) Options { return Options{KEKs: keks, Poll: 12 * time.Hour, Overlap: day} }

// Over half a year each signature is good on every replica for the 30 days that it may live, a next
// key is known for a day before it signs, and no key is kept for longer than it must be.
func TestHalfAYear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		var rings []*Ring
		for range 3 {
			rings = append(rings, openRing(t, store.Open(), rarely()))
		}
		type signed struct {
			token, data string
			at          time.Time
		}
		var all []signed
		began := time.Now()
		for n := 0; time.Since(began) < 180*day; n++ {
			r := rings[n%3]
			active := r.Active()
			rotate(t, r, Rotation{})
			if r.Active() != active {
				for _, k := range r.Stored().Keys {
					if k.Version == r.Active() && k.ChangedAt.Sub(k.CreatedAt) < day {
						t.Errorf("key %d was known for %v before it signed", k.Version, k.ChangedAt.Sub(k.CreatedAt))
					}
				}
			}
			if live := strings.Count(states(r), "retiring") + strings.Count(states(r), "active"); live > 3 {
				t.Fatalf("the keys are %s", states(r))
			}
			data := fmt.Sprint(n)
			// Whoever signs may not have heard of the change that another has just made.
			all = append(all, signed{sign(t, rings[(n+1)%3], "link", data), data, time.Now()})
			verifies(t, "just signed", all[len(all)-1].token, data, nil, rings...)
			for len(all) > 0 && time.Since(all[0].at) >= 30*day {
				verifies(t, "after 30 days", all[0].token, all[0].data, nil, rings...)
				all = all[1:]
			}
			time.Sleep(6 * time.Hour)
		}
		if got := states(rings[0]); !strings.HasPrefix(got, "1 retired, 2 retired, 3 retired, 4 retired, 5 retiring, 6 active") {
			t.Errorf("after half a year the keys are %s", got)
		}
		for range 2 {
			rotate(t, rings[0], Rotation{Early: true})
			time.Sleep(day)
		}
		time.Sleep(32 * day)
		rotate(t, rings[0], Rotation{})
		verifies(t, "after its key was retired", all[0].token, "", ErrForged, rings[0])
	})
}

func TestARotationThatIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openRing(t, memory.Open(memory.Options{}), rarely())
		for _, step := range []struct {
			wait  time.Duration
			o     Rotation
			does  bool
			after string
		}{
			{0, Rotation{}, false, "1 active"},
			{0, Rotation{Early: true}, true, "1 active, 2 next"},
			{day - 1, Rotation{Early: true}, false, "1 active, 2 next"},
			{1, Rotation{}, true, "1 retiring, 2 active"},
			{31*day - 1, Rotation{Early: true}, true, "1 retiring, 2 active, 3 next"},
			{1, Rotation{InUse: 1}, false, "1 retiring, 2 active, 3 next"},
			{0, Rotation{InUse: 2}, true, "1 retired, 2 active, 3 next"},
			{day, Rotation{}, true, "1 retired, 2 retiring, 3 active"},
			{90 * day, Rotation{}, true, "1 retired, 2 retired, 3 active, 4 next"},
		} {
			time.Sleep(step.wait)
			if did := rotate(t, r, step.o); did != step.does || states(r) != step.after {
				t.Errorf("Rotate(%+v) did something: %v, and the keys are %s; want %v, %s", step.o, did, states(r), step.does, step.after)
			}
		}
	})
}

// loads counts how often rings are read.
type loads struct{ n atomic.Int64 }

func (l *loads) Observe(_ context.Context, o coord.Observation) {
	if o.Op == "keyring.load" {
		l.n.Add(1)
	}
}

// Whoever sends however many versions that there are not costs a look a second, and one that there
// is, but not yet here, is found by the next.
func TestUnknownVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked loads
		store := memory.NewStore(memory.Options{Options: coord.Options{Observer: &asked}})
		one := openRing(t, store.Open(), Options{})
		two := openRing(t, deaf{store.Open()}, Options{})
		time.Sleep(5 * time.Second)
		before := asked.n.Load()
		began := time.Now()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				for k := range 10 {
					b := append(begin(int64(2+i*k)), make([]byte, 20)...)
					if _, err := two.Verify(t.Context(), "link", encoding.EncodeToString(b)); !errors.Is(err, ErrForged) {
						t.Errorf("a version that there is not: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n, took := asked.n.Load()-before, time.Since(began); n > int64(took/time.Second)+2 {
			t.Errorf("the ring was read %d times in %v", n, took)
		}
		if err := one.Revoke(t.Context(), leading(t, one.backend), 1); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		verifies(t, "signed with a key that only one knew", sign(t, one, "link", "x"), "x", nil, one, two)
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// deaf hears of no change.
type deaf struct{ coord.Backend }

type deafKeyring struct{ coord.Keyring }

func (d deaf) Keyring() coord.Keyring { return deafKeyring{d.Backend.Keyring()} }

func (deafKeyring) Changes() (<-chan struct{}, func()) { return nil, func() {} }

// What is revoked is void on all replicas as they hear of it, and at the next poll if they don't.
func TestRevoking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		one := openRing(t, store.Open(), Options{})
		two, deaf := openRing(t, store.Open(), Options{}), openRing(t, deaf{store.Open()}, Options{})
		fenced := leading(t, one.backend)
		hear := func(wait time.Duration) {
			time.Sleep(wait)
			synctest.Wait()
		}
		token, other := sign(t, one, "link", "x"), sign(t, two, "link", "y")
		time.Sleep(time.Second)
		if err := one.RevokeToken(t.Context(), fenced, TokenID(token), time.Hour); err != nil {
			t.Fatal(err)
		}
		hear(time.Second)
		verifies(t, "a token that was revoked", token, "", ErrForged, one, two)
		verifies(t, "another token", other, "y", nil, one, two, deaf)
		hear(30 * time.Second)
		verifies(t, "a token that was revoked, at the next poll", token, "", ErrForged, deaf)

		rotate(t, one, Rotation{Early: true})
		if err := one.Revoke(t.Context(), fenced, 1); err != nil || states(one) != "1 retired, 2 active" {
			t.Fatalf("Revoke of the active key: %v; the keys are %s", err, states(one))
		}
		hear(time.Second)
		verifies(t, "what the revoked key has signed", other, "", ErrForged, one, two)
		if err := one.Revoke(t.Context(), fenced, 2); err != nil || states(one) != "1 retired, 2 retired, 3 active" {
			t.Fatalf("Revoke of the active key without a next one: %v; the keys are %s", err, states(one))
		}
		verifies(t, "what the new key signs", sign(t, one, "link", "z"), "z", nil, one, two, deaf)
		for _, version := range []int64{1, 9} {
			if err := one.Revoke(t.Context(), fenced, version); !errors.Is(err, coord.ErrConflict) {
				t.Errorf("Revoke of key %d: %v", version, err)
			}
		}
	})
}

// While the store is away what is known is used, for a day; what is not known is not called forged.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		var away atomic.Bool
		cut := coordtest.Faulty(store.Open(), func(op string, _ int) coordtest.Fault {
			return coordtest.Fault{Fail: away.Load() && op == "keyring.load"}
		})
		var log bytes.Buffer
		one := openRing(t, store.Open(), Options{Poll: 10 * time.Minute})
		two := openRing(t, cut, Options{Poll: 10 * time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		token := sign(t, one, "link", "x")
		away.Store(true)
		if _, err := Open(t.Context(), cut, Options{Name: "tokens"}); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Open: %v", err)
		}
		if err := one.Revoke(t.Context(), leading(t, one.backend), 1); err != nil {
			t.Fatal(err)
		}
		newer := sign(t, one, "link", "y")
		time.Sleep(day - time.Minute)
		verifies(t, "what was known, in an outage", token, "x", nil, two)
		verifies(t, "what was signed by who is cut off", sign(t, two, "link", "z"), "z", nil, two)
		verifies(t, "a version that can't be looked for", newer, "", coord.ErrUnavailable, two)
		verifies(t, "no token at all", "x", "", ErrForged, two)
		time.Sleep(2 * time.Minute)
		verifies(t, "what was known a day ago", token, "", coord.ErrUnavailable, two)
		if _, err := two.Sign("link", nil); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Sign with what was known a day ago: %v", err)
		}
		away.Store(false)
		verifies(t, "after the outage", newer, "y", nil, two)
		verifies(t, "what was revoked in the outage", token, "", ErrForged, two)
		two.Close()
		if text := log.String(); strings.Count(text, "keys can't be loaded") != 1 || strings.Count(text, "keys are loaded again") != 1 {
			t.Errorf("an outage is told of once, and its end:\n%s", text)
		}
		verifies(t, "after Close", newer, "", coord.ErrClosed, two)
	})
}

// stuck is a store whose next look stays without an answer.
type stuck struct {
	coord.Backend
	next *atomic.Bool
}

type stuckKeyring struct {
	coord.Keyring
	next *atomic.Bool
}

func (s stuck) Keyring() coord.Keyring { return stuckKeyring{s.Backend.Keyring(), s.next} }

func (s stuckKeyring) Load(ctx context.Context, known coord.Ring) (coord.Ring, error) {
	if s.next.Swap(false) {
		<-ctx.Done()
		return coord.Ring{}, ctx.Err()
	}
	return s.Keyring.Load(ctx, known)
}

// A look that gets no answer, of a caller who has time, keeps nobody else from looking for long.
func TestALookWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		var next atomic.Bool
		one, two := openRing(t, store.Open(), Options{}), openRing(t, stuck{store.Open(), &next}, Options{})
		time.Sleep(time.Second)
		next.Store(true)
		go func() { _ = two.Reload(context.WithoutCancel(t.Context())) }()
		synctest.Wait()
		if err := one.Revoke(t.Context(), leading(t, one.backend), 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := two.Reload(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who has less time: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if data, err := two.Verify(ctx, "link", sign(t, one, "link", "x")); err != nil || string(data) != "x" {
			t.Errorf("Verify: %q, %v", data, err)
		}
	})
}

// What was heard of while it could not be loaded is loaded soon after.
func TestAHintInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		var away atomic.Bool
		cut := coordtest.Faulty(store.Open(), func(op string, _ int) coordtest.Fault {
			return coordtest.Fault{Fail: away.Load() && op == "keyring.load"}
		})
		one, two := openRing(t, store.Open(), Options{}), openRing(t, cut, Options{})
		token := sign(t, one, "link", "x")
		time.Sleep(3 * time.Second)
		away.Store(true)
		if err := one.RevokeToken(t.Context(), leading(t, one.backend), TokenID(token), time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		verifies(t, "a token that was revoked, as far as is known", token, "x", nil, two)
		away.Store(false)
		time.Sleep(6 * time.Second)
		verifies(t, "a token that was revoked, after the outage", token, "", ErrForged, two)
	})
}

func kek(t testing.TB) KEK {
	t.Helper()
	k, err := ParseKEK(NewKEK())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The KEK is replaced while three replicas run: none ever refuses what another signs, nothing is stored
// that can be read without one, and who has the wrong one does not begin.
func TestKEKs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		old, other := kek(t), kek(t)
		plain := openRing(t, store.Open(), rarely())
		if k := plain.known.Load().Keys[0]; k.SealedBy != "" || !bytes.Equal(k.Material, plain.known.Load().secrets[1]) {
			t.Errorf("without a KEK the key is stored as %+v", k)
		}
		token := sign(t, plain, "link", "x")
		sealed := func(r *Ring, by KEK) {
			t.Helper()
			v := r.known.Load()
			for _, k := range v.Keys {
				if k.SealedBy != by.ID() || bytes.Contains(k.Material, v.secrets[k.Version]) {
					t.Errorf("key %d is sealed by %q; want %q", k.Version, k.SealedBy, by.ID())
				}
			}
		}
		one := openRing(t, store.Open(), rarely(old))
		rotate(t, one, Rotation{})
		if got := one.Stored().Keys[0].SealedBy; got != "" {
			t.Errorf("a rotation that was not asked for has sealed a key by %s", got)
		}
		rotate(t, one, Rotation{Early: true})
		sealed(one, old)

		both := openRing(t, store.Open(), rarely(other, old))
		rotate(t, both, Rotation{Early: true})
		sealed(both, other)
		time.Sleep(2 * time.Second)
		synctest.Wait() // all have heard of it
		verifies(t, "while the KEK is replaced", token, "x", nil, one, both, plain)
		verifies(t, "while the KEK is replaced", sign(t, one, "link", "y"), "y", nil, one, both, plain)
		openRing(t, store.Open(), rarely(other))

		for name, keks := range map[string][]KEK{"none": nil, "the old one": {old}, "a third": {kek(t), old}} {
			_, err := Open(t.Context(), store.Open(), Options{Name: "tokens", KEKs: keks})
			if e, ok := errors.AsType[*KEKError](err); !ok || e.SealedBy != other.ID() || e.Ring != "tokens" || e.Broken {
				t.Errorf("Open with %s: %v", name, err)
			}
		}
		if got := states(both); got != "1 active, 2 next" {
			t.Errorf("after that the keys are %s", got)
		}

		// A key that one replica can't open does not make it call forged what that key has signed.
		if err := both.Revoke(t.Context(), leading(t, both.backend), 1); err != nil {
			t.Fatal(err)
		}
		if err := both.Revoke(t.Context(), leading(t, both.backend), 2); err != nil {
			t.Fatal(err)
		}
		verifies(t, "signed with a key that can't be opened", sign(t, both, "link", "z"), "", coord.ErrUnavailable, one)
		if _, err := one.Sign("link", nil); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("Sign without the key: %v", err)
		}
		if _, err := one.Rotate(t.Context(), leading(t, one.backend), Rotation{Early: true}); err == nil {
			t.Error("Rotate has sealed what it could not open")
		}

		// Who lacks the KEK adds no key either, nor one that anybody could read.
		for name, r := range map[string]*Ring{"the old one": one, "none": plain} {
			time.Sleep(40 * day)
			if changed, err := r.Rotate(t.Context(), leading(t, r.backend), Rotation{}); changed || !isKEKError(err, other) {
				t.Errorf("Rotate by who has %s: %v, %v", name, changed, err)
			}
		}

		// What was changed in the store, or moved there, is not opened.
		fenced := leading(t, both.backend)
		k := both.known.Load().Keys[2]
		k.Material[20]++
		err := fenced(t.Context(), func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.ChangeRing(ctx, coord.RingChange{
				Ring: "tokens", Revision: both.Stored().Revision, Keys: []coord.KeyChange{{Version: 3, Material: k.Material, SealedBy: k.SealedBy}},
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(t.Context(), store.Open(), Options{Name: "tokens", KEKs: []KEK{other}})
		if e, ok := errors.AsType[*KEKError](err); !ok || !e.Broken {
			t.Errorf("Open of a key that was changed: %v", err)
		}
	})
}

func isKEKError(err error, sealedBy KEK) bool {
	e, ok := errors.AsType[*KEKError](err)
	return ok && !e.Broken && e.SealedBy == sealedBy.ID()
}

// While a KEK is given to one replica after the other, the one that has it may lead already: what it adds
// or replaces by itself those can use that do not have it yet.
func TestAKEKIsRolledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older, newer := kek(t), kek(t)
		for _, from := range [][]KEK{nil, {older}} {
			store := memory.NewStore(memory.Options{})
			before := openRing(t, store.Open(), rarely(from...))
			after := openRing(t, store.Open(), rarely(append([]KEK{newer}, from...)...))
			sealedBy := before.Stored().Keys[0].SealedBy
			check := func(why string) {
				t.Helper()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				for _, k := range before.Stored().Keys {
					if k.State != coord.KeyRetired && k.SealedBy != sealedBy {
						t.Errorf("%s: key %d, which is %s, is sealed by %q, want %q", why, k.Version, k.State, k.SealedBy, sealedBy)
					}
				}
				verifies(t, why, sign(t, after, "link", "x"), "x", nil, before, after)
				verifies(t, why, sign(t, before, "link", "x"), "x", nil, before, after)
			}
			time.Sleep(30 * day)
			rotate(t, after, Rotation{})
			check("a key was added")
			time.Sleep(day)
			rotate(t, after, Rotation{})
			check("it signs")
			rotate(t, after, Rotation{AtOnce: true})
			check("another signs at once")
			if err := after.Revoke(t.Context(), leading(t, after.backend), after.Active()); err != nil {
				t.Fatal(err)
			}
			check("one was revoked")
			rotate(t, after, Rotation{Early: true})
			for _, k := range after.Stored().Keys {
				if k.State != coord.KeyRetired && k.SealedBy != newer.ID() {
					t.Errorf("after a rotation that was asked for key %d is sealed by %q", k.Version, k.SealedBy)
				}
			}
		}
	})
}

// What is sealed for a transaction is sealed with the key that is active in the store, also by who has not
// heard of it, and by nobody who can't open it.
func TestSealIn(t *testing.T) {
	onEach(t, 3, func(t *testing.T, replicas []coord.Backend) {
		old, other := kek(t), kek(t)
		one := openRing(t, replicas[0], Options{KEKs: []KEK{old}})
		cut := openRing(t, deaf{replicas[1]}, Options{KEKs: []KEK{old}})
		seal := func(r *Ring, b coord.Backend) (sealed []byte, err error) {
			err = b.InTx(t.Context(), func(ctx context.Context, tx coord.Tx) (err error) {
				sealed, err = r.SealIn(ctx, tx, "secret", "7", []byte("data"))
				return err
			})
			return sealed, err
		}
		for version := int64(1); version < 4; version++ {
			sealed, err := seal(cut, replicas[1])
			if err != nil || SealedWith(sealed) != version {
				t.Errorf("SealIn: %v; sealed with key %d, want %d", err, SealedWith(sealed), version)
			}
			for i, r := range []*Ring{one, cut} {
				if plain, err := r.Open(t.Context(), "secret", "7", sealed); err != nil || string(plain) != "data" {
					t.Errorf("Open by replica %d: %q, %v", i, plain, err)
				}
			}
			if err := one.Revoke(t.Context(), leading(t, replicas[0]), version); err != nil {
				t.Fatal(err)
			}
		}
		both := openRing(t, replicas[2], Options{KEKs: []KEK{other, old}})
		rotate(t, both, Rotation{Early: true})
		rotate(t, both, Rotation{AtOnce: true})
		if sealed, err := seal(cut, replicas[1]); !errors.Is(err, coord.ErrUnavailable) || !isKEKError(err, other) {
			t.Errorf("SealIn by who can't open the key: %q, %v", sealed, err)
		}
		cut.Close()
		if _, err := seal(cut, replicas[1]); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("SealIn after Close: %v", err)
		}
	})
}

func TestParseKEK(t *testing.T) {
	text := NewKEK()
	k, err := ParseKEK(" " + text + "\n")
	if err != nil || k.ID() == "" || NewKEK() == text {
		t.Fatalf("%v, %v", k, err)
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", k, k, k, k); strings.Contains(shown, "[") || strings.Contains(shown, text) {
		t.Errorf("a KEK is shown as %s", shown)
	}
	for _, bad := range []string{"", "x", text[1:], text + "A", text + text, base64.StdEncoding.EncodeToString(make([]byte, 31))} {
		if _, err := ParseKEK(bad); err == nil || bad != "" && len(bad) > 1 && strings.Contains(err.Error(), bad) {
			t.Errorf("ParseKEK(%q): %v", bad, err)
		}
	}
}

func TestOptions(t *testing.T) {
	b := memory.Open(memory.Options{})
	for field, o := range map[string]Options{
		"Ring.Name":       {},
		"Options.Overlap": {Name: "x", Overlap: time.Second},
		"Options.Every":   {Name: "x", Every: time.Hour},
		"Options.Keep":    {Name: "x", Keep: time.Hour},
		"Options.Poll":    {Name: "x", Poll: -1},
		"Options.Stale":   {Name: "x", Stale: -1},
	} {
		_, err := Open(t.Context(), b, o)
		if e, ok := errors.AsType[*coord.InvalidError](err); !ok || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Purposes and contexts keep apart what belongs apart, and nothing that was changed in any bit is
// good.
func TestForged(t *testing.T) {
	b := memory.Open(memory.Options{})
	r, another := openRing(t, b, Options{gap: time.Millisecond}), openRing(t, b, Options{Name: "another"})
	token := sign(t, r, "link", "data")
	verifies(t, "the token itself", token, "data", nil, r)
	verifies(t, "of another ring", token, "", ErrForged, another)
	verifies(t, "for another purpose", sign(t, r, "cursor", "data"), "", ErrForged, r)
	raw, _ := encoding.DecodeString(token)
	sealed, err := r.Seal("secret", "7", []byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := r.Open(t.Context(), "secret", "7", sealed); err != nil || string(plain) != "data" || SealedWith(sealed) != 1 {
		t.Errorf("Open: %q, %v", plain, err)
	}
	if empty, err := r.Seal("secret", "7", nil); err != nil {
		t.Error(err)
	} else if plain, err := r.Open(t.Context(), "secret", "7", empty); err != nil || plain == nil || len(plain) > 0 {
		t.Errorf("Open of nothing: %q, %v", plain, err)
	}
	for why, open := range map[string]func() ([]byte, error){
		"purpose": func() ([]byte, error) { return r.Open(t.Context(), "x", "7", sealed) },
		"context": func() ([]byte, error) { return r.Open(t.Context(), "secret", "8", sealed) },
		"ring":    func() ([]byte, error) { return another.Open(t.Context(), "secret", "7", sealed) },
	} {
		if plain, err := open(); !errors.Is(err, ErrForged) {
			t.Errorf("Open with another %s: %q, %v", why, plain, err)
		}
	}
	for i := range len(raw) * 8 {
		changed := bytes.Clone(raw)
		changed[i/8] ^= 1 << (i % 8)
		verifies(t, fmt.Sprint("with another bit ", i), encoding.EncodeToString(changed), "", ErrForged, r)
	}
	for i := range len(token) + 1 { // decoders pass over the ends of lines
		for _, end := range []string{"\n", "\r", "\r\n"} {
			text := token[:i] + end + token[i:]
			verifies(t, fmt.Sprintf("with %q at %d", end, i), text, "", ErrForged, r)
			if TokenID(text) != "" {
				t.Errorf("with %q at %d it can be revoked", end, i)
			}
		}
	}
	for i := range raw {
		verifies(t, fmt.Sprint("cut off at ", i), encoding.EncodeToString(raw[:i]), "", ErrForged, r)
	}
	for i := range len(sealed) * 8 {
		changed := bytes.Clone(sealed)
		changed[i/8] ^= 1 << (i % 8)
		if plain, err := r.Open(t.Context(), "secret", "7", changed); !errors.Is(err, ErrForged) {
			t.Errorf("sealed, with another bit %d: %q, %v", i, plain, err)
		}
	}
	for i := range sealed {
		if plain, err := r.Open(t.Context(), "secret", "7", sealed[:i]); !errors.Is(err, ErrForged) {
			t.Errorf("sealed, cut off at %d: %q, %v", i, plain, err)
		}
	}
}

// FuzzVerify wants nothing to be good but what was signed, in one form.
func FuzzVerify(f *testing.F) {
	b := memory.Open(memory.Options{})
	r, err := Open(f.Context(), b, Options{Name: "tokens", gap: time.Nanosecond})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Close)
	good := sign(f, r, "link", "data")
	for _, s := range []string{good, good[:10], good + "A", good + "=", "", "AQ", "AQE", "AQH_____________w", "AYCAgICAgICAgAE", good + "\n", "\r\n" + good, strings.Repeat("A", 1000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		data, err := r.Verify(t.Context(), "link", token)
		if token == good {
			if err != nil || string(data) != "data" {
				t.Errorf("what was signed: %q, %v", data, err)
			}
			return
		}
		if !errors.Is(err, ErrForged) || data != nil {
			t.Errorf("%q: %q, %v", token, data, err)
		}
		if _, err := r.Open(t.Context(), "link", "", []byte(token)); !errors.Is(err, ErrForged) {
			t.Errorf("opened %q: %v", token, err)
		}
	})
}
