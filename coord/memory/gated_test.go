package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
)

// TestPilesAreTrue makes random calls, some of them in transactions that are
// rolled back, with a clock that goes either way. Each claim and each NextDue is
// what a plain look at all runs says, the counts of places are those of the runs
// that are running, and nothing is kept of what has ended.
func TestPilesAreTrue(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := &piles{T: t, rand: rand.New(rand.NewPCG(seed, 0)), now: time.UnixMicro(1e15)}
			p.store = NewStore(Options{Now: func() time.Time { return p.now }})
			p.handle = p.store.open()
			for range 150 {
				p.step()
				p.check()
			}
			p.drain()
		})
	}
}

type piles struct {
	*testing.T
	rand   *rand.Rand
	now    time.Time
	store  *Store
	handle *handle
	claims []coord.Claim
}

var kinds = []string{"a", "b", "c"}

func (p *piles) step() {
	ctx, c := p.Context(), p.handle.Claimer()
	switch p.rand.IntN(10) {
	case 0, 1, 2:
		for range 1 + p.rand.IntN(4) {
			p.must(c.Enqueue(ctx, p.newRun()))
		}
	case 3, 4, 5:
		p.claim()
	case 6:
		p.now = p.now.Add(time.Duration(p.rand.IntN(30)-10) * time.Second)
	case 7:
		p.change(ctx, c)
	case 8:
		before := p.kept()
		err := p.handle.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			for range 1 + p.rand.IntN(3) {
				p.change(ctx, tx)
			}
			return errRolledBack
		})
		if !errors.Is(err, errRolledBack) {
			p.Fatal(err)
		}
		if after := p.kept(); !reflect.DeepEqual(after, before) {
			p.Fatalf("after a roll back:\n%+v\nwant\n%+v", after, before)
		}
	case 9:
		if len(p.claims) > 0 {
			_, err := c.Extend(ctx, 10*time.Second, p.pick())
			p.mayBe(err, coord.ErrFenced)
		}
	}
}

var errRolledBack = errors.New("rolled back")

// change makes a call that a transaction knows.
func (p *piles) change(ctx context.Context, tx interface {
	PutTask(ctx context.Context, t coord.Task) (coord.Task, error)
	DeleteTask(ctx context.Context, name string) error
	PauseTask(ctx context.Context, name string, paused bool) error
	Trigger(ctx context.Context, name string, o coord.TriggerOptions) (coord.Run, error)
	Enqueue(ctx context.Context, runs ...coord.NewRun) ([]coord.Run, error)
	Finish(ctx context.Context, results ...coord.Result) error
	Report(ctx context.Context, reports ...coord.Report) error
	Cancel(ctx context.Context, id coord.RunID) error
},
) {
	name := fmt.Sprint(p.rand.IntN(2))
	switch n := p.newRun(); p.rand.IntN(8) {
	case 0:
		_, err := tx.PutTask(ctx, coord.Task{
			Name: name, Kind: n.Kind, Retry: n.Retry, Priority: n.Priority, Concurrency: n.Concurrency, Overlap: coord.OverlapForbid,
			Schedule: "@every 24h", Zone: "UTC", Misfire: coord.MisfireLatest,
		})
		p.mayBe(err, coord.ErrConflict)
	case 1:
		p.mayBe(tx.DeleteTask(ctx, name), coord.ErrNotFound)
	case 2:
		p.mayBe(tx.PauseTask(ctx, name, p.rand.IntN(2) == 0), coord.ErrNotFound)
	case 3:
		_, err := tx.Trigger(ctx, name, coord.TriggerOptions{})
		p.mayBe(err, coord.ErrNotFound, coord.ErrConflict)
	case 4:
		p.must(tx.Enqueue(ctx, n))
	case 5:
		if len(p.claims) > 0 {
			outcome := []coord.Outcome{coord.Succeed, coord.Fail, coord.Snooze, coord.Release}[p.rand.IntN(4)]
			p.mayBe(tx.Finish(ctx, coord.Result{Claim: p.pick(), Outcome: outcome, Delay: time.Second}), coord.ErrFenced)
		}
	case 6:
		if len(p.claims) > 0 {
			report := coord.Report{Claim: p.pick(), Progress: 1 + p.rand.IntN(100), Lines: []string{"line"}}
			p.mayBe(tx.Report(ctx, report), coord.ErrFenced)
		}
	case 7:
		id := coord.RunID(1 + p.rand.Int64N(int64(p.store.work.lastRun)+1))
		p.mayBe(tx.Cancel(ctx, id), coord.ErrNotFound, coord.ErrConflict)
	}
}

