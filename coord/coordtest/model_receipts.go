package coordtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
)

// modelReceipt is what is known of a key that is not free for want of any row.
type modelReceipt struct {
	holder, fingerprint string
	token               int64
	done                bool
	keep                time.Duration
	until               time.Time
	outcome             coord.ReceiptOutcome
}

type receiptsModel struct {
	model
	keys  map[string]*modelReceipt
	got   []coord.Receipt // every hold that anybody was given
	token int64           // the last that was seen
	n     int             // of the next outcome
}

func newReceiptsModel(m model) *receiptsModel {
	return &receiptsModel{model: m, keys: make(map[string]*modelReceipt)}
}

func (m *receiptsModel) actions() actions {
	return actions{
		"begin": m.begin, "begin again": m.begin, "begin once more": m.begin, "complete": m.complete, "complete in a transaction": m.completeInTx,
		"extend": m.extend, "release": m.release, "advance": m.advance, "reap": m.reapAll,
	}
}

func (m *receiptsModel) begin(t *rapid.T) {
	r := coord.ReceiptFor{
		Key:         m.name(pick(t, "key", "k1", "k2")),
		Holder:      pick(t, "holder", "ada", "bob"),
		Fingerprint: []byte(pick(t, "fingerprint", "a book", "a book", "a book", "two")),
		Lease:       pick(t, "lease", 10*time.Second, time.Minute),
		Keep:        pick(t, "keep", 20*time.Second, time.Hour),
	}
	now, s := m.store.Now(), m.keys[r.Key]
	got, err := m.backend(t).Receipts().Begin(m.ctx, r)
	want := coord.Receipt{Key: r.Key, State: coord.ReceiptMine, Until: now.Add(r.Lease)}
	switch {
	case s == nil || !now.Before(s.until): // free
		if want.Token = got.Token; err == nil && got.Token <= m.token {
			t.Fatalf("the token %d came after %d", got.Token, m.token)
		}
		m.token = got.Token
		s = &modelReceipt{}
	case s.fingerprint != string(r.Fingerprint):
		is(t, "Begin with another fingerprint", err, coord.ErrConflict)
		return
	case s.done:
		want = coord.Receipt{Key: r.Key, State: coord.ReceiptDone, Token: s.token, Until: s.until, Outcome: s.outcome}
	case s.holder != r.Holder:
		want = coord.Receipt{Key: r.Key, State: coord.ReceiptHeld, Until: s.until}
	default:
		want.Token = s.token
	}
	must(t, "Begin", err)
	same := got
	same.Until = want.Until
	equal(t, "Until", got.Until, want.Until)
	equal(t, "the receipt", same, want)
	if want.State == coord.ReceiptMine {
		*s = modelReceipt{r.Holder, string(r.Fingerprint), want.Token, false, r.Keep, want.Until, coord.ReceiptOutcome{}}
		m.keys[r.Key] = s
		m.got = append(m.got, got)
	}
}

// draw picks one of the last holds that were given, and what it still holds.
func (m *receiptsModel) draw(t *rapid.T) (coord.Receipt, *modelReceipt) {
	held := m.got[max(0, len(m.got)-1-rapid.IntRange(0, 3).Draw(t, "how many newer"))]
	if s := m.keys[held.Key]; s != nil && !s.done && s.token == held.Token {
		return held, s
	}
	return held, nil
}

// ended checks the answer of a call that a hold allows, and reports whether it did.
func ended(t *rapid.T, what string, s *modelReceipt, err error) bool {
	if s == nil {
		is(t, what+" of what is not held", err, coord.ErrFenced)
		return false
	}
	must(t, what, err)
	return true
}

func (m *receiptsModel) complete(t *rapid.T) {
	m.completeBy(t, func(b coord.Backend, held coord.Receipt, o coord.ReceiptOutcome) error {
		return b.Receipts().Complete(m.ctx, held, o)
	})
}

func (m *receiptsModel) completeInTx(t *rapid.T) {
	back := rapid.Bool().Draw(t, "roll back")
	m.completeBy(t, func(b coord.Backend, held coord.Receipt, o coord.ReceiptOutcome) error {
		if back {
			err := b.InTx(m.ctx, func(ctx context.Context, tx coord.Tx) error {
				if err := tx.CompleteReceipt(ctx, held, o); err != nil {
					return err
				}
				return errOwn
			})
			if !errors.Is(err, errOwn) {
				return err
			}
		}
		return b.InTx(m.ctx, func(ctx context.Context, tx coord.Tx) error { return tx.CompleteReceipt(ctx, held, o) })
	})
}

func (m *receiptsModel) completeBy(t *rapid.T, call func(b coord.Backend, held coord.Receipt, o coord.ReceiptOutcome) error) {
	if len(m.got) == 0 {
		return
	}
	held, s := m.draw(t)
	m.n++
	o := coord.ReceiptOutcome{Body: fmt.Append(nil, m.n), Error: pick(t, "error", "", "failed")}
	if ended(t, "Complete", s, call(m.backend(t), held, o)) {
		s.done, s.outcome, s.until = true, o, m.store.Now().Add(s.keep)
	}
}

func (m *receiptsModel) extend(t *rapid.T) {
	if len(m.got) == 0 {
		return
	}
	held, s := m.draw(t)
	got, err := m.backend(t).Receipts().Extend(m.ctx, held, 30*time.Second)
	if ended(t, "Extend", s, err) {
		s.until = m.store.Now().Add(30 * time.Second)
		equal(t, "Until", got.Until, s.until)
		equal(t, "Token", got.Token, held.Token)
	}
}

func (m *receiptsModel) release(t *rapid.T) {
	if len(m.got) == 0 {
		return
	}
	held, s := m.draw(t)
	if ended(t, "Release", s, m.backend(t).Receipts().Release(m.ctx, held)) {
		delete(m.keys, held.Key)
	}
}

func (m *receiptsModel) advance(t *rapid.T) {
	m.store.Advance(pick(t, "by", time.Second, 9*time.Second, 10*time.Second, 31*time.Second))
}

func (m *receiptsModel) reapAll(t *rapid.T) {
	for n := 1; n > 0; {
		var err error
		n, err = m.backend(t).Receipts().Reap(m.ctx)
		must(t, "Reap", err)
	}
	for key, s := range m.keys {
		if !m.store.Now().Before(s.until) {
			delete(m.keys, key)
		}
	}
}
