package migrations

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"
	"testing/fstest"
)

// further is all there is of a set and more migrations, numbered on.
func further(t *testing.T, d Dialect, set Set, texts ...string) (all fstest.MapFS, first int64) {
	t.Helper()
	all = upTo(t, d, set, "9999")
	now, err := newest(files, d, set)
	if err != nil {
		t.Fatal(err)
	}
	all = maps.Clone(all)
	for i, text := range texts {
		name := fmt.Sprintf("%04d_more.sql", now+int64(i)+1)
		all[path.Join(string(d), string(set), name)] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + text + "\n-- +goose Down\nSELECT 1;\n")}
	}
	return all, now + 1
}

// A program works on a database that later ones have migrated, and on none that lacks something,
// and on none from which something was taken away that it needs.
func TestFits(t *testing.T) {
	both(t, func(t *testing.T, d Dialect) {
		db, _ := fresh(t, d)
		check := func(when string, want error) {
			t.Helper()
			if err := Fits(t.Context(), db, d, sets...); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", when, err, want)
			}
		}
		check("an empty database", ErrBehind)
		mustUp(t, db, d, Coord)
		check("without the application's tables", ErrBehind)
		mustUp(t, db, d, App)
		check("up to date", nil)

		expand := `CREATE TABLE app_more (id bigint); ALTER TABLE app_rooms ADD COLUMN more text;`
		later, number := further(t, d, App, expand)
		if _, err := up(t.Context(), db, d, later, App); err != nil {
			t.Fatal(err)
		}
		check("after it was expanded", nil)
		if done, err := Up(t.Context(), db, d, sets...); err != nil || len(done) > 0 {
			t.Errorf("Up of the version before: %v, %v", done, err)
		}
		later, _ = further(t, d, App, expand, fmt.Sprintf(`CREATE TABLE app_floor (version bigint NOT NULL);
			INSERT INTO app_floor VALUES (%d); ALTER TABLE app_rooms DROP COLUMN description;`, number))
		if _, err := up(t.Context(), db, d, later, App); err != nil {
			t.Fatal(err)
		}
		check("after it was contracted", ErrContracted)
		_, err := Up(t.Context(), db, d, sets...)
		if !errors.Is(err, ErrContracted) || !strings.Contains(err.Error(), fmt.Sprintf("version %d, and %d is needed", number-1, number)) {
			t.Errorf("Up of the version before: %v, want ErrContracted with the versions", err)
		}
		if err := fits(t.Context(), db, d, later, []Set{App}); err != nil {
			t.Errorf("the version that contracted it: %v", err)
		}
	})
}
