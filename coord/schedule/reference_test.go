package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the tests must not depend on the machine's zones

	"github.com/tandemhq/tandem/coord/schedule"
)

// The reference walks the minutes of UTC one by one and asks what the clock on
// the wall shows. It shares no code with the package.

// refClock is what the wall shows, a byte each so that a year of them is small.
type refClock struct {
	minute, hour, dom, month, dow uint8
}

type refMinute struct {
	at       int64 // Unix seconds
	shows    refClock
	repeated bool // the wall showed this minute before
	skips    bool // the wall left something out just before
}

type refWalk struct {
	minutes []refMinute
	skipped map[int64][]refClock // by refMinute.at
}

func refShows(wall time.Time) refClock {
	_, month, dom := wall.Date()
	hour, minute, _ := wall.Clock()
	return refClock{uint8(minute), uint8(hour), uint8(dom), uint8(month), uint8(wall.Weekday())}
}

// walkMinutes walks the minutes after from, up to and including to. It starts
// some days earlier, so that it knows of a fold.
func walkMinutes(loc *time.Location, from, to time.Time) refWalk {
	const lead = 3 * 24 * 60
	minutes := make([]refMinute, 0, int(to.Sub(from)/time.Minute)+lead+1)
	skipped := map[int64][]refClock{}
	seen := map[int64]bool{} // what was shown, in the days round a change
	var last, lastOffset int64
	var left int // minutes until seen may be forgotten
	for t := from.Add(-lead * time.Minute); !t.After(to); t = t.Add(time.Minute) {
		wall := t.In(loc)
		_, offset := wall.Zone()
		minute := (t.Unix() + int64(offset)) / 60
		m := refMinute{at: t.Unix(), shows: refShows(wall)}
		if len(minutes) > 0 && int64(offset) != lastOffset {
			if left == 0 {
				for back := range int64(lead) {
					seen[last-back] = true
				}
			}
			left = lead
			for w := last + 1; w < minute; w++ {
				if !seen[w] {
					skipped[m.at] = append(skipped[m.at], refShows(time.Unix(w*60, 0).UTC()))
					m.skips = true
				}
				seen[w] = true
			}
		}
		if left > 0 {
			m.repeated = seen[minute]
			seen[minute] = true
			if left--; left == 0 {
				clear(seen)
			}
		}
		last, lastOffset = minute, int64(offset)
		minutes = append(minutes, m)
	}
	for minutes[0].at <= from.Unix() {
		minutes = minutes[1:]
	}
	return refWalk{minutes, skipped}
}

type refSpec struct {
	minute, hour, dom, month, dow uint64
	domStar, dowStar, fixed       bool
}

func refParse(spec string) refSpec {
	spec = strings.ToLower(spec)
	for i, name := range strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec") {
		spec = strings.ReplaceAll(spec, name, strconv.Itoa(i+1))
	}
	for i, name := range strings.Fields("sun mon tue wed thu fri sat") {
		spec = strings.ReplaceAll(spec, name, strconv.Itoa(i))
	}
	f := strings.Fields(spec)
	r := refSpec{
		minute:  refField(f[0], 0, 59),
		hour:    refField(f[1], 0, 23),
		dom:     refField(f[2], 1, 31),
		month:   refField(f[3], 1, 12),
		dow:     refField(f[4], 0, 6),
		domStar: strings.Contains(f[2], "*"),
		dowStar: strings.Contains(f[4], "*"),
		fixed:   !strings.Contains(f[0]+f[1], "*"),
	}
	r.dow |= r.dow >> 7 & 1
	return r
}

func refField(text string, low, high int) (set uint64) {
	atoi := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			panic(err)
		}
		return n
	}
	for entry := range strings.SplitSeq(text, ",") {
		from, to, step := low, high, 1
		base, s, stepped := strings.Cut(entry, "/")
		if stepped {
			step = atoi(s)
		}
		if a, b, ok := strings.Cut(base, "-"); ok {
			from, to = atoi(a), atoi(b)
		} else if base != "*" {
			from = atoi(base)
			if !stepped {
				to = from
			}
		}
		for v := from; v <= to; v += step {
			set |= 1 << v
		}
	}
	return set
}

func (r *refSpec) match(c refClock) bool {
	if r.minute>>c.minute&1 == 0 || r.hour>>c.hour&1 == 0 || r.month>>c.month&1 == 0 {
		return false
	}
	dom, dow := r.dom>>c.dom&1 == 1, r.dow>>c.dow&1 == 1
	if r.domStar || r.dowStar {
		return dom && dow
	}
	return dom || dow
}

func (r *refSpec) occurrences(walk refWalk) []time.Time {
	var times []time.Time
	for _, m := range walk.minutes {
		hit := r.match(m.shows)
		if r.fixed {
			hit = hit && !m.repeated
			if m.skips {
				hit = hit || slices.ContainsFunc(walk.skipped[m.at], r.match)
			}
		}
		if hit {
			times = append(times, time.Unix(m.at, 0).UTC())
		}
	}
	return times
}

