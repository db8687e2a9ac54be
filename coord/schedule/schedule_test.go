package schedule_test

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord/schedule"
)

func instant(tb testing.TB, text string) time.Time {
	tb.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		tb.Fatal(err)
	}
	return at
}

// TestChangesOfTheClock lists what happens on days on which the clocks change,
// as a person would write it down.
func TestChangesOfTheClock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, zone, spec, after, until string
		want                           []string
	}{
		{
			"fixed, in the gap: once, right after it", "America/New_York", "30 2 * * *",
			"2026-03-07T12:00:00-05:00", "2026-03-10T00:00:00-04:00",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"},
		},
		{
			"fixed, several in one gap: once", "America/New_York", "10,20,50 2 * * *",
			"2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00",
			[]string{"2026-03-08T03:00:00-04:00"},
		},
		{
			"fixed, in the gap and at its end: once", "America/New_York", "0 2,3 * * *",
			"2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00",
			[]string{"2026-03-08T03:00:00-04:00"},
		},
		{
			"fixed, in the fold: the first", "America/New_York", "30 1 * * *",
			"2026-10-31T12:00:00-04:00", "2026-11-03T00:00:00-05:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"},
		},
		{
			"fixed, asked for within the fold", "America/New_York", "30 1 * * *",
			"2026-11-01T01:10:00-05:00", "2026-11-02T23:00:00-05:00",
			[]string{"2026-11-02T01:30:00-05:00"},
		},
		{
			"interval, in the gap: not at all", "America/New_York", "*/20 2 * * *",
			"2026-03-07T12:00:00-05:00", "2026-03-09T02:20:00-04:00",
			[]string{"2026-03-09T02:00:00-04:00", "2026-03-09T02:20:00-04:00"},
		},
		{
			"interval, through the gap", "America/New_York", "@hourly",
			"2026-03-08T00:00:00-05:00", "2026-03-08T04:00:00-04:00",
			[]string{"2026-03-08T01:00:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-08T04:00:00-04:00"},
		},
		{
			"interval, in the fold: both", "America/New_York", "*/30 1 * * *",
			"2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00",
			[]string{
				"2026-11-01T01:00:00-04:00", "2026-11-01T01:30:00-04:00",
				"2026-11-01T01:00:00-05:00", "2026-11-01T01:30:00-05:00",
			},
		},
		{
			"half-hour fold, fixed", "Australia/Lord_Howe", "45 1 * * *",
			"2026-04-04T12:00:00+11:00", "2026-04-06T12:00:00+10:30",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"},
		},
		{
			"half-hour fold, interval", "Australia/Lord_Howe", "*/15 1 * * *",
			"2026-04-05T01:15:00+11:00", "2026-04-05T12:00:00+10:30",
			[]string{
				"2026-04-05T01:30:00+11:00", "2026-04-05T01:45:00+11:00",
				"2026-04-05T01:30:00+10:30", "2026-04-05T01:45:00+10:30",
			},
		},
		{
			"half-hour gap, fixed", "Australia/Lord_Howe", "15 2 * * *",
			"2026-10-03T12:00:00+10:30", "2026-10-05T12:00:00+11:00",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"},
		},
		{
			"midnight gap", "America/Santiago", "0 0 * * *",
			"2026-09-05T12:00:00-04:00", "2026-09-07T12:00:00-03:00",
			[]string{"2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"},
		},
		{
			"midnight gap on the first of the week", "America/Santiago", "@weekly",
			"2026-09-05T12:00:00-04:00", "2026-09-07T12:00:00-03:00",
			[]string{"2026-09-06T01:00:00-03:00"},
		},
		{
			"fold across midnight", "America/Santiago", "30 23 * * *",
			"2026-04-04T12:00:00-03:00", "2026-04-06T12:00:00-04:00",
			[]string{"2026-04-04T23:30:00-03:00", "2026-04-05T23:30:00-04:00"},
		},
		{
			"whole day skipped, fixed", "Pacific/Apia", "0 12 * * *",
			"2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"},
		},
		{
			"whole day skipped, interval", "Pacific/Apia", "0 */8 * * *",
			"2011-12-29T15:00:00-10:00", "2011-12-31T08:00:00+14:00",
			[]string{"2011-12-29T16:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T08:00:00+14:00"},
		},
		{
			"two-hour gap", "Antarctica/Troll", "30 1,2 * * *",
			"2026-03-28T12:00:00Z", "2026-03-29T12:00:00+02:00",
			[]string{"2026-03-29T03:00:00+02:00"},
		},
		{
			"two-hour fold", "Antarctica/Troll", "30 1,2 * * *",
			"2026-10-24T12:00:00+02:00", "2026-10-25T12:00:00Z",
			[]string{"2026-10-25T01:30:00+02:00", "2026-10-25T02:30:00+02:00"},
		},
		{
			"odd offset", "Pacific/Chatham", "0 3 * * *",
			"2026-09-26T00:00:00+12:45", "2026-09-28T00:00:00+13:45",
			[]string{"2026-09-26T03:00:00+12:45", "2026-09-27T03:45:00+13:45"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := mustParse(t, c.spec, c.zone)
			after, until := instant(t, c.after), instant(t, c.until)
			var want []time.Time
			for _, w := range c.want {
				want = append(want, instant(t, w).UTC())
			}
			loc := load(t, c.zone)
			if d := diff(between(s, after, until), want, loc); d != "" {
				t.Errorf("Next: %s", d)
			}
			if d := diff(s.Last(after, until, 100), want, loc); d != "" {
				t.Errorf("Last: %s", d)
			}
		})
	}
}

