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
)

// DB is a file and the two pools on it. The coordination and the application's
// own rows may share one.
type DB struct {
	// Write is one connection. Its transactions take the file's writer lock as
	// they begin, so that none can fail half way for want of it.
	Write *bun.DB
	// Read is several connections, which can't write and wait for no writer.
	Read *bun.DB
}

// OpenDB opens the file at path, which is created if it is missing; its folder
// must exist. Any file name will do, with one exception: ":memory:" is refused,
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
	if err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	db := &DB{}
	if db.Write, err = openPool(full, 1, url.Values{"_txlock": {"immediate"}}); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	if db.Read, err = openPool(full, readConns, url.Values{"_query_only": {"on"}}); err != nil {
		return nil, fmt.Errorf("%s can't be opened: %w", path, errors.Join(err, db.Write.Close()))
	}
	return db, nil
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
