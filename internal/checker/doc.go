// Package checker proves, with real processes, that a client's view of a topic is what the
// database says was published, whatever happens to the replicas, to the connections and to the
// database.
//
// The storm: replicas of the program share a database, three on PostgreSQL and one on a file of
// SQLite, and clients of package client follow rooms on them, some private, give them up, leave
// and come back elsewhere, while others publish in transactions, as the program does, and
// outside. Replicas are killed, as by kill -9, and started anew; backends are terminated, those
// that LISTEN too; connections to clients and to the database are cut, or frozen as a half-open
// link is. Behind the storm come rounds: in each, one thing goes wrong while each quiet room gets
// one event, which no later one can bring along. In the end each view is compared with the table
// of events: see check.
//
// A rolling restart stops each replica as an operator does, while a client of it reads nothing, and a
// crowd of clients in a process of its own follows rooms.
//
// The other tests rewrite the history under the clients: a backup is restored, a standby that
// lacks the last events is promoted. Exactly the topics that differ may be reset.
//
// The tests print their numbers, and the seed of their randomness:
//
//	go test -v ./internal/checker
//	TANDEM_STRESS=60s go test -v ./internal/checker
//
// The first has a storm of ten seconds (SQLite: six), the second of a minute (SQLite: half of it).
// A rolling restart has 500 clients, or 5,000 with TANDEM_STRESS. TANDEM_STRESS_SEED repeats the
// choices of an earlier test, though not its timing. The program and the crowd are built without the
// race detector.
package checker
