package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	maxSpec   = 512 // every value of every field, written out, is shorter
	maxZone   = 64
	maxQuoted = 64
)

// The values of [Error.Field].
const (
	FieldMinute     = "minute"
	FieldHour       = "hour"
	FieldDayOfMonth = "day of month"
	FieldMonth      = "month"
	FieldDayOfWeek  = "day of week"
	FieldSchedule   = "schedule" // the text as a whole
	FieldZone       = "zone"
)

// Error says what is wrong with a schedule or a zone. Its message is fit for the
// person who wrote them.
type Error struct {
	Field  string // the part at fault, one of the Field constants
	Value  string // what was written there, shortened when it is long
	Reason string // what is wrong with it and what to write instead
}

// Error names the field, the value, and what to write instead.
func (e *Error) Error() string {
	return fmt.Sprintf("invalid %s %q: %s", e.Field, e.Value, e.Reason)
}

func fail(field, value, format string, args ...any) *Error {
	return &Error{Field: field, Value: shorten(value), Reason: fmt.Sprintf(format, args...)}
}

func shorten(value string) string {
	if len(value) <= maxQuoted {
		return value
	}
	return strings.ToValidUTF8(value[:maxQuoted], "") + "…"
}

type field struct {
	name     string
	min, max int
	last     int // where * and A/N end
	names    []string
	example  string
}

var (
	minuteField = field{name: FieldMinute, min: 0, max: 59, last: 59}
	hourField   = field{name: FieldHour, min: 0, max: 23, last: 23}
	domField    = field{name: FieldDayOfMonth, min: 1, max: 31, last: 31}
	monthField  = field{
		name: FieldMonth, min: 1, max: 12, last: 12, example: " or a name from jan to dec",
		names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"},
	}
	dowField = field{
		name: FieldDayOfWeek, min: 0, max: 7, last: 6, example: " or a name from sun to sat",
		names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"},
	}
)

const (
	sunday      = 0
	sundayAgain = 7
)

var descriptors = map[string]string{
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
	"@monthly":  "0 0 1 * *",
	"@weekly":   "0 0 * * 0",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@hourly":   "0 * * * *",
}

// Parse reads a schedule, to be kept in the given zone.
//
// The schedule is one of
//   - five cron fields, as the package documentation describes them;
//   - @yearly or @annually, @monthly, @weekly, @daily or @midnight, @hourly;
//   - "@every DURATION", with a duration as [time.ParseDuration] reads it, in
//     whole microseconds and not below [MinEvery];
//   - "@at DATE TIME", a single time such as @at 2026-12-24 18:00, with seconds if
//     need be. A T may stand in place of the blank, and an offset from UTC behind
//     the time: @at 2026-12-24T18:00:00+01:00 and @at 2026-12-24 17:00Z are the
//     same instant in every zone.
//
// The zone is an IANA name such as Europe/Berlin; "" is UTC. Local and other
// names whose meaning depends on the machine are refused.
//
// Cron fields whose date never comes, such as 30 February, are not an error, see
// [Schedule.Next]; nor is a single time that has passed, see [Schedule.First]. Every
// error is an [*Error].
func Parse(spec, zone string) (Schedule, error) {
	s, err := parseSpec(spec)
	if err != nil {
		return Schedule{}, err
	}
	loc, err := loadZone(zone)
	if err != nil {
		return Schedule{}, err
	}
	if s.kind == kindOnce {
		if err := s.place(spec, loc); err != nil {
			return Schedule{}, err
		}
	}
	s.loc, s.zone = loc, loc.String()
	return s, nil
}

func parseSpec(spec string) (Schedule, error) {
	if len(spec) > maxSpec {
		return Schedule{}, fail(FieldSchedule, spec, "it is longer than %d characters", maxSpec)
	}
	words := strings.Fields(spec)
	if len(words) == 0 {
		return Schedule{}, fail(FieldSchedule, spec,
			"it is empty; write five fields such as %q, or @daily", "30 2 * * *")
	}
	if strings.HasPrefix(words[0], "@") {
		return parseDescriptor(spec, words)
	}
	return parseCron(spec, words)
}

