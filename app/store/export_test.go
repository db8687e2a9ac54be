package store

import (
	"context"
	"fmt"
	"strings"
)

// Plans are how the database does what people wait for whenever they open a page.
func (s *Store) Plans(ctx context.Context, explain string, user User, room int64) (map[string]string, error) {
	plans := make(map[string]string)
	for name, statement := range map[string]struct {
		text string
		args []any
	}{
		"MyRooms":  {myRooms, []any{user.ID, true}},
		"Messages": {pageOfMessages, []any{room, int64(maxID), 51}},
		"MarkRead": {markRead, []any{user.ID, room, int64(maxID)}},
	} {
		rows, err := query[map[string]any](ctx, s.write, explain+statement.text, statement.args...)
		if err != nil {
			return nil, err
		}
		var plan strings.Builder
		for _, row := range rows {
			for _, column := range []string{"detail", "QUERY PLAN"} { // SQLite's and PostgreSQL's
				if text, ok := row[column]; ok {
					_, _ = fmt.Fprintf(&plan, "%s\n", text)
				}
			}
		}
		plans[name] = plan.String()
	}
	return plans, nil
}

// Execute is for what no method does.
func (u Unit) Execute(ctx context.Context, text string, args ...any) error {
	_, err := exec(ctx, u.db, text, args...)
	return err
}
