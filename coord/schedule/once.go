package schedule

import (
	"math"
	"strings"
	"time"
)

const (
	onceExample = "@at 2026-12-24 18:00"
	clockLayout = "15:04"
	onceLayout  = time.DateOnly + " " + clockLayout
)

// parseOnce reads a single time. In the result, at is what the clock of loc shows
// then, and loc is nil unless an offset is written: see [Schedule.place].
func parseOnce(spec string, words []string) (Schedule, error) {
	bad := func(format string, args ...any) (Schedule, error) {
		return Schedule{}, fail(FieldSchedule, spec, format, args...)
	}
	var date, clock string
	switch len(words) {
	case 1:
		return bad("@at needs a date and a time, such as %s", onceExample)
	case 2:
		date = words[1]
		if t := strings.IndexAny(date, "Tt"); t >= 0 {
			date, clock = date[:t], date[t+1:]
		}
	case 3:
		date, clock = words[1], words[2]
	default:
		return bad("write one date and one time of the 24-hour clock, such as %s; an offset such as +01:00 "+
			"follows without a space, and a zone is given separately", onceExample)
	}

	end := date[max(0, len(date)-len(time.DateOnly)):] // a year may be longer, or have a sign
	d, ok := numbers(end, "-", 4, 2, 2)
	switch {
	case !ok:
		return bad("write the date as year-month-day and the time after it, such as %s", onceExample)
	case end != date || d[0] == 0:
		return bad("the year must be from 0001 to 9999, in four digits")
	case d[1] < 1 || d[1] > 12:
		return bad("there is no month %02d; write the date as year-month-day, such as %s", d[1], onceExample)
	}
	month := time.Month(d[1])
	if days := daysIn(d[0], month); d[2] < 1 || d[2] > days {
		return bad("there is no day %02d in %s %04d; write one from 01 to %d", d[2], month, d[0], days)
	}

	if clock == "" {
		return bad("the time is missing; write it after the date, such as @at %s 18:00", date)
	}
	clock, offset := cutOffset(clock)
	t, ok := numbers(clock, ":", 2, 2)
	if !ok {
		t, ok = numbers(clock, ":", 2, 2, 2)
	}
	switch {
	case !ok:
		return bad("write the time by the 24-hour clock in hours, minutes and at most whole seconds, "+
			"such as @at %s 18:00 or %[1]s 09:30:15", date)
	case t[0] > 23 || t[1] > 59 || t[2] > 59:
		return bad("there is no time %s; write one from 00:00 to 23:59:59", clock)
	}
	var loc *time.Location
	if offset != "" {
		east, ok := parseOffset(offset)
		if !ok {
			return bad("write the offset from UTC as +01:00 or -05:30, with up to 23 hours and 59 minutes, or as Z")
		}
		loc = time.FixedZone("", east)
		if offset = "Z"; east != 0 {
			offset = time.Unix(0, 0).In(loc).Format("-07:00")
		}
	}

	wall := time.Date(d[0], month, d[2], t[0], t[1], t[2], 0, time.UTC)
	return Schedule{
		kind: kindOnce,
		spec: "@at " + wall.Format(withSeconds(onceLayout, wall)) + offset,
		loc:  loc,
		at:   wall.Unix(),
	}, nil
}

// place turns the wall time of a single time into its instant: by its own offset,
// if one was written, and otherwise by the clock of the given zone.
func (s *Schedule) place(spec string, loc *time.Location) error {
	z := zone{loc: loc}
	if s.loc != nil {
		z.loc = s.loc
	}
	s.at = z.first(s.at, math.MinInt64)
	if s.at <= firstSecond || s.at > lastSecond {
		return fail(FieldSchedule, spec, "in UTC, the time must be after %s and not after %s",
			firstInstant.Format(onceLayout), lastInstant.Format(time.DateTime))
	}
	return nil
}

func (s *Schedule) nextOnce(after time.Time) time.Time {
	if at := s.instant(); at.After(after) {
		return at
	}
	return time.Time{}
}

func (s *Schedule) instant() time.Time { return time.Unix(s.at, 0).UTC() }

func (s *Schedule) describeOnce() string {
	at := s.instant().In(s.loc)
	return "once, on " + at.Format("Monday 2 January 2006") + " at " + at.Format(withSeconds(clockLayout, at))
}

// withSeconds adds the seconds to a layout when there are any to show.
func withSeconds(layout string, t time.Time) string {
	if t.Second() != 0 {
		layout += ":05"
	}
	return layout
}

// numbers reads numbers of so many digits each, and nothing else. What there are
// fewer of than three is 0.
func numbers(text, separator string, digits ...int) (values [3]int, ok bool) {
	parts := strings.Split(text, separator)
	if len(parts) != len(digits) {
		return values, false
	}
	for i, part := range parts {
		if len(part) != digits[i] {
			return values, false
		}
		if values[i], ok = number(part); !ok {
			return values, false
		}
	}
	return values, true
}

// cutOffset takes the offset from UTC off a time of day.
func cutOffset(clock string) (rest, offset string) {
	if i := strings.IndexAny(clock, "Zz+-"); i >= 0 {
		return clock[:i], clock[i:]
	}
	return clock, ""
}

// parseOffset returns the seconds east of UTC.
func parseOffset(text string) (int, bool) {
	sign := 1
	switch text[0] {
	case '-':
		sign = -1
	case '+':
	default:
		return 0, strings.EqualFold(text, "Z")
	}
	t, ok := numbers(text[1:], ":", 2, 2)
	if !ok || t[0] > 23 || t[1] > 59 {
		return 0, false
	}
	return sign * (t[0]*60 + t[1]) * 60, true
}
