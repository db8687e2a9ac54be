package schedule_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/coord/schedule"
)

func numbers(low, high int) string {
	var list []string
	for v := low; v <= high; v++ {
		list = append(list, strconv.Itoa(v))
	}
	return strings.Join(list, ",")
}

// fieldGen draws a valid field. Values from hot are likelier than others.
func fieldGen(low, high int, hot []int, names string) *rapid.Generator[string] {
	last := min(high, low+59)
	if high == 7 {
		last = 6
	}
	return rapid.Custom(func(t *rapid.T) string {
		value := rapid.OneOf(rapid.SampledFrom(hot), rapid.IntRange(low, high))
		write := func(v int) string {
			if list := strings.Fields(names); v-low < len(list) && rapid.Bool().Draw(t, "name") {
				return list[v-low]
			}
			return strconv.Itoa(v)
		}
		entry := func() string {
			kind := rapid.IntRange(0, 9).Draw(t, "kind")
			step := rapid.IntRange(1, last-low+1).Draw(t, "step")
			a := value.Draw(t, "a")
			b := value.Draw(t, "b")
			a, b = min(a, b), max(a, b)
			switch {
			case kind < 3:
				return "*"
			case kind < 5:
				return fmt.Sprintf("*/%d", step)
			case kind < 6:
				return fmt.Sprintf("%s-%s", write(a), write(b))
			case kind < 7:
				return fmt.Sprintf("%s-%s/%d", write(a), write(b), step)
			case kind < 8 && a <= last:
				return fmt.Sprintf("%s/%d", write(a), step)
			}
			return write(a)
		}
		var entries []string
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "entries") {
			entries = append(entries, entry())
		}
		return strings.Join(entries, ",")
	})
}

func cronGen(doms []int) *rapid.Generator[string] {
	minute := fieldGen(0, 59, []int{0, 15, 30, 45, 59}, "")
	hour := fieldGen(0, 23, []int{0, 1, 2, 3, 23}, "")
	dom := rapid.OneOf(rapid.Just("*"), fieldGen(1, 31, doms, ""))
	month := rapid.OneOf(rapid.Just("*"), fieldGen(1, 12, []int{3, 4, 9, 10, 11},
		"jan feb mar apr may jun jul aug sep oct nov dec"))
	dow := rapid.OneOf(rapid.Just("*"), fieldGen(0, 7, []int{0, 7}, "sun mon tue wed thu fri sat"))
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join([]string{
			minute.Draw(t, "minute"), hour.Draw(t, "hour"), dom.Draw(t, "dom"),
			month.Draw(t, "month"), dow.Draw(t, "dow"),
		}, " ")
	})
}

type window struct {
	zone, day string
	walk      func() refWalk
	from, to  time.Time
	loc       *time.Location
}

// windows are a few days round changes of the clock of every kind.
var windows = sync.OnceValue(func() []*window {
	list := []*window{
		{zone: "America/New_York", day: "2026-03-08"},
		{zone: "America/New_York", day: "2026-11-01"},
		{zone: "Australia/Lord_Howe", day: "2026-04-05"},
		{zone: "Australia/Lord_Howe", day: "2026-10-04"},
		{zone: "America/Santiago", day: "2026-04-05"},
		{zone: "America/Santiago", day: "2026-09-06"},
		{zone: "Pacific/Chatham", day: "2026-04-05"},
		{zone: "Pacific/Chatham", day: "2026-09-27"},
		{zone: "Antarctica/Troll", day: "2026-03-29"},
		{zone: "Antarctica/Troll", day: "2026-10-25"},
		{zone: "Europe/Berlin", day: "2026-03-29"},
		{zone: "Europe/Berlin", day: "2026-10-25"},
		{zone: "Pacific/Apia", day: "2011-12-30"},
		{zone: "Pacific/Kwajalein", day: "1993-08-21"},
		{zone: "Asia/Pyongyang", day: "2018-05-05"},
		{zone: "America/Caracas", day: "2016-05-01"},
		{zone: "America/Havana", day: "2026-11-01"},
		{zone: "Asia/Beirut", day: "2026-03-29"},
		{zone: "Africa/Casablanca", day: "2026-02-15"},
		{zone: "Africa/Casablanca", day: "2026-03-22"},
		{zone: "America/Nuuk", day: "2026-10-25"},
		{zone: "Europe/Dublin", day: "2050-10-30"},
		{zone: "Pacific/Auckland", day: "2050-04-03"},
		{zone: "America/Sao_Paulo", day: "2018-11-04"},
	}
	for _, w := range list {
		day, err := time.Parse(time.DateOnly, w.day)
		if err != nil {
			panic(err)
		}
		if w.loc, err = time.LoadLocation(w.zone); err != nil {
			panic(err)
		}
		w.from, w.to = day.AddDate(0, 0, -2), day.AddDate(0, 0, 3)
		w.walk = sync.OnceValue(func() refWalk { return walkMinutes(w.loc, w.from, w.to) })
	}
	return list
})

