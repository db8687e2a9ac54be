// Package schedule reads schedules and computes when they occur.
//
// A schedule is a five-field cron expression, a descriptor such as @daily,
// "@every DURATION", or "@at DATE TIME" for a single time. [Parse] says what is
// accepted; [Schedule.Next] and [Schedule.Last] say when it occurs. A [Schedule]
// is a value that never changes, and the package keeps no state and reads no
// clock.
//
// # Fields
//
//	minute        0-59
//	hour          0-23
//	day of month  1-31
//	month         1-12 or jan-dec
//	day of week   0-7 or sun-sat; 0 and 7 are both Sunday
//
// A field is a list of entries separated by commas. An entry is *, a value A, a
// range A-B, or one of these with a step: */N, A-B/N, and A/N, which runs from
// A to the end of the field. Names may be in either case and may stand in
// ranges. A step starts again with each range: */7 in the minute field is 0, 7,
// … 56, and then 0 of the next hour.
//
// When both day fields are restricted, a day matches if either of them does.
// When one of them contains a *, a day must match both. This is the rule of
// classic cron, in which */2 is not a restriction.
//
// # Changes of the clock
//
// Occurrences are wall-clock times of the schedule's zone. What happens when
// the clocks change depends on the schedule:
//
//	                 fixed                       interval
//	which            no * in minute or hour,     a * in minute or hour
//	                 and @at
//	example          30 2 * * *                  */15 * * * *
//	skipped time     once, at the first instant  does not occur
//	                 after the gap
//	repeated time    once, the first of the two  both times
//
// So a nightly job runs once every night, and @hourly every hour. Wall times that
// lead to the same instant are one occurrence: 02:15 and 02:45, both skipped, run
// once. What counts is how the schedule is written: 0 0-23 * * * has no * and is
// fixed, so it does not run again in a repeated hour. A change of the clock moves
// neither @every nor an @at with an offset of its own.
//
// # Zone data
//
// Zones come from [time.LoadLocation]. A program that must run where there is no
// zone database imports time/tzdata itself.
package schedule

import (
	"slices"
	"time"
)

// MinEvery is the shortest duration "@every" accepts.
const MinEvery = time.Second

// Occurrences lie between these two instants, which every store can hold.
var (
	firstInstant = time.Time{}
	lastInstant  = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)
	firstSecond  = firstInstant.Unix()
	lastSecond   = lastInstant.Unix()
)

type kind uint8

const (
	kindNone kind = iota
	kindCron
	kindEvery
	kindOnce
)

// Schedule is a parsed schedule together with its zone. It is immutable and
// safe for concurrent use. The zero Schedule never occurs.
//
// Do not compare schedules with ==: two that were parsed from the same text may
// hold different copies of the zone.
type Schedule struct {
	spec  string
	zone  string
	loc   *time.Location
	every time.Duration
	at    int64 // the single time, in Unix seconds

	// Bit i of a mask is set when the value i matches.
	minutes uint64
	hours   uint32
	doms    uint32
	months  uint16
	dows    uint8

	kind   kind
	either bool // a day matches if either day field does
	fixed  bool // no * in the minute or the hour
}

// String returns the schedule in the form that [Parse] reads: the text it was
// parsed from, in lower case and with single spaces, with the duration of
// @every in the form of [time.Duration.String], and with the time of @at as in
// "@at 2026-12-24 18:00" or "@at 2026-12-24 18:00:30+01:00", without seconds when
// they are 0 and with an offset only if one was written. The zone is not part of
// it, see [Schedule.Zone]; Parse(s.String(), s.Zone()) gives the same schedule
// again.
func (s Schedule) String() string { return s.spec }

// Zone returns the IANA name of the schedule's zone, "UTC" when [Parse] was
// given none, and "" for the zero Schedule.
func (s Schedule) Zone() string { return s.zone }

// Next returns the first occurrence strictly after the given instant, in UTC.
// It returns the zero Time when there is none: for the zero Schedule, for a date
// that does not exist, such as 30 February, for a single time that is not after
// it, and when the next occurrence would be after the year 9999. An instant before
// the year 1 counts as the zero Time.
//
// Occurrences of "@every DURATION" are anchored on the one before, so Next
// returns after plus the duration: pass the previous occurrence, not the current
// time, or the schedule drifts.
func (s Schedule) Next(after time.Time) time.Time {
	after = clamp(after)
	switch s.kind {
	case kindEvery:
		return s.nextEvery(after)
	case kindOnce:
		return s.nextOnce(after)
	case kindCron:
		z := zone{loc: s.loc}
		if at, ok := s.next(&z, after.Unix()); ok {
			return time.Unix(at, 0).UTC()
		}
	}
	return time.Time{}
}

