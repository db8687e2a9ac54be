package presence_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/metrics"
	"github.com/tandemhq/tandem/app/presence"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
)

const (
	lease    = 30 * time.Second
	patience = 20 * time.Second // for what should happen at once
)

// rig are replicas on one database. None of them runs: a test makes their steps.
type rig struct {
	*apptest.Database
	one, two *replica
	users    []store.User
}

// replica is a service with what it told.
type replica struct {
	*presence.Service
	backend coord.Backend
	store   *store.Store
	stream  coord.Stream // of what is announced

	mu       sync.Mutex
	replaced []string
	gone     []string
}

func newRig(t *testing.T, db *apptest.Database) *rig {
	t.Helper()
	r := &rig{Database: db}
	r.one = r.start(t, nil)
	r.two = r.start(t, nil)
	err := r.one.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
		for i := range 5 {
			user, err := u.AddUser(ctx, store.NewUser{Name: fmt.Sprint("user", i), Role: store.Member, PasswordHash: "x"})
			if err != nil {
				return err
			}
			r.users = append(r.users, user)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start adds a replica whose service sees the backend through a wrapper, if there is
// one.
func (r *rig) start(t *testing.T, through func(coord.Backend) coord.Backend) *replica {
	t.Helper()
	b, st := r.Store(t)
	seen := b
	if through != nil {
		seen = through(b)
	}
	rp := &replica{backend: b, store: st}
	rp.Service = presence.New(st, seen, metrics.New("", ""), presence.Options{Node: "n", Lease: lease, Linger: -1},
		slog.New(slog.DiscardHandler))
	rp.OnReplaced(func(user int64, id string) { rp.note(&rp.replaced, user, id) })
	rp.OnGone(func(_ context.Context, user int64, id string) { rp.note(&rp.gone, user, id) })
	var err error
	if rp.stream, err = b.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{presence.Topic: coord.Head}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rp.stream.Close)
	return rp
}

func (rp *replica) note(list *[]string, user int64, id string) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	*list = append(*list, fmt.Sprint(user, "/", id))
}

func (rp *replica) connect(t *testing.T, user store.User, id string) (release func()) {
	t.Helper()
	free, err := rp.Connected(t.Context(), user.ID, id)
	if err != nil {
		t.Fatalf("Connected: %v", err)
	}
	return func() { free(t.Context()) }
}

func (rp *replica) setState(t *testing.T, user store.User, id, state string) {
	t.Helper()
	if err := rp.SetState(t.Context(), user.ID, id, state); err != nil {
		t.Fatalf("SetState: %v", err)
	}
}

// expect checks the state of a user, as every replica sees it.
func (r *rig) expect(t *testing.T, when string, user store.User, want string) {
	t.Helper()
	for _, rp := range []*replica{r.one, r.two} {
		states, err := rp.Of(t.Context(), user.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got := states[user.ID]; got.State != want || got.UserID != user.ID {
			t.Errorf("%s: the state is %+v, want %s", when, got, want)
		}
	}
}

// announced reads what was announced since, as "user:state", and nothing more.
func (rp *replica) announced(t *testing.T, when string, want ...string) {
	t.Helper()
	// What marks the end is published behind all that there may be.
	end := coord.NewEvent{Topic: presence.Topic, Kind: "end"}
	if _, err := rp.backend.Broadcaster().Publish(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []string
	for {
		events, err := rp.stream.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == "end" {
				continue
			}
			var s presence.State
			if err := json.Unmarshal(e.Payload, &s); err != nil || e.Kind != presence.Kind || s.LastSeen.IsZero() {
				t.Errorf("%s: %s is announced by %s, %v", when, e.Payload, e.Kind, err)
			}
			got = append(got, fmt.Sprint(s.UserID, ":", s.State))
		}
		if events[len(events)-1].Kind == "end" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: announced is %q, want %q", when, got, want)
	}
}

func is(user store.User, state string) string { return fmt.Sprint(user.ID, ":", state) }

func of(user store.User, id string) string { return fmt.Sprint(user.ID, "/", id) }

// entries are the keys in the directory.
func (r *rig) entries(t *testing.T) (keys []string) {
	t.Helper()
	list, err := r.two.backend.Directory().List(t.Context(), coord.EntryFilter{Limit: coord.MaxBatch})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		keys = append(keys, e.Key)
	}
	return keys
}
