package schedule_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord/schedule"
)

func FuzzParse(f *testing.F) {
	for _, spec := range []string{
		"*/15 2 * * 1-5", "0 0 1 jan,feb sun-sat", "0 0 29 2 */7", "5/10 0 * * fri-sun",
		"@daily", "@every 1h30m", "@every 1.000001s", "0 0 30 2 *", "* * * * * *", "1,,2 * * * *", "*/0 * * * *", "",
		"@at 2026-03-08 02:30", "@AT 2026-11-01T01:30:59", "@at 2026-12-24t18:00:00-05:30", "@at 0001-01-01 00:00:01",
		"@at 9999-12-31 23:59:59z", "@at 2026-02-30 10:00", "@at 2026-12-24", "@at 12026-12-24 18:00+1", "2026-12-24 18:00",
		"@at 9992-12-31 23:59", "30 23 31 12 *",
	} {
		f.Add(spec, "America/New_York", int64(1772953200))
		f.Add(spec, "", int64(-1))
	}
	f.Add("* * * * *", "../../etc/passwd", int64(0))
	f.Add("* * * * *", "Local", int64(1<<62))
	f.Fuzz(func(t *testing.T, spec, zone string, second int64) {
		s, err := schedule.Parse(spec, zone)
		if err != nil {
			if e, ok := errors.AsType[*schedule.Error](err); !ok || e.Field == "" || e.Reason == "" || len(e.Error()) > 1000 {
				t.Fatalf("error %#v", err)
			}
			return
		}
		again, err := schedule.Parse(s.String(), s.Zone())
		if err != nil {
			t.Fatalf("Parse(String()) of %q: %v", s, err)
		}
		if again.String() != s.String() || again.Zone() != s.Zone() || again.Describe() != s.Describe() {
			t.Fatalf("%q came back as %q", s, again)
		}
		if s.Describe() == "" {
			t.Fatal("no description")
		}
		at := time.Unix(second, 0)
		next := s.Next(at)
		if first, err := s.First(at); first != next || (err != nil) != (s.Once() && next.IsZero()) {
			t.Fatalf("%q: First(%v) = %v, %v; Next is %v", s, at, first, err, next)
		}
		if next != again.Next(at) {
			t.Fatalf("%q: Next differs after the round trip", s)
		}
		if next.IsZero() {
			return
		}
		if s.Once() && !s.Next(next).IsZero() {
			t.Fatalf("%q occurs twice", s)
		}
		if !next.After(at) {
			t.Fatalf("%q: Next(%v) = %v", s, at, next)
		}
		if last := s.Last(at, next, 2); len(last) != 1 || last[0] != next {
			if at.Year() > 0 {
				t.Fatalf("%q: Last(%v, %v) = %v", s, at, next, last)
			}
		}
	})
}
