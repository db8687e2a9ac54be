package coordtest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// question is a call to a target, open for a minute.
func question(target string) coord.NewCall {
	return coord.NewCall{Target: target, Kind: "confirm", Payload: []byte("sure?"), TTL: time.Minute}
}

func (f *fixture) openCall(b coord.Backend, n coord.NewCall) coord.Call {
	f.Helper()
	c, err := b.Calls().Open(f.ctx, n)
	must(f, "Open", err)
	return c
}

func (f *fixture) call(b coord.Backend, id coord.CallID) coord.Call {
	f.Helper()
	c, err := b.Calls().Get(f.ctx, id)
	must(f, "Get", err)
	return c
}

func (f *fixture) answer(b coord.Backend, c coord.Call, result string) error {
	return b.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: c.Target, Result: []byte(result)})
}

func (f *fixture) pending(b coord.Backend, target string) (ids []coord.CallID) {
	f.Helper()
	calls, err := b.Calls().Pending(f.ctx, target)
	must(f, "Pending", err)
	for _, c := range calls {
		equal(f, "the state of a pending call", c.State, coord.CallOpen)
		ids = append(ids, c.ID)
	}
	return ids
}

// waiting waits for a call in the background, which has begun when it returns, or
// nearly so.
func (f *fixture) waiting(ctx context.Context, b coord.Backend, id coord.CallID) <-chan waited {
	out := make(chan waited, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		c, err := b.Calls().Wait(ctx, id)
		out <- waited{c, err}
	}()
	<-begun
	return out
}

type waited struct {
	call coord.Call
	err  error
}

// ended receives what Wait has returned, which must be a call.
func (f *fixture) ended(out <-chan waited, state coord.CallState) coord.Call {
	f.Helper()
	w := f.received(out)
	must(f, "Wait", w.err)
	equal(f, "the state that Wait returned", w.call.State, state)
	return w.call
}

func (f *fixture) received(out <-chan waited) waited {
	f.Helper()
	select {
	case w := <-out:
		return w
	case <-f.ctx.Done():
		f.Fatalf("Wait has not returned within %v", patience)
		return waited{}
	}
}

// sameCall compares calls; of bytes it makes no matter whether none are nil.
func sameCall(r reporter, what string, got, want coord.Call) {
	r.Helper()
	equal(r, what+": the payload", string(got.Payload), string(want.Payload))
	equal(r, what+": the result", string(got.Result), string(want.Result))
	for name, times := range map[string][2]time.Time{
		"CreatedAt": {got.CreatedAt, want.CreatedAt}, "Deadline": {got.Deadline, want.Deadline}, "EndedAt": {got.EndedAt, want.EndedAt},
	} {
		equal(r, what+": "+name, times[0], times[1])
	}
	for _, c := range []*coord.Call{&got, &want} {
		c.Payload, c.Result, c.CreatedAt, c.Deadline, c.EndedAt = nil, nil, time.Time{}, time.Time{}, time.Time{}
	}
	equal(r, what, got, want)
}

