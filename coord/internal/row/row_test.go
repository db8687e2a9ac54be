package row

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	_ "modernc.org/sqlite"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

var (
	_ schema.QueryAppender = Time{}
	_ sql.Scanner          = (*Time)(nil)
)

func at(year, month, day, hour, minute, second, nano int) time.Time {
	return time.Date(year, time.Month(month), day, hour, minute, second, nano, time.UTC)
}

var berlin = time.FixedZone("somewhere", 2*60*60)

var times = []struct {
	name string
	time time.Time
	pg   string
	lite string
	back time.Time
}{
	{"zero", time.Time{}, "NULL", "NULL", time.Time{}},
	{"1970", time.Unix(0, 0), "'1970-01-01 00:00:00+00'::timestamptz", "0", at(1970, 1, 1, 0, 0, 0, 0)},
	{
		"microseconds", at(2026, 3, 8, 7, 0, 0, 123456000), "'2026-03-08 07:00:00.123456+00'::timestamptz",
		"1772953200123456", at(2026, 3, 8, 7, 0, 0, 123456000),
	},
	{
		"below a microsecond", at(2026, 3, 8, 7, 0, 0, 123456999), "'2026-03-08 07:00:00.123456+00'::timestamptz",
		"1772953200123456", at(2026, 3, 8, 7, 0, 0, 123456000),
	},
	{
		"another zone", at(2026, 3, 8, 7, 0, 0, 500000000).In(berlin), "'2026-03-08 07:00:00.5+00'::timestamptz",
		"1772953200500000", at(2026, 3, 8, 7, 0, 0, 500000000),
	},
	{
		"before 1970", at(1969, 12, 31, 23, 59, 59, 999999000), "'1969-12-31 23:59:59.999999+00'::timestamptz",
		"-1", at(1969, 12, 31, 23, 59, 59, 999999000),
	},
	{
		"before 1970, below a microsecond", at(1969, 12, 31, 23, 59, 59, 999999999), "'1969-12-31 23:59:59.999999+00'::timestamptz",
		"-1", at(1969, 12, 31, 23, 59, 59, 999999000),
	},
	{
		"year 1", at(1, 1, 1, 0, 0, 0, 1000), "'0001-01-01 00:00:00.000001+00'::timestamptz",
		"-62135596799999999", at(1, 1, 1, 0, 0, 0, 1000),
	},
	{
		"year 9999", at(9999, 12, 31, 23, 59, 59, 999999999), "'9999-12-31 23:59:59.999999+00'::timestamptz",
		"253402300799999999", at(9999, 12, 31, 23, 59, 59, 999999000),
	},
}

func TestTimeAppendQuery(t *testing.T) {
	for _, test := range times {
		for d, want := range map[schema.Dialect]string{pgdialect.New(): test.pg, sqlitedialect.New(): test.lite} {
			got, err := Time{test.time}.AppendQuery(schema.NewQueryGen(d), []byte("x"))
			if err != nil || string(got) != "x"+want {
				t.Errorf("%s on %v: %s (%v), want x%s", test.name, d.Name(), got, err, want)
			}
		}
	}
}

func TestTimeScan(t *testing.T) {
	for _, test := range []struct {
		src  any
		want time.Time
		bad  bool
	}{
		{nil, time.Time{}, false},
		{int64(0), time.Unix(0, 0).UTC(), false},
		{int64(-1), at(1969, 12, 31, 23, 59, 59, 999999000), false},
		{int64(253402300799999999), at(9999, 12, 31, 23, 59, 59, 999999000), false},
		{at(2026, 3, 8, 7, 0, 0, 1000).In(berlin), at(2026, 3, 8, 7, 0, 0, 1000), false},
		{"2026-03-08", time.Time{}, true},
		{3.5, time.Time{}, true},
		{[]byte("2026-03-08"), time.Time{}, true},
	} {
		got := Time{at(2000, 1, 1, 0, 0, 0, 0)} // what was there before must not stay
		err := got.Scan(test.src)
		switch {
		case test.bad && err == nil:
			t.Errorf("Scan(%v) is no error", test.src)
		case !test.bad && (err != nil || got.Time != test.want):
			t.Errorf("Scan(%v): %v (%v), want %v in UTC", test.src, got, err, test.want)
		}
	}
}

