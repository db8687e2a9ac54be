// Package stress proves, with real processes, that no run is lost and that a worker
// which lost its lease changes nothing.
//
// Four replicas share a database, PostgreSQL or a file of SQLite, and work on queued
// runs and on the occurrences of tasks, while each is again and again killed, as by
// kill -9, and started anew, or stopped, by SIGSTOP, until well past its leases. Their
// handlers end half of the runs in a transaction of their own, by [coord.Tx.Finish], and
// half by returning; some fail or snooze; half of them ignore that their context ended.
//
// Handlers note in a journal in the same database what they do, and a trigger notes each
// change of a run's state. In the end the journal is replayed: see check. The test
// prints its numbers, and the seed of its randomness:
//
//	go test -v ./internal/stress
//	TANDEM_STRESS=60s go test -v ./internal/stress
//
// The first has 1,000 runs (SQLite: 500) and disturbs the replicas for ten seconds, the
// second 5,000 and for a minute, and only the second is sure to meet what is rare.
// TANDEM_STRESS_SEED repeats the choices of an earlier test, though not its timing.
//
// Another test has replicas in different time zones whose wall clocks are up to an hour
// wrong, on Linux and amd64, where that can be done to a process; elsewhere only the zones
// differ. It takes no settings.
package stress
