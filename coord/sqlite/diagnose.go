package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
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

// Ring is [coord.Keyring].Load of a ring of which nothing is known.
func (d Diagnosis) Ring(ctx context.Context, name string) (coord.Ring, error) {
	return keyring{d.backend()}.Load(ctx, coord.Ring{Name: name})
}

// Journal returns the SQLite version and the journal mode of the file.
func (d Diagnosis) Journal(ctx context.Context) (version, mode string, err error) {
	err = d.DB.Read.QueryRowContext(ctx, `SELECT sqlite_version(), journal_mode FROM pragma_journal_mode`).Scan(&version, &mode)
	if d.DB.idle { // which SQLite does not say of a file that it takes for immutable
		mode = "wal"
	}
	return version, mode, err
}

// Writable reports by the permissions whether this process could write to the file, to those of its
// write-ahead log, and to the folder, where SQLite makes these.
func (d Diagnosis) Writable() error {
	for _, path := range []string{d.DB.path, d.DB.path + "-wal", d.DB.path + "-shm", filepath.Dir(d.DB.path)} {
		if err := mayWrite(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "write to", Path: path, Err: err}
		}
	}
	return nil
}

func (d Diagnosis) backend() *backend { return &backend{db: d.DB, o: Options{Now: time.Now}} }

// unlessEmpty takes the lack of a table for a lack of rows. SQLite has no code for it.
func unlessEmpty(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such table") {
		return nil
	}
	return err
}
