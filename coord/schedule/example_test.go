package schedule_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandemhq/tandem/coord/schedule"
)

func Example() {
	s, err := schedule.Parse("30 2 * * *", "America/New_York")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Describe())

	// On 8 March 2026 the clocks go from 02:00 to 03:00, so there is no 02:30.
	newYork, _ := time.LoadLocation(s.Zone())
	from := time.Date(2026, time.March, 7, 0, 0, 0, 0, newYork)
	for _, at := range schedule.Preview(s, from, 3) {
		fmt.Println(at.Format(time.RFC3339), "is", at.In(newYork).Format("Mon 15:04 MST"))
	}
	// Output:
	// at 02:30 every day, America/New_York
	// 2026-03-07T07:30:00Z is Sat 02:30 EST
	// 2026-03-08T07:00:00Z is Sun 03:00 EDT
	// 2026-03-09T06:30:00Z is Mon 02:30 EDT
}

// A single time that has passed is a mistake, which First finds.
func ExampleSchedule_First() {
	s, err := schedule.Parse("@at 2026-12-24 18:00", "Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Describe())

	fmt.Println(s.First(time.Date(2026, time.October, 2, 0, 0, 0, 0, time.UTC)))
	_, err = s.First(time.Date(2027, time.October, 2, 0, 0, 0, 0, time.UTC))
	fmt.Println(err)
	// Output:
	// once, on Thursday 24 December 2026 at 18:00, Europe/Berlin
	// 2026-12-24 17:00:00 +0000 UTC <nil>
	// invalid schedule "@at 2026-12-24 18:00": 2026-12-24 18:00 in Europe/Berlin has passed; write a time to come
}

// After a pause, Last says what was missed.
func ExampleSchedule_Last() {
	s, err := schedule.Parse("@hourly", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	resumed := time.Date(2026, time.October, 2, 12, 30, 0, 0, time.UTC)
	for _, at := range s.Last(stopped, resumed, 2) {
		fmt.Println(at.Format(time.RFC3339))
	}
	// Output:
	// 2026-10-02T11:00:00Z
	// 2026-10-02T12:00:00Z
}

func ExampleError() {
	_, err := schedule.Parse("0 22-2 * * *", "")
	fmt.Println(err)
	if e, ok := errors.AsType[*schedule.Error](err); ok {
		fmt.Println(e.Field)
	}
	// Output:
	// invalid hour "22-2": the range runs backwards; write 22-23,0-2 to go over the end
	// hour
}