func mustParse(tb testing.TB, spec, zone string) schedule.Schedule {
	tb.Helper()
	s, err := schedule.Parse(spec, zone)
	if err != nil {
		tb.Fatalf("Parse(%q, %q): %v", spec, zone, err)
	}
	return s
}

func load(tb testing.TB, zone string) *time.Location {
	tb.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		tb.Fatal(err)
	}
	return loc
}

// diff returns "" or the first place where two lists differ.
func diff(got, want []time.Time, loc *time.Location) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("occurrence %d: none, want %v", i, want[i].In(loc))
		case i >= len(want):
			return fmt.Sprintf("occurrence %d: %v, want none", i, got[i].In(loc))
		case got[i] != want[i]:
			return fmt.Sprintf("occurrence %d: %v, want %v", i, got[i].In(loc), want[i].In(loc))
		}
	}
	return ""
}

func between(s schedule.Schedule, after, until time.Time) []time.Time {
	var times []time.Time
	for t := s.Next(after); !t.IsZero() && !t.After(until); t = s.Next(t) {
		times = append(times, t)
	}
	return times
}

// difficultYears are zones and years with changes of the clock of every kind.
var difficultYears = []struct {
	zone string
	year int
}{
	{"America/New_York", 2026},
	{"Australia/Lord_Howe", 2026},
	{"America/Santiago", 2026},
	{"Pacific/Chatham", 2026},
	{"Pacific/Apia", 2011},
	{"Antarctica/Troll", 2026},
	{"Europe/Berlin", 2026},
	{"UTC", 2026},
	// Leap years in which the zones go on by rule.
	{"America/New_York", 2040},
	{"Pacific/Chatham", 2048},
}

func TestWholeYears(t *testing.T) {
	t.Parallel()
	specs := []string{
		"*/15 * * * *", "0 * * * *", "30 2 * * *", "30 1 * * *", "45 1 * * *",
		"0 0 * * *", "*/20 2 * * *", "15 1,2,3 * * *", "0 12 30 12 *",
		"0 3 * * *", "30 23 * * *", "*/5 0-3,23 * * *", "0,30 0-23 * * *", "5 */2 * * *",
		"17 2 8-14 3 *", "0 0 13 * 5", "* 0 1-7 * */7", "10/25 4 * jan-jun mon-fri", "0 0 29 2 *",
		"30 23 31 12 *", "*/30 20 31 12 *",
	}
	for _, y := range difficultYears {
		t.Run(fmt.Sprint(y.zone, " ", y.year), func(t *testing.T) {
			t.Parallel()
			loc := load(t, y.zone)
			from := time.Date(y.year, 1, 1, 0, 0, 0, 0, time.UTC)
			to := from.AddDate(1, 0, 0)
			walk := walkMinutes(loc, from, to)
			for _, spec := range specs {
				s := mustParse(t, spec, y.zone)
				ref := refParse(spec)
				want := ref.occurrences(walk)
				if d := diff(between(s, from, to), want, loc); d != "" {
					t.Errorf("Next, %s: %s", spec, d)
				}
				if d := diff(s.Last(from, to, 1<<40), want, loc); d != "" {
					t.Errorf("Last, %s: %s", spec, d)
				}
				checkFromAnywhere(t, s, walk.minutes, want)
			}
		})
	}
}

// checkFromAnywhere asks for the occurrences beside instants that are not
// occurrences themselves: some at random, and every few minutes round a change.
func checkFromAnywhere(t *testing.T, s schedule.Schedule, walk []refMinute, want []time.Time) {
	t.Helper()
	var at []int64
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		at = append(at, walk[rng.IntN(len(walk))].at+rng.Int64N(60))
	}
	for i, m := range walk {
		if m.skips || i > 0 && m.repeated && !walk[i-1].repeated {
			for d := int64(-4 * 3600); d < 4*3600; d += 420 {
				at = append(at, m.at+d, m.at+d-1)
			}
		}
	}
	from, to := time.Unix(walk[0].at-60, 0), time.Unix(walk[len(walk)-1].at, 0)
	for _, second := range at {
		now := time.Unix(second, 123)
		if now.After(to) {
			continue
		}
		i, found := slices.BinarySearchFunc(want, now, time.Time.Compare)
		if found {
			i++
		}
		next := s.Next(now)
		if i < len(want) && next != want[i] || i == len(want) && !next.IsZero() && !next.After(to) {
			t.Fatalf("%s: Next(%v) = %v", s, now.UTC(), next)
		}
		last := s.Last(from, now, 2)
		if !slices.Equal(last, want[max(0, i-2):i]) {
			t.Fatalf("%s: Last(until %v) = %v, want %v", s, now.UTC(), last, want[max(0, i-2):i])
		}
	}
}