// TestTimeRoundTrip sends each time through the real engines.
func TestTimeRoundTrip(t *testing.T) {
	pq, err := sql.Open("postgres", testenv.NewDatabase(t, "", nil)+"&timezone=Asia/Kathmandu")
	if err != nil {
		t.Fatal(err)
	}
	lite, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	for name, engine := range map[string]struct {
		db   *bun.DB
		kind string
	}{
		"pg":     {bun.NewDB(pq, pgdialect.New()), "timestamptz"},
		"sqlite": {bun.NewDB(lite, sqlitedialect.New()), "integer"},
	} {
		t.Cleanup(func() { _ = engine.db.Close() })
		for _, test := range times {
			var got []Moment
			err := engine.db.NewRaw(`SELECT CAST(? AS `+engine.kind+`) AS at`, Time{test.time}).Scan(t.Context(), &got)
			if err != nil || len(got) != 1 || !got[0].At.Equal(test.back) || got[0].At.IsZero() != test.back.IsZero() {
				t.Errorf("%s on %s: %v (%v), want %v", test.name, name, got, err, test.back)
				continue
			}
			if got[0].At.Time != test.back {
				t.Errorf("%s on %s: %#v is not in UTC", test.name, name, got[0].At.Time)
			}
		}
	}
}

func TestRedeemChecksInOrder(t *testing.T) {
	good := Ticket{Purpose: "ws", User: "u", Session: "s", Origin: "o", Scope: "r", TTL: 30_000_000}
	use := coord.TicketUse{Purpose: "ws", Origin: "o", Scope: "r"}
	with := func(change func(r *Ticket)) Ticket {
		r := good
		change(&r)
		return r
	}
	for _, test := range []struct {
		name string
		row  Ticket
		use  coord.TicketUse
		want error
	}{
		{"good", good, use, nil},
		{"the oldest that is good", with(func(r *Ticket) { r.Newer = coord.MaxTickets - 1 }), use, nil},
		{"replaced", with(func(r *Ticket) { r.Newer = coord.MaxTickets }), use, coord.ErrNotFound},
		{"replaced and expired", with(func(r *Ticket) { r.Newer, r.Expired = 9, true }), use, coord.ErrNotFound},
		{"expired", with(func(r *Ticket) { r.Expired = true }), use, coord.ErrExpired},
		{"expired and for another use", with(func(r *Ticket) { r.Expired = true }), coord.TicketUse{}, coord.ErrExpired},
		{"another purpose", good, coord.TicketUse{Purpose: "api", Origin: "o", Scope: "r"}, coord.ErrConflict},
		{"another origin", good, coord.TicketUse{Purpose: "ws", Origin: "p", Scope: "r"}, coord.ErrConflict},
		{"no origin", good, coord.TicketUse{Purpose: "ws", Scope: "r"}, coord.ErrConflict},
		{"another scope", good, coord.TicketUse{Purpose: "ws", Origin: "o", Scope: "R"}, coord.ErrConflict},
		{"replaced, expired and for another use", with(func(r *Ticket) { r.Newer, r.Expired = 5, true }), coord.TicketUse{}, coord.ErrNotFound},
	} {
		got, err := test.row.Redeem(test.use)
		if !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		want := coord.TicketFor{}
		if test.want == nil {
			want = coord.TicketFor{Purpose: "ws", User: "u", Session: "s", Origin: "o", Scope: "r", TTL: 30 * time.Second}
		}
		if got != want {
			t.Errorf("%s: it was for %+v, want %+v", test.name, got, want)
		}
	}
}

// filled returns a value whose every field is not zero.
func filled[T any]() T {
	var v T
	s := reflect.ValueOf(&v).Elem()
	for i := range s.NumField() {
		switch f := s.Field(i); f.Interface().(type) {
		case string:
			f.SetString(fmt.Sprint("text", i))
		case int, int64:
			f.SetInt(int64(i + 1))
		case bool:
			f.SetBool(true)
		case []byte:
			f.SetBytes([]byte{byte(i)})
		case Time:
			f.Set(reflect.ValueOf(Time{at(2026, 1, 1, 0, i, 0, 0)}))
		default:
			panic(fmt.Sprintf("%T", f.Interface()))
		}
	}
	return v
}

