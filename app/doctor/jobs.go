package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app/store"
)

// Jobs looks at what became of background jobs.
func Jobs(list func(ctx context.Context) ([]store.JobRecord, error)) Check {
	return Check{Name: "jobs", Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		records, err := list(ctx)
		if err != nil && !noTable(err) { // before the first replica there is none
			return Finding{}, err
		}
		return judgeJobs(records), nil
	}}
}

func judgeJobs(records []store.JobRecord) Finding {
	var list []Finding
	for _, r := range records {
		if r.Failures > 0 {
			list = append(list, warning("look at tandem jobs, and at the log of "+r.Node,
				"%s has failed %d times since it last succeeded, at %s: %s", r.Name, r.Failures,
				r.ErrorAt.UTC().Format(time.RFC3339), strings.Join(strings.Fields(r.Error), " ")))
		}
	}
	if len(records) == 0 {
		return fine("none was done yet")
	}
	return together(fine("%d, of which none fails", len(records)), list...)
}

// noTable reports whether there is no such table.
func noTable(err error) bool {
	e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return ok && e.SQLState() == "42P01" || strings.Contains(err.Error(), "no such table")
}
