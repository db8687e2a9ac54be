package schedule_test

import (
	"testing"

	"github.com/tandemhq/tandem/coord/schedule"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, zone, want string }{
		{"* * * * *", "", "every minute"},
		{"*/15 * * * *", "", "every 15 minutes"},
		{"0,30 * * * *", "", "every 30 minutes"},
		{"*/60 * * * *", "", "every hour"},
		{"@hourly", "Asia/Kathmandu", "every hour, Asia/Kathmandu"},
		{"15 * * * *", "", "every hour at minute 15"},
		{"*/25 * * * *", "", "every hour at minutes 0, 25 and 50"},
		{"0-10 * * * *", "", "every hour at minutes 0 to 10"},
		{"0 */2 * * *", "", "every 2 hours"},
		{"5 */6 * * *", "", "every 6 hours at minute 5"},
		{"0 */5 * * *", "", "at 00:00, 05:00, 10:00, 15:00 and 20:00 every day"},
		{"0 0/2 * * *", "", "every 2 hours"},
		{"30 2 * * *", "America/New_York", "at 02:30 every day, America/New_York"},
		{"0 9 * * 1-5", "", "at 09:00 on Monday to Friday"},
		{"0 9 * * mon,wed", "", "at 09:00 on Monday and Wednesday"},
		{"0 9 * * 0,6", "", "at 09:00 on Saturday and Sunday"},
		{"0 9 * * fri-sun", "", "at 09:00 on Friday to Sunday"},
		{"0 9 * * 0-6", "", "at 09:00 every day"},
		{"0 9 1-31 * 1", "", "at 09:00 every day"},
		{"0 9,17 * * *", "", "at 09:00 and 17:00 every day"},
		{"*/20 2 * * *", "", "at 02:00, 02:20 and 02:40 every day"},
		{"*/5 9-17 * * 1-5", "", "every 5 minutes from 09:00 to 17:59 on Monday to Friday"},
		{"* 2 * * *", "", "every minute from 02:00 to 02:59"},
		{"30 8-18 * * *", "", "every hour from 08:30 to 18:30"},
		{"@daily", "UTC", "at 00:00 every day"},
		{"@weekly", "", "at 00:00 on Sunday"},
		{"@monthly", "", "at 00:00 on day 1 of the month"},
		{"0 0 1,15 * *", "", "at 00:00 on days 1 and 15 of the month"},
		{"0 0 1-7 * *", "", "at 00:00 on days 1 to 7 of the month"},
		{"@yearly", "", "at 00:00 on 1 January"},
		{"0 12 30 12 *", "Pacific/Apia", "at 12:00 on 30 December, Pacific/Apia"},
		{"0 0 13 * 5", "", "at 00:00 on day 13 of the month or on Friday"},
		{"0 0 13 10 5", "", "at 00:00 on day 13 of the month or on Friday in October"},
		{"0 0 */10 * 1", "", "at 00:00 on Monday if it is day 1, 11, 21 or 31 of the month"},
		{"0 0 * 6-8 *", "", "at 00:00 every day in June to August"},
		{"*/10 * * 1,7 *", "", "every 10 minutes in January and July"},
		{"0 0 1 1,7 *", "", "at 00:00 on day 1 of the month in January and July"},
		{"@every 1s", "", "every second"},
		{"@every 60s", "", "every minute"},
		{"@every 90m", "Europe/Berlin", "every 90 minutes"},
		{"@every 24h", "", "every 24 hours"},
		{"@every 1.5s", "", "every 1.5s"},
		{"@every 1h0m1s", "", "every 3601 seconds"},
		{"@at 2026-12-24 18:00", "Europe/Berlin", "once, on Thursday 24 December 2026 at 18:00, Europe/Berlin"},
		{"@at 2026-12-24T18:00:05", "", "once, on Thursday 24 December 2026 at 18:00:05"},
		{"@at 1999-01-01 00:00", "", "once, on Friday 1 January 1999 at 00:00"},
		{"@at 2026-12-24 18:00Z", "Asia/Tokyo", "once, on Friday 25 December 2026 at 03:00, Asia/Tokyo"},
		{"@at 2026-03-08 02:30", "America/New_York", "once, on Sunday 8 March 2026 at 03:00, America/New_York"},
		{"@at 2026-11-01 01:30", "America/New_York", "once, on Sunday 1 November 2026 at 01:30, America/New_York"},
		{"0 0 30 2 *", "Europe/Berlin", "never"},
		{"1-59/7 0-23/5 * * *", "Europe/Berlin", `on the schedule "1-59/7 0-23/5 * * *", Europe/Berlin`},
		{"3-17,40 9-17 * * *", "", `on the schedule "3-17,40 9-17 * * *"`},
		{"0-20/3 * * * *", "", `on the schedule "0-20/3 * * * *"`},
		{"0 0 1-20/2 * *", "", `on the schedule "0 0 1-20/2 * *"`},
		{"0 0 * 1-9,11 *", "", `on the schedule "0 0 * 1-9,11 *"`},
	} {
		if got := mustParse(t, c.spec, c.zone).Describe(); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.spec, c.zone, got, c.want)
		}
	}
	if got := (schedule.Schedule{}).Describe(); got != "never" {
		t.Errorf("zero Schedule: %q", got)
	}
}
