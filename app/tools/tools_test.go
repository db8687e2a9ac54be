package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/jobs"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/tools"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/coordtest"
)

var (
	ada  = store.User{ID: 1, Name: "Ada", Role: store.Member}
	bob  = store.User{ID: 2, Name: "Bob", Role: store.Member}
	root = store.User{ID: 3, Name: "Root", Role: store.Admin}
)

// people is a directory of connections.
type people struct {
	mu   sync.Mutex
	open map[int64][]string // the most recently active first
	err  error
}

func newPeople() *people { return &people{open: make(map[int64][]string)} }

func (p *people) Connections(_ context.Context, user int64) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.open[user]), p.err
}

// set says which connections a person has.
func (p *people) set(user int64, connections ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[user] = connections
}

func (p *people) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// observer counts outcomes.
type observer struct {
	mu   sync.Mutex
	seen map[string]int
}

func (o *observer) Observe(_ context.Context, ob coord.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = make(map[string]int)
	}
	for name, err := range map[string]error{"conflict": coord.ErrConflict, "expired": coord.ErrExpired, "not found": coord.ErrNotFound} {
		if errors.Is(ob.Err, err) {
			o.seen[ob.Op+" "+name]++
		}
	}
}

func (o *observer) count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[what]
}

// tab is a connection of a person on a replica, as a hub has it: it gets the frames
// that are for it alone.
type tab struct {
	replica
	user   int64
	id     string
	stream coord.Stream
}

func (r replica) tab(t *testing.T, user int64, id string) *tab {
	t.Helper()
	stream, err := r.backend.Broadcaster().Subscribe(t.Context(), map[string]coord.Position{auth.UserTopic(user): coord.Head})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	return &tab{r, user, id, stream}
}

// next returns the next envelope of the person, and whether it is for this tab.
func (tb *tab) next(t *testing.T) (e tools.Envelope, mine bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := tb.stream.Next(ctx)
	if err != nil || len(events) != 1 {
		t.Fatalf("Next: %v, %v", events, err)
	}
	e, ok := tools.ParseEvent(events[0])
	if !ok {
		t.Fatalf("the event %+v is no envelope", events[0])
	}
	return e, e.Connection == tb.id
}

func (tb *tab) answer(t *testing.T, call coord.CallID, result string) error {
	t.Helper()
	return tb.tools.Answer(t.Context(), tb.user, tb.id, call, json.RawMessage(result), "")
}

