package presence_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
	"github.com/tandemhq/tandem/internal/apptest"
)

// A person is online while one connection is, away when all are, and offline without.
func TestStates(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann, other := r.users[0], r.users[1]
		r.expect(t, "at first", ann, presence.Offline)
		first := r.one.connect(t, ann, "a")
		r.expect(t, "connected", ann, presence.Online)
		r.one.Announce(t.Context())
		second := r.two.connect(t, ann, "b")
		r.two.Announce(t.Context())
		r.one.setState(t, ann, "a", presence.Away)
		r.one.Announce(t.Context())
		r.expect(t, "away in one of two", ann, presence.Online)
		r.two.announced(t, "connected twice", is(ann, presence.Online))

		r.two.setState(t, ann, "b", presence.Away)
		r.two.Announce(t.Context())
		r.expect(t, "away in both", ann, presence.Away)
		r.one.setState(t, ann, "a", presence.Online)
		r.one.Announce(t.Context())
		r.expect(t, "back in one", ann, presence.Online)
		first()
		first()
		r.one.Announce(t.Context())
		r.expect(t, "with one that is away", ann, presence.Away)
		second()
		r.two.Announce(t.Context())
		r.expect(t, "with none", ann, presence.Offline)
		r.two.announced(t, "until offline", is(ann, presence.Away), is(ann, presence.Online), is(ann, presence.Away), is(ann, presence.Offline))
		r.expect(t, "who was never there", other, presence.Offline)
		if keys := r.entries(t); len(keys) > 0 {
			t.Errorf("the directory still has %q", keys)
		}

		states, err := r.one.Of(t.Context(), ann.ID, other.ID, 12345)
		if err != nil || len(states) != 2 || states[ann.ID].LastSeen.IsZero() || !states[other.ID].LastSeen.IsZero() {
			t.Errorf("the states are %+v, %v", states, err)
		}
		if err := r.one.SetState(t.Context(), ann.ID, "a", presence.Away); !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("SetState of what was released: %v", err)
		}
		if err := r.one.SetState(t.Context(), ann.ID, "a", presence.Offline); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("SetState to offline: %v", err)
		}
	})
}

// Who calls a tool gets the connection where the person is.
func TestConnections(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann := r.users[0]
		expect := func(when string, want ...string) {
			t.Helper()
			got, err := r.two.Connections(t.Context(), ann.ID)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: the connections are %q, %v; want %q", when, got, err, want)
			}
		}
		expect("at first")
		r.one.connect(t, ann, "a")
		r.Advance(t, time.Second)
		r.two.connect(t, ann, "b/c")
		r.Advance(t, time.Second)
		r.one.connect(t, r.users[1], "other")
		expect("connected", "b/c", "a")
		r.one.setState(t, ann, "a", presence.Online)
		expect("at the older one", "a", "b/c")
		r.Advance(t, time.Second)
		r.one.setState(t, ann, "a", presence.Away)
		expect("gone away from it", "b/c", "a")
	})
}

// kill -9 of a replica: its presence is gone within the lease, and that is announced
// once.
func TestVanished(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann, ben, cat := r.users[0], r.users[1], r.users[2]
		r.one.connect(t, ann, "a1")
		r.one.connect(t, ann, "a2")
		r.one.connect(t, ben, "b1")
		r.two.connect(t, ben, "b2")
		r.two.connect(t, cat, "c1")
		r.one.Announce(t.Context())
		r.two.Announce(t.Context())
		r.two.announced(t, "connected", is(ann, presence.Online), is(ben, presence.Online), is(cat, presence.Online))

		r.Advance(t, lease/2)
		r.two.Beat(t.Context())
		r.Advance(t, lease/2-time.Microsecond)
		r.expect(t, "before the lease ends", ann, presence.Online)
		r.Advance(t, time.Microsecond)
		r.expect(t, "when it has ended", ann, presence.Offline)
		r.expect(t, "connected elsewhere", ben, presence.Online)
		third := r.start(t, nil)
		for _, rp := range []*replica{third, r.two} {
			rp.Sweep(t.Context())
			rp.Announce(t.Context())
		}
		r.two.announced(t, "when it has ended", is(ann, presence.Offline))
		slices.Sort(third.gone)
		if want := []string{of(ann, "a1"), of(ann, "a2"), of(ben, "b1")}; !slices.Equal(third.gone, want) || len(r.two.gone) > 0 {
			t.Errorf("gone are %q and %q, want %q", third.gone, r.two.gone, want)
		}
		r.expect(t, "of a replica that lives", cat, presence.Online)
	})
}