func (f *fixture) reapCalls(age time.Duration) (n int) {
	f.Helper()
	for {
		deleted, err := f.one.Calls().Reap(f.ctx, age)
		must(f, "Reap", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

var callTests = []test{
	{"a call is stored", func(f *fixture) {
		now := f.store.Now()
		n := question("ada")
		n.Key, n.Payload = "k", everyByte()
		c := f.openCall(f.one, n)
		if bits, err := base64.RawURLEncoding.DecodeString(string(c.ID)); err != nil || len(bits) != 16 {
			f.Errorf("the id %q is not 128 bits in base64url", c.ID)
		}
		want := coord.Call{
			ID: c.ID, Key: "k", Target: "ada", Kind: "confirm", Payload: everyByte(), State: coord.CallOpen,
			CreatedAt: now, Deadline: now.Add(time.Minute),
		}
		sameCall(f, "Open", c, want)
		for _, b := range f.handles() {
			sameCall(f, "Get", f.call(b, c.ID), want)
			found, err := b.Calls().Find(f.ctx, "k")
			must(f, "Find", err)
			sameCall(f, "Find", found, want)
		}
		bare := f.openCall(f.one, coord.NewCall{Target: "ada", Kind: "k"})
		equal(f, "the deadline by default", bare.Deadline, now.Add(time.Minute))
		equal(f, "Key of a call without one", f.call(f.two, bare.ID).Key, "")
		f.store.Advance(time.Second)
		must(f, "Answer", f.two.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: "ada", Result: everyByte(), Error: "but"}))
		want.State, want.Result, want.Error, want.EndedAt = coord.CallAnswered, everyByte(), "but", now.Add(time.Second)
		sameCall(f, "Get of the answered call", f.call(f.one, c.ID), want)
	}},
	{"large payloads and results", func(f *fixture) {
		n := question("ada")
		n.Payload = []byte(strings.Repeat("p", coord.MaxPayload))
		c := f.openCall(f.one, n)
		result := strings.Repeat("r", coord.MaxPayload)
		must(f, "Answer", f.answer(f.two, c, result))
		got := f.call(f.one, c.ID)
		equal(f, "whether they are the same", string(got.Payload) == string(n.Payload) && string(got.Result) == result, true)
	}},
	{"what a call holds is the store's own", func(f *fixture) {
		n := question("ada")
		c := f.openCall(f.one, n)
		result := []byte("yes")
		must(f, "Answer", f.one.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: "ada", Result: result}))
		got := f.call(f.one, c.ID)
		for _, b := range [][]byte{n.Payload, c.Payload, result, got.Payload, got.Result} {
			b[0] = '!'
		}
		got = f.call(f.one, c.ID)
		equal(f, "the payload and the result", string(got.Payload)+string(got.Result), "sure?yes")
	}},
	{"a key makes one call", func(f *fixture) {
		n := question("ada")
		n.Key = "k"
		first := f.openCall(f.one, n)
		other := question("bob")
		other.Key = "k"
		again := f.openCall(f.two, other)
		equal(f, "Duplicate of the first", first.Duplicate, false)
		equal(f, "Duplicate of the second", again.Duplicate, true)
		again.Duplicate = false
		sameCall(f, "the second", again, first)
		equal(f, "the pending calls of the second's target", len(f.pending(f.one, "bob")), 0)
		must(f, "Answer", f.answer(f.one, first, "yes"))
		ended := f.openCall(f.two, n)
		if !ended.Duplicate || ended.State != coord.CallAnswered || string(ended.Result) != "yes" {
			f.Errorf("Open with the key of an answered call: %s", show(ended))
		}
		_, err := f.two.Calls().Find(f.ctx, "none")
		is(f, "Find of an unknown key", err, coord.ErrNotFound)
		without := question("ada")
		if one, other := f.openCall(f.one, without), f.openCall(f.one, without); one.ID == other.ID || other.Duplicate {
			f.Error("two calls without a key are one")
		}
		var mu sync.Mutex
		ids, made := map[coord.CallID]bool{}, 0
		n.Key = "raced"
		f.together(16, func(_ int, b coord.Backend) {
			c, err := b.Calls().Open(f.ctx, n)
			if err != nil {
				f.Errorf("Open: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[c.ID] = true
			if !c.Duplicate {
				made++
			}
		})
		equal(f, "how many calls 16 callers with one key got", len(ids), 1)
		equal(f, "how many of them opened it", made, 1)
	}},
	{"a key of an overdue call tells that it has expired", func(f *fixture) {
		n := question("ada")
		n.Key = "k"
		f.openCall(f.one, n)
		f.store.Advance(time.Hour)
		equal(f, "the state", f.openCall(f.two, n).State, coord.CallExpired)
		f.openCall(f.one, question("ada"))
	}},
	{"the target alone answers", func(f *fixture) {
		c := f.openCall(f.one, question("user:1/conn:a"))
		for _, target := range []string{"user:1/conn:b", "user:2/conn:a", "user:1", "user:1/conn:a ", "USER:1/conn:a"} {
			err := f.two.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: target, Result: []byte("forged")})
			is(f, "Answer as "+target, err, coord.ErrNotFound)
		}
		sameCall(f, "after forged answers", f.call(f.one, c.ID), c)
		must(f, "Answer", f.answer(f.two, c, "yes"))
		// Nor is anybody else told that there was such a call.
		err := f.two.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: "user:2/conn:a"})
		is(f, "Answer of an answered call as another", err, coord.ErrNotFound)
		equal(f, "the result", string(f.call(f.one, c.ID).Result), "yes")
	}},
	{"the first end counts", func(f *fixture) {
		ends := map[string]func(b coord.Backend, c coord.Call) error{
			"Answer": func(b coord.Backend, c coord.Call) error { return f.answer(b, c, "yes") },
			"Cancel": func(b coord.Backend, c coord.Call) error { return b.Calls().Cancel(f.ctx, c.ID, "no need") },
			"CancelCall": func(b coord.Backend, c coord.Call) error {
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.CancelCall(ctx, c.ID, "no need") })
			},
		}
		for name, end := range ends {
			c := f.openCall(f.one, question("ada"))
			must(f, name, end(f.two, c))
			after := f.call(f.one, c.ID)
			switch {
			case name == "Answer" && (after.State != coord.CallAnswered || string(after.Result) != "yes" || after.Err() != nil):
				f.Errorf("the answered call is %s", show(after))
			case name != "Answer" && (after.State != coord.CallCancelled || after.Error != "no need" || after.Err() == nil):
				f.Errorf("the cancelled call is %s", show(after))
			}
			f.store.Advance(time.Second)
			for second, end := range ends {
				for _, b := range f.handles() {
					is(f, second+" after "+name, end(b, c), coord.ErrConflict)
				}
			}
			f.store.Advance(time.Hour)
			is(f, "Answer after "+name+" and the deadline", f.answer(f.one, c, "late"), coord.ErrConflict)
			sameCall(f, "after all that came later", f.call(f.two, c.ID), after)
		}
	}},
	{"of 32 that would end a call one does", func(f *fixture) {
		for range 5 {
			c := f.openCall(f.one, question("ada"))
			var won atomic.Int64
			var winner atomic.Value
			f.together(32, func(i int, b coord.Backend) {
				text := fmt.Sprint(i)
				end := func() error { return f.answer(b, c, text) }
				if i%4 == 3 {
					end = func() error { return b.Calls().Cancel(f.ctx, c.ID, text) }
				}
				switch err := end(); {
				case err == nil:
					won.Add(1)
					winner.Store(text)
				case !errors.Is(err, coord.ErrConflict):
					f.Errorf("an end in a race: %v; want ErrConflict", err)
				}
			})
			equal(f, "how many of 32 ended it", won.Load(), 1)
			for _, b := range f.handles() {
				got := f.call(b, c.ID)
				equal(f, "whose word is stored", string(got.Result)+got.Error, winner.Load().(string))
			}
		}
	}},
	{"a call expires", callExpires},
	{"Wait returns when a call ends, on any handle", func(f *fixture) {
		for _, b := range f.handles() {
			for _, by := range f.handles() {
				answered, cancelled, overdue := f.openCall(b, question("ada")), f.openCall(b, question("ada")), f.openCall(b, question("ada"))
				inTx := f.openCall(b, question("ada"))
				first, second := f.waiting(f.ctx, b, answered.ID), f.waiting(f.ctx, b, answered.ID)
				third, fourth, fifth := f.waiting(f.ctx, b, cancelled.ID), f.waiting(f.ctx, b, overdue.ID), f.waiting(f.ctx, b, inTx.ID)
				must(f, "Answer", f.answer(by, answered, "yes"))
				for _, out := range []<-chan waited{first, second} {
					sameCall(f, "what Wait returned", f.ended(out, coord.CallAnswered), f.call(by, answered.ID))
				}
				must(f, "Cancel", by.Calls().Cancel(f.ctx, cancelled.ID, "no need"))
				equal(f, "the reason", f.ended(third, coord.CallCancelled).Error, "no need")
				f.inTx(by, func(ctx context.Context, tx coord.Tx) error { return tx.CancelCall(ctx, inTx.ID, "in one") })
				equal(f, "the reason", f.ended(fifth, coord.CallCancelled).Error, "in one")
				f.store.Advance(time.Minute)
				expired := f.ended(fourth, coord.CallExpired)
				is2(f, "Err of an expired call", expired.Err(), coord.ErrExpired)
				// At once, when it has ended already.
				f.ended(f.waiting(f.ctx, by, answered.ID), coord.CallAnswered)
			}
		}
	}},
	{"Wait of what is not there", func(f *fixture) {
		_, err := f.one.Calls().Wait(f.ctx, coord.NewCallID())
		is(f, "Wait of an unknown call", err, coord.ErrNotFound)
		c := f.openCall(f.one, question("ada"))
		out := f.waiting(f.ctx, f.two, c.ID)
		must(f, "Answer", f.answer(f.one, c, "yes"))
		f.ended(out, coord.CallAnswered)
		f.store.Advance(time.Hour)
		equal(f, "how many calls Reap deleted", f.reapCalls(0), 1)
		_, err = f.two.Calls().Wait(f.ctx, c.ID)
		is(f, "Wait of a reaped call", err, coord.ErrNotFound)
	}},
	{"Wait ends with its context", func(f *fixture) {
		c := f.openCall(f.one, question("ada"))
		other := f.waiting(f.ctx, f.two, c.ID)
		ctx, cancel := context.WithCancel(f.ctx)
		out := f.waiting(ctx, f.two, c.ID)
		cancel()
		is(f, "Wait with a cancelled context", f.received(out).err, context.Canceled)
		ctx, cancel = context.WithTimeout(f.ctx, time.Millisecond)
		defer cancel()
		_, err := f.two.Calls().Wait(ctx, c.ID)
		is(f, "Wait with a deadline", err, context.DeadlineExceeded)
		if errors.Is(err, coord.ErrUnavailable) {
			f.Errorf("Wait with a deadline of the caller's own is an outage: %v", err)
		}
		must(f, "Answer", f.answer(f.one, c, "yes"))
		f.ended(other, coord.CallAnswered)
	}},
	{"who waits may die, and another asks again", func(f *fixture) {
		b := f.open0()
		c := f.openCall(b, question("ada"))
		out := f.waiting(f.ctx, b, c.ID)
		must(f, "Close", b.Close(f.ctx))
		is(f, "Wait while the backend is closed", f.received(out).err, coord.ErrClosed)
		if f.lacks(f.harness.Capabilities.SeveralHandles, "SeveralHandles") {
			return
		}
		again := f.waiting(f.ctx, f.two, c.ID)
		must(f, "Answer", f.answer(f.one, c, "yes"))
		equal(f, "the result", string(f.ended(again, coord.CallAnswered).Result), "yes")
	}},
	{"many wait for many", func(f *fixture) {
		const n = 60
		var calls []coord.Call
		for range n {
			calls = append(calls, f.openCall(f.one, question("ada")))
		}
		var waiters sync.WaitGroup
		for i, c := range calls {
			for _, b := range f.handles() {
				waiters.Go(func() {
					got, err := b.Calls().Wait(f.ctx, c.ID)
					if err != nil || string(got.Result) != fmt.Sprint(i) {
						f.Errorf("Wait for call %d: %s, %v", i, show(got), err)
					}
				})
			}
		}
		f.together(n, func(i int, b coord.Backend) {
			if err := f.answer(b, calls[i], fmt.Sprint(i)); err != nil {
				f.Errorf("Answer: %v", err)
			}
		})
		waiters.Wait()
	}},
	{"Pending lists the open calls of a target, the oldest first", func(f *fixture) {
		var want []coord.CallID
		var ended []coord.Call
		for i := range 6 {
			c := f.openCall(f.handles()[i%2], question("ada"))
			f.openCall(f.one, question("bob"))
			if i%3 == 2 {
				ended = append(ended, c)
			} else {
				want = append(want, c.ID)
			}
		}
		must(f, "Answer", f.answer(f.two, ended[0], "yes"))
		must(f, "Cancel", f.one.Calls().Cancel(f.ctx, ended[1].ID, ""))
		for _, b := range f.handles() {
			equal(f, "the pending calls", f.pending(b, "ada"), want)
			equal(f, "the pending calls of nobody", len(f.pending(b, "ad")), 0)
		}
		later := question("ada")
		later.TTL = time.Hour
		last := f.openCall(f.one, later)
		f.store.Advance(time.Minute)
		equal(f, "the pending calls when the others are overdue", f.pending(f.two, "ada"), []coord.CallID{last.ID})
	}},
	{"Reap deletes what is old, however it ended", func(f *fixture) {
		n := question("ada")
		n.Key = "k"
		answered, cancelled, overdue := f.openCall(f.one, n), f.openCall(f.one, question("ada")), f.openCall(f.one, question("ada"))
		later := question("ada")
		later.TTL = 2 * time.Hour
		kept := f.openCall(f.one, later)
		must(f, "Answer", f.answer(f.one, answered, "yes"))
		must(f, "Cancel", f.one.Calls().Cancel(f.ctx, cancelled.ID, ""))
		f.store.Advance(time.Hour + time.Minute - time.Microsecond)
		equal(f, "how many calls Reap deleted a microsecond early", f.reapCalls(time.Hour), 0)
		f.store.Advance(time.Microsecond)
		equal(f, "how many calls Reap deleted", f.reapCalls(time.Hour), 3)
		for _, c := range []coord.Call{answered, cancelled, overdue} {
			_, err := f.two.Calls().Get(f.ctx, c.ID)
			is(f, "Get of a reaped call", err, coord.ErrNotFound)
			is(f, "Answer of a reaped call", f.answer(f.two, c, "late"), coord.ErrNotFound)
			is(f, "Cancel of a reaped call", f.two.Calls().Cancel(f.ctx, c.ID, ""), coord.ErrNotFound)
		}
		equal(f, "Duplicate for a key whose call was reaped", f.openCall(f.two, n).Duplicate, false)
		sameCall(f, "the call that is kept", f.call(f.two, kept.ID), kept)
	}},
	{"a commit opens and cancels", func(f *fixture) {
		stream := f.subscribe(f.two, at("t", coord.Head))
		old := f.openCall(f.one, question("ada"))
		out := f.waiting(f.ctx, f.two, old.ID)
		n := question("ada")
		n.Key = "k"
		var opened, again coord.Call
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) (err error) {
			if opened, err = tx.OpenCall(ctx, n); err != nil {
				return err
			}
			if again, err = tx.OpenCall(ctx, n); err != nil {
				return err
			}
			if err := tx.CancelCall(ctx, old.ID, "replaced"); err != nil {
				return err
			}
			return tx.Publish(ctx, event("t", string(opened.ID)))
		})
		equal(f, "the event", string(f.next(stream, 1)[0].Payload), string(opened.ID))
		sameCall(f, "the call that was opened", f.call(f.two, opened.ID), opened)
		equal(f, "the id of the second of a key", again.ID, opened.ID)
		equal(f, "Duplicate of the second of a key", again.Duplicate, true)
		equal(f, "the reason", f.ended(out, coord.CallCancelled).Error, "replaced")
	}},
	{"a rollback opens and cancels nothing", func(f *fixture) {
		old := f.openCall(f.one, question("ada"))
		n := question("ada")
		n.Key = "k"
		var opened coord.Call
		f.rollsBack(func(ctx context.Context, tx coord.Tx) (err error) {
			if opened, err = tx.OpenCall(ctx, n); err != nil {
				return err
			}
			if err := tx.CancelCall(ctx, opened.ID, "at once"); err != nil {
				return err
			}
			return tx.CancelCall(ctx, old.ID, "replaced")
		})
		_, err := f.two.Calls().Get(f.ctx, opened.ID)
		is(f, "Get of a call that was rolled back", err, coord.ErrNotFound)
		sameCall(f, "the call whose end was rolled back", f.call(f.two, old.ID), old)
		equal(f, "the pending calls", f.pending(f.two, "ada"), []coord.CallID{old.ID})
		equal(f, "Duplicate for a key that was rolled back", f.openCall(f.two, n).Duplicate, false)
		must(f, "Answer", f.answer(f.two, old, "yes"))
	}},
	{"a cancel that is refused does not undo the rest of a transaction", func(f *fixture) {
		overdue := f.openCall(f.one, question("ada"))
		f.store.Advance(time.Hour)
		answered := f.openCall(f.one, question("ada"))
		must(f, "Answer", f.answer(f.one, answered, "yes"))
		var opened coord.Call
		f.inTx(f.one, func(ctx context.Context, tx coord.Tx) (err error) {
			is(f, "CancelCall of an answered call", tx.CancelCall(ctx, answered.ID, ""), coord.ErrConflict)
			is(f, "CancelCall of an overdue call", tx.CancelCall(ctx, overdue.ID, ""), coord.ErrExpired)
			is(f, "CancelCall of an unknown call", tx.CancelCall(ctx, coord.NewCallID(), ""), coord.ErrNotFound)
			opened, err = tx.OpenCall(ctx, question("ada"))
			return err
		})
		f.call(f.two, opened.ID)
		equal(f, "the state of the overdue call", f.call(f.two, overdue.ID).State, coord.CallExpired)
	}},
	{"odd ids are not found", func(f *fixture) {
		c := f.openCall(f.one, question("ada"))
		good := string(c.ID)
		for _, id := range []string{
			"", " ", good + " ", good[:21], good + "A", good[:21] + "\n", "\x00", "\xff\xfe", strings.Repeat("é", 11),
			strings.Repeat("A", 1<<16), "' OR 1=1 --", strings.Repeat("%", 22), string(coord.NewCallID()),
		} {
			id := coord.CallID(id)
			_, err := f.two.Calls().Get(f.ctx, id)
			is(f, "Get of an odd id", err, coord.ErrNotFound)
			_, err = f.two.Calls().Wait(f.ctx, id)
			is(f, "Wait of an odd id", err, coord.ErrNotFound)
			is(f, "Cancel of an odd id", f.two.Calls().Cancel(f.ctx, id, ""), coord.ErrNotFound)
			is(f, "Answer of an odd id", f.two.Calls().Answer(f.ctx, coord.Answer{ID: id, Target: "ada"}), coord.ErrNotFound)
		}
		sameCall(f, "the good one", f.call(f.two, c.ID), c)
	}},
	{"names are data", func(f *fixture) {
		for _, name := range awkward {
			c := f.openCall(f.one, coord.NewCall{Key: name, Target: name, Kind: name, Payload: everyByte()})
			got := f.call(f.two, c.ID)
			if got.Key != name || got.Target != name || got.Kind != name {
				f.Errorf("a call with the names %q: %s", name, show(got))
			}
			equal(f, fmt.Sprintf("the pending calls of %q", name), f.pending(f.one, name), []coord.CallID{c.ID})
			must(f, "Answer", f.two.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: name, Error: name}))
			equal(f, "Error", f.call(f.one, c.ID).Error, name)
		}
	}},
	{"texts from anywhere are cut and cleaned", func(f *fixture) {
		long := strings.Repeat("é", coord.MaxErrorText)
		for text, want := range map[string]string{
			long:           long[:coord.MaxErrorText],
			"a\x00b":       "a\ufffdb",
			"\xff":         "\ufffd",
			"line\nline 2": "line\nline 2",
		} {
			c, other := f.openCall(f.one, question("ada")), f.openCall(f.one, question("ada"))
			must(f, "Answer", f.two.Calls().Answer(f.ctx, coord.Answer{ID: c.ID, Target: "ada", Error: text}))
			must(f, "Cancel", f.two.Calls().Cancel(f.ctx, other.ID, text))
			for _, c := range []coord.Call{c, other} {
				equal(f, "Error", f.call(f.one, c.ID).Error, want)
			}
		}
	}},
	{"wrong requests are refused", refuses(badCallRequests)},
	{"opening again under a key, until it is acknowledged, opens once", func(f *fixture) {
		b := Faulty(f.one, Random(9, Rates{Fail: 0.2, Cut: 0.3}, "calls.open", "backend.tx", "tx.open_call"))
		const n = 40
		for i := range n {
			q := question("ada")
			q.Key = fmt.Sprint(i)
			f.persist("Open", func() error {
				if i%2 == 0 {
					_, err := b.Calls().Open(f.ctx, q)
					return err
				}
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
					_, err := tx.OpenCall(ctx, q)
					return err
				})
			})
		}
		equal(f, "how many calls are open", len(f.pending(f.two, "ada")), n)
	}},
	{"an answer that is cut off counts, and is not given twice", func(f *fixture) {
		b := Faulty(f.one, Nth("calls.answer", 1, Fault{Cut: true}))
		c := f.openCall(f.one, question("ada"))
		is(f, "Answer that was cut", f.answer(b, c, "yes"), coord.ErrUnknownOutcome)
		is(f, "Answer, again", f.answer(b, c, "no"), coord.ErrConflict)
		equal(f, "the result", string(f.call(f.two, c.ID).Result), "yes")
	}},
	{"ending a call once is linearizable", callHistory},
}