func (r replica) call(t *testing.T, by store.User, user int64, args string) coord.Call {
	t.Helper()
	c, err := r.tools.Call(t.Context(), by, user, "confirm", json.RawMessage(args), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wait waits in the background.
func (r replica) wait(t *testing.T, by store.User, id coord.CallID) (result func() (coord.Call, error)) {
	t.Helper()
	type outcome struct {
		call coord.Call
		err  error
	}
	out := make(chan outcome, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		c, err := r.tools.Wait(t.Context(), by, id, tools.MaxWait)
		out <- outcome{c, err}
	}()
	<-begun
	return func() (coord.Call, error) {
		t.Helper()
		select {
		case o := <-out:
			return o.call, o.err
		case <-time.After(patience):
			t.Fatalf("Wait has not returned within %v", patience)
			return coord.Call{}, nil
		}
	}
}

func is(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// Of two tabs of a person, on two replicas, one runs the tool; whoever waits on the
// other replica gets its answer, the first.
func TestOneTabRunsATool(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		left, right := r.one.tab(t, ada.ID, "left"), r.two.tab(t, ada.ID, "right")
		r.people.set(ada.ID, "right", "left")
		for i := range 5 {
			c := r.one.call(t, root, ada.ID, `{"text":"sure?"}`)
			if c.State != coord.CallOpen || c.Deadline.Sub(c.CreatedAt) != time.Minute {
				t.Errorf("the call is %+v", c)
			}
			result := r.one.wait(t, root, c.ID)
			if _, mine := left.next(t); mine {
				t.Error("the call came to the tab on the left")
			}
			e, mine := right.next(t)
			if !mine || e.Kind != tools.KindCall || e.Call != c.ID || e.Tool != "confirm" || string(e.Args) != `{"text":"sure?"}` ||
				!e.Deadline.Equal(c.Deadline) {
				t.Errorf("the envelope for the tab on the right is %+v", e)
			}
			want := fmt.Sprintf(`{"ok":%d}`, i)
			if err := right.answer(t, c.ID, want); err != nil {
				t.Fatal(err)
			}
			is(t, "a second answer", right.answer(t, c.ID, `"again"`), coord.ErrConflict)
			got, err := result()
			if err != nil || got.State != coord.CallAnswered || string(got.Result) != want || got.Err() != nil {
				t.Errorf("Wait: %+v, %v", got, err)
			}
		}
		if n := r.observer.count("calls.answer conflict"); n != 5 {
			t.Errorf("%d second answers were counted, want 5", n)
		}
	})
}

func TestAnswersCannotBeForged(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.people.set(ada.ID, "right", "left")
		c := r.one.call(t, ada, ada.ID, "")
		for what, forged := range map[string]*tab{
			"another tab of the person":   {replica: r.two, user: ada.ID, id: "left"},
			"another person":              {replica: r.two, user: bob.ID, id: "right"},
			"a connection with a path":    {replica: r.two, user: bob.ID, id: "x/../user:1/conn:right"},
			"an administrator":            {replica: r.two, user: root.ID, id: "right"},
			"a connection without a name": {replica: r.two, user: ada.ID},
		} {
			is(t, what, forged.answer(t, c.ID, `"forged"`), coord.ErrNotFound)
		}
		right := &tab{replica: r.two, user: ada.ID, id: "right"}
		is(t, "another call", right.answer(t, coord.NewCallID(), `"x"`), coord.ErrNotFound)
		is(t, "no call", right.answer(t, "", `"x"`), coord.ErrNotFound)
		broken := json.RawMessage("\"\xff\"") // the answer to whoever waits would be no JSON
		if err := r.two.tools.Answer(t.Context(), ada.ID, "right", c.ID, broken, ""); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("a result that is no text: got %v", err)
		}
		if err := r.two.tools.Answer(t.Context(), ada.ID, "right", c.ID, nil, "the person said no"); err != nil {
			t.Fatal(err)
		}
		got, err := r.one.tools.Get(t.Context(), ada, c.ID)
		if err != nil || got.State != coord.CallAnswered || got.Error != "the person said no" || len(got.Result) > 0 {
			t.Errorf("the call is %+v, %v", got, err)
		}
		failure, ok := errors.AsType[*coord.CallError](got.Err())
		if !ok || failure.Text != "the person said no" || errors.Is(failure, coord.ErrExpired) {
			t.Errorf("its error is %v", got.Err())
		}
	})
}

func TestLateAnswersAreDroppedAndCounted(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.people.set(ada.ID, "right")
		right := &tab{replica: r.two, user: ada.ID, id: "right"}
		c := r.one.call(t, ada, ada.ID, "")
		result := r.two.wait(t, ada, c.ID)
		r.advance(2 * time.Minute)
		is(t, "a late answer", right.answer(t, c.ID, `"late"`), coord.ErrExpired)
		got, err := result()
		if err != nil || got.State != coord.CallExpired || len(got.Result) > 0 {
			t.Errorf("the call is %+v, %v", got, err)
		}
		is(t, "its error", got.Err(), coord.ErrExpired)
		if n := r.observer.count("calls.answer expired"); n != 1 {
			t.Errorf("%d late answers were counted, want 1", n)
		}
	})
}