// TestWindowsChange makes sure that each window has a change of the clock in it.
func TestWindowsChange(t *testing.T) {
	t.Parallel()
	for _, w := range windows() {
		_, a := w.from.In(w.loc).Zone()
		_, b := w.to.In(w.loc).Zone()
		if a == b {
			t.Errorf("%s does not change round %s", w.zone, w.day)
		}
	}
}

func TestRandomAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom(windows()).Draw(t, "window")
		day := w.from.AddDate(0, 0, 2).Day()
		spec := cronGen([]int{1, max(day-1, 1), day, min(day+1, 31)}).Draw(t, "spec")
		s, err := schedule.Parse(spec, w.zone)
		if err != nil {
			t.Fatal(err)
		}
		ref := refParse(spec)
		want := ref.occurrences(w.walk())
		if d := diff(between(s, w.from, w.to), want, w.loc); d != "" {
			t.Fatalf("Next, %s: %s", w.zone, d)
		}
		if d := diff(s.Last(w.from, w.to, 1<<40), want, w.loc); d != "" {
			t.Fatalf("Last, %s: %s", w.zone, d)
		}
		// From any second, not only from an occurrence.
		at := w.from.Add(time.Duration(rapid.Int64Range(0, int64(w.to.Sub(w.from))).Draw(t, "at")))
		i, found := slices.BinarySearchFunc(want, at, time.Time.Compare)
		if found {
			i++
		}
		if next := s.Next(at); i < len(want) && next != want[i] || i == len(want) && !next.IsZero() && !next.After(w.to) {
			t.Fatalf("Next(%v) = %v", at, next)
		}
		if got := s.Last(w.from, at, 1); !slices.Equal(got, want[max(0, i-1):i]) {
			t.Fatalf("Last(until %v) = %v", at, got)
		}
	})
}

func TestLastIsTailOfNext(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom(windows()).Draw(t, "window")
		spec := rapid.OneOf(
			cronGen([]int{1, 29, 31}),
			rapid.Map(rapid.Int64Range(3_600_000_000, 1<<45), func(us int64) string {
				return fmt.Sprintf("@every %dus", us)
			}),
		).Draw(t, "spec")
		s, err := schedule.Parse(spec, w.zone)
		if err != nil {
			t.Fatal(err)
		}
		after := w.from.Add(time.Duration(rapid.Int64Range(0, int64(40*24*time.Hour)).Draw(t, "after")))
		until := after.Add(time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "span")))
		if rapid.Bool().Draw(t, "on an occurrence") {
			if at := s.Next(until); !at.IsZero() {
				until = at
			}
		}
		var all []time.Time
		for at := after; len(all) < 2000; {
			next := s.Next(at)
			if next.IsZero() || next.After(until) {
				break
			}
			if !next.After(at) {
				t.Fatalf("Next(%v) = %v, not after it", at, next)
			}
			at = next
			all = append(all, at)
		}
		if len(all) == 2000 {
			until = all[len(all)-1]
		}
		n := rapid.SampledFrom([]int{0, 1, 2, 17, 5000}).Draw(t, "n")
		want := all[max(0, len(all)-n):]
		if d := diff(s.Last(after, until, n), want, w.loc); d != "" {
			t.Fatalf("Last %d, %s: %s", n, w.zone, d)
		}
		if d := diff(schedule.Preview(s, after, len(all)), all, w.loc); d != "" {
			t.Fatalf("Preview, %s: %s", w.zone, d)
		}
	})
}
