package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Jobs looks at what became of background jobs. Those of which replicas take turns have
// periods.
func Jobs(
	list func(ctx context.Context) ([]store.JobRecord, error), members Members, periods map[string]time.Duration,
) Check {
	return Check{Name: "jobs", Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		records, err := list(ctx)
		if err != nil && !noTable(err) { // before the first replica there is none
			return Finding{}, err
		}
		if len(records) == 0 {
			return fine("none was done yet"), nil
		}
		replicas, err := members(ctx)
		if err != nil {
			return Finding{}, err
		}
		return judgeJobs(records, replicas, periods), nil
	}}
}

// A job is forgotten that is due for several of its periods, and for longer than it takes
// until another replica leads and a new one begins.
const (
	forgottenPeriods = 3
	forgottenLeast   = 5 * time.Minute
)

func judgeJobs(records []store.JobRecord, replicas []coord.MemberInfo, periods map[string]time.Duration) Finding {
	var list []Finding
	for _, r := range records {
		every, known := periods[r.Name]
		// While no replica ran, nobody could have done it.
		waits := min(r.AsOf.Sub(r.NextAt.Time), longest(replicas, r.AsOf.Time))
		if known && waits > max(forgottenPeriods*every, forgottenLeast) {
			advice := "look at the logs of the replicas, and whether TANDEM_JOBS_OFF names it on all of them"
			what := "and no replica does it"
			if r.EndedAt.IsZero() {
				advice = "restart " + r.Node + " if it still runs"
				what = fmt.Sprintf("and its last turn, on %s since %s, has not ended", r.Node, r.StartedAt.UTC().Format(time.RFC3339))
			}
			list = append(list, warning(advice, "%s, which is done every %v, is due since %s, %s",
				r.Name, every, r.NextAt.UTC().Format(time.RFC3339), what))
		}
		if r.Failures > 0 {
			list = append(list, warning("look at tandem jobs, and at the log of "+r.Node,
				"%s has failed %d times since it last succeeded, at %s: %s", r.Name, r.Failures,
				r.ErrorAt.UTC().Format(time.RFC3339), strings.Join(strings.Fields(r.Error), " ")))
		}
	}
	return together(fine("%d, of which none fails or waits", len(records)), list...)
}

// longest is for how long there has been a replica, of those that run.
func longest(replicas []coord.MemberInfo, now time.Time) (there time.Duration) {
	for _, r := range replicas {
		there = max(there, now.Sub(r.Since))
	}
	return there
}

// noTable reports whether there is no such table.
func noTable(err error) bool {
	e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return ok && e.SQLState() == "42P01" || strings.Contains(err.Error(), "no such table")
}
