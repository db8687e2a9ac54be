package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// candidacy is that of somebody who stands for an office.
func candidacy(name, who string) coord.Candidacy {
	return coord.Candidacy{Name: name, Candidate: "node of " + who, Holder: who, Lease: lease}
}

func (f *fixture) stand(b coord.Backend, c coord.Candidacy) coord.Leadership {
	f.Helper()
	l, err := b.Elector().Stand(f.ctx, c)
	must(f, "Stand", err)
	equal(f, "the name of a leadership", l.Name, c.Name)
	return l
}

// wins stands and must lead from then on.
func (f *fixture) wins(b coord.Backend, c coord.Candidacy) coord.Term {
	f.Helper()
	l, now := f.stand(b, c), f.store.Now()
	if !l.Mine || l.Candidate != c.Candidate || l.Epoch < 1 || !l.Since.Equal(now) || !l.Until.Equal(now.Add(c.Lease)) {
		f.Fatalf("%s stands for %q at %v and hears %s; want to lead for %v", c.Holder, c.Name, now, show(l), c.Lease)
	}
	return l.Term
}

// follows stands and must hear that a term lasts.
func (f *fixture) follows(b coord.Backend, c coord.Candidacy, t coord.Term) coord.Leadership {
	f.Helper()
	l := f.stand(b, c)
	if l.Mine || l.Term != t {
		f.Fatalf("%s stands for %q and hears %s; want to follow %v", c.Holder, c.Name, show(l), t)
	}
	return l
}

// write publishes an event in one transaction with the fence of a term.
func write(ctx context.Context, b coord.Backend, t coord.Term) error {
	return b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		if err := tx.Publish(ctx, event(t.Name, fmt.Sprint(t.Epoch))); err != nil {
			return err
		}
		return tx.Fence(ctx, t)
	})
}

// isOver tries everything that a term allows.
func (f *fixture) isOver(why string, t coord.Term) {
	f.Helper()
	before := f.head(t.Name)
	for _, b := range f.handles() {
		is(f, "Extend "+why, second(b.Elector().Extend(f.ctx, t, lease)), coord.ErrFenced)
		is(f, "Resign "+why, b.Elector().Resign(f.ctx, t), coord.ErrFenced)
		is(f, "Tx.Fence "+why, write(f.ctx, b, t), coord.ErrFenced)
	}
	equal(f, "the head of the topic "+why, f.head(t.Name), before)
}

func (f *fixture) resign(b coord.Backend, t coord.Term) {
	f.Helper()
	must(f, "Resign", b.Elector().Resign(f.ctx, t))
}

// leaders lists who leads, as "name: candidate".
func (f *fixture) leaders(b coord.Backend) (list []string) {
	f.Helper()
	all, err := b.Elector().Leaders(f.ctx)
	must(f, "Leaders", err)
	for _, l := range all {
		list = append(list, l.Name+": "+l.Candidate)
	}
	return list
}

