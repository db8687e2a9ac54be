package coordtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// order is what a receipt is asked for.
func order(key, holder string) coord.ReceiptFor {
	return coord.ReceiptFor{Key: key, Fingerprint: []byte("a book"), Holder: holder, Lease: lease, Keep: time.Hour}
}

func (f *fixture) begin(b coord.Backend, r coord.ReceiptFor, want coord.ReceiptState) coord.Receipt {
	f.Helper()
	got, err := b.Receipts().Begin(f.ctx, r)
	must(f, "Begin", err)
	if got.State != want || got.Key != r.Key {
		f.Fatalf("Begin of %q: the receipt is %s; want one that is %s", r.Key, show(got), want)
	}
	if mine := want != coord.ReceiptHeld; got.Token > 0 != mine {
		f.Errorf("Token of a receipt that is %s is %d", want, got.Token)
	}
	return got
}

func (f *fixture) complete(b coord.Backend, held coord.Receipt, o coord.ReceiptOutcome) {
	f.Helper()
	must(f, "Complete", b.Receipts().Complete(f.ctx, held, o))
}

// allFenced tries everything that a hold allows.
func (f *fixture) allFenced(why string, held coord.Receipt) {
	f.Helper()
	for _, b := range f.handles() {
		o := coord.ReceiptOutcome{Body: []byte("of nobody")}
		_, err := b.Receipts().Extend(f.ctx, held, time.Hour)
		is(f, "Extend "+why, err, coord.ErrFenced)
		is(f, "Complete "+why, b.Receipts().Complete(f.ctx, held, o), coord.ErrFenced)
		is(f, "Release "+why, b.Receipts().Release(f.ctx, held), coord.ErrFenced)
		err = b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.CompleteReceipt(ctx, held, o) })
		is(f, "Tx.CompleteReceipt "+why, err, coord.ErrFenced)
	}
}

func (f *fixture) reapReceipts() (n int) {
	f.Helper()
	for {
		deleted, err := f.one.Receipts().Reap(f.ctx)
		must(f, "Reap", err)
		if deleted == 0 {
			return n
		}
		n += deleted
	}
}

