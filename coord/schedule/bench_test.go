package schedule_test

import (
	"testing"
	"time"
)

func BenchmarkNext(b *testing.B) {
	for _, c := range []struct{ name, spec, zone string }{
		{"minutes/UTC", "*/5 * * * *", ""},
		{"minutes/New_York", "*/5 * * * *", "America/New_York"},
		{"daily/New_York", "30 2 * * *", "America/New_York"},
		{"weekdays/New_York", "0 9 * * 1-5", "America/New_York"},
		{"leap_day/New_York", "0 0 29 2 *", "America/New_York"},
		{"leap_day_minutes/New_York", "*/5 0 29 2 *", "America/New_York"},
		{"leap_sunday/New_York", "* * 29 2 */7", "America/New_York"},
		{"never/New_York", "* * 30 2 *", "America/New_York"},
		{"every", "@every 5m", ""},
		{"once", "@at 2030-12-24 18:00", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := mustParse(b, c.spec, c.zone)
			from := time.Date(2026, 10, 2, 10, 3, 0, 0, time.UTC)
			b.ReportAllocs()
			for b.Loop() {
				s.Next(from)
			}
		})
	}
}

func BenchmarkLast(b *testing.B) {
	for _, c := range []struct{ name, spec, zone string }{
		{"minutes/UTC", "* * * * *", ""},
		{"minutes/New_York", "* * * * *", "America/New_York"},
		{"daily/New_York", "30 2 * * *", "America/New_York"},
		{"leap_day/New_York", "*/5 0 29 2 *", "America/New_York"},
		{"every", "@every 1s", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := mustParse(b, c.spec, c.zone)
			until := time.Date(2026, 10, 2, 10, 3, 0, 0, time.UTC)
			after := until.AddDate(-20, 0, 0)
			b.ReportAllocs()
			for b.Loop() {
				s.Last(after, until, 10)
			}
		})
	}
}
