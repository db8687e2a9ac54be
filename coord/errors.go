package coord

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The sentinels that every driver returns, to be tested with [errors.Is]. The
// errors of a [Backend] are always an [*Error] around one of them, around the
// context's own error, or around a fault of the store that none of them names.
// The one exception is an error of the function that [Backend.InTx] was given.
var (
	// ErrNotFound: what the key names does not exist, or no longer does.
	ErrNotFound = errors.New("not found")
	// ErrFenced: the token is stale. Somebody else holds the lease now, and the
	// write that carried the token changed nothing.
	ErrFenced = errors.New("fenced: the lease is no longer held")
	// ErrConflict: the state of the store contradicts the request, as when a
	// task was edited since it was read.
	ErrConflict = errors.New("conflict")
	// ErrExpired: what the key names existed and its time was over.
	ErrExpired = errors.New("expired")
	// ErrUnavailable: the store can't be reached or did not answer in time. An
	// outage is never reported as an empty result.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnknownOutcome: the connection was lost while a commit was under way,
	// so it may have happened or not. Retry under the same key, or read.
	// It is also an ErrUnavailable.
	ErrUnknownOutcome = fmt.Errorf("outcome unknown: %w", ErrUnavailable)
	// ErrBackpressure: the store can't keep up; try again later.
	ErrBackpressure = errors.New("backpressure")
	// ErrClosed: the backend or the stream was closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: the request itself is wrong; see [InvalidError] for the field.
	ErrInvalid = errors.New("invalid")
	// ErrReset: the history behind a position is gone; see [ResetError].
	ErrReset = errors.New("reset: history is gone")
)

// Error says which operation failed, on what. It is made once, at the seam
// above the drivers.
type Error struct {
	Op  string // the operation, as in "claimer.finish"
	Key string // what it was about: a task's name, a run's id, a topic; may be empty
	Err error
}

func (e *Error) Error() string {
	if e.Key == "" {
		return "coord: " + e.Op + ": " + e.Err.Error()
	}
	return "coord: " + e.Op + " " + strconv.Quote(e.Key) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// InvalidError is an [ErrInvalid] that names the field and what is wrong with it.
type InvalidError struct {
	Field  string // as the field is called in Go, "Task.Schedule"
	Reason string // what is wrong and what would be right
}

func (e *InvalidError) Error() string { return "invalid " + e.Field + ": " + e.Reason }

// Unwrap returns [ErrInvalid].
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// FencedError is an [ErrFenced] that names the claims that were no longer
// held. The other claims of the same call were carried out.
type FencedError struct {
	Claims []Claim
}

func (e *FencedError) Error() string {
	ids := make([]string, len(e.Claims))
	for i, c := range e.Claims {
		ids[i] = strconv.FormatInt(int64(c.Run.ID), 10)
	}
	return ErrFenced.Error() + ": run " + strings.Join(ids, ", ")
}

// Unwrap returns [ErrFenced].
func (e *FencedError) Unwrap() error { return ErrFenced }

// BackpressureError is an [ErrBackpressure] that says how far the store is behind.
type BackpressureError struct {
	Waiting int           // calls of this replica that wait for the store
	Lag     time.Duration // how long the oldest of them has waited
}

func (e *BackpressureError) Error() string {
	return fmt.Sprintf("%v: %d calls wait for the store, the oldest for %v", ErrBackpressure, e.Waiting, e.Lag.Round(time.Millisecond))
}

// Unwrap returns [ErrBackpressure].
func (e *BackpressureError) Unwrap() error { return ErrBackpressure }

// ResetError is an [ErrReset]: what lay between the subscriber's position and
// the present of a topic can't be shown any more. The subscriber must load the
// present state by other means; the stream goes on behind Head.
type ResetError struct {
	Topic  string
	Reason string   // one of the Reset constants
	Head   Position // where the stream goes on
}

// The reasons of a [ResetError].
const (
	ResetTrimmed  = "trimmed"  // the position is older than the retention
	ResetDiverged = "diverged" // the history at the position is another one now, as after a restore
)

func (e *ResetError) Error() string {
	return fmt.Sprintf("%v: topic %q: %s", ErrReset, e.Topic, e.Reason)
}

// Unwrap returns [ErrReset].
func (e *ResetError) Unwrap() error { return ErrReset }
