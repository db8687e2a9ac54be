package doctor

import (
	"context"
	"database/sql"

	"github.com/tandemhq/tandem/migrations"
)

// SQLite are the checks of a file. db can't write.
func SQLite(db *sql.DB) []Check {
	return []Check{
		{Name: "database", Vital: true, Look: func(ctx context.Context) (Finding, error) {
			var version, mode string
			err := db.QueryRowContext(ctx, `SELECT sqlite_version(), journal_mode FROM pragma_journal_mode`).Scan(&version, &mode)
			return judgeFile(version, mode), err
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

func judgeFile(version, mode string) Finding {
	if mode != "wal" {
		return problem("see that nothing else opens the file, and that its disk is not behind a network",
			"SQLite %s in the journal mode %s, where readers and writers wait for each other", version, mode)
	}
	return fine("SQLite %s, with a write-ahead log", version)
}

// Missing says that there is no file yet; err is why.
func Missing(err error) Check {
	return Check{Name: "database", Look: func(context.Context) (Finding, error) {
		return warning("none is needed: tandem serve makes it", "there is no database yet: %v", err), nil
	}}
}
