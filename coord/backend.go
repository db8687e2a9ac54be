package coord

import "context"

// Backend groups the coordination primitives of one store. The drivers' Open
// functions return one that is already passed through [Wrap].
//
// A Backend is safe for concurrent use. After Close every call returns
// [ErrClosed].
type Backend interface {
	Claimer() Claimer
	Tickets() Tickets
	Limiter() Limiter
	Broadcaster() Broadcaster
	Directory() Directory
	Calls() Calls
	Receipts() Receipts
	Elector() Elector
	Keyring() Keyring

	// InTx runs fn in one transaction of the store and commits when fn returns
	// nil. What fn does through tx, and on a SQL driver the caller's own rows
	// written through tx.Unwrap, happens whole or not at all; the doorbells ring
	// after the commit.
	//
	// The transaction is short: fn does not wait for anything but the store.
	// Inside fn only tx may be used; calling the Backend with fn's context is an
	// [ErrInvalid], since on SQLite and memory it would wait for itself. fn is
	// called once. An error of fn is returned as it is, after a roll back.
	InTx(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error

	// Ping reports whether the store answers and can be written to:
	// ErrUnavailable when not.
	Ping(ctx context.Context) error

	// Close ends every goroutine and connection of the backend. It returns at
	// the latest when ctx is done, even when the network is dead, and may be
	// called again.
	Close(ctx context.Context) error
}

// Tx is what can be done together in one transaction. It is used by one
// goroutine, and only until the function that received it returns.
type Tx interface {
	// PutTask is [Claimer.PutTask].
	PutTask(ctx context.Context, t Task) (Task, error)
	// DeleteTask is [Claimer.DeleteTask].
	DeleteTask(ctx context.Context, name string) error
	// PauseTask is [Claimer.PauseTask].
	PauseTask(ctx context.Context, name string, paused bool) error
	// Trigger is [Claimer.Trigger].
	Trigger(ctx context.Context, name string, o TriggerOptions) (Run, error)
	// Enqueue is [Claimer.Enqueue].
	Enqueue(ctx context.Context, runs ...NewRun) ([]Run, error)
	// Finish is [Claimer.Finish]; with it a handler's own rows and the end of its
	// run become one. When it returns ErrFenced, return that error: the
	// transaction is rolled back, and the handler has had no effect.
	Finish(ctx context.Context, results ...Result) error
	// Report is [Claimer.Report].
	Report(ctx context.Context, reports ...Report) error
	// Cancel is [Claimer.Cancel].
	Cancel(ctx context.Context, id RunID) error
	// Publish is [Broadcaster.Publish], except that the events get their
	// positions as the last act of the transaction, so that the lock on a topic
	// is held as briefly as can be.
	Publish(ctx context.Context, events ...NewEvent) error
	// OpenCall is [Calls.Open].
	OpenCall(ctx context.Context, n NewCall) (Call, error)
	// CancelCall is [Calls.Cancel].
	CancelCall(ctx context.Context, id CallID, reason string) error
	// CompleteReceipt is [Receipts.Complete]; with it an effect in the store and its
	// outcome become one. When it returns ErrFenced, return that error: the effect is
	// rolled back.
	CompleteReceipt(ctx context.Context, held Receipt, o ReceiptOutcome) error
	// Fence lets the transaction commit only what a leader may do: it returns ErrFenced when
	// the term is over, by the store's clock too. Return that error. Otherwise no new term
	// begins before the transaction has ended.
	Fence(ctx context.Context, t Term) error
	// ChangeRing changes a ring of keys and returns what it is then. Changes of a ring take
	// turns. The transaction must have the Fence of a term, unless the ring had no keys: the
	// first may be anybody's. Errors: ErrConflict when the ring has been changed since
	// RingChange.Revision, or can't be so, see [Ring.Change]; ErrInvalid, from InTx without a
	// Fence.
	ChangeRing(ctx context.Context, c RingChange) (Ring, error)
	// HoldRing is [Keyring.Load], and lets nobody change the ring before the transaction has
	// ended: what is written with it was sealed with a key that is active at that moment. Several
	// may hold a ring at once. Who waits to change it comes before who asks later to hold it: hold
	// it before locking rows that others lock while they hold it.
	HoldRing(ctx context.Context, known Ring) (Ring, error)
	// Unwrap returns the driver's transaction: a bun.Tx (which embeds *sql.Tx) on
	// the PostgreSQL and SQLite drivers, nil on memory.
	Unwrap() any
}