// A slow old disconnect after a new connect removes nothing, and the loser hears.
func TestReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann := r.users[0]
		slow := r.one.connect(t, ann, "same")
		r.two.connect(t, ann, "same")
		slow()
		r.one.Beat(t.Context())
		r.expect(t, "after a late release", ann, presence.Online)
		if len(r.one.replaced) > 0 {
			t.Errorf("replaced are %q, which were released", r.one.replaced)
		}

		r.one.connect(t, ann, "same")
		r.two.Beat(t.Context())
		r.two.Beat(t.Context())
		if want := []string{of(ann, "same")}; !slices.Equal(r.two.replaced, want) || len(r.one.replaced) > 0 {
			t.Errorf("replaced are %q and %q, want none and %q", r.one.replaced, r.two.replaced, want)
		}
		if err := r.two.SetState(t.Context(), ann.ID, "same", presence.Away); !errors.Is(err, coord.ErrNotFound) {
			t.Errorf("SetState of what was replaced: %v", err)
		}
		r.two.Beat(t.Context()) // what it may have left is looked for
		r.expect(t, "in the end", ann, presence.Online)

		// On one replica.
		r.one.connect(t, ann, "same")
		if want := []string{of(ann, "same")}; !slices.Equal(r.one.replaced, want) {
			t.Errorf("replaced are %q, want %q", r.one.replaced, want)
		}
		r.one.Beat(t.Context())
		r.expect(t, "of the same replica", ann, presence.Online)
		if len(r.one.replaced) != 1 {
			t.Errorf("replaced are %q", r.one.replaced)
		}
	})
}

// A replica that was frozen past its lease finds out, joins and registers anew, but
// for what was taken over meanwhile.
func TestFrozen(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann, ben := r.users[0], r.users[1]
		release := r.one.connect(t, ann, "a")
		r.one.connect(t, ben, "b")
		r.one.connect(t, ben, "moved")
		r.one.setState(t, ben, "b", presence.Away)
		r.one.Announce(t.Context())
		for _, swept := range []bool{true, false} {
			r.Advance(t, lease)
			if swept {
				r.two.Sweep(t.Context())
				r.two.Announce(t.Context())
				r.two.announced(t, "swept", is(ann, presence.Online), is(ben, presence.Online), is(ann, presence.Offline), is(ben, presence.Offline))
				r.two.connect(t, ben, "moved")
			}
			r.expect(t, "frozen", ann, presence.Offline)
			if swept {
				r.one.Beat(t.Context())
			} else {
				r.one.setState(t, ann, "a", presence.Away) // finds out by itself
				r.one.Beat(t.Context())
			}
			r.two.Beat(t.Context())
			if want := []string{of(ben, "moved")}; !slices.Equal(r.one.replaced, want) || len(r.two.replaced) > 0 {
				t.Errorf("replaced are %q and %q, want %q", r.one.replaced, r.two.replaced, want)
			}
			want := []string{
				fmt.Sprintf("user/%d/a", ann.ID), fmt.Sprintf("user/%d/b", ben.ID), fmt.Sprintf("user/%d/moved", ben.ID),
			}
			if got := r.entries(t); !slices.Equal(got, want) {
				t.Errorf("the directory has %q, want %q", got, want)
			}
		}
		r.expect(t, "registered anew", ann, presence.Away)
		r.expect(t, "registered anew and elsewhere", ben, presence.Online)
		r.one.Announce(t.Context())
		r.two.announced(t, "registered anew", is(ann, presence.Away), is(ben, presence.Online))
		release()
		r.expect(t, "released", ann, presence.Offline)

		// One that is connected when the lease has ended makes the replica join too.
		r.Advance(t, lease)
		r.one.connect(t, ann, "again")
		r.one.Beat(t.Context())
		r.expect(t, "connected", ann, presence.Online)
		connections, err := r.one.Connections(t.Context(), ben.ID)
		if err != nil || !slices.Equal(connections, []string{"b"}) {
			t.Errorf("the connections of the other are %q, %v", connections, err)
		}
	})
}

// faulty is a replica between which and the store there are faults.
func (r *rig) faulty(t *testing.T, plan coordtest.Plan) *replica {
	t.Helper()
	return r.start(t, func(b coord.Backend) coord.Backend { return coordtest.Faulty(b, plan) })
}

