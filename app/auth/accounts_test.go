package auth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the rows beside package memory

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/apptest"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainWithoutLeaks(m)) }

const password = "correct horse"

// rig is accounts on one database.
type rig struct {
	*auth.Service
	store   *store.Store
	backend coord.Backend
}

// onEach runs a test on every driver.
func onEach(t *testing.T, test func(*testing.T, rig)) {
	t.Helper()
	apptest.OnEach(t, func(t *testing.T, d *apptest.Database) {
		backend, o := d.Open(t, patient)
		st := store.New(o)
		test(t, rig{auth.New(st, backend, cheap, slog.New(slog.DiscardHandler)), st, backend})
	})
}

// cheap hashes at no cost, and lets everything be tried.
var cheap = auth.Options{
	Hashing: auth.Hashing{Memory: 64, Iterations: 1},
	Links:   coord.Limit{Rate: 10_000, Per: time.Second}, ByAddress: coord.Limit{Rate: 10_000, Per: time.Second},
}

// patient waits for the store's limits on a busy machine too, so that what is let in is exact.
var patient = coord.Options{Limiter: coord.LimiterOptions{Deadline: 30 * time.Second}}

func (r rig) user(t *testing.T, name string, role store.Role) store.User {
	t.Helper()
	user, _, err := r.AddUser(t.Context(), name, password, role)
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// lines are those of the audit log, the oldest first.
func (r rig) lines(t *testing.T) (lines []string) {
	t.Helper()
	list, _, err := audit.New(r.store).List(t.Context(), audit.Filter{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range slices.Backward(list) {
		lines = append(lines, fmt.Sprint(l.Actor, " ", l.Action, " ", l.Target, " ", string(l.Details)))
	}
	return lines
}

// together runs a function n times at once.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// Administrators who take each other's place at once leave one.
func TestThereIsAlwaysAnAdministrator(t *testing.T) { onEach(t, testLastAdministrator) }

func testLastAdministrator(t *testing.T, r rig) {
	const n = 6
	admins := make([]store.User, n)
	for i := range admins {
		admins[i] = r.user(t, fmt.Sprint("admin ", i), store.Admin)
	}
	for round := range 4 {
		var done atomic.Int32
		together(n, func(i int) {
			by, of := admins[i], admins[(i+1)%n] // around the circle, each has somebody to remove
			if round%2 == 1 {
				by = of // or themself
			}
			var err error
			if i%2 == 0 {
				err = r.SetRole(t.Context(), by, of.ID, store.Member)
			} else {
				err = r.SetActive(t.Context(), by, of.ID, false)
			}
			_, forbidden := errors.AsType[*auth.ForbiddenError](err)
			switch {
			case err == nil:
				done.Add(1)
			case !forbidden && !errors.Is(err, coord.ErrConflict):
				t.Error(err)
			}
		})
		left := 0
		people, err := r.People(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range people {
			if p.Role == store.Admin && !p.Deactivated {
				left++
			}
		}
		if left < 1 || int(done.Load())+left != n {
			t.Errorf("round %d: %d administrators are left, and %d were removed", round, left, done.Load())
		}
		for _, a := range admins { // by who runs the program
			if err := r.SetRole(t.Context(), store.User{}, a.ID, store.Admin); err != nil {
				t.Fatal(err)
			}
			if err := r.SetActive(t.Context(), store.User{}, a.ID, true); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Of two administrators who remove each other, one is none any more when it is their turn.
func TestWhoWasRemovedRemovesNobody(t *testing.T) { onEach(t, testRemovedRemoves) }

func testRemovedRemoves(t *testing.T, r rig) {
	third := r.user(t, "third", store.Admin)
	for round := range 8 {
		pair := []store.User{r.user(t, fmt.Sprint("a", round), store.Admin), r.user(t, fmt.Sprint("b", round), store.Admin)}
		var errs [2]error
		together(2, func(i int) { errs[i] = r.SetRole(t.Context(), pair[i], pair[1-i].ID, store.Guest) })
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("got %v and %v, want one to be forbidden", errs[0], errs[1])
		}
		loser := pair[0]
		if errs[0] == nil {
			loser = pair[1]
		}
		_, _, inviteErr := r.Invite(t.Context(), loser, auth.NewInvitation{Role: store.Admin})
		_, _, resetErr := r.MakeReset(t.Context(), loser, third.ID)
		_, endErr := r.EndSessionsOf(t.Context(), loser, third.ID)
		for _, err := range []error{
			inviteErr, resetErr, endErr, r.SetActive(t.Context(), loser, third.ID, false), r.Withdraw(t.Context(), loser, 1),
		} {
			if _, forbidden := errors.AsType[*auth.ForbiddenError](err); !forbidden {
				t.Errorf("got %v, want forbidden", err)
			}
		}
	}
}

// Of who is deactivated no link is left, however close to that it was made.
func TestNoLinkOutlivesItsMaker(t *testing.T) { onEach(t, testNoLinkOutlives) }

func testNoLinkOutlives(t *testing.T, r rig) {
	ada := r.user(t, "Ada", store.Admin)
	for round := range 20 {
		bob := r.user(t, fmt.Sprint("Bob ", round), store.Admin)
		together(4, func(i int) {
			if i > 0 {
				_, _, err := r.Invite(t.Context(), bob, auth.NewInvitation{Role: store.Admin})
				if _, forbidden := errors.AsType[*auth.ForbiddenError](err); err != nil && !forbidden {
					t.Error(err)
				}
				return
			}
			if err := r.SetActive(t.Context(), ada, bob.ID, false); err != nil {
				t.Error(err)
			}
		})
	}
	if left, err := r.Invitations(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%d invitations of who is deactivated are good, %v", len(left), err)
	}
}

// A request that began while its session lasted makes nothing that would outlive that.
func TestWhoWasSignedOutMakesNothing(t *testing.T) { onEach(t, testSignedOutMakesNothing) }

func testSignedOutMakesNothing(t *testing.T, r rig) {
	ada, bob := r.user(t, "Ada", store.Admin), r.user(t, "Bob", store.Admin)
	token := auth.NewToken{Name: "t", Scopes: []auth.Scope{auth.ScopeAdmin}}
	for round := range 8 {
		in, err := r.SignIn(t.Context(), "Bob", password)
		if err != nil {
			t.Fatal(err)
		}
		asBob := auth.WithSession(t.Context(), in.Session)
		if _, _, err := r.Invite(asBob, bob, auth.NewInvitation{Role: store.Guest}); err != nil {
			t.Fatal(err)
		}
		var secret string
		together(2, func(i int) {
			var err error
			if i == 0 {
				_, secret, err = r.MakeToken(asBob, bob, token)
			} else {
				_, err = r.EndSessionsOf(t.Context(), ada, bob.ID)
			}
			if err != nil && !errors.Is(err, auth.ErrSignedOut) {
				t.Error(err)
			}
		})
		if _, err := r.AuthenticateToken(t.Context(), secret); !errors.Is(err, auth.ErrSignedOut) {
			t.Errorf("round %d: a token of before: got %v", round, err)
		}
		_, _, tokenErr := r.MakeToken(asBob, bob, token)
		_, _, inviteErr := r.Invite(asBob, bob, auth.NewInvitation{Role: store.Admin})
		_, _, resetErr := r.MakeReset(asBob, bob, bob.ID)
		for i, err := range []error{
			tokenErr, inviteErr, resetErr, r.SetRole(asBob, bob, ada.ID, store.Guest), r.SetActive(asBob, bob, ada.ID, false),
			r.Withdraw(asBob, bob, 1),
		} {
			if !errors.Is(err, auth.ErrSignedOut) {
				t.Errorf("%d: got %v, want signed out", i, err)
			}
		}
	}
}

// Only one's own sessions and tokens end by their ids, and only that one.
func TestOneEndsByItsID(t *testing.T) { onEach(t, testOneEndsByItsID) }

func testOneEndsByItsID(t *testing.T, r rig) {
	ada := r.user(t, "Ada", store.Admin)
	r.user(t, "Bob", store.Member)
	var in [2]auth.SignedIn
	for i, name := range []string{"Ada", "Bob"} {
		var err error
		if in[i], err = r.SignIn(t.Context(), name, password); err != nil {
			t.Fatal(err)
		}
	}
	token, secret, err := r.MakeToken(t.Context(), ada, auth.NewToken{Name: "t", Scopes: []auth.Scope{auth.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int64{0, -1, in[0].ID, in[1].ID, token.ID, token.ID + 1} {
		errs := []error{
			r.EndSession(t.Context(), in[1].Session, id), r.RevokeToken(t.Context(), in[1].User, id),
			r.EndSession(t.Context(), in[0].Session, id), r.RevokeToken(t.Context(), ada, id),
		}
		mine := []bool{id == in[1].ID, false, id == in[0].ID, id == token.ID}
		for i, err := range errs {
			if mine[i] != (err == nil) || err != nil && !errors.Is(err, coord.ErrNotFound) {
				t.Errorf("%d of %d: got %v", i, id, err)
			}
		}
		for i := range in {
			_, err := r.Authenticate(t.Context(), in[i].Secret)
			if gone := id >= in[i].ID; gone != errors.Is(err, auth.ErrSignedOut) {
				t.Errorf("session %d after %d has ended: %v", in[i].ID, id, err)
			}
		}
		if _, err := r.AuthenticateToken(t.Context(), secret); (id >= token.ID) != errors.Is(err, auth.ErrSignedOut) {
			t.Errorf("the token after %d has ended: %v", id, err)
		}
	}
}

// What somebody is signed in by is bounded; what was used last stays.
func TestSessionsAreBounded(t *testing.T) { onEach(t, testSessionsAreBounded) }

func testSessionsAreBounded(t *testing.T, r rig) {
	const most = 100
	bob := r.user(t, "Bob", store.Member)
	_, token, err := r.MakeToken(t.Context(), bob, auth.NewToken{Name: "t", Scopes: []auth.Scope{auth.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	in := make([]auth.SignedIn, most+2)
	for i := range in {
		if in[i], err = r.SignIn(t.Context(), "Bob", password); err != nil {
			t.Fatal(err)
		}
	}
	list, err := r.Sessions(t.Context(), in[most].Session)
	if err != nil || len(list) != most || list[0].ID != in[most+1].ID || list[most-1].ID != in[2].ID {
		t.Errorf("%d sessions are left, %v", len(list), err)
	}
	if _, err := r.Authenticate(t.Context(), in[1].Secret); !errors.Is(err, auth.ErrSignedOut) {
		t.Errorf("the second: got %v", err)
	}
	if _, err := r.AuthenticateToken(t.Context(), token); err != nil {
		t.Errorf("the token: got %v", err)
	}
	events, err := r.backend.Broadcaster().Read(t.Context(), auth.UserTopic(bob.ID), coord.Start, 10)
	if err != nil || len(events) != 2 || string(events[1].Payload) != fmt.Sprintf(`{"session":%d}`, in[1].ID) {
		t.Errorf("told of %v, %v", events, err)
	}
}

// A new name does not look like another one for what can't be seen; who has such a name since
// before is let in.
func TestNamesCanBeSeen(t *testing.T) {
	backend, o := apptest.Memory(t, time.Now).Open(t, patient)
	st := store.New(o)
	r := rig{auth.New(st, backend, cheap, slog.New(slog.DiscardHandler)), st, backend}
	r.user(t, "Zoë 😀", store.Member)
	ada := r.user(t, "Ada", store.Member)
	for _, name := range []string{"", " ", "A\nda", "Ada\u200b", "\u3164", "Ada\ufe0f", "A\u034fda", "Ada\u2800", "Ada\x00", "Ada\xff"} {
		if _, _, err := r.AddUser(t.Context(), name, password, store.Admin); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("%+q: got %v, want invalid", name, err)
		}
	}
	known, err := st.Credentials(t.Context(), ada.Name)
	if err == nil {
		err = st.InTx(t.Context(), func(ctx context.Context, u store.Unit) error {
			_, err := u.AddUser(ctx, store.NewUser{Name: "Eva ❤\ufe0f", Role: store.Member, PasswordHash: known.PasswordHash})
			return err
		})
	}
	if err == nil {
		_, err = r.SignIn(t.Context(), "Eva ❤\ufe0f", password)
	}
	if err = errors.Join(err, backend.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// A link works once, whatever it is for and whoever is first.
func TestLinksWorkOnce(t *testing.T) { onEach(t, testLinksWorkOnce) }

func testLinksWorkOnce(t *testing.T, r rig) {
	ada := r.user(t, "Ada", store.Admin)
	link, invitation, err := r.Invite(t.Context(), ada, auth.NewInvitation{Role: store.Guest})
	if err != nil || time.Until(link.ExpiresAt.Time) < auth.InvitationTTL-time.Hour {
		t.Fatalf("got %+v, %v", link, err)
	}
	_, reset, err := r.MakeReset(t.Context(), ada, ada.ID)
	if err != nil {
		t.Fatal(err)
	}
	var in, again atomic.Int32
	together(8, func(i int) {
		_, err := r.Accept(t.Context(), invitation, fmt.Sprint("guest ", i), password)
		_, resetErr := r.ResetPassword(t.Context(), reset, fmt.Sprint(password, i))
		for i, err := range []error{err, resetErr} {
			switch {
			case err == nil:
				[]*atomic.Int32{&in, &again}[i].Add(1)
			case !errors.Is(err, auth.ErrLink):
				t.Error(err)
			}
		}
	})
	people, err := r.People(t.Context())
	if err != nil || in.Load() != 1 || again.Load() != 1 || len(people) != 2 || people[1].Role != store.Guest {
		t.Errorf("%d accepted and %d chose a password: %+v, %v", in.Load(), again.Load(), people, err)
	}
	for range 2 { // of another kind, unknown, none
		for _, secret := range []string{invitation, reset, "", "x"} {
			if _, err := r.Link(t.Context(), secret); !errors.Is(err, auth.ErrLink) {
				t.Errorf("got %v", err)
			}
		}
	}
}

// Nobody is left signed in by the password that was, or as who is deactivated, however close it
// was.
func TestNoSessionOutlivesItsPassword(t *testing.T) { onEach(t, testNoSessionOutlives) }

func testNoSessionOutlives(t *testing.T, r rig) {
	ada := r.user(t, "Ada", store.Admin)
	for round := range 8 {
		name := fmt.Sprint("user ", round)
		user := r.user(t, name, store.Member)
		mine, err := r.SignIn(t.Context(), name, password)
		if err != nil {
			t.Fatal(err)
		}
		secrets := make([]string, 5)
		together(len(secrets)+1, func(i int) {
			if i < len(secrets) {
				in, err := r.SignIn(t.Context(), name, password)
				if err != nil && !errors.Is(err, auth.ErrWrongCredentials) {
					t.Error(err)
				}
				secrets[i] = in.Secret
				return
			}
			var err error
			if round%2 == 0 {
				err = r.ChangePassword(t.Context(), mine.Session, password, password+"!")
			} else {
				err = r.SetActive(t.Context(), ada, user.ID, false)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if round%2 == 1 {
			if err := r.SetActive(t.Context(), ada, user.ID, true); err != nil {
				t.Fatal(err)
			}
		} else if _, err := r.Authenticate(t.Context(), mine.Secret); err != nil {
			t.Errorf("who has changed the password: got %v", err)
		}
		for _, secret := range secrets {
			if _, err := r.Authenticate(t.Context(), secret); !errors.Is(err, auth.ErrSignedOut) {
				t.Errorf("round %d: got %v, want signed out", round, err)
			}
		}
	}
}

// What ends a session tells its connections, in the same transaction.
func TestEndsAreTold(t *testing.T) { onEach(t, testEndsAreTold) }

func testEndsAreTold(t *testing.T, r rig) {
	ada, bob := r.user(t, "Ada", store.Admin), r.user(t, "Bob", store.Member)
	var ids []string
	var in auth.SignedIn
	for range 2 {
		var err error
		if in, err = r.SignIn(t.Context(), "Bob", password); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, fmt.Sprintf(`{"session":%d}`, in.ID))
	}
	token, secret, err := r.MakeToken(t.Context(), bob, auth.NewToken{Name: "t", Scopes: []auth.Scope{auth.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, fmt.Sprintf(`{"session":%d}`, token.ID))
	if err := r.ChangePassword(t.Context(), in.Session, "a guess", password+"!"); !errors.Is(err, coord.ErrInvalid) {
		t.Errorf("a wrong password: got %v", err)
	}
	if err := r.SetRole(t.Context(), ada, bob.ID, store.Guest); err != nil {
		t.Fatal(err)
	}
	if n, err := r.EndSessionsOf(t.Context(), ada, bob.ID); n != 3 || err != nil {
		t.Errorf("ended %d, %v", n, err)
	}
	if _, err := r.AuthenticateToken(t.Context(), secret); !errors.Is(err, auth.ErrSignedOut) {
		t.Errorf("got %v", err)
	}
	if err := r.SetActive(t.Context(), ada, ada.ID, false); !errors.Is(err, coord.ErrConflict) {
		t.Errorf("the last administrator: got %v", err)
	}
	events, err := r.backend.Broadcaster().Read(t.Context(), auth.UserTopic(bob.ID), coord.Start, 100)
	if err != nil {
		t.Fatal(err)
	}
	var ended []string
	for _, e := range events {
		if e.Kind == auth.KindRevoked {
			ended = append(ended, string(e.Payload))
		}
	}
	slices.Sort(ended)
	slices.Sort(ids)
	if !slices.Equal(ended, ids) || len(events) != len(ids)+1 || events[0].Kind != auth.KindChanged {
		t.Errorf("told of %v, want %v, in %v", ended, ids, events)
	}
	want := []string{
		`(command line) account.created Ada {"role":"admin"}`, `(command line) account.created Bob {"role":"member"}`,
		`Bob session.signed_in Bob {}`, `Bob session.signed_in Bob {}`,
		fmt.Sprintf(`Bob token.created Bob {"id":%d,"name":"t","scopes":"read"}`, token.ID),
		`Bob session.failed Bob {}`, `Ada account.role Bob {"from":"member","to":"guest"}`, `Ada session.revoked Bob {"count":3}`,
	}
	if lines := r.lines(t); !slices.Equal(lines, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// A limit by account lets so many wrong passwords be checked, however many come at once, and
// so many right ones at least.
func TestFiftyAtOnce(t *testing.T) { onEach(t, testFiftyAtOnce) }

func testFiftyAtOnce(t *testing.T, r rig) {
	r.user(t, "Ada", store.Member)
	var checked, limited, in atomic.Int32
	began := time.Now()
	together(50, func(int) {
		_, err := r.SignIn(t.Context(), "Ada", "wrong password")
		_, isLimited := errors.AsType[*auth.LimitedError](err)
		switch {
		case errors.Is(err, auth.ErrWrongCredentials):
			checked.Add(1)
		case isLimited:
			limited.Add(1)
		default:
			t.Error(err)
		}
	})
	most := 10 + int32(time.Since(began)/(6*time.Second)) // 10 at once, and one more for every 6 s that it took
	if checked.Load() < 10 || checked.Load() > most || checked.Load()+limited.Load() != 50 {
		t.Errorf("%d were checked and %d refused", checked.Load(), limited.Load())
	}
	r.user(t, "Bob", store.Member)
	together(50, func(int) {
		_, err := r.SignIn(t.Context(), "Bob", password)
		if _, isLimited := errors.AsType[*auth.LimitedError](err); err != nil && !isLimited {
			t.Error(err)
		}
		if err == nil {
			in.Add(1)
		}
	})
	if in.Load() < 10 {
		t.Errorf("%d of 50 right passwords were let in, want 10 at least", in.Load())
	}
	if _, err := r.SignIn(t.Context(), "Bob", password); err != nil {
		t.Errorf("one more: got %v", err)
	}
}

// noLimiter is a backend whose limiter can't decide.
type noLimiter struct{ coord.Backend }

func (noLimiter) Limiter() coord.Limiter { return undecided{} }

type undecided struct{ coord.Limiter }

func (undecided) AllowAll(context.Context, ...coord.Limit) ([]coord.Decision, error) {
	return nil, coord.ErrUnavailable
}

// Where nobody counts, nobody is let in.
func TestNothingIsTriedWithoutALimit(t *testing.T) {
	backend, o := apptest.Memory(t, time.Now).Open(t, patient)
	st := store.New(o)
	r := rig{auth.New(st, noLimiter{backend}, cheap, slog.New(slog.DiscardHandler)), st, backend}
	user := r.user(t, "Ada", store.Admin)
	_, secret, err := r.MakeReset(t.Context(), store.User{}, user.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, signInErr := r.SignIn(t.Context(), "Ada", password)
	_, setupErr := r.Setup(t.Context(), "x", "Bob", password)
	_, linkErr := r.Link(t.Context(), secret)
	_, acceptErr := r.Accept(t.Context(), secret, "Bob", password)
	_, resetErr := r.ResetPassword(t.Context(), secret, password)
	changeErr := r.ChangePassword(t.Context(), store.Session{User: user}, password, password+"!")
	for i, err := range []error{signInErr, setupErr, linkErr, acceptErr, resetErr, changeErr} {
		if !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%d: got %v, want unavailable", i, err)
		}
	}
	if err := backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Lines are written with what they tell of, and deleted when they are old.
func TestAuditLines(t *testing.T) { onEach(t, testAuditLines) }

func testAuditLines(t *testing.T, r rig) {
	ctx := audit.WithClient(t.Context(), audit.Client{Address: "192.0.2.1", Agent: "x\ny\u202e"})
	if agent := audit.ClientOf(ctx).Agent; agent != "xy" {
		t.Errorf("a client is called %q", agent)
	}
	undone := errors.New("undone")
	forged := "a\nb\u202e\"'; DROP TABLE app_audit; --"
	write := func(fail error) error {
		return r.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
			return errors.Join(audit.Write(ctx, u, audit.Entry{
				By: store.User{ID: 1, Name: "(command line)"}, Action: audit.TaskChanged, Target: "t",
				Details: map[string]any{"name": forged},
			}), fail)
		})
	}
	if err := write(undone); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if err := write(nil); err != nil {
		t.Fatal(err)
	}
	log := audit.New(r.store)
	lines, more, err := log.List(ctx, audit.Filter{ActorID: 1, Action: "task", Target: "t", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
	if err != nil || len(lines) != 1 || more || lines[0].Address != "192.0.2.1" || lines[0].ActorID != 1 ||
		strings.ContainsAny(string(lines[0].Details), "\n") {
		t.Errorf("got %+v, %v, %v", lines, more, err)
	}
	yearZero := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, f := range []audit.Filter{
		{Since: yearZero, Until: time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -3600))},
		{Until: yearZero},
		{Until: yearZero.Add(-time.Hour)},
		{Target: "t\x00"},
		{Target: "\xff"},
		{Since: time.Now().Add(time.Hour)},
	} {
		if lines, _, err := log.List(ctx, f); err != nil || (len(lines) > 0) != (i == 0) {
			t.Errorf("%+v: got %d lines, %v", f, len(lines), err)
		}
	}
	if err := write(nil); err != nil {
		t.Fatal(err)
	}
	if lines, more, err := log.List(ctx, audit.Filter{Limit: 1}); err != nil || len(lines) != 1 || !more {
		t.Errorf("got %+v, %v, %v", lines, more, err)
	}
	for i, keep := range []time.Duration{time.Hour, -time.Hour} {
		n := 0
		err := r.store.InTx(ctx, func(ctx context.Context, u store.Unit) (err error) {
			n, err = u.ReapAudit(ctx, keep)
			return err
		})
		if n != 2*i || err != nil {
			t.Errorf("reaped %d, %v; want %d", n, err, 2*i)
		}
	}
	if lines, _, err := log.List(ctx, audit.Filter{}); err != nil || len(lines) != 0 {
		t.Errorf("got %+v, %v", lines, err)
	}
}
