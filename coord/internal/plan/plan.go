// Package plan decides which occurrences of a task become runs now.
package plan

import (
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

// First returns the first occurrence of a task that is created, or whose
// schedule is changed, at now. It is zero when there is none.
func First(t coord.Task, now time.Time) (time.Time, error) {
	if t.Schedule == "" {
		return time.Time{}, nil
	}
	s, err := schedule.Parse(t.Schedule, t.Zone)
	if err != nil {
		return time.Time{}, err
	}
	return s.Next(now), nil
}

// Fire returns the occurrences of a due task that become runs at now, in
// order, and the occurrence after them, which is computed from the last of
// them and not from now. The result may be empty when the misfire policy drops
// what is due.
//
// A task that forbids overlap gets one occurrence at most: what else is due
// waits until that run has ended.
func Fire(t coord.Task, now time.Time) (due []time.Time, next time.Time, err error) {
	s, err := schedule.Parse(t.Schedule, t.Zone)
	if err != nil {
		return nil, time.Time{}, err
	}
	keep := 1
	if t.Misfire == coord.MisfireAll {
		keep = t.MisfireCap
	}
	// NextAt is itself an occurrence; Last looks behind it.
	due = s.Last(t.NextAt, now, keep)
	if len(due) < keep {
		due = append([]time.Time{t.NextAt}, due...)
	}
	if t.Misfire == coord.MisfireSkip && now.Sub(due[0]) > coord.MisfireGrace {
		return nil, s.Next(due[0]), nil
	}
	if t.Overlap == coord.OverlapForbid {
		due = due[:1]
	}
	return due, s.Next(due[len(due)-1]), nil
}
