// Package load is what people and programs do while things break, and what holds that to what they were told.
//
// Acknowledged is what its client got a success for. Each of that must be there in the end, once: in the database,
// with those who follow, with the receiver of a request. What was not answered is open: it may be there or not, but
// never twice.
package load

import (
	"fmt"
	"time"
)

// Outcome is what came of a scenario, in numbers. Add and Fault are for one goroutine at a time.
type Outcome struct {
	Acknowledged int `json:"acknowledged"`
	Once         int `json:"once"`
	Twice        int `json:"twice"`
	Lost         int `json:"lost"`
	// Gap is the longest time in which nothing was acknowledged that was asked for.
	Gap time.Duration `json:"gap_ns"`
	// Repeated is how many further attempts of runs had their effect again, with the same key.
	Repeated int `json:"repeated"`
	// Faults are what broke a promise, in words; more than a few are counted only.
	Faults []string `json:"faults,omitempty"`
	// Notes are figures that break nothing.
	Notes []string `json:"notes,omitempty"`

	more int
}

// Holds reports whether what was promised was seen. Where nothing was acknowledged nothing was shown.
func (o *Outcome) Holds() bool {
	return o.Acknowledged > 0 && !o.Broken()
}

// Broken reports whether something was seen that breaks a promise.
func (o *Outcome) Broken() bool { return o.Lost > 0 || o.Twice > 0 || len(o.Faults) > 0 }

// Fault adds what breaks a promise.
func (o *Outcome) Fault(format string, args ...any) {
	const most = 20
	if len(o.Faults) == most {
		o.more++
		return
	}
	o.Faults = append(o.Faults, fmt.Sprintf(format, args...))
}

// Note adds a figure that breaks nothing.
func (o *Outcome) Note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

// Bound adds a fault when the gap is longer than it may be.
func (o *Outcome) Bound(most time.Duration, of string) {
	if o.Gap > most {
		o.Fault("nothing was acknowledged for %v, longer than %v: %s", o.Gap.Round(time.Millisecond), most, of)
	}
}

// Count adds things that were each acknowledged and seen so many times.
func (o *Outcome) Count(what string, times int) {
	o.Acknowledged++
	switch times {
	case 0:
		o.Lost++
		o.Fault("lost: %s", what)
	case 1:
		o.Once++
	default:
		o.Twice++
		o.Fault("%d times: %s", times, what)
	}
}

// Twofold adds a thing that nobody was told of, and that is there more than once.
func (o *Outcome) Twofold(what string, times int) {
	o.Twice++
	o.Fault("%d times: %s", times, what)
}

// Add adds another outcome. The longer gap counts.
func (o *Outcome) Add(other Outcome) {
	o.Acknowledged += other.Acknowledged
	o.Once += other.Once
	o.Twice += other.Twice
	o.Lost += other.Lost
	o.Gap = max(o.Gap, other.Gap)
	o.Repeated += other.Repeated
	for _, f := range other.Faults {
		o.Fault("%s", f)
	}
	o.more += other.more
	o.Notes = append(o.Notes, other.Notes...)
}

// More is how many faults there are besides those told.
func (o *Outcome) More() int { return o.more }