var receiptTests = []test{
	{"the first holds the key, and all get its outcome", func(f *fixture) {
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		equal(f, "Until of the lease", held.Until, f.store.Now().Add(lease))
		other := f.begin(f.two, order("k", "bob"), coord.ReceiptHeld)
		equal(f, "Until as another one sees it", other.Until, held.Until)
		f.begin(f.two, order("other", "bob"), coord.ReceiptMine)
		f.store.Advance(time.Second)
		for _, o := range []coord.ReceiptOutcome{
			{Body: everyByte()},
			{Error: "no such book"},
			{Body: []byte("half of it"), Error: `'\"?`},
			{},
			{Body: bytes.Repeat([]byte{0xff}, coord.MaxPayload), Error: strings.Repeat("é", coord.MaxErrorText/2)},
		} {
			f.complete(f.one, held, o)
			for _, holder := range []string{"ada", "bob"} {
				for _, b := range f.handles() {
					done := f.begin(b, order("k", holder), coord.ReceiptDone)
					equal(f, "the outcome", done.Outcome, o)
					equal(f, "Token of the receipt that is done", done.Token, held.Token)
					equal(f, "Until of what is kept", done.Until, f.store.Now().Add(time.Hour))
				}
			}
			f.store.Advance(time.Hour)
			held = f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		}
	}},
	{"defaults", func(f *fixture) {
		held := f.begin(f.one, coord.ReceiptFor{Key: "k"}, coord.ReceiptMine)
		equal(f, "Until with the default lease", held.Until, f.store.Now().Add(30*time.Second))
		f.begin(f.one, coord.ReceiptFor{Key: "k"}, coord.ReceiptHeld) // by another, whose name is random
		f.complete(f.two, held, coord.ReceiptOutcome{Error: strings.Repeat("x", coord.MaxErrorText+1)})
		done := f.begin(f.one, coord.ReceiptFor{Key: "k"}, coord.ReceiptDone)
		equal(f, "how much of a text is kept", len(done.Outcome.Error), coord.MaxErrorText)
		equal(f, "Until with the default Keep", done.Until, f.store.Now().Add(24*time.Hour))
	}},
	{"a key is free when the lease has ended, and when its outcome is kept no longer", func(f *fixture) {
		first := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		f.store.Advance(lease - time.Microsecond)
		f.begin(f.two, order("k", "bob"), coord.ReceiptHeld)
		f.store.Advance(time.Microsecond)
		second := f.begin(f.two, order("k", "bob"), coord.ReceiptMine)
		f.allFenced("by a lease that was lost", first)
		f.begin(f.one, order("k", "ada"), coord.ReceiptHeld)
		f.complete(f.two, second, coord.ReceiptOutcome{Body: []byte("second")})
		f.allFenced("by a lease that was lost, once the other is done", first)
		f.store.Advance(time.Hour - time.Microsecond)
		equal(f, "the outcome", string(f.begin(f.one, order("k", "ada"), coord.ReceiptDone).Outcome.Body), "second")
		f.store.Advance(time.Microsecond)
		f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
	}},
	{"a lease that has ended is good until the key is taken", func(f *fixture) {
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		f.store.Advance(2 * lease)
		extended, err := f.two.Receipts().Extend(f.ctx, held, lease)
		must(f, "Extend", err)
		equal(f, "Until", extended.Until, f.store.Now().Add(lease))
		f.begin(f.two, order("k", "bob"), coord.ReceiptHeld)
		f.store.Advance(2 * lease)
		f.complete(f.one, held, coord.ReceiptOutcome{Body: []byte("late")})
		equal(f, "the outcome", string(f.begin(f.two, order("k", "bob"), coord.ReceiptDone).Outcome.Body), "late")
	}},
	{"another fingerprint is a conflict", func(f *fixture) {
		changed := order("k", "ada")
		changed.Fingerprint = []byte("another book")
		conflicts := func(what string) {
			for _, b := range f.handles() {
				_, err := b.Receipts().Begin(f.ctx, changed)
				is(f, "Begin with another fingerprint of a key that is "+what, err, coord.ErrConflict)
			}
		}
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		conflicts("held")
		f.complete(f.one, held, coord.ReceiptOutcome{})
		conflicts("done")
		f.store.Advance(time.Hour)
		f.begin(f.one, changed, coord.ReceiptMine)
		_, err := f.one.Receipts().Begin(f.ctx, order("k", "ada"))
		is(f, "Begin with the first fingerprint", err, coord.ErrConflict)
		f.store.Advance(lease)
		f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
	}},
	{"the same holder gets the same hold", func(f *fixture) {
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		f.store.Advance(lease / 2)
		again := order("k", "ada")
		again.Lease, again.Keep = 2*lease, time.Minute
		same := f.begin(f.two, again, coord.ReceiptMine)
		equal(f, "Token", same.Token, held.Token)
		equal(f, "Until", same.Until, f.store.Now().Add(2*lease))
		f.complete(f.one, held, coord.ReceiptOutcome{})
		equal(f, "Until of what is kept", f.begin(f.two, again, coord.ReceiptDone).Until, f.store.Now().Add(time.Minute))
	}},
	{"what is given up is fenced, and tokens grow", func(f *fixture) {
		last := int64(0)
		for range 3 {
			for _, end := range []struct {
				how string
				do  func(held coord.Receipt)
			}{
				{"after Release", func(held coord.Receipt) { must(f, "Release", f.two.Receipts().Release(f.ctx, held)) }},
				{"after Complete", func(held coord.Receipt) { f.complete(f.two, held, coord.ReceiptOutcome{}) }},
				{"after it was reaped", func(coord.Receipt) {
					f.store.Advance(lease)
					equal(f, "how many receipts Reap deleted", f.reapReceipts() > 0, true)
				}},
			} {
				held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
				if held.Token <= last {
					f.Fatalf("the token %d came after %d", held.Token, last)
				}
				last = held.Token
				f.allFenced("with a token that nobody has", coord.Receipt{Key: "k", State: coord.ReceiptMine, Token: last + 1000})
				f.allFenced("for another key", coord.Receipt{Key: "other", State: coord.ReceiptMine, Token: last})
				f.allFenced("by a receipt that is not the caller's", f.begin(f.two, order("k", "bob"), coord.ReceiptHeld))
				end.do(held)
				f.allFenced(end.how, held)
				f.store.Advance(time.Hour)
			}
		}
	}},
	{"a key that was released is free at once", func(f *fixture) {
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		must(f, "Release", f.one.Receipts().Release(f.ctx, held))
		changed := order("k", "ada")
		changed.Fingerprint = nil
		f.begin(f.two, changed, coord.ReceiptMine)
	}},
	{"a key that was released is free, though the clock goes back", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.ClockBack, "ClockBack") {
			return
		}
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		must(f, "Release", f.one.Receipts().Release(f.ctx, held))
		f.store.Advance(-time.Hour)
		f.begin(f.two, order("k", "bob"), coord.ReceiptMine)
		f.allFenced("after Release", held)
	}},
	{"of 32 racers one holds the key", func(f *fixture) {
		for range 5 { // a fresh one, and then one whose lease has ended
			var won atomic.Int64
			f.together(32, func(i int, b coord.Backend) {
				switch got, err := b.Receipts().Begin(f.ctx, order("k", fmt.Sprint(i))); {
				case err != nil:
					f.Errorf("Begin in a race: %v", err)
				case got.State == coord.ReceiptMine:
					won.Add(1)
				case got.State != coord.ReceiptHeld:
					f.Errorf("Begin in a race: %s", show(got))
				}
			})
			equal(f, "how many of 32 racers hold the key", won.Load(), 1)
			f.store.Advance(lease)
		}
	}},
	{"many keys at once, in any order", func(f *fixture) {
		const keys, callers = 20, 16
		var mine [keys]atomic.Int64
		f.together(callers, func(i int, b coord.Backend) {
			for k := range keys {
				k = (k*7 + i) % keys
				got, err := b.Receipts().Begin(f.ctx, order(fmt.Sprint(k), fmt.Sprint(i)))
				if err == nil && got.State == coord.ReceiptMine {
					mine[k].Add(1)
					err = b.Receipts().Complete(f.ctx, got, coord.ReceiptOutcome{Body: []byte(fmt.Sprint(k))})
				}
				if err != nil {
					f.Errorf("%v", err)
				}
				if got.State == coord.ReceiptDone && string(got.Outcome.Body) != fmt.Sprint(k) {
					f.Errorf("the outcome of key %d is %s", k, show(got))
				}
			}
		})
		for k := range mine {
			equal(f, fmt.Sprintf("how many held key %d", k), mine[k].Load(), 1)
		}
	}},
	{"keys are data", func(f *fixture) {
		keys := slices.Concat(awkward, []string{"\x00", "\xff\xfe", "k", "K", "k ", strings.Repeat("k", 500), string(everyByte())})
		for i, key := range keys {
			r := order(key, "ada")
			r.Fingerprint = []byte(key)
			held := f.begin(f.one, r, coord.ReceiptMine)
			f.complete(f.one, held, coord.ReceiptOutcome{Body: []byte(fmt.Sprint(i)), Error: strings.ToValidUTF8(key, "")})
		}
		for i, key := range keys {
			r := order(key, "'"+awkward[i%len(awkward)])
			r.Fingerprint = []byte(key)
			equal(f, fmt.Sprintf("the outcome of %q", key), string(f.begin(f.two, r, coord.ReceiptDone).Outcome.Body), fmt.Sprint(i))
		}
	}},
	{"changes tell of what is completed and released", func(f *fixture) {
		if f.lacks(f.harness.Capabilities.Hints, "Hints") {
			return
		}
		for how, end := range map[string]func(b coord.Backend, held coord.Receipt) error{
			"Complete": func(b coord.Backend, held coord.Receipt) error {
				return b.Receipts().Complete(f.ctx, held, coord.ReceiptOutcome{})
			},
			"Release": func(b coord.Backend, held coord.Receipt) error { return b.Receipts().Release(f.ctx, held) },
			"Tx.CompleteReceipt": func(b coord.Backend, held coord.Receipt) error {
				return b.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
					return tx.CompleteReceipt(ctx, held, coord.ReceiptOutcome{})
				})
			},
		} {
			for _, b := range f.handles() {
				changes, stop := b.Receipts().Changes()
				held := f.begin(f.one, order(how, "ada"), coord.ReceiptMine)
				f.allHeard(b)
				select { // what came before is in the way
				case <-changes:
				default:
				}
				must(f, how, end(f.one, held))
				f.heard(how, changes)
				stop()
				f.store.Advance(time.Hour)
			}
		}
	}},
	{"Reap deletes what nobody holds or keeps", func(f *fixture) {
		f.begin(f.one, order("dead", "ada"), coord.ReceiptMine)
		f.complete(f.one, f.begin(f.one, order("done", "ada"), coord.ReceiptMine), coord.ReceiptOutcome{Body: []byte("x")})
		equal(f, "how many receipts Reap deleted at once", f.reapReceipts(), 0)
		f.store.Advance(lease)
		equal(f, "how many receipts Reap deleted when a lease had ended", f.reapReceipts(), 1)
		f.begin(f.two, order("done", "bob"), coord.ReceiptDone)
		held := f.begin(f.two, order("held", "bob"), coord.ReceiptMine)
		f.store.Advance(time.Hour - lease)
		_, err := f.two.Receipts().Extend(f.ctx, held, time.Hour)
		must(f, "Extend", err)
		equal(f, "how many receipts Reap deleted after an hour", f.reapReceipts(), 1)
		equal(f, "how many receipts Reap deleted then", f.reapReceipts(), 0)
		f.begin(f.one, order("held", "ada"), coord.ReceiptHeld)
	}},
	{"an effect and its outcome commit together", func(f *fixture) {
		held := f.begin(f.one, order("k", "ada"), coord.ReceiptMine)
		effect := func(o coord.ReceiptOutcome, after error) error {
			return f.one.InTx(f.ctx, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.Publish(ctx, event("t", "1")); err != nil {
					return err
				}
				if err := tx.CompleteReceipt(ctx, held, o); err != nil {
					return err
				}
				is(f, "CompleteReceipt, again in the same transaction", tx.CompleteReceipt(ctx, held, o), coord.ErrFenced)
				return after
			})
		}
		if err := effect(coord.ReceiptOutcome{}, errOwn); err != errOwn { //nolint:errorlint // it must be the very same
			f.Errorf("InTx returned %v", err)
		}
		equal(f, "the head after a rollback", f.head("t").Seq, 0)
		f.begin(f.two, order("k", "bob"), coord.ReceiptHeld)
		must(f, "InTx", effect(coord.ReceiptOutcome{Body: []byte("x")}, nil))
		equal(f, "the outcome", string(f.begin(f.two, order("k", "bob"), coord.ReceiptDone).Outcome.Body), "x")
		is(f, "InTx, again", effect(coord.ReceiptOutcome{}, nil), coord.ErrFenced)
		equal(f, "how many events there are", f.head("t").Seq, 1)
	}},
	{"Do calls once, and all get its outcome", func(f *fixture) {
		for _, want := range []coord.ReceiptOutcome{{Body: []byte("x")}, {Body: []byte("half"), Error: "no such book"}} {
			const callers = 32
			var calls, first atomic.Int64
			f.together(callers, func(_ int, b coord.Backend) {
				o, replayed, err := coord.Do(f.ctx, b.Receipts(), order("k"+want.Error, ""),
					func(_ context.Context, held coord.Receipt) ([]byte, error) {
						calls.Add(1)
						f.begin(f.two, order(held.Key, "somebody"), coord.ReceiptHeld)
						if want.Error != "" {
							return want.Body, errors.New(want.Error)
						}
						return want.Body, nil
					})
				if err != nil {
					f.Errorf("Do: %v", err)
				}
				equal(f, "the outcome", o, want)
				if !replayed {
					first.Add(1)
				}
			})
			equal(f, "how often the function was called", calls.Load(), 1)
			equal(f, "how many were told that they were first", first.Load(), 1)
		}
		changed := order("k", "")
		changed.Fingerprint = nil
		_, _, err := coord.Do(f.ctx, f.two.Receipts(), changed, nil)
		is(f, "Do with another fingerprint", err, coord.ErrConflict)
	}},
	{"Do keeps no transient error, and frees the key", func(f *fixture) {
		for _, b := range f.handles() {
			for _, transient := range []error{
				fmt.Errorf("busy: %w", coord.ErrTransient), coord.ErrUnavailable, coord.ErrUnknownOutcome, coord.ErrBackpressure,
				coord.ErrFenced, context.Canceled, context.DeadlineExceeded,
			} {
				_, replayed, err := coord.Do(f.ctx, b.Receipts(), order("k", ""),
					func(context.Context, coord.Receipt) ([]byte, error) { return nil, transient })
				if err != transient || replayed { //nolint:errorlint // it must be the very same
					f.Errorf("Do returned %v, %v; want %v as it was", err, replayed, transient)
				}
			}
		}
		f.begin(f.two, order("k", "ada"), coord.ReceiptMine)
	}},
	{"Do keeps what can't be stored as a failure", func(f *fixture) {
		o, _, err := coord.Do(f.ctx, f.one.Receipts(), order("k", ""), func(context.Context, coord.Receipt) ([]byte, error) {
			return make([]byte, coord.MaxPayload+1), nil
		})
		must(f, "Do", err)
		if o.Body != nil || !strings.Contains(o.Error, "at most") {
			f.Errorf("the outcome of a result that is too long is %s", show(o))
		}
		equal(f, "the outcome", f.begin(f.two, order("k", "ada"), coord.ReceiptDone).Outcome, o)
	}},
	{"a crash inside Do frees the key when the lease ends", func(f *fixture) {
		func() {
			defer func() { equal(f, "what came out of Do", recover(), any("crash")) }()
			_, _, _ = coord.Do(f.ctx, f.one.Receipts(), order("k", ""), func(context.Context, coord.Receipt) ([]byte, error) {
				panic("crash")
			})
		}()
		f.begin(f.two, order("k", "ada"), coord.ReceiptHeld)
		f.store.Advance(lease)
		o, replayed, err := coord.Do(f.ctx, f.two.Receipts(), order("k", ""), func(context.Context, coord.Receipt) ([]byte, error) {
			return []byte("x"), nil
		})
		must(f, "Do", err)
		equal(f, "whether it was replayed", replayed, false)
		equal(f, "the outcome", string(o.Body), "x")
	}},
	{"Do makes an effect in the store once", func(f *fixture) {
		do := func(b coord.Backend) {
			o, _, err := coord.Do(f.ctx, b.Receipts(), order("k", ""), effectIn(b, "t"))
			must(f, "Do", err)
			equal(f, "the outcome", string(o.Body), "stored")
			equal(f, "how many effects there are", f.head("t").Seq, 1)
		}
		do(f.one)
		do(f.two)
	}},
}

// effectIn publishes on a topic together with its outcome.
func effectIn(b coord.Backend, topic string) func(context.Context, coord.Receipt) ([]byte, error) {
	return func(ctx context.Context, held coord.Receipt) ([]byte, error) {
		return []byte("not stored"), b.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
			if err := tx.Publish(ctx, event(topic, "effect")); err != nil {
				return err
			}
			return tx.CompleteReceipt(ctx, held, coord.ReceiptOutcome{Body: []byte("stored")})
		})
	}
}