// TestIntervalsOnDaysOfChange counts on the days on which the clocks change, from
// one midnight, or what stands for it, to the next.
func TestIntervalsOnDaysOfChange(t *testing.T) {
	t.Parallel()
	const (
		quarters = "*/15 * * * *"
		quarter  = 15 * time.Minute
		hour     = time.Hour
	)
	for _, c := range []struct {
		zone, spec, from, until string
		times                   int
		least, most             time.Duration // between neighbours, the one before the day included
	}{
		{"America/New_York", quarters, "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00", 92, quarter, quarter},
		{"America/New_York", "@hourly", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00", 23, hour, hour},
		{"America/New_York", quarters, "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", 100, quarter, quarter},
		{"America/New_York", "@hourly", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", 25, hour, hour},
		{"Australia/Lord_Howe", quarters, "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30", 98, quarter, quarter},
		// From 01:59 the clock goes back to 01:30, so it is an hour and a half from 01:00 to 02:00.
		{"Australia/Lord_Howe", "@hourly", "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30", 24, hour, hour * 3 / 2},
		{"Australia/Lord_Howe", quarters, "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00", 94, quarter, quarter},
		// From 01:59 the clock goes on to 02:30, so there is no 02:00.
		{"Australia/Lord_Howe", "@hourly", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00", 23, hour, hour * 3 / 2},
		{"America/Santiago", quarters, "2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00", 92, quarter, quarter},
		{"America/Santiago", "@hourly", "2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00", 23, hour, hour},
		// The last hour of the Saturday comes twice.
		{"America/Santiago", quarters, "2026-04-04T00:00:00-03:00", "2026-04-05T00:00:00-04:00", 100, quarter, quarter},
		{"America/Santiago", "@hourly", "2026-04-04T00:00:00-03:00", "2026-04-05T00:00:00-04:00", 25, hour, hour},
	} {
		s := mustParse(t, c.spec, c.zone)
		from, until := instant(t, c.from), instant(t, c.until)
		times := between(s, from.Add(-1), until.Add(-1))
		if len(times) != c.times || times[0] != from.UTC() {
			t.Errorf("%s, %s: %d times from %s, want %d from %s", c.zone, c.spec, len(times), times[0], c.times, from.UTC())
		}
		if d := diff(s.Last(from.Add(-1), until.Add(-1), 1000), times, load(t, c.zone)); d != "" {
			t.Errorf("%s, %s: Last: %s", c.zone, c.spec, d)
		}
		before := s.Last(from.Add(-24*time.Hour), from.Add(-1), 1)[0]
		least, most := 24*time.Hour, time.Duration(0)
		for _, at := range times {
			gap := at.Sub(before)
			least, most, before = min(least, gap), max(most, gap), at
		}
		if least != c.least || most != c.most {
			t.Errorf("%s, %s: from %v to %v apart, want %v to %v", c.zone, c.spec, least, most, c.least, c.most)
		}
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, zone, after, want string }{
		{"*/5 * * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"},
		{"*/5 * * * *", "", "2026-01-01T00:04:59.999999999Z", "2026-01-01T00:05:00Z"},
		{"*/5 * * * *", "", "2026-01-01T00:05:00.000000001Z", "2026-01-01T00:10:00Z"},
		{"*/5 * * * *", "", "1969-12-31T23:57:30.5Z", "1970-01-01T00:00:00Z"},
		{"59 23 31 12 *", "", "2026-12-31T23:59:00Z", "2027-12-31T23:59:00Z"},
		{"0 0 29 2 *", "", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 29 2 *", "", "1896-02-29T00:00:00Z", "1904-02-29T00:00:00Z"},
		{"0 0 29 2 *", "", "1996-02-29T00:00:00Z", "2000-02-29T00:00:00Z"},
		// The longest wait there is: 29 February on a Sunday, with no leap year in 2100.
		{"0 0 29 2 */7", "", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"},
		{"*/9 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00:00Z", "2104-02-28T23:00:00Z"},
		{"0 0 31 * *", "", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"0 0 31 4,6 5", "", "2026-04-01T00:00:00Z", "2026-04-03T00:00:00Z"},
		{"0 0 13 * 5", "", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"},
		{"0 0 */31 * 1", "", "2026-02-02T00:00:00Z", "2026-06-01T00:00:00Z"},
		{"0 9 * * fri-sun", "", "2026-10-02T10:00:00Z", "2026-10-03T09:00:00Z"},
		{"@yearly", "", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"@annually", "Asia/Kolkata", "2026-01-01T00:00:00Z", "2026-12-31T18:30:00Z"},
		{"@monthly", "", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"@weekly", "", "2026-10-02T00:00:00Z", "2026-10-04T00:00:00Z"},
		{"@daily", "", "2026-10-02T00:00:00Z", "2026-10-03T00:00:00Z"},
		{"@midnight", "", "2026-10-02T00:00:00Z", "2026-10-03T00:00:00Z"},
		{"@hourly", "Asia/Kathmandu", "2026-10-02T00:00:00Z", "2026-10-02T00:15:00Z"},
		{"@every 90s", "", "2026-10-02T00:00:00.000001Z", "2026-10-02T00:01:30.000001Z"},
		{"@every 1h", "America/New_York", "2026-03-08T06:30:00Z", "2026-03-08T07:30:00Z"},
		{"@every 2562047h", "", "2026-01-01T00:00:00Z", "2318-04-12T23:00:00Z"},
		{"@every 1s", "", "9999-12-31T23:59:58Z", "9999-12-31T23:59:59Z"},
		{"@at 2026-12-24 18:00", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-12-24T17:00:00Z"},
		{"@at 2026-12-24 18:00", "Europe/Berlin", "2026-12-24T16:59:59.999999999Z", "2026-12-24T17:00:00Z"},
		{"@at 2026-12-24T18:00:30-05:30", "Europe/Berlin", "2026-12-24T17:00:00Z", "2026-12-24T23:30:30Z"},
		{"@at 9999-12-31 23:59:59", "", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"},
		{"@at 0001-01-01 00:00:01", "", "0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z"},
		{"@at 0001-01-01 09:19:00", "Asia/Tokyo", "0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z"},
		{"* * * * *", "", "9999-12-31T23:58:59Z", "9999-12-31T23:59:00Z"},
		{"* * * * *", "", "0001-01-01T00:00:00Z", "0001-01-01T00:01:00Z"},
	} {
		after, want := instant(t, c.after), instant(t, c.want)
		s := mustParse(t, c.spec, c.zone)
		if got := s.Next(after); got != want {
			t.Errorf("%s %s: Next(%s) = %v, want %v", c.spec, c.zone, c.after, got, want)
		}
	}
}

func TestNone(t *testing.T) {
	t.Parallel()
	now := instant(t, "2026-10-02T10:00:00Z")
	far := instant(t, "9999-12-31T23:59:59Z")
	for _, c := range []struct {
		name string
		s    schedule.Schedule
		from time.Time
	}{
		{"zero Schedule", schedule.Schedule{}, now},
		{"30 February", mustParse(t, "0 0 30 2 *", ""), now},
		{"30 February, interval", mustParse(t, "* * 30 2 *", "Europe/Berlin"), now},
		{"31 April", mustParse(t, "0 0 31 4,6,9,11 *", "Europe/Berlin"), now},
		{"30 February on a Monday", mustParse(t, "0 0 30-31 2 */2", "Europe/Berlin"), now},
		{"after the year 9999, fixed", mustParse(t, "0 0 * * *", "Europe/Berlin"), far},
		{"after the year 9999, interval", mustParse(t, "* * * * *", "Europe/Berlin"), far},
		{"after the year 9999, every", mustParse(t, "@every 1s", ""), far},
		{"once, at its time", mustParse(t, "@at 2026-10-02 10:00", ""), now},
		{"once, long past", mustParse(t, "@at 1926-10-02 10:00", "Europe/Berlin"), now},
		{"once, at the end of time", mustParse(t, "@at 9999-12-31 23:59:59", ""), far},
		{"long after the year 9999", mustParse(t, "* * * * *", "Europe/Berlin"), far.AddDate(1e6, 0, 0)},
		{"long after the year 9999, every", mustParse(t, "@every 2562047h", ""), far.AddDate(1e6, 0, 0)},
	} {
		if got := c.s.Next(c.from); !got.IsZero() {
			t.Errorf("%s: Next = %v", c.name, got)
		}
		if got := schedule.Preview(c.s, c.from, 3); got != nil {
			t.Errorf("%s: Preview = %v", c.name, got)
		}
		if got := c.s.Last(c.from, c.from.AddDate(500, 0, 0), 3); got != nil {
			t.Errorf("%s: Last = %v", c.name, got)
		}
	}
	// Instants that are not of this world must not hang or panic.
	s := mustParse(t, "30 2 * * *", "Europe/Berlin")
	for _, sec := range []int64{math.MinInt64, math.MinInt64 / 2, -1 << 40, 1 << 40, math.MaxInt64 / 2, math.MaxInt64} {
		at := time.Unix(sec, 0)
		s.Next(at)
		s.Last(at, now, 1)
		s.Last(now, at, 1)
		schedule.Preview(s, at, 1)
	}
	if got := s.Next(time.Unix(-1<<40, 0)); got != s.Next(time.Time{}) || got.Year() != 1 {
		t.Errorf("Next before the year 1 = %v", got)
	}
}

func TestPlainTimes(t *testing.T) {
	t.Parallel()
	now := time.Now() // with a monotonic reading, and in the machine's zone
	within := func(d time.Duration) string { return "@at " + now.Add(d).UTC().Format(time.RFC3339) }
	for _, spec := range []string{"* * * * *", "30 2 * * *", "@every 1s", within(time.Hour), within(-time.Hour)} {
		s := mustParse(t, spec, "Europe/Berlin")
		times := append(s.Last(now.Add(-48*time.Hour), now, 2), s.Next(now))
		times = append(times, schedule.Preview(s, now, 2)...)
		for _, at := range times {
			// == holds only if nothing but the UTC wall clock is in it.
			if plain := time.Unix(at.Unix(), int64(at.Nanosecond())).UTC(); at != plain {
				t.Errorf("%s: %#v is not a plain UTC time", spec, at)
			}
		}
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time { return instant(t, "2026-10-02T"+text+"Z") }
	for _, c := range []struct {
		name, spec   string
		after, until time.Time
		n            int
		want         []time.Time
	}{
		{"open below, closed above", "0 * * * *", at("10:00:00"), at("12:00:00"), 9, []time.Time{at("11:00:00"), at("12:00:00")}},
		{"fractions", "0 * * * *", at("09:59:59.9"), at("11:59:59.9"), 9, []time.Time{at("10:00:00"), at("11:00:00")}},
		{"fractions past", "0 * * * *", at("10:00:00.1"), at("12:00:00.1"), 9, []time.Time{at("11:00:00"), at("12:00:00")}},
		{"the last ones", "0 * * * *", at("00:00:00"), at("12:30:00"), 2, []time.Time{at("11:00:00"), at("12:00:00")}},
		{"none in between", "0 * * * *", at("10:00:00"), at("10:59:59"), 2, nil},
		{"empty", "* * * * *", at("10:00:00"), at("10:00:00"), 2, nil},
		{"backwards", "* * * * *", at("12:00:00"), at("10:00:00"), 2, nil},
		{"zero", "* * * * *", at("10:00:00"), at("12:00:00"), 0, nil},
		{"negative", "* * * * *", at("10:00:00"), at("12:00:00"), math.MinInt, nil},
		{"every", "@every 10m", at("10:03:00"), at("10:33:00"), 9, []time.Time{at("10:13:00"), at("10:23:00"), at("10:33:00")}},
		{"every, the last ones", "@every 10m", at("10:03:00"), at("10:32:59.999999999"), 1, []time.Time{at("10:23:00")}},
		{"every, fractions", "@every 1s", at("10:00:00.9"), at("10:00:03.1"), 9, []time.Time{at("10:00:01.9"), at("10:00:02.9")}},
		{"every, none yet", "@every 10m", at("10:00:00"), at("10:09:59"), 9, nil},
		{"once, open below", "@at 2026-10-02 10:00", at("10:00:00"), at("12:00:00"), 9, nil},
		{"once, fractions", "@at 2026-10-02 10:00", at("09:59:59.9"), at("10:00:00.1"), 9, []time.Time{at("10:00:00")}},
		{"once, closed above", "@at 2026-10-02 10:00", at("00:00:00"), at("10:00:00"), 1, []time.Time{at("10:00:00")}},
		{"once, not yet", "@at 2026-10-02 10:00", at("00:00:00"), at("09:59:59.9"), 9, nil},
		{"once, zero", "@at 2026-10-02 10:00", at("00:00:00"), at("12:00:00"), 0, nil},
		{"every, zero", "@every 1s", at("10:00:00"), at("12:00:00"), 0, nil},
		{"every, negative", "@every 1s", at("10:00:00"), at("12:00:00"), math.MinInt, nil},
	} {
		got := mustParse(t, c.spec, "").Last(c.after, c.until, c.n)
		if !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestLastIsCheap covers intervals that can't be walked in any reasonable time.
func TestLastIsCheap(t *testing.T) {
	t.Parallel()
	until := instant(t, "2026-10-02T10:00:30.5Z")
	for _, c := range []struct{ spec, zone, want string }{
		{"* * * * *", "", "2026-10-02T10:00:00Z"},
		{"* * * 1 *", "America/New_York", "2026-02-01T04:59:00Z"},
		{"*/2 * 29 2 */7", "Europe/Berlin", "2004-02-29T22:58:00Z"},
		{"0 0 29 2 *", "Europe/Berlin", "2024-02-28T23:00:00Z"},
		{"@every 1s", "", "2026-10-02T10:00:30Z"},
		{"@every 1.000001s", "", "2026-10-02T10:00:30.488Z"},
	} {
		s := mustParse(t, c.spec, c.zone)
		got := s.Last(time.Time{}, until, 3)
		if len(got) != 3 {
			t.Errorf("%s: %v", c.spec, got)
			continue
		}
		if c.spec == "@every 1.000001s" {
			gap := until.Sub(got[2])
			if gap < 0 || gap >= 1000001*time.Microsecond || got[2].Sub(got[1]) != 1000001*time.Microsecond {
				t.Errorf("%s: %v", c.spec, got)
			}
			continue
		}
		if got[2] != instant(t, c.want) {
			t.Errorf("%s: ends with %v, want %s", c.spec, got[2], c.want)
		}
	}
	if got := mustParse(t, "@every 1s", "").Last(time.Time{}, until.AddDate(20000, 0, 0), 1); len(got) != 1 || got[0].Year() != 9999 {
		t.Errorf("Last after the year 9999 = %v", got)
	}
	if got := mustParse(t, "@yearly", "").Last(time.Time{}, until, math.MaxInt); len(got) != 2025 {
		t.Errorf("@yearly: %d occurrences since the year 1, want 2025", len(got))
	}
}

func TestPreview(t *testing.T) {
	t.Parallel()
	from := instant(t, "2026-10-31T12:00:00Z")
	for _, spec := range []string{"*/30 1 * * *", "30 1 * * *", "@every 36h"} {
		s := mustParse(t, spec, "America/New_York")
		got := schedule.Preview(s, from, 7)
		at := from
		for i := range 7 {
			if at = s.Next(at); i >= len(got) || got[i] != at {
				t.Fatalf("%s: Preview = %v, differs from Next at %d, %v", spec, got, i, at)
			}
		}
		if len(got) != 7 {
			t.Errorf("%s: %d times", spec, len(got))
		}
		for _, n := range []int{0, -1} {
			if got := schedule.Preview(s, from, n); got != nil {
				t.Errorf("%s: Preview of %d = %v", spec, n, got)
			}
		}
	}
	once := mustParse(t, "@at 2026-11-01 01:30", "America/New_York")
	if got := schedule.Preview(once, from, 5); !slices.Equal(got, []time.Time{instant(t, "2026-11-01T05:30:00Z")}) {
		t.Errorf("%s: Preview = %v", once, got)
	}
	if got := schedule.Preview(once, from, 0); got != nil {
		t.Errorf("%s: Preview of 0 = %v", once, got)
	}
	end := instant(t, "9999-12-30T12:00:00Z")
	if got := schedule.Preview(mustParse(t, "@daily", ""), end, 5); len(got) != 1 {
		t.Errorf("Preview at the end of time = %v", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s := mustParse(t, "30 2 * * *", "America/New_York")
	from := instant(t, "2026-03-01T00:00:00Z")
	want := schedule.Preview(s, from, 20)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				if got := s.Last(from, want[19], 20); !slices.Equal(got, want) {
					t.Errorf("Last = %v", got)
				}
				if s.Next(from) != want[0] || s.String() == "" || s.Describe() == "" {
					t.Error("Next differs")
				}
			}
		})
	}
	group.Wait()
}
