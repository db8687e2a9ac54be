package coord

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/coord/schedule"
)

// The bounds of what a request may hold.
const (
	MaxPayload   = 1 << 20  // bytes of a payload
	MaxPayloads  = 64 << 20 // bytes of all payloads of one call
	MaxBatch     = 1000     // items of one call, except Enqueue
	MaxEnqueue   = 10000    // runs of one Enqueue
	MaxErrorText = 4096     // bytes kept of a run's error
	MaxLogLine   = 4096     // bytes kept of a line of a run's log
	MaxLogLines  = 10000    // lines kept of a run's log
)

const (
	maxName   = 200
	maxKind   = 100
	maxKey    = 500
	maxPlaces = 10000 // runs that a limit lets run at a time
	maxSpan   = 10 * 365 * 24 * time.Hour
	minLease  = time.Second
	maxLease  = 24 * time.Hour
)

// invalid returns the first of the errors, so that checks read as a list.
func invalid(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func fieldError(field, format string, args ...any) error {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// text checks a name that people and databases must be able to read.
func text(field, s string, least, most int) error {
	switch {
	case len(s) < least && least == 1:
		return fieldError(field, "must not be empty")
	case len(s) > most:
		return fieldError(field, "has %d bytes, at most %d are allowed", len(s), most)
	case !utf8.ValidString(s):
		return fieldError(field, "must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return fieldError(field, "must not contain control characters")
	}
	return nil
}

// payloads checks what the payloads of a call come to.
func payloads(field string, bytes int) error {
	if bytes > MaxPayloads {
		return fieldError(field, "have payloads of %d bytes together, at most %d are allowed in one call", bytes, MaxPayloads)
	}
	return nil
}

func payload(field string, b []byte) error {
	if len(b) > MaxPayload {
		return fieldError(field, "has %d bytes, at most %d are allowed", len(b), MaxPayload)
	}
	return nil
}

func between[T int | int64](field string, v, least, most T) error {
	if v < least || v > most {
		return fieldError(field, "is %d, must be between %d and %d", v, least, most)
	}
	return nil
}

func span(field string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fieldError(field, "is %v, must be between %v and %v", d, least, most)
	}
	return nil
}

// timeout checks one that is stored in microseconds, where 0 stands for none.
func timeout(field string, d time.Duration) error {
	if d == 0 {
		return nil
	}
	return span(field, d, time.Millisecond, maxSpan)
}

func oneOf[T ~string](field string, v T, allowed ...T) error {
	if !slices.Contains(allowed, v) {
		return fieldError(field, "is %q, must be one of %q", v, allowed)
	}
	return nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (r *Retry) complete(field string, atMostOnce bool) error {
	if atMostOnce {
		orDefault(&r.MaxAttempts, 1)
	}
	orDefault(&r.MaxAttempts, 3)
	orDefault(&r.Backoff, time.Second)
	orDefault(&r.MaxBackoff, max(time.Hour, r.Backoff))
	return invalid(
		between(field+".MaxAttempts", r.MaxAttempts, 1, 100),
		span(field+".Backoff", r.Backoff, time.Millisecond, maxSpan),
		span(field+".MaxBackoff", r.MaxBackoff, r.Backoff, maxSpan),
	)
}

func (c *Concurrency) complete(field string) error {
	if c.Key == "" {
		return between(field+".Limit", c.Limit, 0, 0)
	}
	orDefault(&c.Limit, 1)
	return invalid(text(field+".Key", c.Key, 1, maxName), between(field+".Limit", c.Limit, 1, maxPlaces))
}

func (t *Task) complete() error {
	orDefault(&t.Zone, "UTC")
	orDefault(&t.Overlap, OverlapForbid)
	orDefault(&t.Misfire, MisfireLatest)
	orDefault(&t.MisfireCap, 10)
	orDefault(&t.Priority, 2)
	err := invalid(
		text("Task.Name", t.Name, 1, maxName),
		text("Task.Kind", t.Kind, 1, maxKind),
		payload("Task.Payload", t.Payload),
		oneOf("Task.Overlap", t.Overlap, OverlapForbid, OverlapAllow),
		oneOf("Task.Misfire", t.Misfire, MisfireSkip, MisfireLatest, MisfireAll),
		between("Task.MisfireCap", t.MisfireCap, 1, 1000),
		t.Retry.complete("Task.Retry", t.AtMostOnce),
		timeout("Task.Timeout", t.Timeout),
		between("Task.Priority", t.Priority, 1, 4),
		t.Concurrency.complete("Task.Concurrency"),
		between("Task.Version", t.Version, 0, 1<<62),
	)
	if err != nil {
		return err
	}
	return checkSchedule(t.Schedule, t.Zone)
}

func checkSchedule(spec, zone string) error {
	if spec == "" {
		_, err := time.LoadLocation(zone)
		if err != nil || zone == "Local" {
			return fieldError("Task.Zone", "%q is not an IANA time zone such as Europe/Berlin", zone)
		}
		return nil
	}
	if _, err := schedule.Parse(spec, zone); err != nil {
		field := "Task.Schedule"
		if e, ok := errors.AsType[*schedule.Error](err); ok && e.Field == schedule.FieldZone {
			field = "Task.Zone"
		}
		return &InvalidError{Field: field, Reason: err.Error()}
	}
	return nil
}

// storable checks a time, which not every store can hold before year 1 or after 9999.
func storable(field string, t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fieldError(field, "is in the year %d, must be between 1 and 9999", year)
	}
	return nil
}

func (r *NewRun) complete(field string) error {
	orDefault(&r.Priority, 2)
	return invalid(
		text(field+".Kind", r.Kind, 1, maxKind),
		payload(field+".Payload", r.Payload),
		text(field+".UniqueKey", r.UniqueKey, 0, maxName),
		span(field+".Delay", r.Delay, 0, maxSpan),
		storable(field+".DueAt", r.DueAt),
		r.Retry.complete(field+".Retry", r.AtMostOnce),
		timeout(field+".Timeout", r.Timeout),
		between(field+".Priority", r.Priority, 1, 4),
		r.Concurrency.complete(field+".Concurrency"),
	)
}

func kindNames(field string, kinds []string) error {
	for _, kind := range kinds {
		if err := text(field, kind, 1, maxKind); err != nil {
			return err
		}
	}
	return nil
}

func (o *ClaimOptions) complete() error {
	if len(o.Kinds) == 0 {
		return fieldError("ClaimOptions.Kinds", "must name at least one kind")
	}
	if err := kindNames("ClaimOptions.Kinds", o.Kinds); err != nil {
		return err
	}
	for kind, limit := range o.Limits {
		field := "ClaimOptions.Limits[" + kind + "]"
		if err := invalid(text(field, kind, 1, maxKind), between(field, limit, 1, maxPlaces)); err != nil {
			return err
		}
	}
	return invalid(
		text("ClaimOptions.Worker", o.Worker, 1, maxName),
		between("ClaimOptions.Limit", o.Limit, 1, MaxBatch),
		span("ClaimOptions.Lease", o.Lease, minLease, maxLease),
	)
}

// clean cuts a text that comes from anywhere. PostgreSQL stores neither broken
// UTF-8 nor NUL.
func clean(s string, most int) string {
	s = strings.ToValidUTF8(s[:min(len(s), most)], "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	end := min(len(s), most) // what was put in is longer than what it replaced
	for end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// errorText cuts the text of an error, or a reason.
func errorText(s string) string { return clean(s, MaxErrorText) }

func (r *Result) complete() error {
	if r.Outcome < Succeed || r.Outcome > CancelRun {
		return fieldError("Result.Outcome", "is %d, must be one of the outcomes", r.Outcome)
	}
	r.Error = errorText(r.Error)
	return span("Result.Delay", r.Delay, 0, maxSpan)
}

func (r *Report) complete() error {
	lines := make([]string, len(r.Lines))
	for i, line := range r.Lines {
		lines[i] = clean(line, MaxLogLine)
	}
	r.Lines = lines
	return invalid(between("Report.Progress", r.Progress, 0, 100), between("Report.Lines", len(r.Lines), 0, MaxBatch))
}

func (t *TicketFor) complete() error {
	orDefault(&t.TTL, 30*time.Second)
	return invalid(
		text("TicketFor.Purpose", t.Purpose, 1, maxKind),
		text("TicketFor.User", t.User, 1, maxName),
		text("TicketFor.Session", t.Session, 1, maxName),
		text("TicketFor.Origin", t.Origin, 0, maxKey),
		text("TicketFor.Scope", t.Scope, 0, maxName),
		span("TicketFor.TTL", t.TTL, time.Second, time.Hour),
	)
}

// Bounds of a limit that keep the arithmetic far from overflow: ten years of
// debt in microseconds.
const maxWindow = int64(maxSpan / time.Microsecond)

func (l *Limit) complete() error {
	if l.Cost == 0 {
		l.Cost = 1
	}
	if l.Burst == 0 {
		l.Burst = l.Rate
	}
	if l.Outage == "" {
		l.Outage = OutageDegrade
	}
	switch {
	case len(l.Key) == 0 || len(l.Key) > maxKey:
		return fieldError("Limit.Key", "has %d bytes, must have 1 to %d", len(l.Key), maxKey)
	case l.Rate < 1:
		return fieldError("Limit.Rate", "is %d, must be at least 1", l.Rate)
	case l.Per < time.Microsecond || l.Per > maxSpan:
		return fieldError("Limit.Per", "is %v, must be between 1µs and %v", l.Per, maxSpan)
	case int64(l.Rate) > l.Per.Microseconds():
		return fieldError("Limit.Rate", "is %d per %v, at most one per microsecond is possible", l.Rate, l.Per)
	case l.Burst < 1:
		return fieldError("Limit.Burst", "is %d, must be at least 1", l.Burst)
	case l.Cost < 0:
		return fieldError("Limit.Cost", "is %d, must not be negative", l.Cost)
	case l.Outage != OutageDegrade && l.Outage != OutageDeny && l.Outage != OutageAllow:
		return fieldError("Limit.Outage", "is %q, must be degrade, deny or allow", l.Outage)
	}
	// Nearly always the product tells without a division, which takes longer than all else.
	if over, most := bits.Mul64(uint64(l.Burst), uint64(l.Per.Microseconds())); over > 0 || most > uint64(maxWindow) {
		if int64(l.Burst) > maxWindow/l.GCRA().Interval {
			return fieldError("Limit.Burst", "is %d, which takes longer than %v to fill", l.Burst, maxSpan)
		}
	}
	// A cost above the burst is a valid question with the answer "never".
	if l.Cost > l.Burst {
		l.Cost = l.Burst + 1
	}
	return nil
}

func (e *NewEvent) check(field string) error {
	return invalid(
		text(field+".Topic", e.Topic, 1, maxName),
		text(field+".Kind", e.Kind, 1, maxKind),
		payload(field+".Payload", e.Payload),
		text(field+".Key", e.Key, 0, maxKey),
	)
}

func checkPositions(from map[string]Position) error {
	for topic, p := range from {
		if err := text("from", topic, 1, maxName); err != nil {
			return err
		}
		if p.Seq < 0 && p != Head {
			return fieldError("from["+topic+"]", "%v is no position", p)
		}
	}
	return nil
}
