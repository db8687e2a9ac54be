package jobs

// Loops are what parts of every replica do all the time. They are listed here so that there
// is one list of all background work, and are run by those parts.
func Loops() []Job {
	list := []Job{
		{
			Name:  "worker.claim",
			About: "Claims runs that are due, fires tasks, takes up runs whose worker vanished, and executes them.",
			Why:   "The store gives each occurrence and each run to one claim.",
		},
		{
			Name:  "worker.leases",
			About: "Extends the leases of the runs that this replica executes, and writes down their progress.",
			Why:   "Every replica has its own runs, and a stale token changes nothing.",
		},
		{
			Name:  "presence.heartbeat",
			About: "Renews this replica's lease in the directory, and puts right what it has there.",
			Why:   "Every replica has its own entries; epochs decide between two for one key.",
		},
		{
			Name:  "presence.announce",
			About: "Announces who came and went.",
			Why:   "What was announced last is a row that changes with the event, in one transaction: two that meet announce once.",
		},
		{
			Name:  "presence.sweep",
			About: "Removes what vanished replicas have left in the directory, and compares it with what was announced.",
			Why:   "An entry is removed by one statement, which tells one replica of it.",
		},
		{
			Name:  "hub.watch",
			About: "Closes connections whose client is slow, or whose session has ended.",
			Why:   "Every replica looks after its own connections.",
		},
		{
			Name:  "hub.stream",
			About: "Hands out the events that clients of this replica follow.",
			Why:   "Every replica has its own clients, and follows only.",
		},
		{
			Name:  "health.probe",
			About: "Asks whether the database can be written to and has the schema.",
			Why:   "Every replica finds out for itself, and says whether it is ready itself.",
		},
		{
			Name:  "keys.load",
			About: "Loads signing keys that were added, replaced or revoked.",
			Why:   "Every replica has its own copy, and reads only.",
		},
		{
			Name:  "setup.offer",
			About: "As it starts, prints a link for the set-up while there is no administrator.",
			Why:   "Each link is a token of its own, and of all links one works, once.",
		},
		{
			Name:  "jobs.lead",
			About: "Stands for leading the leader-only jobs, and extends the lease of the term.",
			Why:   "It is how one replica is chosen.",
		},
		{
			Name:  "store.events",
			About: "Looks for new events (PostgreSQL and SQLite).",
			Why:   "Every replica has its own streams, and reads only.",
		},
		{
			Name:  "store.doorbell",
			About: "Tells other replicas that something has changed (PostgreSQL).",
			Why:   "A doorbell carries no data; who hears one too many looks for nothing.",
		},
		{
			Name:  "store.listen",
			About: "Hears that other replicas or processes have changed something (PostgreSQL and SQLite).",
			Why:   "Every replica listens for itself.",
		},
		{
			Name:  "store.calls",
			About: "Looks whether calls have ended that somebody of this replica waits for.",
			Why:   "It ends calls behind their deadlines by compare and set, as whoever sees one may.",
		},
	}
	for i := range list {
		list[i].Work = Loop{}
	}
	return list
}