// is2 is is for an error that no operation has returned.
func is2(r reporter, what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Fatalf("%s: the error is %v; want one that errors.Is %q", what, err, want)
	}
}

func callExpires(f *fixture) {
	inTime, late, cancelled, seen := f.openCall(f.one, question("ada")), f.openCall(f.one, question("ada")),
		f.openCall(f.one, question("ada")), f.openCall(f.one, question("ada"))
	f.store.Advance(time.Minute - time.Microsecond)
	must(f, "Answer a microsecond before the deadline", f.answer(f.two, inTime, "yes"))
	equal(f, "the state a microsecond before the deadline", f.call(f.two, seen.ID).State, coord.CallOpen)
	f.store.Advance(time.Microsecond)
	is(f, "Answer at the deadline", f.answer(f.two, late, "too late"), coord.ErrExpired)
	is(f, "Cancel at the deadline", f.two.Calls().Cancel(f.ctx, cancelled.ID, "too late"), coord.ErrExpired)
	f.store.Advance(time.Hour)
	for _, c := range []coord.Call{late, cancelled, seen} {
		want := c
		want.State, want.EndedAt = coord.CallExpired, c.Deadline
		sameCall(f, "an expired call", f.call(f.one, c.ID), want)
		is2(f, "Err", f.call(f.one, c.ID).Err(), coord.ErrExpired)
	}
	if f.lacks(f.harness.Capabilities.ClockBack, "ClockBack") {
		return
	}
	// Whoever has been told that a call expired can rely on it.
	f.store.Advance(-2 * time.Hour)
	for _, c := range []coord.Call{late, cancelled, seen} {
		is(f, "Answer of an expired call when the clock has gone back", f.answer(f.two, c, "too late"), coord.ErrExpired)
		equal(f, "the state then", f.call(f.one, c.ID).State, coord.CallExpired)
	}
}

