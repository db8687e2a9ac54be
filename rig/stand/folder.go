package stand

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const folderPrefix = "tandem-rig-"

// newFolder makes a temporary folder of this process, and removes those of processes that were killed before they could.
func newFolder() (string, error) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	for _, path := range left {
		owner, _, ok := strings.Cut(strings.TrimPrefix(filepath.Base(path), folderPrefix), "-")
		if pid, err := strconv.Atoi(owner); ok && err == nil && !runs(pid) {
			_ = os.RemoveAll(path)
		}
	}
	return os.MkdirTemp("", folderPrefix+strconv.Itoa(os.Getpid())+"-")
}

// runs reports whether there is a process of that number.
func runs(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}
