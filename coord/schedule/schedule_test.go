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
	for _, spec := range []string{"* * * * *", "30 2 * * *", "@every 1s"} {
		s := mustParse(t, spec, "Europe/Berlin")
		now := time.Now() // with a monotonic reading, and in the machine's zone
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
