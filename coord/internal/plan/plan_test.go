package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/schedule"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return noon.Add(d) }

// minutes returns the instants so many minutes after noon.
func minutes(ms ...int) (times []time.Time) {
	for _, m := range ms {
		times = append(times, after(time.Duration(m)*time.Minute))
	}
	return times
}

func TestFire(t *testing.T) {
	const (
		forbid, allow     = coord.OverlapForbid, coord.OverlapAllow
		skip, latest, all = coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll
	)
	for _, test := range []struct {
		misfire  coord.Misfire
		limit    int // MisfireCap
		overlap  coord.Overlap
		now      time.Duration // after noon, the occurrence that is due; one comes each minute
		due      []time.Time
		next     int // minutes after noon
		schedule string
	}{
		// On time, to the instant, and in the same minute.
		{skip, 1, forbid, 0, minutes(0), 1, ""},
		{latest, 1, forbid, 0, minutes(0), 1, ""},
		{all, 10, allow, 0, minutes(0), 1, ""},
		{skip, 1, allow, 59 * time.Second, minutes(0), 1, ""},
		{latest, 1, allow, 59 * time.Second, minutes(0), 1, ""},
		{all, 1, forbid, 59 * time.Second, minutes(0), 1, ""},

		// Exactly when the next one is due as well, and just before.
		{latest, 1, forbid, time.Minute - 1, minutes(0), 1, ""},
		{latest, 1, forbid, time.Minute, minutes(1), 2, ""},
		{latest, 1, allow, time.Minute, minutes(1), 2, ""},
		{all, 10, forbid, time.Minute, minutes(0), 1, ""},
		{all, 10, allow, time.Minute, minutes(0, 1), 2, ""},
		{all, 1, allow, time.Minute, minutes(1), 2, ""},
		{all, 1, forbid, time.Minute, minutes(1), 2, ""},

		// Late by as many as the cap, one less and one more.
		{all, 10, allow, 8 * time.Minute, minutes(0, 1, 2, 3, 4, 5, 6, 7, 8), 9, ""},
		{all, 10, allow, 9 * time.Minute, minutes(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 10, ""},
		{all, 10, allow, 10 * time.Minute, minutes(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 11, ""},
		{all, 10, forbid, 9 * time.Minute, minutes(0), 1, ""},
		{all, 10, forbid, 10 * time.Minute, minutes(1), 2, ""},
		{all, 10, forbid, 500 * time.Minute, minutes(491), 492, ""},
		{latest, 10, forbid, 500 * time.Minute, minutes(500), 501, ""},
		{latest, 10, allow, 500 * time.Minute, minutes(500), 501, ""},

		// The grace of skip: one that is no older is run.
		{skip, 10, forbid, time.Minute, minutes(0), 1, ""},
		{skip, 10, allow, time.Minute, minutes(0, 1), 2, ""},
		{skip, 10, allow, time.Minute + 1, minutes(1), 2, ""},
		{skip, 10, forbid, 500*time.Minute + 30*time.Second, minutes(500), 501, ""},
		{skip, 10, allow, 500*time.Minute + 30*time.Second, minutes(500), 501, ""},
		{skip, 1, forbid, time.Minute, minutes(0), 60, "@hourly"},
		{skip, 1, forbid, time.Minute + 1, nil, 60, "@hourly"},
		{skip, 1, allow, time.Minute + 1, nil, 60, "@hourly"},
		{skip, 1, allow, 59 * time.Minute, nil, 60, "@hourly"},
		{skip, 1, allow, 300 * time.Minute, minutes(300), 360, "@hourly"},
		{skip, 1, allow, 302 * time.Minute, nil, 360, "@hourly"},
		{latest, 1, allow, 302 * time.Minute, minutes(300), 360, "@hourly"},

		// "@every" is anchored on the occurrence, not on now.
		{latest, 1, forbid, 10 * time.Minute, minutes(10), 15, "@every 5m"},
		{latest, 1, forbid, 13 * time.Minute, minutes(10), 15, "@every 5m"},
		{all, 2, allow, 13 * time.Minute, minutes(5, 10), 15, "@every 5m"},
		{skip, 1, forbid, 13 * time.Minute, nil, 15, "@every 5m"},

		// Not due: nothing, and the occurrence stays.
		{latest, 1, forbid, -1, nil, 0, ""},
		{skip, 1, allow, -time.Hour, nil, 0, ""},
		{all, 10, allow, -time.Hour, nil, 0, ""},
	} {
		task := coord.Task{
			Schedule: "* * * * *", Zone: "UTC", NextAt: noon,
			Misfire: test.misfire, MisfireCap: test.limit, Overlap: test.overlap,
		}
		if test.schedule != "" {
			task.Schedule = test.schedule
		}
		name := fmt.Sprintf("%s/%d/%s %q at noon+%v", test.misfire, test.limit, test.overlap, task.Schedule, test.now)
		due, next, err := Fire(task, after(test.now))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.EqualFunc(due, test.due, time.Time.Equal) {
			t.Errorf("%s: due are %v, want %v", name, due, test.due)
		}
		if want := minutes(test.next)[0]; !next.Equal(want) {
			t.Errorf("%s: the next is at %v, want %v", name, next, want)
		}
	}
}

// TestSingleTime looks at a task that is due once, at noon.
func TestSingleTime(t *testing.T) {
	const skip, latest, all = coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll
	for _, test := range []struct {
		misfire coord.Misfire
		late    time.Duration
		runs    bool
	}{
		{skip, 0, true},
		{latest, 0, true},
		{all, 0, true},
		{skip, coord.MisfireGrace, true},
		{skip, coord.MisfireGrace + 1, false},
		{latest, coord.MisfireGrace + 1, true},
		{skip, 20 * 365 * 24 * time.Hour, false},
		{latest, 20 * 365 * 24 * time.Hour, true},
		{all, 20 * 365 * 24 * time.Hour, true},
	} {
		for _, overlap := range []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow} {
			// The second is what the schedule becomes when the zone's rules change after
			// NextAt was computed.
			for _, spec := range []string{"@at 2026-05-04 14:00", "@at 2026-05-04 15:00"} {
				task := coord.Task{
					Schedule: spec, Zone: "Europe/Berlin", NextAt: noon, Misfire: test.misfire, MisfireCap: 10, Overlap: overlap,
				}
				due, next, err := Fire(task, after(test.late))
				if err != nil || !next.IsZero() {
					t.Errorf("%s, %s, %s, %v late: the next is at %v (%v)", spec, test.misfire, overlap, test.late, next, err)
				}
				if test.runs != slices.Equal(due, []time.Time{noon}) || !test.runs && len(due) > 0 {
					t.Errorf("%s, %s, %s, %v late: due are %v", spec, test.misfire, overlap, test.late, due)
				}
			}
		}
	}

	task := coord.Task{Schedule: "@at 2026-05-04 14:00", Zone: "Europe/Berlin", NextAt: noon}
	if due, next, err := Fire(task, noon.Add(-1)); err != nil || len(due) > 0 || !next.Equal(noon) {
		t.Errorf("before its time: due are %v, then %v (%v)", due, next, err)
	}
	task.NextAt = time.Time{}
	if due, next, err := Fire(task, after(time.Hour)); err != nil || len(due) > 0 || !next.IsZero() {
		t.Errorf("after its run: due are %v, then %v (%v)", due, next, err)
	}
}

func TestFirstOfAPassedTime(t *testing.T) {
	for _, test := range []struct{ spec, zone, reason string }{
		{"@at 2026-05-04 12:00", "", "2026-05-04 12:00 in UTC has passed"},
		{"@at 2026-05-04 13:59:59", "Europe/Berlin", "2026-05-04 13:59:59 in Europe/Berlin has passed"},
		{"@at 1926-05-04 12:00", "Asia/Tokyo", "1926-05-04 12:00 in Asia/Tokyo has passed"},
	} {
		first, err := First(coord.Task{Schedule: test.spec, Zone: test.zone}, noon)
		invalid, ok := errors.AsType[*coord.InvalidError](err)
		if !ok || !first.IsZero() || invalid.Field != "Task.Schedule" || !strings.Contains(invalid.Reason, test.reason) {
			t.Errorf("%s in %s: %v (%v)", test.spec, test.zone, first, err)
		}
	}
}

func TestSkipKeepsEverySecondOfTheGrace(t *testing.T) {
	task := coord.Task{Schedule: "@every 1s", NextAt: noon, Misfire: coord.MisfireSkip, Overlap: coord.OverlapAllow}
	due, next, err := Fire(task, after(time.Hour))
	if err != nil || len(due) != 61 || !due[0].Equal(after(59*time.Minute)) || !next.Equal(after(time.Hour+time.Second)) {
		t.Errorf("due are %d from %v, then %v (%v)", len(due), due[0], next, err)
	}
}

func TestChangesOfTheClock(t *testing.T) {
	utc := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2026, month, day, hour, minute, 0, 0, time.UTC)
	}
	for _, test := range []struct {
		name, spec, zone string
		nextAt, now      time.Time
		due              []time.Time
		next             time.Time
	}{
		{
			"a time in the spring gap runs after it", "30 2 * * *", "America/New_York",
			utc(3, 7, 7, 30), utc(3, 8, 7, 0),
			[]time.Time{utc(3, 7, 7, 30), utc(3, 8, 7, 0)},
			utc(3, 9, 6, 30),
		},
		{
			"a time in the autumn fold runs once", "30 1 * * *", "America/New_York",
			utc(11, 1, 5, 30), utc(11, 2, 6, 29),
			[]time.Time{utc(11, 1, 5, 30)},
			utc(11, 2, 6, 30),
		},
		{
			"a quarter of an hour goes on through the fold", "*/15 * * * *", "America/New_York",
			utc(11, 1, 5, 45), utc(11, 1, 6, 30),
			[]time.Time{utc(11, 1, 5, 45), utc(11, 1, 6, 0), utc(11, 1, 6, 15), utc(11, 1, 6, 30)},
			utc(11, 1, 6, 45),
		},
	} {
		task := coord.Task{
			Schedule: test.spec, Zone: test.zone, NextAt: test.nextAt,
			Misfire: coord.MisfireAll, MisfireCap: 10, Overlap: coord.OverlapAllow,
		}
		due, next, err := Fire(task, test.now)
		if err != nil || !slices.EqualFunc(due, test.due, time.Time.Equal) || !next.Equal(test.next) {
			t.Errorf("%s: due are %v, then %v (%v); want %v, then %v", test.name, due, next, err, test.due, test.next)
		}
	}
}

