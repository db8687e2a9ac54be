package schedule

import (
	"math/bits"
	"time"
)

const (
	day           = int64(24 * 60 * 60)
	minutesPerDay = 24 * 60

	// The calendar repeats, weekdays included, after this many years, so a
	// date that does not come up within them never does.
	calendarCycle = 400
)

// A wall time is what the clock on the wall shows, in seconds since 1970 as if
// the zone were UTC. It exists whether or not the zone ever shows it.

// wallFrom returns the first matching wall time that is not before from.
func (s *Schedule) wallFrom(from int64) (int64, bool) {
	minute := floorDiv(from+59, 60)
	today := floorDiv(minute, minutesPerDay)
	year, month, dom := date(today)
	first := today - int64(dom) + 1
	days := s.daysOf(year, month, first)
	if days>>dom&1 != 0 {
		if at, ok := s.clockFrom(int(minute - today*minutesPerDay)); ok {
			return today*day + at, true
		}
	}
	days &^= 1<<(dom+1) - 1
	for end := year + calendarCycle; days == 0; {
		if later := s.months >> (month + 1); later != 0 {
			month += time.Month(1 + bits.TrailingZeros16(later))
		} else {
			year, month = year+1, time.Month(bits.TrailingZeros16(s.months))
		}
		if year > end {
			return 0, false
		}
		first = dayNumber(year, month)
		days = s.daysOf(year, month, first)
	}
	at, _ := s.clockFrom(0)
	return (first+int64(bits.TrailingZeros32(days))-1)*day + at, true
}

// wallUpTo returns the last matching wall time that is not after until.
func (s *Schedule) wallUpTo(until int64) (int64, bool) {
	minute := floorDiv(until, 60)
	today := floorDiv(minute, minutesPerDay)
	year, month, dom := date(today)
	first := today - int64(dom) + 1
	days := s.daysOf(year, month, first)
	if days>>dom&1 != 0 {
		if at, ok := s.clockUpTo(int(minute - today*minutesPerDay)); ok {
			return today*day + at, true
		}
	}
	days &= 1<<dom - 1
	for end := year - calendarCycle; days == 0; {
		if earlier := s.months & (1<<month - 1); earlier != 0 {
			month = time.Month(bits.Len16(earlier) - 1)
		} else {
			year, month = year-1, time.Month(bits.Len16(s.months)-1)
		}
		if year < end {
			return 0, false
		}
		first = dayNumber(year, month)
		days = s.daysOf(year, month, first)
	}
	at, _ := s.clockUpTo(minutesPerDay - 1)
	return (first+int64(bits.Len32(days))-2)*day + at, true
}

// clockFrom returns the first matching time of day that is not before the given
// minute of the day, in seconds since midnight.
func (s *Schedule) clockFrom(minute int) (int64, bool) {
	hour := minute / 60
	if s.hours>>hour&1 != 0 {
		if rest := s.minutes >> (minute % 60); rest != 0 {
			return int64(minute+bits.TrailingZeros64(rest)) * 60, true
		}
	}
	later := s.hours >> (hour + 1)
	if later == 0 {
		return 0, false
	}
	hour += 1 + bits.TrailingZeros32(later)
	return int64(hour*60+bits.TrailingZeros64(s.minutes)) * 60, true
}

// clockUpTo returns the last matching time of day that is not after the given
// minute of the day, in seconds since midnight.
func (s *Schedule) clockUpTo(minute int) (int64, bool) {
	hour := minute / 60
	if s.hours>>hour&1 != 0 {
		if rest := s.minutes & (1<<(minute%60+1) - 1); rest != 0 {
			return int64(hour*60+bits.Len64(rest)-1) * 60, true
		}
	}
	earlier := s.hours & (1<<hour - 1)
	if earlier == 0 {
		return 0, false
	}
	hour = bits.Len32(earlier) - 1
	return int64(hour*60+bits.Len64(s.minutes)-1) * 60, true
}

// daysOf returns the matching days of a month, whose first day has the number
// first, as a mask with bit 1 for the first.
func (s *Schedule) daysOf(year int, month time.Month, first int64) uint32 {
	if s.months>>month&1 == 0 {
		return 0
	}
	weekday := uint(first + 4 - floorDiv(first+4, 7)*7) // day 0 was a Thursday
	twice := uint64(s.dows)<<7 | uint64(s.dows)
	week := twice >> weekday & (1<<7 - 1)
	onWeekdays := uint32((week | week<<7 | week<<14 | week<<21 | week<<28) << 1)
	days := s.doms & onWeekdays
	if s.either {
		days = s.doms | onWeekdays
	}
	return days & (1<<(daysIn(year, month)+1) - 2)
}

func daysIn(year int, month time.Month) int {
	switch month {
	case time.April, time.June, time.September, time.November:
		return 30
	case time.February:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// date returns the date of a day counted from 1 January 1970.
func date(number int64) (int, time.Month, int) {
	return time.Unix(number*day, 0).UTC().Date()
}

// dayNumber is the inverse of date for the first day of a month.
func dayNumber(year int, month time.Month) int64 {
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Unix() / day
}