// That the directory can't be read is an error, and never means that nobody is there.
func TestUnreadable(t *testing.T) {
	r := newRig(t, apptest.StoppedMemory(t))
	away := r.faulty(t, coordtest.Random(1, coordtest.Rates{Fail: 1}, "directory.list"))
	ann := r.users[0]
	r.one.connect(t, ann, "a")
	r.one.Announce(t.Context())
	if states, err := away.Of(t.Context(), ann.ID); !errors.Is(err, coord.ErrUnavailable) || states != nil {
		t.Errorf("Of: %v, %v", states, err)
	}
	if list, err := away.Show(t.Context(), ann, ann.ID); !errors.Is(err, coord.ErrUnavailable) || list != nil {
		t.Errorf("Show: %v, %v", list, err)
	}
	if list, err := away.Connections(t.Context(), ann.ID); !errors.Is(err, coord.ErrUnavailable) || list != nil {
		t.Errorf("Connections: %v, %v", list, err)
	}
	away.connect(t, ann, "b")
	away.Announce(t.Context())
	if away.Waiting() != 1 {
		t.Errorf("%d announcements wait, want 1", away.Waiting())
	}
	r.two.announced(t, "by the replica that can't read", is(ann, presence.Online))
}

// Whatever answers are lost, in the end the directory has the connections that there
// are.
func TestLostAnswers(t *testing.T) {
	r := newRig(t, apptest.StoppedMemory(t))
	rates := coordtest.Rates{Fail: 0.2, Cut: 0.3}
	away := r.faulty(t, coordtest.Random(4, rates, "member.register", "member.deregister", "member.update", "directory.lookup"))
	want := make(map[string]bool)
	for i := range 60 {
		user := r.users[i%len(r.users)]
		id := fmt.Sprint("c", i)
		release, err := away.Connected(t.Context(), user.ID, id)
		if err != nil {
			continue
		}
		if i%3 == 0 {
			release(t.Context())
			continue
		}
		want[fmt.Sprintf("user/%d/%s", user.ID, id)] = true
	}
	if len(want) < 10 {
		t.Fatalf("only %d connections came about", len(want))
	}
	for _, when := range []string{"in the end", "when all are registered anew"} {
		for range 30 {
			away.Beat(t.Context())
		}
		got := make(map[string]bool)
		for _, key := range r.entries(t) {
			got[key] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s the directory has %v, want %v", when, got, want)
		}
		r.Advance(t, lease)
	}
}

// What else is to be ended with a connection is, when the store was away as it ended.
func TestGoneInAnOutage(t *testing.T) {
	r := newRig(t, apptest.StoppedMemory(t))
	away := r.faulty(t, func(op string, n int) coordtest.Fault {
		return coordtest.Fault{Fail: op == "member.deregister" && n <= 2}
	})
	ann := r.users[0]
	release := away.connect(t, ann, "a")
	away.connect(t, ann, "b")
	release()
	for range 3 {
		away.Beat(t.Context())
	}
	if want := []string{of(ann, "a")}; !slices.Equal(away.gone, want) {
		t.Errorf("gone are %q, want %q", away.gone, want)
	}
}

// between is a backend that does something after it was read, and before the reader
// has the answer.
type between struct {
	coord.Backend
	after func()
}

func (b between) Directory() coord.Directory { return betweenDirectory{b.Backend.Directory(), b.after} }

type betweenDirectory struct {
	coord.Directory
	after func()
}

func (d betweenDirectory) List(ctx context.Context, f coord.EntryFilter) ([]coord.Entry, error) {
	list, err := d.Directory.List(ctx, f)
	d.after()
	return list, err
}

// Who announces last what is older notices.
func TestOlderLook(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann := r.users[0]
		var meanwhile func()
		slow := r.start(t, func(b coord.Backend) coord.Backend {
			return between{b, func() {
				if do := meanwhile; do != nil {
					meanwhile = nil
					do()
				}
			}}
		})
		release := slow.connect(t, ann, "a")
		slow.Announce(t.Context())
		release()
		meanwhile = func() { // it has seen nobody
			r.two.connect(t, ann, "b")
			r.two.Announce(t.Context()) // which is no news
		}
		slow.Announce(t.Context())
		r.two.announced(t, "in the end", is(ann, presence.Online), is(ann, presence.Offline), is(ann, presence.Online))
	})
}

