package store

import (
	"fmt"
	"strconv"
	"time"

	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"
)

// Time is a moment as the database keeps it: a timestamptz on PostgreSQL, whole
// microseconds since 1970 on SQLite. In JSON it is a time of RFC 3339.
type Time struct{ time.Time }

// AppendQuery writes the moment as the dialect's literal.
func (t Time) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	if t.IsZero() {
		return append(b, "NULL"...), nil
	}
	if gen.Dialect().Name() == dialect.PG {
		b = append(b, '\'')
		b = t.UTC().AppendFormat(b, "2006-01-02 15:04:05.999999-07:00")
		return append(b, "'::timestamptz"...), nil
	}
	return strconv.AppendInt(b, t.UnixMicro(), 10), nil
}

// Scan reads what either database returns; NULL is the zero Time.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		t.Time = time.Time{}
	case int64:
		t.Time = time.UnixMicro(v).UTC()
	case time.Time:
		t.Time = v.UTC()
	default:
		return fmt.Errorf("store: a time can't be read from a %T", src)
	}
	return nil
}

// present stands in a statement for the present of the clock that decides, and
// a moment as far from it as shift.
type present struct {
	now   func() time.Time // where the database has no clock of its own
	shift time.Duration
}

// AppendQuery writes an expression on PostgreSQL and the moment itself on SQLite.
func (p present) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	if gen.Dialect().Name() != dialect.PG {
		return Time{p.now().Add(p.shift)}.AppendQuery(gen, b)
	}
	b = append(b, "(clock_timestamp()"...)
	if p.shift != 0 {
		b = append(b, " + interval '"...)
		b = strconv.AppendInt(b, p.shift.Microseconds(), 10)
		b = append(b, " microseconds'"...)
	}
	return append(b, ')'), nil
}
