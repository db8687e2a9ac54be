package coord

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"time"
)

// Receipts let what is asked for under one key, however often and on whichever
// replicas, be done once: whoever comes first holds the key under a lease while they
// do it, and its first outcome, failures included, is stored and is what all others
// get. [Do] is all of this in one call.
//
// What is written in one transaction with [Tx.CompleteReceipt] happens once. An effect
// outside the store may happen again: when whoever holds a key vanishes, nobody knows
// how far they came, and the key is free when the lease has ended.
type Receipts interface {
	// Begin asks for a key. When it is free, which it is while nobody holds it and no
	// outcome is kept, the caller holds it from then on; the State of the Receipt says
	// so. A holder that asks again while they hold it gets the same hold, with a lease
	// that begins anew. Errors: ErrConflict when the key is held, or its outcome kept,
	// for another fingerprint; ErrInvalid; ErrUnavailable; ErrUnknownOutcome, after
	// which the same holder may ask again.
	Begin(ctx context.Context, r ReceiptFor) (Receipt, error)
	// Extend lets the lease of a key that is held end that long from now, and returns
	// the receipt with its Until. Errors: ErrFenced when it is not held any more.
	Extend(ctx context.Context, held Receipt, lease time.Duration) (Receipt, error)
	// Complete stores the outcome of what is done under a key that is held, and gives
	// the key up. A lease that has ended is good for as long as nobody has taken the key.
	// Errors: ErrFenced when it is not held any more, also since it is complete: then
	// nothing has changed.
	Complete(ctx context.Context, held Receipt, o ReceiptOutcome) error
	// Release gives a key up without an outcome; the next who asks may have it. Errors:
	// ErrFenced when it is not held any more.
	Release(ctx context.Context, held Receipt) error
	// Changes returns a channel that receives when a key may have been completed or
	// released, and a function that gives the channel up. A hint is only that: it may
	// come late, for nothing, or not at all. A lease that ends sends none.
	Changes() (changes <-chan struct{}, stop func())
	// Reap deletes a bounded number of receipts that nobody holds and whose outcome is
	// kept no longer, and returns how many. Call it until it returns 0.
	Reap(ctx context.Context) (int, error)
}

// ErrTransient marks an error that is not the outcome: it may well be another one the
// next time. See [Do].
var ErrTransient = errors.New("transient")

// ReceiptFor says what a receipt is asked for.
type ReceiptFor struct {
	Key string // 1–500 bytes, of which only a hash is stored
	// Fingerprint is what must be the same whenever the key comes again, such as the
	// whole request; only a hash of it is stored.
	Fingerprint []byte
	// Holder is who asks. The same one must not ask for a key twice at a time;
	// 1–200 bytes, by default a random text.
	Holder string
	Lease  time.Duration // how long the key is held unless that is extended; 1 s–1 h, default 30 s
	Keep   time.Duration // how long the outcome is kept; 1 s–10 years, default 24 h
}

// ReceiptState is where a key stands for whoever asked for it.
type ReceiptState string

// The states of a receipt.
const (
	ReceiptMine ReceiptState = "mine" // the caller holds the key
	ReceiptHeld ReceiptState = "held" // another one does
	ReceiptDone ReceiptState = "done" // see Outcome
)

// Receipt is what is known of a key.
type Receipt struct {
	Key   string
	State ReceiptState
	// Token is that of the hold when it is the caller's, and of the hold that was
	// completed when it is done; 0 when another one holds the key. The tokens of a key
	// only grow.
	Token   int64
	Until   time.Time      // by the store's clock: when the lease ends; of one that is done, until when it is kept
	Outcome ReceiptOutcome // when it is done
}

// ReceiptOutcome is what came of what was asked for.
type ReceiptOutcome struct {
	Body  []byte // at most MaxPayload; nil when it is empty
	Error string // not empty: it failed; cut to MaxErrorText
}

// newHolder returns a name that no other holder has.
func newHolder() string { return rand.Text() }

// StoredReceipt is what a store that decides in Go keeps of a key; for authors of
// drivers.
type StoredReceipt struct {
	Fingerprint [sha256.Size]byte
	Holder      string
	Token       int64
	Done        bool
	Until       time.Time // when the lease ends, or what is done is kept no longer
	Outcome     ReceiptOutcome
}

// Begin is what Begin answers at now to whoever asks for the key. The key is free when
// that is the zero Receipt and no error. A hold that is the asker's own still needs its
// new lease.
func (s StoredReceipt) Begin(r ReceiptFor, now time.Time) (Receipt, error) {
	got := Receipt{Key: r.Key, State: ReceiptHeld, Until: s.Until}
	switch {
	case !now.Before(s.Until):
		return Receipt{}, nil
	case s.Fingerprint != r.Hash():
		return Receipt{}, ErrConflict
	case s.Done:
		got.State, got.Token, got.Outcome = ReceiptDone, s.Token, s.Outcome
	case s.Holder == r.Holder:
		got.State, got.Token = ReceiptMine, s.Token
	}
	return got, nil
}

// Hash returns what is stored of the fingerprint; for authors of drivers.
func (r ReceiptFor) Hash() [sha256.Size]byte { return sha256.Sum256(r.Fingerprint) }