func TestScheduleThatEnds(t *testing.T) {
	last := time.Date(9999, 12, 31, 23, 59, 0, 0, time.UTC)
	for _, misfire := range []coord.Misfire{coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll} {
		task := coord.Task{Schedule: "* * * * *", NextAt: last, Misfire: misfire, MisfireCap: 10}
		due, next, err := Fire(task, last.Add(time.Second))
		if err != nil || len(due) != 1 || !due[0].Equal(last) || !next.IsZero() {
			t.Errorf("%s: due are %v, then %v (%v); want the last one and no next", misfire, due, next, err)
		}
	}
	due, next, err := Fire(coord.Task{Schedule: "* * * * *"}, noon)
	if err != nil || len(due) > 0 || !next.IsZero() {
		t.Errorf("without a next occurrence: due are %v, then %v (%v)", due, next, err)
	}
}

func TestFirst(t *testing.T) {
	for _, test := range []struct {
		spec, zone string
		now, want  time.Time
	}{
		{"", "", noon, time.Time{}},
		{"", "Europe/Berlin", noon, time.Time{}},
		{"* * * * *", "", noon, after(time.Minute)},
		{"* * * * *", "", noon.Add(-1), noon},
		{"0 15 * * *", "Europe/Berlin", noon, after(time.Hour)},
		{"@every 90s", "", noon, after(90 * time.Second)},
		{"@at 2026-05-04 14:00:01", "Europe/Berlin", noon, after(time.Second)},
		{"@at 2026-05-04 14:00", "Europe/Berlin", noon.Add(-1), noon},
		{"@at 2026-05-04 12:00Z", "Europe/Berlin", noon.Add(-time.Hour), noon},
		{"0 0 30 2 *", "", noon, time.Time{}},
	} {
		got, err := First(coord.Task{Schedule: test.spec, Zone: test.zone}, test.now)
		if err != nil || !got.Equal(test.want) {
			t.Errorf("%q in %q at %v: %v (%v), want %v", test.spec, test.zone, test.now, got, err, test.want)
		}
	}
}

