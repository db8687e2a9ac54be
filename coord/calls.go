package coord

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"time"
)

// Calls are questions that one party asks and another answers, each on any
// replica: a request that waits for somebody who is connected elsewhere.
//
// A call is stored. It ends once, as it is answered, cancelled or expired, by
// whichever is first; what comes later changes nothing and hears so. So whoever
// waits may die and ask again by the call's id, on another replica, and gets the
// same outcome. How the target hears of the call is the caller's: publish an
// event in the same transaction ([Tx.OpenCall]), and list Pending for a target
// that comes back.
type Calls interface {
	// Open stores a call. With a Key that a call has which is still kept, that
	// one is returned, with Duplicate set, and nothing is stored. Errors:
	// ErrInvalid, ErrUnavailable, ErrUnknownOutcome.
	Open(ctx context.Context, n NewCall) (Call, error)
	// Answer ends a call with its target's result; the first answer counts.
	// Errors: ErrNotFound when there is no such call of that target, whether or
	// not there is one of another; ErrConflict when it was answered or cancelled
	// before; ErrExpired when it is too late.
	Answer(ctx context.Context, a Answer) error
	// Cancel ends a call without a result, for a reason that becomes its Error.
	// Errors: ErrNotFound; ErrConflict when it was answered or cancelled before;
	// ErrExpired when it is too late.
	Cancel(ctx context.Context, id CallID, reason string) error
	// Get returns a call. ErrNotFound when there is none, or no longer.
	Get(ctx context.Context, id CallID) (Call, error)
	// Find returns the call that was opened with a key. ErrNotFound when there is
	// none, or no longer.
	Find(ctx context.Context, key string) (Call, error)
	// Wait returns a call when it has ended. It may have been opened, and may be
	// waited for, anywhere. Errors: ErrNotFound; ErrUnavailable when the store
	// can't be asked now, after which Wait may be called again and nothing is
	// lost; ErrClosed; the context's error.
	//
	// All who wait on a replica share one look at the store, which is taken when a
	// call ends on any replica and, should that not be heard of, once in a poll
	// interval.
	Wait(ctx context.Context, id CallID) (Call, error)
	// Pending lists the open calls of a target, at most MaxBatch, the oldest first.
	Pending(ctx context.Context, target string) ([]Call, error)
	// Reap deletes a bounded number of calls whose Deadline, however they ended, is
	// at least age ago, and returns how many. Call it until it returns 0.
	Reap(ctx context.Context, age time.Duration) (int, error)
}

// CallID names a call: 128 random bits in base64url.
type CallID string

// NewCallID returns a random id; for authors of drivers.
func NewCallID() CallID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return CallID(base64.RawURLEncoding.EncodeToString(b[:]))
}

// valid reports whether a call may have that id.
func (id CallID) valid() bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(id))
	return err == nil && len(b) == 16 && len(id) == base64.RawURLEncoding.EncodedLen(16)
}

// NewCall is a call to be opened.
type NewCall struct {
	Key     string        // optional; calls with the same key are one, while it is kept; at most 200 bytes
	Target  string        // who alone may answer; 1–200 bytes
	Kind    string        // what is asked for, such as a tool's name; 1–100 bytes
	Payload []byte        // at most MaxPayload
	TTL     time.Duration // 1 s–24 h, after which it expires; default 1 min
}

// CallState is where a call stands.
type CallState string

// The states of a call. One that has left CallOpen stays as it is.
const (
	CallOpen      CallState = "open"
	CallAnswered  CallState = "answered"  // see Result and Error
	CallCancelled CallState = "cancelled" // see Error
	CallExpired   CallState = "expired"   // nobody ended it before its deadline
)

// Call is a stored call.
type Call struct {
	ID        CallID
	Key       string
	Target    string
	Kind      string
	Payload   []byte
	State     CallState
	Result    []byte // of the answer
	Error     string // of an answer that is a failure, or why it was cancelled; cut to MaxErrorText
	CreatedAt time.Time
	Deadline  time.Time // when it expires, by the store's clock
	EndedAt   time.Time // zero while it is open
	Duplicate bool      // of Open: there was a call with that key
}

// Ended reports whether the call is over.
func (c Call) Ended() bool { return c.State != CallOpen }

// Err is nil for a call that is open or was answered with a result, and
// otherwise a [*CallError].
func (c Call) Err() error {
	if c.State == CallOpen || c.State == CallAnswered && c.Error == "" {
		return nil
	}
	return &CallError{ID: c.ID, State: c.State, Text: c.Error}
}

// CallError says why a call has no result. That of an expired call is an
// [ErrExpired].
type CallError struct {
	ID    CallID
	State CallState // CallAnswered: the target answered with a failure
	Text  string    // the failure, or the reason of a cancellation
}

func (e *CallError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("call %s: %s", e.ID, e.State)
	}
	return fmt.Sprintf("call %s: %s: %s", e.ID, e.State, e.Text)
}

// Is makes an expired call an ErrExpired.
func (e *CallError) Is(target error) bool { return e.State == CallExpired && target == ErrExpired }

// Answer is what a call's target says.
type Answer struct {
	ID     CallID
	Target string // who answers, as is known of them and never as they say
	Result []byte // at most MaxPayload
	Error  string // not empty: the call failed; cut to MaxErrorText
}