func badQuestion(field, why string, change func(n *coord.NewCall)) badCall {
	return badCall{"NewCall." + field, why, func(f *fixture) error {
		n := question("ada")
		change(&n)
		txErr := f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
			_, err := tx.OpenCall(ctx, n)
			return err
		})
		if !errors.Is(txErr, coord.ErrInvalid) {
			f.Errorf("Tx.OpenCall whose %s %s: the error is %v; want ErrInvalid", field, why, txErr)
		}
		_, err := f.one.Calls().Open(f.ctx, n)
		return err
	}}
}

var badCallRequests = []badCall{
	badQuestion("Target", "is empty", func(n *coord.NewCall) { n.Target = "" }),
	badQuestion("Target", "is too long", func(n *coord.NewCall) { n.Target = strings.Repeat("x", 201) }),
	badQuestion("Kind", "is empty", func(n *coord.NewCall) { n.Kind = "" }),
	badQuestion("Kind", "has a NUL", func(n *coord.NewCall) { n.Kind = "a\x00" }),
	badQuestion("Key", "is too long", func(n *coord.NewCall) { n.Key = strings.Repeat("x", 201) }),
	badQuestion("Key", "is not UTF-8", func(n *coord.NewCall) { n.Key = "\xff" }),
	badQuestion("Payload", "is too long", func(n *coord.NewCall) { n.Payload = make([]byte, coord.MaxPayload+1) }),
	badQuestion("TTL", "is too short", func(n *coord.NewCall) { n.TTL = time.Millisecond }),
	badQuestion("TTL", "is too long", func(n *coord.NewCall) { n.TTL = 25 * time.Hour }),
	{"Answer.Target", "is empty", func(f *fixture) error {
		return f.one.Calls().Answer(f.ctx, coord.Answer{ID: coord.NewCallID()})
	}},
	{"Answer.Result", "is too long", func(f *fixture) error {
		return f.one.Calls().Answer(f.ctx, coord.Answer{
			ID: coord.NewCallID(), Target: "ada", Result: make([]byte, coord.MaxPayload+1),
		})
	}},
	{"target", "is empty", func(f *fixture) error { return second(f.one.Calls().Pending(f.ctx, "")) }},
	{"key", "is empty", func(f *fixture) error { return second(f.one.Calls().Find(f.ctx, "")) }},
	{"age", "is negative", func(f *fixture) error { return second(f.one.Calls().Reap(f.ctx, -time.Second)) }},
}