func parseDescriptor(spec string, words []string) (Schedule, error) {
	name := strings.ToLower(words[0])
	switch name {
	case "@every":
		return parseEvery(spec, words)
	case "@at":
		return parseOnce(spec, words)
	}
	cron, known := descriptors[name]
	if !known {
		return Schedule{}, fail(FieldSchedule, spec,
			"%q is not known; use @yearly, @monthly, @weekly, @daily, @hourly, @every or @at",
			shorten(name))
	}
	if len(words) > 1 {
		return Schedule{}, fail(FieldSchedule, spec, "write nothing after %s", name)
	}
	s, err := parseCron(cron, strings.Fields(cron))
	s.spec = name
	return s, err
}

func parseEvery(spec string, words []string) (Schedule, error) {
	if len(words) != 2 {
		return Schedule{}, fail(FieldSchedule, spec,
			"@every needs one duration without spaces, such as @every 1h30m")
	}
	every, err := time.ParseDuration(words[1])
	switch {
	case err != nil:
		return Schedule{}, fail(FieldSchedule, spec,
			"the duration is not valid; write one with units, such as @every 1h30m")
	case every < MinEvery:
		return Schedule{}, fail(FieldSchedule, spec, "the duration must be %s or longer", MinEvery)
	case every%time.Microsecond != 0:
		return Schedule{}, fail(FieldSchedule, spec, "the duration must be in whole microseconds")
	}
	return Schedule{kind: kindEvery, spec: "@every " + every.String(), every: every}, nil
}

func parseCron(spec string, words []string) (Schedule, error) {
	upper := strings.ToUpper(words[0])
	switch {
	case strings.HasPrefix(upper, "TZ=") || strings.HasPrefix(upper, "CRON_TZ="):
		return Schedule{}, fail(FieldSchedule, spec, "give the zone separately, not in the schedule")
	case len(words) <= 2 && strings.Count(words[0], "-") >= 2:
		return Schedule{}, fail(FieldSchedule, spec, "write a single time with @at before it, such as %s", onceExample)
	case len(words) == 6 || len(words) == 7:
		return Schedule{}, fail(FieldSchedule, spec,
			"it has %d fields; there are none for seconds or years, write five: "+
				"minute, hour, day of month, month, day of week", len(words))
	case len(words) != 5:
		return Schedule{}, fail(FieldSchedule, spec,
			"it has %d of five fields; write minute, hour, day of month, month, day of week", len(words))
	}
	minutes, minuteStar, err := minuteField.parse(words[0])
	if err != nil {
		return Schedule{}, err
	}
	hours, hourStar, err := hourField.parse(words[1])
	if err != nil {
		return Schedule{}, err
	}
	doms, domStar, err := domField.parse(words[2])
	if err != nil {
		return Schedule{}, err
	}
	months, _, err := monthField.parse(words[3])
	if err != nil {
		return Schedule{}, err
	}
	dows, dowStar, err := dowField.parse(words[4])
	if err != nil {
		return Schedule{}, err
	}
	dows |= dows >> sundayAgain // 7 is 0
	return Schedule{
		kind:    kindCron,
		spec:    strings.ToLower(strings.Join(words, " ")),
		minutes: minutes,
		hours:   uint32(hours),
		doms:    uint32(doms),
		months:  uint16(months),
		dows:    uint8(dows & (1<<7 - 1)),
		either:  !domStar && !dowStar,
		fixed:   !minuteStar && !hourStar,
	}, nil
}

