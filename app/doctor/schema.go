package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/migrations"
)

// sets are those of the application's database.
var sets = []migrations.Set{migrations.Coord, migrations.App}

// Schema looks at which migrations the database has.
func Schema(db *sql.DB, d migrations.Dialect) Check {
	return Check{Name: "schema", Vital: true, Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		known, err := migrations.Known(d, sets...)
		if err != nil {
			return Finding{}, err
		}
		applied, err := migrations.Applied(ctx, db, d, sets...)
		if err != nil {
			return Finding{}, err
		}
		err = migrations.Fits(ctx, db, d, sets...)
		if err != nil && !errors.Is(err, migrations.ErrContracted) && !errors.Is(err, migrations.ErrBehind) {
			return Finding{}, err
		}
		return judgeSchema(known, applied, err), nil
	}}
}

// judgeSchema compares. misfit is what migrations.Fits says.
func judgeSchema(known, applied []migrations.Migration, misfit error) Finding {
	if len(applied) == 0 {
		return warning("none is needed: the first replica makes it, or tandem migrate does", "the database has no schema yet")
	}
	last := map[migrations.Set]int64{}
	for _, m := range applied {
		last[m.Set] = max(last[m.Set], m.Version)
	}
	var missing, skipped, newer []string
	for _, k := range known {
		there := slices.ContainsFunc(applied, func(a migrations.Migration) bool { return a.Set == k.Set && a.Version == k.Version })
		switch name := fmt.Sprintf("%s/%s", k.Set, k.Name); {
		case there:
		case k.Version < last[k.Set]:
			skipped = append(skipped, name)
		default:
			missing = append(missing, name)
		}
	}
	for _, a := range applied {
		if a.Name == "" {
			newer = append(newer, fmt.Sprintf("%s/%04d", a.Set, a.Version))
		}
	}
	var list []Finding
	if len(skipped) > 0 {
		list = append(list, unsafe("restore the database, or find out who took them away: no replica migrates over a gap",
			"later migrations were applied without %s", strings.Join(skipped, ", ")))
	}
	if len(missing) > 0 {
		list = append(list, warning("the next replica of this version that starts applies them, or tandem migrate does",
			"it lacks %s", strings.Join(missing, ", ")))
	}
	switch {
	case errors.Is(misfit, migrations.ErrContracted):
		list = append(list, unsafe("use the later version, or restore a backup of before", "%v", misfit))
	case len(newer) > 0:
		list = append(list, warning("if a newer version was rolled back, this is how it is to be; otherwise use its tandem doctor",
			"a newer version has applied %s", strings.Join(newer, ", ")))
	}
	return together(fine("all %d migrations are applied", len(known)), list...)
}

// index is one that is there.
type index struct {
	name, table   string
	unique, valid bool
	constraint    bool // it keeps a constraint
}

// objects are the tables, indexes and functions that are there.
type objects struct {
	tables    []string
	keyless   []string // those tables that have no primary key; only PostgreSQL can lose one
	indexes   []index
	functions []string
}

// indexes looks whether the tables, indexes and functions are there that migrations have made.
func indexes(db *sql.DB, d migrations.Dialect, read func(ctx context.Context) (objects, error)) Check {
	return Check{Name: "indexes", Vital: true, Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		applied, err := migrations.Applied(ctx, db, d, sets...)
		if err != nil {
			return Finding{}, err
		}
		want, err := migrations.Expect(d, applied)
		if err != nil {
			return Finding{}, err
		}
		have, err := read(ctx)
		if err != nil {
			return Finding{}, err
		}
		newer := slices.ContainsFunc(applied, func(m migrations.Migration) bool { return m.Name == "" })
		return judgeIndexes(want, have, newer), nil
	}}
}

// judgeIndexes compares. A newer version, when there was one, may have removed what is missing.
func judgeIndexes(want migrations.Schema, have objects, newer bool) Finding {
	var list []Finding
	bad := func(serious bool, advice, format string, args ...any) {
		switch {
		case newer:
			list = append(list, warning("see whether the newer version that was here has removed it", format, args...))
		case serious:
			list = append(list, unsafe(advice, format, args...))
		default:
			list = append(list, problem(advice, format, args...))
		}
	}
	for _, table := range want.Tables {
		switch {
		case !slices.Contains(have.tables, table):
			bad(true, "restore the database", "the table %s is missing", table)
		case slices.Contains(have.keyless, table):
			bad(true, "give it the primary key back that its migration names", "the table %s has no primary key", table)
		}
	}
	for _, function := range want.Functions {
		if !slices.Contains(have.functions, function) {
			bad(true, "restore it from the migration that creates it", "the function %s is missing", function)
		}
	}
	for _, w := range want.Indexes {
		i := slices.IndexFunc(have.indexes, func(h index) bool { return h.name == w.Name })
		switch {
		case i < 0:
			bad(w.Unique, w.SQL, "%s is missing", kind(w.Name, w.Unique))
		case !have.indexes[i].valid:
			bad(w.Unique, "REINDEX INDEX CONCURRENTLY "+w.Name, "%s is not valid", kind(w.Name, w.Unique))
		case have.indexes[i].unique != w.Unique || have.indexes[i].table != w.Table:
			bad(w.Unique, "DROP INDEX "+w.Name+"; "+w.SQL, "%s is another one of that name", kind(w.Name, w.Unique))
		}
	}
	for _, h := range have.indexes {
		switch {
		case h.valid:
		case h.constraint:
			bad(true, "REINDEX INDEX CONCURRENTLY "+h.name, "%s is not valid", kind(h.name, h.unique))
		case !slices.ContainsFunc(want.Indexes, func(w migrations.Index) bool { return w.Name == h.name }):
			list = append(list, warning("DROP INDEX CONCURRENTLY "+h.name, "%s on %s, which no migration has made, is not valid",
				kind(h.name, h.unique), h.table))
		}
	}
	return together(fine("%d tables and %d indexes are there and valid", len(want.Tables), len(want.Indexes)), list...)
}

func kind(name string, unique bool) string {
	if unique {
		return "the unique index " + name
	}
	return "the index " + name
}
