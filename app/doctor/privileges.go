package doctor

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/tandemhq/tandem/migrations"
)

// privileges are what the roles lack.
type privileges struct {
	role, direct string   // of the work, and of migrations
	lacks        []string // such as "INSERT on app_rooms"
	makes        bool     // the latter may make tables
	pending      bool     // there is something to migrate
}

func lookAtPrivileges(ctx context.Context, work, direct *sql.DB) (p privileges, err error) {
	var lacks string
	// Of the tables of migrations it is enough to read. What is no sequence has_sequence_privilege
	// refuses, and only CASE keeps the order.
	err = work.QueryRowContext(ctx, `SELECT current_user, COALESCE(string_agg(what || ' on ' || name, E'\n' ORDER BY name, what), '') FROM (
			SELECT what, relname FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS what
				WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid) AND NOT has_table_privilege(oid, what)
					AND (what = 'SELECT' OR relname !~ '_(migrations|floor)$')
			UNION ALL SELECT 'USAGE', relname FROM pg_class WHERE pg_table_is_visible(oid)
				AND CASE WHEN relkind = 'S' THEN NOT has_sequence_privilege(oid, 'USAGE') END
			UNION ALL SELECT DISTINCT 'EXECUTE', proname FROM pg_proc
				WHERE pg_function_is_visible(oid) AND NOT has_function_privilege(oid, 'EXECUTE')
		) AS lacks (what, name) WHERE starts_with(name, 'coord_') OR starts_with(name, 'app_')`).Scan(&p.role, &lacks)
	if err != nil {
		return p, err
	}
	if lacks != "" {
		p.lacks = strings.Split(lacks, "\n")
	}
	err = direct.QueryRowContext(ctx, `SELECT current_user, COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false)`).
		Scan(&p.direct, &p.makes)
	if err != nil {
		return p, err
	}
	all, err := migrations.Status(ctx, direct, migrations.PostgreSQL, sets...)
	p.pending = slices.ContainsFunc(all, func(m migrations.Migration) bool { return m.Applied.IsZero() })
	return p, err
}

func judgePrivileges(p privileges) Finding {
	var list []Finding
	if n := len(p.lacks); n > 0 {
		const most = 5
		what := strings.Join(p.lacks[:min(n, most)], ", ")
		if n > most {
			what += ", …"
		}
		list = append(list, unsafe("grant it, or let the role own what migrations make: SELECT, INSERT, UPDATE, DELETE on all tables, "+
			"USAGE on sequences, EXECUTE on functions", "the role %s lacks %d privileges: %s", p.role, n, what))
	}
	const advice = "GRANT CREATE on the schema, or run tandem migrate as a role that has it before each update"
	switch {
	case p.makes:
	case p.pending:
		list = append(list, unsafe(advice, "the role %s may not make tables, and there is something to migrate", p.direct))
	default:
		list = append(list, warning(advice, "the role %s may not make tables, as the next version may have to", p.direct))
	}
	return together(fine("the role %s may do what the work takes", p.role), list...)
}