var electorTests = []test{
	{"one leads, and the others hear who", func(f *fixture) {
		t := f.wins(f.one, candidacy("reaper", "ada"))
		began := f.store.Now()
		f.store.Advance(time.Second)
		want := coord.Leadership{Term: t, Candidate: "node of ada", Since: began, Until: began.Add(lease)}
		for _, b := range f.handles() {
			equal(f, "who leads", f.follows(b, candidacy("reaper", "bob"), t), want)
			all, err := b.Elector().Leaders(f.ctx)
			must(f, "Leaders", err)
			equal(f, "all who lead", all, []coord.Leadership{want})
		}
		f.wins(f.two, candidacy("sweeper", "bob")) // another office
	}},
	{"defaults", func(f *fixture) {
		c := coord.Candidacy{Name: "reaper", Candidate: "node"}
		l := f.stand(f.one, c)
		equal(f, "Mine", l.Mine, true)
		equal(f, "Until with the default lease", l.Until, f.store.Now().Add(15*time.Second))
		f.follows(f.one, c, l.Term) // by another, whose name is random
	}},
	{"a term is over for good when its lease has ended", func(f *fixture) {
		first := f.wins(f.one, candidacy("reaper", "ada"))
		f.store.Advance(lease - time.Microsecond)
		f.follows(f.two, candidacy("reaper", "bob"), first)
		must(f, "InTx with the Fence of a term that lasts", write(f.ctx, f.one, first))
		f.store.Advance(time.Microsecond)
		f.isOver("when the lease has ended", first)
		equal(f, "how many lead", len(f.leaders(f.one)), 0)
		second := f.wins(f.two, candidacy("reaper", "bob"))
		if second.Epoch <= first.Epoch {
			f.Errorf("the epoch %d came after %d", second.Epoch, first.Epoch)
		}
		f.isOver("when another leads", first)
		must(f, "InTx with the Fence of the term that lasts", write(f.ctx, f.two, second))
		f.follows(f.one, candidacy("reaper", "ada"), second)
	}},
	{"a lease is extended, whatever its length", func(f *fixture) {
		t := f.wins(f.one, candidacy("reaper", "ada"))
		began := f.store.Now()
		for _, length := range []time.Duration{lease, 10 * time.Minute, time.Second, 2 * time.Second} {
			f.store.Advance(time.Second - time.Microsecond)
			l, err := f.two.Elector().Extend(f.ctx, t, length)
			must(f, "Extend", err)
			want := coord.Leadership{Term: t, Candidate: "node of ada", Since: began, Until: f.store.Now().Add(length), Mine: true}
			equal(f, "what Extend returns", l, want)
			want.Mine = false
			equal(f, "what others hear", f.follows(f.two, candidacy("reaper", "bob"), t), want)
		}
		f.store.Advance(2 * time.Second)
		f.wins(f.two, candidacy("reaper", "bob"))
	}},
	{"a holder that stands again begins another term", func(f *fixture) {
		first := f.wins(f.one, candidacy("reaper", "ada"))
		f.store.Advance(time.Second)
		again := f.wins(f.two, candidacy("reaper", "ada"))
		if again.Epoch <= first.Epoch {
			f.Errorf("the epoch %d came after %d", again.Epoch, first.Epoch)
		}
		f.isOver("when its holder has stood again", first)
		f.follows(f.one, candidacy("reaper", "bob"), again)
		must(f, "InTx with the Fence of the term that lasts", write(f.ctx, f.one, again))
	}},
	{"who resigns is followed at once", func(f *fixture) {
		first := f.wins(f.one, candidacy("reaper", "ada"))
		f.resign(f.two, first)
		f.isOver("after it was resigned", first)
		equal(f, "how many lead", len(f.leaders(f.one)), 0)
		second := f.wins(f.two, candidacy("reaper", "bob"))
		f.isOver("when another has followed", first)
		f.resign(f.two, second)
		f.wins(f.two, candidacy("reaper", "bob")) // who has just resigned
		f.isOver("when its candidate leads again", second)
	}},
	{"epochs of a name only grow", func(f *fixture) {
		last := int64(0)
		for i := range 12 {
			t := f.wins(f.handles()[i%2], candidacy("reaper", fmt.Sprint(i%3)))
			if t.Epoch <= last {
				f.Fatalf("the epoch %d came after %d", t.Epoch, last)
			}
			last = t.Epoch
			f.isOver("by an epoch that there was never", coord.Term{Name: "reaper", Epoch: last + 1000})
			f.isOver("by an epoch that is none", coord.Term{Name: "reaper"})
			f.isOver("of another name", coord.Term{Name: "sweeper", Epoch: last})
			if i%2 == 0 {
				f.resign(f.one, t)
			}
			f.store.Advance(lease)
			if i%4 == 3 && f.harness.Capabilities.SeveralHandles {
				f.two = f.open()
			}
		}
	}},
	{"of 32 racers one leads", func(f *fixture) {
		var won atomic.Int64
		var last coord.Term
		for round := range 6 { // an office that is new, then one that was resigned or whose lease has ended
			won.Store(0)
			f.together(32, func(i int, b coord.Backend) {
				l, err := b.Elector().Stand(f.ctx, candidacy("reaper", fmt.Sprint(i)))
				if err != nil {
					f.Errorf("Stand in a race: %v", err)
				}
				if l.Mine && won.Add(1) == 1 {
					last = l.Term
				}
			})
			equal(f, "how many of 32 racers lead", won.Load(), 1)
			if round%2 == 0 {
				f.resign(f.one, last)
			} else {
				f.store.Advance(lease)
			}
		}
	}},
	{"names are data, and Leaders lists them in order", func(f *fixture) {
		names := slices.Concat(awkward, []string{"k", "K", "k ", "é", strings.Repeat("k", 200)})
		slices.Sort(names)
		names = slices.Compact(names)
		var want []string
		for i, name := range names {
			who := awkward[i%len(awkward)]
			t := f.wins(f.one, coord.Candidacy{Name: name, Candidate: who, Holder: who, Lease: lease})
			must(f, "InTx with Fence", write(f.ctx, f.two, t))
			f.follows(f.two, candidacy(name, "bob"), t)
			want = append(want, name+": "+who)
		}
		equal(f, "who leads", f.leaders(f.two), want)
		l := f.stand(f.two, candidacy(names[1], "bob"))
		f.resign(f.one, l.Term)
		equal(f, "who leads", f.leaders(f.one), slices.Delete(want, 1, 2))
	}},
	{"changes tell of who resigns", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Hints, "Hints") {
			return
		}
		for _, b := range f.handles() {
			changes, stop := b.Elector().Changes()
			t := f.wins(f.one, candidacy("reaper", "ada"))
			f.allHeard(b)
			select { // what came before is in the way
			case <-changes:
			default:
			}
			f.resign(f.one, t)
			f.heard("Resign", changes)
			stop()
		}
	}},
	{"what a leader writes commits with its fence, or not at all", func(f *fixture) {
		t := f.wins(f.one, candidacy("reaper", "ada"))
		err := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Fence(ctx, t); err != nil {
				return err
			}
			if err := tx.Publish(ctx, event("reaper", "x")); err != nil {
				return err
			}
			return errOwn
		})
		equal(f, "whether InTx returned its function's error", errors.Is(err, errOwn), true)
		equal(f, "the head after a rollback", f.head("reaper").Seq, 0)
		for range 2 {
			must(f, "InTx", write(f.ctx, f.one, t))
		}
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error { // for who swallows the error, the rest commits
			is(f, "Fence", tx.Fence(ctx, coord.Term{Name: "reaper", Epoch: t.Epoch + 1}), coord.ErrFenced)
			must(f, "Fence, of the right term", tx.Fence(ctx, t))
			return tx.Publish(ctx, event("reaper", "x"))
		})
		equal(f, "the head", f.head("reaper").Seq, 3)
	}},
	{"no term begins before a fenced transaction has ended", func(f *fixture) {
		for name, takeOver := range map[string]func(t coord.Term) string{ // returns who stands then
			"lease":  func(coord.Term) string { f.store.Advance(lease); return "bob" },
			"holder": func(coord.Term) string { return "ada" },
		} {
			t := f.wins(f.one, candidacy(name, "ada"))
			who := ""
			f.inTx(f.one, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Fence(ctx, t); err != nil {
					return err
				}
				who = takeOver(t)
				// Where writers take turns this one waits for its turn, and gives up.
				asking, cancel := context.WithTimeout(f.ctx, 100*time.Millisecond)
				defer cancel()
				l, err := f.two.Elector().Stand(asking, candidacy(name, who))
				if l.Mine || err == nil && l.Term != t || err != nil && !errors.Is(err, context.DeadlineExceeded) {
					f.Errorf("%s: Stand while a fenced transaction is under way: %s, %v", name, show(l), err)
				}
				return tx.Publish(ctx, event(name, "x"))
			})
			equal(f, "the head", f.head(name).Seq, 1)
			f.wins(f.two, candidacy(name, who))
			f.isOver("when another leads", t)
		}
	}},
	{"a clock that steps back keeps nobody away for longer than a lease", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.ClockBack, "ClockBack") {
			return
		}
		t := f.wins(f.one, candidacy("reaper", "ada"))
		f.store.Advance(-time.Hour)
		l := f.follows(f.two, candidacy("reaper", "bob"), t)
		equal(f, "Until", l.Until, f.store.Now().Add(lease))
		f.store.Advance(lease / 2)
		l = f.follows(f.two, candidacy("reaper", "bob"), t)
		equal(f, "Until, which is shortened once", l.Until, f.store.Now().Add(lease/2))
		extended, err := f.one.Elector().Extend(f.ctx, t, lease)
		must(f, "Extend", err)
		equal(f, "Until of an extension", extended.Until, f.store.Now().Add(lease))
		f.store.Advance(lease)
		f.isOver("when the lease has ended", t)
		next := f.wins(f.two, candidacy("reaper", "bob"))
		f.store.Advance(-time.Hour)
		f.isOver("when the clock is where it was", t)
		must(f, "InTx with the Fence of the term that lasts", write(f.ctx, f.two, next))
		f.resign(f.two, next)
		f.store.Advance(-time.Hour)
		f.isOver("when the clock is before its end", next)
		if again := f.wins(f.one, candidacy("reaper", "ada")); again.Epoch <= next.Epoch {
			f.Errorf("the epoch %d came after %d", again.Epoch, next.Epoch)
		}
	}},
}