func (p *piles) newRun() coord.NewRun {
	n := coord.NewRun{
		Kind: kinds[p.rand.IntN(3)], Priority: 1 + p.rand.IntN(2), Delay: time.Duration(p.rand.IntN(10)) * time.Second,
		Retry: coord.Retry{MaxAttempts: 1 + p.rand.IntN(3), Backoff: time.Second, MaxBackoff: time.Second},
	}
	if p.rand.IntN(2) == 0 {
		n.Concurrency = coord.Concurrency{Key: fmt.Sprint(p.rand.IntN(3)), Limit: 1 + p.rand.IntN(3)}
	}
	return n
}

func (p *piles) pick() coord.Claim { return p.claims[p.rand.IntN(len(p.claims))] }

func (p *piles) claim() {
	p.Helper()
	o := coord.ClaimOptions{Worker: "w", Limit: 1 + p.rand.IntN(5), Lease: 10 * time.Second, Limits: make(map[string]int)}
	for _, i := range p.rand.Perm(3)[:1+p.rand.IntN(3)] {
		o.Kinds = append(o.Kinds, kinds[i])
		if p.rand.IntN(3) == 0 {
			o.Limits[kinds[i]] = 1 + p.rand.IntN(3)
		}
	}
	want := p.plain(o)
	claims, err := p.handle.Claimer().Claim(p.Context(), o)
	if err != nil {
		p.Fatal(err)
	}
	var got []coord.RunID
	for _, c := range claims {
		got = append(got, c.Run.ID)
	}
	if !slices.Equal(got, want) {
		p.Fatalf("%+v claims %v, want %v", o, got, want)
	}
	p.claims = append(p.claims, claims...)
}

// plain says what a claim is to take, from a look at all runs.
func (p *piles) plain(o coord.ClaimOptions) (ids []coord.RunID) {
	taken := newWork().taken
	var due []*run
	gates := make(map[*run]string)
	for _, r := range p.store.work.history {
		wanted := r.claimable(p.now) && slices.Contains(o.Kinds, r.Kind)
		if wanted && r.lost() {
			continue
		}
		gates[r] = r.gate
		if wanted {
			due = append(due, r)
			if _, limited := o.Limits[r.Kind]; limited && r.gate == "" {
				gates[r] = gate.OfKind(r.Kind)
			}
		}
		if gates[r] != "" && r.State == coord.Running {
			taken.ByGate[gates[r]]++
			taken.ByKind[r.Kind]++
		}
	}
	slices.SortFunc(due, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.at().Compare(b.at()), cmp.Compare(a.ID, b.ID))
	})
	var candidates []gate.Candidate
	for _, r := range due {
		candidates = append(candidates, gate.Candidate{
			ID: int64(r.ID), Kind: r.Kind, Gate: gates[r], Limit: r.Concurrency.Limit, Running: r.State == coord.Running,
		})
	}
	for _, id := range gate.Pick(candidates, o.Limit, o.Limits, taken) {
		ids = append(ids, coord.RunID(id))
	}
	return ids
}

// kept is what a roll back must bring back.
type kept struct {
	tasks map[string]coord.Task
	runs  map[coord.RunID]coord.Run
	logs  map[coord.RunID][]coord.LogLine
}