// parse returns the values of a field as a mask, and whether it contains a *.
func (f *field) parse(text string) (mask uint64, star bool, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		if entry == "" {
			return 0, false, fail(f.name, text, "an entry is empty; remove the extra comma")
		}
		low, high, step, err := f.entry(entry)
		if err != nil {
			return 0, false, err
		}
		for v := low; v <= high; v += step {
			mask |= 1 << v
		}
	}
	return mask, strings.Contains(text, "*"), nil
}

func (f *field) entry(entry string) (low, high, step int, err error) {
	span, stepText, stepped := strings.Cut(entry, "/")
	lowText, highText, ranged := strings.Cut(span, "-")
	step = 1
	if stepped {
		if span == "" {
			return 0, 0, 0, fail(f.name, entry, "write what the step counts from, such as */5")
		}
		if step, err = f.step(entry, stepText); err != nil {
			return 0, 0, 0, err
		}
	}
	switch {
	case span == "*":
		return f.min, f.last, step, nil
	case !ranged:
		if low, err = f.value(entry, span); err != nil {
			return 0, 0, 0, err
		}
		if stepped {
			return low, max(low, f.last), step, nil
		}
		return low, low, 1, nil
	case lowText == "" || highText == "":
		return 0, 0, 0, fail(f.name, entry, "a range needs two ends, such as %d-%d", f.min, f.min+4)
	}
	if low, err = f.value(entry, lowText); err != nil {
		return 0, 0, 0, err
	}
	if high, err = f.value(entry, highText); err != nil {
		return 0, 0, 0, err
	}
	if f.max == sundayAgain && strings.EqualFold(highText, "sun") && low != sunday {
		high = sundayAgain // fri-sun
	}
	if low > high {
		return 0, 0, 0, fail(f.name, entry, "the range runs backwards; %s", f.forwards(low, high))
	}
	return low, high, step, nil
}

// forwards suggests what to write for a range that runs backwards.
func (f *field) forwards(low, high int) string {
	text := valueRange(f.min, high)
	if low <= f.last {
		text = valueRange(low, f.last) + "," + text
	}
	return "write " + text + " to go over the end"
}

func valueRange(low, high int) string {
	if low == high {
		return strconv.Itoa(low)
	}
	return fmt.Sprintf("%d-%d", low, high)
}

func (f *field) step(entry, text string) (int, error) {
	values := f.last - f.min + 1
	step, ok := number(text)
	if !ok || step < 1 || step > values {
		return 0, fail(f.name, entry, "the step must be a number from 1 to %d", values)
	}
	return step, nil
}

func (f *field) value(entry, text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}
	v, ok := number(text)
	if !ok || v < f.min || v > f.max {
		return 0, fail(f.name, entry, "use *, a number from %d to %d%s, or a list or range of them",
			f.min, f.max, f.example)
	}
	return v, nil
}

// number reads up to four digits and nothing else.
func number(text string) (int, bool) {
	if len(text) > 4 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

func loadZone(name string) (*time.Location, error) {
	switch {
	case name == "" || name == "UTC":
		return time.UTC, nil
	case len(name) > maxZone:
		return nil, fail(FieldZone, name, "it is longer than %d characters", maxZone)
	case machineZone(name):
		return nil, fail(FieldZone, name,
			"it may differ from machine to machine; use an IANA name such as Europe/Berlin")
	}
	if plainName(name) {
		if loc, err := time.LoadLocation(name); err == nil {
			return loc, nil
		}
	}
	return nil, fail(FieldZone, name, "it is not known; use an IANA name such as Europe/Berlin")
}

// machineZone reports whether a name stands for a setting of the machine, or for
// a variant of the zone database that not every machine has.
func machineZone(name string) bool {
	name = strings.ToLower(name)
	return name == "local" || name == "localtime" || name == "posixrules" ||
		strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/")
}

// plainName keeps names that only a file system would understand from it.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '_', c == '-', c == '+', c == '/':
		default:
			return false
		}
	}
	return !strings.Contains(name, "//") && !strings.HasSuffix(name, "/")
}
