package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	engine "modernc.org/sqlite"
)

const (
	// openTimeout is how long opening waits for other processes, which keep the
	// whole file to themselves only for moments.
	openTimeout = 30 * time.Second
	// SQLite's own waiting for a lock grows to pauses of 100 ms, in which a process
	// that writes without a break always wins. So it gives up early, and is asked
	// again.
	busyTimeout = 50 // milliseconds
	busyPause   = 2 * time.Millisecond
	readConns   = 8
	// To this the write-ahead log is cut back after somebody who read for long has
	// kept it growing.
	logLimit = 16 << 20 // bytes
)

// DB is a file and the two pools on it. The coordination and the application's
// own rows may share one.
type DB struct {
	// Write is one connection. Its transactions take the file's writer lock as
	// they begin, so that none can fail half way for want of it.
	Write *bun.DB
	// Read is several connections, which can't write and wait for no writer.
	Read *bun.DB

	path string
	file os.FileInfo // what was at path when OpenDB opened it
}

// OpenDB opens the file at path, which is created, for its owner alone, if it is
// missing; its folder must exist. Any file name will do, with one exception: ":memory:" is refused,
// as two pools would be two databases.
func OpenDB(path string) (*DB, error) {
	if path == "" || path == ":memory:" {
		return nil, fmt.Errorf("%q is not a file; for a store in memory use the memory driver", path)
	}
	full, err := filepath.Abs(path)
	if strings.ContainsRune(full, 0) {
		err = errors.New("no file name holds a zero byte")
	}
	if err == nil {
		_, err = os.Stat(filepath.Dir(full))
	}
	if err == nil {
		err = create(full)
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	db := &DB{path: full}
	if db.Write, err = openPool(full, 1, url.Values{"_txlock": {"immediate"}}); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	if db.Read, err = openPool(full, readConns, url.Values{"_query_only": {"on"}}); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, errors.Join(err, db.Write.Close()))
	}
	if db.file, err = os.Stat(full); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, errors.Join(err, db.Close()))
	}
	return db, nil
}

// create makes the file, if it is missing, readable by its owner alone, and so
// are the files that SQLite puts beside it.
func create(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrPermission) {
		return nil // what is there may be read-only; SQLite will say
	}
	if err != nil {
		return err
	}
	return file.Close()
}

// inPlace reports whether the path still names the file. What is written to a
// file that was deleted or replaced is lost, and SQLite does not notice.
func (db *DB) inPlace() error {
	if db.file == nil { // the pools are the caller's own
		return nil
	}
	file, err := os.Stat(db.path)
	if err == nil && !os.SameFile(file, db.file) {
		err = fmt.Errorf("%s is another file than the one that was opened", db.path)
	}
	return err
}

// Close closes both pools.
func (db *DB) Close() error {
	return errors.Join(db.Read.Close(), db.Write.Close()) // the last may have to write
}

func openPool(path string, conns int, settings url.Values) (*bun.DB, error) {
	c, err := engine.NewConnector(dataSource(path, settings))
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	if err := untilFree(ctx, func() error { return db.PingContext(ctx) }); err != nil {
		return nil, errors.Join(storeError(context.WithoutCancel(ctx), err), db.Close())
	}
	return bun.NewDB(db, sqlitedialect.New()), nil
}

// dataSource names a file, and what each connection to it sets, as a URI: the
// only form in which a file name may hold any character.
func dataSource(path string, settings url.Values) string {
	settings["_pragma"] = []string{
		"busy_timeout(" + strconv.Itoa(busyTimeout) + ")",
		"foreign_keys(on)",
		"journal_mode(wal)",
		"journal_size_limit(" + strconv.Itoa(logLimit) + ")",
		"synchronous(full)",
		"temp_store(memory)",
	}
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") { // a drive of Windows
		path = "/" + path
	}
	file := url.URL{Scheme: "file", Path: path, RawQuery: settings.Encode()}
	return file.String()
}

// untilFree calls try until the file is not busy any more or ctx is done.
func untilFree(ctx context.Context, try func() error) error {
	for {
		err := try()
		if !busy(err) {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
}
