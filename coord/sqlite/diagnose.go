package sqlite

import (
	"context"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Diagnosis looks at what backends share, without being one: it starts nothing, and stores
// nothing.
type Diagnosis struct {
	DB *DB
}

// Members is [coord.Directory].Members. In a file without the schema there are none.
func (d Diagnosis) Members(ctx context.Context) ([]coord.MemberInfo, error) {
	list, err := directory{d.backend()}.Members(ctx)
	return list, unlessEmpty(err)
}

// Leaders is [coord.Elector].Leaders. In a file without the schema there are none.
func (d Diagnosis) Leaders(ctx context.Context) ([]coord.Leadership, error) {
	list, err := elector{d.backend()}.Leaders(ctx)
	return list, unlessEmpty(err)
}

func (d Diagnosis) backend() *backend { return &backend{db: d.DB, o: Options{Now: time.Now}} }

// unlessEmpty takes the lack of a table for a lack of rows. SQLite has no code for it.
func unlessEmpty(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such table") {
		return nil
	}
	return err
}
