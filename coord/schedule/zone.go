package schedule

import (
	"math"
	"time"
)

const (
	// No zone is further from UTC than this; a zone file may go up to 25 hours.
	maxOffset = int64(26 * 60 * 60)

	// How long after a change of the clock a wall time may still be a repeated one.
	maxFold = 2 * maxOffset
)

// A period is a span of time, end excluded, over which the offset from UTC does
// not change. Neighbours may have the same offset. All in seconds.
type period struct {
	start, end, offset int64
}

// zone looks up periods and remembers the last, which is nearly always the one
// asked for next.
type zone struct {
	loc *time.Location
	period
}

func (z *zone) at(second int64) period {
	if z.start <= second && second < z.end {
		return z.period
	}
	z.period = period{start: math.MinInt64, end: math.MaxInt64}
	if z.loc == time.UTC {
		return z.period
	}
	t := time.Unix(second, 0).In(z.loc)
	_, offset := t.Zone()
	z.offset = int64(offset)
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		z.start = start.Unix()
	}
	if !end.IsZero() {
		z.end = end.Unix()
	}
	if z.end <= second {
		// Where a zone goes on by rule, ZoneBounds counts 365 days in every year, and
		// so has ended the year before 31 December of a leap year.
		z.end = (floorDiv(second, day) + 1) * day
	}
	return z.period
}

// next returns the first occurrence after the given second.
func (s *Schedule) next(z *zone, after int64) (int64, bool) {
	if after >= lastSecond {
		return 0, false
	}
	var at int64
	var ok bool
	if s.fixed {
		at, ok = s.nextFixed(z, after)
	} else {
		at, ok = s.nextInterval(z, after)
	}
	return at, ok && at <= lastSecond
}

// prev returns the last occurrence that is not after the given second.
func (s *Schedule) prev(z *zone, until int64) (int64, bool) {
	if until <= firstSecond {
		return 0, false
	}
	var at int64
	var ok bool
	if s.fixed {
		at, ok = s.prevFixed(z, until)
	} else {
		at, ok = s.prevInterval(z, until)
	}
	return at, ok && at > firstSecond
}

// A fixed schedule runs a wall time at the first instant whose own wall time is
// that or later: it is the time itself, the first of two, or the end of the gap.

func (s *Schedule) nextFixed(z *zone, after int64) (int64, bool) {
	wall, ok := s.wallFrom(s.shown(z, after) + 1)
	if !ok {
		return 0, false
	}
	return z.first(wall, after+1), true
}

func (s *Schedule) prevFixed(z *zone, until int64) (int64, bool) {
	wall, ok := s.wallUpTo(s.shown(z, until))
	if !ok {
		return 0, false
	}
	return z.first(wall, math.MinInt64), true
}

// shown returns the latest wall time that was shown up to the given second. It
// is not that of the second itself while a fold repeats earlier ones.
func (s *Schedule) shown(z *zone, second int64) int64 {
	p := z.at(second)
	latest := second + p.offset
	if p.start <= second-maxFold {
		return latest
	}
	look := zone{loc: z.loc} // z keeps the period that is asked for next
	for p.start > second-maxFold {
		before := p.start - 1
		p = look.at(before)
		latest = max(latest, before+p.offset)
	}
	return latest
}

// first returns the first second, from the given one on, whose wall time is the
// given one or later.
func (z *zone) first(wall, from int64) int64 {
	if from == math.MinInt64 {
		from = wall - maxOffset
	}
	for {
		p := z.at(from)
		if at := max(wall-p.offset, from); at < p.end {
			return at
		}
		from = max(p.end, wall-maxOffset)
	}
}

// An interval schedule runs at each instant whose wall time matches.

func (s *Schedule) nextInterval(z *zone, after int64) (int64, bool) {
	for from := after + 1; from <= lastSecond; {
		p := z.at(from)
		wall, ok := s.wallFrom(from + p.offset)
		if !ok {
			return 0, false
		}
		if at := wall - p.offset; at < p.end {
			return at, true
		}
		// Skip the periods that show no matching time, a few a year for years. There
		// is a match after them, the one just found if no fold shows an earlier one.
		wall, _ = s.wallFrom(p.end - maxOffset)
		from = max(p.end, wall-maxOffset)
	}
	return 0, false
}

func (s *Schedule) prevInterval(z *zone, until int64) (int64, bool) {
	for until > firstSecond {
		p := z.at(until)
		wall, ok := s.wallUpTo(until + p.offset)
		if !ok {
			return 0, false
		}
		if at := wall - p.offset; at >= p.start {
			return at, true
		}
		wall, _ = s.wallUpTo(p.start - 1 + maxOffset)
		until = min(p.start-1, wall+maxOffset)
	}
	return 0, false
}
