package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ShiftedPostgres makes a folder with programs initdb and postgres, for Options.BinDir of package
// testenv, whose server has a wall clock that is ahead of the machine's, or behind it, by whole
// seconds. It takes package libfaketime. remove removes the folder.
func ShiftedPostgres(bindir string, ahead time.Duration) (dir string, remove func(), err error) {
	libraries, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libraries) == 0 {
		return "", nil, errors.New("libfaketime was not found: install it (Debian, Ubuntu: apt-get install libfaketime)")
	}
	if dir, err = os.MkdirTemp("", "tandem-rig-clock-"); err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	scripts := map[string]string{
		"initdb": fmt.Sprintf("exec %q \"$@\"\n", filepath.Join(bindir, "initdb")),
		"postgres": fmt.Sprintf("export LD_PRELOAD=%q FAKETIME=%+d FAKETIME_DONT_FAKE_MONOTONIC=1\nexec %q \"$@\"\n",
			libraries[0], int(ahead.Seconds()), filepath.Join(bindir, "postgres")),
	}
	err = os.Chmod(dir, 0o755) // the server has a user of its own
	for name, text := range scripts {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755)) //nolint:gosec // it is to be run
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	return dir, remove, nil
}
