package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
)

// Why a database does not fit a program.
var (
	// ErrBehind: migrations are missing; Up applies them.
	ErrBehind = errors.New("the database lacks migrations of this version of the program")
	// ErrContracted: a migration of a later version has taken away what this one needs.
	ErrContracted = errors.New("the database was made for a later version of the program, and this one can't work with it any more")
)

// Fits reports whether a program with these migrations can work on a database: nil, ErrBehind,
// ErrContracted, or that the database can't be asked. One that was migrated further fits, until a
// migration that takes something away raises the floor of its set (see docs/operations.md).
func Fits(ctx context.Context, db *sql.DB, d Dialect, sets ...Set) error {
	return fits(ctx, db, d, files, sets)
}

func fits(ctx context.Context, db *sql.DB, d Dialect, from fs.FS, sets []Set) error {
	for _, set := range sets {
		mine, err := newest(from, d, set)
		if err != nil {
			return err
		}
		if err := aboveFloor(ctx, db, d, set, mine); err != nil {
			return err
		}
		there, err := readNumber(ctx, db, d, tableName(set), `max(version_id) FILTER (WHERE is_applied)`)
		if err != nil {
			return fmt.Errorf("migrations: %s: %w", set, err)
		}
		if there < mine {
			return fmt.Errorf("%w: %s is at version %d, and %d is needed", ErrBehind, set, there, mine)
		}
	}
	return nil
}

// aboveFloor reports whether a program whose newest migration of a set is mine can work with the
// set as it is. The floor is a table, which the first migration that takes something away creates.
func aboveFloor(ctx context.Context, db *sql.DB, d Dialect, set Set, mine int64) error {
	floor, err := readNumber(ctx, db, d, floorName(set), `max(version)`)
	if err != nil {
		return fmt.Errorf("migrations: %s: %w", set, err)
	}
	if mine < floor {
		return fmt.Errorf("%w: it knows %s up to version %d, and %d is needed", ErrContracted, set, mine, floor)
	}
	return nil
}

func floorName(set Set) string { return string(set) + "_floor" }

// newest is the highest version that a program knows of a set.
func newest(from fs.FS, d Dialect, set Set) (int64, error) {
	all, err := known(from, d, []Set{set})
	if err != nil || len(all) == 0 {
		return 0, err
	}
	return all[len(all)-1].Version, nil
}

// readNumber reads a number from a table, 0 where that or its rows are missing.
func readNumber(ctx context.Context, db *sql.DB, d Dialect, table, expression string) (n int64, err error) {
	// Without arguments, which not every pooler lets pass.
	there := `SELECT count(*) FROM sqlite_master WHERE name = '` + table + `'`
	if d == PostgreSQL {
		there = `SELECT count(to_regclass('` + table + `'))`
	}
	var tables int
	if err := db.QueryRowContext(ctx, there).Scan(&tables); err != nil || tables == 0 {
		return 0, err
	}
	var found sql.Null[int64]
	err = db.QueryRowContext(ctx, `SELECT `+expression+` FROM `+table).Scan(&found)
	return found.V, err
}
