package doctor

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"

	"github.com/tandemhq/tandem/migrations"
)

// SQLite is a file, and how to look at it without writing.
type SQLite struct {
	DB       *sql.DB
	Journal  func(ctx context.Context) (version, mode string, err error)
	Writable func() error // whether a replica could write
}

// Checks are those of a file.
func (s SQLite) Checks() []Check {
	db := s.DB
	return []Check{
		{Name: "database", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			version, mode, err := s.Journal(ctx)
			return judgeFile(version, mode, s.Writable()), err
		}},
		Schema(db, migrations.SQLite),
		indexes(db, migrations.SQLite, func(ctx context.Context) (objects, error) {
			o := objects{}
			rows, err := db.QueryContext(ctx, `SELECT type, name, tbl_name, COALESCE(sql, '') LIKE 'CREATE UNIQUE %' FROM sqlite_master
				WHERE type IN ('table', 'index')`)
			if err != nil {
				return o, err
			}
			defer rows.Close()
			for rows.Next() {
				var kind string
				i := index{valid: true}
				if err := rows.Scan(&kind, &i.name, &i.table, &i.unique); err != nil {
					return o, err
				}
				if kind == "table" {
					o.tables = append(o.tables, i.name)
				} else {
					o.indexes = append(o.indexes, i)
				}
			}
			return o, rows.Err()
		}),
	}
}

// judgeFile: cant is why the file can't be written to.
func judgeFile(version, mode string, cant error) Finding {
	var list []Finding
	if cant != nil {
		list = append(list, unsafe("give the file and its folder to the user of the replicas, or run tandem doctor as that user",
			"this user can't %v", cant))
	}
	if mode != "wal" {
		list = append(list, warning("none is needed before the first replica, which changes that as it starts; "+
			"if one runs, see that nothing else opens the file, and that its disk is not behind a network",
			"SQLite %s in the journal mode %s, where readers and writers wait for each other", version, mode))
	}
	return together(fine("SQLite %s, with a write-ahead log", version), list...)
}

// Unopened says of a file that it is not there yet, or can't be opened; err is why.
func Unopened(err error) Check {
	return Check{Name: "database", Vital: true, Look: func(context.Context) (Finding, error) {
		if errors.Is(err, fs.ErrNotExist) {
			return warning("none is needed: tandem serve makes it", "there is no database yet: %v", err), nil
		}
		return Finding{}, err
	}}
}
