package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	folderPrefix = "tandem-pg-"
	lockName     = "owner.lock"
	dataName     = "data"
	logName      = "server.log"

	// sweepAge is how long a folder without a lock file may be in the making.
	sweepAge = 10 * time.Minute
)

// folder is the place of one cluster. The process that made it holds a lock on a file in it
// until it ends, however it ends: a folder that can be locked has no owner any more.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a locked folder below the first usable parent, named after this process.
func newFolder(parents []string, own *account) (*folder, error) {
	var errs []error
	for _, parent := range parents {
		if !reachable(parent, own) {
			errs = append(errs, fmt.Errorf("%s is not open to the server's user", parent))
			continue
		}
		f, err := makeFolder(parent, own)
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no place for the data of a cluster: %w", errors.Join(errs...))
}

func makeFolder(parent string, own *account) (*folder, error) {
	for {
		path, err := os.MkdirTemp(parent, folderPrefix+strconv.Itoa(os.Getpid())+"-")
		if err != nil {
			return nil, err
		}
		lock, err := lockFolder(path, true)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(path))
		}
		if lock == nil {
			continue // another process swept it away before it was locked
		}
		f := &folder{path: path, lock: lock}
		if err := own.chown(path); err != nil {
			f.remove()
			return nil, err
		}
		return f, nil
	}
}

func (f *folder) data() string { return filepath.Join(f.path, dataName) }
func (f *folder) log() string  { return filepath.Join(f.path, logName) }

// remove deletes the folder and then gives the lock up.
func (f *folder) remove() {
	// A backend that is still ending may add a file while the tree is removed.
	for range 50 {
		if os.RemoveAll(f.path) == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = f.lock.Close()
}

// lockFolder locks a folder and returns the lock file, or nil when the folder belongs to
// another process or is no longer there.
func lockFolder(path string, create bool) (*os.File, error) {
	name := filepath.Join(path, lockName)
	flag := os.O_RDWR
	if create {
		flag |= os.O_CREATE
	}
	file, err := os.OpenFile(name, flag, 0o600)
	if errors.Is(err, os.ErrNotExist) && create {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !tryLock(file) {
		return nil, file.Close()
	}
	opened, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if named, err := os.Stat(name); err != nil || !os.SameFile(opened, named) {
		return nil, file.Close()
	}
	return file, nil
}

// sweep removes what processes left behind that were killed before they could.
func sweep(parents []string) {
	for _, parent := range slices.Compact(slices.Clone(parents)) {
		paths, _ := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
		for _, path := range paths {
			sweepFolder(path)
		}
	}
}

func sweepFolder(path string) {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return
	}
	lock, err := lockFolder(path, false)
	if errors.Is(err, os.ErrNotExist) {
		if time.Since(info.ModTime()) > sweepAge {
			_ = os.RemoveAll(path)
		}
		return
	}
	if err != nil || lock == nil {
		return
	}
	f := &folder{path: path, lock: lock}
	for _, pid := range f.pids() {
		endLeftover(pid, f.path)
	}
	f.remove()
}

// pids are the processes that servers have noted in the folder.
func (f *folder) pids() (pids []int) {
	if s, err := readStatus(f.data()); err == nil {
		pids = append(pids, s.pid)
	}
	if text, err := os.ReadFile(filepath.Join(f.path, poolerPid)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// endLeftover ends a server whose owner is gone, if the process is still one of that folder.
// Linux sees to that itself; others do not.
func endLeftover(pid int, folder string) {
	if !commandHas(pid, folder) {
		return
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	for _, signal := range []os.Signal{signalImmediate, os.Kill} {
		_ = process.Signal(signal)
		for range 100 {
			if !commandHas(pid, folder) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

type status struct {
	pid   int
	state string
}

// The states of a server that has started.
const (
	statusReady   = "ready"
	statusStandby = "standby" // it takes no connections as long as it is one
)

// readStatus reads what a running server says of itself in its data folder.
func readStatus(data string) (status, error) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return status{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return status{}, err
	}
	s := status{pid: pid}
	if len(lines) > 7 {
		s.state = strings.TrimSpace(lines[7])
	}
	return s, nil
}

// tail returns the last lines of a server's log, for an error message.
func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