// The replica of whoever waits dies: they ask again on another by the call's id.
func TestWaitingReplicaDies(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.people.set(ada.ID, "right")
		c := r.one.call(t, ada, ada.ID, "")
		result := r.one.wait(t, ada, c.ID)
		if err := r.one.backend.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := result(); err == nil {
			t.Error("Wait on a replica that died returned a call")
		}
		again := r.two.wait(t, ada, c.ID)
		if err := (&tab{replica: r.two, user: ada.ID, id: "right"}).answer(t, c.ID, `1`); err != nil {
			t.Fatal(err)
		}
		if got, err := again(); err != nil || string(got.Result) != "1" {
			t.Errorf("Wait on another replica: %+v, %v", got, err)
		}
	})
}

// The replica with the connection dies. When that is known, whoever waits is told at
// once, and else at the deadline.
func TestAnsweringReplicaDies(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.people.set(ada.ID, "right")
		answered, open := r.one.call(t, ada, ada.ID, ""), r.one.call(t, ada, ada.ID, "")
		r.people.set(ada.ID, "left")
		other := r.one.call(t, ada, ada.ID, "")
		r.people.set(bob.ID, "right") // connections are known by their person too
		foreign := r.one.call(t, bob, bob.ID, "")
		if err := (&tab{replica: r.two, user: ada.ID, id: "right"}).answer(t, answered.ID, `1`); err != nil {
			t.Fatal(err)
		}
		result := r.one.wait(t, ada, open.ID)
		for range 2 { // it may be noticed more than once
			if err := r.two.tools.ConnectionGone(t.Context(), ada.ID, "right"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := result()
		failure, ok := errors.AsType[*coord.CallError](got.Err())
		if err != nil || !ok || failure.State != coord.CallCancelled || failure.Text != tools.ReasonGone {
			t.Errorf("Wait: %+v, %v, %v", got, got.Err(), err)
		}
		for id, want := range map[coord.CallID]coord.CallState{
			answered.ID: coord.CallAnswered, other.ID: coord.CallOpen, foreign.ID: coord.CallOpen,
		} {
			if c, err := r.one.tools.Get(t.Context(), root, id); err != nil || c.State != want {
				t.Errorf("the call is %+v, %v, want it %s", c, err, want)
			}
		}
		result = r.one.wait(t, ada, other.ID) // nobody notices
		r.advance(2 * time.Minute)
		got, err = result()
		is(t, "the error of the call that nobody ended", got.Err(), coord.ErrExpired)
		if err != nil {
			t.Error(err)
		}
	})
}

func TestCancelIsHeardOnBothSides(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		right := r.two.tab(t, ada.ID, "right")
		r.people.set(ada.ID, "right")
		c := r.one.call(t, root, ada.ID, "")
		right.next(t)
		result := r.one.wait(t, root, c.ID)
		cancelled, err := r.two.tools.Cancel(t.Context(), ada, c.ID)
		if err != nil || cancelled.State != coord.CallCancelled || cancelled.Error == "" {
			t.Errorf("Cancel: %+v, %v", cancelled, err)
		}
		e, mine := right.next(t)
		if !mine || e.Kind != tools.KindCancel || e.Call != c.ID || e.Reason != cancelled.Error {
			t.Errorf("the envelope is %+v", e)
		}
		if got, err := result(); err != nil || got.State != coord.CallCancelled {
			t.Errorf("Wait: %+v, %v", got, err)
		}
		is(t, "an answer after it", right.answer(t, c.ID, `1`), coord.ErrConflict)
		again, err := r.one.tools.Cancel(t.Context(), root, c.ID)
		if err != nil || again.State != coord.CallCancelled {
			t.Errorf("Cancel, again: %+v, %v", again, err)
		}

		c = r.one.call(t, root, ada.ID, "")
		if e, _ := right.next(t); e.Call != c.ID { // nothing of the second cancel
			t.Errorf("the envelope is %+v", e)
		}
		if err := right.answer(t, c.ID, `1`); err != nil {
			t.Fatal(err)
		}
		if got, err := r.one.tools.Cancel(t.Context(), root, c.ID); err != nil || got.State != coord.CallAnswered {
			t.Errorf("Cancel after the answer: %+v, %v", got, err)
		}
	})
}

