package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord/schedule"
)

// at returns the single time of a schedule.
func at(tb testing.TB, spec, zone string) time.Time {
	tb.Helper()
	return mustParse(tb, spec, zone).Next(time.Time{})
}

func TestOnceOnDaysOfChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, spec, want string }{
		// In the gap: right after it, to the second.
		{"America/New_York", "@at 2026-03-08 01:59:59", "2026-03-08T01:59:59-05:00"},
		{"America/New_York", "@at 2026-03-08 02:00", "2026-03-08T03:00:00-04:00"},
		{"America/New_York", "@at 2026-03-08 02:30", "2026-03-08T03:00:00-04:00"},
		{"America/New_York", "@at 2026-03-08 02:59:59", "2026-03-08T03:00:00-04:00"},
		{"America/New_York", "@at 2026-03-08 03:00", "2026-03-08T03:00:00-04:00"},
		{"America/New_York", "@at 2026-03-08 03:00:01", "2026-03-08T03:00:01-04:00"},
		{"Australia/Lord_Howe", "@at 2026-10-04 02:15", "2026-10-04T02:30:00+11:00"},
		{"America/Santiago", "@at 2026-09-06 00:00", "2026-09-06T01:00:00-03:00"},
		{"America/Santiago", "@at 2026-09-05 23:59:59", "2026-09-05T23:59:59-04:00"},
		{"Pacific/Chatham", "@at 2026-09-27 03:00", "2026-09-27T03:45:00+13:45"},
		{"Antarctica/Troll", "@at 2026-03-29 01:30", "2026-03-29T03:00:00+02:00"},
		{"Pacific/Apia", "@at 2011-12-30 12:00", "2011-12-31T00:00:00+14:00"},

		// In the fold: the first.
		{"America/New_York", "@at 2026-11-01 00:59:59", "2026-11-01T00:59:59-04:00"},
		{"America/New_York", "@at 2026-11-01 01:00", "2026-11-01T01:00:00-04:00"},
		{"America/New_York", "@at 2026-11-01 01:30", "2026-11-01T01:30:00-04:00"},
		{"America/New_York", "@at 2026-11-01 01:59:59", "2026-11-01T01:59:59-04:00"},
		{"America/New_York", "@at 2026-11-01 02:00", "2026-11-01T02:00:00-05:00"},
		{"Australia/Lord_Howe", "@at 2026-04-05 01:45", "2026-04-05T01:45:00+11:00"},
		{"America/Santiago", "@at 2026-04-04 23:30", "2026-04-04T23:30:00-03:00"},
		{"Pacific/Chatham", "@at 2026-04-05 03:00", "2026-04-05T03:00:00+13:45"},
		{"Antarctica/Troll", "@at 2026-10-25 02:30", "2026-10-25T02:30:00+02:00"},

		// An offset of its own is obeyed, whatever the clock of the zone does.
		{"America/New_York", "@at 2026-11-01 01:30-05:00", "2026-11-01T01:30:00-05:00"},
		{"America/New_York", "@at 2026-03-08T02:30:00-05:00", "2026-03-08T02:30:00-05:00"},
		{"Pacific/Apia", "@at 2011-12-30 12:00Z", "2011-12-30T12:00:00Z"},
	} {
		if got, want := at(t, c.spec, c.zone), instant(t, c.want).UTC(); got != want {
			t.Errorf("%s in %s: %v, want %v", c.spec, c.zone, got, want)
		}
	}
}

// TestOnceWholeYears compares with the walk over all minutes of a year: every wall
// time of the days round a change, skipped ones too, and others here and there.
func TestOnceWholeYears(t *testing.T) {
	t.Parallel()
	for _, y := range difficultYears {
		t.Run(fmt.Sprint(y.zone, " ", y.year), func(t *testing.T) {
			t.Parallel()
			loc := load(t, y.zone)
			from := time.Date(y.year, 1, 1, 0, 0, 0, 0, time.UTC)
			walk := walkMinutes(loc, from, from.AddDate(1, 0, 0))
			check := func(wall string, second int64) {
				if got, want := at(t, "@at "+wall, y.zone), time.Unix(second, 0).UTC(); got != want {
					t.Errorf("%s: %v, want %v", wall, got, want)
				}
			}
			near := make([]bool, len(walk.minutes))
			const day = 24 * 60
			for i, m := range walk.minutes {
				if m.skips || i > 0 && m.repeated && !walk.minutes[i-1].repeated {
					for j := max(0, i-day); j < min(len(near), i+day); j++ {
						near[j] = true
					}
				}
				for _, c := range walk.skipped[m.at] {
					check(fmt.Sprintf("%d-%02d-%02d %02d:%02d", y.year, c.month, c.dom, c.hour, c.minute), m.at)
				}
			}
			for i, m := range walk.minutes {
				if (near[i] || i%251 == 0) && !m.repeated {
					check(time.Unix(m.at, 0).In(loc).Format("2006-01-02 15:04"), m.at)
				}
			}
		})
	}
}

func TestOnceAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom(windows()).Draw(t, "window")
		length := int64(w.to.Sub(w.from) / time.Second)
		wall := w.from.Add(time.Duration(rapid.Int64Range(0, length).Draw(t, "wall")) * time.Second)
		s, err := schedule.Parse("@at "+wall.Format("2006-01-02T15:04:05"), w.zone)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Next(time.Time{})

		// Walk the seconds from before the wall time can come: it is the first that
		// shows it or, when none does, the one before which it was skipped.
		var want, last time.Time
		for second := wall.Add(-27 * time.Hour); second.Before(wall.Add(27 * time.Hour)); second = second.Add(time.Second) {
			local := second.In(w.loc)
			_, offset := local.Zone()
			shows := second.Add(time.Duration(offset) * time.Second)
			if shows.Equal(wall) {
				want = second
				break
			}
			if want.IsZero() && shows.After(wall) && last.Before(wall) {
				want = second
			}
			last = shows
		}
		if got != want {
			t.Fatalf("%v in %s: %v, want %v", wall, w.zone, got.In(w.loc), want.In(w.loc))
		}

		// Cron fields for that minute lead to the same instant.
		if wall.Second() == 0 {
			cron, err := schedule.Parse(wall.Format("4 15 2 1 *"), w.zone)
			if err != nil {
				t.Fatal(err)
			}
			if next := cron.Next(wall.Add(-90 * 24 * time.Hour)); next != got {
				t.Fatalf("%s occurs at %v, @at at %v", cron, next, got)
			}
		}

		// It occurs once, wherever one asks.
		asked := got.Add(time.Duration(rapid.Int64Range(-int64(48*time.Hour), int64(48*time.Hour)).Draw(t, "asked")))
		first, passed := got, []time.Time(nil)
		if !got.After(asked) {
			first, passed = time.Time{}, []time.Time{got}
		}
		if next := s.Next(asked); next != first {
			t.Fatalf("Next(%v) = %v, want %v", asked, next, first)
		}
		if _, err := s.First(asked); (err != nil) != first.IsZero() {
			t.Fatalf("First(%v): %v", asked, err)
		}
		if last := s.Last(time.Time{}, asked, 5); !slices.Equal(last, passed) {
			t.Fatalf("Last(until %v) = %v, want %v", asked, last, passed)
		}
	})
}

// TestOnceWithOffset compares with the reader of RFC 3339 in package time.
func TestOnceWithOffset(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		east := rapid.IntRange(-23*60-59, 23*60+59).Draw(t, "east") * 60
		want := time.Unix(rapid.Int64Range(-62135596799, 253402300799).Draw(t, "second"), 0)
		text := want.In(time.FixedZone("", east)).Format(time.RFC3339)
		if year := want.In(time.FixedZone("", east)).Year(); year < 1 || year > 9999 {
			return
		}
		w := rapid.SampledFrom(windows()).Draw(t, "window")
		s, err := schedule.Parse("@at "+text, w.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(time.Time{}); !got.Equal(want) {
			t.Fatalf("%s in %s: %v", text, w.zone, got)
		}
	})
}

func TestFirst(t *testing.T) {
	t.Parallel()
	now := instant(t, "2026-10-02T10:00:00Z")
	for _, c := range []struct{ spec, zone, want string }{
		{"@at 2026-10-02 10:00", "", "2026-10-02 10:00 in UTC has passed"},
		{"@at 2026-01-01 10:00", "Europe/Berlin", "2026-01-01 10:00 in Europe/Berlin has passed"},
		{"@at 2026-01-01 10:00:01", "Europe/Berlin", "2026-01-01 10:00:01 in Europe/Berlin has passed"},
		{"@at 2026-01-01 10:00Z", "Europe/Berlin", "2026-01-01 11:00 in Europe/Berlin has passed"},
		{"@at 2026-10-02 11:59", "Europe/Berlin", "2026-10-02 11:59 in Europe/Berlin has passed"},
	} {
		s := mustParse(t, c.spec, c.zone)
		first, err := s.First(now)
		e, ok := errors.AsType[*schedule.Error](err)
		want := schedule.Error{Field: schedule.FieldSchedule, Value: c.spec, Reason: c.want + "; write a time to come"}
		if !ok || *e != want || !first.IsZero() {
			t.Errorf("%s in %s: %v, %v", c.spec, c.zone, first, err)
		}
	}
	// What is still to come, and what never comes for another reason, is no error.
	for _, c := range []struct{ spec, zone string }{
		{"@at 2026-10-02 10:00:01", ""},
		{"@at 2026-10-02 10:00", "America/New_York"},
		{"* * * * *", "Europe/Berlin"},
		{"@every 1h", ""},
		{"0 0 30 2 *", ""},
	} {
		s := mustParse(t, c.spec, c.zone)
		if first, err := s.First(now); err != nil || first != s.Next(now) {
			t.Errorf("%s in %s: %v, %v; Next is %v", c.spec, c.zone, first, err, s.Next(now))
		}
	}
	if first, err := (schedule.Schedule{}).First(now); err != nil || !first.IsZero() {
		t.Errorf("zero Schedule: %v, %v", first, err)
	}
}

func TestIsOnce(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]bool{
		"@at 2026-10-02 10:00": true, "@every 1h": false, "0 0 1 1 *": false, "@yearly": false,
	} {
		if got := mustParse(t, spec, "").Once(); got != want {
			t.Errorf("%s: Once is %t", spec, got)
		}
	}
	if (schedule.Schedule{}).Once() {
		t.Error("zero Schedule: Once is true")
	}
}
