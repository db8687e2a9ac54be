package doctor_test

import (
	"net/url"
	"testing"

	"github.com/tandemhq/tandem/internal/testenv"
)

// as is the URL with another role.
func as(t *testing.T, database, role string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// TestPlainRole looks at a server with a role that is no superuser, and has ever more privileges.
func TestPlainRole(t *testing.T) {
	t.Parallel()
	c, err := testenv.StartCluster(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	empty, full := c.NewDatabase(t, "", nil), c.NewDatabase(t, "", migrate)
	db := open(t, full)
	const hidden = "warning can't be looked at" // sessions of the others here
	both := deployment{work: as(t, empty, "plain"), listen: as(t, empty, "plain")}
	exec(t, db, `CREATE ROLE plain LOGIN`)
	want(t, both.results(t), map[string]string{"schema": "warning", "privileges": "unsafe may not make tables, and there is something"})
	exec(t, open(t, empty), `GRANT CREATE ON SCHEMA public TO plain`)
	want(t, both.results(t), map[string]string{"schema": "warning", "transactions": hidden})

	d := deployment{work: as(t, full, "plain"), listen: full}
	exec(t, db, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO plain`)
	want(t, d.results(t), map[string]string{"privileges": "unsafe DELETE on app_audit, INSERT on app_audit", "transactions": hidden})
	exec(t, db, `GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain`)
	want(t, d.results(t), map[string]string{"privileges": "unsafe USAGE on app_", "transactions": hidden})
	exec(t, db, `GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO plain`, `REVOKE INSERT, UPDATE, DELETE ON coord_migrations FROM plain`)
	want(t, d.results(t), map[string]string{"transactions": hidden})
	d.listen = d.work
	want(t, d.results(t), map[string]string{"privileges": "warning may not make tables, as the next", "transactions": hidden})
	d.listen = full
	exec(t, db, `REVOKE EXECUTE ON FUNCTION coord_fence FROM PUBLIC`)
	want(t, d.results(t), map[string]string{"privileges": "unsafe EXECUTE on coord_fence", "transactions": hidden})
	exec(t, db, `GRANT EXECUTE ON FUNCTION coord_fence TO plain`)

	// What others have elsewhere does not count against the limit of the role.
	for range 4 {
		other, err := open(t, empty).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
	}
	exec(t, db, `CREATE ROLE wide LOGIN IN ROLE plain CONNECTION LIMIT 15`, `CREATE ROLE narrow LOGIN IN ROLE plain CONNECTION LIMIT 9`)
	for role, connections := range map[string]string{"wide": "ok others have 0, and there are 15", "narrow": "unsafe there are 9"} {
		d := deployment{work: as(t, full, role), listen: full, conns: 4}
		want(t, d.results(t), map[string]string{"connections": connections, "transactions": hidden})
	}

	// Who migrates makes tables where nobody works.
	exec(t, db, `CREATE SCHEMA plain AUTHORIZATION plain`)
	d = deployment{work: full, listen: as(t, full, "plain")}
	r := d.results(t)["direct"]
	if !r.Unsafe {
		t.Errorf("two schemas: %+v", r)
	}
}