func TestWhoMay(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	for _, test := range []struct {
		by  store.User
		may bool
	}{{ada, true}, {root, true}, {bob, false}} {
		_, err := r.one.tools.Call(t.Context(), test.by, ada.ID, "pick", nil, 0, "")
		if test.may != (err == nil) || err != nil && !errors.Is(err, tools.ErrForbidden) {
			t.Errorf("Call by %s: %v", test.by.Name, err)
		}
		c := r.one.call(t, ada, ada.ID, "")
		ctx, end := context.WithTimeout(t.Context(), patience)
		defer end()
		for what, do := range map[string]func() (coord.Call, error){
			"Get":    func() (coord.Call, error) { return r.two.tools.Get(ctx, test.by, c.ID) },
			"Wait":   func() (coord.Call, error) { return r.two.tools.Wait(ctx, test.by, c.ID, time.Millisecond) },
			"Cancel": func() (coord.Call, error) { return r.two.tools.Cancel(ctx, test.by, c.ID) },
		} {
			got, err := do()
			if test.may != (err == nil) || err != nil && !errors.Is(err, coord.ErrNotFound) || err != nil && got.ID != "" {
				t.Errorf("%s by %s: %+v, %v", what, test.by.Name, got, err)
			}
		}
	}
	// A call that another part of the program has made is nobody's here.
	c, err := r.one.backend.Calls().Open(t.Context(), coord.NewCall{Target: "service:1/conn:right", Kind: "k"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.one.tools.Get(t.Context(), root, c.ID)
	is(t, "Get of another part's call", err, coord.ErrNotFound)
}

func TestKeyMakesOneCall(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		right := r.two.tab(t, ada.ID, "right")
		r.people.set(ada.ID, "right")
		call := func(rp replica, by store.User, tool, args string) (coord.Call, error) {
			return rp.tools.Call(t.Context(), by, ada.ID, tool, json.RawMessage(args), 0, "key")
		}
		var mu sync.Mutex
		ids := map[coord.CallID]bool{}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				c, err := call([]replica{r.one, r.two}[i%2], ada, "confirm", `{"a": 1}`)
				if err != nil {
					t.Errorf("Call: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[c.ID] = true
			})
		}
		all.Wait()
		if len(ids) != 1 {
			t.Fatalf("8 requests with one key made %d calls", len(ids))
		}
		e, _ := right.next(t)
		if !ids[e.Call] {
			t.Errorf("the envelope is %+v", e)
		}
		for what, other := range map[string][2]string{"another tool": {"pick", `{"a":1}`}, "other args": {"confirm", `{"a":2}`}} {
			_, err := call(r.one, ada, other[0], other[1])
			is(t, what, err, coord.ErrConflict)
		}
		// Of a person who is gone meanwhile the same is told.
		r.people.set(ada.ID)
		if c, err := call(r.two, ada, "confirm", `{"a":1}`); err != nil || !ids[c.ID] {
			t.Errorf("Call, again: %+v, %v", c, err)
		}
		r.people.set(ada.ID, "right")
		c, err := call(r.one, root, "confirm", `{"a":1}`) // somebody else's key
		if err != nil || ids[c.ID] {
			t.Errorf("Call by another with the same key: %+v, %v", c, err)
		}
		if e, _ := right.next(t); e.Call != c.ID { // there was no second event of the first
			t.Errorf("the envelope is %+v", e)
		}
	})
}

func TestWhoIsNotConnectedIsNotCalled(t *testing.T) {
	r := memoryRig(t)
	_, err := r.one.tools.Call(t.Context(), ada, ada.ID, "confirm", nil, 0, "")
	is(t, "Call of a person without a connection", err, coord.ErrConflict)
	r.people.fail(coord.ErrUnavailable)
	_, err = r.one.tools.Call(t.Context(), ada, ada.ID, "confirm", nil, 0, "")
	is(t, "Call when the directory is away", err, coord.ErrUnavailable)
}

