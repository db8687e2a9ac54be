package tasks_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the rows

	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
	"github.com/tandemhq/tandem/internal/apptest"
)

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

type rig struct {
	backend       coord.Backend
	store         *store.Store
	rooms         *rooms.Service
	tasks         *tasks.Service
	room          store.Room
	admin, member store.User
	ahead         atomic.Int64 // of the machine's clock
	outages       atomic.Int64 // how many of the next units of work meet one
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

// advance puts the clock forward.
func (r *rig) advance(by time.Duration) { r.ahead.Add(int64(by)) }

// newRig makes a service whose tasks may call these addresses though they are not public.
func newRig(t *testing.T, allow ...netip.Prefix) *rig {
	t.Helper()
	r := &rig{}
	backend, o := apptest.Memory(t, r.now).Open(t, coord.Options{})
	o.Backend = unsteady{backend, r}
	r.fill(t, backend, o, allow...)
	return r
}

// unsteady is the backend of units of work, which is away when the rig says so.
type unsteady struct {
	coord.Backend
	rig *rig
}

func (u unsteady) InTx(ctx context.Context, fn func(context.Context, coord.Tx) error) error {
	if u.rig.outages.Add(-1) >= 0 {
		return coord.ErrUnavailable
	}
	return u.Backend.InTx(ctx, fn)
}

// spied is a backend whose claimer tells what it is asked.
type spied struct {
	coord.Backend
	task, extend func() // may be nil
}

func (s spied) Claimer() coord.Claimer { return spy{s.Backend.Claimer(), s} }

type spy struct {
	coord.Claimer
	told spied
}

func (s spy) Task(ctx context.Context, name string) (coord.Task, error) {
	t, err := s.Claimer.Task(ctx, name)
	if s.told.task != nil {
		s.told.task()
	}
	return t, err
}

func (s spy) Extend(ctx context.Context, lease time.Duration, claims ...coord.Claim) ([]coord.Claim, error) {
	if s.told.extend != nil {
		s.told.extend()
	}
	return s.Claimer.Extend(ctx, lease, claims...)
}

// on are the tasks of the rig on such a backend.
func (r *rig) on(s spied, allow ...netip.Prefix) *tasks.Service {
	calls := outbound.New(outbound.Options{Allow: allow})
	return tasks.New(r.store, s, r.rooms, calls, slog.New(slog.DiscardHandler))
}

// fill makes the services on a backend, which it closes at the end of the test, and
// some users and a room.
func (r *rig) fill(t *testing.T, backend coord.Backend, o store.Options, allow ...netip.Prefix) {
	t.Helper()
	r.backend, r.store = backend, store.New(o)
	r.rooms = rooms.New(r.store, r.backend)
	r.tasks = tasks.New(r.store, r.backend, r.rooms, outbound.New(outbound.Options{Allow: allow}), slog.New(slog.DiscardHandler))
	err := r.store.InTx(t.Context(), func(ctx context.Context, u store.Unit) (err error) {
		r.admin, err = u.AddUser(ctx, store.NewUser{Name: "Ada", Role: store.Admin, PasswordHash: "x"})
		if err == nil {
			r.member, err = u.AddUser(ctx, store.NewUser{Name: "Mel", Role: store.Member, PasswordHash: "x"})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.room = r.makeRoom(t, store.Public, "Reports")
}

// makeRoom makes a room of the rig's member.
func (r *rig) makeRoom(t *testing.T, kind store.RoomKind, name string) store.Room {
	t.Helper()
	made, _, err := r.rooms.Create(t.Context(), r.member, rooms.NewRoom{Kind: kind, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return made.Room
}

// message is a task that posts.
func (r *rig) message(name string) tasks.Definition {
	return tasks.Definition{Name: name, RoomID: r.room.ID, Text: "done"}
}

func (r *rig) create(t *testing.T, d tasks.Definition) tasks.Task {
	t.Helper()
	task, err := r.tasks.Create(t.Context(), r.admin, d)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func (r *rig) runNow(t *testing.T, name string) tasks.Run {
	t.Helper()
	run, err := r.tasks.RunNow(t.Context(), r.admin, name, "", false)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (r *rig) runs(t *testing.T, f tasks.RunsFilter) []tasks.Run {
	t.Helper()
	list, _, err := r.tasks.Runs(t.Context(), r.admin, f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (r *rig) claim(t *testing.T, who string) *worker.Run {
	t.Helper()
	claims, err := r.tasks.Claimer().Claim(t.Context(), coord.ClaimOptions{
		Worker: who, Kinds: []string{tasks.KindMessage, tasks.KindHTTP}, Limit: 10, Lease: time.Second,
	})
	if err != nil || len(claims) != 1 {
		t.Fatalf("%s claimed %v, %v", who, claims, err)
	}
	return &worker.Run{Claim: claims[0]}
}

// work runs a worker until the end of the test.
func (r *rig) work(t *testing.T) {
	t.Helper()
	w, err := worker.New(r.tasks.Claimer(), worker.Options{
		Name: "a", Handlers: r.tasks.Handlers(), Poll: 5 * time.Millisecond, Grace: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// watcher hears what becomes of the runs of a task.
type watcher struct {
	t       *testing.T
	stream  coord.Stream
	waiting []coord.Event
	lines   []tasks.Line // heard so far
}

func (r *rig) watch(t *testing.T, task string) *watcher {
	t.Helper()
	stream, err := r.backend.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{tasks.RunsTopic(task): coord.Start})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	return &watcher{t: t, stream: stream}
}

// next is the next change of a run. Lines of logs are kept on the way.
func (w *watcher) next() tasks.Run {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		for len(w.waiting) == 0 {
			var err error
			if w.waiting, err = w.stream.Next(ctx); err != nil {
				w.t.Fatal(err)
			}
		}
		e := w.waiting[0]
		w.waiting = w.waiting[1:]
		switch e.Kind {
		case tasks.KindRunChanged:
			return decode[tasks.Run](w.t, e.Payload)
		case tasks.KindRunLog:
			w.lines = append(w.lines, decode[tasks.NewLines](w.t, e.Payload).Lines...)
		default:
			w.t.Fatalf("an event of kind %s", e.Kind)
		}
	}
}

// until is the next change of a run to that state.
func (w *watcher) until(state coord.State) tasks.Run {
	w.t.Helper()
	for {
		if run := w.next(); run.State == state {
			return run
		}
	}
}

func decode[T any](t *testing.T, b []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (r *rig) log(t *testing.T, id coord.RunID) []tasks.Line {
	t.Helper()
	lines, more, err := r.tasks.Log(t.Context(), r.admin, id, 0)
	if err != nil || more {
		t.Fatal(err, more)
	}
	return lines
}

func (r *rig) texts(t *testing.T) []string {
	t.Helper()
	page, err := r.rooms.Messages(t.Context(), r.admin, r.room.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if page.Position.Seq != int64(len(page.Messages)) {
		t.Errorf("%d messages and %d events", len(page.Messages), page.Position.Seq)
	}
	list := []string{}
	for _, m := range page.Messages {
		list = append(list, m.Text)
	}
	return list
}

// wantField wants an error about a field of the form.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	if e, ok := errors.AsType[*coord.InvalidError](err); !ok || e.Field != field {
		t.Errorf("got %v, want an error about %s", err, field)
	}
}

// A worker that lost its lease does nothing, and nobody hears of it, whatever the moment.
func TestStaleWorkerDoesNothing(t *testing.T) {
	r := newRig(t)
	r.create(t, r.message("report"))
	queued := r.runNow(t, "report")
	run := r.tasks.Handlers()[tasks.KindMessage]
	stale := r.claim(t, "a")
	r.advance(2 * time.Second)
	fresh := r.claim(t, "b")
	if err := run(t.Context(), stale); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("the stale worker: got %v, want fenced", err)
	}
	report := coord.Report{Claim: stale.Claim, Progress: 50, Lines: []string{"stale"}}
	if err := r.tasks.Claimer().Report(t.Context(), report); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("the stale worker's report: got %v, want fenced", err)
	}
	end := coord.Result{Claim: stale.Claim, Outcome: coord.Succeed}
	if err := r.tasks.Claimer().Finish(t.Context(), end); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("the stale worker's end: got %v, want fenced", err)
	}
	if list := r.texts(t); len(list) != 0 {
		t.Errorf("the stale worker posted %q", list)
	}
	if err := run(t.Context(), fresh); !errors.Is(err, worker.ErrFinished) {
		t.Errorf("got %v, want finished", err)
	}
	for _, late := range []*worker.Run{stale, fresh} {
		if err := run(t.Context(), late); !errors.Is(err, coord.ErrFenced) {
			t.Errorf("after the end: got %v, want fenced", err)
		}
	}
	if list := r.texts(t); len(list) != 1 {
		t.Errorf("the messages are %q, want one", list)
	}
	w := r.watch(t, "report")
	for _, want := range []tasks.Run{
		{State: coord.Queued},
		{State: coord.Running, Attempt: 1, Worker: "a"},
		{State: coord.Running, Attempt: 2, Worker: "b", Rescues: 1},
		{State: coord.Succeeded, Attempt: 2, Worker: "b", Rescues: 1},
	} {
		got := w.next()
		if got.ID != queued.ID || got.State != want.State || got.Attempt != want.Attempt || got.Worker != want.Worker ||
			got.Rescues != want.Rescues || got.Progress != 0 || got.Task != "report" || got.Trigger != "manual" {
			t.Errorf("heard %+v, want %+v", got, want)
		}
	}
	if len(w.lines) != 0 {
		t.Errorf("heard %v", w.lines)
	}
	got, err := r.tasks.Run(t.Context(), r.admin, queued.ID)
	if err != nil || got.State != coord.Succeeded || got.Attempt != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTaskOfARoomThatIsGone(t *testing.T) {
	r := newRig(t)
	_, err := r.backend.Claimer().Enqueue(t.Context(), coord.NewRun{
		Kind: tasks.KindMessage, Payload: []byte(`{"task":"x","room_id":999,"text":"x"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = r.tasks.Handlers()[tasks.KindMessage](t.Context(), r.claim(t, "a"))
	if err == nil || errors.Is(err, worker.ErrFinished) || errors.Is(err, coord.ErrNotFound) {
		t.Errorf("got %v, want a final failure", err)
	}
}

func TestJobsDeleteWhatIsOld(t *testing.T) {
	r := newRig(t)
	r.create(t, r.message("report"))
	r.runNow(t, "report")
	if err := r.tasks.Handlers()[tasks.KindMessage](t.Context(), r.claim(t, "a")); !errors.Is(err, worker.ErrFinished) {
		t.Fatal(err)
	}
	if _, err := r.backend.Limiter().Allow(t.Context(), coord.Limit{Key: "k", Rate: 1, Per: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.backend.Tickets().Issue(t.Context(), coord.TicketFor{Purpose: "p", User: "u", Session: "s"}); err != nil {
		t.Fatal(err)
	}
	held, err := r.backend.Receipts().Begin(t.Context(), coord.ReceiptFor{Key: "k"})
	if err == nil {
		err = r.backend.Receipts().Complete(t.Context(), held, coord.ReceiptOutcome{})
	}
	if err != nil {
		t.Fatal(err)
	}
	cleanUp := func() {
		t.Helper()
		for _, j := range jobs.Cleanup(r.backend, r.store, jobs.Keep{}) {
			work, ok := j.Work.(jobs.ReplicaSafe)
			for n := 1; ok && n > 0; {
				var err error
				if n, err = work(t.Context()); err != nil {
					t.Errorf("%s: %v", j.Name, err)
				}
			}
		}
	}
	gone := func(topic string) {
		t.Helper()
		if _, err := r.backend.Broadcaster().Read(t.Context(), topic, coord.Start, 10); !errors.Is(err, coord.ErrReset) {
			t.Errorf("old events of %s: got %v, want a reset", topic, err)
		}
	}
	cleanUp()
	if list := r.runs(t, tasks.RunsFilter{Task: "report"}); len(list) != 1 {
		t.Errorf("young runs: got %v", list)
	}
	r.advance(25 * time.Hour)
	cleanUp()
	for what, reap := range map[string]func(context.Context) (int, error){
		"tickets": r.backend.Tickets().Reap, "receipts": r.backend.Receipts().Reap,
	} {
		if n, err := reap(t.Context()); n != 0 || err != nil {
			t.Errorf("old %s: %d were left, %v", what, n, err)
		}
	}
	gone(tasks.RunsTopic("report"))
	if _, err := r.backend.Broadcaster().Read(t.Context(), tasks.Topic, coord.Start, 10); err != nil {
		t.Errorf("events of tasks: got %v", err)
	}
	r.advance(30 * 24 * time.Hour)
	cleanUp()
	if list := r.runs(t, tasks.RunsFilter{Task: "report"}); len(list) != 0 {
		t.Errorf("old runs: got %v", list)
	}
	gone(rooms.Topic(r.room.ID))
	page, err := r.rooms.Messages(t.Context(), r.admin, r.room.ID, 0, 0)
	if err != nil || len(page.Messages) != 1 || page.Position.Seq != 1 {
		t.Errorf("messages stay: got %+v, %v", page, err)
	}
}