// Of many who announce the same change one does.
func TestAnnouncedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann := r.users[0]
		all := []*replica{r.one, r.two, r.start(t, nil), r.start(t, nil)}
		for range 5 {
			var releases []func()
			for i, rp := range all {
				releases = append(releases, rp.connect(t, ann, fmt.Sprint("c", i)))
			}
			together(all, func(rp *replica) { rp.Announce(t.Context()) })
			r.two.announced(t, "connected", is(ann, presence.Online))
			for _, release := range releases {
				release()
			}
			together(all, func(rp *replica) { rp.Announce(t.Context()) })
			r.two.announced(t, "released", is(ann, presence.Offline))
		}
	})
}

func together(all []*replica, do func(*replica)) {
	var callers sync.WaitGroup
	for _, rp := range all {
		callers.Go(func() { do(rp) })
	}
	callers.Wait()
}

// What a replica had no time to announce, because it died, is announced by another.
func TestUnannounced(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann, ben := r.users[0], r.users[1]
		release := r.one.connect(t, ann, "a")
		r.one.connect(t, ben, "b")
		r.one.Announce(t.Context())
		before, err := r.two.Of(t.Context(), ann.ID)
		if err != nil {
			t.Fatal(err)
		}
		release()
		r.Advance(t, time.Minute)
		r.two.Check(t.Context())
		r.two.Announce(t.Context())
		r.two.announced(t, "checked", is(ann, presence.Online), is(ben, presence.Online), is(ann, presence.Offline), is(ben, presence.Offline))
		after, err := r.two.Of(t.Context(), ann.ID)
		if err != nil || !after[ann.ID].LastSeen.Equal(before[ann.ID].LastSeen.Time) {
			t.Errorf("nobody knows when they were last seen, and it is %v after %v, %v", after, before, err)
		}
	})
}

// Guests see those with whom they are in a room.
func TestShow(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ann, ben, cat := r.users[0], r.users[1], r.users[2]
		r.one.connect(t, ann, "a")
		r.one.connect(t, cat, "c")
		r.one.Announce(t.Context())
		var guest store.User
		err := r.one.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
			if guest, err = u.AddUser(ctx, store.NewUser{Name: "guest", Role: store.Guest, PasswordHash: "x"}); err != nil {
				return err
			}
			room, err := u.AddRoom(ctx, store.Private, "room", "", ann.ID)
			if err != nil {
				return err
			}
			for _, user := range []int64{ann.ID, ben.ID, guest.ID} {
				if _, err := u.AddMember(ctx, room.ID, user, store.RoomMember); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			by   store.User
			want string
		}{
			{ann, fmt.Sprint(is(ann, "online"), is(ben, "offline"), is(cat, "online"))},
			{guest, fmt.Sprint(is(ann, "online"), is(ben, "offline"))},
		} {
			list, err := r.two.Show(t.Context(), c.by, cat.ID, ann.ID, ben.ID, 12345)
			got := ""
			for _, s := range list {
				got += fmt.Sprint(s.UserID, ":", s.State)
			}
			if err != nil || got != c.want {
				t.Errorf("%s is shown %q, %v; want %q", c.by.Name, got, err, c.want)
			}
		}
	})
}

// observer counts operations.
type observer struct {
	mu  sync.Mutex
	ops map[string]int
}

func (o *observer) Observe(_ context.Context, seen coord.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ops[seen.Op]++
}

func (o *observer) take() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	ops := o.ops
	o.ops = make(map[string]int)
	return ops
}

