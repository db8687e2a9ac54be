package schedule

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const (
	everyMinute  = 1<<60 - 1
	everyHour    = 1<<24 - 1
	everyDom     = 1<<32 - 2
	everyMonth   = 1<<13 - 2
	everyDow     = 1<<7 - 1
	longestList  = 6
	zoneUnspoken = "UTC"
)

// Describe returns the schedule in a few words of English, such as "every 15
// minutes", "at 02:30 every day, America/New_York", "at 09:00 on Monday to
// Friday" or "once, on Thursday 24 December 2026 at 18:00". The zone is named
// unless it is UTC. A schedule that has no short description is quoted, and one
// that never occurs is "never". A single time is the one that the zone's clock
// shows when it comes, which is not what was written if that is skipped, or has
// an offset of its own.
func (s Schedule) Describe() string {
	var text string
	switch s.kind {
	case kindNone:
		return "never"
	case kindEvery:
		return "every " + duration(s.every)
	case kindOnce:
		text = s.describeOnce()
	case kindCron:
		if _, ok := s.wallFrom(0); !ok {
			return "never"
		}
		var ok bool
		if text, ok = s.describeCron(); !ok {
			text = fmt.Sprintf("on the schedule %q", s.spec)
		}
	}
	if s.zone != zoneUnspoken {
		text += ", " + s.zone
	}
	return text
}

func (s *Schedule) describeCron() (string, bool) {
	clock, ok := s.describeClock()
	if !ok {
		return "", false
	}
	days, ok := s.describeDays()
	if !ok {
		return "", false
	}
	if days == "" && strings.HasPrefix(clock, "at ") {
		days = " every day"
	}
	months := ""
	if s.months != everyMonth && !s.yearly() {
		months, ok = span(uint64(s.months), func(m int) string { return time.Month(m).String() }, "and")
		if !ok {
			return "", false
		}
		months = " in " + months
	}
	return clock + days + months, true
}

func (s *Schedule) describeClock() (string, bool) {
	minutes, hours := bits.OnesCount64(s.minutes), bits.OnesCount32(s.hours)
	first := bits.TrailingZeros64(s.minutes)
	often := "" // within an hour
	switch n := evenStep(s.minutes, 60); {
	case s.minutes == everyMinute:
		often = "every minute"
	case n > 0:
		often = fmt.Sprintf("every %d minutes", n)
	}
	sameMinute := ""
	if first != 0 {
		sameMinute = fmt.Sprintf(" at minute %d", first)
	}
	hourStep := evenStep(uint64(s.hours), 24)
	from := bits.TrailingZeros32(s.hours)
	to := bits.Len32(s.hours) - 1
	switch {
	case s.hours == everyHour && often != "":
		return often, true
	case s.hours == everyHour && minutes == 1:
		return "every hour" + sameMinute, true
	case s.hours == everyHour:
		list, ok := span(s.minutes, strconv.Itoa, "and")
		return "every hour at minutes " + list, ok
	case minutes == 1 && hourStep > 0 && (!s.fixed || hours > longestList):
		return fmt.Sprintf("every %d hours%s", hourStep, sameMinute), true
	case minutes*hours <= longestList:
		return "at " + s.clockTimes(), true
	case to-from+1 != hours:
		return "", false
	case often != "":
		return fmt.Sprintf("%s from %02d:00 to %02d:59", often, from, to), true
	case minutes == 1:
		return fmt.Sprintf("every hour from %02d:%02d to %02d:%02d", from, first, to, first), true
	}
	return "", false
}

func (s *Schedule) clockTimes() string {
	var times []string
	for minute := range minutesPerDay {
		if s.hours>>(minute/60)&1 != 0 && s.minutes>>(minute%60)&1 != 0 {
			times = append(times, fmt.Sprintf("%02d:%02d", minute/60, minute%60))
		}
	}
	return join(times, "and")
}

// describeDays returns "" when every day matches.
func (s *Schedule) describeDays() (string, bool) {
	allDoms, allDows := s.doms == everyDom, s.dows == everyDow
	if allDoms && allDows || s.either && (allDoms || allDows) {
		return "", true
	}
	if allDows && s.yearly() {
		month := time.Month(bits.TrailingZeros16(s.months))
		return fmt.Sprintf(" on %d %s", bits.TrailingZeros32(s.doms), month), true
	}
	last := "and"
	if !s.either && !allDows {
		last = "or"
	}
	doms, domsOK := span(uint64(s.doms), strconv.Itoa, last)
	noun := "day "
	if bits.OnesCount32(s.doms) > 1 {
		noun = "days "
	}
	dows, dowsOK := s.weekdays()
	switch {
	case allDoms:
		return " on " + dows, dowsOK
	case allDows:
		return " on " + noun + doms + " of the month", domsOK
	case s.either:
		return " on " + noun + doms + " of the month or on " + dows, domsOK && dowsOK
	}
	return " on " + dows + " if it is day " + doms + " of the month", domsOK && dowsOK
}

// yearly reports whether the days are one date of the year.
func (s *Schedule) yearly() bool {
	return s.dows == everyDow && !s.either &&
		bits.OnesCount32(s.doms) == 1 && bits.OnesCount16(s.months) == 1
}

func (s *Schedule) weekdays() (string, bool) {
	// A week reads from Monday, so that Saturday and Sunday are neighbours.
	fromMonday := uint64(s.dows>>1 | s.dows&1<<6)
	return span(fromMonday, func(d int) string { return time.Weekday((d + 1) % 7).String() }, "and")
}

// span names the values of a mask: as a range when there are three or more in a
// row, else as a list, unless that would be long.
func span(mask uint64, name func(int) string, last string) (string, bool) {
	from, to, n := bits.TrailingZeros64(mask), bits.Len64(mask)-1, bits.OnesCount64(mask)
	if n > 2 && to-from+1 == n {
		return name(from) + " to " + name(to), true
	}
	if n > longestList {
		return "", false
	}
	var names []string
	for v := from; v <= to; v++ {
		if mask>>v&1 != 0 {
			names = append(names, name(v))
		}
	}
	return join(names, last), true
}

func join(list []string, last string) string {
	if len(list) == 1 {
		return list[0]
	}
	end := len(list) - 1
	return strings.Join(list[:end], ", ") + " " + last + " " + list[end]
}

// evenStep returns n when the mask holds 0, n, 2n and so on up to size, which n
// divides, and 0 otherwise or when there are fewer than two or all of them.
func evenStep(mask uint64, size int) int {
	if mask&1 == 0 || bits.OnesCount64(mask) < 2 {
		return 0
	}
	n := bits.TrailingZeros64(mask &^ 1)
	if n < 2 || size%n != 0 {
		return 0
	}
	var want uint64
	for v := 0; v < size; v += n {
		want |= 1 << v
	}
	if mask != want {
		return 0
	}
	return n
}

func duration(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		switch {
		case d == unit.size:
			return unit.name
		case d%unit.size == 0:
			return fmt.Sprintf("%d %ss", d/unit.size, unit.name)
		}
	}
	return d.String()
}
