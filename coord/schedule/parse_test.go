package schedule_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandemhq/tandem/coord/schedule"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, zone, wantSpec, wantZone string }{
		{"* * * * *", "", "* * * * *", "UTC"},
		{"*/15 2 * * 1-5", "UTC", "*/15 2 * * 1-5", "UTC"},
		{"  0\t0  1 * *\n", "Europe/Berlin", "0 0 1 * *", "Europe/Berlin"},
		{"0 0 1 JAN,Feb SUN-sat", "", "0 0 1 jan,feb sun-sat", "UTC"},
		{"0 0 * * 7", "", "0 0 * * 7", "UTC"},
		{"0 0 * * 5-7", "", "0 0 * * 5-7", "UTC"},
		{"0 0 * * 0-7", "", "0 0 * * 0-7", "UTC"},
		{"0 0 * * fri-sun", "", "0 0 * * fri-sun", "UTC"},
		{"0 0 * jan-dec/2 mon/2", "", "0 0 * jan-dec/2 mon/2", "UTC"},
		{"5/10 0/6 1/7 1/3 1/2", "", "5/10 0/6 1/7 1/3 1/2", "UTC"},
		{"*/60 */24 */31 */12 */7", "", "*/60 */24 */31 */12 */7", "UTC"},
		{"00 007 01 1 1", "", "00 007 01 1 1", "UTC"},
		{"1,1,2-4,3-5 0 * * *", "", "1,1,2-4,3-5 0 * * *", "UTC"},
		{"0 0 30 2 *", "", "0 0 30 2 *", "UTC"},
		{"@Daily", "America/Argentina/Buenos_Aires", "@daily", "America/Argentina/Buenos_Aires"},
		{"@yearly", "Etc/GMT+5", "@yearly", "Etc/GMT+5"},
		{"@annually", "", "@annually", "UTC"},
		{"@monthly", "", "@monthly", "UTC"},
		{"@weekly", "", "@weekly", "UTC"},
		{"@midnight", "", "@midnight", "UTC"},
		{" @hourly ", "", "@hourly", "UTC"},
		{"@every 90m", "", "@every 1h30m0s", "UTC"},
		{"@EVERY  1000000us", "Asia/Tokyo", "@every 1s", "Asia/Tokyo"},
		{"@every 1.000001s", "", "@every 1.000001s", "UTC"},
		{"@every " + schedule.MinEvery.String(), "", "@every 1s", "UTC"},
		{"@at 2026-12-24 18:00", "", "@at 2026-12-24 18:00", "UTC"},
		{" @AT\t2026-12-24  18:00:00 ", "Europe/Berlin", "@at 2026-12-24 18:00", "Europe/Berlin"},
		{"@at 2026-12-24T18:00:05", "Asia/Tokyo", "@at 2026-12-24 18:00:05", "Asia/Tokyo"},
		{"@at 2026-12-24t18:00:05z", "Asia/Tokyo", "@at 2026-12-24 18:00:05Z", "Asia/Tokyo"},
		{"@at 2026-12-24T18:00:00+01:00", "Asia/Tokyo", "@at 2026-12-24 18:00+01:00", "Asia/Tokyo"},
		{"@at 2026-12-24 18:00-09:30", "", "@at 2026-12-24 18:00-09:30", "UTC"},
		{"@at 2026-12-24 18:00-00:00", "", "@at 2026-12-24 18:00Z", "UTC"},
		{"@at 2028-02-29 00:00:59+23:59", "", "@at 2028-02-29 00:00:59+23:59", "UTC"},
		{"@at 0001-01-01 00:00:01", "", "@at 0001-01-01 00:00:01", "UTC"},
		{"@at 9999-12-31 23:59:59", "", "@at 9999-12-31 23:59:59", "UTC"},
	} {
		s, err := schedule.Parse(c.spec, c.zone)
		if err != nil {
			t.Errorf("Parse(%q, %q): %v", c.spec, c.zone, err)
			continue
		}
		if s.String() != c.wantSpec || s.Zone() != c.wantZone {
			t.Errorf("Parse(%q, %q) is %q in %q, want %q in %q",
				c.spec, c.zone, s.String(), s.Zone(), c.wantSpec, c.wantZone)
		}
	}
	if s := (schedule.Schedule{}); s.String() != "" || s.Zone() != "" {
		t.Errorf("zero Schedule is %q in %q", s.String(), s.Zone())
	}
	everything := strings.Join([]string{
		numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 7),
	}, " ")
	if _, err := schedule.Parse(everything, ""); err != nil {
		t.Errorf("every value written out: %v", err)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	const (
		minute = schedule.FieldMinute
		hour   = schedule.FieldHour
		dom    = schedule.FieldDayOfMonth
		month  = schedule.FieldMonth
		dow    = schedule.FieldDayOfWeek
		whole  = schedule.FieldSchedule
		zone   = schedule.FieldZone
	)
	for _, c := range []struct{ spec, zone, field, value, hint string }{
		{"", "", whole, "", "empty"},
		{" \t", "", whole, " \t", "empty"},
		{"* * * *", "", whole, "* * * *", "it has 4 of five fields"},
		{"0 * * * * *", "", whole, "0 * * * * *", "none for seconds"},
		{"0 0 0 * * * 2026", "", whole, "0 0 0 * * * 2026", "write five"},
		{"* * * * * * * *", "", whole, "* * * * * * * *", "write minute, hour"},
		{"TZ=UTC * * * * *", "", whole, "TZ=UTC * * * * *", "zone separately"},
		{"cron_tz=Asia/Tokyo 0 0 * * *", "", whole, "cron_tz=Asia/Tokyo 0 0 * * *", "zone separately"},
		{"@reboot", "", whole, "@reboot", "use @yearly"},
		{"@", "", whole, "@", "use @yearly"},
		{"@daily 5", "", whole, "@daily 5", "nothing after @daily"},
		{"@every", "", whole, "@every", "needs one duration"},
		{"@every 1 h", "", whole, "@every 1 h", "without spaces"},
		{"@every 5", "", whole, "@every 5", "with units"},
		{"@every tomorrow", "", whole, "@every tomorrow", "with units"},
		{"@every 999ms", "", whole, "@every 999ms", "1s or longer"},
		{"@every 0s", "", whole, "@every 0s", "1s or longer"},
		{"@every -1h", "", whole, "@every -1h", "1s or longer"},
		{"@every 1000000001ns", "", whole, "@every 1000000001ns", "microseconds"},
		{"@every 9999999h", "", whole, "@every 9999999h", "not valid"},

		{"@at", "", whole, "@at", "needs a date and a time"},
		{"@at 2026-12-24", "", whole, "@at 2026-12-24", "is missing; write it after the date, such as @at 2026-12-24 18:00"},
		{"@at 2026-12-24T", "", whole, "@at 2026-12-24T", "the time is missing"},
		{"@at 18:00", "", whole, "@at 18:00", "year-month-day and the time after it"},
		{"@at T18:00", "", whole, "@at T18:00", "year-month-day"},
		{"@at 18:00 2026-12-24", "", whole, "@at 18:00 2026-12-24", "year-month-day and the time after it"},
		{"@at 24.12.2026 18:00", "", whole, "@at 24.12.2026 18:00", "year-month-day"},
		{"@at 12/24/2026 18:00", "", whole, "@at 12/24/2026 18:00", "year-month-day"},
		{"@at 24-12-2026 18:00", "", whole, "@at 24-12-2026 18:00", "year-month-day"},
		{"@at 26-12-24 18:00", "", whole, "@at 26-12-24 18:00", "year-month-day"},
		{"@at 2026-2-3 18:00", "", whole, "@at 2026-2-3 18:00", "year-month-day"},
		{"@at 2026-dec-24 18:00", "", whole, "@at 2026-dec-24 18:00", "year-month-day"},
		{"@at ٢٠٢٦-12-24 18:00", "", whole, "@at ٢٠٢٦-12-24 18:00", "year-month-day"},
		{"@at 2026-+1-24 18:00", "", whole, "@at 2026-+1-24 18:00", "year-month-day"},
		{"@at tomorrow 18:00", "", whole, "@at tomorrow 18:00", "year-month-day"},
		{"@at 1798131600", "", whole, "@at 1798131600", "year-month-day"},
		{"@at 24 December 2026 18:00", "", whole, "@at 24 December 2026 18:00", "one date and one time"},
		{"@at 2026-12-24 6:00 pm", "", whole, "@at 2026-12-24 6:00 pm", "24-hour clock"},
		{"@at 2026-12-24 18:00 +01:00", "", whole, "@at 2026-12-24 18:00 +01:00", "without a space"},
		{"@at 2026-12-24 18:00 Europe/Berlin", "", whole, "@at 2026-12-24 18:00 Europe/Berlin", "a zone is given separately"},
		{"@at 0000-01-01 00:00", "", whole, "@at 0000-01-01 00:00", "year must be from 0001 to 9999"},
		{"@at 10000-01-01 00:00", "", whole, "@at 10000-01-01 00:00", "year must be from 0001 to 9999"},
		{"@at -2026-01-01 00:00", "", whole, "@at -2026-01-01 00:00", "year must be from 0001 to 9999"},
		{"@at 2026-13-01 10:00", "", whole, "@at 2026-13-01 10:00", "no month 13"},
		{"@at 2026-00-01 10:00", "", whole, "@at 2026-00-01 10:00", "no month 00"},
		{"@at 2026-02-30 10:00", "", whole, "@at 2026-02-30 10:00", "no day 30 in February 2026; write one from 01 to 28"},
		{"@at 2100-02-29 10:00", "", whole, "@at 2100-02-29 10:00", "no day 29 in February 2100; write one from 01 to 28"},
		{"@at 2028-02-30 10:00", "", whole, "@at 2028-02-30 10:00", "write one from 01 to 29"},
		{"@at 2026-04-31 10:00", "", whole, "@at 2026-04-31 10:00", "no day 31 in April 2026; write one from 01 to 30"},
		{"@at 2026-04-00 10:00", "", whole, "@at 2026-04-00 10:00", "no day 00"},
		{"@at 2026-12-24 24:00", "", whole, "@at 2026-12-24 24:00", "no time 24:00; write one from 00:00 to 23:59:59"},
		{"@at 2026-12-24 18:60", "", whole, "@at 2026-12-24 18:60", "no time 18:60"},
		{"@at 2026-12-31 23:59:60", "", whole, "@at 2026-12-31 23:59:60", "no time 23:59:60"},
		{"@at 2026-12-24 18", "", whole, "@at 2026-12-24 18", "such as @at 2026-12-24 18:00 or 2026-12-24 09:30:15"},
		{"@at 2026-12-24 9:30", "", whole, "@at 2026-12-24 9:30", "hours, minutes"},
		{"@at 2026-12-24 1800", "", whole, "@at 2026-12-24 1800", "hours, minutes"},
		{"@at 2026-12-24 6pm", "", whole, "@at 2026-12-24 6pm", "24-hour clock"},
		{"@at 2026-12-24 18:00:00.5", "", whole, "@at 2026-12-24 18:00:00.5", "whole seconds"},
		{"@at 2026-12-24 18:00:00:00", "", whole, "@at 2026-12-24 18:00:00:00", "whole seconds"},
		{"@at 2026-12-24 Z", "", whole, "@at 2026-12-24 Z", "hours, minutes"},
		{"@at 2026-12-24 18:00+1", "", whole, "@at 2026-12-24 18:00+1", "write the offset"},
		{"@at 2026-12-24 18:00+0100", "", whole, "@at 2026-12-24 18:00+0100", "write the offset"},
		{"@at 2026-12-24 18:00+24:00", "", whole, "@at 2026-12-24 18:00+24:00", "up to 23 hours"},
		{"@at 2026-12-24 18:00-01:60", "", whole, "@at 2026-12-24 18:00-01:60", "write the offset"},
		{"@at 2026-12-24 18:00Z+01:00", "", whole, "@at 2026-12-24 18:00Z+01:00", "write the offset"},
		{"@at 2026-12-24 18:00Z01:00", "", whole, "@at 2026-12-24 18:00Z01:00", "write the offset"},
		{"@at 2026-12-24 18:00ZZ", "", whole, "@at 2026-12-24 18:00ZZ", "write the offset"},
		{"@at 2026-12-24 18:00+", "", whole, "@at 2026-12-24 18:00+", "write the offset"},
		{"@at 0001-01-01 00:00", "", whole, "@at 0001-01-01 00:00", "and not after 9999-12-31 23:59:59"},
		{"@at 0001-01-01 09:00", "Asia/Tokyo", whole, "@at 0001-01-01 09:00", "in UTC"},
		{"@at 9999-12-31T23:00:00-01:00", "", whole, "@at 9999-12-31T23:00:00-01:00", "in UTC"},
		{"@at 9999-12-31 22:00", "America/New_York", whole, "@at 9999-12-31 22:00", "in UTC"},
		{"@at 2026-12-24 18:00", "Europe/Atlantis", zone, "Europe/Atlantis", "not known"},
		{"2026-12-24 18:00", "", whole, "2026-12-24 18:00", "with @at before it"},
		{"2026-12-24T18:00:00Z", "", whole, "2026-12-24T18:00:00Z", "with @at before it"},

		{"60 * * * *", "", minute, "60", "from 0 to 59"},
		{"-1 * * * *", "", minute, "-1", "two ends"},
		{"+1 * * * *", "", minute, "+1", "from 0 to 59"},
		{"1.5 * * * *", "", minute, "1.5", "from 0 to 59"},
		{"0x1 * * * *", "", minute, "0x1", "from 0 to 59"},
		{"٣ * * * *", "", minute, "٣", "from 0 to 59"},
		{"? * * * *", "", minute, "?", "use *"},
		{"99999999999999999999 * * * *", "", minute, "99999999999999999999", "from 0 to 59"},
		{"jan * * * *", "", minute, "jan", "from 0 to 59"},
		{"*/0 * * * *", "", minute, "*/0", "from 1 to 60"},
		{"*/61 * * * *", "", minute, "*/61", "from 1 to 60"},
		{"*/ * * * *", "", minute, "*/", "the step"},
		{"*/-5 * * * *", "", minute, "*/-5", "the step"},
		{"*/5/5 * * * *", "", minute, "*/5/5", "the step"},
		{"/5 * * * *", "", minute, "/5", "such as */5"},
		{"*5 * * * *", "", minute, "*5", "use *"},
		{"** * * * *", "", minute, "**", "use *"},
		{"*-5 * * * *", "", minute, "*-5", "use *"},
		{"5- * * * *", "", minute, "5-", "two ends"},
		{"- * * * *", "", minute, "-", "two ends"},
		{"1-2-3 * * * *", "", minute, "1-2-3", "from 0 to 59"},
		{"1-60 * * * *", "", minute, "1-60", "from 0 to 59"},
		{"50-10 * * * *", "", minute, "50-10", "write 50-59,0-10"},
		{", * * * *", "", minute, ",", "comma"},
		{"1,,2 * * * *", "", minute, "1,,2", "comma"},
		{"1,2, * * * *", "", minute, "1,2,", "comma"},

		{"0 24 * * *", "", hour, "24", "from 0 to 23"},
		{"0 1,25 * * *", "", hour, "25", "from 0 to 23"},
		{"0 22-2 * * *", "", hour, "22-2", "write 22-23,0-2"},
		{"0 */25 * * *", "", hour, "*/25", "from 1 to 24"},
		{"0 0 0 * *", "", dom, "0", "from 1 to 31"},
		{"0 0 32 * *", "", dom, "32", "from 1 to 31"},
		{"0 0 L * *", "", dom, "L", "from 1 to 31"},
		{"0 0 15W * *", "", dom, "15W", "from 1 to 31"},
		{"0 0 */32 * *", "", dom, "*/32", "from 1 to 31"},
		{"0 0 * 0 *", "", month, "0", "jan to dec"},
		{"0 0 * 13 *", "", month, "13", "from 1 to 12"},
		{"0 0 * january *", "", month, "january", "jan to dec"},
		{"0 0 * nov-feb *", "", month, "nov-feb", "write 11-12,1-2"},
		{"0 0 * */13 *", "", month, "*/13", "from 1 to 12"},
		{"0 0 * * 8", "", dow, "8", "from 0 to 7"},
		{"0 0 * * monday", "", dow, "monday", "sun to sat"},
		{"0 0 * * 5#2", "", dow, "5#2", "sun to sat"},
		{"0 0 * * sat-mon", "", dow, "sat-mon", "write 6,0-1"},
		{"0 0 * * 7-2", "", dow, "7-2", "write 0-2 to"},
		{"0 0 * * 7-0", "", dow, "7-0", "write 0 to"},
		{"0 0 * * */8", "", dow, "*/8", "from 1 to 7"},

		{"* * * * *", "Local", zone, "Local", "Europe/Berlin"},
		{"* * * * *", "local", zone, "local", "machine"},
		{"* * * * *", "localtime", zone, "localtime", "machine"},
		{"* * * * *", "posixrules", zone, "posixrules", "machine"},
		{"* * * * *", "right/Europe/Berlin", zone, "right/Europe/Berlin", "machine"},
		{"* * * * *", "posix/Europe/Berlin", zone, "posix/Europe/Berlin", "machine"},
		{"* * * * *", "Europe/Atlantis", zone, "Europe/Atlantis", "not known"},
		{"* * * * *", "Europe", zone, "Europe", "not known"},
		{"* * * * *", "Europe//Berlin", zone, "Europe//Berlin", "not known"},
		{"* * * * *", "Europe/Berlin/", zone, "Europe/Berlin/", "not known"},
		{"* * * * *", "/etc/localtime", zone, "/etc/localtime", "not known"},
		{"* * * * *", "../zoneinfo/UTC", zone, "../zoneinfo/UTC", "not known"},
		{"* * * * *", "./UTC", zone, "./UTC", "not known"},
		{"* * * * *", " UTC", zone, " UTC", "not known"},
		{"* * * * *", "Europe\\Berlin", zone, "Europe\\Berlin", "not known"},
		{"* * * * *", "UTC\x00", zone, "UTC\x00", "not known"},
		{"@every 1h", "nowhere", zone, "nowhere", "not known"},
	} {
		s, err := schedule.Parse(c.spec, c.zone)
		e, ok := errors.AsType[*schedule.Error](err)
		if !ok {
			t.Errorf("Parse(%q, %q): %v, want an *Error", c.spec, c.zone, err)
			continue
		}
		if e.Field != c.field || e.Value != c.value || !strings.Contains(e.Reason, c.hint) {
			t.Errorf("Parse(%q, %q): %#v, want field %q, value %q and a reason with %q",
				c.spec, c.zone, e, c.field, c.value, c.hint)
		}
		if text := err.Error(); !strings.Contains(text, c.field) || !strings.Contains(text, e.Reason) {
			t.Errorf("Parse(%q, %q): message %q leaves out the field or the fix", c.spec, c.zone, text)
		}
		if s.String() != "" || !s.Next(instant(t, "2026-01-01T00:00:00Z")).IsZero() {
			t.Errorf("Parse(%q, %q) returned a schedule with its error", c.spec, c.zone)
		}
	}
}