// By the clock: a lease is kept, by one statement however many connections there are,
// who comes back soon was never away, and who stops leaves.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch := &observer{ops: make(map[string]int)}
		r := &rig{Database: apptest.Memory(t, time.Now)}
		_, _ = r.Open(t, coord.Options{Observer: watch}) // whose options are those of all
		r.one, r.two = r.start(t, nil), r.start(t, nil)
		err := r.one.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			for i := range 3 {
				user, err := u.AddUser(ctx, store.NewUser{Name: fmt.Sprint("user", i), Role: store.Member, PasswordHash: "x"})
				r.users = append(r.users, user)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		one := presence.New(r.one.store, r.one.backend, metrics.New("", ""), presence.Options{}, slog.New(slog.DiscardHandler))
		two := presence.New(r.two.store, r.two.backend, metrics.New("", ""), presence.Options{}, slog.New(slog.DiscardHandler))
		r.one.Service, r.two.Service = one, two
		ctx, stop := context.WithCancel(t.Context())
		ctx2, stop2 := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- one.Run(ctx) }()
		go func() { ended <- two.Run(ctx2) }()

		ann, ben, cat := r.users[0], r.users[1], r.users[2]
		for i := range 500 {
			r.one.connect(t, ann, fmt.Sprint("a", i))
		}
		synctest.Wait()
		release := r.two.connect(t, ben, "b")
		synctest.Wait()
		r.two.announced(t, "connected", is(ann, presence.Online), is(ben, presence.Online))
		time.Sleep(5 * time.Second)
		watch.take()
		time.Sleep(10 * time.Minute)
		r.expect(t, "after ten minutes", ann, presence.Online)
		// 10 minutes by 10 s, on two replicas; nothing changes, so nothing else is written.
		if ops := watch.take(); ops["member.renew"] < 110 || ops["member.renew"] > 122 || ops["member.register"]+ops["backend.tx"] > 0 {
			t.Errorf("in ten minutes of quiet: %v", ops)
		}

		release() // and comes back
		time.Sleep(4 * time.Second)
		r.expect(t, "gone for a moment", ben, presence.Offline)
		release = r.one.connect(t, ben, "b2")
		time.Sleep(10 * time.Second)
		r.two.announced(t, "gone for a moment")
		release()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		r.two.announced(t, "gone", is(ben, presence.Offline))

		r.two.connect(t, cat, "c")
		synctest.Wait()
		r.two.announced(t, "connected", is(cat, presence.Online))
		stop2()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if _, err := two.Connected(t.Context(), cat.ID, "late"); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("Connected after Run: %v", err)
		}
		r.one.announced(t, "of a replica that has stopped",
			is(ann, presence.Online), is(ben, presence.Online), is(ben, presence.Offline), is(cat, presence.Online), is(cat, presence.Offline))
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestSlowRenewal has one renewal in three hang until it is given up, which ends no lease.
func TestSlowRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Database: apptest.Memory(t, time.Now)}
		slow := r.faulty(t, func(op string, n int) coordtest.Fault {
			if op == "member.renew" && n%3 == 2 {
				return coordtest.Fault{Delay: time.Minute}
			}
			return coordtest.Fault{}
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- slow.Run(ctx) }()
		began := time.Now()
		time.Sleep(10 * time.Minute)
		members, err := slow.backend.Directory().Members(t.Context())
		if err != nil || len(members) != 1 || members[0].Since.Sub(began) > time.Second {
			t.Errorf("the members since %v are %+v, %v", began, members, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// What is to be announced when the replica stops is left for the end.
func TestStoppedAnnouncement(t *testing.T) {
	r := newRig(t, apptest.StoppedMemory(t))
	r.one.connect(t, r.users[0], "a")
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	r.one.Announce(stopped)
	if r.one.Waiting() != 1 {
		t.Errorf("%d announcements wait, want 1", r.one.Waiting())
	}
}

// unreadable is a database that can't be read for a while.
type unreadable struct{ atomic.Bool }

func (u *unreadable) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	if !u.Load() {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func (u *unreadable) AfterQuery(context.Context, *bun.QueryEvent) {}

// A comparison that was not possible is made when it is, not in its next turn.
func TestCheckedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Database: apptest.Memory(t, time.Now)}
		b, o := r.Open(t, coord.Options{})
		away := new(unreadable)
		o.Read = o.Write.WithQueryHook(away)
		st := store.New(o)
		b = coordtest.Faulty(b, func(op string, n int) coordtest.Fault {
			return coordtest.Fault{Cut: op == "directory.sweep" && n == 10}
		})
		var ann int64
		announce := func(state string) {
			err := st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
				if ann == 0 {
					user, err := u.AddUser(ctx, store.NewUser{Name: "ann", Role: store.Member, PasswordHash: "x"})
					if ann = user.ID; err != nil {
						return err
					}
				}
				_, err := u.SetPresence(ctx, ann, state, true)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		expect := func(when string) {
			t.Helper()
			if p, err := st.Presence(t.Context(), ann); err != nil || p[0].State != presence.Offline {
				t.Errorf("%s: announced is %+v, %v", when, p, err)
			}
		}
		service := presence.New(st, b, metrics.New("", ""), presence.Options{}, slog.New(slog.DiscardHandler))
		announce(presence.Online) // by a replica that has crashed
		away.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- service.Run(ctx) }()
		time.Sleep(5 * time.Second)
		away.Store(false)
		time.Sleep(time.Minute)
		expect("in the beginning")

		announce(presence.Online) // the tenth sweep, 67 to 203 seconds from the beginning, has an unknown outcome
		away.Store(true)
		time.Sleep(145 * time.Second)
		away.Store(false)
		time.Sleep(time.Minute)
		expect("after a sweep of which nothing is known")
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
