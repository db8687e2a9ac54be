package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
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
	// Who only looks is asked once, and asks nobody to wait.
	lookTimeout = 2000 // milliseconds
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
	idle bool        // OpenReadOnly found a write-ahead log that nobody uses
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
	if db.Write, err = openPool(dataSource(full, url.Values{"_txlock": {"immediate"}}), 1); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	if db.Read, err = openPool(dataSource(full, url.Values{"_query_only": {"on"}}), readConns); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, errors.Join(err, db.Write.Close()))
	}
	if db.file, err = os.Stat(full); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, errors.Join(err, db.Close()))
	}
	return db, nil
}

// OpenReadOnly opens the file at path for reading alone: its Write is nil. It makes no file and changes
// none, and puts none beside it, unless a process that was killed has left its write-ahead log there.
// The error is [fs.ErrNotExist] when there is no file. It is for a brief look: of a process that begins
// to write only now, the look may miss something. This process must not have the file open otherwise,
// whose locks would be lost.
func OpenReadOnly(path string) (*DB, error) {
	full, err := filepath.Abs(path)
	if err == nil {
		full, err = filepath.EvalSymlinks(full) // beside the file itself is its log
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	db := &DB{path: full}
	settings := url.Values{"mode": {"ro"}, "_pragma": {
		"busy_timeout(" + strconv.Itoa(lookTimeout) + ")",
		"temp_store(memory)",
	}}
	if db.idle = logged(full) && !exists(full+"-wal"); db.idle {
		// To read it as it is SQLite would put an empty log beside it, which it could not take away
		// again. Who has such a file open has a log, so that nobody does.
		settings.Set("immutable", "1")
	}
	if db.Read, err = openPool(source(full, settings), readConns); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	return db, nil
}

// logged reports whether the file says of itself that it has a write-ahead log.
func logged(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	head := make([]byte, 20) // the last two are the versions of the format for writers and for readers
	_, err = io.ReadFull(file, head)
	return err == nil && head[18] == 2 && head[19] == 2
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
	if db.Write == nil {
		return db.Read.Close()
	}
	return errors.Join(db.Read.Close(), db.Write.Close()) // the last may have to write
}

func openPool(source string, conns int) (*bun.DB, error) {
	c, err := engine.NewConnector(source)
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

// dataSource names a file, and what each connection to it sets.
func dataSource(path string, settings url.Values) string {
	settings["_pragma"] = []string{
		"busy_timeout(" + strconv.Itoa(busyTimeout) + ")",
		"foreign_keys(on)",
		"journal_mode(wal)",
		"journal_size_limit(" + strconv.Itoa(logLimit) + ")",
		"synchronous(full)",
		"temp_store(memory)",
	}
	return source(path, settings)
}

// source names a file and settings as a URI: the only form in which a file name may hold any character.
func source(path string, settings url.Values) string {
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