func TestInvalidCalls(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	for _, test := range []struct {
		field, tool, args, key string
		timeout                time.Duration
	}{
		{field: "tool"},
		{field: "tool", tool: "Confirm it"},
		{field: "tool", tool: strings.Repeat("x", 101)},
		{field: "args", tool: "x", args: `[]`},
		{field: "args", tool: "x", args: `"null"`},
		{field: "args", tool: "x", args: `{`},
		{field: "args", tool: "x", args: "{\"a\":\"\xff\"}"}, // which no socket may send
		{field: "args", tool: "x", args: `{"a":"` + strings.Repeat("x", 64<<10) + `"}`},
		{field: "timeout_s", tool: "x", timeout: time.Millisecond},
		{field: "timeout_s", tool: "x", timeout: 2 * time.Hour},
		{field: "timeout_s", tool: "x", timeout: -time.Second},
		{field: "Idempotency-Key", tool: "x", key: strings.Repeat("x", 101)},
		{field: "Idempotency-Key", tool: "x", key: "ä"},
	} {
		_, err := r.one.tools.Call(t.Context(), ada, ada.ID, test.tool, json.RawMessage(test.args), test.timeout, test.key)
		if invalid, ok := errors.AsType[*coord.InvalidError](err); !ok || invalid.Field != test.field {
			t.Errorf("%.60v: got %v", test, err)
		}
	}
}

// Neither is there a call that nobody hears of, nor does anybody hear of one that
// there is not.
func TestCallAndEventAreOne(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	plan := func(op string, _ int) coordtest.Fault { return coordtest.Fault{Fail: op == "tx.publish"} }
	faulty := coordtest.Faulty(r.one.backend, plan)
	rows := r.one.rows
	rows.Backend = faulty
	_, err := tools.New(store.New(rows), faulty, r.people).Call(t.Context(), ada, ada.ID, "confirm", nil, 0, "key")
	is(t, "Call whose event can't be published", err, coord.ErrUnavailable)
	open, err := r.two.backend.Calls().Pending(t.Context(), "user:1/conn:right")
	if err != nil || len(open) > 0 {
		t.Errorf("the open calls are %v, %v", open, err)
	}
}