func (p *piles) kept() kept {
	k := kept{make(map[string]coord.Task), make(map[coord.RunID]coord.Run), make(map[coord.RunID][]coord.LogLine)}
	for name, t := range p.store.work.tasks {
		k.tasks[name] = t.out()
	}
	for id, r := range p.store.work.runs {
		k.runs[id], k.logs[id] = r.out(), r.log
	}
	return k
}

func (p *piles) check() {
	p.Helper()
	w := &p.store.work
	next := make(map[string]time.Time) // by kind; of any: the empty one
	later := func(kind string, at time.Time) {
		for _, kind := range []string{"", kind} {
			if at.After(p.now) && (next[kind].IsZero() || at.Before(next[kind])) {
				next[kind] = at
			}
		}
	}
	filed := make(map[*lane]int)
	taken := newWork().taken
	for _, r := range w.history {
		if r.State.Ended() {
			if r.pile != nil {
				p.Fatalf("run %d has ended and is in a pile", r.ID)
			}
			continue
		}
		l := w.queues[r.Kind].free
		if n := r.need(); n != (need{}) {
			l = w.queues[r.Kind].gated[n]
		}
		if l == nil || r.pile != &l.waiting && r.pile != &l.ready || r.pile.items[r.index] != r {
			p.Fatalf("run %d is not where it belongs", r.ID)
		}
		filed[l]++
		if r.gate != "" && r.State == coord.Running {
			taken.ByGate[r.gate]++
			taken.ByKind[r.Kind]++
		}
		later(r.Kind, r.at())
	}
	if !maps.Equal(taken.ByGate, w.taken.ByGate) || !maps.Equal(taken.ByKind, w.taken.ByKind) {
		p.Fatalf("places are counted as %v, want %v", w.taken, taken)
	}
	for name, t := range w.tasks {
		if filed := t.pile != nil; filed != !t.Paused && !t.blocked() {
			p.Fatalf("task %s is filed: %v; it is paused: %v, and blocked: %v", name, filed, t.Paused, t.blocked())
		}
		if !t.Paused {
			later(t.Kind, t.NextAt)
		}
	}
	for kind, q := range w.queues {
		if q.tasks.len()+q.free.len()+len(q.gated) == 0 {
			p.Fatalf("the queue of kind %s is empty", kind)
		}
		for l := range q.lanes {
			if l.len() != filed[l] || l != q.free && l.len() == 0 {
				p.Fatalf("a lane of kind %s holds %d runs, want %d, and not 0 if it is gated", kind, l.len(), filed[l])
			}
		}
	}
	for _, kind := range append(kinds, "") {
		var of []string
		if kind != "" {
			of = []string{kind}
		}
		wait, some, err := p.handle.Claimer().NextDue(p.Context(), of...)
		if next := next[kind]; err != nil || some == next.IsZero() || some && wait != next.Sub(p.now) {
			p.Fatalf("NextDue of %q is %v, %v, %v at %v, want %v", of, wait, some, err, p.now, next)
		}
	}
}

// drain ends everything.
func (p *piles) drain() {
	for name := range p.store.work.tasks {
		p.mayBe(p.handle.Claimer().DeleteTask(p.Context(), name))
	}
	for id := range p.store.work.runs {
		p.mayBe(p.handle.Claimer().Cancel(p.Context(), id), coord.ErrConflict)
	}
	p.now = p.now.Add(time.Hour)
	p.claim()
	o := coord.ClaimOptions{Worker: "w", Kinds: kinds, Limit: 1, Lease: time.Second}
	if claims, err := p.handle.Claimer().Claim(p.Context(), o); err != nil || len(claims) > 0 {
		p.Fatalf("after all were cancelled: %v, %v", claims, err)
	}
	p.check()
	if w := &p.store.work; len(w.queues)+len(w.taken.ByGate)+len(w.taken.ByKind) > 0 {
		p.Fatalf("everything has ended, and there are queues %v and places %v", w.queues, w.taken)
	}
}

func (p *piles) must(_ []coord.Run, err error) {
	p.Helper()
	p.mayBe(err)
}

func (p *piles) mayBe(err error, expected ...error) {
	p.Helper()
	if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		p.Fatal(err)
	}
}