// zeroFields names the fields that are zero, other than the ones given.
func zeroFields(v any, but ...string) (names []string) {
	s := reflect.ValueOf(v)
	for i := range s.NumField() {
		if name := s.Type().Field(i).Name; s.Field(i).IsZero() && !slices.Contains(but, name) {
			names = append(names, name)
		}
	}
	return names
}

// TestNoFieldIsForgotten fails when a column or a field is added to one side only.
func TestNoFieldIsForgotten(t *testing.T) {
	run := filled[Run]()
	run.State, run.Gate = string(coord.Running), gate.Of(coord.Concurrency{Key: "key"})
	for name, zero := range map[string][]string{
		"run":   zeroFields(run.Coord(), "Duplicate"),
		"task":  zeroFields(filled[Task]().Coord()),
		"event": zeroFields(filled[Event]().Coord()),
	} {
		if len(zero) > 0 {
			t.Errorf("a full row leaves these fields of a %s empty: %v", name, zero)
		}
	}
	if ended := filled[Run](); !ended.Coord().LeaseUntil.IsZero() {
		t.Error("a run that is not running has a lease")
	}
	for name, test := range map[string]struct {
		columns string
		row     any
	}{"task": {TaskColumns, Task{}}, "run": {RunColumns, Run{}}} {
		var want, got []string
		kind := reflect.TypeOf(test.row)
		for f := range kind.Fields() {
			want = append(want, f.Tag.Get("bun"))
		}
		text := regexp.MustCompile(`COALESCE\([^)]*\) AS `).ReplaceAllString(test.columns, "")
		for column := range strings.SplitSeq(text, ",") {
			got = append(got, strings.TrimPrefix(strings.TrimSpace(column), "r."))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("the columns of a %s are %v, the fields %v", name, got, want)
		}
	}
}

func TestSmallRows(t *testing.T) {
	runs := Runs([]Run{{ID: 2}, {ID: 1}})
	if len(runs) != 2 || runs[0].ID != 2 {
		t.Errorf("the runs are %v", runs)
	}
	if got := (Event{Seq: 2, Tag: 1<<32 - 1}).Coord().Position; got != (coord.Position{Seq: 2, Tag: 1<<32 - 1}) {
		t.Errorf("the position of an event is %v", got)
	}
	if got := (Head{Seq: 3, Tag: 4}).Position(); got != (coord.Position{Seq: 3, Tag: 4}) {
		t.Errorf("the head is %v", got)
	}
	if got := Micros(1999 * time.Nanosecond); got != 1 {
		t.Errorf("1999 ns are %d µs", got)
	}
}

func TestPrefixed(t *testing.T) {
	all := []string{"", "a", "room", "room:", "room:1", "room:\U0010FFFF", "room:\U0010FFFF1", "room;", "s", "ü", "üb", "\U0010FFFF"}
	for _, prefix := range all {
		least, beyond := Prefixed(prefix)
		for _, text := range all {
			if in := text >= least && text < beyond; in != strings.HasPrefix(text, prefix) {
				t.Errorf("with the prefix %q the text %q is in the range: %v", prefix, text, in)
			}
		}
	}
}

// Events without a payload take something too, or any number of them would wait at once
// and go out in one statement.
func TestSize(t *testing.T) {
	events := make([]NewEvent, 1000)
	if least := Size(events); least < 1000*50 {
		t.Errorf("%d events take %d bytes", len(events), least)
	}
	empty := Size(events[:1])
	full := NewEvent{NewEvent: coord.NewEvent{Topic: "four", Kind: "2k", Payload: make([]byte, 100), Key: "key"}}
	if got := Size([]NewEvent{full}); got != empty+109 {
		t.Errorf("an event takes %d bytes, want %d more than an empty one, which takes %d", got, 109, empty)
	}
}

func TestDistinct(t *testing.T) {
	event := func(topic, key string) NewEvent { return NewEvent{NewEvent: coord.NewEvent{Topic: topic, Key: key}} }
	first, twins := Distinct([]NewEvent{event("t", ""), event("t", "a"), event("t", ""), event("u", "a"), event("t", "a"), event("t", "b"), event("t", "a")})
	if !slices.Equal(first, []int{0, 1, 2, 3, 5}) || len(twins) != 2 || twins[4] != 1 || twins[6] != 1 {
		t.Errorf("the first are %v and the twins %v", first, twins)
	}
}
