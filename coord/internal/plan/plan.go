// Package plan decides which occurrences of a task become runs now.
package plan

import (
	"slices"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

// First returns the first occurrence of a task that is created, or whose
// schedule is changed, at now. It is zero when there is none. A single time that
// is not after now is a [*coord.InvalidError].
func First(t coord.Task, now time.Time) (time.Time, error) {
	if t.Schedule == "" {
		return time.Time{}, nil
	}
	s, err := schedule.Parse(t.Schedule, t.Zone)
	if err != nil {
		return time.Time{}, err
	}
	first, err := s.First(now)
	if err != nil {
		return time.Time{}, &coord.InvalidError{Field: "Task.Schedule", Reason: err.Error()}
	}
	return first, nil
}

// mostInGrace is how many occurrences the grace of coord.MisfireSkip can hold.
const mostInGrace = int(coord.MisfireGrace/schedule.MinEvery) + 1

// Fire returns the occurrences of a due task that become runs at now, in
// order, and the occurrence after them, which is computed from the last of
// them and not from now. The result may be empty when the misfire policy drops
// what is due.
//
// A task that forbids overlap gets one occurrence at most: what else is due
// waits until that run has ended. After its single time a task has no next, which
// is the zero time.
func Fire(t coord.Task, now time.Time) (due []time.Time, next time.Time, err error) {
	if t.NextAt.IsZero() || t.NextAt.After(now) {
		return nil, t.NextAt, nil
	}
	s, err := schedule.Parse(t.Schedule, t.Zone)
	if err != nil {
		return nil, time.Time{}, err
	}
	tooLate := func(at time.Time) bool {
		return t.Misfire == coord.MisfireSkip && now.Sub(at) > coord.MisfireGrace
	}
	if s.Once() {
		// Without asking s: had the rules of the zone changed since NextAt was
		// computed, the same time would come again.
		if tooLate(t.NextAt) {
			return nil, time.Time{}, nil
		}
		return []time.Time{t.NextAt}, time.Time{}, nil
	}
	keep := 1
	switch t.Misfire {
	case coord.MisfireAll:
		keep = t.MisfireCap
	case coord.MisfireSkip:
		keep = mostInGrace
	}
	// NextAt is itself an occurrence; Last looks behind it.
	due = s.Last(t.NextAt, now, keep)
	if len(due) < keep {
		due = append([]time.Time{t.NextAt}, due...)
	}
	next = s.Next(due[len(due)-1])
	due = slices.DeleteFunc(due, tooLate)
	if t.Overlap == coord.OverlapForbid && len(due) > 1 {
		due, next = due[:1], due[1]
	}
	return due, next, nil
}
