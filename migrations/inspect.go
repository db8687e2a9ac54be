package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Known lists the migrations of the sets that this program brings, in their order.
func Known(d Dialect, sets ...Set) ([]Migration, error) { return known(files, d, sets) }

func known(from fs.FS, d Dialect, sets []Set) ([]Migration, error) {
	var all []Migration
	for _, set := range sets {
		paths, err := fs.Glob(from, path.Join(string(d), string(set), "*.sql"))
		if err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
		for _, file := range paths { // sorted, as all numbers have four digits
			number, _, _ := strings.Cut(path.Base(file), "_")
			version, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("migrations: %s: %w", file, err)
			}
			all = append(all, Migration{Set: set, Version: version, Name: path.Base(file)})
		}
	}
	return all, nil
}

// Applied lists the migrations that a database says were applied, those too that only
// another version of the program knows, which have no name. It writes nothing, and an
// empty database has none.
func Applied(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) ([]Migration, error) {
	here, err := Known(d, sets...)
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, set := range sets {
		there, err := applied(ctx, db, d, set)
		if err != nil {
			return nil, fmt.Errorf("migrations: %s: %w", set, err)
		}
		for _, m := range there {
			if i := slices.IndexFunc(here, func(k Migration) bool { return k.Set == set && k.Version == m.Version }); i >= 0 {
				m.Name = here[i].Name
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// applied lists the migrations of a set that were applied, without names.
func applied(ctx context.Context, db *sql.DB, d Dialect, set Set) (list []Migration, err error) {
	// Without arguments, which not every pooler lets pass.
	there := `SELECT count(*) FROM sqlite_master WHERE name = '` + tableName(set) + `'`
	if d == PostgreSQL {
		there = `SELECT count(to_regclass('` + tableName(set) + `'))`
	}
	var tables int
	if err := db.QueryRowContext(ctx, there).Scan(&tables); err != nil || tables == 0 {
		return nil, err
	}
	rows, err := db.QueryContext(ctx,
		`SELECT version_id, tstamp FROM `+tableName(set)+` WHERE is_applied AND version_id > 0 ORDER BY version_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		m := Migration{Set: set}
		if err := rows.Scan(&m.Version, &m.Applied); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, rows.Err()
}

// Schema is what migrations leave in a database, beside constraints.
type Schema struct {
	Tables    []string
	Indexes   []Index
	Functions []string
}

// Index is one that a migration has created.
type Index struct {
	Name, Table string
	Unique      bool
	SQL         string // the statement that creates it, on one line
}

// object finds what adds a table, an index or a function, or takes one away. Statements begin a line,
// other than what stands in functions.
var object = regexp.MustCompile(`(?m)^(?:CREATE (?:UNLOGGED )?(TABLE) (\w+)|` +
	`CREATE (UNIQUE )?(INDEX) (\w+) ON (\w+)[^;]*|DROP (TABLE|INDEX|FUNCTION) ([\w, ]+)|` +
	`CREATE (?:OR REPLACE )?(FUNCTION) (\w+));?`)

// Expect returns the schema that a database has to which those migrations were applied.
// Ones that it does not know it leaves out.
func Expect(d Dialect, applied []Migration) (Schema, error) { return expect(files, d, applied) }

func expect(from fs.FS, d Dialect, applied []Migration) (Schema, error) {
	tables, indexes, functions := map[string]bool{}, map[string]Index{}, map[string]bool{}
	for _, m := range applied {
		if m.Name == "" {
			continue
		}
		text, err := fs.ReadFile(from, path.Join(string(d), string(m.Set), m.Name))
		if err != nil {
			return Schema{}, fmt.Errorf("migrations: %w", err)
		}
		forward, _, _ := strings.Cut(string(text), "-- +goose Down")
		for _, found := range object.FindAllStringSubmatch(forward, -1) {
			switch {
			case found[1] != "":
				tables[found[2]] = true
			case found[4] != "":
				statement := strings.Join(strings.Fields(strings.TrimSuffix(found[0], ";")), " ")
				indexes[found[5]] = Index{Name: found[5], Table: found[6], Unique: found[3] != "", SQL: statement}
			case found[9] != "":
				functions[found[10]] = true
			default:
				for name := range strings.SplitSeq(found[8], ",") {
					switch name = strings.TrimSpace(name); found[7] {
					case "TABLE":
						delete(tables, name)
						maps.DeleteFunc(indexes, func(_ string, i Index) bool { return i.Table == name })
					case "INDEX":
						delete(indexes, name)
					case "FUNCTION":
						delete(functions, name)
					}
				}
			}
		}
	}
	s := Schema{Tables: slices.Sorted(maps.Keys(tables)), Functions: slices.Sorted(maps.Keys(functions))}
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		s.Indexes = append(s.Indexes, indexes[name])
	}
	return s, nil
}