func TestErrorMessage(t *testing.T) {
	t.Parallel()
	_, err := schedule.Parse("5 25 * * *", "")
	const want = `invalid hour "25": use *, a number from 0 to 23, or a list or range of them`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestParseAbsurdSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, zone, field string }{
		{strings.Repeat("1,", 1<<20) + "1 * * * *", "", schedule.FieldSchedule},
		{strings.Repeat(" ", 1<<20), "", schedule.FieldSchedule},
		{strings.Repeat("é", 200) + " * * * *", "", schedule.FieldMinute},
		{"@" + strings.Repeat("é", 200), "", schedule.FieldSchedule},
		{"@at " + strings.Repeat("9", 300) + "-12-24 18:00", "", schedule.FieldSchedule},
		{"* * * * *", strings.Repeat("A/", 1<<20), schedule.FieldZone},
	} {
		_, err := schedule.Parse(c.spec, c.zone)
		e, ok := errors.AsType[*schedule.Error](err)
		if !ok || e.Field != c.field {
			t.Errorf("%.20q: %v", c.spec, err)
			continue
		}
		if len(err.Error()) > 400 || !utf8.ValidString(e.Value) || !strings.HasSuffix(e.Value, "…") {
			t.Errorf("%.20q: message of %d bytes, value %q", c.spec, len(err.Error()), e.Value)
		}
	}
}