func TestWaitIsBounded(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	c := r.one.call(t, ada, ada.ID, "")
	for _, atMost := range []time.Duration{0, time.Millisecond} {
		if got, err := r.one.tools.Wait(t.Context(), ada, c.ID, atMost); err != nil || got.State != coord.CallOpen {
			t.Errorf("Wait for %v: %+v, %v", atMost, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.one.tools.Wait(ctx, ada, c.ID, time.Minute)
	is(t, "Wait with a cancelled context", err, context.Canceled)
	result := r.one.wait(t, ada, c.ID)
	for range 2 {
		r.one.tools.Drain()
	}
	if got, err := result(); err != nil || got.State != coord.CallOpen {
		t.Errorf("Wait on a replica that stops: %+v, %v", got, err)
	}
	if got, err := r.one.wait(t, ada, c.ID)(); err != nil || got.State != coord.CallOpen {
		t.Errorf("Wait on a replica that has stopped: %+v, %v", got, err)
	}
	if err := (&tab{replica: r.two, user: ada.ID, id: "right"}).answer(t, c.ID, `1`); err != nil {
		t.Fatal(err)
	}
	if got, err := r.one.tools.Wait(t.Context(), ada, c.ID, time.Minute); err != nil || got.State != coord.CallAnswered {
		t.Errorf("Wait for a call that has ended, on a replica that has stopped: %+v, %v", got, err)
	}
}

func TestEnvelopesAreNotForClients(t *testing.T) {
	deadline := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for frame, e := range map[string]tools.Envelope{
		`{"type":"tool.call","call":"c1","tool":"confirm","args":{"a":1},"deadline":"2026-01-02T15:04:05Z"}`: {
			Kind: tools.KindCall, Connection: "right", Call: "c1", Tool: "confirm", Args: json.RawMessage(`{"a":1}`), Deadline: deadline,
		},
		`{"type":"tool.cancel","call":"c1","reason":"cancelled"}`: {
			Kind: tools.KindCancel, Connection: "right", Call: "c1", Reason: "cancelled",
		},
	} {
		got, err := e.Frame()
		if err != nil || string(got) != frame {
			t.Errorf("the frame is %s, %v", got, err)
		}
	}
	good := `{"connection":"right","type":"tool.call","call":"c1"}`
	for _, e := range []coord.Event{
		{Kind: auth.KindRevoked, Payload: []byte(good)},
		{Kind: tools.KindCancel, Payload: []byte(good)},
		{Kind: tools.KindCall, Payload: []byte(`{"type":"tool.call","call":"c1"}`)},
		{Kind: tools.KindCall, Payload: []byte(`{"connection":"right","type":"tool.call"}`)},
		{Kind: tools.KindCall, Payload: []byte(`nonsense`)},
	} {
		if got, ok := tools.ParseEvent(e); ok {
			t.Errorf("ParseEvent of %s %s: %+v", e.Kind, e.Payload, got)
		}
	}
	if _, ok := tools.ParseEvent(coord.Event{Kind: tools.KindCall, Payload: []byte(good)}); !ok {
		t.Error("ParseEvent of a good event is false")
	}
}

func TestCallsAreForgottenAfterADay(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	c := r.one.call(t, ada, ada.ID, "")
	cleanUp := jobs.Cleanup(r.one.backend, store.New(r.one.rows), jobs.Keep{})
	reap := cleanUp[slices.IndexFunc(cleanUp, func(j jobs.Job) bool { return j.Name == "calls.reap" })].Work.(jobs.ReplicaSafe)
	r.advance(24 * time.Hour)
	if _, err := reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := r.one.tools.Get(t.Context(), ada, c.ID); err != nil || got.State != coord.CallExpired {
		t.Errorf("a call whose deadline is nearly a day ago: %+v, %v", got, err)
	}
	r.advance(2 * time.Minute)
	if n, err := reap(t.Context()); n != 1 || err != nil {
		t.Errorf("%d calls were forgotten, %v", n, err)
	}
	_, err := r.two.tools.Get(t.Context(), ada, c.ID)
	is(t, "Get of an old call", err, coord.ErrNotFound)
}

func TestView(t *testing.T) {
	r := memoryRig(t)
	r.people.set(ada.ID, "right")
	c := r.one.call(t, root, ada.ID, `{"text":"sure?"}`)
	show := func(c coord.Call) string {
		v := tools.ViewOf(c)
		if v.ID != c.ID || !v.CreatedAt.Equal(c.CreatedAt) || !v.Deadline.Equal(c.Deadline) || !v.EndedAt.Equal(c.EndedAt) {
			t.Errorf("%+v is shown as %+v", c, v)
		}
		v.ID, v.CreatedAt, v.Deadline, v.EndedAt = "", time.Time{}, time.Time{}, time.Time{}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(strings.TrimPrefix(string(b), `{"id":"",`), `,"created_at"`)
		return text
	}
	if got, want := show(c), `"user_id":1,"tool":"confirm","args":{"text":"sure?"},"state":"open"`; got != want {
		t.Errorf("an open call is shown as %s", got)
	}
	if err := (&tab{replica: r.one, user: ada.ID, id: "right"}).answer(t, c.ID, `{"ok":true}`); err != nil {
		t.Fatal(err)
	}
	c, err := r.one.tools.Get(t.Context(), ada, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(c), `"user_id":1,"tool":"confirm","args":{"text":"sure?"},"state":"answered","result":{"ok":true}`; got != want {
		t.Errorf("an answered call is shown as %s", got)
	}
	c.Error = "no"
	if got, want := show(c), `"user_id":1,"tool":"confirm","args":{"text":"sure?"},"state":"answered","error":"no"`; got != want {
		t.Errorf("a failed call is shown as %s", got)
	}
}
