// Package coord is what the replicas of a program must agree on, on nothing but
// the database that the program already has.
//
// A [Backend] groups the primitives of one store:
//
//   - the [Claimer] decides who runs what is due;
//   - [Tickets] open one connection, once, on any replica;
//   - the [Limiter] enforces one limit for all replicas;
//   - the [Broadcaster] lets everyone hear what is published, in order, and
//     resume on any replica;
//   - the [Directory] says who is connected where, for as long as their replica
//     lives;
//   - [Receipts] let what is asked for under one key be done once, and all who ask
//     get its outcome;
//   - the [Elector] lets one replica at a time lead, and no past leader write;
//   - the [Keyring] keeps keys that all replicas share, and that are replaced;
//   - [Calls] are questions whose one answer reaches whoever waits, on any
//     replica.
//
// [Backend.InTx] joins runs, events, calls and receipts, and the caller's own rows, in one
// transaction, which may be fenced by a leader's term.
//
// The drivers are coord/pg (PostgreSQL 15 or newer: several replicas),
// coord/sqlite (one file: one machine) and coord/memory (one process: tests). A
// program names a driver where it opens the backend and nowhere else.
//
// # Guarantees
//
//	guarantee                                   pg             sqlite         memory
//	a due occurrence makes at most one run      yes            yes            yes
//	a key makes one run, while that is kept     yes            yes            yes
//	a run is executed at least once ¹           yes            yes            while the process lives
//	at most Concurrency.Limit runs of a key     yes            yes            yes
//	a stale token changes nothing               yes            yes            yes
//	a ticket is redeemed at most once           yes            yes            yes
//	a key has one outcome, while that is kept   yes            yes            yes
//	terms of a name never overlap in effect ⁵   yes            yes            yes
//	a ring has exactly one key that signs       yes            yes            yes
//	at most Burst + Rate·t/Per is granted ⁴     yes            yes            yes
//	events are dense and in order per topic     yes            yes            yes
//	resume without a gap, or a reset            yes            yes            while the process lives
//	a key publishes once, while that is kept    yes            yes            yes
//	publishers beyond what fits are told        yes            yes            none waits
//	an entry lives as long as its lease         yes            yes            yes
//	a call ends once, for all and for good      yes            yes            yes
//	survives kill -9 of the process             yes            yes            no
//	survives loss of power ²                    yes            yes            no
//	joins the caller's rows in InTx             bun.Tx         bun.Tx         no rows
//	shared by several processes                 yes            on one machine no
//	the clock that decides                      the server's   the machine's  the process's
//	wake-up of other replicas                   NOTIFY ³       file polling   direct
//
// ¹ Unless it is AtMostOnce or its attempts are spent. Execution is at least
// once, with fenced effects: what a handler writes in [Tx] together with
// [Tx.Finish] happens once.
//
// ² With the store's default durability (synchronous_commit=on,
// synchronous=FULL).
//
// ³ Polling, at an interval that the driver is opened with, where LISTEN can't be had
// or is not heard.
//
// ⁴ While the store is away, by each backend, and told by [Decision].Degraded. On
// PostgreSQL a crash of the server forgets what was granted in about its last half second.
//
// ⁵ That is what is written in a transaction with [Tx.Fence].
//
// # Time
//
// Leases, tickets, limits, calls, receipts, due times and retention are decided by the clock of
// the store, never by that of a replica. A replica measures only its own
// deadlines, on its monotonic clock, from before the request.
//
// # Errors
//
// Every error of a Backend is an [*Error] that names the operation and wraps
// one of the package's sentinels where one applies; only what the caller's own
// function returned comes out of InTx as it is. "Nothing due" and "no more
// events" are empty results, never errors; an outage is ErrUnavailable, never
// an empty result.
package coord