func TestBadScheduleIsAnError(t *testing.T) {
	for _, task := range []coord.Task{
		{Schedule: "every now and then", NextAt: noon},
		{Schedule: "* * * * *", Zone: "Mars/Olympus", NextAt: noon},
		{Schedule: "@at 2026-02-30 10:00", NextAt: noon},
	} {
		if _, err := First(task, noon); err == nil {
			t.Errorf("First of %q in %q is no error", task.Schedule, task.Zone)
		}
		if _, _, err := Fire(task, noon); err == nil {
			t.Errorf("Fire of %q in %q is no error", task.Schedule, task.Zone)
		}
	}
}

// TestFireAgreesWithTheList compares Fire with a list of all occurrences that is
// walked one by one.
func TestFireAgreesWithTheList(t *testing.T) {
	specs := []string{
		"* * * * *", "*/7 * * * *", "30 2 * * *", "15,45 1-3 * * *", "@hourly", "@every 90s", "@every 1h7m",
		"@at 2027-01-01 02:30",
	}
	zones := []string{"UTC", "America/New_York", "Australia/Lord_Howe", "America/Santiago"}
	rapid.Check(t, func(t *rapid.T) {
		task := coord.Task{
			Schedule: rapid.SampledFrom(specs).Draw(t, "spec"),
			Zone:     rapid.SampledFrom(zones).Draw(t, "zone"),
			Misfire: rapid.SampledFrom([]coord.Misfire{
				coord.MisfireSkip, coord.MisfireLatest, coord.MisfireAll,
			}).Draw(t, "misfire"),
			MisfireCap: rapid.IntRange(1, 12).Draw(t, "cap"),
			Overlap:    rapid.SampledFrom([]coord.Overlap{coord.OverlapForbid, coord.OverlapAllow}).Draw(t, "overlap"),
		}
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, 364*86400).Draw(t, "start")) * time.Second)
		s, err := schedule.Parse(task.Schedule, task.Zone)
		if err != nil {
			t.Fatal(err)
		}
		task.NextAt = s.Next(start)
		now := task.NextAt.Add(time.Duration(rapid.Int64Range(0, 7200).Draw(t, "late")) * time.Second)

		var passed []time.Time
		for at := task.NextAt; !at.IsZero() && !at.After(now); at = s.Next(at) {
			passed = append(passed, at)
		}
		want := passed
		switch task.Misfire {
		case coord.MisfireLatest:
			want = passed[len(passed)-1:]
		case coord.MisfireAll:
			want = passed[max(0, len(passed)-task.MisfireCap):]
		case coord.MisfireSkip:
			want = slices.DeleteFunc(slices.Clone(passed), func(at time.Time) bool { return now.Sub(at) > coord.MisfireGrace })
		}
		wantNext := s.Next(passed[len(passed)-1])
		if task.Overlap == coord.OverlapForbid && len(want) > 0 {
			want = want[:1]
			wantNext = s.Next(want[0])
		}
		due, next, err := Fire(task, now)
		if err != nil || !slices.EqualFunc(due, want, time.Time.Equal) || !next.Equal(wantNext) {
			t.Fatalf("due are %v, then %v (%v); want %v, then %v", due, next, err, want, wantNext)
		}
	})
}

// TestNoOccurrenceIsLostOrTwice drives a task that runs all for a while, with
// looks at random times.
func TestNoOccurrenceIsLostOrTwice(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 3))
	for _, overlap := range []coord.Overlap{coord.OverlapForbid, coord.OverlapAllow} {
		task := coord.Task{Schedule: "*/5 * * * *", NextAt: noon, Misfire: coord.MisfireAll, MisfireCap: 1000, Overlap: overlap}
		want := noon
		for now := noon; now.Before(after(100 * time.Hour)); now = now.Add(time.Duration(rng.IntN(1200)) * time.Second) {
			due, next, err := Fire(task, now)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range due {
				if !at.Equal(want) {
					t.Fatalf("seed %d, %s: %v comes, want %v", seed, overlap, at, want)
				}
				want = want.Add(5 * time.Minute)
			}
			task.NextAt = next
		}
	}
}