// Once reports whether the schedule is a single time, "@at DATE TIME".
func (s Schedule) Once() bool { return s.kind == kindOnce }

// First returns the first occurrence of a schedule that is set up at the given
// instant. It is that of [Schedule.Next], except that a single time which is not
// after the instant is an [*Error] that says so: whoever writes one down has made
// a mistake in the date or the zone.
func (s Schedule) First(now time.Time) (time.Time, error) {
	next := s.Next(now)
	if s.kind == kindOnce && next.IsZero() {
		at := s.instant().In(s.loc)
		return time.Time{}, fail(FieldSchedule, s.spec, "%s in %s has passed; write a time to come",
			at.Format(withSeconds(onceLayout, at)), s.zone)
	}
	return next, nil
}

// Last returns the last n occurrences that are after the first instant and not
// after the second, earliest first, in UTC. It returns nil when there are none or
// when n is not positive. Occurrences of "@every DURATION" are those that
// repeated [Schedule.Next] finds from the first instant.
//
// The cost is that of the occurrences returned, whatever the length of the
// interval.
func (s Schedule) Last(after, until time.Time, n int) []time.Time {
	after, until = clamp(after), clamp(until)
	if until.After(lastInstant) {
		until = lastInstant
	}
	if n <= 0 || !until.After(after) {
		return nil
	}
	switch s.kind {
	case kindEvery:
		return s.lastEvery(after, until, n)
	case kindOnce:
		if at := s.nextOnce(after); !at.IsZero() && !at.After(until) {
			return []time.Time{at}
		}
	case kindCron:
		return s.lastCron(after.Unix(), until.Unix(), n)
	}
	return nil
}

// Preview returns the next n occurrences after the given instant, in UTC. It
// returns fewer when the schedule ends before, and nil when there are none or
// when n is not positive.
func Preview(s Schedule, from time.Time, n int) []time.Time {
	from = clamp(from)
	var times []time.Time
	z := zone{loc: s.loc}
	for second := from.Unix(); len(times) < n; {
		switch s.kind {
		case kindEvery:
			if from = s.nextEvery(from); from.IsZero() {
				return times
			}
			times = append(times, from)
		case kindOnce:
			if at := s.nextOnce(from); !at.IsZero() {
				times = append(times, at)
			}
			return times
		case kindCron:
			at, ok := s.next(&z, second)
			if !ok {
				return times
			}
			second = at
			times = append(times, time.Unix(at, 0).UTC())
		default:
			return nil
		}
	}
	return times
}

func (s *Schedule) nextEvery(after time.Time) time.Time {
	if after.After(lastInstant) {
		return time.Time{}
	}
	next := after.Add(s.every)
	if next.After(lastInstant) {
		return time.Time{}
	}
	return next
}

func (s *Schedule) lastEvery(after, until time.Time, n int) []time.Time {
	// In microseconds, because time.Duration holds no more than 292 years.
	step := s.every.Microseconds()
	last := microsBetween(after, until) / step
	first := max(last-int64(n)+1, 1)
	if last < first {
		return nil
	}
	times := make([]time.Time, 0, last-first+1)
	for k := first; k <= last; k++ {
		times = append(times, addMicros(after, k*step))
	}
	return times
}

func (s *Schedule) lastCron(after, until int64, n int) []time.Time {
	var times []time.Time
	z := zone{loc: s.loc}
	for at := until; len(times) < n; at-- {
		var ok bool
		if at, ok = s.prev(&z, at); !ok || at <= after {
			break
		}
		times = append(times, time.Unix(at, 0).UTC())
	}
	slices.Reverse(times)
	return times
}

// clamp also drops the monotonic reading, which an occurrence must not carry.
func clamp(t time.Time) time.Time {
	t = t.Round(0).UTC()
	if t.Before(firstInstant) {
		return firstInstant
	}
	return t
}

// microsBetween returns the whole microseconds from a to b, which is not before a.
func microsBetween(a, b time.Time) int64 {
	const perSecond = int64(time.Second / time.Microsecond)
	nanos := int64(b.Nanosecond() - a.Nanosecond())
	return (b.Unix()-a.Unix())*perSecond + floorDiv(nanos, int64(time.Microsecond))
}

func addMicros(t time.Time, micros int64) time.Time {
	const perSecond = int64(time.Second / time.Microsecond)
	nanos := int64(t.Nanosecond()) + micros%perSecond*int64(time.Microsecond)
	return time.Unix(t.Unix()+micros/perSecond, nanos).UTC()
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
